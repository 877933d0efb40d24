"""Whether a history of concurrent calls can be explained by the same calls made one after the other.

The method is Wing and Gong's with the memory of Lowe's and Porcupine's: look for an order of the calls that keeps to
real time (a call that had returned before another began comes first) and in which each call answers as the sequential
specification says. Wherever the same calls have led to the same state before, the search goes no further.

A call whose outcome nobody knows may have taken effect at any moment from its beginning on, or not at all: it is
*optional*, and any answer will do. Where it is known by when it can have taken effect at the latest, ``ended`` says so.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

NEVER = 1 << 60


class Unknown:
    """The answer of a call of which nobody heard."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call: by whom, what, what it answered, and between which two moments it happened.

    Moments are numbers that grow; no two are equal. ``optional`` says that it may never have taken effect.
    """

    client: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: Any = UNKNOWN
    began: int
    ended: int = NEVER
    optional: bool = False

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.arguments.items() if value not in (None, (), False))
        ended = "..." if self.ended == NEVER else str(self.ended)
        maybe = " (perhaps)" if self.optional else ""
        return f"[{self.began:>3} {ended:>3}] {self.client}: {self.name}({said}) -> {self.answer}{maybe}"


class Specification(Protocol[S]):
    """What the calls do when they are made one after the other."""

    def start(self) -> S:
        """The state before the first call."""
        ...

    def after(self, state: S, operation: Operation) -> Iterable[S]:
        """The states that a call may lead to from this one with the answer that it gave; none if it cannot have."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Generic[S]):
    """Whether there is such an order; the order, or the longest beginning of one that was found."""

    linearizable: bool
    order: tuple[Operation, ...]
    states: int
    """How many steps were tried."""


class TooLong(RuntimeError):
    """The search was given up: this history has too much in it that nobody knows."""


def check(history: Sequence[Operation], specification: Specification[S], *, most_states: int = 500_000) -> Verdict[S]:
    """Look for an order. Raises ``TooLong`` after ``most_states`` steps without a verdict."""
    operations = sorted(history, key=lambda each: each.began)
    wanted = sum(1 << place for place, each in enumerate(operations) if not each.optional)
    seen: set[tuple[int, S]] = set()
    longest: tuple[int, ...] = ()
    states = 0
    # Depth first, without recursion: what was done, the state after it, and which calls may come next.
    path: list[int] = []
    stack = [iter(_next(operations, 0, specification.start(), specification))]
    while stack:
        for place, done, state in stack[-1]:
            states += 1
            if states > most_states:
                raise TooLong(f"no verdict on {len(operations)} calls after {most_states:,} steps")
            if (done, state) in seen:
                continue
            seen.add((done, state))
            path.append(place)
            if len(path) > len(longest):
                longest = tuple(path)
            if done & wanted == wanted:
                return Verdict(linearizable=True, order=tuple(operations[each] for each in path), states=states)
            stack.append(iter(_next(operations, done, state, specification)))
            break
        else:
            stack.pop()
            if path:
                path.pop()
    return Verdict(linearizable=not wanted, order=tuple(operations[each] for each in longest), states=states)


def _next(
    operations: Sequence[Operation], done: int, state: S, specification: Specification[S]
) -> Iterable[tuple[int, int, S]]:
    """The calls that may come next in real time, each with what is done then and with each state that it leads to."""
    for place in _may_follow(operations, done):
        for after in specification.after(state, operations[place]):
            if not operations[place].optional or after != state:  # else it is as if it had never taken effect
                yield place, done | 1 << place, after


def _may_follow(operations: Sequence[Operation], done: int) -> list[int]:
    """What may come next: after all that had returned when it began, and, if it is optional, then or never.

    Those that are known to have taken effect come first.
    """
    left = [place for place in range(len(operations)) if not done >> place & 1]
    latest = max((each.began for place, each in enumerate(operations) if done >> place & 1), default=-1)
    first_return = min((operations[place].ended for place in left if not operations[place].optional), default=NEVER)
    ready = [place for place in left if operations[place].began <= first_return]
    return [
        *(place for place in ready if not operations[place].optional),
        *(place for place in ready if operations[place].optional and operations[place].ended >= latest),
    ]
