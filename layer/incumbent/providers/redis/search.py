"""A search through all names of a store, one primary after another; it goes on where one of them gives no answer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis.crc import key_slot

from incumbent.errors import IncumbentError, LeaseUnavailable, ListIncomplete, StoredFormatUnknown
from incumbent.frozen import dataclass
from incumbent.providers.redis.answers import ScriptAnswer
from incumbent.providers.redis.explanations import is_migrating, is_odd_record
from incumbent.providers.redis.names import Names
from incumbent.providers.redis.server import Server


@dataclass(slots=True)
class ScanPlace:
    """Where a search of all keys has stopped: at which primary, with which cursor."""

    node: str = ""
    cursor: int = 0


class Search:
    """The search of one listing: the keys that it finds, and the errors of what it has to leave out.

    A primary that does not answer is asked nothing more, and neither is a key of a slot that is being moved.
    """

    def __init__(self, server: Server, names: Names, *, call: str, place: ScanPlace | None = None) -> None:
        self.unread: list[IncumbentError] = []
        self._server = server
        self._names = names
        self._call = call
        self._place = place or ScanPlace()
        self._nodes: list[tuple[str, Any]] = []
        self._at: str  # the node whose names are being read, once a search has begun
        self._silent: dict[str, LeaseUnavailable] = {}  # by node
        self._moving: dict[int, LeaseUnavailable] = {}  # by slot

    def keys(self, companion: str) -> Iterator[str]:
        """Find the keys that have this companion, each once; SCAN never blocks the server for long.

        A key that comes or goes meanwhile may or may not be found. Raises ``LeaseUnavailable`` where no node answers.
        """
        for name in self._search(self._names.pattern(companion)):
            key = self._names.key_of(name, companion)
            if key is not None and not (self._moving and self._slot(key) in self._moving):
                yield key

    def read(self, key: str, ask: Callable[[], ScriptAnswer]) -> ScriptAnswer | None:
        """Ask for one of the keys. Return ``None``, and note the error, if there is no answer that can be read."""
        try:
            return ask()
        except StoredFormatUnknown as error:
            self.unread.append(error)
        except LeaseUnavailable as error:
            if is_odd_record(error.__cause__):
                self.unread.append(error)
            elif is_migrating(error.__cause__):
                self._moving[self._slot(key)] = error
            else:
                self._silent[self._at] = error
        return None

    def end(self) -> None:
        """Raise what the listing had to leave out.

        That is ``ListIncomplete`` for parts of the store, ``StoredFormatUnknown`` for records only, and
        ``LeaseUnavailable`` if no node was asked to its end.
        """
        if self._silent and len(self._silent) == len(self._nodes):
            raise next(iter(self._silent.values()))
        parts = [
            *(_missing(f"{self._call} of primary {node}", error) for node, error in self._silent.items()),
            *(_missing(f"{self._call} of slot {slot}", error) for slot, error in self._moving.items()),
        ]
        if parts:
            raise ListIncomplete.of([*parts, *self.unread]) from parts[0]
        if self.unread:
            raise StoredFormatUnknown.of(self.unread)

    def _search(self, pattern: str) -> Iterator[bytes]:
        place = self._place
        self._nodes = self._nodes or sorted(self._server.nodes(call=self._call, key=pattern).items())
        nodes = self._nodes
        begins = next((number for number, (name, _) in enumerate(nodes) if name >= place.node), 0)
        rounds = [*range(begins, len(nodes)), *range(begins)]
        if place.cursor:
            rounds.append(begins)  # for what lies before the place
        seen: set[bytes] = set()
        for number in rounds:
            self._at, node = nodes[number]
            cursor, place.cursor = place.cursor, 0
            while self._at not in self._silent:
                cursor, names = self._page(node, pattern, cursor)
                for name in names:
                    if name not in seen:
                        seen.add(name)
                        yield name
                    if self._at in self._silent:
                        break
                ends = not cursor or self._at in self._silent
                if self._server.search_is_over():
                    place.node, place.cursor = (nodes[(number + 1) % len(nodes)][0], 0) if ends else (self._at, cursor)
                    return
                if ends:
                    break
        place.node = ""

    def _page(self, node: Any, pattern: str, cursor: int) -> tuple[int, Sequence[bytes]]:
        try:
            return self._server.scan(node, pattern, cursor, call=self._call)
        except LeaseUnavailable as error:
            self._silent[self._at] = error
            return 0, ()

    def _slot(self, key: str) -> int:
        return int(key_slot(self._names.of(key, 1)[0]))


def _missing(what: str, error: LeaseUnavailable) -> LeaseUnavailable:
    missing = LeaseUnavailable(f"{what}: not all keys were asked for ({error})", key=error.key)
    missing.__cause__ = error
    return missing
