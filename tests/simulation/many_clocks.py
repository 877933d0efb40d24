"""A provider whose store has no clock: conditional writes by the caller's own, as with DynamoDB.

A quick write says in its condition all that the rule would ask. Where it is refused, the refusal shows the record, the
rules decide on it, and the change is written provided that nothing has happened meanwhile that would have them decide
otherwise. Every try goes by the time of its own sending.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from incumbent import rules
from incumbent.clock import Moment
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import LeaseUnavailable
from incumbent.rules import KeyState, Stored
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claim,
    Claimed,
    Continued,
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
from tests.simulation import writes
from tests.simulation.asking import Asking, Bugs, Parts, body_of, full, in_doubt, lost, messages_of
from tests.simulation.store import KEY, Record, Rules, Write
from tests.simulation.writes import Change, Rule

MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What the table said to a write: what the call may say if it was applied, and the record after it or instead."""

    said: Any
    record: Record
    sent: Moment
    repeated: bool = False

    @property
    def state(self) -> KeyState:
        return self.record.state

    @property
    def now_ms(self) -> int:
        """The time that the request itself named (H16)."""
        return self.sent.wall_ms

    @property
    def lives_ms(self) -> int:
        """How long the lease in the record lives, from the sending on."""
        return self.state.expires_ms - self.now_ms

    @property
    def waiting(self) -> int:
        return len(rules.due(self.state, self.now_ms))


# How the step from a record to a state is written, at a time, and what is said then.
_Writer: TypeAlias = Callable[[Record, KeyState, Any, int], Write]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claiming:
    """One claim: what the rules say of it, and how each of its requests is written."""

    owner: str
    ttl_ms: int
    message: Message | None
    ticket: str | None
    as_ticket: bool
    route: bool
    origin: Origin | None
    policy: Policy
    skew_ms: int
    rules: Rules
    bugs: Bugs

    @property
    def message_id(self) -> str | None:
        return None if self.message is None else self.message.id

    def rule(self, state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
        """What M1 says."""
        return self._ruled(state, now_ms, self.message)

    def quick(self, now_ms: int) -> Write:
        """The first request."""
        return writes.quick(
            self.rule,
            now_ms,
            lambda state: writes.claims_plainly(
                state,
                now_ms,
                self.owner,
                self.message_id,
                policy=self.policy,
                ticket=self.ticket,
                as_ticket=self.as_ticket,
                skew_ms=self.skew_ms,
            ),
        )

    def writer(self, record: Record, new: KeyState, said: Any, now_ms: int) -> Write:
        """A later one: exactly the grant, a promise, or a message behind an owner."""
        old = record.state
        exact = Change(seen=record, new=new, said=said, now_ms=now_ms, by_size=self.bugs.closes_by_size)
        if not self.stays_held(old, new):
            if self.bugs.claims_unguarded and self.message_id in writes.known_ids(old):
                return writes.unguarded(lambda state, now_ms, _: self._ruled(state, now_ms, None), now_ms)
            return replace(exact, closes=True)
        if self.routes(old, new):
            return replace(exact, beside=True)
        (place,) = (place for place, message in enumerate(old.mail) if message.id == self.message_id)
        return writes.promise(place, old.mail[place].id, said)

    def append(self, now_ms: int) -> Write:
        """Behind whoever holds the key: that somebody does was decided by a refusal."""
        stored = replace(self._stored(self.message, now_ms), promised=True)
        if self.bugs.routes_behind_live_only:
            return writes.append_behind_live_owner(self.owner, stored, self.policy, now_ms=now_ms, skew_ms=self.skew_ms)
        return writes.append(self.owner, stored, self.policy)

    def stays_held(self, old: KeyState, new: KeyState) -> bool:
        """Whether the step happens behind another owner."""
        return new.fence == old.fence and new.owner == old.owner and new.owner not in (None, self.owner)

    def routes(self, old: KeyState, new: KeyState) -> bool:
        """Whether it stores the message there."""
        return self.stays_held(old, new) and len(new.mail) > len(old.mail)

    def is_remembered(self, state: KeyState) -> bool:
        """Whether an append would be refused for a trace that is older than the window."""
        return self.message_id in writes.known_ids(state) or writes.is_ended(state, self.owner)

    def _ruled(self, state: KeyState, now_ms: int, message: Message | None) -> tuple[KeyState, Any]:
        return self.rules.claim(
            state,
            now_ms,
            self.owner,
            self.ttl_ms,
            None if message is None else self._stored(message, now_ms),
            policy=self.policy,
            ticket=self.ticket if message is self.message else None,
            as_ticket=self.as_ticket,
            route=self.route,
            origin=self.origin,
            skew_ms=self.skew_ms,
        )

    def _stored(self, message: Message | None, now_ms: int) -> Stored:
        assert message is not None
        body = body_of(message)
        return Stored(id=message.id, body=body, by=self.owner, promised=self.as_ticket, stored_ms=now_ms)


class ManyClocksProvider(Asking):
    """Leases and a mailbox for the one simulated key, by its callers' clocks, which differ by ``skew_ms`` at most."""

    def __init__(self, parts: Parts, *, skew_ms: int) -> None:
        super().__init__(parts)
        self._skew_ms = skew_ms
        self._grants: dict[str, Record] = {}

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """R2."""

        def rule(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            return self._rules.acquire(state, now_ms, owner, ttl_ms, self._skew_ms)

        def quick(now_ms: int) -> Write:
            return writes.quick(rule, now_ms, lambda state: not rules.owned(state, now_ms, self._skew_ms))

        answer = self._step(ttl_ms, self._update(ttl_ms, quick), rule)
        if isinstance(answer.said, rules.Held):
            return Acquisition(acquired=False, owner=answer.said.owner, expires_in_ms=answer.lives_ms)
        self._remember(owner, answer.record)
        return Acquisition(
            acquired=True,
            owner=owner,
            fence=answer.state.fence,
            expires_in_ms=answer.lives_ms,
            deadline=self._until(answer.sent, ttl_ms, answer.lives_ms),
        )

    def get_lease_owner(self, key: str) -> str | None:
        """R3."""
        return self._holder(self._read(None))

    def release_lease(self, key: str, owner: str) -> None:
        """R5."""
        fence, seen = self._recall(owner)
        may_wait = seen is not None and bool(seen.state.mail)

        def rule(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            return self._rules.release(state, now_ms, owner, fence), True

        def quick(now_ms: int) -> Write:
            return writes.quick(
                rule,
                now_ms,
                lambda state: rules.owned_by(state, owner, now_ms, fence) and (may_wait or not state.mail),
            )

        self._step(None, self._update(None, quick), rule, held=True)
        self._grants.pop(owner, None)

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """R4."""
        return bool(self._renew(owner, ttl_ms).said != "lost")

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """R6."""
        fence, _ = self._recall(from_owner)

        def rule(state: KeyState, now_ms: int, repeated: bool) -> tuple[KeyState, Any]:  # noqa: FBT001 - see Rule
            return self._rules.transfer(state, now_ms, from_owner, to_owner, ttl_ms, fence=fence, repeated=repeated)

        def quick(now_ms: int) -> Write:
            return writes.quick(rule, now_ms, lambda state: rules.owned_by(state, from_owner, now_ms, fence))

        answer = self._step(ttl_ms, self._update(ttl_ms, quick), rule, held=True)
        if answer.said == "unknown":
            raise in_doubt("transfer", from_owner)
        self._grants.pop(from_owner, None)
        if answer.said:
            self._remember(to_owner, answer.record)
        return bool(answer.said)

    # --- the mailbox

    def claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        message: Message | None,
        *,
        ticket: str | None = None,
        as_ticket: bool = False,
        route: bool = True,
        origin: Origin | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> Claim:
        """M1."""
        if ticket is not None and self._parts.bugs.ticket_is_owner:
            owner, ticket = ticket, None
        claiming = _Claiming(
            owner=owner,
            ttl_ms=ttl_ms,
            message=message,
            ticket=ticket,
            as_ticket=as_ticket,
            route=route,
            origin=origin,
            policy=policy,
            skew_ms=self._skew_ms,
            rules=self._rules,
            bugs=self._parts.bugs,
        )
        answer = self._decide(claiming, self._update(ttl_ms, claiming.quick))
        match answer.said:
            case rules.Granted():
                self._remember(owner, answer.record)
                return Claimed(
                    owner=owner,
                    fence=answer.state.fence,
                    messages=messages_of(rules.given(answer.state)),
                    waiting=answer.waiting,
                    expires_in_ms=answer.lives_ms,
                    deadline=self._until(answer.sent, ttl_ms, answer.lives_ms),
                )
            case rules.Accepted():
                return Routed(owner=self._holder(answer), waiting=len(answer.state.mail))
            case rules.Known() as said:
                return Duplicate(state=said.state, owner=said.owner)
            case rules.Held() as said:
                return Busy(owner=said.owner or "", expires_in_ms=answer.lives_ms)
            case "full":
                raise full(policy)
            case _:
                return Idle()

    def settle(
        self,
        key: str,
        owner: str,
        *,
        ttl_ms: int,
        handled: Sequence[str] = (),
        failed: Sequence[Failure] = (),
        dropped: Sequence[Failure] = (),
        deferred: Sequence[str] = (),
        next_owner: str | None = None,
        ticket: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> Released | Continued:
        """M2."""
        fence, seen = self._recall(owner)

        def rule(state: KeyState, now_ms: int, repeated: bool) -> tuple[KeyState, Any]:  # noqa: FBT001 - see Rule
            return self._rules.settle(
                state,
                now_ms,
                owner,
                ttl_ms,
                handled=handled,
                failed=failed,
                dropped=dropped,
                deferred=deferred,
                policy=policy,
                next_owner=next_owner,
                ticket=ticket,
                fence=fence,
                repeated=repeated,
            )

        named = [*handled, *(failure.id for failure in (*failed, *dropped)), *deferred]
        shown = self._shown(ttl_ms, owner, fence, seen, named)
        answer = self._step(ttl_ms, shown, rule, held=True, closes=next_owner is not None or ticket is not None)
        if answer.said == "unknown":
            raise in_doubt("settle", owner)
        self._grants.pop(owner, None)
        match answer.said:
            case rules.Granted() as said:
                self._remember(said.owner, answer.record)
                return Continued(
                    owner=said.owner,
                    fence=answer.state.fence,
                    messages=() if ticket is not None else messages_of(rules.given(answer.state)),
                    waiting=answer.waiting,
                    expires_in_ms=answer.lives_ms,
                    deadline=self._until(answer.sent, ttl_ms, answer.lives_ms),
                )
            case rules.Freed():
                return Released(left=len(answer.state.mail))
            case _:
                raise lost("settle", owner, self._holder(answer))

    def beat(self, key: str, owner: str, ttl_ms: int) -> Beat:
        """R4, M2."""
        answer = self._renew(owner, ttl_ms)
        if answer.said == "lost":
            self._grants.pop(owner, None)
            raise lost("beat", owner, self._holder(answer))
        return Beat(
            fence=answer.state.fence,
            waiting=answer.waiting,
            expires_in_ms=answer.lives_ms,
            deadline=self._until(answer.sent, ttl_ms, answer.lives_ms),
        )

    def take(self, key: str, owner: str, ttl_ms: int, *, have: Sequence[str] = ()) -> Sequence[Message]:
        """M6."""
        fence, seen = self._recall(owner)
        known = seen or Record()

        def rule(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            return self._rules.take(state, now_ms, owner, ttl_ms, fence)

        def first(now_ms: int) -> Write:
            new, said = rule(known.state, now_ms, None)
            if new.mail == known.state.mail:
                return self._quick_renewal(owner, fence, ttl_ms, now_ms)
            return Change(seen=known, new=new, said=said, now_ms=now_ms, held=True)

        shown = replace(self._update(ttl_ms, first), said=None)
        answer = self._step(ttl_ms, shown, rule, held=True)
        if answer.said == "lost":
            self._grants.pop(owner, None)
            raise lost("take", owner, self._holder(answer))
        self._remember(owner, answer.record)
        return messages_of(rules.given(answer.state), have)

    def peek(self, key: str) -> Sequence[Message]:
        """M3."""
        return messages_of(self._read(None).state.mail)

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """M8."""
        answer = self._read(None)
        since_ms = rules.orphaned_since(answer.state, answer.now_ms, self._skew_ms)
        if since_ms is not None:
            state = replace(answer.state, owner=None)
            yield Orphan(
                key=KEY,
                target=state.origin.target if state.origin else None,
                age_ms=max(0, answer.now_ms - since_ms),
                waiting=len(rules.due(state, answer.now_ms)),
            )

    # --- steps: decide on what was shown, write exactly that

    def _step(
        self, ttl_ms: int | None, shown: _Answer, rule: Rule, *, held: bool = False, closes: bool = False
    ) -> _Answer:
        by_size = self._parts.bugs.closes_by_size

        def writer(record: Record, new: KeyState, said: Any, now_ms: int) -> Write:
            return Change(seen=record, new=new, said=said, now_ms=now_ms, held=held, closes=closes, by_size=by_size)

        for _ in range(MOST_ROUNDS):
            if shown.said is not None:
                return shown
            new, said = rule(shown.state, shown.now_ms, shown.repeated)
            if new == shown.state:
                return replace(shown, said=said)
            shown = self._attempt(ttl_ms, shown, rule, writer)
        raise LeaseUnavailable(f"other writes came first {MOST_ROUNDS} times", key=KEY)

    def _decide(self, claiming: _Claiming, answer: _Answer) -> _Answer:
        """Go on from the quick claim; routing takes three requests at most, unless the key is free and odd."""
        asked = self._asked
        asked.odd = answer.said is None and self._holder(answer) is None
        for _ in range(MOST_ROUNDS):
            if answer.said is not None:
                return answer
            asked.odd = asked.odd or claiming.message_id in writes.known_ids(answer.state)
            new, said = claiming.rule(answer.state, answer.now_ms, None)
            if new == answer.state:
                return replace(answer, said=said)
            if claiming.routes(answer.state, new) and not claiming.is_remembered(answer.state):
                answer = self._update(claiming.ttl_ms, claiming.append, repeated=answer.repeated)
                if answer.said is not None and self._holder(answer) is None:
                    return self._own_what_is_stored(claiming, answer)
            else:
                answer = self._attempt(claiming.ttl_ms, answer, claiming.rule, claiming.writer)
        raise LeaseUnavailable(f"claim: other writes came first {MOST_ROUNDS} times", key=KEY)

    def _own_what_is_stored(self, claiming: _Claiming, stored: _Answer) -> _Answer:
        """The holder left before the message was stored behind it: claim the key for it, once."""
        answer = self._attempt(claiming.ttl_ms, replace(stored, said=None), claiming.rule, claiming.writer)
        if answer.said is not None:
            return answer
        new, said = claiming.rule(answer.state, answer.now_ms, None)
        if new == answer.state and isinstance(said, rules.Granted):
            return replace(answer, said=said)
        return replace(answer, said=rules.Accepted(owner=self._holder(answer), stored=len(answer.state.mail)))

    def _attempt(self, ttl_ms: int | None, shown: _Answer, rule: Rule, writer: _Writer) -> _Answer:
        """Write once what the rules decide on what was shown."""
        before = shown.state
        dead = rule(before, shown.now_ms, shown.repeated)[0].dead

        def plan(now_ms: int) -> Write | None:
            now_ms = max(now_ms, shown.now_ms)
            new, said = rule(before, now_ms, shown.repeated)
            if new == before or [letter.id for letter in new.dead] != [letter.id for letter in dead]:
                return None
            return writer(shown.record, new, said, now_ms)

        return self._update(ttl_ms, plan, repeated=shown.repeated)

    def _renew(self, owner: str, ttl_ms: int) -> _Answer:
        fence, _ = self._recall(owner)

        def rule(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            return self._rules.renew(state, now_ms, owner, ttl_ms, fence)

        def quick(now_ms: int) -> Write:
            return self._quick_renewal(owner, fence, ttl_ms, now_ms)

        answer = self._step(ttl_ms, self._update(ttl_ms, quick), rule, held=True)
        if answer.said != "lost":
            self._remember(owner, answer.record)
        return answer

    def _quick_renewal(self, owner: str, fence: int | None, ttl_ms: int, now_ms: int) -> Write:
        """R4: refused also where a later expiry stands already, and the refusal shows it."""

        def rule(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            return self._rules.renew(state, now_ms, owner, ttl_ms, fence)

        def when(state: KeyState) -> bool:
            return rules.owned_by(state, owner, now_ms, fence) and rule(state, now_ms, None)[0] != state

        return writes.quick(rule, now_ms, when)

    def _shown(self, ttl_ms: int, owner: str, fence: int | None, seen: Record | None, named: Sequence[str]) -> _Answer:
        """The tenure as it was last seen; read where it is not remembered, seems to be over or lacks what is named."""
        if seen is not None:
            sent = self._clock.now()
            known = {message.id for message in seen.state.mail}
            if rules.owned_by(seen.state, owner, sent.wall_ms, fence) and known.issuperset(named):
                return _Answer(said=None, record=seen, sent=sent)
        return self._read(ttl_ms)

    # --- requests

    def _update(self, ttl_ms: int | None, plan: Callable[[int], Write | None], *, repeated: bool = False) -> _Answer:
        """Send a write until it is applied or refused, each try by its own time; read where there is none to send."""
        store, doubt = self._parts.store, repeated

        def send(number: int, sent: Moment) -> _Answer | None:
            nonlocal doubt
            doubt = doubt or number > 1
            write = plan(sent.wall_ms)
            if write is None:
                return None
            said, record = self._request(number, lambda asked: store.write(asked, write, sent.wall_ms))
            return _Answer(said=said, record=record, sent=sent, repeated=doubt)

        return self._ask(ttl_ms, send) or replace(self._read(ttl_ms), repeated=doubt)

    def _read(self, ttl_ms: int | None) -> _Answer:
        store = self._parts.store

        def send(number: int, sent: Moment) -> _Answer:
            _, record = self._request(number, lambda asked: store.write(asked, writes.nothing, sent.wall_ms))
            return _Answer(said=None, record=record, sent=sent)

        return self._ask(ttl_ms, send)

    # --- what is remembered, and what is seen

    def _remember(self, owner: str, record: Record) -> None:
        if record.state.owner != owner:
            return
        known = self._grants.get(owner)
        if known is None or _age(known) <= _age(record):
            self._grants[owner] = record

    def _recall(self, owner: str) -> tuple[int | None, Record | None]:
        known = self._grants.get(owner)
        return (None, None) if known is None else (known.state.fence, known)

    def _holder(self, answer: _Answer) -> str | None:
        return answer.state.owner if rules.owned(answer.state, answer.now_ms, self._skew_ms) else None


def _age(record: Record) -> tuple[int, int, int, int]:
    return (record.state.fence, record.edits, len(record.state.mail), record.state.expires_ms)
