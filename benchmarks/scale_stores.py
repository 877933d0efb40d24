"""The stores of the section ``scale``: the real DynamoDB provider on partitions, and the rules behind three shards."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from redis.crc import key_slot

from benchmarks.crowd import LATENCY_MS, Crowd
from benchmarks.partitions import PagingClient, ThrottledTable
from incumbent.errors import LeaseUnavailable
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from tests.simulation.dynamodb import Refused
from tests.simulation.environment import Environment
from tests.simulation.scheduler import Scheduler
from tests.simulation.store import Asked

T = TypeVar("T")


class Counted:
    """How calls fared: how many were made, and how many got no answer."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.unavailable: Counter[str] = Counter()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count a call."""
        self.made[name] += 1
        try:
            yield
        except LeaseUnavailable:
            self.unavailable[name] += 1
            raise


class CountedProvider(DynamoDBProvider):
    """The DynamoDB provider, with its calls counted."""

    counted: Counted

    def claim(self, *args: Any, **named: Any) -> Any:
        """Claim."""
        with self.counted.of("claim"):
            return super().claim(*args, **named)

    def settle(self, *args: Any, **named: Any) -> Any:
        """Settle."""
        with self.counted.of("settle"):
            return super().settle(*args, **named)

    def beat(self, *args: Any, **named: Any) -> Any:
        """Renew."""
        with self.counted.of("beat"):
            return super().beat(*args, **named)

    def take(self, *args: Any, **named: Any) -> Any:
        """Take what waits."""
        with self.counted.of("take"):
            return super().take(*args, **named)


class ShardedMemory(MemoryProvider):
    """The rules behind three shards of Redis: each call is one request, which takes as long as its key's shard does."""

    def __init__(self, scheduler: Scheduler, latencies_ms: Sequence[int]) -> None:
        super().__init__(clock=Environment("store", scheduler).clock)
        self.latencies_ms = latencies_ms
        self._scheduler = scheduler

    def shard_of(self, key: str) -> int:
        """Return which shard has a key, by the hash slots of Redis."""
        return key_slot(key.encode()) * len(self.latencies_ms) // 16_384

    def claim(self, key: str, *args: Any, **named: Any) -> Any:
        """Claim."""
        with self._request(key):
            return super().claim(key, *args, **named)

    def settle(self, key: str, *args: Any, **named: Any) -> Any:
        """Settle."""
        with self._request(key):
            return super().settle(key, *args, **named)

    def beat(self, key: str, *args: Any, **named: Any) -> Any:
        """Renew."""
        with self._request(key):
            return super().beat(key, *args, **named)

    @contextmanager
    def _request(self, key: str) -> Iterator[None]:
        latency_ms = self.latencies_ms[self.shard_of(key)]
        self._scheduler.pause(latency_ms // 2)
        yield
        self._scheduler.pause(latency_ms - latency_ms // 2)


def on_table(crowd: Crowd, table: ThrottledTable, counted: Counted) -> None:
    """Let a crowd use a table, each request of which takes 5 ms."""

    def make(environment: Environment) -> CountedProvider:
        def way(operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:  # noqa: ARG001 - as the client calls it
            environment.scheduler.pause(LATENCY_MS // 2)
            try:
                return carry_out(Asked(call=""), environment.clock.now().wall_ms)
            finally:
                environment.scheduler.pause(LATENCY_MS - LATENCY_MS // 2)

        client: Any = PagingClient(table, way)
        provider = CountedProvider(table_name="simulated", client=client, clock=environment.clock)
        provider.counted = counted
        return provider

    crowd.make_provider = make
