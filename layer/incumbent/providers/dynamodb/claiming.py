"""Claims: store a message and try to own its key, in as few requests as that takes (M1, M10).

::

    1  the quick claim        a free key in the usual state: Claimed
       refused                the refusal shows the record, and the rules decide on it:
                              known, busy, full, idle, or the caller's own: answered from the record
    2  append                 the key is held: stored behind the holder. If its lease is live: Routed
    3  claim without storing  the holder left in between. Refused: Routed nevertheless, since the present owner was
                              granted the key after the message was stored
    2  promise                the id waits behind an owner: the mark, then Duplicate (M3: promised)
    2  the exact claim        a free key in another state: the id waits there, the head pauses or is out of attempts,
                              or the key is held (M15); also behind a holder, if the message is for later, interrupts
                              it, or replaces what waits (M14, M16, M21)

A claim for later, or one that waits for quiet, reads the record instead of the quick claim. Routing never loops. The
claim first puts a large body under its own name, and deletes the body if it did not store the message, unless a reply
was lost: then a late copy of the claim may still come, and TTL deletes the body.
"""

from itertools import count
from typing import TypeAlias

from incumbent import rules
from incumbent.errors import MailboxFull
from incumbent.frozen import dataclass, replace
from incumbent.providers.dynamodb import item, quick
from incumbent.providers.dynamodb.bodies import Reference
from incumbent.providers.dynamodb.change import Change
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.item import Record
from incumbent.providers.dynamodb.names import body_digest
from incumbent.providers.dynamodb.steps import (
    ACCEPTED,
    GRANTED,
    Steps,
    When,
    due_in_ms,
    expires_in_ms,
    until,
    waiting,
)
from incumbent.providers.dynamodb.table import Answer, TableCall, item_full
from incumbent.providers.dynamodb.traces import Moved
from incumbent.providers.shared import mailbox_full
from incumbent.rules import KeyState, Stored
from incumbent.values import Busy, Claim, Claimed, Debounce, Duplicate, Idle, Origin, Policy, Routed

Said: TypeAlias = "rules.Granted | rules.Accepted | rules.Known | rules.Held | rules.Nothing | rules.Full"


@dataclass(slots=True, kw_only=True)
class Claiming:
    """One claim.

    ``message_id`` is empty where it brings no message. ``text`` is the message's text; ``body`` is its value in the
    record: the text, or a reference to it. ``body`` changes when the record turns out to lack room for the text.
    ``superseded`` is what it has replaced (M21).
    """

    steps: Steps
    call: TableCall
    owner: str
    ttl_ms: int
    message_id: str
    text: str
    policy: Policy
    ticket: str | None
    as_ticket: bool
    route: bool
    origin: Origin | None
    after_ms: int
    debounce: Debounce | None
    interrupt: bool
    body: str = ""
    most: int = 0
    superseded: tuple[str, ...] = ()
    full: MailboxFull | None = None

    def __post_init__(self) -> None:
        self.body = self.text

    def carry_out(self) -> Claim:
        """Claim. Raises ``MailboxFull`` (M7: limits), and the errors of the table."""
        if len(self.text.encode()) > item.INLINE_BYTES:
            self._put_body()
        try:
            waits = self.after_ms or self.debounce
            table = self.steps.table
            answer, said = self._decide(table.read(self.call) if waits else table.update(self.call, self._quick))
        except MailboxFull:  # DynamoDB refuses the size, as it would for a late copy
            self._sweep_body(Record(state=KeyState(), item={}))
            raise
        state = answer.record.state
        if not answer.repeated:
            self._sweep_body(answer.record)
        match said:
            case rules.Granted():
                own = {(self.message_id, self.body): self.text}
                return Claimed(
                    owner=self.owner,
                    fence=state.fence,
                    messages=self.steps.messages(self.call, rules.given(state), own),
                    waiting=waiting(answer),
                    expires_in_ms=expires_in_ms(answer),
                    deadline=until(answer, self.ttl_ms),
                    dead_lettered=answer.dead_lettered,
                )
            case rules.Accepted():
                return Routed(
                    owner=self.steps.owner(answer),
                    waiting=len(state.mail),
                    due_in_ms=due_in_ms(answer, said.due_ms),
                    superseded=self.superseded,
                )
            case rules.Known():
                return Duplicate(state=said.state, owner=said.owner, dead_lettered=answer.dead_lettered)
            case rules.Held():
                held_ms = due_in_ms(answer, said.expires_ms) if said.owner is None else expires_in_ms(answer)
                return Busy(owner=said.owner, expires_in_ms=held_ms)
            case "full":
                raise self.full or mailbox_full(self.call.key, self.policy, owner=self.steps.owner(answer))
            case rules.Nothing():
                return Idle(due_in_ms=due_in_ms(answer, said.due_ms), dead_lettered=answer.dead_lettered)

    # --- the requests

    def _decide(self, answer: Answer[Said]) -> tuple[Answer[Said], Said]:
        """Continue from the quick claim until there is an answer."""
        for turn in count():
            if answer.said is not None:
                return answer, answer.said
            answer = self.steps.shown_again(self.call, answer, turn)
            answer = self.steps.remember(self.call, answer, self.message_id, self.owner)
            record = answer.record
            new, said = self._rule(record.state, When(answer.now_ms, answer.repeated))
            if new == record.state:
                return answer, said
            if self._adds(record.state, new) and not item.takes(record.item, self._stored(answer.now_ms)):
                self.full = item_full(self.call.key, record, owner=self.steps.owner(answer))
                return answer, "full"
            if self._lacks_room(record, new):
                self._put_body()
            if not self._routes(record.state, new, answer.now_ms):
                answer = self._attempt(answer)
                if self._stays_held(record.state, new, answer.now_ms):  # beside an owner, which may be gone
                    answer = replace(answer, said=None)
            elif self._routes_exactly or record.may_know(self.message_id, self.owner):
                answer = self._attempt(answer)
            else:  # the refusal has decided that the key is held: the clock is not read again
                self.most = self._most(record)
                answer = self.steps.table.update(self.call, self._append, repeated=answer.repeated)
                if answer.applied and self.steps.owner(answer) is None:
                    return self._own_what_is_stored(answer)
        raise AssertionError  # shown_again ends it

    def _own_what_is_stored(self, stored: Answer[Said]) -> tuple[Answer[Said], Said]:
        """Claim the key once, without storing: the holder left before the message was stored behind it."""
        answer = self._attempt(stored)
        if answer.said is not None:
            return answer, answer.said
        new, said = self._rule(answer.record.state, When(answer.now_ms, answer.repeated))
        if new == answer.record.state and isinstance(said, rules.Granted):
            return answer, said  # the update was applied, and only the reply was lost
        return answer, ACCEPTED

    @property
    def _routes_exactly(self) -> bool:
        """Whether a message behind an owner depends on more than that there is one, or changes more (M14, M16, M21)."""
        return bool(self.after_ms) or self.interrupt or self.policy.keep == "latest"

    def _attempt(self, shown: Answer[Said]) -> Answer[Said]:
        """Write the rules' decision; what is superseded leaves a trace, and there may be many of them."""
        window_ms = self.policy.window_ms if self.policy.keep == "latest" else None
        answer = self.steps.attempt(self.call, shown, self._rule, self._write, window_ms=window_ms)
        if isinstance(answer.said, rules.Accepted):
            self.superseded = answer.said.superseded or self.superseded
        return answer

    def _quick(self, now_ms: int) -> tuple[Request, Said]:
        request = quick.claim(
            self.owner,
            self._stored(now_ms) if self.message_id else None,
            shard=self.steps.shard(self.call),
            policy=self.policy,
            ticket=self.ticket,
            as_ticket=self.as_ticket,
            origin=self.origin,
            ttl_ms=self.ttl_ms,
            now_ms=now_ms,
            skew_ms=self.steps.skew_ms,
        )
        return request, GRANTED

    def _append(self, now_ms: int) -> tuple[Request, Said]:
        message = replace(self._stored(now_ms), promised=True)
        shard = self.steps.shard(self.call)
        request = quick.append(self.owner, message, shard=shard, most=self.most, origin=self.origin, now_ms=now_ms)
        return request, ACCEPTED

    def _write(self, record: Record, new: KeyState, now_ms: int, moved: Moved) -> Request:
        """Write the rules' decision on a record: exactly the grant, a promise, or a message behind an owner."""
        old = record.state
        change = Change(
            record=record, new=new, shard=self.steps.shard(self.call), skew_ms=self.steps.skew_ms, moved=moved
        )
        if not self._stays_held(old, new, now_ms):
            return replace(change, closes=True).update(now_ms).request()
        if self._routes(old, new, now_ms):
            return replace(change, beside=True).update(now_ms).request()
        (place,) = (place for place, message in enumerate(old.mail) if message.id == self.message_id)
        return quick.promise(place, old.mail[place].id, self.origin)

    # --- the parts of a decision

    def _rule(self, state: KeyState, when: When) -> tuple[KeyState, Said]:
        return rules.claim(
            state,
            when.now_ms,
            self.owner,
            self.ttl_ms,
            self._stored(when.now_ms) if self.message_id else None,
            policy=self.policy,
            ticket=self.ticket,
            as_ticket=self.as_ticket,
            route=self.route,
            origin=self.origin,
            debounce=self.debounce,
            interrupt=self.interrupt,
            skew_ms=self.steps.skew_ms,
        )

    def _stored(self, now_ms: int) -> Stored:
        return Stored(
            id=self.message_id,
            body=self.body,
            claimed_by=self.owner,
            promised=self.as_ticket,
            stored_ms=now_ms,
            due_ms=now_ms + self.after_ms if self.after_ms else 0,
        )

    def _stays_held(self, old: KeyState, new: KeyState, now_ms: int) -> bool:
        """Return whether the step happens behind another owner."""
        behind = new.owner != self.owner and rules.owned(old, now_ms, self.steps.skew_ms)
        return behind and (new.owner, new.fence) == (old.owner, old.fence)

    def _adds(self, old: KeyState, new: KeyState) -> bool:
        """Return whether the step stores the caller's message."""
        ids = {message.id for message in old.mail}
        return self.message_id not in ids and self.message_id in {message.id for message in new.mail}

    def _routes(self, old: KeyState, new: KeyState, now_ms: int) -> bool:
        return self._stays_held(old, new, now_ms) and self._adds(old, new)

    def _lacks_room(self, record: Record, new: KeyState) -> bool:
        """Return whether the record lacks room for the text."""
        if isinstance(self.body, Reference) or not self._adds(record.state, new):
            return False
        return item.inline_bytes(record.state.mail) + len(self.text.encode()) > item.INLINE_BYTES_A_KEY

    def _most(self, record: Record) -> int:
        """Return how many messages there may be with this one: others may have come since the record was shown."""
        more = item.AT_ONCE
        if not isinstance(self.body, Reference):
            room = item.INLINE_BYTES_A_KEY - item.inline_bytes(record.state.mail)
            more = min(more, max(1, room // len(self.text.encode())))
        return min(self.policy.max_pending, len(record.state.mail) + more)

    def _sweep_body(self, record: Record) -> None:
        """Delete the large body, unless it is the record's."""
        self.steps.sweep_bodies(self.call, [(self.message_id, self.body)], record)

    def _put_body(self) -> None:
        due_ms = self.steps.clock.now().wall_ms + self.after_ms  # from when its body is kept (M14)
        name = body_digest(self.owner, self.text)
        self.body = self.steps.put_body(self.call, self.message_id, name, self.text, due_ms)
