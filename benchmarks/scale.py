"""What a key, a table and a cluster carry, simulated: real runs and the real provider, a virtual clock, throttling.

    python -m benchmarks.scale [hot shed many sweeper shards] [--quick] [--output FOLDER]

It writes docs/scaling.json, and docs/scaling.md from it; of tables that are named, only those are made anew. The same
seed gives the same figures on every machine.
"""

import argparse
import functools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.crowd import Arriving, Crowd, simulate
from benchmarks.partitions import ThrottledTable
from benchmarks.scale_page import page
from benchmarks.scale_stores import Counted, ShardedMemory, on_table
from benchmarks.tables import Column, Table
from incumbent.providers.dynamodb.names import SHARDS, shard_of
from incumbent.settings import Settings
from incumbent.values import Policy
from tests.simulation.environment import EPOCH_MS
from tests.simulation.expressions import Item
from tests.simulation.scheduler import Scheduler

DOCS = Path(__file__).parents[1] / "docs"
SEED = 1
HANDLER_MS = 20
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is simulated. ``keys`` are those of the table, ``per_s`` the messages of all of them."""

    seconds: int
    many_seconds: int
    keys: int
    per_s: int


FULL = Sizes(seconds=10, many_seconds=4, keys=100_000, per_s=1_000)
QUICK = Sizes(seconds=2, many_seconds=1, keys=500, per_s=100)

FATE = {
    "offered": Column(title="offered/s"),
    "ran": Column(title="ran/s", digits=1),
    "median": Column(title="ms until run, median"),
    "late": Column(title="99 of 100"),
    "refused": Column(title="given up, %", digits=1),
    "units": Column(title="WCU/s"),
    "throttled": Column(title="throttled, %", digits=1),
    "lost": Column(title="lost"),
    "twice": Column(title="ran twice"),
}


class Scenario:
    """One schedule on a table, with everything that it counts."""

    def __init__(
        self,
        settings: Settings,
        *,
        work_ms: int,
        table: Callable[[Scheduler], ThrottledTable],
        begin: Callable[[Crowd], None],
        sweep_ms: int = 60_000,
    ) -> None:
        """Carry it out."""
        self.counted = Counted()

        def prepare(scheduler: Scheduler) -> None:
            self.crowd = Crowd(scheduler, settings=settings, work_ms=work_ms)
            self.table = table(scheduler)
            on_table(self.crowd, self.table, self.counted)
            begin(self.crowd)
            self.crowd.sweep_every(sweep_ms)

        simulate(SEED, prepare)

    def fate(self, per_s: int, seconds: int) -> dict[str, float | None]:
        """What became of messages that arrived at that rate for so long."""
        crowd, throttled = self.crowd, self.table.throttled.total()
        in_time = sum(
            crowd.arrived[each] + ms <= seconds * 1_000
            for each, ms in crowd.answered_ms.items()
            if each in crowd.arrived
        )
        asked = throttled + self.table.requests
        return {
            "offered": per_s,
            "ran": in_time / seconds,
            "median": crowd.percentile(50),
            "late": crowd.percentile(99),
            "refused": 100 * crowd.given_up / len(crowd.arrived),
            "units": self.table.used_by(seconds * 1_000) / seconds,
            "throttled": 100 * throttled / asked,
            "lost": crowd.lost,
            "twice": crowd.twice,
        }


def hot_key(sizes: Sizes) -> Table:
    """Messages of one key, more and more of them."""
    table = Table(name="hot", title="One hot key on DynamoDB", first="`deliver`, messages a second", columns=FATE)
    for deliver, rates in (("one", (10, 20, 30, 40, 100)), ("all", (10, 50, 100, 150, 200))):
        for per_s in rates:
            settings = Settings(deliver="one" if deliver == "one" else "all")
            scenario = Scenario(
                settings,
                work_ms=HANDLER_MS,
                table=own_partitions,
                begin=functools.partial(arrive, Arriving(per_s=per_s, seconds=sizes.seconds, key_of=lambda _: "hot")),
            )
            table.set(f'`"{deliver}"`, {per_s}', **scenario.fate(per_s, sizes.seconds))
    return table


def shed(sizes: Sizes) -> Table:
    """One long run, while messages arrive that its partition cannot take."""
    columns = {
        "claims": Column(title="claims"),
        "full": Column(title="refused as full, %", digits=1),
        "shed": Column(title="claims given up, %", digits=1),
        "renewals": Column(title="renewals"),
        "failed": Column(title="renewals given up, %", digits=1),
        "throttled": Column(title="throttled, %", digits=1),
        "leases": Column(title="leases lost"),
        "lost": Column(title="messages lost"),
    }
    table = Table(name="shed", title="What gives up first", first="ttl, messages a second", columns=columns)
    long_ms = 2_000 * sizes.seconds
    for ttl_ms in (30_000, 6_000, 3_000):
        for per_s in (50, 150):
            arriving = Arriving(per_s=per_s, seconds=sizes.seconds * 2 - 1, key_of=lambda _: "hot")
            scenario = Scenario(
                Settings(ttl_ms=ttl_ms),
                work_ms=HANDLER_MS,
                table=own_partitions,
                begin=functools.partial(_behind_a_long_run, arriving, long_ms),
            )
            made, unavailable = scenario.counted.made, scenario.counted.unavailable
            throttled = scenario.table.throttled.total()
            table.set(
                f"{ttl_ms // 1_000} s, {per_s}",
                claims=made["claim"],
                full=100 * scenario.crowd.refusals["full"] / made["claim"],
                shed=100 * unavailable["claim"] / made["claim"],
                renewals=made["beat"],
                failed=100 * unavailable["beat"] / max(1, made["beat"]),
                throttled=100 * throttled / (throttled + scenario.table.requests),
                leases=scenario.crowd.facts["lease_lost"],
                lost=scenario.crowd.lost,
            )
    return table


def many_keys(sizes: Sizes) -> Table:
    """Messages of many keys, on tables and indexes of different widths."""
    columns = {
        **FATE,
        "by_index": Column(title="by the index, %", digits=1),
        "index": Column(title="index: WCU/s"),
        "shard": Column(title="its busiest shard"),
    }
    first = "partitions, of the index"
    table = Table(name="many", title=f"{sizes.keys:,} keys on DynamoDB", first=first, columns=columns)
    templates = worn()
    for partitions, of_index in ((4, 4), (8, 1), (8, 2), (8, 8)):
        chance = random.Random(SEED)  # noqa: S311 - which key a message is for
        keys = [f"key/{chance.randrange(sizes.keys)}" for _ in range(sizes.per_s * sizes.many_seconds)]

        def make(scheduler: Scheduler, partitions: int = partitions, of_index: int = of_index) -> ThrottledTable:
            return ThrottledTable(
                lambda: scheduler.now_ms, partitions=partitions, index_partitions=of_index, templates=templates
            )

        arriving = Arriving(per_s=sizes.per_s, seconds=sizes.many_seconds, key_of=keys.__getitem__)
        scenario = Scenario(Settings(), work_ms=HANDLER_MS, table=make, begin=functools.partial(arrive, arriving))
        used, asked = scenario.table, scenario.table.requests + scenario.table.throttled.total()
        seconds = scenario.crowd.scheduler.now_ms / 1_000 if not sizes.many_seconds else sizes.many_seconds
        table.set(
            f"{partitions}, {of_index}",
            **scenario.fate(sizes.per_s, sizes.many_seconds),
            index=used.used["index"] / seconds,
            shard=max(used.used_by_shard.values()) / seconds,
            by_index=100 * used.throttled["index"] / asked,
        )
    return table


def sweeper(sizes: Sizes) -> Table:
    """Passes over a table in which every key waits for one."""
    columns = {
        "found": Column(title="examined"),
        "woken": Column(title="woken"),
        "reads": Column(title="RCU of a pass"),
        "shard": Column(title="of each shard of the index"),
        "took": Column(title="ms for a pass"),
        "minutes": Column(title="minutes for all keys"),
    }
    first = "`INCUMBENT_SWEEP_LIMIT`"
    table = Table(name="sweeper", title=f"A sweeper and {sizes.keys:,} orphans", first=first, columns=columns)
    waiting = waits()
    for limit in (100, 1_000, 10_000):
        took: dict[str, Any] = {}

        def prepare(scheduler: Scheduler, limit: int = limit, took: dict[str, Any] = took) -> None:
            crowd = Crowd(scheduler, settings=Settings(), work_ms=0)
            stored = ThrottledTable(lambda: scheduler.now_ms, partitions=4, index_partitions=4)
            for number in range(sizes.keys):
                key = f"key/{number}"
                since = {"N": str(EPOCH_MS - _HOUR_MS + number * _HOUR_MS // sizes.keys)}
                stored.load(
                    {
                        **waiting,
                        "lease": {"M": {**waiting["lease"]["M"], "expires": since}},
                        "orphan_since": since,
                        "mail": {"L": [{"M": {**waiting["mail"]["L"][0]["M"], "stored": since}}]},
                        "pk": {"S": f"incumbent#{key}"},
                        "lease_key": {"S": key},
                        "orphan_shard": {"S": shard_of("incumbent", key)},
                    }
                )
            on_table(crowd, stored, Counted())
            crowd.sweep_once(limit, lambda ms: took.update(ms=ms))
            took.update(crowd=crowd, table=stored)

        simulate(SEED, prepare)
        (swept,) = took["crowd"].swept
        reads = took["table"].used["reads"]
        table.set(
            f"{limit:,}",
            found=swept.found,
            woken=swept.woken,
            reads=reads,
            shard=took["table"].used["index reads"] / SHARDS,
            took=took["ms"],
            minutes=-(-sizes.keys // max(1, swept.woken)),
        )
    return table


def shards(sizes: Sizes) -> Table:
    """Messages of many keys on three shards of Redis, of which one may be slow."""
    columns = {
        "offered": Column(title="offered/s"),
        "ran": Column(title="ran/s", digits=1),
        "median": Column(title="other shards: ms until run, median"),
        "late": Column(title="99 of 100"),
        "slow_median": Column(title="this shard: median"),
        "slow_late": Column(title="99 of 100"),
        "at_once": Column(title="most invocations at once"),
        "lost": Column(title="lost"),
    }
    table = Table(name="shards", title="Redis: one of three shards is slow", first="its latency, ms", columns=columns)
    for latency_ms in (1, 10, 50, 200):
        chance = random.Random(SEED)  # noqa: S311 - as above
        keys = [f"key/{chance.randrange(sizes.keys)}" for _ in range(sizes.per_s * sizes.many_seconds)]
        made: dict[str, Any] = {}

        def prepare(
            scheduler: Scheduler, latency_ms: int = latency_ms, keys: list[str] = keys, made: dict[str, Any] = made
        ) -> None:
            crowd = Crowd(scheduler, settings=Settings(), work_ms=HANDLER_MS)
            store = ShardedMemory(scheduler, (1, 1, latency_ms))
            crowd.make_provider = lambda _: store
            arriving = Arriving(per_s=sizes.per_s, seconds=sizes.many_seconds, key_of=keys.__getitem__)
            crowd.arrive(arriving)
            made.update(crowd=crowd, store=store)

        simulate(SEED, prepare)
        crowd, store = made["crowd"], made["store"]

        def slow(message_id: str, crowd: Crowd = crowd, store: ShardedMemory = store) -> bool:
            return store.shard_of(crowd.by_key[message_id]) == len(store.latencies_ms) - 1

        def other(message_id: str, slow: Callable[[str], bool] = slow) -> bool:
            return not slow(message_id)

        table.set(
            str(latency_ms),
            offered=sizes.per_s,
            ran=len(crowd.ran) / sizes.many_seconds,
            median=crowd.percentile(50, other),
            late=crowd.percentile(99, other),
            slow_median=crowd.percentile(50, slow),
            slow_late=crowd.percentile(99, slow),
            at_once=crowd.most_at_once,
            lost=crowd.lost,
        )
    return table


# --- parts


def own_partitions(scheduler: Scheduler) -> ThrottledTable:
    """Make a table in which each key, and each shard of the index, has a partition of its own."""
    return ThrottledTable(lambda: scheduler.now_ms, partitions=None, index_partitions=SHARDS)


def arrive(arriving: Arriving, crowd: Crowd) -> None:
    """Let messages arrive in a crowd."""
    crowd.arrive(arriving)


def _behind_a_long_run(arriving: Arriving, long_ms: int, crowd: Crowd) -> None:
    crowd.first_ms = long_ms
    crowd.message_at(0, "hot", "first")
    crowd.arrive(arriving, after_ms=100)


@functools.cache
def worn() -> tuple[Item, ...]:
    """Records of a key whose window of remembered ids is full, and for which nothing waits: after each of some runs."""
    made: list[Item] = []

    def begin(crowd: Crowd, table: ThrottledTable) -> None:
        for number in range(320):
            crowd.message_at(number * 100, "worn", f"w{number:05}")
            if number >= 300:  # older ids move to an item of their own, many at once: not every run pays for it
                crowd.scheduler.at(number * 100 + 99, lambda: made.append(table.item("incumbent#worn")))

    _alone(begin)
    return tuple(made)


@functools.cache
def waits() -> Item:
    """The record of a key that has one message, whose owner has died."""
    made: list[Item] = []

    def begin(crowd: Crowd, table: ThrottledTable) -> None:
        crowd.first_ms = 60_000
        crowd.message_at(0, "worn", "first")
        crowd.scheduler.at(1_000, lambda: made.append(table.item("incumbent#worn")))

    _alone(begin)
    return made[0]


def _alone(begin: Callable[[Crowd, ThrottledTable], None]) -> None:
    """Carry out a schedule on a table of its own."""

    def prepare(scheduler: Scheduler) -> None:
        crowd, table = Crowd(scheduler, settings=Settings(), work_ms=1), own_partitions(scheduler)
        on_table(crowd, table, Counted())
        begin(crowd, table)

    simulate(SEED, prepare)


TABLES: Mapping[str, Callable[[Sizes], Table]] = {
    "hot": hot_key,
    "shed": shed,
    "many": many_keys,
    "sweeper": sweeper,
    "shards": shards,
}


def main() -> None:
    """Simulate, print the tables, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all unless given")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--output", type=Path, help="where scaling.json and scaling.md go (docs/, unless --quick)")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    output = given.output or (None if given.quick else DOCS)
    stored: dict[str, Any] = {}
    if output is not None and given.tables:
        stored = json.loads((output / "scaling.json").read_text("utf-8"))
    stored["sizes"] = {
        **asdict(sizes),
        "handler_ms": HANDLER_MS,
        "shards": SHARDS,
        "max_pending": Policy().max_pending,
    }
    for name in given.tables or TABLES:
        table = TABLES[name](sizes)
        print(table.text(), flush=True)
        stored[name] = table.to_json()
    if output is not None:
        (output / "scaling.json").write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
        if stored.keys() >= TABLES.keys():
            (output / "scaling.md").write_text(page(stored), "utf-8")


if __name__ == "__main__":
    main()
