"""What people write first: append if busy, drain, release. It tells what it does as incumbent would."""

import json
import os
import sys
import time
from functools import cache
from typing import Any

import redis

LOOKED_MS = 8


@cache
def server() -> "redis.Redis":
    """The client, made once."""
    return redis.Redis.from_url(os.environ["INCUMBENT_REDIS_URL"])


def handler(event: dict[str, Any], context: Any) -> str:
    """Own the key or append to its list; drain the list, and release."""
    key, me = event["key"], context.aws_request_id
    if not server().set(f"naive:{key}", me, nx=True, px=30_000):
        server().rpush(f"naive:{key}:mail", event["id"])
        tell("routed", event, me)
        return "accepted"
    tell("claimed", event, me)
    tell("run_started", event, me)
    ran = [event["id"]]
    # Each message is read and removed in one step, so that only the closing window can lose one.
    while waiting := server().lpop(f"naive:{key}:mail"):
        ran.append(waiting.decode())  # type: ignore[union-attr]
    time.sleep(LOOKED_MS / 1_000)
    tell("run_ended", event, me, ran)
    server().delete(f"naive:{key}")
    return str(event["id"])


def tell(fact: str, event: dict[str, Any], me: str, ran: list[str] | None = None) -> None:
    """Print a fact."""
    said = {
        "fact": fact,
        "t_ms": time.time() * 1_000,
        "key": event["key"],
        "owner": f"{me}.1",
        "request_id": me,
        "message_id": event["id"],
        "message_ids": ran or [event["id"]],
        "outcome": "handled" if ran else None,
    }
    print(f"INCUMBENT {json.dumps(said)}", file=sys.stderr, flush=True)
