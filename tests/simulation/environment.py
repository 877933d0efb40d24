"""One Lambda environment under simulation: its clocks, which are its own, and its threads."""

import threading
from collections.abc import Callable

from incumbent.clock import Moment
from tests.simulation.scheduler import Machine, Scheduler, Task

EPOCH_MS = 1_800_000_000_000
_BOOTED_MS = 5_000_000
_MILLION = 1_000_000


class Environment(Machine):
    """A machine with clocks of its own. It serves one invocation at a time, and another after it while it lives."""

    __slots__ = ("clock", "cut_until_ms", "joins", "serves", "stops_monotonic")

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        *,
        wall_off_ms: int = 0,
        drift_ppm: int = 0,
        stops_monotonic: bool = False,
    ) -> None:
        """``stops_monotonic``: on its kernel the monotonic clock stands still when the environment does."""
        super().__init__(name, scheduler)
        self.stops_monotonic = stops_monotonic
        self.cut_until_ms = 0
        self.joins = True
        self.serves = ""
        self.clock = EnvironmentClock(self, wall_off_ms=wall_off_ms, drift_ppm=drift_ppm)

    def stand_still(self, ms: int) -> None:
        """Freeze."""
        self.freeze(ms)
        if self.stops_monotonic:
            self.clock.stop_monotonic(ms)

    def thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> "EnvironmentThread":
        """Make a thread of this environment, as ``threading.Thread`` does elsewhere."""
        return EnvironmentThread(self, target)


class EnvironmentClock:
    """The two clocks of one environment beside true time: an offset that may step, a drift, pauses that yield."""

    __slots__ = ("_drift_ppm", "_environment", "_stood_ms", "_stopped_at_ms", "wall_off_ms")

    def __init__(self, environment: Environment, *, wall_off_ms: int, drift_ppm: int) -> None:
        self._environment = environment
        self.wall_off_ms = wall_off_ms
        self._drift_ppm = drift_ppm
        self._stood_ms = 0
        self._stopped_at_ms: int | None = None

    def now(self) -> Moment:
        """Read both clocks."""
        true_ms = self._environment.scheduler.now_ms
        runs_ms = true_ms if self._stopped_at_ms is None else self._stopped_at_ms
        return Moment(_BOOTED_MS + self._drifted(runs_ms) - self._stood_ms, self.wall_ms(true_ms))

    def wall_ms(self, true_ms: int) -> int:
        """What the wall clock shows at a true time, as it goes now."""
        return EPOCH_MS + self._drifted(true_ms) + self.wall_off_ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock; the monotonic one does not notice."""
        self.wall_off_ms += ms

    def stop_monotonic(self, ms: int) -> None:
        """Let the monotonic clock stand still for that long."""
        if self._stopped_at_ms is None:
            self._stopped_at_ms = self._environment.scheduler.now_ms
            self._environment.scheduler.after(ms, self._go_on)

    def sleep_ms(self, ms: int) -> None:
        """Pause the task."""
        self._environment.scheduler.pause(ms)

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Pause the task until the time has passed, or until whoever set the event joins the task's thread."""
        scheduler = self._environment.scheduler
        if not event.is_set():
            task = scheduler.running
            task.waits_for = event
            scheduler.pause(ms)
            task.waits_for = None
        return event.is_set()

    def _go_on(self) -> None:
        if self._stopped_at_ms is not None:
            self._stood_ms += self._environment.scheduler.now_ms - self._stopped_at_ms
            self._stopped_at_ms = None

    def _drifted(self, true_ms: int) -> int:
        return true_ms + true_ms * self._drift_ppm // _MILLION


class EnvironmentThread(threading.Thread):
    """A thread that goes on when the scheduler lets it, and that is waited for without holding the baton."""

    def __init__(self, environment: Environment, target: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._environment = environment
        self._runs = target
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        self._task = self._environment.scheduler.spawn(self._environment, self._runs)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        task = self._task
        if task is not None and not task.over:
            if task.waits_for is not None and task.waits_for.is_set():
                self._environment.scheduler.wake(task, task.turn)
            if self._environment.joins:
                self._environment.scheduler.join(task)
