"""The stores that the whole line runs on, and what the runs told."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from incumbent import Mailbox
from incumbent.backends import is_mailbox
from incumbent.contract import LeaseProvider
from incumbent.local import LocalLambda
from incumbent.local.report import Answer, Fact, Summary, read_facts, summarise
from incumbent.providers import from_env
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table
from tests.end_to_end.stores import STORES, ObservedStore, dynamodb_store, memory_store, redis_store

TEMPLATE = Path(__file__).parent / "app" / "template.yaml"
RECOVERY = Path(__file__).parent / "app" / "recovery.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store as functions find it, and as the test does."""

    name: str
    environment: dict[str, str]
    provider: LeaseProvider
    mailbox: Mailbox

    @property
    def patient(self) -> dict[str, str]:
        """The variables with which functions of Redis wait a second for an answer, as on a busy machine they may."""
        url = self.environment.get("INCUMBENT_REDIS_URL")
        return {} if url is None else {"INCUMBENT_REDIS_URL": f"{url}?socket_timeout=1"}


@dataclass(slots=True)
class Line:
    """A running local Lambda on one store, with all that it told."""

    cloud: LocalLambda
    store: Store
    facts: list[Fact] = field(default_factory=list)

    def summary(self) -> Summary:
        """Count what has become of every message."""
        return summarise(self.facts, [Answer.of(invocation) for invocation in self.cloud.invocations])

    def wait_for(self, text: str) -> None:
        """Wait until a function has printed it."""
        while not any(text in line.text for line in self.cloud.logs):
            self.cloud._clock.sleep_ms(5)  # noqa: SLF001 - the clock that the run goes by

    def ran(self, outcome: str = "handled") -> list[tuple[str, ...]]:
        """The messages of the runs that ended so, in order."""
        return [fact.message_ids for fact in self.facts if fact.fact == "run_ended" and fact.outcome == outcome]


@pytest.fixture(params=["redis", "dynamodb"])
def store(request: pytest.FixtureRequest, valkey_server: ValkeyServer) -> Store:
    """Valkey, then DynamoDB."""
    if request.param == "redis":
        environment = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": valkey_server.url}
        environment["INCUMBENT_KEY_PREFIX"] = f"e2e-{uuid4().hex[:8]}"
    else:
        server: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        table = f"e2e-{uuid4().hex[:8]}"
        environment = {**server.environment, "INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": table}
        import boto3

        create_table(
            boto3.client("dynamodb", endpoint_url=server.endpoint_url, region_name=environment["AWS_REGION"]), table
        )
        request.getfixturevalue("monkeypatch").setenv("AWS_ENDPOINT_URL_DYNAMODB", server.endpoint_url)
    provider = from_env(environment)
    mailbox: object = provider
    assert is_mailbox(mailbox)
    return Store(name=request.param, environment=environment, provider=provider, mailbox=mailbox)


@pytest.fixture(params=STORES)
def observed(request: pytest.FixtureRequest) -> Iterator[ObservedStore]:
    """Every store in turn."""
    match request.param:
        case "memory":
            yield memory_store()
        case "redis":
            with redis_store(request.getfixturevalue("valkey_server")) as found:
                yield found
        case name:
            with dynamodb_store(name, request.getfixturevalue(f"{name}_server")) as found:
                yield found


@pytest.fixture
def start(store: Store) -> Iterator[Callable[..., Line]]:
    """Start the application on the store."""
    with ExitStack() as stack:

        def start_line(env: dict[str, str] | None = None, *, template: Path = TEMPLATE, **settings: Any) -> Line:
            line: Line

            def heard(printed: Any) -> None:
                line.facts.extend(read_facts(printed.text))

            cloud = LocalLambda.from_template(
                template, env={**store.environment, **(env or {})}, on_log=heard, **settings
            )
            line = Line(stack.enter_context(cloud), store)
            return line

        yield start_line
