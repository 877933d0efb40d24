"""What scenarios are drafted from: arrivals, acts, handlers, and the words for what may go wrong."""

import random
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

TTL_MS = 3_000

SourceKind: TypeAlias = Literal["http", "asynchronous", "record", "sent"]
REPLIES = ("mute", "slow", "lost")
STALLS = ("late", "twice", "pause before", "pause after", "pause")
DEATHS = ("crash before", "crash after", "crash")
WAKES = ("wake fails", "wake unsure", "wake twice", "wake late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A source brings a message, and again when it is told of an error, so many times."""

    at_ms: int
    message_id: str
    kind: SourceKind = "asynchronous"
    again: int = 2
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What an operator does. ``looks``: at the key first, and then it stops the tenure that it has seen.

    ``opening`` is what befalls its first requests, one by one.
    """

    at_ms: int
    call: Literal["stop", "hold", "resume", "cancel", "find", "show"]
    for_ms: int = 0
    looks: bool = False
    message_id: str = ""
    opening: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What handlers do: so many steps of so long, and how likely each of the rest is."""

    steps: tuple[int, int] = (0, 3)
    step_ms: tuple[int, int] = (1, 700)
    raises: float = 0.0
    raises_at_first: frozenset[str] = frozenset()
    poison: frozenset[str] = frozenset()
    defers: float = 0.0
    takes: float = 0.0
    renews: float = 0.0
    looks: float = 0.5
    stops: float = 0.0
    cools: float = 0.0
    notes: float = 0.0


Draft: TypeAlias = dict[str, Any]


def arrivals_of(chance: random.Random, ids: str, within_ms: int, **more: Any) -> tuple[Arrival, ...]:
    """Arrivals close to one another, the first at once."""
    return tuple(
        Arrival(at_ms=0 if place == 0 else chance.randint(0, within_ms), message_id=each, **more)
        for place, each in enumerate(ids)
    )


def an_opening(chance: random.Random) -> tuple[str | None, ...]:
    """What befalls the first requests of an operator: often a reply that gets lost."""
    return chance.choice(((), (), ("mute",), (None, "mute"), ("lost",), ("late",), (None, "twice")))
