"""What every archive does: what became of an id, and dead letters (M5, M6)."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from typing import Any

import pytest

from incumbent.backends import is_archive
from incumbent.errors import ConfigurationError
from incumbent.testing.conformance.mail import EVERYTHING, PAUSE_MS, failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, ArchiveProvider
from incumbent.testing.conformance.unreadable import UnreadableConformance
from incumbent.testing.conformance.walks import ARCHIVE_STEPS, WALKS, Walking
from incumbent.values import Claimed, Continued, Duplicate, Failure, Idle, Message, Policy, Released

ONCE = Policy(max_attempts=1)


class ArchiveConformance(Walking, UnreadableConformance):
    """Looking at what became of messages, and putting dead letters back."""

    def bury(self, provider: ArchiveProvider, key: str, number: int) -> None:
        """Let a message die."""
        assert isinstance(provider.claim(key, f"owner-{number}", TTL_MS, message(number), policy=ONCE), Claimed)
        provider.settle(key, f"owner-{number}", ttl_ms=TTL_MS, failed=[failure(number)], policy=ONCE)

    def test_archive_is_found_by_its_methods(self, provider: ArchiveProvider) -> None:
        """The provider is an archive by structure."""
        assert is_archive(provider)

    def test_find_follows_a_message(self, provider: ArchiveProvider, key: str) -> None:
        """M5: unknown, running, waiting, handled, and forgotten after the window."""
        assert provider.find(key, "m1").state == "unknown"
        provider.claim(key, "A", TTL_MS, message(1))
        provider.claim(key, "B", TTL_MS, message(2))
        assert provider.find(key, "m1").state == "running"
        assert provider.find(key, "m2").state == "waiting"
        assert provider.find(key, "m3").state == "unknown"
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert provider.find(key, "m1").state == "handled"
        rest_ms = self.pass_almost(60 * 60_000)
        assert provider.find(key, "m1").state == "handled"
        self.pass_time(rest_ms)
        assert provider.find(key, "m1").state == "unknown"
        assert provider.find(key, "m2").state == "waiting"

    def test_message_runs_as_long_as_its_owner_lives(self, provider: ArchiveProvider, key: str) -> None:
        """R3, M5: at the strangers' edge a lease has never been, and what it was given waits for the next."""
        provider.claim(key, "A", TTL_MS, message(1))
        rest_ms = self.pass_almost(TTL_MS + self.skew_ms)
        assert provider.find(key, "m1").state == "running"
        self.pass_time(rest_ms)
        assert provider.find(key, "m1").state == "waiting"
        assert self.make_other(provider).find(key, "m1").state == "waiting"

    def test_taken_message_of_a_dead_owner_waits(self, provider: ArchiveProvider, key: str) -> None:
        """R3: each of several that were given to one run."""
        provider.claim(key, "A", TTL_MS, message(1))
        provider.claim(key, "B", TTL_MS, message(2))
        provider.take(key, "A", TTL_MS)
        assert [provider.find(key, each).state for each in ("m1", "m2")] == ["running", "running"]
        self.expire()
        assert [provider.find(key, each).state for each in ("m1", "m2")] == ["waiting", "waiting"]

    def test_message_of_an_owner_that_gave_its_key_away_waits(self, provider: ArchiveProvider, key: str) -> None:
        """R5, R6: its run settles nothing any more, and the present owner was not given the message."""
        provider.claim(key, "A", TTL_MS, message(1))
        provider.transfer_lease(key, "A", "B", TTL_MS)
        assert provider.find(key, "m1").state == "waiting"
        assert provider.claim(key, "C", TTL_MS, message(1)) == Duplicate(state="waiting", owner="B")
        provider.release_lease(key, "B")
        assert provider.find(key, "m1").state == "waiting"

    def test_dropped_message_is_not_found(self, provider: ArchiveProvider, key: str) -> None:
        """M3: it went back to its source."""
        provider.claim(key, "A", TTL_MS, message(1))
        provider.settle(key, "A", ttl_ms=TTL_MS, dropped=[failure(1)])
        assert provider.find(key, "m1").state == "unknown"

    def test_dead_letter_keeps_its_last_error(self, provider: ArchiveProvider, key: str) -> None:
        """M6: with its event, its attempts and when it died."""
        policy = Policy(max_attempts=2)
        provider.claim(key, "A", TTL_MS, message(1), policy=policy)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="first é")], policy=policy)
        self.pass_time(PAUSE_MS)
        provider.claim(key, "B", TTL_MS, None, policy=policy)
        provider.settle(key, "B", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="second é\n🐍")], policy=policy)
        (letter,) = provider.dead_letters(key, EVERYTHING)
        assert letter.key == key
        assert letter.message.id == "m1"
        assert letter.message.event == message(1).event
        assert letter.message.attempt == 2
        assert letter.message.last_error == "second é\n🐍"
        assert letter.died_at_ms > 1_500_000_000_000
        assert provider.find(key, "m1").state == "dead"

    def test_message_that_killed_its_run_is_a_dead_letter(self, provider: ArchiveProvider, key: str) -> None:
        """M6: without an error, since its run could not report one."""
        provider.claim(key, "A", TTL_MS, message(1), policy=ONCE)
        self.expire()
        assert provider.claim(key, "B", TTL_MS, None, policy=ONCE) == Idle()
        (letter,) = provider.dead_letters(key, EVERYTHING)
        assert (letter.message.id, letter.message.attempt, letter.message.last_error) == ("m1", 1, None)
        assert provider.find(key, "m1").state == "dead"

    def test_settle_says_what_it_buried(self, provider: ArchiveProvider, key: str) -> None:
        """M6: in the order of the mailbox, as the dead letters have them, and nothing that only pauses."""
        for number in (1, 2, 3):
            provider.claim(key, f"sender-{number}", TTL_MS, message(number), as_ticket=True)
        provider.release_lease(key, "sender-1")
        assert isinstance(provider.claim(key, "A", TTL_MS, None), Claimed)
        provider.take(key, "A", TTL_MS)
        answer = provider.settle(
            key, "A", ttl_ms=TTL_MS, failed=[failure(2), failure(1)], handled=["m3"], policy=Policy(max_attempts=1)
        )
        assert isinstance(answer, Released)
        assert [each.id for each in answer.dead_lettered] == ["m1", "m2"]
        assert answer.dead_lettered == tuple(letter.message for letter in provider.dead_letters(key, EVERYTHING))
        assert answer.dead_lettered[0].last_error == "failed 1"

        provider.claim(key, "B", TTL_MS, message(4))
        paused = provider.settle(key, "B", ttl_ms=TTL_MS, failed=[failure(4)])
        assert isinstance(paused, Released)
        assert paused.dead_lettered == ()

    def test_settle_that_goes_on_says_what_it_buried(self, provider: ArchiveProvider, key: str) -> None:
        """M6: what the run failed, and what was out of attempts before the next; with its whole body."""
        large = Message(id="m1", event={"text": "é" * 30_000})
        provider.claim(key, "A", TTL_MS, large, policy=ONCE)
        for number in (2, 3):
            provider.claim(key, f"sender-{number}", TTL_MS, message(number), policy=ONCE)
        self.expire()
        second = provider.claim(key, "B", TTL_MS, None, policy=Policy(max_attempts=2))
        assert isinstance(second, Claimed)
        provider.take(key, "B", TTL_MS)
        provider.claim(key, "C", TTL_MS, message(4), policy=ONCE)
        # m1 has had two deliveries; m2 and m3 one each, of which only m3 is reported as failed.
        answer = provider.settle(key, "B", ttl_ms=TTL_MS, failed=[failure(1), failure(3)], next_owner="B2", policy=ONCE)
        assert isinstance(answer, Continued)
        assert ids(answer.messages) == ["m4"]
        assert sorted(ids(answer.dead_lettered)) == ["m1", "m2", "m3"]
        by_id = {each.id: each for each in answer.dead_lettered}
        assert by_id["m1"].event == large.event
        assert (by_id["m2"].attempt, by_id["m2"].last_error) == (1, None)

    def test_claim_says_what_it_buried(self, provider: ArchiveProvider, key: str) -> None:
        """M6: a message that killed its runs dies when a claim looks for work, and is reported in any case."""
        provider.claim(key, "A", TTL_MS, message(1), policy=ONCE)
        self.expire()
        past = provider.claim(key, "B", TTL_MS, message(2), policy=ONCE)
        assert isinstance(past, Claimed)
        assert (ids(past.dead_lettered), ids(past.messages)) == (["m1"], ["m2"])
        self.expire()
        all_there_was = provider.claim(key, "C", TTL_MS, None, policy=ONCE)
        assert isinstance(all_there_was, Idle)
        assert ids(all_there_was.dead_lettered) == ["m2"]
        provider.claim(key, "D", TTL_MS, message(3), policy=ONCE)
        self.expire()
        itself = provider.claim(key, "E", TTL_MS, message(3), policy=ONCE)
        assert itself == Duplicate(state="dead")
        assert isinstance(itself, Duplicate)
        assert ids(itself.dead_lettered) == ["m3"]
        again = provider.claim(key, "F", TTL_MS, message(3), policy=ONCE)
        assert isinstance(again, Duplicate)
        assert again.dead_lettered == ()

    def test_dead_letters_are_listed_longest_dead_first(self, provider: ArchiveProvider, key: str) -> None:
        """M6: no more than asked for; of one key or of all."""
        for number in (3, 1, 2):
            self.bury(provider, key, number)
            self.pass_time(10_000 + self.slack_ms)
        self.bury(provider, f"{key}-other", 4)
        assert [letter.message.id for letter in provider.dead_letters(key, EVERYTHING)] == ["m3", "m1", "m2"]
        assert [letter.message.id for letter in provider.dead_letters(key, 2)] == ["m3", "m1"]
        every = [
            (letter.key, letter.message.id)
            for letter in provider.dead_letters(None, EVERYTHING)
            if letter.key.startswith(key)
        ]
        assert sorted(every) == sorted([(key, "m3"), (key, "m1"), (key, "m2"), (f"{key}-other", "m4")])
        assert len(list(provider.dead_letters(None, 1))) == 1
        assert list(provider.dead_letters(f"{key}-none", EVERYTHING)) == []

    @pytest.mark.parametrize("limit", [-1, 10**9 + 1, 10**20, True, 1.0, "1", None], ids=repr)
    def test_bad_listing_is_refused(self, provider: ArchiveProvider, key: str, limit: Any) -> None:
        """At the call, not when its answer is read."""
        for each in (key, None):
            with pytest.raises(ConfigurationError, match="limit"):
                provider.dead_letters(each, limit)
        with pytest.raises(ConfigurationError, match="the key"):
            provider.dead_letters("", 1)

    def test_redriven_letter_is_a_message_again(self, provider: ArchiveProvider, key: str) -> None:
        """M6: at the end of the mailbox, promised, undelivered, its id no longer dead."""
        self.bury(provider, key, 1)
        provider.claim(key, "A", TTL_MS, message(2))
        assert provider.redrive(key, "m1") is True
        assert list(provider.dead_letters(key, EVERYTHING)) == []
        assert provider.find(key, "m1").state == "waiting"
        assert [(each.id, each.promised) for each in provider.peek(key)] == [("m2", False), ("m1", True)]
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m2"])
        answer = provider.claim(key, "B", TTL_MS, None)
        assert isinstance(answer, Claimed)
        (again,) = answer.messages
        assert (again.id, again.attempt, again.event) == ("m1", 1, message(1).event)
        assert again.last_error == "failed 1"

    def test_redriven_letters_id_is_stored_once(self, provider: ArchiveProvider, key: str) -> None:
        """M5: it waits, so a late delivery is a duplicate behind an owner, and claims it on a free key."""
        self.bury(provider, key, 1)
        provider.claim(key, "A", TTL_MS, message(2))
        provider.redrive(key, "m1")
        assert provider.claim(key, "B", TTL_MS, message(1)) == Duplicate(state="waiting", owner="A")
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m2"])
        answer = provider.claim(key, "C", TTL_MS, message(1))
        assert isinstance(answer, Claimed)
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]

    def test_redriven_letter_has_waited_since_it_was_put_back(self, provider: ArchiveProvider, key: str) -> None:
        """M8: not since its key was freed."""
        self.bury(provider, key, 1)
        self.pass_time(60_000)
        provider.redrive(key, "m1")
        self.pass_time(5_000)
        (orphan,) = (orphan for orphan in provider.orphans(EVERYTHING) if orphan.key == key)
        assert 5_000 <= orphan.age_ms <= 5_000 + self.slack_ms

    def test_message_that_dies_again_is_one_dead_letter(self, provider: ArchiveProvider, key: str) -> None:
        """M6: the later one, with its own error; nothing is listed twice."""
        self.bury(provider, key, 1)
        self.pass_time(60 * 60_000)
        provider.claim(key, "A", TTL_MS, Message(id="m1", event="another"), policy=ONCE)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="again")], policy=ONCE)
        (letter,) = provider.dead_letters(key, EVERYTHING)
        assert (letter.message.event, letter.message.last_error) == ("another", "again")

    def test_redriven_letter_on_a_free_key_is_an_orphan(self, provider: ArchiveProvider, key: str) -> None:
        """M8: the sweeper finds it."""
        self.bury(provider, key, 1)
        assert [orphan for orphan in provider.orphans(EVERYTHING) if orphan.key == key] == []
        provider.redrive(key, "m1")
        (orphan,) = (orphan for orphan in provider.orphans(EVERYTHING) if orphan.key == key)
        assert orphan.waiting == 1

    def test_redrive_of_what_is_not_dead_is_false(self, provider: ArchiveProvider, key: str) -> None:
        """M6: also the second time."""
        assert provider.redrive(key, "m1") is False
        provider.claim(key, "A", TTL_MS, message(1), policy=ONCE)
        assert provider.redrive(key, "m1") is False
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=ONCE)
        assert provider.redrive(key, "m1") is True
        assert provider.redrive(key, "m1") is False
        assert ids(provider.peek(key)) == ["m1"]

    def test_purged_letter_is_gone_and_its_id_stays_dead(self, provider: ArchiveProvider, key: str) -> None:
        """M5: a late delivery of it is still a duplicate in the window."""
        self.bury(provider, key, 1)
        assert provider.purge(key, "m2") is False
        assert provider.purge(key, "m1") is True
        assert provider.purge(key, "m1") is False
        assert list(provider.dead_letters(key, EVERYTHING)) == []
        assert provider.redrive(key, "m1") is False
        assert provider.claim(key, "A", TTL_MS, message(1)) == Duplicate(state="dead")

    @pytest.mark.parametrize("size", [30_000, 450_000], ids=["60 KB", "900 KB"])
    def test_large_message_dies_and_comes_back(self, provider: ArchiveProvider, key: str, size: int) -> None:
        """M6: with its whole body, twice; then it is purged."""
        large = Message(id="m1", event={"text": "é" * size})
        provider.claim(key, "A", TTL_MS, large, policy=ONCE)
        for owner, successor in (("A", "B"), ("B", "C")):
            settled = provider.settle(key, owner, ttl_ms=TTL_MS, failed=[failure(1)], policy=ONCE)
            assert isinstance(settled, Released)
            assert [each.event for each in settled.dead_lettered] == [large.event]
            (letter,) = provider.dead_letters(key, EVERYTHING)
            assert letter.message.event == large.event
            assert provider.redrive(key, "m1") is True
            answer = provider.claim(key, successor, TTL_MS, None, policy=ONCE)
            assert isinstance(answer, Claimed)
            assert answer.messages[0].event == large.event
        provider.settle(key, "C", ttl_ms=TTL_MS, failed=[failure(1)], policy=ONCE)
        assert provider.purge(key, "m1") is True
        assert list(provider.dead_letters(key, EVERYTHING)) == []

    def test_dead_letter_whose_id_was_stored_again_stays_dead(self, provider: ArchiveProvider, key: str) -> None:
        """M5, M6: after the window the id may be stored anew; then it cannot be put back beside itself."""
        self.bury(provider, key, 1)
        self.pass_time(60 * 60_000)
        assert isinstance(provider.claim(key, "A", TTL_MS, message(1)), Claimed)
        assert provider.redrive(key, "m1") is False
        assert len(list(provider.dead_letters(key, EVERYTHING))) == 1
        assert ids(provider.peek(key)) == ["m1"]

    @pytest.mark.parametrize("number", range(WALKS))
    def test_every_answer_about_dead_letters_is_the_references(
        self, provider: ArchiveProvider, key: str, number: int
    ) -> None:
        """M5, M6: messages that die, come back and are looked for, in any order."""
        self.follow(provider, key, number, ARCHIVE_STEPS)
