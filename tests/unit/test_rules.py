"""The pure rules, where a call through a provider cannot reach: evidence, skew, clocks that go back, invariants."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent import rules
from incumbent.providers.memory import MemoryProvider
from incumbent.rules import Ended, Freed, Granted, Held, KeyState, Known, Stored, TenureEnd
from incumbent.testing.clock import FakeClock
from incumbent.values import Debounce, Failure, Message, Policy, Routed

TTL_MS = 30_000
NOW = 1_800_000_000_000
POLICY = Policy()


def stored(number: int = 1, *, by: str = "A", now: int = NOW) -> Stored:
    """A message as a claim brings it."""
    return Stored(id=f"m{number}", body=f"{number}", claimed_by=by, promised=False, stored_ms=now)


def claimed(state: KeyState = KeyState(), owner: str = "A", number: int | None = 1, **more: Any) -> KeyState:  # noqa: B008
    """After a claim that owns the key."""
    message = None if number is None else stored(number, by=owner)
    new, answer = rules.claim(state, more.pop("now", NOW), owner, TTL_MS, message, policy=POLICY, **more)
    assert isinstance(answer, Granted)
    return new


def routed(state: KeyState, owner: str, number: int, now: int = NOW) -> KeyState:
    """After a claim that is routed."""
    new, answer = rules.claim(state, now, owner, TTL_MS, stored(number, by=owner), policy=POLICY)
    assert isinstance(answer, rules.Accepted)
    return new


def settle(state: KeyState, owner: str, now: int = NOW, **more: Any) -> tuple[KeyState, Any]:
    """Settle, with nothing to say but what is said."""
    said: dict[str, Any] = {"handled": [], "failed": [], "dropped": [], "deferred": [], "policy": POLICY}
    return rules.settle(state, now, owner, TTL_MS, **{**said, **more})


# --- two edges


@pytest.mark.parametrize(
    ("after_ms", "owner_may", "stranger_may"),
    [(0, True, False), (29_999, True, False), (30_000, False, False), (30_999, False, False), (31_000, False, True)],
)
def test_owner_stops_before_strangers_start(after_ms: int, owner_may: bool, stranger_may: bool) -> None:  # noqa: FBT001
    """R3: the owner's edge is the expiry, the strangers' edge is a skew later; in between nobody may."""
    # H15: ShedLock #639: clients' clocks differ.
    state = claimed()
    now = NOW + after_ms
    assert rules.owned_by(state, "A", now) is owner_may
    assert (rules.renew(state, now, "A", TTL_MS)[1] != "lost") is owner_may
    assert (rules.transfer(state, now, "A", "B", TTL_MS)[1] is True) is owner_may
    assert (settle(state, "A", now, handled=["m1"])[1] != "lost") is owner_may
    assert (rules.take(state, now, "A", TTL_MS)[1] != "lost") is owner_may
    assert (rules.release(state, now, "A") != state) is owner_may
    assert rules.owned(state, now, 1_000) is not stranger_may
    assert isinstance(rules.acquire(state, now, "B", TTL_MS, 1_000)[1], Granted) is stranger_may
    waiting = routed(state, "C", 2)
    claim = rules.claim(waiting, now, "B", TTL_MS, None, policy=POLICY, skew_ms=1_000)[1]
    assert isinstance(claim, Granted) is stranger_may


def test_orphans_age_begins_at_the_strangers_edge() -> None:
    """M8: before, nobody else may run them."""
    state = routed(claimed(), "B", 2)
    assert rules.orphaned_since(state, NOW + 30_999, 1_000) is None
    assert rules.orphaned_since(state, NOW + 31_000, 1_000) == NOW + 31_000
    assert rules.orphaned_since(state, NOW + 99_000, 1_000) == NOW + 31_000


def test_orphan_whose_run_died_is_one_when_its_pause_is_over() -> None:
    """M8, M6: the pause begins at the strangers' edge, and with a release at once."""
    state = claimed()
    due = NOW + 31_000 + POLICY.pause_ms(1)
    assert rules.orphaned_since(state, due - 1, 1_000) is None
    assert rules.orphaned_since(state, due + 5, 1_000) == due
    freed = rules.release(state, NOW + 5, "A")
    assert rules.orphaned_since(freed, NOW + 5 + POLICY.pause_ms(1) - 1, 1_000) is None
    assert rules.orphaned_since(freed, NOW + 5 + POLICY.pause_ms(1), 1_000) == NOW + 5 + POLICY.pause_ms(1)


def test_run_that_died_pauses_by_the_policy_that_the_key_has_noted() -> None:
    """M6: of the last claim that owned it or the last settle; an acquire and a transfer name none."""
    policy = Policy(pauses_ms=(7_000, 9_000, 11_000), max_attempts=2)
    state, _ = rules.claim(KeyState(), NOW, "A", TTL_MS, stored(), policy=policy)
    assert state.pauses_ms == (7_000, 9_000)
    moved, _ = rules.transfer(state, NOW + 10, "A", "B", TTL_MS)
    assert [(each.due_ms, each.delivered_fence, each.attempts) for each in moved.mail] == [(NOW + 7_010, 0, 1)]
    taken, _ = rules.acquire(state, NOW + TTL_MS + 500, "B", TTL_MS)
    assert [(each.due_ms, each.delivered_fence) for each in taken.mail] == [(NOW + TTL_MS + 7_000, 0)]
    bare = replace(state, pauses_ms=())
    taken, _ = rules.acquire(bare, NOW + TTL_MS + 500, "B", TTL_MS)
    assert [(each.due_ms, each.delivered_fence) for each in taken.mail] == [(NOW + TTL_MS, 0)]


def test_run_that_died_is_ended_once() -> None:
    """M6: the owners that come and go after it neither lengthen its pause nor move it again."""
    state = routed(claimed(), "C", 2)
    state, _ = rules.acquire(state, NOW + TTL_MS, "B", TTL_MS)
    ended = state.mail
    for number in range(3):
        state = rules.release(state, NOW + TTL_MS + number, state.owner or "")
        state, _ = rules.acquire(state, NOW + TTL_MS + number, f"B{number}", TTL_MS)
        state = routed(state, f"D{number}", number + 3, NOW + TTL_MS + number)
        assert state.mail[:2] == ended
    assert [each.id for each in state.mail] == ["m2", "m1", "m3", "m4", "m5"]


def test_spent_message_is_no_evidence_of_the_settle_of_the_run_that_it_killed() -> None:
    """R9, M6: it dies in the next tenure, whose fence its trace bears."""
    once = Policy(max_attempts=1)
    state, granted = rules.claim(KeyState(), NOW, "A", TTL_MS, stored(), policy=once)
    assert isinstance(granted, Granted)
    later = NOW + TTL_MS
    state, _ = rules.claim(state, later, "B", TTL_MS, stored(2, by="B"), policy=once)
    assert [each.id for each in state.dead] == ["m1"]
    said = settle(state, "A", later, handled=["m1"], fence=granted.fence, repeated=True, policy=once)[1]
    assert said == "unknown"


def test_orphans_age_begins_at_once_when_the_key_was_freed() -> None:
    """M8: no skew has to pass after a release."""
    freed = rules.release(routed(claimed(), "B", 2), NOW + 5, "A")
    assert rules.orphaned_since(freed, NOW + 5, 1_000) == NOW + 5


def test_orphans_age_begins_with_the_first_that_is_due() -> None:
    """M8, M6: the paused one does not count before its pause is over."""
    state = routed(claimed(), "B", 2)
    freed, _ = settle(state, "A", NOW, failed=[Failure(id="m1", error="e", after_ms=5_000)])
    assert rules.orphaned_since(freed, NOW + 1) == NOW
    only, _ = settle(claimed(), "A", NOW, failed=[Failure(id="m1", error="e", after_ms=5_000)])
    assert rules.orphaned_since(only, NOW + 4_999) is None
    assert rules.orphaned_since(only, NOW + 9_000) == NOW + 5_000


def test_orphans_age_is_that_of_its_longest_waiting_message() -> None:
    """M8: stored after the key was freed, as a dead letter that is put back."""
    state = KeyState(expires_ms=NOW, mail=(stored(1, now=NOW + 20), stored(2, now=NOW + 10)))
    assert rules.orphaned_since(state, NOW + 30) == NOW + 10


def test_key_that_nobody_knows_is_no_orphan() -> None:
    """M8: nothing is due."""
    assert rules.orphaned_since(KeyState(), NOW) is None


# --- fences and clocks


def test_fence_is_not_behind_the_clock() -> None:
    """R7: microseconds of the clock that grants, so that a store which forgot the key does not repeat one."""
    # H22: measured: after a failover a counter gave token 4 to both holders.
    assert claimed().fence == NOW * 1_000
    assert claimed(now=NOW + 1).fence == NOW * 1_000 + 1_000


def test_fence_grows_though_the_clock_stands_or_goes_back() -> None:
    """R7: at least one more than the last."""
    state = claimed()
    for now in (NOW, NOW - 60_000, NOW):
        before = state.fence
        state = rules.release(state, now, state.owner or "")
        state, answer = rules.acquire(
            state, now, "B" if state.tenure_end and state.tenure_end.owner == "A" else "A", TTL_MS
        )
        assert isinstance(answer, Granted)
        assert state.fence == before + 1


# --- the tenure's fence, sent along


@pytest.mark.parametrize("fence", [1, NOW * 1_000 + 1])
def test_call_of_another_tenure_is_late(fence: int) -> None:
    """R2: a stalled old call of the same owner string acts on nothing."""
    # H63: found by exploring the rules.
    state = claimed()
    assert rules.renew(state, NOW, "A", TTL_MS, fence)[1] == "lost"
    assert rules.release(state, NOW, "A", fence) == state
    assert rules.transfer(state, NOW, "A", "B", TTL_MS, fence=fence) == (state, False)
    assert settle(state, "A", fence=fence, handled=["m1"]) == (state, "lost")
    assert rules.take(state, NOW, "A", TTL_MS, fence) == (state, "lost")


def test_call_of_this_tenure_counts() -> None:
    """R2: with the fence of the grant."""
    state = claimed()
    assert rules.renew(state, NOW, "A", TTL_MS, state.fence)[1] != "lost"
    assert rules.release(state, NOW, "A", state.fence).owner is None
    assert rules.transfer(state, NOW, "A", "B", TTL_MS, fence=state.fence)[1] is True
    assert settle(state, "A", fence=state.fence, handled=["m1"])[1] == Freed(remaining=0)


# --- evidence


def test_repeated_settle_finds_its_own_effect() -> None:
    """R8: what the last tenure left says how it ended."""
    freed, first = settle(claimed(), "A", handled=["m1"])
    assert settle(freed, "A", handled=["m1"], repeated=True) == (freed, first)
    assert settle(freed, "A", handled=["m1"], repeated=False) == (freed, first)


def test_repeated_settle_finds_its_successor() -> None:
    """R8: while that still owns the key, the answer is the first one's."""
    moved, first = settle(routed(claimed(), "B", 2), "A", handled=["m1"], next_owner="A2")
    assert settle(moved, "A", handled=["m1"], next_owner="A2", repeated=True) == (moved, first)
    assert settle(moved, "A", handled=["m1"], next_owner="other")[1] == "lost"


def test_repeated_settle_finds_the_traces_of_its_messages() -> None:
    """R9: after others have owned the key, a trace with the run's own fence is evidence enough."""
    state = claimed()
    fence = state.fence
    state, _ = settle(state, "A", handled=["m1"])
    state = claimed(state, "B", 2)
    assert settle(state, "A", handled=["m1"], fence=fence, repeated=True)[1] == Freed(remaining=1)


def test_first_settle_that_finds_another_owner_has_lost() -> None:
    """R9: it never took effect, whatever traces there are."""
    state = claimed()
    fence = state.fence
    state, _ = settle(state, "A", handled=["m1"])
    state = claimed(state, "B", 2)
    assert settle(state, "A", handled=["m1"], fence=fence)[1] == "lost"


def test_repeated_settle_without_evidence_does_not_know() -> None:
    """R9: neither lost nor settled: the first try may have taken effect and been forgotten."""
    state = claimed(claimed(), "B", 2, now=NOW + TTL_MS)
    assert settle(state, "A", NOW + TTL_MS, handled=["m1"], fence=1, repeated=True) == (state, "unknown")
    assert settle(state, "A", NOW + TTL_MS, handled=["m1"], fence=1) == (state, "lost")


def test_message_that_was_cancelled_is_no_evidence() -> None:
    """R9, M19: an operator has cancelled it in the tenure of the run that does not know whether it has settled."""
    state, _ = rules.cancel(routed(claimed(), "B", 2), NOW, "m2", POLICY.window_ms)
    fence = state.fence
    state = claimed(state, "C", 3, now=NOW + TTL_MS)
    assert settle(state, "A", NOW + TTL_MS, handled=["m2"], fence=fence, repeated=True)[1] == "unknown"


def test_trace_of_another_run_is_no_evidence() -> None:
    """R9: the same message, settled by somebody else."""
    first = claimed()
    later = NOW + TTL_MS + POLICY.pause_ms(1)
    state = claimed(first, "B", None, now=later)
    state, _ = settle(state, "B", later, handled=["m1"])
    state = claimed(state, "C", 2, now=later)
    answer = settle(state, "A", later, handled=["m1"], fence=first.fence, repeated=True)[1]
    assert answer == "unknown"


def test_repeated_transfer_finds_its_own_effect() -> None:
    """R6, R8: as long as the successor owns the key by that very grant."""
    state, _ = rules.transfer(claimed(), NOW, "A", "B", TTL_MS)
    assert rules.transfer(state, NOW, "A", "B", TTL_MS) == (state, True)
    assert rules.transfer(state, NOW, "A", "B", TTL_MS, repeated=True) == (state, True)
    assert rules.transfer(state, NOW, "A", "C", TTL_MS) == (state, False)


@pytest.mark.parametrize("after_ms", [0, TTL_MS])
def test_repeated_transfer_without_evidence_does_not_know(after_ms: int) -> None:
    """R9: the successor has gone on, or has expired: False would be a guess."""
    state, _ = rules.transfer(claimed(), NOW, "A", "B", TTL_MS)
    if after_ms == 0:
        state, _ = rules.transfer(state, NOW, "B", "C", TTL_MS)
    assert rules.transfer(state, NOW + after_ms, "A", "B", TTL_MS, repeated=True) == (state, "unknown")
    assert rules.transfer(state, NOW + after_ms, "A", "B", TTL_MS) == (state, False)


def test_evidence_is_of_the_last_tenure_only() -> None:
    """R8: a new grant forgets how the one before ended."""
    freed, _ = settle(claimed(), "A", handled=["m1"])
    assert freed.tenure_end == TenureEnd(how="settled", owner="A", successor=None, fence=NOW * 1_000)
    assert rules.acquire(freed, NOW, "B", TTL_MS)[0].tenure_end is None


# --- traces


def test_traces_are_bounded_by_number_and_outcome() -> None:
    """M5: the last 256 of each, so that many failures do not push out what was handled."""
    state = KeyState()
    for number in range(300):
        state = claimed(state, f"A{number}", number)
        if number % 2:
            state, _ = settle(state, f"A{number}", handled=[f"m{number}"])
        else:
            state, _ = settle(state, f"A{number}", dropped=[Failure(id=f"m{number}", error="e")])
    assert Counter(each.outcome for each in state.ended) == {"handled": 150, "failed": 150}
    for number in range(300, 900):
        state = claimed(state, f"A{number}", number)
        state, _ = settle(state, f"A{number}", handled=[f"m{number}"])
    assert Counter(each.outcome for each in state.ended) == {"handled": 256, "failed": 150}
    assert state.ended[-1].id == "m899"


def test_traces_are_bounded_by_time() -> None:
    """M5: gone at the next settle after the window; without effect from its end on."""
    state, _ = settle(claimed(), "A", handled=["m1"])
    later = NOW + POLICY.window_ms
    assert rules.state_of(state, "m1", later - 1, POLICY.window_ms) == "handled"
    assert rules.state_of(state, "m1", later, POLICY.window_ms) is None
    state = claimed(state, "B", 2, now=later)
    assert [each.id for each in state.ended] == ["m1"]
    state, _ = settle(state, "B", later, handled=["m2"])
    assert [each.id for each in state.ended] == ["m2"]


def test_late_copy_of_a_failed_claim_is_known_within_the_window() -> None:
    """M3, M5: and no longer, whether or not its trace is still kept."""
    state, _ = settle(claimed(), "A", dropped=[Failure(id="m1", error="e")])
    last = NOW + POLICY.window_ms - 1
    assert rules.claim(state, last, "A", TTL_MS, stored(1), policy=POLICY) == (state, rules.Nothing())
    assert isinstance(rules.claim(state, last + 1, "A", TTL_MS, stored(1), policy=POLICY)[1], Granted)
    assert isinstance(rules.claim(state, NOW, "B", TTL_MS, stored(1, by="B"), policy=POLICY)[1], Granted)


def test_latest_trace_of_an_id_counts() -> None:
    """M5: a dead letter that was put back after its id had been handled anew, and died again, is dead."""
    once = Policy(max_attempts=1)
    error = [Failure(id="m1", error="e")]
    state, _ = settle(claimed(), "A", failed=error, policy=once)
    later = NOW + POLICY.window_ms
    state, _ = settle(claimed(state, "B", 1, now=later), "B", later, handled=["m1"])
    state, put_back = rules.redrive(state, later, "m1")
    assert put_back
    state, _ = settle(claimed(state, "C", None, now=later), "C", later, failed=error, policy=once)
    assert [each.outcome for each in state.ended] == ["handled", "dead"]
    assert rules.state_of(state, "m1", later, POLICY.window_ms) == "dead"
    answer = rules.claim(state, later, "D", TTL_MS, stored(1, by="D"), policy=POLICY)[1]
    assert answer == Known(state="dead", owner=None)


def test_handled_message_is_routed_to_the_claim_that_brought_it() -> None:
    """R8: "if a try took effect, the answer says so": its own lost answer was Routed."""
    state = routed(claimed(), "B", 2)
    state, _ = settle(state, "A", handled=["m1", "m2"])
    assert rules.claim(state, NOW, "B", TTL_MS, stored(2, by="B"), policy=POLICY)[1] == rules.Accepted(
        owner=None, stored=0
    )
    assert rules.claim(state, NOW, "C", TTL_MS, stored(2, by="C"), policy=POLICY)[1] == Known(
        state="handled", owner=None
    )


# --- dead letters


def test_redriven_letter_forgets_that_it_died_and_nothing_else() -> None:
    """M5: other traces stay, of this id too."""
    once = Policy(max_attempts=1)
    state, _ = settle(claimed(), "A", failed=[Failure(id="m1", error="e")], policy=once)
    state, _ = settle(claimed(state, "B", 2), "B", handled=["m2"])
    state, put_back = rules.redrive(state, NOW, "m1")
    assert put_back
    assert [(each.id, each.outcome) for each in state.ended] == [("m2", "handled")]
    assert [(each.id, each.attempts, each.promised, each.error) for each in state.mail] == [("m1", 0, True, "e")]
    assert state.dead == ()


def test_redrive_does_not_store_an_id_twice() -> None:
    """M5: while the id is in the mailbox the letter stays where it is."""
    once = Policy(max_attempts=1)
    state, _ = settle(claimed(), "A", failed=[Failure(id="m1", error="e")], policy=once)
    state = claimed(state, "B", 1, now=NOW + POLICY.window_ms)
    assert rules.redrive(state, NOW, "m1") == (state, False)


def test_dead_letters_are_kept_for_14_days() -> None:
    """M6: they are listed until then, and the next one takes the older along."""
    once = Policy(max_attempts=1)
    first, _ = settle(claimed(), "A", failed=[Failure(id="m1", error="e")], policy=once)
    later = NOW + 14 * 86_400_000
    assert [letter.id for letter in rules.letters(first, later - 1)] == ["m1"]
    assert rules.letters(first, later) == ()
    second, _ = settle(
        claimed(first, "B", 2, now=later), "B", now=later, failed=[Failure(id="m2", error="e")], policy=once
    )
    assert [letter.id for letter in second.dead] == ["m2"]


def test_buried_is_what_died_in_the_step() -> None:
    """M6: and not what was dead before."""
    once = Policy(max_attempts=1)
    first, _ = settle(claimed(), "A", failed=[Failure(id="m1", error="e")], policy=once)
    assert [each.id for each in rules.dead_lettered(claimed(), first)] == ["m1"]
    second, _ = settle(claimed(first, "B", 2), "B", failed=[Failure(id="m2", error="e")], policy=once)
    assert [each.id for each in rules.dead_lettered(first, second)] == ["m2"]
    assert rules.dead_lettered(second, second) == ()


# --- whatever happens


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call, and what it made of the state."""

    before: KeyState
    after: KeyState
    answer: Any
    now: int
    owner: str
    policy: Policy
    ticket: str | None = None
    settles_for: str | None = None
    ends: dict[str, list[Any]] = field(default_factory=dict)

    def check(self) -> None:
        """What holds from one state to the next, whoever calls whatever."""
        before, after = self.before, self.after
        # R7: fences grow, and a new owner has a new one.
        assert after.fence >= before.fence
        if after.owner not in {before.owner, None}:
            assert after.fence > before.fence
        # R1, R3: a key leaves its live owner by that owner's own call, or as a ticket that is redeemed.
        if rules.owned(before, self.now) and after.owner != before.owner:
            assert before.owner in {self.owner, self.ticket}
        # R4: within a tenure the expiry never comes forward.
        if after.owner is not None and after.fence == before.fence:
            assert after.expires_ms >= before.expires_ms
        # R5, R9: who is told that nothing was done has done nothing.
        if self.answer in ("lost", "unknown", "full", False) or isinstance(self.answer, Held):
            assert after == before
        # M2: with a successor, a settle frees the key only when nothing is due.
        if self.settles_for and isinstance(self.answer, Freed) and before.owner == self.owner and after != before:
            assert rules.due(after, self.now) == []
        self.check_mail()

    def check_mail(self) -> None:
        """What becomes of messages."""
        ids = [each.id for each in self.after.mail]
        kept = {each.id: each for each in self.after.mail}
        dead = {each.id for each in rules.dead_lettered(self.before, self.after)}
        dropped = {each.id for each in self.ends.get("dropped", ())}
        assert len(ids) == len(kept)  # M5: no id is stored twice
        for old in self.before.mail:
            new = kept.get(old.id)
            if new is None:  # M3: it leaves when handled or dead, or while nobody was promised it
                handled = old.id in self.ends.get("handled", ())
                assert handled or old.id in dead or (old.id in dropped and not old.promised)
                continue
            assert new.body == old.body
            assert new.promised >= old.promised  # M3: the mark is never taken back
            assert new.attempts >= old.attempts - (old.id in self.ends.get("deferred", ()))  # M6
        # M4: what stays keeps its order, and what is new comes last; save for what died with its run (M6).
        died = {
            old.id
            for old in self.before.mail
            if not self.after.block
            and old.delivered_fence
            and old.id in kept
            and kept[old.id].delivered_fence != old.delivered_fence
        }
        stayed = [each.id for each in self.before.mail if each.id in kept and each.id not in died]
        assert [each for each in ids if each not in died][: len(stayed)] == stayed
        assert {each.delivered_fence for each in self.after.mail} <= {0, self.after.fence}
        # M6: nothing is given to a run beyond its last attempt.
        assert all(each.attempts <= self.policy.max_attempts for each in rules.given(self.after))


@given(seed=st.integers(min_value=0, max_value=2**32))
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_and_nothing_is_taken_back(seed: int) -> None:
    """R1, R4, R7, M2 to M6: over any calls, by anybody, at any time."""
    chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
    policy = Policy(
        max_pending=chance.choice((2, 100)),
        max_attempts=chance.choice((1, 3)),
        on_error=chance.choice(("skip", "block")),
    )
    skew_ms = chance.choice((0, 1_000))
    state, now, owners = KeyState(), NOW, ["O"]
    for number in range(40):
        now += chance.choice((0, 0, 0, 1, 1_000, 10_000, 30_000, 31_000, 900_000))
        owner = chance.choice((state.owner or "O", chance.choice(owners[-4:])))
        new = f"N{number}"
        more: dict[str, Any] = {}
        after: KeyState
        answer: Any = None
        match chance.randrange(9):
            case 0:
                owner = chance.choice((owner, new))
                after, answer = rules.acquire(state, now, owner, TTL_MS, skew_ms)
            case 1:
                after, answer = rules.renew(state, now, owner, chance.choice((1, TTL_MS)))
            case 2:
                after = rules.release(state, now, owner)
            case 3:
                after, answer = rules.transfer(state, now, owner, new, TTL_MS, repeated=chance.random() < 0.3)
            case 4:
                after, answer = rules.take(state, now, owner, TTL_MS)
            case 5 | 6:
                owner, more["ticket"] = chance.choice((owner, new)), chance.choice((None, state.owner))
                after, answer = rules.claim(
                    state,
                    now,
                    owner,
                    TTL_MS,
                    stored(chance.randrange(6), by=owner, now=now) if chance.random() < 0.8 else None,
                    policy=policy,
                    ticket=more["ticket"],
                    as_ticket=chance.random() < 0.2,
                    route=chance.random() < 0.9,
                    skew_ms=skew_ms,
                )
            case _:
                more["ends"] = ends = some_ends(chance)
                more["settles_for"] = successor = chance.choice((None, new))
                ticket = chance.random() < 0.3
                after, answer = settle(
                    state,
                    owner,
                    now,
                    handled=ends["handled"],
                    failed=ends["failed"],
                    dropped=ends["dropped"],
                    deferred=ends["deferred"],
                    policy=policy,
                    next_owner=None if ticket else successor,
                    ticket=successor if ticket else None,
                    repeated=chance.random() < 0.3,
                )
        Step(before=state, after=after, answer=answer, now=now, owner=owner, policy=policy, **more).check()
        state = after
        owners += [owner, new]


def some_ends(chance: random.Random) -> dict[str, list[Any]]:
    """What a settle may say of some messages, there or not."""
    ends: dict[str, list[Any]] = {"handled": [], "failed": [], "dropped": [], "deferred": []}
    for number in chance.sample(range(6), chance.randrange(5)):
        end = chance.choice(list(ends))
        ends[end].append(f"m{number}" if end in {"handled", "deferred"} else Failure(id=f"m{number}", error="e"))
    return ends


def test_state_is_frozen() -> None:
    """A rule returns a new state: whoever holds the old one sees no change."""
    state = claimed()
    assert state != settle(state, "A", handled=["m1"])[0]
    assert [each.id for each in state.mail] == ["m1"]
    with pytest.raises(AttributeError):
        state.owner = "B"  # type: ignore[misc]
    assert replace(state, ended=(Ended(id="x", outcome="dead", claimed_by="A", fence=1, at_ms=NOW),)).ended


@pytest.mark.parametrize("seed", range(20))
def test_newest_traces_of_each_outcome_are_kept_in_order(seed: int) -> None:
    """M5: what a count of each outcome from the end would keep, however many are too many."""
    chance = random.Random(seed)  # noqa: S311 - the same traces each time
    outcomes = chance.choices(["handled", "dead", "failed"], [6, 1, chance.choice((0, 3))], k=chance.randint(0, 900))
    traces = tuple(
        rules.Ended(id=f"m{number}", outcome=outcome, claimed_by="A", fence=number, at_ms=number)  # type: ignore[arg-type]
        for number, outcome in enumerate(outcomes)
    )
    expected = [each for each in traces if outcomes[each.fence :].count(each.outcome) <= rules.REMEMBERED]
    state = replace(rules.KeyState(), ended=traces)
    assert list(rules._forget(state, 0, 1_000_000).ended) == expected  # noqa: SLF001 - no answer shows it
    gone = chance.randint(0, 900)
    assert rules._forget(state, 1_000 + gone, 1_000).ended == tuple(  # noqa: SLF001 - as above
        each for each in expected if each.at_ms > gone
    )


def test_message_is_due_at_its_moment() -> None:
    """M14: a burst began with it (M15), and a later one replaces it (M21), as soon as that has come."""
    clock = FakeClock()
    store, began_ms, latest = MemoryProvider(clock=clock), clock.now().wall_ms, Policy(keep="latest")
    for key in ("burst", "latest"):
        store.claim(key, "sender", 30_000, Message(id="m1", event={}), as_ticket=True, after_ms=1_000)
    store.acquire_lease("latest", "owner", 30_000)
    clock.advance(1_000)
    store.claim("burst", "B", 30_000, Message(id="m2", event={}), debounce=Debounce(quiet_ms=500, max_ms=1_200))
    assert store.show("burst").quiet_until_ms == began_ms + 1_200
    answer = store.claim("latest", "B", 30_000, Message(id="m2", event={}), policy=latest)
    assert isinstance(answer, Routed)
    assert answer.superseded == ("m1",)
