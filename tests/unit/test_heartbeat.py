"""The heartbeat renews in time, knows when the lease is lost, and never outlives its run."""

import hashlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from incumbent import LeaseLost, LeaseUnavailable
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment, deadline
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.pacemaker import Pacemaker, pacemaker_of
from tests.unit.stage import PATIENCE_S, StepClock, beside, no_heartbeat_is_left, raising

TTL_MS = 30_000
EVERY_MS = 10_000


class Beaten:
    """A heartbeat with a store that answers as the test says, and all that came of it."""

    def __init__(
        self,
        clock: Clock,
        *,
        time_left_ms: int = TTL_MS,
        every_ms: int = EVERY_MS,
        ttl_ms: int = TTL_MS,
        ends: Moment | None = None,
        pacemaker: Pacemaker | None = None,
    ) -> None:
        self.clock = clock
        self.ttl_ms = ttl_ms
        self.sent: queue.Queue[Moment] = queue.Queue()
        self.answer: Callable[[Moment], Renewal] = self.granted
        self.losses: list[LeaseLost] = []
        self.errors: list[Exception] = []
        self.when_lost: Callable[[], object] = lambda: None
        self.pacemaker = pacemaker_of(clock) if pacemaker is None else pacemaker
        self.heartbeat = Heartbeat(
            self,
            held_until=deadline(clock.now(), time_left_ms),
            every_ms=every_ms,
            invocation_ends=ends,
            clock=clock,
            pacemaker=self.pacemaker,
        )

    def granted(self, sent: Moment) -> Renewal:
        """A renewal as a store answers it."""
        return Renewal(deadline=deadline(sent, self.ttl_ms), waiting=self.sent.qsize())

    def renew(self, _give_up_at: Moment) -> Renewal:
        """What the heartbeat sends."""
        sent = self.clock.now()
        self.sent.put(sent)
        return self.answer(sent)

    def before_each(self) -> None:
        """Nothing is prepared."""

    def make_lost(self, why: str) -> LeaseLost:
        """The error."""
        return LeaseLost(f"lost: {why}", key="k", owner="A")

    def on_lost(self, loss: LeaseLost) -> None:
        """What the heartbeat tells."""
        self.losses.append(loss)
        self.when_lost()

    def on_asked(self, _: str) -> None:
        """No test asks it to stop."""

    def on_error(self, error: Exception) -> None:
        """A renewal without an answer."""
        self.errors.append(error)

    def next_beat(self) -> Moment:
        """Wait for a renewal to be sent; when it was."""
        return self.sent.get(timeout=PATIENCE_S)


@pytest.fixture
def clock() -> StepClock:
    """Time that moves by hand."""
    return StepClock()


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    yield
    assert no_heartbeat_is_left()


def run_out(beaten: Beaten) -> None:
    """Wait until the thread has ended by itself."""
    assert no_heartbeat_is_left()
    assert beaten.pacemaker.live == 0


def test_interval_has_jitter_and_is_never_exceeded(clock: StepClock) -> None:
    """Each pause is between four fifths of the interval and the whole of it, and they differ."""
    beaten = Beaten(clock)
    beaten.heartbeat.start()
    pauses = []
    for _ in range(12):
        pauses.append(clock.next_pause_ms())
        clock.advance(pauses[-1])
        assert beaten.next_beat() == clock.now()
    clock.next_pause_ms()
    beaten.heartbeat.stop()
    assert all(EVERY_MS * 4 // 5 <= pause <= EVERY_MS for pause in pauses)
    assert len(set(pauses)) > 1
    assert beaten.losses == []


def test_each_renewal_moves_the_deadline(clock: StepClock) -> None:
    """The lease that would have ended after 30 s is held after five minutes, and what waits is known."""
    beaten = Beaten(clock)
    beaten.heartbeat.start()
    for _ in range(30):
        clock.advance(clock.next_pause_ms())
        sent = beaten.next_beat()
    clock.next_pause_ms()
    assert beaten.heartbeat.loss is None
    assert beaten.heartbeat.held_until == deadline(sent, TTL_MS)
    assert beaten.heartbeat.waiting == 1
    beaten.heartbeat.stop()


def test_slow_claim_is_renewed_before_its_lease_ends(clock: StepClock) -> None:
    """A claim that took 26 of 30 s leaves less than an interval: the first renewal comes within half of it."""
    beaten = Beaten(clock, time_left_ms=4_000)
    beaten.heartbeat.start()
    assert clock.next_pause_ms() <= 2_000
    beaten.heartbeat.stop()


def test_slow_renewal_is_followed_by_an_early_one(clock: StepClock) -> None:
    """One that was answered after 19 s leaves 10: the next is sent in time to be slow as well."""
    beaten = Beaten(clock)
    slow_ms = iter((19_000, 3_000, 0, 0))

    def slow(sent: Moment) -> Renewal:
        clock.advance(next(slow_ms))
        return beaten.granted(sent)

    beaten.answer = slow
    beaten.heartbeat.start()
    for _ in range(4):
        clock.advance(clock.next_pause_ms())
        beaten.next_beat()
    clock.next_pause_ms()
    assert beaten.heartbeat.loss is None
    beaten.heartbeat.stop()


def test_failed_renewal_is_repeated_until_it_works(clock: StepClock) -> None:
    """One error is no loss: the next try follows within a quarter of a second, and is told of."""
    # H9: webjobs-sdk #2454, Mastra #21385. H19: KCL #136.
    beaten = Beaten(clock)
    beaten.answer = raising(LeaseUnavailable("throttled", key="k"))
    beaten.heartbeat.start()
    for tries in range(1, 6):
        clock.advance(clock.next_pause_ms())
        beaten.next_beat()
        if tries == 5:
            beaten.answer = beaten.granted
    assert clock.next_pause_ms() <= 250
    clock.advance(250)
    beaten.next_beat()
    assert clock.next_pause_ms() >= EVERY_MS * 4 // 5
    assert beaten.losses == []
    assert len(beaten.errors) == 5
    assert beaten.heartbeat.loss is None
    beaten.heartbeat.stop()


def test_renewals_that_fail_end_with_the_deadline(clock: StepClock) -> None:
    """It is retried until the deadline and not after it; then the lease is lost, once, without anybody looking."""
    beaten = Beaten(clock)
    beaten.answer = raising(ConnectionError("reset"))
    held_until = beaten.heartbeat.held_until
    beaten.heartbeat.start()
    while not beaten.losses and clock.now().until(held_until) > 0:
        clock.advance(clock.next_pause_ms())
        if clock.now().until(held_until) > 0:
            assert beaten.next_beat().until(held_until) > 0
    run_out(beaten)
    assert clock.now() == held_until  # noticed at it, not with the next try
    assert beaten.sent.empty()
    assert [str(loss) for loss in beaten.losses] == ["lost: its deadline has passed without a renewal"]
    assert len(beaten.errors) > 50
    beaten.heartbeat.stop()


def test_error_that_is_none_of_ours_is_retried_too(clock: StepClock) -> None:
    """A provider may be anybody's: what it raises does not kill the thread."""
    # H8: python-redis-lock, iceberg #2034, Redisson #3194.
    beaten = Beaten(clock)
    beaten.answer = raising(ZeroDivisionError("a bug"))
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    beaten.answer = beaten.granted
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    clock.next_pause_ms()
    assert beaten.losses == []
    beaten.heartbeat.stop()


def test_refused_renewal_is_a_loss_and_the_last(clock: StepClock) -> None:
    """``LeaseLost`` is not retried: it is told once, with what the store said."""
    beaten = Beaten(clock)
    refusal = LeaseLost("beat: B holds it", key="k", owner="A", holder="B")
    beaten.answer = raising(refusal)
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    run_out(beaten)
    assert beaten.losses == [refusal]
    assert beaten.heartbeat.loss is refusal
    clock.advance(10 * TTL_MS)
    assert beaten.heartbeat.loss is refusal
    assert beaten.sent.empty()
    assert beaten.losses == [refusal]


def test_deadline_is_noticed_at_use_without_any_thread(clock: StepClock) -> None:
    """R12: held until one millisecond before it, lost at it."""
    beaten = Beaten(clock)
    clock.advance(TTL_MS - 300 - 1)
    just_before = beaten.heartbeat.loss
    clock.advance(1)
    assert just_before is None
    assert beaten.heartbeat.loss is not None
    assert len(beaten.losses) == 1


@pytest.mark.parametrize("step_ms", [TTL_MS, 3_600_000])
def test_wall_clock_that_jumps_ahead_ends_the_lease(clock: StepClock, step_ms: int) -> None:
    """R12: the earlier of both clocks counts; so does a freeze during which the monotonic clock stood still."""
    # H13: awslabs lock client #63. H15: ShedLock #639.
    beaten = Beaten(clock)
    clock.step_wall(step_ms)
    assert beaten.heartbeat.loss is not None


def test_wall_clock_that_is_set_back_does_not_undo_a_renewal(clock: StepClock) -> None:
    """The later renewal counts, though its deadline is earlier on the wall clock."""
    beaten = Beaten(clock)
    beaten.heartbeat.start()
    clock.next_pause_ms()
    clock.step_wall(-3_600_000)
    for _ in range(5):
        clock.advance(EVERY_MS)
        beaten.next_beat()
        clock.next_pause_ms()
    assert beaten.heartbeat.loss is None
    beaten.heartbeat.stop()


def test_thawed_heartbeat_sends_nothing(clock: StepClock) -> None:
    """A pause from which it wakes an hour late by the wall clock: the lease counts as lost, not as renewed."""
    # H13: an old beat fires in the next invocation.
    beaten = Beaten(clock)
    beaten.heartbeat.start()
    clock.next_pause_ms()
    clock.step_wall(3_600_000)
    clock.advance(EVERY_MS)
    run_out(beaten)
    assert beaten.sent.empty()
    assert len(beaten.losses) == 1


def test_late_answer_does_not_revive(clock: StepClock) -> None:
    """R3: renewed by the store, but answered after the deadline: lost all the same, and told once."""
    beaten = Beaten(clock)

    def late(sent: Moment) -> Renewal:
        clock.advance(TTL_MS)
        return Renewal(deadline=deadline(clock.now(), TTL_MS))

    beaten.answer = late
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    run_out(beaten)
    assert [str(loss) for loss in beaten.losses] == ["lost: a renewal was answered after its deadline"]
    assert beaten.heartbeat.loss is beaten.losses[0]


def test_answer_that_comes_after_the_loss_changes_nothing(clock: StepClock) -> None:
    """The run looked while the renewal was on its way: what it was told stays true."""
    beaten = Beaten(clock)
    answered = threading.Event()

    def hang(sent: Moment) -> Renewal:
        assert answered.wait(PATIENCE_S)
        return Renewal(deadline=deadline(clock.now(), TTL_MS), waiting=9)

    beaten.answer = hang
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    clock.advance(TTL_MS)
    loss = beaten.heartbeat.loss
    assert loss is not None
    answered.set()
    run_out(beaten)
    assert beaten.heartbeat.loss is loss
    assert beaten.heartbeat.waiting is None
    assert beaten.losses == [loss]


@pytest.mark.parametrize(("time_left_ms", "held"), [(1, True), (0, False)])
def test_renewal_is_late_from_the_deadline_on(clock: StepClock, time_left_ms: int, *, held: bool) -> None:
    """R3: both sides of the edge; what came with a late one is not noted either."""
    beaten = Beaten(clock)
    clock.advance(TTL_MS - 300 - time_left_ms)
    beaten.heartbeat.extend(clock.now().plus(TTL_MS), waiting=3)
    assert (beaten.heartbeat.loss is None) is held
    assert (beaten.heartbeat.waiting == 3) is held
    assert len(beaten.losses) == (not held)


def test_renewal_of_a_refused_lease_is_not_noted(clock: StepClock) -> None:
    """R3: a take that was answered before somebody else noticed the loss."""
    beaten = Beaten(clock)
    held_until = beaten.heartbeat.held_until
    beaten.heartbeat.lose(LeaseLost("refused", key="k"))
    beaten.heartbeat.extend(clock.now().plus(TTL_MS), waiting=3)
    assert beaten.heartbeat.held_until == held_until
    assert beaten.heartbeat.waiting is None


@pytest.mark.parametrize("death", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_death_of_the_thread_is_a_loss(clock: StepClock, death: BaseException) -> None:
    """A heartbeat that dies in silence would be a lease lost in silence: what killed it is the cause."""
    # H8, H45: Redisson #4698.
    beaten = Beaten(clock)
    beaten.answer = raising(death)
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    if isinstance(death, Exception):
        clock.next_pause_ms()
        assert beaten.losses == []
        beaten.heartbeat.stop()
        return
    run_out(beaten)
    assert [str(loss) for loss in beaten.losses] == ["lost: its heartbeat died"]
    assert beaten.losses[0].__cause__ is death


def test_nothing_is_renewed_past_the_end_of_the_invocation(clock: StepClock) -> None:
    """M13: the thread ends by itself, and that is no loss."""
    # H11: heartbeat survives or re-arms: awslabs lock client #116, tristanls #1, KCL #1729.
    beaten = Beaten(clock, ends=clock.now().plus(25_000))
    beaten.heartbeat.start()
    for _ in range(2):
        clock.next_pause_ms()
        clock.advance(EVERY_MS)
        beaten.next_beat()
    clock.next_pause_ms()
    clock.advance(EVERY_MS)
    run_out(beaten)
    assert beaten.sent.empty()
    assert beaten.losses == []
    beaten.heartbeat.renew()
    assert beaten.sent.empty()
    assert beaten.heartbeat.loss is None


def test_heartbeat_that_would_be_over_before_its_first_beat_is_not_started(clock: StepClock) -> None:
    """A short invocation pays for no thread; one that is a millisecond longer does."""
    short = Beaten(clock, ends=clock.now().plus(EVERY_MS))
    short.heartbeat.start()
    assert short.pacemaker.live == 0
    short.heartbeat.stop()
    long = Beaten(clock, ends=clock.now().plus(EVERY_MS + 1))
    long.heartbeat.start()
    assert long.pacemaker.live == 1
    long.heartbeat.stop()


def test_stop_waits_for_the_renewal_that_is_on_its_way(clock: StepClock) -> None:
    """Nothing is in flight when it returns: a settle would meet it, or the next invocation."""
    beaten = Beaten(clock)
    answered = threading.Event()

    def hang(sent: Moment) -> Renewal:
        assert answered.wait(PATIENCE_S)
        return beaten.granted(sent)

    beaten.answer = hang
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    with beside(beaten.heartbeat.stop) as stopping:
        stopping.join(timeout=0.02)
        assert stopping.is_alive()
        answered.set()
    assert no_heartbeat_is_left()
    clock.advance(10 * EVERY_MS)
    assert beaten.sent.empty()


def test_stop_ends_a_pause_at_once(clock: StepClock) -> None:
    """No time need pass: the thread waits for being stopped as well."""
    beaten = Beaten(clock)
    beaten.heartbeat.start()
    clock.next_pause_ms()
    beaten.heartbeat.stop()
    beaten.heartbeat.stop()
    assert no_heartbeat_is_left()
    assert beaten.sent.empty()


def test_hook_of_the_loss_may_stop_the_heartbeat(clock: StepClock) -> None:
    """It runs in the heartbeat's own thread, which does not wait for itself."""
    beaten = Beaten(clock)
    stopped = threading.Event()

    def stop() -> None:
        beaten.heartbeat.stop()
        stopped.set()

    beaten.when_lost = stop
    beaten.answer = raising(LeaseLost("no", key="k"))
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    run_out(beaten)
    assert stopped.is_set()
    assert len(beaten.losses) == 1


def test_hook_of_the_loss_may_wait_for_a_thread_that_renews(clock: StepClock) -> None:
    """No lock is held while it is called: a worker that renews meanwhile is told of the loss, and both end."""
    beaten = Beaten(clock)
    told: list[BaseException] = []

    def renew() -> None:
        beaten.heartbeat.extend(clock.now().plus(TTL_MS), waiting=0)
        with pytest.raises(LeaseLost) as lost:
            beaten.heartbeat.renew()
        told.append(lost.value)

    def join_worker() -> None:
        worker = threading.Thread(target=renew)
        worker.start()
        worker.join(timeout=PATIENCE_S)
        assert not worker.is_alive()

    beaten.when_lost = join_worker
    clock.advance(TTL_MS)
    assert beaten.heartbeat.loss is not None
    assert told == beaten.losses


def test_manual_renewal_extends(clock: StepClock) -> None:
    """A handler that starves the thread renews itself."""
    beaten = Beaten(clock)
    for _ in range(4):
        clock.advance(20_000)
        beaten.heartbeat.renew()
    assert beaten.heartbeat.held_until == deadline(clock.now(), TTL_MS)
    assert beaten.losses == []


def test_manual_renewal_says_that_the_store_gave_no_answer(clock: StepClock) -> None:
    """``LeaseUnavailable`` goes to the caller, and the lease is held as it was."""
    beaten = Beaten(clock)
    held_until = beaten.heartbeat.held_until
    beaten.answer = raising(LeaseUnavailable("no answer", key="k"))
    with pytest.raises(LeaseUnavailable):
        beaten.heartbeat.renew()
    assert beaten.heartbeat.held_until == held_until
    assert beaten.heartbeat.loss is None


def test_manual_renewal_that_is_refused_is_a_loss(clock: StepClock) -> None:
    """It raises what the store said, the hook is called once, and the next one sends nothing."""
    beaten = Beaten(clock)
    refusal = LeaseLost("no", key="k")
    beaten.answer = raising(refusal)
    for _ in range(3):
        with pytest.raises(LeaseLost) as lost:
            beaten.heartbeat.renew()
        assert lost.value is refusal
    assert beaten.sent.qsize() == 1
    assert beaten.losses == [refusal]


def test_manual_renewal_after_the_deadline_sends_nothing(clock: StepClock) -> None:
    """M13: no renewal after loss; the store might still grant it."""
    beaten = Beaten(clock)
    clock.advance(TTL_MS - 300)
    with pytest.raises(LeaseLost):
        beaten.heartbeat.renew()
    assert beaten.sent.empty()


def test_manual_renewal_does_not_wait_for_the_one_that_hangs(clock: StepClock) -> None:
    """Both go their way; the one that was sent later counts, in whichever order they are answered."""
    # H10: the renew call itself waits longer than the lease lives: aegra #547.
    beaten = Beaten(clock)
    answered = threading.Event()

    def hang(sent: Moment) -> Renewal:
        beaten.answer = beaten.granted
        assert answered.wait(PATIENCE_S)
        return beaten.granted(sent)

    beaten.answer = hang
    beaten.heartbeat.start()
    clock.advance(clock.next_pause_ms())
    beaten.next_beat()
    clock.advance(15_000)
    beaten.heartbeat.renew()
    later = deadline(clock.now(), TTL_MS)
    assert beaten.heartbeat.held_until == later
    answered.set()
    clock.next_pause_ms()
    assert beaten.heartbeat.held_until == later
    clock.advance(EVERY_MS)
    beaten.sent.get(timeout=PATIENCE_S)
    beaten.next_beat()
    assert beaten.heartbeat.loss is None
    beaten.heartbeat.stop()


def test_loss_is_told_once_however_many_notice_it() -> None:
    """The run that looks, one that renews, a refused answer: together, a hundred times, each time one call."""
    # H45: callback, metric, log, once.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            clock = StepClock()
            beaten = Beaten(clock)
            clock.advance(TTL_MS)
            barrier = threading.Barrier(3)
            seen: list[LeaseLost | None] = []

            def look(beaten: Beaten = beaten, barrier: threading.Barrier = barrier, seen: Any = seen) -> None:
                barrier.wait()
                seen.append(beaten.heartbeat.loss)

            def renew(beaten: Beaten = beaten, barrier: threading.Barrier = barrier, seen: Any = seen) -> None:
                barrier.wait()
                with pytest.raises(LeaseLost) as lost:
                    beaten.heartbeat.renew()
                seen.append(lost.value)

            def refused(beaten: Beaten = beaten, barrier: threading.Barrier = barrier, seen: Any = seen) -> None:
                barrier.wait()
                beaten.heartbeat.lose(LeaseLost("refused", key="k"))
                seen.append(beaten.heartbeat.loss)

            with beside(look), beside(renew), beside(refused):
                pass
            assert len(beaten.losses) == 1
            assert seen == beaten.losses * 3
    finally:
        sys.setswitchinterval(interval_s)


def test_renewal_goes_on_in_a_call_that_runs_no_python() -> None:
    """A call into C that lets threads go on, as a driver's query or a digest: the thread has to be there before it.

    That is why it starts with the run. What could start it when the first renewal is due is a signal, whose handler
    Python runs after the call: too late.
    """
    beaten = Beaten(SYSTEM_CLOCK, every_ms=10)
    beats_at_signal: list[int] = []
    before = signal.signal(signal.SIGPROF, lambda *_: beats_at_signal.append(beaten.sent.qsize()))
    beaten.heartbeat.start()
    rounds, began = 100_000, 0
    while not beats_at_signal or beats_at_signal[0] - began < 3:  # one call, as long as it takes on this machine
        rounds *= 2
        assert rounds < 1_000_000_000
        beats_at_signal.clear()
        began = beaten.sent.qsize()
        signal.setitimer(signal.ITIMER_PROF, 0.01)
        hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", rounds)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    beaten.heartbeat.stop()
    assert beaten.heartbeat.loss is None


def test_renewal_goes_on_while_the_run_burns_cpu() -> None:
    """Its own thread: pure Python work that never waits is interrupted for it."""
    # H12: heartbeat starved by the event loop, GIL, freeze: agno #9512, ShedLock #132.
    beaten = Beaten(SYSTEM_CLOCK, every_ms=10)
    beaten.heartbeat.start()
    number = 0
    while beaten.sent.qsize() < 3:
        number += 1
        assert number < 500_000_000
    beaten.heartbeat.stop()
    assert beaten.heartbeat.loss is None


def test_heartbeat_whose_thread_cannot_start_says_so_and_can_be_stopped(clock: StepClock) -> None:
    """The system has no thread left: the run fails with that, and not with what stopping makes of it."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    beaten = Beaten(clock, pacemaker=Pacemaker(clock, thread=NoThread))
    with pytest.raises(RuntimeError, match="can't start"):
        beaten.heartbeat.start()
    beaten.heartbeat.stop()


def test_copy_of_the_process_holds_the_lease_until_the_deadline(clock: StepClock) -> None:
    """R12: it renews nothing, and knows the last millisecond as the run does."""
    heartbeat = Beaten(clock).heartbeat
    clock.advance(TTL_MS - 300 - 1)
    just_before = heartbeat.is_known_held
    clock.advance(1)
    assert (just_before, heartbeat.is_known_held) == (True, False)
