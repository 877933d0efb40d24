"""Messages that cannot be read: they become dead letters, and block nothing (M6)."""

from collections.abc import Sequence
from typing import Any

import pytest

from incumbent.clock import Moment
from incumbent.errors import LeaseLost
from incumbent.providers.unreadable import (
    Unreadable,
    all_readable,
    claim_readable,
    go_on_readable,
    message_of,
    readable,
)
from incumbent.values import Busy, Claim, Claimed, Continued, Duplicate, Failure, Idle, Message, Released, Routed

ENDS = Moment(wall_ms=9, mono_ms=9)
GOOD, OTHER = Message(id="m1", event=1), Message(id="m2", event=2)
BAD, WORSE = Unreadable(id="b1", event="[", why="broken"), Unreadable(id="b2", event=None, why="gone")
DEAD, DEADER, DEADEST = (Message(id=f"d{number}", event=None) for number in range(3))
LOST = LeaseLost("lost")


def claimed(*messages: Message, fence: int = 4, dead: Sequence[Message] = ()) -> Claimed:
    """A grant."""
    return Claimed(
        owner="A",
        fence=fence,
        messages=messages,
        waiting=5,
        expires_in_ms=300,
        deadline=ENDS,
        dead_lettered=tuple(dead),
    )


def continued(*messages: Message, fence: int = 4, dead: Sequence[Message] = ()) -> Continued:
    """A key that was passed on."""
    return Continued(
        owner="B",
        fence=fence,
        messages=messages,
        waiting=5,
        expires_in_ms=300,
        deadline=ENDS,
        dead_lettered=tuple(dead),
    )


class Store:
    """Gives one answer after the other, and notes what was settled."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.settled: list[tuple[Any, ...]] = []

    def claim(self) -> Claim:
        """Answer."""
        answer: Claim = self.answers.pop(0)
        return answer

    def settle(
        self, owner: str, *, fence: int, failed: Sequence[Failure], next_owner: str | None
    ) -> Released | Continued:
        """Note it, and answer."""
        self.settled.append((owner, fence, [(each.id, each.error, each.final) for each in failed], next_owner))
        answer: Released | Continued | LeaseLost = self.answers.pop(0)
        if isinstance(answer, LeaseLost):
            raise answer
        return answer


BROKEN = ("b1", "the stored body cannot be read: broken", True)
GONE = ("b2", "the stored body cannot be read: gone", True)


@pytest.mark.parametrize(
    ("answers", "said", "settled"),
    [
        ([Busy(owner="B", expires_in_ms=1)], Busy(owner="B", expires_in_ms=1), []),
        ([claimed(dead=[DEAD])], claimed(dead=[DEAD]), []),
        ([claimed(GOOD, OTHER)], claimed(GOOD, OTHER), []),
        ([claimed(BAD, GOOD)], claimed(GOOD), []),
        (
            [claimed(BAD, WORSE, dead=[DEAD]), Released(remaining=1, dead_lettered=(DEADER,)), claimed(GOOD, fence=5)],
            claimed(GOOD, fence=5, dead=[DEAD, DEADER]),
            [("A", 4, [BROKEN, GONE], None)],
        ),
        (
            [
                *(claimed(BAD), Released(remaining=1, dead_lettered=(DEAD,))),
                *(claimed(WORSE, fence=5), Released(remaining=1, dead_lettered=(DEADER,))),
                Idle(dead_lettered=(DEADEST,)),
            ],
            Idle(dead_lettered=(DEAD, DEADER, DEADEST)),
            [("A", 4, [BROKEN], None), ("A", 5, [GONE], None)],
        ),
        (
            [claimed(BAD, dead=[DEAD]), LOST, Duplicate(state="handled", owner="B")],
            Duplicate(state="handled", owner="B", dead_lettered=(DEAD,)),
            [("A", 4, [BROKEN], None)],
        ),
        (
            [claimed(BAD), Released(remaining=0, dead_lettered=(BAD,)), Routed(owner="B", waiting=1)],
            Routed(owner="B", waiting=1),
            [("A", 4, [BROKEN], None)],
        ),
        (
            [claimed(BAD), Released(remaining=0, dead_lettered=(GOOD,)), Routed(owner="B", waiting=1)],
            Duplicate(state="dead", owner="B", dead_lettered=(GOOD,)),
            [("A", 4, [BROKEN], None)],
        ),
    ],
)
def test_claim_goes_on_until_a_message_can_be_read(answers: list[Any], said: Claim, settled: list[Any]) -> None:
    """With all that died meanwhile; the caller's own message may be among that."""
    store = Store(*answers)
    assert claim_readable(store.claim, store.settle, GOOD) == said
    assert (store.settled, store.answers) == (settled, [])


def test_claim_without_a_message_has_no_own_one() -> None:
    """Nothing is its duplicate."""
    store = Store(claimed(BAD), Released(remaining=0, dead_lettered=(GOOD,)), Routed(owner="B", waiting=1))
    assert claim_readable(store.claim, store.settle, None) == Routed(owner="B", waiting=1)


@pytest.mark.parametrize(
    ("before", "answers", "said", "settled"),
    [
        (Released(remaining=3), [], Released(remaining=3), []),
        (continued(), [], continued(), []),
        (continued(GOOD, OTHER), [], continued(GOOD, OTHER), []),
        (continued(BAD, GOOD), [], continued(GOOD), []),
        (
            continued(BAD, dead=[DEAD]),
            [continued(WORSE, fence=5, dead=[DEADER]), continued(GOOD, fence=6, dead=[DEADEST])],
            continued(GOOD, fence=6, dead=[DEAD, DEADER, DEADEST]),
            [("B", 4, [BROKEN], "B"), ("B", 5, [GONE], "B")],
        ),
        (
            continued(BAD, WORSE, dead=[DEAD]),
            [Released(remaining=2, dead_lettered=(DEADER,))],
            Released(remaining=2, dead_lettered=(DEAD, DEADER)),
            [("B", 4, [BROKEN, GONE], "B")],
        ),
        (
            continued(BAD, WORSE, dead=[DEAD]),
            [LOST],
            Released(remaining=7, dead_lettered=(DEAD,)),
            [("B", 4, [BROKEN, GONE], "B")],
        ),
    ],
)
def test_key_is_passed_on_until_a_message_can_be_read(
    before: Released | Continued, answers: list[Any], said: Released | Continued, settled: list[Any]
) -> None:
    """The caller's own settle has worked in any case."""
    store = Store(*answers)
    assert go_on_readable(before, store.settle) == said
    assert (store.settled, store.answers) == (settled, [])


def test_what_can_be_read_is_told_from_what_cannot() -> None:
    """By its body."""
    assert readable([BAD, GOOD, WORSE, OTHER]) == (GOOD, OTHER)
    assert (all_readable([GOOD, OTHER]), all_readable([]), all_readable([GOOD, BAD])) == (True, True, False)
    common: dict[str, Any] = {"id": "m1", "attempt": 2, "stored_at_ms": 3, "due_at_ms": 4, "promised": True}
    said: dict[str, Any] = {"due_at_ms": 4, "promised": True, "last_error": "no"}
    assert message_of("[1]", "m1", 2, 3, **said) == Message(event=[1], last_error="no", **common)
    assert message_of(b"[1]", "m1", 2, 3) == Message(id="m1", event=[1], attempt=2, stored_at_ms=3)
    gone = Unreadable(event=None, last_error="no", why="eaten", **common)
    assert message_of(None, "m1", 2, 3, why_gone="eaten", **said) == gone
    broken = message_of(b"\xff[", "m1", 2, 3, **said)
    assert isinstance(broken, Unreadable)
    assert isinstance(broken.event, str)
    assert (broken.why, broken.attempt, broken.stored_at_ms, broken.last_error) != ("its body is gone", 0, 0, None)
