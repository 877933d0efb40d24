"""Somebody is told when a message dies: a fact, a line in the log, and ``on_dead_letter``."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import Failure, Message, Policy, leased
from incumbent.providers.memory import MemoryProvider
from tests.unit.stage import Facts, RecordingWaker, StepClock, context

ONCE = Policy(max_attempts=1)
TTL_MS = 30_000

Handler = Callable[..., Any]


class Scene:
    """One decorated handler that raises, over a store with a clock of the test's own."""

    def __init__(self, **options: Any) -> None:
        self.clock = StepClock()
        self.provider = MemoryProvider(clock=self.clock)
        self.facts = Facts()
        self.died: list[Message] = []
        self.options = options

    def handler(self) -> Handler:
        """A handler of one constant key."""
        options: dict[str, Any] = {"policy": ONCE, "waker": None, "on_dead_letter": self.died.append, **self.options}

        @leased(
            key="k",
            message_id_jmespath="id",
            keyspace="",
            provider=self.provider,
            observer=self.facts,
            clock=self.clock,
            **options,
        )
        def handler(event: dict[str, Any], context: object) -> str:
            self.clock.advance(event.get("takes_ms", 0))
            if event.get("raises"):
                raise ValueError("no such order")
            return str(event["id"])

        return handler

    def invoke(self, handler: Handler, message_id: str, **event: Any) -> Any:
        """Invoke it asynchronously, with a minute to live."""
        return handler({"id": message_id, **event}, context(self.clock, request_id=f"request-{message_id}"))

    def killed(self, message_id: str) -> None:
        """A run of that message whose process was killed."""
        self.provider.claim("k", f"killed-{message_id}", TTL_MS, Message(id=message_id, event={"id": message_id}))
        self.clock.advance(TTL_MS)


def test_failed_message_out_of_attempts_is_told() -> None:
    """Its event, its attempts and its last error come with it (M6)."""
    scene = Scene()
    scene.provider.claim("k", "sender", TTL_MS, Message(id="m1", event={"id": "m1", "raises": True}), as_ticket=True)
    scene.provider.release_lease("k", "sender")

    assert scene.invoke(scene.handler(), "m2") == "m2"

    (dead,) = scene.died
    assert (dead.id, dead.event["raises"], dead.attempt) == ("m1", True, 1)
    assert dead.last_error == "ValueError: no such order"
    (fact,) = scene.facts.of("dead")
    assert (fact.message_ids, fact.attempt, fact.error) == (("m1",), 1, "ValueError: no such order")


@pytest.mark.parametrize("own", ["m1", "m2"])
def test_message_that_killed_its_runs_is_told_by_who_finds_it(own: str) -> None:
    """By its own next delivery, or by the claim of another message (M6)."""
    scene = Scene()
    scene.killed("m1")

    scene.invoke(scene.handler(), own)

    assert [(dead.id, dead.last_error) for dead in scene.died] == [("m1", None)]
    assert [fact.message_ids for fact in scene.facts.of("dead")] == [("m1",)]


def test_message_that_killed_its_runs_is_told_when_nothing_else_is_there() -> None:
    """The sweeper's wake finds nothing to run, and says what it found out of attempts."""
    scene = Scene()
    scene.killed("m1")

    answer = scene.handler()(
        {"incumbent": {"v": 1, "key": "k", "ticket": None, "hops": 0}}, context(scene.clock, request_id="swept")
    )

    assert answer == {"status": "idle"}
    assert [dead.id for dead in scene.died] == ["m1"]


def test_message_that_dies_while_a_failed_wake_is_made_up_for_is_told() -> None:
    """Whoever goes on in place of a successor may be the one who finds it out of attempts."""
    scene = Scene(waker=RecordingWaker(fails=RuntimeError("no Lambda")))
    scene.provider.claim("k", "before", TTL_MS, Message(id="m1", event={}), as_ticket=True)
    scene.provider.claim("k", "runner", TTL_MS, None, ticket="before")
    paused = Failure(id="m1", error="first", after_ms=5_000)
    scene.provider.settle("k", "runner", ttl_ms=TTL_MS, failed=[paused], policy=Policy(max_attempts=2))

    http = {"requestContext": {"http": {"method": "POST"}, "requestId": "r"}}
    assert scene.invoke(scene.handler(), "m2", takes_ms=6_000, **http) == "m2"

    assert [(dead.id, dead.last_error) for dead in scene.died] == [("m1", "first")]
    assert scene.facts.names[-2:] == ["wake_failed", "dead"]


def test_hook_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What on_dead_letter raises is logged, and the run goes on."""

    def page(_: Message) -> None:
        raise OSError("the pager is broken")

    scene = Scene(on_dead_letter=page)
    scene.killed("m1")
    assert scene.invoke(scene.handler(), "m2") == "m2"
    assert "on_dead_letter raised" in caplog.text


def test_dead_message_is_logged_without_its_event(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names key and message, so that there is a trace without any hook."""
    scene = Scene(on_dead_letter=None)
    scene.provider.claim(
        "k", "sender", TTL_MS, Message(id="m1", event={"id": "m1", "raises": True, "card": "4111"}), as_ticket=True
    )
    scene.provider.release_lease("k", "sender")
    with caplog.at_level(logging.WARNING, logger="incumbent"):
        scene.invoke(scene.handler(), "m2")
    (line,) = [record.getMessage() for record in caplog.records if "dead" in record.getMessage()]
    assert "'k'" in line
    assert "m1" in line
    assert "4111" not in line


def test_what_only_pauses_is_not_told() -> None:
    """A failed message with attempts left is nobody's dead letter."""
    scene = Scene(policy=Policy())
    scene.provider.claim("k", "sender", TTL_MS, Message(id="m1", event={"id": "m1", "raises": True}), as_ticket=True)
    scene.provider.release_lease("k", "sender")
    assert scene.invoke(scene.handler(), "m2") == "m2"
    assert scene.died == []
    assert scene.facts.of("dead") == []


def test_hook_that_cannot_be_called_is_refused() -> None:
    """As every hook is, when the handler is decorated."""
    with pytest.raises(Exception, match="on_dead_letter is 7"):
        Scene(on_dead_letter=7).handler()
