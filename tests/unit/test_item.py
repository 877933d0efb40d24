"""DynamoDB's stored format, attribute by attribute: what is written is read by other versions, too (M12)."""

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import StoredFormatUnknown
from incumbent.frozen import replace
from incumbent.providers.dynamodb import bodies, item, letters, names, traces
from incumbent.providers.dynamodb.attributes import typed
from incumbent.rules import Dead, Ended, KeyState, Stored, TenureEnd
from incumbent.values import Origin, Policy

KEY = "orders/k"
ONE = Stored(id="m1", body="[1]", claimed_by="", promised=True, stored_ms=3, attempts=2, due_ms=9, delivered_fence=7)
TWO = Stored(id="m2", body="{}", claimed_by="S", promised=False, stored_ms=4, attempts=1, due_ms=6, delivered_fence=5)
LEFT = Ended(id="m0", claimed_by="S", at_ms=50, outcome="handled", fence=6)


def item_of(**attributes: Any) -> dict[str, Any]:
    """A lease item."""
    return {"pk": typed("x#orders/k"), "sk": typed("lease"), "v": typed(1)} | {
        name: value if isinstance(value, dict) and len(value) == 1 else typed(value)
        for name, value in attributes.items()
    }


def read(*, known: tuple[str, ...] = ("S", "A", "B", "m0"), pages: tuple[str, ...] = (), **said: Any) -> KeyState:
    """Read a lease item."""
    return item.decode(item_of(**said), key=KEY, names=known, pages=pages).state


def test_item_says_all_of_a_state() -> None:
    """Each attribute has its field."""
    lease: dict[str, Any] = {"holder": "A", "expires": 100, "since": 40, "stop": "hangs", "note": '"step"'}
    state = read(
        lease={"M": typed(lease)["M"]},
        fence=7,
        left_fence=7,
        left=f"m:{names.owner_digest('B')}:{names.owner_digest('A')}",
        mail={
            "L": [
                typed({"id": "m1", "body": "[1]", "promised": True, "stored": 3}),
                typed(item.fields(TWO, head=False)),
            ]
        },
        given=7,
        head="2:9",
        not_before="70:80:why: so",
        ended=frozenset({traces.trace_text(LEFT)}),
        policy="b1,20",
        keyspace="orders",
        target="f:live",
        request_id="r1",
        log_stream="l1",
    )
    assert state == KeyState(
        owner="A",
        expires_ms=100,
        since_ms=40,
        fence=7,
        mail=(ONE, TWO),
        ended=(LEFT,),
        tenure_end=TenureEnd(how="moved", owner="B", successor="A", fence=7),
        block=True,
        pauses_ms=(1, 20),
        origin=Origin(keyspace="orders", target="f:live", request_id="r1", log_stream="l1"),
        quiet_until_ms=70,
        held_until_ms=80,
        held_reason="why: so",
        stop="hangs",
        note='"step"',
    )


def test_item_that_says_nothing() -> None:
    """All is as if there were none, and a free key's moments are those of its end."""
    assert read() == KeyState()
    assert item.decode(None, key=KEY) == item.decode({}, key=KEY) == item.NO_RECORD
    assert not item.NO_RECORD.exists
    assert item.decode(item_of(), key=KEY).exists
    left = f"r:{names.owner_digest('A')}::55"
    end = TenureEnd(how="released", owner="A", successor=None, fence=4)
    assert read(fence=4, left=left) == KeyState(fence=4, expires_ms=55, since_ms=55, tenure_end=end)
    for how, said in (("s", "settled"), ("t", "transferred"), ("m", "moved")):
        found = read(fence=4, left=f"{how}{left[1:]}").tenure_end
        assert found is not None
        assert found.how == said
    lease: Any = {"holder": {"S": "A"}, "expires": {"N": "9"}, "since": {"N": "8"}}
    assert read(fence=4, left=left, left_fence=3, lease={"M": lease}) == KeyState(
        owner="A", fence=4, expires_ms=9, since_ms=8
    )
    assert read(fence=4, lease={"M": {**lease, "stop": {"BOOL": True}}}).stop == ""


@pytest.mark.parametrize("name", ["keyspace", "target", "request_id", "log_stream"])
def test_one_field_of_an_origin_is_an_origin(name: str) -> None:
    """The others were not said."""
    said: dict[str, Any] = {name: "x"}
    assert read(**said) == KeyState(origin=Origin(**said))


def test_names_that_are_not_known_stay_digests() -> None:
    """They are only compared."""
    state = read(known=(), mail={"L": [typed(item.fields(TWO, head=True))]}, ended=frozenset({traces.trace_text(LEFT)}))
    assert state.mail[0].claimed_by == names.owner_digest("S")
    assert (state.ended[0].id, state.ended[0].claimed_by) == (names.digest("m0"), names.owner_digest("S"))
    digests = [state.mail[0].claimed_by, state.ended[0].id, state.ended[0].claimed_by]
    state = read(known=(), fence=4, left=f"m:{names.owner_digest('A')}:{names.owner_digest('B')}:5")
    assert state.tenure_end is not None
    assert (state.tenure_end.owner, state.tenure_end.successor) == (names.owner_digest("A"), names.owner_digest("B"))
    digests += [state.tenure_end.owner, state.tenure_end.successor or ""]
    assert all(isinstance(each, names.Digest) for each in digests)


def test_digest_of_a_digest_is_the_same() -> None:
    """Else a name that was read would become another when it is written."""
    for digest in (names.digest, names.owner_digest):
        assert digest(digest("A")) == digest("A")
        assert digest(str(digest("A"))) != digest("A")


@pytest.mark.parametrize(("after_ms", "kept"), [(-1, True), (0, False), (1_000, False)])
def test_page_is_kept_for_its_window(after_ms: int, kept: bool) -> None:  # noqa: FBT001 - pytest
    """And an hour longer, in whole seconds."""
    page = traces.page_item("x#k", [replace(LEFT, at_ms=5_000), replace(LEFT, at_ms=4_000)], 900_000)
    assert page["expires_on"] == {"N": str(5 + 900 + 3_600)}
    assert traces.is_kept(page, 5_000 + 900_000 + 3_600_000 + after_ms) is kept


def test_message_may_say_that_it_is_not_promised() -> None:
    """As one that says nothing."""
    mail: Any = {"L": [typed({"id": "m1", "body": "[1]", "stored": 3, "promised": said}) for said in (False, True)]}
    assert [each.promised for each in read(mail=mail).mail] == [False, True]


def test_head_of_a_key() -> None:
    """Its delivery stands beside the list; the usual is short."""
    assert item.head_of(item_of()) == (0, 0)
    assert item.head_of(item_of(given=7)) == (1, 0)
    assert item.head_of(item_of(given=7, head="2:9")) == (2, 9)
    assert (item.head_text(1, 0), item.head_text(2, 0), item.head_text(1, 9)) == (None, "2:0", "1:9")
    (head,) = read(mail={"L": [typed(item.fields(ONE, head=True))]}, given=5).mail
    assert head == replace(ONE, attempts=1, due_ms=0, delivered_fence=5)


def test_message_is_written_as_short_as_can_be() -> None:
    """What is false or zero is left out."""
    assert item.fields(ONE, head=True) == {"id": "m1", "body": "[1]", "promised": True, "stored": 3}
    assert item.fields(TWO, head=False) == {
        "id": "m2",
        "body": "{}",
        "by": names.owner_digest("S"),
        "stored": 4,
        "attempts": 1,
        "due": 6,
        "given": 5,
    }
    large = replace(TWO, body=bodies.Reference("C"), attempts=0, due_ms=0, delivered_fence=0)
    assert item.fields(large, head=False) == {"id": "m2", "ref": "C", "by": names.owner_digest("S"), "stored": 4}
    assert item.delivery(TWO) == {"attempts": 1, "due": 6, "given": 5}


@pytest.mark.parametrize(("stored", "kept"), [(0, 2_048), (20, 2_048), (21, 128), (100, 128), (101, 32)])
def test_error_is_shorter_where_there_are_many(stored: int, kept: int) -> None:
    """So that an item has room for all of them."""
    assert item.fields(replace(ONE, error="x" * 3_000), head=True, stored=stored)["error"] == "x" * kept


def test_policy_of_a_key() -> None:
    """What ends a run need not know it."""
    usual = (1_000, 10_000, 60_000, 300_000)
    for policy, said, block, pauses in (
        (Policy(pauses_ms=usual, max_attempts=5), "d", False, usual),
        (Policy(pauses_ms=usual, max_attempts=5, on_error="block"), "bd", True, usual),
        (Policy(pauses_ms=(7, 8), max_attempts=5), "7,8", False, (7, 8)),
        (Policy(pauses_ms=(7, 8), max_attempts=1, on_error="block"), "b7", True, (7,)),
    ):
        assert item.policy_text(policy) == said
        state = read(policy=said)
        assert (state.block, state.pauses_ms) == (block, pauses)
        assert item.policy_text_of(state) == said
    assert item.policy_text_of(KeyState()) is None
    assert item.policy_text_of(KeyState(block=True)) == "b"
    assert read(policy="b").block


def test_how_a_tenure_ended_is_written() -> None:
    """With the moment if the key was freed."""
    one, other = names.owner_digest("A"), names.owner_digest("B")
    assert item.left_text("settled", "A", None, 55) == f"s:{one}::55"
    assert item.left_text("moved", "A", "B") == f"m:{one}:{other}"
    assert item.lease("A", 9, 8) == {"M": {"holder": {"S": "A"}, "expires": {"N": "9"}, "since": {"N": "8"}}}
    assert (item.stop_value("why"), item.stop_value("")) == ("why", True)


def test_hold_and_burst_are_written() -> None:
    """Only what is not over."""
    state = KeyState(quiet_until_ms=70, held_until_ms=80, held_reason="a:b")
    assert item.not_before_text(state) == item.not_before_text(state, 69) == "70:80:a:b"
    assert item.not_before_text(state, 70) == "0:80:a:b"
    assert item.not_before_text(state, 80) is None
    assert item.not_before_text(replace(state, quiet_until_ms=90), 80) == "90:0:"
    assert item.not_before_text(replace(state, held_reason=None)) == "70:80:"
    assert item.not_before_text(KeyState()) is None
    assert [item.is_held(each) for each in (None, "70:0:", "0:80:", "0:0:")] == [False, False, True, False]
    read_again = read(not_before="70:0:")
    assert (read_again.held_reason, read_again.quiet_until_ms) == (None, 70)
    assert read(not_before="0:80:").held_reason == ""


def test_room_of_an_item_is_counted_to_the_byte() -> None:
    """160 KiB, with all that the message brings."""
    message = replace(TWO, body="")
    bare = {"x": typed("")}
    brings = (
        8
        + 3
        + sum(
            len(name) + 1 + (len(value) if isinstance(value, str) else len(str(value)) // 2 + 2)
            for name, value in item.fields(message, head=False).items()
        )
    )
    room = 160 * 1024 - 1 - brings
    assert item.takes(bare, replace(message, body="b" * room))
    assert not item.takes(bare, replace(message, body="b" * (room + 1)))


def test_bodies_within_an_item() -> None:
    """8 KiB of them, and one in any case."""
    large = replace(ONE, body=bodies.Reference("x" * 100))
    assert item.inline_bytes([ONE, TWO, large, replace(ONE, body="é")]) == 3 + 2 + 2
    for size, count in ((1_024, 8), (1_025, 7), (8_192, 1), (9_000, 1), (0, 8_192)):
        assert item.fitting(replace(ONE, body="b" * size)) == count
    assert item.fitting(large) == 8_192


def test_what_short_digests_know() -> None:
    """An id by its digest among the known, a claim among the tombs, either in the pages."""
    record = item.decode(
        item_of(
            known=frozenset({names.short("m1")}),
            tombs=frozenset({names.short("C1")}),
            past=traces.past((), [replace(LEFT, id="m2")]),
            rare=f"{names.short('m3')}|{names.short('C2')}",
        ),
        key=KEY,
    )
    assert [record.may_know(each, "C") for each in ("m1", "m2", "m3", "m9")] == [True, True, True, False]
    assert [record.may_know("m", each) for each in ("C1", "C2", "C9")] == [True, True, False]
    assert record.past_kinds("m2", "C2") == ["handled", "failed"]
    assert record.past_kinds("m3", "C1") == ["dead"]
    assert record.past_kinds("C2", "m2") == []
    assert [record.may_have_paged(*each) for each in (("m1", "C1"), ("m3", "C"), ("m", "C2"))] == [False, True, True]
    assert (record.number("fence"), item.decode(item_of(fence=3), key=KEY).number("fence")) == (0, 3)


def test_marks_of_handled_ids() -> None:
    """One character in one of 64 texts, by nothing but the short digest; and none of it for other kinds."""
    assert [names.mark(each) for each in ("m0", "m2", "m9")] == [(57, "P"), (10, "i"), (44, "M")]
    assert names.mark(names.digest("m2")) == names.mark("m2")
    assert names.mark(str(names.digest("m2"))) != names.mark("m2")  # an id that reads like the digest of another
    one = traces.past((), [replace(LEFT, id="m2", outcome="stopped"), replace(LEFT, outcome="dead"), LEFT])
    assert (one[10], one[57], len(one), "".join(one).replace(".", "")) == ("i", "P", 64, "iP")
    assert traces.past(one, [replace(LEFT, id="m2")]) == one
    same = next(f"m{n}" for n in range(1, 100_000) if names.mark(f"m{n}")[0] == 57)
    assert traces.past(one, [replace(LEFT, id=same)])[57] == f"P{names.mark(same)[1]}"
    chars = {names.mark(f"m{n}")[1] for n in range(5_000)}
    assert len(chars) == 91
    assert not chars & {".", '"', "\\", " "}


def test_rare_traces_in_pages() -> None:
    """The last of each kind, the oldest first; nothing if there are none."""
    died, failed = replace(LEFT, id="m3", outcome="dead"), replace(LEFT, claimed_by="C2", outcome="failed")
    assert traces.rare(None, [LEFT]) is None
    assert traces.rare(None, [died, LEFT]) == names.short("m3")
    assert traces.rare("abc", [failed]) == f"abc|{names.short('C2')}"
    assert traces.rare("|abc", [died, failed]) == f"{names.short('m3')}|abc{names.short('C2')}"
    assert traces.rare("abc" * 256, [died]) == "abc" * 255 + names.short("m3")


def test_known_names_of_a_key() -> None:
    """What waits and what has left for good; a digest that two ids share has a mark beside it."""
    failed = replace(LEFT, id="m7", outcome="failed")
    assert item.known([ONE, TWO], [LEFT, failed]) == {names.short(each) for each in ("m0", "m1", "m2")}
    assert item.shared("abc") == "=abc"
    same = next(f"m{n}" for n in range(1, 2_000_000) if names.short(f"m{n}") == names.short("m0"))
    assert item.known([replace(ONE, id=same)], [LEFT]) == {names.short("m0"), f"={names.short('m0')}"}
    assert item.known([replace(ONE, id="m0")], [LEFT]) == {names.short("m0")}


def test_pages_add_what_is_not_in_the_item() -> None:
    """In order; that a message died which waits again does not count, that it was handled before does."""
    before = replace(LEFT, id="m2", fence=1)
    older, died = replace(LEFT, id="m8", fence=2, at_ms=9), replace(LEFT, id="m2", fence=3, outcome="dead")
    gone = replace(died, id="m9", fence=4)
    texts = tuple(map(traces.trace_text, (gone, died, older, LEFT, before)))
    said: dict[str, Any] = {"ended": frozenset({texts[3]}), "mail": {"L": [typed(item.fields(TWO, head=True))]}}
    record = item.decode(item_of(**said), key=KEY, names=("m0", "m2", "m8", "m9", "S"), pages=texts)
    assert tuple(record.state.ended) == (before, older, gone, LEFT)
    assert record.paged == {before, older, gone}
    assert record.inline((older, LEFT)) == (LEFT,)


@pytest.mark.parametrize(
    "wrong", [{"mail": "x"}, {"not_before": "1"}, {"ended": frozenset({"x"})}, {"policy": "x"}, {"left": "q:1:2:3"}]
)
def test_item_of_another_shape_is_left_alone(wrong: dict[str, Any]) -> None:
    """M12: the error names the key."""
    with pytest.raises(StoredFormatUnknown, match="the record of key 'orders/k' has a shape that version 1") as raised:
        item.decode(item_of(**wrong), key=KEY)
    assert raised.value.key == KEY
    with pytest.raises(StoredFormatUnknown, match="has version") as raised:
        item.decode({**item_of(), "v": {"N": "2"}}, key=KEY)
    assert raised.value.key == KEY


# --- dead letters, pages, results and bodies

DEAD = Dead(id="m#1", body="[1]", attempts=3, error="é" * 3_000, stored_ms=4_000, died_ms=9_999)


def test_dead_letter_is_written_and_read() -> None:
    """M6: with its whole text, for 14 days."""
    written = letters.dead_item("x#k", DEAD, 7, 2, "L1")
    assert written == {
        "pk": {"S": "x#k"},
        "sk": {"S": "dead#m%231#L1"},
        "v": {"N": "1"},
        "id": {"S": "m#1"},
        "body": {"S": "[1]"},
        "attempts": {"N": "3"},
        "stored": {"N": "4000"},
        "died": {"N": "9999"},
        "fence": {"N": "7"},
        "rank": {"N": "2"},
        "expires_on": {"N": str(9 + 14 * 86_400)},
        "error": {"S": "é" * 2_048},
    }
    dead = replace(DEAD, error="é" * 2_048)
    assert letters.dead_letter(written, key=KEY) == letters.Letter(
        sk="dead#m%231#L1", name="L1", order=(9_999, 7, 2), dead=dead
    )
    in_parts = replace(DEAD, body=bodies.Reference("C.2"), error=None)
    written = letters.dead_item("x#k", in_parts, 7, 2, "L1")
    assert (written["ref"], "body" in written, "error" in written) == ({"S": "C.2"}, False, False)
    found = letters.dead_letter(written, key=KEY).dead
    assert found == in_parts
    assert isinstance(found.body, bodies.Reference)


@pytest.mark.parametrize(
    ("read_it", "said"),
    [
        (lambda found: letters.dead_letter(found, key=KEY), "dead letter 'dead#1' of key 'orders/k' has a shape"),
        (lambda found: letters.dead_letter({**found, "v": {"N": "2"}}, key=KEY), "has version"),
        (lambda found: traces.texts_of(found, key=KEY), "page 'dead#1' of key 'orders/k' holds no traces"),
        (lambda found: traces.texts_of({**found, "ended": {"N": "1"}}, key=KEY), "holds no traces"),
        (lambda found: traces.texts_of({**found, "v": {"N": "2"}}, key=KEY), "has version"),
        (lambda found: traces.result_of({**found, "v": {"N": "2"}}, key=KEY), "has version"),
    ],
)
def test_other_item_of_another_shape_is_left_alone(read_it: Callable[[Any], object], said: str) -> None:
    """M12: the error names the item and the key."""
    with pytest.raises(StoredFormatUnknown, match=said) as raised:
        read_it({"sk": typed("dead#1"), "v": typed(1)})
    assert raised.value.key == KEY


def test_page_and_result_are_written_and_read() -> None:
    """Each outlives its window by an hour."""
    older = replace(LEFT, fence=2, at_ms=9_000, result="")
    page = traces.page_item("x#k", [older, replace(LEFT, at_ms=8_999)], 60_000)
    texts = [traces.trace_text(older), traces.trace_text(replace(LEFT, at_ms=8_999))]
    assert page == {
        "pk": {"S": "x#k"},
        "sk": {"S": f"ended#{6:020d}#{8_999:020d}#{names.digest(' '.join(texts))}"},
        "v": {"N": "1"},
        "ended": {"S": " ".join(texts)},
        "expires_on": {"N": str(69 + 3_600)},
    }
    assert traces.texts_of(page, key=KEY) == texts
    kept = traces.result_item("x#k", replace(LEFT, at_ms=9_000, result="[1]"), 60_000)
    assert kept == {
        "pk": {"S": "x#k"},
        "sk": {"S": f"result#{names.digest('m0')}#{6:020d}"},
        "v": {"N": "1"},
        "result": {"S": "[1]"},
        "expires_on": {"N": str(69 + 3_600)},
    }
    assert (traces.result_of(kept, key=KEY), traces.result_of(None, key=KEY)) == ("[1]", None)
    assert traces.result_of({"v": typed(1), "result": typed(1)}, key=KEY) is None


@pytest.mark.parametrize("result", [None, "", "[1]"])
@pytest.mark.parametrize("outcome", ["handled", "dead", "failed", "stopped", "cancelled", "superseded"])
def test_trace_is_written_and_read(outcome: Any, result: str | None) -> None:
    """Each part is as long as it always is; a result stands elsewhere."""
    trace = Ended(id="m0", claimed_by="S", at_ms=2**41, outcome=outcome, fence=2**53, result=result)
    written = traces.trace_text(trace)
    assert len(written) == 1 + 16 + 10 + 9 + 7 + (result is not None)
    found = traces.trace_of(written, names.digests(["m0", "S"]))
    assert found == replace(trace, result=found.result)
    assert (found.result is None, found.result == "") == (result is None, result == "")
    assert isinstance(found.result, traces.ResultElsewhere) is bool(result)
    unclaimed = replace(trace, claimed_by="")
    assert traces.trace_of(traces.trace_text(unclaimed), {}).claimed_by == ""
    for wrong in (written[:42], f"{traces.trace_text(replace(trace, result=None))}y"):
        with pytest.raises((ValueError, KeyError)):
            traces.trace_of(wrong, {})


def test_large_body_stands_in_parts() -> None:
    """Each fits an item; the last is due when the message is, and kept for 14 or 28 days from then."""
    part = 384 * 1024
    reference, (only,) = bodies.body_items("x#k", "m#1", "C", "b" * part, 5_999)
    assert (reference, reference.parts) == ("C", 1)
    assert only == {
        "pk": {"S": "x#k"},
        "sk": {"S": "body#m%231#C"},
        "v": {"N": "1"},
        "body": {"S": "b" * part},
        "expires_on": {"N": str(5 + 14 * 86_400)},
    }
    text = "b" * (part - 1) + "€" + "b" * (part - 3)
    reference, found = bodies.body_items("x#k", "m#1", "C", text, 5_999)
    assert (reference, reference.parts) == ("C.2", 2)
    assert [each["sk"]["S"] for each in found] == ["body#m%231#C.1", "body#m%231#C.2"]
    assert [each["body"]["S"] for each in found] == [text[: part - 1], text[part - 1 :]]
    assert {each["expires_on"]["N"] for each in found} == {str(5 + 28 * 86_400)}
    assert bodies.body_of(only) == "b" * part
    assert (bodies.body_of({}), bodies.body_of({"body": typed(1)})) == (None, None)


# Attributes of another type, or with a value that no version writes.
ODD: dict[str, tuple[Any, ...]] = {
    "known": ({"N": "1"}, {"L": []}),
    "tombs": ({"S": "x"}, {"L": []}),
    "ended": ({"S": "x"}, {"SS": ["x"]}),
    "spent": ({"S": "x"}, {"N": "1"}),
    "past": ({"N": "1"}, {"L": []}, {"L": [{"N": "1"}] * 64}),
    "rare": ({"N": "1"}, {"SS": ["x"]}),
    "mail": ({"S": "x"}, {"L": [{"S": "x"}]}, {"L": [{"M": {"id": {"S": "m1"}}}]}),
    "lease": ({"S": "x"}, {"M": {"holder": {"S": "A"}, "expires": {"S": "x"}}}, {"N": "1"}),
    "fence": ({"S": "x"}, {"N": "-5"}, {"N": "0.5"}, {"N": "9" * 30}),
    "given": ({"S": "x"}, {"N": "0.5"}),
    "head": ({"N": "1"}, {"S": "x"}),
    "not_before": ({"N": "1"}, {"S": "x"}, {"S": "x:y:z"}),
    "left": ({"N": "1"}, {"S": "x"}),
    "left_fence": ({"S": "x"}, {"N": "0.5"}),
    "policy": ({"N": "1"}, {"S": "x"}),
    "edits": ({"S": "x"}, {"N": "0.5"}),
    "resumed": ({"N": "1"}, {"L": []}),
    "orphan_shard": ({"N": "1"},),
    "orphan_since": ({"N": "-1"}, {"N": "0.5"}),
    "expires_on": ({"S": "x"}, {"L": []}),
    "target": ({"N": "1"}, {"L": []}),
    "request_id": ({"N": "1"},),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_attribute_is_refused_when_the_item_is_read(name: str) -> None:
    """M12: each of them, and not only when a call needs it: then it would be an error of Python."""
    sound = item_of(fence=7, lease={"holder": "A", "expires": 9, "since": 1}, given=7)
    sound |= {"mail": {"L": [typed({"id": "m1", "body": "[1]", "stored": 3})]}}
    if name.startswith("left"):
        del sound["lease"]
        sound["left"] = typed("s:x::5")
    assert item.decode(sound, key=KEY).exists
    for value in ODD[name]:
        with pytest.raises(StoredFormatUnknown):
            item.decode(sound | {name: value}, key=KEY)
