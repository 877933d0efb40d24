"""The section ``growth``: how the cost of a call grows with what is stored."""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks import ours
from benchmarks.dynamodb_stores import provider_of, stand_in, store
from benchmarks.measure import Budget, Run, apart, cpu_time, spread, wall_time
from benchmarks.tables import Column, Table
from incumbent import Wake
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.sweeper import sweep
from incumbent.testing.servers import valkey

REDIS, RATIO, MEMORY, DYNAMODB = "redis", "redis_ratio", "memory", "dynamodb"
COLUMNS = {
    REDIS: Column(title="Redis, µs"),
    RATIO: Column(title="Redis, times a bare EVALSHA", digits=2, spread=True),
    MEMORY: Column(title="memory, µs", spread=True),
    DYNAMODB: Column(title="DynamoDB, client CPU µs", spread=True),
}
SWEEPER_COLUMNS = {
    "found": Column(title="found"),
    REDIS: Column(title="Redis: find all, ms"),
    "redis_each": Column(title="... per orphan, µs"),
    "redis_pass": Column(title="Redis: a pass of 100 wakes, ms"),
    DYNAMODB: Column(title="DynamoDB: find all, ms"),
}

WAITING = (0, 1, 10, 30, 100, 300, 900, 999)
TRACES = (0, 16, 32, 64, 128, 192, 256)
KEYS = (100, 1_000, 10_000, 100_000)
SIZES_KB = (0.1, 1.0, 4.0, 16.0, 64.0, 256.0)
ORPHANS = (100, 1_000, 10_000, 100_000)
FOREIGN = 1_000_000

_NEAR = 8  # runs on both sides of a number of traces that count for it
_SAMPLE = "sample-key-of-the-benchmarks"
_BATCH = 5_000

_FOREIGN = "for i = ARGV[1], ARGV[2] do redis.call('set', 'foreign:' .. i, 'x') end"
_COPY = """
for i = ARGV[1], ARGV[2] do
  for j = 1, #KEYS do
    local name = string.gsub(KEYS[j], ARGV[3], ARGV[4] .. i)
    redis.call('restore', name, ARGV[4 + 2 * j - 1], ARGV[4 + 2 * j], 'replace')
  end
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The seconds of a call, and those of a bare request at the same moment, where there is one."""

    seconds: float
    base: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A store: its provider, a bare request, how a call is measured, and how far its curves go."""

    provider: Any
    base: Run | None
    how: Callable[[Run, Iterable[str]], float]
    passes: int
    calls: int
    most: int

    def sample(self, run: Run, names: Sequence[str]) -> Sample:
        """Measure a call with each name, and the bare request right after them."""
        seconds = self.how(run, names)
        return Sample(seconds=seconds, base=None if self.base is None else self.how(self.base, names))


def run(budget: Budget) -> list[Table]:
    """Measure all curves on Valkey and in memory, and as far as it goes on moto."""
    tables = {
        "waiting": _table("waiting", "A settle that takes the next message", "waiting messages"),
        "traces": _table("traces", "Claim and settle, by remembered ids", "remembered ids"),
        "keys": _table("keys", "Claim and settle, by stored keys", "stored keys"),
        "sizes": _table("sizes", "Claim and settle, by the size of the message", "KB"),
    }
    sweeper = Table(
        name="growth-sweeper",
        title="The sweeper",
        first=f"orphans, among {_foreign(budget):,} foreign keys",
        columns=SWEEPER_COLUMNS,
    )
    quick, passes = budget.quick, budget.passes
    with store(stand_in(budget)) as running, apart(valkey) as server:
        client: Any = redis.Redis.from_url(server.url)
        one = client.script_load("return 1")
        on_redis = Measured(
            provider=RedisProvider(url=f"{server.url}?socket_timeout=20"),
            base=lambda name: client.evalsha(one, 1, name),
            how=wall_time,
            passes=passes,
            calls=16,
            most=10 if quick else 999,
        )
        in_memory = Measured(
            provider=MemoryProvider(), base=None, how=wall_time, passes=passes, calls=16, most=10 if quick else 999
        )
        dynamodb = provider_of(running.session())
        on_dynamodb = Measured(
            provider=dynamodb, base=None, how=cpu_time, passes=1 if quick else 3, calls=8, most=1 if quick else 100
        )
        for column, measured in ((REDIS, on_redis), (MEMORY, in_memory), (DYNAMODB, on_dynamodb)):
            _add(tables["waiting"], column, _drained(measured), WAITING)
            _add(tables["traces"], column, _traced(measured, quick=quick), TRACES)
            _add(tables["sizes"], column, _sized(measured), SIZES_KB)
        _add(tables["keys"], MEMORY, _keyed(in_memory, _fill_by_calls, budget), KEYS)
        _add(tables["keys"], DYNAMODB, _keyed(on_dynamodb, _fill_by_calls, budget), KEYS)
        client.flushall()
        _add(tables["keys"], REDIS, _keyed(on_redis, _copier(client), budget), KEYS)
        client.flushall()
        _sweep_redis(sweeper, on_redis.provider, client, budget)
        _sweep_dynamodb(sweeper, dynamodb, budget)
    return [*tables.values(), sweeper]


def _table(name: str, title: str, first: str) -> Table:
    return Table(name=f"growth-{name}", title=title, first=first, columns=COLUMNS)


def _add(table: Table, column: str, found: Mapping[Any, Sequence[Sample]], points: Sequence[float]) -> None:
    for point in points:
        row, samples = f"{point:,}", found.get(point, ())
        table.set(row)
        if samples:
            table.set(row, **{column: spread([each.seconds for each in samples], 1e6)})
        ratios = [each.seconds / each.base for each in samples if each.base is not None]
        if ratios:
            table.set(row, **{RATIO: spread(ratios)})


def _drained(measured: Measured) -> dict[int, list[Sample]]:
    """Measure a settle at each number of waiting messages, in each pass."""
    found: dict[int, list[Sample]] = {point: [] for point in WAITING if point <= measured.most}
    for turn in range(measured.passes):
        for waiting, samples in found.items():
            key = f"drain/{waiting}/{turn}"
            drain = ours.Drain(measured.provider, key, ours.fill(measured.provider, key, waiting))
            samples.append(measured.sample(drain, [key] * max(1, min(waiting, measured.calls))))
    return found


def _traced(measured: Measured, *, quick: bool) -> dict[float, list[Sample]]:
    """Measure claim and settle around each number of remembered ids, in each pass."""
    points = TRACES[:1] if quick else TRACES
    found: dict[float, list[Sample]] = {point: [] for point in points}
    for turn in range(measured.passes):
        key = f"traces/{turn}"

        def run(name: str, key: str = key) -> None:
            ours.claim_and_settle(measured.provider, key, name)

        done = 0
        for point in points:
            for number in range(done, point - _NEAR):
                run(f"run/{number:06}")
            begun = max(done, point - _NEAR)
            names = [f"run/{number:06}" for number in range(begun, point + _NEAR)]
            found[point].append(measured.sample(run, names))
            done = point + _NEAR
    return found


def _sized(measured: Measured) -> dict[float, list[Sample]]:
    """Measure claim and settle with messages of each size, in each pass."""
    found: dict[float, list[Sample]] = {size: [] for size in SIZES_KB}
    for turn in range(measured.passes):
        for size in SIZES_KB:
            event = {"text": "x" * round(size * 1_024)}

            def run(name: str, event: Any = event) -> None:
                ours.claim_and_settle(measured.provider, name, name, event=event)

            found[size].append(
                measured.sample(run, [f"size/{size}/{turn}/{number}" for number in range(measured.calls)])
            )
    return found


def _keyed(measured: Measured, fill: Callable[[Any, int, int], None], budget: Budget) -> dict[float, list[Sample]]:
    """Measure claim and settle on stored keys, at each number of keys."""
    found: dict[float, list[Sample]] = {}
    pick = random.Random(2)  # noqa: S311 - which keys are tried is no secret
    stored = 0
    name = type(measured.provider).__name__
    most = 100 if budget.quick else {"MemoryProvider": 10_000, "DynamoDBProvider": 1_000}.get(name, KEYS[-1])
    points = (10,) if budget.quick else tuple(point for point in KEYS if point <= most)
    for point in points:
        fill(measured.provider, stored, point)
        stored = point
        found[point] = []
        for turn in range(measured.passes):

            def run(name: str, point: int = point) -> None:
                ours.claim_and_settle(measured.provider, f"stored-{pick.randrange(point)}", name)

            names = [f"keys/{point}/{turn}/{number}" for number in range(measured.calls)]
            found[point].append(measured.sample(run, names))
    return {KEYS[0]: found[10]} if budget.quick else found


def _fill_by_calls(provider: Any, begin: int, end: int) -> None:
    for number in range(begin, end):
        ours.claim_and_settle(provider, f"stored-{number}", "before")


def _copier(client: Any) -> Callable[[Any, int, int], None]:
    """Return what stores keys that had one run: one by the provider's calls, its copies by a script."""

    def fill(provider: Any, begin: int, end: int) -> None:
        ours.claim_and_settle(provider, _SAMPLE, "before")
        _copy(client, "stored-", begin, end)

    return fill


def _copy(client: Any, prefix: str, begin: int, end: int) -> None:
    """Copy all that Redis has of the sample's key, ``end - begin`` times, under other keys; then remove the sample."""
    names = list(client.scan_iter(match=f"*{_SAMPLE}*", count=100_000))
    parts = [part for name in names for part in (max(0, client.pttl(name)), client.dump(name))]
    pattern = _SAMPLE.replace("-", "%-")  # Lua's patterns give the hyphen a meaning
    copy = client.register_script(_COPY)
    for first in range(begin, end, _BATCH):
        copy(keys=names, args=[first, min(first + _BATCH, end) - 1, pattern, prefix, *parts])
    client.delete(*names)


def _foreign(budget: Budget) -> int:
    return 1_000 if budget.quick else FOREIGN


def _sweep_redis(table: Table, provider: RedisProvider, client: Any, budget: Budget) -> None:
    """Search for orphans among the keys of other programs."""
    foreign = _foreign(budget)
    fill = client.register_script(_FOREIGN)
    for first in range(0, foreign, _BATCH):
        fill(args=[first, min(first + _BATCH, foreign) - 1])
    stored = 0
    for row in ORPHANS:
        orphans = 10 if budget.quick else row
        _orphan(provider, _SAMPLE)
        _copy(client, "orphan-", stored, orphans)
        stored = orphans
        began = time.perf_counter()
        found = sum(1 for _ in provider.orphans(10 * FOREIGN))
        took = time.perf_counter() - began
        if found != orphans:
            raise AssertionError(
                f"{found} orphans were found of {orphans}: the copies are not what the provider stores"
            )
        began = time.perf_counter()
        sweep(provider, _woken, limit=100, observers=())
        took_pass = time.perf_counter() - began
        table.set(f"{row:,}", found=found, redis=took * 1e3, redis_each=took * 1e6 / found, redis_pass=took_pass * 1e3)
        if budget.quick:
            return


def _sweep_dynamodb(table: Table, provider: DynamoDBProvider, budget: Budget) -> None:
    """Search for orphans among the keys that the other curves left; moto is too slow for many."""
    stored = 0
    for row in ORPHANS[:2]:
        orphans = 5 if budget.quick else row
        for number in range(stored, orphans):
            _orphan(provider, f"orphan-{number}")
        stored = orphans
        times = []
        for _ in range(1 if budget.quick else 3):
            began = time.perf_counter()
            found = sum(1 for each in provider.orphans(FOREIGN) if "orphan-" in each.key)
            times.append(time.perf_counter() - began)
        if found != orphans:
            raise AssertionError(f"{found} orphans were found of {orphans}")
        table.set(f"{row:,}", dynamodb=statistics.median(times) * 1e3)
        if budget.quick:
            return


def _orphan(provider: Any, key: str) -> None:
    """Store two messages, and let the owner go without settling: the second is due, and has no owner."""
    ours.fill(provider, key, 1)
    provider.release_lease(key, "owner/0")


def _woken(wake: Wake) -> None:
    """Wake nothing."""
    json.dumps(wake.to_event())
