"""How long a call may take, how often it is tried, and whose settings say so (H9, H10, H19; R9, R12).

No test here measures time: what is looked at are the waits that clients are given, the tries that reach the network,
and clocks that tests move.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import redis
from botocore.config import Config
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from incumbent import retry
from incumbent.clock import SYSTEM_CLOCK, Moment
from incumbent.errors import ConfigurationError, LeaseLost, LeaseUnavailable
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.client import Clients
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.server import Server
from incumbent.testing.clock import FakeClock
from incumbent.testing.contract_calls import KEY, TTL_MS, claim, message, settle
from incumbent.testing.proxy import Fault, LoseReply, LoseRequest, Pass, Request, Stall, dynamodb_error
from incumbent.testing.servers import ValkeyServer
from incumbent.validation import MAX_TTL_MS
from incumbent.values import Claimed, Released
from tests.faults.stores import DynamoDBStore, Store, ValkeyStore, dynamodb_client
from tests.unit.stage import no_heartbeat_is_left

THROTTLED = dynamodb_error("ProvisionedThroughputExceededException")


class Recording(FakeClock):
    """A clock that notes each pause."""

    def __init__(self) -> None:
        super().__init__(wall_ms=SYSTEM_CLOCK.now().wall_ms)
        self.pauses_ms: list[int] = []

    def sleep_ms(self, ms: int) -> None:
        """Pass the time at once."""
        self.pauses_ms.append(ms)
        super().sleep_ms(ms)


@pytest.fixture
def everything_is(store: Store) -> Iterator[Callable[[Fault], None]]:
    """What happens to every request from now on."""
    yield lambda fault: store.network.choose(lambda _: fault)
    store.network.choose(lambda _: Pass())


class TestBudgets:
    """What a call may take follows from its ttl."""

    @pytest.mark.parametrize("ttl_ms", [3_000, 4_999, 5_000, 9_999, 10_000, 19_999, 20_000, 30_000, 60_000, MAX_TTL_MS])
    def test_call_has_ended_before_the_next_renewal_is_due(self, ttl_ms: int) -> None:
        """Though it began its last try at the end of its budget, and that had to connect, and was never answered."""
        # H10: aegra #547, botocore's 60 s.
        assert retry.budget_ms(ttl_ms) + 2 * retry.wait_ms(ttl_ms) <= ttl_ms // 3
        assert retry.wait_ms(ttl_ms) <= max(250, ttl_ms // 20)

    @pytest.mark.parametrize("ttl_ms", [1_000, 3_000, 5_000, 10_000, 20_000, 30_000, None])
    def test_there_is_time_for_another_try(self, ttl_ms: int | None) -> None:
        """A reply that is lost costs one wait, and no more."""
        assert retry.budget_ms(ttl_ms) >= retry.wait_ms(ttl_ms)

    @pytest.mark.parametrize(("ttl_ms", "waits_ms"), [(1_000, 250), (10_000, 500), (30_000, 1_000), (None, 1_000)])
    def test_our_redis_clients_wait_as_the_ttl_allows_and_repeat_nothing(
        self, valkey_server: ValkeyServer, ttl_ms: int | None, waits_ms: int
    ) -> None:
        """For a connection, and for an answer."""
        server = Server(url=valkey_server.url, client=None, clock=SYSTEM_CLOCK)
        client: Any = server._reach(ttl_ms)  # noqa: SLF001 - what the vendor is told is not seen from outside
        connection = client._take(0)  # noqa: SLF001 - as above
        assert connection.socket_timeout == connection.socket_connect_timeout == waits_ms / 1_000
        assert connection.retry.get_retries() == 0
        connection.disconnect()
        server.close()

    def test_our_clusters_clients_do_so_too(self, valkey_cluster: ValkeyServer) -> None:
        """Every node's."""
        server = Server(url=f"{valkey_cluster.url}?cluster=true", client=None, clock=SYSTEM_CLOCK)
        client: Any = server._reach(10_000)  # noqa: SLF001 - as above
        assert client.nodes_manager.connection_kwargs["socket_timeout"] == 0.5
        assert client.retry.get_retries() == 0
        server.close()

    @pytest.mark.parametrize(("ttl_ms", "waits_ms"), [(1_000, 250), (10_000, 500), (30_000, 1_000), (None, 1_000)])
    def test_our_dynamodb_clients_wait_as_the_ttl_allows_and_repeat_nothing(
        self, ttl_ms: int | None, waits_ms: int
    ) -> None:
        """For a connection, and for an answer."""
        clients = Clients(None, None, None)
        client = clients.client(ttl_ms, KEY)
        config: Any = client.meta.config
        assert (config.read_timeout, config.connect_timeout) == (waits_ms / 1_000, waits_ms / 1_000)
        assert config.retries["total_max_attempts"] == 1
        assert client is clients.client(ttl_ms, "another")
        client.close()

    def test_silence_is_asked_again_no_oftener_than_the_budget_allows(
        self, store: Store, everything_is: Callable[[Fault], None]
    ) -> None:
        """And is LeaseUnavailable then, from the vendor's timeout."""
        provider = store.provider(impatient=True)
        everything_is(LoseReply(silent=True))
        with pytest.raises(LeaseUnavailable) as error:
            provider.acquire_lease(KEY, "A", TTL_MS)
        assert 1 <= len(store.network.sent) <= retry.MAX_TRIES
        assert "Timeout" in type(error.value.__cause__).__name__

    def test_slow_failures_use_up_the_budget(self, store: Store) -> None:
        """No try is begun after it, however few there were."""
        clock = Recording()

        def slowly(_: Request) -> Fault:
            clock.advance(retry.budget_ms(TTL_MS) // 2)
            return LoseRequest()

        provider = store.provider(clock)
        store.network.choose(slowly)
        try:
            with pytest.raises(LeaseUnavailable):
                provider.acquire_lease(KEY, "A", TTL_MS)
        finally:
            store.network.choose(lambda _: Pass())
        assert len(store.network.sent) == 2

    def test_pauses_between_tries_grow_and_differ(self, store: Store, everything_is: Callable[[Fault], None]) -> None:
        """Many that failed at one moment do not come again at one moment."""
        # H19: KCL #136, #265.
        everything_is(LoseRequest() if store.name == "valkey" else THROTTLED)
        first: list[int] = []
        second: list[int] = []
        for _ in range(12):
            clock = Recording()
            with pytest.raises(LeaseUnavailable):
                store.provider(clock).acquire_lease(KEY, "A", TTL_MS)
            assert len(clock.pauses_ms) == retry.MAX_TRIES - 1
            first.append(clock.pauses_ms[0])
            second.append(clock.pauses_ms[1])
        assert len(set(first)) > 2
        assert len(set(second)) > 2
        assert all(10 <= pause_ms <= 20 for pause_ms in first)
        assert all(10 <= pause_ms <= 40 for pause_ms in second)


class TestWorth:
    """No try is begun that could outlast what it is for."""

    def test_nothing_is_sent_when_the_lease_could_end_first(self, store: Store) -> None:
        """R9: LeaseUnavailable says why; and what has more time goes through."""
        clock = Recording()
        provider = store.provider(clock)
        provider.claim(KEY, "A", TTL_MS, message(1))
        store.network.forget()
        soon = clock.now().plus(500)
        for call in (
            lambda: provider.beat(KEY, "A", TTL_MS, give_up_at=soon),
            lambda: provider.take(KEY, "A", TTL_MS, give_up_at=soon),
            lambda: provider.settle(KEY, "A", ttl_ms=TTL_MS, handled=["m1"], give_up_at=soon),
        ):
            with pytest.raises(LeaseUnavailable, match="was not tried"):
                call()
        assert store.network.sent == []
        later = clock.now().plus(TTL_MS)
        assert provider.beat(KEY, "A", TTL_MS, give_up_at=later).waiting == 0
        assert provider.take(KEY, "A", TTL_MS, have=["m1"], give_up_at=later) == ()
        assert provider.settle(KEY, "A", ttl_ms=TTL_MS, handled=["m1"], give_up_at=later) == Released(remaining=0)

    def test_no_other_try_is_begun_when_the_lease_could_end_first(self, store: Store) -> None:
        """The error is still the vendor's."""
        clock = Recording()
        provider = store.provider(clock)
        provider.claim(KEY, "A", TTL_MS, message(1))
        store.network.forget()
        store.network.next(LoseReply(meanwhile=lambda: clock.advance(2_000)))
        with pytest.raises(LeaseUnavailable, match="no other try was begun") as error:
            provider.beat(KEY, "A", TTL_MS, give_up_at=clock.now().plus(TTL_MS // 6 + 1_000))
        assert len(store.network.sent) == 1
        assert error.value.__cause__ is not None

    def test_short_ttl_can_still_be_renewed(self, valkey_server: ValkeyServer) -> None:
        """Its tries may be longer than is good for it, but they are made."""
        provider = RedisProvider(url=valkey_server.url, key_prefix="short")
        provider.acquire_lease(KEY, "A", 900)
        provider.beat(KEY, "A", 900, give_up_at=SYSTEM_CLOCK.now().plus(450))
        provider.release_lease(KEY, "A")
        provider.close()


class TestHeartbeat:
    """A renewal is tried until the deadline, and never beyond it."""

    def heartbeat(self, store: Store, clock: Recording) -> tuple[Heartbeat, list[LeaseLost], list[Exception]]:
        """A lease and its heartbeat, in a network that has worked so far."""
        provider = store.provider(clock)
        claimed = provider.claim(KEY, "A", TTL_MS, message(1))
        assert isinstance(claimed, Claimed)
        losses: list[LeaseLost] = []
        errors: list[Exception] = []
        store.network.forget()

        class Tenure:
            """A tenure, and what its heartbeat tells."""

            on_lost = staticmethod(losses.append)
            on_error = staticmethod(errors.append)

            def before_each(self) -> None:
                """Nothing is prepared."""

            def renew(self, give_up_at: Moment) -> Renewal:
                """A renewal by the provider."""
                beat = provider.beat(KEY, "A", TTL_MS, give_up_at=give_up_at)
                return Renewal(deadline=beat.deadline, waiting=beat.waiting)

            def make_lost(self, why: str) -> LeaseLost:
                """The error."""
                return LeaseLost(why, key=KEY, owner="A")

            def on_asked(self, _: str) -> None:
                """No test asks it to stop."""

        heartbeat = Heartbeat(
            Tenure(), held_until=claimed.deadline, every_ms=TTL_MS // 3, invocation_ends=None, clock=clock
        )
        return heartbeat, losses, errors

    def test_store_that_is_gone_is_asked_until_the_deadline_and_no_longer(self, store: Store) -> None:
        """Then the lease is lost, which is told once; each try had the time that it could have needed."""
        # H8: python-redis-lock, iceberg #2034, Redisson #3194; H10; H45.
        clock = Recording()
        heartbeat, losses, errors = self.heartbeat(store, clock)
        ends = heartbeat.held_until
        tried: list[Moment] = []

        def refuse(_: Request) -> Fault:
            tried.append(clock.now())
            return LoseRequest()

        store.network.choose(refuse)
        try:
            heartbeat.start()
            assert no_heartbeat_is_left()  # its thread ends by itself, which is the test
        finally:
            store.network.choose(lambda _: Pass())
        assert len(tried) > 20
        assert all(moment.until(ends) >= retry.wait_ms(TTL_MS) * 2 for moment in tried)
        assert len(losses) == 1
        assert heartbeat.loss is losses[0]
        assert len(errors) > 5
        assert 0 <= ends.until(clock.now()) < 500

    def test_lease_outlives_an_outage_that_ends_in_time(self, store: Store) -> None:
        """One failed renewal is no loss, nor are more requests that fail than one renewal sends."""
        # H9: webjobs-sdk #2454, Mastra #21385, mithril-locks; H19: throttled while renewing, KCL #136, #265.
        clock = Recording()
        heartbeat, losses, errors = self.heartbeat(store, clock)
        renewed = threading.Event()
        failures = [LoseRequest() if store.name == "valkey" else THROTTLED] * 100

        def at_last(_: Request) -> Fault:
            if failures:
                return failures.pop()
            renewed.set()
            return Pass()

        store.network.choose(at_last)
        try:
            before = heartbeat.held_until
            heartbeat.start()
            assert renewed.wait(60)
            heartbeat.stop()
        finally:
            store.network.choose(lambda _: Pass())
        assert before.until(heartbeat.held_until) > 0
        assert (losses, heartbeat.loss) == ([], None)
        assert errors

    def test_renewal_answered_after_the_deadline_revives_nothing(self, store: Store) -> None:
        """R3, R12: whatever the store has done."""
        clock = Recording()
        heartbeat, losses, _ = self.heartbeat(store, clock)

        def too_late(_: Request) -> Fault:
            clock.advance(TTL_MS)
            return Pass()

        store.network.choose(too_late)
        try:
            with pytest.raises(LeaseLost):
                heartbeat.renew()
        finally:
            store.network.choose(lambda _: Pass())
        assert len(losses) == 1

    def test_deadline_counts_from_the_sending_of_the_try_that_answered(self, store: Store) -> None:
        """R12: on both clocks; what was lost before it, and how slowly it was answered, gives nobody more time."""
        # H16: ShedLock #132.
        clock = Recording()
        provider = store.provider(clock)
        sent: list[Moment] = []

        def slow(_: Request) -> Fault:
            sent.append(clock.now())
            clock.advance(700)
            return LoseReply() if len(sent) == 1 else Pass()

        store.network.choose(slow)
        try:
            answer = provider.acquire_lease(KEY, "A", TTL_MS)
        finally:
            store.network.choose(lambda _: Pass())
        assert answer.deadline is not None
        allowed_ms = TTL_MS - TTL_MS // 100
        assert sent[-1].until(answer.deadline) <= allowed_ms
        assert sent[-1].until(answer.deadline) > allowed_ms - 5_000


class TestInjectedClients:
    """What somebody has set stays as it is."""

    @pytest.fixture
    def redis_client(self, networked_valkey: ValkeyStore) -> Iterator[Any]:
        """A client that repeats by itself."""
        networked_valkey.begin()
        with redis.Redis(port=networked_valkey.network.port, retry=Retry(NoBackoff(), 3)) as client:
            yield client

    def test_inner_retries_of_redis_count_as_repeated_tries(
        self, networked_valkey: ValkeyStore, redis_client: Any
    ) -> None:
        """R9: what it found may be its own effect, though we have asked once."""
        provider = RedisProvider(client=redis_client, key_prefix=networked_valkey.prefix)
        networked_valkey.network.next(LoseReply())
        first = provider.acquire_lease(KEY, "A", TTL_MS)
        assert first.acquired
        networked_valkey.network.next(LoseReply())
        assert provider.transfer_lease(KEY, "A", "B", TTL_MS) is True
        with pytest.raises(LeaseUnavailable):
            provider.transfer_lease(KEY, "A", "C", TTL_MS)
        assert provider.get_lease_owner(KEY) == "B"
        assert redis_client.connection_pool.connection_kwargs["retry"].get_retries() == 3

    def test_inner_retries_of_botocore_count_as_repeated_tries(self, networked_dynamodb: DynamoDBStore) -> None:
        """R9: it says how often it has tried, so that a call without a retry still knows."""
        store = networked_dynamodb
        store.begin()
        client = dynamodb_client(store.network.port, attempts=3)
        provider = DynamoDBProvider(table_name=store.table_name, client=client, key_prefix=store.prefix)
        other = store.bare()

        def overtake() -> None:
            other.release_lease(KEY, "A2")
            other.acquire_lease(KEY, "B", TTL_MS)

        provider.acquire_lease(KEY, "A", TTL_MS)
        store.network.next(LoseReply(meanwhile=overtake))
        with pytest.raises(LeaseUnavailable):
            provider.transfer_lease(KEY, "A", "A2", TTL_MS)
        assert provider.transfer_lease(KEY, "A", "A2", TTL_MS) is False
        assert len({each.name for each in store.network.sent}) == 1
        client.close()

    @pytest.mark.parametrize(
        ("settings", "ttl_ms"),
        [({}, 4_999), ({"socket_timeout": 2}, 1_999), ({"socket_timeout": None}, MAX_TTL_MS)],
        ids=["vendor's own", "set", "for ever"],
    )
    def test_redis_client_that_waits_longer_than_the_ttl_is_refused(
        self, networked_valkey: ValkeyStore, settings: dict[str, Any], ttl_ms: int
    ) -> None:
        """H10: before any request, with what to do; a longer ttl is fine."""
        networked_valkey.begin()
        with redis.Redis(port=networked_valkey.network.port, **settings) as client:
            provider = RedisProvider(client=client, key_prefix=networked_valkey.prefix)
            self.refuses(networked_valkey, provider, ttl_ms, "socket_timeout")
            if settings.get("socket_timeout", 5) is not None:
                assert provider.acquire_lease(KEY, "A", ttl_ms + 1).acquired

    def test_url_that_waits_longer_than_the_ttl_is_refused(self, networked_valkey: ValkeyStore) -> None:
        """H10: a timeout in it is somebody's word too."""
        networked_valkey.begin()
        url = f"redis://127.0.0.1:{networked_valkey.network.port}?socket_timeout=3"
        provider = RedisProvider(url=url, key_prefix=networked_valkey.prefix)
        self.refuses(networked_valkey, provider, 2_999, "socket_timeout")
        assert provider.acquire_lease(KEY, "A", 3_000).acquired
        provider.close()

    def test_clusters_client_that_waits_longer_than_the_ttl_is_refused(self, valkey_cluster: ValkeyServer) -> None:
        """H10."""
        client: Any = RedisCluster(host="127.0.0.1", port=valkey_cluster.port, socket_timeout=2)
        provider = RedisProvider(client=client, key_prefix="patient")
        with pytest.raises(ConfigurationError, match="socket_timeout"):
            provider.acquire_lease(KEY, "A", 1_999)
        client.close()

    @pytest.mark.parametrize(
        ("config", "ttl_ms"),
        [(Config(), 59_999), (Config(read_timeout=2), 1_999), (Config(read_timeout=None), MAX_TTL_MS)],
        ids=["vendor's own", "set", "for ever"],
    )
    def test_dynamodb_client_that_waits_longer_than_the_ttl_is_refused(
        self, networked_dynamodb: DynamoDBStore, config: Config, ttl_ms: int
    ) -> None:
        """H10: botocore's own wait is a minute."""
        store = networked_dynamodb
        store.begin()
        client = boto3.client("dynamodb", endpoint_url=f"http://127.0.0.1:{store.network.port}", config=config)
        provider = DynamoDBProvider(table_name=store.table_name, client=client, key_prefix=store.prefix)
        self.refuses(store, provider, ttl_ms, "read_timeout")
        if ttl_ms < MAX_TTL_MS:
            assert provider.acquire_lease(KEY, "A", ttl_ms + 1).acquired
        client.close()

    def test_boto_config_that_waits_longer_than_the_ttl_is_refused(self) -> None:
        """H10: what it does not say is ours to choose."""
        provider = DynamoDBProvider(table_name="t", boto_config=Config(read_timeout=20))
        with pytest.raises(ConfigurationError, match="read_timeout"):
            provider.acquire_lease(KEY, "A", 19_999)
        client: Any = Clients(None, None, Config(user_agent_extra="x")).client(1_000, KEY)
        settings: Any = client.meta.config
        assert settings.read_timeout == 0.25
        client.close()

    @staticmethod
    def refuses(store: Store, provider: Any, ttl_ms: int, what: str) -> None:
        """Every call with that ttl, and nothing is sent."""
        steps: tuple[Callable[[], object], ...] = (
            lambda: provider.acquire_lease(KEY, "A", ttl_ms),
            lambda: provider.renew_lease(KEY, "A", ttl_ms),
            lambda: provider.transfer_lease(KEY, "A", "B", ttl_ms),
            lambda: provider.claim(KEY, "A", ttl_ms, message(1)),
            lambda: provider.settle(KEY, "A", ttl_ms=ttl_ms),
            lambda: provider.beat(KEY, "A", ttl_ms),
            lambda: provider.take(KEY, "A", ttl_ms),
        )
        for step in steps:
            with pytest.raises(ConfigurationError, match=what) as error:
                step()
            assert error.value.key == KEY
        assert store.network.sent == []


def test_stalled_renewal_that_arrives_after_the_release_holds_nothing(store: Store) -> None:
    """The tries of a heartbeat end before its run is settled; what one of them left in the network harms nothing."""
    # H11: awslabs lock client #116, tristanls #1, KCL #1729; H13.
    provider = store.provider()
    claim("A", 1)(provider)
    store.network.next(Stall())
    provider.beat(KEY, "A", TTL_MS)
    settle("A", handled=["m1"])(provider)
    for late in store.network.late:
        late.deliver()
    assert store.bare().get_lease_owner(KEY) is None
