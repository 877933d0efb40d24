"""The sequential specification of one key: `incumbent.rules`, with time standing still and fences as they were seen.

No lease ends and no pause is over while a history goes on. What the rules' own numbers for fences are does not matter:
what was seen must be the same within a tenure, and larger than all before in the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from incumbent import rules
from incumbent.errors import LeaseLost, MailboxFull
from incumbent.rules import KeyState, Stored
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claimed,
    Continued,
    Duplicate,
    Failure,
    Idle,
    Message,
    Policy,
    Released,
    Routed,
)
from tests.linearizability.checker import UNKNOWN, Operation

NOW_MS = 1
TTL_MS = 600_000
NOBODY = KeyState()
POLICY = Policy(max_pending=3, max_attempts=2, pauses_ms=(3_600_000,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key's state, the fence that was seen of the present tenure, and the highest that was seen of those before."""

    state: KeyState = NOBODY
    fence: int | None = None
    floor: int = 0
    tenures: tuple[tuple[str, int], ...] = ()
    """Who was granted the key, with the rules' own fences: what a provider remembers of its grants."""

    appended: frozenset[str] = frozenset()
    """Claims that have stored their message and then seen that nobody held the key (DynamoDB)."""


class OneKey:
    """The specification. Arguments are those of the calls; ``repeated`` says that an earlier try went before it."""

    def start(self) -> Key:
        """Nothing is known of the key."""
        return Key()

    def after(self, state: Key, operation: Operation) -> Iterable[Key]:
        """Where the call leads, if it may have answered as it did."""
        owner = operation.arguments.get("owner", "")
        if operation.name == "append":
            new = self._append(state.state, owner, operation.arguments)
            return [] if new is state.state else [replace(state, state=new, appended=state.appended | {owner})]
        if owner in state.appended and plain(operation.answer) == (
            "accepted",
            state.state.owner,
            len(state.state.mail),
        ):
            return [
                state
            ]  # refused when it claimed the key for what it had stored: somebody has come, or come and gone
        new, said = self._apply(state, operation.name, operation.arguments)
        tenures = state.tenures
        if new.fence != state.state.fence and new.owner is not None:
            tenures = (*tenures, (new.owner, new.fence))
        key = replace(state, state=new, tenures=tenures)
        if new.fence != state.state.fence:  # a new tenure, even if it was over at once
            key = replace(key, floor=max(state.floor, state.fence or 0), fence=None)
        if operation.answer is UNKNOWN:
            return [key]
        fence = getattr(operation.answer, "fence", None)
        if fence is not None:
            if fence <= key.floor or key.fence not in (None, fence):
                return []
            key = replace(key, fence=fence)
        return [key] if plain(operation.answer) == said else []

    def _apply(self, key: Key, name: str, given: dict[str, Any]) -> tuple[KeyState, Any]:  # noqa: C901, PLR0912 - each call once
        state, owner = key.state, given.get("owner", "")
        fence = dict(key.tenures).get(owner)
        match name:
            case "acquire":
                new, got = rules.acquire(state, NOW_MS, owner, TTL_MS)
                return new, ("held", got.owner) if isinstance(got, rules.Held) else ("granted", owner, (), 0)
            case "owner":
                return state, state.owner
            case "renew":
                new, answer = rules.renew(state, NOW_MS, owner, TTL_MS)
                return new, answer != "lost"
            case "beat":
                new, answer = rules.renew(state, NOW_MS, owner, TTL_MS)
                return new, "lost" if answer == "lost" else ("beat", answer.waiting)
            case "release":
                return rules.release(state, NOW_MS, owner), None
            case "transfer":
                return rules.transfer(
                    state, NOW_MS, owner, given["successor"], TTL_MS, repeated=given.get("repeated", False)
                )
            case "claim":
                return self._claim(state, owner, given)
            case "settle":
                return _said(
                    rules.settle(
                        state,
                        NOW_MS,
                        owner,
                        TTL_MS,
                        handled=given.get("handled", ()),
                        failed=[Failure(id=each, error="no") for each in given.get("failed", ())],
                        dropped=[Failure(id=each, error="no") for each in given.get("dropped", ())],
                        deferred=given.get("deferred", ()),
                        policy=POLICY,
                        next_owner=given.get("next_owner"),
                        ticket=given.get("ticket"),
                        fence=fence,
                        repeated=given.get("repeated", False),
                    ),
                    ticket=given.get("ticket"),
                )
            case "take":
                new, answer = rules.take(state, NOW_MS, owner, TTL_MS)
                have = given.get("have", ())
                if answer == "lost":
                    return new, "lost"
                return new, tuple((each.id, each.attempts) for each in rules.given(new) if each.id not in have)
            case "peek":
                return state, tuple((each.id, each.attempts) for each in state.mail)
            case "find":
                return state, rules.state_of(state, given["id"], NOW_MS, POLICY.window_ms) or "unknown"
            case _:
                raise ValueError(name)

    @staticmethod
    def _claim(state: KeyState, owner: str, given: dict[str, Any]) -> tuple[KeyState, Any]:
        message_id, as_ticket = given.get("id"), given.get("as_ticket", False)
        message = (
            None
            if message_id is None
            else Stored(id=message_id, body="", claimed_by=owner, promised=False, stored_ms=0)
        )
        return _said(
            rules.claim(
                state,
                NOW_MS,
                owner,
                TTL_MS,
                message,
                policy=POLICY,
                ticket=given.get("ticket"),
                as_ticket=as_ticket,
                route=given.get("route", True),
            )
        )

    @staticmethod
    def _append(state: KeyState, owner: str, given: dict[str, Any]) -> KeyState:
        """DynamoDB stores behind whoever holds the key, and then sees that nobody does."""
        known = rules.state_of(state, given["id"], NOW_MS, POLICY.window_ms) is not None
        if known or rules.owned(state, NOW_MS) or len(state.mail) >= POLICY.max_pending:
            return state
        if any(trace.outcome == "failed" and trace.claimed_by == owner for trace in state.ended):
            return state
        message = Stored(id=given["id"], body="", claimed_by=owner, promised=True, stored_ms=0)
        return replace(state, mail=(*state.mail, message))


def _said(step: tuple[KeyState, Any], *, ticket: str | None = None) -> tuple[KeyState, Any]:
    """What the rules answered, as `plain` writes a provider's answer."""
    new, answer = step
    match answer:
        case rules.Granted():
            given = () if ticket is not None else tuple((each.id, each.attempts) for each in answer.given)
            return new, ("granted", answer.owner, given, answer.waiting)
        case rules.Held():
            return new, ("held", answer.owner)
        case rules.Accepted():
            return new, ("accepted", answer.owner, answer.stored)
        case rules.Known():
            return new, ("known", answer.state, answer.owner)
        case rules.Freed():
            return new, ("freed", answer.remaining)
        case rules.Nothing():
            return new, "nothing due"
        case _:
            return new, answer


def plain(answer: Any) -> Any:  # noqa: C901 - each answer once
    """A provider's answer without what differs from store to store."""
    match answer:
        case Acquisition():
            return ("granted", answer.owner, (), 0) if answer.acquired else ("held", answer.owner)
        case Claimed() | Continued():
            given = tuple((each.id, each.attempt) for each in answer.messages)
            return "granted", answer.owner, given, answer.waiting
        case Routed():
            return "accepted", answer.owner, answer.waiting
        case Duplicate():
            return "known", answer.state, answer.owner
        case Busy():
            return "held", answer.owner
        case Idle():
            return "nothing due"
        case Released():
            return "freed", answer.remaining
        case Beat():
            return "beat", answer.waiting
        case type() if issubclass(answer, LeaseLost):
            return "lost"
        case type() if issubclass(answer, MailboxFull):
            return "full"
        case tuple() | list():
            return tuple((each.id, each.attempt) if isinstance(each, Message) else each for each in answer)
        case _:
            return answer
