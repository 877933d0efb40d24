"""Every store with a clock that can be moved, its requests counted, and what lies in it open to be looked at."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
import redis
from botocore.config import Config
from redis.backoff import NoBackoff
from redis.retry import Retry

from incumbent.clock import Clock, SystemClock
from incumbent.operations import Store
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table, why_no_dynalite
from tests.conformance.test_redis import pass_time

SKEW_MS = 1_000
STORES = ("memory", "redis", "dynamodb", *(("dynalite",) if why_no_dynalite() is None else ()))


@dataclass(kw_only=True)
class ObservedStore:
    """A provider over an empty store. ``left`` names what is stored, with whether it will go by itself."""

    name: str
    provider: Store
    clock: Clock
    pass_time: Callable[[int], None]
    requests: Counter[str] = field(default_factory=Counter)
    left: Callable[[], dict[str, bool]] = dict

    def counted(self, call: Callable[[], object]) -> dict[str, int]:
        """The requests that a call makes."""
        before = self.requests.copy()
        call()
        return dict(self.requests - before)


def memory_store() -> ObservedStore:
    """This process."""
    clock = FakeClock()
    return ObservedStore(name="memory", provider=MemoryProvider(clock=clock), clock=clock, pass_time=clock.advance)


class _Counting(redis.Redis):
    """A client that counts its commands."""

    requests: Counter[str]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Count it, and send it."""
        self.requests[str(args[0])] += 1
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


@contextmanager
def redis_store(server: ValkeyServer) -> Iterator[ObservedStore]:
    """A Valkey whose keys grow older, since its clock cannot be moved; that of its callers can."""
    prefix = f"store-{uuid.uuid4().hex[:12]}"
    client = _Counting(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=1)
    client.requests = Counter()
    other = redis.Redis(port=server.port)
    clock = SystemClock()

    def goes_by(ms: int) -> None:
        pass_time(other, prefix, ms)
        clock.skipped_ms += ms

    def left() -> dict[str, bool]:
        names = [*other.scan_iter(match=f"{prefix}:*"), *other.scan_iter(match=f"{{{prefix}:*")]
        return {name.decode(): other.pttl(name) > 0 for name in names}

    yield ObservedStore(
        name="redis",
        provider=RedisProvider(client=client, key_prefix=prefix, clock=clock),
        clock=clock,
        pass_time=goes_by,
        requests=client.requests,
        left=left,
    )
    client.close()
    other.close()


@contextmanager
def dynamodb_store(name: str, server: DynamoDBServer) -> Iterator[ObservedStore]:
    """A table of its own; all who use it share a clock."""
    once: Any = {"total_max_attempts": 1, "mode": "standard"}
    config = Config(retries=once, connect_timeout=2, read_timeout=10, max_pool_connections=16)
    client: Any = boto3.client("dynamodb", endpoint_url=server.endpoint_url, config=config)
    table, clock = f"store-{uuid.uuid4().hex[:12]}", FakeClock()
    create_table(client, table)
    requests: Counter[str] = Counter()
    client.meta.events.register("before-call.dynamodb", lambda model, **_: requests.update([model.name]))
    provider = DynamoDBProvider(table_name=table, client=client, max_clock_skew_ms=SKEW_MS, clock=clock)

    def left() -> dict[str, bool]:
        pages = client.get_paginator("scan").paginate(TableName=table)
        return {
            f"{item['pk']['S']} {item['sk']['S']}": "expires_on" in item and "mail" not in item
            for page in pages
            for item in page["Items"]
        }

    yield ObservedStore(
        name=name, provider=provider, clock=clock, pass_time=clock.advance, requests=requests, left=left
    )
    client.close()
