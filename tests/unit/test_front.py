"""The front door: what is sent is safe, and whoever is to run it is woken once."""

from collections.abc import Callable
from typing import Any

import pytest

from incumbent import (
    Claimed,
    ConfigurationError,
    Failure,
    LeaseUnavailable,
    MailboxFull,
    Message,
    MessageTooLarge,
    NoopLeaseProvider,
    Policy,
    Sent,
    Wake,
    send,
    status,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from tests.unit.stage import ARN, Little, Meddled, RecordingWaker, raising

TTL_MS = 30_000
KEY = "orders/a"


@pytest.fixture
def clock() -> FakeClock:
    """The store's clock."""
    return FakeClock()


@pytest.fixture
def provider(clock: FakeClock) -> MemoryProvider:
    """A store."""
    return MemoryProvider(clock=clock)


@pytest.fixture
def waker() -> RecordingWaker:
    """Who is woken."""
    return RecordingWaker()


@pytest.fixture
def sends(provider: MemoryProvider, waker: RecordingWaker) -> Callable[..., Sent]:
    """Send to key a of the function orders."""

    def sends(message_id: str | None = "m1", **options: Any) -> Sent:
        chosen: dict[str, Any] = {"target": ARN, "provider": provider, "waker": waker, **options}
        return send("a", {"n": 1}, message_id=message_id, **chosen)

    return sends


def test_message_to_a_free_key_wakes_its_function(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker
) -> None:
    """It is stored and promised, and the ticket that holds the key is what the function is sent (M9)."""
    assert sends() == Sent(message_id="m1", state="waiting", woken=True)
    (wake,) = waker.wakes
    assert (wake.key, wake.target, wake.hops) == (KEY, ARN, 0)
    assert provider.get_lease_owner(KEY) == wake.ticket
    (stored,) = provider.peek(KEY)
    assert (stored.id, stored.event, stored.promised, stored.attempt) == ("m1", {"n": 1}, True, 0)
    answer = provider.claim(KEY, "runner", TTL_MS, None, ticket=wake.ticket)
    assert isinstance(answer, Claimed)


def test_message_behind_an_owner_wakes_nobody(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker
) -> None:
    """The owner runs it next; a second send finds the first one's ticket, and so waits behind it."""
    provider.acquire_lease(KEY, "owner", TTL_MS)
    assert sends() == Sent(message_id="m1", state="waiting", woken=False)
    assert waker.wakes == []
    provider.release_lease(KEY, "owner")
    assert sends("m2").woken
    assert not sends("m3").woken
    assert [message.id for message in provider.peek(KEY)] == ["m1", "m2", "m3"]


def test_message_that_is_sent_again_is_stored_once(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker
) -> None:
    """The sender is told what has become of it (M5)."""
    sends()
    assert sends() == Sent(message_id="m1", state="waiting", woken=False)
    provider.claim(KEY, "runner", TTL_MS, None, ticket=waker.wakes[0].ticket)
    assert sends().state == "running"
    provider.settle(KEY, "runner", ttl_ms=TTL_MS, handled=["m1"])
    assert sends() == Sent(message_id="m1", state="handled", woken=False)
    assert len(waker.wakes) == 1


def test_message_that_waits_for_nobody_is_woken_by_sending_it_again(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker
) -> None:
    """A sender who repeats itself is as good as a sweeper."""
    waker.fails = RuntimeError("no Lambda")
    assert not sends().woken
    waker.fails = None
    assert sends().woken
    assert len(provider.peek(KEY)) == 1


def test_message_without_an_id_is_given_one(sends: Callable[..., Sent]) -> None:
    """A new one each time."""
    assert sends(None).message_id != sends(None).message_id


def test_message_whose_wake_fails_is_safe(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker, caplog: pytest.LogCaptureFixture
) -> None:
    """The key is free again at once, its message an orphan; the sender is not told that it failed."""
    waker.fails = RuntimeError("no Lambda")
    assert sends() == Sent(message_id="m1", state="waiting", woken=False)
    assert provider.get_lease_owner(KEY) is None
    assert [(orphan.key, orphan.target) for orphan in provider.orphans(10)] == [(KEY, ARN)]
    assert "the wake for key 'a' failed" in caplog.text


def test_ticket_that_cannot_be_given_up_is_no_error(
    provider: MemoryProvider, waker: RecordingWaker, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is safe already: were it an error, it would be sent again for nothing. The ticket ends by itself."""
    waker.fails = RuntimeError("no Lambda")
    meddled = Meddled(provider)
    meddled.before["release_lease"] = raising(LeaseUnavailable("no answer"))
    sent = send("a", {}, message_id="m1", target=ARN, provider=meddled, waker=waker, ttl_ms=5_000)
    assert sent == Sent(message_id="m1", state="waiting", woken=False)
    assert "could not be given up" in caplog.text
    clock.advance(5_000)
    assert len(list(provider.orphans(10))) == 1


def test_woken_function_that_comes_late_still_finds_its_message(
    sends: Callable[..., Sent], provider: MemoryProvider, waker: RecordingWaker, clock: FakeClock
) -> None:
    """The ticket has ended, and the claim that comes with it is an ordinary one (M9)."""
    sends(ttl_ms=5_000)
    clock.advance(60_000)
    answer = provider.claim(KEY, "runner", TTL_MS, None, ticket=waker.wakes[0].ticket)
    assert isinstance(answer, Claimed)


@pytest.mark.parametrize(
    ("target", "keyspace", "key"),
    [
        ("orders", None, "orders/a"),
        ("orders:live", None, "orders/a"),
        ("arn:aws:lambda:eu-central-1:123456789012:function:orders", None, "orders/a"),
        ("arn:aws:lambda:eu-central-1:123456789012:function:orders:7", None, "orders/a"),
        ("orders", "shared", "shared/a"),
        ("orders", "", "a"),
        (None, "shared", "shared/a"),
    ],
)
def test_keyspace_is_the_functions_name_unless_it_is_said(
    provider: MemoryProvider, waker: RecordingWaker, target: str | None, keyspace: str | None, key: str
) -> None:
    """As in @leased on that function, whichever way it is named."""
    send("a", {}, message_id="m1", target=target, keyspace=keyspace, provider=provider, waker=waker)
    assert [wake.key for wake in waker.wakes] == [key]
    assert status("a", "m1", target=target, keyspace=keyspace, provider=provider) == "waiting"


def test_target_comes_from_the_environment_unless_it_is_given(
    provider: MemoryProvider, waker: RecordingWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front door is configured where it is deployed."""
    monkeypatch.setenv("INCUMBENT_TARGET", "worker:live")
    send("a", {}, provider=provider, waker=waker)
    assert [(wake.key, wake.target) for wake in waker.wakes] == [("worker/a", "worker:live")]


def test_send_without_target_and_keyspace_is_refused(provider: MemoryProvider, waker: RecordingWaker) -> None:
    """Nobody would ever look there."""
    with pytest.raises(ConfigurationError, match="give target="):
        send("a", {}, provider=provider, waker=waker)
    assert provider.peek("a") == ()


@pytest.mark.parametrize(
    ("event", "policy", "error"),
    [
        ({"text": "x" * 2_000}, Policy(max_message_bytes=1_000), MessageTooLarge),
        ({}, Policy(max_pending=1), MailboxFull),
    ],
)
def test_message_that_is_not_stored_is_the_senders_error(
    provider: MemoryProvider, waker: RecordingWaker, event: Any, policy: Policy, error: type[Exception]
) -> None:
    """Nothing is stored, and nobody is woken (M7)."""
    provider.claim(KEY, "owner", TTL_MS, Message(id="m0", event={}))
    with pytest.raises(error):
        send("a", event, message_id="m1", target=ARN, provider=provider, waker=waker, policy=policy)
    assert waker.wakes == []
    assert [message.id for message in provider.peek(KEY)] == ["m0"]


def test_status_follows_a_message(provider: MemoryProvider, clock: FakeClock) -> None:
    """Waiting, running, dead, handled; unknown when it never was or is long over."""

    def asked(message_id: str) -> str | None:
        return status("a", message_id, target="orders", provider=provider)

    once = Policy(max_attempts=1)
    assert asked("m1") is None
    provider.claim(KEY, "owner", TTL_MS, Message(id="m1", event={}), policy=once)
    provider.claim(KEY, "sender", TTL_MS, Message(id="m2", event={}), policy=once)
    assert (asked("m1"), asked("m2")) == ("running", "waiting")
    failure = Failure(id="m1", error="no")
    provider.settle(KEY, "owner", ttl_ms=TTL_MS, failed=[failure], next_owner="next", policy=once)
    provider.settle(KEY, "next", ttl_ms=TTL_MS, handled=["m2"], policy=once)
    assert (asked("m1"), asked("m2")) == ("dead", "handled")
    clock.advance(Policy().window_ms)
    assert asked("m2") is None


@pytest.mark.parametrize("backend", [NoopLeaseProvider(), Little(MemoryProvider())])
def test_backend_without_a_mailbox_is_refused(backend: object, waker: RecordingWaker) -> None:
    """There is no place for a message."""
    with pytest.raises(ConfigurationError, match="stores no messages"):
        send("a", {}, target=ARN, provider=backend, waker=waker)
    with pytest.raises(ConfigurationError, match="stores no messages"):
        status("a", "m1", target=ARN, provider=backend)


def test_mailbox_without_an_archive_cannot_be_asked(provider: MemoryProvider) -> None:
    """A provider of somebody else's may store messages and keep no traces."""
    names = ["acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease"]
    names += ["claim", "settle", "beat", "take", "peek", "orphans"]
    with pytest.raises(ConfigurationError, match="cannot look up"):
        status("a", "m1", target=ARN, provider=Meddled(provider, names))


def test_send_is_a_wake_as_any_other(sends: Callable[..., Sent], waker: RecordingWaker) -> None:
    """What @leased recognises by itself."""
    sends()
    event = waker.wakes[0].to_event()
    assert Wake.from_event(event) == Wake(key=KEY, ticket=waker.wakes[0].ticket, target=None)
