"""A Redis cluster of three primaries and three replicas whose nodes die, freeze, join, and pass slots on."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.retry import Retry

from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.testing.redis_cluster import SLOTS, Cluster, redis_cluster, slot_of
from incumbent.values import Failure, Message, Origin, Routed

TTL_MS = 30_000
KEYS = 90
PREFIX = "far"
ORIGIN = Origin(keyspace="orders", target="orders")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of its own for a test that takes it apart."""
    with redis_cluster() as started:
        yield started


@pytest.fixture
def provider(cluster: Cluster) -> Iterator[RedisProvider]:
    """A provider that has made calls before the cluster changes."""
    with closing(RedisProvider(url=cluster.url, key_prefix=PREFIX)) as warm:
        leave_orphans(warm)
        assert orphans_of(warm) == set(keys())
        yield warm


def keys() -> list[str]:
    """As many as make it certain that each primary has some."""
    return [f"orders/{number}" for number in range(KEYS)]


def leave_orphans(provider: RedisProvider) -> None:
    """Leave each key with a due message and without an owner."""
    for key in keys():
        provider.acquire_lease(key, "A", TTL_MS)
        assert isinstance(provider.claim(key, "B", TTL_MS, Message(id="1", event={}), origin=ORIGIN), Routed)
        provider.release_lease(key, "A")


def orphans_of(provider: RedisProvider) -> set[str]:
    """What a sweeper would find."""
    return {orphan.key for orphan in provider.orphans(1_000)}


def slot(key: str) -> int:
    """The slot of a key's records."""
    return slot_of(Names(PREFIX).of(key)[0].decode())


class TestListing:
    """What looks through all names of the store, by a provider that was used before."""

    def test_finds_what_a_promoted_replica_holds(self, cluster: Cluster, provider: RedisProvider) -> None:
        """A client learns of the replica by keys that it asks for; a search asks for none."""
        cluster.fail_over(cluster.primaries[1])
        assert orphans_of(provider) == set(keys())
        assert {each.key for each in provider.keys(1_000)} == set(keys())

    def test_finds_what_a_new_primary_holds(self, cluster: Cluster, provider: RedisProvider) -> None:
        """Else the keys of the slots that moved would be missing, without an error."""
        for key in keys():
            provider.claim(key, "A", TTL_MS, None)
            provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="1", error="no", final=True)])
        assert {each.key for each in provider.dead_letters(None, 1_000)} == set(keys())
        cluster.move_slots(0, SLOTS // 4, cluster.add_primary())
        assert {each.key for each in provider.dead_letters(None, 1_000)} == set(keys())

    def test_finds_both_by_a_client_of_valkey(self, cluster: Cluster) -> None:
        """The fork has a slot map of its own."""
        host, port = "127.0.0.1", cluster.nodes[0].server.port
        client: Any = ValkeyCluster(host=host, port=port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
        with closing(client):
            provider = RedisProvider(client=client, key_prefix=PREFIX)
            leave_orphans(provider)
            cluster.move_slots(0, SLOTS // 4, cluster.add_primary())
            assert orphans_of(provider) == set(keys())
            cluster.fail_over(cluster.primaries[1])
            assert orphans_of(provider) == set(keys())
