"""What a run and a sweeper see: take, beat, peek, deadlines, orphans (M4, M8, R12)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.errors import LeaseLost
from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Claimed, Continued, Duplicate, Policy, Released


class Running(MailSubject):
    """Between claim and settle, and when an owner has died."""

    def test_beat_renews_and_counts_what_waits(self, provider: MailboxProvider, key: str) -> None:
        """R4, M2: the same fence, ttl from now."""
        fence = self.claimed(provider, key, "A", 1).fence
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        self.pass_time(20_000)
        beat = provider.beat(key, "A", TTL_MS)
        assert (beat.fence, beat.waiting) == (fence, 2)
        assert self.about(beat.expires_in_ms, TTL_MS)
        self.pass_almost(TTL_MS)
        assert provider.get_lease_owner(key) == "A"
        assert [each.attempt for each in provider.peek(key)] == [1, 0, 0]

    def test_beat_never_shortens(self, provider: MailboxProvider, key: str) -> None:
        """R4: a shorter ttl changes nothing."""
        self.claimed(provider, key, "A", 1)
        assert self.about(provider.beat(key, "A", 1_000).expires_in_ms, TTL_MS)

    def test_beat_does_not_count_what_is_not_due(self, provider: MailboxProvider, key: str) -> None:
        """M6: a paused message does not wait for this run."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", failed=[failure(1)])
        assert provider.beat(key, "A2", TTL_MS).waiting == 0
        self.pass_time(PAUSE_MS)
        assert provider.beat(key, "A2", TTL_MS).waiting == 1

    def test_beat_does_not_count_what_is_blocked(self, provider: MailboxProvider, key: str) -> None:
        """M6: on_error="block": behind a paused message nothing is due, nor given."""
        policy = Policy(on_error="block")
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy)
        provider.acquire_lease(key, "C", TTL_MS)
        assert provider.beat(key, "C", TTL_MS).waiting == 0
        assert list(provider.take(key, "C", TTL_MS)) == []
        self.pass_time(PAUSE_MS)
        assert provider.beat(key, "C", TTL_MS).waiting == 2

    def test_stranger_cannot_beat_or_take(self, provider: MailboxProvider, key: str) -> None:
        """R4: LeaseLost, on a free key and on a held one."""
        for call in (provider.beat, provider.take):
            with pytest.raises(LeaseLost):
                call(key, "B", TTL_MS)
        assert provider.get_lease_owner(key) is None
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "C", 2)
        for call in (provider.beat, provider.take):
            with pytest.raises(LeaseLost):
                call(key, "B", TTL_MS)
        assert [each.attempt for each in provider.peek(key)] == [1, 0]

    def test_take_gives_what_has_come_since_and_counts_it(self, provider: MailboxProvider, key: str) -> None:
        """M6, M4: oldest first, counted in the step that gives it."""
        self.claimed(provider, key, "A", 1)
        assert list(provider.take(key, "A", TTL_MS, have=["m1"])) == []
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        taken = provider.take(key, "A", TTL_MS, have=["m1"])
        assert [(each.id, each.attempt) for each in taken] == [("m2", 1), ("m3", 1)]
        assert taken[0].event == message(2).event
        assert provider.beat(key, "A", TTL_MS).waiting == 0
        assert list(provider.take(key, "A", TTL_MS, have=["m1", "m2", "m3"])) == []
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2", "m3"]) == Released(remaining=0)

    def test_repeated_take_gives_the_same_again(self, provider: MailboxProvider, key: str) -> None:
        """R8: what the caller does not have is given again, counted once."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        first = provider.take(key, "A", TTL_MS, have=["m1"])
        again = provider.take(key, "A", TTL_MS, have=["m1"])
        assert list(first) == list(again)
        assert [(each.id, each.attempt) for each in again] == [("m2", 1)]
        assert ids(provider.take(key, "A", TTL_MS)) == ["m1", "m2"]

    def test_take_renews(self, provider: MailboxProvider, key: str) -> None:
        """R4: and never shortens."""
        self.claimed(provider, key, "A", 1)
        self.pass_time(20_000)
        provider.take(key, "A", TTL_MS)
        assert self.about(provider.acquire_lease(key, "B", 1).expires_in_ms, TTL_MS)
        provider.take(key, "A", 1_000)
        assert self.about(provider.acquire_lease(key, "B", 1).expires_in_ms, TTL_MS)

    def test_taken_messages_are_running(self, provider: MailboxProvider, key: str) -> None:
        """M5: a duplicate of one is told so."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.take(key, "A", TTL_MS, have=["m1"])
        assert provider.claim(key, "C", TTL_MS, message(2)) == Duplicate(state="running", owner="A")

    def test_take_leaves_what_was_delivered_before(self, provider: MailboxProvider, key: str) -> None:
        """M6, M4: after a run that held several has failed they go one by one, and nothing newer goes ahead."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        provider.take(key, "A", TTL_MS)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1), failure(2), failure(3)])
        self.pass_time(PAUSE_MS)
        answer: Claimed | Continued = self.claimed(provider, key, "D", 4)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 3
        assert list(provider.take(key, "D", TTL_MS, have=["m1"])) == []
        answer = self.continued(provider, key, "D", "D2", handled=["m1"])
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 2)]
        assert list(provider.take(key, "D2", TTL_MS, have=["m2"])) == []
        self.continued(provider, key, "D2", "D3", handled=["m2"])
        assert ids(provider.take(key, "D3", TTL_MS, have=["m3"])) == ["m4"]

    def test_take_gives_new_ones_before_one_delivered_before(self, provider: MailboxProvider, key: str) -> None:
        """M4: it stops there, so what is older and new is given."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        self.routed(provider, key, "D", 4)
        self.continued(provider, key, "A", "A2", failed=[failure(1, after_ms=0)])  # given again at once
        assert ids(provider.take(key, "A2", TTL_MS, have=["m1"])) == ["m2", "m3", "m4"]

    def test_crash_after_take_leaves_all_in_order(self, provider: MailboxProvider, key: str) -> None:
        """M3: a dead owner's messages are all still there."""
        # H32: killed between two steps.
        self.claimed(provider, key, "A", 1)
        for number in (2, 3):
            self.routed(provider, key, f"B{number}", number)
        provider.take(key, "A", TTL_MS)
        self.die()
        owner = "C1"
        answer: Claimed | Continued = self.claimed(provider, key, owner, None)
        assert answer.waiting == 2
        for number in (1, 2):
            assert [(each.id, each.attempt) for each in answer.messages] == [(f"m{number}", 2)]
            answer = self.continued(provider, key, f"C{number}", f"C{number + 1}", handled=[f"m{number}"])
        assert [(each.id, each.attempt) for each in answer.messages] == [("m3", 2)]

    def test_peek_changes_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M3: of a free key, a held key and an expired one."""
        assert ids(provider.peek(key)) == []
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert list(provider.peek(key)) == list(provider.peek(key))
        self.expire()
        assert ids(provider.peek(key)) == ["m1", "m2"]
        assert provider.get_lease_owner(key) is None

    def test_lease_calls_work_on_a_claimed_key(self, provider: MailboxProvider, key: str) -> None:
        """R2 to R6: the lease of a claim is a lease like any other, and messages outlive it."""
        fence = self.claimed(provider, key, "A", 1).fence
        assert provider.acquire_lease(key, "A", TTL_MS).fence == fence
        assert provider.renew_lease(key, "A", TTL_MS) is True
        assert provider.transfer_lease(key, "A", "B", TTL_MS) is True
        assert [(each.id, each.attempt) for each in provider.take(key, "B", TTL_MS)] == []
        self.pass_time(Policy().pause_ms(1))
        assert provider.beat(key, "B", TTL_MS).waiting == 1
        provider.release_lease(key, "B")
        assert ids(provider.peek(key)) == ["m1"]
        granted = provider.acquire_lease(key, "C", TTL_MS)
        assert granted.acquired
        assert ids(provider.peek(key)) == ["m1"]
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m1", 2)]

    # --- the deadline

    def test_deadline_is_a_margin_before_the_ttl(self, provider: MailboxProvider, key: str) -> None:
        """R12: a hundredth of the ttl, at least 10 ms. Compared between ttls, since the suite has no clock."""
        deadlines = {}
        for ttl_ms in (1_000, 10_000, 100_000):
            answer = provider.claim(f"{key}-{ttl_ms}", "A", ttl_ms, message(1))
            assert isinstance(answer, Claimed)
            deadlines[ttl_ms] = answer.deadline
        for shorter, longer, apart_ms in ((1_000, 10_000, 9_900 - 990), (10_000, 100_000, 99_000 - 9_900)):
            assert apart_ms <= deadlines[longer].mono_ms - deadlines[shorter].mono_ms <= apart_ms + self.slack_ms
            assert apart_ms <= deadlines[longer].wall_ms - deadlines[shorter].wall_ms <= apart_ms + self.slack_ms

    def test_deadline_of_a_repeated_claim_is_what_the_store_reports(self, provider: MailboxProvider, key: str) -> None:
        """R12: an answer from what stands brings no more time than the lease still has."""
        self.claimed(provider, key, "A", 1)
        self.pass_time(20_000)
        again = self.claimed(provider, key, "A", 1)
        fresh = self.claimed(provider, f"{key}-fresh", "A", 1)
        apart_ms = fresh.deadline.mono_ms - again.deadline.mono_ms
        assert 20_000 <= apart_ms <= 20_000 + 2 * self.slack_ms

    def test_deadline_moves_with_each_renewal(self, provider: MailboxProvider, key: str) -> None:
        """R12: by beat and by settle, to ttl from its own sending."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.pass_time(20_000)
        beat = provider.beat(key, "A", TTL_MS)
        fresh = self.claimed(provider, f"{key}-fresh", "A", 1)
        assert 0 <= fresh.deadline.mono_ms - beat.deadline.mono_ms <= self.slack_ms
        self.pass_time(20_000)
        settled = self.continued(provider, key, "A", "A2", handled=["m1"])
        fresh = self.claimed(provider, f"{key}-fresh-again", "A", 1)
        assert 0 <= fresh.deadline.mono_ms - settled.deadline.mono_ms <= self.slack_ms
