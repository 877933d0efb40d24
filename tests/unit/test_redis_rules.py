"""The Redis provider beside the pure rules: random walks, in which every answer and all that is stored agree.

``redis_walks.txt`` has fingerprints of every command that the scripts send on the walks at the last millisecond. After
a change that is meant, ``python -m tests.unit.test_redis_rules`` writes it anew; with the number of a walk it prints
what stands behind its fingerprint, to be compared between two versions.
"""

import hashlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from incumbent import rules
from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import COMPANIONS, Names
from incumbent.providers.shared import kept_results, key_status, status_of, stored_message
from incumbent.testing import servers
from incumbent.testing.redis_time import pass_key_time
from incumbent.testing.servers import ValkeyServer
from incumbent.values import (
    FOREVER_MS,
    Acquisition,
    Beat,
    Busy,
    Claimed,
    Continued,
    DeadLetter,
    Debounce,
    Duplicate,
    Failure,
    Idle,
    KeyStatus,
    Message,
    Origin,
    Policy,
    Released,
    Routed,
    Status,
)
from tests.budgets import budget
from tests.conformance.test_redis import unique_prefix
from tests.redis_records import records

WALKS = budget(110, soak=2_500)
EXACT_WALKS = budget(90, soak=1_500)
STEPS = 24
KEPT = Path(__file__).with_name("redis_walks.txt")
IDS = [f"m{number}" for number in range(4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How time passes in a walk, and how long everything lasts."""

    jumps_ms: tuple[int, ...]
    ttls_ms: tuple[int, ...]
    window_ms: int
    later_ms: tuple[int, ...]
    holds_ms: tuple[int, ...]
    pauses_ms: tuple[int, ...]
    burst: Debounce


# Time passes in steps of 10 s, and everything ends half-way between two of them: what the server's clock goes on by
# itself during a walk changes nothing. No two messages are due at one moment, however many steps lie between them.
BETWEEN = Times(
    jumps_ms=(10_000, 10_000, 20_000, 40_000, 1_000_000),
    ttls_ms=(15_000, 35_000),
    window_ms=905_000,
    later_ms=(15_000, 35_000),
    holds_ms=(17_000, 36_000),
    pauses_ms=(5_000, 25_000),
    burst=Debounce(quiet_ms=13_000, max_ms=21_000),
)
# The clock stands, and everything ends at the very millisecond to which a step leads.
EXACT = Times(
    jumps_ms=(10_000, 10_000, 10_000, 10_000, 20_000, 20_000, 900_000),
    ttls_ms=(10_000, 20_000),
    window_ms=900_000,
    later_ms=(10_000, 20_000),
    holds_ms=(10_000, 20_000),
    pauses_ms=(10_000, 20_000),
    burst=Debounce(quiet_ms=10_000, max_ms=20_000),
)
OUTCOMES = {
    "h": "handled",
    "s": "stopped",
    "c": "cancelled",
    "r": "superseded",
    "d": "dead",
    "f": "failed",
}


def policies(times: Times) -> list[Policy]:
    """Every policy that a walk may have."""
    return [
        Policy(
            max_attempts=attempts,
            max_pending=pending,
            pauses_ms=times.pauses_ms,
            window_ms=times.window_ms,
            on_error=on_error,
            keep=keep,
            result_bytes=12,
        )
        for attempts in (1, 2, 3)
        for pending in (2, 4)
        for on_error in ("skip", "block")
        for keep in ("all", "latest")
    ]


# Notes each command of a script. What is left to live has no milliseconds that the server's clock has gone on by.
_NOTING = b"""
local function call(...)
    redis.call('RPUSH', 'commands', table.concat({ ... }, ' '))
    local answer = redis.call(...)
    return ... == 'PTTL' and answer > 0 and math.ceil(answer / 5000) * 5000 or answer
end
"""


class Standing(redis.Redis):
    """A client for whose scripts the server's clock stands, but for a microsecond at each."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a script as its text, with another clock."""
        if args[0] == "EVALSHA":
            raise NoScriptError
        if args[0] == "EVAL":
            text = args[1].replace(b"local call = redis.call\n", _NOTING)
            text = text.replace(b"local AT_ONCE = 1000", b"local AT_ONCE = 2")  # so that there is more than that
            text = text.replace(b"call('TIME')", b"{ 1800000000, redis.call('INCR', 'microseconds') }")
            args = (args[0], text, *args[2:])
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


class Walk:
    """One key in the store and as the rules have it, step by step, with two providers.

    The second provider's client repeats by itself, so that all that it asks may be a repetition (R9).
    """

    def __init__(self, seed: int, prefix: str, bare: Any, clients: list[Any], times: Times = BETWEEN) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a walk is decided by its number
        self.times = times
        self.policy = self.random.choice(policies(times))
        self.other_policy = self.random.choice(policies(times))  # of a version that is being deployed
        self.key = f"k{seed}"
        self.names = [name.decode() for name in Names(prefix).of(self.key)]
        self.bare = bare
        self.providers = [RedisProvider(client=client, key_prefix=prefix) for client in clients]
        self.remembered: list[dict[str, int]] = [{} for _ in clients]
        self.state = rules.KeyState()
        self.now = 1_800_000_000_000
        self.fences: dict[int, int] = {}
        self.count = 0
        self.controls = seed % 2 == 1 or times is EXACT  # half of the others use control
        self.owners = ["nobody"]
        self.tickets = ["no ticket"]
        self.log: list[str] = [f"walk {seed}: {self.policy}"]

    # --- choosing

    def fresh(self, kind: str) -> str:
        """An owner string that was never used (R2)."""
        self.count += 1
        return f"{kind}{self.count}"

    def somebody(self) -> str:
        """The present owner, mostly; or one that is late."""
        if self.state.owner and self.random.random() < 0.75:
            return self.state.owner
        return self.random.choice(self.owners[-6:])

    def some(self) -> list[str]:
        """Most of what the tenure was given, and sometimes another."""
        chosen = [each.id for each in rules.given(self.state) if self.random.random() < 0.85]
        if self.random.random() < 0.15:
            chosen.append(self.random.choice(IDS))
        return list(dict.fromkeys(chosen))

    # --- steps: each asks the provider, asks the rules, and compares

    def step(self) -> None:
        """Do one thing."""
        which = 0 if self.random.random() < 0.8 else 1
        if self.random.random() < 0.1:
            self.policy, self.other_policy = self.other_policy, self.policy
            self.log.append(f"{self.policy}")
        chosen = self.random.choices(
            ("claim", "settle", "take", "beat", "acquire", "release", "transfer", "archive", "control", "jump"),
            (30, 24, 8, 4, 4, 3, 5, 12, 10 if self.controls else 0, 20 if self.times is EXACT else 10),
        )[0]
        match chosen:
            case "jump":
                self.jump(self.random.choice(self.times.jumps_ms))
            case "archive":
                self.archive(which)
            case _:
                getattr(self, chosen)(which)
        self.compare_stored()

    def jump(self, ms: int) -> None:
        """Let time pass."""
        self.log.append(f"{ms} ms pass")
        self.now += ms
        pass_key_time(self.bare, self.names, ms)

    def acquire(self, which: int) -> None:
        """R2."""
        owner = self.somebody() if self.random.random() < 0.3 else self.fresh("a")
        ttl_ms = self.random.choice(self.times.ttls_ms)
        self.log.append(f"{which} acquire {owner} {ttl_ms}")
        self.owners.append(owner)
        self.state, expected = rules.acquire(self.state, self.now, owner, ttl_ms)
        answer = self.providers[which].acquire_lease(self.key, owner, ttl_ms)
        if isinstance(expected, rules.Granted):
            self.remembered[which][owner] = expected.fence
        self.compare(answer, expected)

    def beat(self, which: int) -> None:
        """R4."""
        owner, ttl_ms = self.somebody(), self.random.choice(self.times.ttls_ms)
        self.log.append(f"{which} beat {owner} {ttl_ms}")
        fence, real = self.fence(which, owner)
        note = f"é {self.count}" if self.controls and self.random.random() < 0.5 else None
        self.state, expected = rules.renew(
            self.state,
            self.now,
            owner,
            ttl_ms,
            fence,
            note=None if note is None else json.dumps(note, ensure_ascii=False),
        )
        self.compare(self.ask(which, "beat", owner, ttl_ms, fence=real, note=note), expected)
        self.remember(which, owner, expected)

    def take(self, which: int) -> None:
        """M6."""
        owner, ttl_ms, have = self.somebody(), self.random.choice(self.times.ttls_ms), self.some()
        self.log.append(f"{which} take {owner} {ttl_ms} {have}")
        fence, real = self.fence(which, owner)
        self.state, expected = rules.take(self.state, self.now, owner, ttl_ms, fence)
        answer = self.ask(which, "take", owner, ttl_ms, have=have, fence=real)
        if isinstance(expected, rules.Granted):
            self.same([seen(each) for each in answer], [seen(each) for each in expected.given if each.id not in have])
            self.same(answer.stop, expected.stop)
        else:
            self.compare(answer, expected)
        self.remember(which, owner, expected)

    def release(self, which: int) -> None:
        """R5."""
        owner = self.somebody()
        self.log.append(f"{which} release {owner}")
        self.state = rules.release(self.state, self.now, owner)
        self.providers[which].release_lease(self.key, owner)

    def transfer(self, which: int) -> None:
        """R6, and again as it was."""
        owner, ttl_ms = self.somebody(), self.random.choice(self.times.ttls_ms)
        successor = self.random.choice(self.owners) if self.random.random() < 0.2 else self.fresh("s")
        if successor == owner:
            return
        self.owners.append(successor)
        for _ in range(self.random.choice((1, 1, 2))):
            self.log.append(f"{which} transfer {owner} {successor} {ttl_ms}")
            self.state, expected = rules.transfer(
                self.state,
                self.now,
                owner,
                successor,
                ttl_ms,
                repeated=which == 1,
            )
            answer = self.ask(which, "transfer_lease", owner, successor, ttl_ms)
            if expected == "unknown":
                assert isinstance(answer, LeaseUnavailable), self.told(answer, expected)
                continue
            assert answer is expected, self.told(answer, expected)
            self.remembered[which].pop(owner, None)

    def claim(self, which: int) -> None:  # noqa: C901 - each way to claim
        """M1."""
        owner = self.somebody() if self.random.random() < 0.2 else self.fresh("c")
        ttl_ms, message_id = self.random.choice(self.times.ttls_ms), self.random.choice(IDS)
        message: Message | None = Message(id=message_id, event={"by": owner, "n": self.count})
        more: dict[str, Any] = {}
        match self.random.randrange(9):
            case 0 | 1:
                message = None
            case 2:
                message, more["ticket"] = None, self.random.choice(self.tickets[-2:])
            case 3:
                more["route"] = False
            case 4:
                more["as_ticket"] = True
                self.tickets.append(owner)
            case 5:
                more["origin"] = Origin(keyspace="walk", target=f"target of {owner}")
            case _:
                pass
        after_ms = 0
        if self.controls and self.random.random() < 0.5:
            match self.random.randrange(4):
                case 0:
                    more["debounce"] = self.times.burst
                case 1:
                    more["interrupt"] = True
                case _:
                    after_ms = self.random.choice(self.times.later_ms)
        self.owners.append(owner)
        self.log.append(f"{which} claim {owner} {ttl_ms} {message and message_id} {after_ms} {more}")
        stored = None
        if message is not None:
            body = json.dumps(message.event)
            stored = rules.Stored(
                id=message_id,
                body=body,
                claimed_by=owner,
                promised=False,
                stored_ms=self.now,
                due_ms=self.now + after_ms if after_ms else 0,
            )
        before = self.state
        self.state, expected = rules.claim(self.state, self.now, owner, ttl_ms, stored, policy=self.policy, **more)
        answer = self.ask(which, "claim", owner, ttl_ms, message, policy=self.policy, after_ms=after_ms, **more)
        if isinstance(expected, rules.Granted):
            self.remembered[which][owner] = expected.fence
        self.compare(answer, expected)
        self.compare_buried(answer, before)

    def settle(self, which: int) -> None:
        """M2, and again as it was."""
        owner, ttl_ms = self.somebody(), self.random.choice(self.times.ttls_ms)
        ends: dict[str, Any] = {"handled": [], "failed": [], "dropped": [], "deferred": [], "stopped": []}
        results: dict[str, Any] = {}
        for message_id in self.some():
            end = self.random.choices(tuple(ends), (5, 3, 3, 1, 1 if self.controls else 0))[0]
            if self.controls and self.random.random() < 0.3:
                results[message_id] = self.random.choice((None, self.count, "x" * 20))
            after_ms = self.random.choice((None, None, 0, self.times.later_ms[0]))
            named = Failure(id=message_id, error=f"é {self.count}", after_ms=after_ms)
            ends[end].append(named if end in ("failed", "dropped") else message_id)
        kept = kept_results(self.key, ends["handled"], results, self.policy)
        hold_ms = self.random.choice(self.times.holds_ms) if self.controls and self.random.random() < 0.1 else 0
        successor: dict[str, Any] = {}
        match self.random.randrange(4):
            case 0:
                pass
            case 1:
                successor = {"ticket": self.fresh("t")}
                self.tickets.append(successor["ticket"])
            case _:
                successor = {"next_owner": self.fresh("n")}
        self.owners.extend(successor.values())
        for _ in range(self.random.choice((1, 1, 2))):
            self.log.append(f"{which} settle {owner} {ttl_ms} {ends} {results} {hold_ms} {successor}")
            fence, real = self.fence(which, owner)
            before = self.state
            self.state, expected = rules.settle(
                self.state,
                self.now,
                owner,
                ttl_ms,
                policy=self.policy,
                fence=fence,
                repeated=which == 1,
                results=kept,
                hold_ms=hold_ms,
                hold_reason=f"for {hold_ms}",
                **ends,
                **successor,
            )
            answer = self.ask(
                which,
                "settle",
                owner,
                ttl_ms=ttl_ms,
                policy=self.policy,
                fence=real,
                results=results,
                hold_ms=hold_ms,
                hold_reason=f"for {hold_ms}",
                **ends,
                **successor,
            )
            self.compare(answer, expected, ticket="ticket" in successor)
            self.compare_buried(answer, before)
            if expected != "unknown":
                self.remembered[which].pop(owner, None)
            if isinstance(expected, rules.Granted):
                self.remembered[which][expected.owner] = expected.fence
            if self.random.random() < 0.3:  # somebody comes in between
                self.compare_stored()
                self.claim(1 - which)

    def archive(self, which: int) -> None:
        """M5, M6, M8: what became of an id; dead letters; orphans; who owns."""
        message_id, provider = self.random.choice(IDS), self.providers[which]
        match self.random.randrange(5):
            case 0:
                self.log.append(f"redrive {message_id}")
                self.state, back = rules.redrive(self.state, self.now, message_id)
                self.compare_archived(which, "redrive", message_id, expected=back is True)
            case 1:
                self.log.append(f"purge {message_id}")
                self.state, expected = rules.purge(self.state, message_id)
                self.same(self.ask(which, "purge", message_id), expected)  # which leaves evidence (R8)
            case 2:
                self.log.append(f"find {message_id}")
                self.same_status(
                    provider.find(self.key, message_id, policy=self.policy),
                    status_of(self.state, message_id, self.now, self.times.window_ms),
                )
            case 3:
                self.log.append("letters")
                letters = provider.dead_letters(self.key, 2)
                self.same(
                    [seen(each) for each in letters], [seen(each) for each in rules.letters(self.state, self.now)[:2]]
                )
            case _:
                self.log.append("look")
                owner = self.state.owner if rules.owned(self.state, self.now) else None
                self.same(provider.get_lease_owner(self.key), owner)
                self.same([seen(each) for each in provider.peek(self.key)], [seen(each) for each in self.state.mail])

    def control(self, which: int) -> None:
        """M14 to M19."""
        message_id, provider = self.random.choice(IDS), self.providers[which]
        match self.random.randrange(6):
            case 0:
                fence = self.random.choice((None, *sorted(self.fences)[-2:]))  # a transfer tells none
                self.log.append(f"stop {fence}")
                self.state, marked = rules.stop(self.state, self.now, fence, f"reason {self.count}")
                real = None if fence is None else self.fences[fence]
                self.same_stop(which, real, marked)
            case 1:
                for_ms = self.random.choice((*self.times.holds_ms, None))
                self.log.append(f"hold {for_ms}")
                until_ms = FOREVER_MS if for_ms is None else self.now + for_ms
                self.state = rules.hold(self.state, self.now, until_ms, f"for {for_ms}")
                provider.hold(self.key, for_ms=for_ms, reason=f"for {for_ms}")
            case 2 | 3:
                self.log.append("resume")
                self.state, held = rules.resume(self.state, self.now)
                try:
                    self.same(provider.resume(self.key), held)
                except LeaseUnavailable:  # it may have been an earlier try of this client (R9)
                    assert which == 1, self.told(None, held)
                    assert not held, self.told(None, held)
            case 4:
                self.log.append(f"cancel {message_id}")
                self.state, _ = rules.cancel(self.state, self.now, message_id, self.times.window_ms)
                self.same_status(
                    provider.cancel(self.key, message_id, policy=self.policy),
                    status_of(self.state, message_id, self.now, self.times.window_ms),
                )
            case _:
                owner = self.somebody()
                self.log.append(f"watch {owner} and show")
                answer = self.ask(which, "watch", owner)
                if rules.owned_by(self.state, owner, self.now):
                    self.same(answer, self.state.stop)
                else:
                    self.compare(answer, "lost")
                shown = provider.show(self.key)
                messages = [stored_message(each, each.body) for each in self.state.mail]
                expected = key_status(self.key, self.state, messages, self.now, events=False)
                for status in (shown, next((each for each in provider.keys(10**6) if each.key == self.key), shown)):
                    self.same(told_of(status), told_of(expected))

    # --- asking and comparing

    def same_status(self, answer: Status, expected: Status) -> None:
        """Equal but for fences, and for moments where the server's clock goes on."""
        self.same(fixed(answer), fixed(expected))
        if self.times is EXACT:
            begun = 1_800_000_000_000 - self.now
            moments = [each and each - begun for each in (answer.stored_at_ms, answer.left_at_ms)]
            self.same(moments, [expected.stored_at_ms, expected.left_at_ms])

    def same_stop(self, which: int, real: int | None, marked: int | None) -> None:
        """Which tenure was marked; a client that repeats its commands need not know, where none is live any more."""
        try:
            answer = self.providers[which].stop(self.key, fence=real, reason=f"reason {self.count}")
        except LeaseUnavailable:
            self.same((which, marked), (1, None))
            return
        self.same(answer is None, marked is None)
        if marked in self.fences:
            self.same(answer, self.fences[marked])

    def same_orphans(self) -> bool:
        """Which they are, whom to wake, how many messages are due, for how long; return whether there is one."""
        orphans = [each for each in self.providers[0].orphans(10**6) if each.key == self.key]
        found = [(orphan.target, orphan.waiting) for orphan in orphans]
        since_ms = rules.orphaned_since(self.state, self.now)
        if since_ms is None:
            self.same(found, [])
            return False
        target = self.state.origin.target if self.state.origin else None
        self.same(found, [(target, len(rules.due(replace(self.state, owner=None), self.now)))])
        age_ms = self.now - since_ms
        assert 0 <= orphans[0].age_ms - age_ms < 4_000, self.told(orphans[0].age_ms, age_ms)
        return True

    def same_letters(self) -> None:
        """Those that are not too old, in order."""
        letters = self.providers[0].dead_letters(self.key, 10)
        self.same([seen(each) for each in letters], [seen(each) for each in rules.letters(self.state, self.now)])

    def same_moment(self, answer_ms: int | None, expected_at_ms: int | None) -> None:
        """In as long a time, but for what the server's clock went on by."""
        expected_ms = None if expected_at_ms is None else max(0, expected_at_ms - self.now)
        self.same(answer_ms is None, expected_ms is None)
        if answer_ms is not None and expected_ms is not None:
            assert abs(answer_ms - expected_ms) < 4_000, self.told(answer_ms, expected_ms)

    def ask(self, which: int, call: str, *args: Any, **more: Any) -> Any:
        """Return the answer, or the error of the tree that is one."""
        try:
            return getattr(self.providers[which], call)(self.key, *args, **more)
        except (LeaseLost, LeaseUnavailable, MailboxFull) as error:
            return error

    def remember(self, which: int, owner: str, expected: object) -> None:
        """A caller remembers the fence of a tenure that it was told of, and forgets it at the end."""
        if isinstance(expected, rules.Granted):
            self.remembered[which][owner] = expected.fence
        else:
            self.remembered[which].pop(owner, None)

    def fence(self, which: int, owner: str) -> tuple[int | None, int | None]:
        """Return the fence that a caller was told of: the rules', and the provider's. A transfer tells none."""
        fence = self.remembered[which].get(owner)
        return (fence, self.fences[fence]) if fence in self.fences else (None, None)

    def told(self, answer: object, expected: object) -> str:
        """All that led here."""
        return "\n".join([*self.log, f"it answered {answer}", f"expected {expected}"])

    def same(self, answer: object, expected: object) -> None:
        """Equal to the letter."""
        assert answer == expected, self.told(answer, expected)

    def compare(self, answer: Any, expected: Any, *, ticket: bool = False) -> None:  # noqa: C901 - one case each
        """The provider's answer says what the rules' does."""
        told = self.told(answer, expected)
        match expected:
            case rules.Granted():
                assert isinstance(answer, Claimed | Continued | Beat | Acquisition), told
                assert answer.fence is not None, told
                assert self.fences.setdefault(expected.fence, answer.fence) == answer.fence, told
                assert [self.fences[each] for each in sorted(self.fences)] == sorted(self.fences.values()), told
                assert answer.expires_in_ms is not None, told
                assert 0 <= expected.expires_ms - self.now - answer.expires_in_ms < 4_000, told
                if isinstance(answer, Claimed | Continued | Beat):
                    assert answer.waiting == expected.waiting, told
                if isinstance(answer, Claimed | Continued):
                    assert answer.owner == expected.owner, told
                    messages = [] if ticket else [seen(each) for each in expected.given]
                    assert [seen(each) for each in answer.messages] == messages, told
                if isinstance(answer, Continued | Beat):
                    assert answer.stop == expected.stop, told
            case rules.Held():
                assert isinstance(answer, Busy) or (isinstance(answer, Acquisition) and not answer.acquired), told
                assert answer.owner == expected.owner, told
            case rules.Accepted():
                routed = Routed(owner=expected.owner, waiting=expected.stored, superseded=expected.superseded)
                assert answer == routed, told
                self.same_moment(answer.due_in_ms, expected.due_ms)
            case rules.Known():
                assert answer == Duplicate(state=expected.state, owner=expected.owner), told
            case rules.Freed():
                assert answer == Released(remaining=expected.remaining, stop=expected.stop), told
                self.same_moment(answer.due_in_ms, expected.due_ms)
            case rules.Nothing():
                assert answer == Idle(), told
                self.same_moment(answer.due_in_ms, expected.due_ms)
            case "full":
                assert isinstance(answer, MailboxFull), told
            case "lost":
                assert isinstance(answer, LeaseLost), told
                assert answer.holder == (self.state.owner if rules.owned(self.state, self.now) else None), told
            case _:
                assert isinstance(answer, LeaseUnavailable), told

    def compare_buried(self, answer: object, before: rules.KeyState) -> None:
        """A claim or settle says what it has moved to the dead letters."""
        if isinstance(answer, Claimed | Continued | Released | Duplicate | Idle):
            expected = rules.dead_lettered(before, self.state)
            self.same([seen(each) for each in answer.dead_lettered], [seen(each) for each in expected])

    def compare_archived(self, which: int, call: str, message_id: str, *, expected: bool) -> None:
        """What is not there may have been removed by an earlier try, if there may have been one (R9)."""
        answer = self.ask(which, call, message_id)
        waiting = [each for each in self.state.mail if each.id == message_id]
        is_dead = any(letter.id == message_id for letter in self.state.dead)
        if which == 1 and not expected and call == "redrive" and not is_dead:
            if waiting and waiting[0].claimed_by == "":  # it was put back: by an earlier try, it must assume
                self.same(answer, expected=True)
            else:
                assert isinstance(answer, LeaseUnavailable), self.told(answer, expected)
        else:
            self.same(answer, expected)

    def compare_stored(self) -> None:
        """All that is stored is what the rules keep, and nothing has a life that it should not have."""
        found = records(self.bare, self.names)
        state, messages = found["state"], found["messages"]
        self.same(found["faults"], [])
        live = rules.owned(self.state, self.now)
        self.same(found["owner"], self.state.owner if live else None)
        self.same(list(messages), [each.id for each in self.state.mail])
        for each in self.state.mail:
            kept = messages[each.id]
            self.same(
                (
                    kept["by"],
                    kept["promised"],
                    kept["attempts"],
                    kept["error"] or None,
                    kept["given"],
                    json.loads(kept["body"]),
                ),
                (
                    each.claimed_by,
                    each.promised,
                    each.attempts,
                    each.error,
                    each.delivered_fence == self.state.fence and each.delivered_fence > 0,
                    json.loads(each.body),
                ),
            )
        self.same(found["dead"], [each.id for each in self.state.dead])
        self.same(set(found["letters"]), set(found["dead"]))
        if state:
            self.same(state["block"], int(self.state.block))
            self.same(state["pauses"], ",".join(map(str, self.state.pauses_ms)))
            live_run = state["control"] if live else {}
            self.same(live_run.get("stop") or None, (live and self.state.stop) or None)
            self.same(live_run.get("note") or None, (live and self.state.note) or None)
            self.same(state["target"] or None, self.state.origin and self.state.origin.target)
            end = self.state.tenure_end and (
                self.state.tenure_end.how,
                self.state.tenure_end.owner,
                self.state.tenure_end.successor,
            )
            how = state["left_how"]
            self.same((how, state["left_owner"], state["left_successor"] or None) if how else None, end)
        for outcomes in (("handled", "stopped", "cancelled", "superseded"), ("dead",), ("failed",)):
            kept = [
                (OUTCOMES[trace["outcome"]], trace["by"], trace["id"], trace.get("result"))
                for trace in found["traces"]
                if OUTCOMES[trace["outcome"]] in outcomes
            ]
            young = [
                (trace.outcome, trace.claimed_by, trace.id, trace.result)
                for trace in self.state.ended
                if trace.outcome in outcomes and self.now - trace.at_ms < self.times.window_ms
            ]
            self.same(kept[-len(young) or len(kept) :], young)
        self.compare_lives(dict(zip(("lease", *COMPANIONS), found["lives"], strict=True)))
        if self.times is EXACT:
            self.compare_times(found)

    def compare_lives(self, lives: dict[str, int]) -> None:
        """What is stored lives as long as the rules need it, but for what the server's clock went on by."""
        state, letters = self.state, self.state.dead
        endless_ms = 10**12  # a hold without an end
        held_ms = min(state.held_until_ms - self.now, endless_ms)
        lease_ms = state.expires_ms - self.now if rules.owned(state, self.now) else 0
        dead_ms = max((each.died_ms for each in letters), default=0) + rules.LETTERS_MS - self.now
        kept_ms = max((each.at_ms for each in state.ended), default=0) + self.times.window_ms - self.now
        expected = {"lease": lease_ms, "hold": held_ms, "dead": dead_ms, "letters": dead_ms}
        if state.mail:
            expected |= dict.fromkeys(("state", "mail", "messages"), -1)
        for name, lives_ms in lives.items():
            life_ms = min(lives_ms, endless_ms)
            told = self.told(f"{name} lives for {life_ms} ms", expected.get(name))
            if name == "state" and not state.mail and life_ms != -2:
                assert life_ms >= max(lease_ms, held_ms, kept_ms) - 4_000, told
            elif name == "ended":
                assert life_ms == -2 or 0 < life_ms <= self.times.window_ms, told
            elif name in expected and (life_ms != -2 or expected[name] > 4_000):
                assert life_ms == expected[name] or -4_000 < life_ms - expected[name] < 4_000, told
            else:
                assert life_ms == -2, told

    def compare_times(self, found: dict[str, Any]) -> None:
        """Every moment that is stored is the rules', to the millisecond: the clock stands."""
        begun = 1_800_000_000_000 - self.now  # time passes since what is stored moves into the past
        for each in self.state.mail:
            kept = found["messages"][each.id]
            self.same((each.id, kept["stored"] - begun), (each.id, each.stored_ms))
            due_ms = kept["due"] and kept["due"] - begun
            near = 4_000 if each.attempts else 0  # after a lease's end, whose clock goes on
            assert abs(due_ms - each.due_ms) <= near, self.told((each.id, due_ms), each.due_ms)
        for letter in self.state.dead:
            kept = found["letters"][letter.id]
            self.same((kept["stored"] - begun, kept["died"] - begun), (letter.stored_ms, letter.died_ms))
        if found["state"]:
            for name, until_ms in (
                ("held_until", self.state.held_until_ms),
                ("quiet_until", self.state.quiet_until_ms),
            ):
                stored_ms = found["state"]["control"].get(name) or 0
                stored_ms -= 0 if stored_ms == FOREVER_MS else begun
                self.same((name, max(stored_ms, self.now)), (name, max(until_ms, self.now)))
            since_ms = found["state"]["since"]
            self.same(since_ms and since_ms - begun, self.state.since_ms)


def fixed(status: Status) -> Status:
    """A status without what differs between the store and the rules."""
    fence, left_at_ms, stored_at_ms = (
        None if each is None else 1 for each in (status.fence, status.left_at_ms, status.stored_at_ms)
    )
    due_at_ms = None if status.due_at_ms is None else int(status.due_at_ms > 0)
    return replace(status, fence=fence, left_at_ms=left_at_ms, stored_at_ms=stored_at_ms, due_at_ms=due_at_ms)


def told_of(status: KeyStatus) -> object:
    """What is known of a key, without times."""
    held = status.held_until_ms is None, status.held_reason, status.quiet_until_ms is None
    messages = [[(each.id, each.attempt, each.promised) for each in some] for some in (status.running, status.waiting)]
    return status.owner, status.fence is None, held, status.stop, status.note, status.target, messages


def seen(value: Any) -> object:
    """A message or a letter, from the provider or from the rules, without its times."""
    match value:
        case Message():
            return value.id, value.event, value.attempt, value.promised, value.last_error, value.due_at_ms > 0
        case rules.Stored():
            return value.id, json.loads(value.body), value.attempts, value.promised, value.error, value.due_ms > 0
        case DeadLetter():
            return seen(value.message)
        case rules.Dead():
            return value.id, json.loads(value.body), value.attempts, True, value.error, False
        case _:
            raise AssertionError(value)


@pytest.fixture(scope="module")
def clients(valkey_server: ValkeyServer) -> Iterator[list[Any]]:
    """A bare client, one that repeats nothing, and one that says it repeats."""
    settings: dict[str, Any] = {"port": valkey_server.port, "protocol": 2, "driver_info": None}
    made = [
        redis.Redis(decode_responses=True, **settings),
        redis.Redis(retry=Retry(NoBackoff(), 0), **settings),
        redis.Redis(retry=Retry(NoBackoff(), 1), **settings),
    ]
    yield made
    for client in made:
        client.close()


@pytest.mark.parametrize("part", range(5))
def test_every_step_of_every_walk_is_the_rules(clients: list[Any], part: int) -> None:
    """Answers, evidence, promises, counts, order, dead letters: whatever happened before."""
    bare, *others = clients
    prefix = unique_prefix()
    for seed in range(part, WALKS, 5):
        walk = Walk(seed, prefix, bare, others)
        for _ in range(STEPS):
            walk.step()


def test_orphans_of_many_walks_are_the_rules(clients: list[Any]) -> None:
    """M8: which keys, whom to wake, how many are due, for how long."""
    bare, *others = clients
    seen_orphans = 0
    for seed in range(60):
        walk = Walk(10_000 + seed, unique_prefix(), bare, others)
        for _ in range(STEPS):
            walk.step()
        seen_orphans += walk.same_orphans()
    assert seen_orphans > 3


@contextmanager
def exact_walks(server: ValkeyServer) -> Iterator[Callable[[int], list[bytes]]]:
    """Yield what walks at the last millisecond, and returns every command of the scripts."""
    settings: dict[str, Any] = {"port": server.port, "protocol": 2, "driver_info": None}
    with (
        closing(redis.Redis(decode_responses=True, **settings)) as bare,
        closing(redis.Redis(**settings)) as raw,
        closing(Standing(retry=Retry(NoBackoff(), 0), **settings)) as once,
        closing(Standing(retry=Retry(NoBackoff(), 1), **settings)) as again,
    ):

        def walked(number: int) -> list[bytes]:
            prefix, tokens = unique_prefix(), map(str, itertools.count())
            walk = Walk(number, prefix, bare, [once, again], EXACT)
            bare.delete("microseconds", "commands")
            with patch("secrets.token_hex", lambda _: next(tokens)):
                for _ in range(STEPS):
                    walk.step()
                    walk.same_orphans()
                for ends_ms in sorted({letter.died_ms + rules.LETTERS_MS for letter in walk.state.dead}):
                    walk.jump(ends_ms - walk.now)
                    walk.same_letters()
                for ms in (rules.LETTERS_MS - 20_000, 10_000, 10_000):
                    walk.jump(ms)
                    walk.same_letters()
            commands: Any = raw.lrange("commands", 0, -1)
            return [command.replace(prefix.encode(), b"") for command in commands]

        yield walked


def line(number: int, commands: list[bytes]) -> str:
    """A walk's number and its fingerprint."""
    return f"{number} {hashlib.sha256(b'|'.join(commands)).hexdigest()[:12]}"


@pytest.mark.parametrize("part", range(5))
def test_every_step_of_every_walk_is_the_rules_at_the_last_millisecond(valkey_server: ValkeyServer, part: int) -> None:
    """What ends, ends at its time: neither a millisecond later nor one earlier. And the scripts send what they sent."""
    kept = KEPT.read_text(encoding="utf-8").splitlines()
    with exact_walks(valkey_server) as walked:
        other = [
            found
            for number in range(20_000 + part, 20_000 + EXACT_WALKS, 5)
            if (found := line(number, walked(number))) not in kept and number < 20_000 + len(kept)
        ]
    assert other == []


def main(words: list[str]) -> None:
    """Write the fingerprints anew, or print what stands behind one."""
    with servers.valkey() as server, exact_walks(server) as walked:
        if words:
            sys.stdout.writelines(f"{command!r}\n" for command in walked(int(words[0])))
        else:
            lines = [f"{line(number, walked(number))}\n" for number in range(20_000, 20_090)]
            KEPT.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
