"""How much a mailbox takes, and how long an id is remembered (M5, M7)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import pytest

from incumbent.errors import MailboxFull, MessageTooLarge
from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Busy, Claimed, Duplicate, Message, Policy, Released

WINDOW_MS = 60 * 60_000


class Limits(MailSubject):
    """Full mailboxes, large messages, ids that come again within the window."""

    def test_full_mailbox_refuses_to_route(self, provider: MailboxProvider, key: str) -> None:
        """M7: max_pending counts all that is stored, the running one included; nothing was stored."""
        policy = Policy(max_pending=3)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        self.routed(provider, key, "C", 3, policy=policy)
        with pytest.raises(MailboxFull) as raised:
            provider.claim(key, "D", TTL_MS, message(4), policy=policy)
        assert (raised.value.key, raised.value.owner) == (key, "A")
        assert ids(provider.peek(key)) == ["m1", "m2", "m3"]
        self.continued(provider, key, "A", "A2", handled=["m1"], policy=policy)
        self.routed(provider, key, "D", 4, policy=policy)

    def test_full_mailbox_knows_what_it_holds(self, provider: MailboxProvider, key: str) -> None:
        """M7: duplicates, repetitions and claims that store nothing are answered as ever."""
        policy = Policy(max_pending=2)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        assert self.routed(provider, key, "B", 2, policy=policy).owner == "A"
        assert provider.claim(key, "C", TTL_MS, message(1), policy=policy) == Duplicate(state="running", owner="A")
        assert isinstance(provider.claim(key, "C", TTL_MS, None, policy=policy), Busy)
        assert isinstance(provider.claim(key, "C", TTL_MS, message(3), route=False, policy=policy), Busy)
        assert ids(self.claimed(provider, key, "A", 1, policy=policy).messages) == ["m1"]

    def test_full_mailbox_does_not_refuse_who_finds_the_key_free(self, provider: MailboxProvider, key: str) -> None:
        """M7: the only one who can empty it is its owner."""
        # H55: found by exploring the rules.
        policy = Policy(max_pending=2)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        self.expire()
        answer = self.claimed(provider, key, "C", 3, policy=policy)
        assert ids(answer.messages) == ["m2"]
        assert answer.waiting == 1
        assert ids(provider.peek(key)) == ["m2", "m3", "m1"]
        with pytest.raises(MailboxFull):
            provider.claim(key, "D", TTL_MS, message(4), policy=policy)

    def test_owners_that_die_leave_a_bounded_number_of_messages_behind(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M7: 100 beyond what may be routed; then the key is owned without a message, until there is room."""
        policy = Policy(max_pending=1)
        for number in range(101):
            ticket = f"ticket-{number}"
            self.claimed(provider, key, ticket, number, policy=policy, as_ticket=True)
            provider.release_lease(key, ticket)
        for as_ticket in (False, True):
            with pytest.raises(MailboxFull) as raised:
                provider.claim(key, "A", TTL_MS, message("new"), policy=policy, as_ticket=as_ticket)
            assert (raised.value.key, raised.value.owner) == (key, None)
        assert provider.get_lease_owner(key) is None
        assert len(provider.peek(key)) == 101
        assert ids(self.claimed(provider, key, "B", 50, policy=policy).messages) == ["m0"]
        provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m0"], policy=policy)
        assert ids(self.claimed(provider, key, "C", "new", policy=policy).messages) == ["m1"]

    def test_full_mailbox_behind_a_paused_message_refuses_on_a_free_key(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M7: on_error="block": who has nothing to run is routed, and that is bounded; not who finds something due."""
        policy = Policy(on_error="block", max_pending=2)
        self.claimed(provider, key, "A", 1, policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        with pytest.raises(MailboxFull):
            provider.claim(key, "C", TTL_MS, message(3), policy=policy)
        assert provider.get_lease_owner(key) is None
        assert ids(provider.peek(key)) == ["m1", "m2"]
        assert provider.claim(key, "D", TTL_MS, message(2), policy=policy) == Duplicate(state="waiting", owner=None)
        self.pass_time(PAUSE_MS)
        answer = self.claimed(provider, key, "E", 3, policy=policy)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 2

    def test_message_may_be_as_large_as_the_limit_to_the_byte(self, provider: MailboxProvider, key: str) -> None:
        """M7: bytes of UTF-8, not characters; one more is refused and nothing stored."""
        policy = Policy(max_message_bytes=100)
        largest = Message(id="m1", event="é" * 49)  # and two quotes
        larger = Message(id="m2", event="é" * 49 + "x")
        with pytest.raises(MessageTooLarge) as raised:
            provider.claim(key, "A", TTL_MS, larger, policy=policy)
        assert raised.value.key == key
        assert ids(provider.peek(key)) == []
        assert provider.get_lease_owner(key) is None
        assert isinstance(provider.claim(key, "A", TTL_MS, largest, policy=policy), Claimed)
        with pytest.raises(MessageTooLarge):
            provider.claim(key, "B", TTL_MS, larger, policy=policy)
        assert [each.event for each in provider.peek(key)] == ["é" * 49]

    # --- once per id

    def test_handled_id_is_remembered_for_the_window(self, provider: MailboxProvider, key: str) -> None:
        """M5: an hour; one millisecond before it is a duplicate, at it a new message."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        rest_ms = self.pass_almost(WINDOW_MS)
        assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="handled")
        self.pass_time(rest_ms)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", 1).messages] == [("m1", 1)]

    def test_window_is_as_long_as_the_policy_says(self, provider: MailboxProvider, key: str) -> None:
        """M5: a longer one remembers longer."""
        policy = Policy(window_ms=2 * 60 * 60_000)
        self.claimed(provider, key, "A", 1, policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], policy=policy)
        rest_ms = self.pass_almost(2 * 60 * 60_000)
        assert provider.claim(key, "B", TTL_MS, message(1), policy=policy) == Duplicate(state="handled")
        self.pass_time(rest_ms)
        self.claimed(provider, key, "C", 1, policy=policy)

    def test_last_256_handled_ids_are_remembered(self, provider: MailboxProvider, key: str) -> None:
        """M5: the 257th forgets the first, and 260 runs leave the key as usable as ever."""
        # H59: tried: an unbounded list of ids bricked its key at the 9,901st.
        for number in range(260):
            answer = provider.claim(key, f"A{number}", TTL_MS, message(number))
            assert isinstance(answer, Claimed)
            assert ids(answer.messages) == [f"m{number}"]
            assert provider.settle(key, f"A{number}", ttl_ms=TTL_MS, handled=[f"m{number}"]) == Released(remaining=0)
        for number in (4, 5, 259):  # 260 less 256 is 4: the oldest that is still known
            assert provider.claim(key, f"B{number}", TTL_MS, message(number)) == Duplicate(state="handled")
        self.claimed(provider, key, "C", 3)
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m3"])
        self.claimed(provider, key, "D", 4)

    def test_last_256_ids_that_left_in_one_tenure_are_remembered(self, provider: MailboxProvider, key: str) -> None:
        """M5, M15: so many can leave while one owner stays, when each message supersedes the one before."""
        policy = Policy(keep="latest")
        self.claimed(provider, key, "A", 0, policy=policy)
        for number in range(1, 302):
            self.pass_time(1)
            self.routed(provider, key, f"B{number}", number, policy=policy)
        for number in (*range(45, 301, 17), 300):  # 300 left, so the oldest that is still known is 45
            assert provider.claim(key, "C", TTL_MS, message(number)) == Duplicate(state="superseded", owner="A")
        self.routed(provider, key, "C", 44, policy=policy)
