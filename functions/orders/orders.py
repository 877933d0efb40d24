"""What became of each order, written under a fence: a stale owner changes nothing, and no update counts twice.

An order is the sum of its updates, so none of them is dropped: one for which there is no room is refused, and ends as a
dead letter. If your orders have more than a few hundred updates, keep what they come to instead.
"""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

MESSAGE = "message:"  # before the id, in the names under which updates are kept
# Of an order's updates and their names, in UTF-8: an item of DynamoDB holds 400 KiB, and has a key and a fence besides.
MAX_BYTES = 350_000


class StaleOwner(Exception):
    """A later owner has been at this order; nothing was written."""

    def __init__(self, order_id: str, fence: int) -> None:
        super().__init__(f"order {order_id!r} has been changed by an owner later than fence {fence}")


class OrderFull(Exception):
    """There is no room for the update; nothing was written."""

    def __init__(self, order_id: str, size: int) -> None:
        self.order_id = order_id
        super().__init__(
            f"with this update, order {order_id!r} would hold {size:,} bytes, and {MAX_BYTES:,} is the most: "
            "archive it, or keep what its updates come to"
        )


class Orders(Protocol):
    """Where orders are kept."""

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update, unless the message's was added before. Raises ``StaleOwner`` and ``OrderFull``."""
        ...

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates in the order in which they were applied, which is that of their fences."""
        ...


class DynamoDBOrders:
    """One item an order: an attribute for each message, and their size; an update is one conditional write."""

    def __init__(self, table_name: str, *, client: Any = None) -> None:
        self.table_name = table_name
        if client is None:
            import boto3
            from botocore.config import Config

            client = boto3.client("dynamodb", config=Config(connect_timeout=1, read_timeout=2))
        self.client = client

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update, and look for the reason if it is refused."""
        name, text, size = _entry(order_id, update, message_id, fence)
        try:
            self.client.update_item(
                TableName=self.table_name,
                Key={"order_id": {"S": order_id}},
                UpdateExpression="SET fence = :fence, #message = :update ADD held :size",
                ConditionExpression="(attribute_not_exists(fence) OR fence <= :fence) "
                "AND attribute_not_exists(#message) AND (attribute_not_exists(held) OR held <= :room)",
                ExpressionAttributeNames={"#message": name},
                ExpressionAttributeValues={
                    ":fence": {"N": str(fence)},
                    ":update": {"S": text},
                    ":size": {"N": str(size)},
                    ":room": {"N": str(MAX_BYTES - size)},
                },
            )
        except self.client.exceptions.ConditionalCheckFailedException:
            order = self._seen(order_id, fence)
            if name not in order:
                raise OrderFull(order_id, size + int(order["held"]["N"])) from None

    def _seen(self, order_id: str, fence: int) -> dict[str, Any]:
        """Return what there is, and shut out the owners before this one."""
        try:
            answer = self.client.update_item(
                TableName=self.table_name,
                Key={"order_id": {"S": order_id}},
                UpdateExpression="SET fence = :fence",
                ConditionExpression="attribute_not_exists(fence) OR fence <= :fence",
                ExpressionAttributeValues={":fence": {"N": str(fence)}},
                ReturnValues="ALL_NEW",
            )
        except self.client.exceptions.ConditionalCheckFailedException as error:
            raise StaleOwner(order_id, fence) from error
        return dict(answer["Attributes"])

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        answer = self.client.get_item(TableName=self.table_name, Key={"order_id": {"S": order_id}}, ConsistentRead=True)
        return _parse(value["S"] for name, value in answer.get("Item", {}).items() if name.startswith(MESSAGE))


class RedisOrders:
    """One hash an order, with a field for each message; an update is one script."""

    def __init__(self, *, prefix: str = "orders", client: Any = None) -> None:
        if client is None:
            from incumbent.providers.redis import client_from_env

            client = client_from_env()  # of the server that has the leases, by the same login
        self.client = client
        self.prefix = prefix
        self.script = client.register_script(Path(__file__).with_name("orders.lua").read_text("utf-8"))

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update."""
        name, text, _ = _entry(order_id, update, message_id, fence)
        answer = self.script(keys=[f"{self.prefix}:{order_id}"], args=[str(fence), name, text, MAX_BYTES])
        if answer is None:
            raise StaleOwner(order_id, fence)
        if answer:
            raise OrderFull(order_id, answer)

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        fields = self.client.hgetall(f"{self.prefix}:{order_id}")
        return _parse(value for name, value in fields.items() if name.startswith(MESSAGE.encode()))


class MemoryOrders:
    """One process, and gone with it: for trying things out beside ``INCUMBENT_PROVIDER=memory``."""

    def __init__(self) -> None:
        self._fences: dict[str, int] = {}
        self._updates: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update."""
        name, text, size = _entry(order_id, update, message_id, fence)
        with self._lock:
            if self._fences.get(order_id, fence) > fence:
                raise StaleOwner(order_id, fence)
            self._fences[order_id] = fence
            updates = self._updates.setdefault(order_id, {})
            held = sum(len(f"{each}{updates[each]}".encode()) for each in updates)
            if name not in updates and held + size > MAX_BYTES:
                raise OrderFull(order_id, held + size)
            updates.setdefault(name, text)

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        with self._lock:
            return _parse(self._updates.get(order_id, {}).values())


PROCESS_MEMORY = MemoryOrders()  # one for all threads of the process


def orders_from_env() -> Orders:
    """Keep orders where the leases are."""
    if table_name := os.environ.get("ORDER_TABLE_NAME"):
        return DynamoDBOrders(table_name)
    match os.environ.get("INCUMBENT_PROVIDER"):
        case "redis":
            # The server may serve others too: each function has its own orders.
            prefix = f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'orders')}:order"
            return RedisOrders(prefix=prefix)
        case "memory" | "none":
            return PROCESS_MEMORY
        case provider:
            message = f"no place for orders beside INCUMBENT_PROVIDER={provider}: set ORDER_TABLE_NAME"
            raise RuntimeError(message)


def _entry(order_id: str, update: dict[str, Any], message_id: str, fence: int) -> tuple[str, str, int]:
    """Return an update's name, its text behind its fence, and their size, which must have room by itself."""
    name, text = f"{MESSAGE}{message_id}", json.dumps([fence, update], ensure_ascii=False)
    size = len(f"{name}{text}".encode())
    if size > MAX_BYTES:
        raise OrderFull(order_id, size)
    return name, text, size


def _parse(stored: Iterable[str | bytes]) -> list[dict[str, Any]]:
    return [update for _, update in sorted((json.loads(each) for each in stored), key=lambda each: each[0])]
