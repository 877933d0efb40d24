"""Functions whose messages wait: for a burst to end, for a pause, or for one another's results."""

import json
from typing import Any

from incumbent import Lease, Policy, leased, send
from incumbent.clock import SYSTEM_CLOCK

PAUSING = Policy(pauses_ms=(1_000,))


@leased(
    key_jmespath="key",
    message_id_jmespath="message",
    keyspace="bursts",
    deliver="all",
    debounce_ms=1_500,
    debounce_max_ms=6_000,
)
def burst(event: dict[str, Any], context: Any, *, lease: Lease) -> int:
    """Print how many messages came together."""
    print("gathered", len(lease.messages))
    return len(lease.messages)


@leased(key_jmespath="key", message_id_jmespath="message", keyspace="fails", policy=PAUSING)
def fails_once(event: dict[str, Any], context: Any, *, lease: Lease) -> int:
    """Succeed at the second attempt."""
    if lease.attempt == 1:
        raise RuntimeError("not yet")
    return lease.attempt


def front(event: dict[str, Any], context: Any) -> None:
    """Store a message for ``fails_once``, which has no caller then that would retry it."""
    send(event["key"], event, message_id=event["message"], target="fails_once", keyspace="fails", policy=PAUSING)


@leased(
    key_jmespath="powertools_json(body).order_id",
    message_id_jmespath="requestContext.requestId",
    keyspace="awaited",
    when_busy="wait",
    wait_ms=15_000,
    policy=Policy(result_bytes=100),
)
def awaited(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Reserve what a caller of the HTTP API has ordered; the answer is for that caller."""
    SYSTEM_CLOCK.sleep_ms(50)
    return {"statusCode": 200, "body": f"reserved {json.loads(event['body'])['item']}"}


@leased(key_jmespath="key", message_id_jmespath="message", keyspace="steady")
def steady(event: dict[str, Any], context: Any) -> None:
    """Work for a moment, so that the thread that renews begins to wait: for ten seconds."""
    SYSTEM_CLOCK.sleep_ms(300)


@leased(key_jmespath="key", message_id_jmespath="message", keyspace="long", ttl_ms=600)
def longer_than_its_ttl(event: dict[str, Any], context: Any, *, lease: Lease) -> str:
    """Work for three times the ttl, and say whether the lease still stands."""
    SYSTEM_CLOCK.sleep_ms(1_800)
    return str(lease.stop)
