"""Each store behind a network that fails, made once and begun anew for every test."""

from collections.abc import Iterator

import pytest

from incumbent.testing.contract_calls import CALLS, ask
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, why_no_dynalite
from tests.faults.stores import DynamoDBStore, Store, ValkeyStore, dynamodb_store, valkey_store

STORES = ["valkey", "dynamodb", *([] if why_no_dynalite() else ["dynalite"])]


def teach(store: ValkeyStore) -> None:
    """Let the server learn every script, so that no call needs a second request for that (H23 has tests of its own)."""
    for call in CALLS:
        store.begin()
        for step in (*call.before, call.call):
            ask(step, store.bare())
    store.close()


@pytest.fixture(scope="session")
def networked_valkey(valkey_server: ValkeyServer) -> Iterator[ValkeyStore]:
    """Valkey."""
    with valkey_store(valkey_server) as store:
        teach(store)
        yield store


@pytest.fixture(scope="session")
def networked_dynamodb(dynamodb_server: DynamoDBServer) -> Iterator[DynamoDBStore]:
    """DynamoDB as AWS has it, which returns the old item with a refusal."""
    with dynamodb_store("dynamodb", dynamodb_server) as store:
        yield store


@pytest.fixture(scope="session")
def networked_dynalite(dynalite_server: DynamoDBServer) -> Iterator[DynamoDBStore]:
    """dynalite, which returns no old item."""
    with dynamodb_store("dynalite", dynalite_server) as store:
        yield store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every store in turn, on keys that no other test uses."""
    made: Store = request.getfixturevalue(f"networked_{request.param}")
    made.begin()
    yield made
    made.close()
