"""Eight processes, one key, an unguarded counter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Store

ROOT = Path(__file__).parents[2]
PROCESSES = 8
INCREMENTS = 504  # a multiple of the processes, at least 500


def increment(counter: Path, store: Store, how: str) -> int:
    """Let eight processes increment; return what the counter says at the end."""
    counter.write_text("0", encoding="utf-8")
    words = [sys.executable, "-m", "tests.end_to_end.incrementer", str(counter), str(INCREMENTS // PROCESSES), how]
    environment = {**os.environ, **store.environment}
    running = [
        subprocess.Popen(words, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    ended = [process.wait() for process in running]
    for process in running:
        assert process.stdout is not None
        process.stdout.close()
    assert ended == [0] * PROCESSES
    return int(counter.read_text(encoding="utf-8"))


def test_no_update_is_lost_under_the_lease(store: Store, tmp_path: Path) -> None:
    """504 increments by eight processes make 504 (R1)."""
    assert increment(tmp_path / "counter", store, "with") == INCREMENTS


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_updates_are_lost_without_the_lease(store: Store, tmp_path: Path) -> None:
    """The same increments without the lease lose some, so the test above can fail.

    A write only ever adds one to a number that was read, so the count cannot exceed the number of increments.
    """
    assert 0 < increment(tmp_path / "counter", store, "without") < INCREMENTS
