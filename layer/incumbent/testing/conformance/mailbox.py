"""What every mailbox does (M1 to M9)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from incumbent.contract import is_mailbox
from incumbent.errors import ConfigurationError, LeaseLost, MailboxFull, MessageTooLarge
from incumbent.testing.conformance.lease import (
    BAD_KEYS,
    BAD_OWNERS,
    BAD_TTLS,
    ODD_ENDINGS,
    LeaseConformance,
    table,
)
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider, at_once
from incumbent.values import (
    Busy,
    Claimed,
    Continued,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
)

EVERYTHING = 10_000
WINDOW_MS = 15 * 60_000

BAD_IDS: dict[str, Any] = {
    "empty": "",
    "too long": "i" * 257,
    "too long in bytes": "é" * 129,
    "lone surrogate": "\ud800",
    "bytes": b"id",
    "none": None,
    "number": 7,
}
NOT_JSON: dict[str, Any] = {
    "set": {1, 2},
    "bytes": b"bytes",
    "object": object(),
    "nan": math.nan,
    "infinity": {"deep": [math.inf]},
}
EVENTS: dict[str, Any] = {
    "null": None,
    "false": False,
    "zero": 0,
    "empty text": "",
    "empty list": [],
    "empty object": {},
    "empty things in things": {"a": {}, "b": [], "c": [[], {}], "d": "", "e": None},
    "text": "a text",
    "unicode": "é e\u0301 🐍 \u202e \U0010ffff",
    "control characters": "\0\1\b\t\n\r\x1f\x7f\u2028\u2029",
    "quotes": "\"'\\/ \\u0041 \\\\",
    "lone surrogate": "\ud83d",
    "what looks like markup": "{} {{x}} %s %7B $(x) <b> #a :b {tag}:1",
    "floats": [0.1, -0.0, 1e-300, 1.7976931348623157e308, 3.0, 1e22, 0.30000000000000004],
    "integers": [0, -1, 2**31, 2**53, 2**53 + 1, -(2**63), 2**64, 10**40],
    "booleans beside numbers": [True, 1, 1.0, False, 0, 0.0, None],
    "order of names": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    "odd names": {"": 1, " ": 2, "\0": 3, "é": 4, "a.b": 5, "a[0]": 6, "#": 7, ":": 8, "owner": 9, "ttl": 10},
    "text that looks like numbers": ["1", "1.0", "1e5", "true", "null", "NaN", ""],
    "deep": json.loads("[" * 60 + "]" * 60),
    "long list": list(range(1_000)),
    "2 KiB to the byte": "x" * (2_048 - 2),
    "2 KiB and a byte": "x" * (2_048 - 1),
    "3 KB": "é" * 1_500,
    "60 KB": {"text": "🐍" * 15_000},
    "200 KB": ["x" * 100_000, "é" * 50_000],
}

Call = Callable[[MailboxProvider, Any, Any, Any], object]

WITH_TTL: dict[str, Call] = {
    "claim": lambda p, key, owner, ttl_ms: p.claim(key, owner, ttl_ms, Message(id="bad", event=1)),
    "claim without message": lambda p, key, owner, ttl_ms: p.claim(key, owner, ttl_ms, None),
    "settle": lambda p, key, owner, ttl_ms: p.settle(key, owner, ttl_ms=ttl_ms),
    "beat": lambda p, key, owner, ttl_ms: p.beat(key, owner, ttl_ms),
    "take": lambda p, key, owner, ttl_ms: p.take(key, owner, ttl_ms),
}
WITH_OWNER: dict[str, Call] = {
    **WITH_TTL,
    "settle for next owner": lambda p, key, owner, ttl_ms: p.settle(key, "owner", ttl_ms=ttl_ms, next_owner=owner),
    "settle for ticket": lambda p, key, owner, ttl_ms: p.settle(key, "owner", ttl_ms=ttl_ms, ticket=owner),
    "claim with ticket": lambda p, key, owner, ttl_ms: p.claim(key, "owner", ttl_ms, None, ticket=owner),
}
OPTIONAL = {"settle for next owner", "settle for ticket", "claim with ticket"}
WITH_KEY: dict[str, Call] = {
    **WITH_TTL,
    "peek": lambda p, key, _owner, _ttl_ms: p.peek(key),
}
NAMING: dict[str, Callable[[MailboxProvider, str, Any], object]] = {
    "claim": lambda p, key, bad: p.claim(key, "A", TTL_MS, Message(id=bad, event=1)),
    "handled": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, handled=[bad]),
    "failed": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id=bad, error="e")]),
    "dropped": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, dropped=[Failure(id=bad, error="e")]),
    "deferred": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, deferred=[bad]),
}


def message(number: int | str = 1) -> Message:
    """A message whose event tells it from others."""
    return Message(id=f"m{number}", event={"text": f"message {number}"})


def failure(number: int | str = 1, *, after_ms: int | None = None) -> Failure:
    """That message's run raised."""
    return Failure(id=f"m{number}", error=f"failed {number}", after_ms=after_ms)


def ids(messages: Any) -> list[str]:
    """The ids, in order."""
    return [each.id for each in messages]


class MailboxConformance(LeaseConformance):
    """Messages beside the lease. It contains the lease's tests, and begins with the stale owner like them."""

    # --- what the tests are made of

    def claimed(
        self, provider: MailboxProvider, key: str, owner: str, number: int | str | None = 1, **more: Any
    ) -> Claimed:
        """Claim, and own the key."""
        answer = provider.claim(key, owner, TTL_MS, None if number is None else message(number), **more)
        assert isinstance(answer, Claimed), answer
        assert answer.owner == owner
        return answer

    def routed(self, provider: MailboxProvider, key: str, owner: str, number: int | str, **more: Any) -> Routed:
        """Claim, and be routed."""
        answer = provider.claim(key, owner, TTL_MS, message(number), **more)
        assert isinstance(answer, Routed), answer
        return answer

    def continued(self, provider: MailboxProvider, key: str, owner: str, next_owner: str, **more: Any) -> Continued:
        """Settle, and see the key go on."""
        answer = provider.settle(key, owner, ttl_ms=TTL_MS, next_owner=next_owner, **more)
        assert isinstance(answer, Continued), answer
        assert answer.owner == next_owner
        return answer

    def own_orphans(self, provider: MailboxProvider, *keys: str) -> list[Orphan]:
        """What ``orphans`` says of these keys: other tests may share the store."""
        return [orphan for orphan in provider.orphans(EVERYTHING) if orphan.key in keys]

    # --- the stale owner, first of all

    def test_late_owner_settles_nothing(self, provider: MailboxProvider, key: str) -> None:
        """R3: A expires, B claims; A's settle, beat and take raise and change nothing of B's."""
        # H37: Mastra #23734, Jepsen on etcd 3.4.3; H6.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "C", 2)
        self.expire()
        granted = self.claimed(self.make_other(provider), key, "B", 3)
        before = provider.peek(key)

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

        assert provider.peek(key) == before
        assert provider.get_lease_owner(key) == "B"
        again = provider.acquire_lease(key, "B", 1)
        assert again.fence == granted.fence
        assert self.about(again.expires_in_ms, TTL_MS)

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
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"]) == Released(left=0)

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

    def test_mailbox_is_found_by_its_methods(self, provider: MailboxProvider) -> None:
        """The provider is a mailbox by structure."""
        assert is_mailbox(provider)

    # --- claim, in the rule's order

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
        assert again.messages == first.messages
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
        assert provider.peek(key) == ()
        assert provider.get_lease_owner(key) is None

    def test_duplicate_of_the_running_message_is_promised(self, provider: MailboxProvider, key: str) -> None:
        """M1 (3), M3: whoever is told that a message runs is promised it, in the same step."""
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
        """M1 (4): the retry of a crashed invocation runs its message, counted once more, stored once."""
        # H54: found by exploring the rules: called a duplicate of itself, nobody would run it.
        first = self.claimed(provider, key, "A", 1)
        self.expire()
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
        self.expire()
        assert self.claimed(provider, key, "C", 1).messages[0].promised is True

    def test_older_message_goes_first(self, provider: MailboxProvider, key: str) -> None:
        """M4: the claimer is given the oldest due message; its own waits."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.expire()
        answer = self.claimed(provider, key, "C", 3)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 2
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m1", 2, False),
            ("m2", 0, True),
            ("m3", 0, False),
        ]

    def test_claim_of_a_waiting_message_gets_the_oldest(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4), M4: the message becomes the claimer's, and still the oldest runs first."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.expire()
        answer = self.claimed(provider, key, "C", 2)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 1
        assert provider.claim(key, "D", TTL_MS, message(2)) == Duplicate(state="waiting", owner="C")
        assert ids(self.claimed(provider, key, "C", 2).messages) == ["m1"]

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
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]
        assert answer.waiting == 1

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

    # --- settle

    def test_settle_of_the_last_message_frees_the_key(self, provider: MailboxProvider, key: str) -> None:
        """M2: nothing is due, so the key is free though a successor was named."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="B") == Released(left=0)
        assert provider.get_lease_owner(key) is None
        assert provider.peek(key) == ()
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
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"]) == Released(left=1)
        assert provider.get_lease_owner(key) is None
        assert [(orphan.key, orphan.waiting) for orphan in self.own_orphans(provider, key)] == [(key, 1)]

    def test_unnamed_messages_stay(self, provider: MailboxProvider, key: str) -> None:
        """M3: as after a crash; nothing leaves because it was read."""
        # H42: sentry/junior #33.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert provider.settle(key, "A", ttl_ms=TTL_MS) == Released(left=2)
        answer = self.claimed(provider, key, "C", None)
        assert [(each.id, each.attempt, each.promised) for each in answer.messages] == [("m1", 2, False)]
        assert answer.waiting == 1

    def test_unnamed_message_is_delivered_to_the_successor(self, provider: MailboxProvider, key: str) -> None:
        """M3: it was given to a tenure that is over, so it is due again."""
        self.claimed(provider, key, "A", 1)
        answer = self.continued(provider, key, "A", "A2")
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]

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
        assert answer == Released(left=0)
        assert provider.peek(key) == ()

    def test_repeated_settle_is_answered_like_the_first(self, provider: MailboxProvider, key: str) -> None:
        """R8: a settle whose answer was lost takes effect once and says so again."""
        # H3.
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        first = self.continued(provider, key, "A", "A2", handled=["m1"])
        again = self.continued(provider, key, "A", "A2", handled=["m1"])
        assert again.fence == first.fence
        assert again.messages == first.messages
        assert provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"]) == Released(left=0)
        assert provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"]) == Released(left=0)

    def test_repeated_settle_does_not_touch_the_next_owner(self, provider: MailboxProvider, key: str) -> None:
        """R8, R9: with somebody else in between, a settle that comes again is lost, and quiet."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        self.claimed(provider, key, "B", 2)
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2"])
        assert provider.get_lease_owner(key) == "B"
        assert ids(provider.peek(key)) == ["m2"]

    def test_owner_is_seen_at_every_moment_of_a_chain(self, provider: MailboxProvider, key: str) -> None:
        """M2, R6: while runs follow one another, somebody who looks never sees the key free."""
        self.claimed(provider, key, "A0", 0)
        for number in range(1, 21):
            self.routed(provider, key, f"B{number}", number)
        other = self.make_other(provider)
        done: list[bool] = []
        seen: list[str | None] = []

        def work(part: int) -> None:
            if part == 0:
                for number in range(20):
                    answer = self.continued(provider, key, f"A{number}", f"A{number + 1}", handled=[f"m{number}"])
                    assert ids(answer.messages) == [f"m{number + 1}"]
                done.append(True)
            else:
                while not done:
                    seen.append(other.get_lease_owner(key))

        at_once(2, work)
        assert seen
        assert None not in seen
        assert provider.settle(key, "A20", ttl_ms=TTL_MS, handled=["m20"]) == Released(left=0)

    # --- dropped: the own message, whose source is told

    def test_dropped_message_leaves(self, provider: MailboxProvider, key: str) -> None:
        """M3: not promised to anybody, it goes back to its source."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)]) == Released(left=0)
        assert provider.peek(key) == ()

    def test_dropped_message_that_was_promised_stays(self, provider: MailboxProvider, key: str) -> None:
        """M3: a duplicate was told "accepted" meanwhile, so it has failed and is ours to retry."""
        # H52: found by exploring the rules.
        self.claimed(provider, key, "A", 1)
        provider.claim(key, "B", TTL_MS, message(1))
        assert provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)]) == Released(left=1)
        (stored,) = provider.peek(key)
        assert (stored.id, stored.promised, stored.last_error) == ("m1", True, "failed 1")
        assert provider.claim(key, "C", TTL_MS, None) == Idle()
        self.pass_time(1_000)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m1", 2)]

    def test_late_copy_of_a_failed_claim_stores_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M3: the trace of the claim: its source was told of the failure, so a late copy must not run."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)])
        assert provider.claim(key, "A", TTL_MS, message(1)) == Idle()
        assert provider.peek(key) == ()
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
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, failed=[failure(1)])
            self.pass_time(300_000)
            self.claimed(provider, key, f"A{number + 1}", None)
        answer = provider.settle(key, f"A{failures}", ttl_ms=TTL_MS, failed=[failure(1)], next_owner="B")
        assert answer == Released(left=1)
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
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy)
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
        self.pass_time(1_000)
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
        assert answer == Released(left=2)
        assert provider.claim(key, "C", TTL_MS, None, policy=policy) == Idle()
        assert self.own_orphans(provider, key) == []
        self.pass_time(1_000)
        answer = self.claimed(provider, key, "C", None, policy=policy)
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 1
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
        assert provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy) == Released(left=1)
        self.pass_time(1_000)
        self.claimed(provider, key, "B", None, policy=policy)
        assert provider.settle(key, "B", ttl_ms=TTL_MS, failed=[failure(1)], policy=policy) == Released(left=0)
        assert provider.peek(key) == ()
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
        self.expire()
        assert self.claimed(provider, key, "B", None, policy=policy).messages[0].attempt == 2
        self.expire()
        assert provider.claim(key, "C", TTL_MS, None, policy=policy) == Idle()
        assert provider.get_lease_owner(key) is None
        assert provider.peek(key) == ()
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
        assert provider.peek(key) == ()

    def test_message_out_of_attempts_makes_room_for_the_next(self, provider: MailboxProvider, key: str) -> None:
        """M6: buried in the step that grants the key; the next due message is delivered instead."""
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
        assert answer == Released(left=0)
        assert provider.get_lease_owner(key) is None
        assert provider.claim(key, "B", TTL_MS, message(1), policy=policy) == Duplicate(state="dead")

    def test_deferred_message_keeps_its_place_and_its_count(self, provider: MailboxProvider, key: str) -> None:
        """M6: it goes on in the next run, promised, as if it had not been delivered."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, deferred=["m1"])
        assert answer == Released(left=2)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [
            ("m1", 0, True),
            ("m2", 0, True),
        ]
        answer = self.claimed(provider, key, "C", None)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
        assert answer.waiting == 1

    def test_deferred_message_goes_on_under_the_successor(self, provider: MailboxProvider, key: str) -> None:
        """M6: however often it is deferred, it never runs out of attempts."""
        policy = Policy(max_attempts=2)
        self.claimed(provider, key, "A0", 1, policy=policy)
        for number in range(5):
            answer = self.continued(provider, key, f"A{number}", f"A{number + 1}", deferred=["m1"], policy=policy)
            assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]

    # --- tickets

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
        """M3: whoever hands a message over tells its source "accepted"."""
        self.claimed(provider, key, "A", 1)
        self.expire()
        self.claimed(provider, key, "B", 2)  # is given the older one; its own waits, unpromised
        assert [each.promised for each in provider.peek(key)] == [False, False]
        provider.settle(key, "B", ttl_ms=TTL_MS, handled=["m1"], ticket="T")
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m2", True)]

    def test_ticket_for_nothing_frees_the_key(self, provider: MailboxProvider, key: str) -> None:
        """M2: as with a successor."""
        self.claimed(provider, key, "A", 1)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], ticket="T") == Released(left=0)
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
        assert again.messages == first.messages

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
        """M9: as any other message, and there is nobody to wake."""
        self.claimed(provider, key, "A", 1)
        assert self.routed(provider, key, "T", 2, as_ticket=True).owner == "A"
        assert provider.get_lease_owner(key) == "A"

    def test_claim_as_ticket_of_a_waiting_message_promises_it(self, provider: MailboxProvider, key: str) -> None:
        """M1 (4), M3: its sender is told "accepted"."""
        self.claimed(provider, key, "A", 1)
        self.expire()
        answer = self.claimed(provider, key, "T", 1, as_ticket=True)
        assert (answer.messages, answer.waiting) == ((), 1)
        assert [(each.id, each.attempt, each.promised) for each in provider.peek(key)] == [("m1", 1, True)]

    # --- limits

    def test_full_mailbox_refuses_to_route(self, provider: MailboxProvider, key: str) -> None:
        """M7: max_pending counts all that is stored, the running one included; nothing was stored."""
        policy = Policy(max_pending=3)
        self.claimed(provider, key, "A", 1, policy=policy)
        self.routed(provider, key, "B", 2, policy=policy)
        self.routed(provider, key, "C", 3, policy=policy)
        with pytest.raises(MailboxFull) as raised:
            provider.claim(key, "D", TTL_MS, message(4), policy=policy)
        assert raised.value.key == key
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
        assert ids(answer.messages) == ["m1"]
        assert answer.waiting == 2
        assert ids(provider.peek(key)) == ["m1", "m2", "m3"]
        with pytest.raises(MailboxFull):
            provider.claim(key, "D", TTL_MS, message(4), policy=policy)

    def test_message_may_be_as_large_as_the_limit_to_the_byte(self, provider: MailboxProvider, key: str) -> None:
        """M7: bytes of UTF-8, not characters; one more is refused and nothing stored."""
        policy = Policy(max_message_bytes=100)
        largest = Message(id="m1", event="é" * 49)  # and two quotes
        larger = Message(id="m2", event="é" * 49 + "x")
        with pytest.raises(MessageTooLarge) as raised:
            provider.claim(key, "A", TTL_MS, larger, policy=policy)
        assert raised.value.key == key
        assert provider.peek(key) == ()
        assert provider.get_lease_owner(key) is None
        assert isinstance(provider.claim(key, "A", TTL_MS, largest, policy=policy), Claimed)
        with pytest.raises(MessageTooLarge):
            provider.claim(key, "B", TTL_MS, larger, policy=policy)
        assert [each.event for each in provider.peek(key)] == ["é" * 49]

    # --- take, beat, peek

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
        """R4."""
        self.claimed(provider, key, "A", 1)
        assert self.about(provider.beat(key, "A", 1_000).expires_in_ms, TTL_MS)

    def test_beat_does_not_count_what_is_not_due(self, provider: MailboxProvider, key: str) -> None:
        """M6: a paused message does not wait for this run."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", failed=[failure(1)])
        assert provider.beat(key, "A2", TTL_MS).waiting == 0
        self.pass_time(1_000)
        assert provider.beat(key, "A2", TTL_MS).waiting == 1

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
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m2", "m3"]) == Released(left=0)

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
        self.pass_time(1_000)
        answer = self.claimed(provider, key, "D", 4)
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
        self.expire()
        owner = "C1"
        answer: Claimed | Continued = self.claimed(provider, key, owner, None)
        assert answer.waiting == 2
        for number in (1, 2):
            assert [(each.id, each.attempt) for each in answer.messages] == [(f"m{number}", 2)]
            answer = self.continued(provider, key, f"C{number}", f"C{number + 1}", handled=[f"m{number}"])
        assert [(each.id, each.attempt) for each in answer.messages] == [("m3", 2)]

    def test_peek_changes_nothing(self, provider: MailboxProvider, key: str) -> None:
        """M3: of a free key, a held key and an expired one."""
        assert provider.peek(key) == ()
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
        assert provider.beat(key, "B", TTL_MS).waiting == 1
        provider.release_lease(key, "B")
        assert ids(provider.peek(key)) == ["m1"]
        granted = provider.acquire_lease(key, "C", TTL_MS)
        assert granted.acquired
        assert ids(provider.peek(key)) == ["m1"]
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", None).messages] == [("m1", 2)]

    # --- orphans

    def test_dead_owners_messages_are_orphans(self, provider: MailboxProvider, key: str) -> None:
        """M8: not while the owner lives; then with target, age and count."""
        # H40: Mastra #23801.
        origin = Origin(keyspace="app", target="arn:aws:lambda:x:1:function:f:live", request_id="r", log_stream="l")
        provider.claim(key, "A", TTL_MS, message(1), origin=origin)
        self.routed(provider, key, "B", 2)
        self.pass_almost(TTL_MS + self.skew_ms)
        assert self.own_orphans(provider, key) == []
        self.pass_time(TTL_MS)
        (orphan,) = self.own_orphans(provider, key)
        assert (orphan.key, orphan.target, orphan.waiting) == (key, origin.target, 2)
        assert abs(orphan.age_ms - TTL_MS) <= self.slack_ms + 1

    def test_orphans_age_begins_when_the_key_was_freed(self, provider: MailboxProvider, key: str) -> None:
        """M8: by a settle without successor."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.pass_time(10_000)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        self.pass_time(5_000)
        (orphan,) = self.own_orphans(provider, key)
        assert orphan.target is None
        assert orphan.waiting == 1
        assert 5_000 <= orphan.age_ms <= 5_000 + self.slack_ms

    def test_orphans_age_begins_when_the_pause_is_over(self, provider: MailboxProvider, key: str) -> None:
        """M8: a paused message is not waited for until then."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1, after_ms=20_000)])
        rest_ms = self.pass_almost(20_000)
        assert self.own_orphans(provider, key) == []
        self.pass_time(rest_ms)
        (orphan,) = self.own_orphans(provider, key)
        assert 0 <= orphan.age_ms <= self.slack_ms
        assert orphan.waiting == 1

    def test_oldest_orphan_comes_first(self, provider: MailboxProvider, key: str) -> None:
        """M8: and no more than asked for."""
        keys = [f"{key}-{number}" for number in range(4)]
        for number in (2, 0, 3, 1):
            own_key = keys[number]
            self.claimed(provider, own_key, "A", 1)
            provider.settle(own_key, "A", ttl_ms=TTL_MS)
            self.pass_time(1_000 * (1 + self.slack_ms))
        assert [orphan.key for orphan in self.own_orphans(provider, *keys)] == [keys[2], keys[0], keys[3], keys[1]]
        every = list(provider.orphans(EVERYTHING))
        assert [orphan.age_ms for orphan in every] == sorted((o.age_ms for o in every), reverse=True)
        for limit in (1, 2, 3):
            assert len(list(provider.orphans(limit))) == limit

    def test_orphan_is_none_once_it_is_claimed_or_handled(self, provider: MailboxProvider, key: str) -> None:
        """M8: and again when its next owner dies."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS)
        assert len(self.own_orphans(provider, key)) == 1
        self.claimed(provider, key, "B", None)
        assert self.own_orphans(provider, key) == []
        self.expire()
        assert len(self.own_orphans(provider, key)) == 1
        self.claimed(provider, key, "C", None)
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m1"])
        assert self.own_orphans(provider, key) == []

    def test_released_key_with_messages_is_an_orphan(self, provider: MailboxProvider, key: str) -> None:
        """M8: also after a plain release, and after a transfer whose successor never came."""
        self.claimed(provider, key, "A", 1)
        provider.release_lease(key, "A")
        assert len(self.own_orphans(provider, key)) == 1
        provider.acquire_lease(key, "B", TTL_MS)
        assert self.own_orphans(provider, key) == []
        provider.transfer_lease(key, "B", "C", TTL_MS)
        self.expire()
        assert len(self.own_orphans(provider, key)) == 1

    # --- once per id

    def test_handled_id_is_remembered_for_the_window(self, provider: MailboxProvider, key: str) -> None:
        """M5: 15 minutes; one millisecond before it is a duplicate, at it a new message."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        rest_ms = self.pass_almost(WINDOW_MS)
        assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="handled")
        self.pass_time(rest_ms)
        assert [(each.id, each.attempt) for each in self.claimed(provider, key, "C", 1).messages] == [("m1", 1)]

    def test_window_is_as_long_as_the_policy_says(self, provider: MailboxProvider, key: str) -> None:
        """M5: a longer one remembers longer."""
        policy = Policy(window_ms=60 * 60_000)
        self.claimed(provider, key, "A", 1, policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], policy=policy)
        rest_ms = self.pass_almost(60 * 60_000)
        assert provider.claim(key, "B", TTL_MS, message(1), policy=policy) == Duplicate(state="handled")
        self.pass_time(rest_ms)
        self.claimed(provider, key, "C", 1, policy=policy)

    def test_last_256_handled_ids_are_remembered(self, provider: MailboxProvider, key: str) -> None:
        """M5: the 257th forgets the first, and 300 runs leave the key as usable as ever."""
        # H59: tried: an unbounded list of ids bricked its key at the 9,901st.
        for number in range(300):
            answer = provider.claim(key, f"A{number}", TTL_MS, message(number))
            assert isinstance(answer, Claimed)
            assert ids(answer.messages) == [f"m{number}"]
            assert provider.settle(key, f"A{number}", ttl_ms=TTL_MS, handled=[f"m{number}"]) == Released(left=0)
        for number in (44, 45, 299):  # 300 less 256 is 44: the oldest that is still known
            assert provider.claim(key, f"B{number}", TTL_MS, message(number)) == Duplicate(state="handled")
        self.claimed(provider, key, "C", 43)
        provider.settle(key, "C", ttl_ms=TTL_MS, handled=["m43"])
        self.claimed(provider, key, "D", 44)

    # --- what is stored

    @pytest.mark.parametrize("event", table(EVENTS))
    def test_event_comes_back_as_it_went(self, provider: MailboxProvider, key: str, event: Any) -> None:
        """M1, M3: to the character, the kind of number and the order of names, by every way out."""
        # H25: bytes against str; H30: Lua's number formats.
        expected = json.dumps(event)
        first = provider.claim(key, "A", TTL_MS, Message(id="m1", event=event))
        assert isinstance(first, Claimed)
        assert json.dumps(first.messages[0].event) == expected
        for number in (2, 3):
            routed = provider.claim(key, f"B{number}", TTL_MS, Message(id=f"m{number}", event=event))
            assert isinstance(routed, Routed)
        assert [json.dumps(each.event) for each in provider.peek(key)] == [expected] * 3
        assert [json.dumps(each.event) for each in provider.take(key, "A", TTL_MS, have=["m1", "m2"])] == [expected]
        self.expire()
        claimed = self.claimed(provider, key, "C", None)
        assert json.dumps(claimed.messages[0].event) == expected
        answer = self.continued(provider, key, "C", "C2", handled=["m1"])
        assert json.dumps(answer.messages[0].event) == expected

    def test_many_large_messages_are_kept(self, provider: MailboxProvider, key: str) -> None:
        """M7: ten of 60 KB for one key, handed out one by one, in order."""
        bodies = [f"{number}" * 60_000 for number in range(10)]
        for number, body in enumerate(bodies):
            provider.claim(key, f"A{number}", TTL_MS, Message(id=f"m{number}", event=body))
        assert [each.event for each in provider.peek(key)] == bodies
        for number in range(1, 10):
            owner = "A0" if number == 1 else f"C{number - 1}"
            answer = self.continued(provider, key, owner, f"C{number}", handled=[f"m{number - 1}"])
            assert [each.event for each in answer.messages] == [bodies[number]]
        assert provider.settle(key, "C9", ttl_ms=TTL_MS, handled=["m9"]) == Released(left=0)

    def test_refused_delivery_does_not_remove_the_body_of_the_first(self, provider: MailboxProvider, key: str) -> None:
        """M5: two deliveries of one id do not share what is cleaned up."""
        # H60: read in the design.
        large = Message(id="m1", event="x" * 60_000)
        provider.claim(key, "A", TTL_MS, large)
        assert provider.claim(key, "B", TTL_MS, large) == Duplicate(state="running", owner="A")
        self.expire()
        answer = provider.claim(key, "C", TTL_MS, large)
        assert isinstance(answer, Claimed)
        assert answer.messages[0].event == large.event
        assert [each.event for each in provider.peek(key)] == [large.event]

    def test_messages_of_two_keys_never_meet(self, provider: MailboxProvider, key: str) -> None:
        """R10: with any character in key, owner and id, inline or large."""
        # H28: awslabs lock client #93 and its family.
        keys = [f"{key}{ending}" for ending in ODD_ENDINGS]
        for number, odd in enumerate(keys):
            event = {"number": number, "filling": "x" * (3_000 if number % 3 == 0 else 0)}
            answer = provider.claim(odd, f"owner{odd}", TTL_MS, Message(id=f"id{ODD_ENDINGS[number]}", event=event))
            assert isinstance(answer, Claimed), odd
            routed = provider.claim(odd, "B", TTL_MS, Message(id=f"second{ODD_ENDINGS[number]}", event=event))
            assert isinstance(routed, Routed), odd
        for number, odd in enumerate(keys):
            stored = provider.peek(odd)
            assert ids(stored) == [f"id{ODD_ENDINGS[number]}", f"second{ODD_ENDINGS[number]}"], odd
            assert [each.event["number"] for each in stored] == [number, number]
        for number, odd in enumerate(keys):
            answer = self.continued(provider, odd, f"owner{odd}", "C", handled=[f"id{ODD_ENDINGS[number]}"])
            assert answer.messages[0].event["number"] == number
        for number, odd in enumerate(keys):
            assert ids(provider.peek(odd)) == [f"second{ODD_ENDINGS[number]}"], odd

    @pytest.mark.parametrize("separator", [":", "#", "/", "|", ".", "-", "\0", " ", "%", "{", "}", ","])
    def test_joined_names_never_meet(self, provider: MailboxProvider, key: str, separator: str) -> None:
        """R10: key "a:b" with id "c" is not key "a" with id "b:c", nor id "c" by "d:e" that of "c:d" by "e"."""
        s, large = separator, "x" * 3_000
        one, two = f"{key}{s}a{s}b", f"{key}{s}a"
        for own_key, message_id, owner, event in (
            (one, "c", "first", f"1{large}"),
            (two, f"b{s}c", "second", f"2{large}"),
            (one, f"c{s}d", "e", f"3{large}"),
            (one, "c2", f"d{s}e", f"4{large}"),
            (one, f"c2{s}d", "e2", f"5{large}"),
        ):
            provider.claim(own_key, owner, TTL_MS, Message(id=message_id, event=event))
        assert [each.event[0] for each in provider.peek(one)] == ["1", "3", "4", "5"]
        assert [each.event[0] for each in provider.peek(two)] == ["2"]
        provider.settle(one, "first", ttl_ms=TTL_MS, handled=["c", f"c{s}d"])
        assert [each.event[0] for each in provider.peek(one)] == ["4", "5"]
        assert [each.event[0] for each in provider.peek(two)] == ["2"]
        assert provider.get_lease_owner(two) == "second"

    def test_odd_ids_are_kept_apart(self, provider: MailboxProvider, key: str) -> None:
        """M5: any character is allowed in an id, and no two meet in one key."""
        provider.acquire_lease(key, "A", TTL_MS)
        odd = [ending for ending in ODD_ENDINGS if ending]
        for number, message_id in enumerate(odd):
            answer = provider.claim(key, f"B{number}", TTL_MS, Message(id=message_id, event=number))
            assert isinstance(answer, Routed), message_id
        assert ids(provider.peek(key)) == odd
        assert ids(provider.take(key, "A", TTL_MS)) == odd
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=odd[::2]) == Released(left=len(odd) // 2)
        assert ids(provider.peek(key)) == odd[1::2]
        for message_id in odd[::2]:
            assert provider.claim(key, "C", TTL_MS, Message(id=message_id, event=0)) == Duplicate(state="handled")

    def test_longest_id_is_allowed(self, provider: MailboxProvider, key: str) -> None:
        """M5: 256 bytes, with the longest key and owner."""
        longest_key = key + "é" * ((1_024 - len(key)) // 2)
        for number, filling in enumerate(("i", "é", "🐍")):
            longest = filling * (256 // len(filling.encode()))
            owner = filling * (512 // len(filling.encode()))
            event = "x" * 3_000
            answer = provider.claim(f"{longest_key[:-1]}{number}", owner, TTL_MS, Message(id=longest, event=event))
            assert isinstance(answer, Claimed)
            assert [(each.id, each.event) for each in answer.messages] == [(longest, event)]

    # --- arguments

    @pytest.mark.parametrize("call", table(WITH_KEY))
    @pytest.mark.parametrize("bad", table(BAD_KEYS))
    def test_mailbox_refuses_a_bad_key(self, provider: MailboxProvider, call: Call, bad: Any) -> None:
        """R10: by every call, with the same error."""
        with pytest.raises(ConfigurationError):
            call(provider, bad, "owner", TTL_MS)

    @pytest.mark.parametrize("name", [pytest.param(name, id=name.replace(" ", "-")) for name in WITH_OWNER])
    @pytest.mark.parametrize("bad", table(BAD_OWNERS))
    def test_mailbox_refuses_a_bad_owner(self, provider: MailboxProvider, key: str, name: str, bad: Any) -> None:
        """R10: by every call, and nothing was stored; None is refused where an owner is required."""
        if bad is None and name in OPTIONAL:
            bad = ""
        with pytest.raises(ConfigurationError):
            WITH_OWNER[name](provider, key, bad, TTL_MS)
        assert provider.peek(key) == ()
        assert provider.get_lease_owner(key) is None

    @pytest.mark.parametrize("call", table(WITH_TTL))
    @pytest.mark.parametrize("bad", table(BAD_TTLS))
    def test_mailbox_refuses_a_bad_ttl(self, provider: MailboxProvider, key: str, call: Call, bad: Any) -> None:
        """R10: and the owner keeps what it has."""
        self.claimed(provider, key, "owner", 1)
        with pytest.raises(ConfigurationError):
            call(provider, key, "owner", bad)
        assert ids(provider.peek(key)) == ["m1"]
        assert self.about(provider.acquire_lease(key, "B", 1).expires_in_ms, TTL_MS)

    @pytest.mark.parametrize("call", table(NAMING))
    @pytest.mark.parametrize("bad", table(BAD_IDS))
    def test_bad_message_id_is_refused(
        self, provider: MailboxProvider, key: str, call: Callable[[MailboxProvider, str, Any], object], bad: Any
    ) -> None:
        """M5, R10: wherever a message is named, and nothing has happened."""
        self.claimed(provider, key, "A", 1)
        with pytest.raises(ConfigurationError):
            call(provider, key, bad)
        assert ids(provider.peek(key)) == ["m1"]
        assert provider.get_lease_owner(key) == "A"

    @pytest.mark.parametrize("event", table(NOT_JSON))
    def test_event_that_is_not_json_is_refused(self, provider: MailboxProvider, key: str, event: Any) -> None:
        """M1: before anything is stored."""
        with pytest.raises(ConfigurationError):
            provider.claim(key, "A", TTL_MS, Message(id="m1", event=event))
        assert provider.peek(key) == ()
        assert provider.get_lease_owner(key) is None

    def test_settle_that_names_a_message_twice_is_refused(self, provider: MailboxProvider, key: str) -> None:
        """M2: what became of it would not be clear."""
        self.claimed(provider, key, "A", 1)
        for names in (
            {"handled": ["m1", "m1"]},
            {"handled": ["m1"], "failed": [failure(1)]},
            {"failed": [failure(1)], "dropped": [failure(1)]},
            {"dropped": [failure(1)], "deferred": ["m1"]},
        ):
            with pytest.raises(ConfigurationError):
                provider.settle(key, "A", ttl_ms=TTL_MS, **names)  # type: ignore[arg-type]
        assert ids(provider.peek(key)) == ["m1"]
        assert provider.get_lease_owner(key) == "A"

    def test_settle_with_successor_and_ticket_is_refused(self, provider: MailboxProvider, key: str) -> None:
        """M9: the key passes to one."""
        self.claimed(provider, key, "A", 1)
        with pytest.raises(ConfigurationError):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="B", ticket="T")
        assert ids(provider.peek(key)) == ["m1"]

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

    # --- many at once

    def test_of_many_claims_at_once_one_owns_and_all_others_are_routed(
        self, provider: MailboxProvider, key: str
    ) -> None:
        """M1, M2: and settle after settle, the owner gets every message, in the order in which they were stored."""
        # H39; the closing window is seen with pairs and many keys, not with hot ones.
        clients = [self.make_other(provider) for _ in range(8)]
        for turn in range(20):
            own_key = f"{key}-{turn}"
            answers = at_once(8, lambda n, k=own_key: clients[n].claim(k, f"owner-{n}", TTL_MS, message(n)))
            (winner,) = (answer for answer in answers if isinstance(answer, Claimed))
            assert all(isinstance(answer, Claimed | Routed) for answer in answers)
            assert len(winner.messages) == 1
            stored = ids(provider.peek(own_key))
            assert sorted(stored) == sorted(f"m{number}" for number in range(8))
            ran, owner, running = [], winner.owner, winner.messages
            while running:
                ran += ids(running)
                answer = provider.settle(
                    own_key, owner, ttl_ms=TTL_MS, handled=ids(running), next_owner=f"run-{len(ran)}"
                )
                owner, running = (answer.owner, answer.messages) if isinstance(answer, Continued) else ("", ())
            assert ran == stored
            assert provider.get_lease_owner(own_key) is None

    def test_pairs_lose_nothing_in_the_closing_window(self, provider: MailboxProvider, key: str) -> None:
        """M2: a message that comes while the owner closes is either this owner's or finds the key free."""
        # H39: appended after the last look, 25 to 30 of 60 were lost in a trial of the naive way.
        other = self.make_other(provider)
        for turn in range(30):
            own_key = f"{key}-{turn}"
            self.claimed(provider, own_key, "A", 1)
            closed, came = at_once(
                2,
                lambda n, k=own_key: (
                    provider.settle(k, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")
                    if n == 0
                    else other.claim(k, "B", TTL_MS, message(2))
                ),
            )
            match closed, came:
                case Continued(), Routed():
                    assert ids(closed.messages) == ["m2"]
                case Released(), Claimed():
                    assert ids(came.messages) == ["m2"]
                case Released(), Routed():  # stored behind an owner who had gone: an orphan that is found
                    assert ids(self.claimed(provider, own_key, "C", None).messages) == ["m2"]
                case _:
                    pytest.fail(f"{closed} and {came}")

    def test_of_many_redemptions_at_once_one_owns(self, provider: MailboxProvider, key: str) -> None:
        """M9: a ticket is spent once."""
        # H53.
        for turn in range(10):
            own_key = f"{key}-{turn}"
            self.claimed(provider, own_key, "T", 1, as_ticket=True)
            answers = at_once(8, lambda n, k=own_key: provider.claim(k, f"owner-{n}", TTL_MS, None, ticket="T"))
            (winner,) = (answer for answer in answers if isinstance(answer, Claimed))
            assert [(each.id, each.attempt) for each in winner.messages] == [("m1", 1)]
            assert all(isinstance(answer, Busy) for answer in answers if answer is not winner)

    def test_of_many_deliveries_of_one_message_at_once_one_runs(self, provider: MailboxProvider, key: str) -> None:
        """M5: the others are duplicates, and it is stored once."""
        for turn in range(10):
            own_key = f"{key}-{turn}"
            answers = at_once(8, lambda n, k=own_key: provider.claim(k, f"owner-{n}", TTL_MS, message(1)))
            assert sum(isinstance(answer, Claimed) for answer in answers) == 1
            assert sum(answer.state == "running" for answer in answers if isinstance(answer, Duplicate)) == 7
            assert [(each.id, each.attempt, each.promised) for each in provider.peek(own_key)] == [("m1", 1, True)]
