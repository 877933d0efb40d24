"""Scenarios of control: stops, holds, bursts, and messages for later, each raced by what else befalls the key."""

import random

from tests.simulation.drafts import (
    DEATHS,
    REPLIES,
    TTL_MS,
    WAKES,
    Act,
    Arrival,
    Draft,
    Handlers,
    an_opening,
    arrivals_of,
)


def stopped(chance: random.Random) -> Draft:
    """Runs that are asked to stop, as the key passes on: by an operator, or by what arrives."""
    return {
        "arrivals": arrivals_of(
            chance,
            chance.choice(("ab", "abc", "abca")),
            chance.choice((300, 2_000)),
            kind=chance.choice(("http", "asynchronous")),
        ),
        "acts": tuple(
            Act(
                at_ms=chance.randint(20, 4_000),
                call=chance.choice(("stop", "stop", "stop", "cancel")),
                looks=chance.random() < 0.5,
                message_id=chance.choice("abc"),
                opening=an_opening(chance),
            )
            for _ in range(chance.randint(1, 4))
        ),
        "wakes": chance.random() < 0.5,
        "when_busy": chance.choice(("enqueue", "interrupt")),
        "watch_ms": chance.choice((None, 200)),
        "handlers": Handlers(
            steps=(1, 4), step_ms=(50, 600), looks=0.7, stops=chance.choice((0.0, 0.6, 1.0)), takes=0.1, renews=0.2
        ),
        "faults": (*REPLIES, "late", "twice", *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": chance.choice((0.05, 0.2)),
    }


def held(chance: random.Random) -> Draft:
    """A key that an operator, a failed run or a gap holds while runs end and messages come."""
    acts = [
        Act(
            at_ms=chance.randint(0, 2_500),
            call="hold",
            for_ms=chance.choice((200, 1_500, 2 * TTL_MS)),
            opening=an_opening(chance),
        )
        for _ in range(chance.randint(0, 2))
    ]
    acts += [
        Act(at_ms=chance.randint(500, 5_000), call="resume", opening=an_opening(chance))
        for _ in range(chance.randint(0, 1))
    ]
    return {
        "arrivals": arrivals_of(
            chance,
            chance.choice(("abc", "abcb")),
            chance.choice((400, 3_000)),
            kind=chance.choice(("http", "asynchronous", "sent")),
        ),
        "acts": tuple(acts),
        "wakes": chance.random() < 0.7,
        "delays": chance.random() < 0.5,
        "min_gap_ms": chance.choice((0, 0, 1_000)),
        "handlers": Handlers(steps=(0, 2), step_ms=(20, 500), raises=0.3, cools=0.7),
        "sweeps_ms": chance.choice(((), (chance.randint(0, 2 * TTL_MS),))),
        "faults": (*REPLIES, "late", "twice", *WAKES, *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": chance.choice((0.1, 0.3)),
    }


def quiet(chance: random.Random) -> Draft:
    """Bursts on a free key and on one whose lease ends, and callers that die before they ask for the wake."""
    debounce_ms = chance.choice((150, 600))
    ended_ms = TTL_MS + debounce_ms
    return {
        "arrivals": (
            *arrivals_of(
                chance, chance.choice(("ab", "abc", "aba")), chance.choice((100, 1_200)), again=chance.choice((0, 1))
            ),
            *(Arrival(at_ms=ended_ms + chance.randint(-200, 600), message_id=each, again=1) for each in "de"),
        ),
        "deliver": "all",
        "debounce_ms": debounce_ms,
        "wakes": True,
        "delays": True,
        "handlers": Handlers(steps=(0, 3), step_ms=(1, 500), takes=0.3),
        "sweeps_ms": chance.choice(((), (chance.randint(0, 2 * TTL_MS),))),
        "opening": chance.choice((("crash after",), ("mute",), ())),
        "faults": chance.choice(((*WAKES, "wake dies"), ("wake dies", *DEATHS), (*REPLIES, "late", "twice", *DEATHS))),
        "most_faults": chance.choice((1, 2, 3)),
        "each_fault": 0.3,
    }


def later(chance: random.Random) -> Draft:
    """Messages for later beside others, some of them cancelled."""
    return {
        "arrivals": tuple(
            Arrival(
                at_ms=chance.randint(0, 1_000),
                message_id=each,
                kind=chance.choice(("sent", "sent", "asynchronous")),
                after_ms=chance.choice((0, 300, 2_500)),
            )
            for each in chance.choice(("abc", "abcd", "abac"))
        ),
        "acts": tuple(
            Act(
                at_ms=chance.randint(0, 3_000),
                call="cancel",
                message_id=chance.choice("abc"),
                opening=an_opening(chance),
            )
            for _ in range(chance.randint(0, 2))
        ),
        "wakes": True,
        "delays": chance.random() < 0.7,
        "policy": {"on_error": chance.choice(("skip", "block"))},
        "handlers": Handlers(steps=(0, 2), step_ms=(1, 400), raises=chance.choice((0.0, 0.3)), takes=0.2),
        "faults": (*WAKES, *REPLIES, "late", "twice", *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": 0.2,
    }


def answered(chance: random.Random) -> Draft:
    """Callers who wait for results, also those of messages that others brought; and others who look at all times."""
    when_busy = chance.choice(("wait", "wait", "enqueue"))
    return {
        "arrivals": arrivals_of(
            chance,
            chance.choice(("aab", "abc", "abab")),
            chance.choice((100, 1_500)),
            kind=chance.choice(("http", "http", "asynchronous")),
        ),
        "acts": tuple(
            Act(
                at_ms=chance.randint(0, 5_000),
                call=chance.choice(("find", "find", "show")),
                message_id=chance.choice("abc"),
                opening=an_opening(chance),
            )
            for _ in range(chance.randint(2, 6))
        ),
        "policy": {"result_bytes": chance.choice((20, 400, 400))},
        "wakes": chance.random() < 0.7,
        "when_busy": when_busy,
        "wait_ms": 4_000 if when_busy == "wait" else None,
        "handlers": Handlers(steps=(1, 4), step_ms=(50, 900), raises=0.1, takes=0.2, renews=0.4, notes=0.7),
        "faults": (*REPLIES, "late", "twice", *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": chance.choice((0.05, 0.2)),
    }


def latest(chance: random.Random) -> Draft:
    """Messages that replace those before them, beside a run, failed ones, some for later, and duplicates."""
    return {
        "arrivals": tuple(
            Arrival(
                at_ms=chance.randint(0, chance.choice((400, 3_000))),
                message_id=each,
                kind=chance.choice(("http", "asynchronous", "sent")),
                after_ms=chance.choice((0, 0, 0, 800)),
            )
            for each in chance.choice(("abcd", "abcde", "abcbd"))
        ),
        "policy": {"keep": "latest", "on_error": chance.choice(("skip", "skip", "block"))},
        "wakes": chance.random() < 0.7,
        "delays": chance.random() < 0.5,
        "handlers": Handlers(steps=(1, 3), step_ms=(50, 900), raises=chance.choice((0.0, 0.4)), takes=0.2),
        "faults": (*REPLIES, "late", "twice", *DEATHS),
        "most_faults": chance.choice((1, 2)),
        "each_fault": chance.choice((0.05, 0.2)),
    }
