"""Interleaved measuring: every variant runs in every round, in a changing order, and a ratio is taken per round."""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.tables import Spread

Run = Callable[[str], object]
T = TypeVar("T")

_WARM_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much to measure. ``quick`` only shows that everything runs; its figures mean nothing.

    ``rounds`` of ``calls`` each on Redis and in memory, ``slow_rounds`` of ``slow_calls`` on DynamoDB's stand-ins.
    ``processes`` are the cold starts of each handler. ``passes`` are the rounds of a growth curve.
    """

    quick: bool
    rounds: int
    calls: int
    slow_rounds: int
    slow_calls: int
    processes: int
    passes: int


FULL = Budget(quick=False, rounds=60, calls=30, slow_rounds=24, slow_calls=10, processes=15, passes=7)
QUICK = Budget(quick=True, rounds=2, calls=2, slow_rounds=1, slow_calls=1, processes=1, passes=1)


@contextmanager
def apart(start: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """Start a server on another processor than this process, where the system lets choose.

    Else they share one in some runs and not in others, which halves the time of a short request.
    """
    free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(free) <= 1:
        with start() as server:
            yield server
        return
    try:
        os.sched_setaffinity(0, free[1:])
        with start() as server:
            os.sched_setaffinity(0, free[:1])
            yield server
    finally:
        os.sched_setaffinity(0, free)


def wall_time(run: Run, names: Iterable[str]) -> float:
    """Return the median time of a call, seconds."""
    times = []
    for name in names:
        began = time.perf_counter()
        run(name)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def cpu_time(run: Run, names: Iterable[str]) -> float:
    """Return the CPU time of this process per call, all threads included, seconds."""
    keys = list(names)
    began = time.process_time()
    for name in keys:
        run(name)
    return (time.process_time() - began) / len(keys)


def interleaved(
    variants: Mapping[str, Run], *, rounds: int, calls: int, how: Callable[[Run, Iterable[str]], float] = wall_time
) -> dict[str, list[float]]:
    """Return the seconds per call of each variant in each round. Every call gets a name that is used once."""
    for name, run in variants.items():
        for number in range(min(_WARM_UP, 2 * calls)):
            run(f"{name}/warm/{number}")
    found: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    shuffle = random.Random(1).shuffle  # noqa: S311 - the order of measuring is no secret
    for turn in range(rounds):
        shuffle(order)
        for name in order:
            found[name].append(how(variants[name], [f"{name}/{turn}/{number}" for number in range(calls)]))
    return found


def spread(values: Sequence[float], factor: float = 1.0) -> Spread:
    """Return median and quartiles, each times ``factor``."""
    if len(values) == 1:
        return Spread(low=values[0] * factor, median=values[0] * factor, high=values[0] * factor)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low=low * factor, median=median * factor, high=high * factor)


def ratios(values: Sequence[float], base: Sequence[float]) -> Spread:
    """Return the spread of the ratios, each taken within one round."""
    return spread([one / other for one, other in zip(values, base, strict=True)])
