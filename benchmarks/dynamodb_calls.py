"""The section ``dynamodb``: the client's CPU, bytes and units, with the server in another process."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from botocore.config import Config

from benchmarks import ours, peers
from benchmarks.dynamodb_stores import BARE, LOCKS, RECORDS, paced, provider_of, stand_in, store
from benchmarks.measure import Budget, Run, cpu_time, interleaved, ratios, spread
from benchmarks.tables import Column, Table
from incumbent.testing.servers import DynamoDBServer, dynalite, why_no_dynalite

TWO_UPDATES = "two bare UpdateItem"
ACQUIRE, CLAIM, LEASED = (
    "incumbent, acquire and release",
    "incumbent, claim and settle",
    "incumbent, `@leased`",
)
IDEMPOTENCY = "Powertools idempotency, DynamoDB"

COLUMNS = {
    "ratio": Column(title="client CPU, times the base", digits=2, spread=True),
    "cpu_us": Column(title="CPU µs"),
    "requests": Column(title="requests", digits=1),
    "sent": Column(title="bytes sent"),
    "received": Column(title="bytes received"),
    "write_units": Column(title="WCU", digits=1),
    "index_units": Column(title="WCU of the index", digits=1),
    "read_units": Column(title="RCU", digits=1),
}
_COUNTED = 5


def run(budget: Budget) -> list[Table]:
    """Measure on moto, and on dynalite where it is installed; and on moto as it answers by itself."""
    tables = [_on("moto", partial(paced, stand_in(budget)), budget), _on("unpaced", stand_in(budget), budget)]
    if why_no_dynalite() is None:
        tables.append(_on("dynalite", partial(paced, dynalite), budget))
    else:
        table = _table("dynalite")
        table.set(TWO_UPDATES, ratio=f"not measured: {why_no_dynalite()}")
        tables.append(table)
    return tables


def _table(name: str) -> Table:
    title = f"A run on DynamoDB ({name})"
    return Table(name=f"dynamodb-{name}", title=title, first=f"base: {TWO_UPDATES}", columns=COLUMNS)


def _on(name: str, start: Callable[[], AbstractContextManager[DynamoDBServer]], budget: Budget) -> Table:
    table = _table(name)
    with store(start) as running:
        plain = _variants(running.session())
        here = {variant: each for variant, each in plain.items() if each is not None}
        found = interleaved(here, rounds=budget.slow_rounds, calls=budget.slow_calls, how=cpu_time)
        session, meter = running.metered()
        calls = 1 if budget.quick else _COUNTED
        for variant, each in _variants(session).items():
            if each is None:
                table.set(variant, ratio="not installed")
                continue
            each(f"{variant}/connects")
            meter.take()
            for number in range(calls):
                each(f"{variant}/counted/{number}")
            cost = meter.take()
            table.set(
                variant,
                ratio=ratios(found[variant], found[TWO_UPDATES]),
                cpu_us=spread(found[variant], 1e6),
                requests=cost.requests / calls,
                sent=cost.sent / calls,
                received=cost.received / calls,
                write_units=cost.write_units / calls,
                index_units=cost.index_units / calls,
                read_units=cost.read_units / calls,
            )
    return table


def _variants(session: Any) -> dict[str, Run | None]:
    provider = provider_of(session)
    return {
        TWO_UPDATES: two_updates(session.client("dynamodb")),
        f"{TWO_UPDATES}, parameters not validated": two_updates(
            session.client("dynamodb", config=Config(parameter_validation=False))
        ),
        ACQUIRE: ours.lease_only(provider),
        CLAIM: ours.with_message(provider),
        LEASED: ours.decorated(provider),
        "python-dynamodb-lock": peers.python_dynamodb_lock(session, LOCKS),
        IDEMPOTENCY: peers.idempotency(DynamoDBPersistenceLayer(table_name=RECORDS, boto3_session=session)),
    }


def two_updates(client: Any) -> Run:
    """Write an item, with a condition, and take an attribute away again: what a lock needs at least."""

    def run(key: str) -> None:
        place = {"pk": {"S": key}, "sk": {"S": "bare"}}
        client.update_item(
            TableName=BARE,
            Key=place,
            UpdateExpression="SET o = :o",
            ConditionExpression="attribute_not_exists(o)",
            ExpressionAttributeValues={":o": {"S": "owner"}},
        )
        client.update_item(
            TableName=BARE,
            Key=place,
            UpdateExpression="REMOVE o",
            ConditionExpression="o = :o",
            ExpressionAttributeValues={":o": {"S": "owner"}},
        )

    return run
