"""One Lambda environment under simulation: its clocks, which are its own, its threads and events."""

import threading
from collections.abc import Callable

from incumbent.clock import Moment
from incumbent.pacemaker import Heart, Pacemaker
from tests.simulation.scheduler import Machine, Scheduler, Task

EPOCH_MS = 1_800_000_000_000
_BOOTED_MS = 5_000_000
_MILLION = 1_000_000


class Environment(Machine):
    """A machine with clocks of its own. It serves one invocation at a time, and another after it while it lives."""

    __slots__ = ("clock", "cut_until_ms", "opening", "pacemaker", "serves", "stops_monotonic")

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        *,
        wall_off_ms: int = 0,
        drift_ppm: int = 0,
        stops_monotonic: bool = False,
        waits_for_heartbeats: bool = True,
    ) -> None:
        """``stops_monotonic``: on its kernel the monotonic clock stands still when the environment does."""
        super().__init__(name, scheduler)
        self.stops_monotonic = stops_monotonic
        self.cut_until_ms = 0
        self.opening: list[str | None] = []  # what befalls its first requests, one by one
        self.serves = ""
        self.clock = EnvironmentClock(self, wall_off_ms=wall_off_ms, drift_ppm=drift_ppm)
        make = Pacemaker if waits_for_heartbeats else _HastyPacemaker
        self.pacemaker: Pacemaker = make(self.clock, stays=False, thread=self.thread, event=self.event)

    def stand_still(self, ms: int) -> None:
        """Freeze."""
        self.freeze(ms)
        if self.stops_monotonic:
            self.clock.stop_monotonic(ms)

    def thread(self, *, target: Callable[[], None], name: str, daemon: bool) -> "EnvironmentThread":
        """Make a thread of this environment, as ``threading.Thread`` does elsewhere."""
        return EnvironmentThread(self, target)

    def event(self) -> "EnvironmentEvent":
        """Make an event for threads of this environment, as ``threading.Event`` does elsewhere."""
        return EnvironmentEvent(self)


class _HastyPacemaker(Pacemaker):
    """A seeded bug: a run goes on while a renewal of its lease is in flight."""

    def remove(self, heart: Heart) -> None:
        """Remove it, and wait for nothing."""
        with self._lock:
            self._due.pop(heart, None)


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
        """Pause the task until the event is set or the time has passed."""
        if not event.is_set():
            if isinstance(event, EnvironmentEvent):
                event.wakes_the_running_task()
            self._environment.scheduler.pause(ms)
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

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._task is not None and not self._task.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._task is not None and not self._task.over:
            self._environment.scheduler.join(self._task)


class EnvironmentEvent(threading.Event):
    """An event that tasks wait for without holding the baton."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self._scheduler = environment.scheduler
        self._waiting: list[tuple[Task, int]] = []

    def wakes_the_running_task(self) -> None:
        """Let the pause that the running task begins next end when this is set."""
        task = self._scheduler.running
        self._waiting.append((task, task.turn + 1))

    def set(self) -> None:
        """Set it, and wake the tasks that wait for it."""
        super().set()
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            self._scheduler.wake(task, turn)

    def wait(self, timeout: float | None = None) -> bool:
        """Pause the running task until this is set."""
        while not self.is_set():
            self.wakes_the_running_task()
            self._scheduler.pause()
        return True
