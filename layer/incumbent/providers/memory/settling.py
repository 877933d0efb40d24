"""Ends a run's messages, and frees the key or passes it on, in memory."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from incumbent import rules
from incumbent.clock import Moment, deadline
from incumbent.contract import DEFAULT_POLICY
from incumbent.frozen import maker
from incumbent.providers.memory.steps import MemorySteps, after, message_of
from incumbent.providers.shared import (
    check_reason,
    check_settle,
    kept_results,
)
from incumbent.providers.unreadable import all_readable, go_on_readable
from incumbent.values import (
    Continued,
    Failure,
    Policy,
    Released,
)

_make_released = maker(Released)


class MemorySettles(MemorySteps):
    """How runs end."""

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
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Released | Continued:
        """Record the outcome of the run's messages, and free the key or pass it on (M2)."""
        kept = kept_results(key, handled, results, policy) if results else None
        reason = "" if hold_reason is None else check_reason(key, hold_reason)
        check_settle(
            key,
            owner,
            ttl_ms,
            handled=handled,
            failed=failed,
            dropped=dropped,
            deferred=deferred,
            stopped=stopped,
            hold_ms=hold_ms,
            next_owner=next_owner,
            ticket=ticket,
            fence=fence,
        )
        settled = self._settle(
            key,
            owner,
            ttl_ms,
            lambda state, now: rules.settle(
                state,
                now,
                owner,
                ttl_ms,
                handled=handled,
                failed=failed,
                dropped=dropped,
                deferred=deferred,
                policy=policy,
                stopped=stopped,
                results=kept,
                hold_ms=hold_ms,
                hold_reason=reason,
                next_owner=next_owner,
                ticket=ticket,
                fence=fence,
            ),
            is_ticket=ticket is not None,
        )
        if isinstance(settled, Released) or all_readable(settled.messages):
            return settled
        return go_on_readable(settled, functools.partial(self._fail, key, ttl_ms, policy))

    def _fail(
        self,
        key: str,
        ttl_ms: int,
        policy: Policy,
        owner: str,
        *,
        fence: int,
        failed: Sequence[Failure],
        next_owner: str | None,
    ) -> Released | Continued:
        """Settle messages that cannot be read, and nothing else."""
        return self._settle(
            key,
            owner,
            ttl_ms,
            lambda state, now: rules.settle(
                state,
                now,
                owner,
                ttl_ms,
                handled=(),
                failed=failed,
                dropped=(),
                deferred=(),
                policy=policy,
                next_owner=next_owner,
                fence=fence,
            ),
        )

    def _settle(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        step: Callable[[rules.KeyState, int], tuple[rules.KeyState, object]],
        *,
        is_ticket: bool = False,
    ) -> Released | Continued:
        sent, answer, dead_lettered = self._burying_step(key, step)
        match answer:
            case rules.Granted():
                return Continued(
                    owner=answer.owner,
                    fence=answer.fence,
                    messages=() if is_ticket else tuple(map(message_of, answer.given)),
                    waiting=answer.waiting,
                    expires_in_ms=answer.expires_ms - sent.wall_ms,
                    deadline=deadline(sent, ttl_ms, answer.expires_ms - sent.wall_ms),
                    stop=answer.stop,
                    dead_lettered=dead_lettered,
                )
            case rules.Freed():
                return _make_released(
                    remaining=answer.remaining,
                    due_in_ms=after(sent, answer.due_ms),
                    stop=answer.stop,
                    dead_lettered=dead_lettered,
                )
            case _:
                raise self._lost("settle", key, owner)
