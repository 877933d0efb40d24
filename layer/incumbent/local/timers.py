"""One thread that calls back at set moments: deadlines of invocations, retries of failed ones."""

import heapq
import itertools
import threading
from collections.abc import Callable

from incumbent.clock import Clock
from incumbent.local.ledger import Ledger


class Timer:
    """One call that is to come."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        """Keep what is to be called."""
        self._call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not call. Where it is too late, nothing happens."""
        self._call = None

    def fire(self) -> None:
        """Call, at most once."""
        call, self._call = self._call, None
        if call is not None:
            call()


class Timers:
    """Calls back, one after the other, so what is called must be short.

    With ``skip``, no call is waited for while nothing is under way: ``skip(ms)`` moves the clock on instead. It returns
    whether it did.
    """

    def __init__(self, clock: Clock, ledger: Ledger, *, skip: Callable[[int], bool] | None = None) -> None:
        """Start the thread."""
        self._clock = clock
        self._ledger = ledger
        self._skip = skip
        self._under_way = 0
        self._due: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="incumbent-timers", daemon=True)
        self._thread.start()

    def after(self, ms: int, call: Callable[[], object]) -> Timer:
        """Call in ``ms`` milliseconds unless cancelled before."""
        timer = Timer(call)
        with self._changed:
            heapq.heappush(self._due, (self._clock.now().mono_ms + ms, next(self._order), timer))
            self._changed.notify()
        return timer

    def awaited(self, ms: int, call: Callable[[], object]) -> None:
        """Call in ``ms`` milliseconds; until then, the cloud is not idle."""

        def due() -> None:
            try:
                call()
            finally:
                self._ledger.delivered()

        self._ledger.began()
        self.after(ms, due)

    def begun(self) -> None:
        """Something is under way: no pause is skipped until it has `ended`."""
        with self._changed:
            self._under_way += 1

    def ended(self) -> None:
        """It is over, and the calls that follow from it are known."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify()

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
                if self._skip is None or self._under_way or not self._skip(wait_ms):
                    self._changed.wait(wait_ms / 1_000)
            return None
