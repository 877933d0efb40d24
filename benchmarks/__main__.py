"""Measure all sections, or those that are named, and write docs/performance.md when all were measured.

    python -m benchmarks [redis decorator dynamodb cold units spent growth] [--quick] [--output FOLDER]

Each section runs in a process of its own, so that one section's threads, modules and patches do not touch another's.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.measure import FULL, QUICK, Budget
from benchmarks.tables import Table

SECTIONS = {
    "redis": "redis_calls",
    "decorator": "memory_calls",
    "dynamodb": "dynamodb_calls",
    "cold": "cold_starts",
    "units": "write_units",
    "spent": "spent",
    "growth": "growth",
}
DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Read the arguments; measure in this process with ``--inside``, else start a process for each section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="measure what a run costs, beside others")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all unless given")
    parser.add_argument("--quick", action="store_true", help="a few calls of each, to see that everything runs")
    parser.add_argument("--output", type=Path, help="where performance.md and its plots go (docs/, unless --quick)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a section; there are {', '.join(SECTIONS)}")
    budget = QUICK if given.quick else FULL
    if given.inside is not None:
        _inside(given.sections[0], budget, given.inside)
    output = given.output or (None if given.quick else DOCS)
    if output is not None and not given.quick:
        import_module("matplotlib")  # rather now than after ten minutes
    began = time.perf_counter()
    tables = [table for name in given.sections or SECTIONS for table in _measured(name, quick=given.quick)]
    if output is not None and not given.sections:
        page: Callable[..., None] = import_module("benchmarks.page").write
        page(tables, budget, output, minutes=(time.perf_counter() - began) / 60)


def _measured(section: str, *, quick: bool) -> list[Table]:
    """Measure a section in a new process, and print its tables."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        answer = Path(folder) / "tables.json"
        command = [sys.executable, "-m", "benchmarks", section, "--inside", str(answer)]
        if quick:
            subprocess.run([*command, "--quick"], cwd=DOCS.parent, check=True)
        elif subprocess.run(command, cwd=DOCS.parent, check=False).returncode != 0:
            print(f"{section} failed: once more, so that one late answer does not cost the whole run", flush=True)
            subprocess.run(command, cwd=DOCS.parent, check=True)
        tables = [Table.from_json(each) for each in json.loads(answer.read_text("utf-8"))]
    for table in tables:
        print(table.text(), flush=True)
    return tables


def _inside(section: str, budget: Budget, answer: Path) -> None:
    """Measure a section in this process, and end it: some packages' threads would be waited for."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    measure: Callable[[Budget], list[Table]] = import_module(f"benchmarks.{SECTIONS[section]}").run
    tables = measure(budget)
    answer.write_text(json.dumps([table.to_json() for table in tables]), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
