"""The table in memory, on which the DynamoDB provider is simulated, answers as DynamoDB does: it is under the suite."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.item import is_held
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance import ArchiveConformance, ControlConformance, MailboxConformance
from tests.simulation.dynamodb import Client, Refused, Table
from tests.simulation.expressions import Item
from tests.simulation.store import Asked

T = TypeVar("T")


class CheckedTable(Table):
    """A table that looks at every lease item that is written."""

    def update(self, asked: Asked, now_ms: int, request: Mapping[str, Any]) -> Item | Refused:
        """Update an item, and check what it tells the index and TTL."""
        found = super().update(asked, now_ms, request)
        if not isinstance(found, Refused):
            held = is_held(found["not_before"]["S"] if "not_before" in found else None)
            assert ("orphan_shard" in found) == ("mail" in found or held), (
                "the index holds the keys with messages or a hold, and no others"
            )
            assert ("orphan_since" in found) or "mail" not in found
            assert ("expires_on" in found) == ("mail" not in found and "lease" not in found), "TTL is for idle keys"
        return found


class TestTableInMemory(MailboxConformance, ArchiveConformance, ControlConformance):
    """One table a test, asked without a network, by one request at a time."""

    skew_ms = 1_000

    def make_provider(self) -> DynamoDBProvider:
        """A table of its own for each test."""
        self.clock = FakeClock()
        self.table = CheckedTable()
        self.lock = threading.Lock()
        return self.make_other(None)

    def make_other(self, provider: Any) -> DynamoDBProvider:
        """Another provider of the same table."""

        def way(operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:
            with self.lock:
                return carry_out(Asked(call=operation), self.clock.now().wall_ms)

        client: Any = Client(self.table, way, waits_ms=0.5)  # the shortest ttl of the suite is 1 ms
        return DynamoDBProvider(table_name="simulated", client=client, max_clock_skew_ms=self.skew_ms, clock=self.clock)

    def pass_time(self, ms: int) -> None:
        """All share the test's clock."""
        self.clock.advance(ms)
