"""What became of each order, written under a fence: a stale owner changes nothing, and no update counts twice."""

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class StaleOwner(Exception):
    """A later owner has been at this order; nothing was written."""

    def __init__(self, order_id: str, fence: int) -> None:
        super().__init__(f"order {order_id!r} has been changed by an owner later than fence {fence}")


class Orders(Protocol):
    """Where orders are kept."""

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update, unless the message's has been added before. Raises ``StaleOwner``."""
        ...

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates in the order in which they were applied."""
        ...


class DynamoDBOrders:
    """One item an order; an update is one conditional write."""

    def __init__(self, table_name: str, *, client: Any = None) -> None:
        self.table_name = table_name
        if client is None:
            import boto3
            from botocore.config import Config

            client = boto3.client("dynamodb", config=Config(connect_timeout=1, read_timeout=2))
        self.client = client

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update."""
        try:
            self.client.update_item(
                TableName=self.table_name,
                Key={"order_id": {"S": order_id}},
                UpdateExpression=(
                    "SET fence = :fence, updates = list_append(if_not_exists(updates, :none), :update) "
                    "ADD applied :message_ids"
                ),
                ConditionExpression=(
                    "(attribute_not_exists(fence) OR fence <= :fence) AND NOT contains(applied, :message_id)"
                ),
                ExpressionAttributeValues={
                    ":fence": {"N": str(fence)},
                    ":none": {"L": []},
                    ":update": {"L": [{"S": _dump(update)}]},
                    ":message_ids": {"SS": [message_id]},
                    ":message_id": {"S": message_id},
                },
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except self.client.exceptions.ConditionalCheckFailedException as error:
            before = error.response.get("Item", {})
            if message_id not in before.get("applied", {"SS": []})["SS"]:
                raise StaleOwner(order_id, fence) from error

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        answer = self.client.get_item(TableName=self.table_name, Key={"order_id": {"S": order_id}}, ConsistentRead=True)
        return [json.loads(update["S"]) for update in answer.get("Item", {}).get("updates", {"L": []})["L"]]


class RedisOrders:
    """One hash an order; an update is one script."""

    def __init__(self, url: str | None = None, *, prefix: str = "orders", client: Any = None) -> None:
        if client is None:
            import redis

            client = redis.Redis.from_url(url or "", socket_timeout=2, socket_connect_timeout=1)
        self.client = client
        self.prefix = prefix
        self.script = client.register_script(Path(__file__).with_name("orders.lua").read_text("utf-8"))

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update."""
        if self.script(keys=[f"{self.prefix}:{order_id}"], args=[str(fence), message_id, _dump(update)]) < 0:
            raise StaleOwner(order_id, fence)

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        fields = self.client.hgetall(f"{self.prefix}:{order_id}")
        placed = [value.split(b" ", 1) for name, value in fields.items() if name.startswith(b"message:")]
        return [json.loads(update) for _, update in sorted(placed, key=lambda each: int(each[0]))]


@dataclass(slots=True)
class _Order:
    fence: int = 0
    updates: list[dict[str, Any]] = field(default_factory=list)
    applied: set[str] = field(default_factory=set)


class MemoryOrders:
    """One process, and gone with it: for trying things out beside ``INCUMBENT_PROVIDER=memory``."""

    def __init__(self) -> None:
        self._kept: dict[str, _Order] = {}
        self._lock = threading.Lock()

    def apply(self, order_id: str, update: dict[str, Any], *, message_id: str, fence: int) -> None:
        """Add an update."""
        with self._lock:
            order = self._kept.setdefault(order_id, _Order())
            if message_id in order.applied:
                return
            if order.fence > fence:
                raise StaleOwner(order_id, fence)
            order.fence = fence
            order.updates.append(update)
            order.applied.add(message_id)

    def load(self, order_id: str) -> list[dict[str, Any]]:
        """Return the updates."""
        with self._lock:
            return list(self._kept.get(order_id, _Order()).updates)


PROCESS_MEMORY = MemoryOrders()  # one for all threads of the process


def orders_from_env() -> Orders:
    """Keep orders where the leases are."""
    if table_name := os.environ.get("ORDER_TABLE_NAME"):
        return DynamoDBOrders(table_name)
    match os.environ.get("INCUMBENT_PROVIDER"):
        case "redis":
            # The server may serve others too: each function has its own orders.
            prefix = f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'orders')}:order"
            return RedisOrders(os.environ["INCUMBENT_REDIS_URL"], prefix=prefix)
        case "memory" | "none":
            return PROCESS_MEMORY
        case provider:
            message = f"no place for orders beside INCUMBENT_PROVIDER={provider}: set ORDER_TABLE_NAME"
            raise RuntimeError(message)


def _dump(update: dict[str, Any]) -> str:
    return json.dumps(update, ensure_ascii=False)
