"""The only module that reads time: two clocks, a pause, and the deadline of a lease."""

import threading
import time
from typing import NamedTuple, Protocol


class Moment(NamedTuple):
    """One instant on both clocks, in milliseconds.

    The monotonic clock does not step but stands still while an environment is frozen (on some kernels);
    the wall clock goes on but may step. A deadline is kept on both and the earlier counts (R12).
    """

    mono_ms: int
    wall_ms: int

    def plus(self, ms: int) -> "Moment":
        """Return the moment ``ms`` later on both clocks."""
        return tuple.__new__(Moment, (self.mono_ms + ms, self.wall_ms + ms))

    def until(self, later: "Moment") -> int:
        """Return the milliseconds to ``later``, on the clock that has fewer; negative when it has passed."""
        mono_ms, wall_ms = later.mono_ms - self.mono_ms, later.wall_ms - self.wall_ms
        return mono_ms if mono_ms < wall_ms else wall_ms  # noqa: FURB136 - min() takes twice as long


class Clock(Protocol):
    """The source of time; tests use their own clock."""

    def now(self) -> Moment:
        """Read both clocks."""
        ...

    def sleep_ms(self, ms: int) -> None:
        """Pause the calling thread."""
        ...

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Pause until ``event`` is set or ``ms`` have passed. Return whether it is set."""
        ...


class SystemClock:
    """The clocks of the machine. ``skipped_ms`` is how far this process is ahead of them: a replay skips pauses."""

    skipped_ms = 0

    def now(self) -> Moment:
        """Read both clocks."""
        # Each run asks, and Moment(...) takes twice as long.
        now = tuple.__new__(Moment, (time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000))
        return now.plus(self.skipped_ms) if self.skipped_ms else now

    def sleep_ms(self, ms: int) -> None:
        """Pause the calling thread."""
        time.sleep(ms / 1000)

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Pause until ``event`` is set or ``ms`` have passed. Return whether it is set."""
        return event.wait(ms / 1000)


SYSTEM_CLOCK = SystemClock()


def margin_ms(ttl_ms: int) -> int:
    """Return how many milliseconds before the end of a lease its deadline is (R12): a hundredth, at least 10."""
    return max(10, ttl_ms // 100)


def deadline(sent: Moment, ttl_ms: int, expires_in_ms: int | None = None) -> Moment:
    """Return until when an owner may rely on its lease (R12).

    ``sent`` is when the try that was answered was sent, never later. ``expires_in_ms`` is how long the lease
    still lives, counted from ``sent`` or later, if the store reports it. The shorter of the two counts,
    less a margin, so the owner stops before any other caller may start.
    """
    lives_ms = ttl_ms if expires_in_ms is None else min(ttl_ms, expires_in_ms)
    return sent.plus(lives_ms - margin_ms(ttl_ms))
