"""DynamoDB's exact changes: each says, as a whole, what must be as it was and what it writes."""

from typing import Any

import pytest

from incumbent.frozen import replace
from incumbent.providers.dynamodb import item, traces
from incumbent.providers.dynamodb.attributes import typed
from incumbent.providers.dynamodb.change import Change
from incumbent.rules import Ended, Stored, TenureEnd
from incumbent.values import Origin
from tests.unit.expressions import lines

NOW_MS = 5_000
ONE, TWO, THREE = (
    Stored(id=f"m{n}", body=f"[{n}]", claimed_by="S", promised=True, stored_ms=n, due_ms=0) for n in (1, 2, 3)
)
LEFT = Ended(id="m0", claimed_by="S", at_ms=50, outcome="handled", fence=3)
LEASE: dict[str, Any] = {"holder": {"S": "A"}, "expires": {"N": "9000"}, "since": {"N": "4000"}}


def record(**attributes: Any) -> item.Record:
    """A lease item that was read: of an owner, unless it says otherwise."""
    said: dict[str, Any] = {"pk": "x#k", "sk": "lease", "v": 1, "fence": 4, "orphan_since": 9_020, **attributes}
    found = {name: value if isinstance(value, dict) else typed(value) for name, value in said.items()}
    return item.decode(found, key="k", names=("A", "S", "m0"))


def stored(*messages: Stored) -> dict[str, Any]:
    """The attribute ``mail``."""
    return {"L": [typed(item.fields(each, head=place == 0)) for place, each in enumerate(messages)]}


def owned(*messages: Stored, stop: str | None = None, **more: Any) -> item.Record:
    """The record of a key with an owner and messages, of which the head was delivered."""
    lease = LEASE if stop is None else {**LEASE, "stop": {"S": stop}}
    mail: dict[str, Any] = {"mail": stored(*messages), "given": 4, "orphan_shard": "x#3"} if messages else {}
    known = {"known": item.known(messages, ())} if messages else {}
    return record(lease={"M": lease}, **mail, **known, **more)


def free(*messages: Stored, **more: Any) -> item.Record:
    """The record of a key without an owner."""
    mail: dict[str, Any] = {"mail": stored(*messages), "orphan_shard": "x#3"} if messages else {}
    known = {"known": item.known(messages, ())} if messages else {}
    return record(**mail, **known, **{"left": "r:VZrq0IJk1X::4500", "orphan_since": 4_500, **more})


def change(before: item.Record, *, flags: dict[str, Any] | None = None, **changed: Any) -> list[str]:
    """Show the change of a record to what its state is with these differences."""
    new = replace(before.state, **changed)
    return lines(Change(record=before, new=new, shard="x#3", skew_ms=20, **(flags or {})).update(NOW_MS).request())


def given(message: Stored, fence: int = 5) -> Stored:
    """The message in its first run."""
    return replace(message, attempts=message.attempts + 1, delivered_fence=fence)


def granted(owner: str = "B", fence: int = 5) -> dict[str, Any]:
    """What a grant changes."""
    return {"owner": owner, "expires_ms": NOW_MS + 300, "since_ms": NOW_MS, "fence": fence, "tenure_end": None}


def freed(how: Any = "settled") -> dict[str, Any]:
    """What the end of a tenure changes."""
    end = TenureEnd(how=how, owner="A", successor=None, fence=4)
    return {"owner": None, "expires_ms": NOW_MS, "since_ms": NOW_MS, "tenure_end": end, "stop": None, "note": None}


HELD: dict[str, Any] = {"held": True}


def test_first_grant() -> None:
    """There is no record."""
    fresh = granted()
    origin = Origin(keyspace="orders", target="f", request_id="r", log_stream="l")
    assert change(item.NO_RECORD, mail=(given(ONE),), origin=origin, **fresh) == [
        "IF attribute_not_exists(pk)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(mail[0])",
        "SET v = 1",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET keyspace = 'orders'",
        "SET target = 'f'",
        "SET request_id = 'r'",
        "SET log_stream = 'l'",
        "SET mail = [(id='m1' body='[1]' by='jeCzxH8RLF' promised=True stored=1)]",
        "SET given = 5",
        "SET orphan_shard = 'x#3'",
        "SET orphan_since = 5320",
        "REMOVE expires_on",
        "ADD known {yg3}",
        "ALL_NEW",
    ]


def test_grant_of_a_free_key() -> None:
    """With a message that waited, and one that came."""
    assert change(free(ONE), mail=(given(ONE), TWO), **granted()) == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET mail[1] = (id='m2' body='[2]' by='jeCzxH8RLF' promised=True stored=2)",
        "SET given = 5",
        "SET orphan_since = 5320",
        "REMOVE left",
        "REMOVE expires_on",
        "ADD known {KcG}",
        "ALL_NEW",
    ]


def test_grant_after_an_expired_lease() -> None:
    """What died with its run goes behind the others; the mark and the note are gone (M6)."""
    before = owned(ONE, TWO, not_before="90:6000:why", edits=7)
    died = replace(given(ONE, 4), delivered_fence=0, due_ms=6_000)
    assert change(before, mail=(given(TWO), died), block=True, pauses_ms=(5,), **granted()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires = 9000",
        "IF edits = 7",
        "IF not_before = '90:6000:why'",
        "IF mail[0].id = 'm1'",
        "IF mail[1].id = 'm2'",
        "IF edits = 7",
        "IF attribute_exists(mail[1])",
        "IF attribute_not_exists(mail[2])",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET policy = 'b5'",
        "SET not_before = '0:6000:why'",
        "SET mail = [(id='m2' body='[2]' by='jeCzxH8RLF' promised=True stored=2)",
        "  (id='m1' body='[1]' by='jeCzxH8RLF' promised=True stored=1 attempts=1 due=6000)]",
        "SET given = 5",
        "SET orphan_since = 5320",
        "REMOVE expires_on",
        "ALL_NEW",
    ]


def test_grant_that_buries_the_head() -> None:
    """M6."""
    assert change(owned(ONE, TWO), mail=(given(TWO),), ended=(LEFT,), **granted()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires = 9000",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF mail[0].id = 'm1'",
        "IF mail[1].id = 'm2'",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET given = 5",
        "SET known = {5CI KcG}",
        "SET orphan_since = 5320",
        "REMOVE mail[0]",
        "REMOVE expires_on",
        "ADD ended {h5CI-0g1-pXQKMm4rjeCzxH8RLFAAAAAAAADAAAAAAy}",
        "ALL_NEW",
    ]


def test_settle_that_goes_on() -> None:
    """Passing the key on depends on no later message."""
    end = TenureEnd(how="moved", owner="A", successor="B", fence=5)
    before = owned(ONE, TWO, ended=frozenset({traces.trace_text(LEFT)}))
    left = (LEFT, replace(LEFT, id="m1", fence=4, at_ms=NOW_MS))
    new = {**granted(), "tenure_end": end}
    assert change(before, flags=HELD, mail=(given(TWO),), ended=left, **new) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF mail[0].id = 'm1'",
        "IF mail[1].id = 'm2'",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET left = 'm:VZrq0IJk1X:335w5QIVRP'",
        "SET left_fence = 5",
        "SET given = 5",
        "SET orphan_since = 5320",
        "REMOVE mail[0]",
        "REMOVE expires_on",
        "ADD known {5CI}",
        "ADD ended {hyg3yyVqhRMHQ_y_zjeCzxH8RLFAAAAAAAAEAAAABOI}",
        "ALL_NEW",
    ]


def test_settle_that_frees_an_empty_key() -> None:
    """Nothing may have come."""
    left = (replace(LEFT, id="m1", fence=4, at_ms=NOW_MS),)
    assert change(owned(ONE), flags={**HELD, "closes": True}, mail=(), ended=left, **freed()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "REMOVE orphan_shard",
        "REMOVE mail",
        "REMOVE lease",
        "REMOVE given",
        "ADD ended {hyg3yyVqhRMHQ_y_zjeCzxH8RLFAAAAAAAAEAAAABOI}",
        "ALL_NEW",
    ]


def test_settle_that_frees_a_key_with_a_pause() -> None:
    """The orphans' index hides it until then."""
    waits = replace(given(ONE, 4), due_ms=8_000, error="no")
    assert change(owned(ONE, stop="why"), flags={**HELD, "closes": True}, mail=(waits,), **freed()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF lease.stop = 'why'",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET mail[0].error = 'no'",
        "SET head = '1:8000'",
        "SET orphan_since = 8000",
        "REMOVE lease",
        "ALL_NEW",
    ]


def test_settle_that_hides_a_key() -> None:
    """Nothing may have come, or the orphans' index would hide that too."""
    waits = replace(given(ONE, 4), due_ms=8_000, error="no", delivered_fence=0)
    found = change(owned(ONE), flags=HELD, mail=(waits,), block=True, **freed())
    assert found[7:9] == ["IF attribute_exists(mail[0])", "IF attribute_not_exists(mail[1])"]


def test_cancel_of_the_only_message_beside_an_owner() -> None:
    """M19: nothing may have come, since the list is removed."""
    before = record(lease={"M": LEASE}, mail=stored(ONE), orphan_shard="x#3", known=item.known((ONE,), ()))
    assert change(before, flags={"beside": True}, mail=()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "REMOVE orphan_shard",
        "REMOVE mail",
        "ADD edits 1",
        "DELETE known {yg3}",
        "ALL_NEW",
    ]


def test_settle_that_frees_a_key_with_what_is_due() -> None:
    """It may be more by then."""
    assert change(owned(ONE, TWO), flags=HELD, mail=(TWO,), **freed()) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF mail[0].id = 'm1'",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "REMOVE mail[0]",
        "REMOVE lease",
        "REMOVE given",
        "DELETE known {yg3}",
        "ALL_NEW",
    ]


def test_settle_with_a_hold_and_a_page() -> None:
    """M15: it frees the key until then."""
    older = replace(LEFT, id="m9", fence=2)
    before = owned(
        ONE, TWO, ended=frozenset(map(traces.trace_text, (older, LEFT))), past=("ab",) + ("c",) * 63, rare="abc"
    )
    new = {**freed(), "held_until_ms": 9_000, "held_reason": "gap"}
    moved = traces.moved_into_page(before.item, before.state.ended)
    assert change(before, flags={**HELD, "moved": moved}, mail=(TWO,), **new) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(resumed)",
        "IF attribute_exists(mail[0])",
        "IF mail[0].id = 'm1'",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET not_before = '0:9000:gap'",
        "SET past[44] = 'cM'",
        "SET past[57] = 'cP'",
        "SET orphan_shard = 'x#3'",
        "SET orphan_since = 5000",
        "REMOVE mail[0]",
        "REMOVE lease",
        "REMOVE given",
        "DELETE known {yg3}",
        "DELETE ended {h5CI-0g1-pXQKMm4rjeCzxH8RLFAAAAAAAADAAAAAAy hs69WD_rwcZGNjWTWjeCzxH8RLFAAAAAAAACAAAAAAy}",
        "ALL_NEW",
    ]


def test_release() -> None:
    """R5: of a key with messages, and of one without."""
    assert change(owned(ONE, TWO), flags={**HELD, "beside": False}, **freed("released")) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "SET left = 'r:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "REMOVE lease",
        "ALL_NEW",
    ]
    assert change(owned(), flags={**HELD, "closes": True}, **freed("released")) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(mail[0])",
        "SET left = 'r:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "REMOVE lease",
        "ALL_NEW",
    ]


def test_renewal_with_a_note() -> None:
    """It touches no message, and no index."""
    assert change(owned(ONE), flags=HELD, expires_ms=9_300, note='"x"') == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF lease.expires <= 9300",
        "SET lease.expires = 9300",
        "SET lease.note = '\"x\"'",
        "ALL_NEW",
    ]


def test_stop() -> None:
    """M16: the first mark stands."""
    assert change(owned(ONE), flags={"beside": True}, stop="") == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "SET lease.stop = if_not_exists(lease.stop, True)",
        "ALL_NEW",
    ]


def test_message_behind_an_owner() -> None:
    """M1."""
    assert change(owned(ONE), flags={"beside": True}, mail=(given(ONE, 4), TWO)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "SET mail[1] = (id='m2' body='[2]' by='jeCzxH8RLF' promised=True stored=2)",
        "ADD edits 1",
        "ADD known {KcG}",
        "ALL_NEW",
    ]


def test_message_on_a_free_key() -> None:
    """M14: it is due later."""
    assert change(free(), mail=(replace(ONE, due_ms=8_000),)) == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(mail[0])",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(mail[0])",
        "SET mail = [(id='m1' body='[1]' by='jeCzxH8RLF' promised=True stored=1)]",
        "SET given = 0",
        "SET head = '0:8000'",
        "SET orphan_shard = 'x#3'",
        "SET orphan_since = 8000",
        "ADD edits 1",
        "ADD known {yg3}",
        "ALL_NEW",
    ]
    assert change(free(replace(TWO, due_ms=9_000)), mail=(replace(TWO, due_ms=9_000), replace(ONE, due_ms=8_000))) == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm2'",
        "SET mail[1] = (id='m1' body='[1]' by='jeCzxH8RLF' promised=True stored=1 due=8000)",
        "SET given = 0",
        "SET head = '0:9000'",
        "ADD edits 1",
        "ADD known {yg3}",
        "ALL_NEW",
    ]


def test_promise() -> None:
    """M3: of a message that is stored."""
    bare = replace(TWO, promised=False)
    assert change(owned(ONE, bare), flags={"beside": True}, mail=(given(ONE, 4), TWO)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF mail[1].id = 'm2'",
        "SET mail[1].promised = True",
        "ADD edits 1",
        "ALL_NEW",
    ]


def test_take() -> None:
    """M2: all that are due, so that none may have come since, unless that never ends."""
    mail = (given(ONE, 4), given(TWO, 4))
    assert change(owned(ONE, TWO), flags=HELD, expires_ms=9_300, mail=mail) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(edits)",
        "IF attribute_exists(mail[1])",
        "IF attribute_not_exists(mail[2])",
        "IF lease.expires <= 9300",
        "IF mail[1].id = 'm2'",
        "SET lease.expires = 9300",
        "SET mail[1].attempts = 1",
        "SET mail[1].given = 4",
        "ADD edits 1",
        "ALL_NEW",
    ]
    late = change(owned(ONE, TWO), flags={**HELD, "late": True}, expires_ms=9_300, mail=mail)
    assert [each for each in late if "exists(mail" in each] == []


def test_cancel_of_the_last_message() -> None:
    """M19: TTL may take the record then."""
    left = (replace(LEFT, id="m1", outcome="cancelled", at_ms=NOW_MS),)
    assert change(free(ONE), flags={"beside": True}, mail=(), ended=left) == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "REMOVE orphan_shard",
        "REMOVE mail",
        "ADD edits 1",
        "ADD ended {cyg3yyVqhRMHQ_y_zjeCzxH8RLFAAAAAAAADAAAABOI}",
        "ALL_NEW",
    ]


def test_cancel_of_the_last_message_of_a_burst() -> None:
    """M15: the index has held keys without messages, and no others."""
    found = change(free(ONE, not_before="6000:0:"), flags={"beside": True}, mail=())
    assert {"REMOVE orphan_shard", "SET orphan_since = 5000"} < {*found}
    found = change(free(ONE, not_before="6000:7000:"), flags={"beside": True}, mail=())
    assert "REMOVE orphan_shard" not in found
    assert "SET orphan_since = 253402300799000" in found


def test_what_is_over_of_a_hold_goes_with_a_tenure() -> None:
    """M15: and what is not over stays."""
    for before, line in (("90:6000:why", "SET not_before = '0:6000:why'"), ("90:4000:why", "REMOVE not_before")):
        assert line in change(owned(ONE, not_before=before), flags=HELD, mail=(), **freed())
        assert line in change(owned(ONE, not_before=before), flags=HELD, mail=(given(ONE),), **granted())


def test_cancel_of_one_of_several() -> None:
    """M19: the others keep their order."""
    assert change(owned(ONE, TWO, THREE), flags={"beside": True}, mail=(given(ONE, 4), THREE)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF mail[1].id = 'm2'",
        "REMOVE mail[1]",
        "ADD edits 1",
        "DELETE known {KcG}",
        "ALL_NEW",
    ]


def test_hold_and_resume() -> None:
    """M15: a key without messages is in the index as long as it is held."""
    hold = change(free(), flags={"beside": True}, held_until_ms=9_000, held_reason="why")
    assert hold == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(resumed)",
        "IF attribute_not_exists(mail[0])",
        "SET not_before = '0:9000:why'",
        "SET orphan_shard = 'x#3'",
        "SET orphan_since = 253402300799000",
        "SET expires_on = 1296009",
        "ALL_NEW",
    ]
    before = free(ONE, not_before="0:9000:why", resumed="c0")
    new = {"held_until_ms": 0, "held_reason": None}
    assert change(before, flags={"beside": True, "resumed": "c1"}, **new) == [
        "IF v = 1",
        "IF attribute_not_exists(lease)",
        "IF fence = 4",
        "IF attribute_not_exists(edits)",
        "IF not_before = '0:9000:why'",
        "IF resumed = 'c0'",
        "SET resumed = 'c1'",
        "SET orphan_shard = 'x#3'",
        "REMOVE not_before",
        "ALL_NEW",
    ]


def test_transfer() -> None:
    """R6: to a successor."""
    end = TenureEnd(how="transferred", owner="A", successor="B", fence=5)
    waits = replace(given(ONE, 4), delivered_fence=0, due_ms=8_000)
    assert change(owned(ONE), flags=HELD, mail=(waits,), **{**granted(), "tenure_end": end}) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF fence = 4",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(edits)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_exists(mail[0])",
        "IF attribute_not_exists(mail[1])",
        "IF mail[0].id = 'm1'",
        "SET fence = 5",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET left = 't:VZrq0IJk1X:335w5QIVRP'",
        "SET left_fence = 5",
        "SET given = 0",
        "SET head = '1:8000'",
        "SET orphan_since = 5320",
        "REMOVE expires_on",
        "ALL_NEW",
    ]


@pytest.mark.parametrize(("count", "kept"), [(20, 2_048), (21, 128), (100, 128), (101, 32)])
def test_errors_are_shorter_where_there_are_many(count: int, kept: int) -> None:
    """Of a message that comes, of one that has failed, and of the whole list."""
    many = [replace(ONE, id=f"n{n}") for n in range(count)]
    long = "x" * 3_000
    known = item.known(many, ())
    before = record(lease={"M": LEASE}, mail=stored(*many[:-1]), known=known)
    found = change(before, flags={"beside": True}, mail=(*many[:-1], replace(many[-1], error=long)))
    (line,) = [each for each in found if "error" in each]
    assert f"error='{'x' * kept}')" in line
    before = record(lease={"M": LEASE}, mail=stored(*many), known=known)
    found = change(before, flags={"beside": True}, mail=(*many[:-1], replace(many[-1], error=long)))
    assert f"SET mail[{count - 1}].error = '{'x' * kept}'" in found
    found = change(before, flags={"beside": True}, mail=(replace(many[-1], error=long), *many[:-1]))
    (line,) = [each for each in found if "error" in each]
    assert f"error='{'x' * kept}')" in line


def test_whole_list_is_written_where_places_are_too_many() -> None:
    """Foreign attributes of a message stay (M12)."""
    many = [replace(ONE, id=f"n{n}") for n in range(30)]
    mail = stored(*many)
    mail["L"][29]["M"]["color"] = {"S": "red"}
    found = change(
        record(lease={"M": LEASE}, mail=mail, known=item.known(many, ())),
        flags={"beside": True},
        mail=tuple(many[25:]),
    )
    assert [each for each in found if "SET mail" in each or "[24]" in each or "[23]" in each or "color" in each] == [
        "IF mail[23].id = 'n23'",
        "SET mail = [(id='n25' body='[1]' by='jeCzxH8RLF' promised=True stored=1)",
        "  (color='red' id='n29' body='[1]' by='jeCzxH8RLF' promised=True stored=1)]",
    ]
    assert sum(".id = " in each for each in found) == 24
