"""Traces: what a key remembers of the messages that left it, found by name and not by a look through all (M5)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

from incumbent.frozen import dataclass

REMEMBERED = 256  # M5: traces kept per key and kind, however busy it is

Outcome: TypeAlias = Literal["handled", "dead", "failed", "stopped", "cancelled", "superseded"]

# What is remembered together: dead, failed, and all else that left for good (M5).
KINDS: Mapping[Outcome, Outcome] = {
    "handled": "handled",
    "dead": "dead",
    "failed": "failed",
    "stopped": "handled",
    "cancelled": "handled",
    "superseded": "handled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The trace of a message that left: evidence of its settle (R9), by which its id is a duplicate (M5).

    ``result`` is the JSON of what its run returned, if that is kept, and empty if it was too large to keep (M17).
    """

    id: str
    outcome: Outcome
    claimed_by: str
    fence: int
    at_ms: int
    result: str | None = None


class _Log:
    """The traces of one kind, each with its number in the key and the place of the one before of the same name.

    Failed ones are found by their claim, all others by their id. It only grows, so several `Traces` may share it.
    """

    __slots__ = ("entries", "places")

    def __init__(self) -> None:
        self.entries: list[tuple[int, Ended, int]] = []
        self.places: dict[str, int] = {}

    def append(self, number: int, trace: Ended) -> None:
        name = trace.claimed_by if trace.outcome == "failed" else trace.id
        before = self.places.get(name, -1)
        self.places[name] = len(self.entries)
        self.entries.append((number, trace, before))


_Part: TypeAlias = tuple[_Log, int, int]  # a log, and which of its places count: from the first, before the second


class Traces(Sequence[Ended]):
    """Traces, the oldest first; none of its methods changes it.

    What `plus` and `forgotten` return shares the logs of each kind and sees other parts of them, so that neither
    copies. Only a second `plus` of one value copies, and now and then one, since what was forgotten stays in a log.
    Two threads must not add to the same traces at once.
    """

    __slots__ = ("_next", "_parts")

    def __init__(self, traces: Iterable[Ended] = ()) -> None:
        """Take over traces, the oldest first."""
        logs: dict[Outcome, _Log] = {}
        self._next = 0
        for trace in traces:
            kind = KINDS[trace.outcome]
            if kind not in logs:
                logs[kind] = _Log()
            logs[kind].append(self._next, trace)
            self._next += 1
        self._parts: dict[Outcome, _Part] = {kind: (log, 0, len(log.entries)) for kind, log in logs.items()}

    @staticmethod
    def of(traces: Sequence[Ended]) -> "Traces":
        """Return the same traces in this form."""
        return traces if type(traces) is Traces else Traces(traces)

    def plus(self, traces: Iterable[Ended]) -> "Traces":
        """Return these traces and later ones."""
        parts, number = self._parts.copy(), self._next
        for trace in traces:
            kind = KINDS[trace.outcome]
            log, first, end = parts[kind] if kind in parts else (_Log(), 0, 0)
            if end < len(log.entries) or first > REMEMBERED:
                log, first, end = _copied(log, first, end)
            log.append(number, trace)
            parts[kind] = log, first, end + 1
            number += 1
        return _traces(parts, number)

    def forgotten(self, now_ms: int, window_ms: int) -> "Traces":
        """Return what is left without the oldest: those older than the window, and all but the last 256 of each kind.

        This looks at those that it leaves out, and at the oldest one that stays.
        """
        left: dict[Outcome, _Part] = {}
        for kind, (log, first, end) in self._parts.items():
            place = max(first, end - REMEMBERED)
            while place < end and now_ms - log.entries[place][1].at_ms >= window_ms:
                place += 1
            if place > first:
                left[kind] = (log, place, end)
        return _traces({**self._parts, **left}, self._next) if left else self

    def latest(self, message_id: str, now_ms: int, window_ms: int) -> Ended | None:
        """Return the latest trace of an id that left for good, within the window.

        The latest counts: a dead letter that was put back may end again.
        """
        found = self._found("handled", message_id, now_ms, window_ms)
        if "dead" in self._parts:
            dead = self._found("dead", message_id, now_ms, window_ms)
            if found is None or (dead is not None and dead[0] > found[0]):
                found = dead
        return None if found is None else found[1]

    def has_failed(self, claim: str, now_ms: int, window_ms: int) -> bool:
        """Return whether a claim's own message failed within the window, and went back to its source (M3)."""
        return "failed" in self._parts and self._found("failed", claim, now_ms, window_ms) is not None

    def _found(self, kind: Outcome, name: str, now_ms: int, window_ms: int) -> tuple[int, Ended] | None:
        if kind not in self._parts:
            return None
        log, first, end = self._parts[kind]
        place = log.places.get(name, -1)
        while place >= first:
            number, trace, before = log.entries[place]
            if place < end and now_ms - trace.at_ms < window_ms:
                return number, trace
            place = before
        return None

    def _all(self) -> list[Ended]:
        parts = [log.entries[first:end] for log, first, end in self._parts.values()]
        entries = parts[0] if len(parts) == 1 else sorted(chain(*parts))  # by their numbers, no two of which are equal
        return [trace for _, trace, _ in entries]

    def __len__(self) -> int:
        return sum(end - first for _, first, end in self._parts.values())

    def __iter__(self) -> Iterator[Ended]:
        return iter(self._all())

    def __reversed__(self) -> Iterator[Ended]:
        return reversed(self._all())

    def __getitem__(self, place: Any) -> Any:
        """Return one trace, or a tuple of them for a slice."""
        return tuple(self._all())[place]

    def __eq__(self, other: object) -> bool:
        """Return whether the traces are the same, also those in a tuple."""
        if self is other:
            return True
        return tuple(self) == tuple(other) if isinstance(other, Traces | tuple) else NotImplemented

    def __hash__(self) -> int:
        """Return the hash of these traces in a tuple."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return the traces."""
        return f"Traces({self._all()!r})"

    def __reduce__(self) -> tuple[type["Traces"], tuple[list[Ended]]]:
        """Be copied, or pickled, without what is forgotten."""
        return Traces, (self._all(),)


def _traces(parts: dict[Outcome, _Part], following: int) -> Traces:
    made = Traces.__new__(Traces)
    made._parts, made._next = parts, following  # noqa: SLF001 - its own module
    return made


def _copied(log: _Log, first: int, end: int) -> _Part:
    copy = _Log()
    for number, trace, _ in log.entries[first:end]:
        copy.append(number, trace)
    return copy, 0, end - first
