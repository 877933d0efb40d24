"""The fence grows through everything that makes a store forget (R7, H22)."""

import itertools
from typing import Any

import pytest
import redis

from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers.dynamodb.item import IDLE_S
from incumbent.providers.dynamodb.names import LEASE, partition
from incumbent.providers.redis import RedisProvider
from incumbent.testing import servers
from incumbent.testing.clock import FakeClock
from incumbent.testing.contract_calls import KEY, TTL_MS, message, settle
from incumbent.testing.proxy import fault_proxy
from incumbent.testing.servers import ValkeyServer
from incumbent.values import Claimed, Continued
from tests.conformance.test_redis import pass_time
from tests.faults.stores import DynamoDBStore, Provider, Store, ValkeyStore

DAY_MS = 86_400_000


def fence(provider: Provider, owner: str) -> int:
    """The fence under which that owner now holds the key."""
    answer = provider.acquire_lease(KEY, owner, TTL_MS)
    assert answer.acquired
    assert answer.fence is not None
    return answer.fence


def rises(fences: list[int]) -> bool:
    """Whether each is larger than the one before."""
    return all(earlier < later for earlier, later in itertools.pairwise(fences))


def test_fence_grows_with_every_kind_of_grant(store: Store) -> None:
    """Acquire, transfer, claim, settle with a successor, with a ticket, and the ticket's redemption."""
    provider = store.provider()
    fences = [fence(provider, "A")]
    assert provider.transfer_lease(KEY, "A", "B", TTL_MS)
    fences.append(fence(provider, "B"))
    provider.release_lease(KEY, "B")
    for number in range(3):
        provider.claim(KEY, f"other{number}", TTL_MS, message(number))
    settle("other0", deferred=["m0"])(provider)
    claimed = provider.claim(KEY, "C", TTL_MS, None)
    assert isinstance(claimed, Claimed)
    fences.append(claimed.fence)
    for owner, more in (("C", {"next_owner": "D"}), ("D", {"ticket": "T"})):
        settled = settle(owner, handled=[f"m{'CD'.index(owner)}"], **more)(provider)
        assert isinstance(settled, Continued)
        fences.append(settled.fence)
    redeemed = provider.claim(KEY, "E", TTL_MS, None, ticket="T")
    assert isinstance(redeemed, Claimed)
    fences.append(redeemed.fence)
    settle("E", handled=["m2"])(provider)
    fences.append(fence(provider, "F"))
    assert rises(fences)


class TestValkey:
    """Its server's time is the floor of every fence."""

    def test_fence_outlives_a_restart_without_data(self) -> None:
        """Nothing is left of the key, and the next owner's fence is larger."""
        with servers.valkey() as first:
            port = first.port
            provider = RedisProvider(url=first.url)
            before = fence(provider, "A")
            provider.close()
        with servers.valkey(port=port) as second:
            provider = RedisProvider(url=second.url)
            with redis.Redis(port=port) as client:
                assert client.dbsize() == 0
            assert fence(provider, "B") > before
            provider.close()

    def test_fence_outlives_a_flush(self) -> None:
        """FLUSHALL, by accident."""
        with servers.valkey() as server, redis.Redis(port=server.port) as client:
            provider = RedisProvider(url=server.url)
            fences = []
            for number in range(5):
                fences.append(fence(provider, f"A{number}"))
                client.flushall()
            assert rises(fences)
            provider.close()

    def test_fence_outlives_the_clean_up_of_an_idle_key(self, networked_valkey: ValkeyStore) -> None:
        """The state lives a day longer than the lease; then the server's time goes on where it stood."""
        networked_valkey.begin()
        provider = networked_valkey.provider()
        before = fence(provider, "A")
        with redis.Redis(port=networked_valkey.server.port, decode_responses=True) as client:
            pass_time(client, networked_valkey.prefix, TTL_MS + DAY_MS)
            assert list(client.scan_iter(f"*{networked_valkey.prefix}*", count=10_000)) == []
        assert fence(provider, "B") > before
        networked_valkey.close()

    def test_fence_outlives_the_promotion_of_a_replica_that_lagged_behind(self) -> None:
        """The replication is cut, the primary grants on; the replica, which knows nothing of it, takes over."""
        # H22: measured: an INCR counter gave the same fence to both holders.
        with servers.valkey() as primary, fault_proxy(primary.port, None) as line:
            by_the_line = ValkeyServer(
                port=line.port, cluster=False, password=None, process_group=primary.process_group
            )
            with servers.valkey(replica_of=by_the_line) as replica:
                old, new = RedisProvider(url=primary.url), RedisProvider(url=replica.url)
                fences = [fence(old, "A")]
                self.wait_for_offset(primary.port, replica.port)
                line.cut()
                for number in range(5):
                    assert old.transfer_lease(KEY, "A" if not number else f"A{number}", f"A{number + 1}", TTL_MS)
                    fences.append(fence(old, f"A{number + 1}"))
                old.close()
                with redis.Redis(port=replica.port, decode_responses=True) as client:
                    client.execute_command("REPLICAOF", "NO", "ONE")
                    assert client.get(f"incumbent:lease:{KEY}") == "A"  # so far behind was it
                assert new.transfer_lease(KEY, "A", "B", TTL_MS)
                fences.append(fence(new, "B"))
                assert rises(fences)
                new.close()

    @staticmethod
    def wait_for_offset(primary_port: int, replica_port: int) -> None:
        """Wait until the replica has all that the primary has."""
        with redis.Redis(port=primary_port) as primary, redis.Redis(port=replica_port) as replica:
            while True:
                ours: Any = primary.info("replication")
                theirs: Any = replica.info("replication")
                if theirs["master_repl_offset"] >= ours["master_repl_offset"]:
                    return
                SYSTEM_CLOCK.sleep_ms(5)

    def test_stranded_primary_and_its_promoted_replica_never_grant_one_fence_twice(self) -> None:
        """Both go on granting, each to its own side: every fence is of one grant only."""
        # H22.
        with servers.valkey() as one, servers.valkey() as other:
            providers = [RedisProvider(url=each.url) for each in (one, other)]
            fences = []
            for number in range(20):
                provider = providers[number % 2]
                fences.append(fence(provider, f"A{number}"))
                provider.release_lease(KEY, f"A{number}")
            assert rises(fences)
            for provider in providers:
                provider.close()


class TestDynamoDB:
    """The record keeps the fence; without one it starts from the client's clock."""

    @pytest.mark.parametrize("store", ["dynamodb"], indirect=True)
    def test_fence_outlives_the_clean_up_of_an_idle_record(self, store: DynamoDBStore) -> None:
        """TTL takes the record of a key that nobody used for eight days, and the clock has gone on meanwhile."""
        clock = FakeClock()
        provider = store.provider(clock)
        fences = []
        for number in range(3):
            fences.append(fence(provider, f"A{number}"))
            provider.release_lease(KEY, f"A{number}")
            clock.advance(IDLE_S * 1_000)
            self.take_by_ttl(store, clock)
        assert rises(fences)

    @pytest.mark.parametrize("store", ["dynamodb"], indirect=True)
    def test_fence_outlives_many_grants_at_one_moment_and_the_clean_up_after_them(self, store: DynamoDBStore) -> None:
        """One is added for each grant, and the clock adds a thousand in a millisecond: it stays ahead."""
        clock = FakeClock()
        provider = store.provider(clock)
        fences = []
        for number in range(30):
            fences.append(fence(provider, f"A{number}"))
            provider.release_lease(KEY, f"A{number}")
        clock.advance(IDLE_S * 1_000)
        self.take_by_ttl(store, clock)
        fences.append(fence(provider, "B"))
        assert rises(fences)

    @staticmethod
    def take_by_ttl(store: DynamoDBStore, clock: FakeClock) -> None:
        """Do what DynamoDB does with a record whose time has come; no test server does."""
        name = {"pk": {"S": partition(store.prefix, KEY)}, "sk": {"S": LEASE}}
        record = store.past.get_item(TableName=store.table_name, Key=name)["Item"]
        assert int(record["expires_on"]["N"]) * 1_000 <= clock.now().wall_ms
        store.past.delete_item(TableName=store.table_name, Key=name)
