"""The front door: what was sent is stored, its function woken when nobody owns the key, and asked about afterwards."""

import json
from dataclasses import replace
from typing import Any

import pytest

from incumbent import (
    ConfigurationError,
    Duplicate,
    Idle,
    LambdaWaker,
    LeaseUnavailable,
    MailboxFull,
    MessageTooLarge,
    Policy,
    Routed,
    Sent,
    Wake,
    send,
    status,
)
from incumbent.addresses import function_name
from incumbent.providers.memory import MemoryProvider, process_memory
from incumbent.stand_in import STAND_IN
from incumbent.testing.clock import FakeClock
from tests.unit.stage import ARN, Little, Meddled, RecordingWaker, raising
from tests.unit.test_runs import KEY, TTL_MS, Line

TARGET = "orders:live"


@pytest.fixture
def line() -> Line:
    """The worker's side of the key."""
    return Line(waker=RecordingWaker())


def sent(line: Line, message_id: str | None = "m1", **options: Any) -> Sent:
    """Send a message to the line's key."""
    return send(
        "k",
        {"stored": message_id},
        **{"message_id": message_id, "target": TARGET, "provider": line.store, "waker": line.waker, **options},
    )


def wakes(line: Line) -> list[Wake]:
    """What was woken."""
    assert line.waker is not None
    return line.waker.wakes


def test_message_to_a_free_key_wakes_its_function(line: Line) -> None:
    """Stored and promised, nothing delivered; the key waits for the ticket, which the wake carries."""
    assert sent(line) == Sent(message_id="m1", state="waiting", woken=True)
    (wake,) = wakes(line)
    assert (wake.key, wake.target, wake.hops) == (KEY, TARGET, 0)
    assert line.owner == wake.ticket
    assert [(message.id, message.attempt, message.promised) for message in line.mail] == [("m1", 0, True)]


def test_woken_function_runs_it(line: Line) -> None:
    """It gets exactly what was sent."""
    seen: list[Any] = []
    sent(line)
    line.during["m1"] = lambda message, _: seen.append((message.event, message.attempt))
    line.resume(wakes(line)[0])
    assert seen == [({"stored": "m1"}, 1)]
    assert (line.owner, line.stored) == (None, [])


def test_what_was_sent_first_under_an_id_is_what_runs(line: Line) -> None:
    """M5: another event that is sent under the id of one whose owner died does not run in its place."""
    seen: list[Any] = []
    line.leave("m1")
    send("k", {"amount": 2}, message_id="m1", target=TARGET, provider=line.store, waker=line.waker)
    line.during["m1"] = lambda message, _: seen.append(message.event)
    line.resume(wakes(line)[0])
    assert seen == [{"stored": "m1"}]


def test_wake_keeps_the_target_for_the_sweeper(line: Line) -> None:
    """Whoever finds the key orphaned knows whom to wake: as it was sent, alias included."""
    # H47: self-invoke goes to the wrong alias.
    sent(line, target=ARN)
    line.store.release_lease(KEY, line.owner)
    assert [orphan.target for orphan in line.store.orphans(10)] == [ARN]


def test_send_that_names_no_target_keeps_the_one_that_is_known(line: Line) -> None:
    """The sweeper can wake the function all the same."""
    sent(line, target=ARN)
    line.store.release_lease(KEY, line.owner)
    sent(line, "m2", target=None, keyspace="orders", waker=None)
    assert [orphan.target for orphan in line.store.orphans(10)] == [ARN]


def test_message_to_an_owned_key_is_routed(line: Line) -> None:
    """The owner finds it; nobody is woken."""
    line.during["m0"] = lambda _, lease: (sent(line), [message.id for message in lease.take()])
    outcome: Any = line.come("m0")
    assert outcome.result == (Sent(message_id="m1", state="waiting", woken=False), ["m1"])
    assert wakes(line) == []


def test_second_message_does_not_wake_again(line: Line) -> None:
    """The key waits for the first one's ticket: the woken function will run both."""
    sent(line)
    assert sent(line, "m2") == Sent(message_id="m2", state="waiting", woken=False)
    assert len(wakes(line)) == 1
    line.resume(wakes(line)[0])
    assert line.order == ["m1", "m2"]


def test_sending_twice_is_harmless(line: Line) -> None:
    """M5: each repetition is told what the message is now."""
    seen: list[Sent] = []
    sent(line)
    assert sent(line) == Sent(message_id="m1", state="waiting", woken=False)
    line.during["m1"] = lambda *_: seen.append(sent(line))
    line.resume(wakes(line)[0])
    assert seen == [Sent(message_id="m1", state="running", woken=False)]
    assert sent(line) == Sent(message_id="m1", state="handled", woken=False)
    assert line.order == ["m1"]


def test_sending_a_dead_one_again_says_so(line: Line) -> None:
    """M6: nobody runs it any more, and who sends it should know."""
    line.settings = replace(line.settings, policy=Policy(max_attempts=1))
    sent(line)
    line.during["m1"] = raising(ValueError("broken"))
    line.resume(wakes(line)[0])
    assert sent(line) == Sent(message_id="m1", state="dead", woken=False)


def test_message_without_an_id_gets_one(line: Line) -> None:
    """Each send is a message then."""
    first, second = sent(line, None), sent(line, None)
    assert len({first.message_id, second.message_id}) == 2
    assert [message.id for message in line.mail] == [first.message_id, second.message_id]


def test_waker_none_wakes_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with ``leased``: the message is stored and promised, and the key is free for the next one or the sweeper."""
    monkeypatch.setattr("boto3.client", raising(AssertionError("a client was made")))
    assert sent(line, waker=None) == Sent(message_id="m1", state="waiting", woken=False)
    assert line.owner is None
    assert line.orphaned
    assert caplog.records == []
    assert [(message.id, message.promised) for message in line.mail] == [("m1", True)]


@pytest.mark.parametrize("waker", ["lambda", 7, LambdaWaker])
def test_what_is_not_a_waker_is_refused_before_anything_is_stored(line: Line, waker: Any) -> None:
    """A class is not a waker either: called with a wake, it would be made and wake nothing."""
    with pytest.raises(ConfigurationError, match="waker"):
        sent(line, waker=waker)
    assert line.store.calls == []


def test_wake_that_fails_loses_nothing(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """Stored all the same, and said so; the ticket is given up, and the next one wakes for both."""
    assert line.waker is not None
    line.waker.fails = ConnectionError("no route")
    assert sent(line) == Sent(message_id="m1", state="waiting", woken=False)
    assert line.owner is None
    assert line.orphaned
    assert "no route" in caplog.text
    line.waker.fails = None
    assert sent(line, "m2").woken
    line.resume(wakes(line)[-1])
    assert line.order == ["m1", "m2"]


def test_ticket_that_cannot_be_given_up_is_no_error(line: Line) -> None:
    """The message is safe, and the ticket's lease ends by itself."""
    assert line.waker is not None
    line.waker.fails = ConnectionError("no route")
    line.store.before["release_lease"] = raising(LeaseUnavailable("down", key=KEY))
    assert sent(line) == Sent(message_id="m1", state="waiting", woken=False)
    line.clock.advance(TTL_MS)
    assert line.orphaned


def test_wake_that_failed_and_arrived_all_the_same_frees_nothing(line: Line) -> None:
    """M9, H62: the woken function may run already."""
    assert line.waker is not None
    line.waker.fails = TimeoutError("sent, but not answered")
    line.waker.meanwhile = lambda wake: line.store.claim(KEY, "successor", TTL_MS, None, ticket=wake.ticket)
    sent(line)
    assert line.owner == "successor"


def test_ticket_that_nobody_redeems_ends(line: Line) -> None:
    """``ttl_ms`` is how long the key waits; then it is an orphan."""
    sent(line, ttl_ms=10_000)
    line.clock.advance(9_999)
    assert not line.orphaned
    line.clock.advance(1)
    assert line.orphaned


def test_store_without_an_answer_is_an_error(line: Line) -> None:
    """The sender keeps its message and sends it again."""
    line.store.before["claim"] = raising(LeaseUnavailable("down", key=KEY))
    with pytest.raises(LeaseUnavailable):
        sent(line)
    assert wakes(line) == []


def test_limits_are_the_policys(line: Line) -> None:
    """M7: nothing is stored beyond them."""
    line.store.acquire_lease(KEY, "somebody", TTL_MS)
    policy = Policy(max_pending=1, max_message_bytes=40)
    sent(line, policy=policy)
    with pytest.raises(MailboxFull):
        sent(line, "m2", policy=policy)
    with pytest.raises(MessageTooLarge):
        sent(line, "m" * 50, policy=policy)
    assert line.stored == ["m1"]


def test_what_json_cannot_say_is_refused(line: Line) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigurationError, match="not JSON"):
        send("k", {"at": {1, 2}}, target=TARGET, provider=line.store, waker=line.waker)
    assert line.stored == []


# --- which key, which function


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("orders", "orders"),
        ("orders:live", "orders"),
        ("orders:7", "orders"),
        ("function:live", "function"),
        ("arn:aws:lambda:eu-central-1:123456789012:function:orders", "orders"),
        (ARN, "orders"),
        ("arn:aws-cn:lambda:cn-north-1:123456789012:function:orders:$LATEST", "orders"),
        ("123456789012:function:orders", "orders"),
        ("123456789012:function:orders:live", "orders"),
        (None, ""),
        ("", ""),
    ],
)
def test_keyspace_is_the_functions_name(target: str | None, name: str) -> None:
    """In every form in which Lambda takes a function, alias or not."""
    assert function_name(target) == name


def test_keyspace_is_the_one_that_leased_uses(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the target, given or from the environment, or as it is said; an empty one leaves the key as it stands."""
    sent(line)
    assert line.stored == ["m1"]
    monkeypatch.setenv("INCUMBENT_TARGET", ARN)
    sent(line, "m2", target=None)
    sent(line, "m3", target="other", keyspace="orders")
    assert line.stored == ["m1", "m2", "m3"]
    sent(line, "m4", keyspace="")
    assert [message.id for message in line.store.peek("k")] == ["m4"]


def test_explicit_target_goes_before_the_environments(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments win."""
    monkeypatch.setenv("INCUMBENT_TARGET", "another")
    sent(line)
    assert [wake.target for wake in wakes(line)] == [TARGET]


def test_missing_target_says_what_to_give(line: Line) -> None:
    """Without one the key is nobody's, and nothing is stored."""
    with pytest.raises(ConfigurationError, match="INCUMBENT_TARGET") as error:
        sent(line, target=None)
    assert error.value.key == "k"
    assert line.store.calls == []


def test_keyspace_with_a_slash_is_refused(line: Line) -> None:
    """It would be another one's key."""
    for call in (lambda: sent(line, keyspace="a/b"), lambda: status("k", "m1", keyspace="a/b", provider=line.store)):
        with pytest.raises(ConfigurationError, match="slash"):
            call()
    assert line.stored == []


def test_empty_message_id_is_refused(line: Line) -> None:
    """Whoever gives one wants it to be the same the next time."""
    with pytest.raises(ConfigurationError, match="message id"):
        sent(line, "")
    assert line.stored == []


def test_keyspace_without_a_target_is_stored_and_wakes_nobody(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """Lambda's own waker has nobody to call: the message waits for whoever comes."""
    assert sent(line, target=None, keyspace="orders", waker="auto") == Sent(
        message_id="m1", state="waiting", woken=False
    )
    assert "INCUMBENT_TARGET" in caplog.text
    assert line.orphaned


@pytest.mark.parametrize("key", ["", None, 7, "\ud800"])
def test_key_that_no_store_takes_is_refused(line: Line, key: Any) -> None:
    """R10: before anything is asked. One that is too long is taken by its digest: test_long_names.py."""
    with pytest.raises(ConfigurationError):
        send(key, {}, target=TARGET, provider=line.store, waker=line.waker)
    assert line.store.calls == []


# --- which provider


def test_provider_is_the_environments_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for ``@leased``."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    waker = RecordingWaker()
    key = f"k-{id(waker)}"
    assert send(key, {}, message_id="m1", target=TARGET, waker=waker).woken
    assert status(key, "m1", target=TARGET).state == "waiting"
    assert [message.id for message in process_memory().peek(f"orders/{key}")] == ["m1"]


def test_provider_that_stores_nothing_is_refused(line: Line) -> None:
    """There would be nowhere to put it."""
    with pytest.raises(ConfigurationError, match="stores no messages"):
        sent(line, provider=Little(line.store))
    with pytest.raises(ConfigurationError, match="stores no messages"):
        status("k", "m1", target=TARGET, provider=Little(line.store))


def test_stand_in_goes_before_the_given_one(line: Line) -> None:
    """A test's own provider, whatever the code under test was given."""
    other = MemoryProvider(clock=FakeClock())
    token = STAND_IN.set(line.store)
    try:
        sent(line, provider=other)
        assert status("k", "m1", target=TARGET, provider=other).state == "waiting"
    finally:
        STAND_IN.reset(token)
    assert line.stored == ["m1"]
    assert list(other.peek(KEY)) == []


# --- status


def test_status_follows_a_message(line: Line) -> None:
    """Unknown, waiting, running, handled; forgotten after the window."""
    states: list[Any] = []

    def look() -> None:
        states.append(status("k", "m1", target=TARGET, provider=line.store).state)

    look()
    sent(line)
    look()
    line.during["m1"] = lambda *_: look()
    line.resume(wakes(line)[0])
    look()
    line.clock.advance(60 * 60_000)
    look()
    assert states == ["unknown", "waiting", "running", "handled", "unknown"]
    assert line.store.calls.count("find") == 5


def test_status_of_a_dead_message(line: Line) -> None:
    """Within the window."""
    line.settings = replace(line.settings, policy=Policy(max_attempts=1))
    sent(line)
    line.during["m1"] = raising(ValueError("broken"))
    line.resume(wakes(line)[0])
    assert status("k", "m1", keyspace="orders", provider=line.store).state == "dead"


def test_status_needs_a_provider_that_can_look(line: Line) -> None:
    """A mailbox need not be an archive."""
    names = (
        *("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease"),
        *("claim", "settle", "beat", "take", "peek", "orphans"),
    )
    with pytest.raises(ConfigurationError, match="cannot look up"):
        status("k", "m1", target=TARGET, provider=Meddled(line.store, names))


# --- together with the worker


def test_message_of_a_sender_and_one_of_the_function_itself_are_one_queue(line: Line) -> None:
    """Both ways in meet in one mailbox, in the order of arrival."""
    sent(line)
    assert isinstance(line.come("m2"), Routed)
    assert line.come("m1") == Duplicate(state="waiting", owner=wakes(line)[0].ticket)
    line.resume(wakes(line)[0])
    assert line.order == ["m1", "m2"]
    assert line.resume(wakes(line)[0]) == Idle()


def test_credentials_are_not_stored(line: Line) -> None:
    """H61: what `@leased` leaves out, `send` does; `store=` chooses otherwise."""
    event = {"requestContext": {"http": {}}, "headers": {"authorization": "Bearer x", "x-id": "7"}, "cookies": ["a=b"]}
    send("k", event, message_id="m1", target=TARGET, provider=line.store, waker=line.waker)
    send("k", event, message_id="m2", target=TARGET, provider=line.store, store=lambda given: given["headers"])
    first, second = line.mail
    assert first.event == {"requestContext": {"http": {}}, "headers": {"x-id": "7"}}
    assert second.event == event["headers"]


def test_what_was_sent_is_told(line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """So that whoever follows the facts knows of messages that came by the front door."""
    monkeypatch.setenv("INCUMBENT_TRACE", "1")
    sent(line)
    sent(line)
    told = [json.loads(each.removeprefix("INCUMBENT ")) for each in capsys.readouterr().err.splitlines()]
    assert [(each["fact"], each["key"], each["message_id"], each["outcome"]) for each in told] == [
        ("sent", KEY, "m1", "waiting"),
        ("sent", KEY, "m1", "waiting"),
    ]


@pytest.mark.parametrize(
    ("error", "fact"),
    [(LeaseUnavailable("away"), "store_error"), (MailboxFull("full"), "refused"), (MessageTooLarge("big"), "refused")],
)
def test_what_was_not_sent_is_told(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, fact: str
) -> None:
    """The error is the caller's all the same."""
    monkeypatch.setenv("INCUMBENT_TRACE", "1")
    line.store.before["claim"] = raising(error)
    with pytest.raises(type(error)):
        sent(line)
    assert json.loads(capsys.readouterr().err.removeprefix("INCUMBENT "))["fact"] == fact


def test_nothing_is_sent_where_nobody_would_run_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front door that is switched off refuses, so that its own source keeps the event."""
    monkeypatch.setenv("INCUMBENT_DISABLED", "1")
    with pytest.raises(ConfigurationError, match="INCUMBENT_DISABLED"):
        sent(line)
    assert line.stored == []
