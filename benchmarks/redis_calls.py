"""The section ``redis``: locks, mailboxes and idempotency on one Valkey."""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import redis
from aws_lambda_powertools.utilities.idempotency.persistence.redis import CachePersistenceLayer

from benchmarks import ours, peers
from benchmarks.measure import Budget, Run, apart, interleaved, ratios, spread
from benchmarks.tables import Cell, Column, Table
from incumbent.providers.redis import RedisProvider
from incumbent.testing.servers import valkey

TWO_SCRIPTS = "two bare EVALSHA"
PING = "PING"
ACQUIRE, CLAIM, LEASED, REFUSED = (
    "incumbent, acquire and release",
    "incumbent, claim and settle",
    "incumbent, `@leased`",
    "incumbent, acquire refused",
)
LOCK, BY_HAND, REFUSED_LOCK = "redis-py Lock", "lock and list by hand", "redis-py Lock refused, and GET"
IDEMPOTENCY = "Powertools idempotency, Redis"

COLUMNS = {
    "ratio": Column(title="times the base", digits=2, spread=True),
    "us": Column(title="µs"),
    "requests": Column(title="requests", digits=1),
    "server_us": Column(title="server µs", digits=1),
    "sent": Column(title="bytes sent"),
    "received": Column(title="bytes received"),
}
_WATCHED = 10
_BLOCKS, _COUNTED = 7, 20
_CONNECTING = {"auth", "client", "hello", "select"}


def run(budget: Budget) -> list[Table]:
    """Measure all variants in the same rounds; then count requests, bytes and server time one by one."""
    with apart(valkey) as server:
        client: Any = redis.Redis.from_url(server.url)
        decoding: Any = redis.Redis.from_url(server.url, decode_responses=True)
        provider = RedisProvider(url=server.url)
        one = client.script_load("return 1")

        def two_scripts(key: str) -> None:
            client.evalsha(one, 1, key)
            client.evalsha(one, 1, key)

        runs: dict[str, Run | None] = {
            TWO_SCRIPTS: two_scripts,
            ACQUIRE: ours.lease_only(provider),
            CLAIM: ours.with_message(provider),
            LEASED: ours.decorated(provider),
            LOCK: peers.redis_lock(client),
            "python-redis-lock": peers.python_redis_lock(client),
            "pottery Redlock": peers.pottery(client),
            "fencekit": peers.fencekit(decoding),
            IDEMPOTENCY: peers.idempotency(CachePersistenceLayer(client=client)),
            BY_HAND: peers.lock_and_list(client),
        }
        held: dict[str, Run | None] = {
            PING: lambda _: client.ping(),
            REFUSED: ours.refused(provider),
            REFUSED_LOCK: peers.redis_lock_refused(client),
            "fencekit refused": peers.fencekit_refused(decoding),
        }
        here = {name: each for name, each in {**runs, **held}.items() if each is not None}
        found = interleaved(here, rounds=budget.rounds, calls=budget.calls)
        tables = []
        for name, title, base, variants in (
            ("redis", "A run on Redis (Valkey)", TWO_SCRIPTS, runs),
            ("redis-refused", "A refused acquire on Redis (Valkey)", PING, held),
        ):
            table = Table(name=name, title=title, first=f"base: {base}", columns=COLUMNS)
            tables.append(table)
            for variant, each in variants.items():
                if each is None:
                    table.set(variant, ratio="not installed")
                    continue
                table.set(
                    variant,
                    ratio=ratios(found[variant], found[base]),
                    us=spread(found[variant], 1e6),
                    **_counted(each, variant, server.url, quick=budget.quick),
                )
        return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A command that reached the server, and whether a script called it."""

    name: str
    within: Literal["client", "script"]


def _counted(run: Run, variant: str, url: str, *, quick: bool) -> dict[str, Cell]:
    """Return the requests, server time and bytes per call, from MONITOR and INFO; the median of several blocks."""
    watcher: Any = redis.Redis.from_url(url)
    seen = _commands(run, f"{variant}/watched", watcher)
    server_us, sent, received = [], [], []
    blocks, calls = (1, 2) if quick else (_BLOCKS, _COUNTED)
    for block in range(blocks):
        watcher.config_resetstat()
        watcher.info("all")
        before = watcher.info("all")
        own = watcher.info("all")
        for number in range(calls):
            run(f"{variant}/counted/{block}/{number}")
        after = watcher.info("all")
        server_us.append(_server_us(seen, after) / calls)
        sent.append(_bytes("input", before, own, after) / calls)
        received.append(_bytes("output", before, own, after) / calls)
    return {
        "requests": sum(seen[each] for each in seen if each.within == "client") / _WATCHED,
        "server_us": statistics.median(server_us),
        "sent": statistics.median(sent),
        "received": statistics.median(received),
    }


def _server_us(seen: Counter[_Seen], stats: Any) -> float:
    """Return the time of the client's commands. What a script calls is within the script's time.

    A command that both the client and a script send is counted by the share of its calls that are the client's.
    """
    found = 0.0
    for name in {each.name for each in seen if each.within == "client"}:
        by_client = seen[_Seen(name=name, within="client")]
        in_all = sum(seen[each] for each in seen if each.name == name)
        found += stats[f"cmdstat_{name}"]["usec"] * by_client / in_all
    return found


def _bytes(way: str, before: Any, own: Any, after: Any) -> int:
    """Return the bytes between the last two INFO, less what an INFO itself takes."""
    name = f"total_net_{way}_bytes"
    of_calls: int = (after[name] - own[name]) - (own[name] - before[name])
    return max(0, of_calls)


def _commands(run: Run, name: str, watcher: Any) -> Counter[_Seen]:
    """Return the commands that some calls send."""
    found: Counter[_Seen] = Counter()
    pool = watcher.connection_pool
    last: Any = redis.Redis(connection_pool=pool)
    last.ping()
    with watcher.monitor() as monitor:
        for number in range(_WATCHED):
            run(f"{name}/{number}")
        last.echo("that was all")
        for command in monitor.listen():
            if "that was all" in command["command"]:
                return found
            word = command["command"].split(maxsplit=1)[0].lower()
            if word in _CONNECTING:
                continue
            found[_Seen(name=word, within="script" if command["client_type"] == "lua" else "client")] += 1
    raise AssertionError
