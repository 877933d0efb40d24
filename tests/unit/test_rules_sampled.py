"""The rules on thousands of states: what each function answers and changes, as fingerprints.

``rules_sampled.txt`` has a line for each function, and in it a fingerprint for each situation of the owner. After a
change that is meant, ``python -m tests.unit.test_rules_sampled`` writes it anew; with the words ``claim free`` it
prints what stands behind one of the fingerprints, to be compared between two versions.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from incumbent import rules
from incumbent.frozen import replace
from incumbent.rules import Dead, Ended, KeyState, Stored, TenureEnd
from incumbent.values import FOREVER_MS, Debounce, Failure, Origin, Orphan, Policy

KEPT = Path(__file__).with_name("rules_sampled.txt")
NOW, SKEW, TTL, WINDOW = 1_000_000_000, 10, 1_000, 900_000
CLOCK = NOW * 1_000
IDS, OWNERS = ("m1", "m2", "m3", "m4", "m5"), ("A", "B", "C")
OUTCOMES: tuple[Any, ...] = ("handled", "dead", "failed", "stopped", "cancelled", "superseded")
NAMES = ("keyspace", "target", "request_id", "log_stream")
EDGES = (NOW - 1, NOW, NOW + 1)
LETTER_EDGES = (NOW - 1, NOW - rules.LETTERS_MS, NOW - rules.LETTERS_MS + 1)

Draw: TypeAlias = random.Random
Call: TypeAlias = Callable[[Draw, KeyState], Any]

# When the last lease ends, by the situation of its owner.
SITUATIONS: dict[str, tuple[int, ...]] = {
    "free": (0, NOW - 300, NOW - 1, NOW),
    "live": (NOW + 1, NOW + 500, NOW + 5_000),
    "edge": (NOW, NOW - SKEW + 1),
    "over": (NOW - SKEW, NOW - SKEW - 1, NOW - 700),
}


def chance(draw: Draw, *, one_in: int = 2) -> bool:
    """Draw whether something is so."""
    return draw.randrange(one_in) == 0


def some(draw: Draw, *values: Any) -> Any:
    """Draw one of several values."""
    return values[draw.randrange(len(values))]


def origin(draw: Draw) -> Origin | None:
    """An origin, of which each field may be missing, or none."""
    said = some(draw, "", "x", "y")
    found = {name: f"{name} {said}" for name in NAMES if said and chance(draw)}
    if chance(draw, one_in=4):
        found = {name: f"{name} whole" for name in NAMES}
    return Origin(**found) if found else None


def message(draw: Draw, message_id: str, fence: int) -> Stored:
    """A stored message: fresh, delayed, running or after a failure."""
    attempts = some(draw, 0, 0, 1, 2, 3)
    return Stored(
        id=message_id,
        body=f"[{message_id}]",
        claimed_by=some(draw, *OWNERS),
        promised=chance(draw),
        stored_ms=NOW - some(draw, 5, 50),
        attempts=attempts,
        due_ms=some(draw, 0, 0, *EDGES, NOW + 500),
        delivered_fence=some(draw, 0, fence) if attempts else 0,
        error=some(draw, None, "no") if attempts else None,
    )


def state_in(draw: Draw, situation: str) -> KeyState:
    """A state in which the key has an owner, or had one."""
    fence = some(draw, 7, CLOCK - 1, CLOCK, CLOCK + 5)
    owner = None if situation == "free" else some(draw, "A", "A", "B")
    count = some(draw, 0, 1, 2, 2, 3)
    return KeyState(
        owner=owner,
        expires_ms=some(draw, *SITUATIONS[situation]),
        since_ms=NOW - 2_000,
        fence=fence,
        mail=tuple(message(draw, each, fence) for each in draw.sample(IDS, count)),
        ended=tuple(
            Ended(
                id=some(draw, *IDS),
                outcome=some(draw, *OUTCOMES),
                claimed_by=some(draw, *OWNERS),
                fence=fence - some(draw, 0, 1),
                at_ms=some(draw, NOW - 1, NOW - WINDOW, NOW - WINDOW + 1, NOW - WINDOW - 1),
                result=some(draw, None, "[1]"),
            )
            for _ in range(some(draw, 0, 0, 1, 2))
        ),
        dead=tuple(
            Dead(
                id=each,
                body="d",
                attempts=2,
                error=some(draw, None, "e"),
                stored_ms=3,
                died_ms=some(draw, *LETTER_EDGES),
            )
            for each in draw.sample(IDS, some(draw, 0, 0, 1, 2))
        ),
        tenure_end=None
        if chance(draw)
        else TenureEnd(
            how=some(draw, "released", "settled", "moved", "transferred"),
            owner=some(draw, *OWNERS),
            successor=some(draw, None, *OWNERS),
            fence=fence - some(draw, 0, 1),
        ),
        block=chance(draw),
        pauses_ms=some(draw, (), (5,), (5, 700)),
        origin=origin(draw),
        quiet_until_ms=some(draw, 0, 0, 0, 0, *EDGES, NOW + 90),
        held_until_ms=some(draw, 0, 0, 0, 0, 0, 0, *EDGES, NOW + 40, FOREVER_MS),
        held_reason=some(draw, None, "why"),
        stop=None if owner is None else some(draw, None, "", "so"),
        note=None if owner is None else some(draw, None, '"step"'),
    )


def policy(draw: Draw) -> Policy:
    """A policy."""
    return Policy(
        max_pending=some(draw, 1, 2, 3, 100),
        window_ms=WINDOW,
        max_attempts=some(draw, 1, 2, 3),
        pauses_ms=some(draw, (5,), (5, 700, 9), (0,)),
        on_error=some(draw, "skip", "block"),
        keep=some(draw, "all", "all", "latest"),
    )


def ids(draw: Draw) -> list[str]:
    """Some of the ids."""
    return [each for each in IDS if chance(draw)]


def failures(draw: Draw) -> list[Failure]:
    """Some of the ids, and how their runs ended."""
    return [
        Failure(id=each, error=f"no {each}", after_ms=some(draw, None, 0, 33), final=chance(draw, one_in=4))
        for each in ids(draw)
    ]


def new_message(draw: Draw) -> Stored:
    """What a claim brings: an id that may be known."""
    due_ms = some(draw, 0, 0, 0, *EDGES, NOW + 500)
    found = message(draw, some(draw, "m1", "m2", "m9"), 0)
    return replace(found, claimed_by="A", due_ms=due_ms, attempts=0, error=None, stored_ms=NOW)


def skew(draw: Draw) -> list[int]:
    """By how much clocks differ, where it is said."""
    found: list[int] = some(draw, [], [0], [SKEW])
    return found


def said(draw: Draw, **named: Any) -> dict[str, Any]:
    """Some of the arguments that have a default."""
    return {name: value for name, value in named.items() if not chance(draw, one_in=4)}


def fence_of(draw: Draw, state: KeyState) -> int | None:
    """The tenure that a caller names, if it names one."""
    found: int | None = some(draw, None, None, state.fence, state.fence, state.fence - 1)
    return found


def claim(draw: Draw, state: KeyState, message: Stored | None) -> Any:
    """Claim, as it is done in many ways."""
    return rules.claim(
        state,
        NOW,
        "A",
        TTL,
        message,
        policy=policy(draw),
        **said(
            draw,
            ticket=some(draw, None, None, "B"),
            as_ticket=chance(draw, one_in=3),
            route=not chance(draw, one_in=4),
            origin=origin(draw),
            debounce=some(draw, None, None, Debounce(quiet_ms=30, max_ms=60), Debounce(quiet_ms=30, max_ms=30)),
            interrupt=chance(draw, one_in=3),
            skew_ms=some(draw, SKEW, SKEW, 0),
        ),
    )


def settle(draw: Draw, state: KeyState) -> Any:
    """Settle, with all kinds of outcomes."""
    return rules.settle(
        state,
        NOW,
        "A",
        TTL,
        handled=ids(draw),
        failed=failures(draw),
        dropped=failures(draw) if chance(draw) else [],
        deferred=ids(draw),
        policy=policy(draw),
        **said(
            draw,
            stopped=ids(draw) if chance(draw) else [],
            results=some(draw, None, {"m1": "[1]", "m2": ""}),
            hold_ms=some(draw, 0, 0, 40, 70),
            hold_reason="gap",
            next_owner=some(draw, None, "B", "C"),
            ticket=some(draw, None, None, "T"),
            fence=fence_of(draw, state),
            repeated=chance(draw),
        ),
    )


def with_many(state: KeyState, count: int) -> KeyState:
    """The state with more messages."""
    more = [
        Stored(id=f"n{n}", body="", claimed_by="C", promised=True, stored_ms=1) for n in range(count - len(state.mail))
    ]
    return replace(state, mail=(*state.mail, *more))


CALLS: dict[str, tuple[int, Call]] = {
    "what is not said": (
        1,
        lambda *_: [
            KeyState(),
            Stored(id="m", body="", claimed_by="A", promised=False, stored_ms=5),
            rules.Granted(owner="A", fence=5, given=(), waiting=5, expires_ms=5),
            rules.Accepted(owner="A", stored=5),
            rules.Freed(remaining=5),
            rules.Nothing(),
        ],
    ),
    "owned": (40, lambda d, s: rules.owned(s, NOW, *skew(d))),
    "owned_by": (60, lambda d, s: rules.owned_by(s, "A", NOW, fence_of(d, s))),
    "due": (150, lambda d, s: rules.due(s, NOW, *skew(d))),
    "next_due_ms": (150, lambda _, s: (rules.not_before_ms(s), rules.next_due_ms(s, NOW))),
    "given": (40, lambda _, s: rules.given(s)),
    "state_of": (200, lambda d, s: rules.state_of(s, some(d, *IDS), NOW, WINDOW, *skew(d))),
    "trace_of": (60, lambda d, s: rules.trace_of(s, some(d, *IDS), NOW, WINDOW)),
    "orphaned_since": (200, lambda d, s: rules.orphaned_since(s, NOW, *skew(d))),
    "acquire": (120, lambda d, s: rules.acquire(s, NOW, "A", TTL, *skew(d))),
    "renew": (80, lambda d, s: rules.renew(s, NOW, "A", TTL, fence_of(d, s), **said(d, note=some(d, None, "7")))),
    "release": (60, lambda d, s: rules.release(s, NOW, "A", fence_of(d, s))),
    "transfer": (
        120,
        lambda d, s: rules.transfer(s, NOW, "A", "B", TTL, **said(d, fence=fence_of(d, s), repeated=chance(d))),
    ),
    "claim": (700, lambda d, s: claim(d, s, new_message(d))),
    "claim without a message": (200, lambda d, s: claim(d, s, None)),
    "claim where many wait": (4, lambda d, s: [claim(d, with_many(s, n), new_message(d)) for n in range(99, 105)]),
    "settle": (500, settle),
    "take": (100, lambda d, s: rules.take(s, NOW, "A", TTL, fence_of(d, s), **said(d, at_most=some(d, None, 0, 1, 2)))),
    "letters": (40, lambda _, s: rules.letters(s, NOW)),
    "redrive": (60, lambda d, s: rules.redrive(s, NOW, some(d, *IDS))),
    "redrive where many wait": (
        4,
        lambda d, s: [rules.redrive(with_many(s, n), NOW, some(d, *IDS)) for n in (1_099, 1_100)],
    ),
    "purge": (30, lambda d, s: rules.purge(s, some(d, *IDS))),
    "stop": (80, lambda d, s: rules.stop(s, NOW, fence_of(d, s), "because", *skew(d))),
    "hold": (60, lambda d, s: rules.hold(s, NOW, some(d, *EDGES, NOW + 40, NOW + 41), some(d, None, "gap"))),
    "resume": (40, lambda _, s: rules.resume(s, NOW)),
    "cancel": (150, lambda d, s: rules.cancel(s, NOW, some(d, *IDS), WINDOW, *skew(d))),
    "described": (80, lambda d, s: rules.described(s.origin, origin(d))),
    "shared": (
        20,
        lambda d, _: list(
            rules.shared(Orphan(key=str(n), target=some(d, None, "", "f", "g"), age_ms=1, waiting=1) for n in range(7))
        ),
    ),
    "dead_lettered": (30, lambda d, s: rules.dead_lettered(s, replace(s, dead=(*s.dead, *state_in(d, "free").dead)))),
}


def told(value: Any) -> str:
    """A value as a text, in which a state tells only what it holds."""
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return f"({', '.join(map(told, value))})"
    if isinstance(value, KeyState):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return repr({**held, "ended": tuple(value.ended)})
    return repr(value)


def sampled(name: str, situation: str) -> Iterator[str]:
    """What a function makes of many states."""
    count, call = CALLS[name]
    draw = random.Random(f"{name} {situation}")  # noqa: S311 - the same states again
    for _ in range(count):
        state = state_in(draw, situation)
        yield f"{told(call(draw, state))} of {told(state)}"


def line(name: str) -> str:
    """The fingerprints of a function."""
    prints = []
    for situation in SITUATIONS:
        digest = hashlib.sha256("".join(sampled(name, situation)).encode())
        prints.append(f"{situation} {digest.hexdigest()[:8]}")
    return f"{name:24} {'  '.join(prints)}"


@pytest.mark.parametrize("name", CALLS)
def test_function_does_what_it_did(name: str) -> None:
    """In each situation; the module says how to see what has become other."""
    assert line(name) in KEPT.read_text(encoding="utf-8").splitlines()


def main(words: list[str]) -> None:
    """Write the fingerprints anew, or print what stands behind one."""
    if words:
        *name, situation = words
        sys.stdout.writelines(f"{each}\n" for each in sampled(" ".join(name), situation))
    else:
        KEPT.write_text("".join(f"{line(name)}\n" for name in CALLS), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
