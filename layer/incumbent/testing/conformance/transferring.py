"""How a lease passes to a successor, and what its fence is then (R6, R7)."""
# ruff: noqa: S101 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.contract import LeaseProvider
from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.samples import MAX_TTL_MS
from incumbent.testing.conformance.subject import TTL_MS, Subject


class Transferring(Subject):
    """From one owner to the next."""

    def test_transfer_gives_the_successor_a_full_ttl_and_a_new_fence(self, provider: LeaseProvider, key: str) -> None:
        """R6: from a live owner, in one step."""
        first = provider.acquire_lease(key, "A", TTL_MS)
        self.pass_time(20_000)
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        assert provider.get_lease_owner(key) == "B"
        refused = provider.acquire_lease(key, "C", TTL_MS)
        assert (refused.acquired, refused.owner) == (False, "B")
        assert self.about(refused.expires_in_ms, TTL_MS)
        again = provider.acquire_lease(key, "B", 1)
        assert again.fence is not None
        assert first.fence is not None
        assert again.fence > first.fence

    def test_transfer_may_shorten(self, provider: LeaseProvider, key: str) -> None:
        """R6: the successor's tenure is its own: ttl_ms, whatever was left of the owner's."""
        provider.acquire_lease(key, "A", TTL_MS * 10)
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        assert self.about(provider.acquire_lease(key, "C", TTL_MS).expires_in_ms, TTL_MS)

    def test_owner_that_transferred_is_late(self, provider: LeaseProvider, key: str) -> None:
        """R6: it renews and releases nothing of its successor's."""
        provider.acquire_lease(key, "A", TTL_MS)
        provider.transfer_lease(key, "A", "B", TTL_MS)
        assert provider.renew_lease(key, "A", TTL_MS) is False
        assert provider.transfer_lease(key, "A", "C", TTL_MS) is False
        provider.release_lease(key, "A")
        assert provider.get_lease_owner(key) == "B"

    def test_repeated_transfer_is_true_again(self, provider: LeaseProvider, key: str) -> None:
        """R6, R8: and takes effect once: the fence is the first one's."""
        # H4: KCL's hand-off.
        provider.acquire_lease(key, "A", TTL_MS)
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        fence = provider.acquire_lease(key, "B", 1).fence
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        assert provider.acquire_lease(key, "B", 1).fence == fence

    def test_repeated_transfer_is_false_once_the_successor_is_late(self, provider: LeaseProvider, key: str) -> None:
        """R3, R6: what it passed on is over, so there is nothing left to say yes to."""
        provider.acquire_lease(key, "A", TTL_MS)
        provider.transfer_lease(key, "A", "B", TTL_MS)
        self.expire()
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is False
        assert provider.get_lease_owner(key) is None

    def test_stranger_cannot_transfer(self, provider: LeaseProvider, key: str) -> None:
        """R6: neither a held key nor a free one, not even to its present owner."""
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is False
        assert provider.get_lease_owner(key) is None
        provider.acquire_lease(key, "A", TTL_MS)
        assert provider.transfer_lease(key, "B", "C", TTL_MS) is False
        assert provider.transfer_lease(key, "B", "A", TTL_MS) is False
        assert provider.get_lease_owner(key) == "A"

    def test_transfer_to_itself_is_refused(self, provider: LeaseProvider, key: str) -> None:
        """R2: an owner string is good for one tenure."""
        provider.acquire_lease(key, "A", TTL_MS)
        with pytest.raises(ConfigurationError):
            provider.transfer_lease(key, "A", "A", TTL_MS)
        assert provider.get_lease_owner(key) == "A"

    def test_transfer_ends_with_the_owners_lease(self, provider: LeaseProvider, key: str) -> None:
        """R3, the owner's edge: transferable one millisecond before, not at the ttl."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.pass_almost(TTL_MS)
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        self.pass_time(TTL_MS)
        assert provider.transfer_lease(key, "B", "C", TTL_MS) is False

    def test_transferred_lease_expires_like_any_other(self, provider: LeaseProvider, key: str) -> None:
        """R3: a successor that never came blocks the key for one ttl."""
        # H36: KCL #1718, #1765: a hand-over left pending by a crash.
        provider.acquire_lease(key, "A", TTL_MS)
        provider.transfer_lease(key, "A", "B", TTL_MS)
        self.expire()
        assert provider.get_lease_owner(key) is None
        assert provider.acquire_lease(key, "C", TTL_MS).acquired

    # --- fence

    def test_fence_grows_with_every_grant(self, provider: LeaseProvider, key: str) -> None:
        """R7: over release, expiry, transfer, and again."""
        fences: list[int | None] = []
        for number in range(5):
            fences.append(provider.acquire_lease(key, f"A{number}", TTL_MS).fence)
            provider.release_lease(key, f"A{number}")
            fences.append(provider.acquire_lease(key, f"B{number}", TTL_MS).fence)
            self.expire()
            fences.append(provider.acquire_lease(key, f"C{number}", TTL_MS).fence)
            provider.transfer_lease(key, f"C{number}", f"D{number}", TTL_MS)
            fences.append(provider.acquire_lease(key, f"D{number}", 1).fence)
            provider.release_lease(key, f"D{number}")
        assert all(type(fence) is int for fence in fences)
        assert fences == sorted(set(fences), key=lambda fence: fence or 0)

    def test_fence_grows_after_the_key_was_forgotten(self, provider: LeaseProvider, key: str) -> None:
        """R7: across the clean-up of idle records."""
        before = provider.acquire_lease(key, "A", TTL_MS).fence
        provider.release_lease(key, "A")
        self.pass_time(30 * MAX_TTL_MS)
        after = provider.acquire_lease(key, "B", TTL_MS).fence
        assert before is not None
        assert after is not None
        assert after > before
