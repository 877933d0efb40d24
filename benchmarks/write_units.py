"""The section ``units``: what a run costs in a DynamoDB table, by how busy its key is."""

from collections.abc import Callable
from functools import partial
from itertools import count as count_up
from typing import Any

from benchmarks import ours
from benchmarks.capacity import Cost
from benchmarks.dynamodb_stores import provider_of, stand_in, store
from benchmarks.measure import Budget
from benchmarks.tables import Column, Table
from incumbent import Claimed, Message

FIRST, LATER, FULL = (
    "idle key, first run",
    "idle key, tenth run",
    "busy key, window full: a run, on average",
)
RENEWAL, FULL_RENEWAL = "idle key: a renewal", "busy key, window full: a renewal"
HAND_OVER = "two runs, with a hand-over to another function between them"
ROUTED = "a message routed to the owner"
DRAIN_10, DRAIN_100 = "a waiting message, of 10: settle, and take it", "a waiting message, of 100: settle, and take it"

COLUMNS = {
    "requests": Column(title="requests", digits=1),
    "write_units": Column(title="WCU", digits=1),
    "index_units": Column(title="WCU of the index", digits=1),
    "read_units": Column(title="RCU", digits=1),
    "received": Column(title="bytes received"),
    "largest": Column(title="largest item written, bytes"),
}
WINDOW = 260
_AVERAGED = 64  # older ids may move to items of their own, many at once: not every run pays for it


def run(budget: Budget) -> list[Table]:
    """Count units on moto: one provider prepares each key, another, which never saw it, is metered."""
    window, many, averaged = (4, 4, 2) if budget.quick else (WINDOW, 100, _AVERAGED)
    table = Table(name="units", title="Units per run on DynamoDB", first="what", columns=COLUMNS)
    with store(stand_in(budget)) as running:
        plain = provider_of(running.session())
        session, meter = running.metered()
        watched = provider_of(session)

        def count(row: str, what: Callable[[], object], *, times: int = 1) -> None:
            meter.take()
            for _ in range(times):
                what()
            _note(table, row, meter.take(), times)

        watched.get_lease_owner("connects")
        count(FIRST, lambda: ours.claim_and_settle(watched, "idle", "a"))
        _runs(plain, "later", 9)
        count(LATER, lambda: ours.claim_and_settle(watched, "later", "a"))
        _runs(plain, "busy", window)
        runs = count_up()
        count(FULL, lambda: ours.claim_and_settle(watched, "busy", f"run/{next(runs):04}"), times=averaged)
        for key, row in (("later", RENEWAL), ("busy", FULL_RENEWAL)):
            fence = _owned(watched, key, "b")
            watched.beat(key, "b", ours.TTL_MS, fence=fence)  # the lease is as long as it gets: the next one renews
            count(row, partial(watched.beat, key, "b", 2 * ours.TTL_MS, fence=fence))
        count(HAND_OVER, lambda: _handed_over(watched, "over"))
        ours.fill(plain, "routed", 3)
        message = Message(id="late", event={"text": "hello"})
        count(ROUTED, lambda: watched.claim("routed", "late", ours.TTL_MS, message))
        for waiting, row in ((10, DRAIN_10), (many, DRAIN_100)):
            key = f"drained/{waiting}"
            drain = ours.Drain(watched, key, ours.fill(watched, key, waiting))
            count(row, drain, times=min(waiting, 10))
    return [table]


def _note(table: Table, row: str, cost: Cost, times: int) -> None:
    table.set(
        row,
        requests=cost.requests / times,
        write_units=cost.write_units / times,
        index_units=cost.index_units / times,
        read_units=cost.read_units / times,
        received=cost.received / times,
        largest=cost.largest,
    )


def _runs(provider: Any, key: str, count: int) -> None:
    for number in range(count):
        ours.claim_and_settle(provider, key, f"before/{number:04}-0123456789abcdef")


def _owned(provider: Any, key: str, owner: str) -> int:
    answer = provider.claim(key, owner, ours.TTL_MS, Message(id=owner, event={"text": "hello"}))
    if not isinstance(answer, Claimed):
        raise TypeError(f"{key} is not free: {answer}")
    return answer.fence


def _handed_over(provider: Any, key: str) -> None:
    """Run a message while another one arrives; give the key to a ticket, and redeem it elsewhere."""
    first = provider.claim(key, "first", ours.TTL_MS, Message(id="1", event={"text": "hello"}))
    provider.claim(key, "sender", ours.TTL_MS, Message(id="2", event={"text": "hello"}))
    provider.settle(key, "first", handled=["1"], ticket="ticket", ttl_ms=ours.TTL_MS, fence=first.fence)
    second = provider.claim(key, "second", ours.TTL_MS, None, ticket="ticket")
    provider.settle(key, "second", handled=["2"], ttl_ms=ours.TTL_MS, fence=second.fence)
