"""DynamoDB's rounds: what one call does when other writes come first."""

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from incumbent.clock import Moment
from incumbent.errors import LeaseUnavailable
from incumbent.frozen import replace
from incumbent.providers.dynamodb import item, traces
from incumbent.providers.dynamodb.attributes import typed
from incumbent.providers.dynamodb.steps import Steps
from incumbent.providers.dynamodb.table import Answer, Table, TableCall
from incumbent.rules import Ended
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
    """A table of which only the lease item and pages are read."""

    def __init__(self) -> None:
        self.pages: list[dict[str, Any]] = []
        self.seen = 0
        self.answer: Answer[Any] = Answer(applied=False, record=item.NO_RECORD, sent=Moment(wall_ms=2, mono_ms=2))

    def read(self, _: TableCall) -> Answer[Any]:
        """Answer."""
        return self.answer

    def query(self, _: TableCall, **__: Any) -> Iterator[Any]:
        """Yield the pages, and count them."""
        for number, page in enumerate(self.pages, 1):
            self.seen = number
            yield page


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


@pytest.mark.parametrize(
    ("message_id", "claim", "seen"), [("m2", "", 2), ("m9", "C3", 3), ("m0", "", 0), ("m1", "", 3)]
)
def test_pages_are_read_until_one_tells(steps: Steps, message_id: str, claim: str, seen: int) -> None:
    """M5: of an id, or of a claim; none if the record does not show it."""
    failed: Any = {"outcome": "failed", "claimed_by": "C3", "id": "m9"}
    said: Any = {"outcome": "handled", "claimed_by": "C", "fence": 1, "at_ms": 1}
    ended = [Ended(**said, id="m3"), Ended(**said, id="m2"), Ended(**{**said, **failed})]
    table = cast("Reads", steps.table)
    table.pages = [traces.page_item("x#k", [each], 900_000) for each in ended]
    marks = traces.past((), [*ended, Ended(**said, id="m1")])
    record = item.decode({"v": typed(1), "past": typed(marks), "rare": typed(traces.rare(None, ended) or "")}, key="k")
    shown: Answer[Any] = Answer(applied=False, record=record, sent=Moment(wall_ms=1, mono_ms=1))
    found = steps.remember(steps.call("claim", "k"), shown, message_id, claim)
    assert table.seen == seen
    assert len(found.record.state.ended) == seen
