"""The section ``decorator``: the decorator alone, with a store that is a dictionary."""

from benchmarks import ours, peers
from benchmarks.measure import Budget, Run, interleaved, ratios, spread
from benchmarks.tables import Column, Table
from incumbent.providers.memory import MemoryProvider

IDEMPOTENCY = "Powertools idempotency, records in a dictionary"
LEASED = "incumbent, `@leased`, a key for each call"
LEASED_BUSY = "incumbent, `@leased`, one key, window full"
CLAIM = "incumbent, claim and settle"
ACQUIRE = "incumbent, acquire and release"

COLUMNS = {
    "us": Column(title="µs", digits=1, spread=True),
    "ratio": Column(title="times the base", digits=2, spread=True),
}
_WINDOW = 300


def run(budget: Budget) -> list[Table]:
    """Measure on the memory provider."""
    busy = ours.decorated(MemoryProvider(), key="one")
    for number in range(5 if budget.quick else _WINDOW):
        busy(f"before/{number}")
    provider = MemoryProvider()
    variants: dict[str, Run] = {
        IDEMPOTENCY: peers.idempotency(peers.FakeStore()),
        LEASED: ours.decorated(MemoryProvider()),
        LEASED_BUSY: busy,
        CLAIM: ours.with_message(provider),
        ACQUIRE: ours.lease_only(provider),
    }
    found = interleaved(variants, rounds=budget.rounds, calls=budget.calls)
    table = Table(
        name="decorator", title="The decorator alone, in memory", first=f"base: {IDEMPOTENCY}", columns=COLUMNS
    )
    for name in variants:
        table.set(name, us=spread(found[name], 1e6), ratio=ratios(found[name], found[IDEMPOTENCY]))
    return [table]
