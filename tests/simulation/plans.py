"""What a seed means: small focused schedules, each with a few faults of the kinds that may hurt there."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from incumbent.settings import Settings
from incumbent.values import Policy
from tests.simulation.control_plans import answered, held, later, latest, quiet, stopped
from tests.simulation.drafts import (
    DEATHS,
    REPLIES,
    STALLS,
    TTL_MS,
    WAKES,
    Act,
    Arrival,
    Draft,
    Handlers,
    SourceKind,
    arrivals_of,
)
from tests.simulation.network import FAULTS, ON_REQUESTS

STORES = ("one clock", "dynamodb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One schedule before chance has its way. ``opening`` is what befalls the first requests, one by one."""

    name: str
    store: str
    skew_ms: int
    arrivals: tuple[Arrival, ...]
    settings: Settings
    handlers: Handlers
    wakes: bool
    delays: bool
    acts: tuple[Act, ...]
    sweeps_ms: tuple[int, ...]
    only_leases: bool
    invocation_ms: int | None
    warm: float
    faults: tuple[str, ...]
    opening: tuple[str | None, ...]
    most_faults: int
    each_fault: float
    calm_ms: int


_Scenario: TypeAlias = Callable[[random.Random], Draft]


def pair(chance: random.Random) -> Draft:
    """Two messages at nearly the same time: the closing window."""
    return {
        "arrivals": arrivals_of(chance, "ab", chance.choice((5, 30, 400, 1_500))),
        "handlers": Handlers(steps=(0, 2), step_ms=(1, chance.choice((30, 600))), raises=chance.choice((0, 0, 0.3))),
        "faults": (*REPLIES, *STALLS, *DEATHS),
        "most_faults": chance.choice((1, 1, 2)),
        "each_fault": chance.choice((0.1, 0.3)),
    }


def again(chance: random.Random) -> Draft:
    """One id delivered several times, and a handler that raises at first."""
    ids = chance.choice(("aa", "aaa", "aba", "aab"))
    return {
        "arrivals": arrivals_of(chance, ids, chance.choice((30, 300, 2_500)), again=chance.choice((0, 1, 2))),
        "handlers": Handlers(
            steps=(0, 2),
            step_ms=(1, 300),
            raises=chance.choice((0.0, 0.4)),
            raises_at_first=frozenset(chance.choice(("", "a", "ab"))),
        ),
        "faults": chance.choice(((), (*REPLIES, "twice", "late"), (*REPLIES, *DEATHS))),
        "most_faults": chance.choice((1, 2)),
    }


def long_runs(chance: random.Random) -> Draft:
    """Runs that last several ttl, with renewals that stall, clocks that step, and others at the door."""
    arrivals = (
        *arrivals_of(chance, "a", 0, again=1),
        *(Arrival(at_ms=chance.randint(1, 3 * TTL_MS), message_id=each, again=1) for each in "bc"),
    )
    return {
        "arrivals": arrivals,
        "handlers": Handlers(steps=(2, 5), step_ms=(200, 1_500), renews=chance.choice((0.0, 0.5)), looks=0.3),
        "faults": chance.choice((("slow", "mute", "late", "twice"), ("slow", *STALLS, "clock"), ("lost", "clock"))),
        "most_faults": chance.choice((2, 3)),
        "each_fault": 0.25,
    }


def cut_off(chance: random.Random) -> Draft:
    """An owner that cannot reach the store any more, and others who come about when its lease ends."""
    return {
        "arrivals": (
            Arrival(at_ms=0, message_id="a", again=1),
            *(Arrival(at_ms=chance.randint(TTL_MS - 200, TTL_MS + 1_500), message_id=each, again=1) for each in "bcd"),
        ),
        "handlers": Handlers(steps=(2, 4), step_ms=(800, 1_800), looks=0.2),
        "faults": ("cut",),
        "opening": chance.choice((("mute",), ("slow",), ())),
        "most_faults": 1,
        "each_fault": 0.6,
    }


def orphaned(chance: random.Random) -> Draft:
    """An owner that dies at once and leaves messages behind, and several who find them when its lease has ended."""
    ids = chance.choice(("aab", "aac", "abc", "aa"))
    return {
        "arrivals": (
            Arrival(at_ms=0, message_id="a", again=chance.choice((0, 1))),
            *arrivals_of(chance, "b", 0, again=0),
            *(
                Arrival(at_ms=TTL_MS + chance.randint(0, chance.choice((50, 2_000))), message_id=each, again=1)
                for each in ids
            ),
        ),
        "policy": {"max_attempts": chance.choice((2, 4)), "on_error": chance.choice(("skip", "block"))},
        "handlers": Handlers(steps=(0, 2), step_ms=(1, 300), raises_at_first=frozenset(chance.choice(("", "ab", "b")))),
        "sweeps_ms": chance.choice(((), (TTL_MS + chance.randint(0, 2_000),))),
        "opening": chance.choice((("crash after",), ("crash after",), ("crash before",))),
        "faults": chance.choice((("pause before",), ("pause before", "mute", "late"), DEATHS)),
        "most_faults": 1,
        "each_fault": 0.25,
    }


def copies(chance: random.Random) -> Draft:
    """Requests that come twice or late, and a handler that raises at first: a copy must not do it all again."""
    return {
        "arrivals": arrivals_of(chance, chance.choice(("a", "ab", "aa")), 500, again=chance.choice((0, 0, 1))),
        "handlers": Handlers(steps=(0, 1), step_ms=(1, 300), raises_at_first=frozenset("ab")),
        "faults": ("twice", "late"),
        "most_faults": chance.choice((1, 2)),
        "each_fault": 0.5,
    }


def unsure(chance: random.Random) -> Draft:
    """Settles whose answers get lost, while others take the key: what became of them?"""
    return {
        "arrivals": arrivals_of(chance, chance.choice(("abcd", "abac")), chance.choice((400, 1_200)), again=1),
        "handlers": Handlers(steps=(0, 1), step_ms=(1, 200), raises=0.3, defers=0.3),
        "faults": ("mute",),
        "most_faults": chance.choice((1, 2)),
        "each_fault": 0.4,
    }


def rush(chance: random.Random) -> Draft:
    """Many messages in the same moments, and runs that take no time: owners come and go between two requests."""
    return {
        "arrivals": tuple(Arrival(at_ms=chance.randint(0, 30), message_id=each) for each in "abcdef"),
        "handlers": Handlers(steps=(0, 0)),
        "faults": (),
        "most_faults": 0,
    }


def short_of_time(chance: random.Random) -> Draft:
    """Invocations with time for one run only, which leave messages behind, and an id that comes twice to a free key."""
    skew_ms = 200
    ended_ms = TTL_MS + 2 * skew_ms + 20
    return {
        "arrivals": (
            Arrival(at_ms=0, message_id="a", again=0),
            Arrival(at_ms=chance.randint(20, 60), message_id="b", again=0),
            *(Arrival(at_ms=ended_ms + chance.randint(0, 15), message_id=each, again=1) for each in "aa"),
        ),
        "skew_ms": skew_ms,
        "handlers": Handlers(steps=(1, 1), step_ms=(240, 280), raises_at_first=frozenset("a")),
        "invocation_ms": 720,
        "opening": ("crash after", *chance.choice(((None, None, None, None, "lost"), ()))),
        "faults": ("lost", "mute", "pause before"),
        "most_faults": chance.choice((0, 1)),
        "each_fault": 0.5,
    }


def paused(chance: random.Random) -> Draft:
    """An id that comes again while its message pauses, on a key that is free for others."""
    skew_ms = 200
    ended_ms = TTL_MS + 2 * skew_ms + 20
    return {
        "arrivals": (
            Arrival(at_ms=0, message_id="a", again=0),
            Arrival(at_ms=ended_ms, message_id="b", again=0),
            *(
                Arrival(
                    at_ms=ended_ms * chance.choice((1, 2, 2)) + chance.randint(50, 1_000),
                    message_id=each,
                    kind=chance.choice(("asynchronous", "http")),
                )
                for each in chance.choice(("ac", "aca", "a", "b", "bc"))
            ),
        ),
        "wakes": chance.random() < 0.5,
        "skew_ms": skew_ms,
        "policy": {"pauses_ms": (chance.choice((300, 6_000)),)},
        "handlers": Handlers(steps=(1, 1), step_ms=(1, 50), raises_at_first=frozenset("a"), raises=0.2),
        "opening": ("crash after", None, None, *chance.choice((("crash before",), ()))),
        "faults": ("crash",),
        "most_faults": chance.choice((0, 1)),
        "each_fault": 0.5,
    }


def hand_over(chance: random.Random) -> Draft:
    """Callers who wait, and what else waits handed over by a waker that cannot be relied on."""
    return {
        "arrivals": arrivals_of(
            chance, chance.choice(("ab", "abc", "aba")), chance.choice((20, 200)), kind="http", again=0
        ),
        "wakes": True,
        "handlers": Handlers(steps=(0, 2), step_ms=(1, 400), raises=chance.choice((0.0, 0.2)), defers=0.1),
        "sweeps_ms": chance.choice(((), (chance.randint(0, 2 * TTL_MS),))),
        "faults": (*chance.choice((WAKES, WAKES, (*WAKES, *REPLIES, *DEATHS))),),
        "most_faults": chance.choice((1, 2, 3)),
        "each_fault": 0.5,
    }


def full(chance: random.Random) -> Draft:
    """More messages than may be stored, and an owner that dies."""
    return {
        "arrivals": arrivals_of(chance, "abcd", chance.choice((30, 4_000)), again=1),
        "policy": {"max_pending": 2},
        "handlers": Handlers(steps=(1, 3), step_ms=(50, 600)),
        "faults": (*DEATHS, "mute"),
        "most_faults": 2,
        "each_fault": 0.2,
    }


def poison(chance: random.Random) -> Draft:
    """A message that nobody survives, few attempts, and wakes that fail: dead letters, and only those."""
    arrivals = arrivals_of(chance, chance.choice(("ab", "aab", "aaa")), chance.choice((100, 6_000)), again=1)
    return {
        "arrivals": tuple(
            Arrival(at_ms=each.at_ms, message_id=each.message_id, kind=chance.choice(("http", "asynchronous")))
            for each in arrivals
        ),
        "policy": {"max_attempts": chance.choice((1, 2)), "on_error": chance.choice(("skip", "block"))},
        "wakes": chance.random() < 0.7,
        "handlers": Handlers(steps=(0, 2), step_ms=(1, 200), poison=frozenset(chance.choice(("", "a", "a")))),
        "faults": chance.choice((("wake fails", "wake unsure"), DEATHS, (*DEATHS, *WAKES))),
        "most_faults": 3,
        "each_fault": 0.3,
    }


def batches(chance: random.Random) -> Draft:
    """Runs of several messages: all that are due, and what is taken meanwhile."""
    return {
        "arrivals": arrivals_of(chance, chance.choice(("abc", "abcb")), chance.choice((20, 900))),
        "deliver": chance.choice(("one", "all")),
        "debounce_ms": chance.choice((0, 0, 50)),
        "policy": {"max_attempts": 3, "on_error": chance.choice(("skip", "block"))},
        "handlers": Handlers(steps=(1, 3), step_ms=(10, 500), takes=0.6, raises=chance.choice((0.0, 0.3)), defers=0.1),
        "faults": (*REPLIES, "late", "twice", *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": 0.15,
    }


def sent(chance: random.Random) -> Draft:
    """Messages from a front door, beside others that invoke the function itself."""
    return {
        "arrivals": tuple(
            Arrival(at_ms=chance.randint(0, 200), message_id=each, kind=chance.choice(("sent", "sent", "asynchronous")))
            for each in chance.choice(("ab", "aab", "abc"))
        ),
        "wakes": True,
        "faults": (*WAKES, *REPLIES, "late", "twice", *DEATHS),
        "most_faults": 2,
        "each_fault": 0.25,
    }


def crowd(chance: random.Random) -> Draft:
    """Everything at once."""
    ids = "".join(chance.choice("abcd") for _ in range(chance.randint(3, 6)))
    kinds: tuple[SourceKind, ...] = ("http", "asynchronous", "record", "sent")
    return {
        "arrivals": tuple(
            Arrival(at_ms=chance.randint(0, 5_000), message_id=each, kind=chance.choice(kinds)) for each in ids
        ),
        "wakes": chance.random() < 0.5,
        "sweeps_ms": tuple(chance.randint(0, 10_000) for _ in range(chance.randint(0, 3))),
        "deliver": chance.choice(("one", "one", "all")),
        "policy": {"max_attempts": chance.choice((2, 4)), "max_pending": chance.choice((2, 100))},
        "handlers": Handlers(raises=0.15, defers=0.1, takes=0.1, renews=0.1),
        "invocation_ms": chance.choice((None, 2_000, 6_000)),
        "faults": (*FAULTS, *WAKES),
        "most_faults": chance.choice((3, 5)),
        "each_fault": 0.12,
    }


def only_leases(chance: random.Random) -> Draft:
    """A provider that stores no messages: whoever comes second is sent away, and comes again."""
    return {
        "arrivals": arrivals_of(chance, "abc", chance.choice((30, 3_000)), again=3),
        "only_leases": True,
        "when_busy": "reject",
        "handlers": Handlers(steps=(1, 4), step_ms=(100, 1_200), looks=0.3, renews=0.2, raises=0.1),
        "faults": (*ON_REQUESTS, "pause", "clock"),
        "most_faults": 2,
        "each_fault": 0.2,
    }


SCENARIOS: Mapping[str, _Scenario] = {
    each.__name__: each
    for each in (
        pair,
        again,
        copies,
        unsure,
        rush,
        long_runs,
        cut_off,
        orphaned,
        short_of_time,
        paused,
        hand_over,
        full,
        poison,
        batches,
        sent,
        crowd,
        only_leases,
        stopped,
        held,
        quiet,
        later,
        answered,
        latest,
    )
}


# The real provider is the slower of them.
_SHARES = {"one clock": 3, "dynamodb": 2}


def plan_of(chance: random.Random, *, scenario: str | None = None, stores: Sequence[str] = STORES) -> Plan:
    """Draw a plan, on one of some stores."""
    name = scenario or chance.choice(tuple(SCENARIOS))
    chosen_store = chance.choices(stores, [_SHARES[each] for each in stores])[0]
    draft = SCENARIOS[name](chance)
    policy = Policy(**({"pauses_ms": (200, 800), "max_attempts": 4} | draft.get("policy", {})))
    settings = Settings(
        ttl_ms=TTL_MS,
        deliver=draft.get("deliver", "one"),
        debounce_ms=draft.get("debounce_ms", 0) if draft.get("deliver") == "all" else 0,
        when_busy=draft.get("when_busy", "enqueue"),
        watch_ms=draft.get("watch_ms"),
        min_gap_ms=draft.get("min_gap_ms", 0),
        drain_ms=draft.get("drain_ms"),
        wait_ms=draft.get("wait_ms"),
        policy=policy,
    )
    return Plan(
        name=name,
        store=chosen_store,
        skew_ms=draft.get("skew_ms", chance.choice((0, 200, 1_000))) if chosen_store != "one clock" else 0,
        arrivals=draft["arrivals"],
        settings=settings,
        handlers=draft.get("handlers", Handlers()),
        wakes=draft.get("wakes", False),
        delays=draft.get("delays", False),
        acts=draft.get("acts", ()),
        sweeps_ms=draft.get("sweeps_ms", ()),
        only_leases=draft.get("only_leases", False),
        invocation_ms=draft.get("invocation_ms"),
        warm=chance.choice((0.0, 0.5)),
        faults=draft["faults"],
        opening=draft.get("opening", ()),
        most_faults=draft["most_faults"],
        each_fault=draft.get("each_fault", 0.2),
        calm_ms=max(each.at_ms for each in (*draft["arrivals"], *draft.get("acts", ()))) + 3 * TTL_MS,
    )
