"""DynamoDB's limits, by units, over the table in memory of the simulation: partitions of the table and of its index.

Assumed, since AWS documents it or since it is the worst case: a partition serves 1,000 write units and 3,000 read units
a second, and no more than a second's worth at once (DynamoDB's burst capacity is left out). A hot key has a partition
of its own (adaptive capacity has isolated it). A write for which the index's partition has no units is throttled
(back-pressure). A write costs the larger of the item before and after it, also when its condition does not hold.
"""

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks.capacity import item_bytes
from tests.simulation.dynamodb import Client, Refused, Table, Way
from tests.simulation.expressions import Item, holds
from tests.simulation.network import Throttled
from tests.simulation.store import Asked

WRITE_UNITS = 1_000
READ_UNITS = 3_000
A = TypeVar("A")

PAGE_BYTES = 1 << 20
_ENTRY = ("pk", "sk", "orphan_shard", "orphan_since", "lease_key", "target")


class Bucket:
    """The units of one partition: refilled all the time, and never more than a second's worth."""

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self._units = per_s / 10  # not a second's worth: what a partition carries should not depend on how long it does
        self._at_ms = 0

    def has(self, now_ms: int) -> bool:
        """Whether a request is served now."""
        self._units = min(self.per_s, self._units + (now_ms - self._at_ms) * self.per_s / 1_000)
        self._at_ms = now_ms
        return self._units > 0

    def spend(self, units: float) -> None:
        """Take the units of a request that was served; a large one leaves a debt."""
        self._units -= units


class ThrottledTable(Table):
    """A table of so many partitions (``None``: one for each key), with an index of so many.

    ``used`` counts units, ``throttled`` refused requests, by the table or by its index. ``templates`` are records
    of keys that have run before: every key that is new has one of them.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        partitions: int | None,
        index_partitions: int,
        templates: Sequence[Item] = (),
    ) -> None:
        super().__init__()
        self.used: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.used_by_shard: Counter[str] = Counter()
        self.requests = 0
        self._used_until: list[tuple[int, int]] = []
        self.largest = 0
        self._now_ms = now_ms
        self._partitions = partitions
        self._index_partitions = index_partitions
        self._templates = templates
        self._writes: defaultdict[object, Bucket] = defaultdict(lambda: Bucket(WRITE_UNITS))
        self._reads: defaultdict[object, Bucket] = defaultdict(lambda: Bucket(READ_UNITS))
        self._sizes: dict[tuple[str, str], int] = {}
        self._by_pk: defaultdict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        self._by_shard: defaultdict[str, dict[tuple[str, str], None]] = defaultdict(dict)

    # --- requests

    def update(self, asked: Asked, now_ms: int, request: Mapping[str, Any]) -> Item | Refused:
        """Update an item, if the partitions of the table and of its index have units for it."""
        name = self._warm(request["Key"])
        return self._write(name, lambda: super(ThrottledTable, self).update(asked, now_ms, request))

    def put(self, new: Item) -> Item | None:
        """Write a whole item."""
        return self._write(_name(new), lambda: super(ThrottledTable, self).put(new))

    def delete(self, request: Mapping[str, Any]) -> Item | Refused | None:
        """Delete an item."""
        return self._write(_name(request["Key"]), lambda: super(ThrottledTable, self).delete(request))

    def get(self, key: Mapping[str, Any]) -> Item | None:
        """Read an item, consistently."""
        name = self._warm(key)
        found = super().get(key)
        self._read(self._partition(name[0]), max(1, math.ceil(self._sizes.get(name, 0) / 4_096)))
        return found

    def page(self, request: Mapping[str, Any]) -> tuple[list[Item], dict[str, Any] | None]:
        """Read a page of a query: 1 MB at most, and the key with which the next begins."""
        found, size = self.find(request), 0
        if "ExclusiveStartKey" in request:
            starts = _name(request["ExclusiveStartKey"])
            found = found[1 + next(place for place, each in enumerate(found) if _name(each) == starts) :]
        if "IndexName" in request:
            found = [{name: each[name] for name in _ENTRY if name in each} for each in found]
        for place, each in enumerate(found):
            size += item_bytes(each)
            if size > PAGE_BYTES:
                self._read(self._queried(request), self._units_of(request, size))
                return found[: place + 1], {part: each[part] for part in ("pk", "sk")}
        self._read(self._queried(request), self._units_of(request, size))
        return found, None

    def find(self, request: Mapping[str, Any]) -> list[Item]:
        """Find what a query is for, without a look at all the other items."""
        values = [each["S"] for each in request["ExpressionAttributeValues"].values() if "S" in each]
        if "IndexName" in request:
            until = int(request["ExpressionAttributeValues"][":until"]["N"])
            shard = next(each for each in values if each in self._by_shard or "#" in each)
            inside = [self._items[name] for name in self._by_shard[shard]]
            found = [each for each in inside if int(each["orphan_since"]["N"]) <= until]
            return sorted(found, key=lambda each: (int(each["orphan_since"]["N"]), each["pk"]["S"]))
        names = [name for pk in values if pk in self._by_pk for name in self._by_pk[pk]]
        condition = request["KeyConditionExpression"]
        return [self._items[name] for name in sorted(names) if holds(condition, self._items[name], request)]

    # --- what is there before the first request, and afterwards

    def load(self, item: Item) -> None:
        """Put an item there, for nothing."""
        name = _name(item)
        self._items[name] = item
        self._note(name, None)

    def item(self, pk: str) -> Item:
        """Return a copy of a lease item."""
        return dict(self._items[pk, "lease"])

    def used_by(self, ms: int) -> int:
        """Return how many write units of the table were used until then."""
        return sum(units for at_ms, units in self._used_until if at_ms <= ms)

    # --- parts

    def _warm(self, key: Mapping[str, Any]) -> tuple[str, str]:
        name = _name(key)
        if self._templates and name not in self._items and name[1] == "lease":
            self.load({**self._templates[zlib.crc32(name[0].encode()) % len(self._templates)], **key})
        return name

    def _write(self, name: tuple[str, str], carry_out: Callable[[], A]) -> A:
        bucket = self._writes[self._partition(name[0])]
        if not bucket.has(self._now_ms()):
            self.throttled["table"] += 1
            raise Throttled("table")
        before, size = self._items.get(name), self._sizes.get(name, 0)
        answer = carry_out()
        after = self._items.get(name)
        moved = _moved(before, after)
        for shard in moved:
            if not self._writes[self._index_partition(shard)].has(self._now_ms()):
                if before is None:
                    del self._items[name]
                else:
                    self._items[name] = before
                self.throttled["index"] += 1
                raise Throttled("index")
        for shard in moved:
            self._writes[self._index_partition(shard)].spend(1)
            self.used["index"] += 1
            self.used_by_shard[shard] += 1
        if after is not before:
            self._note(name, before)
        units = max(1, math.ceil(max(size, self._sizes.get(name, 0)) / 1_024))
        bucket.spend(units)
        self.used["table"] += units
        self.requests += 1
        self._used_until.append((self._now_ms(), units))
        return answer

    def _note(self, name: tuple[str, str], before: Item | None) -> None:
        after = self._items.get(name)
        if before is not None and "orphan_shard" in before:
            self._by_shard[before["orphan_shard"]["S"]].pop(name, None)
        if after is None:
            self._sizes.pop(name, None)
            self._by_pk[name[0]].pop(name, None)
            return
        self._sizes[name] = item_bytes(after)
        self.largest = max(self.largest, self._sizes[name])
        self._by_pk[name[0]][name] = None
        if "orphan_shard" in after:
            self._by_shard[after["orphan_shard"]["S"]][name] = None

    def _read(self, partition: object, units: float) -> None:
        bucket = self._reads[partition]
        if not bucket.has(self._now_ms()):
            self.throttled["reads"] += 1
            raise Throttled("reads")
        bucket.spend(units)
        self.requests += 1
        self.used["reads"] += math.ceil(units)
        if isinstance(partition, tuple):
            self.used["index reads"] += math.ceil(units)

    def _queried(self, request: Mapping[str, Any]) -> object:
        values = [each["S"] for each in request["ExpressionAttributeValues"].values() if "S" in each]
        return self._index_partition(values[0]) if "IndexName" in request else self._partition(values[0])

    @staticmethod
    def _units_of(request: Mapping[str, Any], size: int) -> float:
        return max(1, math.ceil(size / 4_096)) * (1 if request.get("ConsistentRead") else 0.5)

    def _partition(self, pk: str) -> object:
        return pk if self._partitions is None else zlib.crc32(pk.encode()) % self._partitions

    def _index_partition(self, shard: str) -> object:
        return "index", int(shard.rpartition("#")[2]) % self._index_partitions


class PagingClient(Client):
    """The client of the simulation, whose queries come in pages."""

    def __init__(self, table: ThrottledTable, way: Way) -> None:
        super().__init__(table, way, waits_ms=1_000)
        self._pages = table

    def query(self, **request: Any) -> dict[str, Any]:
        """Read a page."""
        items, last = self._ask("Query", lambda *_: self._pages.page(request))
        return {"Items": items} if last is None else {"Items": items, "LastEvaluatedKey": last}


def _moved(before: Item | None, after: Item | None) -> list[str]:
    """Return the shard of each write to the index: an entry comes or goes, or does both where it changes its place."""
    old, new = _entry(before), _entry(after)
    if old == new:
        return []
    if old is not None and new is not None and old[:2] == new[:2]:
        return [new[0]]
    return [each[0] for each in (old, new) if each is not None]


def _entry(item: Item | None) -> tuple[str, str, str] | None:
    if item is None or "orphan_shard" not in item or "orphan_since" not in item:
        return None
    return item["orphan_shard"]["S"], item["orphan_since"]["N"], item.get("target", {}).get("S", "")


def _name(key: Mapping[str, Any]) -> tuple[str, str]:
    return key["pk"]["S"], key["sk"]["S"]
