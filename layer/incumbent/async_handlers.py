"""``async def`` handlers run from synchronous code: one event loop for each thread that runs handlers, kept open."""

import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import NoneType
from typing import TYPE_CHECKING, Any

from incumbent.errors import ConfigurationError, IncumbentError
from incumbent.lease import Lease, Stop
from incumbent.results import is_coroutine_function

if TYPE_CHECKING:
    import asyncio

_CLEAN_UP_S = 5  # for a handler that is cancelled because an exception has left its loop
_LOOPS = threading.local()
_DONE = frozenset({dict, list, str, int, bool, NoneType})  # the usual results, which are not awaitable


def synchronous(function: Callable[..., Any], *, cancel_on_stop: bool = False) -> Callable[..., Any]:
    """Make ``run(lease, *args, **kwargs)`` from a function, ``async def`` or not.

    The returned value decides: a middleware may be a plain function that returns its handler's coroutine, or one that
    has awaited it already. A coroutine is cancelled when the lease is lost and, with ``cancel_on_stop``, when its run
    is asked to stop (M16). asyncio is imported with the first coroutine.
    """

    def run(lease: Lease | None, /, *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result if type(result) in _DONE else _finished(lease, result, cancel_on_stop=cancel_on_stop)

    return run


def refuse_to_nest(name: str) -> None:
    """Refuse an ``async def`` handler that is called from a running event loop, before the claim."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"{name}: it is async, and was called from a running event loop; a leased function is synchronous and runs "
        "its own loop: call it in a thread (asyncio.to_thread), or decorate the outermost function"
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is ``async def``, below its decorators."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return is_coroutine_function(function)


def check_cancels(function: Callable[..., Any], name: str) -> None:
    """Refuse ``cancel_on_stop`` for a function that cannot be cancelled: one that is not ``async def``."""
    if not is_async(function):
        raise ConfigurationError(
            f"{name}: cancel_on_stop needs an async def handler, which can be cancelled at an await; check lease.stop "
            "between steps instead"
        )


def _finished(lease: Lease | None, result: Any, *, cancel_on_stop: bool) -> Any:
    import inspect  # here, as the usual results are not awaitable

    return _finish(lease, result, cancel_on_stop=cancel_on_stop) if inspect.isawaitable(result) else result


def _finish(lease: Lease | None, work: Awaitable[Any], *, cancel_on_stop: bool) -> Any:
    """Await it on this thread's loop, in the context of the caller: a kept loop keeps the context of its first run."""
    asked = False

    async def supervised() -> Any:
        import asyncio

        if lease is None:
            return await work
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - a coroutine run by a loop is a task

        def stop() -> None:
            nonlocal asked
            asked = True
            loop.call_soon_threadsafe(task.cancel)

        lease.when_lost(lambda: loop.call_soon_threadsafe(task.cancel))
        if cancel_on_stop:
            lease.when_asked(stop)
        try:
            return await work
        finally:
            lease.when_lost(None)
            lease.when_asked(None)

    import asyncio

    try:
        return _run_to_its_end(supervised())
    except asyncio.CancelledError as cancelled:
        if lease is None or lease.stop is Stop.LOST:
            raise
        if asked:
            lease.cancelled = True  # the run ends as stopped
            raise
        raise IncumbentError(
            f"the run of key {lease.key!r} was cancelled by one of its own tasks or timeouts: it failed",
            key=lease.key,
        ) from cancelled


def _run_to_its_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it, and end it when an exception leaves the loop before: the loop would run it on in the next invocation."""
    runner = _runner()
    try:
        return runner.run(coroutine, context=contextvars.copy_context())
    except BaseException:
        _leave(runner, coroutine)
        raise


def _leave(runner: "asyncio.Runner", coroutine: Coroutine[Any, Any, Any]) -> None:
    """Cancel a coroutine that is not done, and let it clean up. If that does not end it, its loop is given up."""
    import asyncio
    import inspect

    loop, expired = runner.get_loop(), False
    task = next((each for each in asyncio.all_tasks(loop) if each.get_coro() is coroutine), None)
    if task is None and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
        return

    def expire() -> None:
        nonlocal expired
        expired = True
        loop.stop()

    try:
        if task is not None:
            task.add_done_callback(lambda _: loop.stop())
            task.cancel()
            timer = loop.call_later(_CLEAN_UP_S, expire)
            while not task.done() and not expired:
                loop.run_forever()
            timer.cancel()
        loop.call_soon(loop.stop)  # a stop of this run that is left over would stop the next one
        loop.run_forever()
    finally:
        if task is not None and not task.done():
            _LOOPS.__dict__.pop("runner", None)
            loop.close()


def _runner() -> "asyncio.Runner":
    import asyncio

    runner: asyncio.Runner | None = getattr(_LOOPS, "runner", None)
    if runner is None or _LOOPS.process != os.getpid():
        _LOOPS.inherited = runner  # after a fork: to close it here would take the parent's wake-ups along
        _LOOPS.runner, _LOOPS.process = asyncio.Runner(), os.getpid()  # both, whatever a signal's handler raises
        runner = _LOOPS.runner
    return runner


def close() -> None:
    """Close the loop of this thread, if it has one. For threads that end; those of Lambda go on."""
    runner: asyncio.Runner | None = _LOOPS.__dict__.pop("runner", None)
    if runner is not None and _LOOPS.process == os.getpid():
        runner.close()
