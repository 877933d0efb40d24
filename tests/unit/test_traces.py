"""Traces: a sequence that is never changed, in which a name is found without a look through it."""

import copy
import pickle
import random
from collections.abc import Sequence

import pytest

from incumbent.traces import KINDS, REMEMBERED, Ended, Outcome, Traces

WINDOW_MS = 500
OUTCOMES: Sequence[Outcome] = tuple(KINDS)


def trace(number: int, outcome: Outcome = "handled", *, name: str | None = None) -> Ended:
    """A trace of the moment ``number``."""
    by = f"c{number}" if name is None else f"c-{name}"
    return Ended(id=name or f"m{number}", outcome=outcome, claimed_by=by, fence=number, at_ms=number)


def latest(traces: Sequence[Ended], message_id: str, now_ms: int) -> Ended | None:
    """What a look through all finds."""
    for each in reversed(traces):
        if each.id == message_id and each.outcome != "failed" and now_ms - each.at_ms < WINDOW_MS:
            return each
    return None


def kept(traces: Sequence[Ended], now_ms: int) -> list[Ended]:
    """What a count of each kind from the end keeps of those within the window."""
    kinds = [KINDS[each.outcome] for each in traces]
    return [
        each
        for place, each in enumerate(traces)
        if now_ms - each.at_ms < WINDOW_MS and kinds[place:].count(kinds[place]) <= REMEMBERED
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_version_is_what_a_list_would_be(seed: int) -> None:
    """Also an old version that is taken up again, whose logs others have gone on with."""
    chance = random.Random(seed)  # noqa: S311 - the same walk each time
    names = [f"n{number}" for number in range(chance.choice((3, 400)))]
    weights = [chance.choice((0, 1, 5)) for _ in OUTCOMES] or [1]
    versions: list[tuple[Traces, list[Ended]]] = [(Traces(), [])]
    for now_ms in range(700):
        traces, expected = versions[-1] if chance.random() < 0.98 else chance.choice(versions)
        outcomes = chance.choices(OUTCOMES, [*weights[:-1], weights[-1] + 1], k=chance.choice((0, 1, 1, 3, 3)))
        added = [trace(now_ms, outcome, name=chance.choice(names)) for outcome in outcomes]
        traces, expected = traces.plus(added), [*expected, *added]
        if chance.random() < 0.8:
            traces, expected = traces.forgotten(now_ms, WINDOW_MS), kept(expected, now_ms)
        versions = [*versions[-20:], (traces, expected)]
    for traces, expected in versions:
        assert list(traces) == expected
        assert len(traces) == len(expected)
        for name in chance.sample(names, min(20, len(names))):
            for now_ms in (699, 1_200):
                assert traces.latest(name, now_ms, WINDOW_MS) == latest(expected, name, now_ms)
                failed = [
                    each
                    for each in expected
                    if each.outcome == "failed" and each.claimed_by == f"c-{name}" and now_ms - each.at_ms < WINDOW_MS
                ]
                assert traces.has_failed(f"c-{name}", now_ms, WINDOW_MS) == bool(failed)


def test_it_is_a_sequence_like_a_tuple() -> None:
    """Of the same traces it is equal to a tuple, and hashed alike; copies and pickles are equal."""
    given = (trace(1), trace(2, "failed"), trace(3, "dead"))
    traces = Traces(given)
    assert traces == given
    assert hash(traces) == hash(given)
    assert traces != Traces(given[:2])
    assert traces != list(given)
    assert (traces[0], traces[-1], traces[1:]) == (given[0], given[-1], given[1:])
    assert list(reversed(traces)) == [*reversed(given)]
    assert given[1] in traces
    assert repr(traces) == f"Traces({list(given)!r})"
    assert copy.deepcopy(traces) == traces
    assert pickle.loads(pickle.dumps(traces)) == traces  # noqa: S301 - our own bytes
    assert Traces.of(traces) is traces
    assert Traces.of(given) == traces


def test_what_is_forgotten_is_let_go() -> None:
    """However many came: a log holds little more than what is remembered."""
    traces = Traces()
    for number in range(5_000):
        traces = traces.plus([trace(number)]).forgotten(number, 10_000)
    assert len(traces) == REMEMBERED
    (log, _, _), *others = traces._parts.values()  # noqa: SLF001 - no method shows it
    assert len(log.entries) <= 2 * REMEMBERED + 2
    assert len(log.places) <= 2 * REMEMBERED + 2
    assert not others
