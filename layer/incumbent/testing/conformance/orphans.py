"""How keys are found that have messages and no owner, and whom to wake for them (M8)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import itertools
from typing import Any

import pytest

from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.mail import EVERYTHING, PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Claimed, Duplicate, Idle, Origin, Policy


class Orphans(MailSubject):
    """Messages that nothing runs."""

    def test_dead_owners_messages_are_orphans(self, provider: MailboxProvider, key: str) -> None:
        """M8: not while the owner lives; then with target, age and count."""
        # H40: Mastra #23801.
        origin = Origin(keyspace="app", target="arn:aws:lambda:x:1:function:f:live", request_id="r", log_stream="l")
        provider.claim(key, "A", TTL_MS, message(1), origin=origin)
        self.routed(provider, key, "B", 2)
        self.pass_almost(TTL_MS + self.skew_ms)
        assert self.own_orphans(provider, key) == []
        self.pass_time(TTL_MS)
        (orphan,) = self.own_orphans(provider, key)
        assert (orphan.key, orphan.target, orphan.waiting) == (key, origin.target, 2)
        assert abs(orphan.age_ms - TTL_MS) <= self.slack_ms + 1

    def test_orphans_age_begins_when_the_key_was_freed(self, provider: MailboxProvider, key: str) -> None:
        """M8: by a settle without successor."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.pass_time(10_000)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        self.pass_time(5_000)
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.target is None
        assert orphan.waiting == 1
        assert 5_000 <= orphan.age_ms <= 5_000 + self.slack_ms

    def test_orphans_age_begins_when_the_pause_is_over(self, provider: MailboxProvider, key: str) -> None:
        """M8: a paused message is not waited for until then."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1, after_ms=20_000)])
        rest_ms = self.pass_almost(20_000)
        assert self.own_orphans(provider, key) == []
        self.pass_time(rest_ms)
        (orphan,) = self.own_orphans(provider, key)
        assert 0 <= orphan.age_ms <= self.slack_ms
        assert orphan.waiting == 1

    def test_late_owner_does_not_make_an_orphan_younger(self, provider: MailboxProvider, key: str) -> None:
        """R5, M8: its late release changes nothing, and its messages have waited as long as before."""
        self.claimed(provider, key, "A", 1)
        self.die()
        self.pass_time(10_000)
        provider.release_lease(key, "A")
        (orphan,) = self.own_orphans(provider, key)
        assert 10_000 <= orphan.age_ms <= 10_000 + self.slack_ms

    def test_oldest_orphan_comes_first(self, provider: MailboxProvider, key: str) -> None:
        """M8: and no more than asked for."""
        keys = [f"{key}-{number}" for number in range(4)]
        for number in (2, 0, 3, 1):
            own_key = keys[number]
            self.claimed(provider, own_key, "A", 1)
            provider.settle(own_key, "A", ttl_ms=TTL_MS)
            self.pass_time(1_000 + self.slack_ms)
        assert [orphan.key for orphan in self.own_orphans(provider, *keys)] == [keys[2], keys[0], keys[3], keys[1]]
        every = list(provider.orphans(EVERYTHING))
        for older, younger in itertools.pairwise(every):
            assert older.age_ms + self.slack_ms >= younger.age_ms
        for limit in (1, 2, 3):
            assert len(list(provider.orphans(limit))) == limit

    def test_many_orphans_are_found_oldest_first(self, provider: MailboxProvider, key: str) -> None:
        """M8: as many as asked for, whatever pages a store has."""
        keys = [f"{key}-{number}" for number in range(40)]
        for own_key in keys:
            self.claimed(provider, own_key, "A", 1)
            provider.settle(own_key, "A", ttl_ms=TTL_MS, deferred=["m1"])
            self.pass_time(10 + self.slack_ms)
        assert [orphan.key for orphan in self.own_orphans(provider, *keys)] == keys
        assert len(list(provider.orphans(25))) == 25

    def test_targets_take_turns_among_orphans(self, provider: MailboxProvider, key: str) -> None:
        """M8: the oldest of each target, then the second of each; so one target's many do not hide another's one."""
        made = [("many", number) for number in range(60)] + [("one", 0), ("two", 0), ("two", 1), (None, 0)]
        for target, number in made:
            own_key = f"{key}-{target}-{number:02}"
            self.claimed(provider, own_key, "A", 1, origin=Origin(target=target))
            provider.settle(own_key, "A", ttl_ms=TTL_MS, deferred=["m1"])
            self.pass_time(10 + self.slack_ms)
        turns = [f"{key}-{each}" for each in ("many-00", "one-00", "two-00", "None-00", "many-01", "two-01", "many-02")]
        assert [orphan.key for orphan in self.own_orphans(provider, *turns)] == turns
        assert [orphan.key for orphan in provider.orphans(7)] == turns
        assert [orphan.key for orphan in provider.orphans(2)] == turns[:2]

    @pytest.mark.parametrize("limit", [-1, 10**9 + 1, 10**20, True, 1.0, "1", None], ids=repr)
    def test_limit_that_is_no_number_is_refused(self, provider: MailboxProvider, limit: Any) -> None:
        """At the call, not when its answer is read."""
        with pytest.raises(ConfigurationError, match="limit"):
            provider.orphans(limit)

    def test_limit_of_none_is_none(self, provider: MailboxProvider, key: str) -> None:
        """Nothing asked for, nothing found."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS)
        assert list(provider.orphans(0)) == []

    def test_orphans_target_is_the_last_owners(self, provider: MailboxProvider, key: str) -> None:
        """M8: the last claim that owned the key and said so; a routed claim changes nothing."""
        for owner, target, expected in (
            ("A", "arn:one", "arn:one"),
            ("B", "arn:two:é 🐍", "arn:two:é 🐍"),
            ("C", None, "arn:two:é 🐍"),
        ):
            origin = Origin(target=target) if target else None
            assert isinstance(provider.claim(key, owner, TTL_MS, message(1), origin=origin), Claimed)
            provider.claim(key, f"{owner}2", TTL_MS, message(owner), origin=Origin(target="arn:routed"))
            self.expire()
            assert [orphan.target for orphan in self.own_orphans(provider, key)] == [expected]

    @pytest.mark.parametrize("more", [{"as_ticket": True}, {}], ids=["ticket", "owner"])
    def test_claim_that_says_no_target_keeps_the_one_that_is_known(
        self, provider: MailboxProvider, key: str, more: dict[str, Any]
    ) -> None:
        """M8: a missing value never overwrites one; the last one that was said counts."""
        known = Origin(keyspace="app", target="arn:known", request_id="r", log_stream="l")
        self.claimed(provider, key, "A", 1, origin=known)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        for owner, number, origin, expected in (
            ("B", 2, Origin(keyspace="app"), "arn:known"),
            ("C", 3, Origin(), "arn:known"),
            ("D", 4, None, "arn:known"),
            ("E", 5, Origin(target="arn:new"), "arn:new"),
        ):
            claim = provider.claim(key, owner, TTL_MS, message(number), origin=origin, **more)
            assert isinstance(claim, Claimed)
            provider.settle(key, owner, ttl_ms=TTL_MS, deferred=[each.id for each in claim.messages])
            assert [orphan.target for orphan in self.own_orphans(provider, key)] == [expected]
            while isinstance(claim := provider.claim(key, f"{owner}2", TTL_MS, None), Claimed):
                provider.settle(key, f"{owner}2", ttl_ms=TTL_MS, handled=[each.id for each in claim.messages])

    @pytest.mark.parametrize("recorded", [None, "arn:owner"])
    @pytest.mark.parametrize("ends", ["release", "expiry", "transfer"])
    def test_lease_taken_by_hand_keeps_whom_to_wake(
        self, provider: MailboxProvider, key: str, recorded: str | None, ends: str
    ) -> None:
        """M8: what an owner has said before, else what a sender says while the key is held by hand."""
        if recorded is not None:
            self.claimed(provider, key, "A", "a", origin=Origin(keyspace="app", target=recorded))
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["ma"])
        assert provider.acquire_lease(key, "operator", TTL_MS).acquired
        self.routed(provider, key, "B", 1)
        self.routed(provider, key, "C", 2, origin=Origin(keyspace="app", target="arn:sender", request_id="r"))
        self.routed(provider, key, "D", 3, origin=Origin(keyspace="app", target="arn:other"))
        self.routed(provider, key, "E", 4, origin=Origin(keyspace="app"))
        if ends == "transfer":
            assert provider.transfer_lease(key, "operator", "second", TTL_MS)
        if ends == "expiry":
            self.expire()
        for owner in ("operator", "second"):
            provider.release_lease(key, owner)
        assert [orphan.target for orphan in self.own_orphans(provider, key)] == [recorded or "arn:sender"]

    def test_duplicate_that_is_promised_says_whom_to_wake(self, provider: MailboxProvider, key: str) -> None:
        """M3, M8: it is told "accepted", and no owner has said it."""
        origin = Origin(keyspace="app", target="arn:sender")
        provider.acquire_lease(key, "operator", TTL_MS)
        self.routed(provider, key, "B", 1)
        assert provider.claim(key, "C", TTL_MS, message(1), origin=origin) == Duplicate(
            state="waiting", owner="operator"
        )
        provider.release_lease(key, "operator")
        assert [orphan.target for orphan in self.own_orphans(provider, key)] == ["arn:sender"]

    def test_owner_that_only_acquired_says_whom_to_wake_when_it_claims(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M1, M8: its claim is answered from what stands, and its origin is kept."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.claimed(provider, key, "A", 1, origin=Origin(keyspace="app", target="arn:owner"))
        self.expire()
        assert [orphan.target for orphan in self.own_orphans(provider, key)] == ["arn:owner"]

    def test_sender_of_another_policy_changes_nothing_in_how_messages_wait(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M6, M8: a paused message blocks the others still, and a run that dies pauses as its own policy says."""
        blocks = Policy(on_error="block", pauses_ms=(PAUSE_MS,))
        self.claimed(provider, key, "A", 1, policy=blocks)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure("m1")], policy=blocks)
        self.claimed(provider, key, "T", 3, as_ticket=True)
        provider.release_lease(key, "T")
        assert self.own_orphans(provider, key) == []
        assert provider.claim(key, "C", TTL_MS, None, policy=blocks) == Idle()
        self.pass_time(PAUSE_MS)
        assert ids(self.claimed(provider, key, "D", None, policy=blocks).messages) == ["m1"]
        self.expire()
        self.claimed(provider, key, "T2", 4, as_ticket=True)
        provider.release_lease(key, "T2")
        assert self.own_orphans(provider, key) == []

    def test_orphan_is_none_once_it_is_claimed_or_handled(self, provider: MailboxProvider, key: str) -> None:
        """M8: and again when its next owner dies."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, deferred=["m1"])
        assert len(self.own_orphans(provider, key)) == 1
        self.claimed(provider, key, "B", None)
        assert self.own_orphans(provider, key) == []
        self.die()
        assert len(self.own_orphans(provider, key)) == 1
        self.claimed(provider, key, "C", None)
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m1"])
        assert self.own_orphans(provider, key) == []

    def test_released_key_with_messages_is_an_orphan(self, provider: MailboxProvider, key: str) -> None:
        """M8: also after a plain release, and after a transfer whose successor never came."""
        self.claimed(provider, key, "A", 1)
        provider.release_lease(key, "A")
        self.pass_time(Policy().pause_ms(1))
        assert len(self.own_orphans(provider, key)) == 1
        provider.acquire_lease(key, "B", TTL_MS)
        assert self.own_orphans(provider, key) == []
        provider.transfer_lease(key, "B", "C", TTL_MS)
        self.expire()
        assert len(self.own_orphans(provider, key)) == 1
