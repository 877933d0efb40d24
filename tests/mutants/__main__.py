"""Breaks a copy of the package, and shows which test notices.

``python -m tests.mutants [WORD ...]`` puts in the listed faults whose names hold all words. ``python -m tests.mutants
--seed 7 --count 100`` puts in random ones: the same seed and code give the same faults. It exits with 1 when a listed
fault survives, or more than three of a hundred random ones.
"""

import argparse
import functools
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Change, changes, differs
from tests.mutants.faults import MUTANTS, Mutant
from tests.mutants.survivors import why_it_survives
from tests.mutants.targets import PACKAGE, ROOT, Stages, Target, targets

AT_ONCE = 2
MAX_S = 900  # of one stage: a fault may make a test wait for ever
SURVIVORS_OF_100 = 3
IGNORED = shutil.ignore_patterns("__pycache__", ".*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A file of the package, its text with the fault, and the tests that must notice."""

    name: str
    file: str
    text: str
    stages: Stages


def listed(mutant: Mutant) -> Fault:
    """Make a fault of the list."""
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    return Fault(name=mutant.name, file=mutant.file, text=text.replace(mutant.old, mutant.new), stages=(mutant.tests,))


@functools.cache
def candidates() -> tuple[tuple[Target, str, Change], ...]:
    """Every change that can be drawn, with the file and its text: none that is known to change nothing that matters."""
    found = []
    for target in targets():
        text = (PACKAGE / target.file).read_text(encoding="utf-8")
        lines = text.splitlines()
        found += [
            (target, text, change)
            for change in changes(text, suffix=target.suffix)
            if why_it_survives(target.file, lines[change.line - 1], change) is None
        ]
    return tuple(found)


def drawn(seed: int, count: int) -> list[Fault]:
    """Draw random faults: the same seed and code give the same ones."""
    shuffled = random.Random(seed).sample(candidates(), len(candidates()))  # noqa: S311 - the same faults again
    faults = (
        Fault(
            name=f"{target.file}:{change.line}: {change}",
            file=target.file,
            text=change.apply(text),
            stages=target.stages,
        )
        for target, text, change in shuffled
        if differs(text, change, suffix=target.suffix)
    )
    return list(itertools.islice(faults, count))


def killer(fault: Fault) -> str | None:
    """The first test that fails on a copy of the package with the fault; ``None`` if none does.

    A test counts if it fails twice with the fault, and passes without it.
    """
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer"
        shutil.copytree(PACKAGE, layer / "incumbent", ignore=IGNORED)
        (layer / "incumbent" / fault.file).write_text(fault.text, encoding="utf-8")
        for stage in fault.stages:
            tests = list(stage)
            while (failed := first_failure(tests, layer)) is not None:
                if "::" not in failed:  # pytest itself: a syntax error, an endless loop
                    return failed
                if first_failure([failed], layer) is not None and first_failure([failed], PACKAGE.parent) is None:
                    return failed
                print(f"          {failed} fails without the fault too, or not every time", flush=True)
                tests += ["--deselect", failed]
    return None


def first_failure(tests: Sequence[str], layer: Path) -> str | None:
    """Run tests on the package in a folder until one fails."""
    words = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=120", *tests]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(layer), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            return f"{' '.join(tests)}: the tests did not end"
    if running.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, re.MULTILINE)
    return failed[1] if failed else f"the tests did not end well:\n{printed[-2_000:]}"


def survivors(faults: Iterable[Fault], killer: Callable[[Fault], str | None] = killer) -> list[Fault]:
    """Try each fault; print what noticed it, and at the end how many survived."""
    every, survived = list(faults), []
    with ThreadPoolExecutor(AT_ONCE) as tries:
        for fault, killed_by in zip(every, tries.map(killer, every), strict=True):
            print(f"{'SURVIVED' if killed_by is None else 'killed  '}  {fault.name}", flush=True)
            if killed_by is None:
                survived.append(fault)
            else:
                print(f"          by {killed_by}", flush=True)
    print(f"{len(every)} mutants, {len(every) - len(survived)} killed, {len(survived)} survived")
    for fault in survived:
        print(f"  {fault.name}")
    return survived


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the listed faults, or random ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Break the package; see who notices.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only listed faults whose names hold all words")
    parser.add_argument("--seed", type=int, help="try random faults, decided by this number")
    parser.add_argument("--count", type=int, default=100, help="how many random faults (100)")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        faults = drawn(given.seed, given.count)
        return 1 if len(survivors(faults)) * 100 > SURVIVORS_OF_100 * len(faults) else 0
    chosen = [mutant for mutant in MUTANTS if all(word.lower() in mutant.name.lower() for word in given.words)]
    return 1 if survivors(map(listed, chosen)) or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
