"""The command line: every schedule of all pairs, then as many drawn ones as are wanted."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from incumbent.clock import SYSTEM_CLOCK
from incumbent.testing import servers
from tests.interleavings.search import Found, Stage, drawn, meetings, pairs
from tests.interleavings.stores import DynamoDBStore, MemoryStore, Store
from tests.interleavings.turns import Turns
from tests.interleavings.valkey import valkey_stores

STORES = ("dynamodb", "memory", "valkey")
_SHOWN_OF_A_KIND = 3


def main() -> int:
    """Say what was found; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="how many drawn schedules (20,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed of them (0)")
    parser.add_argument("--switches", type=int, default=1, help="how often a pair switches at most (1)")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th pair (1)")
    parser.add_argument("--store", choices=STORES, default="dynamodb", help="on which store (dynamodb)")
    given = parser.parse_args()
    began, kinds, shown = SYSTEM_CLOCK.now(), Counter[str](), 0
    schedules = 0
    with ExitStack() as stack:
        for count, found in _all(Stage(_store(given.store, stack), Turns()), given):
            schedules += count
            if found is not None:
                kind = found.why.partition(":")[0]
                kinds[kind] += 1
                if kinds[kind] <= _SHOWN_OF_A_KIND:
                    _say(str(found))
                    shown += 1
    took_ms = began.until(SYSTEM_CLOCK.now())
    _say(f"{schedules} schedules, {kinds.total()} broken, {shown} shown, {took_ms / 1_000:.1f} s")
    return 1 if kinds else 0


def _store(name: str, stack: ExitStack) -> Callable[[Turns], Store]:
    if name == "memory":
        return MemoryStore
    if name == "dynamodb":
        return DynamoDBStore
    return stack.enter_context(valkey_stores(stack.enter_context(servers.valkey())))


def _all(stage: Stage, given: argparse.Namespace) -> Iterator[tuple[int, Found | None]]:
    chosen = (each for number, each in enumerate(meetings(2)) if number % given.every == 0)
    yield from pairs(stage, chosen, switches=given.switches)
    for seed in range(given.first, given.first + given.seeds):
        yield 1, drawn(stage, seed)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
