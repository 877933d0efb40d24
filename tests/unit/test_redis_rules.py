"""The Redis provider beside the pure rules: random walks, in which every answer and all that is stored agree."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from incumbent import rules
from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import COMPANIONS, Names
from incumbent.testing.servers import ValkeyServer
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claimed,
    Continued,
    DeadLetter,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Policy,
    Released,
    Routed,
)
from tests.conformance.test_redis import unique_prefix
from tests.redis_records import pass_key_time, records

WALKS = 250
STEPS = 24
IDS = [f"m{number}" for number in range(4)]

# Time passes in steps of 10 s, and everything ends half-way between two of them: what the server's clock goes on by
# itself during a walk changes nothing.
JUMPS_MS = (10_000, 10_000, 20_000, 40_000, 1_000_000)
TTLS_MS = (15_000, 35_000)
WINDOW_MS = 905_000
POLICIES = [
    Policy(
        max_attempts=attempts, max_pending=pending, pauses_ms=(5_000, 25_000), window_ms=WINDOW_MS, on_error=on_error
    )
    for attempts in (1, 2, 3)
    for pending in (2, 4)
    for on_error in ("skip", "block")
]


class Walk:
    """One key in the store and as the rules have it, step by step, with two providers.

    The second provider's client repeats by itself, so that all that it asks may be a repetition (R9).
    """

    def __init__(self, seed: int, prefix: str, bare: Any, clients: list[Any]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a walk is decided by its number
        self.policy = self.random.choice(POLICIES)
        self.other_policy = self.random.choice(POLICIES)  # of a version that is being deployed
        self.key = f"k{seed}"
        self.names = [name.decode() for name in Names(prefix).of(self.key)]
        self.bare = bare
        self.providers = [RedisProvider(client=client, key_prefix=prefix) for client in clients]
        self.remembered: list[dict[str, int]] = [{} for _ in clients]
        self.state = rules.KeyState()
        self.now = 1_800_000_000_000
        self.fences: dict[int, int] = {}
        self.count = 0
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
            ("claim", "settle", "take", "beat", "acquire", "release", "transfer", "archive", "jump"),
            (30, 24, 8, 4, 4, 3, 5, 12, 10),
        )[0]
        match chosen:
            case "jump":
                self.jump()
            case "archive":
                self.archive(which)
            case _:
                getattr(self, chosen)(which)
        self.compare_stored()

    def jump(self) -> None:
        """Let time pass."""
        ms = self.random.choice(JUMPS_MS)
        self.log.append(f"{ms} ms pass")
        self.now += ms
        pass_key_time(self.bare, self.names, ms)

    def acquire(self, which: int) -> None:
        """R2."""
        owner = self.somebody() if self.random.random() < 0.3 else self.fresh("a")
        ttl_ms = self.random.choice(TTLS_MS)
        self.log.append(f"{which} acquire {owner} {ttl_ms}")
        self.owners.append(owner)
        self.state, expected = rules.acquire(self.state, self.now, owner, ttl_ms)
        answer = self.providers[which].acquire_lease(self.key, owner, ttl_ms)
        if isinstance(expected, rules.Granted):
            self.remembered[which][owner] = expected.fence
        self.compare(answer, expected)

    def beat(self, which: int) -> None:
        """R4."""
        owner, ttl_ms = self.somebody(), self.random.choice(TTLS_MS)
        self.log.append(f"{which} beat {owner} {ttl_ms}")
        fence, real = self.fence(which, owner)
        self.state, expected = rules.renew(self.state, self.now, owner, ttl_ms, fence)
        self.compare(self.ask(which, "beat", owner, ttl_ms, fence=real), expected)
        self.remember(which, owner, expected)

    def take(self, which: int) -> None:
        """M6."""
        owner, ttl_ms, have = self.somebody(), self.random.choice(TTLS_MS), self.some()
        self.log.append(f"{which} take {owner} {ttl_ms} {have}")
        fence, real = self.fence(which, owner)
        self.state, expected = rules.take(self.state, self.now, owner, ttl_ms, fence)
        answer = self.ask(which, "take", owner, ttl_ms, have=have, fence=real)
        if isinstance(expected, rules.Granted):
            self.same([seen(each) for each in answer], [seen(each) for each in expected.given if each.id not in have])
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
        owner, ttl_ms = self.somebody(), self.random.choice(TTLS_MS)
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

    def claim(self, which: int) -> None:
        """M1."""
        owner = self.somebody() if self.random.random() < 0.2 else self.fresh("c")
        ttl_ms, message_id = self.random.choice(TTLS_MS), self.random.choice(IDS)
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
        self.owners.append(owner)
        self.log.append(f"{which} claim {owner} {ttl_ms} {message and message_id} {more}")
        stored = None
        if message is not None:
            body = json.dumps(message.event)
            stored = rules.Stored(id=message_id, body=body, claimed_by=owner, promised=False, stored_ms=self.now)
        before = self.state
        self.state, expected = rules.claim(self.state, self.now, owner, ttl_ms, stored, policy=self.policy, **more)
        answer = self.ask(which, "claim", owner, ttl_ms, message, policy=self.policy, **more)
        if isinstance(expected, rules.Granted):
            self.remembered[which][owner] = expected.fence
        self.compare(answer, expected)
        self.compare_buried(answer, before)

    def settle(self, which: int) -> None:
        """M2, and again as it was."""
        owner, ttl_ms = self.somebody(), self.random.choice(TTLS_MS)
        ends: dict[str, Any] = {"handled": [], "failed": [], "dropped": [], "deferred": []}
        for message_id in self.some():
            end = self.random.choices(tuple(ends), (5, 3, 3, 1))[0]
            after_ms = self.random.choice((None, None, 0, 15_000))
            named = Failure(id=message_id, error=f"é {self.count}", after_ms=after_ms)
            ends[end].append(named if end in ("failed", "dropped") else message_id)
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
            self.log.append(f"{which} settle {owner} {ttl_ms} {ends} {successor}")
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
                **ends,
                **successor,
            )
            answer = self.ask(
                which, "settle", owner, ttl_ms=ttl_ms, policy=self.policy, fence=real, **ends, **successor
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
                self.same(
                    provider.find(self.key, message_id, policy=self.policy),
                    rules.state_of(self.state, message_id, self.now, WINDOW_MS),
                )
            case 3:
                self.log.append("letters")
                letters = provider.dead_letters(self.key, 2)
                self.same([seen(each) for each in letters], [seen(each) for each in self.state.dead[:2]])
            case _:
                self.log.append("look")
                owner = self.state.owner if rules.owned(self.state, self.now) else None
                self.same(provider.get_lease_owner(self.key), owner)
                self.same([seen(each) for each in provider.peek(self.key)], [seen(each) for each in self.state.mail])

    # --- asking and comparing

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
            case rules.Held():
                assert isinstance(answer, Busy) or (isinstance(answer, Acquisition) and not answer.acquired), told
                assert answer.owner == expected.owner, told
            case rules.Accepted():
                assert answer == Routed(owner=expected.owner, waiting=expected.stored), told
            case rules.Known():
                assert answer == Duplicate(state=expected.state, owner=expected.owner), told
            case rules.Freed():
                assert answer == Released(remaining=expected.remaining), told
            case "nothing due":
                assert answer == Idle(), told
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
            self.same(state["target"] or None, self.state.origin and self.state.origin.target)
            end = self.state.tenure_end and (
                self.state.tenure_end.how,
                self.state.tenure_end.owner,
                self.state.tenure_end.successor,
            )
            how = state["left_how"]
            self.same((how, state["left_owner"], state["left_successor"] or None) if how else None, end)
        for outcome in ("handled", "dead", "failed"):
            kept = [trace["by"] + trace["id"] for trace in found["traces"] if trace["outcome"] == outcome[0]]
            young = [
                trace.claimed_by + trace.id
                for trace in self.state.ended
                if trace.outcome == outcome and self.now - trace.at_ms < WINDOW_MS
            ]
            self.same(kept[-len(young) or len(kept) :], young)
        for name, life in zip(("lease", *COMPANIONS), found["lives"], strict=True):
            endless = bool(messages) and name in ("state", "mail", "messages")
            assert life == -2 or (life == -1) == endless, self.told(f"{name} lives for {life} ms", endless)


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
        found = [(orphan.key, orphan.target, orphan.waiting) for orphan in walk.providers[0].orphans(10)]
        ages = [orphan.age_ms for orphan in walk.providers[0].orphans(10)]
        since_ms = rules.orphaned_since(walk.state, walk.now)
        if since_ms is None:
            walk.same(found, [])
            continue
        seen_orphans += 1
        target = walk.state.origin.target if walk.state.origin else None
        walk.same(found, [(walk.key, target, len(rules.due(replace(walk.state, owner=None), walk.now)))])
        assert 0 <= ages[0] - (walk.now - since_ms) < 4_000, walk.told(ages, walk.now - since_ms)
    assert seen_orphans > 3
