"""Schedules: what runs when, what ends, and that a schedule which cannot go on says so."""

import threading

import pytest

from tests.simulation.environment import Environment
from tests.simulation.scheduler import Died, Machine, Scheduler, Stuck, Workers


def make(seed: int = 1, *, stuck_s: float = 60) -> tuple[Scheduler, Machine]:
    """A scheduler and a machine."""
    scheduler = Scheduler(seed, Workers(), stuck_s=stuck_s)
    return scheduler, Machine("m", scheduler)


def test_time_passes_only_in_pauses() -> None:
    """Two tasks that pause go on in the order of their times, and it is exactly then."""
    scheduler, machine = make()
    seen: list[tuple[str, int]] = []

    def task(name: str, *pauses_ms: int) -> None:
        for pause_ms in pauses_ms:
            scheduler.pause(pause_ms)
            seen.append((name, scheduler.now_ms))

    scheduler.spawn(machine, lambda: task("a", 10, 90_000))
    scheduler.spawn(machine, lambda: task("b", 30, 20))
    scheduler.run()
    assert seen == [("a", 10), ("b", 30), ("b", 50), ("a", 90_010)]


def test_seed_decides_who_goes_first() -> None:
    """What is due at the same millisecond comes in one order or the other, and in the same one for the same seed."""

    def order(seed: int) -> str:
        scheduler, machine = make(seed)
        seen: list[str] = []
        for name in "abcd":
            scheduler.spawn(machine, lambda name=name: seen.append(name))  # type: ignore[misc]
        scheduler.run()
        return "".join(seen)

    assert len({order(seed) for seed in range(20)}) > 5
    assert [order(seed) for seed in range(20)] == [order(seed) for seed in range(20)]


def test_task_of_a_dead_machine_does_nothing_more() -> None:
    """It dies where it stands, and every further pause kills it again, whatever it catches."""
    scheduler, machine = make()
    done: list[str] = []

    def task() -> None:
        try:
            scheduler.pause(100)
            done.append("went on")
        except Died:
            scheduler.pause(1)
            done.append("went on all the same")

    scheduler.spawn(machine, task)
    scheduler.at(50, machine.die)
    scheduler.run()
    assert not done
    assert machine.tasks == []


def test_frozen_machine_goes_on_where_it_stood() -> None:
    """Nothing of it runs until it thaws; then its task finds that more time has passed than it wanted."""
    scheduler, machine = make()
    seen: list[int] = []

    def task() -> None:
        scheduler.pause(10)
        seen.append(scheduler.now_ms)

    scheduler.spawn(machine, task)
    scheduler.at(5, lambda: machine.freeze(1_000))
    scheduler.run()
    assert seen == [1_005]


def test_clocks_of_an_environment_go_their_own_ways() -> None:
    """They drift, the wall clock steps, and the monotonic one may stand still while the environment is frozen."""
    scheduler = Scheduler(1, Workers())
    environment = Environment("e", scheduler, wall_off_ms=7, drift_ppm=1_000, stops_monotonic=True)
    begun = environment.clock.now()
    scheduler.at(1_000_000, lambda: environment.stand_still(500))
    scheduler.at(1_000_600, lambda: environment.clock.step_wall(-50))
    scheduler.run()
    now = environment.clock.now()
    assert now.wall_ms - begun.wall_ms == 1_000_600 + 1_000 - 50
    assert now.mono_ms - begun.mono_ms == 1_000_600 + 1_000 - 500


def test_thread_is_waited_for_without_the_baton() -> None:
    """Whoever joins a thread lets it go on: it may be in the middle of a request."""
    scheduler = Scheduler(1, Workers())
    environment = Environment("e", scheduler)
    seen: list[str] = []

    def beat() -> None:
        environment.clock.sleep_ms(100)
        seen.append("beat")

    def run() -> None:
        thread = environment.thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        thread.join()
        seen.append(f"joined at {scheduler.now_ms}")

    scheduler.spawn(environment, run)
    scheduler.run()
    assert seen == ["beat", "joined at 100"]


def test_task_that_waits_for_something_real_is_shown() -> None:
    """A lock that a paused task holds would stop everything: the schedule ends and says where."""
    scheduler, machine = make(stuck_s=0.2)
    lock = threading.Lock()

    def holds() -> None:
        with lock:
            scheduler.pause(10)

    def wants() -> None:
        scheduler.pause(5)
        with lock:
            pass

    scheduler.spawn(machine, holds)
    scheduler.spawn(machine, wants)
    with pytest.raises(Stuck, match="with lock"):
        scheduler.run()


def test_schedule_without_an_end_is_ended() -> None:
    """Something that goes on for ever is a failure, not a run that never ends."""
    scheduler, machine = make()

    def task() -> None:
        while True:
            scheduler.pause(1)

    scheduler.spawn(machine, task)
    with pytest.raises(Stuck, match="no end"):
        scheduler.run()


def test_failure_of_a_task_is_the_schedules() -> None:
    """What a task raises ends the schedule, all others included."""
    scheduler, machine = make()
    done: list[str] = []

    def breaks() -> None:
        raise ValueError("broken")

    def other() -> None:
        scheduler.pause(10)
        done.append("went on")

    scheduler.spawn(machine, other)
    scheduler.spawn(machine, breaks)
    with pytest.raises(ValueError, match="broken"):
        scheduler.run()
    assert not done
