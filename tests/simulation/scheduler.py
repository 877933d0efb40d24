"""One baton for many threads: only its holder runs, and a seed decides who is next and what time it is then.

Code under simulation blocks in three ways: it pauses, it waits for an answer, it waits for another thread. Each is a
``pause`` here, in which the baton goes to whoever is next in a queue of events. What is due at the same millisecond
comes in an order that the seed chooses. Time passes only between two events, so a schedule of minutes takes
milliseconds, and the same seed gives the same schedule.
"""

import _thread
import heapq
import random
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]

MAX_EVENTS = 20_000


class Died(BaseException):
    """Raised in a task whose machine has died, wherever it stands: nothing that it does from here on has an effect."""


class Stuck(Exception):
    """A task waits for something that the scheduler knows nothing of, or the schedule never ends."""


class Machine:
    """What dies and freezes as a whole: an environment with its tasks."""

    __slots__ = ("dead", "name", "scheduler", "tasks", "thaws_ms")

    def __init__(self, name: str, scheduler: "Scheduler") -> None:
        self.name = name
        self.scheduler = scheduler
        self.dead = False
        self.thaws_ms = 0
        self.tasks: list[Task] = []

    def die(self) -> None:
        """Stop for good, in the middle of whatever it does."""
        self.dead = True
        for task in self.tasks:
            self.scheduler.wake(task, task.turn)

    def freeze(self, ms: int) -> None:
        """Stand still for that long."""
        self.thaws_ms = max(self.thaws_ms, self.scheduler.now_ms + ms)


class Task:
    """A thread of a machine. ``turn`` numbers its pauses, so that a wake that comes too late is known as such.

    ``call`` is what it is in the middle of, for those who look.
    """

    __slots__ = ("call", "joiners", "machine", "over", "pausing", "target", "turn", "worker")

    def __init__(self, machine: Machine, target: Action, worker: "_Worker") -> None:
        self.machine = machine
        self.target = target
        self.worker = worker
        self.turn = 0
        self.pausing = True
        self.over = False
        self.joiners: list[tuple[Task, int]] = []
        self.call: object = None


class Workers:
    """Real threads, kept from one schedule to the next: making one costs more than many a schedule's step."""

    def __init__(self) -> None:
        self.idle: list[_Worker] = []

    def take(self) -> "_Worker":
        """A worker that has nothing to do."""
        return self.idle.pop() if self.idle else _Worker(self)

    def dismiss(self) -> None:
        """Let the threads end."""
        while self.idle:
            self.idle.pop().baton.release()


class _Worker:
    __slots__ = ("baton", "scheduler", "task", "workers")

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.task: Task | None = None
        self.scheduler: Scheduler | None = None
        threading.Thread(target=self._work, name=_Worker.__name__, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.baton.acquire()
            task, scheduler = self.task, self.scheduler
            if task is None or scheduler is None:
                return
            following = scheduler.carry_out(task)
            self.task = self.scheduler = None
            self.workers.idle.append(self)
            following.release()


class Scheduler:
    """One schedule. ``watch`` is called after every event, ``random`` is the only source of chance in it."""

    def __init__(self, seed: int, workers: Workers, *, stuck_s: float = 60, max_events: int = MAX_EVENTS) -> None:
        """``stuck_s``: how long, in real time, the tasks may go on. After ``max_events`` the schedule has no end."""
        self.random = random.Random(seed)  # noqa: S311 - chance that can be had again is the point
        self.now_ms = 0
        self.failure: BaseException | None = None
        self.watch: Action = _nothing
        self._workers = workers
        self._stuck_s = stuck_s
        self._max_events = max_events
        self._queue: list[tuple[int, float, int, Task | Action, int]] = []
        self._pushed = 0
        self._tasks: list[Task] = []
        self._running: Task | None = None
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self._unwinding = False

    # --- what is to happen

    def at(self, ms: int, action: Action) -> None:
        """Do something at a time, between two steps of the tasks."""
        self._push(ms, action, 0)

    def after(self, ms: int, action: Action) -> None:
        """Do something later."""
        self._push(self.now_ms + ms, action, 0)

    def spawn(self, machine: Machine, target: Action) -> Task:
        """Begin a task; it gets its first turn later."""
        worker = self._workers.take()
        task = Task(machine, target, worker)
        worker.task, worker.scheduler = task, self
        self._tasks.append(task)
        machine.tasks.append(task)
        self._push(self.now_ms, task, 0)
        return task

    def wake(self, task: Task, turn: int) -> None:
        """Let a task go on now, if it is still in that pause."""
        self._push(self.now_ms, task, turn)

    def fail(self, failure: BaseException) -> None:
        """End the schedule with the next event. The first failure counts."""
        if self.failure is None:
            self.failure = failure

    # --- what tasks do

    @property
    def running(self) -> Task:
        """The task that holds the baton."""
        assert self._running is not None
        return self._running

    def pause(self, ms: int | None = None) -> None:
        """Give the baton away until that time has passed, or somebody wakes this task. Raises ``Died``."""
        task = self.running
        if task.machine.dead:
            raise Died
        task.turn += 1
        task.pausing = True
        if ms is not None:
            self._push(self.now_ms + ms, task, task.turn)
        following = self._next()
        if following is not task.worker.baton:
            following.release()
            task.worker.baton.acquire()
        if task.machine.dead:
            raise Died

    def join(self, task: Task) -> None:
        """Wait until a task is over. A dead machine waits for nothing."""
        me = self.running
        while not task.over and not me.machine.dead:
            task.joiners.append((me, me.turn + 1))
            self.pause()

    def carry_out(self, task: Task) -> "_thread.LockType":
        """Run a task to its end; return the baton of whoever is next."""
        self._running = task
        try:
            if not task.machine.dead:
                task.target()
        except Died:
            pass
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it ends the schedule and is shown
            self.fail(failure)
        task.over = True
        self._tasks.remove(task)
        task.machine.tasks.remove(task)
        for joiner, turn in task.joiners:
            self.wake(joiner, turn)
        return self._main if self._unwinding else self._next()

    # --- the schedule itself

    def run(self) -> None:
        """Go on until nothing is left to happen. Raises the failure, if there was one."""
        following = self._next()
        if following is not self._main:
            self._hand(following)
        self._unwinding = True
        while self._tasks:
            task = self._tasks[-1]
            task.machine.dead = True
            self._running = task
            self._hand(task.worker.baton)
        if self.failure is not None:
            raise self.failure

    def _hand(self, baton: "_thread.LockType") -> None:
        baton.release()
        if not self._main.acquire(timeout=self._stuck_s):
            raise Stuck(f"no task has gone on for {self._stuck_s} s, since one waits for something real:\n{_stacks()}")

    def _next(self) -> "_thread.LockType":
        """Let things happen until a task is to go on; return its baton, or the main one when all is over."""
        queue = self._queue
        try:
            while queue and self.failure is None:
                at_ms, _, _, what, turn = heapq.heappop(queue)
                self.now_ms = at_ms
                if not isinstance(what, Task):
                    what()
                    self.watch()
                elif what.pausing and what.turn == turn and not what.over:
                    machine = what.machine
                    if machine.thaws_ms > at_ms and not machine.dead:
                        self._push(machine.thaws_ms, what, turn)
                        continue
                    what.pausing = False
                    self._running = what
                    return what.worker.baton
        except BaseException as failure:  # noqa: BLE001 - it belongs to the schedule, not to the task that gave way
            self.fail(failure)
        self._running = None
        return self._main

    def _push(self, at_ms: int, what: "Task | Action", turn: int) -> None:
        self._pushed += 1
        if self._pushed > self._max_events:
            self.fail(Stuck(f"{self._max_events} events, and no end"))
        heapq.heappush(self._queue, (at_ms, self.random.random(), self._pushed, what, turn))


def _stacks() -> str:
    """Where all simulated threads stand."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - as threading's documentation has it
        if names.get(ident) == _Worker.__name__
    ]
    return "\n".join(stacks)


def _nothing() -> None:
    """Watch nothing."""
