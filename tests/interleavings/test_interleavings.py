"""Operations that meet on one key, in every order of their requests, break no rule; for longer: make interleavings."""

from collections.abc import Iterator

import pytest

from incumbent.testing.servers import ValkeyServer, dynalite_available
from tests.budgets import budget
from tests.interleavings.operations import OPERATIONS
from tests.interleavings.search import Found, Meeting, Stage, drawn, exhaust, meetings, pairs
from tests.interleavings.servers import server_stores
from tests.interleavings.states import STATES
from tests.interleavings.stores import DynamoDBStore, MemoryStore
from tests.interleavings.turns import Turns
from tests.interleavings.valkey import valkey_stores

STATE = {state.name: state for state in STATES}
OPERATION = {operation.name: operation for operation in OPERATIONS}

# Each has shown a fault once, and is tried with one switch more than the others, unless that makes thousands of orders.
FAULTS = (
    ("acquired, out of attempts", "claim new", "claim again"),
    ("acquired, out of attempts", "claim again", "handled"),
    ("acquired, out of attempts", "claim again", "release"),
    ("acquired, waiting", "claim again", "deferred, pass on"),
    ("running alone", "claim new", "failed"),
    ("running alone", "send", "handled, hold"),
    ("running beside a pause", "send", "handled"),
    ("out of attempts", "claim", "acquire and claim"),
    ("last attempt", "failed", "transfer"),
    ("large bodies", "look", "handled"),
    ("dead letter", "redrive", "purge"),
    ("dead letter", "redrive", "redrive"),
    ("dead letter", "purge", "purge"),
    ("dead letter", "redrive", "run all"),
)
EVERY = budget(100, soak=1)
SEEDS = budget(1_000, soak=100_000)


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    """Threads that all schedules share."""
    made = Turns()
    yield made
    made.close()


@pytest.fixture(scope="module")
def on_dynamodb(turns: Turns) -> Stage:
    """The real provider over a table in memory."""
    return Stage(DynamoDBStore, turns)


def broken(found: Iterator[tuple[int, Found | None]]) -> list[str]:
    """What breaks a rule."""
    return [str(each) for _, each in found if each is not None]


@pytest.mark.parametrize(("state", "first", "second"), FAULTS)
def test_pair_that_broke_a_rule_once_keeps_it(on_dynamodb: Stage, state: str, first: str, second: str) -> None:
    """In every order of their requests."""
    meeting = Meeting(state=STATE[state], operations=(OPERATION[first], OPERATION[second]))
    switches = 1 if first == "look" else 2
    assert [told.why for told in exhaust(on_dynamodb, meeting, switches=switches) if told.why] == []


def test_pairs_break_no_rule_on_dynamodb(on_dynamodb: Stage) -> None:
    """Of all pairs in all states, so many are tried as the time allows."""
    chosen = (each for number, each in enumerate(meetings(2)) if number % EVERY == 0)
    assert broken(pairs(on_dynamodb, chosen, switches=1)) == []


def test_drawn_meetings_break_no_rule_on_dynamodb(on_dynamodb: Stage) -> None:
    """Two or three operations, in any order of their requests; in some a reply gets lost."""
    assert [str(found) for seed in range(SEEDS) if (found := drawn(on_dynamodb, seed))] == []


@pytest.mark.parametrize("server", ["dynamodb_server"] + ["dynalite_server"] * dynalite_available())
def test_drawn_meetings_break_no_rule_on_a_server(turns: Turns, server: str, request: pytest.FixtureRequest) -> None:
    """What the table in memory does, these do; dynalite tells no old item, so there are more requests."""
    with server_stores(request.getfixturevalue(server)) as make:
        stage = Stage(make, turns)
        assert [str(found) for seed in range(SEEDS // 60) if (found := drawn(stage, seed))] == []


def test_meetings_break_no_rule_on_valkey(turns: Turns, valkey_server: ValkeyServer) -> None:
    """The scripts: each is one step, and a reply may get lost."""
    with valkey_stores(valkey_server) as make:
        stage = Stage(make, turns)
        chosen = (each for number, each in enumerate(meetings(2)) if number % (4 * EVERY) == 0)
        assert broken(pairs(stage, chosen, switches=1)) == []
        assert [str(found) for seed in range(SEEDS // 4) if (found := drawn(stage, seed))] == []


def test_pairs_break_no_rule_in_memory(turns: Turns) -> None:
    """The rules themselves, under which each operation is a step or a few."""
    chosen = (each for number, each in enumerate(meetings(2)) if number % EVERY == 0)
    assert broken(pairs(Stage(MemoryStore, turns), chosen, switches=1)) == []


def test_drawn_meetings_break_no_rule_in_memory(turns: Turns) -> None:
    """Two or three operations."""
    stage = Stage(MemoryStore, turns)
    assert [str(found) for seed in range(SEEDS) if (found := drawn(stage, seed))] == []


def test_redrive_that_does_not_ask_what_is_spent_is_found_out(
    on_dynamodb: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool itself sees a fault."""
    monkeypatch.setattr("incumbent.providers.dynamodb.archive._spent", lambda _: ())
    meeting = Meeting(state=STATE["dead letter"], operations=(OPERATION["redrive"], OPERATION["purge"]))
    assert any(told.why for told in exhaust(on_dynamodb, meeting, switches=2))
