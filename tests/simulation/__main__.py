"""The command line: carry out many schedules, or look at one."""

import argparse
import sys

from incumbent.clock import SYSTEM_CLOCK
from tests.simulation.mutants import MUTANTS
from tests.simulation.plans import SCENARIOS, STORES
from tests.simulation.search import Wanted, search_in_processes, trace

_SHOWN = 10


def main() -> int:
    """Say what was found; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="how many schedules (20,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed of them (0)")
    parser.add_argument("--jobs", type=int, default=2, help="in how many processes (2)")
    parser.add_argument("--seed", type=int, help="one schedule only")
    parser.add_argument("--trace", action="store_true", help="with --seed: say what happens in it")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="of one scenario only")
    parser.add_argument("--store", choices=STORES, help="on one store only")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), default="", help="with a seeded bug")
    given = parser.parse_args()
    wanted = Wanted(scenario=given.scenario, store=given.store, mutant=given.mutant)
    if given.seed is not None:
        lines, broken = trace(given.seed, wanted)
        return _say([*(lines if given.trace else ()), broken or f"seed {given.seed}: every rule holds"], broken)
    began, done, shown = SYSTEM_CLOCK.now(), 0, 0
    for count, found in search_in_processes(range(given.first, given.first + given.seeds), wanted, jobs=given.jobs):
        done += count
        _say([str(each) for each in found[: _SHOWN - shown]])
        shown += len(found)
    took_ms = began.until(SYSTEM_CLOCK.now())
    last = given.first + given.seeds - 1
    return _say([f"{done} schedules (seeds {given.first} to {last}), {shown} broken, {took_ms / 1_000:.1f} s"], shown)


def _say(lines: list[str], broken: object = None) -> int:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
