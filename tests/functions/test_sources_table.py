"""What follows each row of *Who may retry*: a source that comes again, the next owner, and nothing run for nothing.

What each source is told stands in ``tests/end_to_end/test_who_may_retry.py``. Here the story goes on, for one source of
each class and on each kind of store: an HTTP API, whose caller waits; an event bus, which retries; a queue's record.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import (
    Busy,
    Claimed,
    Continued,
    Failure,
    Idle,
    Lease,
    LeaseUnavailable,
    Message,
    Policy,
    Wake,
    leased_function,
)
from tests.end_to_end.stores import SKEW_MS, ObservedStore, dynamodb_store, memory_store, redis_store
from tests.end_to_end.test_who_may_retry import DONE, LEFT_MS, SOURCES, TTL_MS, Cell
from tests.unit.stage import context, raising

CLASSES = [source for source in SOURCES if source.name in {"api-gateway-http", "eventbridge", "sqs-standard"}]
ACCEPTED = {"202", "success"}
WELL = {"200", "success"}
BLOCK = Policy(on_error="block")

Make: TypeAlias = Callable[..., "Story"]


@pytest.fixture(scope="module", params=["memory", "redis", "dynamodb"])
def observed(request: pytest.FixtureRequest) -> Iterator[ObservedStore]:
    """Each kind of store; the same with dynalite, in cluster mode and under faults is the conformance suite's."""
    if request.param == "memory":
        yield memory_store()
    elif request.param == "redis":
        with redis_store(request.getfixturevalue("valkey_server")) as observed:
            yield observed
    else:
        with dynamodb_store("dynamodb", request.getfixturevalue("dynamodb_server")) as observed:
            yield observed


@pytest.fixture(params=CLASSES, ids=lambda source: source.kind)
def make(request: pytest.FixtureRequest, observed: ObservedStore) -> Make:
    """A message of one class of sources on one store, whose function has these options."""
    return lambda **options: Story(observed, request.param, **options)


class Story(Cell):
    """One message, told to the end."""

    def __init__(self, observed: ObservedStore, source: Any, **options: Any) -> None:
        super().__init__(observed, source, **options)
        self.observed = observed
        self.ran: list[tuple[str, int]] = []
        self.work: Callable[[Lease], Any] = lambda _: DONE
        self.do = self._note

    def _by_record(self, options: dict[str, Any], processor: BatchProcessor) -> Callable[[Any, Any], Any]:
        @leased_function(**options)
        def apply(record: SQSRecord, lambda_context: Any = None, **more: Lease) -> Any:
            return self.do(more["lease"])

        def handler(event: Any, context: Any) -> Any:
            return process_partial_response(event=event, record_handler=apply, processor=processor, context=context)

        self.apply = apply
        return handler

    def _note(self, lease: Lease) -> Any:
        self.ran.append((lease.messages[0].id, lease.attempt))
        return self.work(lease)

    def resume(self, wake: Wake) -> None:
        """Let the woken invocation come."""
        own = context(self.clock, time_left_ms=LEFT_MS, request_id="woken")
        if self.source.records is None:
            self.handler(wake.to_event(), own)
        else:
            assert self.apply.resume(wake.to_event(), own)

    def fails(self) -> bool:
        """Bring the message; whether its source is told that it failed."""
        said = self.told()
        return said.startswith("error") or said == "failure" or said[:3] in {"409", "413", "429", "503"}

    def expire(self) -> None:
        """Let every lease end, for strangers too, and then the pause of what died with its first run (M6)."""
        self.observed.pass_time(TTL_MS + SKEW_MS + Policy().pause_ms(1))

    def leave(self, *ids: str) -> None:
        """Let a dead owner leave messages."""
        for message_id in ids:
            self.provider.claim(self.key, "dead", TTL_MS, Message(id=message_id, event={}), as_ticket=True)
        self.provider.release_lease(self.key, "dead")

    def next_given(self, policy: Policy = BLOCK) -> list[tuple[str, int]]:
        """Let a next owner handle all that is due; what it was given, and as which delivery."""
        given: list[tuple[str, int]] = []
        answer: object = self.provider.claim(self.key, "next-0", TTL_MS, None, policy=policy)
        while isinstance(answer, Claimed | Continued):
            given += [(message.id, message.attempt) for message in answer.messages]
            answer = self.provider.settle(
                self.key,
                answer.owner,
                ttl_ms=TTL_MS,
                handled=[message.id for message in answer.messages],
                next_owner=f"next-{len(given)}",
                policy=policy,
            )
        return given


def test_raised_message_is_run_again_by_its_sources_retry(make: Make) -> None:
    """As if it were the first delivery: nothing was kept of the failed one (M3)."""
    story = make()
    story.work = raising(ValueError("no"))
    assert story.fails()
    assert story.next_given() == []
    story.work = lambda _: DONE
    assert story.told() in WELL
    assert story.ran == [(story.id, 1), (story.id, 1)]


def test_raised_message_that_was_promised_is_run_by_the_mailbox(make: Make) -> None:
    """Not during its pause, though its source comes again and is told that it is safe; then once (M6, M11)."""
    # H52: a duplicate is answered as success, then the first run raises and takes the message along.
    story = make()

    def raise_after_a_duplicate(_: Lease) -> None:
        assert story.told() in ACCEPTED
        raise ValueError("no")

    story.work = raise_after_a_duplicate
    assert story.fails()
    assert story.told() in ACCEPTED
    assert story.next_given() == []
    story.observed.pass_time(1_000)
    assert story.next_given() == [(story.id, 2)]
    assert story.told() in WELL
    assert story.ran == [(story.id, 1)]


def test_deferred_message_goes_on_with_the_next_owner(make: Make) -> None:
    """At its observed, its delivery not counted (M6)."""
    story = make()
    story.work = lambda lease: lease.defer()
    assert story.told() in ACCEPTED
    assert story.next_given() == [(story.id, 1)]


def test_routed_message_goes_to_the_next_owner(make: Make) -> None:
    """The holder died without settling: its own message first, then this one (M4, M8)."""
    # H40: message to an owner that has just died: Mastra #23801.
    story = make()
    story.own(Message(id="m0", event={}))
    assert story.told() in ACCEPTED
    story.expire()
    assert story.next_given() == [("m0", 2), (story.id, 1)]
    assert story.told() in WELL
    assert story.ran == []


def test_message_behind_older_ones_is_run_in_its_turn(make: Make) -> None:
    """In place by an invocation that nobody waits for; else by the one that is woken, each once (M4, M9)."""
    story = make(waker="recording")
    story.leave("m0")
    assert story.told() in ACCEPTED
    assert len(story.waker.wakes) == (0 if story.source.kind == "asynchronous" else 1)
    for wake in story.waker.wakes:
        story.resume(wake)
    assert story.ran == [("m0", 1), (story.id, 1)]
    assert story.next_given() == []


def test_message_that_was_not_reached_goes_to_the_next_owner(make: Make) -> None:
    """The time was up after an older one: its source is told that it is safe, and it is (M3)."""
    story = make(drain_ms=0)
    story.leave("m0")
    assert story.told() in ACCEPTED
    assert story.ran == [("m0", 1)]
    assert story.afterwards() == "promised"
    assert story.next_given() == [(story.id, 1)]


def test_message_behind_a_paused_one_waits_for_it(make: Make) -> None:
    """on_error="block": strict order: it is safe, does not run ahead, and is not run by coming again (M6)."""
    story = make(policy=BLOCK)
    story.own(Message(id="m0", event={}))
    story.provider.settle(story.key, "somebody", ttl_ms=TTL_MS, failed=[Failure(id="m0", error="no")], policy=BLOCK)
    for _ in range(2):
        assert story.told() in ACCEPTED
    assert story.afterwards() == "promised"
    assert story.next_given() == []
    story.observed.pass_time(1_000)
    assert story.next_given() == [("m0", 2), (story.id, 1)]
    assert story.ran == []


def test_message_that_is_overtaken_by_a_pause_is_promised(make: Make) -> None:
    """on_error="block": the older one fails in this very invocation, so that the own one is not reached (M3)."""
    story = make(policy=BLOCK)
    story.leave("m0")
    story.work = raising(ValueError("no"))
    assert story.told() in ACCEPTED
    assert story.ran == [("m0", 1)]
    assert story.afterwards() == "promised"
    story.observed.pass_time(1_000)
    assert story.next_given() == [("m0", 2), (story.id, 1)]


def test_refused_message_is_run_when_its_source_comes_again(make: Make) -> None:
    """Busy under "reject": nothing was stored, so it is run by its retry and by nobody else."""
    story = make(when_busy="reject")
    story.own()
    assert story.fails()
    story.provider.release_lease(story.key, "somebody")
    assert story.next_given() == []
    assert story.told() in WELL
    assert story.ran == [(story.id, 1)]


def test_message_that_found_no_room_is_run_when_there_is_some(make: Make) -> None:
    """M7: nothing was stored; the caller that finds the key free owns it even if there is still no room.

    What died with its run goes behind it (M6).
    """
    # H55: a full mailbox refuses the only one who could empty it.
    story = make(policy=Policy(max_pending=1))
    story.own(Message(id="m0", event={}))
    assert story.fails()
    story.expire()
    assert story.told() in WELL
    assert story.ran == [(story.id, 1), ("m0", 2)]


def test_claim_whose_reply_is_lost_is_found_by_the_retry(make: Make) -> None:
    """Stored, owned by nobody alive, not promised: the retry waits for the ttl, and then runs it (M1, M3)."""
    # H54: the retry of a crashed invocation is called a duplicate of itself, key free, nobody runs it.
    story = make()
    story.meddled.after["claim"] = raising(LeaseUnavailable("no answer"))
    assert story.fails()
    assert story.afterwards() == "kept"
    story.meddled.after.clear()
    story.expire()
    assert story.told() in WELL
    assert story.ran == [(story.id, 2)]


def test_settle_whose_reply_is_lost_is_not_run_again(make: Make) -> None:
    """It was handled, but nobody knows: the error sends its source back, which is told what became of it (R8, R9)."""
    story = make()
    story.meddled.after["settle"] = raising(LeaseUnavailable("no answer"))
    assert story.fails()
    story.meddled.after.clear()
    assert story.told() in WELL
    assert story.ran == [(story.id, 1)]


def test_settle_that_never_arrived_is_run_again(make: Make) -> None:
    """At least once: after the ttl, by its source's retry (M8)."""
    story = make()
    story.meddled.before["settle"] = raising(LeaseUnavailable("no answer"))
    assert story.fails()
    story.meddled.before.clear()
    assert story.told() in ACCEPTED  # the lease still lives: it is called running, and so it is promised
    story.expire()
    assert story.told() in WELL
    assert story.ran == [(story.id, 1), (story.id, 2)]


def test_lost_message_is_run_by_the_next_owner(make: Make) -> None:
    """Nothing of the lost run is settled; whoever owns the key next runs it, and its source's retry is told so (R3)."""
    # H37: a stale owner writes after expiry: Mastra #23734.
    story = make()

    def lose(lease: Lease) -> Any:
        story.provider.transfer_lease(story.key, lease.owner, "thief", TTL_MS)
        return DONE

    story.work = lose
    assert story.fails()
    assert isinstance(story.provider.claim(story.key, "nobody", TTL_MS, None), Busy)
    story.provider.release_lease(story.key, "thief")
    story.expire()
    assert story.next_given() == [(story.id, 2)]
    assert story.told() in WELL
    assert story.ran == [(story.id, 1)]
    assert story.provider.claim(story.key, "nobody", TTL_MS, None) == Idle()
