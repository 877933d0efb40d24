"""Redis as it is deployed: fail-overs by Sentinel, TLS that fits and does not, restarts, users of few rights."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor import examine_store
from incumbent.errors import LeaseUnavailable
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.testing.redis_cluster import redis_cluster, slot_of
from incumbent.testing.redis_deployments import (
    DurableValkey,
    TLSServer,
    WatchedPrimary,
    durable_valkey,
    limited_user,
    redis_with_tls,
    watched_primary,
    why_no_redis,
)
from incumbent.testing.servers import ValkeyServer
from incumbent.values import Claimed, Failure, Message, Released, Routed
from tests.budgets import budget
from tests.faults.cluster_load import Counts, Load, Risks

pytestmark = pytest.mark.usefixtures("connections_that_redis_py_drops")

TTL_MS = 10_000
RECOVERED_MS = 20_000
JUST_MS = 1_000  # what was answered so long before a primary's death may be unknown to its replica
MESSAGES = budget(1, soak=5_000)  # at least, for each kind of fail-over
WRITES = 50  # before a server is killed
RESTARTS = budget(1, soak=10)


# --- Sentinel


@pytest.fixture
def watched() -> Iterator[WatchedPrimary]:
    """A primary, its replica and three Sentinels, for a test that takes them apart."""
    with watched_primary() as started:
        yield started


def message(number: int) -> Message:
    """A message of its own id."""
    return Message(id=f"m{number}", event={"number": number})


def retried(call: Any) -> Any:
    """Call until the store is available again, as a source does that keeps its event."""
    give_up = SYSTEM_CLOCK.now().plus(RECOVERED_MS)
    while True:
        try:
            return call()
        except LeaseUnavailable:
            if SYSTEM_CLOCK.now().until(give_up) <= 0:
                raise
            SYSTEM_CLOCK.sleep_ms(50)


def test_provider_of_a_sentinels_client_goes_to_the_promoted_replica(watched: WatchedPrimary) -> None:
    """The primary is killed; the same provider goes on at its replica, with what that had: lease, fence, messages."""
    client = watched.client()
    with closing(client):
        provider = RedisProvider(client=client)
        first = provider.claim("k", "A", TTL_MS * 3, message(1))
        assert isinstance(first, Claimed)
        assert isinstance(provider.claim("k", "B", TTL_MS, message(2)), Routed)
        with redis.Redis(port=watched.primary) as bare:
            assert bare.wait(1, 5_000) == 1
        watched.kill_primary()
        assert retried(lambda: provider.renew_lease("k", "A", TTL_MS * 3))
        again = provider.claim("k", "A", TTL_MS * 3, message(1))
        assert isinstance(again, Claimed)
        assert again.fence == first.fence
        assert provider.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"]) == Released(remaining=1)
        later = provider.claim("k", "B", TTL_MS, None)
        assert isinstance(later, Claimed)
        assert later.fence > first.fence
        assert [each.id for each in later.messages] == ["m2"]


class WatchedLoad(Load):
    """A load whose providers find the primary by the Sentinels."""

    def __init__(self, watched: WatchedPrimary, *, seed: int) -> None:
        super().__init__("", "load", seed=seed)
        self._watched = watched

    def _provider(self, stack: ExitStack) -> RedisProvider:
        client = stack.enter_context(closing(self._watched.client()))
        return RedisProvider(client=client, key_prefix="load")


def primary_hands_over(watched: WatchedPrimary) -> Risks:
    """A coordinated fail-over: it waits until its replica has everything."""
    watched.fail_over(coordinated=True)
    return ()


def replica_is_promoted(watched: WatchedPrimary) -> Risks:
    """A plain fail-over: what the primary answers until it hears of it may be unknown to the replica."""
    began = SYSTEM_CLOCK.now()
    watched.fail_over(coordinated=False)
    SYSTEM_CLOCK.sleep_ms(JUST_MS)
    return [(began.plus(-JUST_MS), SYSTEM_CLOCK.now())]


def primary_is_killed(watched: WatchedPrimary) -> Risks:
    """What it answered just before may be unknown to the replica."""
    began = SYSTEM_CLOCK.now()
    watched.kill_primary()
    return [(began.plus(-JUST_MS), began.plus(JUST_MS // 4))]


FAIL_OVERS = (primary_hands_over, *budget((), soak=(replica_is_promoted, primary_is_killed)))


@pytest.mark.timeout(budget(120, soak=1_800))
@pytest.mark.parametrize("fail_over", FAIL_OVERS, ids=lambda each: each.__name__)
def test_sentinels_fail_over_under_load(fail_over: Callable[[WatchedPrimary], Risks]) -> None:
    """Nothing is lost or run at once, beyond what asynchronous replication forgets: nothing if it is coordinated."""
    counts = Counts()
    rounds = 0
    while counts.messages < MESSAGES:
        rounds += 1
        with watched_primary() as watched:
            counts.add(WatchedLoad(watched, seed=rounds).during(partial(fail_over, watched)))
    print(f"Sentinel, {fail_over.__name__}, {rounds} times: {counts}")  # noqa: T201 - what `make soak` shows
    assert counts.unexplained == []
    assert counts.fences == 0


# --- TLS


needs_redis = pytest.mark.skipif(why_no_redis() is not None, reason=str(why_no_redis()))


@pytest.fixture(scope="module")
def tls() -> Iterator[TLSServer]:
    """A server with a certificate of an authority of its own."""
    with redis_with_tls() as server:
        yield server


def refused(url: str) -> str:
    """What a call answers that cannot reach the server."""
    with closing(RedisProvider(url=url)) as provider, pytest.raises(LeaseUnavailable) as raised:
        provider.acquire_lease("k", "A", 5_000)
    return str(raised.value)


@needs_redis
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_server_whose_authority_is_given_is_trusted(tls: TLSServer, host: str) -> None:
    """The URL names the authority's certificate."""
    with closing(RedisProvider(url=tls.url(authority=tls.authority, host=host), key_prefix=host)) as provider:
        assert provider.acquire_lease("k", "A", TTL_MS).acquired
        with redis.Redis(port=tls.plain.port) as bare:
            assert bare.get(f"{host}:lease:k") == b"A"


@needs_redis
def test_cluster_with_tls_is_used_with_a_password_that_rotates() -> None:
    """As AWS' services are: every node by TLS, also those that the first one names."""
    with (
        redis_with_tls(cluster=True) as server,
        redis.Redis(port=server.plain.port) as bare,
        limited_user(server.plain, key_prefix="few") as user,
    ):
        url = server.url(authority=server.authority).replace("//", "//limited@")
        with closing(RedisProvider(url=url, password=lambda: user.password, key_prefix="few")) as provider:
            assert provider.acquire_lease("k", "A", TTL_MS).acquired
            user.rotate("second")
            user.disconnect()
            assert provider.renew_lease("k", "A", TTL_MS)
            connections = [each for each in bare.client_list() if each["user"] == "limited"]
            assert {each["laddr"] for each in connections} == {f"127.0.0.1:{server.port}"}


@needs_redis
def test_server_of_another_authority_is_not_trusted(tls: TLSServer) -> None:
    """Nor one of an authority that the machine does not know; the error says what to add."""
    for url in (tls.url(authority=tls.other_authority), tls.url()):
        assert "ssl_ca_certs=PATH" in refused(url)


@needs_redis
def test_certificate_for_another_host_is_refused(tls: TLSServer) -> None:
    """Else anyone with a certificate of the same authority could pose as the server."""
    assert "name the host as the certificate does" in refused(tls.url(authority=tls.authority, host="127.0.0.2"))


@pytest.mark.parametrize("cluster", [False, True])
def test_server_without_tls_is_told_from_one_that_is_away(valkey_server: ValkeyServer, *, cluster: bool) -> None:
    """`rediss://` to a plain port: the server waits for more, and so does the client."""
    url = f"rediss://127.0.0.1:{valkey_server.port}{'?cluster=true' if cluster else ''}"
    assert "speaks none on this port: write redis://" in refused(url)


@needs_redis
@pytest.mark.parametrize("cluster", [False, True])
def test_server_with_tls_is_told_from_one_that_is_away(tls: TLSServer, *, cluster: bool) -> None:
    """`redis://` to a port for TLS: the server closes the connection."""
    assert "rediss://" in refused(f"redis://127.0.0.1:{tls.port}{'?cluster=true' if cluster else ''}")


# --- a restart


def test_restarted_server_has_all_that_it_has_acknowledged() -> None:
    """With `appendfsync always`: killed in the midst of writes, it forgets no answered one, and no lease."""
    with durable_valkey() as durable, closing(RedisProvider(url=durable.server.url)) as provider:
        for key in (f"k{number}" for number in range(RESTARTS)):
            first = provider.claim(key, "A", TTL_MS * 6, message(0))
            assert isinstance(first, Claimed)
            accepted = ["m0", *_written_until_killed(durable, provider, key)]
            durable.start()
            stored = [each.id for each in retried(partial(provider.peek, key))]
            assert stored[: len(accepted)] == accepted
            assert len(stored) <= len(accepted) + 1  # one whose answer was lost
            assert provider.get_lease_owner(key) == "A"
            assert provider.beat(key, "A", TTL_MS).fence == first.fence


def _written_until_killed(durable: DurableValkey, provider: RedisProvider, key: str) -> list[str]:
    """Store messages for a key until the server is killed, and return those that it has accepted."""
    accepted: list[str] = []

    def send() -> None:
        try:
            for number in count(1):
                assert isinstance(provider.claim(key, f"B{number}", TTL_MS, message(number)), Routed)
                accepted.append(f"m{number}")
        except LeaseUnavailable:
            return

    sender = threading.Thread(target=send)
    sender.start()
    while len(accepted) < WRITES and sender.is_alive():
        SYSTEM_CLOCK.sleep_ms(1)
    durable.kill()
    sender.join()
    return accepted


# --- a user of few rights


@pytest.mark.parametrize("nodes", [1, 6])
def test_rights_that_the_documentation_names_suffice(valkey_server: ValkeyServer, nodes: int) -> None:
    """For every call, the lists that the sweeper and `incumbent ls` read, and the doctor; while a slot moves, too.

    The servers' own record of refusals has nothing but INFO, which is optional, and logins with the former password.
    """
    with ExitStack() as stack:
        cluster = stack.enter_context(redis_cluster()) if nodes > 1 else None
        servers = [each.server for each in cluster.nodes] if cluster else [valkey_server]
        user = stack.enter_context(limited_user(*servers, key_prefix="few"))
        settings = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": user.url, "INCUMBENT_KEY_PREFIX": "few"}
        checks = list(examine_store(settings))
        assert "calls" in {check.name for check in checks}
        assert [check for check in checks if check.status == "failed"] == []

        provider = stack.enter_context(closing(RedisProvider(url=user.url, key_prefix="few")))
        assert isinstance(provider.claim("k", "A", TTL_MS, message(1)), Claimed)
        assert isinstance(provider.claim("k", "B", TTL_MS, message(2)), Routed)
        provider.settle("k", "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no", final=True)])
        assert [each.key for each in provider.orphans(10)] == ["k"]
        assert [each.key for each in provider.keys(10)] == ["k"]
        assert [each.message.id for each in provider.dead_letters(None, 10)] == ["m1"]
        if cluster:
            slot = slot_of(Names("few").of("k")[0].decode())
            source = cluster.primary_of(slot)
            target = next(node for node in cluster.primaries if node is not source)
            cluster.open_slot(slot, target)
            cluster.move_keys(slot, source, target)
            with pytest.raises(LeaseUnavailable, match="being moved to another node"):
                provider.acquire_lease("k", "B", TTL_MS)
            assert target.client.info("commandstats")["cmdstat_asking"]["calls"] > 0
            cluster.close_slot(slot, target)
            assert provider.acquire_lease("k", "B", TTL_MS).acquired
        user.rotate("second")
        with closing(RedisProvider(url=user.url, key_prefix="few")) as newcomer:
            assert [each.key for each in newcomer.keys(10)] == ["k"]
        assert {each for each in user.refused() if "info" not in each} == set()
