"""DynamoDB's updates without a read: each says, as a whole, what must be so and what it writes."""

from typing import Any

import pytest

from incumbent.frozen import replace
from incumbent.providers.dynamodb import item, quick
from incumbent.providers.dynamodb.bodies import Reference
from incumbent.rules import BEYOND, Stored
from incumbent.values import Origin, Policy
from tests.unit.expressions import lines

MESSAGE = Stored(id="m", body="[1]", claimed_by="A", promised=True, stored_ms=5, attempts=2, due_ms=7)
ORIGIN = Origin(keyspace="orders", target="f:live", request_id="r1", log_stream="l1")
TIMES: dict[str, Any] = {"ttl_ms": 300, "now_ms": 5_000, "skew_ms": 20}
PLAIN = Policy(pauses_ms=(9,), max_attempts=5)


def claim(message: Stored | None = MESSAGE, owner: str = "A", **changed: Any) -> list[str]:
    """Show the quick claim."""
    given: dict[str, Any] = {"shard": "x#3", "policy": PLAIN, "ticket": None, "as_ticket": False, "origin": None}
    return lines(quick.claim(owner, message, **{**given, **TIMES, **changed}))


def test_acquire() -> None:
    """R2."""
    assert lines(quick.acquire("A", **TIMES)) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF (attribute_not_exists(lease) OR lease.expires <= 4980)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(given)",
        "SET v = 1",
        "SET fence = if_not_exists(fence, 5000000) + 1",
        "SET lease = (holder='A' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "REMOVE left",
        "REMOVE expires_on",
        "UPDATED_NEW",
    ]


def test_renewal() -> None:
    """R4."""
    assert lines(quick.renew("A", 7, ttl_ms=300, now_ms=5_000, shows=False)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF fence = 7",
        "IF lease.expires <= 5300",
        "SET lease.expires = 5300",
        "NONE",
    ]


def test_renewal_with_a_note_that_shows_the_record() -> None:
    """M18."""
    assert lines(quick.renew("A", None, ttl_ms=300, now_ms=5_000, shows=True, note='"x"')) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF lease.expires <= 5300",
        "SET lease.expires = 5300",
        "SET lease.note = '\"x\"'",
        "ALL_NEW",
    ]


def test_release() -> None:
    """R5."""
    assert lines(quick.release("A", now_ms=5_000)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(mail[0])",
        "IF attribute_not_exists(not_before)",
        "SET left = 'r:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "REMOVE lease",
        "NONE",
    ]


def test_transfer() -> None:
    """R6."""
    assert lines(quick.transfer("A", "B", **TIMES)) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF attribute_not_exists(given)",
        "SET left_fence = fence + 1",
        "SET fence = fence + 1",
        "SET left = 't:VZrq0IJk1X:335w5QIVRP'",
        "SET lease = (holder='B' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "NONE",
    ]


def test_claim_with_a_message() -> None:
    """M1."""
    assert claim(origin=ORIGIN) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF (attribute_not_exists(lease) OR lease.expires <= 4980)",
        "IF attribute_not_exists(not_before)",
        "IF NOT contains(tombs, 'VZr')",
        "IF NOT contains(rare, 'VZr')",
        "IF attribute_not_exists(given)",
        "IF attribute_not_exists(mail[99])",
        "IF NOT contains(known, 'YsZ')",
        "IF NOT contains(rare, 'YsZ')",
        "IF NOT contains(past[24], '7')",
        "SET given = if_not_exists(fence, 5000000) + 1",
        "SET policy = '9'",
        "SET v = 1",
        "SET fence = if_not_exists(fence, 5000000) + 1",
        "SET lease = (holder='A' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "SET keyspace = 'orders'",
        "SET target = 'f:live'",
        "SET request_id = 'r1'",
        "SET log_stream = 'l1'",
        "SET mail = list_append(if_not_exists(mail, []), [(id='m' body='[1]' by='VZrq0IJk1X' promised=True stored=5)])",
        "SET orphan_shard = 'x#3'",
        "REMOVE left",
        "REMOVE expires_on",
        "ADD known {YsZ}",
        "UPDATED_NEW",
    ]


def test_claim_of_a_sender() -> None:
    """M4: it notes no policy, and delivers nothing."""
    assert claim(replace(MESSAGE, promised=False), as_ticket=True, origin=Origin(keyspace="orders")) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF (attribute_not_exists(lease) OR lease.expires <= 4980)",
        "IF attribute_not_exists(not_before)",
        "IF NOT contains(tombs, 'VZr')",
        "IF NOT contains(rare, 'VZr')",
        "IF attribute_not_exists(given)",
        "IF attribute_not_exists(mail[99])",
        "IF NOT contains(known, 'YsZ')",
        "IF NOT contains(rare, 'YsZ')",
        "IF NOT contains(past[24], '7')",
        "SET v = 1",
        "SET fence = if_not_exists(fence, 5000000) + 1",
        "SET lease = (holder='A' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "SET keyspace = 'orders'",
        "SET mail = list_append(if_not_exists(mail, []), [(id='m' body='[1]' by='VZrq0IJk1X' stored=5)])",
        "SET orphan_shard = 'x#3'",
        "REMOVE left",
        "REMOVE expires_on",
        "ADD known {YsZ}",
        "UPDATED_NEW",
    ]


def test_claim_without_a_message() -> None:
    """M8."""
    assert claim(None, policy=Policy(pauses_ms=(3, 4), on_error="block")) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF (attribute_not_exists(lease) OR lease.expires <= 4980)",
        "IF attribute_not_exists(not_before)",
        "IF NOT contains(tombs, 'VZr')",
        "IF NOT contains(rare, 'VZr')",
        "IF attribute_not_exists(given)",
        "IF attribute_exists(mail[0])",
        "SET given = if_not_exists(fence, 5000000) + 1",
        "SET policy = 'b3,4'",
        "SET v = 1",
        "SET fence = if_not_exists(fence, 5000000) + 1",
        "SET lease = (holder='A' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "REMOVE left",
        "REMOVE expires_on",
        "ALL_NEW",
    ]


def test_claim_with_a_ticket() -> None:
    """M9."""
    assert claim(None, ticket="T") == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF ((attribute_not_exists(lease) OR lease.expires <= 4980) OR (lease.holder = 'T'",
        "IF lease.expires > 4980))",
        "IF attribute_not_exists(not_before)",
        "IF NOT contains(tombs, 'VZr')",
        "IF NOT contains(rare, 'VZr')",
        "IF attribute_not_exists(given)",
        "IF attribute_exists(mail[0])",
        "SET given = if_not_exists(fence, 5000000) + 1",
        "SET policy = '9'",
        "SET v = 1",
        "SET fence = if_not_exists(fence, 5000000) + 1",
        "SET lease = (holder='A' expires=5300 since=5000)",
        "SET orphan_since = 5320",
        "REMOVE left",
        "REMOVE expires_on",
        "ALL_NEW",
    ]
    assert claim(None, ticket="A") == claim(None)
    assert claim(ticket="T") == claim()


@pytest.mark.parametrize(
    ("policy", "body", "last"),
    [
        (Policy(max_pending=1), "b", 99),
        (Policy(max_pending=1_000), "b", 99),
        (Policy(max_pending=1_000), "b" * 2_048, 3),
        (Policy(max_pending=1_000), "b" * 9_000, 0),
        (Policy(max_pending=1_000), Reference("C"), 99),
    ],
)
def test_messages_for_which_there_is_room_in_any_case(policy: Policy, body: str, last: int) -> None:
    """M7: 100, as many as any policy allows for owners that die, and 8 KiB of them."""
    assert item.FEW <= BEYOND
    found = claim(replace(MESSAGE, body=body), policy=policy)
    assert [each for each in found if "mail[" in each] == [f"IF attribute_not_exists(mail[{last}])"]


def test_message_behind_an_owner() -> None:
    """M1: the owner's own target stays."""
    assert lines(quick.append("A", MESSAGE, shard="x#3", most=4, origin=ORIGIN, now_ms=5_000)) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF (attribute_exists(lease) OR (attribute_not_exists(head)",
        "IF attribute_not_exists(not_before)) OR attribute_not_exists(orphan_since) OR orphan_since <= 5000)",
        "IF NOT contains(tombs, 'VZr')",
        "IF NOT contains(rare, 'VZr')",
        "IF attribute_not_exists(mail[3])",
        "IF NOT contains(known, 'YsZ')",
        "IF NOT contains(rare, 'YsZ')",
        "IF NOT contains(past[24], '7')",
        "SET v = 1",
        "SET orphan_since = if_not_exists(orphan_since, 5000)",
        "SET target = if_not_exists(target, 'f:live')",
        "SET keyspace = if_not_exists(keyspace, 'orders')",
        "SET mail = list_append(if_not_exists(mail, []), [(id='m' body='[1]' by='VZrq0IJk1X' promised=True stored=5)])",
        "SET orphan_shard = 'x#3'",
        "REMOVE expires_on",
        "ADD known {YsZ}",
        "ALL_NEW",
    ]


def test_message_without_a_target_behind_an_owner() -> None:
    """M8: then its keyspace does not matter either."""
    for origin in (None, Origin(keyspace="orders")):
        found = lines(quick.append("A", MESSAGE, shard="x#3", most=4, origin=origin, now_ms=5_000))
        assert [each for each in found if "target" in each or "keyspace" in each] == []
    found = lines(quick.append("A", MESSAGE, shard="x#3", most=4, origin=Origin(target="f"), now_ms=5_000))
    assert [each for each in found if "target" in each or "keyspace" in each] == [
        "SET target = if_not_exists(target, 'f')",
    ]


def test_promise() -> None:
    """M3."""
    assert lines(quick.promise(3, "m", ORIGIN)) == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF mail[3].id = 'm'",
        "SET mail[3].promised = True",
        "SET target = if_not_exists(target, 'f:live')",
        "SET keyspace = if_not_exists(keyspace, 'orders')",
        "ADD edits 1",
        "ALL_NEW",
    ]


def test_promise_without_a_target() -> None:
    """M8."""
    bare = lines(quick.promise(3, "m", None))
    assert bare == lines(quick.promise(3, "m", Origin(keyspace="orders")))
    assert bare == [
        "IF (attribute_not_exists(pk) OR v = 1)",
        "IF mail[3].id = 'm'",
        "SET mail[3].promised = True",
        "ADD edits 1",
        "ALL_NEW",
    ]
    found = lines(quick.promise(3, "m", Origin(target="f")))
    assert found == [*bare[:3], "SET target = if_not_exists(target, 'f')", *bare[3:]]


def settle(outcome: Any, policy: Policy = PLAIN) -> list[str]:
    """Show the quick settle."""
    return lines(quick.settle("A", "m", outcome, fence=7, policy=policy, inline=10, now_ms=5_000))


def test_settle() -> None:
    """M2."""
    assert settle("handled") == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF fence = 7",
        "IF mail[0].id = 'm'",
        "IF mail[0].by = 'VZrq0IJk1X'",
        "IF attribute_not_exists(mail[0].ref)",
        "IF attribute_not_exists(mail[1])",
        "IF attribute_not_exists(lease.stop)",
        "IF (attribute_not_exists(ended) OR size(ended) < 10)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(head)",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "SET policy = '9'",
        "REMOVE orphan_shard",
        "REMOVE mail",
        "REMOVE lease",
        "REMOVE given",
        "ADD ended {hYsZqel3XDDFGYYBjVZrq0IJk1XAAAAAAAAHAAAABOI}",
        "NONE",
    ]


def test_settle_that_drops_what_has_failed() -> None:
    """M3: its claim stores nothing any more, and another may store its id."""
    assert settle("failed", Policy(pauses_ms=(3, 4), on_error="block")) == [
        "IF v = 1",
        "IF lease.holder = 'A'",
        "IF lease.expires > 5000",
        "IF fence = 7",
        "IF mail[0].id = 'm'",
        "IF mail[0].by = 'VZrq0IJk1X'",
        "IF attribute_not_exists(mail[0].ref)",
        "IF attribute_not_exists(mail[1])",
        "IF attribute_not_exists(lease.stop)",
        "IF attribute_not_exists(mail[0].promised)",
        "IF NOT contains(known, '=YsZ')",
        "IF (attribute_not_exists(ended) OR size(ended) < 10)",
        "IF attribute_not_exists(not_before)",
        "IF attribute_not_exists(head)",
        "SET left = 's:VZrq0IJk1X::5000'",
        "SET orphan_since = 5000",
        "SET expires_on = 1296005",
        "SET policy = 'b3,4'",
        "REMOVE orphan_shard",
        "REMOVE mail",
        "REMOVE lease",
        "REMOVE given",
        "ADD ended {fYsZqel3XDDFGYYBjVZrq0IJk1XAAAAAAAAHAAAABOI}",
        "ADD tombs {VZr}",
        "DELETE known {YsZ}",
        "NONE",
    ]


def test_stop() -> None:
    """M16."""
    assert lines(quick.stop(7, "why", now_ms=5_000, skew_ms=20)) == [
        "IF v = 1",
        "IF lease.expires > 4980",
        "IF fence = 7",
        "SET lease.stop = if_not_exists(lease.stop, 'why')",
        "NONE",
    ]


def test_stop_without_a_reason() -> None:
    """M16."""
    assert lines(quick.stop(7, "", now_ms=5_000, skew_ms=20))[3] == "SET lease.stop = if_not_exists(lease.stop, True)"


def test_what_a_key_can_be_for() -> None:
    """An answer of what was written says the rest by what it wrote; one of the whole item says it itself."""
    request = quick.acquire("A", **TIMES)
    answered = {"fence": {"N": "7"}, "orphan_since": {"N": "1"}}
    assert request.item(answered) == {
        "v": {"N": "1"},
        "fence": {"N": "7"},
        "lease": {"M": {"holder": {"S": "A"}, "expires": {"N": "5300"}, "since": {"N": "5000"}}},
        "orphan_since": {"N": "5320"},
    }
    whole = quick.promise(3, "m", None)
    assert whole.item(answered) == answered
