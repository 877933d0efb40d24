"""DynamoDB's rounds: what one call does when other writes come first."""

import random
from typing import Any, cast

import pytest

from incumbent.clock import Moment
from incumbent.errors import LeaseUnavailable
from incumbent.frozen import replace
from incumbent.providers.dynamodb import item
from incumbent.providers.dynamodb.steps import Steps
from incumbent.providers.dynamodb.table import Answer, Table, TableCall
from incumbent.testing.clock import FakeClock


class Pauses(FakeClock):
    """A clock that notes how long a call has slept each time."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[int] = []

    def sleep_ms(self, ms: int) -> None:
        """Note it."""
        self.slept.append(ms)


class Reads:
    """A table of which only the lease item is read."""

    def __init__(self) -> None:
        self.answer: Answer[Any] = Answer(applied=False, record=item.NO_RECORD, sent=Moment(wall_ms=2, mono_ms=2))

    def read(self, _: TableCall) -> Answer[Any]:
        """Answer."""
        return self.answer


@pytest.fixture
def clock() -> Pauses:
    """A clock."""
    return Pauses()


@pytest.fixture
def steps(clock: Pauses) -> Steps:
    """The steps of a provider."""
    return Steps(cast("Table", Reads()), prefix="x", skew_ms=20, clock=clock)


def test_call_knows_all_that_its_requests_need(steps: Steps) -> None:
    """Its key's partition, what bounds it, and the names that it mentions."""
    ends = Moment(wall_ms=9, mono_ms=9)
    assert steps.call("claim", "orders/k", "A", "m1", ttl_ms=300, give_up_at=ends) == TableCall(
        name="claim", key="orders/k", pk="x#orders/k", ttl_ms=300, give_up_at=ends, names=("A", "m1")
    )
    assert steps.call("peek", "k") == TableCall(name="peek", key="k", pk="x#k")
    assert steps.shard(steps.call("peek", "k")) == steps.shard(steps.call("claim", "k", "A"))


def test_rounds_pause_longer_and_longer_and_end(steps: Steps, clock: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: the first four at once; then up to 5 ms, twice as long each time, 100 at most; the 33rd is not tried."""
    monkeypatch.setattr(random, "randint", lambda least, most: most if least == 1 else 0)
    call = steps.call("claim", "orders/k", "A")
    shown: Answer[Any] = Answer(applied=False, record=item.NO_RECORD, sent=Moment(wall_ms=1, mono_ms=1), repeated=True)
    for turn in range(4):
        assert steps.shown_again(call, shown, turn) is shown
    assert clock.slept == []
    for turn in range(4, 32):
        assert steps.shown_again(call, shown, turn) == replace(steps.table.read(call), repeated=True)
    assert clock.slept == [5, 10, 20, 40, 80, *[100] * 23]
    applied = replace(shown, applied=True)
    assert steps.shown_again(call, applied, 31) is applied
    with pytest.raises(LeaseUnavailable, match="claim of key 'orders/k': other writes came first 32 times") as raised:
        steps.shown_again(call, shown, 32)
    assert raised.value.key == "orders/k"
