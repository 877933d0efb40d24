"""Moments, deadlines, the machine's clock and the test's own."""

import threading
import time
from typing import Any

import pytest

from incumbent import leased
from incumbent.clock import SYSTEM_CLOCK, Moment, deadline, margin_ms
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock


def test_moment_moves_on_both_clocks() -> None:
    """What is later is later by either."""
    assert Moment(100, 5_000).plus(30) == Moment(130, 5_030)
    assert Moment(100, 5_000).plus(-30) == Moment(70, 4_970)


@pytest.mark.parametrize(
    ("later", "time_left_ms"),
    [
        (Moment(130, 5_030), 30),
        (Moment(130, 5_010), 10),  # the wall clock says fewer: it was set forward, or the other stood still
        (Moment(110, 5_030), 10),  # the monotonic clock says fewer: the wall clock was set back
        (Moment(100, 5_000), 0),
        (Moment(130, 4_000), -1_000),
    ],
)
def test_earlier_clock_counts(later: Moment, time_left_ms: int) -> None:
    """R12: a moment has come when either clock says so."""
    assert Moment(100, 5_000).until(later) == time_left_ms


@pytest.mark.parametrize(
    ("ttl_ms", "margin"),
    [(1, 10), (999, 10), (1_000, 10), (1_099, 10), (1_100, 11), (30_000, 300), (86_400_000, 864_000)],
)
def test_margin_is_a_hundredth_and_ten_milliseconds_at_least(ttl_ms: int, margin: int) -> None:
    """R12."""
    assert margin_ms(ttl_ms) == margin


def test_deadline_is_counted_from_the_sending() -> None:
    """R12: plus ttl, less the margin, on both clocks."""
    assert deadline(Moment(100, 5_000), 30_000) == Moment(29_800, 34_700)


@pytest.mark.parametrize(
    ("reported_ms", "lives_ms"), [(30_000, 30_000), (40_000, 30_000), (12_000, 12_000), (0, 0), (-5, -5)]
)
def test_deadline_is_no_later_than_the_store_says(reported_ms: int, lives_ms: int) -> None:
    """R12: the shorter of ttl and what the store reports; 0 is a number like any other."""
    # H46: Powertools #4759: 0 read as "not set".
    assert deadline(Moment(0, 0), 30_000, reported_ms) == Moment(lives_ms - 300, lives_ms - 300)


def test_lease_shorter_than_its_margin_is_over_before_it_began() -> None:
    """R12: nobody may believe in a lease of a few milliseconds."""
    assert Moment(100, 100).until(deadline(Moment(100, 100), 5)) < 0


def test_system_clock_reads_both_clocks() -> None:
    """Milliseconds; the wall clock's are of the epoch; neither goes back."""
    first = SYSTEM_CLOCK.now()
    SYSTEM_CLOCK.sleep_ms(2)
    second = SYSTEM_CLOCK.now()
    assert first.until(second) >= 1
    assert 1_700_000_000_000 < first.wall_ms < 10_000_000_000_000


def test_system_clock_waits_for_an_event() -> None:
    """It says whether the event is set, and does not wait for one that is."""
    event = threading.Event()
    assert SYSTEM_CLOCK.wait_ms(event, 1) is False
    event.set()
    began = SYSTEM_CLOCK.now()
    assert SYSTEM_CLOCK.wait_ms(event, 60_000) is True
    assert began.until(SYSTEM_CLOCK.now()) < 10_000


def test_system_clock_counts_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library counts in seconds."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    SYSTEM_CLOCK.sleep_ms(1_500)
    event = threading.Event()
    monkeypatch.setattr(event, "wait", slept.append)
    SYSTEM_CLOCK.wait_ms(event, 250)
    assert slept == [1.5, 0.25]


def test_fake_clock_stands_still_until_it_is_moved() -> None:
    """Both of its clocks then go on by as much."""
    clock = FakeClock(wall_ms=1_000, mono_ms=7)
    assert clock.now() == clock.now() == Moment(7, 1_000)
    clock.advance(5)
    clock.sleep_ms(10)
    assert clock.now() == Moment(22, 1_015)


def test_store_on_a_fake_clock_serves_a_handler_on_the_systems() -> None:
    """It starts at the present, so that no lease that it grants is over before it begins."""
    before = SYSTEM_CLOCK.now()
    clock = FakeClock()
    assert before.mono_ms <= clock.now().mono_ms <= SYSTEM_CLOCK.now().mono_ms
    assert before.wall_ms <= clock.now().wall_ms <= SYSTEM_CLOCK.now().wall_ms

    @leased(key="k", keyspace="s", provider=MemoryProvider(clock=clock))
    def handler(event: Any, context: Any) -> str:
        return "ran"

    assert handler({}, None) == "ran"


def test_fake_clock_does_not_run_backwards() -> None:
    """Only the wall clock can be set back."""
    clock = FakeClock(wall_ms=1_000, mono_ms=7)
    with pytest.raises(ValueError, match="step_wall"):
        clock.advance(-1)
    clock.step_wall(-400)
    assert clock.now() == Moment(7, 600)
    clock.step_wall(3_000)
    assert clock.now() == Moment(7, 3_600)


def test_fake_clock_waits_at_once() -> None:
    """The time of the wait has passed, unless the event was set."""
    clock, event = FakeClock(wall_ms=0, mono_ms=0), threading.Event()
    assert clock.wait_ms(event, 30) is False
    assert clock.now() == Moment(30, 30)
    event.set()
    assert clock.wait_ms(event, 30) is True
    assert clock.now() == Moment(30, 30)


@pytest.mark.parametrize(("drift_ppm", "gone_ms"), [(0, 3_600_000), (100, 3_600_360), (-100, 3_599_640)])
def test_fake_clock_drifts(drift_ppm: int, gone_ms: int) -> None:
    """An hour of true time, in steps that do not add up errors."""
    clock = FakeClock(wall_ms=0, mono_ms=0, drift_ppm=drift_ppm)
    for _ in range(3_600):
        clock.advance(1_000)
    assert clock.now() == Moment(gone_ms, gone_ms)


def test_fake_clock_may_be_moved_by_several_threads() -> None:
    """No millisecond is lost."""
    clock = FakeClock(wall_ms=0, mono_ms=0)

    def move() -> None:
        for _ in range(500):
            clock.advance(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == Moment(2_000, 2_000)
