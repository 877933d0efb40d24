"""An environment that has served thousands of invocations holds what it held after the first ones."""

import json
import subprocess
import sys

import pytest

from tests.budgets import budget
from tests.end_to_end.conftest import Store

WARM_UP = 1_500  # more than the fences that a provider remembers
INVOCATIONS = budget(4_000, soak=20_000)
NOISE_KB = 4_096
ROOT_MODULE = "tests.lifecycle.warm"


def grown(store: Store, invocations: int) -> dict[str, int]:
    """By how much each thing has grown."""
    words = [sys.executable, "-m", ROOT_MODULE, str(WARM_UP), str(invocations)]
    done = subprocess.run(words, env=store.environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2_000:]
    told = json.loads(done.stdout)
    return {name: told["after"][name] - told["before"][name] for name in told["before"]}


@pytest.mark.timeout(300)  # a few seconds, on a machine that has nothing else to do
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_thousands_of_warm_invocations_leave_nothing_behind(store: Store) -> None:
    """Not a thread, a socket or a file, and of memory less than noise; a tenth are coroutines, a fiftieth fail."""
    more = grown(store, INVOCATIONS)
    memory_kb = more.pop("most_kb")
    assert more == {"threads": 0, "tasks": 0, "files": 0, "sockets": 0}
    assert memory_kb < NOISE_KB
