"""The password of a store comes from its secret, is asked for when a connection is made, and shows nowhere."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import redis
from botocore.exceptions import ClientError
from moto import mock_aws

from incumbent import ConfigurationError, LeaseUnavailable
from incumbent.providers import from_env
from incumbent.providers.redis import RedisProvider, client_from_env
from incumbent.providers.secrets import KEPT_MS, REFUSED_KEPT_MS, SecretPassword
from incumbent.testing import servers
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import ValkeyServer

PASSWORD = "pass {word} % ä"


@pytest.fixture
def manager() -> Iterator[Any]:
    """Secrets Manager, as moto has it."""
    with mock_aws():
        yield boto3.client("secretsmanager", region_name="eu-central-1")


@pytest.mark.parametrize(
    "text", [PASSWORD, json.dumps({"username": "app", "password": PASSWORD})], ids=["text", "JSON object"]
)
def test_secret_is_the_password_or_holds_it(manager: Any, text: str) -> None:
    """As people write it, and as Secrets Manager's own rotation does."""
    manager.create_secret(Name="redis", SecretString=text)
    assert SecretPassword("redis", client=manager)() == PASSWORD


def test_password_may_begin_like_json(manager: Any) -> None:
    """What is no JSON is the password."""
    manager.create_secret(Name="redis", SecretString="{not json")
    assert SecretPassword("redis", client=manager)() == "{not json"


def test_client_is_made_when_it_is_needed(manager: Any) -> None:
    """From the environment, as Lambda has it."""
    manager.create_secret(Name="redis", SecretString=PASSWORD)
    assert SecretPassword("redis")() == PASSWORD


@pytest.mark.parametrize("text", ["{}", '{"password": 1}', '{"password": ""}'])
def test_secret_without_a_password_is_named(manager: Any, text: str) -> None:
    """And what is in it is not."""
    manager.create_secret(Name="redis", SecretString=text)
    with pytest.raises(ConfigurationError, match="'redis' holds neither text") as raised:
        SecretPassword("redis", client=manager)()
    assert text not in str(raised.value)


@pytest.mark.parametrize("secret_id", ["", None, 7])
def test_secret_needs_a_name(secret_id: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigurationError, match="secret_id"):
        SecretPassword(secret_id)


def test_rotated_password_is_found_after_five_minutes(manager: Any) -> None:
    """Until then the one that was read is used, and nothing is asked."""
    clock = FakeClock()
    manager.create_secret(Name="redis", SecretString="old")
    password = SecretPassword("redis", client=manager, clock=clock)
    assert password() == "old"
    manager.put_secret_value(SecretId="redis", SecretString="new")
    clock.advance(KEPT_MS - 1)
    assert password() == "old"
    clock.advance(1)
    assert password() == "new"


def test_password_outlives_an_outage_of_the_manager(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may well accept what was read before; it is asked for again soon, and a refused one is not kept."""
    clock, asked = FakeClock(), list[str]()
    manager.create_secret(Name="redis", SecretString="old")
    password = SecretPassword("redis", client=manager, clock=clock)
    assert password() == "old"

    def fail(**words: str) -> Any:
        asked.append(words["SecretId"])
        raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "GetSecretValue")

    clock.advance(KEPT_MS)
    with monkeypatch.context() as outage:
        outage.setattr(manager, "get_secret_value", fail)
        assert (password(), password()) == ("old", "old")
        assert len(asked) == 1
        clock.advance(REFUSED_KEPT_MS)
        assert password() == "old"
        assert len(asked) == 2
        assert password.refused("old")
        with pytest.raises(ClientError):
            password()
    manager.put_secret_value(SecretId="redis", SecretString="new")
    assert password() == "new"


def test_refused_password_is_read_again(manager: Any) -> None:
    """Not for every connection: a secret that is wrong is read every five seconds at most."""
    clock = FakeClock()
    manager.create_secret(Name="redis", SecretString="old")
    password = SecretPassword("redis", client=manager, clock=clock)
    assert password() == "old"
    manager.put_secret_value(SecretId="redis", SecretString="new")
    clock.advance(REFUSED_KEPT_MS - 1)
    assert not password.refused("old")
    assert password() == "old"
    clock.advance(1)
    assert password.refused("old")
    assert password() == "new"
    assert password.refused("old")  # a connection that was made meanwhile; the new one is there
    assert not password.refused("new")


@pytest.fixture(scope="module")
def guarded() -> Iterator[ValkeyServer]:
    """A Valkey that wants a password."""
    with servers.valkey(password="s3cret") as server:
        yield server


def test_redis_is_told_the_password_of_the_secret(guarded: ValkeyServer, manager: Any) -> None:
    """The environment names the secret; the URL has none."""
    manager.create_secret(Name="redis", SecretString="s3cret")
    provider = from_env(
        {
            "INCUMBENT_PROVIDER": "redis",
            "INCUMBENT_REDIS_URL": f"redis://127.0.0.1:{guarded.port}/0",
            "INCUMBENT_REDIS_SECRET_ID": "redis",
        }
    )
    assert provider.acquire_lease("orders/secret", "owner", 30_000).acquired


@pytest.mark.parametrize("user", ["", "default@"])
def test_user_of_the_url_goes_with_the_password(guarded: ValkeyServer, user: str) -> None:
    """With one and without; the database and the other parameters of the URL stay."""
    url = f"redis://{user}127.0.0.1:{guarded.port}/0?socket_timeout=0.5"
    provider = RedisProvider(url=url, password=lambda: "s3cret")
    assert provider.acquire_lease(f"orders/{user}", "owner", 30_000).acquired
    provider.close()


def test_unknown_user_of_the_url_is_refused(guarded: ValkeyServer) -> None:
    """So it was sent."""
    provider = RedisProvider(url=f"redis://nobody@127.0.0.1:{guarded.port}/0", password=lambda: "s3cret")
    with pytest.raises(LeaseUnavailable, match="refuses these credentials"):
        provider.acquire_lease("orders/nobody", "owner", 30_000)
    provider.close()


def test_cluster_is_told_it_too() -> None:
    """Each of its nodes."""
    with servers.valkey(cluster=True, password="s3cret") as server:
        provider = RedisProvider(url=f"redis://127.0.0.1:{server.port}/0?cluster=true", password=lambda: "s3cret")
        assert provider.acquire_lease("orders/cluster", "owner", 30_000).acquired
        provider.close()


def test_each_connection_asks_anew(guarded: ValkeyServer) -> None:
    """So that one that was rotated is used by the next connection."""
    asked: list[int] = []

    def password() -> str:
        asked.append(len(asked))
        return "s3cret"

    provider = RedisProvider(url=f"redis://127.0.0.1:{guarded.port}/0", password=password)
    assert asked == []
    for expected in (1, 1, 2):
        if expected == 2:
            provider.close()
        provider.get_lease_owner("orders/asked")
        assert len(asked) == expected
    provider.close()


@pytest.mark.parametrize(
    "error", [ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue"), OSError("no route")]
)
def test_secret_that_cannot_be_read_makes_the_store_unavailable(guarded: ValkeyServer, error: Exception) -> None:
    """It is not known who owns the key, and the source keeps its event (R9)."""

    def password() -> str:
        raise error

    provider = RedisProvider(url=f"redis://127.0.0.1:{guarded.port}/0", password=password)
    with pytest.raises(LeaseUnavailable, match="could not fetch the password"):
        provider.acquire_lease("orders/denied", "owner", 30_000)
    provider.close()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RedisProvider(url="redis://:a@host/0", password=lambda: "b"), "the URL holds a password"),
        (lambda: RedisProvider(url="redis://host/0", password="b"), "password= is a callable"),  # type: ignore[arg-type]
        (lambda: RedisProvider(url=7, password=lambda: "b"), "url must be a str"),  # type: ignore[arg-type]
    ],
    ids=["two passwords", "text", "no url"],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], match: str) -> None:
    """Before a connection is made, and without telling the password."""
    with pytest.raises(ConfigurationError, match=match):
        make()


class Rotating:
    """A server with a user whose password changes, and the secret that holds it."""

    def __init__(self, server: ValkeyServer, manager: Any) -> None:
        self.server = server
        self.manager = manager
        self.clock = FakeClock()
        self.bare: Any = redis.Redis.from_url(server.url)
        self.read: list[str] = []
        manager.create_secret(Name="rotating", SecretString="first")
        self.rotate("first")

    def rotate(self, password: str) -> None:
        """Give the user another password, and put it into the secret."""
        self.bare.execute_command("ACL", "SETUSER", "u", "reset", "on", f">{password}", "+@all", "~*")
        self.manager.put_secret_value(SecretId="rotating", SecretString=password)
        self.clock.advance(REFUSED_KEPT_MS)

    def provider(self, parameters: str = "") -> RedisProvider:
        """A provider that logs in as this user."""
        password = SecretPassword("rotating", client=self, clock=self.clock)
        return RedisProvider(url=f"redis://u@127.0.0.1:{self.server.port}{parameters}", password=password)

    def get_secret_value(self, **asked: str) -> Any:
        """Count what is read."""
        found = self.manager.get_secret_value(**asked)
        self.read.append(found["SecretString"])
        return found


@pytest.mark.parametrize("parameters", ["", "?cluster=true"])
def test_rotated_password_is_used_at_once(
    parameters: str, valkey_server: ValkeyServer, valkey_cluster: ValkeyServer, manager: Any
) -> None:
    """An open connection goes on; one that must be made anew is refused, reads the secret, and logs in."""
    rotating = Rotating(valkey_cluster if parameters else valkey_server, manager)
    key = f"orders/rotating{parameters}"
    provider = rotating.provider(parameters)
    try:
        assert provider.acquire_lease(key, "A", 30_000).acquired
        rotating.rotate("second")
        assert provider.renew_lease(key, "A", 30_000)  # on its open connection
        assert rotating.read == ["first"]
        rotating.bare.execute_command("CLIENT", "KILL", "USER", "u")
        assert provider.renew_lease(key, "A", 30_000)
        assert rotating.read == ["first", "second"]
        provider.release_lease(key, "A")
    finally:
        provider.close()
        rotating.bare.execute_command("ACL", "DELUSER", "u")
        rotating.bare.close()


def test_rotation_that_is_not_in_the_secret_yet_is_waited_for(valkey_server: ValkeyServer, manager: Any) -> None:
    """Until it is there the store is unavailable, and the secret is read every five seconds at most."""
    rotating = Rotating(valkey_server, manager)
    provider = rotating.provider()
    try:
        rotating.bare.execute_command("ACL", "SETUSER", "u", "resetpass", ">second")
        for _ in range(3):
            with pytest.raises(LeaseUnavailable, match="refuses these credentials"):
                provider.get_lease_owner("k")
        assert rotating.read == ["first"]
        rotating.rotate("second")
        assert provider.get_lease_owner("k") is None
        assert rotating.read == ["first", "second"]
    finally:
        provider.close()
        rotating.bare.execute_command("ACL", "DELUSER", "u")
        rotating.bare.close()


@pytest.mark.parametrize("parameters", ["", "?cluster=true"])
def test_client_of_the_application_finds_the_rotated_password(
    parameters: str,
    valkey_server: ValkeyServer,
    valkey_cluster: ValkeyServer,
    manager: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It logs in as the provider does."""
    monkeypatch.setattr("incumbent.providers.secrets.REFUSED_KEPT_MS", 0)
    server = valkey_cluster if parameters else valkey_server
    rotating = Rotating(server, manager)
    url = f"redis://u@127.0.0.1:{server.port}{parameters}"
    client: Any = client_from_env({"INCUMBENT_REDIS_URL": url, "INCUMBENT_REDIS_SECRET_ID": "rotating"})
    try:
        client.set("{rotating}a", "1")
        assert client.exists("{rotating}a") == 1
        rotating.rotate("second")
        client.close()
        assert client.get("{rotating}a") == b"1"
        client.delete("{rotating}a")
    finally:
        client.close()
        rotating.bare.execute_command("ACL", "DELUSER", "u")
        rotating.bare.close()
