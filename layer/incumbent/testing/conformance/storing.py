"""What is stored, and what is refused before anything is (R10, M5, M7)."""
# ruff: noqa: S101 - these are tests: assert is how they say it

import json
from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.mail import MailSubject, failure, ids
from incumbent.testing.conformance.samples import (
    BAD_IDS,
    BAD_KEYS,
    BAD_OWNERS,
    BAD_TTLS,
    EVENTS,
    NOT_JSON,
    ODD_ENDINGS,
    table,
)
from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider
from incumbent.values import (
    Claimed,
    Duplicate,
    Failure,
    Message,
    Released,
    Routed,
)

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
WITH_FENCE: dict[str, Callable[[MailboxProvider, str, Any], object]] = {
    "settle": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], fence=bad),
    "beat": lambda p, key, bad: p.beat(key, "A", TTL_MS, fence=bad),
    "take": lambda p, key, bad: p.take(key, "A", TTL_MS, fence=bad),
}
NAMING: dict[str, Callable[[MailboxProvider, str, Any], object]] = {
    "claim": lambda p, key, bad: p.claim(key, "A", TTL_MS, Message(id=bad, event=1)),
    "handled": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, handled=[bad]),
    "failed": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id=bad, error="e")]),
    "dropped": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, dropped=[Failure(id=bad, error="e")]),
    "deferred": lambda p, key, bad: p.settle(key, "A", ttl_ms=TTL_MS, deferred=[bad]),
}


class Storing(MailSubject):
    """Events come back as they went, names never meet, bad arguments change nothing."""

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
        self.die()
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
        assert provider.settle(key, "C9", ttl_ms=TTL_MS, handled=["m9"]) == Released(remaining=0)

    @pytest.mark.parametrize(
        "body", [{"text": "x" * 300_000}, ["é" * 200_000, "🐍" * 125_000]], ids=["300 KB", "900 KB"]
    )
    def test_body_of_a_large_record_is_kept(self, provider: MailboxProvider, key: str, body: Any) -> None:
        """M7: SQS delivers up to 1 MiB; by every way out, and a refused delivery removes nothing."""
        large = Message(id="m1", event=body)
        first = provider.claim(key, "A", TTL_MS, large)
        assert isinstance(first, Claimed)
        assert first.messages[0].event == body
        assert provider.claim(key, "B", TTL_MS, large) == Duplicate(state="running", owner="A")
        assert isinstance(provider.claim(key, "B2", TTL_MS, Message(id="m2", event=body)), Routed)
        assert isinstance(provider.claim(key, "B3", TTL_MS, Message(id="m3", event=body)), Routed)
        assert [each.event for each in provider.take(key, "A", TTL_MS, have=["m1", "m3"])] == [body]
        answer = self.continued(provider, key, "A", "A2", handled=["m1", "m2"], deferred=["m3"])
        assert [(each.id, each.event) for each in answer.messages] == [("m3", body)]
        assert [each.event for each in provider.peek(key)] == [body]
        assert provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m3"]) == Released(remaining=0)

    def test_refused_delivery_does_not_remove_the_body_of_the_first(self, provider: MailboxProvider, key: str) -> None:
        """M5: two deliveries of one id do not share what is cleaned up."""
        # H60: read in the design.
        large = Message(id="m1", event="x" * 60_000)
        provider.claim(key, "A", TTL_MS, large)
        assert provider.claim(key, "B", TTL_MS, large) == Duplicate(state="running", owner="A")
        self.die()
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
            settled = self.continued(provider, odd, f"owner{odd}", "C", handled=[f"id{ODD_ENDINGS[number]}"])
            assert settled.messages[0].event["number"] == number
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
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=odd[::2]) == Released(remaining=len(odd) // 2)
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
        assert ids(provider.peek(key)) == []
        assert provider.get_lease_owner(key) is None

    @pytest.mark.parametrize("call", table(WITH_TTL))
    @pytest.mark.parametrize("bad", table(BAD_TTLS))
    def test_mailbox_refuses_a_bad_ttl(self, provider: MailboxProvider, key: str, call: Call, bad: Any) -> None:
        """R10: and the owner keeps what it has."""
        self.claimed(provider, key, "owner", 1)
        with pytest.raises(ConfigurationError):
            call(provider, key, "owner", bad)
        assert ids(provider.peek(key)) == ["m1"]
        assert TTL_MS // 2 < (provider.acquire_lease(key, "B", 1).expires_in_ms or 0) <= TTL_MS

    @pytest.mark.parametrize("call", table(WITH_FENCE))
    @pytest.mark.parametrize("bad", [-1, 1.0, "1", True, 2**63], ids=repr)
    def test_mailbox_refuses_a_bad_fence(
        self, provider: MailboxProvider, key: str, call: Callable[[MailboxProvider, str, Any], object], bad: Any
    ) -> None:
        """R10: before any request, and the message stays."""
        self.claimed(provider, key, "A", 1)
        with pytest.raises(ConfigurationError):
            call(provider, key, bad)
        assert ids(provider.peek(key)) == ["m1"]

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
        assert ids(provider.peek(key)) == []
        assert provider.get_lease_owner(key) is None

    def test_settle_that_names_a_message_twice_is_refused(self, provider: MailboxProvider, key: str) -> None:
        """M2: what became of it would not be clear."""
        self.claimed(provider, key, "A", 1)
        names: dict[str, Any]
        for names in (
            {"handled": ["m1", "m1"]},
            {"handled": ["m1"], "failed": [failure(1)]},
            {"failed": [failure(1)], "dropped": [failure(1)]},
            {"dropped": [failure(1)], "deferred": ["m1"]},
        ):
            with pytest.raises(ConfigurationError):
                provider.settle(key, "A", ttl_ms=TTL_MS, **names)
        assert ids(provider.peek(key)) == ["m1"]
        assert provider.get_lease_owner(key) == "A"

    def test_settle_with_successor_and_ticket_is_refused(self, provider: MailboxProvider, key: str) -> None:
        """M9: the key passes to one."""
        self.claimed(provider, key, "A", 1)
        with pytest.raises(ConfigurationError):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="B", ticket="T")
        assert ids(provider.peek(key)) == ["m1"]
