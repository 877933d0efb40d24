"""Strict order (on_error="block") through Powertools' batches: later records of a key wait for a failed one."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.kinesis_stream_event import KinesisStreamRecord
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import Lease, Policy, leased_function
from tests.end_to_end.stores import SKEW_MS, ObservedStore, dynamodb_store, memory_store, redis_store
from tests.end_to_end.test_who_may_retry import LEFT_MS
from tests.functions.test_sources import load
from tests.unit.stage import context

BLOCK = Policy(on_error="block", pauses_ms=(60_000,), max_attempts=3)
_numbers = itertools.count()
PROCESSORS: dict[str, Any] = {
    "standard": lambda: BatchProcessor(event_type=EventType.SQS),
    "fifo": SqsFifoPartialProcessor,
    "fifo, other groups go on": lambda: SqsFifoPartialProcessor(skip_group_on_error=True),
    "kinesis": lambda: BatchProcessor(event_type=EventType.KinesisDataStreams),
}


@pytest.fixture(scope="module", params=["memory", "redis", "dynamodb"])
def observed(request: pytest.FixtureRequest) -> Iterator[ObservedStore]:
    """Each kind of store."""
    if request.param == "memory":
        yield memory_store()
    elif request.param == "redis":
        with redis_store(request.getfixturevalue("valkey_server")) as observed:
            yield observed
    else:
        with dynamodb_store("dynamodb", request.getfixturevalue("dynamodb_server")) as observed:
            yield observed


class Batches:
    """A function of one record, a batch of numbered records of one key, and what ran in which order."""

    def __init__(self, observed: ObservedStore, kind: str, policy: Policy = BLOCK, **options: Any) -> None:
        self.observed, self.kind = observed, kind
        self.ran: list[int] = []
        self.fails: set[int] = set()

        @leased_function(
            key=lambda _: "order",
            keyspace=f"batches-{next(_numbers)}",
            provider=observed.provider,
            clock=observed.clock,
            policy=policy,
            **options,
        )
        def apply(record: SQSRecord | KinesisStreamRecord, lambda_context: Any, *, lease: Lease) -> None:
            number = int(lease.messages[0].id.rpartition("-")[2])
            self.ran.append(number)
            if number in self.fails:
                raise ValueError(number)

        self.apply = apply

    def deliver(self, *numbers: int) -> list[int]:
        """Bring these records in one batch; return which of them their source keeps."""
        template = load("kinesis" if self.kind == "kinesis" else f"sqs-{self.kind.partition(',')[0]}")["Records"][0]
        records = []
        for number in numbers:
            record = copy.deepcopy(template)
            record["messageId" if "messageId" in record else "eventID"] = f"id-{number}"
            if "kinesis" in record:
                record["kinesis"]["sequenceNumber"] = f"id-{number}"
            records.append(record)
        processor = PROCESSORS[self.kind]()
        processor.raise_on_entire_batch_failure = False
        answer = process_partial_response(
            event={"Records": records},
            record_handler=self.apply,
            processor=processor,
            context=context(self.observed.clock, time_left_ms=LEFT_MS),  # type: ignore[arg-type]
        )
        return [int(str(each["itemIdentifier"]).rpartition("-")[2]) for each in answer["batchItemFailures"]]


@pytest.mark.parametrize("kind", PROCESSORS)
def test_record_after_a_failed_one_of_its_key_waits(observed: ObservedStore, kind: str) -> None:
    """In its batch, and in later ones; then all run in their order, each once more at most."""
    batches = Batches(observed, kind)
    batches.fails = {4}
    kept = batches.deliver(3, 4, 5, 6)
    assert batches.ran == [3, 4]
    assert kept == ([4, 5, 6] if kind.startswith("fifo") else [4])
    assert batches.deliver(7) == []
    assert batches.ran == [3, 4]

    batches.fails = set()
    batches.observed.pass_time(60_000 + SKEW_MS)
    assert batches.deliver(*kept) == []  # it comes again, and so do those behind it if their source kept them
    assert batches.ran[2] == 4
    assert sorted(batches.ran[3:]) == [5, 6, 7]
    if not kind.startswith("fifo"):
        assert batches.ran == [3, 4, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", PROCESSORS)
def test_source_that_comes_again_during_the_pause_is_told_that_it_is_safe(observed: ObservedStore, kind: str) -> None:
    """It is the mailbox's to retry, and its source gives up no attempt of its own."""
    batches = Batches(observed, kind)
    batches.fails = {4}
    assert batches.deliver(4) == [4]
    for _ in range(3):
        assert batches.deliver(4) == []
    assert batches.ran == [4]


def test_record_that_never_works_is_a_dead_letter_and_blocks_no_longer(observed: ObservedStore) -> None:
    """After max_attempts of the mailbox, whichever of its source."""
    dead: list[str] = []
    batches = Batches(observed, "standard", on_dead_letter=lambda message: dead.append(message.id))
    batches.fails = {4}
    assert batches.deliver(4, 5) == [4]
    for number in (6, 7, 8):
        batches.observed.pass_time(60_000 + SKEW_MS)
        assert batches.deliver(number) == []
    assert dead == ["id-4"]
    assert batches.ran == [4, 4, 4, 5, 6, 7, 8]
    assert batches.deliver(4) == []  # its source is told what became of it


def test_failed_record_leaves_where_later_ones_skip_ahead(observed: ObservedStore) -> None:
    """on_error="skip", unless set: its source keeps it and brings it again, as ever."""
    batches = Batches(observed, "standard", policy=Policy())
    batches.fails = {4}
    assert batches.deliver(4, 5) == [4]
    assert batches.ran == [4, 5]
    batches.fails = set()
    assert batches.deliver(4) == []
    assert batches.ran == [4, 5, 4]


def test_call_that_nobody_would_know_again_is_not_kept(observed: ObservedStore) -> None:
    """A message without an id of its own: kept, it would run beside the one that its caller brings again."""
    ran: list[int] = []

    def work(event: Any) -> None:
        ran.append(event["n"])
        if event["n"] == 1 and ran.count(1) == 1:
            raise ValueError("no")

    call = leased_function(
        key="order",
        keyspace=f"batches-{next(_numbers)}",
        provider=observed.provider,
        clock=observed.clock,
        policy=BLOCK,
    )(work)
    with pytest.raises(ValueError, match="no"):
        call({"n": 1})
    call({"n": 2})
    call({"n": 1})
    assert ran == [1, 2, 1]
