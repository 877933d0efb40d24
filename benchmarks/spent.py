"""The section ``spent``: what the time, and the write units, of the dearest calls are spent on."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from botocore import client, httpsession, parsers, serialize, signers

from benchmarks import ours
from benchmarks.capacity import item_bytes
from benchmarks.dynamodb_calls import CLAIM, TWO_UPDATES, two_updates
from benchmarks.dynamodb_stores import TABLE, Store, paced, provider_of, stand_in, store
from benchmarks.measure import Budget, Run, interleaved, spread
from benchmarks.tables import Column, Spread, Table, number
from benchmarks.write_units import WINDOW
from incumbent import Claimed, Message, Released
from incumbent.calls import Call
from incumbent.clock import SYSTEM_CLOCK, Moment
from incumbent.event_reader import EventReader
from incumbent.options import CheckedOptions, Options, make_settings
from incumbent.pacemaker import Heart, Pacemaker
from incumbent.providers.memory import MemoryProvider
from incumbent.runner import Runner
from incumbent.sources import source_of

EVENT, PROVIDER, HEARTBEAT = "reading the event", "the memory provider's claim and settle", "the heartbeat"
RUN, AROUND = "the lease, its facts, checks and outcome", "the decorator around all of this"
BUSY = "more for a key with a full window"
DECORATOR = (EVENT, PROVIDER, HEARTBEAT, RUN, AROUND, BUSY)
_WHOLE, _WHOLE_BUSY, _SERVED, _SERVED_STILL = "whole", "busy", "served", "served without a heartbeat"

OURS, WRITTEN, SIGNED = (
    "the provider: rules, records, expressions",
    "botocore: parameters written as JSON",
    "botocore: signature",
)
SENT, READ, REST = "botocore and urllib3: sending and receiving", "botocore: the response read", "botocore: the rest"
DYNAMODB = (OURS, WRITTEN, SIGNED, SENT, READ, REST)
# What each part of botocore runs in. A part counts without those that it calls.
_PARTS: Mapping[str, tuple[type, str]] = {
    REST: (client.BaseClient, "_make_api_call"),
    WRITTEN: (serialize.JSONSerializer, "serialize_to_request"),
    SIGNED: (signers.RequestSigner, "sign"),
    SENT: (httpsession.URLLib3Session, "send"),
    READ: (parsers.ResponseParser, "parse"),
}

_US = {"us": Column(title="µs", digits=1, spread=True)}
_CPU = {"ours": Column(title=CLAIM), "base": Column(title=TWO_UPDATES)}
_UNITS = {"runs": Column(title="runs"), "bytes": Column(title="bytes")}


def run(budget: Budget) -> list[Table]:
    """Measure the parts of the decorator in memory, those of a call on DynamoDB, and look at a full lease item."""
    with store(partial(paced, stand_in(budget))) as running:
        return [_decorator(budget), _dynamodb(running, budget), _units(running, budget)]


# --- the decorator


class _AtOnce(MemoryProvider):
    """A provider that answers at once: what is left is the cost of those who ask it."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **_: Any) -> Claimed:
        return Claimed(
            owner=owner,
            fence=1,
            messages=(message,) if message else (),
            waiting=0,
            expires_in_ms=ttl_ms,
            deadline=SYSTEM_CLOCK.now().plus(ttl_ms),
        )

    def settle(self, key: str, owner: str, **_: Any) -> Released:
        return Released(remaining=0)


class _Still(Pacemaker):
    """A pacemaker that lets nothing beat."""

    def add(self, heart: Heart, in_ms: int, now: Moment | None = None) -> None:
        """Do nothing."""

    def remove(self, heart: Heart) -> None:
        """Do nothing."""


def _decorator(budget: Budget) -> Table:
    options: Options = {"key": lambda event: event["id"], "message_id": lambda event: event["id"], "keyspace": ""}
    settings = make_settings("leased", options)
    reader = EventReader(CheckedOptions("benchmarks.handler", options, settings), one_of_several=False)

    def read(name: str) -> Call:
        event = {"id": name}
        return reader.call_of(event, None, source_of(event), event, hands_over=False)

    def served(pacemaker: Pacemaker | None) -> Run:
        calls: dict[str, Call] = {}
        runner = Runner(_AtOnce(), settings, clock=SYSTEM_CLOCK, pacemaker=pacemaker)
        return lambda name: runner.serve(calls.get("a") or calls.setdefault("a", read(name)), lambda *_: None)

    busy = ours.decorated(MemoryProvider(), key="one")
    for earlier in range(5 if budget.quick else 300):
        busy(f"before/{earlier}")
    variants: dict[str, Run] = {
        EVENT: read,
        PROVIDER: ours.with_message(MemoryProvider()),
        _SERVED: served(None),
        _SERVED_STILL: served(_Still(SYSTEM_CLOCK)),
        _WHOLE: ours.decorated(MemoryProvider()),
        _WHOLE_BUSY: busy,
    }
    found = interleaved(variants, rounds=budget.rounds, calls=budget.calls)
    parts = {
        EVENT: found[EVENT],
        PROVIDER: found[PROVIDER],
        HEARTBEAT: _less(found[_SERVED], found[_SERVED_STILL]),
        RUN: found[_SERVED_STILL],
        AROUND: _less(found[_WHOLE], found[EVENT], found[PROVIDER], found[_SERVED]),
        BUSY: _less(found[_WHOLE_BUSY], found[_WHOLE]),
    }
    table = Table(name="spent-decorator", title="What the decorator spends", first="part", columns=_US)
    for name in DECORATOR:
        table.set(name, us=spread(parts[name], 1e6))
    return table


def _less(whole: list[float], *parts: list[float]) -> list[float]:
    """Return what remains of each round."""
    return [each - sum(others) for each, *others in zip(whole, *parts, strict=True)]


# --- DynamoDB


class _Watch:
    """The CPU time of this thread in each part of botocore, without the parts that it calls."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = dict.fromkeys(DYNAMODB, 0.0)
        self._inner = [0.0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call whose time counts for a part."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                self.spent[part] += took - self._inner.pop()
                self._inner[-1] += took

        return watched

    @contextmanager
    def on_botocore(self) -> Iterator[None]:
        """Watch botocore in this context."""
        with ExitStack() as patched:
            for part, (of, name) in _PARTS.items():
                patched.enter_context(patch.object(of, name, self.timed(part, getattr(of, name))))
            yield


def _dynamodb(running: Store, budget: Budget) -> Table:
    table = Table(name="spent-dynamodb", title="What CPU µs on DynamoDB are spent on", first="part", columns=_CPU)
    session = running.session()
    calls = budget.slow_rounds * budget.slow_calls
    for column, call in (
        ("ours", ours.with_message(provider_of(session))),
        ("base", two_updates(session.client("dynamodb"))),
    ):
        call(f"spent/{column}/connects")
        watch = _Watch()
        with watch.on_botocore():
            whole = watch.timed(OURS, call)
            for each in range(calls):
                whole(f"spent/{column}/{each}")
        for part in DYNAMODB:
            table.set(part, **{column: watch.spent[part] / calls * 1e6})
    return table


# --- write units


def _units(running: Store, budget: Budget) -> Table:
    """Tell the cheap runs of a key with a full window from the dear ones, and what its lease item consists of."""
    table = Table(name="spent-units", title="What write units are spent on", first="what", columns=_UNITS)
    window, runs = (4, 2) if budget.quick else (WINDOW, 50)
    plain = provider_of(running.session())
    session, meter = running.metered()
    watched = provider_of(session)
    for each in range(window):
        ours.claim_and_settle(plain, "spent", f"before/{each:04}-0123456789abcdef")
    watched.get_lease_owner("connects")
    costs: Counter[tuple[float, int]] = Counter()
    for each in range(runs):
        meter.take()
        ours.claim_and_settle(watched, "spent", f"run/{each:04}")
        cost = meter.take()
        costs[cost.write_units, cost.requests] += 1
    for (units, requests), times in sorted(costs.items()):
        table.set(f"runs of {units:g} WCU in {requests} requests", runs=times)
    item = running.client.get_item(TableName=TABLE, Key={"pk": {"S": "incumbent#spent"}, "sk": {"S": "lease"}})
    sizes = {name: item_bytes({name: value}) for name, value in item["Item"].items()}
    dearest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    for name in dearest:
        table.set(f"lease item: `{name}`", bytes=sizes[name])
    table.set("lease item: the rest", bytes=sum(size for name, size in sizes.items() if name not in dearest))
    return table


# --- what the page says of it


def sentences(tables: Mapping[str, Table]) -> Iterator[str]:
    """Say what the time of `@leased` on Redis is spent on, and what the runs of a key with a full window take."""
    redis = tables["redis"]
    rows = ("two bare EVALSHA", CLAIM, "incumbent, `@leased`")
    base, claim, leased = (redis.rows[row]["us"] for row in rows)
    if isinstance(base, Spread) and isinstance(claim, Spread) and isinstance(leased, Spread):
        yield (
            f"Redis, `@leased`: of {number(leased.median, 0)} µs, {number(base.median, 0)} are what two bare EVALSHA "
            f"take, {number(claim.median - base.median, 0)} what claim and settle add (arguments, longer scripts, "
            f"answers), and {number(leased.median - claim.median, 0)} the decorator."
        )
    found = tables["spent-units"]
    runs = "; ".join(f"{found.figure(row, 'runs') or 0:g} {row}" for row in found.rows if row.startswith("runs of"))
    yield (
        f"DynamoDB, write units of a key with a full window: {runs}. A run writes the lease item twice, and each begun "
        "kilobyte of it is a unit. The dearer runs find it full of traces, as their fence tells: they read it, and "
        "write a page of traces before they settle. A claim of which the id has the mark of another is sent twice, and "
        "reads the pages."
    )
