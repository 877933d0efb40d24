"""Running ``async def`` handlers where nobody awaits: one event loop for each thread that runs handlers, kept warm."""

import inspect
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from incumbent.lease import Lease

if TYPE_CHECKING:
    import asyncio

_LOOPS = threading.local()


def synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``run(lease, *args, **kwargs)`` of a function, ``async def`` or not; the kind is looked at once.

    A coroutine is cancelled when the lease is lost. asyncio is imported with the first coroutine.
    """
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        return lambda _lease, *args, **kwargs: function(*args, **kwargs)

    def run(lease: Lease, *args: Any, **kwargs: Any) -> Any:
        async def supervised() -> Any:
            import asyncio

            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None  # noqa: S101 - a coroutine run by a loop is a task
            lease.when_lost(lambda: loop.call_soon_threadsafe(task.cancel))
            try:
                return await function(*args, **kwargs)
            finally:
                lease.when_lost(None)

        return _runner().run(supervised())

    return run


def _runner() -> "asyncio.Runner":
    import asyncio

    runner: asyncio.Runner | None = getattr(_LOOPS, "runner", None)
    if runner is None or _LOOPS.process != os.getpid():
        runner = _LOOPS.runner = asyncio.Runner()
        _LOOPS.process = os.getpid()
    return runner
