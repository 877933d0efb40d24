"""The five methods of a lease, in memory."""

from incumbent import rules
from incumbent.clock import deadline
from incumbent.providers.memory.steps import MemorySteps
from incumbent.validation import (
    check_key,
    check_lease,
    check_owner,
    check_transfer,
)
from incumbent.values import (
    Acquisition,
)


class MemoryLeases(MemorySteps):
    """Leases alone."""

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
