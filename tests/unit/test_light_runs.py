"""What a run of the decorator does in the process, counted: each call takes time on every event, so it has a budget.

The provider answers at once, so that only what is around it counts. Timings are measured by ``make bench``.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from incumbent import Claimed, Message, Released, current_lease, leased, leased_function, results
from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers.memory import MemoryProvider
from tests.unit.stage import Context, context, profiled

MAX_CALLS = 115
"""Python functions of the package that are called in one run. There were 230 before they were counted."""
MAX_LOOKS_AT_THE_CLOCK = 8
"""As the invocation begins and to know when it ends; before, in and after the run; and before it is settled."""
MAX_RANDOM = 1
"""For the owner of this run and that of the next."""


class AtOnce(MemoryProvider):
    """A provider that answers at once."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **_: Any) -> Claimed:
        """The key is free."""
        assert message is not None
        deadline = SYSTEM_CLOCK.now().plus(ttl_ms)
        return Claimed(owner=owner, fence=1, messages=(message,), waiting=0, expires_in_ms=ttl_ms, deadline=deadline)

    def settle(self, key: str, owner: str, **_: Any) -> Released:
        """Nothing waits."""
        return Released(remaining=0)


def counted(call: Callable[[], object]) -> Counter[str]:
    """How often each function was called: the package's by module and name, and those written in C."""
    for _ in range(3):
        call()
    found: Counter[str] = Counter()

    def note(frame: FrameType, what: str, function: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if what == "call" and (module == "os" or module.startswith("incumbent.")):
            found[f"{module.removeprefix('incumbent.')}.{frame.f_code.co_name}"] += 1
        elif what == "c_call":
            found[function.__name__] += 1

    with profiled(note):
        call()
    return found


def calls_of(found: Counter[str]) -> int:
    """How many calls of the package's functions."""
    return sum(times for name, times in found.items() if "." in name and not name.startswith("os."))


@pytest.fixture(autouse=True)
def modules_that_other_tests_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs not see them: of each that is there, a run asks something more."""
    for name in (
        "awslambdaric.lambda_runtime_marshaller",
        "aws_durable_execution_sdk_python",
        *(module for module, _ in results._FUTURES),  # noqa: SLF001 - which classes it knows is its own
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def found() -> Counter[str]:
    """The calls of one run, in an invocation as Lambda makes it."""

    @leased(key=lambda event: event["id"], provider=AtOnce(), keyspace="shop")
    def handler(event: Any, context: Context) -> Any:
        return {"done": event["id"]}

    now = context(SYSTEM_CLOCK)
    return counted(lambda: handler({"id": "a"}, now))


def test_run_makes_few_calls(found: Counter[str]) -> None:
    """It is one claim and one settle, and little around them."""
    assert calls_of(found) <= MAX_CALLS, ", ".join(sorted(found))


def test_run_looks_at_the_clock_and_for_random_bytes_seldom(found: Counter[str]) -> None:
    """What is known already is not asked for again."""
    assert found["monotonic_ns"] <= MAX_LOOKS_AT_THE_CLOCK
    assert found["urandom"] <= MAX_RANDOM
    assert found["getpid"] == 0
    assert found["allocate_lock"] <= 2


def test_run_leaves_nothing_to_the_garbage_collector() -> None:
    """What it has made is freed as it ends: memory is used again at once, and no event stays for longer."""

    @leased(key=lambda event: event["id"], provider=MemoryProvider())
    def handler(event: Any, context: object) -> Any:
        lease = current_lease()
        assert lease is not None
        return {"fence": lease.fence}

    handler({"id": "a"}, None)
    gc.collect()
    gc.disable()
    try:
        handler({"id": "a"}, None)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_run_reads_no_environment_variable(found: Counter[str]) -> None:
    """They are read at the first event: no variable changes in the life of an environment."""
    assert found["os.__getitem__"] == 0


def test_fact_that_no_observer_takes_is_not_put_together(found: Counter[str]) -> None:
    """The log takes the rare ones, and an ordinary run has none."""
    assert not [name for name in found if "reporting.tell" in name or "observe.tell" in name]


def test_run_of_one_record_of_a_batch_is_as_light() -> None:
    """``leased_function`` binds its arguments besides."""

    @leased_function(key=lambda record: record["id"], message_id=lambda record: record["id"], provider=AtOnce())
    def handle(record: Any, lambda_context: Context) -> Any:
        return {"done": record["id"]}

    now = context(SYSTEM_CLOCK)
    found = counted(lambda: handle({"id": "a"}, lambda_context=now))
    assert calls_of(found) <= MAX_CALLS + 10, ", ".join(sorted(found))
    assert found["monotonic_ns"] <= MAX_LOOKS_AT_THE_CLOCK
