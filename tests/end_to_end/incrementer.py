"""One of several processes that increment an unguarded counter, with or without the lease.

``python -m tests.end_to_end.incrementer FILE TIMES with|without`` prints how often it did.
"""

import sys
from pathlib import Path
from secrets import token_hex

from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers import from_env

KEY = "counter"


def main(counter: Path, times: int, *, leased: bool) -> None:
    """Increment the number in the file, with a pause between reading and writing."""
    provider = from_env() if leased else None
    for _ in range(times):
        owner = token_hex(8)
        if provider is not None:
            while not provider.acquire_lease(KEY, owner, 10_000).acquired:
                SYSTEM_CLOCK.sleep_ms(1)
        value = int(counter.read_text(encoding="utf-8") or "0")
        SYSTEM_CLOCK.sleep_ms(1)
        counter.write_text(str(value + 1), encoding="utf-8")
        if provider is not None:
            provider.release_lease(KEY, owner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), leased=sys.argv[3] == "with")
