"""How a run ends: settle, and what becomes of its messages (M2, M3, M6)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.backends import is_mailbox
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
