"""docs/scaling.md, from the tables that the simulation has made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, number

TEMPLATE = Path(__file__).with_name("scaling.md")


def page(stored: Mapping[str, Any]) -> str:
    """Return the page. ``stored`` has the tables and ``sizes``, as scaling.json has them."""
    tables = {name: Table.from_json(each) for name, each in stored.items() if name != "sizes"}
    sizes = stored["sizes"]
    one, many = tables["hot"], tables["many"]
    most_one = max(one.figure(row, "ran") or 0 for row in one.rows if row.startswith('`"one"'))
    calm = [
        row
        for row in one.rows
        if row.startswith('`"all"') and one.figure(row, "throttled") == 0 and one.figure(row, "refused") == 0
    ]
    best, last = list(many.rows)[-1], list(one.rows)[-1]
    ran = many.figure(best, "offered") or 1
    return TEMPLATE.read_text("utf-8").format(
        run_ms=number(1_000 / most_one, 0),
        work_ms=sizes["handler_ms"],
        all_rate=number(max(one.figure(row, "offered") or 0 for row in calm), 0),
        worst_rate=number(one.figure(last, "offered") or 0, 0),
        worst_ran=number(one.figure(last, "ran") or 0, 0),
        per_run=number((many.figure(best, "units") or 0) / ran, 1),
        index_per_run=number((many.figure(best, "index") or 0) / ran, 1),
        shards=sizes["shards"],
        seconds=sizes["seconds"],
        pending=sizes["max_pending"],
        long_s=2 * sizes["seconds"],
        per_s=number(sizes["per_s"], 0),
        keys=number(sizes["keys"], 0),
        many_seconds=sizes["many_seconds"],
        hot=one.markdown(),
        shed=tables["shed"].markdown(),
        many=many.markdown(),
        sweeper=tables["sweeper"].markdown(),
        shards_table=tables["shards"].markdown(),
    )
