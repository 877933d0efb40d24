"""What becomes of messages whose run did not handle them: dropped, failed, deferred, dead (M5, M6)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Duplicate, Failure, Idle, Policy, Released


class Failing(MailSubject):
    """Messages that a run gives back, one way or another."""

    # --- dropped: the own message, whose source is told

    def test_dropped_message_leaves(self, provider: MailboxProvider, key: str) -> None:
        """M3: not promised to anybody, it goes back to its source."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)]) == Released(remaining=0)
        assert ids(provider.peek(key)) == []

    def test_dropped_message_that_was_promised_stays(self, provider: MailboxProvider, key: str) -> None:
        """M3: a duplicate was told "accepted" meanwhile, so it has failed and is ours to retry."""
        # H52: found by exploring the rules.
        self.claimed(provider, key, "A", 1)
        provider.claim(key, "B", TTL_MS, message(1))
        assert provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)]) == Released(remaining=1)
        (stored,) = provider.peek(key)
        assert (stored.id, stored.promised, stored.last_error) == ("m1", True, "failed 1")
        assert provider.claim(key, "C", TTL_MS, None) == Idle()
        self.pass_time(PAUSE_MS)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m1", 2)]

    def test_late_copy_of_a_failed_claim_stores_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M3: the trace of the claim: its source was told of the failure, so a late copy must not run."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)])
        assert provider.claim(key, "A", TTL_MS, message(1)) == Idle()
        assert ids(provider.peek(key)) == []
        assert provider.get_lease_owner(key) is None

    def test_late_copy_of_a_failed_claim_is_not_routed(self, provider: MailboxProvider, key: str) -> None:
        """M3: nor behind another owner."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)])
        self.claimed(provider, key, "B", 2)
        assert provider.claim(key, "A", TTL_MS, message(1)) == Idle()
        assert ids(provider.peek(key)) == ["m2"]

    def test_new_delivery_of_a_failed_message_is_stored(self, provider: MailboxProvider, key: str) -> None:
        """M3: the source's retry is a new claim, counted from one."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)])
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "B", 1).messages] == [("m1", 1)]

    # --- failed, deferred, dead

    @pytest.mark.parametrize(("failures", "pause_ms"), [(1, 1_000), (2, 10_000), (3, 60_000), (4, 300_000)])
    def test_failed_message_pauses(self, provider: MailboxProvider, key: str, failures: int, pause_ms: int) -> None:
        """M6: not due one millisecond before its pause has passed, due at it, a longer pause each time."""
        self.claimed(provider, key, "A1", 1)
        for number in range(1, failures):
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, failed=[failure(1, after_ms=None)])
            self.pass_time(300_000)
            self.claimed(provider, key, f"A{number + 1}", None)
        answer = provider.settle(key, f"A{failures}", ttl_ms=TTL_MS, failed=[failure(1, after_ms=None)], next_owner="B")
        assert answer == Released(remaining=1)
        rest_ms = self.pass_almost(pause_ms)
        assert provider.claim(key, "C", TTL_MS, None) == Idle()
        self.pass_time(rest_ms)
        (again,) = self.claimed(provider, key, "C", None).messages
        assert (again.id, again.attempt, again.last_error) == ("m1", failures + 1, "failed 1")

    def test_failure_may_set_its_own_pause(self, provider: MailboxProvider, key: str) -> None:
        """M6: after_ms instead of the policy's."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1, after_ms=45_000)])
        rest_ms = self.pass_almost(45_000)
        assert provider.claim(key, "B", TTL_MS, None) == Idle()
        self.pass_time(rest_ms)
        assert ids(self.claimed(provider, key, "B", None).messages) == ["m1"]

    def test_failed_message_that_was_never_given_pauses_too(self, provider: MailboxProvider, key: str) -> None:
        """M6: its deliveries are still none."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert provider.settle(
            key, "A", ttl_ms=TTL_MS, handled=["m1"], failed=[failure(2)], next_owner="A2"
        ) == Released(remaining=1)
        assert provider.claim(key, "C", TTL_MS, None) == Idle()
        self.pass_time(PAUSE_MS)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m2", 1)]

    def test_last_error_is_kept_as_it_was(self, provider: MailboxProvider, key: str) -> None:
        """M6: to the character, over deliveries, until the next failure."""
        first, second = "é e\u0301 🐍 \0 \n {} %s \u202e " + "x" * 1_000, ""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error=first, after_ms=0)])
        assert [each.last_error for each in self.claimed(provider, key, "B", None).messages] == [first]
        self.die(attempts=2)
        assert [each.last_error for each in self.claimed(provider, key, "C", None).messages] == [first]
        provider.settle(key, "C", ttl_ms=TTL_MS, failed=[Failure(id="m1", error=second, after_ms=0)])
        assert [each.last_error for each in provider.peek(key)] == [second]

    def test_failure_without_pause_is_due_at_once(self, provider: MailboxProvider, key: str) -> None:
        """M6: after_ms=0, also for the successor in the same step."""
        # H46: Powertools #4759: 0 read as "not set".
        self.claimed(provider, key, "A", 1)
        answer = self.continued(provider, key, "A", "B", failed=[failure(1, after_ms=0)])
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]

    def test_pauses_are_the_policys(self, provider: MailboxProvider, key: str) -> None:
        """M6: the last one for all that follow."""
        policy = Policy(pauses_ms=(20_000, 40_000), max_attempts=9)
        self.claimed(provider, key, "A0", 1, policy=policy)
        for number, pause_ms in enumerate((20_000, 40_000, 40_000, 40_000)):
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, failed=[failure(1, after_ms=None)], policy=policy)
            rest_ms = self.pass_almost(pause_ms)
            assert provider.claim(key, f"A{number + 1}", TTL_MS, None, policy=policy) == Idle()
            self.pass_time(rest_ms)
            self.claimed(provider, key, f"A{number + 1}", None, policy=policy)

    def test_later_messages_skip_ahead_of_a_paused_one(self, provider: MailboxProvider, key: str) -> None:
        """M6: on_error="skip"; when its pause is over it goes first again, by its place."""
        # H43: a poison message blocks its key for ever.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        answer = self.continued(provider, key, "A", "A2", failed=[failure(1)])
        assert ids(answer.messages) == ["m2"]
        assert answer.waiting == 1
        self.pass_time(PAUSE_MS)
        answer = self.continued(provider, key, "A2", "A3", handled=["m2"])
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 1
        assert ids(self.continued(provider, key, "A3", "A4", handled=["m1"]).messages) == ["m3"]

    def test_later_messages_wait_behind_a_paused_one(self, provider: MailboxProvider, key: str) -> None:
        """M6: on_error="block": strict order; the key may be free meanwhile."""
        policy = Policy(on_error="block")
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], next_owner="A2", policy=policy)
        assert answer == Released(remaining=2)
        assert provider.claim(key, "C", TTL_MS, None, policy=policy) == Idle()
        assert self.own_orphans(provider, key) == []
        self.pass_time(PAUSE_MS)
        again = self.claimed(provider, key, "C", None, policy=policy)
        assert ids(again.messages) == ["m1"]
        assert again.waiting == 1
        assert ids(self.continued(provider, key, "C", "C2", handled=["m1"], policy=policy).messages) == ["m2"]

    def test_paused_message_is_a_duplicate_and_no_orphan(self, provider: MailboxProvider, key: str) -> None:
        """M5, M8: it waits, but not for anybody yet."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)])
        assert self.own_orphans(provider, key) == []
        self.claimed(provider, key, "B", 2)
        assert provider.claim(key, "C", TTL_MS, message(1)) == Duplicate(state="waiting", owner="B")
        assert ids(provider.peek(key)) == ["m1", "m2"]

    def test_message_is_dead_after_its_last_attempt(self, provider: MailboxProvider, key: str) -> None:
        """M6: max_attempts deliveries, then it leaves the mailbox and is a duplicate of a dead one."""
        policy = Policy(max_attempts=2)
        self.claimed(provider, key, "A", 1, policy=policy)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy) == Released(remaining=1)
        self.pass_time(PAUSE_MS)
        self.claimed(provider, key, "B", None, policy=policy)
        assert provider.settle(key, "B", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy) == Released(remaining=0)
        assert ids(provider.peek(key)) == []
        self.pass_time(300_000)
        assert provider.claim(key, "C", TTL_MS, None, policy=policy) == Idle()
        assert provider.claim(key, "D", TTL_MS, message(1), policy=policy) == Duplicate(state="dead")
        assert provider.get_lease_owner(key) is None
        self.claimed(provider, key, "E", 2, policy=policy)
        assert provider.claim(key, "F", TTL_MS, message(1), policy=policy) == Duplicate(state="dead", owner="E")

    def test_message_that_kills_its_run_is_dead_too(self, provider: MailboxProvider, key: str) -> None:
        """M6: the delivery is counted before the run, so a crash counts; it dies when it would be given again."""
        # H43: SQS FIFO users; Azure entities #2228.
        policy = Policy(max_attempts=2)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.die()
        assert self.claimed(provider, key, "B", None, policy=policy).messages[0].attempt == 2
        self.expire()
        assert provider.claim(key, "C", TTL_MS, None, policy=policy) == Idle()
        assert provider.get_lease_owner(key) is None
        assert ids(provider.peek(key)) == []
        assert provider.claim(key, "D", TTL_MS, message(1), policy=policy) == Duplicate(state="dead")

    def test_source_that_retries_a_killing_message_is_told_that_it_is_dead(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M6: the claim that finds its own message out of attempts owns nothing."""
        policy = Policy(max_attempts=1)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.expire()
        assert provider.claim(key, "B", TTL_MS, message(1), policy=policy) == Duplicate(state="dead")
        assert provider.get_lease_owner(key) is None
        assert ids(provider.peek(key)) == []

    def test_message_out_of_attempts_makes_room_for_the_next(self, provider: MailboxProvider, key: str) -> None:
        """M6: dead_lettered in the step that grants the key; the next due message is delivered instead."""
        policy = Policy(max_attempts=1)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        self.expire()
        answer = self.claimed(provider, key, "C", 3, policy=policy)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.waiting == 1
        assert ids(provider.peek(key)) == ["m2", "m3"]

    def test_message_out_of_attempts_is_buried_when_the_key_goes_on(self, provider: MailboxProvider, key: str) -> None:
        """M6: at a settle; with nothing else due the key is freed."""
        policy = Policy(max_attempts=1)
        self.claimed(provider, key, "A", 1, policy=policy)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, next_owner="A2", policy=policy)
        assert answer == Released(remaining=0)
        assert provider.get_lease_owner(key) is None
        assert provider.claim(key, "B", TTL_MS, message(1), policy=policy) == Duplicate(state="dead")

    def test_deferred_message_keeps_its_place_and_its_count(self, provider: MailboxProvider, key: str) -> None:
        """M6: it goes on in the next run, promised, as if it had not been delivered."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, deferred=["m1"])
        assert answer == Released(remaining=2)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m1", 0, True),
            ("m2", 0, True),
        ]
        again = self.claimed(provider, key, "C", None)
        assert [(each.id, each.attempt) for each in again.messages] == [("m1", 1)]
        assert again.waiting == 1

    def test_deferred_message_that_was_never_given_is_only_promised(self, provider: MailboxProvider, key: str) -> None:
        """M6: there is no delivery to take back; it has all of its attempts, and no more."""
        policy = Policy(max_attempts=1)
        provider.acquire_lease(key, "A", TTL_MS)
        self.routed(provider, key, "B", 1, policy=policy)
        self.claimed(provider, key, "A", 2, policy=policy)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], deferred=["m2"], policy=policy) == Released(
            remaining=1
        )
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m2", 0, True)]
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None, policy=policy).messages] == [
            ("m2", 1)
        ]

    def test_delivery_to_an_earlier_run_stays_counted(self, provider: MailboxProvider, key: str) -> None:
        """M6: who defers takes back its own delivery, not the one that killed the run before."""
        self.claimed(provider, key, "A", 1)
        self.expire()
        provider.acquire_lease(key, "B", TTL_MS)
        assert provider.settle(key, "B", ttl_ms=TTL_MS, deferred=["m1"]) == Released(remaining=1)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 1, True)]

    def test_deferred_message_goes_on_under_the_successor(self, provider: MailboxProvider, key: str) -> None:
        """M6: however often it is deferred, it never runs out of attempts."""
        policy = Policy(max_attempts=2)
        self.claimed(provider, key, "A0", 1, policy=policy)
        for number in range(5):
            answer = self.continued(provider, key, f"A{number}", f"A{number + 1}", deferred=["m1"], policy=policy)
            assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
