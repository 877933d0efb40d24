"""Brings operations together in every order of their requests, and says where a rule does not hold.

A schedule is a list of turns. Each operation needs one turn to come to its first request and one for each request.
``pairs`` tries all schedules of two operations that switch between them a bounded number of times; ``triples`` draws
schedules of two or three, in which replies may get lost.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from incumbent.errors import LeaseUnavailable
from tests.interleavings.invariants import History, Violation
from tests.interleavings.operations import EXPECTED, OPERATIONS, Caller, Operation
from tests.interleavings.states import STATES, State
from tests.interleavings.stores import Store
from tests.interleavings.turns import Turns

MAX_TURNS = 200


@dataclass(frozen=True, slots=True)
class Turn:
    """It is an actor's turn, and the reply to its request may get lost."""

    actor: int
    lose_reply: bool = False

    def __str__(self) -> str:
        return "abc"[self.actor] + ("!" if self.lose_reply else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Operations that meet in a state."""

    state: State
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        names = (f"{letter}: {operation.name}" for letter, operation in zip("abc", self.operations, strict=False))
        return f"{self.state.name} | {' | '.join(names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A rule that does not hold, and the turns that show it: whose each was, and ``!`` where a reply was lost."""

    meeting: Meeting
    turns: tuple[Turn, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.meeting} | {''.join(map(str, self.turns))}: {self.why}"


@dataclass(slots=True, kw_only=True)
class Told:
    """What a schedule was like: its turns, and with each who else could have had it."""

    turns: list[Turn] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)
    why: str | None = None


# Says whose turn it is, of those who are not over, after the turns so far.
Choose = Callable[[list[int], Sequence[Turn]], Turn]


class Stage:
    """Carries out schedules on one kind of store."""

    def __init__(self, make: Callable[[Turns], Store], turns: Turns) -> None:
        self._make = make
        self._turns = turns
        self._prepared: dict[str, tuple[Store, Caller]] = {}

    def carry_out(self, meeting: Meeting, choose: Choose) -> Told:
        """One schedule, from the state to the end of all operations and of what they leave behind."""
        told = Told()
        store, first = self._prepare(meeting.state)
        callers = [
            self._caller(store, first, operation, name)
            for operation, name in zip(meeting.operations, "abc", strict=False)
        ]
        history, acting = first.history, first

        def requested() -> None:
            try:
                history.request(acting.intent, store.picture())
            except Violation as violation:
                told.why = told.why or str(violation)

        store.requested = requested
        actors = [
            self._turns.begin(caller.name, partial(operation.act, caller))
            for operation, caller in zip(meeting.operations, callers, strict=True)
        ]
        while going := [number for number, actor in enumerate(actors) if not actor.over]:
            turn = Turn(going[0])  # to the end, if a rule is broken
            if told.why is None:
                turn = choose(going, told.turns)
                told.turns.append(turn)
                told.others.append([number for number in going if number != turn.actor])
            acting = callers[turn.actor]
            history.lost_replies += turn.lose_reply
            self._turns.turn(actors[turn.actor], lose_reply=turn.lose_reply and store.loses_replies)
            told.why = told.why or _unexpected(actors[turn.actor].error, history)
        try:
            history.end()
        except Violation as violation:
            told.why = told.why or str(violation)
        return told

    def _prepare(self, state: State) -> tuple[Store, Caller]:
        """A store in a state, and who has brought it there. Where a store can be copied, that is done once."""
        store, first = self._prepared.get(state.name) or self._bring_about(state)
        copy = store.copy()
        if copy is None:
            return store, first
        self._prepared[state.name] = store, first
        again = replace(first, provider=copy.provider(first.provider), history=first.history.copy())
        return copy, replace(again, pass_time=copy.pass_time)

    def _bring_about(self, state: State) -> tuple[Store, Caller]:
        store = self._make(self._turns)
        history = History(policy=state.policy, skew_ms=store.skew_ms)
        first = Caller(
            provider=store.provider(), history=history, policy=state.policy, name="first", pass_time=store.pass_time
        )
        store.requested = lambda: history.request(first.intent, store.picture())
        state.make(first)
        return store, first

    @staticmethod
    def _caller(store: Store, first: Caller, operation: Operation, name: str) -> Caller:
        """Who carries out an operation: the owner with its provider, or somebody who has heard of nothing."""
        if operation.by_owner:
            return replace(first, name=name)
        return replace(first, name=name, provider=store.provider(), owner="", given=(), fence=None)


def _unexpected(error: BaseException | None, history: History) -> str | None:
    """An error that no caller should see.

    Only where a reply was lost may it be that nothing can be said (R9), or where a body was wanted that another call
    of the same owner has removed.
    """
    if error is None or isinstance(error, EXPECTED):
        return None
    if isinstance(error, LeaseUnavailable) and (history.lost_replies or "settled meanwhile" in str(error)):
        return None
    return f"{type(error).__name__}: {error}"


def meetings(count: int, *, states: Sequence[State] = STATES, apt: bool = True) -> Iterator[Meeting]:
    """All operations that may meet, ``count`` at a time; ``apt``: only where each has something to do."""
    for state in states:
        fit = [each for each in OPERATIONS if not apt or not each.needs or each.needs in state.has]
        for operations in itertools.combinations_with_replacement(fit, count):
            yield Meeting(state=state, operations=operations)


def exhaust(stage: Stage, meeting: Meeting, *, switches: int) -> Iterator[Told]:
    """All schedules of a meeting with at most so many switches away from an operation that is not over."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        prefix = pending.pop()

        def choose(going: list[int], turns: Sequence[Turn], prefix: tuple[int, ...] = prefix) -> Turn:
            if len(turns) < len(prefix) and prefix[len(turns)] in going:
                return Turn(prefix[len(turns)])
            last = turns[-1].actor if turns else going[0]
            return Turn(last if last in going else going[0])

        told = stage.carry_out(meeting, choose)
        yield told
        if told.why is not None:
            return
        chosen = [turn.actor for turn in told.turns]
        for at in range(len(prefix), len(chosen)):
            for other in told.others[at]:
                following = (*chosen[:at], other)
                if _switches(following, told.others) <= switches:
                    pending.append(following)


def _switches(actors: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """How often it was another's turn although the one before was not over."""
    return sum(
        now != before and (before in others[at]) for at, (before, now) in enumerate(itertools.pairwise(actors), 1)
    )


def pairs(stage: Stage, chosen: Iterator[Meeting], *, switches: int) -> Iterator[tuple[int, Found | None]]:
    """Every schedule of every meeting: how many they were, and the first that breaks a rule."""
    for meeting in chosen:
        count = 0
        found = None
        for told in exhaust(stage, meeting, switches=switches):
            count += 1
            if told.why is not None:
                found = Found(meeting=meeting, turns=tuple(told.turns), why=told.why)
        yield count, found


def drawn(stage: Stage, seed: int, *, apt: bool = True) -> Found | None:
    """One schedule of two or three operations, drawn by a seed; in some of them a reply gets lost."""
    chance = random.Random(seed)  # noqa: S311 - chance that can be had again is the point
    state = chance.choice(STATES)
    fit = [each for each in OPERATIONS if not apt or not each.needs or each.needs in state.has]
    operations = tuple(chance.choice(fit) for _ in range(chance.choice((2, 3, 3))))
    meeting = Meeting(state=state, operations=operations)
    stays, loses = chance.choice((0.3, 0.6, 0.85)), chance.choice((0.0, 0.0, 0.1, 0.3))

    def choose(going: list[int], turns: Sequence[Turn]) -> Turn:
        last = turns[-1].actor if turns else -1
        actor = last if last in going and chance.random() < stays else chance.choice(going)
        lost = any(turn.lose_reply for turn in turns)
        return Turn(actor, lose_reply=not lost and chance.random() < loses)

    told = stage.carry_out(meeting, choose)
    return None if told.why is None else Found(meeting=meeting, turns=tuple(told.turns), why=told.why)
