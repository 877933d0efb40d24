"""Breaks a copy of the package in each listed way and shows which test notices: ``python -m tests.mutants [WORD ...]``.

Words choose among the mutants by their names. Exits with 1 if any survives.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
AT_ONCE = 2
IGNORED = shutil.ignore_patterns("__pycache__", ".*")


def killer(mutant: Mutant) -> str | None:
    """The first test that fails on a copy of the package with the fault; ``None`` if none does."""
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer"
        shutil.copytree(ROOT / "layer" / "incumbent", layer / "incumbent", ignore=IGNORED)
        file = layer / "incumbent" / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *mutant.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(layer), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"the tests did not end well:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"


def main(words: list[str]) -> int:
    """Try the mutants whose names hold all words."""
    chosen = [mutant for mutant in MUTANTS if all(word.lower() in mutant.name.lower() for word in words)]
    survived = 0
    with ThreadPoolExecutor(AT_ONCE) as tries:
        for mutant, killed_by in zip(chosen, tries.map(killer, chosen), strict=True):
            survived += killed_by is None
            print(f"{'SURVIVED' if killed_by is None else 'killed  '}  {mutant.name}", flush=True)
            if killed_by is not None:
                print(f"          by {killed_by}", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - survived} killed, {survived} survived")
    return 1 if survived or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
