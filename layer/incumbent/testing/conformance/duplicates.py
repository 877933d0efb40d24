"""What a claim says of a message that is known, or finds waiting on a free key (M1, M3)."""
# ruff: noqa: S101 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Claimed, Duplicate, Idle, Message, Policy, Released, Routed


class Duplicates(MailSubject):
    """A message that comes again."""

    def test_duplicate_of_the_running_message_is_promised(self, provider: MailboxProvider, key: str) -> None:
        """M1 (3), M3: a caller that is told that a message runs is promised it, in the same step."""
        # H52: found by exploring the rules.
        self.claimed(provider, key, "A", 1)
        answer = provider.claim(key, "B", TTL_MS, message(1))
        assert answer == Duplicate(state="running", owner="A")
        (stored,) = provider.peek(key)
        assert (stored.promised, stored.attempt) == (True, 1)

    def test_duplicate_of_a_waiting_message_is_told_so(self, provider: MailboxProvider, key: str) -> None:
        """M1 (3): waiting, not running."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert provider.claim(key, "C", TTL_MS, message(2)) == Duplicate(state="waiting", owner="A")
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m1", False), ("m2", True)]

    def test_duplicate_of_an_unpromised_waiting_message_is_promised(self, provider: MailboxProvider, key: str) -> None:
        """M3: also of one that waits unpromised, behind an older message that its own claim was given."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.routed(provider, key, "B", 1)
        self.claimed(provider, key, "A", 2)
        assert [each.promised for each in provider.peek(key)] == [True, False]
        assert provider.claim(key, "C", TTL_MS, message(2)) == Duplicate(state="waiting", owner="A")
        assert [each.promised for each in provider.peek(key)] == [True, True]

    def test_duplicate_keeps_the_first_event(self, provider: MailboxProvider, key: str) -> None:
        """M5: an id is stored once, as it was first given."""
        self.claimed(provider, key, "A", 1)
        provider.claim(key, "B", TTL_MS, Message(id="m1", event="another event"))
        assert [each.event for each in provider.peek(key)] == [message(1).event]

    def test_handled_message_is_a_duplicate(self, provider: MailboxProvider, key: str) -> None:
        """M1 (2): on a free key nothing is owned, behind an owner nothing is stored."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="handled", owner=None)
        assert provider.get_lease_owner(key) is None
        self.claimed(provider, key, "C", 2)
        assert provider.claim(key, "D", TTL_MS, message(1)) == Duplicate(state="handled", owner="C")
        assert ids(provider.peek(key)) == ["m2"]

    def test_waiting_message_on_a_free_key_is_claimed(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4): the retry of a crashed invocation runs its message, after its pause: counted again, stored once."""
        # H54: found by exploring the rules: called a duplicate of itself, the message would never run.
        first = self.claimed(provider, key, "A", 1)
        self.die()
        second = self.claimed(provider, key, "B", 1)
        assert second.fence > first.fence
        assert [(each.id, each.attempt) for each in second.messages] == [("m1", 2)]
        assert second.messages[0].promised is False
        assert second.messages[0].event == message(1).event
        assert ids(provider.peek(key)) == ["m1"]

    def test_promised_message_on_a_free_key_stays_promised(self, provider: MailboxProvider, key: str) -> None:
        """M3: the mark is never taken back."""
        self.claimed(provider, key, "A", 1)
        provider.claim(key, "B", TTL_MS, message(1))
        self.die()
        assert self.claimed(provider, key, "C", 1).messages[0].promised is True

    def test_claimer_of_a_waiting_message_is_its_claim_from_now_on(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4), M3: it may drop the message, and then a late copy of its claim stores nothing."""
        self.claimed(provider, key, "A", 1)
        self.die()
        self.claimed(provider, key, "B", 1)
        assert provider.settle(key, "B", ttl_ms=TTL_MS, dropped=[failure(1)]) == Released(remaining=0)
        assert provider.claim(key, "B", TTL_MS, message(1)) == Idle()
        assert ids(provider.peek(key)) == []
        self.claimed(provider, key, "C", 1)

    def test_claim_of_a_paused_message_is_a_duplicate(self, provider: MailboxProvider, key: str) -> None:
        """M6, M3: its source tries again during the pause: it waits, promised from now on, and does not run early."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)])
        assert [each.promised for each in provider.peek(key)] == [False]
        for _ in range(2):  # R8: the same again
            assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="waiting", owner=None)
            assert provider.get_lease_owner(key) is None
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 1, True)]
        self.pass_time(PAUSE_MS)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", 1).messages] == [("m1", 2)]

    def test_claim_that_blocks_is_given_nothing_behind_a_paused_message(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M6: on_error="block" of the claim counts, whatever the run before had."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)])
        assert provider.claim(key, "C", TTL_MS, None, policy=Policy(on_error="block")) == Idle()

    def test_message_behind_a_paused_one_is_routed_though_nobody_owns(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M6: on_error="block": strict order leaves nothing to run now: it is stored and promised, and the key free."""
        policy = Policy(on_error="block")
        self.claimed(provider, key, "A", 1, policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy)
        assert self.routed(provider, key, "B", 2, policy=policy).owner is None
        assert self.routed(provider, key, "B", 2, policy=policy).owner is None
        assert provider.claim(key, "C", TTL_MS, message(2), policy=policy) == Duplicate(state="waiting", owner=None)
        assert provider.get_lease_owner(key) is None
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m1", 1, False),
            ("m2", 0, True),
        ]
        self.pass_time(PAUSE_MS)
        answer = self.claimed(provider, key, "D", None, policy=policy)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 1

    @pytest.mark.parametrize("accepted", [True, False])
    @pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 3_000), (3_000, 0), (3_000, 3_000)])
    def test_id_that_comes_again_runs_what_was_stored_first(
        self, provider: MailboxProvider, key: str, *, accepted: bool, first: int, second: int
    ) -> None:
        """M5: another event under the id of a waiting one replaces nothing, and is not kept: inline or large."""
        one = Message(id="d", event={"amount": 1, "filling": "x" * first})
        other = Message(id="d", event={"amount": 2, "filling": "y" * second})
        if accepted:
            self.claimed(provider, key, "A", 1)
            assert isinstance(provider.claim(key, "B", TTL_MS, one), Routed)
            assert provider.claim(key, "C", TTL_MS, other) == Duplicate(state="waiting", owner="A")
            self.continued(provider, key, "A", "A2", handled=["m1"])
        else:
            assert isinstance(provider.claim(key, "A2", TTL_MS, one), Claimed)
        self.die()
        ticket = self.make_other(provider).claim(key, "T", TTL_MS, other, as_ticket=True)
        assert isinstance(ticket, Claimed)
        assert [(each.event, each.promised) for each in provider.peek(key)] == [(one.event, True)]
        provider.release_lease(key, "T")
        answer = self.make_other(provider).claim(key, "D", TTL_MS, other)
        assert isinstance(answer, Claimed)
        assert [each.event for each in answer.messages] == [one.event]
        assert [each.event for each in provider.peek(key)] == [one.event]

    @pytest.mark.parametrize("routed", [False, True])
    @pytest.mark.parametrize(("first", "second"), [(0, 3_000), (3_000, 0), (3_000, 3_000), (3_000, 400_000)])
    def test_claim_repeated_with_another_event_changes_nothing(
        self, provider: MailboxProvider, key: str, *, routed: bool, first: int, second: int
    ) -> None:
        """M5: the event stored first under an id runs, even if the same owner sends another: inline or large."""
        one = Message(id="d", event={"amount": 1, "filling": "x" * first})
        other = Message(id="d", event={"amount": 2, "filling": "y" * second})
        if routed:
            self.claimed(provider, key, "O", 1)
            assert provider.claim(key, "A", TTL_MS, one) == Routed(owner="O", waiting=2)
            provider.claim(key, "A", TTL_MS, other)
        else:
            assert isinstance(provider.claim(key, "A", TTL_MS, one), Claimed)
            answer = provider.claim(key, "A", TTL_MS, other)
            assert isinstance(answer, Claimed)
            assert [each.event for each in answer.messages] == [one.event]
        assert provider.peek(key)[-1].event == one.event
        if routed:
            self.continued(provider, key, "O", "A", handled=["m1"])
        assert [each.event for each in provider.take(key, "A", TTL_MS)] == [one.event]
