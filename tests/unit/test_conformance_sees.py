"""The conformance suite fails a provider that leaves a rule out: for each rule, a broken provider and who sees it."""

import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from inspect import signature
from typing import Any
from urllib.parse import unquote

import pytest

from incumbent import rules
from incumbent.clock import SYSTEM_CLOCK, Moment
from incumbent.errors import MailboxFull
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance import ArchiveConformance, MailboxConformance
from incumbent.testing.conformance.subject import fresh_key
from incumbent.values import Acquisition, Beat, Claim, Continued, Failure, Message, Orphan, Released, Taken

NOBODY = rules.KeyState()


class Spoilt(MemoryProvider):
    """The memory provider, whose steps a subclass may spoil after the rules have decided."""

    def _burying_step(
        self, key: str, step: Callable[[rules.KeyState, int], tuple[rules.KeyState, Any]]
    ) -> tuple[Moment, Any, tuple[Message, ...]]:
        def spoilt(state: rules.KeyState, now: int) -> tuple[rules.KeyState, Any]:
            return self.spoil(state, *step(state, now), now)

        return super()._burying_step(self.name(key), spoilt)

    def name(self, key: str) -> str:
        """Under which name the key is stored."""
        return key

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """What becomes of the step."""
        return after, answer

    def set(self, key: str, change: Callable[[rules.KeyState, int], rules.KeyState]) -> None:
        """Change a key's state, whatever the rules say."""
        super()._burying_step(key, lambda state, now: (change(state, now), None))


def mail(state: rules.KeyState, change: Callable[[rules.Stored], rules.Stored]) -> rules.KeyState:
    """Change all messages of a state."""
    return replace(state, mail=tuple(map(change, state.mail)))


# --- the lease, spoilt


class ReleasesForAnybody(Spoilt):
    """R5 left out."""

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key."""
        self.set(key, lambda state, now: replace(state, owner=None, expires_ms=now))


class RenewShortens(Spoilt):
    """R4: "never brings the expiry forward" left out."""

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Set the expiry."""
        renewed = super().renew_lease(key, owner, ttl_ms)
        if renewed:
            self.set(key, lambda state, now: replace(state, expires_ms=now + ttl_ms))
        return renewed


class RenewRevives(Spoilt):
    """R3: "nothing revives it" left out."""

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Compare the owner, not the expiry."""
        self.set(key, lambda state, now: replace(state, expires_ms=now + ttl_ms) if state.owner == owner else state)
        return super().renew_lease(key, owner, ttl_ms)


class ExpiresLate(Spoilt):
    """R3: ``now <= expires`` where ``now < expires`` is the rule, for strangers."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Refuse at the edge."""
        self.set(key, lambda state, now: replace(state, expires_ms=state.expires_ms + (state.expires_ms == now)))
        return super().acquire_lease(key, owner, ttl_ms)


class ExpiresEarly(Spoilt):
    """R3: a millisecond too early."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Round the wrong way."""
        if after.owner is not None and after.expires_ms != before.expires_ms:
            after = replace(after, expires_ms=after.expires_ms - 1)
        return after, answer


class RefusesItself(Spoilt):
    """R8: an owner is told that it lost to itself."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """As SET NX answers its own repetition."""
        if isinstance(answer, rules.Granted) and after.owner == before.owner and after.fence == before.fence:
            return before, rules.Held(owner=before.owner, expires_ms=before.expires_ms)
        return after, answer


class HolderUnknown(Spoilt):
    """R2: "the answer names the holder" left out."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Say no, and no more."""
        answer = super().acquire_lease(key, owner, ttl_ms)
        return answer if answer.acquired else Acquisition(acquired=False, owner=None)


class FenceStandsStill(Spoilt):
    """R7: a transfer keeps the fence."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Count grants of free keys only."""
        if answer is True and before.fence:
            return replace(after, fence=before.fence), answer
        return after, answer


class FenceForgotten(Spoilt):
    """R7: "across release" left out: the record goes with the lease."""

    def release_lease(self, key: str, owner: str) -> None:
        """Forget what is free."""
        super().release_lease(key, owner)
        self.set(key, lambda state, _: state if state.owner else NOBODY)


class TransferLeavesAGap(Spoilt):
    """R6: "one atomic step" left out."""

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Release, then acquire: said twice it is false."""
        if not self.renew_lease(key, from_owner, 1):
            return False
        self.release_lease(key, from_owner)
        return self.acquire_lease(key, to_owner, ttl_ms).acquired


class TransferByAnybody(Spoilt):
    """R6: "only from a live owner" left out."""

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Set the owner."""
        self.set(key, lambda _, now: rules.acquire(NOBODY, now, to_owner, ttl_ms)[0])
        return True


class NoLock(Spoilt):
    """R1: read, then write, with room in between."""

    def _burying_step(
        self, key: str, step: Callable[[rules.KeyState, int], tuple[rules.KeyState, Any]]
    ) -> tuple[Moment, Any, tuple[Message, ...]]:
        sent = self._clock.now()
        before = self._keys.get(key, NOBODY)
        SYSTEM_CLOCK.sleep_ms(1)
        self._keys[key], answer = step(before, sent.wall_ms)
        return sent, answer, ()


class GrantsToEverybody(Spoilt):
    """R1 left out."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Say yes."""
        super().acquire_lease(key, owner, ttl_ms)
        return Acquisition(acquired=True, owner=owner)


class ValidatesNothing(Spoilt):
    """R10 left out."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Take anything."""
        self.set(key, lambda state, now: rules.acquire(state, now, owner, ttl_ms)[0])
        return Acquisition(acquired=True, owner=owner)


class KeysDecoded(Spoilt):
    """R10: two keys meet: one is the other percent-encoded."""

    def name(self, key: str) -> str:
        """Decode."""
        return unquote(key)


class KeysNormalised(Spoilt):
    """R10: two keys meet: one is the other in another normal form."""

    def name(self, key: str) -> str:
        """Normalise."""
        return unicodedata.normalize("NFC", key)


class KeysStripped(Spoilt):
    """R10: two keys meet: one has white space around it."""

    def name(self, key: str) -> str:
        """Strip."""
        return key.strip()


# --- the mailbox, spoilt


class ClosesWithoutLooking(Spoilt):
    """M2: free what is not empty."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Forget the successor."""
        return super().settle(key, owner, **{**more, "next_owner": None, "ticket": None})


class SettlesForAnybody(Spoilt):
    """R3: "its settle raises LeaseLost" left out."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Act as whoever owns."""
        return super().settle(key, self.get_lease_owner(key) or owner, **more)


class IgnoresTheFence(Spoilt):
    """R2: "good for one tenure" left to the owner string, though the caller says which tenure it means."""

    def beat(self, key: str, owner: str, ttl_ms: int, **_: Any) -> Beat:
        """Compare the owner alone."""
        return super().beat(key, owner, ttl_ms)

    def take(self, key: str, owner: str, ttl_ms: int, **more: Any) -> Taken:
        """Compare the owner alone."""
        return super().take(key, owner, ttl_ms, **{**more, "fence": None})

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Compare the owner alone."""
        return super().settle(key, owner, **{**more, "fence": None})


class ForgetsOwnSettle(Spoilt):
    """R8: a repeated settle finds no evidence of its own effect."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Keep none."""
        return replace(after, tenure_end=None), answer


class DuplicateNotPromised(Spoilt):
    """M3: the mark before the answer left out."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Answer, and write nothing."""
        return (before, answer) if isinstance(answer, rules.Known) else (after, answer)


class RoutedNotPromised(Spoilt):
    """M3: the same of what is routed."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Store it as if nobody had been told."""
        if isinstance(answer, rules.Accepted):
            after = mail(after, lambda each: replace(each, promised=each in before.mail and each.promised))
        return after, answer


class DropsWhatIsPromised(Spoilt):
    """M3: "while not promised" left out."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Let dropped messages go."""
        names = [failure.id for failure in more.pop("dropped", ())]
        return super().settle(key, owner, **{**more, "handled": [*more.get("handled", ()), *names]})


class LeavesNoTraceOfAFailedClaim(Spoilt):
    """M3: the trace of the claim left out."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Keep traces of success only."""
        return replace(after, ended=tuple(each for each in after.ended if each.outcome != "failed")), answer


class CallsARetryADuplicate(Spoilt):
    """M1 (4) left out: an id that waits is a duplicate, owner or not."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Look for the id first."""
        claimed = super().claim
        if message is not None and self.get_lease_owner(key) is None:
            self.set(key, lambda state, now: rules.acquire(state, now, "nobody", 1)[0])
            if message.id in [each.id for each in self.peek(key)]:
                return claimed(key, owner, ttl_ms, message, **more)
            self.release_lease(key, "nobody")
        return claimed(key, owner, ttl_ms, message, **more)


class RepeatedClaimExtends(Spoilt):
    """M1 (1): "answered from what stands" left out."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Renew first."""
        self.renew_lease(key, owner, ttl_ms)
        return super().claim(key, owner, ttl_ms, message, **more)


class RepeatedClaimCounts(Spoilt):
    """M1 (1), M6: a repeated claim is another delivery."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Count whenever the owner is answered from what stands."""
        if isinstance(answer, rules.Granted) and after == before:
            after = mail(after, lambda each: replace(each, attempts=each.attempts + 1))
            answer = replace(answer, given=rules.given(after))
        return after, answer


class DeliveryNotCounted(Spoilt):
    """M6: a crash counts, since the delivery is counted before the run: left out."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Give, and do not count."""
        after = mail(after, lambda each: replace(each, attempts=0))
        return after, replace(answer, given=rules.given(after)) if isinstance(answer, rules.Granted) else answer


class FullRefusesTheOwner(Spoilt):
    """M7: "whoever finds the key free owns it" left out."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Count first."""
        if message is not None and "policy" in more and len(self.peek(key)) >= more["policy"].max_pending:
            raise MailboxFull("full", key=key)
        return super().claim(key, owner, ttl_ms, message, **more)


class FullIsIgnored(Spoilt):
    """M7 left out."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Store any number."""
        if "policy" in more:
            more["policy"] = replace(more["policy"], max_pending=1_000)
        return super().claim(key, owner, ttl_ms, message, **more)


class TooLargeByCharacters(Spoilt):
    """M7: characters counted for bytes."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Allow as many bytes more as there are characters of two."""
        if message is not None and "policy" in more:
            text = json.dumps(message.event, ensure_ascii=False)
            more_bytes = len(text.encode()) - len(text)
            more["policy"] = replace(more["policy"], max_message_bytes=more["policy"].max_message_bytes + more_bytes)
        return super().claim(key, owner, ttl_ms, message, **more)


class TicketIsCounted(Spoilt):
    """M6: "passing the key to a successor does not count" left out."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Give the message to the ticket."""
        ticket = more.pop("ticket", None)
        return super().settle(key, owner, **({**more, "next_owner": ticket} if ticket else more))


class TicketIsNeverSpent(Spoilt):
    """M9: "once" left out: whoever comes with a ticket takes the key."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Free the key for the ticket."""
        if more.get("ticket"):
            self.set(key, lambda state, now: replace(state, owner=None, expires_ms=now))
        return super().claim(key, owner, ttl_ms, message, **more)


class RouteFalseIsIgnored(Spoilt):
    """M1: store all the same."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Route."""
        return super().claim(key, owner, ttl_ms, message, **{**more, "route": True})


class NewestFirst(Spoilt):
    """M4 left out."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Put what came last in front."""
        if len(after.mail) > len(before.mail):
            after = replace(after, mail=(after.mail[-1], *after.mail[:-1]))
        return after, answer


class PausesAreIgnored(Spoilt):
    """M6: due again at once."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Forget the pause."""
        return mail(after, lambda each: replace(each, due_ms=0)), answer


class PausedIsIdle(Spoilt):
    """M3, M6: who claims a message that pauses is told that there is nothing, and promised nothing."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Say so."""
        if isinstance(answer, rules.Known) and answer == rules.Known(state="waiting", owner=None):
            return before, rules.Nothing()
        return after, answer


class PausesEndEarly(Spoilt):
    """M6: a millisecond too early."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Round the wrong way."""
        new = {each.id for each in after.mail if each not in before.mail}
        return mail(after, lambda each: replace(each, due_ms=each.due_ms - (each.id in new))), answer


class WindowEndsEarly(Spoilt):
    """M5: a millisecond too early."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Round the wrong way."""
        new = (replace(each, at_ms=each.at_ms - (each not in before.ended)) for each in after.ended)
        return replace(after, ended=tuple(new)), answer


class BlockIsIgnored(Spoilt):
    """M6: "block" skips."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Forget the policy."""
        return replace(after, block=False), answer


class NothingDies(Spoilt):
    """M6: ``max_attempts`` left out."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Fail for ever."""
        if "policy" in more:
            more["policy"] = replace(more["policy"], max_attempts=1_000)
        return super().settle(key, owner, **more)

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Deliver for ever."""
        if "policy" in more:
            more["policy"] = replace(more["policy"], max_attempts=1_000)
        return super().claim(key, owner, ttl_ms, message, **more)


class DeferCounts(Spoilt):
    """M6: a deferred delivery counts."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Leave deferred messages unnamed."""
        return super().settle(key, owner, **{**more, "deferred": ()})


class TakeGivesOnce(Spoilt):
    """R8: a take whose answer was lost has lost its messages."""

    def take(self, key: str, owner: str, ttl_ms: int, **more: Any) -> Taken:
        """Give what is new, and never again."""
        held = {each.id for each in self.peek(key) if each.attempt}
        return Taken(each for each in super().take(key, owner, ttl_ms, **more) if each.id not in held)


class TakeGivesEverything(Spoilt):
    """M6: "they go one by one" left out."""

    def take(self, key: str, owner: str, ttl_ms: int, **more: Any) -> Taken:
        """Give what failed before, too."""
        self.set(key, lambda state, _: mail(state, lambda each: replace(each, attempts=0)))
        return super().take(key, owner, ttl_ms, **more)


class RemembersTooFew(Spoilt):
    """M5: 255 of the last 256."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Forget one more."""
        return replace(after, ended=after.ended[-(rules.REMEMBERED - 1) :]), answer


class RemembersForEver(Spoilt):
    """M5: neither bound."""

    def spoil(self, before: rules.KeyState, after: rules.KeyState, answer: Any, now: int) -> tuple[rules.KeyState, Any]:
        """Keep every trace, always as if it had just been left."""
        kept = {(each.id, each.outcome): each for each in (*before.ended, *after.ended)}
        return replace(after, ended=tuple(replace(each, at_ms=now) for each in kept.values())), answer


class OrphansThatAreOwned(Spoilt):
    """M8: "without a live owner" left out."""

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """List every key with messages."""
        for key, state in list(self._keys.items()):
            if state.mail:
                yield Orphan(key=key, target=None, age_ms=0, waiting=len(state.mail))


class OrphansYoungestFirst(Spoilt):
    """M8: "oldest first" left out."""

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Turn them round."""
        return reversed(list(super().orphans(limit)))


class OrphansWithoutLimit(Spoilt):
    """M8: as many as there are."""

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Give all."""
        return super().orphans(1_000_000)


class NumbersOfFewDigits(Spoilt):
    """M1: an event comes back changed, as a store with numbers of its own would."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Keep what a double can say in 14 digits."""
        if message is not None:
            text = json.dumps(message.event)
            event = json.loads(text, parse_float=lambda n: float(f"{float(n):.14g}"), parse_int=lambda n: int(float(n)))
            message = replace(message, event=event)
        return super().claim(key, owner, ttl_ms, message, **more)


class EmptyListsBecomeObjects(Spoilt):
    """M1: as Lua's tables would make of them."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Say {} for []."""
        if message is not None:
            message = replace(message, event=json.loads(json.dumps(message.event).replace("[]", "{}")))
        return super().claim(key, owner, ttl_ms, message, **more)


# --- the archive, spoilt


class RedriveForgetsTheDead(Spoilt):
    """M6: "its id no longer dead" left out."""

    def redrive(self, key: str, message_id: str) -> bool:
        """Put back, and keep the letter."""
        letters = {each.id: each for each in self._keys.get(key, NOBODY).dead}
        put_back = super().redrive(key, message_id)
        if put_back:
            self.set(key, lambda state, _: replace(state, dead=(*state.dead, letters[message_id])))
        return put_back


class LosesTheError(Spoilt):
    """M6: "with its last error" left out."""

    def settle(self, key: str, owner: str, **more: Any) -> Released | Continued:
        """Say nothing of why."""
        failed = [Failure(id=each.id, error="", after_ms=each.after_ms) for each in more.pop("failed", ())]
        return super().settle(key, owner, **more, failed=failed)


# Who must see what: each broken provider, and the tests that fail it.
SEEN_BY: dict[type[Spoilt], tuple[str, ...]] = {
    ReleasesForAnybody: (
        "test_late_owner_changes_nothing_of_its_successors",
        "test_stranger_cannot_release",
        "test_released_twice_is_quiet",
        "test_spent_ticket_releases_nothing",
    ),
    RenewShortens: ("test_renewal_never_shortens",),
    IgnoresTheFence: ("test_fence_of_another_tenure_is_refused", "test_mailbox_refuses_a_bad_fence"),
    RenewRevives: (
        "test_late_owner_cannot_revive_a_lease_that_nobody_took",
        "test_lease_lives_until_its_ttl_has_passed",
    ),
    ExpiresLate: ("test_stranger_acquires_at_its_edge_and_not_before",),
    ExpiresEarly: (
        "test_stranger_acquires_at_its_edge_and_not_before",
        "test_lease_is_renewable_one_millisecond_before_its_end",
        "test_settle_just_before_the_end_counts",
        "test_claim_owns_at_the_strangers_edge_and_not_before",
    ),
    RefusesItself: (
        "test_same_owner_acquires_again_with_the_same_fence",
        "test_claim_of_the_present_owner_is_answered_from_what_stands",
    ),
    HolderUnknown: ("test_held_key_is_refused_and_the_answer_names_the_holder",),
    FenceStandsStill: (
        "test_transfer_gives_the_successor_a_full_ttl_and_a_new_fence",
        "test_fence_grows_with_every_grant",
    ),
    FenceForgotten: ("test_fence_grows_with_every_grant",),
    TransferLeavesAGap: ("test_repeated_transfer_is_true_again",),
    TransferByAnybody: ("test_late_owner_changes_nothing_of_its_successors", "test_stranger_cannot_transfer"),
    NoLock: (
        "test_of_many_at_once_one_acquires",
        "test_of_many_claims_at_once_one_owns_and_all_others_are_routed",
        "test_of_many_deliveries_of_one_message_at_once_one_runs",
    ),
    GrantsToEverybody: ("test_counter_under_the_lease_loses_no_update", "test_of_many_at_once_one_acquires"),
    ValidatesNothing: ("test_bad_key_is_refused", "test_bad_owner_is_refused", "test_bad_ttl_is_refused"),
    KeysDecoded: ("test_keys_never_meet", "test_messages_of_two_keys_never_meet"),
    KeysNormalised: ("test_keys_never_meet",),
    KeysStripped: ("test_keys_never_meet",),
    ClosesWithoutLooking: (
        "test_settle_passes_the_key_on_while_something_is_due",
        "test_of_many_claims_at_once_one_owns_and_all_others_are_routed",
    ),
    SettlesForAnybody: ("test_late_owner_settles_nothing", "test_stranger_settles_nothing"),
    ForgetsOwnSettle: (
        "test_repeated_settle_is_answered_like_the_first",
        "test_of_many_settles_at_once_one_takes_effect",
    ),
    DuplicateNotPromised: (
        "test_duplicate_of_the_running_message_is_promised",
        "test_duplicate_of_an_unpromised_waiting_message_is_promised",
        "test_dropped_message_that_was_promised_stays",
    ),
    RoutedNotPromised: ("test_held_key_routes",),
    DropsWhatIsPromised: ("test_dropped_message_that_was_promised_stays",),
    LeavesNoTraceOfAFailedClaim: (
        "test_late_copy_of_a_failed_claim_stores_nothing",
        "test_late_copy_of_a_failed_claim_is_not_routed",
    ),
    CallsARetryADuplicate: ("test_waiting_message_on_a_free_key_is_claimed",),
    RepeatedClaimExtends: ("test_claim_of_the_present_owner_is_answered_from_what_stands",),
    RepeatedClaimCounts: ("test_claim_of_the_present_owner_is_answered_from_what_stands",),
    DeliveryNotCounted: ("test_free_key_is_claimed", "test_message_that_kills_its_run_is_dead_too"),
    FullRefusesTheOwner: ("test_full_mailbox_does_not_refuse_who_finds_the_key_free",),
    FullIsIgnored: (
        "test_full_mailbox_refuses_to_route",
        "test_full_mailbox_behind_a_paused_message_refuses_on_a_free_key",
    ),
    PausedIsIdle: ("test_claim_of_a_paused_message_is_a_duplicate",),
    TooLargeByCharacters: ("test_message_may_be_as_large_as_the_limit_to_the_byte",),
    TicketIsCounted: ("test_ticket_holds_the_key_and_is_given_nothing",),
    TicketIsNeverSpent: ("test_ticket_is_redeemed_once", "test_of_many_redemptions_at_once_one_owns"),
    RouteFalseIsIgnored: ("test_claim_that_may_not_route_is_busy",),
    NewestFirst: ("test_older_message_goes_first", "test_every_claim_of_a_dead_owners_key_keeps_the_order"),
    PausesAreIgnored: ("test_failed_message_pauses", "test_failure_may_set_its_own_pause"),
    PausesEndEarly: ("test_failed_message_pauses", "test_failure_may_set_its_own_pause"),
    WindowEndsEarly: ("test_handled_id_is_remembered_for_the_window", "test_window_is_as_long_as_the_policy_says"),
    BlockIsIgnored: ("test_later_messages_wait_behind_a_paused_one", "test_beat_does_not_count_what_is_blocked"),
    NothingDies: ("test_message_is_dead_after_its_last_attempt", "test_message_that_kills_its_run_is_dead_too"),
    DeferCounts: ("test_deferred_message_keeps_its_place_and_its_count",),
    TakeGivesOnce: ("test_repeated_take_gives_the_same_again",),
    TakeGivesEverything: ("test_take_leaves_what_was_delivered_before",),
    RemembersTooFew: ("test_last_256_handled_ids_are_remembered",),
    RemembersForEver: ("test_last_256_handled_ids_are_remembered", "test_handled_id_is_remembered_for_the_window"),
    OrphansThatAreOwned: ("test_dead_owners_messages_are_orphans", "test_orphan_is_none_once_it_is_claimed_or_handled"),
    OrphansYoungestFirst: ("test_oldest_orphan_comes_first", "test_many_orphans_are_found_oldest_first"),
    OrphansWithoutLimit: ("test_oldest_orphan_comes_first",),
    NumbersOfFewDigits: ("test_event_comes_back_as_it_went",),
    EmptyListsBecomeObjects: ("test_event_comes_back_as_it_went",),
    RedriveForgetsTheDead: ("test_redriven_letter_is_a_message_again",),
    LosesTheError: ("test_dead_letter_keeps_its_last_error", "test_last_error_is_kept_as_it_was"),
}

# Rules that a random walk must notice by itself, whoever else does.
SEEN_BY_WALKS = (
    RenewShortens,
    RenewRevives,
    ReleasesForAnybody,
    FenceStandsStill,
    SettlesForAnybody,
    ClosesWithoutLooking,
    ForgetsOwnSettle,
    DuplicateNotPromised,
    DropsWhatIsPromised,
    LeavesNoTraceOfAFailedClaim,
    RepeatedClaimExtends,
    DeliveryNotCounted,
    FullRefusesTheOwner,
    TicketIsCounted,
    TicketIsNeverSpent,
    NewestFirst,
    PausesAreIgnored,
    BlockIsIgnored,
    NothingDies,
    DeferCounts,
    TakeGivesOnce,
    TakeGivesEverything,
    OrphansThatAreOwned,
)


class Suite(MailboxConformance, ArchiveConformance):
    """The suite over a provider of any kind; its name hides it from pytest."""

    def __init__(self, kind: type[MemoryProvider]) -> None:
        self.clock = FakeClock()
        self.kind = kind

    def make_provider(self) -> MemoryProvider:
        """One of that kind."""
        return self.kind(clock=self.clock)

    def pass_time(self, ms: int) -> None:
        """By the test's clock."""
        self.clock.advance(ms)


def arguments_of(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Every combination that a test's parametrize marks name."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        rows = [getattr(row, "values", row if len(names) > 1 else (row,)) for row in mark.args[1]]
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


def fails(kind: type[MemoryProvider], name: str) -> bool:
    """Whether the test fails for that kind of provider, with any of its arguments."""
    for arguments in arguments_of(getattr(Suite, name)):
        suite = Suite(kind)
        test = getattr(suite, name)
        fixtures: dict[str, Any] = {"provider": suite.make_provider(), "key": fresh_key()}
        asked = {each: fixtures[each] for each in signature(test).parameters if each in fixtures}
        try:
            test(**asked, **arguments)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever makes a test fail
            return True
    return False


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind, names in SEEN_BY.items() for name in names],
)
def test_suite_sees_the_rule_that_is_left_out(kind: type[Spoilt], name: str) -> None:
    """The named test fails the broken provider, and passes one that is whole."""
    assert fails(kind, name)
    assert not fails(Spoilt, name)


@pytest.mark.parametrize("kind", SEEN_BY_WALKS, ids=lambda kind: kind.__name__)
def test_random_walk_sees_the_rule_that_is_left_out(kind: type[Spoilt]) -> None:
    """Nobody told the walks which rule to look at."""
    assert fails(kind, "test_every_answer_of_a_walk_is_the_references")


@pytest.mark.parametrize("kind", SEEN_BY, ids=lambda kind: kind.__name__)
def test_broken_provider_is_not_simply_broken(kind: type[Spoilt]) -> None:
    """It leaves out one rule and keeps others: else the suite's failing would say nothing of that rule."""
    ordinary = (
        "test_unknown_key_has_no_owner",
        "test_longest_id_is_allowed",
        "test_claim_without_message_of_an_idle_key_is_idle",
    )
    assert [name for name in ordinary if fails(kind, name)] == []
