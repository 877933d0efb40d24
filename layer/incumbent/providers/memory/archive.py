"""What became of messages, in memory."""

from collections.abc import Iterable

from incumbent import rules
from incumbent.contract import DEFAULT_POLICY
from incumbent.providers.memory.steps import MemorySteps, dead_message_of
from incumbent.providers.shared import (
    redrive_full,
    status_of,
)
from incumbent.validation import (
    check_key,
    check_limit,
    check_message_id,
)
from incumbent.values import (
    DeadLetter,
    Policy,
    Status,
)


class MemoryArchives(MemorySteps):
    """Outcomes and dead letters."""

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
            DeadLetter(key=each, message=dead_message_of(letter), died_at_ms=letter.died_ms)
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
