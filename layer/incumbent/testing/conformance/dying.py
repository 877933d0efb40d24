"""What becomes of the messages whose run died with its tenure (M6, M4)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import LeaseLost, MailboxFull
from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Claimed, Continued, Duplicate, Failure, Idle, Message, Policy, Released, Routed

PAUSING = Policy(pauses_ms=(PAUSE_MS, 2 * PAUSE_MS), max_attempts=3)
BLOCKING = Policy(pauses_ms=(PAUSE_MS, 2 * PAUSE_MS), max_attempts=3, on_error="block")
STEPWISE = Policy(pauses_ms=(PAUSE_MS,), max_attempts=1)

Way = Callable[["Dying", Any, str], None]


def _expires(test: "Dying", _provider: Any, _key: str) -> None:
    test.expire()


def _is_released(_test: "Dying", provider: Any, key: str) -> None:
    provider.release_lease(key, "A")


def _is_settled(_test: "Dying", provider: Any, key: str) -> None:
    provider.settle(key, "A", ttl_ms=TTL_MS, policy=PAUSING)


def _is_transferred(_test: "Dying", provider: Any, key: str) -> None:
    provider.transfer_lease(key, "A", "B", TTL_MS)
    provider.release_lease(key, "B")


def _is_transferred_twice(_test: "Dying", provider: Any, key: str) -> None:
    provider.transfer_lease(key, "A", "B", TTL_MS)
    provider.transfer_lease(key, "B", "C", TTL_MS)
    provider.release_lease(key, "C")


def _expires_and_is_acquired(test: "Dying", provider: Any, key: str) -> None:
    test.expire()
    provider.acquire_lease(key, "B", TTL_MS)
    provider.release_lease(key, "B")


# How a tenure of A can end without a word of what it was given. Afterwards the key is free.
WAYS = (_expires, _is_released, _is_settled, _is_transferred, _is_transferred_twice, _expires_and_is_acquired)


class Dying(MailSubject):
    """Its run died: the message pauses like one that failed, and holds up nothing that never ran."""

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
    def test_message_whose_run_died_pauses_and_goes_behind(self, provider: MailboxProvider, key: str, way: Way) -> None:
        """M6, M4: however its tenure ended; it is counted, is due a pause later, and what came later goes first."""
        # H43: a poison message starves its key.
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.routed(provider, key, "B2", 2, policy=PAUSING)
        self.routed(provider, key, "B3", 3, policy=PAUSING)
        way(self, provider, key)
        other = self.make_other(provider)
        answer: Claimed | Continued = self.claimed(other, key, "D1", None, policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.waiting == 1
        assert [(each.id, each.attempt, each.promised) for each in other.peek(key)] == [
            ("m2", 1, True),
            ("m3", 0, True),
            ("m1", 1, False),
        ]
        answer = self.continued(other, key, "D1", "D2", handled=["m2"], policy=PAUSING)
        assert ids(answer.messages) == ["m3"]
        assert other.settle(key, "D2", ttl_ms=TTL_MS, handled=["m3"], next_owner="D3", policy=PAUSING) == Released(
            remaining=1
        )
        assert other.claim(key, "E", TTL_MS, None, policy=PAUSING) == Idle()
        self.pass_time(PAUSE_MS)
        (again,) = self.claimed(provider, key, "E", None, policy=PAUSING).messages
        assert (again.id, again.attempt, again.last_error) == ("m1", 2, None)

    @pytest.mark.parametrize("policy", [PAUSING, BLOCKING], ids=["skip", "block"])
    def test_message_whose_run_died_pauses_as_long_as_one_that_failed(
        self, provider: MailboxProvider, key: str, policy: Policy
    ) -> None:
        """M6: from the strangers' edge on, not due one millisecond before, longer each time."""
        self.claimed(provider, key, "A0", 1, policy=policy)
        for number, pause_ms in enumerate(policy.pauses_ms, 1):
            self.expire()
            rest_ms = self.pass_almost(pause_ms)
            assert provider.claim(key, "B", TTL_MS, None, policy=policy) == Idle()
            assert self.own_orphans(provider, key) == []
            self.pass_time(rest_ms)
            (orphan,) = self.own_orphans(provider, key)
            assert 0 <= orphan.age_ms <= self.slack_ms
            answer = self.claimed(provider, key, f"A{number}", None, policy=policy)
            assert [(each.id, each.attempt) for each in answer.messages] == [("m1", number + 1)]

    def test_pause_begins_when_the_tenure_ended(self, provider: MailboxProvider, key: str) -> None:
        """M6: not when the next owner comes: then it may be over, and the message is due at its new place."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.routed(provider, key, "B", 2, policy=PAUSING)
        self.expire()
        self.pass_time(PAUSE_MS)
        answer: Claimed | Continued = self.claimed(provider, key, "C", 3, policy=PAUSING)
        assert ids(answer.messages) == ["m2"]
        assert answer.waiting == 2
        answer = self.continued(provider, key, "C", "C2", handled=["m2"], policy=PAUSING)
        assert ids(answer.messages) == ["m3"]
        answer = self.continued(provider, key, "C2", "C3", handled=["m3"], policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]

    def test_message_that_was_never_run_goes_first(self, provider: MailboxProvider, key: str) -> None:
        """M4, M6: also the one that the claim itself brings, though the pause is over."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        for number in (2, 3):
            self.expire()
            self.pass_time(2 * PAUSE_MS)
            answer = self.claimed(provider, key, f"B{number}", number, policy=PAUSING)
            assert ids(answer.messages) == [f"m{number}"]
            assert answer.waiting == 1
            provider.settle(key, f"B{number}", ttl_ms=TTL_MS, handled=[f"m{number}"], policy=PAUSING)
            answer = self.claimed(provider, key, f"C{number}", None, policy=PAUSING)
            assert [(each.id, each.attempt) for each in answer.messages] == [("m1", number)]

    def test_later_messages_queue_behind_it(self, provider: MailboxProvider, key: str) -> None:
        """M4: its new place is a place: what is stored afterwards does not overtake it once its pause is over."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.routed(provider, key, "B", 2, policy=PAUSING)
        self.expire()
        assert ids(self.claimed(provider, key, "C", None, policy=PAUSING).messages) == ["m2"]
        for number in (3, 4):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        self.pass_time(PAUSE_MS)
        answer = self.continued(provider, key, "C", "C2", handled=["m2"], policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 2
        answer = self.continued(provider, key, "C2", "C3", handled=["m1"], policy=PAUSING)
        assert ids(answer.messages) == ["m3"]

    def test_message_whose_run_died_blocks_where_failed_ones_do(self, provider: MailboxProvider, key: str) -> None:
        """M6: on_error="block": it keeps its place and pauses, and what comes later is promised and waits."""
        self.claimed(provider, key, "A", 1, policy=BLOCKING)
        self.routed(provider, key, "B", 2, policy=BLOCKING)
        self.expire()
        assert provider.claim(key, "C", TTL_MS, None, policy=BLOCKING) == Idle()
        assert self.routed(provider, key, "C", 3, policy=BLOCKING).owner is None
        assert ids(provider.peek(key)) == ["m1", "m2", "m3"]
        full = Policy(pauses_ms=BLOCKING.pauses_ms, on_error="block", max_pending=3)
        with pytest.raises(MailboxFull):
            provider.claim(key, "D", TTL_MS, message(4), policy=full)
        assert self.own_orphans(provider, key) == []
        self.pass_time(PAUSE_MS)
        answer: Claimed | Continued = self.claimed(provider, key, "E", None, policy=BLOCKING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 2
        answer = self.continued(provider, key, "E", "E2", handled=["m1"], policy=BLOCKING)
        assert ids(answer.messages) == ["m2"]

    def test_retry_of_the_invocation_that_died_is_promised_and_runs_when_due(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M1 (4), M3, M8: during the pause it is told that its message waits, and then the sweeper finds it."""
        # H54: called a duplicate of itself, the message would never run.
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.expire()
        for _ in range(2):  # R8: the same again
            assert provider.claim(key, "B", TTL_MS, message(1), policy=PAUSING) == Duplicate(state="waiting")
            assert provider.get_lease_owner(key) is None
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 1, True)]
        assert self.own_orphans(provider, key) == []
        self.pass_time(PAUSE_MS)
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.waiting == 1
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m1", 2)]

    def test_message_that_was_routed_and_whose_run_died_is_routed_to_its_claim(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """R8, M1: a late copy of the claim that stored it is told what the first was."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.routed(provider, key, "B", 2, policy=PAUSING)
        self.continued(provider, key, "A", "A2", handled=["m1"], policy=PAUSING)
        self.expire()
        answer = provider.claim(key, "B", TTL_MS, message(2), policy=PAUSING)
        assert isinstance(answer, Routed)
        assert answer.owner is None
        assert provider.get_lease_owner(key) is None

    def test_message_out_of_attempts_dies_with_its_run(self, provider: MailboxProvider, key: str) -> None:
        """M6: it does not pause first, and what waits is run in its stead."""
        self.claimed(provider, key, "A", 1, policy=STEPWISE)
        self.routed(provider, key, "B", 2, policy=STEPWISE)
        self.expire()
        answer = self.claimed(provider, key, "C", None, policy=STEPWISE)
        assert (ids(answer.dead_lettered), ids(answer.messages), answer.waiting) == (["m1"], ["m2"], 0)
        self.expire()
        assert provider.claim(key, "D", TTL_MS, message(2), policy=STEPWISE) == Duplicate(state="dead")
        assert ids(provider.peek(key)) == []

    def test_all_that_a_run_held_go_one_by_one_behind(self, provider: MailboxProvider, key: str) -> None:
        """M6, M4: in their order, each with a pause of its own, and take gives none of them."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        for number in (2, 3):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        assert ids(provider.take(key, "A", TTL_MS, have=["m1"])) == ["m2", "m3"]
        self.routed(provider, key, "B4", 4, policy=PAUSING)
        self.routed(provider, key, "B5", 5, policy=PAUSING)
        self.expire()
        self.pass_time(PAUSE_MS)
        answer: Claimed | Continued = self.claimed(provider, key, "C1", None, policy=PAUSING)
        assert ids(answer.messages) == ["m4"]
        assert answer.waiting == 4
        assert ids(provider.take(key, "C1", TTL_MS, have=["m4"])) == ["m5"]
        answer = self.continued(provider, key, "C1", "C2", handled=["m4", "m5"], policy=PAUSING)
        for number in (1, 2, 3):
            assert [(each.id, each.attempt) for each in answer.messages] == [(f"m{number}", 2)]
            assert list(provider.take(key, f"C{number + 1}", TTL_MS, have=[f"m{number}"])) == []
            if number < 3:
                answer = self.continued(
                    provider, key, f"C{number + 1}", f"C{number + 2}", handled=[f"m{number}"], policy=PAUSING
                )

    def test_what_ran_while_an_older_one_paused_goes_behind_it(self, provider: MailboxProvider, key: str) -> None:
        """M6: the first of the mailbox need not be the one whose run died."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        for number in (2, 3):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        failed = [Failure(id="m1", error="no", after_ms=TTL_MS)]
        assert ids(self.continued(provider, key, "A", "A2", failed=failed, policy=PAUSING).messages) == ["m2"]
        self.expire()  # and its pause is over, too
        answer: Claimed | Continued = self.claimed(self.make_other(provider), key, "C", None, policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 1
        assert [(each.id, each.attempt) for each in provider.peek(key)] == [("m1", 2), ("m3", 0), ("m2", 1)]

    def test_key_that_passes_by_ticket_takes_nothing_down(self, provider: MailboxProvider, key: str) -> None:
        """M9, M6: a ticket is given nothing, so with it nothing dies: what waits is due at once, at its place."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        for number in (2, 3):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T", policy=PAUSING)
        self.expire()
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.waiting == 2
        answer = self.claimed(provider, key, "C", None, policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.waiting == 1

    def test_ticket_that_takes_a_dead_owners_key_ends_its_runs(self, provider: MailboxProvider, key: str) -> None:
        """M6, M9: what is sent to the key goes first, and the one whose run died pauses from then on."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.expire()
        ticket = self.claimed(provider, key, "T", 2, as_ticket=True, policy=PAUSING)
        assert (ticket.messages, ticket.waiting) == ((), 1)
        answer = self.claimed(provider, key, "C", None, ticket="T", policy=PAUSING)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.waiting == 0
        self.pass_time(PAUSE_MS)
        assert provider.beat(key, "C", TTL_MS).waiting == 1

    def test_late_owner_does_not_settle_what_died_with_its_run(self, provider: MailboxProvider, key: str) -> None:
        """R3, M6: it pauses, and the late word of it changes nothing."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.expire()
        provider.acquire_lease(key, "B", TTL_MS)
        before = list(provider.peek(key))
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], policy=PAUSING)
        assert list(provider.peek(key)) == before
        assert provider.beat(key, "B", TTL_MS).waiting == 0
        assert list(provider.take(key, "B", TTL_MS)) == []

    def test_owner_that_only_acquired_is_given_what_never_ran(self, provider: MailboxProvider, key: str) -> None:
        """M1 (1), M6: by a claim or a take, and what died before waits out its pause."""
        self.claimed(provider, key, "A", 1, policy=PAUSING)
        self.routed(provider, key, "B2", 2, policy=PAUSING)
        self.expire()
        provider.acquire_lease(key, "B", TTL_MS)
        assert ids(self.claimed(provider, key, "B", None, policy=PAUSING).messages) == ["m2"]
        self.routed(provider, key, "B3", 3, policy=PAUSING)
        assert ids(provider.take(key, "B", TTL_MS, have=["m2"])) == ["m3"]

    def test_large_message_keeps_its_body_behind_others(self, provider: MailboxProvider, key: str) -> None:
        """M3: moved with all that is stored of it, however large, and its error too."""
        large = Message(id="m1", event="é" * 30_000)
        assert isinstance(provider.claim(key, "A", TTL_MS, large, policy=PAUSING), Claimed)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1, after_ms=0)], policy=PAUSING)
        self.claimed(provider, key, "A2", None, policy=PAUSING)
        self.routed(provider, key, "B", 2, policy=PAUSING)
        self.expire()
        assert ids(self.claimed(provider, key, "C", None, policy=PAUSING).messages) == ["m2"]
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m2"], policy=PAUSING)
        self.pass_time(2 * PAUSE_MS)
        (again,) = self.claimed(provider, key, "D", None, policy=PAUSING).messages
        assert (again.event, again.attempt, again.last_error) == (large.event, 3, "failed 1")

    def test_many_whose_run_died_stay_in_order(self, provider: MailboxProvider, key: str) -> None:
        """M4: thirty that one run held, behind ten that came later."""
        self.claimed(provider, key, "A", 0, policy=PAUSING)
        for number in range(1, 30):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        assert len(provider.take(key, "A", TTL_MS)) == 30
        for number in range(30, 40):
            self.routed(provider, key, f"B{number}", number, policy=PAUSING)
        self.expire()
        assert ids(self.claimed(provider, key, "C", None, policy=PAUSING).messages) == ["m30"]
        assert ids(provider.peek(key)) == [f"m{number}" for number in (*range(30, 40), *range(30))]
