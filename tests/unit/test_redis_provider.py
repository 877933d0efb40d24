"""What is special to the Redis provider: its wire format, lost replies, formats, errors, requests, settings."""

import json
import os
import re
import signal
import ssl
import warnings
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
import valkey.sentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from incumbent.backends import is_archive, is_lease_provider, is_mailbox
from incumbent.clock import SYSTEM_CLOCK
from incumbent.errors import (
    ConfigurationError,
    IncumbentError,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    StoredFormatUnknown,
)
from incumbent.providers import from_env
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider, clients, explanations
from incumbent.providers.redis.names import COMPANIONS, Names
from incumbent.providers.redis.permissions import SCRIPTS_RUN, acl_rules
from incumbent.providers.redis.url import one_url, read_url
from incumbent.retry import search_until
from incumbent.testing import servers
from incumbent.testing.clock import FakeClock
from incumbent.testing.contract_calls import CALLS as ALL_CALLS
from incumbent.testing.contract_calls import ContractCall
from incumbent.testing.servers import ValkeyServer
from incumbent.values import (
    FOREVER_MS,
    Busy,
    Claimed,
    Continued,
    DeadLetter,
    Debounce,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
)
from tests.conformance.test_redis import pass_time, unique_prefix
from tests.redis_records import META, STATE, edit, pack, records, unpack

TTL_MS = 30_000
DAY_MS = 86_400_000
EVERYTHING = 10_000
ONCE = Policy(max_attempts=1)


VALKEY_ERRORS = [
    name
    for name, kind in vars(valkey.exceptions).items()
    if isinstance(kind, type)
    and issubclass(kind, (valkey.exceptions.ValkeyError, valkey.exceptions.ValkeyClusterException))
]


def message(number: int | str = 1) -> Message:
    """A message whose event tells it from others."""
    return Message(id=f"m{number}", event={"number": number})


def ids(messages: Any) -> list[str]:
    """The ids, in order."""
    return [each.id for each in messages]


class Client(redis.Redis):
    """A client that repeats nothing by itself, keeps what it sent, and can lose requests and replies."""

    def __init__(self, port: int, **settings: Any) -> None:
        settings = {"socket_timeout": 1, **settings}
        super().__init__(port=port, retry=Retry(NoBackoff(), 0), protocol=2, driver_info=None, **settings)
        self.sent: list[tuple[Any, ...]] = []
        self.faults: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send it, or say that the connection broke: before the request came, or before its reply did."""
        self.sent.append(args)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "request lost":
            self.meanwhile()
            raise redis.ConnectionError("the connection broke")
        answer = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        if fault == "reply lost":
            self.meanwhile()
            raise redis.TimeoutError("no reply in time")
        return answer


class Box:
    """One key on a shared server, seen by a provider and by a bare client."""

    def __init__(self, port: int, prefix: str | None = None) -> None:
        self.prefix = prefix or unique_prefix()
        self.client = Client(port)
        self.bare: Any = redis.Redis(port=port, decode_responses=True, protocol=2, driver_info=None, socket_timeout=1)
        self.provider = RedisProvider(client=self.client, key_prefix=self.prefix)
        self.other = RedisProvider(client=self.bare, key_prefix=self.prefix)
        self.key = "k"
        self.lease, *companions = (name.decode() for name in Names(self.prefix).of(self.key))
        self.of = dict(zip(COMPANIONS, companions, strict=True))

    @property
    def names(self) -> list[str]:
        """All that may be kept of the key."""
        return [self.lease, *self.of.values()]

    def everything(self) -> dict[str, Any]:
        """All that is kept of the key, byte for byte."""
        return {name: self.client.dump(name) for name in self.names}

    def claim(self, owner: str, number: int | str | None = 1, **more: Any) -> Any:
        """Claim the key."""
        return self.provider.claim(self.key, owner, TTL_MS, None if number is None else message(number), **more)

    def settle(self, owner: str, **more: Any) -> Released | Continued:
        """Settle."""
        return self.provider.settle(self.key, owner, ttl_ms=TTL_MS, **more)

    def pass_time(self, ms: int) -> None:
        """Let time pass for the key."""
        pass_time(self.bare, self.prefix, ms)


@pytest.fixture
def box(valkey_server: ValkeyServer) -> Iterator[Box]:
    """A key of its own, on a server that all tests share."""
    made = Box(valkey_server.port)
    yield made
    made.client.close()
    made.bare.close()


# --- the wire format


def unchanged_or_answered(box: Box, call: Callable[[Any], object]) -> None:
    """Make a call: if it raises, it raises an error of this package and has changed nothing."""
    before = box.everything()
    try:
        call(box.provider)
    except IncumbentError:
        assert box.everything() == before


class TestStrangers:
    """The lease is what others keep under the same name: a string, with PX."""

    @pytest.fixture
    def topic(self, valkey_server: ValkeyServer) -> Iterator[Box]:
        """A key as Mastra's RedisStreamsPubSub names it."""
        made = Box(valkey_server.port, "mastra:topic")
        made.bare.delete(*made.names)
        yield made
        made.bare.delete(*made.names)
        made.client.close()
        made.bare.close()

    def test_lease_is_the_owner_under_a_plain_name_with_px(self, topic: Box) -> None:
        """Byte for byte what Mastra keeps."""
        topic.provider.acquire_lease("k", "A", TTL_MS)
        assert topic.bare.type("mastra:topic:lease:k") == "string"
        assert topic.bare.get("mastra:topic:lease:k") == "A"
        assert TTL_MS - 500 <= topic.bare.pttl("mastra:topic:lease:k") <= TTL_MS

    def test_strangers_lease_excludes_ours(self, topic: Box) -> None:
        """R1: SET NX PX by a stranger, and the answer names it."""
        assert topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS, nx=True)
        refused = topic.provider.acquire_lease("k", "A", TTL_MS)
        assert (refused.acquired, refused.owner) == (False, "stranger")
        assert topic.provider.get_lease_owner("k") == "stranger"
        assert topic.provider.renew_lease("k", "A", TTL_MS) is False
        assert topic.provider.transfer_lease("k", "A", "B", TTL_MS) is False
        topic.provider.release_lease("k", "A")
        assert isinstance(topic.claim("A", None), Busy)
        assert topic.bare.get("mastra:topic:lease:k") == "stranger"

    def test_our_lease_excludes_a_stranger(self, topic: Box) -> None:
        """R1: also after it went from run to run."""
        topic.claim("A", 1)
        topic.claim("B", 2)
        assert not topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS, nx=True)
        topic.settle("A", handled=["m1"], next_owner="A2")
        assert not topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS, nx=True)
        assert topic.bare.get("mastra:topic:lease:k") == "A2"
        topic.settle("A2", handled=["m2"])
        assert topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS, nx=True)

    def test_strangers_scripts_renew_and_free_our_lease(self, topic: Box) -> None:
        """R3: the lease is the string; whoever removes it has freed the key."""
        first = topic.claim("A", 1)
        renew = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end"
        assert topic.bare.eval(renew, 1, "mastra:topic:lease:k", "A", TTL_MS * 2) == 1
        beat = topic.provider.beat("k", "A", TTL_MS)
        assert beat.fence == first.fence
        assert beat.expires_in_ms > TTL_MS
        free = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
        assert topic.bare.eval(free, 1, "mastra:topic:lease:k", "A") == 1
        assert topic.provider.get_lease_owner("k") is None
        assert list(topic.provider.orphans(EVERYTHING)) == []
        topic.pass_time(beat.expires_in_ms + 1_000)  # when it would have ended, and a pause (M6)
        (orphan,) = topic.provider.orphans(EVERYTHING)
        assert (orphan.key, orphan.waiting) == ("k", 1)
        assert 0 <= orphan.age_ms < 1_000
        with pytest.raises(LeaseLost):
            topic.settle("A", handled=["m1"])
        second = topic.claim("B", None)
        assert second.fence > first.fence
        assert ids(second.messages) == ["m1"]

    def test_message_behind_a_foreign_lease_is_promised_and_an_orphan(self, topic: Box) -> None:
        """M3, M8: a stranger does not read our mailbox, so the sweeper must know whom to wake."""
        topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS)
        routed = topic.claim("A", 1, origin=Origin(target="arn:f"))
        assert routed == Routed(owner="stranger", waiting=1)
        assert topic.claim("B", 1) == Duplicate(state="waiting", owner="stranger")
        assert topic.provider.find("k", "m1").state == "waiting"
        assert [(each.id, each.promised) for each in topic.provider.peek("k")] == [("m1", True)]
        assert list(topic.provider.orphans(EVERYTHING)) == []
        topic.pass_time(TTL_MS)
        (orphan,) = topic.provider.orphans(EVERYTHING)
        assert (orphan.key, orphan.target, orphan.waiting) == ("k", "arn:f", 1)
        assert ids(topic.claim("C", None).messages) == ["m1"]

    def test_what_a_dead_owner_was_given_waits_behind_a_foreign_lease(self, topic: Box) -> None:
        """M8: it is nobody's: neither running, nor lost."""
        topic.claim("A", 1)
        topic.pass_time(TTL_MS)
        topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS)
        assert topic.provider.find("k", "m1").state == "waiting"
        assert topic.claim("B", 1) == Duplicate(state="waiting", owner="stranger")

    def test_foreign_owner_that_speaks_to_us_has_a_tenure(self, topic: Box) -> None:
        """R2, R4: with a fence from now on, given messages like any other, and able to settle them."""
        topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS)
        topic.claim("A", 1)
        beat = topic.provider.beat("k", "stranger", TTL_MS)
        assert beat.waiting == 1
        assert ids(topic.provider.take("k", "stranger", TTL_MS)) == ["m1"]
        assert topic.provider.acquire_lease("k", "stranger", TTL_MS).fence == beat.fence
        assert topic.settle("stranger", handled=["m1"]) == Released(remaining=0)
        assert topic.claim("B", 1) == Duplicate(state="handled")

    def test_foreign_lease_is_not_a_tenure(self, topic: Box) -> None:
        """M15, M16: it is not stopped and bears no mark; a hold does not disturb it, and waits for its end."""
        topic.claim("A", 1)
        topic.provider.stop("k", reason="enough")
        topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS)
        assert topic.provider.stop("k") is None
        shown = topic.provider.show("k")
        assert (shown.owner, shown.fence, shown.stop, ids(shown.waiting)) == ("stranger", None, None, ["m1"])
        with pytest.raises(LeaseLost):
            topic.provider.watch("k", "A")
        topic.provider.hold("k", for_ms=2 * TTL_MS)
        assert topic.provider.beat("k", "stranger", TTL_MS).stop is None
        assert topic.provider.watch("k", "stranger") is None
        topic.pass_time(TTL_MS)
        assert topic.provider.show("k").held_until_ms is not None
        assert not topic.provider.acquire_lease("k", "B", TTL_MS).acquired

    @pytest.mark.parametrize("call", ["acquire", "claim", "transfer", "settle", "release", "renew"])
    def test_foreign_owner_may_make_any_call_first(self, topic: Box, call: str) -> None:
        """R2: whichever it is."""
        topic.bare.set("mastra:topic:lease:k", "stranger", px=TTL_MS)
        match call:
            case "acquire":
                assert topic.provider.acquire_lease("k", "stranger", TTL_MS).fence
            case "claim":
                claimed = topic.claim("stranger", 1)
                assert ids(claimed.messages) == ["m1"]
                assert claimed.fence > 1_500_000_000_000_000
                assert topic.provider.beat("k", "stranger", TTL_MS).fence == claimed.fence
            case "transfer":
                assert topic.provider.transfer_lease("k", "stranger", "B", TTL_MS)
                assert topic.provider.get_lease_owner("k") == "B"
            case "settle":
                assert topic.settle("stranger", handled=["m1"]) == Released(remaining=0)
            case "release":
                topic.provider.release_lease("k", "stranger")
                assert topic.provider.get_lease_owner("k") is None
            case _:
                assert topic.provider.renew_lease("k", "stranger", TTL_MS * 2)
                assert topic.bare.pttl(topic.lease) > TTL_MS

    def test_strangers_lease_without_expiry_is_held_and_gets_one_when_renewed(self, topic: Box) -> None:
        """R3: nothing is known of its end; its own owner's calls give it one."""
        topic.bare.set("mastra:topic:lease:k", "stranger")
        refused = topic.provider.acquire_lease("k", "A", TTL_MS)
        assert (refused.acquired, refused.owner, refused.expires_in_ms) == (False, "stranger", None)
        assert topic.claim("A", None) == Busy(owner="stranger", expires_in_ms=None)
        answer = topic.claim("stranger", 1)
        assert answer.expires_in_ms == TTL_MS
        assert topic.bare.pttl(topic.lease) > 0

    def test_strangers_owner_need_not_be_text(self, topic: Box) -> None:
        """R2: it is still named, and still excludes us."""
        topic.client.set("mastra:topic:lease:k", b"\xff\xfe", px=TTL_MS)
        assert topic.provider.get_lease_owner("k") == "\\xff\\xfe"
        assert topic.provider.acquire_lease("k", "A", TTL_MS).owner == "\\xff\\xfe"


class TestNames:
    """Two keys never meet, and one key's records never part."""

    @pytest.mark.parametrize("key", ["k", "{", "}", "{}", "{a}b", "a{}", "%", "%7B", "{%}", "é", "\0", ":lease:", "}{"])
    def test_all_of_a_key_lies_in_one_slot(self, key: str) -> None:
        """One script may touch it in cluster mode."""
        # H24: python-redis-lock, sherlock #31.
        assert len({key_slot(name) for name in Names("incumbent").of(key)}) == 1

    def test_braces_and_percent_are_written_in_codes(self) -> None:
        """Nothing else is, so that a stranger finds the lease under the name that it expects."""
        assert Names("a:b").of("{x}%7B é:/*")[0] == "a:b:lease:%7Bx%7D%257B é:/*".encode()

    def test_key_is_read_back_from_any_of_its_names(self) -> None:
        """And what we would never have written is no key of ours."""
        names = Names("a")
        for key in ("k", "{x}%7B é:/*", "}:mail", ":lease:", "\n"):
            assert names.key_of(names.of(key)[2], "mail") == key
        for name in (b"{a:lease:}:mail", b"{a:lease:%41%}:mail", b"{a:lease:{}:mail", b"{a:lease:\xff}:mail", b"a"):
            assert names.key_of(name, "mail") is None

    @pytest.mark.parametrize(
        "prefix",
        ["", "{", "a}", "a%b", "lease", "a:lease", "lease:a", "a:lease:b", "p" * 257, "\ud800", None, 7, b"a"],
    )
    def test_prefix_with_which_names_could_meet_is_refused(self, prefix: Any) -> None:
        """a + b:lease:c would be a:lease:b + c."""
        # H28: the family of awslabs lock client #93.
        with pytest.raises(ConfigurationError):
            RedisProvider(url="redis://127.0.0.1", key_prefix=prefix)

    def test_prefix_is_matched_to_the_letter_when_keys_are_looked_for(self, valkey_server: ValkeyServer) -> None:
        """M8: though it holds what SCAN takes for a pattern."""
        prefixes = [f"{unique_prefix()}{ending}" for ending in ("", "*", "?", "[a]", "\\", "a", ":b")]
        for prefix in prefixes:
            box = Box(valkey_server.port, prefix)
            box.claim("T", f"of {prefix}", as_ticket=True)
            box.provider.release_lease("k", "T")
        for prefix in prefixes:
            box = Box(valkey_server.port, prefix)
            assert [orphan.key for orphan in box.provider.orphans(EVERYTHING)] == ["k"]
            assert ids(box.provider.peek("k")) == [f"mof {prefix}"]

    def test_names_that_no_key_of_ours_has_are_passed_over(self, box: Box) -> None:
        """M8: whoever put them there."""
        box.bare.zadd(f"{{{box.prefix}:lease:%41%}}:mail", {"x": 1})
        box.bare.zadd(f"{{{box.prefix}:lease:}}:mail", {"x": 1})
        assert list(box.provider.orphans(EVERYTHING)) == []


# --- what stays, and for how long


class TestLives:
    """What is kept for waiting messages does not end, and all else does."""

    def test_all_that_a_waiting_message_needs_has_no_end(self, box: Box) -> None:
        """M3: order, id, meta, body, and the state that says whom to wake."""
        box.claim("A", 1)
        assert {box.bare.pttl(box.of[each]) for each in ("state", "mail")} == {-1}
        box.claim("B", 2)
        assert {box.bare.pttl(box.of[each]) for each in ("state", "mail", "messages")} == {-1}
        box.pass_time(400 * DAY_MS)
        assert ids(box.provider.peek("k")) == ["m1", "m2"]

    def test_nothing_stays_for_ever_of_a_key_that_is_done(self, box: Box) -> None:
        """The fence for a day longer than the lease, the traces for the window; the 17th moves them to their record."""
        for number in range(17):
            box.claim(f"A{number}", number)
            box.settle(f"A{number}", handled=[f"m{number}"])
            kept = {name for name in box.names if box.bare.exists(name)}
            assert kept == {box.of["state"], *([box.of["ended"]] if number == 16 else [])}
            assert DAY_MS - 1_000 <= box.bare.pttl(box.of["state"]) <= DAY_MS
        assert 60 * 60_000 - 1_000 <= box.bare.pttl(box.of["ended"]) <= 60 * 60_000

    def test_hold_of_an_empty_key_lives_as_long_as_it_is_to_last(self, box: Box) -> None:
        """M15: the record and what a search finds; and no longer."""
        box.provider.hold("k", for_ms=10 * DAY_MS)
        for each in ("state", "hold"):
            assert 10 * DAY_MS - 2_000 <= box.bare.pttl(box.of[each]) <= 10 * DAY_MS
        box.provider.hold("k")
        for each in ("state", "hold"):
            assert box.bare.pttl(box.of[each]) > 10_000 * DAY_MS
        box.pass_time(1_000 * DAY_MS)
        assert box.claim("A", None) == Idle()
        assert box.provider.resume("k")
        assert {name for name in box.names if box.bare.exists(name)} == {box.of["state"]}
        assert DAY_MS - 2_000 <= box.bare.pttl(box.of["state"]) <= DAY_MS

    @pytest.mark.parametrize("ends", ["released", "settled", "acquired"])
    def test_hold_outlives_what_a_tenure_does(self, box: Box, ends: str) -> None:
        """M15: whichever script writes the record last."""
        box.provider.acquire_lease("k", "A", TTL_MS)
        box.provider.hold("k", for_ms=10 * DAY_MS, reason="why")
        match ends:
            case "released":
                box.provider.release_lease("k", "A")
            case "settled":
                box.settle("A")
            case _:
                box.provider.acquire_lease("k", "A", TTL_MS)
                box.pass_time(TTL_MS)
        assert box.bare.pttl(box.of["state"]) > 9 * DAY_MS
        box.pass_time(9 * DAY_MS)
        assert box.provider.show("k").held_reason == "why"
        assert not box.provider.acquire_lease("k", "B", TTL_MS).acquired
        assert box.claim("B", 1) == Routed(owner=None, waiting=1)

    def test_results_go_with_the_traces(self, box: Box) -> None:
        """M17: outside the record that every call reads, 256 of them, for the window."""
        policy = Policy(result_bytes=1_000)
        for number in range(260):
            box.claim(f"A{number}", number, policy=policy)
            box.settle(f"A{number}", handled=[f"m{number}"], results={f"m{number}": "x" * 900}, policy=policy)
        assert box.bare.strlen(box.of["state"]) < 300
        kept = [number for number in range(260) if box.provider.find("k", f"m{number}").result]
        assert kept == list(range(4, 260))
        assert 0 < box.bare.pttl(box.of["ended"]) <= 60 * 60_000
        assert box.bare.memory_usage(box.of["ended"], samples=0) < 256 * 1_500

    def test_record_lives_as_long_as_the_traces_in_it(self, box: Box) -> None:
        """M5: a window longer than a day."""
        box.claim("A", 1)
        box.settle("A", handled=["m1"], policy=Policy(window_ms=7 * DAY_MS))
        box.provider.acquire_lease("k", "B", TTL_MS)
        box.provider.release_lease("k", "B")
        assert box.bare.pttl(box.of["state"]) > 7 * DAY_MS - 2_000

    def test_fence_outlives_the_lease_by_a_day(self, box: Box) -> None:
        """R7: and a renewal carries it along."""
        box.provider.acquire_lease("k", "A", 1_000)
        assert DAY_MS <= box.bare.pttl(box.of["state"]) <= DAY_MS + 1_000
        box.provider.renew_lease("k", "A", DAY_MS)
        assert 2 * DAY_MS - 1_000 <= box.bare.pttl(box.of["state"]) <= 2 * DAY_MS

    def test_control_beside_a_lease_keeps_the_fence_as_long(self, box: Box) -> None:
        """R7: a hold, its end, and the end of the last message, by those who know nothing of the lease."""
        box.claim("A", 1)
        box.provider.release_lease("k", "A")
        box.provider.acquire_lease("k", "B", DAY_MS)
        assert box.bare.pttl(box.of["state"]) == -1
        for control in (
            lambda: box.provider.cancel("k", "m1"),
            lambda: box.provider.hold("k", for_ms=60_000),
            lambda: box.provider.resume("k"),
        ):
            control()
            assert 2 * DAY_MS - 5_000 <= box.bare.pttl(box.of["state"]) <= 2 * DAY_MS

    def test_traces_are_never_forgotten_earlier_than_was_said(self, box: Box) -> None:
        """M5: a shorter window of a later settle does not shorten what is there."""
        for number, window_ms in enumerate([DAY_MS] * 17 + [3_600_000] * 17):
            box.claim(f"A{number}", number)
            box.settle(f"A{number}", handled=[f"m{number}"], policy=Policy(window_ms=window_ms))
        assert box.bare.pttl(box.of["ended"]) > DAY_MS - 5_000

    def test_dead_letters_are_kept_for_14_days(self, box: Box) -> None:
        """M6: each of them, however often another one dies; and the state as long, since it says whom to wake."""
        for day, number in enumerate((1, 2, 3)):
            if day:
                box.pass_time(6 * DAY_MS)
            box.claim(f"A{number}", number, policy=ONCE, origin=Origin(target="arn:f"))
            box.settle(f"A{number}", failed=[Failure(id=f"m{number}", error="no")], policy=ONCE)
        assert ids(letter.message for letter in box.provider.dead_letters("k", EVERYTHING)) == ["m1", "m2", "m3"]
        box.pass_time(3 * DAY_MS)
        assert ids(letter.message for letter in box.provider.dead_letters("k", EVERYTHING)) == ["m2", "m3"]
        box.claim("A4", 4, policy=ONCE)
        box.settle("A4", failed=[Failure(id="m4", error="no")], policy=ONCE)
        assert box.bare.zrange(box.of["dead"], 0, -1) == ["m2", "m3", "m4"]
        box.pass_time(13 * DAY_MS)
        assert box.provider.redrive("k", "m4")
        (orphan,) = box.provider.orphans(EVERYTHING)
        assert orphan.target == "arn:f"

    def test_handled_ids_are_bounded(self, box: Box) -> None:
        """M5: a key that is busy for ever does not grow for ever."""
        # H59: refused at the 9,901st id in a trial.
        for number in range(300):
            box.claim(f"A{number}", number)
            box.settle(f"A{number}", handled=[f"m{number}"])
        assert len(box.bare.hkeys(box.of["ended"])) <= 2 * 256 + 4
        assert box.provider.find("k", "m43").state == "unknown"
        assert box.provider.find("k", "m44").state == "handled"

    @pytest.mark.parametrize("runs", [1, 20])
    @pytest.mark.parametrize("ending", ["", "%", "[", "%b", ".-*", "\0"])
    def test_ids_and_owners_that_look_like_patterns_are_found(self, box: Box, ending: str, runs: int) -> None:
        """M3, M5: to the letter, among the newest traces and among the older ones."""
        for number in range(runs):
            box.claim(f"A{number}{ending}", f"{number}{ending}")
            box.settle(f"A{number}{ending}", handled=[f"m{number}{ending}"])
            box.claim(f"F{number}{ending}", "failing")
            box.settle(f"F{number}{ending}", dropped=[Failure(id="mfailing", error="no")])
        assert box.claim("B", f"0{ending}") == Duplicate(state="handled")
        assert box.claim(f"F0{ending}", "failing") == Idle()
        assert box.provider.find("k", f"m0{ending}").state == "handled"
        assert isinstance(box.claim("C", "0"), Duplicate if not ending else Claimed)

    def test_failed_claims_are_bounded(self, box: Box) -> None:
        """M3: so are the traces of claims whose own message failed."""
        for number in range(300):
            box.claim(f"A{number}", 1)
            box.settle(f"A{number}", dropped=[Failure(id="m1", error="no")])
        assert len(box.bare.hkeys(box.of["ended"])) <= 2 * 256 + 4
        assert box.claim("A299", 1) == Idle()

    def test_traces_of_a_redriven_letter_leave_no_hole(self, box: Box) -> None:
        """M5, M6: the bound holds when a letter came back in between."""
        for number in range(300):
            box.claim(f"A{number}", number, policy=ONCE)
            box.settle(f"A{number}", failed=[Failure(id=f"m{number}", error="no")], policy=ONCE)
            if number % 2:
                assert box.provider.redrive("k", f"m{number}")
                box.claim(f"B{number}", None, policy=ONCE)
                box.settle(f"B{number}", handled=[f"m{number}"], policy=ONCE)
        assert box.provider.find("k", "m0").state == "dead"
        assert box.provider.find("k", "m299").state == "handled"
        first, last, count = map(int, box.bare.hget(box.of["ended"], "d").split())
        assert (first, last, count) == (1, 300, 150)

    def test_state_that_was_lost_is_missed(self, box: Box) -> None:
        """R7, M3: should the server evict it, an owner goes on; where messages wait, nothing is guessed."""
        first = box.claim("A", None, origin=None)
        assert first == Idle()
        fence = box.provider.acquire_lease("k", "A", TTL_MS).fence
        box.bare.delete(box.of["state"])
        assert box.provider.beat("k", "A", TTL_MS, fence=fence).fence == fence
        box.provider.release_lease("k", "A")
        box.claim("A2", 1)
        box.bare.delete(box.of["state"])
        before = box.everything()
        for call in (
            lambda: box.provider.beat("k", "A2", TTL_MS),
            lambda: box.claim("C", None),
            lambda: box.provider.acquire_lease("k", "A2", TTL_MS),
        ):
            with pytest.raises(StoredFormatUnknown, match="'state' are missing"):
                call()
        assert box.everything() == before

    def test_fence_is_exact_and_follows_the_servers_clock(self, box: Box) -> None:
        """R7: microseconds, and one more than the last where the clock is behind."""
        # H22: an INCR counter gave one token to two holders; H30: Lua prints 1.76e+15.
        seconds, micros = box.bare.time()
        fence = box.provider.acquire_lease("k", "A", TTL_MS).fence
        assert fence is not None
        assert 0 <= fence - (seconds * 1_000_000 + micros) < 10_000_000
        box.provider.release_lease("k", "A")
        ahead = (seconds + 3_600) * 1_000_000 + 123_457
        edit(box.client, box.of["state"], {3: ahead})
        assert box.provider.acquire_lease("k", "B", TTL_MS).fence == ahead + 1
        assert box.provider.transfer_lease("k", "B", "C", TTL_MS)
        assert box.claim("C", 1).fence == ahead + 2
        box.claim("D", 2)
        settled = box.settle("C", handled=["m1"], next_owner="C2")
        assert isinstance(settled, Continued)
        assert settled.fence == ahead + 3


# --- lost replies and late copies


def dead_lettered(box: Box) -> None:
    """A dead letter."""
    box.claim("A", 1, policy=ONCE)
    box.settle("A", failed=[Failure(id="m1", error="no")], policy=ONCE)


def died(box: Box) -> None:
    """m1 killed its only run."""
    box.claim("A", 1, policy=ONCE)
    box.pass_time(TTL_MS)


def running(box: Box) -> None:
    """A runs m1; m2 waits."""
    box.claim("A", 1)
    box.claim("B", 2)


def held(box: Box) -> None:
    """No caller is granted the key, and m1 waits."""
    box.provider.hold("k", for_ms=TTL_MS)
    box.claim("A", 1)


BURST = Debounce(quiet_ms=TTL_MS, max_ms=TTL_MS)
CALLS: dict[str, tuple[Callable[[Box], object], Callable[[RedisProvider], Any]]] = {
    "acquire": (lambda _: None, lambda p: p.acquire_lease("k", "A", TTL_MS).fence),
    "acquire refused": (running, lambda p: p.acquire_lease("k", "C", TTL_MS).owner),
    "owner": (running, lambda p: p.get_lease_owner("k")),
    "renew": (running, lambda p: p.renew_lease("k", "A", TTL_MS)),
    "release": (running, lambda p: p.release_lease("k", "A")),
    "transfer": (running, lambda p: p.transfer_lease("k", "A", "A2", TTL_MS)),
    "claim": (lambda _: None, lambda p: p.claim("k", "A", TTL_MS, message())),
    "claim routed": (running, lambda p: p.claim("k", "C", TTL_MS, message(3))),
    "claim duplicate": (running, lambda p: p.claim("k", "C", TTL_MS, message(1))),
    "claim as ticket": (lambda _: None, lambda p: p.claim("k", "T", TTL_MS, message(), as_ticket=True)),
    "claim with ticket": (
        lambda box: box.claim("T", 1, as_ticket=True),
        lambda p: p.claim("k", "A", TTL_MS, None, ticket="T"),
    ),
    "claim idle": (lambda _: None, lambda p: p.claim("k", "A", TTL_MS, None)),
    "claim dead": (
        died,
        lambda p: p.claim("k", "C", TTL_MS, message(1), policy=ONCE),
    ),
    "settle": (running, lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"])),
    "settle on": (running, lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")),
    "settle with ticket": (running, lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")),
    "settle dropped": (
        running,
        lambda p: p.settle("k", "A", ttl_ms=TTL_MS, dropped=[Failure(id="m1", error="no")]),
    ),
    "settle failed": (
        running,
        lambda p: p.settle("k", "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no")], next_owner="A2"),
    ),
    "beat": (running, lambda p: p.beat("k", "A", TTL_MS).waiting),
    "take": (running, lambda p: p.take("k", "A", TTL_MS, have=["m1"])),
    "peek": (running, lambda p: p.peek("k")),
    "find": (running, lambda p: p.find("k", "m1").state),
    "claim for later": (running, lambda p: p.claim("k", "C", TTL_MS, message(3), after_ms=TTL_MS)),
    "claim on a held key": (held, lambda p: p.claim("k", "C", TTL_MS, message(3))),
    "claim when quiet": (lambda _: None, lambda p: p.claim("k", "C", TTL_MS, message(3), debounce=BURST)),
    "interrupt": (running, lambda p: p.claim("k", "C", TTL_MS, message(3), interrupt=True)),
    "latest": (running, lambda p: p.claim("k", "C", TTL_MS, message(3), policy=Policy(keep="latest"))),
    "settle stopped": (running, lambda p: p.settle("k", "A", ttl_ms=TTL_MS, stopped=["m1"], next_owner="A2")),
    "settle with a result": (
        running,
        lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": 1}, policy=Policy(result_bytes=9)),
    ),
    "settle and hold": (running, lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], hold_ms=TTL_MS)),
    "note": (running, lambda p: p.beat("k", "A", TTL_MS, note="half").waiting),
    "stop": (running, lambda p: p.stop("k", reason="enough")),
    "watch": (running, lambda p: p.watch("k", "A")),
    "hold": (running, lambda p: p.hold("k", for_ms=TTL_MS)),
    "resume": (held, lambda p: p.resume("k")),
    "cancel": (running, lambda p: p.cancel("k", "m2").state),
    "show": (running, lambda p: p.show("k").owner),
    "dead letters": (dead_lettered, lambda p: list(p.dead_letters("k", 5))),
    "purge": (dead_lettered, lambda p: p.purge("k", "m1")),
    "redrive": (dead_lettered, lambda p: p.redrive("k", "m1")),
}
CALL = pytest.mark.parametrize("name", CALLS)
# What a second claim of a message that it has just dead_lettered finds is its own message, accepted and dead since.
# One that has made the moment earlier at which the key can be granted, or replaced messages, has done so already.
OTHERWISE_THE_SECOND_TIME = ("claim dead", "latest")


def timeless(value: Any) -> Any:
    """An answer, or what is stored, without fences and times."""
    match value:
        case Claimed() | Continued():
            return type(value), value.owner, [timeless(each) for each in value.messages], value.waiting
        case Message():
            return value.id, value.event, value.attempt, value.promised, value.last_error, value.due_at_ms > 0
        case DeadLetter():
            return value.key, timeless(value.message)
        case tuple() | list():
            return [timeless(each) for each in value]
        case int() if type(value) is int and value > 1_000_000_000:
            return "a fence"
        case _:
            return value


def stored(box: Box) -> Any:
    """What is stored of the key, without fences and times."""
    found = records(box.bare, box.names)
    assert not found["faults"]
    state = found["state"] or {}
    for each in found["messages"].values():
        each["stored"], each["due"], each["later"] = None, each["due"] > 0, bool(each.get("later"))
    for name in ("quiet_until", "held_until", "resumed", "held_by", "stopped_by", "stopped", "called_at"):
        if state and name in state["control"]:
            state["control"][name] = bool(state["control"][name])
    timed = ("fence", "since", "until", "left_fence", "kept")
    return (
        found["owner"],
        {name: value for name, value in state.items() if name not in timed},
        list(found["messages"].items()),
        [(each["outcome"], each["by"], each["id"]) for each in found["traces"]],
        found["dead"],
        {name: (each["attempts"], each["error"]) for name, each in found["letters"].items()},
    )


class TestLostReplies:
    """R8: an effect happens once, and the answer is one that some try could truthfully have given."""

    @CALL
    @pytest.mark.parametrize("fault", ["request lost", "reply lost"])
    def test_call_is_repeated_and_takes_effect_once(self, valkey_server: ValkeyServer, name: str, fault: str) -> None:
        """The answer and all that is stored are those of a call that was not disturbed."""
        # H1 to H4: redis-py, python-redis-lock, opentofu #4405, dynamolock #280, KCL #325, tristanls #22.
        before, call = CALLS[name]
        undisturbed, box = Box(valkey_server.port), Box(valkey_server.port)
        before(undisturbed)
        before(box)
        expected = call(undisturbed.provider)
        box.client.sent.clear()
        box.client.faults = [fault]
        answer = call(box.provider)
        assert len(box.client.sent) == 2
        if not (fault == "reply lost" and name in OTHERWISE_THE_SECOND_TIME):
            assert timeless(answer) == timeless(expected)
        assert stored(box) == stored(undisturbed)

    @CALL
    def test_script_that_runs_twice_changes_nothing_more(self, valkey_server: ValkeyServer, name: str) -> None:
        """R8: a request that the network delivers twice, at once."""
        before, call = CALLS[name]
        box = Box(valkey_server.port)
        before(box)
        box.client.sent.clear()
        call(box.provider)
        *_, words = box.client.sent  # the script itself comes after its digest, where the server did not have it yet
        expected = stored(box)
        box.bare.execute_command(*words)
        assert stored(box) == expected

    def test_settle_that_was_overtaken_is_found_by_its_traces(self, box: Box) -> None:
        """R9: its reply was lost, and meanwhile another owner came: what it handled bears its fence."""
        fence = box.claim("A", 1).fence
        box.client.faults = ["reply lost"]
        box.client.meanwhile = lambda: box.other.claim("k", "B", TTL_MS, message(2))
        assert box.settle("A", handled=["m1"], fence=fence) == Released(remaining=1)
        assert box.provider.get_lease_owner("k") == "B"

    @pytest.mark.parametrize("outcome", ["handled", "dropped"])
    def test_settle_that_many_runs_overtook_is_found_by_its_traces(self, box: Box, outcome: str) -> None:
        """R9: its traces have left the state for a record of their own."""

        def overtake() -> None:
            for number in range(2, 40):
                box.other.claim("k", "B", TTL_MS, message(number))
                box.other.settle("k", "B", ttl_ms=TTL_MS, handled=[f"m{number}"])

        told: Any = ["m1"] if outcome == "handled" else [Failure(id="m1", error="no")]
        box.claim("A", 0)
        box.settle("A", handled=["m0"])  # brings the script
        fence = box.claim("A", 1).fence
        box.client.faults = ["reply lost"]
        box.client.meanwhile = overtake
        assert box.settle("A", **{outcome: told}, fence=fence) == Released(remaining=0)
        assert box.bare.exists(box.of["ended"])

    def test_dropped_message_is_evidence_too(self, box: Box) -> None:
        """R9: the trace of a failed claim bears the fence of the run that failed it."""
        fence = box.claim("A", 1).fence
        box.client.faults = ["reply lost"]
        box.client.meanwhile = lambda: box.other.claim("k", "B", TTL_MS, message(1))
        assert box.settle("A", dropped=[Failure(id="m1", error="no")], fence=fence) == Released(remaining=1)

    @pytest.mark.parametrize("call", ["settle", "transfer"])
    def test_repeated_call_without_evidence_does_not_know(self, box: Box, call: str) -> None:
        """R9: LeaseUnavailable, never LeaseLost or False; and nothing was changed."""
        box.claim("A", 1)

        def overtake() -> None:
            box.bare.delete(box.lease)
            box.other.claim("k", "B", TTL_MS, message(2))

        box.client.faults = ["request lost"]
        box.client.meanwhile = overtake
        with pytest.raises(LeaseUnavailable, match="'B'") as unknown:
            CALLS[call][1](box.provider)
        assert unknown.value.key == "k"
        assert box.provider.get_lease_owner("k") == "B"
        assert ids(box.provider.peek("k")) == ["m2", "m1"]

    def test_first_try_that_finds_another_owner_has_lost(self, box: Box) -> None:
        """R9: nothing that it did can have gone before."""
        box.claim("A", 1)
        box.bare.delete(box.lease)
        box.other.claim("k", "B", TTL_MS, message(2))
        with pytest.raises(LeaseLost) as lost:
            box.settle("A", handled=["m1"])
        assert (lost.value.key, lost.value.owner, lost.value.holder) == ("k", "A", "B")
        assert box.provider.transfer_lease("k", "A", "A2", TTL_MS) is False

    def test_client_that_repeats_by_itself_makes_every_try_a_repeated_one(self, valkey_server: ValkeyServer) -> None:
        """R9: as redis-py does unless told otherwise."""
        box = Box(valkey_server.port)
        box.claim("A", 1)
        box.bare.delete(box.lease)
        box.pass_time(TTL_MS + 1_000)
        box.claim("B", None)
        with pytest.raises(LeaseUnavailable):
            box.other.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"])
        with pytest.raises(LeaseUnavailable):
            box.other.transfer_lease("k", "A", "A2", TTL_MS)
        assert box.other.renew_lease("k", "A", TTL_MS) is False
        with pytest.raises(LeaseLost):
            box.other.beat("k", "A", TTL_MS)
        assert isinstance(box.other.settle("k", "B", ttl_ms=TTL_MS, handled=["m1"]), Released)

    def test_deadline_counts_from_the_try_that_answered(self, valkey_server: ValkeyServer) -> None:
        """R12: and never from before it."""
        # H16: ShedLock #132.
        client, clock = Client(valkey_server.port), FakeClock()
        provider = RedisProvider(client=client, key_prefix=unique_prefix(), clock=clock)
        provider.acquire_lease("another", "A", TTL_MS)  # brings the script
        client.faults = ["reply lost"]
        client.meanwhile = lambda: clock.advance(1_000)
        began = clock.now()
        answer = provider.acquire_lease("k", "A", TTL_MS)
        assert answer.deadline is not None
        paused_ms = began.until(clock.now()) - 1_000
        assert 0 < paused_ms < 100
        assert began.until(answer.deadline) <= 1_000 + paused_ms + TTL_MS - 300
        assert began.until(answer.deadline) > TTL_MS
        client.close()

    def test_deadline_is_no_later_than_the_store_says(self, box: Box) -> None:
        """R12: a claim that is answered from what stands may have little left."""
        box.claim("A", 1)
        box.pass_time(20_000)
        again = box.claim("A", 1)
        assert 9_000 < again.expires_in_ms <= 10_000
        time_left_ms = SYSTEM_CLOCK.now().until(again.deadline)
        assert 8_000 < time_left_ms <= 10_000 - 300


class TestLateCopies:
    """A request that is delivered again after other calls went by."""

    def late(self, box: Box, call: Callable[[], object]) -> Callable[[], Any]:
        """Make the call, and return what delivers its request once more."""
        box.client.sent.clear()
        call()
        words = box.client.sent[-1]
        return lambda: box.bare.execute_command(*words)

    def test_late_acquire_at_worst_expires(self, box: Box) -> None:
        """R1: it owns a free key until its ttl has passed; never a held one."""
        # H5.
        again = self.late(box, lambda: box.provider.acquire_lease("k", "A", TTL_MS))
        box.provider.release_lease("k", "A")
        box.other.acquire_lease("k", "B", TTL_MS)
        again()
        assert box.provider.get_lease_owner("k") == "B"
        box.other.release_lease("k", "B")
        again()
        assert box.provider.get_lease_owner("k") == "A"
        box.pass_time(TTL_MS)
        assert box.provider.get_lease_owner("k") is None

    def test_late_renewal_does_not_shorten(self, box: Box) -> None:
        """R4."""
        # H51: found by exploring the rules.
        box.provider.acquire_lease("k", "A", TTL_MS)
        again = self.late(box, lambda: box.provider.renew_lease("k", "A", TTL_MS))
        box.provider.renew_lease("k", "A", 4 * TTL_MS)
        again()
        assert box.bare.pttl(box.lease) > 3 * TTL_MS

    def test_late_release_and_transfer_leave_the_next_owner_alone(self, box: Box) -> None:
        """R5, R6."""
        # H6: ShedLock #74, Terraform, Powertools, dynalock.
        box.provider.acquire_lease("k", "A", TTL_MS)
        transferred = self.late(box, lambda: box.provider.transfer_lease("k", "A", "B", TTL_MS))
        released = self.late(box, lambda: box.provider.release_lease("k", "B"))
        box.other.acquire_lease("k", "C", TTL_MS)
        transferred()
        released()
        assert box.provider.get_lease_owner("k") == "C"

    def test_late_calls_with_a_fence_do_not_act_on_the_owners_next_tenure(self, box: Box) -> None:
        """R2: though an owner should not come twice, the fence tells its tenures apart."""
        # H63: found by exploring the rules.
        fence = box.provider.acquire_lease("k", "A", TTL_MS).fence
        box.provider.release_lease("k", "A")
        box.claim("A", 1)
        for call in (
            lambda: box.provider.beat("k", "A", TTL_MS, fence=fence),
            lambda: box.provider.take("k", "A", TTL_MS, fence=fence),
            lambda: box.settle("A", handled=["m1"], fence=fence),
        ):
            with pytest.raises(LeaseLost, match="later tenure"):
                call()
        assert box.provider.get_lease_owner("k") == "A"
        assert ids(box.provider.peek("k")) == ["m1"]

    def test_late_settle_changes_nothing(self, box: Box) -> None:
        """M2, R3."""
        box.claim("A", 1)
        again = self.late(box, lambda: box.settle("A", failed=[Failure(id="m1", error="no", after_ms=0)]))
        box.claim("B", None)
        again()
        assert [(each.attempt, each.last_error) for each in box.provider.peek("k")] == [(2, "no")]
        assert box.provider.get_lease_owner("k") == "B"

    def test_late_claim_of_a_failed_message_does_not_store_it_again(self, box: Box) -> None:
        """M3: its source was told; a new delivery of the same id is another claim."""
        # H54, H42: found by exploring the rules.
        again = self.late(box, lambda: box.claim("A", 1))
        box.settle("A", dropped=[Failure(id="m1", error="no")])
        assert again() == ["idle -"]
        assert box.bare.get(box.lease) is None
        assert ids(box.claim("B", 1).messages) == ["m1"]

    def test_late_claim_of_a_handled_message_is_answered_as_it_was(self, box: Box) -> None:
        """R8: it was routed, and has been handled since."""
        box.claim("A", 1)
        again = self.late(box, lambda: box.claim("B", 2))
        box.provider.take("k", "A", TTL_MS)
        box.settle("A", handled=["m1", "m2"])
        assert again()[0].startswith("routed")
        assert box.claim("C", 2) == Duplicate(state="handled")

    def test_late_redemption_finds_the_ticket_spent(self, box: Box) -> None:
        """M9."""
        # H53, H62.
        box.claim("T", 1, as_ticket=True)
        again = self.late(box, lambda: box.claim("A", None, ticket="T"))
        released = self.late(box, lambda: box.provider.release_lease("k", "T"))
        box.settle("A", handled=["m1"])
        box.claim("B", 2)
        assert again()[0].startswith("busy")
        released()
        assert box.provider.get_lease_owner("k") == "B"


# --- formats

# What version 1 has written: A runs m1, m2 waits promised, m3 pauses; h was handled, d is dead, f was dropped by F.
FENCE, BORN, FAR = 1_764_430_000_000_000, 1_764_430_000_000, 99_999_999_999_999
ORIGIN = ("app", "arn:f", "r", "l")
HELD: list[Any] = [["m1", [1, "A", False, BORN, 1, 0, False, 3, 0], True, '{"number":1}']]
TRACE_OF_H = ["h", FENCE - 1_000_000_000, FAR, "Z", "h"]
GOLDEN: dict[str, Any] = {
    "state": [
        *(1, "A", FENCE, BORN, BORN + 30_000, 0, "1000,10000", "", "", "", 0, *ORIGIN, 3, 6, 0, FAR),
        *(HELD, [TRACE_OF_H], 1, 1),
    ],
    "mail": {"m1": 3, "m2": 5, "m3": FAR},
    "messages": {
        "mm2": [1, "B", True, BORN + 1, 0, 0, False, 5, 0],
        "bm2": '{"number":"é"}',
        "mm3": [1, "C", True, BORN + 2, 2, FAR, "ValueError: no", 6, 0],
        "bm3": "null",
    },
    "ended": {
        "v": "1",
        "d": "7 7 1",
        "d:7": ["d", FENCE - 999_999_999, FAR, "YY", "d"],
        "id:d": "d:7",
        "f": "2 2 1",
        "f:2": ["f", FENCE - 999_999_998, FAR, "F", "f"],
        "by:F": "f:2",
    },
    "dead": {"d": 4},
    "letters": {"md": [1, "YY", True, 1_764_420_000_000, 5, 0, "KeyError", 1, FAR], "bd": '{"dead":true}'},
}
# The state above, as version 1 has written it, byte for byte.
GOLDEN_STATE = bytes.fromhex(
    "dc001701a141cf000644bd5f618c00cf0000019ad0392f80cf0000019ad039a4b000aa313030302c3130303030a0a0a000a3"
    "617070a561726e3a66a172a16c030600cf00005af3107a3fffd9269194a26d319901a141c2cf0000019ad0392f800100c203"
    "00c3ac7b226e756d626572223a317db995a168cf000644bd23c6c200cf00005af3107a3fffa15aa1680101"
)


# The same with all that control adds: A is marked and has noted something, the key is held and has to be quiet, l and e
# are for later, and there are traces with results and of other ends.
GOLDEN_CONTROL: dict[str, Any] = {
    "state": [
        *(1, "A", FENCE, BORN, BORN + 30_000, 0, "1000,10000", "", "", "", 0, *ORIGIN, 4, 7, 0, FAR),
        *(HELD, [["s", FENCE, FAR, "S", "s"], ["c", FENCE, FAR, "C", "c"], ["r", FENCE, FAR, "U", "u"]], 3, 1),
        [FAR, FOREVER_MS, "why", "enough", "[3,5]", "token", BORN],
    ],
    "mail": {"m1": 3, "m2": 7, "l": FAR, "e": FAR - 1},
    "messages": {
        "mm2": [1, "B", True, BORN + 1, 0, 0, False, 7, 0],
        "bm2": "2",
        "ml": [1, "L", True, BORN + 2, 0, FAR, False, 5, 0, FAR, 5],
        "bl": "3",
        "me": [1, "E", True, BORN + 3, 0, FAR - 1, False, 5, 0, FAR - 1, 6],
        "be": "4",
    },
    "ended": {
        "v": "1",
        "h": "1 2 2",
        "h:1": ["h", FENCE - 1_000_000_000, FAR, "R", "r", '{"total":7}'],
        "h:2": ["h", FENCE - 1_000_000_000, FAR, "T", "t", ""],
        "id:r": "h:1",
        "id:t": "h:2",
    },
}


def lay(box: Box, written: dict[str, Any]) -> None:
    """Write records as they stand."""
    box.bare.set(box.lease, "A", px=TTL_MS)
    for companion, fields in written.items():
        if companion == "state":
            box.client.set(box.of["state"], packed_state(box, fields))
        elif companion in ("mail", "dead"):
            box.bare.zadd(box.of[companion], fields)
        else:
            packed = {name: pack(box.client, each) if isinstance(each, list) else each for name, each in fields.items()}
            box.client.hset(box.of[companion], mapping=packed)


def packed_state(box: Box, fields: list[Any]) -> bytes:
    """Return a state in MessagePack, with what it holds packed once more."""
    held, traces = (b"".join([pack(box.client, fields[19])]), pack(box.client, *fields[20]))
    script = """
        local array = cjson.decode(ARGV[1])
        array[20], array[21] = ARGV[2], ARGV[3]
        return cmsgpack.pack(array)
    """
    found: Any = box.client.eval(script, 0, json.dumps(fields), held, traces)
    assert isinstance(found, bytes)
    return found


class TestFormats:
    """M12: what this version writes is read by it and the next, and nothing unknown is guessed or lost."""

    def test_records_of_version_1_are_read(self, box: Box) -> None:
        """Each part of them."""
        lay(box, GOLDEN)
        assert box.provider.beat("k", "A", TTL_MS).fence == 1_764_430_000_000_000
        assert box.provider.peek("k") == (
            Message(id="m1", event={"number": 1}, attempt=1, stored_at_ms=BORN),
            Message(id="m2", event={"number": "é"}, stored_at_ms=BORN + 1, promised=True),
            Message(
                id="m3",
                event=None,
                attempt=2,
                stored_at_ms=1_764_430_000_002,
                due_at_ms=99_999_999_999_999,
                promised=True,
                last_error="ValueError: no",
            ),
        )
        states = [box.provider.find("k", each).state for each in ("m1", "m2", "m3", "h", "d", "f")]
        assert states == ["running", "waiting", "waiting", "handled", "dead", "unknown"]
        assert box.claim("F", 9) == Idle()
        assert box.provider.claim("k", "Z", TTL_MS, Message(id="h", event=0)) == Routed(owner="A", waiting=3)
        (letter,) = box.provider.dead_letters("k", EVERYTHING)
        assert (letter.message.id, letter.message.event, letter.message.attempt) == ("d", {"dead": True}, 5)
        settled = box.settle("A", handled=["m1"], next_owner="A2")
        assert isinstance(settled, Continued)
        assert ids(settled.messages) == ["m2"]
        box.bare.delete(box.lease)
        box.pass_time(TTL_MS + 1_000)
        (orphan,) = box.provider.orphans(EVERYTHING)
        assert (orphan.target, orphan.waiting) == ("arn:f", 1)

    def test_records_without_pauses_are_read(self, box: Box) -> None:
        """M6: a key whose policy was never noted: what dies with its run is due at once, behind what never ran."""
        lay(box, GOLDEN | {"state": [*GOLDEN["state"][:6], "", *GOLDEN["state"][7:]]})
        box.provider.transfer_lease("k", "A", "B", TTL_MS)
        assert ids(box.provider.peek("k")) == ["m2", "m3", "m1"]
        assert box.provider.beat("k", "B", TTL_MS).waiting == 2

    def test_what_is_written_is_version_1(self, box: Box) -> None:
        """The same fields in each record: a change here is a change of format."""
        dead_lettered(box)
        box.claim("B", 2, origin=Origin(keyspace="app", target="arn:f", request_id="r", log_stream="l"))
        box.settle("B", handled=["m2"])
        box.claim("C", 3)
        box.settle("C", dropped=[Failure(id="m3", error="no")])
        box.claim("D", 4)
        box.claim("E", 5)
        box.settle("D", failed=[Failure(id="m4", error="no")], next_owner="D2")
        state: Any = box.client.get(box.of["state"])
        assert len(unpack(box.client, state)) == len(GOLDEN["state"]) == len(STATE) - 1  # which control adds
        found = records(box.bare, box.names)
        assert not found["faults"]
        assert {name: (each["v"], each["error"]) for name, each in found["messages"].items()} == {
            "m4": (1, "no"),
            "m5": (1, False),
        }
        assert set(box.bare.hkeys(box.of["messages"])) == {"mm4", "bm4"}
        packed: Any = box.client.hget(box.of["messages"], "mm4")
        assert len(unpack(box.client, packed)) == len(META) - 2  # which only messages for later have
        assert [(each["outcome"], each["id"]) for each in found["traces"]] == [("d", "m1"), ("h", "m2"), ("f", "m3")]
        assert set(box.bare.hkeys(box.of["ended"])) == {"v", "h", "f", "d", "d:1", "id:m1"}
        assert set(box.bare.hkeys(box.of["letters"])) == {"mm1", "bm1"}

    def test_state_is_written_byte_for_byte(self, box: Box) -> None:
        """MessagePack has more than one form for a number: this is the one that the scripts write."""
        assert packed_state(box, GOLDEN["state"]) == GOLDEN_STATE
        lay(box, GOLDEN)
        box.provider.release_lease("k", "A")
        box.client.set(box.of["state"], GOLDEN_STATE)
        box.bare.set(box.lease, "A", px=TTL_MS)
        assert box.provider.beat("k", "A", TTL_MS).fence == FENCE

    def test_records_of_control_are_read(self, box: Box) -> None:
        """M14 to M18: what this version writes of them."""
        lay(box, GOLDEN_CONTROL)
        shown = box.provider.show("k")
        assert (shown.held_until_ms, shown.held_reason, shown.quiet_until_ms) == (FOREVER_MS, "why", FAR)
        assert (shown.stop, shown.note) == ("enough", [3, 5])
        assert ids(shown.waiting) == ["e", "l", "m2"]
        found = [box.provider.find("k", each) for each in ("r", "t", "s", "c", "u")]
        assert [each.state for each in found] == ["handled", "handled", "stopped", "cancelled", "superseded"]
        assert [(each.result, each.result_is) for each in found[:3]] == [
            ({"total": 7}, "kept"),
            (None, "too large"),
            (None, "none"),
        ]
        assert box.provider.watch("k", "A", fence=FENCE) == "enough"
        box.provider.release_lease("k", "A")
        shown = box.provider.show("k")
        assert (shown.stop, shown.note, shown.held_reason) == (None, None, "why")
        assert box.provider.resume("k")
        assert box.claim("B", None) == Idle()  # it is not quiet yet

    def test_what_is_written_of_control_is_version_1(self, box: Box) -> None:
        """The same elements in each record, and none for those who use none of it."""
        policy = Policy(result_bytes=9)
        box.claim("A", 1)
        box.claim("B", "late", after_ms=2 * TTL_MS)
        box.claim("C", "early", after_ms=TTL_MS)
        box.claim("D", 2)
        box.provider.stop("k", reason="enough")
        box.provider.beat("k", "A", TTL_MS, note=[3, 5])
        box.provider.cancel("k", "m2")
        state = records(box.bare, box.names)["state"]
        quiet_until, held_until, reason, stop, note, resumed, held_by, stopped_by, stopped, called_at = state[
            "control"
        ].values()
        assert (quiet_until, held_until, reason, stop, note) == (0, 0, "", "enough", "[3,5]")
        assert (resumed, held_by, len(stopped_by), stopped, called_at > BORN) == ("", "", 16, state["fence"], True)
        box.settle("A", handled=["m1"], results={"m1": 7}, policy=policy)
        box.provider.hold("k", for_ms=TTL_MS, reason="why")
        found = records(box.bare, box.names)
        control = found["state"]["control"]
        assert (control["held_reason"], control["stop"], control["note"]) == ("why", False, "")
        assert control["held_until"] > BORN
        assert [(name, each["place"], each["arrival"]) for name, each in found["messages"].items()] == [
            ("mearly", 2, 3),
            ("mlate", 2, 2),
        ]
        assert all(each["later"] == each["due"] for each in found["messages"].values())
        assert [(each["outcome"], each["id"], each.get("result")) for each in found["traces"]] == [
            ("c", "m2", None),
            ("h", "m1", "7"),
        ]
        assert box.bare.get(box.of["hold"]) == ""

    def test_messages_of_one_place_keep_the_order_of_their_due_times(self, box: Box) -> None:
        """M14: three were due long ago, and scripts have written since; their ids have another order."""
        for number, message_id in enumerate(("a", "b", "c")):
            box.claim(f"T{number}", message_id, as_ticket=True, after_ms=(3 - number) * TTL_MS)
        assert {each["place"] for each in records(box.bare, box.names)["messages"].values()} == {1}
        box.pass_time(3 * TTL_MS)
        assert ids(box.claim("A", None).messages) == ["mc"]
        following = box.settle("A", handled=["mc"], next_owner="B")
        assert isinstance(following, Continued)
        assert ids(following.messages) == ["mb"]
        following = box.settle("B", handled=["mb"], next_owner="C")
        assert isinstance(following, Continued)
        assert ids(following.messages) == ["ma"]

    def test_control_leaves_nothing_in_the_record_when_it_is_over(self, box: Box) -> None:
        """So that the next runs take the short way again."""
        box.claim("A", 1)
        box.provider.stop("k")
        box.provider.beat("k", "A", TTL_MS, note="half")
        box.provider.hold("k", for_ms=TTL_MS)
        box.settle("A", handled=["m1"])
        box.claim("B", 2, debounce=BURST)
        box.pass_time(15 * 60_000)  # for so long a repeated stop or hold is known
        box.claim("C", None)
        box.settle("C", handled=["m2"])
        state: Any = box.client.get(box.of["state"])
        assert len(unpack(box.client, state)) == len(GOLDEN["state"])

    def test_unknown_elements_survive(self, box: Box) -> None:
        """In the state, in a message, in a dead letter, in what is redriven; whatever this version does to them."""
        held = [["m1", [*HELD[0][1], 0, 0, "of m1", 7], True, HELD[0][3]]]
        lay(box, GOLDEN | {"state": [*GOLDEN["state"][:19], held, *GOLDEN["state"][20:]]})
        edit(box.client, box.of["state"], {24: "", 25: "of state"})
        box.bare.hset(box.of["ended"], "future", "of traces")
        edit(box.client, box.of["messages"], {10: 0, 11: 0, 12: "of m2", 13: 7}, field="mm2")
        edit(box.client, box.of["letters"], {10: 0, 11: 0, 12: "of d"}, field="md")

        box.provider.beat("k", "A", TTL_MS)
        box.claim("B", 2)
        box.settle("A", failed=[Failure(id="m1", error="no")], next_owner="A2", policy=Policy(max_attempts=3))
        box.settle("A2", failed=[Failure(id="m2", error="no")], policy=ONCE)
        box.provider.redrive("k", "d")

        state: Any = box.client.get(box.of["state"])
        assert unpack(box.client, state)[24:] == ["of state"]
        assert box.bare.hget(box.of["ended"], "future") == "of traces"
        for record, field, expected in (
            ("messages", "mm1", ["of m1", "7"]),
            ("messages", "md", ["of d"]),
            ("letters", "mm2", ["of m2", "7"]),
        ):
            packed: Any = box.client.hget(box.of[record], field)
            assert unpack(box.client, packed)[11:] == expected

    @CALL
    def test_unknown_version_is_refused_by_every_call(self, box: Box, name: str) -> None:
        """Nothing changes; only the lease's owner, a plain string, can still be read."""
        _, call = CALLS[name]
        lay(box, GOLDEN)
        edit(box.client, box.of["state"], {1: 2})
        before = box.everything()
        if name in ("owner", "acquire refused"):
            assert call(box.provider) == "A"
        else:
            with pytest.raises(StoredFormatUnknown, match="'state' has format 2"):
                call(box.provider)
        assert box.everything() == before

    @pytest.mark.parametrize("name", ["claim", "claim routed", "claim idle", "settle many", "find", "purge", "redrive"])
    def test_unknown_version_of_the_traces_is_refused(self, box: Box, name: str) -> None:
        """By every call that reads or writes them, before it has changed anything."""
        lay(box, GOLDEN)
        if name == "claim idle":
            box.bare.delete(box.lease)
        box.bare.hset(box.of["ended"], "v", "2")
        edit(box.client, box.of["state"], {22: 16})
        before = box.everything()
        calls: dict[str, Callable[[], object]] = {
            "settle many": lambda: box.settle("A", handled=["m1"]),
            "find": lambda: box.provider.find("k", "m9"),
            "purge": lambda: box.provider.purge("k", "d"),
            "redrive": lambda: box.provider.redrive("k", "d"),
        }
        with pytest.raises(StoredFormatUnknown, match="'ended' has format 2"):
            calls[name]() if name in calls else CALLS[name][1](box.provider)
        assert box.everything() == before

    @pytest.mark.parametrize("name", ["settle on", "take", "find", "claim duplicate", "claim in block"])
    def test_unknown_version_of_a_message_is_refused(self, box: Box, name: str) -> None:
        """By every call that would read it, before it has changed anything."""
        lay(box, GOLDEN)
        for each in ("mm2", "mm3"):
            edit(box.client, box.of["messages"], {1: 2}, field=each)
        before = box.everything()
        calls: dict[str, Callable[[], object]] = {
            "find": lambda: box.provider.find("k", "m2"),
            "claim duplicate": lambda: box.claim("C", 2),
            "claim in block": lambda: box.settle("A", handled=["m1"], ticket="T", policy=Policy(on_error="block")),
        }
        with pytest.raises(StoredFormatUnknown, match="'messages' has format 2"):
            calls[name]() if name in calls else CALLS[name][1](box.provider)
        assert box.everything() == before

    def test_redrive_into_a_mailbox_that_is_full_keeps_the_letter(self, box: Box) -> None:
        """M7: as many as any key may store."""
        dead_lettered(box)
        for number in range(1_100):
            box.bare.zadd(box.of["mail"], {f"f{number}": number})
        edit(box.client, box.of["state"], {16: 1_100})
        before = box.everything()
        with pytest.raises(MailboxFull, match="is kept"):
            box.provider.redrive("k", "m1")
        assert box.everything() == before

    @pytest.mark.parametrize("name", ["dead letters", "redrive", "purge"])
    def test_unknown_version_of_a_letter_is_refused(self, box: Box, name: str) -> None:
        """It is left for the version that wrote it."""
        dead_lettered(box)
        edit(box.client, box.of["letters"], {1: 2}, field="mm1")
        before = box.everything()
        with pytest.raises(StoredFormatUnknown, match="'letters' has format 2"):
            CALLS[name][1](box.provider)
        assert box.everything() == before

    @pytest.mark.parametrize("letter", [b"\x91\x02", b"", b"{", b"\x91", b"\x91\x01", b"m1", b"\xc1"])
    @pytest.mark.parametrize("key", ["k", None])
    def test_odd_letter_hides_no_other(self, box: Box, key: str | None, letter: bytes) -> None:
        """M12: the others are listed, then it is said which could not be, and why; and claims go on."""
        for number in (1, 2, 3):
            box.claim(f"A{number}", number, policy=ONCE)
            box.settle(f"A{number}", failed=[Failure(id=f"m{number}", error="no")], policy=ONCE)
        box.client.hset(box.of["letters"], "mm1", letter)
        found: list[str] = []
        with pytest.raises(StoredFormatUnknown, match="'m1'") as raised:
            found.extend(each.message.id for each in box.provider.dead_letters(key, EVERYTHING))
        assert found == ["m2", "m3"]
        assert [each.key for each in raised.value.skipped] == ["k"]
        box.claim("A4", 4, policy=ONCE)
        box.settle("A4", failed=[Failure(id="m4", error="no")], policy=ONCE)
        assert box.provider.purge("k", "m4")

    @pytest.mark.parametrize("record", ["lease", *COMPANIONS, "one message"])
    def test_odd_key_hides_no_other(self, box: Box, record: str) -> None:
        """H29, M8: neither its orphans nor its dead letters; all that could not be read is named with its key."""
        for key in ("one", "two", "three"):
            box.provider.claim(key, "A", TTL_MS, message(1), policy=ONCE)
            box.provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no")], policy=ONCE)
            box.provider.claim(key, "T", TTL_MS, message(2), as_ticket=True)
            box.provider.claim(key, "U", TTL_MS, message(3))
            box.provider.release_lease(key, "T")
        names = dict(zip(("lease", *COMPANIONS), map(bytes.decode, Names(box.prefix).of("two")), strict=True))
        if record == "one message":
            box.bare.hset(names["messages"], "mm2", "{")
        else:
            box.bare.delete(names[record])
            box.bare.rpush(names[record], "a list of somebody else's")
        listings: dict[str, Callable[[], Any]] = {
            "orphans": lambda: box.provider.orphans(EVERYTHING),
            "dead letters": lambda: box.provider.dead_letters(None, EVERYTHING),
        }
        read = {
            "orphans": ("lease", "state", "mail", "messages", "one message"),
            "dead letters": ("lease", "state", "mail", "dead", "letters"),  # mail: to see that this is no replica
        }
        for listing, call in listings.items():
            found: list[str] = []
            if record in read[listing]:
                with pytest.raises(StoredFormatUnknown) as raised:
                    found.extend(each.key for each in call())
                assert sorted(found) == ["one", "three"]
                assert {each.key for each in raised.value.skipped} == {"two"}
            else:  # a listing is not stopped by what it need not read
                assert sorted(each.key for each in call()) == ["one", "three", "two"]

    def test_refusal_of_the_server_is_not_an_odd_record(self) -> None:
        """R9: a listing that may not read anything is not an empty list."""
        with servers.valkey() as server:
            box = Box(server.port)
            box.provider.claim("k", "T", TTL_MS, message(), as_ticket=True)
            box.bare.execute_command("ACL", "SETUSER", "small", "on", "nopass", "~*", "+scan", "+evalsha", "+eval")
            provider = RedisProvider(url=f"redis://small:x@127.0.0.1:{server.port}", key_prefix=box.prefix)
            with pytest.raises(LeaseUnavailable, match="ACL"):
                list(provider.orphans(EVERYTHING))
            provider.close()

    def test_message_that_cannot_be_read_hides_no_other_from_a_look(self, box: Box) -> None:
        """M12: what peek can read is in the error."""
        lay(box, GOLDEN)
        edit(box.client, box.of["messages"], {1: 2}, field="mm2")
        with pytest.raises(StoredFormatUnknown, match="'m2'") as raised:
            box.provider.peek("k")
        assert ids(raised.value.readable) == ["m1", "m3"]

    def test_purges_by_two_are_told_apart(self, box: Box) -> None:
        """R8: the reply of the first was lost, and another purged meanwhile; each is told what it did."""
        for number in (1, 2):
            box.claim(f"A{number}", number, policy=ONCE)
            box.settle(f"A{number}", failed=[Failure(id=f"m{number}", error="no")], policy=ONCE)
        others: list[bool] = []
        assert box.other.purge("k", "m9") is False  # brings the script
        box.client.faults = ["reply lost"]
        box.client.meanwhile = lambda: others.extend((box.other.purge("k", "m2"), box.other.purge("k", "m1")))
        assert box.provider.purge("k", "m1") is True
        assert others == [True, False]
        box.client.faults = ["request lost"]
        box.client.meanwhile = lambda: None
        assert box.provider.purge("k", "m1") is False
        assert box.bare.pttl(box.of["ended"]) > 0

    def test_sweeper_gives_the_orphans_it_can_read_and_then_says_which_it_cannot(self, box: Box) -> None:
        """M8, M12: one newer record does not hide the others."""
        for key in ("one", "two", "three"):
            box.provider.claim(key, "T", TTL_MS, message(), as_ticket=True)
            box.provider.release_lease(key, "T")
        edit(box.client, Names(box.prefix).of("two")[1].decode(), {1: 2})
        found: list[Orphan] = []
        with pytest.raises(StoredFormatUnknown, match="'two'"):
            found.extend(box.provider.orphans(EVERYTHING))
        assert [orphan.key for orphan in found] == ["one", "three"]

    @pytest.mark.parametrize("companion", ["state", "mail", "messages"])
    def test_record_with_missing_parts_is_refused(self, box: Box, companion: str) -> None:
        """After an eviction or an edit by hand nothing is guessed."""
        lay(box, GOLDEN)
        box.bare.delete(box.of[companion])
        before = box.everything()
        with pytest.raises(StoredFormatUnknown, match="missing"):
            box.provider.take("k", "A", TTL_MS)
        assert box.everything() == before

    def test_letters_that_are_missing_are_told(self, box: Box) -> None:
        """After an eviction: which, and that they are broken."""
        lay(box, GOLDEN)
        box.bare.delete(box.of["letters"])
        with pytest.raises(StoredFormatUnknown, match="'d' in its record 'letters' is broken"):
            list(box.provider.dead_letters("k", EVERYTHING))

    @pytest.mark.parametrize(
        "body", [b"{", b"\xff\xfe", b"", b"[NaN]", b"[" * 100_000], ids=lambda body: repr(body[:5])
    )
    def test_body_that_somebody_broke_is_buried_as_it_stands(self, box: Box, body: bytes) -> None:
        """M6: byte for byte, and shown as far as it is text; the messages behind it run, two requests later."""
        for number in (1, 2):
            box.provider.claim("k", f"T{number}", TTL_MS, message(number), as_ticket=True)
            box.provider.release_lease("k", f"T{number}")
        box.client.hset(box.of["messages"], "bm1", body)
        box.client.sent.clear()
        answer = box.provider.claim("k", "A", TTL_MS, None)
        assert isinstance(answer, Claimed)
        assert (ids(answer.messages), ids(answer.dead_lettered)) == (["m2"], ["m1"])
        assert [args[0] for args in box.client.sent].count("EVALSHA") == 3
        (letter,) = box.provider.dead_letters("k", EVERYTHING)
        assert letter.message.event == body.decode(errors="backslashreplace")
        assert "cannot be read" in (letter.message.last_error or "")
        assert box.client.hget(box.of["letters"], "bm1") == body

    def test_message_without_its_own_meta_is_refused(self, box: Box) -> None:
        """Though as many are there as there are messages."""
        lay(box, GOLDEN)
        box.bare.hdel(box.of["messages"], "mm2")
        before = box.everything()
        with pytest.raises(StoredFormatUnknown, match="missing"):
            box.provider.take("k", "A", TTL_MS)
        assert box.everything() == before

    def test_message_without_its_body_hides_no_other(self, box: Box) -> None:
        """Where messages are looked at."""
        lay(box, GOLDEN)
        box.bare.hdel(box.of["messages"], "bm2")
        for look in (lambda: box.provider.peek("k"), lambda: box.provider.show("k", events=True)):
            with pytest.raises(StoredFormatUnknown, match="message 'm2'"):
                look()

    @CALL
    @pytest.mark.parametrize("record", ["lease", *COMPANIONS])
    def test_value_of_another_type_is_an_error_and_left_alone(self, box: Box, name: str, record: str) -> None:
        """The message says what stands where. A call that does not need the record is not stopped by it."""
        # H29.
        undisturbed, target = box, box.lease if record == "lease" else box.of[record]
        before_call, call = CALLS[name]
        before_call(undisturbed)
        box.bare.delete(target)
        box.bare.rpush(target, "a list of somebody else's")
        before = box.everything()
        raised: IncumbentError | None = None
        try:
            call(box.provider)
        except (LeaseUnavailable, StoredFormatUnknown) as error:  # the latter where records do not match any more
            raised = error
        if raised is not None:
            assert "another type" in str(raised) or isinstance(raised, StoredFormatUnknown)
            assert raised.key == "k"
            assert box.everything() == before
        assert box.bare.lrange(target, 0, -1) == ["a list of somebody else's"]

    @pytest.mark.parametrize("record", ["lease", *COMPANIONS])
    @pytest.mark.parametrize("each", ALL_CALLS, ids=lambda each: each.name)
    def test_call_that_meets_an_odd_record_changes_nothing(self, box: Box, each: ContractCall, record: str) -> None:
        """M12: every call in each branch answers, or raises an error of this package and leaves all as it was."""
        for step in each.before:
            step(box.provider)
        name = box.lease if record == "lease" else box.of[record]
        box.bare.delete(name)
        box.bare.rpush(name, "a list of another program")
        unchanged_or_answered(box, each.call)

    @pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "0.5"])
    @pytest.mark.parametrize("each", ALL_CALLS, ids=lambda each: each.name)
    def test_call_that_meets_an_odd_score_changes_nothing(self, box: Box, each: ContractCall, score: str) -> None:
        """M12: a moment that is not one."""
        for step in each.before:
            step(box.provider)
        for name in (box.of["mail"], box.of["dead"]):
            for member in box.bare.zrange(name, 0, -1):
                box.bare.zadd(name, {member: score})
        unchanged_or_answered(box, each.call)

    @CALL
    @pytest.mark.parametrize("record", ["lease", "state"])
    def test_value_of_another_type_is_never_overwritten(self, box: Box, name: str, record: str) -> None:
        """By no call: every one reads the lease, and all but two the state."""
        target = box.lease if record == "lease" else box.of[record]
        box.bare.rpush(target, "a list of somebody else's")
        if record == "state" and name == "owner":
            return
        with pytest.raises(LeaseUnavailable, match="another type"):
            CALLS[name][1](box.provider)


# --- requests


class TestRequests:
    """R11, M10: one a call, contended or not."""

    @CALL
    def test_every_call_is_one_request(self, valkey_server: ValkeyServer, name: str) -> None:
        """Counted where the client sends them."""
        before, call = CALLS[name]
        first = Box(valkey_server.port)  # whoever comes first brings the script
        before(first)
        call(first.provider)
        box = Box(valkey_server.port)
        before(box)
        box.client.sent.clear()
        call(box.provider)
        assert [words[0] for words in box.client.sent] == ["EVALSHA"]

    def test_uncontended_run_is_two_requests(self, box: Box) -> None:
        """M10: claim and settle."""
        box.claim("A", 1)  # which brings the scripts, if no other test has
        box.settle("A", handled=["m1"])
        box.client.sent.clear()
        box.claim("B", 2)
        box.settle("B", handled=["m2"])
        assert len(box.client.sent) == 2

    def test_lost_settle_is_one_request(self, box: Box) -> None:
        """R11: the holder is learnt in the same one."""
        box.claim("A", 1)
        box.bare.delete(box.lease)
        box.other.claim("k", "B", TTL_MS, None)
        box.client.sent.clear()
        with pytest.raises(LeaseLost):
            box.settle("A", handled=["m1"])
        assert len(box.client.sent) == 1

    def test_forgotten_script_costs_one_request_once(self) -> None:
        """After a flush, a fail-over, on a new node."""
        # H23: redlock-rb #27, node-redlock #77.
        with servers.valkey() as server:
            box = Box(server.port)
            for expected in (["EVALSHA", "EVAL"], ["EVALSHA"]):
                box.client.sent.clear()
                box.claim("A", 1)
                assert [words[0] for words in box.client.sent] == expected
            box.bare.script_flush()
            box.client.sent.clear()
            assert isinstance(box.settle("A", handled=["m1"]), Released)
            assert [words[0] for words in box.client.sent] == ["EVALSHA", "EVAL"]

    def test_own_client_asks_the_server_about_its_memory_once(self) -> None:
        """Beyond that, and the scripts, it sends nothing: not even to greet."""
        with servers.valkey() as server:
            bare = redis.Redis(port=server.port, decode_responses=True)
            bare.config_resetstat()
            provider = RedisProvider(url=server.url)
            for number in range(5):
                provider.claim(f"k{number}", "A", TTL_MS, message())
                provider.settle(f"k{number}", "A", ttl_ms=TTL_MS, handled=["m1"])
            counts = {name: each["calls"] for name, each in bare.info("commandstats").items()}
            own = {"cmdstat_info", "cmdstat_evalsha", "cmdstat_eval", "cmdstat_hello", "cmdstat_select", "cmdstat_ping"}
            assert {name: counts[name] for name in own & set(counts)} == {
                "cmdstat_info": 1,
                "cmdstat_evalsha": 10,
                "cmdstat_eval": 2,
            }
            assert "cmdstat_client|setinfo" not in counts
            bare.close()
            provider.close()

    def test_cluster_is_asked_once_a_call(self, valkey_cluster: ValkeyServer) -> None:
        """R11: whether it is one is not asked each time."""
        bare = redis.Redis(port=valkey_cluster.port, decode_responses=True)
        provider = RedisProvider(url=f"{valkey_cluster.url}?cluster=true", key_prefix=unique_prefix())
        for _ in range(2):
            bare.config_resetstat()
            for number in range(5):
                provider.claim(f"k{number}", "A", TTL_MS, message())
                provider.settle(f"k{number}", "A", ttl_ms=TTL_MS, handled=["m1"])
            counts = {name: each["calls"] for name, each in bare.info("commandstats").items()}
        asked = {name for name in counts if name.startswith(("cmdstat_cluster", "cmdstat_info", "cmdstat_command"))}
        assert counts["cmdstat_evalsha"] == 10
        assert "cmdstat_eval" not in counts
        assert not asked
        bare.close()
        provider.close()

    def test_sweep_of_many_keys_neither_blocks_nor_repeats(self, box: Box) -> None:
        """M8: SCAN, never KEYS, and one request for each key found."""
        for number in range(30):
            box.other.claim(f"k{number}", "T", TTL_MS, message(), as_ticket=True)
            box.other.release_lease(f"k{number}", "T")
        assert list(box.other.orphans(1))  # whoever comes first brings the script
        found = list(box.provider.orphans(EVERYTHING))
        assert sorted(orphan.key for orphan in found) == sorted(f"k{number}" for number in range(30))
        assert [orphan.age_ms for orphan in found] == sorted((orphan.age_ms for orphan in found), reverse=True)
        commands = [words[0] for words in box.client.sent]
        assert set(commands) == {"SCAN", "EVALSHA"}
        assert commands.count("EVALSHA") == 30

    def test_search_that_takes_too_long_ends_and_goes_on_the_next_time(self, box: Box) -> None:
        """M8: a sweep has time for its wakes, and after a few passes every key was found."""
        for number in range(450):  # with their companions more than one SCAN looks at
            box.other.claim(f"k{number}", "T", TTL_MS, message(), as_ticket=True)
            box.other.release_lease(f"k{number}", "T")
        clock, counts, found = SYSTEM_CLOCK, list[int](), set[str]()
        while len(found) < 450 and len(counts) < 1_000:
            with search_until(clock.now()):
                orphans = [orphan.key for orphan in box.provider.orphans(EVERYTHING)]
            counts.append(len(orphans))
            found.update(orphans)
        assert len(found) == 450
        assert max(counts) < 450
        with search_until(clock.now().plus(60_000)):
            assert len(list(box.provider.orphans(EVERYTHING))) == 450


# --- errors


class Clock(FakeClock):
    """A clock in whose pauses something may happen."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def sleep_ms(self, ms: int) -> None:
        """Pause."""
        self.meanwhile()
        super().sleep_ms(ms)


class Refusing:
    """A client that answers with errors, one for each command, and then with what is free."""

    def __init__(self, *errors: Exception) -> None:
        self.connection_pool = redis.ConnectionPool(retry=Retry(NoBackoff(), 0))
        self.errors = list(errors)
        self.sent = 0

    def execute_command(self, *_args: Any, **_options: Any) -> Any:
        """Raise the next error."""
        self.sent += 1
        if self.errors:
            raise self.errors.pop(0)
        return [b"free"]


TRANSIENT: dict[str, Exception] = {
    "timeout": redis.TimeoutError("timed out"),
    "connection": redis.ConnectionError("refused"),
    "loading": BusyLoadingError("loading the dataset in memory"),
    "trying again": TryAgainError("multiple keys during rehashing of slot"),
    "cluster down": ClusterDownError("the cluster is down"),
    "read only": ReadOnlyError("you can't write against a read only replica", status_code="READONLY"),
    "busy": ResponseError("BUSY Redis is busy running a script"),
    "no replicas": ResponseError("NOREPLICAS Not enough good replicas to write"),
    "socket": OSError("no route"),
}
DEFINITIVE: dict[str, Exception] = {
    "password": AuthenticationError("invalid username-password pair"),
    "permission": NoPermissionError("no permissions", status_code="NOPERM"),
    "type": ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    "type in a script of Redis 6": ResponseError("ERR Error running script (call to f_1): @user_script:1: WRONGTYPE"),
    "memory": ResponseError("OOM command not allowed when used memory > 'maxmemory'"),
    "cluster": MovedError("1234 127.0.0.1:7001"),
    "else": ResponseError("ERR something else"),
}


class Babbling(Client):
    """A client whose server gives answers that no script gives."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Answer every script with a word of its own."""
        return [b"strange"] if str(args[0]).startswith("EVAL") else super().execute_command(*args, **options)


class TestUnexpectedReplies:
    """A reply that no script gives is not taken for another one."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda provider: provider.acquire_lease("k", "a", TTL_MS),
            lambda provider: provider.get_lease_owner("k"),
            lambda provider: provider.transfer_lease("k", "a", "b", TTL_MS),
            lambda provider: provider.claim("k", "a", TTL_MS, message()),
            lambda provider: provider.settle("k", "a", ttl_ms=TTL_MS),
            lambda provider: provider.beat("k", "a", TTL_MS),
            lambda provider: provider.take("k", "a", TTL_MS),
        ],
        ids=["acquire", "owner", "transfer", "claim", "settle", "beat", "take"],
    )
    def test_it_is_no_answer(self, valkey_server: ValkeyServer, call: Callable[[RedisProvider], object]) -> None:
        """The call raises LeaseUnavailable, with the key and what the server said."""
        with Babbling(valkey_server.port) as client:
            provider = RedisProvider(client=client, key_prefix=unique_prefix())
            with pytest.raises(LeaseUnavailable, match=r"'k'.*strange"):
                call(provider)


class TestErrors:
    """R9: not knowing is an error, one error, that says what to do."""

    @pytest.mark.parametrize("name", TRANSIENT)
    def test_transient_error_is_tried_again(self, name: str) -> None:
        """And answered by the second try."""
        # H9: webjobs-sdk #2454, Mastra #21385; H19.
        client: Any = Refusing(TRANSIENT[name])
        assert RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k") is None
        assert client.sent == 2

    @pytest.mark.parametrize("error", [TRANSIENT["trying again"], ClusterError("TTL exhausted.")])
    def test_slot_that_moves_is_waited_for_and_told_of(self, error: Exception) -> None:
        """For as long as the call may take. A cluster's client repeats TRYAGAIN, too, and gives up in other words."""
        client: Any = Refusing(*[error] * 6)
        assert RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k") is None
        assert client.sent == 7
        client = Refusing(*[error] * 1_000)
        with pytest.raises(LeaseUnavailable, match=r"key 'k'.*slot of this key is being moved.*--cluster fix"):
            RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k")
        assert client.sent < 100

    @pytest.mark.parametrize("name", DEFINITIVE)
    def test_definitive_error_is_raised_at_once(self, name: str) -> None:
        """With its cause, the key, and what to do."""
        # H20: an error taken for "nobody" (Mastra #19806).
        client: Any = Refusing(DEFINITIVE[name])
        with pytest.raises(LeaseUnavailable) as error:
            RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k")
        assert client.sent == 1
        assert error.value.key == "k"
        assert error.value.__cause__ is DEFINITIVE[name]
        assert len(str(error.value)) > len(str(DEFINITIVE[name])) + 40

    def test_forgotten_script_that_cannot_be_run_either_is_an_error(self) -> None:
        """NOSCRIPT is no answer."""
        client: Any = Refusing(NoScriptError("no matching script"), ResponseError("ERR no"))
        with pytest.raises(LeaseUnavailable):
            RedisProvider(client=client, clock=FakeClock()).renew_lease("k", "A", TTL_MS)

    def test_node_of_a_cluster_says_how_it_is_to_be_asked(self) -> None:
        """Where cluster=true is missing."""
        client: Any = Refusing(MovedError("1234 127.0.0.1:7001"))
        with pytest.raises(LeaseUnavailable, match="cluster=true"):
            RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k")

    @CALL
    def test_server_that_is_not_there_is_one_clear_error(self, name: str) -> None:
        """Of every call, quickly; never False, None or LeaseLost."""
        provider = RedisProvider(url="redis://127.0.0.1:1", clock=FakeClock())
        with pytest.raises(LeaseUnavailable, match=r"check that the server is up") as error:
            CALLS[name][1](provider)
        assert error.value.key == "k"
        assert isinstance(error.value.__cause__, redis.ConnectionError)

    def test_cluster_that_is_not_there_is_the_same_error(self) -> None:
        """Though its client asks when it is made."""
        provider = RedisProvider(url="redis://127.0.0.1:1?cluster=true", clock=FakeClock())
        with pytest.raises(LeaseUnavailable, match=r"check that the server is up"):
            provider.acquire_lease("k", "A", TTL_MS)
        with pytest.raises(LeaseUnavailable):
            list(provider.orphans(1))

    def test_expired_certificate_is_not_tried_again(self) -> None:
        """It will not become valid, and no option makes it so."""
        error = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
        again, advice = explanations.classify_error(error)
        assert not again
        assert "has expired" in advice
        assert "renew it" in advice

    def test_error_that_the_caller_is_handling_is_not_taken_for_the_servers(self) -> None:
        """What a handler sends where another server's certificate is bad is tried again like any other message."""
        client: Any = redis.Redis()
        tries: list[object] = []

        def fail(*words: object, **_: object) -> Any:
            tries.append(words)
            raise redis.ConnectionError("it broke")

        client.execute_command = fail
        provider = RedisProvider(client=client, clock=FakeClock())
        try:
            raise ssl.SSLCertVerificationError("of another server")  # noqa: TRY301 - so that it is being handled
        except ssl.SSLCertVerificationError:
            with pytest.raises(LeaseUnavailable, match="check that the server is up"):
                provider.acquire_lease("k", "A", TTL_MS)
        assert len(tries) == 3

    def test_server_that_is_no_cluster_says_so(self, valkey_server: ValkeyServer) -> None:
        """Where cluster=true is too much."""
        with pytest.raises(LeaseUnavailable, match="leave cluster=true out"):
            RedisProvider(url=f"{valkey_server.url}?cluster=true").acquire_lease("k", "A", TTL_MS)

    def test_server_that_hangs_is_given_up_in_time(self) -> None:
        """A renewal does not wait longer than the lease lives; and what it did is found when it thaws."""
        # H10: aegra #547, botocore's 60 s.
        with servers.valkey() as server:
            provider = RedisProvider(url=f"{server.url}?socket_timeout=0.1")
            provider.acquire_lease("k", "A", TTL_MS)
            began = SYSTEM_CLOCK.now()
            os.killpg(server.process_group, signal.SIGSTOP)
            try:
                with pytest.raises(LeaseUnavailable) as error:
                    provider.claim("k", "B", TTL_MS, message())
            finally:
                os.killpg(server.process_group, signal.SIGCONT)
            assert began.until(SYSTEM_CLOCK.now()) < 1_500
            assert isinstance(error.value.__cause__, redis.TimeoutError)
            assert provider.claim("k", "B", TTL_MS, message()) == Routed(owner="A", waiting=1)
            provider.close()

    def test_server_that_comes_back_is_used_again(self) -> None:
        """The connections of before are dead, and nobody sees it."""
        with servers.valkey() as first:
            port = first.port
            provider = RedisProvider(url=first.url)
            provider.acquire_lease("k", "A", TTL_MS)
        with servers.valkey(port=port):
            assert provider.get_lease_owner("k") is None
            assert provider.acquire_lease("k", "B", TTL_MS).acquired
            provider.close()

    def test_connection_that_was_closed_while_it_was_idle_costs_no_try(self) -> None:
        """As after a freeze: it is looked at, and made again, before the request is sent."""
        with servers.valkey() as server:
            clock = Clock(lambda: pytest.fail("a second try"))
            provider = RedisProvider(url=server.url, clock=clock)
            provider.acquire_lease("k", "A", TTL_MS)
            with redis.Redis(port=server.port) as bare:
                bare.client_kill_filter(_type="normal", skipme=True)
            clock.advance(60_000)
            assert provider.get_lease_owner("k") == "A"
            provider.close()

    def test_child_process_makes_connections_of_its_own(self, valkey_server: ValkeyServer) -> None:
        """H14: its parent's would mix their answers."""
        name = unique_prefix()
        provider = RedisProvider(url=f"{valkey_server.url}?client_name={name}", key_prefix=name)
        provider.acquire_lease("k", "A", TTL_MS)
        child = os.fork()
        if not child:
            os._exit(0 if provider.get_lease_owner("k") == "A" else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert provider.get_lease_owner("k") == "A"
        with redis.Redis(port=valkey_server.port) as bare:
            assert sum(each["name"] == name for each in bare.client_list()) == 1
        provider.close()

    def test_wrong_password_is_said_at_once_and_kept_to_itself(self) -> None:
        """The message holds neither it nor the URL."""
        with servers.valkey(password="right") as server:
            provider = RedisProvider(url=server.url.replace("right", "wrong-secret"), clock=Clock(pytest.fail))
            with pytest.raises(LeaseUnavailable, match="credentials") as error:
                provider.acquire_lease("k", "A", TTL_MS)
            assert "wrong-secret" not in str(error.value)
            cluster = RedisProvider(url=server.url.replace("right", "wrong-secret") + "?cluster=true")
            with pytest.raises(LeaseUnavailable) as error:
                cluster.acquire_lease("k", "A", TTL_MS)
            assert "wrong-secret" not in str(error.value)
            assert RedisProvider(url=server.url).acquire_lease("k", "A", TTL_MS).acquired

    @pytest.mark.parametrize("cluster", [False, True])
    def test_user_who_may_not_is_told_what_it_takes(self, *, cluster: bool) -> None:
        """And the rights that the advice lists are enough for every call, in cluster mode too."""
        with servers.valkey(cluster=cluster) as server:
            box = Box(server.port, "x")
            box.bare.execute_command("ACL", "SETUSER", "small", "on", "nopass", "+get", "~x:*")
            url = f"redis://small:x@127.0.0.1:{server.port}" + ("?cluster=true" if cluster else "")
            with pytest.raises(LeaseUnavailable, match="ACL") as error:
                RedisProvider(url=url, key_prefix="x").acquire_lease("k", "A", TTL_MS)
            assert "luster mode" not in str(error.value)  # what redis-py makes of it
            rights = str(error.value).partition("ACL (")[2].rstrip(")").replace("<prefix>", "x").split()
            box.bare.execute_command("ACL", "SETUSER", "small", "reset", "on", "nopass", *rights)
            for before, call in CALLS.values():
                box.bare.delete(*box.names)
                before(box)
                provider = RedisProvider(url=url, key_prefix="x")
                call(provider)
                list(provider.orphans(EVERYTHING))
                provider.close()

    def test_database_of_another_number_is_within_the_rights_that_are_named(self) -> None:
        """A URL may end in /1."""
        with servers.valkey() as server:
            Box(server.port).bare.execute_command("ACL", "SETUSER", "u", "on", ">p", *acl_rules("x").split())
            provider = RedisProvider(url=f"redis://u:p@127.0.0.1:{server.port}/1", key_prefix="x")
            assert provider.acquire_lease("k", "A", TTL_MS).acquired
            provider.close()

    def test_slot_that_moves_is_told_and_within_the_rights_that_are_named(self) -> None:
        """Its next node takes an ASKING first. redis-py does not find a node that has no slot yet (R9)."""
        with servers.valkey(cluster=True) as old, servers.valkey(cluster=True) as new:
            clients: list[Any] = [redis.Redis(port=server.port, decode_responses=True) for server in (old, new)]
            before, after = clients
            nodes = {node: node.execute_command("CLUSTER MYID") for node in (before, after)}
            slot = before.execute_command("CLUSTER KEYSLOT", "x:lease:k")
            bus = after.config_get("cluster-port")["cluster-port"]
            after.execute_command("CLUSTER FLUSHSLOTS")
            before.execute_command("CLUSTER MEET", "127.0.0.1", new.port, bus)

            def settled() -> bool:
                known = [str(node.execute_command("CLUSTER NODES")) for node in nodes]
                states = {node.execute_command("CLUSTER INFO")["cluster_state"] for node in nodes}
                return states == {"ok"} and all(name in each for name in nodes.values() for each in known)

            while not settled():
                SYSTEM_CLOCK.sleep_ms(20)
            after.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", nodes[before])
            before.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", nodes[after])
            for node in nodes:
                node.execute_command("ACL", "SETUSER", "u", "on", ">p", *acl_rules("x").split())
            for has_a_slot in (False, True):
                if has_a_slot:
                    for node in (after, before):
                        node.execute_command("CLUSTER SETSLOT", (slot + 1) % 16_384, "NODE", nodes[after])
                provider = RedisProvider(url=f"redis://u:p@127.0.0.1:{old.port}?cluster=true", key_prefix="x")
                with pytest.raises(LeaseUnavailable, match="slot of this key is being moved"):
                    provider.acquire_lease("k", "A", 300)
                provider.close()
            assert after.info("commandstats")["cmdstat_asking"]["calls"] > 0

    def test_rights_that_are_named_are_those_that_are_used(self) -> None:
        """A command that joins a script joins the list, and one that leaves them all leaves it."""
        scripts = (files("incumbent.providers.redis") / "scripts").iterdir()
        called = {
            word.lower()
            for file in scripts
            for word in re.findall(r"(?:call|later|all_of|command =)[( {]+'([A-Z]+)'", file.read_text("utf-8"))
        }
        assert set(SCRIPTS_RUN) == called

    def test_documentation_names_the_rights(self) -> None:
        """Ready to be copied, for the prefix that is there unless another is chosen."""
        page = (Path(__file__).parents[2] / "docs" / "lambda.md").read_text("utf-8")
        (rules,) = re.findall(r"ACL SETUSER \S+ on >PASSWORD (.*?)```", page, re.DOTALL)
        assert rules.split() == acl_rules("incumbent").split()

    def test_full_memory_refuses_new_messages_and_lets_what_runs_finish(self) -> None:
        """R9, M2: nothing is changed by what was refused; beats, takes, settles and releases go on."""
        with servers.valkey() as server:
            box = Box(server.port)
            box.claim("A", 1)
            box.claim("B", 2)
            for name in ("releasing", "moving", "failing"):
                box.provider.claim(name, "A", TTL_MS, message())
            box.bare.config_set("maxmemory", 1)
            before = box.everything()
            for call in (
                lambda: box.claim("C", 3),
                lambda: box.provider.claim("free", "C", TTL_MS, message(3)),
                lambda: box.provider.acquire_lease("free", "C", TTL_MS),
            ):
                with pytest.raises(LeaseUnavailable, match="memory is full"):
                    call()
            assert box.everything() == before
            assert box.bare.exists(*(name.decode() for name in Names(box.prefix).of("free"))) == 0
            assert box.provider.beat("k", "A", TTL_MS).waiting == 1
            assert ids(box.provider.take("k", "A", TTL_MS, have=["m1"])) == ["m2"]
            assert box.settle("A", handled=["m1", "m2"]) == Released(remaining=0)
            box.provider.release_lease("releasing", "A")
            assert box.provider.transfer_lease("moving", "A", "B", TTL_MS)
            assert box.provider.settle(
                "failing", "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no")], next_owner="A2"
            ) == Released(remaining=1)

    def test_former_primary_is_left_for_the_new_one(self) -> None:
        """READONLY: the pooled connections are made anew, and the second try is answered."""
        with servers.valkey() as old, servers.valkey() as new:
            bare: Any = redis.Redis(port=old.port)
            provider = RedisProvider(url=old.url, clock=Clock(lambda: bare.execute_command("REPLICAOF", "NO", "ONE")))
            provider.acquire_lease("k", "A", TTL_MS)
            clients = {each["id"] for each in bare.client_list()}
            bare.execute_command("REPLICAOF", "127.0.0.1", new.port)
            assert provider.renew_lease("k", "A", TTL_MS * 2)
            assert {each["id"] for each in bare.client_list()} != clients
            bare.close()
            provider.close()

    def test_replica_answers_no_call(self) -> None:
        """R9: not even one that changes nothing, since it may be behind."""
        with servers.valkey() as primary, servers.valkey(replica_of=primary) as replica:
            for number, (before, call) in enumerate(CALLS.values()):
                box = Box(primary.port, f"replicated-{number}")
                before(box)
                box.bare.wait(1, 1_000)
                provider = RedisProvider(url=replica.url, key_prefix=box.prefix, clock=FakeClock())
                with pytest.raises(LeaseUnavailable, match="primary"):
                    call(provider)
                provider.close()

    def test_replica_is_no_place_to_write(self) -> None:
        """LeaseUnavailable says what to give instead."""
        with servers.valkey() as primary, servers.valkey(replica_of=primary) as replica:
            provider = RedisProvider(url=replica.url, clock=FakeClock())
            with pytest.raises(LeaseUnavailable, match="primary"):
                provider.acquire_lease("k", "A", TTL_MS)
            provider.close()


class TestEviction:
    """H58: a server that evicts forgets live leases first, since they are what has a TTL."""

    def test_server_that_may_evict_is_warned_of_once(self) -> None:
        """At the first call, naming the policy and what to set."""
        with servers.valkey(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}) as server:
            provider = RedisProvider(url=server.url)
            with pytest.warns(RuntimeWarning, match="volatile-lru.*noeviction"):
                provider.acquire_lease("k", "A", TTL_MS)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                provider.renew_lease("k", "A", TTL_MS)
                injected = redis.Redis(port=server.port)
                RedisProvider(client=injected).renew_lease("k", "A", TTL_MS)
            injected.close()
            provider.close()

    def test_cluster_that_may_evict_is_warned_of(self, valkey_cluster: ValkeyServer) -> None:
        """As any other."""
        bare = redis.Redis(port=valkey_cluster.port)
        bare.config_set("maxmemory", "100mb")
        bare.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.warns(RuntimeWarning, match="allkeys-lru"):
                RedisProvider(url=f"{valkey_cluster.url}?cluster=true").get_lease_owner("k")
        finally:
            bare.config_set("maxmemory-policy", "noeviction")
            bare.config_set("maxmemory", 0)
            bare.close()

    def test_server_that_does_not_say_is_used_without_a_warning(self) -> None:
        """INFO may be forbidden; the call is answered all the same."""
        with servers.valkey(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}) as server:
            bare = redis.Redis(port=server.port)
            bare.acl_setuser("u", enabled=True, nopass=True, commands=["+@all", "-info"], keys=["*"])
            provider = RedisProvider(url=f"redis://u:x@127.0.0.1:{server.port}")
            assert provider.acquire_lease("k", "A", TTL_MS).acquired
            bare.close()
            provider.close()


# --- settings


class TestSettings:
    """A URL or a client, and what each of them means."""

    def test_url_or_client_but_not_both(self, box: Box) -> None:
        """ConfigurationError says so."""
        with pytest.raises(ConfigurationError, match="either"):
            RedisProvider()
        with pytest.raises(ConfigurationError, match="either"):
            RedisProvider(url="redis://127.0.0.1", client=box.client)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "127.0.0.1:6379",
            "http://127.0.0.1",
            "redis://:secret@127.0.0.1:port",
            "redis://:secret/of@127.0.0.1",
            "redis://:secret#of@127.0.0.1",
            "redis://:secret@127.0.0.1?socket_timeout=soon",
            "redis://:secret@127.0.0.1?what=is this",
            "redis://:secret@127.0.0.1?cluster=maybe",
            "redis://:secret@127.0.0.1/3?cluster=true",
            "unix:///run/valkey.sock?cluster=true&password=secret",
            "redis://:secret@127.0.0.1:1,127.0.0.1:2/0",
            "redis://:secret@127.0.0.1:1,,127.0.0.1:2?cluster=true",
            "redis://:secret@127.0.0.1:1,127.0.0.1:port?cluster=true",
            ["redis://:secret@127.0.0.1:1?cluster=true", "redis://127.0.0.1:2?cluster=true"],
            ["redis://:secret@127.0.0.1:1?cluster=true", "rediss://:secret@127.0.0.1:2?cluster=true"],
            ["redis://:secret@[127.0.0.1:1?cluster=true"],
            ["redis://:secret@127.0.0.1", 7],
            [],
            7,
        ],
    )
    def test_url_that_cannot_work_is_refused_before_any_request(self, url: Any) -> None:
        """And its password is not repeated."""
        with pytest.raises(ConfigurationError) as error:
            RedisProvider(url=url)
        assert "secret" not in str(error.value)

    @pytest.mark.parametrize(
        "url",
        [
            "rediss://u,s:p%2Cw@a:1,b,[::1]:3/0?socket_timeout=0.5&cluster=true",
            "rediss://u,s:p%2Cw@a:1, b ,[::1]:3/0?cluster=TRUE&socket_timeout=0.5",
            [f"rediss://u,s:p%2Cw@{place}/0?socket_timeout=0.5&cluster=true" for place in ("a:1", "b", "[::1]:3")],
            tuple(f"rediss://u,s:p%2Cw@{place}/0?socket_timeout=0.5&cluster=true" for place in ("a:1,b", "[::1]:3")),
        ],
    )
    def test_nodes_of_a_cluster_are_listed(self, url: Any) -> None:
        """In one URL, or in several that differ in host and port; the login is that of all."""
        address = read_url(one_url(url))
        assert address.seeds == (("a", 1), ("b", 6379), ("::1", 3))
        assert address.url == "rediss://u,s:p%2Cw@a:1/0?socket_timeout=0.5"
        assert (address.cluster, address.set_wait_ms) == (True, 500)

    @pytest.mark.parametrize(
        "client",
        [
            object(),
            "redis://127.0.0.1",
            {},
            7,
            redis,
            redis.Redis,
            redis.Redis().pipeline(),
            redis.Redis().pubsub(),  # type: ignore[no-untyped-call]
            redis.ConnectionPool(),
            Sentinel([("127.0.0.1", 1)]),  # type: ignore[no-untyped-call]
            valkey.sentinel.Sentinel([("127.0.0.1", 1)]),  # type: ignore[no-untyped-call]
            SimpleNamespace(get_primaries=list),
            redis.asyncio.Redis(),
            redis.asyncio.RedisCluster("127.0.0.1"),
            valkey.Valkey,
            valkey.Valkey().pipeline(),
            valkey.asyncio.Valkey(),
            boto3.client("dynamodb", region_name="eu-central-1"),
            MemoryProvider(),
        ],
        ids=lambda client: f"{type(client).__module__}.{type(client).__name__}",
    )
    def test_client_of_another_kind_is_refused(self, client: Any) -> None:
        """An asyncio client above all, whose answers would be coroutines; a pipeline's would be itself."""
        with pytest.raises(ConfigurationError, match="client is"):
            RedisProvider(client=client)

    @pytest.mark.parametrize("kind", [Sentinel, valkey.sentinel.Sentinel], ids=lambda kind: kind.__module__)
    def test_sentinel_is_refused_with_what_to_give(self, kind: Any) -> None:
        """It finds the client; it does not answer commands itself."""
        with pytest.raises(ConfigurationError, match=r"sentinel\.master_for\(\.\.\.\)"):
            RedisProvider(client=kind([("127.0.0.1", 1)]))

    def test_cluster_client_of_neither_package_is_taken(self) -> None:
        """By its methods; it does not say how long it waits."""
        client: Any = SimpleNamespace(
            execute_command=print, get_primaries=list, nodes_manager=SimpleNamespace(connection_kwargs={})
        )
        RedisProvider(client=client)

    def test_timeout_of_no_handshake_says_nothing_of_tls(self) -> None:
        """A server that is only slow does not make anybody change the URL."""
        again, advice = explanations.classify_error(redis.TimeoutError("Timeout reading from socket"))
        assert again
        assert "did not answer in TLS" not in advice
        assert "did not answer in TLS" not in explanations.classify_error(TimeoutError("timed out"))[1]
        handshake = TimeoutError("_ssl.c:989: The handshake operation timed out")
        assert "did not answer in TLS" in explanations.classify_error(handshake)[1]

    def test_client_of_valkey_is_read_as_one_of_redis(self) -> None:
        """Its waits are compared with the ttl, and where it repeats commands that is known (R9)."""
        slow = RedisProvider(client=valkey.Valkey(socket_timeout=None))
        with pytest.raises(ConfigurationError, match="longer than the lease lives"):
            slow.acquire_lease("k", "A", TTL_MS)
        assert clients.repeats(valkey.Valkey(retry_on_timeout=True))
        assert not clients.repeats(valkey.Valkey())

    @pytest.mark.parametrize("name", VALKEY_ERRORS)
    def test_errors_of_valkey_are_explained_as_those_of_redis(self, name: str) -> None:
        """One by one: `LeaseUnavailable` with the same advice, and the error itself among its causes."""
        kind = getattr(valkey.exceptions, name)
        arguments = ("1 127.0.0.1:7000",) if issubclass(kind, valkey.exceptions.AskError) else ("it broke",)
        raised = kind(*arguments)
        client: Any = valkey.Valkey(socket_timeout=0.1)

        def fail(*_: object, **__: object) -> Any:
            raise raised

        client.execute_command = fail
        provider = RedisProvider(client=client)
        with pytest.raises(LeaseUnavailable) as error:
            provider.acquire_lease("k", "A", TTL_MS)
        twin = getattr(redis.exceptions, name.replace("Valkey", "Redis"), None)
        if twin is not None:
            assert explanations.classify_error(twin(*arguments))[1] in str(error.value)
        causes = [error.value.__cause__, getattr(error.value.__cause__, "__cause__", None)]
        assert raised in causes

    @pytest.mark.parametrize("list_them", [lambda p: list(p.orphans(1)), lambda p: list(p.dead_letters(None, 1))])
    def test_cluster_of_valkey_that_is_down_is_unavailable_to_listings_too(
        self, valkey_cluster: ValkeyServer, list_them: Callable[[RedisProvider], object]
    ) -> None:
        """They look for the cluster's nodes first, which no command of ours does."""
        client: Any = valkey.ValkeyCluster(host="127.0.0.1", port=valkey_cluster.port, socket_timeout=0.1)

        def fail() -> None:
            raise valkey.exceptions.ValkeyClusterException("cannot be connected")

        client.nodes_manager.initialize = fail
        with pytest.raises(LeaseUnavailable, match="check that the server is up"):
            list_them(RedisProvider(client=client))
        client.close()

    def test_nothing_is_asked_before_the_first_call(self) -> None:
        """Not of a cluster either: what is made at import must not connect."""
        # H14.
        RedisProvider(url="redis://127.0.0.1:1")
        RedisProvider(url="rediss://127.0.0.1:1?cluster=true")

    def test_all_abilities_are_found_by_its_methods(self, box: Box) -> None:
        """It leases, stores messages and keeps an archive."""
        assert is_lease_provider(box.provider)
        assert is_mailbox(box.provider)
        assert is_archive(box.provider)

    def test_environment_names_the_server(self, valkey_server: ValkeyServer) -> None:
        """As every provider is found."""
        prefix = unique_prefix()
        provider = from_env(
            {
                "INCUMBENT_PROVIDER": "redis",
                "INCUMBENT_REDIS_URL": valkey_server.url,
                "INCUMBENT_KEY_PREFIX": prefix,
            }
        )
        assert provider.acquire_lease("k", "A", TTL_MS).acquired
        bare = redis.Redis(port=valkey_server.port, decode_responses=True)
        assert bare.get(f"{prefix}:lease:k") == "A"
        bare.close()

    def test_url_with_false_for_cluster_is_a_single_server(self, valkey_server: ValkeyServer) -> None:
        """The parameter is ours, and redis-py never sees it."""
        provider = RedisProvider(url=f"{valkey_server.url}?cluster=false", key_prefix=unique_prefix())
        assert provider.acquire_lease("k", "A", TTL_MS).acquired
        provider.close()

    def test_close_closes_what_is_ours_and_no_more(self, valkey_server: ValkeyServer) -> None:
        """A later call opens it again; an injected client stays the caller's."""
        bare = redis.Redis(port=valkey_server.port, client_name=unique_prefix())

        def mine(name: str) -> int:
            return sum(each["name"] == name for each in bare.client_list())

        name = unique_prefix()
        provider = RedisProvider(url=f"{valkey_server.url}?client_name={name}", key_prefix=name)
        provider.close()
        provider.acquire_lease("k", "A", TTL_MS)
        assert mine(name) == 1
        provider.close()
        give_up = SYSTEM_CLOCK.now().plus(5_000)
        while mine(name) and SYSTEM_CLOCK.now().until(give_up) > 0:  # the server sees it when it looks
            SYSTEM_CLOCK.sleep_ms(1)
        assert mine(name) == 0
        assert provider.get_lease_owner("k") == "A"
        provider.close()
        injected = redis.Redis(port=valkey_server.port, client_name=name)
        provider = RedisProvider(client=injected, key_prefix=name)
        provider.get_lease_owner("k")
        provider.close()
        assert mine(name) == 1
        injected.close()
        bare.close()

    def test_cluster_is_closed_and_opened_again(self, valkey_cluster: ValkeyServer) -> None:
        """As a single server is."""
        provider = RedisProvider(url=f"{valkey_cluster.url}?cluster=true", key_prefix=unique_prefix())
        assert provider.acquire_lease("k", "A", TTL_MS).acquired
        provider.close()
        assert provider.get_lease_owner("k") == "A"
        provider.close()

    def test_clusters_client_may_be_injected_with_any_settings(self, valkey_cluster: ValkeyServer) -> None:
        """It decodes, and it repeats by itself."""
        client = RedisCluster(host="127.0.0.1", port=valkey_cluster.port, decode_responses=True)
        provider = RedisProvider(client=client, key_prefix=unique_prefix())
        answer = provider.claim("k{}", "A", TTL_MS, Message(id="m{}", event=["é"]))
        assert isinstance(answer, Claimed)
        assert answer.messages[0].event == ["é"]
        provider.settle("k{}", "A", ttl_ms=TTL_MS, deferred=["m{}"])
        assert [orphan.key for orphan in provider.orphans(EVERYTHING)] == ["k{}"]
        client.close()

    def test_every_error_is_of_the_tree(self) -> None:
        """So that one except clause catches it."""
        assert issubclass(LeaseUnavailable, IncumbentError)

    def test_fault_of_a_single_servers_client_is_raised_as_it_is(self) -> None:
        """Only redis-py's client of a cluster says by an AttributeError that a slot is moving."""
        client: Any = Refusing(AttributeError("no such attribute"))
        with pytest.raises(AttributeError, match="no such attribute"):
            RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k")
