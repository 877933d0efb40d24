"""What people do by hand: dead letters are shown, put back and purged, orphans swept, and all of it is said."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from incumbent import (
    ConfigurationError,
    Failure,
    Message,
    NoopLeaseProvider,
    Origin,
    Policy,
    StoredFormatUnknown,
    Wake,
    operations,
    rules,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from tests.unit.stage import ARN, Meddled, RecordingWaker, raising

TTL_MS = 30_000
ONCE = Policy(max_attempts=1)
WALL_MS = 1_800_000_000_000  # 2027-01-15, 08:00


class Hand:
    """A store with dead letters, somebody who looks after it, and what was said to them."""

    def __init__(self) -> None:
        self.clock = FakeClock(wall_ms=WALL_MS)
        self.store = MemoryProvider(clock=self.clock)
        self.waker = RecordingWaker()
        self.said: list[str] = []

    def bury(
        self, key: str, message_id: str, *, error: str | None = "ValueError: no", target: str | None = ARN
    ) -> None:
        """Let a message die: of an error, or because it killed its run."""
        origin = Origin(keyspace=key.partition("/")[0], target=target)
        message = Message(id=message_id, event={"order": key, "n": 1})
        self.store.claim(key, f"o-{message_id}", TTL_MS, message, policy=ONCE, origin=origin)
        if error is None:
            self.clock.advance(TTL_MS)
            self.store.claim(key, "next", TTL_MS, None, policy=ONCE)
        else:
            failure = Failure(id=message_id, error=error)
            self.store.settle(key, f"o-{message_id}", ttl_ms=TTL_MS, failed=[failure], policy=ONCE)

    def ls(self, **more: Any) -> list[str]:
        """List dead letters."""
        self.said.clear()
        options = {"key": None, "keyspace": None, "limit": 100, "as_json": False, **more}
        operations.list_letters(self.store, self.said.append, **options)
        return self.said

    def redrive(self, key: str, *message_ids: str, target: str | None = None) -> bool:
        """Put dead letters back."""
        return operations.redrive(
            self.store,
            self.said.append,
            key=key,
            message_ids=message_ids,
            target=target,
            make_waker=lambda: self.waker,
        )


@pytest.fixture
def hand() -> Hand:
    """A store and a hand."""
    return Hand()


def test_letter_that_cannot_be_read_is_listed_and_shown_as_text(hand: Hand) -> None:
    """M6: among the others, in one line, and in full."""
    for message_id in ("m1", "m2"):
        hand.bury("orders/a", message_id, error="e")
    keys = hand.store._keys  # noqa: SLF001 - other code has broken what is stored
    broken, sound = keys["orders/a"].dead
    keys["orders/a"] = replace(keys["orders/a"], dead=(replace(broken, body="[" * 100_000), sound))
    assert len(hand.ls()) == 3
    assert len(hand.ls(as_json=True)) == 2
    hand.said.clear()
    assert operations.show_letter(hand.store, hand.said.append, key="orders/a", message_id="m1")
    assert json.loads(hand.said[0])["event"] == "[" * 100_000


def test_redrive_stops_at_a_full_mailbox_and_starts_what_is_back(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7: what is back is run, and the letters that are left are kept."""
    for message_id in ("m1", "m2", "m3"):
        hand.bury("orders/a", message_id, error="e")
    monkeypatch.setattr(rules, "MAX_STORED", 2)
    assert not hand.redrive("orders/a", "m1", "m2", "m3")
    assert "is kept" in hand.said[2]
    assert hand.said[3].startswith("woke ")
    assert [letter.message.id for letter in hand.store.dead_letters("orders/a", 9)] == ["m3"]


def test_letters_are_listed_a_line_each(hand: Hand) -> None:
    """Key, id, when it died, how often it ran, and the first line of its last error."""
    hand.bury("orders/a", "m1", error="ValueError: no such order\nbecause")
    hand.bury("orders/b", "m2", error=None)
    assert hand.ls() == [
        "orders/a  m1  2027-01-15T08:00:00Z  once  ValueError: no such order",
        "orders/b  m2  2027-01-15T08:00:30Z  once  killed its run",
        "2 dead letters",
    ]


def test_letters_of_one_key_or_one_keyspace_are_listed(hand: Hand) -> None:
    """A keyspace is what stands before the slash, and no more than that."""
    for key in ("orders/a", "orders/b", "orders-2/a", "tickets/a"):
        hand.bury(key, "m1")
    assert [line.split()[0] for line in hand.ls(keyspace="orders")[:-1]] == ["orders/a", "orders/b"]
    assert [line.split()[0] for line in hand.ls(key="tickets/a")[:-1]] == ["tickets/a"]
    assert hand.ls(key="tickets/b") == ["0 dead letters"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("complains", [False, True])
def test_keyspace_without_letters_is_complained_of_but_not_among_objects(
    hand: Hand,
    as_json: bool,  # noqa: FBT001 - a column of the table
    complains: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A program reads objects only; a person is told which keyspaces there are."""
    hand.bury("orders/a", "m1")
    complaints: list[str] = []
    said = hand.ls(keyspace="order", as_json=as_json, complain=complaints.append if complains else None)
    told = [line for line in (*said, *complaints) if "orders" in line]
    assert len(told) == (0 if as_json and not complains else 1)
    assert complaints == (told if complains else [])
    assert not (as_json and said)


def test_list_says_that_there_is_more(hand: Hand) -> None:
    """Exactly as many as asked for is not more."""
    for number in range(3):
        hand.bury("orders/a", f"m{number}")
    assert hand.ls(limit=2)[2:] == ["the first 2 dead letters; --limit shows more"]
    assert hand.ls(limit=3)[3:] == ["3 dead letters"]


def test_letters_are_listed_as_json(hand: Hand) -> None:
    """An object a line, with the event, and nothing else, so that a program can read it."""
    hand.bury("orders/a", "m1", error="é")
    (line,) = hand.ls(as_json=True)
    assert json.loads(line) == {
        "key": "orders/a",
        "id": "m1",
        "died_at": "2027-01-15T08:00:00Z",
        "stored_at": "2027-01-15T08:00:00Z",
        "attempts": 1,
        "last_error": "é",
        "event": {"order": "orders/a", "n": 1},
    }


def test_one_letter_is_shown_whole(hand: Hand) -> None:
    """All that is kept of it; and whether there is one."""
    hand.bury("orders/a", "m1")
    assert operations.show_letter(hand.store, hand.said.append, key="orders/a", message_id="m1")
    assert json.loads(hand.said[0])["event"] == {"order": "orders/a", "n": 1}
    assert not operations.show_letter(hand.store, hand.said.append, key="orders/a", message_id="m2")
    assert hand.said[1] == "orders/a has no dead letter m2"


def test_redriven_letter_wakes_the_target_recorded_with_its_key(hand: Hand) -> None:
    """Once for all that were put back; it claims them as anybody would (M8)."""
    hand.bury("orders/a", "m1", target=f"{ARN}:live")
    hand.bury("orders/a", "m2", target=f"{ARN}:live")
    assert hand.redrive("orders/a", "m1", "m2")
    assert hand.said == [
        "m1 is back in the mailbox of orders/a",
        "m2 is back in the mailbox of orders/a",
        f"woke {ARN}:live",
    ]
    assert hand.waker.wakes == [Wake(key="orders/a", ticket=None, target=f"{ARN}:live")]
    assert [message.id for message in hand.store.peek("orders/a")] == ["m1", "m2"]


def test_redriven_letter_is_left_to_a_live_owner(hand: Hand) -> None:
    """Nobody is woken: the owner finds it when it settles (M2)."""
    hand.bury("orders/a", "m1")
    hand.store.acquire_lease("orders/a", "somebody", TTL_MS)
    assert hand.redrive("orders/a", "m1")
    assert hand.said[-1] == "somebody owns the key, and runs it next"
    assert hand.waker.wakes == []


def test_target_that_is_said_goes_before_the_recorded_one(hand: Hand) -> None:
    """For a key whose function has another name now."""
    hand.bury("orders/a", "m1")
    hand.redrive("orders/a", "m1", target="orders:next")
    assert [wake.target for wake in hand.waker.wakes] == ["orders:next"]


def test_redrive_without_a_target_says_who_starts_it(hand: Hand) -> None:
    """The letter is back all the same; a script sees by the exit code that nobody was woken."""
    hand.bury("orders/a", "m1", target=None)
    assert not hand.redrive("orders/a", "m1")
    assert hand.said[-1] == (
        "no function was woken, since no target is known (--target names one): the next message of the key, or the "
        "sweeper, starts it"
    )


def test_redrive_whose_wake_fails_says_so(hand: Hand) -> None:
    """The letter is back all the same, and the sweeper wakes its function."""
    hand.bury("orders/a", "m1")
    hand.waker.fails = RuntimeError("no credentials")
    assert not hand.redrive("orders/a", "m1")
    assert hand.said[-1].startswith(f"{ARN} could not be woken (RuntimeError: no credentials): the next message")
    assert [message.id for message in hand.store.peek("orders/a")] == ["m1"]


def test_redrive_of_what_is_not_there_wakes_nobody(hand: Hand) -> None:
    """And it is no success."""
    hand.bury("orders/a", "m1")
    assert not hand.redrive("orders/a", "m9")
    assert hand.said == ["orders/a has no dead letter m9"]
    assert hand.waker.wakes == []
    assert not hand.redrive("orders/a", "m9", "m1")
    assert len(hand.waker.wakes) == 1


def test_purged_letters_are_gone(hand: Hand) -> None:
    """All that are named, whether one of them is missing or not."""
    for number in range(3):
        hand.bury("orders/a", f"m{number}")
    assert operations.all_of(hand.store, "orders/a") == ["m0", "m1", "m2"]
    assert not operations.purge(hand.store, hand.said.append, key="orders/a", message_ids=["m9", "m0", "m1"])
    assert hand.said == [
        "orders/a has no dead letter m9",
        "m0 is gone from the dead letters of orders/a",
        "m1 is gone from the dead letters of orders/a",
    ]
    assert operations.all_of(hand.store, "orders/a") == ["m2"]


def leave(hand: Hand, key: str, target: str | None = ARN) -> None:
    """Store a message that nobody owns."""
    origin = Origin(keyspace="orders", target=target)
    hand.store.claim(key, f"s-{key}", TTL_MS, Message(id="m1", event={}), as_ticket=True, origin=origin)
    hand.store.release_lease(key, f"s-{key}")


UNTARGETED = (
    "orders/b  1 message for 5 s  untargeted: no target is recorded: the function that stores its messages has no "
    "invoked_function_arn and no INCUMBENT_TARGET; set INCUMBENT_TARGET there (the next message of the key "
    "finds them)"
)


@pytest.mark.parametrize(
    ("look_only", "said", "woken"),
    [
        (
            False,
            [
                "orders/a  1 message for 5 s  woken",
                UNTARGETED,
                "2 orphans: 1 woken, 1 without a target",
            ],
            ["orders/a"],
        ),
        (
            True,
            [
                f"orders/a  1 message for 5 s  {ARN}",
                "orders/b  1 message for 5 s  no target is recorded",
                "2 orphans; no function was woken",
            ],
            [],
        ),
    ],
)
def test_sweep_by_hand_says_what_it_did(hand: Hand, look_only: bool, said: list[str], woken: list[str]) -> None:  # noqa: FBT001 - a row of the table
    """A line for each orphan, and the counts; or, if it is only to look, whom it would have woken."""
    leave(hand, "orders/a")
    leave(hand, "orders/b", target=None)
    hand.clock.advance(5_000)
    good = operations.sweep_by_hand(hand.store, hand.said.append, limit=10, waker=None if look_only else hand.waker)
    assert hand.said == said
    assert [wake.key for wake in hand.waker.wakes] == woken
    assert good is look_only


def test_sweep_that_finds_nothing_is_good(hand: Hand) -> None:
    """Nothing is left behind."""
    assert operations.sweep_by_hand(hand.store, hand.said.append, limit=10, waker=hand.waker)
    assert hand.said == ["0 orphans"]


def test_backend_without_messages_has_nothing_to_look_at() -> None:
    """Said before anything is asked."""
    with pytest.raises(ConfigurationError, match="NoopLeaseProvider keeps no messages"):
        operations.store_of(NoopLeaseProvider())
    store: Callable[[object], object] = operations.store_of
    provider = MemoryProvider()
    assert store(provider) is provider


EVIL, SHOWN = "a\x1b]0;x\x07\u202eb", r"a\x1b]0;x\x07\u202eb"


def test_terminal_obeys_nothing_that_is_stored(hand: Hand) -> None:
    """Whatever stands in a key, an id, an error, a target, or in what a waker raises."""
    key, shown = f"orders/{EVIL}", f"orders/{SHOWN}"
    said = hand.said.append
    hand.bury(key, EVIL, error=EVIL, target=EVIL)
    assert hand.ls()[0] == f"{shown}  {SHOWN}  2027-01-15T08:00:00Z  once  {SHOWN}"
    hand.ls(key=EVIL)
    assert not operations.show_letter(hand.store, said, key=EVIL, message_id=EVIL)
    assert operations.show_letter(hand.store, said, key=key, message_id=EVIL)
    hand.ls(keyspace=EVIL)
    said(operations.none_of(EVIL))
    assert not operations.purge(hand.store, said, key=EVIL, message_ids=[EVIL])
    hand.waker.fails = ValueError(EVIL)
    assert not hand.redrive(key, EVIL)
    assert not operations.sweep_by_hand(hand.store, said, limit=9, waker=hand.waker)
    assert operations.sweep_by_hand(hand.store, said, limit=9, waker=None)
    hand.waker.fails = None
    hand.bury(f"{key}2", "m2", target=EVIL)
    assert hand.redrive(f"{key}2", "m2", target=EVIL)
    hand.store.acquire_lease(key, EVIL, TTL_MS)
    hand.store.release_lease(key, EVIL)
    assert [line for line in hand.said if not line.replace("\n", "").isprintable()] == []
    assert any(line == f"{shown}  1 message for 0 s  failed: ValueError: {SHOWN}" for line in hand.said)
    assert any(line == f"{shown}  1 message for 0 s  {SHOWN}" for line in hand.said)


def test_terminal_obeys_nothing_that_cannot_be_read(hand: Hand) -> None:
    """M12: and what is said of it is said."""
    hand.bury("orders/a", "m1")
    said = hand.said.append
    store = Meddled(hand.store)
    for name in ("redrive", "purge"):
        store.before[name] = raising(StoredFormatUnknown(EVIL))
    assert not operations.purge(store, said, key="orders/a", message_ids=[EVIL])
    assert not operations.redrive(
        store, said, key="orders/a", message_ids=[EVIL], target=None, make_waker=lambda: hand.waker
    )
    assert hand.said == [f"{SHOWN}: {SHOWN}"] * 2
    hand.said.clear()

    def broken(letters: Iterable[Any]) -> Iterator[Any]:
        yield from letters
        raise StoredFormatUnknown("version 9")

    store.after["dead_letters"] = broken
    with pytest.raises(StoredFormatUnknown):
        operations.show_letter(store, said, key=EVIL, message_id=EVIL)
    assert hand.said == [f"{SHOWN} has no dead letter {SHOWN} that can be read"]


def test_owner_that_runs_what_is_put_back_is_named(hand: Hand) -> None:
    """As a terminal can show it."""
    hand.bury("orders/a", "m1")
    hand.store.acquire_lease("orders/a", EVIL, TTL_MS)
    assert hand.redrive("orders/a", "m1")
    assert hand.said == ["m1 is back in the mailbox of orders/a", f"{SHOWN} owns the key, and runs it next"]


def test_key_that_was_found_is_not_explained(hand: Hand) -> None:
    """It need not have a keyspace."""
    hand.bury("k", "m1")
    assert len(hand.ls(key="k")) == 2
    assert hand.ls(key="a")[1:] == [
        "a key is given with its keyspace in front, such as my-worker/a, or with --keyspace my-worker"
    ]


def test_letters_that_cannot_be_read_are_skipped_where_that_is_wanted(hand: Hand) -> None:
    """M12: else they are an error."""
    hand.bury("orders/a", "m1")
    store = Meddled(hand.store)

    def broken(letters: Iterable[Any]) -> Iterator[Any]:
        yield from letters
        raise StoredFormatUnknown("version 9")

    store.after["dead_letters"] = broken
    skipped: list[operations.Unread] = []
    assert operations.all_of(store, "orders/a", skipped) == ["m1"]
    assert [str(each) for each in skipped] == ["version 9"]
    with pytest.raises(StoredFormatUnknown):
        operations.all_of(store, "orders/a")


def test_long_lists_and_errors_are_cut(hand: Hand) -> None:
    """100 characters of an error, and ten keyspaces."""
    hand.bury("orders/a", "m1", error="e" * 101)
    assert hand.ls()[0].endswith("  " + "e" * 100)
    names = [f"k{number:02d}" for number in range(12)]
    assert operations.similar_first("x", names[:10]) == ", ".join(names[:10])
    assert operations.similar_first("x", names) == f"{', '.join(names[:10])} and 2 more"
    assert operations.similar_first("K11", names).startswith("k11, ")


@pytest.mark.parametrize("look_only", [True, False])
def test_sweep_by_hand_says_at_its_end_what_it_could_not_read(hand: Hand, look_only: bool) -> None:  # noqa: FBT001 - a row of the table
    """M12: after all others were served."""
    leave(hand, "orders/a")
    store = Meddled(hand.store)

    def broken(orphans: Iterable[Any]) -> Iterator[Any]:
        yield from orphans
        raise StoredFormatUnknown("version 9")

    store.after["orphans"] = broken
    with pytest.raises(StoredFormatUnknown, match="version 9"):
        operations.sweep_by_hand(store, hand.said.append, limit=9, waker=None if look_only else hand.waker)
    assert len(hand.said) == 2
    assert len(hand.waker.wakes) == (not look_only)
