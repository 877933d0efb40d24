"""The time of a played conversation: it stands still until the play moves it, and what is due then happens."""

import contextvars
import heapq
import itertools
import threading
from collections.abc import Callable

from incumbent import async_handlers
from incumbent.clock import Moment
from incumbent.errors import ConfigurationError
from incumbent.testing.clock import FakeClock


class PlayTime:
    """The time of a play, and what is to happen at which moment. One thread runs at a time.

    The play's own thread passes the time. A thread of another invocation that waits lets the play go on, and is
    continued when its time has come.
    """

    def __init__(self, clock: FakeClock | None, renew: Callable[[], object]) -> None:
        self._clock = FakeClock() if clock is None else clock
        self._renew = renew
        self._began = self._clock.now()
        self._player = threading.current_thread()
        self._lines: dict[threading.Thread, threading.Event] = {}
        self._waiting: list[threading.Event] = []
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._is_over = False

    @property
    def gone_ms(self) -> int:
        """How much time has passed."""
        return self._began.until(self._clock.now())

    def now(self) -> Moment:
        """Read both clocks."""
        return self._clock.now()

    def after(self, ms: int, do: Callable[[], object]) -> None:
        """Let something happen so many milliseconds from now."""
        heapq.heappush(self._due, (self.gone_ms + ms, next(self._numbers), do))

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Wait for the event alone: a heartbeat renews when the play says so."""
        del ms
        return event.wait()

    def sleep_ms(self, ms: int) -> None:
        """Let the time pass: in the play's own thread, or while this one waits for it."""
        if threading.current_thread() is self._player:
            self.pass_until(self.gone_ms + ms)
            return
        turn, line = threading.Event(), self._lines[threading.current_thread()]
        self._waiting.append(turn)
        self.after(ms, lambda: self._go_on(turn, line))
        line.set()
        turn.wait()
        if self._is_over:
            raise ConfigurationError("run: the play has ended")

    def pass_until(self, at_ms: int) -> None:
        """Let the time pass, and happen what is due meanwhile, in order."""
        while self._due and self._due[0][0] <= at_ms:
            due_ms, _, do = heapq.heappop(self._due)
            self._advance(due_ms)
            do()
        self._advance(at_ms)

    def finish(self) -> None:
        """Let the time pass until no invocation waits."""
        while self._waiting:
            self.pass_until(self._due[0][0])

    def beside(self, work: Callable[[], object]) -> None:
        """Do something in a thread of its own, until it is done or waits."""
        line = threading.Event()

        def alone() -> None:
            try:
                work()
                async_handlers.close()
            finally:
                line.set()

        thread = threading.Thread(target=contextvars.copy_context().run, args=(alone,), daemon=True)
        self._lines[thread] = line
        thread.start()
        line.wait()

    def end(self) -> None:
        """End the threads that still wait, if the play has failed."""
        self._is_over = True
        for turn in self._waiting:
            turn.set()
        for thread in self._lines:
            thread.join()

    def _go_on(self, turn: threading.Event, line: threading.Event) -> None:
        self._waiting.remove(turn)
        line.clear()
        turn.set()
        line.wait()

    def _advance(self, at_ms: int) -> None:
        """Pass the time in steps that are short enough for the leases to be renewed."""
        while (rest_ms := at_ms - self.gone_ms) > 0:
            self._clock.advance(min(rest_ms, 1_000))
            self._renew()
