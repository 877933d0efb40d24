"""A Redis cluster of three primaries and three replicas whose nodes die, freeze, join, and pass slots on."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.retry import Retry

from incumbent.cli import main
from incumbent.errors import LeaseUnavailable, ListIncomplete
from incumbent.observe import Fact
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.sweeper import sweep
from incumbent.testing.redis_cluster import SLOTS, Cluster, Node, redis_cluster, slot_of
from incumbent.values import Failure, KeyStatus, Message, Origin, Orphan, Routed
from incumbent.wakers import Wake

pytestmark = pytest.mark.usefixtures("connections_that_redis_py_drops")

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


def of_a_part(listing: Iterable[KeyStatus | Orphan]) -> tuple[set[str], ListIncomplete | None]:
    """The keys of the parts of the store that answer, and what is told of the others."""
    found: set[str] = set()
    try:
        for each in listing:
            found.add(each.key)
    except ListIncomplete as error:
        return found, error
    return found, None


def keys_of(cluster: Cluster, node: Node) -> set[str]:
    """The keys of a primary."""
    return {key for key in keys() if cluster.primary_of(slot(key)) is node}


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


class TestParts:
    """Keys of the parts of a store that answer are served, though another part does not."""

    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        """A cluster that serves the slots of its primaries, though those of another are not served."""
        with redis_cluster({"cluster-require-full-coverage": "no"}) as started:
            yield started

    def test_sweep_serves_the_others_while_a_primary_is_silent(self, cluster: Cluster) -> None:
        """Neither it nor its replica: what they hold is named in the error, in a fact and so in a metric."""
        silent = cluster.primaries[2]
        there = set(keys()) - keys_of(cluster, silent)
        woken: set[str] = set()
        facts: list[Fact] = []

        def wake(asked: Wake) -> None:
            woken.add(asked.key)

        with closing(RedisProvider(url=f"{cluster.url}&socket_timeout=0.2", key_prefix=PREFIX)) as provider:
            leave_orphans(provider)
            with ExitStack() as frozen:
                for node in (cluster.replica_of(silent), silent):
                    frozen.enter_context(node.frozen())
                with pytest.raises(ListIncomplete, match=str(silent)) as raised:
                    sweep(provider, wake, observers=[facts.append])
                assert woken == there
                assert facts[-1].fact == "swept"
                assert (facts[-1].waiting, facts[-1].error) == (len(there), str(raised.value))
                assert of_a_part(provider.keys(1_000))[0] == there
            assert orphans_of(provider) == set(keys())

    def test_search_goes_on_after_the_primary_whose_key_it_asks_for(
        self, cluster: Cluster, provider: RedisProvider
    ) -> None:
        """It dies after SCAN has named its keys: one of them is asked for, and not the next."""
        listing = iter(provider.keys(1_000))
        first = next(listing).key
        gone = cluster.primary_of(slot(first))
        there = set(keys()) - keys_of(cluster, gone)
        for node in (cluster.replica_of(gone), gone):
            cluster.kill(node)
        found, error = of_a_part(listing)
        assert found == there
        assert error is not None
        assert len(error.skipped) == 1

    def test_cluster_that_is_down_is_no_part_of_a_store(self, cluster: Cluster, provider: RedisProvider) -> None:
        """SCAN answers, but not one key: that is said soon, and as of any store that gives no answer."""
        for node in cluster.nodes:
            node.client.config_set("cluster-require-full-coverage", "yes")
        gone = cluster.primaries[0]
        for node in (cluster.replica_of(gone), gone):
            cluster.kill(node)
        cluster.wait_for_state("fail")
        with pytest.raises(LeaseUnavailable) as raised:
            list(provider.orphans(1_000))
        assert type(raised.value) is LeaseUnavailable

    def test_only_keys_of_a_slot_that_is_left_open_are_missing(
        self, cluster: Cluster, provider: RedisProvider, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An abandoned reshard: some of the slot's names are here, others there."""
        key = keys()[7]
        source = cluster.primary_of(slot(key))
        to = next(node for node in cluster.primaries if node is not source)
        cluster.open_slot(slot(key), to)
        found, error = of_a_part(provider.orphans(1_000))
        assert found == {each for each in keys() if slot(each) != slot(key)}
        assert error is not None
        (skipped,) = error.skipped
        assert f"slot {slot(key)}" in str(skipped)
        options = ("--provider", "redis", "--redis-url", cluster.url, "--key-prefix", PREFIX)
        assert main(["sweep", "--dry-run", *options]) == 1
        out, err = capsys.readouterr()
        assert f"{len(found)} orphans; no function was woken" in out
        assert "not all of the store could be asked" in err
        assert str(skipped) in err
        cluster.move_keys(slot(key), source, to)
        cluster.close_slot(slot(key), to)
        assert orphans_of(provider) == set(keys())
