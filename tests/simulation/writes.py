"""Conditional writes to a record without a clock, each under what must not have happened since it was last seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from incumbent import rules
from incumbent.rules import KeyState, Stored
from incumbent.values import Policy
from tests.simulation.store import Record, Write

# What the rules say of a state, by which time, and whether an earlier try may have taken effect.
Rule: TypeAlias = Callable[[KeyState, int, bool], tuple[KeyState, Any]]

_FIELDS = ("by", "promised", "attempts", "due_ms", "given", "error")


def quick(rule: Rule, now_ms: int, when: Callable[[KeyState], bool]) -> Write:
    """What the rule does, in one request, where a condition holds that says all that the rule would ask."""

    def write(record: Record) -> tuple[Record, Any] | None:
        if not when(record.state):
            return None
        new, said = rule(record.state, now_ms, False)  # noqa: FBT003 - see Rule
        return None if new == record.state else (Record(state=new, edits=record.edits, exists=True), said)

    return write


def unguarded(rule: Rule, now_ms: int) -> Write:
    """A seeded bug: the key is claimed as it is found, whatever was seen of it before."""

    def write(record: Record) -> tuple[Record, Any] | None:
        new, said = rule(record.state, now_ms, False)  # noqa: FBT003 - see Rule
        return (replace(record, state=new), said) if isinstance(said, rules.Granted) else None

    return write


def claims_plainly(
    state: KeyState,
    now_ms: int,
    owner: str,
    message_id: str | None,
    *,
    policy: Policy,
    ticket: str | None,
    as_ticket: bool,
    skew_ms: int,
) -> bool:
    """Whether one write can claim: a free key with nothing odd, its head due and with attempts left."""
    head = state.mail[0] if state.mail else None
    if message_id is None:
        redeems = ticket is not None and state.owner == ticket
        return (
            head is not None
            and (redeems or not rules.owned(state, now_ms, skew_ms))
            and not is_ended(state, owner)
            and head.due_ms <= now_ms
            and (as_ticket or head.attempts < policy.max_attempts)
        )
    return (
        not rules.owned(state, now_ms, skew_ms)
        and message_id not in known_ids(state)
        and not is_ended(state, owner)
        and (head is None or as_ticket or (head.due_ms <= now_ms and head.attempts < policy.max_attempts))
    )


def append(owner: str, message: Stored, policy: Policy) -> Write:
    """M1 (5): behind whoever holds the key, or has just left it."""

    def write(record: Record) -> tuple[Record, Any] | None:
        state = record.state
        if message.id in known_ids(state) or len(state.mail) >= policy.max_pending or is_ended(state, owner):
            return None
        after = replace(record, state=replace(state, mail=(*state.mail, message)), exists=True)
        return after, rules.Accepted(owner=state.owner, stored=len(after.state.mail))

    return write


def append_behind_live_owner(owner: str, message: Stored, policy: Policy, *, now_ms: int, skew_ms: int) -> Write:
    """A seeded bug: an append that is refused when the holder has just left, so that routing may loop."""
    plain = append(owner, message, policy)
    return lambda record: plain(record) if rules.owned(record.state, now_ms, skew_ms) else None


def promise(place: int, message_id: str, said: object) -> Write:
    """M3: the mark, in the place where the message was seen."""

    def write(record: Record) -> tuple[Record, Any] | None:
        mail = record.state.mail
        if place >= len(mail) or mail[place].id != message_id:
            return None
        marked = (*mail[:place], replace(mail[place], promised=True), *mail[place + 1 :])
        return replace(record, state=replace(record.state, mail=marked), edits=record.edits + 1), said

    return write


def nothing(_: Record) -> None:
    """A read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From a record that was seen to a new state.

    ``held``: its live owner acts, and a renewal meanwhile changes nothing. ``closes``: if the key is freed, it is
    because nothing is due. ``beside``: it happens beside a tenure, live or not. ``by_size``: a seeded bug.
    """

    seen: Record
    new: KeyState
    said: Any
    now_ms: int
    held: bool = False
    closes: bool = False
    beside: bool = False
    by_size: bool = False

    def __call__(self, record: Record) -> tuple[Record, Any] | None:
        """Write it, unless something has happened that would have the rules decide otherwise."""
        mail = self._merged(record.state.mail)
        if mail is None or not self._stands(record):
            return None
        old, new, state = self.seen.state, self.new, record.state
        after = replace(
            new,
            expires_ms=state.expires_ms if new.expires_ms == old.expires_ms else new.expires_ms,
            mail=mail,
            ended=state.ended if new.ended == old.ended else new.ended,
            dead=(*state.dead, *new.dead[len(old.dead) :]),
            origin=state.origin if new.origin == old.origin else new.origin,
        )
        edited = new.mail != old.mail and not self._granted and not self._freed
        return Record(state=after, edits=record.edits + edited, exists=True), self.said

    @property
    def _granted(self) -> bool:
        return self.new.owner is not None and self.new.fence != self.seen.state.fence

    @property
    def _freed(self) -> bool:
        old = self.seen.state
        return self.new.owner is None and (old.owner is not None or self.new.fence != old.fence)

    @property
    def _added(self) -> list[Stored]:
        known = {message.id for message in self.seen.state.mail}
        return [message for message in self.new.mail if message.id not in known]

    def _stands(self, record: Record) -> bool:
        """Whether nothing has happened since."""
        old, new, state = self.seen.state, self.new, record.state
        if record.exists != self.seen.exists or (state.owner, state.fence) != (old.owner, old.fence):
            return False
        if self.held and state.expires_ms <= self.now_ms:
            return False
        if not self.held and not self.beside and state.expires_ms != old.expires_ms:
            return False
        renews = self.held and not self._granted and not self._freed and new.expires_ms != old.expires_ms
        if renews and state.expires_ms > new.expires_ms:
            return False
        takes_over = self._granted and not self.held
        edits_matter = new.ended != old.ended or (new.mail != old.mail and not takes_over)
        if edits_matter and not self.by_size and record.edits != self.seen.edits:
            return False
        size_matters = bool(self._added) or (self._freed and (self.closes or not new.mail))
        return not size_matters or len(state.mail) == len(old.mail)

    def _merged(self, current: Sequence[Stored]) -> tuple[Stored, ...] | None:
        """The list with what has changed, each message expected in the place where it was seen."""
        after = {message.id: message for message in self.new.mail}
        mail: list[Stored] = []
        for place, was in enumerate(self.seen.state.mail):
            here = current[place] if place < len(current) else None
            wanted = after.get(was.id)
            if wanted != was and not self.by_size and (here is None or here.id != was.id):
                return None
            if wanted is not None and here is not None:
                changes = {name: value for name in _FIELDS if (value := getattr(wanted, name)) != getattr(was, name)}
                mail.append(replace(here, **changes) if changes else here)
        return (*mail, *current[len(self.seen.state.mail) :], *self._added)


def known_ids(state: KeyState) -> set[str]:
    """Ids that are not stored a second time, however old their traces are."""
    return {message.id for message in state.mail} | {trace.id for trace in state.ended if trace.outcome != "failed"}


def is_ended(state: KeyState, owner: str) -> bool:
    """Whether that claim's own message has failed."""
    return any(trace.outcome == "failed" and trace.by == owner for trace in state.ended)
