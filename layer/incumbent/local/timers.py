"""One thread that calls back at set moments: deadlines of invocations, retries of failed ones."""

import heapq
import itertools
import threading
from collections.abc import Callable

from incumbent.clock import Clock


class Timer:
    """One call that is to come."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        """Keep what is to be called."""
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not call. Where it is too late, nothing happens."""
        self._call = None

    def fire(self) -> None:
        """Call, at most once."""
        call, self._call = self._call, None
        if call is not None:
            call()


class Timers:
    """Calls back, one after the other, so what is called must be short."""

    def __init__(self, clock: Clock) -> None:
        """Start the thread."""
        self._clock = clock
        self._due: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="incumbent-timers", daemon=True)
        self._thread.start()

    def after(self, ms: int, call: Callable[[], None]) -> Timer:
        """Call in ``ms`` milliseconds unless cancelled before."""
        timer = Timer(call)
        with self._changed:
            heapq.heappush(self._due, (self._clock.now().mono_ms + ms, next(self._order), timer))
            self._changed.notify()
        return timer

    def close(self) -> None:
        """Drop what is to come and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            timer.fire()

    def _next(self) -> Timer | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                wait_ms = self._due[0][0] - self._clock.now().mono_ms
                if wait_ms <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_ms / 1_000)
            return None
