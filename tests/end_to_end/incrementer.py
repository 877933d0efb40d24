"""One of several processes that increment an unguarded counter, with or without the lease.

``python -m tests.end_to_end.incrementer FILE TIMES with|without``. It prints a line when it is ready, and starts when
its standard input ends.
"""

import os
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
    print("ready", flush=True)  # noqa: T201 - the parent waits for it
    sys.stdin.read()
    for _ in range(times):
        if provider is None:
            increment(counter)
        else:
            increment_leased(counter, provider)


def increment(counter: Path) -> None:
    """Read, pause, write.

    The write replaces the file as a whole: a reader that finds half a write would measure torn files, not lost updates.
    """
    value = int(counter.read_text(encoding="utf-8"))
    SYSTEM_CLOCK.sleep_ms(1)
    written = counter.with_name(f"{counter.name}.{os.getpid()}")
    written.write_text(str(value + 1), encoding="utf-8")
    written.replace(counter)


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
