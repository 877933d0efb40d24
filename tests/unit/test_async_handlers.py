"""Coroutines run where nobody awaits: on one warm loop a thread, under their own lease, and not beyond it."""

import asyncio
import functools
import gc
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from incumbent import IncumbentError, Lease, LeaseLost, Stop, async_handlers, current_lease
from incumbent.async_handlers import synchronous
from incumbent.calls import Completed
from incumbent.clock import SYSTEM_CLOCK
from tests.unit.stage import PATIENCE_S, beside, no_heartbeat_is_left, raising
from tests.unit.test_interrupts import throw_into
from tests.unit.test_runs import TTL_MS, Line

ROOT = Path(__file__).parents[2]


@pytest.fixture
def line() -> Line:
    """A key without a waker."""
    return Line()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert no_heartbeat_is_left()


def serve(line: Line, function: Callable[..., Any], message_id: str = "m1") -> Any:
    """Run a function as the handler of a message that comes; return its result."""
    run = synchronous(function)
    outcome = line.serve(line.call(message_id), lambda _, lease: run(lease, lease))
    assert isinstance(outcome, Completed)
    return outcome.result


def test_plain_function_is_called_as_it_is(line: Line) -> None:
    """Its arguments go through, whatever they are called."""
    run = synchronous(lambda *args, **kwargs: (args, kwargs))
    outcome = line.serve(line.call("m1"), lambda _, lease: run(lease, 1, lease=2))
    assert outcome == Completed(result=((1,), {"lease": 2}))


def test_loop_is_kept_for_the_next_invocation(line: Line) -> None:
    """What a client has bound to it stays good in a warm environment."""

    async def handler(lease: Lease) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    first = serve(line, handler)
    assert serve(line, handler, "m2") is first
    assert not first.is_closed()


def test_each_thread_has_a_loop_of_its_own(line: Line) -> None:
    """Two at once do not meet."""
    other = Line()
    loops: list[asyncio.AbstractEventLoop] = []

    async def handler(lease: Lease) -> None:
        loops.append(asyncio.get_running_loop())

    def in_a_thread() -> None:
        serve(other, handler)
        loops[-1].close()

    serve(line, handler)
    with beside(in_a_thread):
        pass
    assert len(set(map(id, loops))) == 2


def test_exception_of_a_coroutine_is_the_runs(line: Line) -> None:
    """As if it were awaited by Lambda."""

    async def handler(lease: Lease) -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        serve(line, handler)
    assert (line.owner, line.stored) == (None, [])

    async def well(lease: Lease) -> str:
        return "well"

    assert serve(line, well, "m2") == "well"


def test_middleware_that_returns_the_coroutine_is_awaited(line: Line) -> None:
    """Powertools' middleware is a plain function around whatever handler."""

    def middleware(handler: Callable[..., Awaitable[str]]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def wrapper(*args: Any) -> Any:
            return handler(*args)

        return wrapper

    @middleware
    async def handler(lease: Lease) -> str:
        await asyncio.sleep(0)
        return "done"

    assert serve(line, handler) == "done"


def test_middleware_that_has_awaited_it_is_left_alone(line: Line) -> None:
    """It brings a loop of its own, and its result is a result."""

    def middleware(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def wrapper(*args: Any) -> Any:
            return asyncio.run(handler(*args))

        return wrapper

    @middleware
    async def handler(lease: Lease) -> str:
        return "done"

    assert serve(line, handler) == "done"


def test_current_lease_is_the_invocations_own_on_a_warm_loop(line: Line) -> None:
    """The kept loop was made under the first lease: the second run sees its own, in tasks and threads too."""

    async def handler(lease: Lease) -> list[bool]:
        await asyncio.sleep(0)

        async def inner() -> bool:
            return current_lease() is lease

        return [
            current_lease() is lease,
            await asyncio.create_task(inner()),
            (await asyncio.to_thread(current_lease)) is lease,
        ]

    assert serve(line, handler) == [True] * 3
    assert serve(line, handler, "m2") == [True] * 3
    assert current_lease() is None


def test_other_context_variables_reach_the_coroutine(line: Line) -> None:
    """A tracer's, say: those of the moment, not those of the first invocation."""
    variable: ContextVar[int] = ContextVar("variable")

    async def handler(lease: Lease) -> int:
        return variable.get()

    for number in (1, 2):
        token = variable.set(number)
        assert serve(line, handler, f"m{number}") == number
        variable.reset(token)


def test_loss_cancels_the_coroutine(line: Line) -> None:
    """It waits for something else when the heartbeat finds the lease lost: it is cancelled, and may clean up."""
    cleaned: list[Stop | None] = []

    async def handler(lease: Lease) -> None:
        pause_ms = line.clock.next_pause_ms()
        line.steal()
        line.clock.advance(pause_ms)
        loop = asyncio.get_running_loop()
        wakes = loop.time() + PATIENCE_S
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            assert loop.time() < wakes
            cleaned.append(lease.stop)

    with pytest.raises(LeaseLost) as lost:
        serve(line, handler)
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)
    assert cleaned == [Stop.LOST]
    assert len(line.losses) == 1
    line.store.release_lease("orders/k", "thief")

    async def well(lease: Lease) -> str:
        await asyncio.sleep(0.01)  # a cancellation that was left over would come here
        return "well"

    assert serve(line, well, "m2") == "well"


def test_coroutine_that_finds_the_loss_itself_is_cancelled_at_its_next_await(line: Line) -> None:
    """``stop`` in the coroutine notices the deadline; what it awaits next is not waited for."""

    async def handler(lease: Lease) -> None:
        line.clock.advance(TTL_MS)
        assert lease.stop is Stop.LOST
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(LeaseLost):
        serve(line, handler)


def test_coroutine_that_swallows_its_cancellation_is_lost_all_the_same(line: Line) -> None:
    """R3: what it returns is not reported as success."""

    async def handler(lease: Lease) -> str:
        line.clock.advance(TTL_MS)
        assert lease.stop is Stop.LOST
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    with pytest.raises(LeaseLost):
        serve(line, handler)
    assert "settle" not in line.store.calls


def test_coroutine_that_holds_the_loop_is_renewed(line: Line) -> None:
    """H12: the heartbeat is no task of the loop: it beats while nothing is awaited."""

    async def handler(lease: Lease) -> None:
        for _ in range(5):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        assert lease.stop is None

    serve(line, handler)
    assert line.store.calls.count("beat") == 5


def test_coroutine_that_cancels_itself_fails_like_any_other(line: Line) -> None:
    """No loss: the error is the own message's, which goes back to its source."""

    async def handler(lease: Lease) -> None:
        raise asyncio.CancelledError

    with pytest.raises(
        IncumbentError, match="cancelled by one of its own"
    ) as error:  # a CancelledError would end the process
        serve(line, handler)
    assert isinstance(error.value.__cause__, asyncio.CancelledError)
    assert (line.owner, line.stored) == (None, [])


def test_follow_up_that_cancels_itself_is_nobody_elses_error(line: Line) -> None:
    """It waits for its next attempt, and the invocation that ran it has its own result."""

    async def handler(lease: Lease) -> str:
        if lease.messages[0].id == "m2":
            raise asyncio.CancelledError
        line.serve(line.call("m2"), lambda *_: None)
        return "ran"

    assert serve(line, handler) == "ran"
    assert (line.owner, line.stored) == (None, ["m2"])


def test_forked_process_makes_a_loop_of_its_own() -> None:
    """H14: and the parent's goes on working, though both share the pipe on which it wakes."""
    ours = f"import {__name__} as ours; ours.fork_and_go_on()"
    ended = subprocess.run(
        [sys.executable, "-c", ours], cwd=ROOT, timeout=30, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def fork_and_go_on() -> None:
    """What the test above does in a process of its own, which has no threads when it forks."""
    line = Line()

    async def the_loop(lease: Lease) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    before = id(serve(line, the_loop))
    child = os.fork()
    if child == 0:
        forked = Line()
        its_own = id(serve(forked, the_loop)) != before
        gc.collect()
        os._exit(0 if its_own else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

    async def woken_from_a_thread(lease: Lease) -> str:
        await asyncio.to_thread(SYSTEM_CLOCK.sleep_ms, 100)  # until the loop has gone to sleep as well
        return "awake"

    assert serve(line, woken_from_a_thread, "m2") == "awake"


def test_cancellation_without_a_lease_is_the_callers() -> None:
    """As of an event that passes without one (``unless=``)."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        synchronous(cancelled)(None)


class Interrupted:
    """A handler that an exception of another leaves behind while it waits; ``steps`` is how far it came."""

    def __init__(self) -> None:
        """Begin."""
        self.steps: list[str] = []

    async def handler(self, lease: Lease) -> None:
        """Wait for something, clean up, and go on in the next invocation if it can."""
        try:
            self.steps.append("waits")
            await asyncio.sleep(0.01)
            self.steps.append("goes on")
        finally:
            await asyncio.sleep(0)
            self.steps.append("cleans up")


async def leave(lease: Lease) -> None:
    """Let the loop go round for longer than what a handler above waits for."""
    await asyncio.sleep(0.02)


def test_coroutine_ends_when_a_task_ends_the_loop(line: Line) -> None:
    """``sys.exit`` in a task leaves the loop at once. The handler is cancelled, and no loss is told."""
    interrupted, losses_before = Interrupted(), len(line.losses)
    tasks: list[asyncio.Task[None]] = []

    async def exits() -> None:
        sys.exit(1)

    async def handler(lease: Lease) -> None:
        tasks.append(asyncio.create_task(exits()))
        await interrupted.handler(lease)

    with pytest.raises(SystemExit):
        serve(line, handler)
    assert isinstance(tasks[0].exception(), SystemExit)
    assert interrupted.steps == ["waits", "cleans up"]
    line.clock.advance(TTL_MS)
    serve(line, leave, "m2")
    assert interrupted.steps == ["waits", "cleans up"]
    assert len(line.losses) == losses_before
    assert "lost" not in line.facts.names


def test_coroutine_ends_when_it_stops_the_loop(line: Line) -> None:
    """asyncio raises then, and the loop is kept."""
    interrupted = Interrupted()
    loops: list[asyncio.AbstractEventLoop] = []

    async def handler(lease: Lease) -> None:
        loops.append(asyncio.get_running_loop())
        loops[0].stop()
        await interrupted.handler(lease)

    async def the_loop(lease: Lease) -> asyncio.AbstractEventLoop:
        await leave(lease)
        return asyncio.get_running_loop()

    with pytest.raises(RuntimeError, match="stopped before"):
        serve(line, handler)
    assert serve(line, the_loop, "m2") is loops[0]
    assert interrupted.steps == ["waits", "cleans up"]


async def go_round() -> None:
    """Let the loop do what is ready."""
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_coroutine_ends_whatever_step_an_exception_is_thrown_at(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As by the handler of a signal: also between two callbacks of the loop, where one of them is lost.

    asyncio itself keeps other exceptions than these, if they come in a callback.
    """
    monkeypatch.setattr(async_handlers, "_CLEAN_UP_S", 0.02)
    caplog.set_level(logging.CRITICAL, "asyncio")
    for at in itertools.count(1):
        steps: list[str] = []
        over: list[bool] = []

        async def handler(steps: list[str] = steps, over: list[bool] = over) -> None:
            for _ in range(2):
                await asyncio.sleep(0)
                steps.append("after" if over else "in its run")

        made = handler()
        reached = throw_into(functools.partial(synchronous(lambda made=made: made), None), at, SystemExit, within="")
        over.append(True)
        synchronous(go_round)(None)
        made.close()  # if it has not begun
        assert "after" not in steps, f"thrown at step {at}"
        if not reached:
            assert at > 50
            return


def test_ended_run_notices_no_loss(line: Line) -> None:
    """Its lease was released, however late a task of it lets go of the callback."""
    leases: list[Lease] = []
    serve(line, leases.append)
    line.clock.advance(TTL_MS)
    leases[0].when_lost(None)
    leases[0].when_lost(raising(AssertionError()))
    assert "lost" not in line.facts.names
