"""What a run costs: requests and units of each part as they were measured, and the prices that they are taken times."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from incumbent.verify.store import READ_UNITS, REQUESTS, SEARCHES, WRITE_UNITS

MEASURED = Path(__file__).parent / "costs.json"
"""What each part uses: by store, part and kind. A test measures it again, on dynalite and Valkey."""

PRICE_WRITES, PRICE_READS = 0.625, 0.125
"""US dollars for a million write and read request units of a standard table on demand, in us-east-1.

Since November 2024; other Regions cost up to twice as much. Source: https://aws.amazon.com/dynamodb/pricing/on-demand/
"""

_READ_UNIT_BYTES = 4_096
_MILLION = 1_000_000


def measured() -> dict[str, dict[str, dict[str, float]]]:
    """Read what each part uses."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(MEASURED.read_text("utf-8"))
    return found


def expected(store: str, parts: Iterable[str]) -> dict[str, float]:
    """Return what these parts use together."""
    of_store = measured().get(store, {})
    total: dict[str, float] = {REQUESTS: 0, SEARCHES: 0, WRITE_UNITS: 0, READ_UNITS: 0}
    for part in parts:
        for name, number in of_store.get(part, {}).items():
            total[name] += number
    return total


def in_words(
    used: Mapping[str, float], *, price_writes: float, price_reads: float, scanned_bytes: int = 0, on_table: bool
) -> str:
    """Say what a run uses, and on a table what it costs. ``scanned_bytes``: what each search reads."""
    requests = f"{round(used.get(REQUESTS, 0)):,} requests"
    searches = round(used.get(SEARCHES, 0))
    if not on_table:
        return f"{requests}, of which {searches:,} search all names of the server; it costs nothing but load"
    writes = round(used.get(WRITE_UNITS, 0))
    reads = round(used.get(READ_UNITS, 0)) + searches * (scanned_bytes // _READ_UNIT_BYTES)
    dollars = (writes * price_writes + reads * price_reads) / _MILLION
    scans = f", {searches:,} scans of the whole table among them" if searches else ""
    return f"{requests}{scans}: {writes:,} write units and {reads:,} read units, ${dollars:.4f} on demand"
