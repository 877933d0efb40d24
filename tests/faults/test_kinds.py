"""Every kind of failure told apart: what passes is tried again in budget, what does not is raised at once (R9).

Errors are provoked for real where a server can be brought to give them; otherwise the network gives the server's words.
Whatever it is, a caller hears of it as LeaseUnavailable, with the cause and what to do.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator

import boto3
import pytest
import redis
from botocore.exceptions import NoCredentialsError

from incumbent import retry
from incumbent.errors import LeaseUnavailable, StoredFormatUnknown
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing import servers
from incumbent.testing.contract_calls import KEY, TTL_MS, message
from incumbent.testing.proxy import RESP, Answer, LoseReply, LoseRequest, Pass, dynamodb_error, fault_proxy
from incumbent.testing.servers import HOST, ValkeyServer, create_table
from tests.faults.stores import DynamoDBStore, Hasty, Provider, Store, ValkeyStore, dynamodb_client, valkey_store

CALLS: dict[str, Callable[[Provider], object]] = {
    "acquire": lambda p: p.acquire_lease(KEY, "A", TTL_MS),
    "owner": lambda p: p.get_lease_owner(KEY),
    "renew": lambda p: p.renew_lease(KEY, "A", TTL_MS),
    "release": lambda p: p.release_lease(KEY, "A"),
    "transfer": lambda p: p.transfer_lease(KEY, "A", "B", TTL_MS),
    "claim": lambda p: p.claim(KEY, "A", TTL_MS, message(1)),
    "settle": lambda p: p.settle(KEY, "A", ttl_ms=TTL_MS, handled=["m1"]),
    "beat": lambda p: p.beat(KEY, "A", TTL_MS),
    "take": lambda p: p.take(KEY, "A", TTL_MS),
    "peek": lambda p: p.peek(KEY),
    "find": lambda p: p.find(KEY, "m1"),
    "orphans": lambda p: list(p.orphans(10)),
    "dead letters": lambda p: list(p.dead_letters(None, 10)),
    "purge": lambda p: p.purge(KEY, "m1"),
    "redrive": lambda p: p.redrive(KEY, "m1"),
    "stop": lambda p: p.stop(KEY),
    "watch": lambda p: p.watch(KEY, "A"),
    "hold": lambda p: p.hold(KEY),
    "resume": lambda p: p.resume(KEY),
    "cancel": lambda p: p.cancel(KEY, "m1"),
    "show": lambda p: p.show(KEY),
    "keys": lambda p: list(p.keys(10)),
}
LISTINGS = ("orphans", "dead letters", "keys")
each_call = pytest.mark.parametrize("call", CALLS)


def refused(provider: Provider, call: str) -> LeaseUnavailable:
    """The error of a call, which is the one kind that there is; it names the call's key."""
    with pytest.raises(LeaseUnavailable) as error:
        CALLS[call](provider)
    assert error.value.__cause__ is not None
    assert error.value.key is not None
    return error.value


class TestTheSameForAll:
    """Failures of the network, which know no vendor."""

    @each_call
    def test_connection_that_is_refused_is_tried_again_and_given_up(self, store: Store, call: str) -> None:
        """And is never taken for an answer."""
        # H20: Mastra #19806.
        provider = store.provider()
        CALLS["acquire"](provider)
        store.network.cut()
        error = refused(provider, call)
        assert "took too long" in str(error) or "can be reached" in str(error)
        store.network.mend()

    def test_network_that_is_back_is_used_again(self, store: Store) -> None:
        """Whatever connections died meanwhile."""
        provider = store.provider()
        first = provider.acquire_lease(KEY, "A", TTL_MS)
        store.network.cut()
        with pytest.raises(LeaseUnavailable):
            provider.renew_lease(KEY, "A", TTL_MS)
        store.network.mend()
        assert provider.renew_lease(KEY, "A", TTL_MS) is True
        assert provider.acquire_lease(KEY, "A", TTL_MS).fence == first.fence


# --- Valkey

LOADING = Answer(data=b"-LOADING Valkey is loading the dataset in memory\r\n")
BUSY = Answer(data=b"-BUSY Valkey is busy running a script.\r\n")
CLUSTERDOWN = Answer(data=b"-CLUSTERDOWN The cluster is down\r\n")
MASTERDOWN = Answer(data=b"-MASTERDOWN Link with MASTER is down\r\n")


@pytest.fixture(scope="module")
def replica() -> Iterator[ValkeyServer]:
    """A replica, whose primary is there."""
    with servers.valkey() as primary, servers.valkey(replica_of=primary) as made:
        yield made


class TestValkey:
    """What a server says."""

    @pytest.fixture
    def store(self, networked_valkey: ValkeyStore) -> Iterator[ValkeyStore]:
        """Valkey behind a network."""
        networked_valkey.begin()
        yield networked_valkey
        networked_valkey.network.choose(lambda _: Pass())
        networked_valkey.close()

    @pytest.mark.parametrize("said", [LOADING, BUSY, CLUSTERDOWN, MASTERDOWN], ids=lambda said: str(said.data[1:9]))
    @pytest.mark.parametrize("call", ["acquire", "owner", "orphans"])
    def test_what_passes_is_tried_again(self, store: ValkeyStore, said: Answer, call: str) -> None:
        """LOADING after a restart, a slow script, a cluster that rearranges itself."""
        provider = store.provider()
        CALLS["owner"](provider)  # connected
        store.network.forget()
        store.network.next(said)
        CALLS[call](provider)
        first = store.network.sent[0].data
        assert [request.data for request in store.network.sent].count(first) == 2  # a scan goes on after it
        store.network.forget()
        store.network.choose(lambda _: said)
        refused(provider, call)
        assert len(store.network.sent) == retry.MAX_TRIES

    @pytest.fixture
    def forgetful(self) -> Iterator[ValkeyStore]:
        """A server of one's own, whose scripts may be flushed."""
        with servers.valkey() as server, valkey_store(server) as store:
            store.begin()
            yield store
            store.close()

    def test_script_that_was_forgotten_is_sent_anew_within_the_try(self, forgetful: ValkeyStore) -> None:
        """NOSCRIPT: after SCRIPT FLUSH, a fail-over, on a new node. It is no lost reply: nothing was carried out."""
        # H23: redlock-rb #27, node-redlock #77.
        provider = forgetful.provider()
        provider.acquire_lease(KEY, "A", TTL_MS)
        provider.transfer_lease(KEY, "C", "D", TTL_MS)
        with redis.Redis(port=forgetful.server.port) as client:
            client.script_flush()
        forgetful.network.forget()
        assert provider.transfer_lease(KEY, "C", "D", TTL_MS) is False
        assert [each.name for each in forgetful.network.sent] == ["EVALSHA", "EVAL"]
        assert provider.renew_lease(KEY, "A", TTL_MS) is True

    def test_lost_reply_of_a_script_sent_anew_is_found(self, forgetful: ValkeyStore) -> None:
        """R8: both exceptions in one call."""
        provider = forgetful.provider()
        forgetful.network.next(Pass(), LoseReply())
        assert provider.acquire_lease(KEY, "A", TTL_MS).acquired
        assert [each.name for each in forgetful.network.sent] == ["EVALSHA", "EVAL", "EVALSHA"]

    @each_call
    def test_value_of_another_type_is_an_error_and_left_alone(self, store: ValkeyStore, call: str) -> None:
        """WRONGTYPE, at once: somebody else's data is neither an answer nor overwritten."""
        # H29.
        provider = store.provider()
        lease = f"{store.prefix}:lease:{KEY}"
        with redis.Redis(port=store.server.port, decode_responses=True) as client:
            for name in (lease, f"{{{lease}}}:mail", f"{{{lease}}}:dead"):
                client.rpush(name, "somebody else's")
            store.network.forget()
            if call in LISTINGS:  # which leave the key out, and say so at the end
                with pytest.raises(StoredFormatUnknown) as listing:
                    CALLS[call](provider)
                (error,) = listing.value.skipped
                assert isinstance(error, LeaseUnavailable)
            else:
                error = refused(provider, call)
            assert "another type" in str(error)
            assert "remove it" in str(error)
            assert "WRONGTYPE" in str(error.__cause__)
            assert len([each for each in store.network.sent if each.name != "SCAN"]) == 1
            assert client.lrange(lease, 0, -1) == ["somebody else's"]

    @pytest.mark.parametrize("call", [name for name in CALLS if name not in LISTINGS])
    def test_replica_is_not_believed_and_says_where_to_go(self, replica: ValkeyServer, call: str) -> None:
        """READONLY, whatever is asked: a replica may be behind, so that its "nobody" and "lost" are no answers."""
        # H20: found here.
        with fault_proxy(replica.port, RESP) as network:
            provider = RedisProvider(url=f"redis://{HOST}:{network.port}", clock=Hasty())
            assert "address of the primary" in str(refused(provider, call))
            assert len([each for each in network.sent if each.name == "EVALSHA"]) == retry.MAX_TRIES
            provider.close()

    @each_call
    def test_node_of_a_cluster_says_how_to_ask_it(self, slotless: int, call: str) -> None:
        """MOVED, at once: this client cannot follow."""
        with fault_proxy(slotless, RESP) as network:
            provider = RedisProvider(url=f"redis://{HOST}:{network.port}", clock=Hasty())
            if call in LISTINGS:
                network.choose(lambda request: Pass() if request.name == "SCAN" else Answer(data=b"-MOVED 1 h:1\r\n"))
                assert CALLS[call](provider) == []
            else:
                network.choose(lambda _: Answer(data=b"-MOVED 12182 127.0.0.1:7001\r\n"))
                assert "cluster=true" in str(refused(provider, call))
                assert len(network.sent) == 1
            provider.close()

    @pytest.fixture
    def slotless(self, valkey_server: ValkeyServer) -> int:
        """Where a server is."""
        return valkey_server.port

    def test_wrong_password_and_missing_rights_are_definitive(self, store: ValkeyStore) -> None:
        """WRONGPASS, NOAUTH and NOPERM, each of a real server, at once."""
        with servers.valkey(password="right") as server, fault_proxy(server.port, RESP) as network:
            wrong = RedisProvider(url=f"redis://:wrong@{HOST}:{network.port}", clock=Hasty())
            missing = RedisProvider(url=f"redis://{HOST}:{network.port}", clock=Hasty())
            for provider in (wrong, missing):
                assert "credentials" in str(refused(provider, "acquire"))
                assert "wrong" not in str(refused(provider, "acquire"))
            assert [each.name for each in network.sent] == ["EVALSHA"] * 2  # of the missing one's calls, each once
            with redis.Redis(port=server.port, password="right") as client:
                client.acl_setuser("small", enabled=True, nopass=True, commands=["+get", "+info"], keys=["*"])
            small = RedisProvider(url=f"redis://small:x@{HOST}:{network.port}", clock=Hasty())
            assert "ACL" in str(refused(small, "acquire"))
            assert len(network.sent) == 3
            for provider in (wrong, missing, small):
                provider.close()

    def test_server_that_hangs_is_a_timeout(self) -> None:
        """Frozen for real: the connection stands, and nothing is said."""
        with servers.valkey() as server:
            provider = RedisProvider(url=f"{server.url}?socket_timeout=0.1", clock=Hasty())
            provider.acquire_lease(KEY, "A", TTL_MS)
            os.killpg(server.process_group, signal.SIGSTOP)
            try:
                assert isinstance(refused(provider, "renew").__cause__, redis.TimeoutError)
            finally:
                os.killpg(server.process_group, signal.SIGCONT)
            assert provider.renew_lease(KEY, "A", TTL_MS) is True
            provider.close()


# --- DynamoDB

PASSING = (
    *("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"),
    *("TransactionConflictException", "LimitExceededException"),
)


class TestDynamoDB:
    """What DynamoDB says."""

    @pytest.fixture
    def store(self, networked_dynamodb: DynamoDBStore) -> Iterator[DynamoDBStore]:
        """DynamoDB behind a network."""
        networked_dynamodb.begin()
        yield networked_dynamodb
        networked_dynamodb.network.choose(lambda _: Pass())

    @pytest.mark.parametrize(
        "said",
        [
            *(dynamodb_error(code) for code in PASSING),
            dynamodb_error("InternalServerError", status=500),
            dynamodb_error("ServiceUnavailable", status=503),
            Answer(data=b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nhtml"),
        ],
        ids=[*PASSING, "500", "503", "502"],
    )
    @pytest.mark.parametrize("call", ["acquire", "owner", "orphans"])
    def test_what_passes_is_tried_again(self, store: DynamoDBStore, said: Answer, call: str) -> None:
        """Throttling and the store's own trouble; in budget."""
        # H19: KCL #136, #265.
        provider = store.provider()
        CALLS[call](provider)
        usual = len(store.network.sent)
        store.begin()
        provider = store.provider()
        store.network.next(said)
        CALLS[call](provider)
        assert len(store.network.sent) == usual + 1
        store.network.forget()
        store.network.choose(lambda _: said)
        assert "repeat the call" in str(refused(provider, call))
        assert len(store.network.sent) == retry.MAX_TRIES

    @pytest.mark.parametrize(
        ("said", "advice"),
        [
            (dynamodb_error("AccessDeniedException", message="not authorized to perform: UpdateItem"), "role"),
            (dynamodb_error("UnrecognizedClientException"), "credentials"),
            (dynamodb_error("ExpiredTokenException"), "expired"),
            (dynamodb_error("SomethingElse"), "cause"),
        ],
        ids=["denied", "unrecognised", "expired", "else"],
    )
    @each_call
    def test_what_does_not_pass_is_raised_at_once(
        self, store: DynamoDBStore, said: Answer, advice: str, call: str
    ) -> None:
        """With what to do."""
        provider = store.provider()
        store.network.choose(lambda _: said)
        error = refused(provider, call)
        assert advice in str(error)
        assert len(store.network.sent) == 1

    @each_call
    def test_missing_table_is_definitive(self, store: DynamoDBStore, call: str) -> None:
        """ResourceNotFoundException of a real server: never "nobody owns it"."""
        provider = DynamoDBProvider(table_name="no-such-table", client=store.through, clock=Hasty())
        assert "table_name" in str(refused(provider, call))
        assert len(store.network.sent) == 1

    def test_table_with_other_keys_is_definitive(self, store: DynamoDBStore) -> None:
        """ValidationException of a real server says what the table must be."""
        name = f"{store.prefix}-other"
        create_table(
            store.past,
            name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        provider = DynamoDBProvider(table_name=name, client=store.through, clock=Hasty())
        for call in ("acquire", "owner", "claim"):
            store.network.forget()
            assert "pk and sk" in str(refused(provider, call))
            assert len(store.network.sent) == 1

    def test_no_credentials_are_definitive(self, store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """What botocore cannot even sign is not tried again, and never sent."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, os.devnull)
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://{HOST}:{store.network.port}")
        provider = DynamoDBProvider(table_name="t", boto3_session=boto3.session.Session(), clock=Hasty())
        error = refused(provider, "acquire")
        assert isinstance(error.__cause__, NoCredentialsError)
        assert "credentials" in str(error)
        assert store.network.sent == []

    def test_server_that_hangs_is_a_timeout(self, store: DynamoDBStore) -> None:
        """The connection stands, and nothing is said."""
        provider = store.provider(impatient=True)
        store.network.choose(lambda _: LoseRequest(silent=True))
        assert "ReadTimeout" in type(refused(provider, "acquire").__cause__).__name__

    def test_nobody_at_the_address_is_told_as_such(self) -> None:
        """Connection refused."""
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
        client = dynamodb_client(port)
        provider = DynamoDBProvider(table_name="t", client=client, clock=Hasty())
        for call in CALLS:
            assert "endpoint" in str(refused(provider, call))
        client.close()
