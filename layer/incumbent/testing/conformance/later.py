"""What every provider with control does with time: messages for later, holds and bursts (M14, M15)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from typing import Any

import pytest

from incumbent.errors import ConfigurationError, MailboxFull
from incumbent.testing.conformance.mail import PAUSE_MS, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, ControlProvider
from incumbent.testing.conformance.walks import Walking
from incumbent.values import (
    FOREVER_MS,
    Busy,
    Claimed,
    Continued,
    Debounce,
    Duplicate,
    Idle,
    Policy,
    Released,
    Routed,
)

MINUTE_MS = 60_000
BURST = Debounce(quiet_ms=2_000, max_ms=5_000)
BLOCK = Policy(on_error="block")


class LaterConformance(Walking):
    """Messages for later, and keys that are held or quiet: M14 and M15."""

    def state(self, provider: ControlProvider, key: str, number: int | str = 1) -> str:
        """Say what has become of a message."""
        return provider.find(key, f"m{number}").state

    # --- M14: later

    def test_delayed_message_is_stored_at_once_and_due_later(self, provider: ControlProvider, key: str) -> None:
        """M14: it is promised, no claim gets it before, and it is an orphan from then on."""
        answer = provider.claim(key, "sender", TTL_MS, message(1), as_ticket=True, after_ms=MINUTE_MS)
        assert isinstance(answer, Routed)
        assert (answer.owner, answer.waiting) == (None, 1)
        assert self.about(answer.due_in_ms, MINUTE_MS)
        assert provider.get_lease_owner(key) is None
        (stored,) = provider.peek(key)
        assert stored.promised
        rest_ms = self.pass_almost(MINUTE_MS)
        idle = provider.claim(key, "A", TTL_MS, None)
        assert isinstance(idle, Idle)
        assert self.about(idle.due_in_ms, rest_ms)
        assert self.own_orphans(provider, key) == []
        self.pass_time(rest_ms)
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.waiting == 1
        assert orphan.age_ms <= self.slack_ms
        assert ids(self.claimed(provider, key, "A", None).messages) == ["m1"]

    def test_delayed_message_waits_behind_an_owner_too(self, provider: ControlProvider, key: str) -> None:
        """M14: a settle frees the key, and says when it can be granted for the message."""
        self.claimed(provider, key, "A", 1)
        routed = self.routed(provider, key, "B", 2, after_ms=MINUTE_MS)
        assert (routed.owner, routed.due_in_ms) == ("A", None)
        assert provider.take(key, "A", TTL_MS, have=["m1"]) == ()
        released = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")
        assert isinstance(released, Released)
        assert released.remaining == 1
        assert self.about(released.due_in_ms, MINUTE_MS)
        self.pass_time(MINUTE_MS)
        assert ids(self.claimed(provider, key, "C", None).messages) == ["m2"]

    def test_owner_can_be_given_what_has_become_due(self, provider: ControlProvider, key: str) -> None:
        """M14: to its take, and to its successor."""
        provider.claim(key, "A", 10 * MINUTE_MS, message(1))
        self.routed(provider, key, "B", 2, after_ms=MINUTE_MS)
        self.routed(provider, key, "B2", 3, after_ms=2 * MINUTE_MS)
        self.pass_time(MINUTE_MS)
        assert ids(provider.take(key, "A", 10 * MINUTE_MS, have=["m1"])) == ["m2"]
        self.pass_time(MINUTE_MS)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"], next_owner="A2")
        assert isinstance(answer, Continued)
        assert ids(answer.messages) == ["m3"]

    @pytest.mark.parametrize("policy", [Policy(), BLOCK], ids=["skip", "block"])
    def test_delayed_message_blocks_no_other(self, provider: ControlProvider, key: str, policy: Policy) -> None:
        """M14: only one that failed does (M6)."""
        provider.claim(key, "sender", TTL_MS, message(1), as_ticket=True, after_ms=MINUTE_MS, policy=policy)
        assert ids(self.claimed(provider, key, "A", 2, policy=policy).messages) == ["m2"]

    def test_delayed_messages_go_in_the_order_of_their_due_times(self, provider: ControlProvider, key: str) -> None:
        """M14: among one another; what is not for later goes to the end."""
        self.claimed(provider, key, "A", 0)
        self.routed(provider, key, "B1", "late", after_ms=3_000)
        self.routed(provider, key, "B2", "plain")
        self.routed(provider, key, "B3", "early", after_ms=1_000)
        self.routed(provider, key, "B4", "middle", after_ms=2_000)
        self.pass_time(3_000)
        assert ids(provider.take(key, "A", TTL_MS, have=["m0"])) == ["mearly", "mmiddle", "mlate", "mplain"]

    def test_delayed_message_goes_before_one_that_failed_undelivered(self, provider: ControlProvider, key: str) -> None:
        """M14: what was never delivered is for a later moment while it pauses, and again if it fails again."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B2", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], failed=[failure(2, after_ms=2_000)])
        self.claimed(provider, key, "C", 3)
        self.routed(provider, key, "B4", 4, after_ms=1_000)
        self.routed(provider, key, "B5", 5, after_ms=9_000)
        assert ids(provider.peek(key)) == ["m4", "m2", "m3", "m5"]
        again = [failure(2, after_ms=4_000), failure(5, after_ms=11_000)]
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m3"], failed=again)
        self.claimed(provider, key, "D", 6)
        self.routed(provider, key, "B7", 7, after_ms=3_000)
        self.routed(provider, key, "B8", 8, after_ms=10_000)
        order = ["m4", "m7", "m2", "m8", "m5", "m6"]
        assert ids(provider.peek(key)) == order
        self.pass_time(11_000)
        assert ids(provider.take(key, "D", TTL_MS, have=["m6"])) == [each for each in order if each != "m6"]

    def test_failed_message_that_was_delayed_pauses_like_any_other(self, provider: ControlProvider, key: str) -> None:
        """M14, M6: its first due time is over."""
        provider.claim(key, "sender", TTL_MS, message(1), as_ticket=True, after_ms=1_000)
        self.pass_time(1_000)
        self.claimed(provider, key, "A", None)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)])
        assert isinstance(provider.claim(key, "B", TTL_MS, None), Idle)
        self.pass_time(PAUSE_MS)
        assert self.claimed(provider, key, "B", None).messages[0].attempt == 2

    def test_the_caller_that_makes_the_moment_earlier_learns_it(self, provider: ControlProvider, key: str) -> None:
        """M14: so that one caller asks for each wake; the run before tells its own of the next."""
        due = [
            self.routed(provider, key, f"T{number}", number, as_ticket=True, after_ms=after_ms).due_in_ms
            for number, after_ms in ((1, 5_000), (2, 9_000), (3, 1_000))
        ]
        assert due[1] is None
        assert self.about(due[0], 5_000)
        assert self.about(due[2], 1_000)
        self.pass_time(1_000)
        self.claimed(provider, key, "A", None)
        released = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m3"])
        assert isinstance(released, Released)
        assert self.about(released.due_in_ms, 4_000)

    def test_delayed_id_is_a_duplicate(self, provider: ControlProvider, key: str) -> None:
        """M5: sent again, it keeps its due time."""
        provider.claim(key, "sender", TTL_MS, message(1), as_ticket=True, after_ms=MINUTE_MS)
        assert provider.claim(key, "again", TTL_MS, message(1)) == Duplicate(state="waiting")
        assert self.state(provider, key) == "waiting"
        assert provider.claim(key, "T", TTL_MS, message(1), as_ticket=True) == Duplicate(state="waiting")
        assert isinstance(provider.claim(key, "A", TTL_MS, None), Idle)

    @pytest.mark.parametrize("how", [{"after_ms": MINUTE_MS, "as_ticket": True}, {"debounce": BURST}], ids=str)
    def test_repeated_call_learns_the_moment_again(self, provider: ControlProvider, key: str, how: Any) -> None:
        """R8, M14, M15: the first answer may have been lost, and its caller is the one to ask for the wake."""
        first = self.routed(provider, key, "A", 1, **how)
        again = self.routed(provider, key, "A", 1, **how)
        assert again == first
        assert first.due_in_ms is not None
        assert self.about(again.due_in_ms, first.due_in_ms)
        assert provider.get_lease_owner(key) is None
        assert ids(provider.peek(key)) == ["m1"]

    def test_ticket_goes_to_what_is_due_beside_a_delayed_message(self, provider: ControlProvider, key: str) -> None:
        """M14: a sender whose own message is for later owns the key for the others."""
        provider.claim(key, "first", TTL_MS, message(1), as_ticket=True)
        provider.release_lease(key, "first")
        assert isinstance(provider.claim(key, "T", TTL_MS, message(2), as_ticket=True, after_ms=1_000), Claimed)
        assert ids(self.claimed(provider, key, "A", None, ticket="T").messages) == ["m1"]

    @pytest.mark.parametrize("after_ms", [-1, 1.5, True, 14 * 86_400_000 + 1, None])
    def test_bad_delay_is_refused(self, provider: ControlProvider, key: str, after_ms: Any) -> None:
        """R10, M14: whole milliseconds, at most 14 days."""
        with pytest.raises(ConfigurationError):
            provider.claim(key, "A", TTL_MS, message(1), after_ms=after_ms)
        assert provider.peek(key) == ()

    # --- M15: not before

    def test_held_key_is_granted_to_no_caller(self, provider: ControlProvider, key: str) -> None:
        """M15: not to a message, a wake, a retry or a plain acquire; what comes is stored and promised."""
        provider.hold(key, for_ms=MINUTE_MS, reason="upstream is down")
        routed = self.routed(provider, key, "A", 1)
        assert (routed.owner, routed.waiting) == (None, 1)
        assert self.about(routed.due_in_ms, MINUTE_MS)
        assert provider.peek(key)[0].promised
        idle = provider.claim(key, "B", TTL_MS, None)
        assert isinstance(idle, Idle)
        assert self.about(idle.due_in_ms, MINUTE_MS)
        assert provider.claim(key, "C", TTL_MS, message(1)) == Duplicate(state="waiting")
        assert self.routed(provider, key, "A", 1).owner is None
        acquired = provider.acquire_lease(key, "D", TTL_MS)
        assert (acquired.acquired, acquired.owner) == (False, None)
        busy = provider.claim(key, "E", TTL_MS, message(2), route=False)
        assert isinstance(busy, Busy)
        assert busy.owner is None
        assert self.about(busy.expires_in_ms, MINUTE_MS)
        assert isinstance(provider.claim(key, "T", TTL_MS, message(3), as_ticket=True), Routed)
        assert provider.get_lease_owner(key) is None
        assert self.own_orphans(provider, key) == []
        assert ids(provider.peek(key)) == ["m1", "m3"]

    def test_hold_ends_by_itself(self, provider: ControlProvider, key: str) -> None:
        """M15: from then on the key is granted, and what waited is an orphan."""
        provider.hold(key, for_ms=MINUTE_MS)
        self.routed(provider, key, "A", 1)
        rest_ms = self.pass_almost(MINUTE_MS)
        assert isinstance(provider.claim(key, "B", TTL_MS, None), Idle)
        self.pass_time(rest_ms)
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.age_ms <= self.slack_ms
        assert not provider.resume(key)
        assert self.own_orphans(provider, key)[0].age_ms <= self.slack_ms
        assert ids(self.claimed(provider, key, "B", None).messages) == ["m1"]

    def test_resume_ends_a_hold_without_an_end(self, provider: ControlProvider, key: str) -> None:
        """M15: it says whether there was one, and a second one finds none."""
        provider.hold(key)
        assert provider.show(key).held_until_ms == FOREVER_MS
        self.routed(provider, key, "A", 1)
        self.pass_time(60 * MINUTE_MS)
        assert isinstance(provider.claim(key, "B", TTL_MS, None), Idle)
        assert provider.resume(key)
        assert not provider.resume(key)
        assert [orphan.key for orphan in self.own_orphans(provider, key)] == [key]
        assert ids(self.claimed(provider, key, "B", None).messages) == ["m1"]

    def test_hold_is_never_shortened(self, provider: ControlProvider, key: str) -> None:
        """M15: only by a resume; the reason is the longer one's."""
        provider.hold(key, for_ms=2 * MINUTE_MS, reason="first")
        provider.hold(key, for_ms=MINUTE_MS, reason="second")
        self.pass_time(MINUTE_MS + 1_000)
        assert provider.show(key).held_reason == "first"
        provider.hold(key, for_ms=2 * MINUTE_MS, reason="third")
        assert provider.show(key).held_reason == "third"

    def test_hold_does_not_disturb_a_live_owner(self, provider: ControlProvider, key: str) -> None:
        """M15: it renews, takes and settles; then the key is free though something is due."""
        self.claimed(provider, key, "A", 1)
        provider.hold(key, for_ms=MINUTE_MS)
        assert provider.get_lease_owner(key) == "A"
        assert provider.beat(key, "A", TTL_MS).waiting == 0
        self.routed(provider, key, "B", 2)
        assert ids(provider.take(key, "A", TTL_MS, have=["m1"])) == ["m2"]
        self.routed(provider, key, "C", 3)
        released = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"], next_owner="A2")
        assert isinstance(released, Released)
        assert released.remaining == 1
        assert self.about(released.due_in_ms, MINUTE_MS)
        assert provider.get_lease_owner(key) is None

    def test_ticket_that_comes_during_a_hold_is_spent(self, provider: ControlProvider, key: str) -> None:
        """M15, M9: the key is free, and the woken invocation ends at once."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        provider.hold(key, for_ms=MINUTE_MS)
        assert isinstance(provider.claim(key, "C", TTL_MS, None, ticket="T"), Idle)
        assert provider.get_lease_owner(key) is None
        self.pass_time(MINUTE_MS)
        assert ids(self.claimed(provider, key, "D", None).messages) == ["m2"]

    def test_settle_can_hold_the_key(self, provider: ControlProvider, key: str) -> None:
        """M15: from the settle on, whatever waits."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        released = provider.settle(
            key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2", hold_ms=MINUTE_MS, hold_reason="it cools down"
        )
        assert isinstance(released, Released)
        assert self.about(released.due_in_ms, MINUTE_MS)
        assert provider.show(key).held_reason == "it cools down"
        assert isinstance(provider.claim(key, "C", TTL_MS, None), Idle)
        self.pass_time(MINUTE_MS)
        assert ids(self.claimed(provider, key, "C", None).messages) == ["m2"]

    def test_held_mailbox_is_bounded(self, provider: ControlProvider, key: str) -> None:
        """M15, M7: no owner runs what is stored, so `max_pending` bounds it."""
        policy = Policy(max_pending=2)
        provider.hold(key)
        for number in (1, 2):
            self.routed(provider, key, f"A{number}", number, policy=policy)
        with pytest.raises(MailboxFull):
            provider.claim(key, "A3", TTL_MS, message(3), policy=policy)

    def test_burst_waits_until_it_is_quiet(self, provider: ControlProvider, key: str) -> None:
        """M15: each message begins the pause again; then one run gets them all."""
        first = self.routed(provider, key, "A", 1, debounce=BURST)
        assert self.about(first.due_in_ms, 2_000)
        self.pass_time(1_500)
        second = self.routed(provider, key, "B", 2, debounce=BURST)
        assert second.due_in_ms is None
        self.pass_time(1_500)
        assert isinstance(provider.claim(key, "C", TTL_MS, None), Idle)
        assert provider.show(key).quiet_until_ms is not None
        self.pass_time(500)
        assert ids(self.claimed(provider, key, "C", None).messages) == ["m1"]
        assert ids(provider.take(key, "C", TTL_MS, have=["m1"])) == ["m2"]

    def test_burst_does_not_wait_for_ever(self, provider: ControlProvider, key: str) -> None:
        """M15: at most `max_ms` after its first message."""
        self.routed(provider, key, "A1", 1, debounce=BURST)
        self.pass_time(1_900)
        self.routed(provider, key, "A2", 2, debounce=BURST)
        self.pass_time(1_900)
        self.routed(provider, key, "A3", 3, debounce=BURST)
        idle = provider.claim(key, "B", TTL_MS, None)
        assert isinstance(idle, Idle)
        assert self.about(idle.due_in_ms, 1_200)
        self.pass_time(1_200)
        claim = provider.claim(key, "A4", TTL_MS, message(4), debounce=BURST)
        assert isinstance(claim, Claimed)
        assert ids(claim.messages) == ["m1"]

    def test_burst_behind_an_owner_does_not_wait(self, provider: ControlProvider, key: str) -> None:
        """M15: only a key without an owner collects."""
        self.routed(provider, key, "A", 1, debounce=BURST)
        self.pass_time(2_000)
        self.claimed(provider, key, "B", None)
        assert self.routed(provider, key, "C", 2, debounce=BURST).owner == "B"
        answer = provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"], next_owner="B2")
        assert isinstance(answer, Continued)

    def test_retry_during_a_burst_does_not_prolong_it(self, provider: ControlProvider, key: str) -> None:
        """M15, M5: nothing new has come."""
        self.routed(provider, key, "A", 1, debounce=BURST)
        self.pass_time(1_500)
        assert provider.claim(key, "B", TTL_MS, message(1), debounce=BURST) == Duplicate(state="waiting")
        self.pass_time(500)
        assert ids(self.claimed(provider, key, "C", None).messages) == ["m1"]

    @pytest.mark.parametrize("for_ms", [0, -1, 1.5, True, 14 * 86_400_000 + 1])
    def test_bad_hold_is_refused(self, provider: ControlProvider, key: str, for_ms: Any) -> None:
        """R10, M15: whole milliseconds, at most 14 days."""
        with pytest.raises(ConfigurationError):
            provider.hold(key, for_ms=for_ms)
        assert provider.show(key).held_until_ms is None
