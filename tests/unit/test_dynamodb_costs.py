"""What a call costs on DynamoDB, in requests, write units and bytes: all of it is counted, and none of it is timed."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from botocore.exceptions import ReadTimeoutError

from incumbent.errors import StoredFormatUnknown
from incumbent.frozen import replace
from incumbent.owners import request_of
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.attributes import size_of
from incumbent.providers.dynamodb.item import decode
from incumbent.providers.dynamodb.names import EMPTY, ENDED, LEASE, partition
from incumbent.providers.dynamodb.traces import MAX_MARKS
from incumbent.testing.clock import FakeClock
from incumbent.values import Claimed, Duplicate, Message, Origin, Released
from tests.simulation.dynamodb import Client, Refused, Table
from tests.simulation.store import Asked

T = TypeVar("T")

TTL_MS = 30_000
KEY = "chat:user-1234"
ORIGIN = Origin(
    keyspace="chat",
    target="arn:aws:lambda:eu-central-1:123456789012:function:thread",
    log_stream="2026/11/30/[$LATEST]0123456789abcdef0123456789abcdef",
)


class Meter(Client):
    """A client of a table in memory that counts requests, answered bytes and written bytes."""

    def __init__(self, table: Table, clock: FakeClock) -> None:
        def way(operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:
            self.requests.append(operation)
            return carry_out(Asked(call=operation), clock.now().wall_ms)

        super().__init__(table, way)
        self.table = table
        self.requests: list[str] = []
        self.answered: list[int] = []
        self.sent: list[int] = []
        self.clauses: list[int] = []
        self.units = 0
        self.index_units = 0
        self.unanswered = 0

    def update_item(self, **request: Any) -> dict[str, Any]:
        """Update an item; the larger of before and after is what DynamoDB charges."""
        if self.unanswered:
            self.unanswered -= 1
            raise ReadTimeoutError(endpoint_url="unanswered")
        self.sent.append(len(json.dumps(request)))
        self.clauses.append(len(re.split(r", (?!:)| (?:SET|REMOVE|ADD|DELETE) ", request["UpdateExpression"])))
        before = self.table.get(request["Key"]) or {}
        try:
            answer = super().update_item(**request)
        finally:
            after = self.table.get(request["Key"]) or {}
            self.units += _units(max(size_of(before), size_of(after)))
            self.index_units += _index_units(before, after)
        self.answered.append(len(json.dumps(answer)))
        return answer

    def put_item(self, **request: Any) -> dict[str, Any]:
        """Write an item."""
        self.units += _units(size_of(request["Item"]))
        return super().put_item(**request)


def _units(size: int) -> int:
    """Write units: one for each begun KB."""
    return math.ceil(size / 1_024)


def _index_units(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """Writes of the orphans' index: one to add or remove a key or its projected attributes, two to move it."""

    def entry(item: Mapping[str, Any]) -> tuple[Any, ...] | None:
        names = ("orphan_shard", "orphan_since", "target")
        return tuple(item.get(name) for name in names) if "orphan_shard" in item else None

    old, new = entry(before), entry(after)
    if old == new:
        return 0
    return 2 if old is not None and new is not None and old[:2] != new[:2] else 1


class Bench:
    """A provider on a metered table."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.client = Meter(Table(), self.clock)
        client: Any = self.client
        self.provider = DynamoDBProvider(table_name="t", client=client, clock=self.clock)

    def claim(self, number: int) -> Claimed:
        """Claim the key, as an invocation does."""
        self.clock.advance(1_000)
        message = Message(id=message_id(number), event={"text": "hello", "n": number})
        origin = replace(ORIGIN, request_id=request_of(owner(number)))
        answer = self.provider.claim(KEY, owner(number), TTL_MS, message, origin=origin)
        assert isinstance(answer, Claimed)
        return answer

    def run(self, number: int) -> None:
        """One uncontended run."""
        given = self.claim(number)
        ids = [message.id for message in given.messages]
        settled = self.provider.settle(
            KEY, given.owner, ttl_ms=TTL_MS, handled=ids, next_owner=f"{given.owner}+", fence=given.fence
        )
        assert settled == Released(remaining=0)

    @property
    def marks(self) -> int:
        """How many handled ids in pages the lease item shows, at least."""
        return len("".join(each["S"] for each in self.lease["past"]["L"]).replace(EMPTY, ""))

    @property
    def pages(self) -> list[Mapping[str, Any]]:
        """The pages of traces."""
        return [each for each in self.client.table.items_of(partition("incumbent", KEY)) if ENDED in each["sk"]["S"]]

    @property
    def lease(self) -> Mapping[str, Any]:
        """The lease item."""
        return self.client.table.get({"pk": {"S": partition("incumbent", KEY)}, "sk": {"S": LEASE}}) or {}

    def cost(self, call: Callable[[], object]) -> tuple[int, int, int]:
        """Requests, write units of the table, and of the index."""
        self.client.requests.clear()
        self.client.units = self.client.index_units = 0
        call()
        return len(self.client.requests), self.client.units, self.client.index_units


def message_id(number: int) -> str:
    """The id of a run's message."""
    return f"7d5a64f4-0b0e-4a3e-9d44-2f1f5b1c{number:04d}"


def owner(number: int) -> str:
    """An owner string as the package makes it."""
    return f"8f5a64f4-0b0e-4a3e-9d44-2f1f5b1c{number:04d}.0123456789abcdef0123"


@pytest.fixture
def bench() -> Bench:
    """A provider on a metered table."""
    return Bench()


@pytest.fixture(scope="module")
def busy() -> Bench:
    """A key whose window is full."""
    made = Bench()
    for number in range(300):
        made.run(number)
    return made


@pytest.mark.parametrize(("runs", "most_bytes"), [(1, 640), (16, 1_024), (60, 1_024), (256, 1_024), (320, 1_024)])
def test_lease_item_stays_small(bench: Bench, runs: int, most_bytes: int) -> None:
    """M5: with a message in it, its owner, and the traces of so many runs."""
    for number in range(runs):
        bench.run(number)
    bench.claim(runs)
    assert size_of(bench.lease) <= most_bytes


def test_small_run_costs_two_units_of_the_table_and_two_of_the_index(bench: Bench) -> None:
    """M10: one for each write, which stays below 1 KB."""
    bench.run(0)
    assert bench.cost(lambda: bench.run(1)) == (2, 2, 2)


def test_requests_of_a_run_are_short(bench: Bench) -> None:
    """M10: with long names and an origin; servers take the longer for an update, the more clauses it has."""
    bench.run(0)
    bench.client.sent.clear()
    bench.client.clauses.clear()
    bench.run(1)
    claim, settle = bench.client.sent
    assert (claim <= 1_920, settle <= 1_360) == (True, True), (claim, settle)
    assert bench.client.clauses == [14, 9]  # four of the origin


def test_run_on_a_full_window_costs_two_units_and_each_fourth_three(busy: Bench) -> None:
    """M5, M10: one for each write; each fourth settle expects to move traces into a page, and is never refused.

    Now and then an id has the mark of another: then the claim is refused, reads the pages, and is sent again.
    """
    costs = [busy.cost(lambda number=number: busy.run(number)) for number in range(1_000, 1_100)]  # type: ignore[misc]
    assert Counter(costs)[2, 2, 2] >= 60
    assert max(costs, key=lambda cost: cost[1])[1] <= 5
    assert sum(units for _, units, _ in costs) <= 250
    assert sum(requests for requests, *_ in costs) <= 290
    assert max(sum(units for _, units, _ in costs[begin : begin + 10]) for begin in range(90)) < 40


def test_lease_item_shows_the_last_ids_by_marks_that_do_not_grow(bench: Bench) -> None:
    """M5: they are made anew from the pages now and then; and ids that left the window long ago have none."""
    for number in range(600):
        bench.run(number)
    assert bench.marks <= MAX_MARKS
    shown = decode(bench.lease, key=KEY)
    assert all(shown.may_know(message_id(number), "") for number in range(600 - 256, 600))
    assert not all(shown.may_know(message_id(number), "") for number in range(300))
    bench.clock.advance(3 * 3_600_000)
    for number in range(600, 700):
        bench.run(number)
    assert bench.marks <= 100
    shown = decode(bench.lease, key=KEY)
    assert all(shown.may_know(message_id(number), "") for number in range(600, 700))


def test_settle_beside_a_page_of_a_later_version_keeps_all_marks(bench: Bench) -> None:
    """M12: it moves traces as usual, and forgets nothing."""
    for number in range(200):
        bench.run(number)
    for page in bench.pages[-10:]:
        bench.client.table.put({**page, "v": {"N": "2"}})
    for number in range(200, 400):
        with suppress(StoredFormatUnknown):  # of a claim whose id has the mark of another
            bench.run(number)
    assert bench.marks > MAX_MARKS


def test_renewal_on_a_full_window_costs_one_unit_and_none_of_the_index(busy: Bench) -> None:
    """R4, M8."""
    given = busy.claim(2_000)
    assert busy.cost(lambda: busy.provider.beat(KEY, given.owner, TTL_MS * 2, fence=given.fence)) == (1, 1, 0)
    assert busy.cost(lambda: busy.provider.renew_lease(KEY, given.owner, TTL_MS * 3)) == (1, 1, 0)
    busy.provider.settle(KEY, given.owner, ttl_ms=TTL_MS, handled=[given.messages[0].id], fence=given.fence)


def test_claim_on_a_full_window_answers_with_less_than_a_kilobyte_and_a_settle_with_nothing(busy: Bench) -> None:
    """M10: what the condition says already is not sent back."""
    busy.client.answered.clear()
    for number in range(3_000, 3_010):
        busy.run(number)
    answered = sorted(busy.client.answered)
    assert answered[9] == len("{}")  # each settle, also those that write a page
    assert answered[-3] < 1_024


def test_duplicate_of_an_id_in_a_page_is_one_read_more_and_no_write(busy: Bench) -> None:
    """M5: the whole digests decide."""
    again = Message(id=message_id(250), event="late")
    answer: list[Any] = []
    cost = busy.cost(lambda: answer.append(busy.provider.claim(KEY, "late", TTL_MS, again)))
    assert (answer, cost[0], cost[2]) == ([Duplicate(state="handled")], 2, 0)
    assert busy.client.requests == ["UpdateItem", "Query"]


def test_id_that_shares_its_mark_with_another_is_stored(busy: Bench) -> None:
    """M5: it costs a read and a write more, and never a message."""
    shown = decode(busy.lease, key=KEY)
    new = next(name for number in range(1_000_000) if shown.may_know(name := f"new-{number}", ""))
    given = busy.provider.claim(KEY, "other", TTL_MS, Message(id=new, event=1))
    assert isinstance(given, Claimed)
    settled = busy.provider.settle(KEY, "other", ttl_ms=TTL_MS, handled=[new], fence=given.fence)
    assert settled == Released(remaining=0)
    assert busy.provider.find(KEY, new).state == "handled"


def test_find_reads_the_pages_only_of_ids_that_may_be_there(busy: Bench) -> None:
    """M5."""
    assert busy.cost(lambda: busy.provider.find(KEY, "never seen"))[0] == 1
    assert busy.provider.find(KEY, message_id(250)).state == "handled"


def test_trace_that_stands_in_several_pages_counts_once(bench: Bench) -> None:
    """M5: of two who write at the same moment, each writes a page, with more or fewer traces."""
    for number in range(256):
        bench.run(number)
    for page in bench.pages[-30:]:
        name, texts = page["sk"]["S"], page["ended"]["S"].split(" ")
        bench.client.table.put({**page, "sk": {"S": f"{name}x"}, "ended": {"S": " ".join(texts[-3:])}})
    assert {bench.provider.find(KEY, message_id(number)).state for number in range(256)} == {"handled"}
    for number in range(256, 600):
        bench.run(number)
    assert {bench.provider.find(KEY, message_id(number)).state for number in range(600 - 256, 600)} == {"handled"}


def test_ids_that_left_in_one_tenure_are_remembered_by_the_clocks_of_those_who_ended_them(bench: Bench) -> None:
    """M5: a page may hold traces that are older than those of the one before, where the clocks differ."""
    bench.provider.claim(KEY, owner(0), 10 * TTL_MS, Message(id=message_id(0), event=1))
    left = []
    for number in range(1, 401):
        begin_ms = bench.clock.now().wall_ms
        bench.clock.step_wall(number // 6 % 5 * 5_030)
        bench.provider.claim(KEY, owner(number), TTL_MS, Message(id=message_id(number), event=1))
        bench.provider.cancel(KEY, message_id(number))
        left.append((bench.clock.now().wall_ms, message_id(number)))
        bench.clock.step_wall(begin_ms + 100 - bench.clock.now().wall_ms)
    assert {bench.provider.find(KEY, each).state for _, each in sorted(left)[-256:]} == {"cancelled"}


def test_settle_in_doubt_finds_its_trace_in_a_page(bench: Bench) -> None:
    """R9: so many runs came before the second try that the trace has left the lease item."""
    given = bench.claim(0)
    handled = [given.messages[0].id]
    bench.provider.settle(KEY, given.owner, ttl_ms=TTL_MS, handled=handled, fence=given.fence)
    for number in range(1, 30):
        bench.run(number)
    bench.client.unanswered = 1
    settled = bench.provider.settle(KEY, given.owner, ttl_ms=TTL_MS, handled=handled, fence=given.fence)
    assert settled == Released(remaining=0)


@pytest.mark.parametrize(
    "change",
    [{"v": {"N": "2"}}, *({"ended": odd} for odd in ({"N": "1"}, {"S": "h?"}, {"S": ""}, {"S": "?" * 43}))],
)
def test_page_of_a_later_version_is_left_as_it_is(bench: Bench, change: dict[str, Any]) -> None:
    """M12: an id that may stand in it is neither stored nor called a duplicate; another is not concerned."""
    for number in range(12):
        bench.run(number)
    for page in bench.pages:
        bench.client.table.put({**page, **change})
    again = Message(id=message_id(0), event="late")
    with pytest.raises(StoredFormatUnknown) as raised:
        bench.provider.claim(KEY, "late", TTL_MS, again)
    assert raised.value.key == KEY
    bench.run(12)
