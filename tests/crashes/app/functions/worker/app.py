"""A worker on a store that kills it: hands over after each run, takes what has come, fails when it is told to."""

import os
import time
from functools import cache
from typing import Any

from dying import ASKED, Dying, count_requests, die  # type: ignore[import-not-found]

from incumbent import LambdaWaker, Lease, Policy, RetryLater, leased
from incumbent.providers import from_env

TTL_MS = 1_500
POLICY = Policy(max_attempts=2, pauses_ms=(50,))


@cache
def store() -> Any:
    """The store that the environment names, with a margin for clocks that suits a test on one machine."""
    if os.environ["INCUMBENT_PROVIDER"] != "dynamodb":
        return from_env()
    import boto3
    from botocore.config import Config

    from incumbent.providers.dynamodb import DynamoDBProvider

    config = Config(connect_timeout=1, read_timeout=1, retries={"total_max_attempts": 1})
    client = boto3.client("dynamodb", config=config)
    count_requests(client)
    return DynamoDBProvider(table_name=os.environ["INCUMBENT_TABLE_NAME"], client=client, max_clock_skew_ms=100)


@leased(
    key_jmespath="key",
    message_id_jmespath="id",
    keyspace="w",
    provider=Dying(store()),
    waker=Dying(LambdaWaker(), "wake"),
    ttl_ms=TTL_MS,
    drain_ms=0,
    policy=POLICY,
)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Run for as long as the event says; the first one of a key until the others have come."""
    die(f"w/{lease.key}", "run.begin")
    time.sleep(event.get("ms", 0) / 1_000)
    if event.get("hangs") and lease.attempt == 1:
        time.sleep(30)  # past the function's timeout
    followed = ASKED / f"{lease.key}.followed"
    while event.get("first") and not followed.exists() and not lease.stop:
        time.sleep(0.005)
    taken = lease.take() if event.get("takes") else []
    die(f"w/{lease.key}", "run.end")
    held = ASKED / f"{lease.key}.held"
    if event.get("holds") and not held.exists():
        held.touch()
        raise RetryLater(100, scope="key")
    if any(message.event.get("raises") for message in (*lease.messages, *taken)):
        raise RuntimeError("this one always fails")
    return str(event["id"])
