"""Long random walks over one key, each step answered as the reference answers it.

The reference is the memory provider, which executes `incumbent.rules`. The other tests say what each rule is; these
find the combinations that no test names. A walk is decided by its number alone, so a failing one can be run again.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from incumbent.errors import IncumbentError, LeaseLost
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance.mail import EVERYTHING, MailSubject, same
from incumbent.testing.conformance.subject import ArchiveProvider, ControlProvider, MailboxProvider
from incumbent.values import (
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
    Orphan,
    Policy,
    Released,
    Routed,
    Status,
)

WALKS = 10
STEPS = 61
LOOK_EVERY = 4  # steps; what is stored shows in later answers too
IDS = 8

# Time passes in whole PACE_MS, and no lease ends on one: whatever skew or slack a store has, both sides of every
# comparison are on the same side of every edge. The edges themselves have tests of their own.
PACE_MS = 5_000
TTLS_MS = (22_500, 42_500)
PAUSES_MS = (PACE_MS, 4 * PACE_MS)

ROUGHLY_MS = PACE_MS // 10  # a provider that tries again on a test's clock moves it by its pause

ENDLESS_MS = 15 * 86_400_000  # or more: a hold without an end

LATE_MS = 10 * PACE_MS  # a copy of a call comes late, but not later than this

MAILBOX_STEPS = {
    "claim": 8,
    "claim_again": 2,
    "settle": 5,
    "take": 2,
    "beat": 1,
    "look": 2,
    "acquire": 1,
    "renew": 1,
    "release": 1,
    "transfer": 1,
}
ARCHIVE_STEPS = {
    "claim": 8,
    "claim_again": 2,
    "settle": 6,
    "take": 1,
    "release": 1,
    "look": 1,
    "find": 3,
    "redrive": 4,
    "purge": 1,
}
CONTROL_STEPS = {
    "claim": 8,
    "claim_again": 1,
    "settle": 6,
    "take": 1,
    "beat": 2,
    "release": 1,
    "transfer": 1,
    "look": 2,
    "find": 2,
    "stop": 2,
    "watch": 1,
    "hold": 1,
    "resume": 2,
    "cancel": 2,
    "show": 3,
}
OFF_PACE_MS = (PACE_MS * 3 // 2, PACE_MS * 7 // 2)  # of what ends by itself: never when a step of time ends
CLAIMS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"interrupt": True},
    {"after_ms": OFF_PACE_MS[0]},
    {"after_ms": OFF_PACE_MS[1]},
    {"debounce": Debounce(quiet_ms=OFF_PACE_MS[0], max_ms=OFF_PACE_MS[1])},
)

Step = Callable[[Any], object]


@dataclass
class Walk:
    """What a walk knows of its key: enough to make calls that matter, and some that come late."""

    key: str
    random: random.Random
    policy: Policy
    owner: str = "gone"
    past: list[str] = field(default_factory=lambda: ["gone"])
    tickets: list[str] = field(default_factory=lambda: ["no ticket"])
    given: list[str] = field(default_factory=list)
    claims: list[tuple[str, Step]] = field(default_factory=list)
    names: int = 0
    controls: bool = False

    def fresh(self, kind: str) -> str:
        """An owner string that was never used: it is good for one tenure (R2)."""
        self.names += 1
        return f"{kind}{self.names}"

    def any_owner(self) -> str:
        """The present owner, mostly; else one that is late."""
        return self.owner if self.random.random() < 0.8 else self.random.choice(self.past)  # noqa: PLR2004

    def some_ids(self) -> list[str]:
        """What the owner was given, mostly, in any order; and perhaps another."""
        chosen = [each for each in self.given if self.random.random() < 0.9]  # noqa: PLR2004
        if self.random.random() < 0.2:  # noqa: PLR2004
            chosen.append(f"m{self.random.randrange(IDS)}")
        self.random.shuffle(chosen)
        return list(dict.fromkeys(chosen))

    def ttl_ms(self) -> int:
        """One of two: the other may be shorter than what is left."""
        return self.random.choice(TTLS_MS)

    # --- steps: each returns its name and the call

    def acquire(self) -> tuple[str, Step]:
        """By a stranger, or by the owner again."""
        owner = self.owner if self.owner != "gone" and self.random.random() < 0.3 else self.fresh("acquirer")  # noqa: PLR2004
        ttl_ms = self.ttl_ms()
        return f"acquire {owner} {ttl_ms}", lambda p: p.acquire_lease(self.key, owner, ttl_ms)

    def renew(self) -> tuple[str, Step]:
        """By an owner, present or past."""
        owner, ttl_ms = self.any_owner(), self.ttl_ms()
        return f"renew {owner} {ttl_ms}", lambda p: p.renew_lease(self.key, owner, ttl_ms)

    def release(self) -> tuple[str, Step]:
        """By an owner, present or past."""
        owner = self.any_owner()
        return f"release {owner}", lambda p: p.release_lease(self.key, owner)

    def transfer(self) -> tuple[str, Step]:
        """By an owner, present or past, to a new one."""
        owner, ttl_ms, successor = self.any_owner(), self.ttl_ms(), self.fresh("successor")

        def step(provider: MailboxProvider) -> bool:
            moved = provider.transfer_lease(self.key, owner, successor, ttl_ms)
            if moved:
                self.grant(successor)
            return moved

        return f"transfer {owner} {successor} {ttl_ms}", step

    def claim(self) -> tuple[str, Step]:
        """With a message or without, by a stranger or by the owner again, as a ticket or with one."""
        owner = self.owner if self.owner != "gone" and self.random.random() < 0.15 else self.fresh("claimer")  # noqa: PLR2004
        ttl_ms, number = self.ttl_ms(), self.random.randrange(IDS)
        event = {"number": number, "by": owner, "filling": "x" * self.random.choice((0, 0, 0, 2_500))}
        message: Message | None = Message(id=f"m{number}", event=event)
        more: dict[str, Any] = {"policy": self.policy}
        match self.random.randrange(8):
            case 0:
                message = None
            case 1:
                message, more["ticket"] = None, self.random.choice(self.tickets[-2:])
            case 2:
                more["route"] = False
            case 3:
                more["as_ticket"] = True
                self.tickets.append(owner)
            case 4:
                more["origin"] = Origin(keyspace="walk", target=f"target of {owner}")
            case _:
                pass
        if self.controls and message is not None:
            more.update(self.random.choice(CLAIMS))
        said = {name: value for name, value in more.items() if name != "policy"}
        step = (
            f"claim {owner} {ttl_ms} {message.id if message else None} {said}",
            lambda p: p.claim(self.key, owner, ttl_ms, message, **more),
        )
        self.claims.append(step)
        return step

    def claim_again(self) -> tuple[str, Step]:
        """A late copy of one of the last claims."""
        return self.random.choice(self.claims[-4:]) if self.claims else self.claim()

    def settle(self) -> tuple[str, Step]:
        """By an owner, of what it was given, every message with its own end, with a successor or without."""
        owner, ttl_ms = self.any_owner(), self.ttl_ms()
        ends: dict[str, list[Any]] = {"handled": [], "failed": [], "dropped": [], "deferred": []}
        for message_id in self.some_ids():
            end = self.random.choice(("handled", "handled", "failed", "failed", "dropped", "deferred"))
            if end in {"failed", "dropped"}:
                after_ms = self.random.choice((None, None, 0, 3 * PACE_MS))
                ends[end].append(Failure(id=message_id, error=f"failed {message_id}", after_ms=after_ms))
            else:
                ends[end].append(message_id)
        more: dict[str, Any] = {**ends, "policy": self.policy}
        if self.controls:
            more["results"] = {each: {"of": each} for each in ends["handled"]}
            if ends["deferred"] and self.random.random() < 0.5:  # noqa: PLR2004
                more["stopped"], more["deferred"] = more["deferred"], []
            if self.random.random() < 0.1:  # noqa: PLR2004
                more["hold_ms"], more["hold_reason"] = OFF_PACE_MS[0], "by the run"
        said = f"{ {name: value for name, value in more.items() if name != 'policy'} }"
        match self.random.randrange(4):
            case 0:
                pass
            case 1:
                more["ticket"] = self.fresh("ticket")
                self.tickets.append(more["ticket"])
            case _:
                more["next_owner"] = self.fresh("successor")
        successor = more.get("next_owner") or more.get("ticket")
        return (
            f"settle {owner} {ttl_ms} for {successor}: {said}",
            lambda p: p.settle(self.key, owner, ttl_ms=ttl_ms, **more),
        )

    def take(self) -> tuple[str, Step]:
        """By an owner, which has what it was given, unless an answer was lost."""
        owner, ttl_ms = self.any_owner(), self.ttl_ms()
        have = tuple(each for each in self.given if self.random.random() < 0.8)  # noqa: PLR2004

        def step(provider: MailboxProvider) -> object:
            taken = provider.take(self.key, owner, ttl_ms, have=have)
            self.given.extend(each.id for each in taken if each.id not in self.given)
            return [list(taken), taken.stop]

        return f"take {owner} {ttl_ms} {have}", step

    def beat(self) -> tuple[str, Step]:
        """By an owner, present or past."""
        owner, ttl_ms = self.any_owner(), self.ttl_ms()
        more: dict[str, Any] = {"note": {"by": owner}} if self.controls and self.random.random() < 0.5 else {}  # noqa: PLR2004
        return f"beat {owner} {ttl_ms} {more}", lambda p: p.beat(self.key, owner, ttl_ms, **more)

    def look(self) -> tuple[str, Step]:
        """Who owns the key, and is it an orphan."""
        return "look", lambda p: [
            p.get_lease_owner(self.key),
            [orphan for orphan in p.orphans(EVERYTHING) if orphan.key == self.key],
        ]

    def find(self) -> tuple[str, Step]:
        """What became of each id, and all dead letters."""
        return "find", lambda p: [
            [p.find(self.key, f"m{number}", policy=self.policy) for number in range(IDS)],
            list(p.dead_letters(self.key, EVERYTHING)),
        ]

    def redrive(self) -> tuple[str, Step]:
        """Any id, dead or not."""
        message_id = f"m{self.random.randrange(IDS)}"
        return f"redrive {message_id}", lambda p: p.redrive(self.key, message_id)

    def purge(self) -> tuple[str, Step]:
        """Any id, dead or not."""
        message_id = f"m{self.random.randrange(IDS)}"
        return f"purge {message_id}", lambda p: p.purge(self.key, message_id)

    def stop(self) -> tuple[str, Step]:
        """The live tenure, or one of an older fence."""
        older = self.random.randrange(2)

        def step(provider: ControlProvider) -> object:
            fence = provider.show(self.key).fence
            marked = provider.stop(self.key, fence=None if fence is None else fence - older, reason="why")
            return None if marked is None else Status(state="running", fence=marked)

        return f"stop {older}", step

    def watch(self) -> tuple[str, Step]:
        """By an owner, present or past."""
        owner = self.any_owner()
        return f"watch {owner}", lambda p: p.watch(self.key, owner)

    def hold(self) -> tuple[str, Step]:
        """For a while, or until it is resumed."""
        for_ms = self.random.choice((*OFF_PACE_MS, None))
        return f"hold {for_ms}", lambda p: p.hold(self.key, for_ms=for_ms, reason=f"for {for_ms}")

    def resume(self) -> tuple[str, Step]:
        """Whether it is held or not."""
        return "resume", lambda p: p.resume(self.key)

    def cancel(self) -> tuple[str, Step]:
        """Any id, whatever it does."""
        message_id = f"m{self.random.randrange(IDS)}"
        return f"cancel {message_id}", lambda p: p.cancel(self.key, message_id, policy=self.policy)

    def show(self) -> tuple[str, Step]:
        """The key alone, and in the list of keys."""
        return "show", lambda p: [p.show(self.key), [each for each in p.keys(EVERYTHING) if each.key == self.key]]

    def grant(self, owner: str) -> None:
        """A tenure has begun."""
        if owner != self.owner:
            self.owner, self.given = owner, []
            self.past.append(owner)

    def learn(self, answer: object) -> None:
        """Keep what the next steps need."""
        match answer:
            case Claimed() | Continued():
                self.grant(answer.owner)
                self.given.extend(each.id for each in answer.messages if each.id not in self.given)
            case Acquisition(acquired=True, owner=str(owner)):
                self.grant(owner)
            case _:
                pass


class Walking(MailSubject):
    """How a walk goes, and what may differ."""

    def follow(self, provider: Any, key: str, number: int, steps: Mapping[str, int]) -> None:
        """Go one walk, decided by its number; ``steps`` are what it may do next, and how often."""
        chance = random.Random(number)  # noqa: S311 - repeatable is what it must be
        policy = Policy(
            max_pending=chance.choice((3, 100)),
            max_attempts=chance.choice((1, 2, 5)),
            pauses_ms=PAUSES_MS,
            on_error=chance.choice(("skip", "block")),
        )
        controls = "stop" in steps
        if controls:
            policy = replace(policy, keep=chance.choice(("all", "latest")), result_bytes=12)
        walk = Walk(key=key, random=chance, policy=policy, controls=controls)
        clock = FakeClock()
        reference = MemoryProvider(clock=clock)
        fences: dict[int, int] = {}
        log: list[str] = [f"walk {number}: {policy}"]
        for step in range(STEPS):
            if chance.random() < 0.3:  # noqa: PLR2004
                ms = PACE_MS * chance.choice((1, 1, 1, 2, 5, 9, 200))
                log.append(f"{ms} ms pass")
                clock.advance(ms)
                self.pass_time(ms)
                if ms >= LATE_MS:
                    walk.claims.clear()
            (chosen,) = chance.choices(list(steps), list(steps.values()))
            name, call = getattr(walk, chosen)()
            expected = answer_of(call, reference)
            log.append(f"{name}: {expected}")
            answer = answer_of(call, provider)
            walk.learn(expected)
            difference = self.difference(answer, expected, fences)
            if difference is None and step % LOOK_EVERY == 0:
                difference = self.difference(list(provider.peek(key)), list(reference.peek(key)), fences)
            if difference is not None:
                pytest.fail("\n".join([*log, f"but it answered: {answer}", difference]))

    def difference(  # noqa: C901 - one kind of difference after the other
        self, answer: object, expected: object, fences: dict[int, int]
    ) -> str | None:
        """Say where two answers differ, save for what may: moments, and the fences' values but not their order."""
        if isinstance(answer, list) and isinstance(expected, list) and len(answer) == len(expected):
            pairs = zip(answer, expected, strict=True)
            return next(filter(None, (self.difference(*pair, fences) for pair in pairs)), None)
        if type(answer) is not type(expected):
            return f"{answer} is not {expected}"
        ours, theirs = fence_of(answer), fence_of(expected)
        if ours is not None and theirs is not None:
            known = fences.setdefault(theirs, ours)
            if known != ours:
                return f"fence {ours} is not the tenure's {known}"
            if sorted(set(fences.values())) != [fences[each] for each in sorted(fences)]:
                return f"fence {ours} is out of order: {fences}"
        roughly_ms = max(self.slack_ms, ROUGHLY_MS)
        left, right = expires_in_ms(answer), expires_in_ms(expected)
        if right is not None and (left is None or not right - roughly_ms <= left <= right):
            return f"it has {left} ms, expected {right} ms"
        due, due_then = due_in_ms(answer), due_in_ms(expected)
        if (due is None) != (due_then is None):
            return f"it can be granted in {due} ms, expected {due_then} ms"
        if due is not None and due_then is not None and not -roughly_ms <= due - due_then <= roughly_ms + self.skew_ms:
            return f"it can be granted in {due} ms, expected {due_then} ms"
        if isinstance(answer, Orphan) and isinstance(expected, Orphan):
            # Strangers wait for the skew first; a pause that is over begins it at once.
            lag_ms = expected.age_ms - answer.age_ms
            if not -roughly_ms <= lag_ms <= self.skew_ms:
                return f"its age is {answer.age_ms} ms, expected {expected.age_ms} ms"
        return None if seen(answer) == seen(expected) else f"{seen(answer)} is not {seen(expected)}"


class Walks(Walking):
    """Whatever happens in whatever order, the answers are the reference's."""

    @pytest.mark.parametrize("number", range(WALKS))
    def test_every_answer_of_a_walk_is_the_references(self, provider: MailboxProvider, key: str, number: int) -> None:
        """R1 to R7, M1 to M9: calls in any order, in time and late, and what is stored after each."""
        self.follow(provider, key, number, MAILBOX_STEPS)


def answer_of(call: Step, provider: MailboxProvider | ArchiveProvider) -> object:
    """Return what the provider answers, an error of the tree included."""
    try:
        return call(provider)
    except IncumbentError as error:
        return error


def fence_of(answer: object) -> int | None:
    """The tenure's fence, where an answer has one."""
    if isinstance(answer, Claimed | Continued | Beat | Acquisition | Status | KeyStatus):
        return answer.fence
    return None


def expires_in_ms(answer: object) -> int | None:
    """The remaining time, where an answer has one."""
    if not isinstance(answer, Claimed | Continued | Beat | Acquisition | Busy) or answer.expires_in_ms is None:
        return None
    return min(answer.expires_in_ms, ENDLESS_MS)


def due_in_ms(answer: object) -> int | None:
    """When the key can be granted, where an answer says so."""
    return answer.due_in_ms if isinstance(answer, Routed | Idle | Released) else None


def seen(answer: object) -> object:  # noqa: C901, PLR0912 - each answer once
    """What of an answer must be equal to the letter."""
    match answer:
        case Claimed():
            return type(answer), answer.owner, same(answer.messages), answer.waiting
        case Continued():
            return type(answer), answer.owner, same(answer.messages), answer.waiting, answer.stop
        case Status():
            kept = answer.note, answer.result, answer.result_is
            return answer.state, answer.attempt, answer.owner, answer.fence is None, answer.left_at_ms is None, kept
        case KeyStatus():
            held = answer.held_until_ms is None, answer.held_reason, answer.quiet_until_ms is None
            run = answer.owner, answer.fence is None, answer.stop, answer.note, answer.target
            return answer.key, held, run, same(answer.running), same(answer.waiting)
        case Message():
            return same([answer])
        case Acquisition():
            return answer.acquired, answer.owner
        case Beat():
            return answer.waiting, answer.stop
        case Routed():
            return type(answer), answer.owner, answer.superseded
        case Busy():
            return type(answer), answer.owner
        case DeadLetter():
            return answer.key, same([replace(answer.message, promised=True)])
        case Orphan():
            return answer.key, answer.target, answer.waiting
        case LeaseLost():
            return type(answer), answer.key, answer.owner
        case IncumbentError():
            return type(answer), answer.key
        case Duplicate() | Idle() | Released() | _:
            return answer
