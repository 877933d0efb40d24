"""What ``incumbent verify`` asks of a store, counted: ``python -m tests.verify.measuring`` writes ``costs.json``."""

import json
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import boto3
import pytest
import redis

from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table, dynalite, valkey
from incumbent.verify import costs, run
from incumbent.verify.redis_store import RedisStore
from incumbent.verify.store import REQUESTS, SEARCHES, VerifiedStore
from incumbent.verify.table_store import TableStore

PARTS = ("pairs", "replies", "conformance")
_SENT = ("evalsha", "eval", "scan")  # by clients; the scripts send all the others


def on_valkey(server: ValkeyServer, part: str) -> dict[str, float]:
    """Run a part on a Valkey that only this test uses, and count what the server was asked."""
    with redis.Redis(port=server.port) as client:
        client.config_resetstat()
        _run(RedisStore({"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": server.url}), part)
        stats: Any = client.info("commandstats")
    calls = {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _SENT}
    return {REQUESTS: sum(calls.values()), SEARCHES: calls["scan"]}


def on_table(server: DynamoDBServer, part: str) -> dict[str, float]:
    """Run a part on a table of its own, and count what the clients were told."""
    table = f"test-{uuid.uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        client = boto3.client("dynamodb")
        create_table(client, table)
        client.close()
        store = TableStore({"INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": table})
        _run(store, part)
    return {name: round(number) for name, number in store.used.items()}


def _run(store: VerifiedStore, part: str) -> None:
    """Run a part, all of which must be good, and remove what it has stored."""
    bad = [check.line() for check in (*run.verified(store, [part]), *run.emptied(store)) if check.status == "failed"]
    assert not bad, bad


def main(parts: Sequence[str]) -> None:
    """Measure these parts on both stores, and write what was found beside what is known of the others."""
    found = costs.measured()
    with valkey() as redis_server, dynalite() as table_server:
        for part in parts:
            found.setdefault("redis", {})[part] = on_valkey(redis_server, part)
            found.setdefault("dynamodb", {})[part] = on_table(table_server, part)
    costs.MEASURED.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or PARTS)
