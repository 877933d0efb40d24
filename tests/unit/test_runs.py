"""One invocation's work on one key: who runs, in which order, what is settled, and who goes on."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from incumbent import (
    Busy,
    ConfigurationError,
    Duplicate,
    Idle,
    Lease,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    Message,
    MessageTooLarge,
    NoopLeaseProvider,
    Origin,
    Policy,
    Released,
    RetryLater,
    Routed,
    Stop,
    Wake,
    current_lease,
)
from incumbent.calls import Call, Completed, Outcome, Postponed, Work
from incumbent.clock import SYSTEM_CLOCK
from incumbent.pacemaker import Pacemaker
from incumbent.providers.memory import MemoryProvider
from incumbent.reporting import describe
from incumbent.runner import Runner
from incumbent.settings import Settings
from incumbent.testing.conformance.subject import at_once
from incumbent.values import Debounce
from tests.unit.stage import (
    ARN,
    PATIENCE_S,
    Facts,
    Little,
    Meddled,
    RecordingWaker,
    StepClock,
    beside,
    no_heartbeat_is_left,
    raising,
)

KEY = "orders/k"
TTL_MS = 30_000
PAUSE_MS = Policy().pause_ms(1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run was given."""

    id: str
    attempt: int
    owner: str
    fence: int


@dataclass(slots=True)
class Line:
    """A key in memory, the invocations that come for it, and all that is seen of them.

    ``during[id]`` is called while the message of that id runs; what it returns is the run's result.
    """

    clock: StepClock = field(default_factory=StepClock)
    settings: Settings = field(default_factory=Settings)
    waker: RecordingWaker | None = None
    store: Any = None
    facts: Facts = field(default_factory=Facts)
    during: dict[str, Callable[[Message, Lease], Any]] = field(default_factory=dict)
    ran: list[Seen] = field(default_factory=list)
    results: list[tuple[str, Any]] = field(default_factory=list)
    losses: list[Lease] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    thread: Callable[..., threading.Thread] = threading.Thread
    pacemaker: Pacemaker = field(init=False)

    def __post_init__(self) -> None:
        """Begin with an empty store that shares the clock."""
        if self.store is None:
            self.store = Meddled(MemoryProvider(clock=self.clock))

    def call(
        self,
        message_id: str | None,
        *,
        ticket: str | None = None,
        time_left_ms: int | None = 120_000,
        synchronous: bool = False,
        hops: int = 0,
    ) -> Call:
        """One invocation, with a message or a ticket."""
        name = message_id or f"resume-{hops}"
        return Call(
            full_key=KEY,
            key="k",
            message=None if message_id is None else Message(id=message_id, event={"stored": message_id}),
            event={"own": message_id},
            ticket=ticket,
            hops=hops,
            origin=Origin(keyspace="orders", target=ARN, request_id=f"request-{name}", log_stream="stream"),
            ends=None if time_left_ms is None else self.clock.now().plus(time_left_ms),
            synchronous=synchronous,
        )

    def serve(self, call: Call, work: Work | None = None) -> Outcome:
        """Carry it out."""
        self.pacemaker = Pacemaker(self.clock, stays=False, thread=self.thread)
        runner = Runner(
            self.store,
            self.settings,
            clock=self.clock,
            waker=self.waker,
            observers=[self.facts],
            on_result=lambda message, result: self.results.append((message.id, result)),
            on_lost=self.losses.append,
            on_dead_letter=lambda message: self.dead.append(message.id),
            pacemaker=self.pacemaker,
        )
        return runner.serve(call, work or self.work)

    def come(self, message_id: str, **call: Any) -> Outcome:
        """Let an invocation come with a message."""
        return self.serve(self.call(message_id, **call))

    def resume(self, wake: Wake, **call: Any) -> Outcome:
        """Let an invocation come that was woken."""
        return self.serve(self.call(None, ticket=wake.ticket, hops=wake.hops, **call))

    def work(self, message: Message, lease: Lease) -> Any:
        """What the handler does."""
        self.ran.append(Seen(message.id, message.attempt, lease.owner, lease.fence))
        assert self.owner == lease.owner
        assert current_lease() is lease
        during = self.during.get(message.id)
        return f"result of {message.id}" if during is None else during(message, lease)

    def leave(self, *message_ids: str) -> None:
        """Leave messages behind: routed behind an owner that lets go of the key."""
        self.store.acquire_lease(KEY, f"before-{message_ids}", TTL_MS)
        for message_id in message_ids:
            message = Message(id=message_id, event={"stored": message_id})
            assert isinstance(self.store.claim(KEY, f"by-{message_id}", TTL_MS, message), Routed)
        self.store.release_lease(KEY, f"before-{message_ids}")

    def steal(self) -> str:
        """Let somebody else own the key; return who."""
        self.store.transfer_lease(KEY, self.owner, "thief", TTL_MS)
        return "thief"

    @property
    def owner(self) -> str | None:
        """Who owns the key."""
        owner: str | None = self.store.get_lease_owner(KEY)
        return owner

    @property
    def mail(self) -> list[Message]:
        """What is stored."""
        return list(self.store.peek(KEY))

    @property
    def stored(self) -> list[str]:
        """The ids of what is stored."""
        return [message.id for message in self.mail]

    @property
    def order(self) -> list[str]:
        """The ids of what was run."""
        return [seen.id for seen in self.ran]

    @property
    def orphaned(self) -> bool:
        """Whether the sweeper would find the key."""
        return [orphan.key for orphan in self.store.orphans(10)] == [KEY]


@pytest.fixture
def line() -> Line:
    """A key without a waker."""
    return Line()


@pytest.fixture
def woken() -> Line:
    """A key with a waker."""
    return Line(waker=RecordingWaker())


def wakes(line: Line) -> list[Wake]:
    """What was woken."""
    assert line.waker is not None
    return line.waker.wakes


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """H11, H13: whatever became of the runs, no heartbeat is alive after the handler."""
    yield
    assert no_heartbeat_is_left()


def arrivals(line: Line, *message_ids: str, answer: Any = None) -> Callable[[Message, Lease], Any]:
    """While a run goes on, invocations with these messages come, each of which is routed."""

    def during(message: Message, lease: Lease) -> Any:
        for message_id in message_ids:
            assert line.come(message_id) == Routed(owner=lease.owner, waiting=len(line.mail))
        return answer or f"result of {message.id}"

    return during


# --- the own message


def test_handle_that_a_run_leaves_behind_holds_nothing(line: Line) -> None:
    """While follow-ups run, and afterwards: its key is another run's by then."""
    left: list[Lease] = []
    stops: list[Stop | None] = []

    def during(message: Message, lease: Lease) -> None:
        left.append(lease)
        arrivals(line, "m2")(message, lease)

    line.during["m1"] = during
    line.during["m2"] = lambda *_: stops.append(left[0].stop)
    line.come("m1")
    assert stops == [Stop.LOST]
    with pytest.raises(LeaseLost):
        left[0].renew()
    assert line.losses == []


def test_uncontended_run_is_two_requests(line: Line) -> None:
    """M10: claim and settle; afterwards nobody owns the key and nothing is stored."""
    assert line.serve(line.call("m1"), lambda *_: "done") == Completed(result="done")
    assert line.store.calls == ["claim", "settle"]
    assert (line.owner, line.stored) == (None, [])


def test_current_lease_is_the_runs_and_gone_afterwards(line: Line) -> None:
    """A run inside a run, of another key or of the no-op, gives the outer one back."""
    inner = Line(store=NoopLeaseProvider())

    def during(message: Message, lease: Lease) -> None:
        inner.serve(inner.call("m1"), lambda _, nested: seen.append(current_lease() is nested))
        seen.append(current_lease() is lease)

    seen: list[bool] = []
    line.during["m1"] = during
    line.come("m1")
    assert seen == [True, True]
    assert current_lease() is None


def test_own_run_sees_the_event_as_it_came(line: Line) -> None:
    """Not as it was stored; follow-ups see exactly what was stored."""
    seen: list[Any] = []

    def work(message: Message, lease: Lease) -> None:
        seen.append(message.event)
        if message.id == "m1":
            line.come("m2")

    line.serve(line.call("m1"), work)
    assert seen == [{"own": "m1"}, {"stored": "m2"}]


@pytest.mark.parametrize("promised", [True, False])
def test_what_was_stored_first_under_an_id_is_what_runs(
    line: Line, caplog: pytest.LogCaptureFixture, *, promised: bool
) -> None:
    """M5: another event under the id of one whose owner died does not run in its place, accepted or not."""
    seen: list[Any] = []
    if promised:
        line.leave("m1")
    else:
        line.store.claim(KEY, "dead", TTL_MS, Message(id="m1", event={"stored": "m1"}))
        line.clock.advance(TTL_MS + PAUSE_MS)
    another = replace(line.call("m1"), message=Message(id="m1", event={"stored": 2}), event={"own": 2})
    assert line.serve(another, lambda message, _: seen.append(message.event)) == Completed()
    assert seen == [{"stored": "m1"}]
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "'m1' of key 'k' was delivered again with another event" in said
    assert "{" not in said


def test_retry_of_what_is_stored_sees_the_event_as_it_came(line: Line) -> None:
    """Its stored form says that it is the same, in whatever order its names stand: what is not stored comes along."""
    seen: list[Any] = []
    body = {"b": [1, [2]], "a": None}
    line.store.claim(KEY, "dead", TTL_MS, Message(id="m1", event={"a": None, "b": [1, [2]]}))
    line.clock.advance(TTL_MS + PAUSE_MS)
    again = replace(line.call("m1"), message=Message(id="m1", event=body), event={**body, "token": "secret"})
    line.serve(again, lambda message, _: seen.append(message.event))
    assert seen == [{**body, "token": "secret"}]


@pytest.mark.parametrize(
    ("stored", "now"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ([], {}), (None, False), ("1", 1)]
)
def test_event_that_only_python_calls_equal_is_another(line: Line, stored: Any, now: Any) -> None:
    """M5: what the run sees is what the text says that is stored."""
    seen: list[Any] = []
    line.store.claim(KEY, "dead", TTL_MS, Message(id="m1", event={"v": stored}))
    line.clock.advance(TTL_MS + PAUSE_MS)
    again = replace(line.call("m1"), message=Message(id="m1", event={"v": now}), event={"v": now})
    line.serve(again, lambda message, _: seen.append(json.dumps(message.event)))
    assert seen == [json.dumps({"v": stored})]


def test_id_that_comes_again_takes_what_was_stored_first_into_its_run(line: Line) -> None:
    """M5: also where the run of an older message is started for all that is due."""
    line.settings = Settings(deliver="all")
    line.leave("m0", "m1")
    held: list[Any] = []
    another = replace(line.call("m1"), message=Message(id="m1", event={"stored": 2}), event={"own": 2})
    line.serve(another, lambda _, lease: held.extend(each.event for each in lease.messages))
    assert held == [{"stored": "m0"}, {"stored": "m1"}]


def test_owner_is_minted_for_each_run(line: Line) -> None:
    """H7: request id and what nobody can guess, so that the same request twice is two owners."""
    line.come("m1")
    line.come("m1b")
    line.leave("m2", "m3", "m4")
    line.come("m5")
    owners = {seen.owner for seen in line.ran}
    assert len(owners) == len(line.ran) == 6
    assert all(owner.startswith("request-m") and len(owner) >= 31 for owner in owners)


def test_run_is_told_as_facts(line: Line) -> None:
    """What an observer hears of one run, without a payload."""

    def during(message: Message, lease: Lease) -> str:
        line.clock.advance(1_234)
        return "done"

    line.during["m1"] = during
    line.come("m1")
    assert line.facts.names == ["claimed", "run_started", "run_ended", "released"]
    claimed, started, ended, released = line.facts.told
    owner, fence = line.ran[0].owner, line.ran[0].fence
    assert {fact.key for fact in line.facts.told} == {KEY}
    assert {(fact.owner, fact.fence) for fact in line.facts.told} == {(owner, fence)}
    assert {(fact.request_id, fact.message_id) for fact in line.facts.told} == {("request-m1", "m1")}
    assert claimed.message_ids == started.message_ids == ended.message_ids == ("m1",)
    assert (started.attempt, ended.outcome, ended.ms) == (1, "handled", 1_234)
    assert (released.waiting, released.ms) == (0, 1_234)


def test_message_that_is_known_is_not_run(line: Line) -> None:
    """M5: handled within the window."""
    line.come("m1")
    assert line.come("m1") == Duplicate(state="handled")
    assert line.order == ["m1"]
    assert line.facts.of("duplicate")[0].outcome == "handled"


def test_handler_of_a_routed_message_is_not_called(line: Line) -> None:
    """H34: the body never runs without the lease."""
    line.during["m1"] = arrivals(line, "m2")
    line.store.acquire_lease(KEY, "somebody", TTL_MS)
    assert line.come("m1") == Routed(owner="somebody", waiting=1)
    assert line.ran == []
    assert line.mail[0].promised


# --- follow-ups


def test_follow_ups_run_in_the_order_of_arrival(line: Line) -> None:
    """M4: each as a run of its own; the invocation answers with its own result, the hook gets the others'."""
    line.during["m1"] = arrivals(line, "m2", "m3")
    line.during["m3"] = arrivals(line, "m4")
    assert line.come("m1") == Completed(result="result of m1")
    assert line.order == ["m1", "m2", "m3", "m4"]
    assert line.results == [(each, f"result of {each}") for each in ("m2", "m3", "m4")]
    assert line.stored == []


def test_key_is_never_free_between_runs(line: Line) -> None:
    """R6, M2: looked at after every request: owned from the claim to the last settle, each run by a new owner."""
    owners: list[str | None] = []

    def look(answer: Any) -> Any:
        owners.append(line.store._provider.get_lease_owner(KEY))  # noqa: SLF001 - past the list of calls
        return answer

    line.store.after = {"claim": look, "settle": look, "beat": look}
    line.during["m1"] = arrivals(line, "m2", "m3")
    line.come("m1")
    settles = [owner for call, owner in zip(_calls(line, "claim", "settle"), owners, strict=True) if call == "settle"]
    assert settles[-1] is None
    assert None not in owners[:-1]
    assert [seen.owner for seen in line.ran[1:]] == settles[:-1]
    assert len({seen.owner for seen in line.ran}) == 3
    fences = [seen.fence for seen in line.ran]
    assert fences == sorted(set(fences))


def _calls(line: Line, *names: str) -> list[str]:
    calls: list[str] = line.store.calls
    return [call for call in calls if call in names]


def test_message_that_comes_before_the_settle_is_not_lost(line: Line) -> None:
    """M2: stored between the last look and the release: the settle finds it."""
    # H39: vercel/chat #928, Temporal #1289, #8097.
    late = ["m2"]
    line.store.before["settle"] = lambda: late and line.come(late.pop())
    line.come("m1")
    assert line.order == ["m1", "m2"]
    assert (line.owner, line.stored) == (None, [])


def test_own_message_behind_older_ones_runs_in_its_turn(line: Line) -> None:
    """M4: what an owner left behind goes first, then the own one, whose result is the answer."""
    # H40: a message to an owner that has just died: Mastra #23801.
    line.leave("m1", "m2")
    assert line.come("m3") == Completed(result="result of m3")
    assert line.order == ["m1", "m2", "m3"]
    assert [message_id for message_id, _ in line.results] == ["m1", "m2"]


def test_dead_owners_messages_go_to_the_next_invocation(line: Line) -> None:
    """M8, M6: its waiting ones, then the one that it was running, once each; the crashed delivery counts."""

    def die(message: Message, lease: Lease) -> Any:
        assert isinstance(line.come("m2"), Routed)
        line.clock.advance(TTL_MS)  # nothing settles: as after SIGKILL
        return None

    line.during["m1"] = die
    with pytest.raises(LeaseLost):
        line.come("m1")
    line.during = {"m3": lambda _, __: line.clock.advance(PAUSE_MS)}
    line.come("m3")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m2", 1), ("m3", 1), ("m1", 2)]


def test_own_message_that_was_taken_by_an_older_run_is_answered_with_its_result(line: Line) -> None:
    """``lease.take()`` gives it to the run before: it is handled there, and not run again."""
    line.leave("m1")

    def during(message: Message, lease: Lease) -> list[str]:
        return [each.id for each in lease.take()]

    line.during["m1"] = during
    assert line.come("m2") == Completed(result=["m2"])
    assert line.order == ["m1"]
    assert line.results == [("m1", ["m2"])]
    assert line.stored == []


def test_taken_messages_are_settled_with_the_run(line: Line) -> None:
    """Follow-ups that a run folded in are handled when it returns."""

    def during(message: Message, lease: Lease) -> list[str]:
        arrivals(line, "m2", "m3")(message, lease)
        return [each.id for each in lease.take()]

    line.during["m1"] = during
    assert line.come("m1") == Completed(result=["m2", "m3"])
    assert line.order == ["m1"]
    assert line.stored == []
    assert [message_id for message_id, _ in line.results] == ["m2", "m3"]
    assert line.come("m2") == Duplicate(state="handled")


def test_take_renews(line: Line) -> None:
    """R4, R12: where every renewal fails, a take that was answered holds the key for another ttl."""
    line.store.before["beat"] = raising(LeaseUnavailable("throttled", key=KEY))

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(20_000)
        lease.take()
        line.clock.advance(20_000)
        assert lease.stop is None

    line.during["m1"] = during
    line.come("m1")


def test_hook_that_raises_changes_nothing(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """on_result: what it raises is logged, and the message is handled."""
    line.during["m1"] = arrivals(line, "m2")
    runner = Runner(
        line.store, line.settings, clock=line.clock, on_result=raising(ValueError("a bug")), observers=[line.facts]
    )
    assert runner.serve(line.call("m1"), line.work) == Completed(result="result of m1")
    assert line.stored == []
    assert "on_result raised" in caplog.text


def test_result_of_a_failed_follow_up_goes_to_nobody(line: Line) -> None:
    """The hook is for results."""
    line.during = {"m1": arrivals(line, "m2"), "m2": raising(ValueError("no"))}
    line.come("m1")
    assert line.results == []


def test_crowd_runs_one_at_a_time_and_loses_nothing() -> None:
    """Real threads, real time: fifty invocations at one moment on three keys, each message handled once."""
    # H7, H34, H39.
    store = MemoryProvider()
    running: dict[str, int] = {}
    handled: list[str] = []
    overlaps: list[str] = []

    def work(message: Message, lease: Lease) -> None:
        running[lease.key] = running.get(lease.key, 0) + 1
        SYSTEM_CLOCK.sleep_ms(1)
        if running[lease.key] != 1:
            overlaps.append(message.id)
        handled.append(message.id)
        running[lease.key] -= 1

    def come(number: int) -> None:
        call = Call(
            full_key=f"k{number % 3}",
            key=f"k{number % 3}",
            message=Message(id=f"m{number}", event=None),
            origin=Origin(request_id=f"r{number}"),
            ends=SYSTEM_CLOCK.now().plus(9_000),
        )
        Runner(store, Settings(), clock=SYSTEM_CLOCK).serve(call, work)

    at_once(50, come)
    assert overlaps == []
    assert sorted(handled) == sorted(f"m{number}" for number in range(50))
    assert [list(store.peek(f"k{key}")) for key in range(3)] == [[], [], []]


# --- handing over


def test_caller_who_waits_is_not_made_to_wait_for_others(woken: Line) -> None:
    """A synchronous invocation runs its own message; the key passes to a ticket, and the waker sends it."""
    woken.during["m1"] = arrivals(woken, "m2", "m3")
    assert woken.come("m1", synchronous=True) == Completed(result="result of m1")
    assert woken.order == ["m1"]
    (wake,) = wakes(woken)
    assert (wake.key, wake.target, wake.hops) == (KEY, ARN, 1)
    assert wake.ticket is not None
    assert len(wake.ticket) >= 32
    assert woken.owner == wake.ticket
    assert [message.attempt for message in woken.mail] == [0, 0]
    assert woken.facts.names[-2:] == ["continued", "handed_over"]


def test_woken_invocation_runs_the_rest(woken: Line) -> None:
    """M9: under an owner of its own, in order, each delivery counted once."""
    # H56: three failed wakes count as three deliveries.
    woken.during["m1"] = arrivals(woken, "m2", "m3")
    woken.come("m1", synchronous=True)
    (wake,) = wakes(woken)
    assert woken.resume(wake) == Completed()
    assert [(seen.id, seen.attempt) for seen in woken.ran] == [("m1", 1), ("m2", 1), ("m3", 1)]
    assert wake.ticket not in {seen.owner for seen in woken.ran}
    assert (woken.owner, woken.stored) == (None, [])


def test_wake_that_comes_twice_runs_once(woken: Line) -> None:
    """M9: the second one finds the key owned, or nothing due."""
    # H53: the wake-up arrives twice: two runs, one owner, one fence.
    woken.during["m1"] = arrivals(woken, "m2")
    woken.come("m1", synchronous=True)
    (wake,) = wakes(woken)
    second: list[Outcome] = []

    def during(message: Message, lease: Lease) -> None:
        second.append(woken.resume(wake))

    woken.during["m2"] = during
    assert woken.resume(wake) == Completed()
    assert isinstance(second[0], Busy)
    assert woken.resume(wake) == Idle()
    assert woken.order == ["m1", "m2"]


def test_two_woken_at_the_same_moment_are_one_owner(woken: Line) -> None:
    """M9: with real threads: one of them redeems the ticket."""
    woken.during["m1"] = arrivals(woken, "m2")
    woken.come("m1", synchronous=True)
    (wake,) = wakes(woken)
    barrier = threading.Barrier(2, timeout=PATIENCE_S)
    both_asked = threading.Barrier(2, timeout=PATIENCE_S)
    outcomes: list[Outcome] = []
    woken.store.before["claim"] = barrier.wait
    woken.during["m2"] = lambda *_: both_asked.wait()

    def resume() -> None:
        outcome = woken.resume(wake)
        outcomes.append(outcome)
        if not isinstance(outcome, Completed):
            both_asked.wait()

    with beside(resume), beside(resume):
        pass
    assert woken.order == ["m1", "m2"]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Busy", "Completed"]


def test_forged_or_stale_ticket_owns_nothing_that_is_held(woken: Line) -> None:
    """M9: it is then a claim without a message: the key if it is free and something is due, else nothing."""
    forged = Wake(key=KEY, ticket="forged", target=None, hops=1)
    assert woken.resume(forged) == Idle()
    woken.store.acquire_lease(KEY, "somebody", TTL_MS)
    woken.store.claim(KEY, "sender", TTL_MS, Message(id="m1", event={}))
    assert isinstance(woken.resume(forged), Busy)
    assert woken.ran == []
    woken.store.release_lease(KEY, "somebody")
    assert woken.resume(forged) == Completed()
    assert woken.order == ["m1"]


def test_caller_who_waits_behind_older_messages_is_answered_at_once(woken: Line) -> None:
    """It hands over without running anything: older ones first, no delivery counted, its own promised."""
    woken.leave("m1", "m2")
    assert woken.come("m3", synchronous=True) == Postponed(reason="queued")
    assert woken.ran == []
    assert [(message.id, message.attempt, message.promised) for message in woken.mail] == [
        ("m1", 0, True),
        ("m2", 0, True),
        ("m3", 0, True),
    ]
    (wake,) = wakes(woken)
    woken.resume(wake)
    assert [(seen.id, seen.attempt) for seen in woken.ran] == [("m1", 1), ("m2", 1), ("m3", 1)]


def test_without_a_waker_the_rest_is_run_in_place(line: Line) -> None:
    """Nobody could be woken: a caller waits for it, and nothing is left."""
    line.leave("m1")
    line.during["m2"] = arrivals(line, "m3")
    assert line.come("m2", synchronous=True) == Completed(result="result of m2")
    assert line.order == ["m1", "m2", "m3"]
    assert line.stored == []


def test_failed_wake_is_like_none_when_there_is_time(woken: Line) -> None:
    """What waits is run in place, under the ticket's hold of the key; no second wake is tried."""
    # H36: a hand-over left pending by a crash: KCL #1718, #1765.
    assert woken.waker is not None
    woken.waker.fails = ConnectionError("no route")
    woken.during["m1"] = arrivals(woken, "m2", "m3")
    assert woken.come("m1", synchronous=True) == Completed(result="result of m1")
    assert [(seen.id, seen.attempt) for seen in woken.ran] == [("m1", 1), ("m2", 1), ("m3", 1)]
    assert len(wakes(woken)) == 1
    assert woken.stored == []


def test_caller_behind_older_messages_whose_wake_fails_is_served_in_place(woken: Line) -> None:
    """The older ones first, then its own, whose result is the answer."""
    assert woken.waker is not None
    woken.waker.fails = ConnectionError("no route")
    woken.leave("m1")
    assert woken.come("m2", synchronous=True) == Completed(result="result of m2")
    assert woken.order == ["m1", "m2"]


def test_failed_wake_without_time_leaves_an_orphan(woken: Line) -> None:
    """M8: the ticket is given up, the key is free, and the messages wait for the next claim or the sweeper."""
    assert woken.waker is not None
    woken.waker.fails = ConnectionError("no route")

    def long(message: Message, lease: Lease) -> str:
        arrivals(woken, "m2")(message, lease)
        woken.clock.advance(20_000)
        return "done"

    woken.during["m1"] = long
    assert woken.come("m1", synchronous=True, time_left_ms=30_000) == Completed(result="done")
    assert woken.order == ["m1"]
    assert woken.owner is None
    assert woken.orphaned
    assert woken.facts.names[-1] == "wake_failed"
    woken.during.clear()
    woken.waker.fails = None
    woken.come("m3")
    assert woken.order == ["m1", "m2", "m3"]


def test_wake_that_failed_and_arrived_all_the_same_runs_once(woken: Line) -> None:
    """M9, H62: its error handling frees nothing that a successor runs."""
    assert woken.waker is not None
    woken.waker.fails = TimeoutError("sent, but not answered")
    woken.waker.meanwhile = woken.resume
    woken.during["m1"] = arrivals(woken, "m2")
    assert woken.come("m1", synchronous=True) == Completed(result="result of m1")
    assert woken.order == ["m1", "m2"]
    assert (woken.owner, woken.stored) == (None, [])


@pytest.mark.parametrize("time_left_ms", [120_000, 30_000])
def test_wake_that_failed_does_not_free_a_running_successors_key(woken: Line, time_left_ms: int) -> None:
    """H62: neither taking the ticket back nor giving it up does anything once it is spent."""
    assert woken.waker is not None

    def redeem(wake: Wake) -> None:
        woken.store.claim(KEY, "successor", TTL_MS, None, ticket=wake.ticket)

    def during(message: Message, lease: Lease) -> None:
        arrivals(woken, "m2")(message, lease)
        woken.clock.advance(20_000)

    woken.waker.fails = TimeoutError("sent, but not answered")
    woken.waker.meanwhile = redeem
    woken.during["m1"] = during
    assert woken.come("m1", synchronous=True, time_left_ms=time_left_ms) == Completed(result=None)
    assert woken.owner == "successor"
    assert woken.order == ["m1"]
    assert ("release_lease" in woken.store.calls) is (time_left_ms == 30_000)


def test_trouble_after_the_hand_over_does_not_take_the_result_away(woken: Line) -> None:
    """The own message is settled: that the ticket could not be taken back is told, and is no error of the caller's."""
    assert woken.waker is not None
    woken.waker.fails = ConnectionError("no route")
    woken.waker.meanwhile = lambda _: woken.store.before.update(claim=raising(LeaseUnavailable("down", key=KEY)))
    woken.during["m1"] = arrivals(woken, "m2")
    assert woken.come("m1", synchronous=True) == Completed(result="result of m1")
    assert woken.facts.names[-1] == "store_error"
    assert woken.stored == ["m2"]


def test_trouble_after_the_hand_over_of_a_woken_invocation_is_no_error(woken: Line) -> None:
    """What it ran is settled, and what waits is promised: nothing would be better for raising."""
    assert woken.waker is not None
    woken.settings = Settings(drain_ms=0)
    woken.waker.fails = ConnectionError("no route")
    woken.leave("m1", "m2")
    woken.store.before["release_lease"] = raising(LeaseUnavailable("down", key=KEY))
    assert woken.resume(Wake(key=KEY, ticket=None, target=None, hops=1)) == Completed()
    assert woken.facts.names[-2:] == ["wake_failed", "store_error"]
    assert woken.stored == ["m2"]


def test_chain_is_cut_after_so_many_hops(woken: Line) -> None:
    """A woken invocation that was woken by as many as allowed hands over no more: it runs what it has time for."""
    woken.settings = Settings(max_hops=3, drain_ms=0)
    woken.leave("m1", "m2")
    for hops in range(1, 3):
        assert woken.resume(Wake(key=KEY, ticket=None, target=None, hops=hops)) == Completed()
        assert len(woken.order) == hops  # one each: what a chain does not run, it would hand on for ever
        assert wakes(woken)[-1].hops == hops + 1
        woken.store.release_lease(KEY, woken.owner)
        woken.leave(f"more-{hops}")
    told = len(wakes(woken))
    assert woken.resume(Wake(key=KEY, ticket=None, target=None, hops=3)) == Completed()
    assert len(wakes(woken)) == told
    assert woken.facts.names[-2:] == ["released", "chain_cut"]
    assert woken.owner is None
    assert woken.orphaned


def test_chain_that_may_not_hop_runs_in_place(woken: Line) -> None:
    """``max_hops=0``: like no waker."""
    woken.settings = Settings(max_hops=0)
    woken.during["m1"] = arrivals(woken, "m2")
    woken.come("m1", synchronous=True)
    assert woken.order == ["m1", "m2"]
    assert wakes(woken) == []


# --- for how long


def test_drain_ms_lets_a_caller_wait_for_others(woken: Line) -> None:
    """A synchronous invocation with it runs other messages too, until that time has passed."""
    woken.settings = Settings(drain_ms=1_000)

    def slow(message: Message, lease: Lease) -> str:
        woken.clock.advance(400)
        return "done"

    woken.during = {"m2": slow, "m3": slow, "m4": slow, "m5": slow}

    def first(message: Message, lease: Lease) -> str:
        arrivals(woken, "m2", "m3", "m4", "m5")(message, lease)
        return slow(message, lease)

    woken.during["m1"] = first
    assert woken.come("m1", synchronous=True) == Completed(result="done")
    assert woken.order == ["m1", "m2", "m3"]
    assert len(wakes(woken)) == 1


def test_drain_ms_of_zero_hands_over_after_the_own_message(woken: Line) -> None:
    """An asynchronous invocation then treats its own like a caller's who waits."""
    woken.settings = Settings(drain_ms=0)
    woken.during["m1"] = arrivals(woken, "m2")
    woken.come("m1")
    assert woken.order == ["m1"]
    assert len(wakes(woken)) == 1


def test_drain_ms_of_zero_without_a_waker_leaves_the_rest(line: Line) -> None:
    """Nobody is woken, and nothing else is run: what waits is an orphan."""
    line.settings = Settings(drain_ms=0)
    line.during["m1"] = arrivals(line, "m2")
    assert line.come("m1") == Completed(result="result of m1")
    assert line.order == ["m1"]
    assert line.orphaned
    assert "chain_cut" not in line.facts.names


def test_own_message_that_is_not_reached_is_promised(line: Line) -> None:
    """M3: the time is up after an older one: its source is told "accepted", since it is marked before."""
    line.settings = Settings(drain_ms=0)
    line.leave("m1")
    assert line.come("m2") == Postponed(reason="queued")
    assert [(message.id, message.promised, message.attempt) for message in line.mail] == [("m2", True, 0)]
    assert line.owner is None


@pytest.mark.parametrize(("time_left_ms", "runs"), [(25_000, 2), (25_001, 3)])
def test_another_is_run_only_if_it_may_be_as_long_as_the_longest(line: Line, time_left_ms: int, runs: int) -> None:
    """What is left of the invocation less ``stop_before_ms`` must be more than the longest run so far."""

    def take_ms(ms: int) -> Callable[[Message, Lease], None]:
        return lambda *_: line.clock.advance(ms)

    def first(message: Message, lease: Lease) -> None:
        arrivals(line, "m2", "m3")(message, lease)
        line.clock.advance(5_000)

    line.during = {"m1": first, "m2": take_ms(5_000), "m3": take_ms(1)}
    line.settings = Settings(stop_before_ms=10_000)
    line.come("m1", time_left_ms=time_left_ms)
    assert len(line.ran) == runs
    assert line.orphaned is (runs == 2)


def test_longest_run_counts_and_not_the_last(line: Line) -> None:
    """Short runs after a long one do not make it likely that the next is short."""
    line.settings = Settings(stop_before_ms=0)

    def first(message: Message, lease: Lease) -> None:
        arrivals(line, "m2", "m3", "m4")(message, lease)
        line.clock.advance(10_000)

    line.during = {each: lambda *_: line.clock.advance(10) for each in ("m2", "m3", "m4")}
    line.during["m1"] = first
    line.come("m1", time_left_ms=20_020)
    assert line.order == ["m1", "m2", "m3"]
    assert line.stored == ["m4"]


@pytest.mark.parametrize(("time_left_ms", "stop_ms"), [(120_000, 5_000), (8_000, 2_000), (1_000, 250)])
def test_runs_stop_before_the_end_by_a_share_of_it(line: Line, time_left_ms: int, stop_ms: int) -> None:
    """Unless set, 5 s before the end of the invocation, and at most a quarter of what it had."""
    stops: list[Stop | None] = []

    def during(message: Message, lease: Lease) -> None:
        left = lease.time_left_ms
        assert left is not None
        while left > stop_ms + 1:  # in steps that the heartbeat can follow
            step = min(left - stop_ms - 1, 5_000)
            line.clock.advance(step)
            lease.renew()
            left -= step
        stops.append(lease.stop)
        line.clock.advance(1)
        stops.append(lease.stop)

    line.during["m1"] = during
    line.come("m1", time_left_ms=time_left_ms)
    assert stops == [None, Stop.DEADLINE]


def test_woken_invocation_drains_like_any_asynchronous_one(woken: Line) -> None:
    """As long as there is time; then it hands over itself, one hop further."""
    woken.leave("m1", "m2", "m3")

    def slow(message: Message, lease: Lease) -> None:
        woken.clock.advance(10_000)

    woken.during = dict.fromkeys(("m1", "m2", "m3"), slow)
    assert woken.resume(Wake(key=KEY, ticket=None, target=None, hops=4), time_left_ms=35_000) == Completed()
    assert woken.order == ["m1", "m2"]
    assert [wake.hops for wake in wakes(woken)] == [5]


# --- deferring


def test_deferred_run_goes_on_in_the_next_invocation(woken: Line) -> None:
    """Its messages keep their place, no attempt is counted, and the waker is called though there was time."""
    woken.during["m1"] = lambda message, lease: (arrivals(woken, "m2")(message, lease), lease.defer())[1]
    assert woken.come("m1") == Postponed(reason="deferred")
    assert [(message.id, message.attempt, message.promised) for message in woken.mail] == [
        ("m1", 0, True),
        ("m2", 0, True),
    ]
    (wake,) = wakes(woken)
    assert woken.facts.of("run_ended")[0].outcome == "deferred"
    woken.during.clear()
    woken.resume(wake)
    assert [(seen.id, seen.attempt) for seen in woken.ran] == [("m1", 1), ("m1", 1), ("m2", 1)]
    assert woken.results == [("m1", "result of m1"), ("m2", "result of m2")]


def test_deferred_run_without_a_waker_waits_for_the_next_invocation(line: Line) -> None:
    """It is not begun again in the same one."""
    line.during["m1"] = lambda _, lease: lease.defer()
    assert line.come("m1") == Postponed(reason="deferred")
    assert line.order == ["m1"]
    assert line.orphaned
    line.during.clear()
    line.come("m2")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m1", 1), ("m2", 1)]


@pytest.mark.parametrize("with_waker", [True, False])
def test_deferred_follow_up_does_not_change_the_own_answer(*, with_waker: bool) -> None:
    """The own message was handled before."""
    line = Line(waker=RecordingWaker() if with_waker else None)
    line.during = {"m1": arrivals(line, "m2"), "m2": lambda _, lease: lease.defer()}
    assert line.come("m1") == Completed(result="result of m1")
    assert [(message.id, message.attempt) for message in line.mail] == [("m2", 0)]
    assert line.orphaned is not with_waker


def test_run_that_defers_and_raises_has_failed(line: Line) -> None:
    """It is not promised by that; follow-ups are run as after any failure."""

    def during(message: Message, lease: Lease) -> None:
        arrivals(line, "m2")(message, lease)
        lease.defer()
        raise ValueError("broken")

    line.during["m1"] = during
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    assert line.order == ["m1", "m2"]
    assert line.stored == []


def test_own_message_that_runs_once_more_is_as_it_was_stored(woken: Line) -> None:
    """Deferred, and its wake failed: the event of the first run may have been changed by it."""
    assert woken.waker is not None
    woken.waker.fails = ConnectionError("no route")
    events: list[Any] = []

    def during(message: Message, lease: Lease) -> Any:
        events.append(message.event)
        return lease.defer() if len(events) == 1 else "done"

    woken.during["m1"] = during
    assert woken.come("m1") == Completed(result="done")
    assert events == [{"own": "m1"}, {"stored": "m1"}]


def test_deferred_message_is_promised(line: Line) -> None:
    """M3: its source was told "accepted": when its next run raises, it stays."""
    line.during["m1"] = lambda _, lease: lease.defer()
    line.come("m1")
    line.during["m1"] = raising(ValueError("no"))
    line.come("m2")
    assert line.stored == ["m1"]


# --- failing


def test_own_message_that_raises_goes_back_to_its_source(line: Line) -> None:
    """M3, M11: the error goes on, nothing is kept, and the source's next delivery is run as if it were the first."""
    # H52's other half: nobody was told "accepted".
    line.during["m1"] = raising(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    assert (line.owner, line.stored) == (None, [])
    ended = line.facts.of("run_ended")[0]
    assert (ended.outcome, ended.error) == ("failed", "ValueError: broken")
    line.during.clear()
    assert line.come("m1") == Completed(result="result of m1")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m1", 1)]


def test_follow_ups_are_run_before_the_own_error_goes_on(line: Line) -> None:
    """What was routed is promised, and does not pay for it."""

    def during(message: Message, lease: Lease) -> None:
        arrivals(line, "m2")(message, lease)
        raise ValueError("broken")

    line.during["m1"] = during
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    assert line.order == ["m1", "m2"]
    assert line.stored == []


def test_follow_ups_of_a_failed_own_message_are_handed_over(woken: Line) -> None:
    """The caller gets its error at once."""

    def during(message: Message, lease: Lease) -> None:
        arrivals(woken, "m2")(message, lease)
        raise ValueError("broken")

    woken.during["m1"] = during
    with pytest.raises(ValueError, match="broken"):
        woken.come("m1", synchronous=True)
    assert len(wakes(woken)) == 1
    assert woken.stored == ["m2"]


def test_own_message_that_raises_after_it_was_promised_stays(line: Line) -> None:
    """M3, M11: a duplicate was told "accepted" while it ran: the mailbox retries it, after the pause."""
    # H42: dedupe mark set before the work: sentry/junior #33. H52: found in the model.
    accepted: list[Outcome] = []

    def during(message: Message, lease: Lease) -> None:
        accepted.append(line.come("m1"))
        raise ValueError("broken")

    line.during["m1"] = during
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    assert accepted == [Duplicate(state="running", owner=line.ran[0].owner)]
    (message,) = line.mail
    assert (message.promised, message.attempt, message.last_error) == (True, 1, "ValueError: broken")
    assert message.due_at_ms == line.clock.now().wall_ms + 1_000
    line.during.clear()
    line.clock.advance(1_000)
    line.come("m2")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m1", 2), ("m2", 1)]


def test_source_that_retries_during_the_pause_is_told_that_it_waits(line: Line) -> None:
    """M3, M11: it is ours to retry: nothing runs early, and after the pause whoever comes first runs it."""
    line.during["m1"] = lambda *_: (line.come("m1"), raising(ValueError("broken"))())
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    line.during.clear()
    assert line.come("m1") == Duplicate(state="waiting")
    line.clock.advance(1_000)
    assert line.come("m1") == Completed(result="result of m1")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m1", 2)]


def test_follow_up_that_raises_pauses(line: Line) -> None:
    """M6: the invocation does not notice, later ones run ahead, and it comes back after its pause."""
    line.during = {"m1": arrivals(line, "m2", "m3"), "m2": raising(ValueError("broken"))}
    assert line.come("m1") == Completed(result="result of m1")
    assert line.order == ["m1", "m2", "m3"]
    (message,) = line.mail
    assert (message.id, message.attempt, message.last_error) == ("m2", 1, "ValueError: broken")
    assert not line.orphaned
    line.clock.advance(1_000)
    assert line.orphaned


def test_follow_up_out_of_attempts_is_told_as_dead(line: Line) -> None:
    """M6: a fact, and the hook."""
    line.settings = Settings(policy=Policy(max_attempts=1))
    line.during = {"m1": arrivals(line, "m2"), "m2": raising(ValueError("broken"))}
    line.come("m1")
    assert line.dead == ["m2"]
    assert line.facts.of("dead")[0].message_ids == ("m2",)
    assert line.come("m2") == Duplicate(state="dead")


@pytest.mark.parametrize("own", [True, False])
def test_retry_later_sets_the_pause(line: Line, *, own: bool) -> None:
    """A follow-up waits as long as it says; for the own message the source is told, and nothing is kept."""
    later = RetryLater(7_000)
    if own:
        line.during["m1"] = raising(later)
        with pytest.raises(RetryLater):
            line.come("m1")
        assert line.stored == []
    else:
        line.during = {"m1": arrivals(line, "m2"), "m2": raising(later)}
        line.come("m1")
        assert [message.due_at_ms for message in line.mail] == [line.clock.now().wall_ms + 7_000]


class Unset(RetryLater):
    """An application's error that calls no ``super().__init__``."""

    def __init__(self) -> None:
        """Set no pause."""
        Exception.__init__(self, "unset")


class Odd(RetryLater):
    """An application's error with a pause that is not allowed, or that cannot be read."""

    def __init__(self, pause: object) -> None:
        """Keep it for later."""
        super().__init__(1)
        self.pause = pause

    @property
    def after_ms(self) -> Any:
        """The pause."""
        return self.pause or 1 // 0

    @after_ms.setter
    def after_ms(self, value: int) -> None:
        """Forget what the base class sets."""


@pytest.mark.parametrize(
    "error", [Unset(), Odd(10**12), Odd(-1), Odd(1.5), Odd("1"), Odd(0)], ids=lambda error: error.args[0]
)
@pytest.mark.parametrize("own", [True, False])
def test_retry_later_without_a_usable_pause_gets_the_policys(line: Line, error: RetryLater, *, own: bool) -> None:
    """Its run is settled all the same, and the caller of its own message gets the error itself."""
    if own:
        line.during["m1"] = raising(error)
        with pytest.raises(RetryLater) as caught:
            line.come("m1")
        assert caught.value is error
        assert line.stored == []
    else:
        line.during = {"m1": arrivals(line, "m2"), "m2": raising(error)}
        line.come("m1")
        assert [message.due_at_ms for message in line.mail] == [line.clock.now().wall_ms + Policy().pause_ms(1)]
    assert line.owner is None


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()])
def test_exit_in_the_own_run_leaves_no_key_held(line: Line, end: BaseException) -> None:
    """Heartbeat joined, message dropped, key free, then it goes on; nothing else is run first."""

    def during(message: Message, lease: Lease) -> None:
        arrivals(line, "m2")(message, lease)
        raise end

    line.during["m1"] = during
    with pytest.raises(type(end)):
        line.come("m1")
    assert line.order == ["m1"]
    assert line.stored == ["m2"]
    assert line.orphaned


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt()])
def test_exit_in_a_follow_up_ends_the_invocation(woken: Line, end: BaseException) -> None:
    """It is the follow-up's failure, the rest is handed over, and the invocation ends by it."""
    woken.during = {"m1": arrivals(woken, "m2", "m3"), "m2": raising(end)}
    with pytest.raises(type(end)):
        woken.come("m1")
    assert woken.order == ["m1", "m2"]
    assert [(message.id, message.attempt) for message in woken.mail] == [("m2", 1), ("m3", 0)]
    assert len(wakes(woken)) == 1


def test_exit_in_an_older_run_leaves_the_own_message_to_its_source(line: Line) -> None:
    """It was not reached, and nobody is told "accepted": the source comes again and finds it."""
    line.leave("m1")
    line.during["m1"] = raising(SystemExit(3))
    with pytest.raises(SystemExit):
        line.come("m2")
    assert [(message.id, message.promised) for message in line.mail] == [("m1", True), ("m2", False)]
    line.during.clear()
    assert line.come("m2") == Completed(result="result of m2")


def test_thread_that_cannot_be_started_leaves_no_key_held(line: Line) -> None:
    """Without a heartbeat nothing is run: the failure is the run's, and its source retries."""

    def none_left(**_: object) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    line.thread = none_left
    with pytest.raises(RuntimeError, match="start new thread"):
        line.come("m1")
    assert line.ran == []
    assert (line.owner, line.stored) == (None, [])


class Unspeakable(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        """Raise what it was given, or an error."""
        raise self.args[0] if self.args else ValueError("no words")


def test_error_text_never_keeps_a_run_from_being_settled(line: Line) -> None:
    """Whatever the exception makes of itself: what is kept is text that every store takes, and not too much."""
    line.during = {"m1": arrivals(line, "m2"), "m2": raising(Unspeakable())}
    line.come("m1")
    assert line.mail[0].last_error == "Unspeakable: (its text raised ValueError)"
    assert describe(Unspeakable(SystemExit())) == "Unspeakable: (its text raised SystemExit)"
    assert describe(ValueError("lone \ud800 surrogate")) == "ValueError: lone \\ud800 surrogate"
    assert len(describe(ValueError("x" * 10_000))) == 500


# --- losing


def test_loss_during_the_run_settles_nothing(line: Line) -> None:
    """R3: the invocation raises ``LeaseLost``, hook and fact say so once, and the message runs again as attempt 2."""
    # H37: a stale owner writes after expiry: Mastra #23734.

    def during(message: Message, lease: Lease) -> str:
        line.steal()
        with pytest.raises(LeaseLost):
            lease.renew()
        assert lease.stop is Stop.LOST
        return "late"

    line.during["m1"] = during
    with pytest.raises(LeaseLost) as lost:
        line.come("m1")
    assert (lost.value.owner, lost.value.holder) == (line.ran[0].owner, "thief")
    assert "settle" not in line.store.calls
    assert line.owner == "thief"
    assert line.facts.names.count("lost") == 1
    assert line.facts.of("run_ended")[0].outcome == "lost"
    assert [lease.owner for lease in line.losses] == [line.ran[0].owner]
    line.store.release_lease(KEY, "thief")
    line.during.clear()
    line.clock.advance(PAUSE_MS)
    line.come("m1")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m1", 2)]


def test_loss_that_the_heartbeat_finds_is_told_while_the_run_goes_on(line: Line) -> None:
    """The refused renewal of its thread: ``stop`` says so at the handler's next look."""

    def during(message: Message, lease: Lease) -> None:
        pause_ms = line.clock.next_pause_ms()
        line.steal()
        line.clock.advance(pause_ms)
        assert no_heartbeat_is_left()
        assert [lost.owner for lost in line.losses] == [lease.owner]
        assert lease.stop is Stop.LOST

    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert line.facts.names.count("lost") == 1


def test_what_the_lost_run_raised_is_the_cause(line: Line) -> None:
    """Nothing is swallowed; an ``assert_held`` that went through is not its own cause."""

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(TTL_MS)
        raise ValueError("broken")

    line.during["m1"] = during
    with pytest.raises(LeaseLost) as lost:
        line.come("m1")
    assert isinstance(lost.value.__cause__, ValueError)

    def asserts(message: Message, lease: Lease) -> None:
        line.clock.advance(TTL_MS)
        lease.assert_held()

    line.during["m1"] = asserts
    line.clock.advance(PAUSE_MS)
    with pytest.raises(LeaseLost) as lost:
        line.come("m1")
    assert lost.value.__cause__ is None


def test_lost_take_is_a_loss(line: Line) -> None:
    """What a take is told counts for all: ``stop``, the hook, the fact, and no settle is tried."""

    def during(message: Message, lease: Lease) -> None:
        line.steal()
        with pytest.raises(LeaseLost):
            lease.take()
        assert lease.stop is Stop.LOST

    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert "settle" not in line.store.calls
    assert len(line.losses) == line.facts.names.count("lost") == 1


def test_settle_that_finds_the_lease_lost_raises_and_tells(line: Line) -> None:
    """R3: stolen after the handler returned: nothing was settled, nobody is told "success"."""
    line.store.before["settle"] = line.steal
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert line.stored == ["m1"]
    assert line.owner == "thief"
    assert len(line.losses) == line.facts.names.count("lost") == 1


def test_settle_that_finds_the_lease_lost_keeps_the_runs_error(line: Line) -> None:
    """The handler's own exception is the cause."""
    line.during["m1"] = raising(ValueError("broken"))
    line.store.before["settle"] = line.steal
    with pytest.raises(LeaseLost) as lost:
        line.come("m1")
    assert isinstance(lost.value.__cause__, ValueError)


def test_claim_that_was_answered_too_late_starts_nothing(line: Line) -> None:
    """R12: the answer says "yours", but the deadline has passed: the handler is not called."""
    # H16: time read before a wait, used after it: ShedLock #132.

    def late(answer: Any) -> Any:
        line.clock.advance(TTL_MS)
        return answer

    line.store.after["claim"] = late
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert line.ran == []
    assert line.stored == ["m1"]
    line.store.after.clear()
    line.clock.advance(PAUSE_MS)
    line.come("m1")
    assert line.order == ["m1"]


def test_lost_follow_up_is_not_reported_as_success(line: Line) -> None:
    """The invocation raises ``LeaseLost``; the own message was handled, and its source's retry is told so."""
    line.during = {"m1": arrivals(line, "m2"), "m2": lambda *_: line.steal()}
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert line.stored == ["m2"]
    line.store.release_lease(KEY, "thief")
    line.during.clear()
    assert line.come("m1") == Duplicate(state="handled")


# --- a store that gives no answer


def test_claim_without_an_answer_fails_the_invocation(line: Line) -> None:
    """R9: the source retries; nothing was run."""
    # H20: an error reading the owner taken for "nobody": Mastra #19806.
    line.store.before["claim"] = raising(LeaseUnavailable("down", key=KEY))
    with pytest.raises(LeaseUnavailable):
        line.come("m1")
    assert line.ran == []
    assert line.facts.names == ["store_error"]


def test_settle_without_an_answer_fails_the_invocation(line: Line) -> None:
    """The own run may have to be repeated, so nobody is told "success"."""
    line.store.before["settle"] = raising(LeaseUnavailable("down", key=KEY))
    with pytest.raises(LeaseUnavailable):
        line.come("m1")
    assert line.stored == ["m1"]
    assert line.facts.names[-1] == "store_error"


def test_settle_of_a_follow_up_without_an_answer_leaves_the_own_result(line: Line) -> None:
    """The own message is settled; the other one is still stored and runs again."""

    def during(message: Message, lease: Lease) -> None:
        line.store.before["settle"] = raising(LeaseUnavailable("down", key=KEY))

    line.during = {"m1": arrivals(line, "m2"), "m2": during}
    assert line.come("m1") == Completed(result="result of m1")
    assert line.facts.names[-1] == "store_error"
    assert line.stored == ["m2"]
    line.store.before.clear()
    line.during.clear()
    line.clock.advance(TTL_MS + PAUSE_MS)
    line.come("m3")
    assert [(seen.id, seen.attempt) for seen in line.ran] == [("m1", 1), ("m2", 1), ("m3", 1), ("m2", 2)]


def leave_many(line: Line) -> None:
    """A mailbox that owners who died have filled."""
    line.settings = Settings(policy=Policy(max_pending=1))
    for number in range(101):
        line.store.claim(KEY, f"T{number}", TTL_MS, Message(id=f"m{number}", event=number), as_ticket=True)
        line.store.release_lease(KEY, f"T{number}")


def test_full_mailbox_without_an_owner_is_worked_off_by_who_comes(line: Line) -> None:
    """H55, M7: nobody else would make room; the caller's own message is stored and run after the others."""
    leave_many(line)
    assert line.come("own") == Completed(result="result of own")
    assert [seen.id for seen in line.ran] == [*(f"m{number}" for number in range(101)), "own"]
    assert line.stored == []
    assert "refused" not in line.facts.names


def test_full_mailbox_that_nobody_has_time_for_is_handed_over(line: Line) -> None:
    """H55, M7: a caller who waits is refused after one run, and the others go on in a woken invocation."""
    leave_many(line)
    line.waker = RecordingWaker()
    with pytest.raises(MailboxFull):
        line.come("own", synchronous=True)
    assert [seen.id for seen in line.ran] == ["m0"]
    assert len(line.waker.wakes) == 1
    assert line.facts.names[-1] == "refused"
    assert "own" not in line.stored


def test_full_mailbox_that_a_handler_fills_is_its_own_error(line: Line) -> None:
    """What the handler raises makes nobody claim again."""
    line.during = {"m1": raising(MailboxFull("another key's"))}
    with pytest.raises(MailboxFull, match="another"):
        line.come("m1")
    assert [seen.id for seen in line.ran] == ["m1"]


def test_settle_of_an_older_message_without_an_answer_fails_the_invocation(line: Line) -> None:
    """The own message has not been reached: its source must come again."""
    line.leave("m1")
    line.store.before["settle"] = raising(LeaseUnavailable("down", key=KEY))
    with pytest.raises(LeaseUnavailable):
        line.come("m2")
    assert not line.mail[1].promised


def test_settle_beats_first_when_little_is_left(line: Line) -> None:
    """Less than two thirds of the ttl: one renewal more, so that the tries of settle have their time."""

    def took(ms: int) -> Callable[[Message, Lease], None]:
        return lambda *_: line.clock.advance(ms)

    line.settings = Settings(renew_every_ms=15_000)
    line.during["m1"] = took(9_700)
    line.come("m1")
    assert line.store.calls[-2:] == ["get_lease_owner", "settle"]
    line.during["m2"] = took(9_701)
    line.come("m2")
    assert line.store.calls[-2:] == ["beat", "settle"]


def test_beat_without_an_answer_does_not_keep_settle_from_trying(line: Line) -> None:
    """The lease is held until its deadline."""
    line.settings = Settings(renew_every_ms=15_000)
    line.during["m1"] = lambda *_: line.clock.advance(11_000)
    line.store.before["beat"] = raising(LeaseUnavailable("throttled", key=KEY))
    assert line.come("m1") == Completed(result=None)
    assert line.stored == []


def test_full_mailbox_and_large_message_are_told(line: Line) -> None:
    """M7: nothing is stored, the error goes to the source."""
    line.settings = Settings(policy=Policy(max_pending=1, max_message_bytes=40))
    line.store.acquire_lease(KEY, "somebody", TTL_MS)
    line.come("m1")
    with pytest.raises(MailboxFull):
        line.come("m2")
    with pytest.raises(MessageTooLarge):
        line.come("m" * 50)
    assert line.stored == ["m1"]
    assert line.facts.names == ["routed", "refused", "refused"]


# --- nobody is told "accepted" without a promise


def test_message_behind_a_paused_one_is_promised_before_it_is_accepted(line: Line) -> None:
    """on_error="block": an older one fails and pauses, and the own one is not reached: it is claimed once more."""
    line.settings = Settings(policy=Policy(on_error="block"))
    line.leave("m1")
    line.during["m1"] = raising(ValueError("broken"))
    assert line.come("m2") == Duplicate(state="waiting")
    assert line.order == ["m1"]
    assert [(message.id, message.attempt, message.promised) for message in line.mail] == [
        ("m1", 1, True),
        ("m2", 0, True),
    ]
    line.clock.advance(1_000)
    line.during.clear()
    line.come("m3")
    assert line.order == ["m1", "m1", "m2", "m3"]


def test_message_that_became_due_meanwhile_is_run_after_all(line: Line) -> None:
    """The pause that it waited behind was over before it was claimed once more."""
    line.settings = Settings(policy=Policy(on_error="block"))
    line.leave("m1")
    line.during["m1"] = lambda *_: raising(ValueError("broken"))() if len(line.ran) == 1 else "well"

    def released(answer: Any) -> Any:
        if isinstance(answer, Released):
            line.clock.advance(1_000)
        return answer

    line.store.after["settle"] = released
    assert line.come("m2") == Completed(result="result of m2")
    assert line.order == ["m1", "m1", "m2"]


# --- several in one run


def test_deliver_all_gives_all_that_is_due_to_one_run(line: Line) -> None:
    """Oldest first; the own result is the run's, and the hook gets it for the others."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")
    seen: list[list[str]] = []

    def during(message: Message, lease: Lease) -> str:
        seen.append([each.id for each in lease.messages])
        assert lease.waiting == 0
        return "done"

    line.during["m1"] = during
    assert line.come("m3") == Completed(result="done")
    assert seen == [["m1", "m2", "m3"]]
    assert line.results == [("m1", "done"), ("m2", "done")]
    assert line.stored == []


def test_deliver_all_costs_nothing_where_one_message_is_alone(line: Line) -> None:
    """Nothing waits: two requests as ever."""
    line.settings = Settings(deliver="all")
    line.serve(line.call("m1"), lambda *_: None)
    assert line.store.calls == ["claim", "settle"]


def test_several_that_failed_together_go_one_by_one(line: Line) -> None:
    """M6: the next run of each is its own, so that the guilty one is found."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")
    line.during["m1"] = raising(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        line.come("m3")
    assert line.stored == ["m1", "m2"]
    line.clock.advance(1_000)
    seen: list[list[str]] = []

    def work(message: Message, lease: Lease) -> None:
        seen.append([each.id for each in lease.messages])

    line.serve(line.call("m4"), work)
    assert seen == [["m1"], ["m2"], ["m4"]]


def test_gathering_that_gets_no_answer_runs_what_it_has(line: Line) -> None:
    """The others run next."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")
    line.store.before["take"] = raising(LeaseUnavailable("down", key=KEY))
    line.come("m3")
    assert line.order == ["m1", "m2", "m3"]


def test_gathering_that_finds_the_lease_lost_starts_nothing(line: Line) -> None:
    """R3: told, raised, not run."""
    line.settings = Settings(deliver="all")
    line.leave("m1", "m2")
    line.store.before["take"] = line.steal
    with pytest.raises(LeaseLost):
        line.come("m3")
    assert line.ran == []
    assert line.facts.names[-1] == "lost"


# --- renewing


def test_lease_outlives_a_run_that_is_longer_than_its_ttl(line: Line) -> None:
    """The heartbeat renews at a third of the ttl: ten times the ttl later the key is still held."""
    # H41: the lock's ttl ends in the middle of a long handler: vercel/chat #685.

    def during(message: Message, lease: Lease) -> None:
        for _ in range(40):
            pause_ms = line.clock.next_pause_ms()
            assert 8_000 <= pause_ms <= 10_000
            line.clock.advance(pause_ms)
            line.store.get_lease_owner(KEY)
        line.clock.next_pause_ms()
        assert lease.stop is None
        assert line.owner == lease.owner

    line.during["m1"] = during
    assert line.come("m1", time_left_ms=900_000) == Completed(result=None)
    assert line.store.calls.count("beat") >= 40


@pytest.mark.parametrize("path", ["returns", "raises", "exits", "is interrupted", "defers", "loses", "is lost"])
def test_heartbeat_is_over_before_anything_is_settled(line: Line, path: str) -> None:
    """Alive while the handler runs, joined before the settle and before the invocation answers, whatever comes."""
    # H11, H13: nothing alive after the handler: awslabs lock client #63.
    alive: list[int] = []

    def during(message: Message, lease: Lease) -> Any:
        alive.append(line.pacemaker.live)
        match path:
            case "raises":
                raise ValueError("broken")
            case "exits":
                raise SystemExit(1)
            case "is interrupted":
                raise KeyboardInterrupt
            case "defers":
                return lease.defer()
            case "loses":
                line.steal()
            case "is lost":
                line.clock.advance(TTL_MS)
            case _:
                pass
        return None

    line.during["m1"] = during
    line.store.before["settle"] = lambda: alive.append(line.pacemaker.live)
    with contextlib.suppress(ValueError, SystemExit, KeyboardInterrupt, LeaseLost):
        line.come("m1")
    alive.append(line.pacemaker.live)
    assert alive == ([1, 0] if path == "is lost" else [1, 0, 0])


def test_follow_up_has_a_heartbeat_of_its_own(line: Line) -> None:
    """One at a time: the one of the run before is over."""
    alive: list[int] = []
    pacemakers: list[Pacemaker] = []

    def during(message: Message, lease: Lease) -> None:
        if message.id == "m1":
            pacemakers.append(line.pacemaker)  # what arrives meanwhile has another
            arrivals(line, "m2")(message, lease)
        alive.append(pacemakers[0].live)

    line.during = {"m1": during, "m2": during}
    line.come("m1")
    assert alive == [1, 1]


def test_short_invocation_has_no_heartbeat(line: Line) -> None:
    """It ends before the first renewal is due: no thread is started for it."""
    line.during["m1"] = lambda *_: line.pacemaker.live
    assert line.come("m1", time_left_ms=10_000) == Completed(result=0)
    line.during["m2"] = lambda *_: line.pacemaker.live
    assert line.come("m2", time_left_ms=10_001) == Completed(result=1)


def test_waiting_is_known_from_the_heartbeat(line: Line) -> None:
    """It costs no request of its own."""

    def during(message: Message, lease: Lease) -> int:
        arrivals(line, "m2", "m3")(message, lease)
        assert lease.waiting == 0
        line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        return lease.waiting

    line.during["m1"] = during
    assert line.come("m1") == Completed(result=2)


@pytest.mark.parametrize(
    ("ttl_ms", "every_ms", "beat_ms"), [(30_000, None, 10_000), (100, None, 33), (9_000, 4_500, 4_500)]
)
def test_interval_is_a_third_of_the_ttl_unless_set(ttl_ms: int, every_ms: int | None, beat_ms: int) -> None:
    """Of the ttl that is meant."""
    assert Settings(ttl_ms=ttl_ms, renew_every_ms=every_ms).beat_ms == beat_ms


# --- providers that only lease


def only_leases(line: Line) -> Line:
    """The same key behind five methods."""
    line.settings = Settings(when_busy="reject")
    line.store = Little(line.store)
    return line


def test_provider_that_only_leases_runs_the_own_message(line: Line) -> None:
    """Acquire, run, release; without a fence it is 0, and nobody can defer or take."""
    seen: list[Any] = []

    def work(message: Message, lease: Lease) -> str:
        seen.extend([message.event, lease.fence, lease.attempt, lease.take()])
        with pytest.raises(ConfigurationError):
            lease.defer()
        lease.renew()
        return "done"

    only_leases(line)
    assert line.serve(line.call("m1"), work) == Completed(result="done")
    assert seen == [{"own": "m1"}, 0, 1, []]
    assert line.owner is None


def test_provider_that_only_leases_says_busy(line: Line) -> None:
    """With the holder that it named."""
    only_leases(line)
    line.store.acquire_lease(KEY, "somebody", TTL_MS)
    assert line.come("m1") == Busy(owner="somebody", expires_in_ms=None)
    assert line.ran == []


def test_provider_that_only_leases_is_released_after_an_error(line: Line) -> None:
    """The error goes on."""
    only_leases(line)
    line.during["m1"] = raising(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        line.come("m1")
    assert line.owner is None


def test_provider_that_only_leases_is_renewed_and_can_be_lost(line: Line) -> None:
    """``renew_lease`` says ``False``: lost, told, not released from under the next owner."""
    # H6: a late release removes the next owner's record: ShedLock #74.

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(25_000)
        lease.renew()
        line.clock.advance(25_000)
        assert lease.stop is None
        line.steal()
        with pytest.raises(LeaseLost):
            lease.renew()

    only_leases(line)
    line.settings = replace(line.settings, renew_every_ms=15_000)
    line.during["m1"] = during
    with pytest.raises(LeaseLost, match="refused"):
        line.serve(line.call("m1", time_left_ms=None))
    assert line.owner == "thief"


def test_provider_that_does_not_say_until_when_is_believed_for_the_ttl(line: Line) -> None:
    """R12: from the sending on, less the margin."""
    stops: list[Stop | None] = []

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(TTL_MS - 301)
        stops.append(lease.stop)
        line.clock.advance(1)
        stops.append(lease.stop)

    only_leases(line)
    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1", time_left_ms=9_999)
    assert stops == [Stop.DEADLINE, Stop.LOST]


def test_provider_that_only_leases_has_nothing_to_resume(line: Line) -> None:
    """Somebody sent a resume event all the same."""
    only_leases(line)
    assert line.resume(Wake(key=KEY, ticket="t", target=None, hops=1)) == Idle()


def test_event_of_a_provider_that_only_leases_need_not_be_json(line: Line) -> None:
    """Nothing is stored, so there is nothing to compare it with."""
    only_leases(line)
    seen: list[Any] = []
    event = {"at": object(), 1: "a", "1": "b"}
    own = replace(line.call("m1"), message=Message(id="m1", event=event), event=event)
    line.serve(own, lambda message, _: seen.append(message.event))
    assert seen == [event]


def test_release_without_an_answer_leaves_the_result(line: Line) -> None:
    """Nothing is to be settled: the run is done, and the lease ends by itself."""
    store = Meddled(line.store, ["acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease"])
    store.before["release_lease"] = raising(LeaseUnavailable("down", key=KEY))
    line.store = store
    assert line.come("m1") == Completed(result="result of m1")
    assert line.facts.names[-1] == "store_error"


def test_no_op_runs_everything_at_once(line: Line) -> None:
    """It is never busy: every invocation runs its own message."""
    line.store = NoopLeaseProvider()
    inner: list[Outcome] = []

    def work(message: Message, lease: Lease) -> str:
        if message.id == "m1":
            inner.append(line.serve(line.call("m2"), work))
        lease.renew()
        return message.id

    assert line.serve(line.call("m1"), work) == Completed(result="m1")
    assert inner == [Completed(result="m2")]


# --- when busy


@pytest.mark.parametrize("when_busy", ["reject", "skip"])
def test_busy_key_stores_nothing_unless_it_enqueues(line: Line, when_busy: Any) -> None:
    """``Busy`` names the holder; on a free key they run like any other."""
    line.settings = Settings(when_busy=when_busy)
    line.store.acquire_lease(KEY, "somebody", TTL_MS)
    assert line.come("m1") == Busy(owner="somebody", expires_in_ms=TTL_MS)
    assert line.stored == []
    assert line.facts.names == ["busy"]
    line.store.release_lease(KEY, "somebody")
    assert line.come("m1") == Completed(result="result of m1")


# --- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": -1}, "ttl_ms"),
        ({"ttl_ms": 0.5}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": float("nan")}, "ttl_ms"),
        ({"ttl_ms": 2**63}, "ttl_ms"),
        ({"ttl_ms": "30000"}, "ttl_ms"),
        ({"renew_every_ms": 0}, "renew_every_ms"),
        ({"renew_every_ms": 15_001}, "more than half of ttl_ms"),
        ({"debounce_ms": 1}, "needs deliver='all'"),
        ({"debounce_ms": -1, "deliver": "all"}, "debounce_ms"),
        ({"debounce_ms": 1, "deliver": "all", "when_busy": "skip"}, "when_busy='skip' would store only the first"),
        ({"debounce_ms": 1, "deliver": "all", "when_busy": "reject"}, "when_busy='reject'"),
        ({"debounce_max_ms": 1}, "debounce_ms is 0: set debounce_ms"),
        ({"debounce_ms": 2, "debounce_max_ms": 1, "deliver": "all"}, "debounce_ms is 2: .* to no less"),
        ({"debounce_ms": 2, "debounce_max_ms": 0, "deliver": "all"}, "debounce_max_ms"),
        ({"min_gap_ms": -1}, "min_gap_ms"),
        ({"min_gap_ms": 86_400_001}, "min_gap_ms"),
        ({"watch_ms": 0}, "watch_ms"),
        ({"watch_ms": 10_000}, "every renewal looks for a stop already"),
        ({"cancel_on_stop": 1}, "cancel_on_stop"),
        ({"max_run_ms": 29_999}, "less than ttl_ms"),
        ({"max_run_ms": 0}, "max_run_ms"),
        ({"wait_ms": 1}, "belong together"),
        ({"when_busy": "wait"}, "belong together"),
        ({"when_busy": "wait", "wait_ms": 0, "policy": Policy(result_bytes=1)}, "wait_ms"),
        ({"when_busy": "wait", "wait_ms": 1}, "result_bytes"),
        ({"drain_ms": -1}, "drain_ms"),
        ({"drain_ms": True}, "drain_ms"),
        ({"stop_before_ms": -1}, "stop_before_ms"),
        ({"stop_before_ms": 1.5}, "stop_before_ms"),
        ({"max_hops": -1}, "max_hops"),
        ({"when_busy": "queue"}, "when_busy"),
        ({"deliver": "some"}, "deliver"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], said: str) -> None:
    """Each with a message of its own that names it."""
    # H26: ttl 0, -1, 0.5, NaN, True, 2**63.
    with pytest.raises(ConfigurationError, match=said):
        Settings(**settings)


def test_settings_at_their_bounds_are_taken() -> None:
    """The other side of each edge."""
    Settings(ttl_ms=100)
    Settings(ttl_ms=86_400_000, renew_every_ms=43_200_000)
    Settings(debounce_ms=86_400_000, deliver="all", drain_ms=0, stop_before_ms=0, max_hops=0)
    Settings(debounce_ms=1, debounce_max_ms=1, deliver="all", min_gap_ms=86_400_000, max_run_ms=30_000, watch_ms=9_999)
    Settings(when_busy="wait", wait_ms=86_400_000, policy=Policy(result_bytes=1))
    Settings(when_busy="interrupt", cancel_on_stop=True)


def test_burst_lasts_for_four_quiet_times_unless_said() -> None:
    """At most a day."""
    assert Settings(deliver="all").debounce is None
    assert Settings(deliver="all", debounce_ms=1_500).debounce == Debounce(quiet_ms=1_500, max_ms=6_000)
    assert Settings(deliver="all", debounce_ms=86_400_000).debounce == Debounce(quiet_ms=86_400_000, max_ms=86_400_000)


def test_nothing_is_kept_between_calls(line: Line) -> None:
    """One runner serves a thousand invocations; what one of them learnt does not reach the next."""
    waker = RecordingWaker(fails=ConnectionError("no route"))
    runner = Runner(line.store, line.settings, clock=line.clock, waker=waker)
    line.waker = waker
    line.during["m1"] = arrivals(line, "m2")
    runner.serve(line.call("m1", synchronous=True), line.work)
    waker.fails = None
    line.during["m3"] = arrivals(line, "m4")
    runner.serve(line.call("m3", synchronous=True), line.work)
    assert len(waker.wakes) == 2
    assert line.order == ["m1", "m2", "m3"]


def test_run_whose_heartbeat_cannot_start_fails_and_frees_the_key(line: Line) -> None:
    """A handler that leaks threads comes here: its source is told why, and the key is nobody's."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    line.thread = NoThread
    with pytest.raises(RuntimeError, match="can't start new thread"):
        line.come("m1")
    assert (line.owner, line.stored, line.ran) == (None, [], [])
    assert current_lease() is None


@pytest.mark.parametrize("later", [False, True], ids=["before settle returns", "later"])
@pytest.mark.parametrize("call", ["take", "beat"])
def test_call_that_a_run_has_left_behind_is_no_loss(line: Line, call: str, *, later: bool) -> None:
    """It is refused, since the key was given up meanwhile: nothing was lost, and no hook is told so."""
    ended, refused = threading.Event(), []
    line.store.before[call] = lambda: ended.wait(PATIENCE_S)
    threads: list[threading.Thread] = []

    def during(message: Message, lease: Lease) -> str:
        def left_behind() -> None:
            with pytest.raises(LeaseLost):
                lease.take() if call == "take" else lease.renew()
            refused.append(call)
            with pytest.raises(LeaseLost):
                lease.assert_held()

        threads.append(threading.Thread(target=left_behind))
        threads[0].start()
        while call not in line.store.calls:
            SYSTEM_CLOCK.sleep_ms(1)
        return "ran"

    def refuse(answer: Any = None) -> Any:
        ended.set()
        threads[0].join(PATIENCE_S)
        return answer

    line.during["m1"] = during
    if not later:
        line.store.after["settle"] = refuse
    assert line.come("m1") == Completed(result="ran")
    refuse()
    assert (refused, line.losses) == ([call], [])
    assert "lost" not in line.facts.names


@pytest.mark.parametrize("call", ["take", "beat"])
def test_answer_that_comes_after_run_and_deadline_is_no_loss(line: Line, call: str) -> None:
    """The call was granted while the run went on; what it would say of the lease is of no interest any more."""
    ended = threading.Event()

    def late(answer: Any) -> Any:
        ended.wait(PATIENCE_S)
        return answer

    line.store.after[call] = late
    threads: list[threading.Thread] = []

    def left_behind(lease: Lease) -> None:
        with contextlib.suppress(LeaseLost):
            lease.take() if call == "take" else lease.renew()

    def during(_: Message, lease: Lease) -> str:
        threads.append(threading.Thread(target=left_behind, args=[lease]))
        threads[0].start()
        while call not in line.store.calls:
            SYSTEM_CLOCK.sleep_ms(1)
        return "ran"

    line.during["m1"] = during
    assert line.come("m1") == Completed(result="ran")
    line.clock.advance(3_600_000)
    ended.set()
    threads[0].join(PATIENCE_S)
    assert line.losses == []


def test_handle_that_is_used_after_its_deadline_tells_of_no_loss(line: Line) -> None:
    """The run was handled; a thread that looks an hour later learns that it holds nothing, and that is all."""
    kept: list[Lease] = []
    line.during["m1"] = lambda _, lease: kept.append(lease)
    line.come("m1")
    line.clock.advance(3_600_000)
    with pytest.raises(LeaseLost, match="is over"):
        kept[0].assert_held()
    assert line.losses == []


def test_failure_that_no_source_sees_is_logged(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """A follow-up's, with its traceback; the own message's error is its source's, and the runtime logs it."""
    line.during["m1"] = arrivals(line, "m2")
    line.during["m2"] = raising(ValueError("no such customer"))
    line.come("m1")
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "['m2']" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    caplog.clear()
    line.during["m3"] = raising(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        line.come("m3")
    assert [each for each in caplog.records if each.levelno == logging.ERROR] == []
