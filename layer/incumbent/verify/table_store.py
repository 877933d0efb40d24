"""A DynamoDB table as `VerifiedStore`: an item names the runs that have begun and not ended."""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.errors import ConfigurationError
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.names import partition
from incumbent.testing.clock import FakeClock
from incumbent.verify.store import READ_UNITS, REQUESTS, SEARCHES, STEM, WRITE_UNITS, Dropped, Trial, VerifiedStore

_RUNS = f"{STEM}#runs"
_MARK_LIVES_S = 14 * 24 * 60 * 60
_CONNECTIONS = 32
_AT_ONCE = 25
_INDEX_LAG_MS = 1_000
_REFUSED = "ConditionalCheckFailedException"


class TableStore(VerifiedStore):
    """One table. The callers' clocks decide: a test moves its own."""

    name = "dynamodb"
    skew_ms = 1_000

    def __init__(self, environ: Mapping[str, str], run: str | None = None) -> None:
        """Take the table's name."""
        super().__init__(environ, run)
        if not environ.get("INCUMBENT_TABLE_NAME"):
            raise ConfigurationError("INCUMBENT_PROVIDER is dynamodb, but INCUMBENT_TABLE_NAME is not set")
        self.table = environ["INCUMBENT_TABLE_NAME"]
        self._session = _Session()
        self._session.events.register("provide-client-params.dynamodb", _asks_for_units)
        self._session.events.register("after-call.dynamodb", self._count)
        self._lost = Dropped()
        self._losing = _Session()
        self._losing.events.register("provide-client-params.dynamodb", _asks_for_units)
        self._losing.events.register("after-call.dynamodb", self._count)
        self._losing.events.register("before-parse.dynamodb", self._drop)

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return a provider as the environment makes it; all share their clients, which take long to make."""
        return _Patient(
            DynamoDBProvider(
                table_name=self.table,
                boto3_session=self._session,
                key_prefix=prefix,
                max_clock_skew_ms=self.skew_ms,
                clock=clock,
            ),
            self._index_lag_ms(),
        )

    def losing(self, prefix: str, clock: Clock) -> tuple[Any, Dropped]:
        """Return a provider of clients whose replies can be dropped after they have come."""
        made = DynamoDBProvider(table_name=self.table, boto3_session=self._losing, key_prefix=prefix, clock=clock)
        return _Patient(made, self._index_lag_ms()), self._lost

    def test_clock(self) -> Clock:
        """A clock that stands still until it is moved."""
        return FakeClock()

    def pass_time(self, trial: Trial, ms: int) -> None:
        """Move the trial's clock."""
        clock = trial.clock
        if isinstance(clock, FakeClock):
            clock.advance(ms)

    def remove(self, prefix: str, keys: set[str]) -> None:
        """Delete all items of these keys."""
        for key in sorted(keys):
            with suppress(UnicodeEncodeError):
                partition_key = partition(prefix, key)
                if key and len(partition_key.encode()) <= 2_048:  # noqa: PLR2004 - DynamoDB's limit
                    self._delete(self._pages("query", KeyConditionExpression="pk = :pk", value=partition_key))

    def begin(self) -> None:
        """Write an item that names the run."""
        now_s = SYSTEM_CLOCK.now().wall_ms // 1_000
        item = {
            "pk": {"S": _RUNS},
            "sk": {"S": self.run},
            "began": {"N": str(now_s)},
            "expires_on": {"N": str(now_s + _MARK_LIVES_S)},
        }
        self._client().put_item(TableName=self.table, Item=item)

    def end(self) -> None:
        """Delete that item."""
        self._forget(self.run)

    def leftovers(self) -> dict[str, int | None]:
        """Read the items that name runs."""
        found = self._pages("query", KeyConditionExpression="pk = :pk", value=_RUNS)
        return {each["sk"]["S"]: None for each in found if each["sk"]["S"] != self.run}

    def remove_run(self, run: str) -> int:
        """Scan the whole table for a run's items, delete them, and then the one that names the run."""
        found = self._pages("scan", FilterExpression="begins_with(pk, :pk)", value=f"{STEM}-{run}-")
        self._delete(found)
        self._forget(run)
        return len(found)

    def size_bytes(self) -> int:
        """Return how large the table was some hours ago, which decides what a scan costs."""
        return int(self._client().describe_table(TableName=self.table)["Table"].get("TableSizeBytes", 0))

    def close(self) -> None:
        """Close the clients."""
        for session in (self._session, self._losing):
            session.close()

    def _forget(self, run: str) -> None:
        self._client().delete_item(TableName=self.table, Key={"pk": {"S": _RUNS}, "sk": {"S": run}})

    def _client(self) -> Any:
        config = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 4, "mode": "standard"})
        return self._session.client("dynamodb", config=config)

    def _index_lag_ms(self) -> int:
        """Return how long to wait for the index, which AWS writes after the table; other implementations do at once."""
        return _INDEX_LAG_MS if "amazonaws.com" in self._client().meta.endpoint_url else 0

    def _pages(self, operation: str, *, value: str, **how: Any) -> list[dict[str, Any]]:
        pages = (
            self._client()
            .get_paginator(operation)
            .paginate(
                TableName=self.table,
                ProjectionExpression="pk, sk",
                ExpressionAttributeValues={":pk": {"S": value}},
                ConsistentRead=True,
                **how,
            )
        )
        return [item for page in pages for item in page["Items"]]

    def _delete(self, items: list[dict[str, Any]]) -> None:
        requests = [{"DeleteRequest": {"Key": {"pk": each["pk"], "sk": each["sk"]}}} for each in items]
        while requests:
            said = self._client().batch_write_item(RequestItems={self.table: requests[:_AT_ONCE]})
            requests = said.get("UnprocessedItems", {}).get(self.table, []) + requests[_AT_ONCE:]

    def _count(self, parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
        told = parsed.get("ConsumedCapacity") or []
        units = sum(each.get("CapacityUnits", 0.0) for each in (told if isinstance(told, list) else [told]))
        if parsed.get("Error", {}).get("Code") == _REFUSED:
            units = 1.0  # it is paid for, and its answer does not say how much
        kind = WRITE_UNITS if model.name in _WRITES else READ_UNITS
        self.count(**{REQUESTS: 1, SEARCHES: model.name == "Scan", kind: units})

    def _drop(self, **_: Any) -> None:
        if self._lost.takes():
            raise ConnectionClosedError(endpoint_url="the table's (incumbent verify has dropped the reply)")


_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"})
_NO_UNITS = frozenset({"DescribeTable"})


def _asks_for_units(params: dict[str, Any], model: Any, **_: Any) -> None:
    if model.name not in _NO_UNITS:
        params["ReturnConsumedCapacity"] = "TOTAL"


class _Session(boto3.session.Session):
    """Makes one client for each wait, which all providers share."""

    def __init__(self) -> None:
        super().__init__(region_name=os.environ.get("AWS_REGION") or None)
        self._made: dict[float, Any] = {}
        self._making = threading.Lock()

    def client(self, service_name: Any, *args: Any, **options: Any) -> Any:
        config: Any = options["config"].merge(Config(max_pool_connections=_CONNECTIONS))
        with self._making:
            if config.read_timeout not in self._made:
                self._made[config.read_timeout] = super().client(service_name, config=config)
            return self._made[config.read_timeout]

    def close(self) -> None:
        for each in self._made.values():
            each.close()
        self._made.clear()


class _Patient:
    """A provider that waits for the index before it reads it: AWS says that the index follows, and not when."""

    def __init__(self, provider: Any, lag_ms: int) -> None:
        self._provider = provider
        self._lag_ms = lag_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def close(self) -> None:
        """Leave the clients open, which others use."""

    def orphans(self, limit: int) -> Any:
        SYSTEM_CLOCK.sleep_ms(self._lag_ms)
        return self._provider.orphans(limit)

    def keys(self, limit: int) -> Any:
        SYSTEM_CLOCK.sleep_ms(self._lag_ms)
        return self._provider.keys(limit)
