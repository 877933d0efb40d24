"""The network that fails on command does what it is told, and nothing else."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from botocore.exceptions import ClientError, HTTPClientError
from redis.backoff import NoBackoff
from redis.retry import Retry

from incumbent.testing.proxy import (
    RESP,
    Answer,
    CutReply,
    CutRequest,
    Delay,
    Duplicate,
    Fault,
    LoseReply,
    LoseRequest,
    Network,
    Pass,
    Stall,
    dynamodb_error,
    fault_proxy,
)
from incumbent.testing.servers import HOST, ValkeyServer
from tests.faults.stores import DynamoDBStore, ValkeyStore

Broken = (redis.ConnectionError, redis.TimeoutError)


def named(value: object) -> str | None:
    """A name for a case that is the same in every process."""
    if not isinstance(value, Fault):
        return None
    return type(value).__name__ + "".join(f" {name}" for name in ("silent", "last") if getattr(value, name, False))


def client_of(port: int, **settings: Any) -> Any:
    """A client that repeats nothing by itself."""
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), decode_responses=True, **settings)


@pytest.fixture
def network(networked_valkey: ValkeyStore) -> Network:
    """A network before a Valkey, in which nothing fails yet."""
    networked_valkey.begin()
    return networked_valkey.network


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(network: Network, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client behind the network, in both versions of the protocol."""
    with client_of(network.port, protocol=request.param, socket_timeout=0.6) as made:
        made.delete("counter")
        network.forget()
        yield made


@pytest.fixture
def counter(valkey_server: ValkeyServer) -> Iterator[Any]:
    """What the counter is at, seen past the network."""
    with client_of(valkey_server.port) as past:
        yield lambda: int(past.get("counter") or 0)


class TestFaults:
    """Each of them, told by a counter that is to be increased."""

    @pytest.mark.parametrize(
        ("fault", "carried_out"),
        [
            (LoseRequest(), 0),
            (LoseRequest(silent=True), 0),
            (CutRequest(), 0),
            (Stall(), 0),
            (Stall(silent=True), 0),
            (LoseReply(), 1),
            (LoseReply(silent=True), 1),
            (CutReply(), 1),
        ],
        ids=named,
    )
    def test_client_hears_nothing(
        self, network: Network, client: Any, counter: Any, fault: Fault, carried_out: int
    ) -> None:
        """And the server has carried it out, or it has not."""
        network.next(fault)
        with pytest.raises(Broken):
            client.incr("counter")
        assert counter() == carried_out
        assert client.incr("counter") == carried_out + 1

    def test_silence_lasts_until_the_client_gives_up(self, network: Network, client: Any) -> None:
        """A timeout, not a broken connection."""
        network.next(LoseReply(silent=True))
        with pytest.raises(redis.TimeoutError):
            client.incr("counter")

    @pytest.mark.parametrize(("fault", "heard"), [(Duplicate(), 1), (Duplicate(last=True), 2)], ids=named)
    def test_duplicate_is_carried_out_twice_and_answered_once(
        self, network: Network, client: Any, counter: Any, fault: Fault, heard: int
    ) -> None:
        """With the first answer, or with the last."""
        network.next(fault)
        assert client.incr("counter") == heard
        assert counter() == 2
        assert client.incr("counter") == 3

    def test_stalled_request_arrives_when_it_is_let(self, network: Network, client: Any, counter: Any) -> None:
        """Each time that it is delivered, whatever came before it."""
        network.next(Stall())
        with pytest.raises(Broken):
            client.incr("counter")
        client.incr("counter")
        (late,) = network.late
        assert late.request.name == "INCRBY"
        assert late.deliver() == b":2\r\n"
        assert counter() == 2

    def test_delayed_request_goes_through_when_it_is_let(self, network: Network, client: Any, counter: Any) -> None:
        """Until then the server has not seen it."""
        seen: list[int] = []
        go_on = threading.Event()

        def meanwhile() -> None:
            seen.append(counter())
            go_on.set()

        network.next(Delay(until=go_on, meanwhile=meanwhile))
        assert client.incr("counter") == 1
        assert seen == [0]

    def test_answer_is_said_in_the_servers_place(self, network: Network, client: Any, counter: Any) -> None:
        """And the server sees nothing of the request."""
        network.next(Answer(data=b":7\r\n"))
        assert client.incr("counter") == 7
        assert counter() == 0

    def test_something_may_happen_before_the_client_notices(self, network: Network, client: Any, counter: Any) -> None:
        """In the moment between the effect and the repetition."""
        seen: list[int] = []
        network.next(LoseReply(meanwhile=lambda: seen.append(counter())))
        with pytest.raises(Broken):
            client.incr("counter")
        assert seen == [1]


class TestPlans:
    """What happens to which request."""

    def test_nth_request_has_the_nth_fault(self, network: Network, client: Any, counter: Any) -> None:
        """And those after the last pass."""
        network.next(Pass(), LoseRequest(), LoseReply())
        assert client.incr("counter") == 1
        for _ in range(2):
            with pytest.raises(Broken):
                client.incr("counter")
        assert client.incr("counter") == 3

    def test_what_a_client_says_when_it_connects_goes_unseen(self, network: Network, client: Any) -> None:
        """So that a plan counts the requests that a test makes."""
        client.connection_pool.disconnect()
        network.next(Pass(), LoseReply())
        client.incr("counter")
        assert [each.name for each in network.sent] == ["INCRBY"]

    def test_faults_may_be_chosen_by_the_request(self, network: Network, client: Any) -> None:
        """For as long as nothing else is said of it."""
        network.choose(lambda request: LoseRequest() if request.name == "GET" else Pass())
        try:
            client.incr("counter")
            with pytest.raises(Broken):
                client.get("counter")
            network.next(Pass())
            assert client.get("counter") == "1"
        finally:
            network.choose(lambda _: Pass())

    def test_large_answers_and_nested_ones_pass_whole(self, client: Any) -> None:
        """RESP's arrays, maps, bulk strings, nulls and errors."""
        client.set("counter", "x" * 300_000)
        assert client.get("counter") == "x" * 300_000
        assert client.eval("return {1, 'a', {2, {}, false}, redis.status_reply('OK')}", 0) == [
            1,
            "a",
            [2, [], None],
            "OK",
        ]
        client.delete("counter")
        client.hset("counter", mapping={"a": "1", "b": "2"})
        assert client.hgetall("counter") == {"a": "1", "b": "2"}
        assert client.get("nothing at all") is None
        with pytest.raises(redis.ResponseError):
            client.incr("counter")
        client.delete("counter")


class TestCut:
    """No network at all."""

    def test_cut_breaks_what_is_open_and_lets_nothing_through(self, valkey_server: ValkeyServer) -> None:
        """Until it is mended."""
        with fault_proxy(valkey_server.port, RESP) as network, client_of(network.port) as client:
            assert client.ping()
            network.cut()
            for _ in range(2):
                with pytest.raises(redis.ConnectionError):
                    client.ping()
            network.mend()
            assert client.ping()

    def test_bytes_of_any_protocol_are_passed_on_both_ways(self) -> None:
        """For what is no exchange of requests and answers."""
        with (
            socket.create_server((HOST, 0)) as server,
            fault_proxy(server.getsockname()[1], None) as network,
            socket.create_connection((HOST, network.port)) as ours,
        ):
            theirs, _ = server.accept()
            with theirs:
                for one, other in ((ours, theirs), (theirs, ours)):
                    one.sendall(b"\0 whatever \n")
                    assert other.recv(100) == b"\0 whatever \n"
                network.cut()
                assert ours.recv(100) == b""
                assert theirs.recv(100) == b""

    def test_server_that_is_not_there_is_a_broken_connection(self) -> None:
        """As it would be without the network between."""
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
        with (
            fault_proxy(port, RESP) as network,
            client_of(network.port) as client,
            pytest.raises(redis.ConnectionError),
        ):
            client.ping()


class TestHttp:
    """The same, for DynamoDB."""

    @pytest.fixture
    def store(self, networked_dynamodb: DynamoDBStore) -> DynamoDBStore:
        """DynamoDB behind a network."""
        networked_dynamodb.begin()
        return networked_dynamodb

    def count(self, store: DynamoDBStore, client: Any) -> int:
        """Increase a counter, by a client."""
        answer = client.update_item(
            TableName=store.table_name,
            Key={"pk": {"S": store.prefix}, "sk": {"S": "counter"}},
            UpdateExpression="ADD hits :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
            ReturnValues="ALL_NEW",
        )
        return int(answer["Attributes"]["hits"]["N"])

    @pytest.mark.parametrize(
        ("fault", "carried_out"), [(LoseRequest(), 0), (CutRequest(), 0), (Stall(), 0), (LoseReply(), 1)], ids=named
    )
    def test_client_hears_nothing(self, store: DynamoDBStore, fault: Fault, carried_out: int) -> None:
        """And the server has carried it out, or it has not."""
        store.network.next(fault)
        with pytest.raises(HTTPClientError):
            self.count(store, store.through)
        assert self.count(store, store.past) == carried_out + 1
        assert [each.name for each in store.network.sent] == ["UpdateItem"]

    def test_duplicate_and_late_requests_are_carried_out(self, store: DynamoDBStore) -> None:
        """Each as often as it is delivered."""
        store.network.next(Duplicate(last=True), Stall())
        assert self.count(store, store.through) == 2
        with pytest.raises(HTTPClientError):
            self.count(store, store.through)
        assert b'"hits":{"N":"3"}' in store.network.late[0].deliver().replace(b" ", b"")
        assert self.count(store, store.through) == 4

    def test_dynamodbs_errors_can_be_said(self, store: DynamoDBStore) -> None:
        """With their code, as botocore reads it."""
        store.network.next(dynamodb_error("ThrottlingException", message="too fast"))
        with pytest.raises(ClientError) as error:
            self.count(store, store.through)
        assert error.value.response["Error"]["Code"] == "ThrottlingException"
        assert error.value.response["Error"]["Message"] == "too fast"
