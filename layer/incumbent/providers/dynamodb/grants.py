"""Remembers this provider's own grants, each with its fence (R2) and the record as it was last seen."""

import threading
from collections import OrderedDict

from incumbent.providers.dynamodb.item import Item, Record

MOST = 128


class Grants:
    """The latest grants by key and owner, a bounded number of them. A forgotten one costs one more request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], tuple[tuple[int, ...], Item]] = OrderedDict()

    def remember(self, key: str, owner: str, record: Record) -> None:
        """Keep the record of a tenure, unless a newer one was seen: replies may overtake one another."""
        state = record.state
        if state.owner != owner:
            return
        age = (state.fence, record.number("edits"), len(state.mail), state.expires_ms)
        with self._lock:
            known = self._seen.get((key, owner))
            if known is None or known[0] <= age:
                self._seen[key, owner] = (age, record.item)
            self._seen.move_to_end((key, owner))
            while len(self._seen) > MOST:
                self._seen.popitem(last=False)

    def recall(self, key: str, owner: str) -> tuple[int | None, Item]:
        """Return the fence and the record of a tenure; ``None`` and no item if it is not remembered."""
        with self._lock:
            known = self._seen.get((key, owner))
        return (None, {}) if known is None else (known[0][0], known[1])

    def forget(self, key: str, owner: str) -> None:
        """Forget a tenure that has ended."""
        with self._lock:
            self._seen.pop((key, owner), None)
