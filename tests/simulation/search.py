"""Carries out schedules by their seeds, in several processes if there are many, and says which break a rule."""

import concurrent.futures
import logging
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.mutants import FAITHFUL, MUTANTS
from tests.simulation.scheduler import Workers
from tests.simulation.world import World

_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A schedule that breaks a rule, and how to see it again."""

    seed: int
    scenario: str
    store: str
    how: str
    options: str = ""

    def __str__(self) -> str:
        return (
            f"seed {self.seed} ({self.scenario}, {self.store}): {self.how}\n"
            f"    python -m tests.simulation --seed {self.seed}{self.options} --trace"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which schedules: of every scenario and store unless one is chosen, of the code as it is unless a mutant is."""

    scenario: str | None = None
    store: str | None = None
    mutant: str = ""

    @property
    def options(self) -> str:
        """The same for the command line."""
        said = (("scenario", self.scenario), ("store", self.store), ("mutant", self.mutant))
        return "".join(f" --{name} '{value}'" for name, value in said if value)


def search(seeds: Iterable[int], wanted: Wanted, *, at_most: int = 10) -> list[Broken]:
    """Carry out schedules in this process, until so many are broken."""
    found: list[Broken] = []
    with _undisturbed() as workers:
        for seed in seeds:
            world = _world(seed, workers, wanted)
            try:
                world.run()
            except Exception as broken:  # noqa: BLE001 - a rule, or whatever else went wrong in the schedule
                found.append(
                    Broken(
                        seed=seed,
                        scenario=world.plan.name,
                        store=world.plan.store,
                        how=_said(world, broken),
                        options=wanted.options,
                    )
                )
                if len(found) >= at_most:
                    break
    return found


def search_in_processes(seeds: range, wanted: Wanted, *, jobs: int) -> Iterator[tuple[int, list[Broken]]]:
    """Carry out many schedules; yield how many more were, and which of them are broken."""
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {pool.submit(search, chunk, wanted): len(chunk) for chunk in chunks}
        for done in concurrent.futures.as_completed(pending):
            yield pending[done], done.result()


def trace(seed: int, wanted: Wanted) -> tuple[list[str], str | None]:
    """Carry out one schedule; return what happened in it, line by line, and what it breaks."""
    lines: list[str] = []
    with _undisturbed() as workers:
        world = _world(seed, workers, wanted, lines)
        try:
            world.run()
        except Exception as broken:  # noqa: BLE001 - as above
            return lines, _said(world, broken)
    return lines, None


def _world(seed: int, workers: Workers, wanted: Wanted, lines: list[str] | None = None) -> World:
    mutant = MUTANTS[wanted.mutant] if wanted.mutant else FAITHFUL
    return World(seed, workers, mutant=mutant, scenario=wanted.scenario, store=wanted.store, trace=lines)


def _said(world: World, broken: Exception) -> str:
    return world.names.shorten(f"{type(broken).__name__}: {broken}")


@contextmanager
def _undisturbed() -> Iterator[Workers]:
    """Threads for schedules; nothing is logged, since most of it is meant, and the jitter's chance stays as it was."""
    workers = Workers()
    before, chance = logging.root.manager.disable, random.getstate()
    logging.disable(logging.CRITICAL)
    try:
        yield workers
    finally:
        workers.dismiss()
        logging.disable(before)
        random.setstate(chance)
