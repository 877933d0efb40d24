"""The lease: five calls that read the lease and the key's state, and no message."""

from incumbent.clock import deadline
from incumbent.providers.redis.answers import holder, lives, senseless, text
from incumbent.providers.redis.requests import Requests, repeated
from incumbent.providers.shared import in_doubt
from incumbent.validation import check_key, check_lease, check_owner, check_transfer
from incumbent.values import Acquisition


class Leases(Requests):
    """A lease provider in Redis."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Acquire the lease if the key is free or already this owner's (R2)."""
        check_lease(key, owner, ttl_ms)
        answer = self._run("acquire", key, owner, ttl_ms, call="acquire", ttl_ms=ttl_ms)
        match answer.word:
            case b"granted":
                fence, pttl = map(int, answer.numbers)
                return Acquisition(
                    acquired=True,
                    owner=owner,
                    fence=fence,
                    expires_in_ms=pttl,
                    deadline=deadline(answer.sent, ttl_ms, pttl),
                )
            case b"held":
                return Acquisition(acquired=False, owner=holder(answer), expires_in_ms=lives(answer.numbers[0]))
            case _:
                raise senseless(key, answer)

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, or ``None`` if the key is free (R3)."""
        check_key(key)
        answer = self._run("owner", key, call="get_lease_owner")
        match answer.word:
            case b"held":
                return text(answer.more[0])
            case b"free":
                return None
            case _:
                raise senseless(key, answer)

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5)."""
        check_owner(owner, check_key(key))
        self._run("release", key, owner, call="release")

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease, or return ``False`` when it is lost (R4)."""
        check_lease(key, owner, ttl_ms)
        answer = self._run("renew", key, owner, ttl_ms, b"", call="renew", ttl_ms=ttl_ms)
        return answer.word == b"renewed"

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key to ``to_owner`` without a gap, or return ``False`` if it is not ``from_owner``'s (R6)."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        answer = self._run("transfer", key, from_owner, to_owner, ttl_ms, repeated, call="transfer", ttl_ms=ttl_ms)
        match answer.word:
            case b"moved":
                return True
            case b"lost":
                return False
            case b"unknown":
                raise in_doubt("transfer", key, from_owner, holder(answer))
            case _:
                raise senseless(key, answer)
