"""The real DynamoDB provider over a table in memory: what it sends is understood, and each request may meet a fault."""

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

from incumbent.providers.dynamodb import DynamoDBProvider, item
from incumbent.rules import KeyState
from tests.simulation.environment import Environment
from tests.simulation.expressions import Item, demands, holds, updated
from tests.simulation.network import TIMEOUT_MS, Network, NoAnswer, Throttled
from tests.simulation.simulated_provider import asked_by
from tests.simulation.store import KEY, NOTHING_YET, Asked, Witness

T = TypeVar("T")

_CONFIG = Config(connect_timeout=TIMEOUT_MS / 2_000, read_timeout=TIMEOUT_MS / 2_000, retries={"total_max_attempts": 1})
_REFUSED = "ConditionalCheckFailedException"


class Refused(Exception):
    """A condition does not hold. ``came_late``: it was that of an exact change, so another write came first."""

    def __init__(self, item: Item, *, came_late: bool = False) -> None:
        super().__init__()
        self.item = item
        self.came_late = came_late


class Table:
    """The items of one table. Every request is one step; what it does to the lease item is witnessed.

    Seeded bugs: ``blind_to`` is a pattern of demands of which no condition takes any notice, and with
    ``routes_behind_live_only`` no message is added to a mailbox that no live owner has.
    """

    def __init__(
        self, witness: Witness | None = None, *, blind_to: str = "", routes_behind_live_only: bool = False
    ) -> None:
        self._witness = witness
        self._blind_to = blind_to
        self._routes_behind_live_only = routes_behind_live_only
        self._items: dict[tuple[str, str], Item] = {}
        self._names: set[str] = set()
        self._state = NOTHING_YET

    def update(self, asked: Asked, now_ms: int, request: Mapping[str, Any]) -> Item | Refused:
        """Update an item where its condition holds."""
        name = _name(request["Key"])
        old = self._items.get(name, {})
        refused = self._routes_behind_live_only and _routes(request) and _ends_ms(old) <= now_ms
        if refused or not holds(self._seen(request["ConditionExpression"]), old, request):
            self._tell(asked, self._state, now_ms)
            return Refused(old, came_late=":claim" not in request["ExpressionAttributeValues"])
        self._items[name] = updated(request["UpdateExpression"], old or dict(request["Key"]), request)
        if self._witness is not None:
            self._tell(asked, self._decoded(asked, self._items[name]), now_ms)
        return self._items[name]

    def get(self, key: Mapping[str, Any]) -> Item | None:
        """Read an item."""
        return self._items.get(_name(key))

    def put(self, new: Item) -> Item | None:
        """Write a whole item, and return what stood there."""
        old = self._items.get(_name(new))
        self._items[_name(new)] = dict(new)
        return old

    def delete(self, request: Mapping[str, Any]) -> Item | Refused | None:
        """Delete an item where its condition holds, and return it."""
        old = self._items.get(_name(request["Key"]), {})
        if not holds(request.get("ConditionExpression", ""), old, request):
            return Refused(old)
        return self._items.pop(_name(request["Key"]), None)

    def copy(self) -> "Table":
        """Another table with the same items, which nobody witnesses."""
        made = Table(blind_to=self._blind_to)
        made._items.update(self._items)  # an item is never changed, but replaced
        return made

    def items_of(self, pk: str) -> list[Item]:
        """All items of a partition key, as they are."""
        return [each for (partition, _), each in self._items.items() if partition == pk]

    def find(self, request: Mapping[str, Any]) -> list[Item]:
        """What a query or a scan finds, in the order of the index, or of the sort keys in each partition."""
        condition = request.get("KeyConditionExpression") or request["FilterExpression"]
        found = [each for each in self._items.values() if holds(condition, each, request)]
        if "IndexName" in request:
            return sorted(found, key=lambda each: int(each["orphan_since"]["N"]))
        return sorted(found, key=_name, reverse=not request.get("ScanIndexForward", True))

    def _seen(self, condition: str) -> str:
        """The condition, or what is left of it: it is a row of demands, in brackets where one is a choice."""
        if not self._blind_to:
            return condition
        return " AND ".join(each for each in demands(condition) if not re.search(self._blind_to, each))

    def _tell(self, asked: Asked, after: KeyState, now_ms: int) -> None:
        before, self._state = self._state, after
        if self._witness is not None:
            self._witness(asked, before, after, None, now_ms)

    def _decoded(self, asked: Asked, lease: Item) -> KeyState:
        """The state that an item tells of, with all names that are kept as digests."""
        named = (asked.owner, asked.message_id, asked.cancelled, asked.successor, asked.ticket)
        self._names.update(name for name in (*named, *asked.handled, *asked.dropped, *asked.stopped) if name)
        return item.decode(lease, key=KEY, names=self._names).state


class Way(Protocol):
    """How a request comes to the table, and its answer back."""

    def __call__(self, operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:
        """Have it carried out, for a call and by the time of its sending. Raises ``NoAnswer``."""
        ...


class Client:
    """The part of botocore's client that the provider uses, without inner retries."""

    def __init__(self, table: Table, way: Way, *, waits_ms: float = TIMEOUT_MS / 2) -> None:
        self.meta = SimpleNamespace(
            config=Config(
                connect_timeout=waits_ms / 1_000, read_timeout=waits_ms / 1_000, retries={"total_max_attempts": 1}
            )
        )
        self._table = table
        self._way = way

    def update_item(self, **request: Any) -> dict[str, Any]:
        """Update an item."""
        found = self._ask("UpdateItem", lambda asked, now_ms: self._table.update(asked, now_ms, request))
        match request["ReturnValues"]:
            case "ALL_NEW":
                return {"Attributes": found}
            case "UPDATED_NEW":
                named = request.get("ExpressionAttributeNames", {})
                names = {named.get(name, name) for name in re.findall(r"#?\w+", request["UpdateExpression"])}
                return {"Attributes": {name: value for name, value in found.items() if name in names}}
            case _:
                return {}

    def get_item(self, **request: Any) -> dict[str, Any]:
        """Read an item."""
        found = self._ask("GetItem", lambda *_: self._table.get(request["Key"]))
        return {} if found is None else {"Item": found}

    def put_item(self, **request: Any) -> dict[str, Any]:
        """Write an item."""
        found = self._ask("PutItem", lambda *_: self._table.put(request["Item"]))
        return {} if found is None else {"Attributes": found}

    def delete_item(self, **request: Any) -> dict[str, Any]:
        """Delete an item."""
        found = self._ask("DeleteItem", lambda *_: self._table.delete(request))
        return {"Attributes": found} if found else {}

    def batch_get_item(self, **request: Any) -> dict[str, Any]:
        """Read several items."""
        ((name, wanted),) = request["RequestItems"].items()
        found = self._ask("BatchGetItem", lambda *_: [self._table.get(key) for key in wanted["Keys"]])
        return {"Responses": {name: [each for each in found if each is not None]}}

    def query(self, **request: Any) -> dict[str, Any]:
        """Find items of a partition."""
        return {"Items": self._ask("Query", lambda *_: self._table.find(request))}

    def scan(self, **request: Any) -> dict[str, Any]:
        """Find items of the table."""
        return {"Items": self._ask("Scan", lambda *_: self._table.find(request))}

    def _ask(self, operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T:
        try:
            found = self._way(operation, carry_out)
        except Throttled as cause:
            raise _error("ProvisionedThroughputExceededException", operation) from cause
        except NoAnswer as cause:
            raise ReadTimeoutError(endpoint_url="simulated", error=cause) from cause
        if isinstance(found, Refused):
            raise _error(_REFUSED, operation, found.item)
        return found


def make_provider(environment: Environment, table: Table, network: Network, *, skew_ms: int) -> DynamoDBProvider:
    """The provider of one environment."""

    def way(operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:
        asked, now_ms = asked_by(environment), environment.clock.now().wall_ms
        asked.requests += 1
        try:
            found = network.request(environment, f"{asked.call}, {operation}", lambda: carry_out(asked, now_ms))
        except NoAnswer:
            asked.repeated = True
            raise
        # A dead letter, written or taken back; an item that no refusal has shown; a change that others overtook.
        is_more = operation in {"PutItem", "DeleteItem", "GetItem"} or (isinstance(found, Refused) and found.came_late)
        asked.most_requests += is_more
        return found

    client: Any = Client(table, way)
    return DynamoDBProvider(table_name="simulated", client=client, max_clock_skew_ms=skew_ms, clock=environment.clock)


def _error(code: str, operation: str, old: Item | None = None) -> ClientError:
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"RetryAttempts": 0, "HTTPStatusCode": 400},
    }
    if old:
        response["Item"] = old
    return ClientError(cast("Any", response), operation)


def _routes(request: Mapping[str, Any]) -> bool:
    """Whether an update adds a message, and does not grant the key."""
    expression = request["UpdateExpression"]
    return "list_append" in expression and "lease = " not in expression.partition("REMOVE")[0]


def _ends_ms(lease: Item) -> int:
    return int(lease["lease"]["M"]["expires"]["N"]) if "lease" in lease else 0


def _name(key: Mapping[str, Any]) -> tuple[str, str]:
    return key["pk"]["S"], key["sk"]["S"]
