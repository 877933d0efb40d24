"""What became of every invocation of a local cloud, and every line that was printed."""

import threading
from collections.abc import Callable

from incumbent.local.invocations import Invocation, Listeners, LogLine, OnInvocation, OnLog


class Ledger:
    """Keeps attempts and lines, and tells those who listen. ``changed`` is the lock of the whole cloud."""

    def __init__(self, on_log: OnLog, on_invocation: OnInvocation) -> None:
        """Begin empty."""
        self.changed = threading.Condition()
        self._listeners = Listeners(on_log, on_invocation)
        self._outstanding = 0
        self._invocations: list[Invocation] = []
        self._failures: list[Invocation] = []
        self._logs: list[LogLine] = []

    @property
    def is_idle(self) -> bool:
        """Whether no invocation, retry or call is outstanding."""
        return self._outstanding == 0

    @property
    def invocations(self) -> tuple[Invocation, ...]:
        """Every attempt that has ended, in the order in which they did."""
        with self.changed:
            return tuple(self._invocations)

    @property
    def failures(self) -> tuple[Invocation, ...]:
        """The last attempts of the asynchronous invocations that were given up: the on-failure destination."""
        with self.changed:
            return tuple(self._failures)

    @property
    def logs(self) -> tuple[LogLine, ...]:
        """Every line that was printed, in the order in which they were read."""
        with self.changed:
            return tuple(self._logs)

    def began(self) -> None:
        """Count an invocation that is not over."""
        with self.changed:
            self._outstanding += 1

    def delivered(self) -> None:
        """Count what `began` as over, with no invocation of its own: a call that has come."""
        with self.changed:
            self._outstanding -= 1
            self.changed.notify_all()

    def ended(self, invocation: Invocation, may_retry: Callable[[], bool] = lambda: True) -> bool:
        """Keep an attempt that has ended; return whether it is to be retried, unless ``may_retry`` says no."""
        self._listeners.invocation(invocation)
        with self.changed:
            self._invocations.append(invocation)
            again = invocation.retried_in_ms is not None and may_retry()
            if not again:
                self._outstanding -= 1
                if invocation.asynchronous and not invocation.ok:
                    self._failures.append(invocation)
            self.changed.notify_all()
        return again

    def printed(self, line: LogLine) -> None:
        """Keep a line."""
        with self.changed:
            self._logs.append(line)
        self._listeners.log(line)

    def wait_idle(self, timeout_ms: int, at_rest: Callable[[], bool] = lambda: True) -> None:
        """Wait until no invocation is left and all is ``at_rest``; raise what a listener raised.

        Raises:
            TimeoutError: that took longer than ``timeout_ms``.
        """

        def over() -> bool:
            return self._listeners.raised is not None or (self._outstanding == 0 and at_rest())

        with self.changed:
            idle = self.changed.wait_for(over, timeout_ms / 1_000)
            self._listeners.check()
            if not idle:
                raise TimeoutError(f"{self._outstanding} invocations were not over after {timeout_ms} ms")
