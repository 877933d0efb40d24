"""Apply the updates of orders from SQS, standard or FIFO: one owner an order, and one record's failure is its own."""

import json
import os
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import Lease, Policy, leased_function
from orders import Orders, orders_from_env

# The one function under a lease here, so it has the keyspace of the Lambda function: metrics go by that name.
KEYSPACE = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "orders")


# A record may come again for as long as its queue keeps it: 4 days in template.yaml.
POLICY = Policy(window_ms=4 * 86_400_000)


@leased_function(key_jmespath="powertools_json(body).order_id", keyspace=KEYSPACE, waker="auto", policy=POLICY)
def apply(record: SQSRecord, lambda_context: object, *, lease: Lease) -> None:
    """Apply one update under its order's lease.

    While another invocation has the order, the record is handed over to it and counts as done here. What it raises is
    this record's failure: SQS delivers it again, and no other record with it.
    """
    orders().apply(lease.key, json.loads(record.body), message_id=record.message_id, fence=lease.fence)


def handler(event: dict[str, Any], context: Any) -> Any:
    """Take a batch record by record, and report those that failed."""
    if apply.resume(event, context):  # woken to go on with an order that another invocation handed over
        return {"batchItemFailures": []}
    return process_partial_response(
        event=event,
        record_handler=apply,
        processor=fifo if event["Records"][0]["eventSourceARN"].endswith(".fifo") else standard,
        context=context,
    )


# After a failure, the later records of the same group wait for their turn; those of other groups do not.
fifo = SqsFifoPartialProcessor(skip_group_on_error=True)
standard = BatchProcessor(event_type=EventType.SQS)


@cache
def orders() -> Orders:
    """Where the orders are. Made on first use, not at import: a snapshot would copy its connections."""
    return orders_from_env()
