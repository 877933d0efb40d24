"""What a call costs in memory, in figures that do not depend on the machine: records, clock reads, steps."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from incumbent.clock import SYSTEM_CLOCK, Moment, SystemClock
from incumbent.providers.memory import MemoryProvider
from incumbent.rules import REMEMBERED
from incumbent.values import Claimed, Failure, Message
from tests.unit.stage import profiled

TTL_MS = 30_000


class CountingClock(SystemClock):
    """A clock that counts how often it is read."""

    reads = 0

    def now(self) -> Moment:
        """Read both clocks."""
        self.reads += 1
        return SYSTEM_CLOCK.now()


def run(provider: MemoryProvider, key: str, name: str) -> None:
    """Claim and settle, as handled."""
    claimed = provider.claim(key, name, TTL_MS, Message(id=name, event={"text": "hello"}))
    assert isinstance(claimed, Claimed)
    provider.settle(key, name, handled=[name], ttl_ms=TTL_MS, fence=claimed.fence)


def drop(provider: MemoryProvider, key: str, name: str) -> None:
    """Claim and settle, as failed, its source told."""
    provider.claim(key, name, TTL_MS, Message(id=name, event={"text": "hello"}))
    provider.settle(key, name, dropped=[Failure(id=name, error="e")], ttl_ms=TTL_MS)


def bury(provider: MemoryProvider, key: str, name: str) -> None:
    """Claim and settle, as dead."""
    provider.claim(key, name, TTL_MS, Message(id=name, event={"text": "hello"}), as_ticket=True)
    provider.settle(key, name, failed=[Failure(id=name, error="e", final=True)], ttl_ms=TTL_MS)


def records(call: Callable[[], object]) -> Counter[str]:
    """Count the records that a call makes and copies, by class."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and name.startswith("make_"):
            found[f"{name.removeprefix('make_')}.init"] += 1
        elif event == "call" and name == "__replace__":
            found[f"{type(frame.f_locals['copied__']).__name__}.replace"] += 1
        elif event == "call" and name == "__init__":
            found[f"{type(frame.f_locals['self']).__name__}.init"] += 1

    with profiled(note):
        call()
    return found


def steps(call: Callable[[], object]) -> int:
    """Count the steps of the interpreter in a call."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_claim_and_settle_make_few_records() -> None:
    """A state for the grant with the delivery, and one for the end; one record each for what they keep and answer."""
    provider = MemoryProvider()
    run(provider, "first", "first")
    assert records(lambda: run(provider, "run", "m")) == {
        "Message.init": 2,  # the caller's, and the one that it is given
        "Stored.init": 1,
        "Stored.replace": 1,
        "KeyState.replace": 2,
        "Granted.init": 1,
        "Claimed.init": 1,
        "Ended.init": 1,
        "TenureEnd.init": 1,
        "Freed.init": 1,
        "Released.init": 1,
        "_Log.init": 1,  # of a new key
    }


def test_claim_and_settle_call_few_functions() -> None:
    """Of the package, its classes' own included; comprehensions count where the interpreter calls them."""
    provider = MemoryProvider()
    run(provider, "first", "first")
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        ours = str(frame.f_globals.get("__name__")).startswith("incumbent.")
        if event == "call" and (ours or frame.f_code.co_filename == "<string>"):
            calls[frame.f_code.co_name] += 1

    with profiled(note):
        run(provider, "run", "m")
    assert sum(calls.values()) <= 89, (sum(calls.values()), calls)
    assert calls["check_text"] == 6  # key and owner of each call, the message's id, and the id that is settled


def test_a_call_reads_the_clock_once() -> None:
    """Under the lock, so that a call that waited for it acts on no old time."""
    clock = CountingClock()
    provider = MemoryProvider(clock=clock)
    run(provider, "run", "m")
    assert clock.reads == 2


@pytest.mark.parametrize("before", [run, drop, bury])
def test_a_full_window_costs_no_steps(before: Callable[[MemoryProvider, str, str], None]) -> None:
    """Whatever kind it is full of: a name is found without a look through, and the oldest goes without one."""
    provider = MemoryProvider()
    run(provider, "busy", "first")
    few = steps(lambda: run(provider, "busy", "second"))
    for number in range(REMEMBERED + 20):
        before(provider, "busy", f"b{number}")
    many = steps(lambda: run(provider, "busy", "last"))
    assert many <= few + REMEMBERED // 2
