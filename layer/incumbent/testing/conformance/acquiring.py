"""How a lease is acquired, renewed and released (R2 to R5)."""
# ruff: noqa: S101 - these are tests: assert is how they say it, and the numbers are the test

from incumbent.backends import is_lease_provider
from incumbent.contract import LeaseProvider
from incumbent.testing.conformance.samples import MAX_TTL_MS
from incumbent.testing.conformance.subject import TTL_MS, Subject


class Acquiring(Subject):
    """The stale owner, first of all; then what owners and strangers may do."""

    # --- the stale owner, first of all

    def test_late_owner_changes_nothing_of_its_successors(self, provider: LeaseProvider, key: str) -> None:
        """R3: A expires, B acquires; A's renew, transfer and release leave B as it was."""
        # H6: ShedLock #74, Terraform, Powertools, dynalock; H37: Mastra #23734.
        provider.acquire_lease(key, "A", TTL_MS)
        self.expire()
        other = self.make_other(provider)
        granted = other.acquire_lease(key, "B", TTL_MS)

        assert granted.acquired
        assert provider.renew_lease(key, "A", TTL_MS * 10) is False
        assert provider.transfer_lease(key, "A", "C", TTL_MS * 10) is False
        provider.release_lease(key, "A")

        assert provider.get_lease_owner(key) == "B"
        refused = provider.acquire_lease(key, "C", TTL_MS)
        assert (refused.acquired, refused.owner) == (False, "B")
        assert self.about(refused.expires_in_ms, TTL_MS)
        assert other.acquire_lease(key, "B", TTL_MS).fence == granted.fence

    def test_late_owner_cannot_revive_a_lease_that_nobody_took(self, provider: LeaseProvider, key: str) -> None:
        """R3: once the ttl has passed, renew and transfer are False though the key is still free."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.expire()
        assert provider.renew_lease(key, "A", TTL_MS) is False
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is False
        assert provider.get_lease_owner(key) is None

    def test_is_found_by_its_methods(self, provider: LeaseProvider) -> None:
        """The provider is one by structure."""
        assert is_lease_provider(provider)

    # --- acquire

    def test_unknown_key_has_no_owner(self, provider: LeaseProvider, key: str) -> None:
        """R3: a key that was never acquired has no owner."""
        assert provider.get_lease_owner(key) is None

    def test_free_key_is_granted(self, provider: LeaseProvider, key: str) -> None:
        """R2: the first to come owns the key, with a fence, for ttl_ms."""
        answer = provider.acquire_lease(key, "A", TTL_MS)
        assert answer.acquired is True
        assert answer.owner == "A"
        assert type(answer.fence) is int
        assert answer.fence > 0
        assert self.about(answer.expires_in_ms, TTL_MS)
        assert provider.get_lease_owner(key) == "A"

    def test_held_key_is_refused_and_the_answer_names_the_holder(self, provider: LeaseProvider, key: str) -> None:
        """R2: the loser learns who holds the key and for how much longer, and changes nothing."""
        # H21: Terraform #32690 read the holder after the failed write.
        granted = provider.acquire_lease(key, "A", TTL_MS)
        self.pass_time(10_000)
        refused = provider.acquire_lease(key, "B", TTL_MS * 2)
        assert refused.acquired is False
        assert refused.owner == "A"
        assert self.about(refused.expires_in_ms, TTL_MS - 10_000)
        assert provider.get_lease_owner(key) == "A"
        assert provider.acquire_lease(key, "A", TTL_MS).fence == granted.fence

    def test_same_owner_acquires_again_with_the_same_fence(self, provider: LeaseProvider, key: str) -> None:
        """R2, R8: an owner is never told that it lost to itself, and its fence stays."""
        # H1: redis-py, python-redis-lock, opentofu #4405, Powertools.
        first = provider.acquire_lease(key, "A", TTL_MS)
        self.pass_time(10_000)
        again = provider.acquire_lease(key, "A", TTL_MS)
        assert (again.acquired, again.owner, again.fence) == (True, "A", first.fence)
        assert self.about(again.expires_in_ms, TTL_MS)

    def test_acquiring_again_never_shortens(self, provider: LeaseProvider, key: str) -> None:
        """R2, R4: "at least ttl_ms" means that a shorter ttl changes nothing."""
        # H5, H51: a delayed copy of an old call.
        provider.acquire_lease(key, "A", TTL_MS)
        again = provider.acquire_lease(key, "A", 1_000)
        assert again.acquired
        assert self.about(again.expires_in_ms, TTL_MS)
        self.pass_almost(TTL_MS)
        assert provider.acquire_lease(key, "B", TTL_MS).owner == "A"

    def test_lease_lives_until_its_ttl_has_passed(self, provider: LeaseProvider, key: str) -> None:
        """R3, the owner's edge: renewable one millisecond before, lost at the ttl."""
        provider.acquire_lease(key, "A", TTL_MS)
        rest_ms = self.pass_almost(TTL_MS)
        assert provider.get_lease_owner(key) == "A"
        self.pass_time(rest_ms)
        assert provider.renew_lease(key, "A", TTL_MS) is False
        assert provider.get_lease_owner(key) == ("A" if self.skew_ms > self.slack_ms else None)

    def test_lease_is_renewable_one_millisecond_before_its_end(self, provider: LeaseProvider, key: str) -> None:
        """R3, the owner's edge: renewed just before its end, it lives a whole ttl more."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.pass_almost(TTL_MS)
        assert provider.renew_lease(key, "A", TTL_MS) is True
        self.pass_almost(TTL_MS)
        assert provider.get_lease_owner(key) == "A"

    def test_stranger_acquires_at_its_edge_and_not_before(self, provider: LeaseProvider, key: str) -> None:
        """R3, the strangers' edge: refused one millisecond before the ttl (and the skew), granted at it."""
        # H15: ShedLock #639; H17: dynamodb-lease and tristanls took the TTL attribute for the expiry.
        first = provider.acquire_lease(key, "A", TTL_MS)
        rest_ms = self.pass_almost(TTL_MS + self.skew_ms)
        refused = provider.acquire_lease(key, "B", TTL_MS)
        assert (refused.acquired, refused.owner) == (False, "A")
        assert provider.get_lease_owner(key) == "A"
        self.pass_time(rest_ms)
        assert provider.get_lease_owner(key) is None
        granted = provider.acquire_lease(key, "B", TTL_MS)
        assert (granted.acquired, granted.owner) == (True, "B")
        assert granted.fence is not None
        assert first.fence is not None
        assert granted.fence > first.fence

    def test_shortest_and_longest_ttl_are_granted(self, provider: LeaseProvider, key: str) -> None:
        """R10: from one millisecond to one day."""
        longest = provider.acquire_lease(key, "A", MAX_TTL_MS)
        assert longest.acquired
        assert self.about(longest.expires_in_ms, MAX_TTL_MS)
        shortest = provider.acquire_lease(f"{key}-short", "A", 1)
        assert shortest.acquired
        self.pass_time(1 + self.skew_ms)
        assert provider.get_lease_owner(f"{key}-short") is None

    def test_owners_are_compared_to_the_letter(self, provider: LeaseProvider, key: str) -> None:
        """R2: an owner is an opaque string; nothing is trimmed, folded or normalised."""
        provider.acquire_lease(key, "Owner é", TTL_MS)
        for other in ("owner é", "Owner é ", " Owner é", "Owner e\u0301", "Owner é\0", "Owner", "nil", "0"):
            assert provider.acquire_lease(key, other, TTL_MS).acquired is False, other
            assert provider.renew_lease(key, other, TTL_MS) is False, other
        assert provider.get_lease_owner(key) == "Owner é"

    # --- renew

    def test_renewed_lease_lives_ttl_from_now(self, provider: LeaseProvider, key: str) -> None:
        """R4: counted from the renewal, not from the old expiry; the fence stays."""
        first = provider.acquire_lease(key, "A", TTL_MS)
        self.pass_time(20_000)
        assert provider.renew_lease(key, "A", TTL_MS) is True
        assert self.about(provider.acquire_lease(key, "B", TTL_MS).expires_in_ms, TTL_MS)
        assert provider.acquire_lease(key, "A", 1).fence == first.fence

    def test_renewal_never_shortens(self, provider: LeaseProvider, key: str) -> None:
        """R4: a late copy of an older, shorter renewal is answered yes and changes nothing."""
        # H51: found by exploring the rules.
        provider.acquire_lease(key, "A", TTL_MS)
        assert provider.renew_lease(key, "A", 1_000) is True
        assert self.about(provider.acquire_lease(key, "B", TTL_MS).expires_in_ms, TTL_MS)
        self.pass_almost(TTL_MS)
        assert provider.renew_lease(key, "A", TTL_MS) is True

    def test_repeated_renewal_is_renewed(self, provider: LeaseProvider, key: str) -> None:
        """R8: the same renewal again is true again."""
        # H2: cirello dynamolock #280, KCL #325.
        provider.acquire_lease(key, "A", TTL_MS)
        assert provider.renew_lease(key, "A", TTL_MS) is True
        assert provider.renew_lease(key, "A", TTL_MS) is True

    def test_stranger_cannot_renew(self, provider: LeaseProvider, key: str) -> None:
        """R4: of a held key, and of a free one."""
        assert provider.renew_lease(key, "A", TTL_MS) is False
        assert provider.get_lease_owner(key) is None
        provider.acquire_lease(key, "A", TTL_MS)
        assert provider.renew_lease(key, "B", TTL_MS * 2) is False
        assert self.about(provider.acquire_lease(key, "B", TTL_MS).expires_in_ms, TTL_MS)

    # --- release

    def test_released_key_is_free_at_once(self, provider: LeaseProvider, key: str) -> None:
        """R5: no ttl and no skew has to pass."""
        first = provider.acquire_lease(key, "A", TTL_MS)
        provider.release_lease(key, "A")
        assert provider.get_lease_owner(key) is None
        second = provider.acquire_lease(key, "B", TTL_MS)
        assert second.acquired
        assert second.fence is not None
        assert first.fence is not None
        assert second.fence > first.fence

    def test_released_twice_is_quiet(self, provider: LeaseProvider, key: str) -> None:
        """R5: and the second release does not touch the next owner."""
        # H3: redis-py's LockNotOwnedError, tristanls lock client #22.
        provider.acquire_lease(key, "A", TTL_MS)
        provider.release_lease(key, "A")
        provider.release_lease(key, "A")
        assert provider.get_lease_owner(key) is None
        provider.acquire_lease(key, "B", TTL_MS)
        provider.release_lease(key, "A")
        assert provider.get_lease_owner(key) == "B"

    def test_stranger_cannot_release(self, provider: LeaseProvider, key: str) -> None:
        """R5: for anybody else, and on a free key, it changes nothing."""
        provider.release_lease(key, "B")
        provider.acquire_lease(key, "A", TTL_MS)
        provider.release_lease(key, "B")
        assert provider.get_lease_owner(key) == "A"
        assert provider.renew_lease(key, "A", TTL_MS) is True

    def test_released_owner_is_late(self, provider: LeaseProvider, key: str) -> None:
        """R5: after its release an owner renews and transfers nothing."""
        # H11: awslabs lock client #116, tristanls #1, KCL #1729: a heartbeat re-armed after the release.
        provider.acquire_lease(key, "A", TTL_MS)
        provider.release_lease(key, "A")
        assert provider.renew_lease(key, "A", TTL_MS) is False
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is False
        assert provider.get_lease_owner(key) is None
