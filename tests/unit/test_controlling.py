"""Control from outside of a run: a key is seen, stopped, held and resumed, a message cancelled or waited for."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from incumbent import (
    Claimed,
    ConfigurationError,
    LeaseUnavailable,
    MailboxFull,
    Message,
    Origin,
    Policy,
    Wake,
    cancel,
    hold,
    keys,
    resume,
    send,
    show,
    status,
    stop,
    wait,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import stand_in
from tests.unit.stage import ARN, Meddled, RecordingWaker, StepClock, raising

TTL_MS = 30_000
KEPT = Policy(result_bytes=1_000)


class DelayingWaker(RecordingWaker):
    """One that obeys ``after_ms``."""

    delays = True


@dataclass(slots=True)
class Desk:
    """A store that stands in, its clock, and a person outside of all runs."""

    clock: StepClock = field(default_factory=StepClock)
    waker: RecordingWaker = field(default_factory=DelayingWaker)
    store: Any = None

    def __post_init__(self) -> None:
        """Begin with an empty store on the clock."""
        self.store = Meddled(MemoryProvider(clock=self.clock))
        self.store.staged_clock = self.clock

    def begin(self, message_id: str, *, policy: Policy = KEPT, owner: str | None = None) -> Claimed:
        """Let a run begin with a message."""
        origin, message = Origin(keyspace="orders", target=ARN), Message(id=message_id, event={"n": message_id})
        claimed = self.store.claim(
            "orders/k", owner or f"o-{message_id}", TTL_MS, message, origin=origin, policy=policy
        )
        assert isinstance(claimed, Claimed)
        return claimed

    def end(self, run: Claimed, *ids: str, result: Any = None) -> None:
        """Let a run end well."""
        results = dict.fromkeys(ids, result)
        self.store.settle(
            "orders/k", run.owner, ttl_ms=TTL_MS, handled=ids, results=results, policy=KEPT, fence=run.fence
        )

    def send(self, message_id: str, **more: Any) -> bool:
        """Send a message to the key; whether its function was woken."""
        sent = send(
            "k", {}, message_id=message_id, target=ARN, keyspace="orders", waker=self.waker, policy=KEPT, **more
        )
        return sent.woken


@pytest.fixture
def desk() -> Iterator[Desk]:
    """With its store under all calls."""
    desk = Desk()
    with stand_in(desk.store):
        yield desk


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Return what was reported so far."""
    monkeypatch.setenv("INCUMBENT_TRACE", "1")

    def told() -> list[dict[str, Any]]:
        lines = capsys.readouterr().err.splitlines()
        return [json.loads(line.removeprefix("INCUMBENT ")) for line in lines if line.startswith("INCUMBENT ")]

    return told


# --- status and wait


def test_status_says_who_runs_a_message_and_what_it_noted(desk: Desk) -> None:
    """Owner, fence, attempt and note while it runs; its result afterwards."""
    run = desk.begin("m1")
    desk.store.beat("orders/k", run.owner, TTL_MS, note="step 3 of 5", fence=run.fence)
    found = status("k", "m1", keyspace="orders", policy=KEPT)
    assert (found.state, found.owner, found.fence) == ("running", run.owner, run.fence)
    assert (found.attempt, found.note) == (1, "step 3 of 5")
    desk.end(run, "m1", result={"ok": True})
    found = status("k", "m1", keyspace="orders", policy=KEPT)
    assert (found.state, found.result, found.result_is) == ("handled", {"ok": True}, "kept")
    assert found.left_at_ms == desk.clock.now().wall_ms


def test_wait_returns_the_result_when_it_is_there(desk: Desk) -> None:
    """Looks with growing pauses, which end with the message."""
    run = desk.begin("m1")
    looks: list[int] = []

    def work() -> None:
        looks.append(desk.clock.now().wall_ms)
        if len(looks) == 4:
            desk.end(run, "m1", result=42)

    desk.clock.while_sleeping = work
    found = wait("k", "m1", timeout_ms=60_000, keyspace="orders", policy=KEPT)
    assert (found.state, found.result) == ("handled", 42)
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses == sorted(pauses)
    assert 40 <= pauses[0] <= 50
    assert desk.store.calls.count("find") == 5


def test_wait_ends_with_its_time(desk: Desk) -> None:
    """The status then says what is still to come; a pause is a second at most."""
    desk.begin("m1")
    began = desk.clock.now()
    assert wait("k", "m1", timeout_ms=20_000, keyspace="orders", policy=KEPT).state == "running"
    assert began.until(desk.clock.now()) == 20_000
    assert 20 <= desk.store.calls.count("find") <= 40
    assert wait("k", "m1", timeout_ms=0, keyspace="orders", policy=KEPT).state == "running"


@pytest.mark.parametrize("message_id", ["unknown", "cancelled"])
def test_wait_does_not_wait_for_what_will_not_come(desk: Desk, message_id: str) -> None:
    """Never stored, or gone: the first answer is the last."""
    desk.begin("m1")
    desk.send("cancelled")
    cancel("k", "cancelled", keyspace="orders", policy=KEPT)
    began = desk.clock.now()
    assert wait("k", message_id, timeout_ms=20_000, keyspace="orders", policy=KEPT).state == message_id
    assert began.until(desk.clock.now()) == 0


def test_wait_goes_on_while_the_store_does_not_answer(desk: Desk) -> None:
    """What is stored is safe; only at the end of its time does it raise."""
    run = desk.begin("m1")
    fails = 3

    def away() -> None:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise LeaseUnavailable("away")

    desk.store.before["find"] = away
    desk.clock.while_sleeping = lambda: desk.end(run, "m1", result=1) if fails == 1 else None
    assert wait("k", "m1", timeout_ms=20_000, keyspace="orders", policy=KEPT).result == 1
    fails = 1_000
    with pytest.raises(LeaseUnavailable):
        wait("k", "m1", timeout_ms=2_000, keyspace="orders", policy=KEPT)


# --- stop


def test_stop_marks_the_run_that_is_live(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """The owner learns it with its next call; a fact says so. The next run has no mark."""
    assert stop("k", keyspace="orders") is None
    run = desk.begin("m1")
    assert stop("k", reason="the user said so", keyspace="orders") == run.fence
    assert desk.store.beat("orders/k", run.owner, TTL_MS, fence=run.fence).stop == "the user said so"
    desk.end(run, "m1")
    after = desk.begin("m2")
    assert desk.store.beat("orders/k", after.owner, TTL_MS, fence=after.fence).stop is None
    none, marked = [fact for fact in facts() if fact["fact"] == "stop_sent"]
    assert none["outcome"] == "no run"
    assert (marked["key"], marked["keyspace"], marked["fence"]) == ("orders/k", "orders", run.fence)
    assert (marked["outcome"], marked["error"]) == ("marked", "the user said so")


def test_late_stop_cannot_hit_the_successor(desk: Desk) -> None:
    """With the fence of a run that has ended."""
    run = desk.begin("m1")
    desk.end(run, "m1")
    after = desk.begin("m2")
    assert stop("k", fence=run.fence, keyspace="orders") is None
    assert show("k", keyspace="orders").stop is None
    assert stop("k", fence=after.fence, keyspace="orders") == after.fence


# --- hold and resume


def test_held_key_stores_and_runs_nothing_until_it_is_resumed(
    desk: Desk, facts: Callable[[], list[dict[str, Any]]]
) -> None:
    """Then the function that is recorded with the key is woken, since a message is due."""
    run = desk.begin("m1")
    desk.end(run, "m1")
    hold("k", reason="incident 12", keyspace="orders")
    assert not desk.send("m2")
    found = show("k", keyspace="orders")
    assert (found.owner, found.held_reason, [each.id for each in found.waiting]) == (None, "incident 12", ["m2"])
    assert desk.waker.wakes == []
    assert resume("k", keyspace="orders", waker=desk.waker)
    assert desk.waker.wakes == [Wake(key="orders/k", ticket=None, target=ARN)]
    assert not resume("k", keyspace="orders", waker=None)
    told = [(fact["fact"], fact.get("outcome"), fact.get("error")) for fact in facts()]
    assert ("held", None, "incident 12") in told
    assert [each for each in told if each[0] == "resumed"] == [("resumed", "held", None), ("resumed", "not held", None)]


def test_hold_ends_by_itself(desk: Desk) -> None:
    """After ``for_ms``; a second one does not shorten it."""
    hold("k", for_ms=60_000, keyspace="orders")
    hold("k", for_ms=1_000, keyspace="orders")
    desk.clock.advance(59_999)
    assert not desk.send("m1")
    desk.clock.advance(1)
    assert desk.begin("m2", owner="o").messages[0].id == "m1"


@pytest.mark.parametrize("what", ["waits", "runs", "nothing"])
def test_hold_for_a_time_asks_for_the_wake_at_its_end(desk: Desk, what: str) -> None:
    """Who runs now frees a held key, and who waits has been told of a wake that comes too early: none of them asks."""
    if what != "nothing":
        run = desk.begin("m1")
        desk.send("m2")
        if what == "waits":
            desk.store.release_lease("orders/k", run.owner)
    desk.waker.wakes.clear()
    hold("k", for_ms=60_000, keyspace="orders", waker=desk.waker)
    wake = Wake(key="orders/k", ticket=None, target=ARN, after_ms=60_000)
    assert desk.waker.wakes == ([] if what == "nothing" else [wake])


def test_hold_without_an_end_or_a_waker_that_delays_asks_for_no_wake(desk: Desk) -> None:
    """There is nothing to ask for, or it would come at once."""
    desk.begin("m1")
    at_once = RecordingWaker()
    hold("k", for_ms=60_000, keyspace="orders", waker=at_once)
    hold("k", for_ms=60_000, keyspace="orders", waker=None)
    hold("k", keyspace="orders", waker=desk.waker)
    assert at_once.wakes == desk.waker.wakes == []


def test_hold_whose_wake_fails_holds(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """The sweeper finds the key when the hold is over."""
    desk.begin("m1")
    desk.waker.fails = ValueError("no")
    hold("k", for_ms=60_000, keyspace="orders", waker=desk.waker)
    assert show("k", keyspace="orders").held_until_ms is not None
    assert [fact["error"] for fact in facts() if fact["fact"] == "wake_failed"] == ["ValueError: no"]


@pytest.mark.parametrize("what", ["nothing", "later", "owned"])
def test_resume_wakes_no_function_without_need(desk: Desk, what: str) -> None:
    """If nothing is stored, nothing is due yet, or the key has an owner."""
    hold("k", keyspace="orders")
    if what == "later":
        desk.send("m1", after_ms=60_000)
    elif what == "owned":
        resume("k", keyspace="orders", waker=None)
        desk.begin("m1")
        desk.send("m2")
        hold("k", keyspace="orders")
    desk.waker.wakes.clear()
    assert resume("k", keyspace="orders", waker=desk.waker)
    assert desk.waker.wakes == []


def test_resume_whose_wake_fails_has_resumed(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """The sweeper finds the key."""
    hold("k", keyspace="orders")
    desk.send("m1")
    desk.waker.fails = ValueError("no")
    assert resume("k", keyspace="orders", waker=desk.waker)
    assert [fact["error"] for fact in facts() if fact["fact"] == "wake_failed"] == ["ValueError: no"]
    assert [orphan.key for orphan in desk.store.orphans(10)] == ["orders/k"]


def test_named_function_is_woken_rather_than_the_recorded_one(desk: Desk) -> None:
    """As by a redrive."""
    hold("k", keyspace="orders")
    desk.send("m1")
    resume("k", keyspace="orders", target="orders:canary", waker=desk.waker)
    assert [wake.target for wake in desk.waker.wakes] == ["orders:canary"]


# --- cancel


def test_cancelled_message_does_not_run(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """One that runs is left alone, and the answer names its run, for ``stop``."""
    run = desk.begin("m1")
    desk.send("m2")
    assert cancel("k", "m2", keyspace="orders", policy=KEPT).state == "cancelled"
    assert cancel("k", "m2", keyspace="orders", policy=KEPT).state == "cancelled"
    found = cancel("k", "m1", keyspace="orders", policy=KEPT)
    assert (found.state, found.fence) == ("running", run.fence)
    assert [message.id for message in desk.store.peek("orders/k")] == ["m1"]
    told = [(fact["message_id"], fact["outcome"]) for fact in facts() if fact["fact"] == "cancelled"]
    assert told == [("m2", "cancelled"), ("m2", "cancelled"), ("m1", "running")]


# --- show and keys


def test_show_has_events_only_when_asked(desk: Desk) -> None:
    """Ids, attempts and times always."""
    desk.begin("m1")
    assert [(each.id, each.attempt, each.event) for each in show("k", keyspace="orders").running] == [("m1", 1, None)]
    assert show("k", keyspace="orders", events=True).running[0].event == {"n": "m1"}


def test_keys_of_a_keyspace_or_all(desk: Desk) -> None:
    """Those with an owner, messages or a hold; by keyspace, by target, or all."""
    desk.begin("m1")
    hold("a", keyspace="chat")
    send("b", {}, keyspace="chat", target="chat:live", waker=None, policy=KEPT)
    assert [each.key for each in keys()] == ["chat/a", "chat/b", "orders/k"]
    assert [each.key for each in keys(limit=2)] == ["chat/a", "chat/b"]
    assert [each.key for each in keys(keyspace="orders", limit=1)] == ["orders/k"]
    assert [each.key for each in keys(target="arn:aws:lambda:eu-central-1:123456789012:function:chat:live")] == [
        "chat/a",
        "chat/b",
    ]
    with pytest.raises(ConfigurationError, match="slash"):
        keys(keyspace="a/b")


# --- send for later


def test_message_for_later_asks_for_its_wake(desk: Desk) -> None:
    """At its moment, also behind an owner or another message for later: neither would wake for it."""
    assert not desk.send("m1", after_ms=60_000)
    assert not desk.send("m2", after_ms=90_000)
    assert [wake.after_ms for wake in desk.waker.wakes] == [60_000, 90_000]
    assert {wake.ticket for wake in desk.waker.wakes} == {None}
    run = desk.begin("m3")
    assert run.messages[0].id == "m3"
    assert not desk.send("m4", after_ms=5_000)
    assert not desk.send("m4", after_ms=5_000)
    assert [wake.after_ms for wake in desk.waker.wakes] == [60_000, 90_000, 5_000]
    assert all(wake.target == ARN for wake in desk.waker.wakes)


def test_message_to_a_held_key_asks_for_the_end_of_the_hold(desk: Desk) -> None:
    """If it has an end."""
    hold("k", for_ms=60_000, keyspace="orders")
    assert not desk.send("m1")
    assert [wake.after_ms for wake in desk.waker.wakes] == [60_000]


def test_later_wake_that_fails_changes_nothing_else(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """The message is stored: the sweeper finds it when it is due."""
    desk.waker.fails = ValueError("no queue")
    assert not desk.send("m1", after_ms=60_000)
    assert [fact["fact"] for fact in facts()] == ["sent", "wake_failed"]
    desk.clock.advance(60_000)
    assert [orphan.key for orphan in desk.store.orphans(10)] == ["orders/k"]


def test_waker_that_cannot_delay_is_not_asked(desk: Desk) -> None:
    """It would wake at once, for nothing."""
    desk.waker = RecordingWaker()
    assert not desk.send("m1", after_ms=60_000)
    assert desk.waker.wakes == []


# --- what all of them share


@pytest.mark.parametrize(
    "call",
    [
        lambda: stop("k", keyspace="orders"),
        lambda: hold("k", keyspace="orders"),
        lambda: resume("k", keyspace="orders"),
        lambda: cancel("k", "m", keyspace="orders"),
    ],
)
def test_what_would_have_no_effect_is_refused(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """With leasing switched off, no run looks at a mark or a hold."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    monkeypatch.setenv("INCUMBENT_DISABLED", "1")
    with pytest.raises(ConfigurationError, match="INCUMBENT_DISABLED is set"):
        call()


def test_provider_without_control_is_refused() -> None:
    """A mailbox need not have it."""
    names = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
    plain = Meddled(MemoryProvider(), (*names, "claim", "settle", "beat", "take", "peek", "orphans"))
    for call in (stop, hold, resume, show):
        with pytest.raises(ConfigurationError, match="Meddled cannot"):
            call("k", keyspace="orders", provider=plain)
    with pytest.raises(ConfigurationError, match="Meddled cannot"):
        keys(keyspace="orders", provider=plain)


@pytest.mark.parametrize("call", [stop, hold, resume, show])
def test_key_without_a_keyspace_is_refused(call: Callable[..., object], desk: Desk) -> None:
    """Its error names the key and what to give."""
    with pytest.raises(ConfigurationError, match=r"key 'k': in which keyspace\? Give keyspace="):
        call("k")
    assert desk.store.calls == []


def test_store_that_does_not_answer_is_reported(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """R9: and raised."""

    def away() -> None:
        raise LeaseUnavailable("away")

    for name in ("stop", "hold", "resume", "cancel"):
        desk.store.before[name] = away
    for call in (stop, hold, resume):
        with pytest.raises(LeaseUnavailable):
            call("k", keyspace="orders")
    with pytest.raises(LeaseUnavailable):
        cancel("k", "m", keyspace="orders", policy=KEPT)
    assert [fact["fact"] for fact in facts()] == ["store_error"] * 4


def test_facts_of_control_say_all_that_is_known(desk: Desk, facts: Callable[[], list[dict[str, Any]]]) -> None:
    """Each as a whole: who reads them has nothing else."""
    run = desk.begin("m1")
    desk.send("m2")
    stop("k", fence=run.fence + 1, reason="the wrong one", keyspace="orders")
    stop("k", reason="hangs", keyspace="orders")
    cancel("k", "m1", keyspace="orders", policy=KEPT)
    cancel("k", "m2", keyspace="orders", policy=KEPT)
    desk.waker.fails = ValueError("no")
    hold("k", reason="incident 12", for_ms=60_000, keyspace="orders", waker=desk.waker)
    desk.end(run, "m1")
    desk.send("m3", after_ms=90_000)
    desk.send("m4")
    resume("k", keyspace="orders", waker=desk.waker)
    for call in ("stop", "claim"):
        desk.store.before[call] = raising(LeaseUnavailable("away"))
    with pytest.raises(LeaseUnavailable):
        stop("k", keyspace="orders")
    with pytest.raises(LeaseUnavailable):
        desk.send("m5")
    desk.store.before["claim"] = raising(MailboxFull("full"))
    with pytest.raises(MailboxFull):
        desk.send("m5")
    common = {"key": "orders/k", "keyspace": "orders", "t_ms": desk.clock.now().wall_ms}
    assert facts() == [
        {"fact": "sent", **common, "message_id": "m2", "outcome": "waiting"},
        {"fact": "stop_sent", **common, "outcome": "no run", "error": "the wrong one"},
        {"fact": "stop_sent", **common, "fence": run.fence, "outcome": "marked", "error": "hangs"},
        {"fact": "cancelled", **common, "fence": run.fence, "message_id": "m1", "outcome": "running"},
        {"fact": "cancelled", **common, "message_id": "m2", "outcome": "cancelled"},
        {"fact": "held", **common, "ms": 60_000, "error": "incident 12"},
        {"fact": "wake_failed", **common, "error": "ValueError: no"},
        {"fact": "sent", **common, "message_id": "m3", "outcome": "waiting"},
        {"fact": "wake_failed", **common, "target": ARN, "error": "ValueError: no"},
        {"fact": "sent", **common, "message_id": "m4", "outcome": "waiting"},
        {"fact": "wake_failed", **common, "target": ARN, "error": "ValueError: no"},
        {"fact": "resumed", **common, "outcome": "held"},
        {"fact": "wake_failed", **common, "error": "ValueError: no"},
        {"fact": "store_error", **common, "error": "LeaseUnavailable: away"},
        {"fact": "store_error", **common, "message_id": "m5", "error": "LeaseUnavailable: away"},
        {"fact": "refused", **common, "message_id": "m5", "error": "MailboxFull: full"},
    ]


@pytest.mark.parametrize("limit", [-1, 1.5, True, 1_000_000_001])
def test_limit_of_a_list_that_makes_no_sense_is_refused(desk: Desk, limit: Any) -> None:
    """Before the first key is listed, of one keyspace or of all."""
    for keyspace in (None, "orders"):
        with pytest.raises(ConfigurationError, match="limit is"):
            keys(limit=limit, keyspace=keyspace)
    assert desk.store.calls == []


@pytest.mark.parametrize("call", [hold, resume])
@pytest.mark.parametrize("waker", ["lambda", RecordingWaker, 7])
def test_what_is_not_a_waker_is_refused_first(desk: Desk, call: Callable[..., object], waker: Any) -> None:
    """Neither the hold nor its end is stored then."""
    with pytest.raises(ConfigurationError, match="waker"):
        call("k", keyspace="orders", provider=desk.store, waker=waker)
    assert desk.store.calls == []


def test_hold_of_a_key_with_nothing_to_run_asks_for_no_wake(desk: Desk) -> None:
    """M15: the sender of the next message asks for it."""
    hold("k", for_ms=60_000, target=ARN, keyspace="orders", waker=desk.waker)
    assert desk.waker.wakes == []
