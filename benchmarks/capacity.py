"""Counts what requests to DynamoDB's stand-ins cost at AWS: units by the sizes of the items, bytes and requests.

The stand-ins report no units, or none of an index. So the meter reads each item before and after it is written.
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Item: TypeAlias = Mapping[str, Mapping[str, Any]]

_WRITE_UNIT = 1_024
_READ_UNIT = 4_096
_NESTED = 3  # bytes of a list or a map itself, and one more for each element


def item_bytes(item: Item) -> int:
    """Return the size of an item by DynamoDB's documented rules."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return len(str(inner).encode())
        case "N":
            digits = str(inner).lstrip("-").replace(".", "").strip("0")
            return (len(digits) + 1) // 2 + 1 + str(inner).startswith("-")
        case "B":
            return len(base64.b64decode(inner))
        case "BOOL" | "NULL":
            return 1
        case "L":
            return _NESTED + sum(1 + _value_bytes(each) for each in inner)
        case "M":
            return _NESTED + sum(1 + len(name.encode()) + _value_bytes(each) for name, each in inner.items())
        case _:  # a set
            return sum(_value_bytes({kind[0]: each}) for each in inner)


@dataclass(slots=True, kw_only=True)
class Cost:
    """What requests took: units of the table and of its indexes, bytes of bodies, the largest item that was written."""

    requests: int = 0
    write_units: int = 0
    index_units: int = 0
    read_units: float = 0
    sent: int = 0
    received: int = 0
    largest: int = 0


@dataclass(slots=True)
class _Pending:
    """The items that a request may write, as they were before it."""

    factor: int
    before: list[tuple[str, Item, Item | None]] = field(default_factory=list)


class Meter:
    """Watches the clients that a boto3 session makes from now on."""

    def __init__(self, session: Any, looker: Any) -> None:
        """``looker`` is a client of another session, with which the meter reads items."""
        self.cost = Cost()
        self._looker = looker
        self._tables: dict[str, Any] = {}
        self._pending: _Pending | None = None
        session.events.register("before-call.dynamodb.*", self._before)
        session.events.register("before-send.dynamodb.*", self._sent)
        session.events.register("after-call.dynamodb.*", self._after)

    def take(self) -> Cost:
        """Return what was counted since the last call."""
        cost, self.cost = self.cost, Cost()
        return cost

    def _before(self, model: Any, params: Mapping[str, Any], **_: object) -> None:
        body = json.loads(params["body"])
        factor = 2 if model.name.startswith("Transact") else 1
        keys = list(self._written(model.name, body))
        self._pending = _Pending(factor, [(table, key, self._look(table, key)) for table, key in keys])

    def _sent(self, request: Any, **_: object) -> None:
        self.cost.requests += 1
        self.cost.sent += len(request.body or b"")

    def _after(self, model: Any, http_response: Any, **_: object) -> None:
        self.cost.received += len(http_response.content)
        pending, self._pending = self._pending, None
        assert pending is not None  # noqa: S101 - a client of one thread sends one request at a time
        for table, key, before in pending.before:
            after = self._look(table, key)
            sizes = [item_bytes(each) for each in (before, after) if each is not None]
            self.cost.write_units += max(1, math.ceil(max(sizes, default=0) / _WRITE_UNIT)) * pending.factor
            self.cost.index_units += sum(self._index_units(table, before, after))
            if after is not None and after != before:
                self.cost.largest = max(self.cost.largest, item_bytes(after))
        if model.name in {"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"}:
            self.cost.read_units += self._read_units(model.name, http_response)

    def _written(self, operation: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Item]]:
        match operation:
            case "PutItem":
                yield body["TableName"], self._key(body["TableName"], body["Item"])
            case "UpdateItem" | "DeleteItem":
                yield body["TableName"], body["Key"]
            case "TransactWriteItems":
                for each in body["TransactItems"]:
                    ((kind, inner),) = each.items()
                    yield inner["TableName"], self._key(inner["TableName"], inner["Item" if kind == "Put" else "Key"])
            case "BatchWriteItem":
                for table, requests in body["RequestItems"].items():
                    for each in requests:
                        ((kind, inner),) = each.items()
                        yield table, self._key(table, inner["Item" if kind == "PutRequest" else "Key"])
            case _:  # a read
                return

    def _table(self, name: str) -> Any:
        if name not in self._tables:
            self._tables[name] = self._looker.describe_table(TableName=name)["Table"]
        return self._tables[name]

    def _key(self, table: str, item: Item) -> Item:
        return {part["AttributeName"]: item[part["AttributeName"]] for part in self._table(table)["KeySchema"]}

    def _look(self, table: str, key: Item) -> Item | None:
        found: Item | None = self._looker.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item")
        return found

    def _index_units(self, table: str, before: Item | None, after: Item | None) -> Iterable[int]:
        """Return the write units of each index: an entry that comes, goes or changes."""
        for index in self._table(table).get("GlobalSecondaryIndexes", ()):
            old, new = (self._entry(table, index, item) for item in (before, after))
            if old == new:
                continue
            sizes = [math.ceil(item_bytes(each) / _WRITE_UNIT) for each in (old, new) if each is not None]
            names = [part["AttributeName"] for part in index["KeySchema"]]
            moved = old is not None and new is not None and any(old[name] != new[name] for name in names)
            yield sum(sizes) if moved else max(sizes)

    def _entry(self, table: str, index: Any, item: Item | None) -> Item | None:
        names = [part["AttributeName"] for part in (*self._table(table)["KeySchema"], *index["KeySchema"])]
        if item is None or not all(name in item for name in names):
            return None
        projected = index["Projection"]
        kept = {*names, *projected.get("NonKeyAttributes", ())}
        return {name: value for name, value in item.items() if projected["ProjectionType"] == "ALL" or name in kept}

    def _read_units(self, operation: str, http_response: Any) -> float:
        """Return the units of a consistent read: what incumbent sends, and its peers by default half of it."""
        answer = json.loads(http_response.content)
        match operation:
            case "GetItem":
                found = [answer["Item"]] if "Item" in answer else []
                return max(1, math.ceil(sum(map(item_bytes, found)) / _READ_UNIT))
            case "BatchGetItem":
                items = [item for each in answer.get("Responses", {}).values() for item in each]
                return sum(max(1, math.ceil(item_bytes(item) / _READ_UNIT)) for item in items)
            case "TransactGetItems":
                items = [each["Item"] for each in answer.get("Responses", ()) if "Item" in each]
                return 2 * sum(max(1, math.ceil(item_bytes(item) / _READ_UNIT)) for item in items)
            case _:
                return max(1, math.ceil(sum(map(item_bytes, answer.get("Items", ()))) / _READ_UNIT))
