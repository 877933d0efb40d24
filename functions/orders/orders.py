"""Keep the updates of each order, under a fence: a stale owner changes nothing, and no update counts twice.

An order is the sum of its updates, so none is dropped: an update for which there is no room is refused, and becomes a
dead letter. If your orders have more than a few hundred updates, store the current state instead.
"""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

MESSAGE = "message:"  # precedes the message id in the name of each stored update
# The limit of an order's updates and their names, in UTF-8: a DynamoDB item of 400 KiB also has a key and a fence.
MAX_BYTES = 350_000


class StaleOwner(Exception):
    """A later owner has changed this order; nothing was written."""

    def __init__(self, order_id: str, fence: int) -> None:
        super().__init__(f"an owner later than fence {fence} has changed order {order_id!r}")


class OrderFull(Exception):
    """The order has no room for the update; nothing was written."""

    def __init__(self, order_id: str, size: int) -> None:
        self.order_id = order_id
        super().__init__(
            f"order {order_id!r} would hold {size:,} bytes with this update; the limit is {MAX_BYTES:,}: "
            "archive it, or store its current state instead of its updates"
        )


class Orders(Protocol):
    """A store of orders."""

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update, unless that of the message was added before. Raises ``StaleOwner`` and ``OrderFull``."""
        ...

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates in the order in which they were applied, which is that of their fences."""
        ...


class DynamoDBOrders:
    """One item per order: an attribute for each message, and their size; each update is one conditional write."""

    def __init__(self, table_name: str, *, client: Any = None) -> None:
        self.table_name = table_name
        if client is None:
            import boto3
            from botocore.config import Config

            client = boto3.client("dynamodb", config=Config(connect_timeout=1, read_timeout=2))
        self.client = client

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update; if DynamoDB refuses it, find out why."""
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
        """Return the item, and shut out the owners before this one."""
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
    """One hash per order, with a field for each message; each update is one script."""

    def __init__(self, *, prefix: str = "orders", client: Any = None) -> None:
        if client is None:
            from incumbent.providers.redis import client_from_env

            client = client_from_env()  # connects to the server of the leases, with the same login
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
    """Orders of one process, which end with it: for trials with ``INCUMBENT_PROVIDER=memory``."""

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
    """Return the store of orders beside the leases."""
    if table_name := os.environ.get("ORDER_TABLE_NAME"):
        return DynamoDBOrders(table_name)
    match os.environ.get("INCUMBENT_PROVIDER"):
        case "redis":
            # Several functions may share the server: each has its own orders.
            prefix = f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'orders')}:order"
            return RedisOrders(prefix=prefix)
        case "memory" | "none":
            return PROCESS_MEMORY
        case provider:
            message = f"INCUMBENT_PROVIDER={provider} has no store for orders: set ORDER_TABLE_NAME"
            raise RuntimeError(message)


def _entry(order_id: str, update: dict[str, Any], message_id: str, fence: int) -> tuple[str, str, int]:
    """Return an update's name, its text with its fence in front, and their size. Raises ``OrderFull``."""
    name, text = f"{MESSAGE}{message_id}", json.dumps([fence, update], ensure_ascii=False)
    size = len(f"{name}{text}".encode())
    if size > MAX_BYTES:
        raise OrderFull(order_id, size)
    return name, text, size


def _parse(stored: Iterable[str | bytes]) -> list[dict[str, Any]]:
    return [update for _, update in sorted((json.loads(each) for each in stored), key=lambda each: each[0])]
