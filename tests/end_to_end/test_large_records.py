"""Records as large as SQS delivers them are run, on every store, whatever else comes for their key."""

import json
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import Lease, Policy, leased, leased_function
from tests.end_to_end.stores import ObservedStore
from tests.unit import stage

LEFT_MS = 8_000


def context(observed: ObservedStore, request_id: str) -> Any:
    """An invocation's."""
    return stage.context(observed.clock, time_left_ms=LEFT_MS, request_id=request_id)


def batch(*records: tuple[str, str]) -> dict[str, Any]:
    """An SQS event of messages with these ids and bodies."""
    return {
        "Records": [
            {
                "messageId": message_id,
                "receiptHandle": f"handle-{message_id}",
                "body": body,
                "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183"},
                "messageAttributes": {},
                "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders",
                "awsRegion": "eu-central-1",
            }
            for message_id, body in records
        ]
    }


def body_of(size: int, **more: Any) -> str:
    """JSON of that many bytes."""
    body = json.dumps({"order_id": "o-1", **more, "filling": ""})
    return body[:-2] + "x" * (size - len(body)) + '"}'


# 1 MiB of quotes is the most that SQS delivers, and twice as much as JSON in JSON.
BODIES = {
    "300 KB": body_of(300_000),
    "900 KB": body_of(900_000),
    "1 MiB of quotes": body_of(200_000, q='"' * 420_000)[:1_048_576],
}


@pytest.mark.parametrize("size", BODIES)
def test_record_on_a_free_key_is_run(observed: ObservedStore, size: str) -> None:
    """By both decorators; nothing is left of it."""
    seen: list[str] = []
    options: dict[str, Any] = {"keyspace": "k", "provider": observed.provider, "clock": observed.clock, "waker": None}

    @leased(key="one", **options)
    def handler(event: dict[str, Any], _: object) -> None:
        seen.append(event["Records"][0]["body"])

    @leased_function(key="two", **options)
    def apply(record: SQSRecord, lambda_context: Any) -> None:
        seen.append(record.body)

    event = batch(("m1", BODIES[size]))
    handler(event, context(observed, "r1"))
    answer = process_partial_response(
        event=event,
        record_handler=apply,
        processor=BatchProcessor(event_type=EventType.SQS),
        context=context(observed, "r2"),
    )
    assert answer == {"batchItemFailures": []}
    assert seen == [BODIES[size]] * 2
    assert [observed.provider.peek(key) for key in ("k/one", "k/two")] == [(), ()]


def test_record_behind_an_owner_is_promised_and_run(observed: ObservedStore) -> None:
    """The queue deletes it, so it is stored whole; its owner runs it next."""
    seen: list[int] = []
    options: dict[str, Any] = {"keyspace": "k", "provider": observed.provider, "clock": observed.clock, "waker": None}

    @leased_function(key="two", **options)
    def apply(record: SQSRecord, lambda_context: Any, *, lease: Lease) -> None:
        seen.append(len(record.body))
        if len(seen) == 1:
            assert deliver("m2") == {"batchItemFailures": []}

    def deliver(message_id: str) -> Any:
        return process_partial_response(
            event=batch((message_id, BODIES["900 KB"])),
            record_handler=apply,
            processor=BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False),
            context=context(observed, f"r-{message_id}"),
        )

    assert deliver("m1") == {"batchItemFailures": []}
    assert seen == [900_000, 900_000]
    assert observed.provider.peek("k/two") == ()


def test_record_beyond_the_policy_is_its_own_failure(observed: ObservedStore) -> None:
    """M7: the queue keeps it, and the others of the batch run."""
    seen: list[str] = []
    options: dict[str, Any] = {"keyspace": "k", "provider": observed.provider, "clock": observed.clock, "waker": None}

    @leased_function(key="two", policy=Policy(max_message_bytes=200_000), **options)
    def apply(record: SQSRecord, lambda_context: Any) -> None:
        seen.append(record.message_id)

    answer = process_partial_response(
        event=batch(("m1", BODIES["300 KB"]), ("m2", "small")),
        record_handler=apply,
        processor=BatchProcessor(event_type=EventType.SQS),
        context=context(observed, "r1"),
    )
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
    assert seen == ["m2"]
