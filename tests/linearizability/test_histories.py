"""Histories of concurrent calls, recorded on real servers behind networks that fail, can all be explained (R1 to M9).

A failing history is printed call by call. Its seed decides what each client does, not how the clients meet, so that it
need not fail again: what is printed is what there is to go by.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from incumbent.clock import SYSTEM_CLOCK, SystemClock
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.proxy import HTTP, RESP, Fault, Network, fault_proxy
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table, why_no_dynalite
from tests.budgets import budget
from tests.faults.stores import Provider, dynamodb_client
from tests.linearizability.checker import UNKNOWN, Operation, check
from tests.linearizability.recording import CALLS, CUTS, LOOKS, Lane, record
from tests.linearizability.sequential import OneKey

CLIENTS = 3
AT_ONCE = 20  # histories of one test


class Impatient(SystemClock):
    """The machine's clocks, which all clients of a history share, without the pauses between tries."""

    def sleep_ms(self, ms: int) -> None:
        """Go on at once."""


IMPATIENT = Impatient()


@dataclass(kw_only=True)
class MemoryLane:
    """The reference itself, by whose histories the specification and the checker are tried."""

    shared: MemoryProvider
    network: Network | None = None

    def provider(self, prefix: str) -> Provider:
        """One for all: keys of its own for each history are not needed."""
        return self.shared


@dataclass(kw_only=True)
class ValkeyLane:
    """Valkey; each history's provider has a connection of its own."""

    network: Network | None
    port: int
    opened: RedisProvider | None = None

    def provider(self, prefix: str) -> Provider:
        """By URL: a client of our own. That of the history before is closed."""
        self.close()
        url = f"redis://127.0.0.1:{self.port}?socket_timeout=10"
        self.opened = RedisProvider(url=url, key_prefix=prefix, clock=IMPATIENT)
        return self.opened

    def close(self) -> None:
        """Close what was opened."""
        if self.opened is not None:
            self.opened.close()


@dataclass(kw_only=True)
class DynamoDBLane:
    """A DynamoDB; all histories share a client."""

    network: Network | None
    client: Any
    table_name: str

    def provider(self, prefix: str) -> Provider:
        """By a client that repeats nothing by itself."""
        return DynamoDBProvider(table_name=self.table_name, client=self.client, key_prefix=prefix, clock=IMPATIENT)


@pytest.fixture(scope="module")
def valkey_lanes(valkey_server: ValkeyServer) -> Iterator[list[Lane]]:
    """Three ways to one Valkey."""
    with ExitStack() as stack:
        networks = [stack.enter_context(fault_proxy(valkey_server.port, RESP)) for _ in range(CLIENTS)]
        lanes = [ValkeyLane(network=each, port=each.port) for each in networks]
        for lane in lanes:
            stack.callback(lane.close)
        yield [*lanes]


def dynamodb_lanes(server: DynamoDBServer) -> Iterator[list[Lane]]:
    """Three ways to one table."""
    with ExitStack() as stack:
        networks = [stack.enter_context(fault_proxy(server.port, HTTP)) for _ in range(CLIENTS)]
        clients = [dynamodb_client(each.port) for each in networks]
        for client in clients:
            stack.callback(client.close)
        name = f"test-{uuid.uuid4().hex[:12]}"
        create_table(clients[0], name)
        yield [
            DynamoDBLane(network=network, client=client, table_name=name)
            for network, client in zip(networks, clients, strict=True)
        ]


@pytest.fixture(scope="module")
def table_lanes(dynamodb_server: DynamoDBServer) -> Iterator[list[Lane]]:
    """Three ways to a DynamoDB that returns the old item with a refusal; in a soak, to moto."""
    yield from dynamodb_lanes(dynamodb_server)


@pytest.fixture(scope="module")
def dynalite_lanes(dynalite_server: DynamoDBServer) -> Iterator[list[Lane]]:
    """Three ways to dynalite."""
    yield from dynamodb_lanes(dynalite_server)


def written(history: Sequence[Operation], order: Sequence[Operation]) -> str:
    """A history for people, and how far it could be explained."""
    lines = [str(each) for each in sorted(history, key=lambda each: each.began)]
    return "\n".join([*lines, "could be explained so far:", *map(str, order)])


def explain(seeds: range, lanes: Sequence[Lane], *, faults: float, several: bool, cuts: Sequence[Fault] = CUTS) -> None:
    """Record histories and explain each; most calls are to be answered, or there is nothing to explain."""
    answered = asked = 0
    for seed in seeds:
        prefix = f"history-{seed}-{uuid.uuid4().hex[:8]}"
        history = record(seed, lanes, prefix, faults=faults, cuts=cuts, several=several)
        verdict = check(history, OneKey())
        assert verdict.linearizable, f"history {seed} cannot be explained:\n{written(history, verdict.order)}"
        answered += sum(each.answer is not UNKNOWN for each in history)
        asked += CLIENTS * CALLS + LOOKS
    assert answered >= asked * (0.8 if faults else 1)


@pytest.mark.parametrize("chunk", range(budget(3, soak=10)))
def test_reference_is_linearizable(chunk: int) -> None:
    """What executes the rules under a lock answers as the rules say: else the checker or its specification is wrong."""
    for seed in range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE):
        provider = MemoryProvider(clock=SYSTEM_CLOCK)
        explain(range(seed, seed + 1), [MemoryLane(shared=provider)] * CLIENTS, faults=0.0, several=False)


@pytest.mark.parametrize("chunk", range(budget(5, soak=50)))
@pytest.mark.parametrize("faults", [0.0, 0.25], ids=["undisturbed", "disturbed"])
def test_valkey_is_linearizable(valkey_lanes: list[Lane], chunk: int, faults: float) -> None:
    """R1, R8, M1 to M5: whatever is lost, cut, duplicated or late."""
    explain(range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE), valkey_lanes, faults=faults, several=False)


@pytest.mark.parametrize("chunk", range(budget(2, soak=8)))
def test_dynamodb_is_linearizable(table_lanes: list[Lane], chunk: int) -> None:
    """R1, R8, M1 to M5: whatever is lost, cut, duplicated or late."""
    explain(range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE), table_lanes, faults=0.25 if chunk else 0.0, several=True)


if why_no_dynalite() is None:

    @pytest.mark.parametrize("chunk", range(budget(2, soak=10)))
    def test_dynamodb_is_linearizable_on_dynalite(dynalite_lanes: list[Lane], chunk: int) -> None:
        """R1, R8, M1 to M5: also where a refusal does not say what it has found."""
        explain(range(chunk * AT_ONCE, (chunk + 1) * AT_ONCE), dynalite_lanes, faults=0.2, several=True)
