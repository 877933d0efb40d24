"""A clock that tests move by hand."""

import threading

from incumbent.clock import SYSTEM_CLOCK, Moment

_MILLION = 1_000_000


class FakeClock:
    """One machine's two clocks, which stand still until they are moved. Safe to use from several threads.

    They start at the present unless they are given values, so that a store on this clock can serve a handler on the
    system's. ``drift_ppm`` is by how many parts in a million both run faster than true time (slower, if negative), for
    tests in which two machines disagree.
    """

    def __init__(self, *, wall_ms: int | None = None, mono_ms: int | None = None, drift_ppm: int = 0) -> None:
        """Begin at ``wall_ms`` (epoch milliseconds) and ``mono_ms``. Default: what the system's clocks show."""
        present = SYSTEM_CLOCK.now()
        self._lock = threading.Lock()
        self._wall_ms = present.wall_ms if wall_ms is None else wall_ms
        self._mono_ms = present.mono_ms if mono_ms is None else mono_ms
        self._drift_ppm = drift_ppm
        self._true_ms = 0

    def now(self) -> Moment:
        """Read both clocks."""
        with self._lock:
            gone_ms = self._true_ms * (_MILLION + self._drift_ppm) // _MILLION
            return Moment(self._mono_ms + gone_ms, self._wall_ms + gone_ms)

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds of true time pass: both clocks go on, each with its drift."""
        if ms < 0:
            raise ValueError(f"time passes forwards only, not by {ms} ms: use step_wall for a clock that is set back")
        with self._lock:
            self._true_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward (or back, if negative); the monotonic clock does not notice.

        Forward is also what a frozen environment sees when it thaws, where the monotonic clock stood still.
        """
        with self._lock:
            self._wall_ms += ms

    def sleep_ms(self, ms: int) -> None:
        """Pass the time at once."""
        self.advance(max(0, ms))

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Pass the time at once, unless ``event`` is set already; say whether it is."""
        if not event.is_set():
            self.advance(max(0, ms))
        return event.is_set()
