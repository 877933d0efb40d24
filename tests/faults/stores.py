"""The stores under a network that fails: one fault proxy before each real server, and providers on both sides of it."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import boto3
from botocore.config import Config

from incumbent.clock import Clock, SystemClock
from incumbent.contract import Archive, Control, LeaseProvider, Mailbox
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.proxy import HTTP, RESP, Network, fault_proxy
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table

SILENCE_MS = 250
"""How long an impatient client of Valkey waits for an answer that does not come."""

_MOTOS_SILENCE_MS = 750  # moto takes that long for an answer where many programs share its processor

TESTS_PER_TABLE = 20

_PATIENCE_MS = 10_000  # a machine that is busy may need longer than the silence that a test waits for


class Provider(LeaseProvider, Mailbox, Archive, Control, Protocol):
    """All that a backend can do."""


class Hasty(SystemClock):
    """The machine's clocks, with the pauses between tries skipped."""

    def sleep_ms(self, ms: int) -> None:
        """Be so much later at once."""
        self.skipped_ms += ms


@dataclass(kw_only=True)
class Store:
    """A real server, and a network before it. ``network`` carries what ``provider`` asks, not what ``bare`` does."""

    name: str
    network: Network
    prefix: str = ""
    _opened: list[Any] = field(default_factory=list)
    _bare: tuple[str, Clock | None, Provider] | None = None

    def begin(self) -> None:
        """Start on an empty prefix with a network that works."""
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.network.next()
        self.network.mend()
        self.network.forget()

    def provider(self, clock: Clock | None = None, *, impatient: bool = False) -> Provider:
        """A provider whose requests pass the network; an impatient one gives up soon."""
        raise NotImplementedError

    def bare(self, clock: Clock | None = None) -> Provider:
        """Another client of the same keys, whose requests nothing happens to."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was opened."""
        for each in self._opened:
            each.close()
        self._opened.clear()
        self._bare = None


@dataclass(kw_only=True)
class ValkeyStore(Store):
    """Valkey."""

    server: ValkeyServer

    def provider(self, clock: Clock | None = None, *, impatient: bool = False) -> Provider:
        """By URL: a client of our own."""
        return self._made(self.network.port, clock, SILENCE_MS if impatient else _PATIENCE_MS)

    def bare(self, clock: Clock | None = None) -> Provider:
        """By URL, to the server itself; one for each prefix and clock."""
        if self._bare is None or self._bare[:2] != (self.prefix, clock):
            self._bare = self.prefix, clock, self._made(self.server.port, clock, _PATIENCE_MS)
        return self._bare[2]

    def _made(self, port: int, clock: Clock | None, waits_ms: int) -> Provider:
        url = f"redis://127.0.0.1:{port}?socket_timeout={waits_ms / 1_000}"
        made = RedisProvider(url=url, key_prefix=self.prefix, clock=clock or Hasty())
        self._opened.append(made)
        return made


@dataclass(kw_only=True)
class DynamoDBStore(Store):
    """A DynamoDB. The clients are made once: that takes longer than a test."""

    through: Any
    caller_waits: Any
    past: Any
    table_name: str = ""
    _tests: int = 0

    def begin(self) -> None:
        """Start on an empty prefix; now and then in a new table, since what lists all keys reads the whole table."""
        super().begin()
        if self._tests % TESTS_PER_TABLE == 0:
            self.table_name = f"test-{uuid.uuid4().hex[:12]}"
            create_table(self.past, self.table_name)
        self._tests += 1

    def provider(self, clock: Clock | None = None, *, impatient: bool = False) -> Provider:
        """By a client that repeats nothing by itself."""
        return self._made(self.caller_waits if impatient else self.through, clock)

    def bare(self, clock: Clock | None = None) -> Provider:
        """By a client of the server itself."""
        return self._made(self.past, clock)

    def _made(self, client: Any, clock: Clock | None) -> Provider:
        clock = clock or Hasty()
        return DynamoDBProvider(table_name=self.table_name, client=client, key_prefix=self.prefix, clock=clock)


def dynamodb_client(port: int, *, read_timeout_ms: int = _PATIENCE_MS, attempts: int = 1) -> Any:
    """A client that waits and tries as told."""
    config = Config(
        connect_timeout=1,
        read_timeout=read_timeout_ms / 1_000,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    return boto3.client("dynamodb", endpoint_url=f"http://127.0.0.1:{port}", config=config)


@contextmanager
def valkey_store(server: ValkeyServer) -> Iterator[ValkeyStore]:
    """Put a network before a Valkey."""
    with fault_proxy(server.port, RESP) as network:
        yield ValkeyStore(name="valkey", network=network, server=server)


@contextmanager
def dynamodb_store(name: str, server: DynamoDBServer) -> Iterator[DynamoDBStore]:
    """Put a network before a DynamoDB, with a table of its own."""
    with ExitStack() as stack:
        network = stack.enter_context(fault_proxy(server.port, HTTP))
        past, through = dynamodb_client(server.port), dynamodb_client(network.port)
        caller_waits = dynamodb_client(
            network.port, read_timeout_ms=_MOTOS_SILENCE_MS if name == "dynamodb" else SILENCE_MS
        )
        for client in (past, through, caller_waits):
            stack.callback(client.close)
        yield DynamoDBStore(name=name, network=network, through=through, caller_waits=caller_waits, past=past)
