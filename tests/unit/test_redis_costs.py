"""What a call costs Redis, in figures that do not depend on the machine: requests, commands in scripts, bytes."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from types import FrameType
from typing import Any

import pytest
import redis

from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.scripting import Script, script
from incumbent.testing import servers
from incumbent.values import Claimed, Continued, Debounce, Message, Origin, Policy, Released, Routed
from tests.redis_records import edit
from tests.unit.stage import profiled

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

    # Names have some length: one of a letter or two may stand by chance among the packed traces, and then a claim goes
    # its longer way.

    def claim(self, key: str, owner: str, number: int, **more: Any) -> Any:
        """Claim with a message."""
        return self.provider.claim(key, owner, TTL_MS, Message(id=f"message {number}", event={"n": number}), **more)

    def settle(self, key: str, owner: str, number: int, **more: Any) -> Any:
        """Report a message as handled; the answer is in ``settled``, too."""
        self.settled = self.provider.settle(key, owner, ttl_ms=TTL_MS, handled=[f"message {number}"], **more)
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
        for name in (
            "acquire",
            "release",
            "renew",
            "claim",
            "settle",
            "take",
            "watch",
            "stop",
            "hold",
            "cancel",
            "resume",
        ):
            found.bare.script_load(script(name).text)
        found.provider.get_lease_owner("k")
        yield found
        found.provider.close()
        found.bare.close()


class TestUncontended:
    """The lease, the record that decides, and the index of what is stored; nothing else."""

    def test_acquire_and_release(self, counter: CountingServer) -> None:
        """Two reads and two writes each, and the time."""
        counter.provider.acquire_lease("lease", "owner A", TTL_MS)
        counter.provider.release_lease("lease", "owner A")
        acquired, sent = counter.cost(lambda: counter.provider.acquire_lease("lease", "owner B", TTL_MS))
        assert acquired == {"get": 2, "time": 1, "set": 2}
        assert sent <= 250
        released, sent = counter.cost(lambda: counter.provider.release_lease("lease", "owner B"))
        assert released == {"get": 2, "time": 1, "del": 1, "set": 1}
        assert sent <= 250

    def test_refused_acquire_reads_the_lease_alone(self, counter: CountingServer) -> None:
        """Its owner and its end; and a write that changes nothing, which a replica would refuse."""
        counter.provider.acquire_lease("held", "owner A", TTL_MS)
        refused, sent = counter.cost(lambda: counter.provider.acquire_lease("held", "owner B", TTL_MS))
        assert refused == {"get": 1, "pttl": 1, "zrem": 1}
        assert sent <= 250

    def test_claim_and_settle(self, counter: CountingServer) -> None:
        """Two reads and three writes each, and the time; a new key's first claim looks whether it is new."""
        first, _ = counter.cost(lambda: counter.claim("run", "owner A", 1, origin=ORIGIN))
        assert first == {"get": 2, "time": 1, "zcard": 1, "zadd": 1, "set": 2}
        settled, sent = counter.cost(lambda: counter.settle("run", "owner A", 1))
        assert settled == {"get": 2, "time": 1, "zrem": 1, "del": 1, "set": 1}
        assert sent <= 500
        claimed, sent = counter.cost(lambda: counter.claim("run", "owner B", 2, origin=ORIGIN))
        assert claimed == {"get": 2, "time": 1, "zadd": 1, "set": 2}
        assert sent <= 650

    def test_arguments_are_written_as_bytes_at_once(self, counter: CountingServer) -> None:
        """Only what tells a repetition is written for each try, and no command is packed a second time."""
        calls: Counter[str] = Counter()

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and str(frame.f_globals.get("__name__")).startswith("incumbent."):
                calls[frame.f_code.co_name] += 1

        for number in (8, 9):  # the first calls of a process compile, and ask for what is kept
            counter.claim("bytes", "owner A", number, origin=ORIGIN)
            counter.settle("bytes", "owner A", number)
        with profiled(note):
            counter.claim("bytes", "owner B", 2, origin=ORIGIN)
            counter.settle("bytes", "owner B", 2)
        assert calls["_told"] <= 1
        assert calls["_packed"] == 2
        assert sum(calls.values()) <= 85, ", ".join(f"{name} {number}" for name, number in sorted(calls.items()))

    def test_beat_while_nothing_waits(self, counter: CountingServer) -> None:
        """The lease's end, too."""
        counter.claim("beating", "owner A", 1)
        found, _ = counter.cost(lambda: counter.provider.beat("beating", "owner A", TTL_MS))
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
            assert [each.id for each in continued.messages] == [f"message {number + 1}"]
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


class TestControl:
    """Those who use none of it pay nothing; the others little."""

    def test_run_after_a_hold_is_as_short_as_any(self, counter: CountingServer) -> None:
        """M15: once the first run has found that it is over."""
        counter.provider.hold("was held", for_ms=60_000)
        counter.provider.resume("was held")
        resumed = [0, 0, "", False, "", "token", "token", "", 0, 1]  # long ago
        edit(counter.bare, "{incumbent:lease:was held}:state", {24: resumed})
        counter.claim("was held", "owner A", 1)
        counter.settle("was held", "owner A", 1)
        claimed, _ = counter.cost(lambda: counter.claim("was held", "owner B", 2, origin=ORIGIN))
        assert claimed == {"get": 2, "time": 1, "zadd": 1, "set": 2}
        settled, _ = counter.cost(lambda: counter.settle("was held", "owner B", 2))
        assert settled == {"get": 2, "time": 1, "zrem": 1, "del": 1, "set": 1}

    def test_watch_reads_two_records(self, counter: CountingServer) -> None:
        """M16: cheap enough for each second; and a write that changes nothing, which a replica would refuse."""
        counter.claim("watched", "owner A", 1)
        counter.provider.stop("watched", reason="enough")
        found, sent = counter.cost(lambda: counter.provider.watch("watched", "owner A"))
        assert found == {"get": 2, "time": 1, "zrem": 1}
        assert sent <= 250

    def test_hold_stop_resume_and_cancel(self, counter: CountingServer) -> None:
        """However much waits."""
        counter.fill("busy", 900)
        for call, most in (
            (lambda: counter.provider.stop("busy", reason="enough"), 5),
            (lambda: counter.provider.hold("busy", for_ms=60_000), 7),
            (lambda: counter.provider.resume("busy"), 7),
            (lambda: counter.provider.cancel("busy", "m450"), 12),
        ):
            found, _ = counter.cost(call)
            assert sum(found.values()) <= most, found

    @pytest.mark.parametrize("waiting", [10, 800])
    def test_arrival_in_a_burst_reads_little_of_it(self, counter: CountingServer, waiting: int) -> None:
        """M15: when the first one came, and no more."""
        key, burst = f"burst/{waiting}", Debounce(quiet_ms=60_000, max_ms=600_000)
        for number in range(waiting):
            counter.claim(key, f"c{number}", number, policy=POLICY, debounce=burst)
        found, _ = counter.cost(lambda: counter.claim(key, "last", waiting, policy=POLICY, debounce=burst))
        assert sum(found.values()) <= 24, found
        assert found["hmget"] <= 2
        answer = counter.claim(key, "one more", waiting + 1, policy=POLICY, debounce=burst)
        assert isinstance(answer, Routed)

    def test_result_costs_the_move_of_its_trace(self, counter: CountingServer) -> None:
        """M17: it stands outside the record that every call reads."""
        policy = Policy(result_bytes=4_096)
        counter.claim("results", "owner A", 1, policy=policy)
        found, sent = counter.cost(
            lambda: counter.settle("results", "owner A", 1, results={"message 1": "x" * 4_000}, policy=policy)
        )
        assert sum(found.values()) <= 12, found
        assert sent <= 4_700


SHORT = {"acquire": "acquire_free", "claim": "claim_alone", "settle": "settle_alone"}


def cut(name: str) -> Script:
    """Return a script that ends with an error behind its short part."""
    whole = script(name)
    part = (files("incumbent.providers.redis") / "scripts" / f"{SHORT[name]}.lua").read_bytes()
    text = b"%b%b\nreturn redis.error_reply('ERR not short')" % whole.text.partition(part)[:2]
    return Script(text=text, sha=hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(), names=whole.names)


def test_most_runs_end_in_the_short_part_of_each_script(
    valkey_server: servers.ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest would say the same, later. Also on a key that has run before, by another owner."""
    provider = RedisProvider(url=valkey_server.url, key_prefix="short")
    monkeypatch.setattr(
        "incumbent.providers.redis.server.script", lambda name: (cut if name in SHORT else script)(name)
    )
    for number in range(3):
        for origin in (None, ORIGIN):
            owner, key = f"owner {number}", f"run {origin is None}"
            message = Message(id=f"message {number}", event=number)
            assert isinstance(provider.claim(key, owner, TTL_MS, message, origin=origin), Claimed)
            assert isinstance(provider.settle(key, owner, ttl_ms=TTL_MS, handled=[message.id]), Released)
        assert provider.acquire_lease("lease", f"owner {number}", TTL_MS).acquired
        provider.release_lease("lease", f"owner {number}")
    provider.close()
