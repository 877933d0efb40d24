"""The DynamoDB provider under the suite, on dynalite, and on moto behind one lock.

moto needs four times as long for a request. What it does and dynalite does not, to return the old item with a refusal,
the table of `tests/simulation/test_table.py` does as well, on which the suite runs whole. So moto gets walks, which
make every call, and runs the suite in ``make soak``, or where there is no dynalite.
"""

import itertools
import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
import pytest
from botocore.config import Config

from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance import ArchiveConformance, ControlConformance, MailboxConformance
from incumbent.testing.conformance.walks import ARCHIVE_STEPS, CONTROL_STEPS, MAILBOX_STEPS, WALKS, Walking
from incumbent.testing.contract_calls import CALLS, ContractCall, ask, bare
from incumbent.testing.servers import DynamoDBServer, create_table, why_no_dynalite
from tests.budgets import SOAKING, budget
from tests.unit.wire import check

SERVERS = ("moto",) if why_no_dynalite() is not None else ("moto", "dynalite") if SOAKING else ("dynalite",)

TESTS_PER_TABLE = 20


class Place(boto3.session.Session):
    """Tables on a server, and the session whose clients go there: one for each configuration, shared by all."""

    def __init__(self, server: DynamoDBServer) -> None:
        super().__init__()
        self._endpoint_url = server.endpoint_url
        self._clients: dict[float, Any] = {}
        self._tests = itertools.count()

    def begin_test(self) -> None:
        """Choose the test's table: a new one now and then, since what lists all keys reads the whole table."""
        if next(self._tests) % TESTS_PER_TABLE == 0:
            self.table = f"test-{uuid.uuid4().hex[:12]}"
            create_table(self.client("dynamodb", config=Config()), self.table)

    def client(self, service_name: Any, *args: Any, **options: Any) -> Any:
        """A client of the server."""
        config: Any = options["config"].merge(Config(max_pool_connections=32))
        if config.read_timeout not in self._clients:
            made: Any = super().client(service_name, endpoint_url=self._endpoint_url, config=config)
            made.meta.events.register("provide-client-params.dynamodb", check)
            self._clients[config.read_timeout] = made
        return self._clients[config.read_timeout]

    def close(self) -> None:
        """Close what was opened."""
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="module")
def moto_place(moto_server: DynamoDBServer) -> Iterator[Place]:
    """A server that all tests here share."""
    place = Place(moto_server)
    yield place
    place.close()


@pytest.fixture(scope="module")
def dynalite_place(dynalite_server: DynamoDBServer) -> Iterator[Place]:
    """A server that all tests here share."""
    place = Place(dynalite_server)
    yield place
    place.close()


class _OnDynamoDB(MailboxConformance, ArchiveConformance, ControlConformance):
    """DynamoDB has no clock to ask: time is the test's own, and strangers wait a second longer."""

    skew_ms = 1_000
    place: Place

    def make_provider(self) -> DynamoDBProvider:
        """Records of its own for each test, in a table that some share."""
        self.place.begin_test()
        self.clock = FakeClock()
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        return self.make_other(None)

    def make_other(self, provider: Any) -> DynamoDBProvider:
        """Another provider."""
        return DynamoDBProvider(
            table_name=self.place.table,
            boto3_session=self.place,
            key_prefix=self.prefix,
            max_clock_skew_ms=self.skew_ms,
            clock=self.clock,
        )

    def pass_time(self, ms: int) -> None:
        """All clients share the test's clock."""
        self.clock.advance(ms)

    # Fewer walks than the suite has: each takes hundreds of requests, and the table of `test_table.py` goes them all.

    @pytest.mark.parametrize("number", range(budget(3, soak=WALKS)))
    def test_every_answer_of_a_walk_is_the_references(self, provider: Any, key: str, number: int) -> None:
        """R1 to R7, M1 to M9: calls in any order, in time and late, and what is stored after each."""
        self.follow(provider, key, number, MAILBOX_STEPS)

    @pytest.mark.parametrize("number", range(budget(3, soak=WALKS)))
    def test_every_answer_about_dead_letters_is_the_references(self, provider: Any, key: str, number: int) -> None:
        """M5, M6: messages that die, come back and are looked for, in any order."""
        self.follow(provider, key, number, ARCHIVE_STEPS)

    @pytest.mark.parametrize("number", range(budget(6, soak=2 * WALKS)))
    def test_every_answer_of_a_controlled_walk_is_the_references(self, provider: Any, key: str, number: int) -> None:
        """M14 to M21 among the other rules: calls in any order, in time and late."""
        self.follow(provider, key, number, CONTROL_STEPS)


class Several:
    """Several providers of one store, each call by any of them: none knows what the others have seen."""

    def __init__(self, providers: Sequence[DynamoDBProvider], seed: int) -> None:
        self._providers = providers
        self._chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chance.choice(self._providers), name)


class TestSeveral(Walking):
    """Providers keep nothing between calls, so it does not matter which is called."""

    @pytest.mark.parametrize("server", SERVERS)
    @pytest.mark.parametrize("number", range(1_000, 1_000 + budget(3, soak=60)))
    def test_every_answer_of_several_providers_is_the_references(
        self, server: str, number: int, request: pytest.FixtureRequest
    ) -> None:
        """R2, M10: any of them answers alike."""
        place: Place = request.getfixturevalue(f"{server}_place")
        place.begin_test()
        clock, prefix = FakeClock(), f"test-{uuid.uuid4().hex[:12]}"
        self.skew_ms = 1_000 * (number % 2)
        self.clock = clock
        providers = [
            DynamoDBProvider(
                table_name=place.table,
                boto3_session=place,
                key_prefix=prefix,
                max_clock_skew_ms=self.skew_ms,
                clock=clock,
            )
            for _ in range(3)
        ]
        steps = (MAILBOX_STEPS, ARCHIVE_STEPS, CONTROL_STEPS)[number % 3]
        self.follow(Several(providers, number), "key", number, steps)

    def pass_time(self, ms: int) -> None:
        """All share the test's clock."""
        self.clock.advance(ms)


@pytest.mark.parametrize("call", [pytest.param(call, id=call.name.replace(" ", "-")) for call in CALLS])
def test_moto_answers_every_call_as_memory_does(moto_place: Place, call: ContractCall) -> None:
    """It refuses expressions that dynalite lets pass, and each call is made of other ones."""
    moto_place.begin_test()
    clock = FakeClock()
    table = DynamoDBProvider(
        table_name=moto_place.table, boto3_session=moto_place, key_prefix=f"test-{uuid.uuid4().hex[:12]}", clock=clock
    )
    memory = MemoryProvider(clock=clock)
    for step in call.before:
        step(table)
        step(memory)
    assert bare(ask(call.call, table)) == bare(ask(call.call, memory))


if SOAKING or why_no_dynalite() is not None:

    class TestMoto(_OnDynamoDB):
        """moto behind one lock: it returns the old item with a refusal."""

        @pytest.fixture(autouse=True)
        def _place(self, moto_place: Place) -> None:
            self.place = moto_place


if why_no_dynalite() is None:

    class TestDynalite(_OnDynamoDB):
        """dynalite: a refusal returns no old item, and an expression that AWS refuses is refused."""

        @pytest.fixture(autouse=True)
        def _place(self, dynalite_place: Place) -> None:
            self.place = dynalite_place
