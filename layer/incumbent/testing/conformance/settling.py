"""How a run ends: settle, and what becomes of its messages (M2, M3, M6)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.contract import is_mailbox
from incumbent.errors import LeaseLost
from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message, same
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Duplicate, Failure, Idle, Policy, Released


class Settling(MailSubject):
    """A settle reports messages and frees the key or passes it on, in one step."""

    # --- the stale owner, first of all

    def test_late_owner_settles_nothing(self, provider: MailboxProvider, key: str) -> None:
        """R3: A expires, B claims; A's settle, beat and take raise and change nothing of B's."""
        # H37: Mastra #23734, Jepsen on etcd 3.4.3; H6.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "C", 2)
        self.expire()
        granted = self.claimed(self.make_other(provider), key, "B", 3)
        before = list(provider.peek(key))

        for settle in (
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2", "m3"]),
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2"),
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T"),
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], dropped=[failure(2)]),
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, deferred=["m1", "m3"]),
            lambda: provider.beat(key, "A", TTL_MS * 10),
            lambda: provider.take(key, "A", TTL_MS * 10),
        ):
            with pytest.raises(LeaseLost) as raised:
                settle()
            assert raised.value.key == key
            assert raised.value.owner == "A"

        assert list(provider.peek(key)) == before
        assert provider.get_lease_owner(key) == "B"
        again = provider.acquire_lease(key, "B", 1)
        assert again.fence == granted.fence
        assert self.about(again.expires_in_ms, TTL_MS)

    def test_fence_of_another_tenure_is_refused(self, provider: MailboxProvider, key: str) -> None:
        """R2: though its owner string is the same: an earlier tenure's fence, or one that was never granted."""
        first = self.claimed(provider, key, "A", 1)
        provider.release_lease(key, "A")
        self.pass_time(PAUSE_MS)
        second = self.claimed(self.make_other(provider), key, "A", 2)
        self.routed(provider, key, "C", 3)
        before = list(provider.peek(key))

        for fence in (first.fence, second.fence + 1):
            for call in (
                lambda fence=fence: provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"], fence=fence),
                lambda fence=fence: provider.settle(key, "A", ttl_ms=TTL_MS, next_owner="B", fence=fence),
                lambda fence=fence: provider.beat(key, "A", TTL_MS * 10, fence=fence),
                lambda fence=fence: provider.take(key, "A", TTL_MS * 10, fence=fence),
            ):
                with pytest.raises(LeaseLost):
                    call()

        assert list(provider.peek(key)) == before
        assert self.about(provider.beat(key, "A", 1, fence=second.fence).expires_in_ms, TTL_MS)

    def test_fence_of_the_tenure_is_accepted(self, provider: MailboxProvider, key: str) -> None:
        """R2: also by a provider that has not granted it, as after a process has passed the run on."""
        granted = self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        for each in (provider, self.make_other(provider)):
            assert each.beat(key, "A", TTL_MS, fence=granted.fence).fence == granted.fence
            assert ids(each.take(key, "A", TTL_MS, have=["m1"], fence=granted.fence)) == ["m2"]
        other = self.make_other(provider)
        settled = other.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"], fence=granted.fence)
        assert settled == Released(remaining=0)

    def test_late_owner_settles_nothing_though_nobody_came(self, provider: MailboxProvider, key: str) -> None:
        """R3, the owner's edge: settled one millisecond before the end, lost at it."""
        self.claimed(provider, key, "A", 1)
        rest_ms = self.pass_almost(TTL_MS)
        assert provider.beat(key, "A", 1).waiting == 0
        self.pass_time(rest_ms)
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        with pytest.raises(LeaseLost):
            provider.beat(key, "A", TTL_MS)
        with pytest.raises(LeaseLost):
            provider.take(key, "A", TTL_MS)
        assert ids(provider.peek(key)) == ["m1"]

    def test_settle_just_before_the_end_counts(self, provider: MailboxProvider, key: str) -> None:
        """R3, the owner's edge: one millisecond before its end an owner still settles."""
        self.claimed(provider, key, "A", 1)
        self.pass_almost(TTL_MS)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"]) == Released(remaining=0)

    def test_late_owner_settles_nothing_for_a_successor(self, provider: MailboxProvider, key: str) -> None:
        """R6: who transferred or released the key settles nothing any more."""
        self.claimed(provider, key, "A", 1)
        provider.transfer_lease(key, "A", "B", TTL_MS)
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        provider.release_lease(key, "B")
        with pytest.raises(LeaseLost):
            provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"])
        assert ids(provider.peek(key)) == ["m1"]

    def test_stranger_settles_nothing(self, provider: MailboxProvider, key: str) -> None:
        """R3: neither on a free key nor on a held one."""
        with pytest.raises(LeaseLost):
            provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"])
        self.claimed(provider, key, "A", 1)
        with pytest.raises(LeaseLost) as raised:
            provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"])
        assert raised.value.holder in {"A", None}
        assert ids(provider.peek(key)) == ["m1"]

    def test_stranger_settles_nothing_though_others_did(self, provider: MailboxProvider, key: str) -> None:
        """R3, R8: the evidence of a settle is its own caller's."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "C", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        with pytest.raises(LeaseLost):
            provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")
        provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"])
        with pytest.raises(LeaseLost):
            provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m2"])

    def test_mailbox_is_found_by_its_methods(self, provider: MailboxProvider) -> None:
        """The provider is a mailbox by structure."""
        assert is_mailbox(provider)

    # --- settle

    def test_settle_of_the_last_message_frees_the_key(self, provider: MailboxProvider, key: str) -> None:
        """M2: nothing is due, so the key is free though a successor was named."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="B") == Released(remaining=0)
        assert provider.get_lease_owner(key) is None
        assert ids(provider.peek(key)) == []
        assert provider.renew_lease(key, "A", TTL_MS) is False

    def test_settle_passes_the_key_on_while_something_is_due(self, provider: MailboxProvider, key: str) -> None:
        """M2, R6: in one step, with a new fence and a full ttl, the oldest message delivered and counted."""
        # H39: vercel/chat #928, Temporal #1289 and #8097.
        first = self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        self.pass_time(20_000)
        answer = self.continued(provider, key, "A", "A2", handled=["m1"])
        assert answer.fence > first.fence
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.messages[0].event == message(2).event
        assert answer.waiting == 1
        assert self.about(answer.expires_in_ms, TTL_MS)
        assert provider.get_lease_owner(key) == "A2"
        assert ids(provider.peek(key)) == ["m2", "m3"]
        with pytest.raises(LeaseLost):
            provider.beat(key, "A", TTL_MS)

    def test_settle_without_successor_frees_the_key_whatever_waits(self, provider: MailboxProvider, key: str) -> None:
        """M2, M8: what is left is counted and is an orphan."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"]) == Released(remaining=1)
        assert provider.get_lease_owner(key) is None
        assert [(orphan.key, orphan.waiting) for orphan in self.own_orphans(provider, key)] == [(key, 1)]

    def test_unnamed_messages_stay(self, provider: MailboxProvider, key: str) -> None:
        """M3: as after a crash; nothing leaves because it was read."""
        # H42: sentry/junior #33.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert provider.settle(key, "A", ttl_ms=TTL_MS) == Released(remaining=2)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m2", 0, True),
            ("m1", 1, False),
        ]
        assert ids(self.claimed(provider, key, "C", None).messages) == ["m2"]

    def test_unnamed_message_pauses_like_one_that_failed(self, provider: MailboxProvider, key: str) -> None:
        """M6: it was given to a tenure that is over and does not say what became of it: as after a crash."""
        policy = Policy(pauses_ms=(PAUSE_MS,))
        self.claimed(provider, key, "A", 1, policy=policy)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, next_owner="A2", policy=policy) == Released(remaining=1)
        rest_ms = self.pass_almost(PAUSE_MS)
        assert provider.claim(key, "B", TTL_MS, None, policy=policy) == Idle()
        self.pass_time(rest_ms)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "B", None).messages] == [("m1", 2)]

    def test_settle_may_name_what_is_not_there(self, provider: MailboxProvider, key: str) -> None:
        """M2: ids that the mailbox does not hold change nothing."""
        self.claimed(provider, key, "A", 1)
        answer = provider.settle(
            key,
            "A",
            ttl_ms=TTL_MS,
            handled=["m1", "unknown"],
            failed=[Failure(id="other", error="e")],
            dropped=[Failure(id="third", error="e")],
            deferred=["fourth"],
        )
        assert answer == Released(remaining=0)
        assert ids(provider.peek(key)) == []

    def test_settle_may_name_what_still_waits(self, provider: MailboxProvider, key: str) -> None:
        """M2: a message that was not given to this run leaves all the same when it is named."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        answer = self.continued(provider, key, "A", "A2", handled=["m2", "m1"])
        assert ids(answer.messages) == ["m3"]
        assert answer.waiting == 0
        assert provider.claim(key, "D", TTL_MS, message(2)) == Duplicate(state="handled", owner="A2")

    def test_messages_of_one_run_may_end_differently(self, provider: MailboxProvider, key: str) -> None:
        """M2, M3: handled, failed, dropped, deferred and unnamed, in one step."""
        self.claimed(provider, key, "A", 1)
        for number in range(2, 6):
            self.routed(provider, key, f"B{number}", number)
        assert len(provider.take(key, "A", TTL_MS, have=["m1"])) == 4
        answer = self.continued(
            provider, key, "A", "A2", dropped=[failure(1)], handled=["m2"], failed=[failure(3)], deferred=["m4"]
        )
        assert [(each.id, each.attempt) for each in answer.messages] == [("m4", 1)]
        assert answer.waiting == 0
        assert [(each.id, each.attempt, each.last_error) for each in provider.peek(key)] == [
            ("m3", 1, "failed 3"),
            ("m4", 1, None),
            ("m5", 1, None),
        ]

    def test_own_message_may_drop_while_others_wait(self, provider: MailboxProvider, key: str) -> None:
        """M3: the own event raises; what was routed meanwhile is run next."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        answer = self.continued(provider, key, "A", "A2", dropped=[failure(1)])
        assert ids(answer.messages) == ["m2"]
        assert ids(provider.peek(key)) == ["m2"]

    def test_settle_that_passed_the_key_on_cannot_pass_it_on_again(self, provider: MailboxProvider, key: str) -> None:
        """R8, R3: the same settle again is answered again, another one is late."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m2"], next_owner="A3")
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m2"])
        assert provider.get_lease_owner(key) == "A2"
        assert ids(provider.peek(key)) == ["m2"]

    def test_repeated_settle_is_answered_like_the_first(self, provider: MailboxProvider, key: str) -> None:
        """R8: a settle whose answer was lost takes effect once and says so again."""
        # H3.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        first = self.continued(provider, key, "A", "A2", handled=["m1"])
        again = self.continued(provider, key, "A", "A2", handled=["m1"])
        assert again.fence == first.fence
        assert same(again.messages) == same(first.messages)
        assert provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"]) == Released(remaining=0)
        assert provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"]) == Released(remaining=0)

    def test_repeated_settle_is_late_once_its_successor_is(self, provider: MailboxProvider, key: str) -> None:
        """R3, R8: what it passed on is over, so it cannot be told to go on."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        self.expire()
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")
        assert ids(provider.peek(key)) == ["m2"]

    def test_repeated_settle_does_not_touch_the_next_owner(self, provider: MailboxProvider, key: str) -> None:
        """R8, R9: after another owner in between, a repeated settle is lost, and changes nothing."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        self.claimed(provider, key, "B", 2)
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"])
        assert provider.get_lease_owner(key) == "B"
        assert ids(provider.peek(key)) == ["m2"]

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
