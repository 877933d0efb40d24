"""How a message comes in: claim, in the order of M1, with its limits and its window (M5, M7)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from incumbent.testing.conformance.mail import PAUSE_MS, MailSubject, ids, message, same
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import Busy, Claimed, Duplicate, Idle, Message, Policy, Routed


class Claiming(MailSubject):
    """A claim stores the message and tries to own the key, in one step."""

    def test_free_key_is_claimed(self, provider: MailboxProvider, key: str) -> None:
        """M1 (5): stored, owned and delivered in one step."""
        answer = self.claimed(provider, key, "A", 1)
        assert type(answer.fence) is int
        assert answer.waiting == 0
        assert self.about(answer.expires_in_ms, TTL_MS)
        (own,) = answer.messages
        assert (own.id, own.event, own.attempt) == ("m1", message(1).event, 1)
        assert own.promised is False
        assert own.last_error is None
        assert provider.get_lease_owner(key) == "A"
        assert ids(provider.peek(key)) == ["m1"]

    def test_held_key_routes(self, provider: MailboxProvider, key: str) -> None:
        """M1 (5): stored and promised behind the owner, who sees that it waits."""
        self.claimed(provider, key, "A", 1)
        answer = self.routed(provider, key, "B", 2)
        assert answer.owner == "A"
        assert provider.beat(key, "A", TTL_MS).waiting == 1
        stored = {each.id: each for each in provider.peek(key)}
        assert list(stored) == ["m1", "m2"]
        assert stored["m2"].promised is True
        assert stored["m2"].attempt == 0
        assert stored["m2"].event == message(2).event
        assert stored["m1"].promised is False

    def test_claim_of_the_present_owner_is_answered_from_what_stands(self, provider: MailboxProvider, key: str) -> None:
        """M1 (1), R8: the same fence and message, counted once, the lease not extended."""
        # H1, H54: the retry of a claim whose answer was lost.
        first = self.claimed(provider, key, "A", 1)
        self.pass_time(10_000)
        again = self.claimed(provider, key, "A", 1)
        assert again.fence == first.fence
        assert same(again.messages) == same(first.messages)
        assert again.messages[0].attempt == 1
        assert again.waiting == 0
        assert self.about(again.expires_in_ms, TTL_MS - 10_000)
        assert ids(provider.peek(key)) == ["m1"]

    def test_repeated_claim_is_told_what_has_come_since(self, provider: MailboxProvider, key: str) -> None:
        """M1 (1): what waits is counted, not delivered."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        again = self.claimed(provider, key, "A", 1)
        assert ids(again.messages) == ["m1"]
        assert again.waiting == 1
        assert [each.attempt for each in provider.peek(key)] == [1, 0]

    def test_owner_that_only_acquired_claims_its_message(self, provider: MailboxProvider, key: str) -> None:
        """M1 (1): it was given nothing yet, so its message is stored and given to it, under the same fence."""
        fence = provider.acquire_lease(key, "A", TTL_MS).fence
        answer = self.claimed(provider, key, "A", 1)
        assert answer.fence == fence
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
        assert answer.waiting == 0

    def test_owner_that_only_acquired_gets_the_oldest_first(self, provider: MailboxProvider, key: str) -> None:
        """M4: older ones that waited come before its own."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.routed(provider, key, "B", 1)
        answer = self.claimed(provider, key, "A", 2)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
        assert answer.waiting == 1
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m1", True), ("m2", False)]

    def test_owner_that_only_acquired_may_ask_for_what_waits(self, provider: MailboxProvider, key: str) -> None:
        """M1 (1): a claim without a message by the present owner."""
        fence = provider.acquire_lease(key, "A", TTL_MS).fence
        empty = self.claimed(provider, key, "A", None)
        assert (empty.fence, empty.messages, empty.waiting) == (fence, (), 0)
        self.routed(provider, key, "B", 1)
        assert ids(self.claimed(provider, key, "A", None).messages) == ["m1"]

    def test_message_routed_twice_by_one_claim_is_routed(self, provider: MailboxProvider, key: str) -> None:
        """M1 (3), R8: its own lost answer, not a duplicate."""
        # H1; H49: Powertools #7762.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert self.routed(provider, key, "B", 2).owner == "A"
        assert ids(provider.peek(key)) == ["m1", "m2"]

    def test_message_routed_and_handled_since_is_still_routed_to_its_claim(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """R8: the late repetition is told an answer that its first try had."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"])
        assert isinstance(provider.claim(key, "B", TTL_MS, message(2)), Routed | Duplicate)
        assert ids(provider.peek(key)) == []
        assert provider.get_lease_owner(key) is None

    def test_older_message_goes_first(self, provider: MailboxProvider, key: str) -> None:
        """M4: the claimer is given the oldest due message; its own waits."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        answer = self.claimed(provider, key, "C", 3)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        assert answer.waiting == 1
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m2", 1, True),
            ("m3", 0, False),
        ]

    def test_claim_of_a_waiting_message_gets_the_oldest(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4), M4: the message becomes the claimer's, and still the oldest runs first."""
        provider.acquire_lease(key, "A", TTL_MS)
        self.routed(provider, key, "B1", 1)
        self.routed(provider, key, "B2", 2)
        self.expire()
        answer = self.claimed(provider, key, "C", 2)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 1
        assert provider.claim(key, "D", TTL_MS, message(2)) == Duplicate(state="waiting", owner="C")
        assert ids(self.claimed(provider, key, "C", 2).messages) == ["m1"]

    def test_claim_owns_at_the_strangers_edge_and_not_before(self, provider: MailboxProvider, key: str) -> None:
        """R3: routed one millisecond before the owner's ttl (and the skew) has passed, claimed at it."""
        first = self.claimed(provider, key, "A", 1)
        rest_ms = self.pass_almost(TTL_MS + self.skew_ms)
        assert self.routed(provider, key, "B", 2).owner == "A"
        assert isinstance(provider.claim(key, "C", TTL_MS, None), Busy)
        self.pass_time(rest_ms)
        answer = self.claimed(provider, key, "C", None)
        assert answer.fence > first.fence
        assert ids(answer.messages) == ["m2"]
        assert answer.waiting == 0

    def test_every_claim_of_a_dead_owners_key_keeps_the_order(self, provider: MailboxProvider, key: str) -> None:
        """M4: on_error="block": owners that die one after another change neither the order nor the number stored."""
        policy = Policy(on_error="block", pauses_ms=(PAUSE_MS,))
        for number in range(1, 5):
            answer = self.claimed(provider, key, f"A{number}", number, policy=policy)
            assert [(each.id, each.attempt) for each in answer.messages] == [("m1", number)]
            assert answer.waiting == number - 1
            self.expire()
            self.pass_time(PAUSE_MS)
        assert ids(provider.peek(key)) == ["m1", "m2", "m3", "m4"]

    def test_only_id_and_event_of_a_message_count(self, provider: MailboxProvider, key: str) -> None:
        """M3, M6: how often it was delivered, and whether it is promised, only the store says."""
        given = Message(
            id="m1",
            event="event",
            attempt=4,
            stored_at_ms=1,
            due_at_ms=9_999_999_999_999,
            promised=True,
            last_error="error",
        )
        answer = provider.claim(key, "A", TTL_MS, given)
        assert isinstance(answer, Claimed)
        (own,) = answer.messages
        assert (own.attempt, own.promised, own.last_error) == (1, False, None)
        assert own.stored_at_ms > 1_500_000_000_000

    def test_what_is_stored_is_nobodys_object(self, provider: MailboxProvider, key: str) -> None:
        """M3: changing the event that was given, or the one that was answered, changes nothing that is stored."""
        event = {"list": [1]}
        answer = provider.claim(key, "A", TTL_MS, Message(id="m1", event=event))
        assert isinstance(answer, Claimed)
        event["list"].append(2)
        answer.messages[0].event["list"].append(3)
        assert [each.event for each in provider.peek(key)] == [{"list": [1]}]

    def test_claim_without_message_of_an_idle_key_is_idle(self, provider: MailboxProvider, key: str) -> None:
        """M1: there is nothing to own the key for."""
        # H53: a wake-up that arrives twice.
        assert provider.claim(key, "A", TTL_MS, None) == Idle()
        assert provider.get_lease_owner(key) is None

    def test_claim_without_message_of_a_held_key_is_busy(self, provider: MailboxProvider, key: str) -> None:
        """M1: whatever waits."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "C", 2)
        answer = provider.claim(key, "B", TTL_MS, None)
        assert isinstance(answer, Busy)
        assert answer.owner == "A"
        assert self.about(answer.expires_in_ms, TTL_MS)

    def test_claim_without_message_owns_when_something_is_due(self, provider: MailboxProvider, key: str) -> None:
        """M1, M8: a woken successor or the sweeper gets what a dead owner left."""
        # H40: Mastra #23801.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.expire()
        answer = self.claimed(provider, key, "C", None)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m2"])
        self.pass_time(PAUSE_MS)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "D", None).messages] == [("m1", 2)]

    def test_claim_that_may_not_route_is_busy(self, provider: MailboxProvider, key: str) -> None:
        """M1: with route=False nothing is stored behind another owner."""
        self.claimed(provider, key, "A", 1)
        answer = provider.claim(key, "B", TTL_MS, message(2), route=False)
        assert isinstance(answer, Busy)
        assert answer.owner == "A"
        assert self.about(answer.expires_in_ms, TTL_MS)
        assert ids(provider.peek(key)) == ["m1"]

    def test_claim_that_may_not_route_owns_a_free_key(self, provider: MailboxProvider, key: str) -> None:
        """M1: and is told of duplicates like any other."""
        assert ids(self.claimed(provider, key, "A", 1, route=False).messages) == ["m1"]
        assert provider.claim(key, "B", TTL_MS, message(1), route=False) == Duplicate(state="running", owner="A")
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert provider.claim(key, "B", TTL_MS, message(1), route=False) == Duplicate(state="handled")

    def test_stored_time_is_when_it_was_stored(self, provider: MailboxProvider, key: str) -> None:
        """M8: epoch milliseconds, kept over deliveries."""
        self.claimed(provider, key, "A", 1)
        (stored,) = provider.peek(key)
        self.routed(provider, key, "B", 2)
        assert 0 <= provider.peek(key)[1].stored_at_ms - stored.stored_at_ms <= self.slack_ms
        assert stored.stored_at_ms > 1_500_000_000_000
