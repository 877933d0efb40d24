"""What a run and its invocation see of control: later wakes, quiet keys, holds, stops, results, notes and limits."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from incumbent import (
    ConfigurationError,
    Duplicate,
    DuplicateMessage,
    Fact,
    Failure,
    Idle,
    Lease,
    LeaseLost,
    LeaseUnavailable,
    Message,
    Policy,
    RetryLater,
    Routed,
    Stop,
    Wake,
    leased,
    leased_function,
)
from incumbent.async_handlers import synchronous
from incumbent.calls import Completed, Outcome, Postponed, Stopped
from incumbent.clock import SYSTEM_CLOCK, deadline
from incumbent.powertools import PowertoolsMetrics, measured
from incumbent.providers.memory import MemoryProvider
from incumbent.runner import Runner
from incumbent.settings import Settings
from tests.unit.stage import (
    ARN,
    PATIENCE_S,
    Facts,
    Little,
    Meddled,
    RecordingWaker,
    StepClock,
    context,
    no_heartbeat_is_left,
    raising,
)
from tests.unit.test_runs import KEY, PAUSE_MS, TTL_MS, Line, arrivals, wakes

QUIET_MS = 1_500
BURST = Settings(deliver="all", debounce_ms=QUIET_MS)
KEPT = Policy(result_bytes=1_024)


class DelayingWaker(RecordingWaker):
    """One that takes wakes with a delay."""

    delays = True


@pytest.fixture
def line() -> Line:
    """A key without a waker."""
    return Line()


@pytest.fixture
def later() -> Line:
    """A key with a waker that can delay."""
    return Line(waker=DelayingWaker())


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert no_heartbeat_is_left()


def delays(line: Line) -> list[int]:
    """When the wakes are asked for."""
    assert all(wake.ticket is None and wake.target == ARN for wake in wakes(line))
    return [wake.after_ms for wake in wakes(line)]


def fail(message: Message, lease: Lease) -> None:
    """Fail."""
    raise ValueError("no")


# --- M14, M15: whoever stores what no other caller would wake for asks for the wake


def test_retry_is_woken_when_its_pause_is_over(later: Line) -> None:
    """M14: and not with the sweeper's next minute."""
    later.leave("m1")
    later.during["m1"] = fail
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert delays(later) == [PAUSE_MS]
    assert wakes(later)[0].hops == 1
    later.clock.advance(PAUSE_MS)
    later.during.clear()
    later.resume(wakes(later)[0])
    assert later.order == ["m1", "m1"]
    assert len(wakes(later)) == 1


def test_wake_that_comes_a_little_early_asks_for_the_next_one_and_ends(later: Line) -> None:
    """M14: what remains of the time."""
    later.store.claim(KEY, "ticket.1", TTL_MS, Message(id="m1", event={}), as_ticket=True, after_ms=60_000)
    later.clock.advance(59_100)
    assert later.resume(Wake(key=KEY, ticket=None, target=ARN, hops=4)) == Idle()
    assert delays(later) == [900]
    assert wakes(later)[0].hops == 5


def test_wake_that_comes_much_too_early_is_not_the_one_that_counts(later: Line) -> None:
    """M14: who has moved the moment has asked for another."""
    later.store.claim(KEY, "ticket.1", TTL_MS, Message(id="m1", event={}), as_ticket=True, after_ms=60_000)
    later.clock.advance(20_000)
    for _ in range(3):
        assert later.resume(Wake(key=KEY, ticket=None, target=ARN)) == Idle()
    assert delays(later) == []


def test_each_failure_is_one_wake_however_busy_the_key_is(later: Line) -> None:
    """M14: runs that find others' messages paused ask for nothing, and early wakes do not multiply."""
    later.settings = Settings(policy=Policy(pauses_ms=(300_000,)))
    later.leave("m1")
    later.during["m1"] = fail
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    for number in range(20):
        later.come(f"n{number}")
        later.resume(wakes(later)[0])
        later.clock.advance(1_000)
    assert delays(later) == [300_000]


def test_messages_that_fail_one_after_the_other_have_a_wake_each(later: Line) -> None:
    """M14: also where the invocation goes on with the next one."""
    later.settings = Settings(policy=Policy(pauses_ms=(1_000, 10_000), max_attempts=2))
    later.leave("m1", "m2")
    later.during |= {"m1": fail, "m2": raising(RetryLater(5_000))}
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert delays(later) == [1_000, 5_000]
    later.clock.advance(5_000)
    later.resume(wakes(later)[0])
    assert (later.dead, later.stored) == (["m1", "m2"], [])
    assert len(wakes(later)) == 2


def test_wake_for_nothing_asks_for_nothing(later: Line) -> None:
    """Nothing is stored."""
    assert later.resume(Wake(key=KEY, ticket=None, target=ARN)) == Idle()
    assert delays(later) == []


def test_message_that_waits_behind_a_pause_asks_only_if_that_is_earlier(later: Line) -> None:
    """M14: one caller asks for each wake."""
    later.settings = Settings(policy=Policy(on_error="block"))
    later.leave("m1")
    later.during["m1"] = fail
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert isinstance(later.come("m2"), Routed)
    assert delays(later) == [PAUSE_MS]


@pytest.mark.parametrize("why", ["cannot delay", "no waker", "no target", "chain too long"])
def test_without_a_waker_that_can_delay_the_sweeper_is_the_clock(why: str) -> None:
    """Nothing is asked for, and nothing is sent at once instead."""
    waker = {"cannot delay": RecordingWaker(), "no waker": None}.get(why, DelayingWaker())
    line = Line(waker=waker)
    line.leave("m1")
    line.during["m1"] = fail
    call = line.call(None, hops=100 if why == "chain too long" else 0)
    if why == "no target":
        call = Line.call(line, None)
        object.__setattr__(call.origin, "target", None)
    line.serve(call)
    assert waker is None or waker.wakes == []
    assert line.stored == ["m1"]


def test_wake_that_cannot_be_asked_for_is_reported_and_nothing_else(later: Line) -> None:
    """The sweeper finds the key."""
    assert later.waker is not None
    later.waker.fails = ConnectionError("no route")
    later.leave("m1")
    later.during["m1"] = fail
    assert later.resume(Wake(key=KEY, ticket=None, target=ARN)) == Completed()
    (fact,) = later.facts.of("wake_failed")
    assert fact.error == "ConnectionError: no route"
    later.clock.advance(PAUSE_MS)
    assert later.orphaned


def test_pause_of_a_second_is_kept_by_the_clock() -> None:
    """M14: within half a second, where something like a queue delays the wake."""
    timers: list[threading.Timer] = []
    at_ms: list[int] = []

    class Later:
        delays = True

        def __call__(self, wake: Wake, /) -> None:
            timers.append(threading.Timer(wake.after_ms / 1_000, served, [wake.to_event(), context(SYSTEM_CLOCK)]))
            timers[-1].start()

    store = MemoryProvider()

    @leased(key="k", keyspace="orders", provider=store, waker=Later())
    def handler(event: Any, context: Any, *, lease: Lease) -> None:
        at_ms.append(SYSTEM_CLOCK.now().mono_ms)
        if lease.attempt == 1:
            raise ValueError("no")

    served: Any = handler
    store.claim("orders/k", "ticket.1", TTL_MS, Message(id="m1", event={}), as_ticket=True)
    served(Wake(key="orders/k", ticket="ticket.1", target=ARN).to_event(), context(SYSTEM_CLOCK))
    (timer,) = timers
    timer.join(PATIENCE_S)
    first, second = at_ms
    assert 1_000 <= second - first < 1_500


# --- M15: debounce


def test_burst_is_one_run_of_a_woken_invocation(later: Line) -> None:
    """M15: each invocation returns at once; two wakes suffice for a burst of 50."""
    later.settings = BURST
    seen: list[list[str]] = []
    ids = [f"m{number:02}" for number in range(50)]
    for each in ids:
        assert isinstance(later.come(each), Routed)
        later.clock.advance(20)
    assert delays(later) == [QUIET_MS]
    later.clock.advance(QUIET_MS - 50 * 20)

    def work(message: Message, lease: Lease) -> None:
        seen.append([each.id for each in lease.messages])

    assert later.serve(later.call(None, hops=1), work) == Idle()
    assert delays(later) == [QUIET_MS, 49 * 20]
    later.clock.advance(49 * 20)
    assert later.serve(later.call(None, hops=2), work) == Completed()
    assert seen == [ids]
    assert len(wakes(later)) == 2


def test_burst_has_an_end(later: Line) -> None:
    """M15: four quiet times after its first message, whatever comes."""
    later.settings = BURST
    for number in range(6):
        assert isinstance(later.come(f"m{number}"), Routed)
        later.clock.advance(999)
    assert later.resume(wakes(later)[0]) == Idle()
    assert delays(later) == [QUIET_MS, 6]
    later.clock.advance(6)
    assert later.resume(wakes(later)[0]) == Completed()


def test_owner_that_runs_is_not_debounced(later: Line) -> None:
    """M15: what comes meanwhile is for its take, or for the next run at once."""
    later.settings = BURST
    later.come("m1")
    later.clock.advance(QUIET_MS)
    later.during["m1"] = arrivals(later, "m2")
    later.resume(wakes(later)[0])
    assert later.order == ["m1", "m2"]


class Passing(StepClock):
    """A clock whose pauses pass in steps of 100 ms, before each of which something may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.each: Callable[[], object] = lambda: None

    def sleep_ms(self, ms: int) -> None:
        """Pass the time in steps."""
        while ms > 0:
            self.each()
            step_ms = min(ms, 100)
            self.advance(step_ms)
            ms -= step_ms


def in_place(line: Line, *arriving: tuple[int, str]) -> tuple[list[list[str]], list[int]]:
    """Serve a first message; others come at their time since. Return what the runs were started for, and when."""
    clock = Passing()
    line.clock, line.store = clock, Meddled(MemoryProvider(clock=clock))
    seen: list[list[str]] = []
    at_ms: list[int] = []
    began = line.clock.now()
    coming = list(arriving)

    def each() -> None:
        while coming and coming[0][0] <= began.until(clock.now()):
            assert isinstance(line.come(coming.pop(0)[1]), Routed)

    def work(message: Message, lease: Lease) -> None:
        assert lease.stop is None
        seen.append([each.id for each in lease.messages])
        at_ms.append(began.until(clock.now()))

    clock.each = each
    line.serve(line.call("m1"), work)
    return seen, at_ms


def test_first_invocation_waits_in_place_without_a_waker_that_can_delay(line: Line) -> None:
    """M15: until nothing came for a while; then one run has all."""
    line.settings = BURST
    runs = in_place(line, (200, "m2"), (1_600, "m3"), (3_000, "m4"))
    assert runs == ([["m1", "m2", "m3", "m4"]], [3_000 + QUIET_MS])
    assert line.stored == []


def test_burst_in_place_has_an_end(line: Line) -> None:
    """M15: what comes later is the next run's."""
    line.settings = BURST
    many = [(at_ms, f"n{at_ms}") for at_ms in range(500, 12_000, 1_000)]
    (first, *_), (at_ms, *_) = in_place(line, *many)
    assert first == ["m1", "n500", "n1500", "n2500", "n3500", "n4500", "n5500"]
    assert at_ms == 4 * QUIET_MS


def test_waiting_in_place_leaves_time_for_the_run(line: Line) -> None:
    """An invocation of 4 s ends its burst a second before."""
    line.settings = BURST
    began = line.clock.now()
    coming = iter(range(100))
    line.clock.while_sleeping = lambda: line.come(f"n{next(coming)}")
    at_ms: list[int] = []

    def work(message: Message, lease: Lease) -> None:
        line.clock.while_sleeping = None
        at_ms.append(began.until(line.clock.now()))

    line.serve(line.call("m1", time_left_ms=4_000), work)
    assert at_ms[0] == 3_000


def test_waiting_in_place_renews(line: Line) -> None:
    """However long the pause lasts."""
    line.settings = Settings(deliver="all", debounce_ms=5_000)

    def sleeps() -> None:
        line.clock.while_sleeping = None
        for _ in range(20):
            line.clock.advance(line.clock.next_pause_ms())
            assert line.owner is not None
        line.clock.next_pause_ms()

    line.clock.while_sleeping = sleeps
    assert isinstance(line.come("m1", time_left_ms=None), Completed)
    assert line.store.calls.count("beat") >= 20


def test_waiting_in_place_is_not_what_the_limit_of_a_run_is_for(line: Line) -> None:
    """M20: the run has not begun, so it has its whole time when it does."""
    line.settings = Settings(deliver="all", debounce_ms=5_000, max_run_ms=30_000)

    def sleeps() -> None:
        line.clock.while_sleeping = None
        for _ in range(20):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()

    line.clock.while_sleeping = sleeps
    assert isinstance(line.come("m1", time_left_ms=None), Completed)
    assert line.store.calls.count("beat") >= 20


def test_waiting_in_place_that_finds_the_lease_lost_starts_nothing(line: Line) -> None:
    """R3: told once, raised, not run."""
    line.settings = BURST
    line.store.before["take"] = line.steal
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert line.ran == []
    assert len(line.facts.of("lost")) == 1


def test_waiting_in_place_that_gets_no_answer_runs_what_it_has(line: Line) -> None:
    """The others run next."""
    line.settings = BURST
    line.store.before["take"] = raising(LeaseUnavailable("down", key=KEY))
    assert line.come("m1") == Completed(result="result of m1")
    assert len(line.facts.of("store_error")) == 1


def test_what_failed_before_does_not_wait_for_quiet(line: Line) -> None:
    """M6: a message that is tried again has waited."""
    line.settings = BURST
    line.leave("m0")
    line.during["m0"] = fail
    line.resume(Wake(key=KEY, ticket=None, target=ARN))
    line.clock.advance(PAUSE_MS)
    began = line.clock.now()
    line.during.clear()
    line.come("m0")
    assert began == line.clock.now()


# --- M15: hold, gap


def test_handler_holds_its_key_while_an_upstream_cools_down(later: Line) -> None:
    """M15: no other message runs meanwhile, and the key is woken when it is over."""
    later.leave("m1", "m2")
    later.during["m1"] = raising(RetryLater(60_000, "too many requests", scope="key"))
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert later.order == ["m1"]
    assert later.owner is None
    assert delays(later) == [60_000]
    shown = later.store.show(KEY)
    assert shown.held_reason == "RetryLater: too many requests: again in 60000 ms"
    assert isinstance(later.come("m3"), Routed)
    assert len(wakes(later)) == 1
    later.clock.advance(60_000)
    later.during.clear()
    later.resume(wakes(later)[0])
    assert later.order == ["m1", "m1", "m2", "m3"]


def test_own_message_of_a_caller_that_waits_holds_the_key_too(line: Line) -> None:
    """Its source has the error; what comes next is stored."""
    line.during["m1"] = raising(RetryLater(60_000, scope="key"))
    with pytest.raises(RetryLater):
        line.come("m1", synchronous=True)
    assert isinstance(line.come("m2"), Routed)
    assert line.order == ["m1"]


def test_pause_of_one_message_lets_others_run(line: Line) -> None:
    """The default scope."""
    line.leave("m1", "m2")
    line.during["m1"] = raising(RetryLater(60_000))
    line.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert line.order == ["m1", "m2"]


class Own(RetryLater):
    """A subclass that calls no base class."""

    def __init__(self) -> None:
        """Set nothing."""


class Named(Exception):
    """An error of the program's own, with an attribute of that name."""

    scope = "key"


@pytest.mark.parametrize("error", [Own, Named])
def test_other_error_holds_no_key(line: Line, error: type[Exception]) -> None:
    """M15: only a RetryLater that names the key."""
    line.during["m1"] = raising(error())
    line.leave("m1")
    line.come("m2")
    assert line.store.show(KEY).held_until_ms is None


def test_scope_of_a_pause_is_checked() -> None:
    """A word that nobody knows would hold nothing."""
    with pytest.raises(ConfigurationError, match="scope='all'"):
        RetryLater(1, scope="all")  # type: ignore[arg-type]


def test_invocation_whose_message_waits_behind_a_hold_is_answered(line: Line) -> None:
    """It is promised in the settle that holds."""
    line.leave("m1")
    line.during["m1"] = raising(RetryLater(60_000, scope="key"))
    assert line.come("m2") == Postponed(reason="queued")
    assert line.stored == ["m1", "m2"]


def test_runs_begin_with_a_gap(later: Line) -> None:
    """M15: the loop ends, and the wake comes when the gap is over; a long run needs none."""
    later.settings = Settings(min_gap_ms=10_000)
    later.leave("m1", "m2", "m3")
    later.during["m1"] = lambda *_: later.clock.advance(4_000)
    later.during["m2"] = lambda *_: later.clock.advance(10_000)
    later.resume(Wake(key=KEY, ticket=None, target=ARN))
    assert (later.order, delays(later)) == (["m1"], [6_000])
    assert later.store.show(KEY).held_reason == "two runs begin at least 10,000 ms apart (min_gap_ms)"
    later.clock.advance(6_000)
    later.resume(wakes(later)[0])
    assert later.order == ["m1", "m2", "m3"]


def test_gap_is_kept_when_nothing_waits(later: Line) -> None:
    """M15: the next message waits for it, and asks for the wake."""
    later.settings = Settings(min_gap_ms=10_000)
    later.come("m1")
    assert delays(later) == []
    later.clock.advance(1_000)
    assert isinstance(later.come("m2"), Routed)
    assert delays(later) == [9_000]


@pytest.mark.parametrize("synchronous", [False, True])
def test_facts_are_told_before_a_wake_is_sent(later: Line, *, synchronous: bool) -> None:
    """The wake may last until the invocation is cut off: for a later moment, and to hand the key over."""

    class Collecting(Facts):
        unsaid = 0

        def collect(self) -> Any:
            return self

        def __call__(self, fact: Any, /) -> None:
            super().__call__(fact)
            self.unsaid += 1

        def flush(self) -> None:
            self.unsaid = 0

    later.facts = facts = Collecting()
    assert later.waker is not None
    unsaid: list[int] = []
    later.waker.meanwhile = lambda _: unsaid.append(facts.unsaid)
    if synchronous:
        later.during["m1"] = lambda *_: later.come("m2")
        later.come("m1", synchronous=True)
    else:
        later.settings = Settings(min_gap_ms=10_000)
        later.come("m1")
        later.come("m2")
    assert unsaid == [0]
    assert len(facts.told) > 1


def test_a_run_costs_two_requests_still(line: Line) -> None:
    """M10: hold, results and stop travel along."""
    line.settings = Settings(min_gap_ms=10_000, policy=KEPT, when_busy="interrupt")
    line.serve(line.call("m1"), lambda *_: "done")
    assert line.store.calls == ["claim", "settle"]


def test_requests_of_a_run_say_whose_they_are_and_until_when_an_answer_counts(line: Line) -> None:
    """R8, R12: the tenure's fence, and the lease's end, after which no try begins; a settle may come later."""
    fences: list[int | None] = []

    def during(_: Message, lease: Lease) -> None:
        fences.append(lease.fence)
        line.clock.advance(1_000)
        lease.renew()
        line.clock.advance(1_000)
        lease.take()

    line.during["m1"] = during
    begun = line.clock.now()
    line.come("m1")
    named = dict(zip(line.store.calls, line.store.named, strict=True))
    assert [named[name]["fence"] for name in ("beat", "take", "settle")] == fences * 3
    assert [named[name]["give_up_at"] for name in ("beat", "take")] == [
        deadline(begun.plus(after_ms), TTL_MS) for after_ms in (0, 1_000)
    ]


# --- M16: stop


def test_stop_is_seen_with_the_next_renewal(line: Line) -> None:
    """M16: with its reason; below a loss, above the deadline; told once."""
    seen: list[tuple[Stop | None, str | None]] = []

    def during(message: Message, lease: Lease) -> str:
        seen.append((lease.stop, lease.stop_reason))
        line.store.stop(KEY, reason="the user says so")
        seen.append((lease.stop, lease.stop_reason))
        lease.renew()
        seen.append((lease.stop, lease.stop_reason))
        lease.renew()
        line.clock.advance(118_000)
        seen.append((lease.stop, lease.stop_reason))
        return "partly"

    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1")
    why = "the user says so"
    assert seen == [(None, None), (None, None), (Stop.ASKED, why), (Stop.LOST, why)]
    (fact,) = line.facts.of("stop_asked")
    assert fact.error == why


def test_stop_goes_before_the_deadline(line: Line) -> None:
    """M16: a run that was asked is asked for good."""

    def during(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        lease.renew()
        line.clock.advance(16_000)
        assert (lease.stop, lease.stop_reason) == (Stop.ASKED, "")

    line.during["m1"] = during
    line.come("m1", time_left_ms=20_000)


def test_take_sees_a_stop(line: Line) -> None:
    """M16: every answer to the owner carries it."""

    def during(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        assert lease.take() == []
        assert lease.stop is Stop.ASKED

    line.during["m1"] = during
    line.come("m1")


def test_heartbeat_sees_a_stop(line: Line) -> None:
    """M16: without any call of the handler's."""

    def during(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        assert lease.stop is Stop.ASKED

    line.during["m1"] = during
    line.come("m1")


WATCHED = Settings(watch_ms=1_000)


def test_watch_sees_a_stop_between_renewals(line: Line) -> None:
    """M16: within ``watch_ms`` and a request; afterwards it looks no more."""
    line.settings = WATCHED

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(1_000)
        until(lambda: line.store.calls.count("watch") == 1)
        assert lease.stop is None
        line.store.stop(KEY, reason="enough")
        until(lambda: passed(line) and lease.stop is not None)
        seen.append((lease.stop, lease.stop_reason))
        line.clock.advance(3_000)

    seen: list[Any] = []
    line.during["m1"] = during
    line.come("m1")
    assert seen == [(Stop.ASKED, "enough")]
    assert [line.store.calls.count(each) for each in ("watch", "beat")] == [2, 0]


def until(condition: Callable[[], object]) -> None:
    """Wait until other threads have made it so."""
    ends = SYSTEM_CLOCK.now().plus(int(PATIENCE_S * 1_000))
    while not condition():
        assert SYSTEM_CLOCK.now().until(ends) > 0, "it does not come"
        SYSTEM_CLOCK.sleep_ms(1)


def passed(line: Line) -> bool:
    """Let a little time pass."""
    line.clock.advance(50)
    return True


def test_run_is_not_watched_unless_it_wants_to_be(line: Line) -> None:
    """M16: those who do not use it pay nothing."""

    def during(message: Message, lease: Lease) -> None:
        for _ in range(3):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()

    line.during["m1"] = during
    line.come("m1")
    assert [line.store.calls.count(each) for each in ("watch", "beat")] == [0, 3]


def test_watch_notices_a_loss(line: Line) -> None:
    """R3: as a renewal would."""
    line.settings = WATCHED

    def during(message: Message, lease: Lease) -> None:
        line.steal()
        line.clock.advance(1_000)
        until(lambda: lease.stop is Stop.LOST)
        seen.append(line.store.calls.count("settle"))

    seen: list[int] = []
    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert seen == [0]


def test_look_that_gets_no_answer_is_repeated(line: Line) -> None:
    """M16: it is no loss."""
    line.settings = WATCHED

    def during(message: Message, lease: Lease) -> None:
        line.store.before["watch"] = raising(LeaseUnavailable("down", key=KEY))
        line.store.stop(KEY)
        line.clock.advance(1_000)
        until(lambda: line.facts.of("store_error"))
        del line.store.before["watch"]
        assert lease.stop is None
        until(lambda: passed(line) and lease.stop is not None)
        seen.append(lease.stop)

    seen: list[Stop | None] = []
    line.during["m1"] = during
    line.come("m1")
    assert seen == [Stop.ASKED]
    assert len(line.facts.of("store_error")) == 1


def test_slow_look_delays_no_renewal(line: Line) -> None:
    """M16: it beats beside the heartbeat."""
    line.settings = WATCHED
    answered = threading.Event()

    def during(message: Message, lease: Lease) -> None:
        line.store.before["watch"] = lambda: answered.wait(PATIENCE_S)
        line.clock.advance(1_000)
        until(lambda: "watch" in line.store.calls)
        line.clock.advance(9_000)
        until(lambda: "beat" in line.store.calls)
        beats.append(line.store.calls.count("watch"))
        answered.set()

    beats: list[int] = []
    line.during["m1"] = during
    line.come("m1")
    assert beats == [1]


def test_provider_without_control_is_renewed_only(line: Line) -> None:
    """M16: each renewal tells."""
    mailbox = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease", "find")
    line.store = Meddled(line.store, (*mailbox, "claim", "settle", "beat", "take", "peek", "orphans"))
    line.settings = WATCHED

    def during(message: Message, lease: Lease) -> None:
        assert line.clock.next_pause_ms() > 1_000

    line.during["m1"] = during
    line.come("m1")


def test_short_invocation_is_watched_too(line: Line) -> None:
    """It ends before its first renewal."""
    line.settings = WATCHED

    def during(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        until(lambda: passed(line) and lease.stop is not None)
        seen.append(lease.stop)

    seen: list[Stop | None] = []
    line.during["m1"] = during
    line.come("m1", time_left_ms=8_000)
    assert seen == [Stop.ASKED]


def test_follow_up_does_not_inherit_a_stop(line: Line) -> None:
    """M16: its tenure is another."""
    stops: list[Stop | None] = []

    def first(message: Message, lease: Lease) -> None:
        arrivals(line, "m2")(message, lease)
        line.store.stop(KEY)
        lease.renew()

    def second(message: Message, lease: Lease) -> None:
        lease.renew()
        stops.append(lease.stop)

    line.during |= {"m1": first, "m2": second}
    line.come("m1")
    assert stops == [None]


def test_interrupting_message_marks_the_run_and_goes_next(line: Line) -> None:
    """M16: in the step that stores it."""
    line.settings = Settings(when_busy="interrupt")

    def during(message: Message, lease: Lease) -> str:
        assert isinstance(line.come("m2"), Routed)
        lease.renew()
        assert lease.stop is Stop.ASKED
        assert lease.stop_reason
        return "partly"

    line.during["m1"] = during
    assert line.come("m1") == Completed(result="partly")
    assert line.order == ["m1", "m2"]


def serve(line: Line, handler: Callable[..., Any], message_id: str = "m1", **options: Any) -> Outcome:
    """Run an async handler that a stop cancels."""
    run = synchronous(handler, cancel_on_stop=True)
    return line.serve(line.call(message_id, **options), lambda message, lease: run(lease, message, lease))


def test_stop_cancels_a_handler_that_wants_it(line: Line) -> None:
    """M16: at its next await; its message leaves as stopped."""
    seen: list[str] = []

    async def handler(message: Message, lease: Lease) -> None:
        line.store.stop(KEY, reason="enough")
        lease.renew()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    assert serve(line, handler) == Stopped()
    assert seen == ["cancelled"]
    assert line.store.find(KEY, "m1").state == "stopped"
    (fact,) = line.facts.of("run_ended")
    assert (fact.outcome, fact.error) == ("stopped", None)
    assert line.stored == []


def test_stop_that_another_thread_sees_cancels_too(line: Line) -> None:
    """M16: the heartbeat's."""

    async def handler(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        line.clock.advance(line.clock.next_pause_ms())
        await asyncio.sleep(PATIENCE_S)

    assert serve(line, handler) == Stopped()


def test_handler_that_catches_the_cancellation_has_handled_its_message(line: Line) -> None:
    """M16: what it returns is its result."""

    async def handler(message: Message, lease: Lease) -> str:
        line.store.stop(KEY)
        lease.renew()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            return "partly"
        return "all"

    assert serve(line, handler) == Completed(result="partly")
    assert line.store.find(KEY, "m1").state == "handled"


def test_stop_before_the_first_await_cancels_at_that(line: Line) -> None:
    """M16: also one that was seen before the handler began."""
    line.settings = BURST
    line.clock.while_sleeping = lambda: line.store.stop(KEY)

    async def handler(message: Message, lease: Lease) -> None:
        await asyncio.sleep(PATIENCE_S)

    assert serve(line, handler) == Stopped()
    assert len(line.facts.of("stop_asked")) == 1


def test_cancellation_of_another_kind_stays_what_it_is(line: Line) -> None:
    """A handler's own timeout is a failure."""

    async def handler(message: Message, lease: Lease) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(Exception, match="cancelled by one of its own tasks"):
        serve(line, handler)


def test_loss_goes_before_a_stop(line: Line) -> None:
    """R3: nothing is settled."""

    async def handler(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        lease.renew()
        line.steal()
        with pytest.raises(LeaseLost):
            lease.renew()
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(LeaseLost):
        serve(line, handler)
    assert line.stored == ["m1"]


def test_stopped_messages_of_others_leave_as_stopped_too(line: Line) -> None:
    """M16: all that the run held."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")

    async def handler(message: Message, lease: Lease) -> None:
        line.store.stop(KEY)
        lease.renew()
        await asyncio.sleep(PATIENCE_S)

    assert serve(line, handler, "m3") == Stopped()
    assert [line.store.find(KEY, each).state for each in ("m1", "m2", "m3")] == ["stopped"] * 3


def test_message_that_comes_with_the_stop_is_not_stopped(line: Line) -> None:
    """M16: the stop was for what ran; a message that the take of a cancelled run brought with the mark runs next."""

    async def handler(message: Message, lease: Lease) -> str:
        if message.id == "m1":
            assert isinstance(line.come("m2"), Routed)
            line.store.stop(KEY, reason="enough")
            assert [each.id for each in lease.take()] == ["m2"]
            await asyncio.sleep(PATIENCE_S)
        return "done"

    assert serve(line, handler) == Stopped()
    assert [line.store.find(KEY, each).state for each in ("m1", "m2")] == ["stopped", "handled"]
    assert [each.message_ids for each in line.facts.of("run_ended")] == [("m1",), ("m2",)]


def test_message_that_interrupts_is_not_stopped_by_it(line: Line) -> None:
    """M16: though the run that it interrupts takes it."""
    line.settings = Settings(when_busy="interrupt")

    async def handler(message: Message, lease: Lease) -> str:
        if message.id == "m1":
            assert isinstance(line.come("m2"), Routed)
            lease.take()
            await asyncio.sleep(PATIENCE_S)
        return "done"

    assert serve(line, handler) == Stopped()
    assert [line.store.find(KEY, each).state for each in ("m1", "m2")] == ["stopped", "handled"]


def test_stop_that_the_first_take_brings_is_seen_from_the_start(line: Line) -> None:
    """M16: by what the run was granted with; what the same answer brings is not part of it, and runs next."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")
    seen: list[tuple[list[str], Stop | None, str | None]] = []

    def stop() -> None:
        if not seen:
            line.store.stop(KEY, reason="enough")

    def work(message: Message, lease: Lease) -> None:
        seen.append(([each.id for each in lease.messages], lease.stop, lease.stop_reason))

    line.store.before["take"] = stop
    line.serve(line.call("m3"), work)
    assert seen == [(["m1"], Stop.ASKED, "enough"), (["m2", "m3"], None, None)]
    assert len(line.facts.of("stop_asked")) == 1
    assert line.stored == []


def test_stop_during_the_wait_in_place_stops_only_what_had_come(line: Line) -> None:
    """M16: a message that was sent after the stop runs next."""
    clock, stopped = Passing(), False
    line.clock, line.store, line.settings = clock, Meddled(MemoryProvider(clock=clock)), BURST
    began = clock.now()

    def each() -> None:
        nonlocal stopped
        if not stopped and began.until(clock.now()) >= 200:
            stopped = True
            line.store.stop(KEY, reason="enough")
            assert isinstance(line.come("m2"), Routed)

    async def handler(message: Message, lease: Lease) -> str:
        await asyncio.sleep(0)
        return "done"

    clock.each = each
    assert serve(line, handler) == Stopped()
    assert [line.store.find(KEY, each).state for each in ("m1", "m2")] == ["stopped", "handled"]


def test_burst_in_place_is_not_interrupted_by_its_own_messages(line: Line) -> None:
    """M15, M16: nothing runs yet, so one run has all of them, and sees no mark."""
    line.settings = Settings(deliver="all", debounce_ms=QUIET_MS, when_busy="interrupt")
    runs = in_place(line, (200, "m2"), (1_600, "m3"))
    assert runs == ([["m1", "m2", "m3"]], [1_600 + QUIET_MS])
    assert line.stored == []


def test_only_async_handlers_can_be_cancelled() -> None:
    """At decoration."""
    with pytest.raises(ConfigurationError, match="async def"):

        @leased(key="k", cancel_on_stop=True)
        def handler(event: Any, context: Any) -> None:
            """Do nothing."""

    with pytest.raises(ConfigurationError, match="async def"):

        @leased_function(key="k", cancel_on_stop=True)
        def function(event: Any) -> None:
            """Do nothing."""


def test_http_caller_of_a_stopped_run_is_answered_success() -> None:
    """M16: with the state."""
    clock = StepClock()
    store = MemoryProvider(clock=clock)

    @leased(key="k", keyspace="orders", provider=store, clock=clock, waker=None, cancel_on_stop=True)
    async def handler(event: Any, context: Any, *, lease: Lease) -> None:
        store.stop("orders/k")
        lease.renew()
        await asyncio.sleep(PATIENCE_S)

    request = {"version": "2.0", "requestContext": {"requestId": "r-1", "http": {"method": "POST"}}, "body": "{}"}
    served: Any = handler
    answer = served(request, context(clock))
    assert answer["statusCode"] == 200
    assert answer["body"] == '{"status": "stopped", "key": "k", "message_id": "r-1"}'
    assert served({"any": 1}, context(clock, request_id="r-2")) == {
        "status": "stopped",
        "key": "k",
        "message_id": "r-2",
    }


def test_hook_answers_for_a_stopped_run() -> None:
    """It knows that the message is stopped."""
    clock = StepClock()
    store = MemoryProvider(clock=clock)

    @leased(
        key="k",
        keyspace="orders",
        provider=store,
        clock=clock,
        cancel_on_stop=True,
        on_busy=lambda *_, outcome: outcome,
    )
    async def handler(event: Any, context: Any, *, lease: Lease) -> None:
        store.stop("orders/k")
        lease.renew()
        await asyncio.sleep(PATIENCE_S)

    served: Any = handler
    assert served({}, context(clock)) == Duplicate(state="stopped")


# --- M17: results


def test_results_are_kept_when_the_policy_says_so(line: Line) -> None:
    """M17: of each message its run's."""
    line.settings = Settings(deliver="all", policy=KEPT)
    line.leave("m1", "m2")
    line.serve(line.call("m3"), lambda *_: {"total": 3})
    for each in ("m1", "m2", "m3"):
        status = line.store.find(KEY, each, policy=KEPT)
        assert (status.state, status.result, status.result_is) == ("handled", {"total": 3}, "kept")


def test_results_are_not_kept_otherwise(line: Line) -> None:
    """M17: they cost nothing."""
    line.come("m1")
    assert line.store.find(KEY, "m1").result_is == "none"


def test_result_that_is_not_json_is_left_out(line: Line) -> None:
    """M17: its run stands; a decimal is the number that Lambda sends."""
    line.settings = Settings(policy=KEPT)
    for message_id, result, kept in (
        ("m1", object(), None),
        ("m2", float("nan"), None),
        ("m3", Decimal("1.5"), 1.5),
        ("m4", (1, 2), [1, 2]),
        ("m5", "x" * 2_000, None),
    ):
        line.serve(line.call(message_id), lambda *_, result=result: result)
        status = line.store.find(KEY, message_id, policy=KEPT)
        assert (status.state, status.result) == ("handled", kept)
    assert line.store.find(KEY, "m5", policy=KEPT).result_is == "too large"


WAIT = Settings(when_busy="wait", wait_ms=20_000, policy=KEPT)


def test_caller_is_answered_the_result_of_its_own_message(line: Line) -> None:
    """M17: ten at once, each its own, as if its own invocation had run it."""
    line.settings = WAIT
    line.clock = StepClock()
    store = MemoryProvider()
    handler_began = threading.Event()
    go_on = threading.Event()

    @leased(
        key="order-1",
        message_id_jmespath="id",
        keyspace="orders",
        provider=store,
        waker=None,
        when_busy="wait",
        wait_ms=10_000,
        policy=KEPT,
    )
    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        handler_began.set()
        assert go_on.wait(PATIENCE_S)
        return {"statusCode": 200, "body": f"total of {event['id']}"}

    def request(number: int) -> Any:
        return handler({"id": f"m{number}", "version": "2.0", "requestContext": {"requestId": "r", "http": {}}}, None)

    with ThreadPoolExecutor(10) as callers:
        answers = [callers.submit(request, number) for number in range(10)]
        assert handler_began.wait(PATIENCE_S)
        go_on.set()
        bodies = [answer.result(PATIENCE_S)["body"] for answer in answers]
    assert bodies == [f"total of m{number}" for number in range(10)]


def waited(line: Line, message_id: str, meanwhile: Callable[[], object]) -> Outcome:
    """Let a message come behind an owner; in its first pause something happens."""
    line.settings = WAIT

    def sleeps() -> None:
        line.clock.while_sleeping = None
        meanwhile()

    line.clock.while_sleeping = sleeps
    outcome = line.come(message_id)
    line.clock.while_sleeping = None
    return outcome


def own(line: Line, *ids: str) -> None:
    """Let somebody own the key."""
    line.store.acquire_lease(KEY, "somebody", TTL_MS)


def test_result_that_comes_late_is_not_waited_for(line: Line) -> None:
    """M17: after ``wait_ms`` the answer is what it would have been, and the message is safe."""
    own(line)
    began = line.clock.now()
    assert isinstance(waited(line, "m1", lambda: None), Routed)
    assert began.until(line.clock.now()) == 20_000
    assert line.stored == ["m1"]


def test_message_that_runs_is_waited_for(line: Line) -> None:
    """M17: it has no result yet, whoever has it."""
    own(line)
    began = line.clock.now()
    outcome = waited(line, "m1", lambda: line.store.take(KEY, "somebody", TTL_MS))
    assert isinstance(outcome, Routed)
    assert began.until(line.clock.now()) == 20_000


def test_waiting_ends_with_the_invocation(line: Line) -> None:
    """In time to answer."""
    own(line)
    line.settings = WAIT
    began = line.clock.now()
    assert isinstance(line.come("m1", time_left_ms=8_000), Routed)
    assert began.until(line.clock.now()) == 6_000


@pytest.mark.parametrize("state", ["stopped", "dead", "cancelled"])
def test_message_that_leaves_without_a_result_is_answered_its_state(line: Line, state: str) -> None:
    """M17: at once."""
    own(line)

    def leave() -> None:
        if state == "cancelled":
            line.store.cancel(KEY, "m1")
            return
        line.store.take(KEY, "somebody", TTL_MS)
        line.store.settle(
            KEY,
            "somebody",
            ttl_ms=TTL_MS,
            stopped=["m1"] if state == "stopped" else (),
            failed=[Failure(id="m1", error="no", final=True)] if state == "dead" else (),
        )

    assert waited(line, "m1", leave) == Duplicate(state=state)  # type: ignore[arg-type]


def test_duplicate_of_a_handled_message_is_answered_its_result(line: Line) -> None:
    """M17: at once, by one more request."""
    line.settings = WAIT
    line.serve(line.call("m1"), lambda *_: "result of m1")
    began = line.clock.now()
    assert line.come("m1") == Completed(result="result of m1")
    assert began == line.clock.now()
    assert line.store.calls == ["claim", "settle", "claim", "find"]


def test_result_too_large_to_keep_is_answered_as_handled(line: Line) -> None:
    """M17: the run stands."""
    line.settings = Settings(when_busy="wait", wait_ms=1_000, policy=Policy(result_bytes=4))
    line.come("m1")
    assert line.come("m1") == Duplicate(state="handled")


def test_store_that_does_not_answer_is_asked_again(line: Line) -> None:
    """What is stored is safe."""
    own(line)

    def once() -> None:
        del line.store.before["find"]
        raise LeaseUnavailable("down", key=KEY)

    line.store.before["find"] = once

    def run() -> None:
        line.store.take(KEY, "somebody", TTL_MS)
        line.store.settle(KEY, "somebody", ttl_ms=TTL_MS, handled=["m1"], results={"m1": 7}, policy=KEPT)

    assert waited(line, "m1", run) == Completed(result=7)
    assert len(line.facts.of("store_error")) == 1


def test_message_behind_older_ones_is_waited_for_too() -> None:
    """M17: the older ones are handed over first."""
    line = Line(waker=RecordingWaker(), settings=WAIT)
    line.leave("m0")

    def sleeps() -> None:
        line.clock.while_sleeping = None
        line.resume(wakes(line)[0])

    line.clock.while_sleeping = sleeps
    assert line.come("m1", synchronous=True) == Completed(result="result of m1")
    assert line.order == ["m0", "m1"]


def test_waiting_needs_a_store_that_keeps_results() -> None:
    """At decoration, or at the first event where only the provider lacks it."""
    with pytest.raises(ConfigurationError, match="result_bytes"):
        leased(key="k", when_busy="wait", wait_ms=1_000)
    mailbox = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
    only = (*mailbox, "claim", "settle", "beat", "take", "peek", "orphans")

    @leased(key="k", when_busy="wait", wait_ms=1_000, policy=KEPT, provider=Meddled(MemoryProvider(), only))
    def handler(event: Any, context: Any) -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError, match="find"):
        handler({}, None)


@pytest.mark.parametrize(
    "option", [{"min_gap_ms": 1}, {"watch_ms": 1}, {"deliver": "all"}, {"when_busy": "interrupt"}], ids=repr
)
def test_provider_that_only_leases_has_no_control(option: dict[str, Any]) -> None:
    """The error names the option."""

    @leased(**{"key": "k", "when_busy": "skip", "provider": Little(MemoryProvider()), **option})
    def handler(event: Any, context: Any) -> None:
        """Do nothing."""

    with pytest.raises(ConfigurationError, match=next(iter(option))):
        handler({}, None)


# --- M18: notes


def test_note_goes_with_the_next_renewal(line: Line) -> None:
    """M18: no request more; the last one counts, as it was when it was noted."""

    def during(message: Message, lease: Lease) -> None:
        progress = {"step": 1}
        lease.note({"step": 0})
        lease.note(progress)
        progress["step"] = 2
        assert line.store.show(KEY).note is None
        lease.renew()
        assert line.store.show(KEY).note == {"step": 1}
        assert lease.unsent_note is None
        lease.renew()
        assert line.store.calls.count("beat") == 2
        assert line.store.show(KEY).note == {"step": 1}

    line.during["m1"] = during
    line.come("m1")
    assert line.store.show(KEY).note is None


def test_note_that_was_not_sent_is_kept(line: Line) -> None:
    """M18: until a renewal is answered."""

    def during(message: Message, lease: Lease) -> None:
        lease.note("half")
        line.store.before["beat"] = raising(LeaseUnavailable("down", key=KEY))
        with pytest.raises(LeaseUnavailable):
            lease.renew()
        del line.store.before["beat"]
        lease.renew()
        assert line.store.show(KEY).note == "half"

    line.during["m1"] = during
    line.come("m1")


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 1_023, {1: 2}], ids=lambda value: str(type(value)))
def test_note_is_checked_at_once(line: Line, value: Any) -> None:
    """M18: JSON of at most 1,024 bytes."""

    def during(message: Message, lease: Lease) -> None:
        lease.note("x" * 1_022)
        with pytest.raises(ConfigurationError, match="note"):
            lease.note(value)

    line.during["m1"] = during
    line.come("m1")


def test_note_needs_a_mailbox() -> None:
    """A provider that only leases has nowhere to put it."""
    line = Line(settings=Settings(when_busy="skip"))
    line.store = Little(line.store)

    def work(message: Message, lease: Lease) -> None:
        with pytest.raises(ConfigurationError, match="stores no messages"):
            lease.note("half")

    line.serve(line.call("m1"), work)


# --- M20: the run limit


def test_run_that_takes_too_long_is_not_renewed(line: Line) -> None:
    """M20: it says LOST when its lease has ended, and the fact says why."""
    line.settings = Settings(max_run_ms=TTL_MS)
    limit = line.clock.now().plus(TTL_MS)

    def during(message: Message, lease: Lease) -> None:
        while line.clock.now().until(limit) > 0:
            line.clock.advance(line.clock.next_pause_ms())
        beats = line.store.calls.count("beat")
        lease.renew()
        assert lease.take() == []
        assert line.store.calls.count("beat") == beats
        assert lease.stop is None
        line.clock.advance(TTL_MS)
        assert lease.stop is Stop.LOST

    line.during["m1"] = during
    with pytest.raises(LeaseLost, match=r"longer than max_run_ms \(30,000\)"):
        line.come("m1", time_left_ms=None)
    (fact,) = line.facts.of("lost")
    assert "max_run_ms" in (fact.error or "")
    assert line.owner is None
    assert line.mail[0].attempt == 1


def test_loss_after_the_limit_is_noticed_while_the_run_goes_on(line: Line) -> None:
    """M20: a handler that hangs is cancelled then, and its hook is called."""
    line.settings = Settings(max_run_ms=TTL_MS)

    async def handler(message: Message, lease: Lease) -> None:
        def passes() -> None:
            while not line.losses:
                line.clock.advance(line.clock.next_pause_ms())

        await asyncio.to_thread(passes)
        await asyncio.sleep(PATIENCE_S)

    with pytest.raises(LeaseLost, match="max_run_ms"):
        serve(line, handler, time_left_ms=None)
    assert len(line.losses) == 1


def test_run_within_its_limit_is_settled(line: Line) -> None:
    """M20: also if it ends after it and before its lease does."""
    line.settings = Settings(max_run_ms=TTL_MS)

    def during(message: Message, lease: Lease) -> str:
        for _ in range(3):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        return "done"

    line.during["m1"] = during
    assert line.come("m1", time_left_ms=None) == Completed(result="done")


def test_each_run_has_a_limit_of_its_own(line: Line) -> None:
    """M20: not the invocation."""
    line.settings = Settings(max_run_ms=TTL_MS)
    line.leave("m1", "m2", "m3")
    line.during |= {each: lambda *_: line.clock.advance(TTL_MS // 2) for each in ("m1", "m2", "m3")}
    line.resume(Wake(key=KEY, ticket=None, target=ARN), time_left_ms=None)
    assert line.order == ["m1", "m2", "m3"]


# --- what is told


def test_superseded_messages_are_told(line: Line) -> None:
    """M21: never silent."""
    line.settings = Settings(policy=Policy(keep="latest"))

    def during(message: Message, lease: Lease) -> None:
        line.come("m2")
        line.come("m3")

    line.during["m1"] = during
    line.come("m1")
    (fact,) = line.facts.of("superseded")
    assert fact.message_ids == ("m2",)
    assert line.order == ["m1", "m3"]


def test_long_hold_is_told_while_it_lasts(line: Line) -> None:
    """An alarm needs it before the release: with each renewal after the first ttl."""

    def during(message: Message, lease: Lease) -> None:
        for _ in range(6):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()

    line.during["m1"] = during
    line.come("m1", time_left_ms=None)
    told = [fact.ms or 0 for fact in line.facts.of("holding")]
    assert told
    assert all(ms > TTL_MS for ms in told)
    assert told[0] < TTL_MS + 10_001


def test_metrics_of_control(line: Line) -> None:
    """What was stopped, replaced and held for long is counted, the last of these before the release."""
    assert measured(Fact(fact="run_ended", key="k", t_ms=1, outcome="stopped")) == {"RunStopped": 1}
    assert measured(Fact(fact="stop_asked", key="k", t_ms=1)) == {"StopAsked": 1}
    assert measured(Fact(fact="superseded", key="k", t_ms=1)) == {"MessageSuperseded": 1}
    assert measured(Fact(fact="holding", key="k", t_ms=1, ms=40_000)) == {"HoldingMs": 40_000}
    stream = io.StringIO()
    printed: list[str] = []

    def during(message: Message, lease: Lease) -> None:
        for _ in range(5):
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        printed.append(stream.getvalue())

    line.during["m1"] = during
    runner = Runner(line.store, line.settings, clock=line.clock, observers=[PowertoolsMetrics("Shop", stream=stream)])
    runner.serve(line.call("m1", time_left_ms=None), line.work)
    assert "HoldingMs" in printed[0]


# --- leased_function


def test_function_of_a_record_has_the_same_control() -> None:
    """Its caller is answered the result of its own record, or that it was stopped; what is not JSON is left out."""
    store = MemoryProvider()
    options: dict[str, Any] = {"key": "k", "message_id_jmespath": "id", "keyspace": "orders", "provider": store}
    options["policy"] = KEPT
    began, go_on = threading.Event(), threading.Event()

    @leased_function(**options, when_busy="wait", wait_ms=10_000)
    def total(record: dict[str, Any]) -> Any:
        began.set()
        assert go_on.wait(PATIENCE_S)
        return {record["id"]} if record["id"] == "m1" else record["id"]

    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(total, {"id": "m1"})
        assert began.wait(PATIENCE_S)
        second = callers.submit(total, {"id": "m2"})
        until(lambda: len(store.peek("orders/k")) == 2)
        go_on.set()
        assert (first.result(PATIENCE_S), second.result(PATIENCE_S)) == ({"m1"}, "m2")
    assert total({"id": "m1"}) == {"status": "handled", "key": "k", "message_id": "m1"}

    @leased_function(**options, cancel_on_stop=True)
    async def slow(record: dict[str, Any], *, lease: Lease) -> None:
        store.stop("orders/k")
        lease.renew()
        await asyncio.sleep(PATIENCE_S)

    assert slow({"id": "m3"}) == {"status": "stopped", "key": "k", "message_id": "m3"}


def test_state_machine_is_told_that_its_message_has_left() -> None:
    """It would take any answer for the result; the result itself is one."""
    clock = StepClock()
    store = MemoryProvider(clock=clock)
    task = {"execution": "arn:aws:states:eu-central-1:123456789012:execution:orders:1", "id": "m1"}
    options: dict[str, Any] = {"key": "k", "message_id_jmespath": "id", "keyspace": "orders", "provider": store}

    options["policy"] = KEPT

    @leased(**options, clock=clock, waker=None)
    def plain(event: Any, context: Any) -> int:
        return 7

    @leased(**options, clock=clock, waker=None, when_busy="wait", wait_ms=1_000)
    def waits(event: Any, context: Any) -> int:
        return 7

    @leased(**options, clock=clock, waker=None, cancel_on_stop=True)
    async def stopped(event: Any, context: Any, *, lease: Lease) -> None:
        store.stop("orders/k")
        lease.renew()
        await asyncio.sleep(PATIENCE_S)

    store.claim("orders/k", "ticket.1", TTL_MS, Message(id="m1", event=task), as_ticket=True, after_ms=60_000)
    store.release_lease("orders/k", "ticket.1")
    store.cancel("orders/k", "m1")
    with pytest.raises(DuplicateMessage) as error:
        plain(task, context(clock))
    assert error.value.state == "cancelled"
    assert waits({**task, "id": "m2"}, context(clock)) == 7
    assert waits({**task, "id": "m2"}, context(clock)) == 7
    served: Any = stopped
    for _ in range(2):
        with pytest.raises(DuplicateMessage) as error:
            served({**task, "id": "m3"}, context(clock))
        assert error.value.state == "stopped"


@pytest.mark.parametrize(("left_ms", "why"), [(0, "longer than max_run_ms"), (1, "its deadline has passed")])
def test_loss_is_of_the_run_limit_from_the_limit_on(line: Line, left_ms: int, why: str) -> None:
    """M20: a lease that ends before it was lost for another reason."""
    line.settings = Settings(max_run_ms=TTL_MS + left_ms)
    line.store.before["beat"] = raising(LeaseUnavailable("away", key=KEY))
    line.during["m1"] = lambda *_: line.clock.advance(TTL_MS)
    with pytest.raises(LeaseLost, match=why):
        line.come("m1", time_left_ms=None)
