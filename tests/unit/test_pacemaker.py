"""One thread lets the heartbeats of all runs beat, wherever it is frozen, and none beats once it was removed."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import incumbent
from incumbent.clock import SYSTEM_CLOCK
from incumbent.pacemaker import Pacemaker, pacemaker_of
from tests.unit.stage import PATIENCE_S, StepClock, no_heartbeat_is_left

ROOT = Path(__file__).parents[2]
PACKAGE = Path(incumbent.__file__).parent  # the one that is tested: perhaps a copy with a fault
EVERY_MS = 10_000


class Beats:
    """A heart that counts its beats and takes as long as the test wants."""

    def __init__(self, every_ms: int | None = EVERY_MS) -> None:
        self.every_ms = every_ms
        self.began = threading.Semaphore(0)
        self.count = 0
        self.while_beating: Callable[[], object] = lambda: None
        self.deaths: list[BaseException] = []

    def beat(self) -> int | None:
        """Beat once."""
        self.count += 1
        self.began.release()
        self.while_beating()
        return self.every_ms

    def die(self, cause: BaseException) -> None:
        """Note it."""
        self.deaths.append(cause)

    def wait(self) -> None:
        """Wait until it has begun to beat once more."""
        assert self.began.acquire(timeout=PATIENCE_S)


class Threads:
    """Makes threads and keeps them."""

    def __init__(self) -> None:
        self.made: list[threading.Thread] = []

    def __call__(self, **of: Any) -> threading.Thread:
        """Make one."""
        self.made.append(threading.Thread(**of))
        return self.made[-1]

    @property
    def alive(self) -> int:
        """How many have not ended."""
        return sum(each.is_alive() for each in self.made)


@pytest.fixture
def clock() -> StepClock:
    """Time that moves by hand."""
    return StepClock()


@pytest.fixture
def threads() -> Threads:
    """The threads of the test."""
    return Threads()


@pytest.fixture
def pacemaker(clock: StepClock, threads: Threads) -> Iterator[Pacemaker]:
    """A pacemaker whose thread stays, as the process's does, until the test is over."""
    made = Pacemaker(clock, thread=threads)
    yield made
    made._stays = False  # noqa: SLF001 - so that no thread outlives its test
    made.remove(Beats())
    for thread in threads.made:
        thread.join(timeout=PATIENCE_S)
    assert not threads.alive


def test_one_thread_serves_runs_one_after_the_other(clock: StepClock, threads: Threads, pacemaker: Pacemaker) -> None:
    """It is started for the first, and neither started nor joined for those after it."""
    for _ in range(50):
        heart = Beats()
        pacemaker.add(heart, EVERY_MS)
        pacemaker.remove(heart)
    assert len(threads.made) == 1
    assert threads.alive == 1
    heart = Beats()
    pacemaker.add(heart, EVERY_MS)
    while not heart.count:
        clock.advance(EVERY_MS)
        SYSTEM_CLOCK.sleep_ms(1)
    assert len(threads.made) == 1
    pacemaker.remove(heart)


def test_run_that_is_due_later_does_not_wake_the_thread(clock: StepClock, pacemaker: Pacemaker) -> None:
    """It sleeps until the earliest renewal that it knew of; only an earlier one wakes it."""
    first, later, earlier = Beats(), Beats(), Beats()
    pacemaker.add(first, EVERY_MS)
    clock.next_pause_ms()
    pacemaker.add(later, EVERY_MS + 1)
    pacemaker.remove(first)
    assert clock.no_pause_comes()
    pacemaker.add(earlier, EVERY_MS // 2)
    assert clock.next_pause_ms() == EVERY_MS // 2
    clock.advance(EVERY_MS // 2)
    earlier.wait()
    pacemaker.remove(earlier)
    pacemaker.remove(later)
    assert (first.count, later.count) == (0, 0)


def test_idle_thread_sleeps_without_a_limit(clock: StepClock, threads: Threads, pacemaker: Pacemaker) -> None:
    """After the last run, it wakes once, finds nothing, and asks for no further time; the next run wakes it."""
    heart = Beats()
    pacemaker.add(heart, EVERY_MS)
    clock.next_pause_ms()
    pacemaker.remove(heart)
    clock.advance(EVERY_MS)
    while pacemaker._sleeps_until is not None:  # noqa: SLF001 - it has woken, and sleeps again
        SYSTEM_CLOCK.sleep_ms(1)
    clock.advance(100 * EVERY_MS)
    assert clock.no_pause_comes()
    pacemaker.add(heart, EVERY_MS)
    assert clock.next_pause_ms() == EVERY_MS
    pacemaker.remove(heart)
    assert len(threads.made) == 1


def test_slow_store_of_one_run_does_not_delay_another(clock: StepClock, threads: Threads, pacemaker: Pacemaker) -> None:
    """A second thread keeps the time while the first waits for an answer, and one of them ends afterwards."""
    slow, quick = Beats(), Beats()
    answered = threading.Event()
    slow.while_beating = lambda: answered.wait(PATIENCE_S)
    pacemaker.add(slow, EVERY_MS)
    pacemaker.add(quick, EVERY_MS + 1_000)
    clock.advance(EVERY_MS)
    slow.wait()
    for _ in range(3):
        clock.advance(EVERY_MS)
        quick.wait()
    assert slow.count == 1
    answered.set()
    pacemaker.remove(slow)
    pacemaker.remove(quick)
    while threads.alive > 1:
        SYSTEM_CLOCK.sleep_ms(1)
    assert pacemaker.live == 0


def test_run_that_starts_while_another_waits_for_its_answer_is_renewed(
    clock: StepClock, threads: Threads, pacemaker: Pacemaker
) -> None:
    """Nobody keeps the time then, so the new run brings a thread for it."""
    slow, new = Beats(), Beats()
    answered = threading.Event()
    slow.while_beating = lambda: answered.wait(PATIENCE_S)
    pacemaker.add(slow, EVERY_MS)
    clock.next_pause_ms()
    clock.advance(EVERY_MS)
    slow.wait()
    assert len(threads.made) == 1
    pacemaker.add(new, EVERY_MS)
    clock.next_pause_ms()
    clock.advance(EVERY_MS)
    new.wait()
    assert len(threads.made) == 2
    answered.set()
    pacemaker.remove(slow)
    pacemaker.remove(new)


def test_removal_waits_for_the_beat_that_is_under_way(clock: StepClock, pacemaker: Pacemaker) -> None:
    """H11: nothing is in flight when it returns."""
    heart = Beats()
    answered, removed = threading.Event(), threading.Event()
    heart.while_beating = lambda: answered.wait(PATIENCE_S)
    pacemaker.add(heart, EVERY_MS)
    clock.next_pause_ms()
    clock.advance(EVERY_MS)
    heart.wait()

    def remove() -> None:
        pacemaker.remove(heart)
        removed.set()

    removing = threading.Thread(target=remove)
    removing.start()
    assert not removed.wait(0.02)
    answered.set()
    assert removed.wait(PATIENCE_S)
    removing.join()


def test_second_thread_that_cannot_start_delays_and_loses_nothing(clock: StepClock) -> None:
    """Then the others are renewed when the slow one was answered."""
    made: list[threading.Thread] = []

    def one_only(**of: Any) -> threading.Thread:
        if made:
            raise RuntimeError("can't start new thread")
        made.append(threading.Thread(**of))
        return made[0]

    pacemaker = Pacemaker(clock, stays=False, thread=one_only)
    first, second = Beats(), Beats()
    pacemaker.add(first, EVERY_MS)
    pacemaker.add(second, EVERY_MS)
    for _ in range(3):
        clock.advance(EVERY_MS)
        first.wait()
        second.wait()
    pacemaker.remove(first)
    pacemaker.remove(second)
    made[0].join(timeout=PATIENCE_S)
    assert not made[0].is_alive()


def test_thread_that_dies_is_told_to_all_runs_and_replaced(threads: Threads) -> None:
    """H8: a bug, or a clock that raises: every run learns of it, and the next one has a thread again."""

    class Broken(StepClock):
        def wait_ms(self, event: threading.Event, ms: int) -> bool:
            if len(threads.made) == 1:
                raise MemoryError
            return super().wait_ms(event, ms)

    clock = Broken()
    pacemaker = Pacemaker(clock, stays=False, thread=threads)
    first, second = Beats(), Beats()
    pacemaker.add(first, EVERY_MS)
    threads.made[0].join(timeout=PATIENCE_S)
    assert [type(each) for each in first.deaths] == [MemoryError]
    pacemaker.add(second, EVERY_MS)
    clock.next_pause_ms()
    clock.advance(EVERY_MS)
    second.wait()
    pacemaker.remove(second)
    threads.made[1].join(timeout=PATIENCE_S)
    assert not threads.alive


# --- frozen and interrupted anywhere


class Frozen:
    """Stops a thread at one of its steps, for as long as the test wants: a step is a line that it is about to run."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def trace(self, frame: FrameType, what: str, _: object) -> Any:
        """Count the steps in the code under test."""
        if not frame.f_code.co_filename.endswith("pacemaker.py"):
            return None if what == "call" else self.trace
        if what in {"line", "return"}:
            self.steps += 1
            if self.steps == self.at:
                self.reached.set()
                assert self.goes_on.wait(PATIENCE_S)
        return self.trace

    def __call__(self, *, target: Callable[[], None], **of: Any) -> threading.Thread:
        """Make a thread that stops so."""

        def traced() -> None:
            sys.settrace(self.trace)
            try:
                target()
            finally:
                sys.settrace(None)

        return threading.Thread(target=traced, **of)


def test_nothing_beats_after_the_removal_wherever_the_thread_was_frozen() -> None:
    """H11, H13: it stands still at any step while the run ends, and goes on an hour later: no renewal is sent then."""
    at, waited, reached = 0, 0, True
    while reached:
        at += 1
        reached, has_waited, late = remove_while_frozen(at)
        waited += has_waited
        assert not late, f"frozen at step {at}"
    assert at > 30
    assert waited > 0


def remove_while_frozen(at: int) -> tuple[bool, bool, bool]:
    """Remove a heart while the thread stands at a step: whether it came there, whether it waited, and beat later."""
    clock, frozen = StepClock(), Frozen(at)
    pacemaker = Pacemaker(clock, stays=False, thread=frozen)
    removed, heart = threading.Event(), Beats()
    late: list[bool] = []
    heart.while_beating = lambda: late.append(removed.is_set())

    def remove() -> None:
        pacemaker.remove(heart)
        removed.set()

    pacemaker.add(heart, EVERY_MS)
    while heart.count < 2 and not frozen.reached.is_set():
        clock.advance(EVERY_MS // 4)
        SYSTEM_CLOCK.sleep_ms(1)
    reached = frozen.reached.is_set()
    removing = threading.Thread(target=remove)
    removing.start()
    waited = not removed.wait(0.01)  # for the lock, or for the beat
    clock.step_wall(3_600_000)
    frozen.goes_on.set()
    removing.join(timeout=PATIENCE_S)
    assert removed.is_set(), f"frozen at step {at}"
    clock.advance(2 * EVERY_MS)
    assert no_heartbeat_is_left()
    return reached, waited, any(late)


def test_runs_are_renewed_after_an_exception_thrown_into_a_start_or_an_end_at_any_step() -> None:
    """A signal's handler may raise at any step: the runs after it have a thread that keeps their time."""
    for call in ("add", "remove"):
        at, reached = 0, True
        while reached:
            at += 1
            clock = StepClock()
            pacemaker = Pacemaker(clock, stays=False)
            hit, after = Beats(), Beats()
            if call == "remove":
                pacemaker.add(hit, EVERY_MS)
            arguments = (hit, EVERY_MS) if call == "add" else (hit,)
            reached = interrupted(partial(getattr(pacemaker, call), *arguments), at)
            pacemaker.remove(hit)
            pacemaker.add(after, EVERY_MS)
            ends = SYSTEM_CLOCK.now().plus(int(PATIENCE_S * 1_000))
            while not after.count:
                assert SYSTEM_CLOCK.now().until(ends) > 0, f"{call} interrupted at step {at}"
                clock.advance(EVERY_MS)
                SYSTEM_CLOCK.sleep_ms(1)
            pacemaker.remove(after)
            assert hit.count == 0
        assert at > 4


class TimeUpError(Exception):
    """What the handler of a signal raises."""


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Make a call and raise at that step of it, where the interpreter may run a signal's handler; whether it came.

    The standard library's own locks do not bear such exceptions, so none is thrown into its functions.
    """
    steps = 0

    def step(frame: FrameType, what: str, _: object) -> None:
        nonlocal steps
        steps += what in {"call", "c_return"} and frame.f_code.co_filename.endswith("pacemaker.py")
        if steps == at:
            raise TimeUpError

    gc.disable()  # nothing is to be thrown into a finalizer, which would keep it
    sys.setprofile(step)
    try:
        call()
    except TimeUpError:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


# --- processes

FORKED = """
import os, sys, threading, time
from incumbent.clock import SYSTEM_CLOCK
from incumbent.pacemaker import pacemaker_of
from tests.unit.test_pacemaker import Beats

pacemaker = pacemaker_of(SYSTEM_CLOCK)
parents = Beats(5)
pacemaker.add(parents, 5)
parents.wait()
pid = os.fork()
if pid == 0:
    count = parents.count
    time.sleep(0.05)
    assert parents.count == count, "the child's copy beats"
    assert threading.active_count() == 1
    own = Beats(5)
    pacemaker.add(own, 5)
    own.wait()
    pacemaker.remove(own)
    assert pacemaker.live == 0
    os._exit(0)
_, status = os.waitpid(pid, 0)
parents.wait()
print(os.waitstatus_to_exitcode(status))
"""

EXITING = """
import threading
from incumbent.clock import SYSTEM_CLOCK
from incumbent.pacemaker import pacemaker_of
from tests.unit.test_pacemaker import Beats

pacemaker = pacemaker_of(SYSTEM_CLOCK)
heart = Beats(5)
pacemaker.add(heart, 5)
heart.wait()
{then}
print("the end")
"""


def carried_out(code: str) -> str:
    """Run code in a process of its own; what it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{ROOT}"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    return ended.stdout.strip()


def test_forked_child_has_no_thread_until_it_runs_something_itself() -> None:
    """What the parent runs does not beat in the child; a run of the child's has a thread of the child's."""
    assert carried_out(FORKED) == "0"


@pytest.mark.parametrize(
    "then",
    ["pacemaker.remove(heart)", "heart.while_beating = threading.Event().wait; heart.wait()", ""],
    ids=["asleep", "in flight", "live"],
)
def test_interpreter_ends_whatever_the_thread_does(then: str) -> None:
    """A daemon keeps no process: not asleep, not waiting for an answer, not between two renewals."""
    assert carried_out(EXITING.format(then=then)) == "the end"


def test_process_has_one_pacemaker_and_a_test_has_its_own() -> None:
    """By the clock: the system's is the process's."""
    assert pacemaker_of(SYSTEM_CLOCK) is pacemaker_of(SYSTEM_CLOCK)
    clock = StepClock()
    assert pacemaker_of(clock) is not pacemaker_of(clock)


def test_idle_thread_that_is_woken_sleeps_on_as_before(
    clock: StepClock, threads: Threads, pacemaker: Pacemaker
) -> None:
    """Until the renewal that it knew of, so that the next runs need not wake it; else for ever."""
    heart = Beats()
    pacemaker.add(heart, EVERY_MS)
    clock.next_pause_ms()
    pacemaker.remove(heart)
    clock.advance(1)
    pacemaker.stir()
    assert clock.next_pause_ms() == EVERY_MS - 1
    clock.advance(EVERY_MS)
    while pacemaker._sleeps_until is not None:  # noqa: SLF001 - it has woken, and sleeps again
        SYSTEM_CLOCK.sleep_ms(1)
    pacemaker.stir()
    while pacemaker._wake.is_set():  # noqa: SLF001 - it has looked
        SYSTEM_CLOCK.sleep_ms(1)
    pacemaker.add(heart, EVERY_MS)
    assert clock.next_pause_ms() == EVERY_MS
    pacemaker.remove(heart)
    assert len(threads.made) == 1


class Sleeps(threading.Event):
    """An event that tells when a thread begins to wait for it without a limit."""

    begun = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Tell it, and wait."""
        if timeout is None:
            self.begun.release()
        return super().wait(timeout)


def test_idle_thread_takes_no_processor_time(clock: StepClock, threads: Threads) -> None:
    """It waits for an event, and looks at no clock meanwhile."""
    pacemaker = Pacemaker(clock, thread=threads, event=Sleeps)
    heart = Beats()
    pacemaker.add(heart, EVERY_MS)
    clock.next_pause_ms()
    pacemaker.remove(heart)
    clock.advance(EVERY_MS)
    assert Sleeps.begun.acquire(timeout=PATIENCE_S)
    pacemaker._stays = False  # noqa: SLF001 - so that no thread outlives its test
    pacemaker.remove(heart)
    threads.made[0].join(timeout=PATIENCE_S)
    assert not threads.alive
