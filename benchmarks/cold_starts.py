"""The section ``cold``: new processes of Lambda's real runtime client, from import to the first answer."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.dynamodb_stores import RECORDS, TABLE, stand_in, store
from benchmarks.measure import Budget, spread
from benchmarks.tables import Column, Table
from incumbent.local import FunctionSpec, LocalLambda
from incumbent.testing.servers import valkey

BARE = "bare handler"
IMPORT = "`import incumbent`"
JMESPATH = 'decorating with `key_jmespath="a"`'
MEMORY, REDIS, DYNAMODB = "incumbent, memory", "incumbent, Redis", "incumbent, DynamoDB"
POWERTOOLS_REDIS, POWERTOOLS_DYNAMODB = "Powertools idempotency, Redis", "Powertools idempotency, DynamoDB"

COLUMNS = {
    "total": Column(title="import to first answer, ms", digits=1, spread=True),
    "cpu": Column(title="its CPU, ms", digits=1),
    "imported": Column(title="import, ms", digits=1, spread=True),
    "first": Column(title="first call, ms", digits=1),
    "following": Column(title="next call, ms", digits=2),
}

_TRIES = 3  # a store on a busy machine may answer too late

# What is imported before the measured lines is in `before`; the runtime client's own modules are there anyway.
_PROGRAM = """
import json, os, time
{before}
began, cpu = time.perf_counter(), time.process_time()
{measured}
imported = time.perf_counter()
measured_handler = handler
def handler(event, context):
    entered = time.perf_counter()
    measured_handler(event, context)
    return [imported - began, time.perf_counter() - entered, time.process_time() - cpu]
"""
_HANDLER = """
def handler(event, context):
    return {"statusCode": 200}
"""
_LEASED = "@leased(key=lambda event: event['order_id'], message_id=lambda event: event['id'])"
_LEASED_JMESPATH = "@leased(key_jmespath='order_id', message_id_jmespath='id')"
_FROM_MEMORY = """
from incumbent import leased
from incumbent.providers.memory import MemoryProvider
"""
_POWERTOOLS_REDIS = """
import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
@idempotent(
    persistence_store=RedisCachePersistenceLayer(client=redis.Redis.from_url(os.environ["INCUMBENT_REDIS_URL"])),
    config=IdempotencyConfig(event_key_jmespath="id"),
)"""
_POWERTOOLS_DYNAMODB = f"""
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
@idempotent(
    persistence_store=DynamoDBPersistenceLayer(table_name="{RECORDS}"),
    config=IdempotencyConfig(event_key_jmespath="id"),
)"""
_ONE_SET = """
import redis
client = redis.Redis.from_url(os.environ["INCUMBENT_REDIS_URL"])
def handler(event, context):
    client.set(event["id"], "bare", nx=True, px=30_000)
"""
_ONE_WRITE = f"""
import boto3
client = boto3.client("dynamodb")
def handler(event, context):
    client.put_item(TableName="{TABLE}", Item={{"pk": {{"S": event["id"]}}, "sk": {{"S": "bare"}}}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A handler: the lines that are measured, those before them, and the provider that its environment names."""

    measured: str
    before: str = ""
    provider: str = ""


STARTS: Mapping[str, Start] = {
    BARE: Start(measured=_HANDLER),
    "bare, one Redis SET": Start(measured=_ONE_SET),
    "bare, one DynamoDB PutItem": Start(measured=_ONE_WRITE),
    IMPORT: Start(measured="import incumbent\n" + _HANDLER),
    JMESPATH: Start(
        before=_FROM_MEMORY + "memory = MemoryProvider()",
        measured="@leased(key_jmespath='a', message_id=lambda event: event['id'], provider=memory)" + _HANDLER,
    ),
    MEMORY: Start(
        measured=_FROM_MEMORY + _LEASED.replace("@leased(", "@leased(provider=MemoryProvider(), ") + _HANDLER
    ),
    f"{MEMORY}, JMESPath": Start(
        measured=_FROM_MEMORY + _LEASED_JMESPATH.replace("@leased(", "@leased(provider=MemoryProvider(), ") + _HANDLER
    ),
    REDIS: Start(measured=f"from incumbent import leased\n{_LEASED}{_HANDLER}", provider="redis"),
    f"{REDIS}, JMESPath": Start(
        measured=f"from incumbent import leased\n{_LEASED_JMESPATH}{_HANDLER}", provider="redis"
    ),
    POWERTOOLS_REDIS: Start(measured=_POWERTOOLS_REDIS + _HANDLER),
    DYNAMODB: Start(measured=f"from incumbent import leased\n{_LEASED}{_HANDLER}", provider="dynamodb"),
    f"{DYNAMODB}, JMESPath": Start(
        measured=f"from incumbent import leased\n{_LEASED_JMESPATH}{_HANDLER}", provider="dynamodb"
    ),
    POWERTOOLS_DYNAMODB: Start(measured=_POWERTOOLS_DYNAMODB + _HANDLER),
}


def run(budget: Budget) -> list[Table]:
    """Start every handler in a new process, in turn, several times."""
    times: dict[str, list[list[float]]] = {name: [] for name in STARTS}
    with _functions(budget) as started:
        if not budget.quick:
            for name in STARTS:  # once for nothing: files come into the cache, modules are compiled
                _started(started, name, -1)
        for turn in range(budget.processes):
            for name in STARTS:
                times[name].append(_started(started, name, turn))
    table = Table(name="cold", title="Cold starts", first="handler", columns=COLUMNS)
    for name, found in times.items():
        imported, first, following, cpu = (list(column) for column in zip(*found, strict=True))
        table.set(
            name,
            total=spread([one + other for one, other in zip(imported, first, strict=True)], 1e3),
            cpu=spread(cpu, 1e3),
            imported=spread(imported, 1e3),
            first=spread(first, 1e3),
            following=spread(following, 1e3),
        )
    return [table]


@contextlib.contextmanager
def _functions(budget: Budget) -> Iterator[LocalLambda]:
    """Start both stores, and have a function for each handler."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-") as folder,
        valkey() as cache,
        store(stand_in(budget)) as running,
    ):
        redis.Redis.from_url(cache.url).ping()
        specs = []
        for number, (name, start) in enumerate(STARTS.items()):
            code = Path(folder) / f"handler{number}"
            code.mkdir()
            text = _PROGRAM.format(before=start.before, measured=start.measured)
            (code / "app.py").write_text(text, "utf-8")
            chosen = {"INCUMBENT_PROVIDER": start.provider} if start.provider else {}
            specs.append(
                FunctionSpec(
                    logical_id=name,
                    name=f"handler{number}",
                    handler="app.handler",
                    code=code,
                    path=(code,),
                    runtime="python3.13",
                    timeout_ms=60_000,
                    memory_mb=512,
                    environment={
                        **chosen,
                        "INCUMBENT_TABLE_NAME": TABLE,
                        "INCUMBENT_REDIS_URL": cache.url,
                    },
                )
            )
        given = dict(running.server.environment)
        with LocalLambda(specs, env=given, concurrency=1, freezing=False) as started:
            yield started


def _started(started: LocalLambda, name: str, turn: int) -> list[float]:
    """Start a process for the handler; return the seconds of its import, first call and next call, and its CPU time.

    The CPU time is that until the first answer.
    """
    for again in range(_TRIES):
        keys = [f"{name}/{turn}/{again}/{call}" for call in range(2)]
        invocations = [started.invoke(name, {"order_id": key, "id": key, "a": key}) for key in keys]
        for environment in started.environments(name):
            environment.kill()
        failed = [invocation.error for invocation in invocations if not invocation.ok]
        if not failed:
            (imported, first, cpu), (_, following, _) = (invocation.payload for invocation in invocations)
            return [imported, first, following, cpu]
    raise RuntimeError(f"{name} failed {_TRIES} times: {failed[0]}")
