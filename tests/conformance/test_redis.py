"""The Redis provider under the suite: a real Valkey, alone and as a cluster of six, one decoding and one not.

Both log in as a user who may do what the documentation says, and nothing else.
"""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
import valkey
from redis._parsers import CommandsParser
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.retry import Retry

from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import COMPANIONS
from incumbent.providers.redis.permissions import acl_rules
from incumbent.testing.conformance import ArchiveConformance, ControlConformance, MailboxConformance
from incumbent.testing.conformance.walks import ARCHIVE_STEPS, CONTROL_STEPS, MAILBOX_STEPS, WALKS, Walking
from incumbent.testing.redis_cluster import Cluster
from incumbent.testing.redis_deployments import TLSServer, redis_with_tls, why_no_redis
from incumbent.testing.redis_time import pass_key_time
from incumbent.testing.servers import HOST, ValkeyServer
from tests.budgets import SOAKING


def pass_time(client: Any, prefix: str, ms: int) -> None:
    """Let time pass for all keys of a prefix: the server's clock stands, what it has stored grows older."""
    found = client.scan_iter(match=f"*{prefix}:lease:*", count=10_000)
    names = (name.decode() if isinstance(name, bytes) else name for name in found)
    leases = {name.removeprefix("{").partition("}")[0] for name in names}
    for lease in leases:
        pass_key_time(client, [lease, *(f"{{{lease}}}:{companion}" for companion in COMPANIONS)], ms)


def unique_prefix() -> str:
    """A prefix that nobody else uses on a shared server."""
    return f"test-{uuid.uuid4().hex[:12]}"


def patient(provider: RedisProvider) -> RedisProvider:
    """Let it take every ttl: the suite has shorter ones than any client waits, and a given client refuses those."""
    provider._server._set_wait_ms = None  # noqa: SLF001 - what is tested is the client, and the wait in unit tests
    return provider


class _OnValkey(MailboxConformance, ArchiveConformance, ControlConformance):
    """The server's clock goes on by itself, so "just before" is that much earlier."""

    slack_ms = 2_000
    bare: Any = None
    user: str | None = None
    server: ValkeyServer
    parameters = ""
    may_do_all = False

    def make_provider(self) -> RedisProvider:
        """Keys of its own for each test, on a server that all share."""
        if self.user is None:
            type(self).user = user = unique_prefix()
            self.on_each_server("ACL", "SETUSER", user, "reset", "on", ">pass", *acl_rules(f"{user}-*").split())
        self.prefix = f"{self.user}-{uuid.uuid4().hex[:12]}"
        return self.make_other(None)

    def make_other(self, provider: Any) -> RedisProvider:
        """Another client, with connections of its own, whose waits suit every ttl."""
        made = RedisProvider(url=self.url, key_prefix=self.prefix)
        self.opened.append(made)
        return made

    def pass_time(self, ms: int) -> None:
        """Move what is stored, since the server's clock cannot be."""
        if self.bare is None:
            type(self).bare = self.connect()  # for all tests: a cluster's takes longer than most of them
        pass_time(self.bare, self.prefix, ms)

    @property
    def url(self) -> str:
        """Where the provider finds its server, and as whom it logs in."""
        login = "" if self.may_do_all else f"{self.user}:pass@"
        return f"redis://{login}127.0.0.1:{self.server.port}/0{self.parameters}"

    def connect(self) -> Any:
        """Return a bare client."""
        return redis.Redis(port=self.server.port)

    def on_each_server(self, *command: str) -> None:
        """Tell the server what concerns no key."""
        with redis.Redis(port=self.server.port) as client:
            client.execute_command(*command)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _bare_client(cls) -> Any:
        cls.bare = cls.user = None
        yield
        if cls.bare is not None:
            cls.bare.close()

    @pytest.fixture(autouse=True)
    def _connections(self) -> Any:
        self.opened: list[Any] = []
        yield
        for each in self.opened:
            each.close()


class TestStandalone(_OnValkey):
    """One server; the client gives bytes, and may do what it must."""

    @pytest.fixture(autouse=True)
    def _server(self, valkey_server: ValkeyServer) -> None:
        self.server = valkey_server


if SOAKING:

    class TestStandaloneDecoding(TestStandalone):
        """One server; the client gives text (H25), and may do all."""

        parameters = "?decode_responses=true"
        may_do_all = True

    class TestValkeyPy(TestStandalone):
        """One server, by a client of the package valkey, which the caller makes and closes."""

        def make_other(self, provider: Any) -> RedisProvider:
            """A client that repeats nothing, and waits a tenth of the shortest ttl at most."""
            client = valkey_client(self.server)
            self.opened.append(client)
            return patient(RedisProvider(client=client, key_prefix=self.prefix))


@pytest.fixture(scope="module")
def known_commands() -> Iterator[None]:
    """Ask the cluster once for its commands: each bare client asks for them, which takes most of a short test."""
    commands: dict[str, Any] = {}
    ask: Any = CommandsParser.initialize

    def initialize(parser: Any, connection: Any) -> None:
        if not commands:
            ask(parser, connection)
            commands.update(parser.commands)
        parser.commands = dict(commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommandsParser, "initialize", initialize)
        yield


class TestCluster(_OnValkey):
    """A cluster, which refuses a script whose keys lie in two slots; the client gives text (H25) and has few rights."""

    slack_ms = 2_000  # another ttl may need a client of its own, which asks the cluster for its slots
    parameters = "?cluster=true&decode_responses=true"

    @pytest.fixture(autouse=True)
    def _server(self, three_primaries: Cluster, known_commands: None) -> None:
        self.cluster = three_primaries
        self.server = three_primaries.nodes[0].server

    def connect(self) -> Any:
        """Return a bare client, which finds the primary of each key."""
        return redis.RedisCluster(host=HOST, port=self.server.port)

    def on_each_server(self, *command: str) -> None:
        """Tell each server of the cluster."""
        for node in self.cluster.nodes:
            node.client.execute_command(*command)


def valkey_client(server: ValkeyServer) -> Any:
    """A client of the package valkey that repeats nothing; of one server, it gives text (H25)."""
    options: dict[str, Any] = {"host": HOST, "port": server.port, "socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
    return ValkeyCluster(**options) if server.cluster else valkey.Valkey(**options, decode_responses=True)


class TestValkeyPyWalks(Walking):
    """The package valkey, on both: what differs is how a call is sent, and walks make every call."""

    slack_ms = TestCluster.slack_ms

    @pytest.fixture(params=["valkey_server", "valkey_cluster"], autouse=True)
    def _client(self, request: pytest.FixtureRequest) -> Any:
        self.client = valkey_client(request.getfixturevalue(request.param))
        self.prefix = unique_prefix()
        yield
        self.client.close()

    def pass_time(self, ms: int) -> None:
        """Move what is stored, since the server's clock cannot be."""
        pass_time(self.client, self.prefix, ms)

    @pytest.mark.parametrize("number", range(3 * WALKS))
    def test_every_answer_is_the_references(self, number: int) -> None:
        """R1 to R7, M1 to M9: leases, messages and dead letters."""
        provider = patient(RedisProvider(client=self.client, key_prefix=self.prefix))
        self.follow(provider, f"key-{number}", number, (ARCHIVE_STEPS, MAILBOX_STEPS, CONTROL_STEPS)[number % 3])


@pytest.fixture(scope="module")
def tls() -> Iterator[TLSServer]:
    """A Redis for the walks below."""
    with redis_with_tls() as server:
        yield server


@pytest.mark.skipif(why_no_redis() is not None, reason=str(why_no_redis()))
class TestRedisTLS(Walking):
    """Redis 7, which runs the scripts with another Lua library than Valkey, over a connection with TLS."""

    slack_ms = TestStandalone.slack_ms

    @pytest.fixture(autouse=True)
    def _encrypted(self, tls: TLSServer) -> Iterator[None]:
        self.prefix = unique_prefix()
        url = tls.url(authority=tls.authority)
        with (
            redis.Redis(port=tls.plain.port) as self.bare,
            closing(RedisProvider(url=url, key_prefix=self.prefix)) as self.encrypted,
        ):
            yield

    def pass_time(self, ms: int) -> None:
        """Move what is stored, since the server's clock cannot be."""
        pass_time(self.bare, self.prefix, ms)

    @pytest.mark.parametrize("number", range(3 * WALKS))
    def test_every_answer_is_the_references(self, number: int) -> None:
        """R1 to R7, M1 to M21: leases, messages, dead letters and control."""
        steps = (ARCHIVE_STEPS, MAILBOX_STEPS, CONTROL_STEPS)[number % 3]
        self.follow(self.encrypted, f"key-{number}", number, steps)
