"""Looks after a mailbox while its owner runs, and when it has none, in memory."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from incumbent import rules
from incumbent.clock import Moment, deadline
from incumbent.providers.memory.steps import MemorySteps, message_of
from incumbent.providers.shared import (
    check_note,
)
from incumbent.providers.unreadable import readable
from incumbent.validation import (
    check_key,
    check_lease,
    check_limit,
)
from incumbent.values import (
    Beat,
    Message,
    Orphan,
    Taken,
)


class MemoryMailboxes(MemorySteps):
    """What waits, and for whom."""

    def beat(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        note: Any = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Beat:
        """Renew the lease (R4) and report how many messages wait."""
        check_lease(key, owner, ttl_ms, fence)
        text = check_note(key, note)
        sent, answer = self._step(key, lambda state, now: rules.renew(state, now, owner, ttl_ms, fence, note=text))
        if answer == "lost":
            raise self._lost("beat", key, owner)
        return Beat(
            fence=answer.fence,
            waiting=answer.waiting,
            expires_in_ms=answer.expires_ms - sent.wall_ms,
            deadline=deadline(sent, ttl_ms, answer.expires_ms - sent.wall_ms),
            stop=answer.stop,
        )

    def take(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        have: Sequence[str] = (),
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Taken:
        """Renew the lease and take all due messages that were never delivered (M6)."""
        check_lease(key, owner, ttl_ms, fence)
        _, answer = self._step(key, lambda state, now: rules.take(state, now, owner, ttl_ms, fence))
        if answer == "lost":
            raise self._lost("take", key, owner)
        return Taken(readable([message_of(stored) for stored in answer.given if stored.id not in have]), answer.stop)

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first."""
        check_key(key)
        _, mail = self._step(key, lambda state, _: (state, state.mail))
        return tuple(map(message_of, mail))

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Find keys with due messages and no live owner (M8)."""
        check_limit(limit)
        now = self._clock.now().wall_ms
        with self._lock:
            keys = list(self._keys.items())
        found = [
            (since_ms, key, state) for key, state in keys if (since_ms := rules.orphaned_since(state, now)) is not None
        ]
        found.sort(key=lambda orphan: orphan[:2])
        orphans = (
            Orphan(
                key=key,
                target=state.origin.target if state.origin else None,
                age_ms=now - since_ms,
                waiting=len(rules.due(state, now)),
            )
            for since_ms, key, state in found
        )
        return list(islice(rules.shared(orphans), limit))
