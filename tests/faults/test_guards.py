"""The guards of docs/fencing.md, as they stand there, against a stale owner whose lease was real (H37)."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from incumbent.testing.contract_calls import KEY, TTL_MS
from incumbent.testing.servers import create_table
from tests.faults.stores import DynamoDBStore, Store, ValkeyStore

PAGE = Path(__file__).parents[2] / "docs" / "fencing.md"


@pytest.fixture(scope="module")
def guard() -> dict[str, Any]:
    """What the page's examples define."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 - it is our own page that is run
    return names


@pytest.fixture
def stale_and_present(store: Store) -> tuple[int, int]:
    """The fences of an owner whose lease was lost while it was paused, and of the one that came after it."""
    first, second = store.provider(), store.bare()
    stale = first.acquire_lease(KEY, "A", TTL_MS).fence
    second.release_lease(KEY, "A")  # as expiry would
    present = second.acquire_lease(KEY, "B", TTL_MS).fence
    assert stale is not None
    assert present is not None
    return stale, present


@pytest.fixture
def documents(networked_dynamodb: DynamoDBStore) -> str:
    """A table of documents."""
    name = f"{networked_dynamodb.prefix or 'test'}-documents"
    create_table(
        networked_dynamodb.past,
        name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    return name


@pytest.mark.parametrize("store", ["dynamodb"], indirect=True)
def test_stale_owners_write_to_dynamodb_is_refused(
    store: DynamoDBStore, stale_and_present: tuple[int, int], guard: dict[str, Any], documents: str
) -> None:
    """And the present owner's is taken, as often as it comes; from its first reading on."""
    stale, present = stale_and_present
    save, load = guard["save_to_dynamodb"], guard["load_from_dynamodb"]
    assert save(store.past, documents, "d", stale, "A was here")
    assert load(store.past, documents, "d", present) == "A was here"
    assert not save(store.past, documents, "d", stale, "A was late")
    assert load(store.past, documents, "d", stale) is None
    assert save(store.past, documents, "d", present, "B was here")
    assert save(store.past, documents, "d", present, "B was here")
    assert load(store.past, documents, "d", present) == "B was here"
    assert load(store.past, documents, "new", present) == ""


@pytest.mark.parametrize("store", ["valkey"], indirect=True)
def test_stale_owners_write_to_redis_is_refused(
    store: ValkeyStore, stale_and_present: tuple[int, int], guard: dict[str, Any]
) -> None:
    """And the present owner's is taken, as often as it comes."""
    stale, present = stale_and_present
    save = guard["save_to_redis"]
    with redis.Redis(port=store.server.port, decode_responses=True) as client:
        assert save(client, store.prefix, stale, "A was here")
        assert save(client, store.prefix, present, "B was here")
        assert not save(client, store.prefix, stale, "A was late")
        assert save(client, store.prefix, present, "B was here")
        assert client.hgetall(f"document:{store.prefix}") == {"fence": str(present), "body": "B was here"}
        client.delete(f"document:{store.prefix}")


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """SQLite, which stands in for a server: the statements are PostgreSQL's too."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, fence BIGINT NOT NULL, body TEXT)")
        connection.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, fence BIGINT NOT NULL)")
        yield connection


def test_stale_owners_write_to_sql_is_refused(
    store: Store, stale_and_present: tuple[int, int], guard: dict[str, Any], database: sqlite3.Connection
) -> None:
    """And the present owner's is taken, as often as it comes; whichever store the leases are in."""
    stale, present = stale_and_present
    save = guard["save_to_sql"]
    assert save(database, "d", stale, "A was here")
    assert save(database, "d", present, "B was here")
    assert not save(database, "d", stale, "A was late")
    assert save(database, "d", present, "B was here")
    assert database.execute("SELECT id, fence, body FROM documents").fetchall() == [("d", present, "B was here")]


@pytest.mark.parametrize("store", ["valkey"], indirect=True)
def test_stale_owners_transaction_changes_nothing(
    store: Store, stale_and_present: tuple[int, int], guard: dict[str, Any], database: sqlite3.Connection
) -> None:
    """None of its statements, however many; the first of them makes the row that the fence is kept in."""
    stale, present = stale_and_present
    run = guard["in_one_transaction"]
    insert = "INSERT INTO documents (id, fence, body) VALUES (?, 0, 'x')"
    assert run(database, "t", stale, [(insert, ("1",))])
    assert run(database, "t", present, [(insert, ("2",)), (insert, ("3",))])
    assert not run(database, "t", stale, [(insert, ("4",)), (insert, ("5",))])
    with pytest.raises(sqlite3.IntegrityError):
        run(database, "t", present, [(insert, ("6",)), (insert, ("1",))])
    assert [row[0] for row in database.execute("SELECT id FROM documents ORDER BY id")] == ["1", "2", "3"]


def test_fence_is_exact_as_a_double(stale_and_present: tuple[int, int]) -> None:
    """Lua compares it as one."""
    # H30.
    assert all(int(float(fence)) == fence for fence in stale_and_present)
