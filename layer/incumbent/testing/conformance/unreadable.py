"""Bodies that cannot be read hold nothing up: they are dead letters at once, and hide no others (M6)."""
# ruff: noqa: S101 - these are tests: assert is how they say it

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from incumbent.testing.conformance.mail import EVERYTHING, MailSubject, ids, message
from incumbent.testing.conformance.subject import TTL_MS, ArchiveProvider
from incumbent.values import Claimed, Continued, Duplicate, Failure, Idle, Message, Policy, Released

DIGITS = 1_000
NUMBER = 10**DIGITS - 1


@contextmanager
def fewer_digits() -> Iterator[None]:
    """An interpreter that reads no integers so long, as another one that wrote them may."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def odd(number: int, *, filling: str = "") -> Message:
    """A message that such an interpreter cannot read."""
    return Message(id=f"m{number}", event={"n": NUMBER, "filling": filling})


class UnreadableConformance(MailSubject):
    """Unreadable bodies, in the mailbox and among the dead letters."""

    def send(self, provider: ArchiveProvider, key: str, *messages: Message) -> None:
        """Leave promised messages behind on a free key."""
        for number, each in enumerate(messages):
            sender = f"sender-{each.id}-{number}"
            provider.claim(key, sender, TTL_MS, each, as_ticket=True)
            provider.release_lease(key, sender)

    @pytest.mark.parametrize("filling", ["", "x" * 5_000], ids=["small", "large"])
    def test_claim_goes_on_behind_unreadable_messages(self, provider: ArchiveProvider, key: str, filling: str) -> None:
        """M6: they die in it, are told, and are kept as the text that is stored."""
        self.send(provider, key, odd(1, filling=filling), odd(2), message(3), message(4))
        with fewer_digits():
            answer = provider.claim(key, "A", TTL_MS, None)
            assert isinstance(answer, Claimed)
            assert (ids(answer.messages), answer.waiting, answer.owner) == (["m3"], 1, "A")
            assert answer.messages[0].event == message(3).event
            assert ids(answer.dead_lettered) == ["m1", "m2"]
            assert "cannot be read" in (answer.dead_lettered[0].last_error or "")
            assert provider.get_lease_owner(key) == "A"
            assert ids(provider.peek(key)) == ["m3", "m4"]
            letters = list(provider.dead_letters(key, EVERYTHING))
            assert [(each.message.id, each.message.attempt) for each in letters] == [("m1", 1), ("m2", 1)]
            assert isinstance(letters[0].message.event, str)
            assert "cannot be read" in (letters[0].message.last_error or "")
            raw = letters[0].message.event
        assert json.loads(raw) == {"n": NUMBER, "filling": filling}
        assert [each.message.event["n"] for each in provider.dead_letters(key, EVERYTHING)] == [NUMBER, NUMBER]
        settled = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m3"], next_owner="A2")
        assert isinstance(settled, Continued)
        assert ids(settled.messages) == ["m4"]

    def test_claim_with_a_message_goes_on_to_it(self, provider: ArchiveProvider, key: str) -> None:
        """M1: a caller's own message is run when all before it is unreadable."""
        self.send(provider, key, odd(1), odd(2))
        with fewer_digits():
            answer = provider.claim(key, "A", TTL_MS, message(3))
            assert isinstance(answer, Claimed)
            assert (ids(answer.messages), ids(answer.dead_lettered)) == (["m3"], ["m1", "m2"])
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m3"]) == Released(remaining=0)

    def test_key_with_nothing_readable_is_left_free(self, provider: ArchiveProvider, key: str) -> None:
        """M6: not held for a ttl; and its id is dead, whatever comes under it."""
        self.send(provider, key, odd(1))
        with fewer_digits():
            answer = provider.claim(key, "A", TTL_MS, None)
            assert answer == Idle()
            assert isinstance(answer, Idle)
            assert ids(answer.dead_lettered) == ["m1"]
            assert provider.get_lease_owner(key) is None
            assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="dead")
        self.send(provider, key, odd(2))
        with fewer_digits():
            again = provider.claim(key, "C", TTL_MS, message(2))
            assert again == Duplicate(state="dead")
            assert isinstance(again, Duplicate)
            assert ids(again.dead_lettered) == ["m2"]
            assert provider.get_lease_owner(key) is None
            assert self.own_orphans(provider, key) == []

    def test_settle_goes_on_behind_unreadable_messages(self, provider: ArchiveProvider, key: str) -> None:
        """M2: the successor is given what can be read; where nothing can, the key is free."""
        provider.claim(key, "A", TTL_MS, message(1))
        for number in (2, 3):
            provider.claim(key, f"B{number}", TTL_MS, odd(number))
        provider.claim(key, "B4", TTL_MS, message(4))
        with fewer_digits():
            answer = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2")
            assert isinstance(answer, Continued)
            assert (ids(answer.messages), ids(answer.dead_lettered), answer.owner) == (["m4"], ["m2", "m3"], "A2")
            assert provider.beat(key, "A2", TTL_MS).fence == answer.fence
        provider.claim(key, "B5", TTL_MS, odd(5))
        with fewer_digits():
            last = provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m4"], next_owner="A3")
            assert last == Released(remaining=0)
            assert isinstance(last, Released)
            assert ids(last.dead_lettered) == ["m5"]
            assert provider.get_lease_owner(key) is None

    def test_no_other_message_dies_of_it(self, provider: ArchiveProvider, key: str) -> None:
        """M6: what has failed before has its attempts left."""
        policy = Policy(max_attempts=3, pauses_ms=(0,))
        self.send(provider, key, message(2))
        assert isinstance(provider.claim(key, "A", TTL_MS, None, policy=policy), Claimed)
        provider.claim(key, "B", TTL_MS, odd(3), policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="m2", error="e", after_ms=10_000)], policy=policy)
        with fewer_digits():
            answer = provider.claim(key, "C", TTL_MS, None, policy=policy)
            assert answer == Idle()
            assert isinstance(answer, Idle)
            assert ids(answer.dead_lettered) == ["m3"]
        assert ids(provider.peek(key)) == ["m2"]
        assert provider.peek(key)[0].attempt == 1

    def test_take_leaves_unreadable_messages_out(self, provider: ArchiveProvider, key: str) -> None:
        """M6: the run goes on with the others, and the next tenure buries them."""
        provider.claim(key, "A", TTL_MS, message(1))
        provider.claim(key, "B2", TTL_MS, odd(2))
        provider.claim(key, "B3", TTL_MS, message(3))
        with fewer_digits():
            assert ids(provider.take(key, "A", TTL_MS, have=["m1"])) == ["m3"]
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1", "m3"])
            self.pass_time(60_000)
            assert provider.claim(key, "C", TTL_MS, None) == Idle()
            assert [each.message.id for each in provider.dead_letters(key, EVERYTHING)] == ["m2"]

    def test_listings_show_what_cannot_be_read(self, provider: ArchiveProvider, key: str) -> None:
        """M6: as its text, among the others; it can be put back and purged."""
        once = Policy(max_attempts=1)
        for number, each in enumerate((message(1), odd(2), message(3)), 1):
            provider.claim(key, f"A{number}", TTL_MS, each, policy=once)
            failed = [Failure(id=each.id, error="e")]
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, failed=failed, policy=once)
        self.send(provider, key, odd(4))
        with fewer_digits():
            assert [each.message.id for each in provider.dead_letters(key, EVERYTHING)] == ["m1", "m2", "m3"]
            every = [each.message for each in provider.dead_letters(None, EVERYTHING) if each.key == key]
            assert sorted(ids(every)) == ["m1", "m2", "m3"]
            assert all(isinstance(each.event, str) for each in provider.peek(key))
            assert provider.find(key, "m4").state == "waiting"
            assert provider.redrive(key, "m2") is True
            assert provider.claim(key, "B", TTL_MS, None) == Idle()
            assert sorted(each.message.id for each in provider.dead_letters(key, EVERYTHING)) == [
                *("m1", "m2", "m3", "m4")
            ]
            assert provider.purge(key, "m2") is True
