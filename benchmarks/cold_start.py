"""What a cold start costs: importing a handler, and its first call, beside a bare one and Powertools' idempotency.

    python benchmarks/cold_start.py [--runs 7]

Each figure is the median of new processes. ``import`` is what Lambda does before the first event, ``first`` the first
call, in which clients are made and connected, ``next`` the call after it. The stores run on this machine: Valkey, and
moto for DynamoDB, which is slower than the service. Absolute times are this machine's; look at the ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from incumbent.testing.servers import create_table, locked_moto, valkey

TABLE, RECORDS = "leases", "idempotency"

MEASURE = """
import json, sys, time
began = time.perf_counter()
{program}
imported = time.perf_counter()
class Context:
    aws_request_id = "request-1"
    function_name = "orders"
    invoked_function_arn = "arn:aws:lambda:eu-central-1:123456789012:function:orders"
    memory_limit_in_mb = 512
    def get_remaining_time_in_millis(self):
        return 60_000
times = [imported]
for number in range(2):
    handler({{"order_id": f"{name}-{{number}}", "id": f"{name}-{{number}}"}}, Context())
    times.append(time.perf_counter())
print(json.dumps([(imported - began) * 1e3, (times[1] - times[0]) * 1e3, (times[2] - times[1]) * 1e3]))
"""

BARE = """
def handler(event, context):
    return {"statusCode": 200}
"""
ONE_WRITE = """
import boto3
table = boto3.client("dynamodb")
def handler(event, context):
    table.put_item(TableName="leases", Item={"pk": {"S": event["order_id"]}, "sk": {"S": "bare"}})
"""
LEASED = """
from incumbent import leased
@leased(key=lambda event: event["order_id"], message_id=lambda event: event["id"])
def handler(event, context):
    return {"statusCode": 200}
"""
LEASED_JMESPATH = """
from incumbent import leased
@leased(key_jmespath="order_id", message_id_jmespath="id")
def handler(event, context):
    return {"statusCode": 200}
"""
IDEMPOTENT_DYNAMODB = """
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
@idempotent(
    persistence_store=DynamoDBPersistenceLayer(table_name="idempotency"),
    config=IdempotencyConfig(event_key_jmespath="id"),
)
def handler(event, context):
    return {"statusCode": 200}
"""
IDEMPOTENT_REDIS = """
import os, redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
@idempotent(
    persistence_store=RedisCachePersistenceLayer(client=redis.Redis.from_url(os.environ["INCUMBENT_REDIS_URL"])),
    config=IdempotencyConfig(event_key_jmespath="id"),
)
def handler(event, context):
    return {"statusCode": 200}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to write the handler, and what its environment says."""

    name: str
    program: str
    provider: str | None = None


VARIANTS = (
    Variant(name="bare handler", program=BARE),
    Variant(name="bare, one DynamoDB write", program=ONE_WRITE),
    Variant(name="incumbent, memory", program=LEASED, provider="memory"),
    Variant(name="incumbent, memory, JMESPath", program=LEASED_JMESPATH, provider="memory"),
    Variant(name="incumbent, Redis", program=LEASED, provider="redis"),
    Variant(name="Powertools idempotency, Redis", program=IDEMPOTENT_REDIS),
    Variant(name="incumbent, DynamoDB", program=LEASED, provider="dynamodb"),
    Variant(name="Powertools idempotency, DynamoDB", program=IDEMPOTENT_DYNAMODB),
)


def measured(variant: Variant, environment: Mapping[str, str], run: int) -> list[float]:
    """Run it in a new process; return the milliseconds of import, first call and next call."""
    program = MEASURE.format(program=variant.program, name=f"{variant.name}-{run}")
    provider = {} if variant.provider is None else {"INCUMBENT_PROVIDER": variant.provider}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], env={**environment, **provider}, capture_output=True, text=True, check=True
    )
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure all variants in turn, several times, and print a table."""
    parser = argparse.ArgumentParser(description="measure what a cold start costs")
    parser.add_argument("--runs", type=int, default=7, help="new processes of each variant (7)")
    runs = parser.parse_args().runs
    with valkey() as redis_server, locked_moto() as dynamodb_server:
        import boto3

        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **dynamodb_server.environment,
            "INCUMBENT_TABLE_NAME": TABLE,
            "INCUMBENT_REDIS_URL": redis_server.url,
        }
        given = dynamodb_server.environment
        client = boto3.client(
            "dynamodb",
            endpoint_url=dynamodb_server.endpoint_url,
            region_name=given["AWS_REGION"],
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        )
        create_table(client, TABLE)
        client.create_table(
            TableName=RECORDS,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        for variant in VARIANTS:  # once for nothing: files come into the cache, modules are compiled
            measured(variant, environment, -1)
        times: dict[str, list[list[float]]] = {variant.name: [] for variant in VARIANTS}
        for run in range(runs):  # in turn, so that a slow moment of the machine is everybody's
            for variant in VARIANTS:
                times[variant.name].append(measured(variant, environment, run))
    medians = {name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in times.items()}
    python_ms = statistics.median(_bare_python(runs))
    print(f"Cold starts, median of {runs} new processes, milliseconds (Python itself: {python_ms:.0f})\n")
    print(f"{'':34}{'import':>8}{'first':>8}{'next':>8}{'import + first':>16}")
    for name, (imported, first, following) in medians.items():
        print(f"{name:34}{imported:8.1f}{first:8.1f}{following:8.2f}{imported + first:16.1f}")
    print("\nimport + first, beside Powertools' idempotency on the same store:")
    for store in ("Redis", "DynamoDB"):
        ours, theirs = (sum(medians[f"{who}, {store}"][:2]) for who in ("incumbent", "Powertools idempotency"))
        print(f"  {store:10}{ours / theirs:5.2f} times")


def _bare_python(runs: int) -> list[float]:
    import time

    found = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        found.append((time.perf_counter() - began) * 1_000)
    return found


if __name__ == "__main__":
    main()
