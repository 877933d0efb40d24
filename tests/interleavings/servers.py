"""moto and dynalite as stores on which operations meet: a few schedules, since each request goes to a server."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError

from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.attributes import typed
from incumbent.providers.dynamodb.names import partition
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import DynamoDBServer, create_table
from tests.interleavings.invariants import Picture
from tests.interleavings.operations import KEY, Provider
from tests.interleavings.stores import SKEW_MS, Requested, picture_of
from tests.interleavings.turns import ReplyLost, Turns

_REQUESTS = ("update_item", "get_item", "put_item", "delete_item", "batch_get_item", "query", "scan")


class ServerStore:
    """The real provider and a server; a prefix of its own in a table that all share."""

    skew_ms = SKEW_MS
    loses_replies = True

    def __init__(self, turns: Turns, client: Any, table: str, prefix: str) -> None:
        self.requested: Requested = lambda: None
        self._clock = FakeClock()
        self._bare = client
        self._client: Any = _Client(client, turns, self)
        self._table = table
        self._prefix = prefix

    def provider(self, like: Provider | None = None) -> Provider:
        """One that remembers its own grants."""
        return DynamoDBProvider(
            table_name=self._table,
            client=self._client,
            key_prefix=self._prefix,
            max_clock_skew_ms=SKEW_MS,
            clock=self._clock,
        )

    def copy(self) -> None:
        """It has to be made anew."""

    def pass_time(self, ms: int) -> None:
        """Move the one clock."""
        self._clock.advance(ms)

    def picture(self) -> Picture:
        """The items of the key."""
        found = self._bare.query(
            TableName=self._table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": typed(partition(self._prefix, KEY))},
            ConsistentRead=True,
        )
        return picture_of(found["Items"], self._clock.now().wall_ms)


class _Client:
    """A client whose every request waits for its turn, and may lose its reply."""

    def __init__(self, client: Any, turns: Turns, store: ServerStore) -> None:
        self._client = client
        self._turns = turns
        self._store = store

    def __getattr__(self, name: str) -> Any:
        send = getattr(self._client, name)
        if name not in _REQUESTS:
            return send

        def request(**options: Any) -> Any:
            self._turns.before_request()
            try:
                return send(**options)
            finally:
                self._store.requested()
                self._lose(name)

        return request

    def _lose(self, name: str) -> None:
        try:
            self._turns.after_request()
        except ReplyLost as cause:
            raise ReadTimeoutError(endpoint_url=name, error=cause) from cause


@contextmanager
def server_stores(server: DynamoDBServer) -> Iterator[Callable[[Turns], ServerStore]]:
    """What makes stores, each with a prefix of its own, on one server."""
    config = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1})
    client = boto3.client("dynamodb", endpoint_url=server.endpoint_url, config=config)
    table, numbers = f"interleaved-{uuid.uuid4().hex[:8]}", itertools.count()
    create_table(client, table)
    yield lambda turns: ServerStore(turns, client, table, f"p{next(numbers)}")
    client.close()
