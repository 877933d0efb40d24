"""The memory provider: a dictionary and a lock over the pure rules. It is the executable reference.

It serves one process. Every call is one step under the lock and never raises ``LeaseUnavailable``.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from incumbent import rules
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment, deadline
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import LeaseLost
from incumbent.providers.shared import (
    check_claim,
    check_hold,
    check_note,
    check_reason,
    check_settle,
    dead_message,
    is_active,
    kept_results,
    key_status,
    lease_lost,
    mailbox_full,
    redrive_full,
    status_of,
    stored_message,
)
from incumbent.providers.unreadable import claim_readable, go_on_readable, readable
from incumbent.validation import (
    check_fence,
    check_key,
    check_lease,
    check_limit,
    check_message_id,
    check_owner,
    check_transfer,
)
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claim,
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
    Taken,
)

A = TypeVar("A")


class MemoryProvider:
    """Leases and mailboxes in this process's memory. Other processes do not see them, and a restart loses them."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Begin empty. ``clock`` is the store's clock."""
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, rules.KeyState] = {}

    def _step(self, key: str, step: Callable[[rules.KeyState, int], tuple[rules.KeyState, A]]) -> tuple[Moment, A]:
        """Carry out one step of one key, atomically. Return when it was sent, and its answer."""
        sent, answer, _ = self._burying_step(key, step)
        return sent, answer

    def _burying_step(
        self, key: str, step: Callable[[rules.KeyState, int], tuple[rules.KeyState, A]]
    ) -> tuple[Moment, A, tuple[Message, ...]]:
        """Carry out a step in which messages may become dead letters. Return those too."""
        sent = self._clock.now()
        with self._lock:
            # The clock is read again under the lock: a step that waited must not act on an old time.
            before = self._keys.get(key, rules.KeyState())
            state, answer = step(before, self._clock.now().wall_ms)
            if state is not before:  # a call that only reads stores nothing
                self._keys[key] = state
        return sent, answer, tuple(map(_dead_message, rules.dead_lettered(before, state)))

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Acquire the lease if the key is free or already this owner's (R2)."""
        check_lease(key, owner, ttl_ms)
        sent, answer = self._step(key, lambda state, now: rules.acquire(state, now, owner, ttl_ms))
        expires_in_ms = answer.expires_ms - sent.wall_ms
        if isinstance(answer, rules.Held):
            return Acquisition(acquired=False, owner=answer.owner, expires_in_ms=expires_in_ms)
        return Acquisition(
            acquired=True,
            owner=owner,
            fence=answer.fence,
            expires_in_ms=expires_in_ms,
            deadline=deadline(sent, ttl_ms),
        )

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, or ``None`` if the key is free (R3)."""
        check_key(key)
        _, owner = self._step(key, lambda state, now: (state, state.owner if rules.owned(state, now) else None))
        return owner

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5)."""
        check_owner(owner, check_key(key))
        self._step(key, lambda state, now: (rules.release(state, now, owner), None))

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease, or return ``False`` when it is lost (R4)."""
        check_lease(key, owner, ttl_ms)
        _, answer = self._step(key, lambda state, now: rules.renew(state, now, owner, ttl_ms))
        return answer != "lost"

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key to ``to_owner`` without a gap, or return ``False`` if it is not ``from_owner``'s (R6)."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        _, answer = self._step(key, lambda state, now: rules.transfer(state, now, from_owner, to_owner, ttl_ms))
        return answer is True

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
        after_ms: int = 0,
        debounce: Debounce | None = None,
        interrupt: bool = False,
    ) -> Claim:
        """Store the message and try to own the key, in one step (M1)."""
        return claim_readable(
            lambda: self._claim(
                key,
                owner,
                ttl_ms,
                message,
                ticket=ticket,
                as_ticket=as_ticket,
                route=route,
                origin=origin,
                policy=policy,
                after_ms=after_ms,
                debounce=debounce,
                interrupt=interrupt,
            ),
            functools.partial(self._settle, key, ttl_ms=ttl_ms, policy=policy),
            message,
        )

    def _claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        message: Message | None,
        *,
        ticket: str | None,
        as_ticket: bool,
        route: bool,
        origin: Origin | None,
        policy: Policy,
        after_ms: int,
        debounce: Debounce | None,
        interrupt: bool,
    ) -> Claim:
        body = check_claim(
            key, owner, ttl_ms, message, ticket=ticket, policy=policy, after_ms=after_ms, debounce=debounce
        )

        def step(state: rules.KeyState, now: int) -> tuple[rules.KeyState, object]:
            stored = None
            if message is not None and body is not None:
                stored = rules.Stored(
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

        sent, answer, dead_lettered = self._burying_step(key, step)
        match answer:
            case rules.Granted():
                return Claimed(
                    owner=owner,
                    fence=answer.fence,
                    messages=tuple(map(_message, answer.given)),
                    waiting=answer.waiting,
                    expires_in_ms=answer.expires_ms - sent.wall_ms,
                    deadline=deadline(sent, ttl_ms, answer.expires_ms - sent.wall_ms),
                    dead_lettered=dead_lettered,
                )
            case rules.Accepted():
                return Routed(
                    owner=answer.owner,
                    waiting=answer.stored,
                    due_in_ms=_from(sent, answer.due_ms),
                    superseded=answer.superseded,
                )
            case rules.Known():
                return Duplicate(state=answer.state, owner=answer.owner, dead_lettered=dead_lettered)
            case rules.Held():
                return Busy(owner=answer.owner, expires_in_ms=answer.expires_ms - sent.wall_ms)
            case "full":
                raise mailbox_full(key, policy, owner=self.get_lease_owner(key))
            case rules.Nothing():
                return Idle(due_in_ms=_from(sent, answer.due_ms), dead_lettered=dead_lettered)
            case _:
                raise AssertionError(answer)

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
        settled = self._settle(
            key,
            owner,
            ttl_ms=ttl_ms,
            handled=handled,
            failed=failed,
            dropped=dropped,
            deferred=deferred,
            next_owner=next_owner,
            ticket=ticket,
            policy=policy,
            stopped=stopped,
            results=results,
            hold_ms=hold_ms,
            hold_reason=hold_reason,
            fence=fence,
        )
        return go_on_readable(settled, functools.partial(self._settle, key, ttl_ms=ttl_ms, policy=policy))

    def _settle(
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
        policy: Policy,
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        fence: int | None,
    ) -> Released | Continued:
        kept = kept_results(key, handled, results, policy)
        reason = check_reason(key, hold_reason)
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
        sent, answer, dead_lettered = self._burying_step(
            key,
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
        )
        match answer:
            case rules.Granted():
                return Continued(
                    owner=answer.owner,
                    fence=answer.fence,
                    messages=() if ticket is not None else tuple(map(_message, answer.given)),
                    waiting=answer.waiting,
                    expires_in_ms=answer.expires_ms - sent.wall_ms,
                    deadline=deadline(sent, ttl_ms, answer.expires_ms - sent.wall_ms),
                    stop=answer.stop,
                    dead_lettered=dead_lettered,
                )
            case rules.Freed():
                return Released(
                    remaining=answer.remaining,
                    due_in_ms=_from(sent, answer.due_ms),
                    stop=answer.stop,
                    dead_lettered=dead_lettered,
                )
            case _:
                raise self._lost("settle", key, owner)

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
        return Taken(readable([_message(stored) for stored in answer.given if stored.id not in have]), answer.stop)

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first."""
        check_key(key)
        _, mail = self._step(key, lambda state, _: (state, state.mail))
        return tuple(map(_message, mail))

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

    # --- the archive

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Return what is known of a message id (M5, M17)."""
        check_message_id(message_id, check_key(key))
        _, found = self._step(key, lambda state, now: (state, status_of(state, message_id, now, policy.window_ms)))
        return found

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key, or of all keys (M6)."""
        check_limit(limit)
        now = self._clock.now().wall_ms
        with self._lock:
            states = (
                list(self._keys.items()) if key is None else [(key, self._keys.get(check_key(key), rules.KeyState()))]
            )
        letters = [(each, letter) for each, state in states for letter in rules.letters(state, now)]
        return [
            DeadLetter(key=each, message=_dead_message(letter), died_at_ms=letter.died_ms)
            for each, letter in letters[:limit]
        ]

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox (M6)."""
        check_message_id(message_id, check_key(key))
        back = self._step(key, lambda state, now: rules.redrive(state, now, message_id))[1]
        if back == "full":
            raise redrive_full(key, message_id)
        return back

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good (M6)."""
        check_message_id(message_id, check_key(key))
        return self._step(key, lambda state, _: rules.purge(state, message_id))[1]

    # --- control

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """Mark the live tenure, so that its run stops (M16)."""
        check_fence(fence, check_key(key))
        why = check_reason(key, reason)
        return self._step(key, lambda state, now: rules.stop(state, now, fence, why))[1]

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """Return the mark of the owner's tenure, without a renewal (M16)."""
        check_owner(owner, check_key(key))
        check_fence(fence, key)
        _, answer = self._step(
            key, lambda state, now: (state, state if rules.owned_by(state, owner, now, fence) else None)
        )
        if answer is None:
            raise self._lost("watch", key, owner)
        return answer.stop

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """Grant the key to no caller for a while (M15)."""
        why = check_reason(check_key(key), reason)
        check_hold(key, for_ms, 0)
        self._step(key, lambda state, now: (rules.hold(state, now, check_hold(key, for_ms, now), why), None))

    def resume(self, key: str) -> bool:
        """End a hold (M15)."""
        check_key(key)
        return self._step(key, rules.resume)[1]

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Remove a message that waits (M19)."""
        check_message_id(message_id, check_key(key))

        def step(state: rules.KeyState, now: int) -> tuple[rules.KeyState, Status]:
            state, _ = rules.cancel(state, now, message_id, policy.window_ms)
            return state, status_of(state, message_id, now, policy.window_ms)

        return self._step(key, step)[1]

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """Return what is known of a key."""
        check_key(key)
        now = self._clock.now().wall_ms
        with self._lock:
            return _key_status(key, self._keys.get(key, rules.KeyState()), now, events=events)

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """List the keys that have an owner, messages or a hold."""
        check_limit(limit)
        now = self._clock.now().wall_ms
        with self._lock:
            keys = sorted(self._keys.items())
        found = (_key_status(key, state, now, events=False) for key, state in keys)
        return list(islice((each for each in found if is_active(each)), limit))

    def _lost(self, call: str, key: str, owner: str) -> LeaseLost:
        return lease_lost(call, key, owner, self.get_lease_owner(key))


def _from(sent: Moment, at_ms: int | None) -> int | None:
    """Return how long after the sending a moment of the store's clock is."""
    return None if at_ms is None else max(0, at_ms - sent.wall_ms)


def _key_status(key: str, state: rules.KeyState, now_ms: int, *, events: bool) -> KeyStatus:
    return key_status(key, state, [_message(stored) for stored in state.mail], now_ms, events=events)


def _message(stored: rules.Stored) -> Message:
    return stored_message(stored, stored.body)


def _dead_message(letter: rules.Dead) -> Message:
    return dead_message(letter, letter.body)


_MAKING = threading.Lock()


def process_memory() -> MemoryProvider:
    """Return the one memory provider of this process, which all its functions share."""
    with _MAKING:  # a cache alone may make two for two threads at once, and every key would have two owners
        return _process_memory()


@functools.cache
def _process_memory() -> MemoryProvider:
    return MemoryProvider()
