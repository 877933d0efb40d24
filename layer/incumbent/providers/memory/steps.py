"""One step of one key, atomically: what all calls of the memory provider are made of."""

import threading
from collections.abc import Callable
from typing import TypeVar

from incumbent import rules
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.errors import LeaseLost
from incumbent.providers.shared import (
    dead_message,
    key_status,
    lease_lost,
    stored_message,
)
from incumbent.validation import check_key
from incumbent.values import (
    KeyStatus,
    Message,
)

A = TypeVar("A")
_NEW = rules.KeyState()


class MemorySteps:
    """The states of the keys, behind one lock."""

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
        with self._lock:
            sent = self._clock.now()  # under the lock: a step that waited for it must not act on an old time
            before = self._keys.get(key, _NEW)
            state, answer = step(before, sent.wall_ms)
            if state is not before:  # a call that only reads stores nothing
                self._keys[key] = state
        if state.dead is before.dead:
            return sent, answer, ()
        return sent, answer, tuple(map(dead_message_of, rules.dead_lettered(before, state)))

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, or ``None`` if the key is free (R3)."""
        check_key(key)
        _, owner = self._step(key, lambda state, now: (state, state.owner if rules.owned(state, now) else None))
        return owner

    def _lost(self, call: str, key: str, owner: str) -> LeaseLost:
        return lease_lost(call, key, owner, self.get_lease_owner(key))


def after(sent: Moment, at_ms: int | None) -> int | None:
    """Return how long after the sending a moment of the store's clock is."""
    return None if at_ms is None else max(0, at_ms - sent.wall_ms)


def key_status_of(key: str, state: rules.KeyState, now_ms: int, *, events: bool) -> KeyStatus:
    """Return what is known of a key in a state."""
    return key_status(key, state, [message_of(stored) for stored in state.mail], now_ms, events=events)


def message_of(stored: rules.Stored) -> Message:
    """Return a stored message as the contract has it."""
    return stored_message(stored, stored.body)


def dead_message_of(letter: rules.Dead) -> Message:
    """Return the message of a dead letter as the contract has it."""
    return dead_message(letter, letter.body)
