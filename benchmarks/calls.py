"""What one run costs in time and requests, beside the locks that people use.

    python benchmarks/calls.py [--runs 300]

One run takes a free key and gives it back. incumbent stores a message on the way and reports it as handled, which a
lock does not; ``lease only`` is the like for like. The stores run on this machine: Valkey, and moto for DynamoDB, which
is slower than the service. Absolute times are this machine's; look at the ratios and at the requests.

python-redis-lock and python-dynamodb-lock are measured where they are installed (``pip install -e '.[bench]'``).
"""

import argparse
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import boto3
import redis
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.persistence.redis import CachePersistenceLayer

from incumbent import Message, leased
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.servers import create_table, locked_moto, valkey

TTL_MS = 30_000
TABLE, RECORDS, LOCKS = "leases", "idempotency", "locks"

Run = Callable[[str], object]


def with_message(provider: Any) -> Run:
    """A claim with its message, and the settle that reports it as handled and frees the key."""

    def run(key: str) -> None:
        provider.claim(key, "owner", TTL_MS, Message(id=key, event={"text": "hello"}))
        provider.settle(key, "owner", handled=[key], ttl_ms=TTL_MS)

    return run


def lease_only(provider: Any) -> Run:
    """Acquire and release."""

    def run(key: str) -> None:
        provider.acquire_lease(key, "owner", TTL_MS)
        provider.release_lease(key, "owner")

    return run


def decorated(provider: Any) -> Run:
    """A whole invocation, heartbeat included."""

    @leased(key=lambda event: event["key"], message_id=lambda event: event["key"], provider=provider, keyspace="")
    def handler(event: Any, context: object) -> None:
        """Do nothing."""

    return lambda key: handler({"key": key}, None)


def redis_lock(client: Any) -> Run:
    """redis-py's own lock."""

    def run(key: str) -> None:
        with client.lock(key, timeout=30):
            pass

    return run


def python_redis_lock(client: Any) -> Run | None:
    """The package python-redis-lock, if it is here."""
    try:
        import redis_lock as package
    except ImportError:
        return None

    def run(key: str) -> None:
        with package.Lock(client, key, expire=30):
            pass

    return run


def idempotency(layer: Any) -> Run:
    """A function under Powertools' idempotency."""

    def work(data: str) -> str:
        return data

    decorator: Any = idempotent_function(
        data_keyword_argument="data", persistence_store=layer, config=IdempotencyConfig()
    )
    once = decorator(work)
    return lambda key: once(data=key)


def python_dynamodb_lock(session: Any) -> Run | None:
    """The package python-dynamodb-lock, if it is here."""
    try:
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient
    except ImportError:
        return None
    # Its threads wait for long, and its atexit handler would wait for them.
    locks = DynamoDBLockClient(session.resource("dynamodb"), table_name=LOCKS)

    def run(key: str) -> None:
        locks.acquire_lock(key).release()

    return run


def microseconds(run: Run, name: str, runs: int) -> float:
    """Return the median of a run, after some that do not count."""
    times = []
    for number in range(-20, runs):
        began = time.perf_counter()
        run(f"{name}/{number}")
        times.append(time.perf_counter() - began)
    return statistics.median(times[20:]) * 1e6


def commands(run: Run, name: str, client: Any, url: str) -> float:
    """Return how many commands one run sends to Redis; those inside of scripts are none."""
    client.ping()
    watcher: Any = redis.Redis.from_url(url)
    with watcher.monitor() as monitor:
        for number in range(10):
            run(f"{name}/watched/{number}")
        client.echo("that was all")
        count = 0
        for command in monitor.listen():
            if "that was all" in command["command"]:
                return count / 10
            count += command["client_type"] != "lua"
    raise AssertionError


def table(title: str, found: dict[str, tuple[float, float] | None]) -> None:
    """Print one store's figures; the first row is what the others are compared with."""
    base = next(each[0] for each in found.values() if each is not None)
    print(f"\n{title:40}{'µs':>10}{'requests':>10}{'times':>8}")
    for name, figures in found.items():
        if figures is None:
            print(f"{name:40}{'not installed':>20}")
        else:
            print(f"{name:40}{figures[0]:10.0f}{figures[1]:10.1f}{figures[0] / base:8.2f}")


def on_redis(runs: int) -> None:
    """Valkey on a free port."""
    with valkey() as server:
        client: Any = redis.Redis.from_url(server.url)
        provider = RedisProvider(url=server.url)
        variants: dict[str, Run | None] = {
            "incumbent, lease only": lease_only(provider),
            "incumbent, claim and settle": with_message(provider),
            "incumbent, @leased": decorated(provider),
            "redis-py Lock": redis_lock(client),
            "python-redis-lock": python_redis_lock(client),
            "Powertools idempotency": idempotency(CachePersistenceLayer(client=client)),
        }
        found = {
            name: None if run is None else (microseconds(run, name, runs), commands(run, name, client, server.url))
            for name, run in variants.items()
        }
        table("Redis (Valkey)", found)


def on_dynamodb(runs: int) -> None:
    """Moto behind one lock."""
    with locked_moto() as server:
        os.environ.update(server.environment)
        session = boto3.Session()
        sent: list[object] = []
        session.events.register("before-send.dynamodb.*", lambda **_: sent.append(None))
        client: Any = session.client("dynamodb")
        create_table(client, TABLE)
        for name, keys in ((RECORDS, ("id",)), (LOCKS, ("lock_key", "sort_key"))):
            client.create_table(
                TableName=name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
                KeySchema=[
                    {"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
                ],
            )
        provider = DynamoDBProvider(table_name=TABLE, boto3_session=session)
        variants: dict[str, Run | None] = {
            "incumbent, lease only": lease_only(provider),
            "incumbent, claim and settle": with_message(provider),
            "incumbent, @leased": decorated(provider),
            "python-dynamodb-lock": python_dynamodb_lock(session),
            "Powertools idempotency": idempotency(DynamoDBPersistenceLayer(table_name=RECORDS, boto3_session=session)),
        }
        found: dict[str, tuple[float, float] | None] = {}
        for name, run in variants.items():
            if run is None:
                found[name] = None
                continue
            before = len(sent)
            median = microseconds(run, name, runs)
            found[name] = (median, (len(sent) - before) / (runs + 20))
        table("DynamoDB (moto)", found)


def main() -> None:
    """Measure both stores."""
    parser = argparse.ArgumentParser(description="measure what one run costs")
    parser.add_argument("--runs", type=int, default=300, help="runs of each variant (300; at most 60 on moto)")
    runs = parser.parse_args().runs
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"One uncontended run, median of {runs}")
    on_redis(runs)
    on_dynamodb(min(runs, 60))
    sys.stdout.flush()
    os._exit(0)  # python-dynamodb-lock's threads would be waited for


if __name__ == "__main__":
    main()
