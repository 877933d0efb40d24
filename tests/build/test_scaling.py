"""The simulation behind docs/scaling.md: what must hold at any size, and that the page is what it has written."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale
from benchmarks.crowd import Arriving
from benchmarks.partitions import READ_UNITS, WRITE_UNITS, Bucket, ThrottledTable
from benchmarks.scale_page import page
from benchmarks.tables import Table
from incumbent.settings import Settings
from tests.simulation.network import Throttled

DOCS = Path(__file__).parents[2] / "docs"
STORED: dict[str, Any] = json.loads((DOCS / "scaling.json").read_text("utf-8"))
SIZES = scale.Sizes(seconds=1, many_seconds=1, keys=200, per_s=50)


def test_page_is_what_the_simulation_has_written() -> None:
    """Its figures are those of scaling.json, and no line was changed by hand."""
    assert (DOCS / "scaling.md").read_text("utf-8") == page(STORED)


def test_nothing_that_was_accepted_is_lost() -> None:
    """In each row of the page that counts it, throttled or not."""
    tables = [Table.from_json(each) for name, each in STORED.items() if name != "sizes"]
    counted = [(table.name, row, table.figure(row, "lost")) for table in tables for row in table.rows]
    assert {lost for name, _, lost in counted if name != "sweeper"} == {0}
    assert {name for name, _, _ in counted} == set(scale.TABLES)


def test_same_seed_gives_the_same_figures() -> None:
    """On any machine: no row depends on real time, throttled or not, and nothing that was accepted is lost."""

    def fate() -> dict[str, float | None]:
        arriving = Arriving(per_s=250, seconds=1, key_of=lambda _: "hot")
        scenario = scale.Scenario(
            Settings(deliver="all"),
            work_ms=20,
            table=scale.own_partitions,
            begin=functools.partial(scale.arrive, arriving),
        )
        return scenario.fate(250, 1)

    first = fate()
    assert (first["throttled"] or 0) > 0
    assert first["lost"] == 0
    assert fate() == first


@pytest.mark.parametrize("name", ["many", "sweeper", "shards"])
def test_small_sizes_run(name: str) -> None:
    """Every message runs once, where there is enough of everything."""
    table = scale.TABLES[name](SIZES)
    for row in table.rows:
        assert table.figure(row, "lost") in (0, None)
        assert table.figure(row, "throttled") in (0, None)


def test_claims_are_shed_before_renewals() -> None:
    """Where a key's partition throttles most requests, claims give up, and the lease that is being renewed is kept."""
    table = Table.from_json(STORED["shed"])
    busy = [row for row in table.rows if (table.figure(row, "throttled") or 0) > 20]
    assert busy
    for row in busy:
        assert (table.figure(row, "shed") or 0) > (table.figure(row, "failed") or 0), row
        if not row.startswith("3 s"):
            assert table.figure(row, "leases") == 0, row


def test_partition_serves_its_units_and_no_more() -> None:
    """A second's worth at once, then as it is refilled; a large request leaves a debt."""
    bucket = Bucket(WRITE_UNITS)
    for _ in range(WRITE_UNITS):
        assert bucket.has(5_000)
        bucket.spend(1)
    assert not bucket.has(5_000)
    assert bucket.has(5_001)
    bucket.spend(101)
    assert not bucket.has(5_100)
    assert bucket.has(5_102)


KEY = {"pk": {"S": "incumbent#k"}, "sk": {"S": "lease"}}


def accepted(table: ThrottledTable, item: Callable[[int], dict[str, Any]]) -> int:
    """How many writes a table takes at one moment, each of another item; the last one that it took stands there."""
    for number in range(10_000):
        try:
            table.put(item(number))
        except Throttled:
            assert table.item("incumbent#k") == item(number - 1)
            assert table.throttled.total() == 1
            return number
    raise AssertionError("a partition without a limit")


def test_write_that_is_throttled_changes_nothing() -> None:
    """Neither by the table's partition nor by that of its index, in which an entry that moves costs two."""

    def plain(number: int) -> dict[str, Any]:
        return {**KEY, "changed": {"N": str(number)}}

    def shown(number: int) -> dict[str, Any]:
        return {**KEY, "orphan_shard": {"S": "incumbent#0"}, "orphan_since": {"N": str(number)}}

    tables = [ThrottledTable(lambda: 5_000, partitions=1, index_partitions=1) for _ in range(2)]
    assert accepted(tables[0], plain) == WRITE_UNITS
    assert accepted(tables[1], shown) == WRITE_UNITS // 2 + 1
    for _ in range(READ_UNITS):
        tables[0].get(KEY)
    with pytest.raises(Throttled):
        tables[0].get(KEY)
