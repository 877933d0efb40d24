"""Stores a message and tries to own its key, in memory."""

import functools
from collections.abc import Callable, Iterator
from itertools import chain, count

from incumbent import rules
from incumbent.clock import deadline
from incumbent.contract import DEFAULT_POLICY
from incumbent.frozen import maker
from incumbent.providers.memory.settling import MemorySettles
from incumbent.providers.memory.steps import after, message_of
from incumbent.providers.shared import (
    check_claim,
    mailbox_full,
)
from incumbent.providers.unreadable import all_readable, claim_readable
from incumbent.values import (
    Busy,
    Claim,
    Claimed,
    Debounce,
    Duplicate,
    Idle,
    Message,
    Origin,
    Policy,
    Routed,
)

_make_claimed = maker(Claimed)
_make_stored = maker(rules.Stored)


class MemoryClaims(MemorySettles):
    """How messages come."""

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
        after_ms: int = 0,
        debounce: Debounce | None = None,
        interrupt: bool = False,
    ) -> Claim:
        """Store the message and try to own the key, in one step (M1)."""
        body = check_claim(
            key, owner, ttl_ms, message, ticket=ticket, policy=policy, after_ms=after_ms, debounce=debounce
        )

        def step(state: rules.KeyState, now: int) -> tuple[rules.KeyState, object]:
            stored = None
            if message is not None and body is not None:
                stored = _make_stored(
                    id=message.id,
                    body=body,
                    claimed_by=owner,
                    promised=False,
                    stored_ms=now,
                    due_ms=now + after_ms if after_ms else 0,
                )
            return rules.claim(
                state,
                now,
                owner,
                ttl_ms,
                stored,
                policy=policy,
                ticket=ticket,
                as_ticket=as_ticket,
                route=route,
                origin=origin,
                debounce=debounce,
                interrupt=interrupt,
            )

        answer = self._claim(key, owner, ttl_ms, policy, step)
        if not isinstance(answer, Claimed) or all_readable(answer.messages):
            return answer
        again = functools.partial(self._claim, key, owner, ttl_ms, policy, step)
        answers: Iterator[Claim] = chain([answer], (again() for _ in count()))
        return claim_readable(lambda: next(answers), functools.partial(self._fail, key, ttl_ms, policy), message)

    def _claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        policy: Policy,
        step: Callable[[rules.KeyState, int], tuple[rules.KeyState, object]],
    ) -> Claim:
        sent, answer, dead_lettered = self._burying_step(key, step)
        match answer:
            case rules.Granted():
                return _make_claimed(
                    owner=owner,
                    fence=answer.fence,
                    messages=tuple(map(message_of, answer.given)),
                    waiting=answer.waiting,
                    expires_in_ms=(lives_ms := answer.expires_ms - sent.wall_ms),
                    deadline=deadline(sent, ttl_ms, lives_ms),
                    dead_lettered=dead_lettered,
                )
            case rules.Accepted():
                return Routed(
                    owner=answer.owner,
                    waiting=answer.stored,
                    due_in_ms=after(sent, answer.due_ms),
                    superseded=answer.superseded,
                )
            case rules.Known():
                return Duplicate(state=answer.state, owner=answer.owner, dead_lettered=dead_lettered)
            case rules.Held():
                return Busy(owner=answer.owner, expires_in_ms=answer.expires_ms - sent.wall_ms)
            case "full":
                raise mailbox_full(key, policy, owner=self.get_lease_owner(key))
            case rules.Nothing():
                return Idle(due_in_ms=after(sent, answer.due_ms), dead_lettered=dead_lettered)
            case _:
                raise AssertionError(answer)
