"""How a key passes to another invocation: one-use tickets (M9)."""
# ruff: noqa: S101 - these are tests: assert is how they say it

from incumbent.testing.conformance.mail import MailSubject, failure, ids, same
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Busy, Continued, Idle, Released


class HandingOver(MailSubject):
    """A ticket holds the key until a claim redeems it."""

    def test_ticket_holds_the_key_and_is_given_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M9, M6: passing the key on counts no delivery; what waits is promised."""
        # H56: found by exploring the rules: three failed wakes counted as three deliveries.
        first = self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        assert isinstance(answer, Continued)
        assert (answer.owner, answer.messages, answer.waiting) == ("T", (), 1)
        assert answer.fence > first.fence
        assert self.about(answer.expires_in_ms, TTL_MS)
        assert provider.get_lease_owner(key) == "T"
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m2", 0, True)]

    def test_handed_over_messages_are_promised(self, provider: MailboxProvider, key: str) -> None:
        """M3: the caller that hands a message over tells its source "accepted"."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1, after_ms=0)])
        self.claimed(provider, key, "B", 2)  # is given the older one; its own waits, unpromised
        assert [each.promised for each in provider.peek(key)] == [False, False]
        provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m2", True)]

    def test_paused_messages_are_promised_by_a_hand_over_too(self, provider: MailboxProvider, key: str) -> None:
        """M3: all that is stored is handed over, due or not."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], ticket="T")
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m1", True), ("m2", True)]

    def test_ticket_waits_for_nobody_while_all_is_paused(self, provider: MailboxProvider, key: str) -> None:
        """M2, M6: nothing is due, so no function has to be woken, and the key is free."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], ticket="T") == Released(remaining=1)
        assert provider.get_lease_owner(key) is None
        assert provider.claim(key, "B", TTL_MS, None, ticket="T") == Idle()

    def test_ticket_for_nothing_frees_the_key(self, provider: MailboxProvider, key: str) -> None:
        """M2: as with a successor."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T") == Released(remaining=0)
        assert provider.get_lease_owner(key) is None

    def test_ticket_is_redeemed_under_an_owner_of_its_own(self, provider: MailboxProvider, key: str) -> None:
        """M9: with a new fence and a full ttl; the message is delivered and counted now."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        ticket = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        assert isinstance(ticket, Continued)
        self.pass_time(10_000)
        answer = self.claimed(self.make_other(provider), key, "C", None, ticket="T")
        assert answer.fence > ticket.fence
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert self.about(answer.expires_in_ms, TTL_MS)
        assert provider.get_lease_owner(key) == "C"

    def test_ticket_is_redeemed_once(self, provider: MailboxProvider, key: str) -> None:
        """M9: an event delivered twice runs once: busy while the run goes on, idle afterwards."""
        # H53: the wake-up arrives twice: two runs, one owner, one fence.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        self.claimed(provider, key, "C", None, ticket="T")
        second = provider.claim(key, "D", TTL_MS, None, ticket="T")
        assert isinstance(second, Busy)
        assert second.owner == "C"
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m2"])
        assert provider.claim(key, "E", TTL_MS, None, ticket="T") == Idle()
        assert provider.get_lease_owner(key) is None

    def test_repeated_redemption_is_claimed_again(self, provider: MailboxProvider, key: str) -> None:
        """R8: a redemption whose answer was lost is not told that it lost to itself."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        first = self.claimed(provider, key, "C", None, ticket="T")
        again = self.claimed(provider, key, "C", None, ticket="T")
        assert again.fence == first.fence
        assert same(again.messages) == same(first.messages)

    def test_spent_ticket_releases_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M9: the waker's error handling does not free a key whose successor runs."""
        # H62: found by exploring the rules.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        self.claimed(provider, key, "C", None, ticket="T")
        provider.release_lease(key, "T")
        assert provider.get_lease_owner(key) == "C"

    def test_unspent_ticket_is_released(self, provider: MailboxProvider, key: str) -> None:
        """M9, M8: after a failed wake the key is free and its messages are orphans; the ticket is an ordinary claim."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        provider.release_lease(key, "T")
        assert provider.get_lease_owner(key) is None
        assert [orphan.key for orphan in self.own_orphans(provider, key)] == [key]
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None, ticket="T").messages] == [
            ("m2", 1)
        ]

    def test_expired_ticket_leaves_an_ordinary_free_key(self, provider: MailboxProvider, key: str) -> None:
        """M9, R3: anybody may claim; the late ticket too, as long as something is due."""
        # H36: KCL #1718, #1765.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        self.expire()
        assert provider.get_lease_owner(key) is None
        assert ids(self.claimed(provider, key, "C", None, ticket="T").messages) == ["m2"]
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m2"])
        assert provider.claim(key, "D", TTL_MS, None, ticket="T") == Idle()

    def test_wrong_ticket_redeems_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M9: only the ticket that holds the key."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        answer = provider.claim(key, "C", TTL_MS, None, ticket="another")
        assert isinstance(answer, Busy)
        assert answer.owner == "T"

    def test_claim_as_ticket_stores_promises_and_delivers_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M9: what send does on a free key."""
        answer = self.claimed(provider, key, "T", 1, as_ticket=True)
        assert (answer.messages, answer.waiting) == ((), 1)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 0, True)]
        assert provider.get_lease_owner(key) == "T"
        again = self.claimed(provider, key, "T", 1, as_ticket=True)
        assert (again.fence, again.messages, again.waiting) == (answer.fence, (), 1)
        redeemed = self.claimed(provider, key, "A", None, ticket="T")
        assert redeemed.fence > answer.fence
        assert [(each.id, each.attempt) for each in redeemed.messages] == [("m1", 1)]

    def test_claim_as_ticket_is_routed_behind_an_owner(self, provider: MailboxProvider, key: str) -> None:
        """M9: as any other message, and no function has to be woken."""
        self.claimed(provider, key, "A", 1)
        assert self.routed(provider, key, "T", 2, as_ticket=True).owner == "A"
        assert provider.get_lease_owner(key) == "A"

    def test_claim_as_ticket_of_a_waiting_message_promises_it(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4), M3: its sender is told "accepted"."""
        self.claimed(provider, key, "A", 1)
        self.die()
        answer = self.claimed(provider, key, "T", 1, as_ticket=True)
        assert (answer.messages, answer.waiting) == ((), 1)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 1, True)]
