"""What every lease provider does (R1 to R7, R10)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import LeaseProvider
from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.acquiring import Acquiring
from incumbent.testing.conformance.samples import BAD_KEYS, BAD_OWNERS, BAD_TTLS, ODD_ENDINGS, table
from incumbent.testing.conformance.subject import PATIENCE_MS, TTL_MS, at_once
from incumbent.testing.conformance.transferring import Transferring
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


class LeaseConformance(Transferring, Acquiring):
    """The five methods of a lease."""

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
