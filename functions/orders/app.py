"""Apply order updates from SQS, standard or FIFO: each order has one owner, and each record fails by itself."""

import json
import logging
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

# This is the only function with a lease here, so it takes the Lambda function's name: metrics appear under it.
KEYSPACE = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "orders")


# SQS may deliver a record again for as long as its queue keeps it: 4 days in template.yaml.
POLICY = Policy(window_ms=4 * 86_400_000)


@leased_function(key_jmespath="powertools_json(body).order_id", keyspace=KEYSPACE, waker="auto", policy=POLICY)
def apply(record: SQSRecord, lambda_context: object, *, lease: Lease) -> None:
    """Apply one update under its order's lease.

    While another invocation owns the order, that one gets the record, which counts as done here. If this raises, only
    this record fails: SQS delivers it again, and no other record.
    """
    orders().apply(lease.key, json.loads(record.body), message_id=record.message_id, fence=lease.fence)


def handler(event: dict[str, Any], context: Any) -> Any:
    """Process a batch record by record, and report the failed records."""
    if apply.resume(event, context):  # woken to continue an order that another invocation handed over
        return {"batchItemFailures": []}
    return process_partial_response(
        event=event,
        record_handler=apply,
        processor=fifo if event["Records"][0]["eventSourceARN"].endswith(".fifo") else standard,
        context=context,
    )


# Without a logger, a batch of which only some records failed leaves no line in the log.
LOG = logging.getLogger(__name__)

# After a failure, later records of the same group wait; those of other groups do not.
fifo = SqsFifoPartialProcessor(skip_group_on_error=True, logger=LOG)
standard = BatchProcessor(event_type=EventType.SQS, logger=LOG)


@cache
def orders() -> Orders:
    """Return the store of orders. It is made on first use, not at import: a snapshot would copy its connections."""
    return orders_from_env()
