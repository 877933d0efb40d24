"""One of several processes that increment an unguarded counter, with or without the lease.

``python -m tests.end_to_end.incrementer FILE TIMES with|without``.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import LeaseProvider
from incumbent.errors import LeaseUnavailable
from incumbent.providers import from_env

KEY = "counter"
TTL_MS = 60_000  # nothing renews here, and a machine that is busy enough holds a process up for seconds
T = TypeVar("T")


def main(counter: Path, times: int, *, leased: bool) -> None:
    """Increment the number in the file as often as told."""
    provider = from_env() if leased else None
    for _ in range(times):
        if provider is None:
            increment(counter)
        else:
            increment_leased(counter, provider)


def increment(counter: Path) -> None:
    """Read, pause, write."""
    value = int(counter.read_text(encoding="utf-8") or "0")
    SYSTEM_CLOCK.sleep_ms(1)
    counter.write_text(str(value + 1), encoding="utf-8")


def increment_leased(counter: Path, provider: LeaseProvider) -> None:
    """The same with the lease held."""
    owner = token_hex(8)
    while not until_told(lambda: provider.acquire_lease(KEY, owner, TTL_MS)).acquired:
        pause()
    increment(counter)
    until_told(lambda: provider.release_lease(KEY, owner))


def until_told(call: Callable[[], T]) -> T:
    """Ask again while the store gives no answer: eight of these crowd one server beyond its timeout at times."""
    while True:
        try:
            return call()
        except LeaseUnavailable:
            pause()


def pause() -> None:
    """Step back for a moment, each its own."""
    SYSTEM_CLOCK.sleep_ms(random.randint(1, 20))  # noqa: S311 - spreads the crowd


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), leased=sys.argv[3] == "with")
