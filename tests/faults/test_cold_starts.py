"""The first call of a new environment to a cluster, some of whose nodes are away."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor import examine_store
from incumbent.doctor.server import check_server
from incumbent.errors import LeaseUnavailable
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.retry import wait_ms
from incumbent.testing import servers
from incumbent.testing.redis_cluster import Cluster, redis_cluster, slot_of
from incumbent.testing.servers import ValkeyServer

pytestmark = pytest.mark.usefixtures("connections_that_redis_py_drops")

TTL_MS = 5_000
BUSY_MS = 2_000  # what else a machine may be doing, beside one timeout
STARTS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries and three replicas, which are not promoted while a test lasts."""
    with redis_cluster({"cluster-node-timeout": "60000"}) as started:
        yield started


def places(*ports: int) -> str:
    """A URL that names these nodes, with a login that must not be repeated."""
    return f"redis://default:hushed@{','.join(f'127.0.0.1:{port}' for port in ports)}/0?cluster=true"


@contextmanager
def provider_of(url: str) -> Iterator[RedisProvider]:
    """A provider of a new environment."""
    with closing(RedisProvider(url=url, key_prefix="cold")) as made:
        yield made


def key_of(cluster: Cluster, number: int) -> str:
    """A key of the primary with this number, in the order of their slots."""
    primaries = cluster.primaries
    names = Names("cold")
    keys = (f"orders/{each}" for each in range(1_000))
    return next(key for key in keys if cluster.primary_of(slot_of(names.of(key)[0].decode())) is primaries[number])


def closed_port() -> int:
    """A port on which nothing listens any more."""
    with servers.valkey() as server:
        return server.port


def test_first_primary_that_is_away_keeps_its_own_keys_to_itself(cluster: Cluster) -> None:
    """redis-py's constructor asks it for COMMAND, and would fail for every key."""
    first, second, third = cluster.primaries
    keys = [key_of(cluster, number) for number in range(3)]
    with first.frozen(), provider_of(places(second.server.port, third.server.port)) as provider:
        for key in keys[1:]:
            assert provider.acquire_lease(key, "A", TTL_MS).acquired
            provider.release_lease(key, "A")
        with pytest.raises(LeaseUnavailable):
            provider.acquire_lease(keys[0], "A", TTL_MS)
    with provider_of(places(second.server.port)) as provider:
        provider.release_lease(keys[0], "A")


def test_dead_seed_costs_one_timeout_at_most(cluster: Cluster) -> None:
    """One that is frozen, and takes connections; and one on whose port nothing listens, which costs nothing."""
    away, *alive = cluster.primaries
    key = key_of(cluster, 1)
    with away.frozen():
        for _ in range(STARTS):  # redis-py draws the order
            with provider_of(places(away.server.port, closed_port(), alive[0].server.port)) as provider:
                began = SYSTEM_CLOCK.now()
                assert provider.acquire_lease(key, "A", TTL_MS).acquired
                assert began.until(SYSTEM_CLOCK.now()) < wait_ms(TTL_MS) + BUSY_MS
                provider.release_lease(key, "A")


def test_list_of_urls_is_the_same(cluster: Cluster) -> None:
    """Each names one node."""
    urls = [places(closed_port()), places(cluster.nodes[0].server.port)]
    with closing(RedisProvider(url=urls, key_prefix="cold")) as provider:
        assert provider.get_lease_owner("orders/0") is None


def test_error_names_the_nodes_that_were_tried_and_no_login() -> None:
    """All of them were."""
    ports = closed_port(), closed_port()
    with provider_of(places(*ports)) as provider, pytest.raises(LeaseUnavailable) as raised:
        provider.acquire_lease("k", "A", TTL_MS)
    assert all(f"127.0.0.1:{port}" in str(raised.value) for port in ports)
    assert "hushed" not in str(raised.value)


def test_doctor_tells_which_nodes_are_away(cluster: Cluster) -> None:
    """A warning, as long as another one answers."""
    port = cluster.nodes[0].server.port
    for gone in (closed_port(), cluster.nodes[1].server.port):
        settings = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": places(gone, port)}
        (seeds,) = (check for check in examine_store(settings) if check.name == "seeds")
        if gone == cluster.nodes[1].server.port:
            assert (seeds.status, seeds.found) == ("ok", "all 2 nodes that the URL names answer")
        else:
            assert seeds.status == "warning"
            assert f"127.0.0.1:{gone}" in seeds.found
            assert "hushed" not in seeds.line()


def test_doctor_refuses_nodes_of_two_clusters(cluster: Cluster) -> None:
    """A new environment takes the first that answers: two would lease one key twice."""
    with servers.valkey(cluster=True) as other:
        urls = places(cluster.nodes[0].server.port, other.port)
        settings = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": urls}
        (seeds,) = (check for check in examine_store(settings) if check.name == "seeds")
    assert seeds.status == "failed"
    assert "2 clusters" in seeds.found
    assert "hushed" not in seeds.line()


def test_doctor_tells_a_silent_primary_from_missing_rights(cluster: Cluster) -> None:
    """It is asked once, and the checks of the others go on."""
    silent, *alive = cluster.primaries
    settings = {"INCUMBENT_REDIS_URL": places(alive[0].server.port)}
    with silent.frozen():
        checks = {check.name: check for check in check_server(settings, "cold", SYSTEM_CLOCK)}
    about = [check for check in checks.values() if str(silent) in check.name]
    assert [(check.name, check.status) for check in about] == [(f"server of {silent}", "failed")]
    assert "+eval" not in about[0].advice
    assert checks["keyspaces"].status == "warning"
    assert checks["format versions"].status == "ok"
    assert all(checks[f"clock of {each}"].status == "ok" for each in alive)


def test_client_whose_nodes_are_all_gone_begins_again_with_the_urls() -> None:
    """As after a cluster was replaced: redis-py forgets the nodes that the URL names, once it knows others."""
    with ExitStack() as stack:
        old = stack.enter_context(servers.valkey(cluster=True))
        port = closed_port()
        provider = stack.enter_context(provider_of(places(old.port, port)))
        assert provider.acquire_lease("k", "A", TTL_MS).acquired
        _kill(old)
        stack.enter_context(servers.valkey(cluster=True, port=port))
        assert provider.acquire_lease("k", "A", TTL_MS).acquired


def _kill(server: ValkeyServer) -> None:
    os.killpg(server.process_group, signal.SIGKILL)
