"""DynamoDB's stand-ins in processes of their own, with the tables of incumbent and of those measured beside it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.capacity import Meter
from benchmarks.measure import Budget
from incumbent.local.processes import supervised
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.testing.servers import DynamoDBServer, create_table, dynalite, locked_moto, why_no_dynalite

_PATIENT = Config(connect_timeout=20, read_timeout=20)  # a stand-in may be slow, which is not what is measured
ANSWER_MS = 8
TABLE, RECORDS, LOCKS, BARE = "leases", "idempotency", "locks", "bare"


class Store:
    """A running stand-in; sessions that know it, metered or not."""

    def __init__(self, server: DynamoDBServer) -> None:
        self.server = server
        self.client: Any = self.session().client("dynamodb")

    def session(self) -> Any:
        """Return a new session, whose clients talk to this server."""
        given = self.server.environment
        session = _Session(
            region_name=given["AWS_REGION"],
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        )
        session.endpoint_url = self.server.endpoint_url
        return session

    def metered(self) -> tuple[Any, Meter]:
        """Return a session whose clients are watched, and what watches them."""
        session = self.session()
        return session, Meter(session, self.client)


class _Session(boto3.Session):
    """A session whose clients and resources talk to one address."""

    endpoint_url: str

    def client(self, *args: Any, **kwargs: Any) -> Any:
        return super().client(*args, **{"endpoint_url": self.endpoint_url, **kwargs})

    def resource(self, *args: Any, **kwargs: Any) -> Any:
        return super().resource(*args, **{"endpoint_url": self.endpoint_url, **kwargs})


def provider_of(session: Any) -> DynamoDBProvider:
    """Return a provider on the leases' table, which waits for a slow answer."""
    return DynamoDBProvider(table_name=TABLE, boto3_session=session, boto_config=_PATIENT)


def stand_in(budget: Budget) -> Callable[[], AbstractContextManager[DynamoDBServer]]:
    """Return what starts moto; where no figure counts, dynalite, which starts sooner."""
    return dynalite if budget.quick and why_no_dynalite() is None else locked_moto


@contextmanager
def paced(start: Callable[[], AbstractContextManager[DynamoDBServer]]) -> Iterator[DynamoDBServer]:
    """Start a stand-in that answers short and long requests after the same time."""
    words = (sys.executable, "-m", "benchmarks.pacer")
    with start() as server, supervised([*words, str(server.port), str(ANSWER_MS)]) as pacer:
        yield DynamoDBServer(port=int(pacer.first_line()), process_group=pacer.process_group)


@contextmanager
def store(start: Callable[[], AbstractContextManager[DynamoDBServer]]) -> Iterator[Store]:
    """Start a stand-in and make the tables."""
    with start() as server:
        running = Store(server)
        make_tables(running.client)
        yield running


def make_tables(client: Any) -> None:
    """Make the tables that all variants need."""
    create_table(client, TABLE)
    for name, keys in ((RECORDS, ("id",)), (BARE, ("pk", "sk")), (LOCKS, ("lock_key", "sort_key"))):
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            KeySchema=[
                {"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
        )
