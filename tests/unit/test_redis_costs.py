"""What a call costs Redis, in figures that do not depend on the machine: requests, commands in scripts, bytes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.scripting import script
from incumbent.testing import servers
from incumbent.values import Claimed, Continued, Message, Origin, Policy

TTL_MS = 30_000
POLICY = Policy(max_pending=1_000)
ORIGIN = Origin(keyspace="app", target="arn:aws:lambda:eu-central-1:123456789012:function:orders:live", request_id="r")


class CountingServer:
    """A provider on a server of its own, and what that server counts."""

    def __init__(self, server: servers.ValkeyServer) -> None:
        self.provider = RedisProvider(url=server.url)
        self.settled: object = None
        self.bare: Any = redis.Redis(port=server.port, decode_responses=True)

    def cost(self, call: Callable[[], object]) -> tuple[dict[str, int], int]:
        """Make a call; return the commands that its script called, and the bytes that it sent."""
        self.bare.config_resetstat()
        own = self.bare.info("stats")["total_net_input_bytes"]
        own = self.bare.info("stats")["total_net_input_bytes"] - own  # of one INFO
        before = self.bare.info("stats")["total_net_input_bytes"]
        call()
        sent = self.bare.info("stats")["total_net_input_bytes"] - before - own
        counts = {name.removeprefix("cmdstat_"): each["calls"] for name, each in self.bare.info("commandstats").items()}
        assert counts.pop("evalsha") == 1
        assert "eval" not in counts
        return {name: each for name, each in counts.items() if name not in ("info", "config|resetstat")}, sent

    def claim(self, key: str, owner: str, number: int, **more: Any) -> Any:
        """Claim with a message."""
        return self.provider.claim(key, owner, TTL_MS, Message(id=f"m{number}", event={"n": number}), **more)

    def settle(self, key: str, owner: str, number: int, **more: Any) -> Any:
        """Report a message as handled; the answer is in ``settled``, too."""
        self.settled = self.provider.settle(key, owner, ttl_ms=TTL_MS, handled=[f"m{number}"], **more)
        return self.settled

    def fill(self, key: str, count: int) -> None:
        """Let an owner run message 0, and ``count`` others wait."""
        self.claim(key, "owner", 0, policy=POLICY)
        for number in range(1, count + 1):
            self.claim(key, f"c{number}", number, policy=POLICY)


@pytest.fixture(scope="module")
def counter() -> Iterator[CountingServer]:
    """A server that knows all scripts."""
    with servers.valkey() as server:
        found = CountingServer(server)
        for name in ("acquire", "release", "renew", "claim", "settle", "take"):
            found.bare.script_load(script(name).text)
        found.provider.get_lease_owner("k")
        yield found
        found.provider.close()
        found.bare.close()


class TestUncontended:
    """The lease, the record that decides, and the index of what is stored; nothing else."""

    def test_acquire_and_release(self, counter: CountingServer) -> None:
        """Two reads and two writes each, and the time."""
        counter.provider.acquire_lease("lease", "A", TTL_MS)
        counter.provider.release_lease("lease", "A")
        acquired, sent = counter.cost(lambda: counter.provider.acquire_lease("lease", "B", TTL_MS))
        assert acquired == {"get": 2, "time": 1, "set": 2}
        assert sent <= 250
        released, sent = counter.cost(lambda: counter.provider.release_lease("lease", "B"))
        assert released == {"get": 2, "time": 1, "del": 1, "set": 1}
        assert sent <= 250

    def test_refused_acquire_reads_the_lease_alone(self, counter: CountingServer) -> None:
        """Its owner and its end; and a write that changes nothing, which a replica would refuse."""
        counter.provider.acquire_lease("held", "A", TTL_MS)
        refused, sent = counter.cost(lambda: counter.provider.acquire_lease("held", "B", TTL_MS))
        assert refused == {"get": 1, "pttl": 1, "zrem": 1}
        assert sent <= 250

    def test_claim_and_settle(self, counter: CountingServer) -> None:
        """Two reads and three writes each, and the time; a new key's first claim looks whether it is new."""
        first, _ = counter.cost(lambda: counter.claim("run", "A", 1, origin=ORIGIN))
        assert first == {"get": 2, "time": 1, "zcard": 1, "zadd": 1, "set": 2}
        settled, sent = counter.cost(lambda: counter.settle("run", "A", 1))
        assert settled == {"get": 2, "time": 1, "zrem": 1, "del": 1, "set": 1}
        assert sent <= 500
        claimed, sent = counter.cost(lambda: counter.claim("run", "B", 2, origin=ORIGIN))
        assert claimed == {"get": 2, "time": 1, "zadd": 1, "set": 2}
        assert sent <= 650

    def test_beat_while_nothing_waits(self, counter: CountingServer) -> None:
        """The lease's end, too."""
        counter.claim("beating", "A", 1)
        found, _ = counter.cost(lambda: counter.provider.beat("beating", "A", TTL_MS))
        assert sum(found.values()) <= 6


class TestWaiting:
    """What waits costs those that do not run it nothing."""

    @pytest.mark.parametrize("waiting", [10, 900])
    def test_settle_finds_the_next_message_whatever_waits_behind_it(
        self, counter: CountingServer, waiting: int
    ) -> None:
        """M4: as many commands, whose answers do not grow."""
        key = f"draining/{waiting}"
        counter.fill(key, waiting)
        owner = "owner"
        for number in range(3):
            settle = partial(counter.settle, key, owner, number, next_owner=f"{owner}+", policy=POLICY)
            found, sent = counter.cost(settle)
            owner = f"{owner}+"
            continued = counter.settled
            assert isinstance(continued, Continued)
            assert [each.id for each in continued.messages] == [f"m{number + 1}"]
            assert continued.waiting == waiting - number - 1
            assert sum(found.values()) <= 13, found
            assert sent <= 600

    @pytest.mark.parametrize("waiting", [10, 900])
    def test_beat_counts_what_waits_without_reading_it(self, counter: CountingServer, waiting: int) -> None:
        """R4: a renewal of a busy key."""
        counter.fill(f"busy/{waiting}", waiting)
        found, _ = counter.cost(lambda: counter.provider.beat(f"busy/{waiting}", "owner", TTL_MS))
        assert sum(found.values()) <= 10
        assert "hmget" not in found

    def test_traces_move_to_their_record_rarely(self, counter: CountingServer) -> None:
        """M5: once for sixteen runs, and their removal is as rare; a claim looks one up in one read."""
        commands = 0
        for number in range(320):
            claimed: Any = counter.claim("often", f"o{number}", number)
            assert isinstance(claimed, Claimed)
            found, _ = counter.cost(partial(counter.settle, "often", f"o{number}", number))
            commands += sum(found.values())
        assert commands / 320 <= 10
        found, _ = counter.cost(lambda: counter.claim("often", "again", 1_000))
        assert found == {"get": 2, "time": 1, "hmget": 1, "zadd": 1, "set": 2}
