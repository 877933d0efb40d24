"""What every lease provider does (R1 to R7, R10)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.backends import is_lease_provider
from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import LeaseProvider
from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.samples import BAD_KEYS, BAD_OWNERS, BAD_TTLS, MAX_TTL_MS, ODD_ENDINGS, table
from incumbent.testing.conformance.subject import PATIENCE_MS, TTL_MS, Subject, at_once
from incumbent.values import Acquisition

Call = Callable[[LeaseProvider, Any, Any, Any], object]

WITH_TTL: dict[str, Call] = {
    "acquire": lambda p, key, owner, ttl_ms: p.acquire_lease(key, owner, ttl_ms),
    "renew": lambda p, key, owner, ttl_ms: p.renew_lease(key, owner, ttl_ms),
    "transfer from": lambda p, key, owner, ttl_ms: p.transfer_lease(key, owner, "successor", ttl_ms),
    "transfer to": lambda p, key, owner, ttl_ms: p.transfer_lease(key, "owner", owner, ttl_ms),
}
WITH_OWNER: dict[str, Call] = {
    **WITH_TTL,
    "release": lambda p, key, owner, _: p.release_lease(key, owner),
}
WITH_KEY: dict[str, Call] = {
    **WITH_OWNER,
    "get owner": lambda p, key, _owner, _ttl_ms: p.get_lease_owner(key),
}


class LeaseConformance(Subject):
    """The five methods of a lease."""

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

    # --- transfer

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

    # --- keys and arguments

    def test_keys_never_meet(self, provider: LeaseProvider, key: str) -> None:
        """R10: any character is allowed, and no two keys share a record."""
        # H27, H28: awslabs lock client #93 and its family.
        keys = [f"{key}{ending}" for ending in ODD_ENDINGS] + [f"{ending}{key}" for ending in ODD_ENDINGS[1:]]
        for number, odd in enumerate(keys):
            assert provider.acquire_lease(odd, f"owner-{number}", TTL_MS).acquired, odd
        for number, odd in enumerate(keys):
            assert provider.get_lease_owner(odd) == f"owner-{number}", odd
        for number, odd in enumerate(keys[::2]):
            provider.release_lease(odd, f"owner-{number * 2}")
        for number, odd in enumerate(keys):
            assert provider.get_lease_owner(odd) == (f"owner-{number}" if number % 2 else None), odd

    def test_odd_owners_are_kept_as_they_are(self, provider: LeaseProvider, key: str) -> None:
        """R10: any character is allowed in an owner too."""
        for number, ending in enumerate(ODD_ENDINGS):
            own_key, owner = f"{key}-{number}", f"owner{ending}"
            assert provider.acquire_lease(own_key, owner, TTL_MS).acquired, owner
            assert provider.get_lease_owner(own_key) == owner
            assert provider.renew_lease(own_key, owner, TTL_MS) is True, owner
            assert provider.acquire_lease(own_key, "B", TTL_MS).owner == owner
            assert provider.transfer_lease(own_key, owner, f"next{ending}", TTL_MS) is True, owner
            assert provider.get_lease_owner(own_key) == f"next{ending}"
            provider.release_lease(own_key, f"next{ending}")
            assert provider.get_lease_owner(own_key) is None, owner

    def test_longest_key_and_owner_are_allowed(self, provider: LeaseProvider, key: str) -> None:
        """R10: 1,024 bytes of key and 512 of owner, however many characters that is."""
        for filling in ("k", "é", "🐍"):
            size = len(filling.encode())
            longest = key + filling * ((1_024 - len(key)) // size)
            longest += "x" * (1_024 - len(longest.encode()))
            owner = filling * (512 // size)
            assert provider.acquire_lease(longest, owner, TTL_MS).acquired
            assert provider.get_lease_owner(longest) == owner
            assert provider.acquire_lease(longest[:-1], "other", TTL_MS).acquired

    @pytest.mark.parametrize("call", table(WITH_KEY))
    @pytest.mark.parametrize("bad", table(BAD_KEYS))
    def test_bad_key_is_refused(self, provider: LeaseProvider, call: Call, bad: Any) -> None:
        """R10: by every call, with the same error."""
        with pytest.raises(ConfigurationError):
            call(provider, bad, "owner", TTL_MS)

    @pytest.mark.parametrize("call", table(WITH_OWNER))
    @pytest.mark.parametrize("bad", table(BAD_OWNERS))
    def test_bad_owner_is_refused(self, provider: LeaseProvider, key: str, call: Call, bad: Any) -> None:
        """R10: by every call, and nothing has happened."""
        with pytest.raises(ConfigurationError):
            call(provider, key, bad, TTL_MS)
        assert provider.get_lease_owner(key) is None

    @pytest.mark.parametrize("call", table(WITH_TTL))
    @pytest.mark.parametrize("bad", table(BAD_TTLS))
    def test_bad_ttl_is_refused(self, provider: LeaseProvider, key: str, call: Call, bad: Any) -> None:
        """R10: whole milliseconds from 1 to one day; the owner keeps what it has."""
        # H26: redis-py's PEXPIRE 0 frees; Mastra's 0 frees.
        provider.acquire_lease(key, "owner", TTL_MS)
        with pytest.raises(ConfigurationError):
            call(provider, key, "caller", bad)
        refused = provider.acquire_lease(key, "B", TTL_MS)
        assert refused.owner == "owner"
        assert TTL_MS // 2 < (refused.expires_in_ms or 0) <= TTL_MS

    # --- many at once

    def test_of_many_at_once_one_acquires(self, provider: LeaseProvider, key: str) -> None:
        """R1: and all others are told its name."""
        clients: list[LeaseProvider] = [self.make_other(provider) for _ in range(8)]

        def acquire(number: int, own_key: str) -> Acquisition:
            return clients[number].acquire_lease(own_key, f"owner-{number}", TTL_MS)

        for turn in range(20):
            own_key = f"{key}-{turn}"
            answers = at_once(8, acquire, own_key)
            winners = [answer.owner for answer in answers if answer.acquired]
            assert len(winners) == 1
            assert {answer.owner for answer in answers} == set(winners)
            assert provider.get_lease_owner(own_key) == winners[0]

    def test_of_many_transfers_at_once_one_happens(self, provider: LeaseProvider, key: str) -> None:
        """R6: a lease goes to one successor."""

        def transfer(number: int, own_key: str) -> bool:
            return provider.transfer_lease(own_key, "A", f"next-{number}", TTL_MS)

        for turn in range(10):
            own_key = f"{key}-{turn}"
            provider.acquire_lease(own_key, "A", TTL_MS)
            moved = at_once(8, transfer, own_key)
            assert moved.count(True) == 1
            assert provider.get_lease_owner(own_key) == f"next-{moved.index(True)}"

    def test_counter_under_the_lease_loses_no_update(self, provider: LeaseProvider, key: str) -> None:
        """R1: eight threads increment what only the lease protects."""
        # ShedLock ships the same trial with its test kit.
        clients: list[LeaseProvider] = [self.make_other(provider) for _ in range(8)]
        counter = {"value": 0, "inside": 0}
        seen: list[int] = []
        began = SYSTEM_CLOCK.now()

        def increment(number: int) -> None:
            for turn in range(5):
                owner = f"{number}.{turn}"
                while not clients[number].acquire_lease(key, owner, TTL_MS * 100).acquired:
                    assert began.until(SYSTEM_CLOCK.now()) < PATIENCE_MS, (
                        f"{owner} waits for a lease that is never free"
                    )
                    SYSTEM_CLOCK.sleep_ms(1)
                counter["inside"] += 1
                seen.append(counter["inside"])
                value = counter["value"]
                SYSTEM_CLOCK.sleep_ms(1)  # time for others to come between
                counter["value"] = value + 1
                counter["inside"] -= 1
                clients[number].release_lease(key, owner)

        at_once(8, increment)
        assert counter["value"] == 40
        assert set(seen) == {1}
