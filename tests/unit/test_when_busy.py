"""What becomes of an event whose key is not free, and whose key it is."""

from typing import Any

import pytest

from incumbent import Busy, ConfigurationError, Duplicate, Message, Routed, leased
from incumbent.providers.memory import MemoryProvider
from tests.unit.stage import Facts, Little, StepClock, context

TTL_MS = 30_000


class Counter:
    """A handler of one key that somebody may own, and what was told of it."""

    def __init__(self, *, leases_only: bool = False, **options: Any) -> None:
        self.clock = StepClock()
        self.provider = MemoryProvider(clock=self.clock)
        self.facts = Facts()
        self.asked: list[Any] = []
        self.ran: list[str] = []

        def on_busy(event: Any, context: Any, *, outcome: Any) -> str:
            self.asked.append((event["id"], context.aws_request_id, outcome))
            return f"not {event['id']}"

        @leased(
            key_jmespath="key",
            message_id_jmespath="id",
            keyspace="orders",
            provider=Little(self.provider) if leases_only else self.provider,
            waker=None,
            observer=self.facts,
            on_busy=on_busy,
            clock=self.clock,
            **options,
        )
        def handler(event: dict[str, Any], context: object) -> str:
            self.ran.append(event["id"])
            return str(event["id"])

        self.handler = handler

    def own(self, message_id: str | None = None) -> None:
        """Let somebody else own the key, for that message if there is one."""
        message = Message(id=message_id, event={}) if message_id else None
        if message is None:
            self.provider.acquire_lease("orders/k", "somebody", TTL_MS)
        else:
            self.provider.claim("orders/k", "somebody", TTL_MS, message)

    def bring(self, message_id: str) -> Any:
        """Invoke it with that message."""
        return self.handler({"key": "k", "id": message_id}, context(self.clock, time_left_ms=8_000, request_id="r"))


def test_skipped_event_is_counted_and_told() -> None:
    """It leaves no message, but a fact and a call of the hook, which knows who holds the key."""
    # H44: Inngest #2566.
    counter = Counter(when_busy="skip")
    counter.own()
    assert counter.bring("m1") == "not m1"
    assert [(fact.fact, fact.holder, fact.message_id) for fact in counter.facts.told] == [("busy", "somebody", "m1")]
    assert counter.asked == [("m1", "r", Busy(owner="somebody", expires_in_ms=TTL_MS))]
    assert counter.provider.peek("orders/k") == ()
    assert counter.ran == []


def test_a_provider_that_only_leases_tells_of_the_owner_too() -> None:
    """The same fact as a mailbox's, from `acquire_lease`."""
    counter = Counter(when_busy="skip", leases_only=True)
    counter.own()
    counter.bring("m1")
    assert [(fact.fact, fact.holder) for fact in counter.facts.told] == [("busy", "somebody")]


def test_hook_answers_for_a_rejected_event() -> None:
    """With the hook nothing is raised: what it answers is what the source is told."""
    counter = Counter(when_busy="reject")
    counter.own()
    assert counter.bring("m1") == "not m1"
    assert isinstance(counter.asked[0][2], Busy)


def test_hook_answers_for_a_stored_event() -> None:
    """It knows that the event is safe."""
    counter = Counter()
    counter.own()
    assert counter.bring("m1") == "not m1"
    assert counter.asked[0][2] == Routed(owner="somebody", waiting=1)


def test_hook_answers_for_a_duplicate() -> None:
    """It knows what became of the first."""
    counter = Counter()
    counter.own("m1")
    assert counter.bring("m1") == "not m1"
    assert counter.asked[0][2] == Duplicate(state="running", owner="somebody")


def test_hook_is_not_asked_about_what_runs() -> None:
    """A free key is none of its business."""
    counter = Counter()
    assert counter.bring("m1") == "m1"
    assert counter.asked == []


@pytest.mark.parametrize("options", [{}, {"key": ""}, {"key": 7}, {"key": "k", "key_jmespath": "k"}])
def test_key_has_no_default(options: Any) -> None:
    """A default would be shared by strangers, so it has to be said, and once."""
    # H38: oxbow #9.
    with pytest.raises(ConfigurationError, match="key"):

        @leased(**options)
        def handler(event: Any, context: Any) -> None:
            """Do nothing."""


def test_equal_keys_of_two_functions_never_meet() -> None:
    """Each function's keys are in a keyspace of their own, its name unless another is chosen."""
    provider = MemoryProvider()
    inner: list[Any] = []

    @leased(key="k", provider=provider, waker=None)
    def one(event: Any, context: Any) -> str:
        return "one"

    @leased(key="k", provider=provider, waker=None)
    def other(event: Any, context: Any) -> str:
        inner.append(one(event, None))
        return "other"

    assert other({}, None) == "other"
    assert inner == ["one"]
