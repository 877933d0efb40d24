"""The checker accepts what can be explained and rejects what cannot: else a green history means nothing."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from incumbent import rules
from incumbent.clock import SYSTEM_CLOCK, Moment
from incumbent.errors import LeaseLost, MailboxFull
from incumbent.providers.memory import MemoryProvider
from incumbent.values import Acquisition, Beat, Busy, Claimed, Continued, Duplicate, Idle, Message, Released, Routed
from tests.linearizability.checker import NEVER, UNKNOWN, Operation, TooLong, check
from tests.linearizability.recording import record
from tests.linearizability.sequential import OneKey
from tests.linearizability.test_histories import CLIENTS, MemoryLane

LATER = Moment(0, 0)


def call(began: int, ended: int, name: str, answer: Any = UNKNOWN, **arguments: Any) -> Operation:
    """A call that was answered; by nobody in particular."""
    return Operation(client="X", name=name, arguments=arguments, answer=answer, began=began, ended=ended)


def perhaps(began: int, name: str, ended: int = NEVER, **arguments: Any) -> Operation:
    """A call of which nobody heard."""
    return Operation(client="X", name=name, arguments=arguments, began=began, ended=ended, optional=True)


def acquired(owner: str, fence: int) -> Acquisition:
    """Granted."""
    return Acquisition(acquired=True, owner=owner, fence=fence)


def refused(holder: str) -> Acquisition:
    """Held by somebody else."""
    return Acquisition(acquired=False, owner=holder)


def messages(*given: tuple[str, int]) -> tuple[Message, ...]:
    """Messages, each with its attempt."""
    return tuple(Message(id=each, event=None, attempt=attempt) for each, attempt in given)


def claimed(owner: str, fence: int, *given: tuple[str, int], waiting: int = 0) -> Claimed:
    """Granted, with messages."""
    return Claimed(
        owner=owner, fence=fence, messages=messages(*given), waiting=waiting, expires_in_ms=1, deadline=LATER
    )


def continued(owner: str, fence: int, *given: tuple[str, int], waiting: int = 0) -> Continued:
    """Passed on, with messages."""
    return Continued(
        owner=owner, fence=fence, messages=messages(*given), waiting=waiting, expires_in_ms=1, deadline=LATER
    )


def beat(fence: int, waiting: int = 0) -> Beat:
    """Renewed."""
    return Beat(fence=fence, waiting=waiting, expires_in_ms=1, deadline=LATER)


def explained(*history: Operation) -> bool:
    """Whether a history can be explained."""
    return check(history, OneKey()).linearizable


# A claims m1, B's m2 is routed behind it, A settles m1 and goes on as A2 with m2.
CLAIM = call(1, 2, "claim", claimed("A", 50, ("m1", 1)), owner="A", id="m1")
ROUTE = call(3, 4, "claim", Routed(owner="A", waiting=2), owner="B", id="m2")
GO_ON = call(5, 6, "settle", continued("A2", 60, ("m2", 1)), owner="A", handled=("m1",), next_owner="A2")
CLOSE = call(7, 8, "settle", Released(remaining=0), owner="A2", handled=("m2",))

RIGHT: dict[str, tuple[Operation, ...]] = {
    "nothing": (),
    "one after the other": (CLAIM, ROUTE, GO_ON, CLOSE),
    "a race, in either order": (
        call(1, 4, "acquire", refused("B"), owner="A"),
        call(2, 3, "acquire", acquired("B", 7), owner="B"),
    ),
    "answered later than it took effect": (
        call(1, 9, "acquire", acquired("A", 7), owner="A"),
        call(2, 3, "owner", "A"),
        call(4, 5, "acquire", refused("A"), owner="B"),
    ),
    "took effect later than it began": (
        call(1, 9, "acquire", acquired("A", 7), owner="A"),
        call(2, 3, "owner", None),
        call(4, 5, "owner", "A"),
    ),
    "same fence again": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "acquire", acquired("A", 7), owner="A"),
        call(5, 6, "beat", beat(7), owner="A"),
    ),
    "unknown, and it took effect": (
        perhaps(1, "acquire", owner="A"),
        call(2, 3, "acquire", refused("A"), owner="B"),
    ),
    "unknown, and it did not": (
        perhaps(1, "acquire", owner="A"),
        call(2, 3, "acquire", acquired("B", 7), owner="B"),
        call(4, 5, "owner", "B"),
    ),
    "unknown, and it took effect long afterwards": (
        perhaps(1, "acquire", owner="A"),
        call(2, 3, "acquire", acquired("B", 7), owner="B"),
        call(4, 5, "release", None, owner="B"),
        call(6, 7, "owner", "A"),
        call(8, 9, "acquire", acquired("A", 9), owner="A"),
    ),
    "a lost release": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        perhaps(3, "release", owner="A"),
        call(4, 5, "acquire", acquired("B", 8), owner="B"),
    ),
    "a settle found by its traces": (
        CLAIM,
        perhaps(3, "settle", owner="A", handled=("m1",), ended=8),
        call(4, 5, "claim", claimed("B", 60, ("m2", 1)), owner="B", id="m2"),
        call(3, 8, "settle", Released(remaining=1), owner="A", handled=("m1",), repeated=True),
    ),
    "routed, and handled before it was told so": (
        CLAIM,
        call(3, 10, "claim", Routed(owner=None, waiting=0), owner="B", id="m2", repeated=True),
        perhaps(3, "claim", ended=10, owner="B", id="m2"),
        call(4, 5, "settle", continued("A2", 60, ("m2", 1)), owner="A", handled=("m1",), next_owner="A2"),
        call(6, 7, "settle", Released(remaining=0), owner="A2", handled=("m2",)),
    ),
}

WRONG: dict[str, tuple[Operation, ...]] = {
    "two owners": (
        call(1, 4, "acquire", acquired("A", 7), owner="A"),
        call(2, 3, "acquire", acquired("B", 8), owner="B"),
    ),
    "two owners by a claim": (
        CLAIM,
        call(3, 4, "claim", claimed("B", 60, ("m1", 2)), owner="B", id="m1"),
    ),
    "an owner that is gone": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "release", None, owner="A"),
        call(5, 6, "owner", "A"),
    ),
    "nobody, though somebody owns": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "owner", None),
    ),
    "held by oneself": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "acquire", refused("A"), owner="A"),
    ),
    "a fence that stays": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "release", None, owner="A"),
        call(5, 6, "acquire", acquired("B", 7), owner="B"),
    ),
    "a fence that falls": (CLAIM, ROUTE, replace(GO_ON, answer=continued("A2", 49, ("m2", 1)))),
    "a fence that changes within a tenure": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "acquire", acquired("A", 8), owner="A"),
    ),
    "a fence below one that was seen before a lost grant": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "transfer", answer=True, owner="A", successor="B"),
        call(5, 6, "acquire", acquired("B", 6), owner="B"),
    ),
    "closed though something waits": (
        CLAIM,
        ROUTE,
        call(5, 6, "settle", Released(remaining=0), owner="A", handled=("m1",), next_owner="A2"),
    ),
    "a routed message that is gone": (CLAIM, ROUTE, call(5, 6, "peek", messages(("m1", 1)))),
    "a message twice": (CLAIM, ROUTE, call(5, 6, "peek", messages(("m1", 1), ("m2", 0), ("m2", 0)))),
    "out of order": (
        CLAIM,
        ROUTE,
        call(5, 6, "claim", Routed(owner="A", waiting=3), owner="C", id="m3"),
        call(7, 8, "settle", continued("A2", 60, ("m3", 1), waiting=1), owner="A", handled=("m1",), next_owner="A2"),
    ),
    "a delivery that was not counted": (CLAIM, ROUTE, replace(GO_ON, answer=continued("A2", 60, ("m2", 0)))),
    "a handled message run again": (
        CLAIM,
        call(3, 4, "settle", Released(remaining=0), owner="A", handled=("m1",)),
        call(5, 6, "claim", claimed("B", 60, ("m1", 1)), owner="B", id="m1"),
    ),
    "renewed after it was lost": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "transfer", answer=True, owner="A", successor="B"),
        call(5, 6, "renew", answer=True, owner="A"),
    ),
    "lost though it is held": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "renew", answer=False, owner="A"),
    ),
    "lost though its own effect is there": (
        CLAIM,
        perhaps(3, "settle", owner="A", handled=("m1",), ended=4),
        call(3, 4, "settle", LeaseLost, owner="A", handled=("m1",), repeated=True),
    ),
    "moved and not moved": (
        call(1, 2, "acquire", acquired("A", 7), owner="A"),
        call(3, 4, "transfer", answer=False, owner="A", successor="B"),
        call(5, 6, "owner", "B"),
    ),
    "settled in a tenure that was over": (
        CLAIM,
        call(3, 4, "release", None, owner="A"),
        call(5, 6, "claim", claimed("B", 60, ("m1", 2)), owner="B", id=None),
        call(7, 8, "settle", Released(remaining=0), owner="A", handled=("m1",)),
    ),
    "told before it was so": (
        call(1, 2, "owner", "A"),
        call(3, 4, "acquire", acquired("A", 7), owner="A"),
    ),
    "a lost call that took effect before it was made": (
        call(1, 2, "acquire", refused("A"), owner="B"),
        perhaps(3, "acquire", owner="A"),
    ),
    "a lost call that took effect after it can have": (
        perhaps(1, "acquire", owner="A", ended=2),
        call(3, 4, "owner", None),
        call(5, 6, "owner", "A"),
    ),
    "busy with nobody": (call(1, 2, "claim", Busy(owner="B"), owner="A", id=None),),
    "idle though something waits": (
        CLAIM,
        ROUTE,
        call(5, 6, "release", None, owner="A"),
        call(7, 8, "claim", Idle(), owner="C", id=None),
    ),
    "full with room": (CLAIM, call(3, 4, "claim", MailboxFull, owner="B", id="m2")),
    "a ticket spent twice": (
        call(1, 2, "claim", claimed("T", 7, waiting=1), owner="T", id="m1", as_ticket=True),
        call(3, 4, "claim", claimed("A", 8, ("m1", 1)), owner="A", id=None, ticket="T"),
        call(5, 6, "claim", claimed("B", 9, ("m1", 2)), owner="B", id=None, ticket="T"),
    ),
    "a duplicate that is none": (CLAIM, call(3, 4, "claim", Duplicate(state="waiting", owner="A"), owner="B", id="m2")),
    "more waits than was sent": (CLAIM, call(3, 4, "beat", beat(50, waiting=1), owner="A")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_history_is_accepted(name: str) -> None:
    """However its calls overlap, and whatever is not known of them."""
    assert explained(*RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_history_is_rejected(name: str) -> None:
    """Each breaks one rule."""
    assert not explained(*WRONG[name])


def test_order_that_is_found_explains_the_history() -> None:
    """It is given, so that people can follow it; of a wrong one, how far it went."""
    verdict = check([CLOSE, GO_ON, ROUTE, CLAIM], OneKey())
    assert verdict.order == (CLAIM, ROUTE, GO_ON, CLOSE)
    wrong = check([CLAIM, ROUTE, replace(GO_ON, answer=Released(remaining=7))], OneKey())
    assert wrong.order == (CLAIM, ROUTE)


def test_many_calls_of_which_nobody_heard_are_searched_in_reasonable_time() -> None:
    """What has led to the same state before is not searched again; what takes too long all the same is said to."""
    lost = [perhaps(number, "acquire", owner=f"A{number}") for number in range(6)]
    lost += [perhaps(number, "release", owner=f"A{number - 6}") for number in range(6, 12)]
    assert explained(*lost, call(20, 21, "owner", "A1"))
    nobody = call(20, 21, "owner", "nobody we know")
    assert not explained(*lost, nobody)
    with pytest.raises(TooLong):
        check([*lost, nobody], OneKey(), most_states=100)


# --- recorded histories, spoilt


def recorded(seed: int, provider: MemoryProvider | None = None) -> list[Operation]:
    """A history of three clients of the reference."""
    shared = provider or MemoryProvider(clock=SYSTEM_CLOCK)
    return record(seed, [MemoryLane(shared=shared)] * CLIENTS, "", faults=0.0)


def spoilt(history: Iterable[Operation], chance: random.Random) -> list[Operation]:
    """The history with one answer that cannot be right, of any call that says anything at all."""
    operations = list(history)
    while True:
        place = chance.randrange(len(operations))
        answer = operations[place].answer
        match answer:
            case bool():
                wrong: Any = not answer
            case Claimed() | Continued() | Beat():
                wrong = replace(answer, waiting=answer.waiting + 7)
            case Acquisition(acquired=True):
                wrong = replace(answer, owner="somebody else")
            case Released():
                wrong = Released(remaining=answer.remaining + 7)
            case Busy() | Routed():
                wrong = replace(answer, owner="somebody else")
            case _ if operations[place].name == "owner":
                wrong = "somebody else"
            case _:
                continue
        operations[place] = replace(operations[place], answer=wrong)
        return operations


@pytest.mark.parametrize("seed", range(40))
def test_one_wrong_answer_in_a_recorded_history_is_seen(seed: int) -> None:
    """Among some twenty right ones."""
    history = recorded(seed)
    assert check(history, OneKey()).linearizable
    assert not check(spoilt(history, random.Random(seed)), OneKey()).linearizable  # noqa: S311 - repeatable


class Spoilt(MemoryProvider):
    """The reference with a fault in it."""

    fault: str

    def __init__(self, fault: str) -> None:
        super().__init__(clock=SYSTEM_CLOCK)
        self.fault = fault

    def _burying_step(self, key: str, step: Any) -> Any:
        def spoil(state: rules.KeyState, now: int) -> Any:
            new, answer = step(state, now)
            match self.fault:
                case "closes whatever waits" if isinstance(answer, rules.Freed):
                    new = replace(new, mail=())
                case "forgets what it routes" if isinstance(answer, rules.Accepted):
                    new = state
                case "delivers the newest" if isinstance(answer, rules.Granted):
                    new = replace(new, mail=tuple(reversed(new.mail)))
                case "counts no deliveries":
                    new = replace(new, mail=tuple(replace(each, attempts=0) for each in new.mail))
                case "keeps no traces":
                    new = replace(new, ended=())
                case "grants what is held" if isinstance(answer, rules.Held):
                    new, answer = step(replace(state, owner=None), now)
                case "keeps the fence" if new.fence > state.fence > 0:
                    new = replace(new, fence=state.fence)
                case _:
                    pass
            return new, answer

        return super()._burying_step(key, spoil)


@pytest.mark.parametrize(
    "fault",
    [
        "closes whatever waits",
        "forgets what it routes",
        "delivers the newest",
        "counts no deliveries",
        "keeps no traces",
        "grants what is held",
        "keeps the fence",
    ],
)
def test_histories_of_a_broken_store_are_not_explained(fault: str) -> None:
    """As many as are recorded of each real store show it."""
    assert not all(check(recorded(seed, Spoilt(fault)), OneKey()).linearizable for seed in range(60))
