"""Looks at keys, holds and stops them, in memory."""

from collections.abc import Iterable
from itertools import islice

from incumbent import rules
from incumbent.contract import DEFAULT_POLICY
from incumbent.providers.memory.steps import MemorySteps, key_status_of
from incumbent.providers.shared import (
    check_hold,
    check_reason,
    held_until,
    is_active,
    status_of,
)
from incumbent.validation import (
    check_fence,
    check_key,
    check_limit,
    check_message_id,
    check_owner,
)
from incumbent.values import (
    KeyStatus,
    Policy,
    Status,
)


class MemoryControls(MemorySteps):
    """What operators ask for."""

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
        check_hold(key, for_ms)
        self._step(key, lambda state, now: (rules.hold(state, now, held_until(for_ms, now), why), None))

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
            return key_status_of(key, self._keys.get(key, rules.KeyState()), now, events=events)

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """List the keys that have an owner, messages or a hold."""
        check_limit(limit)
        now = self._clock.now().wall_ms
        with self._lock:
            keys = sorted(self._keys.items())
        found = (key_status_of(key, state, now, events=False) for key, state in keys)
        return list(islice((each for each in found if is_active(each)), limit))
