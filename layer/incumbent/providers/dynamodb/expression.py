"""Builds one UpdateItem: every name and value by a placeholder, each at most once."""

from typing import Any

from incumbent.providers.dynamodb.item import Item, Typed, Value, typed


class Update:
    """A builder of one UpdateItem.

    Expressions never contain attribute names, so reserved words cannot occur. Removals come last, and from the back of
    a list to its front: DynamoDB counts positions as they were before the update, other implementations as they are
    after each removal, and in this order both have the same result.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Typed] = {}
        self._sets: list[str] = []
        self._removes: list[tuple[str, ...]] = []
        self._adds: list[str] = []
        self._deletes: list[str] = []
        self._conditions: list[str] = []

    def name(self, *path: str | int) -> str:
        """Return the placeholder of an attribute, or of one inside another: ``name("mail", 3, "due")``."""
        text = ""
        for part in path:
            if isinstance(part, int):
                text += f"[{part}]"
                continue
            self._names[f"#{part}"] = part
            text += f".#{part}" if text else f"#{part}"
        return text

    def value(self, value: Value) -> str:
        """Return the placeholder of a value."""
        return self.written(typed(value))

    def written(self, written: Typed) -> str:
        """Return the placeholder of a value that is already in the API's form."""
        for placeholder, known in self._values.items():
            if known == written:
                return placeholder
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = written
        return placeholder

    def set(self, value: Value, *path: str | int) -> None:
        """Set an attribute to a value."""
        self.set_to(self.value(value), *path)

    def set_to(self, expression: str, *path: str | int) -> None:
        """Set an attribute to the value of an expression, which reads the item as it was before."""
        self._sets.append(f"{self.name(*path)} = {expression}")

    def give(self, value: Value | None, *path: str | int) -> None:
        """Set an attribute to a value, or remove it if the value is ``None``."""
        if value is None:
            self.remove(*path)
        else:
            self.set(value, *path)

    def remove(self, *path: str | int) -> None:
        """Remove an attribute, or an element of a list."""
        self._removes.append(tuple(f"{part:08d}" if isinstance(part, int) else part for part in path))
        self.name(*path)

    def add(self, value: Value, name: str) -> None:
        """Add to a number, or elements to a set."""
        self._adds.append(f"{self.name(name)} {self.value(value)}")

    def delete(self, elements: frozenset[str], name: str) -> None:
        """Take elements out of a set."""
        self._deletes.append(f"{self.name(name)} {self.value(elements)}")

    def when(self, condition: str) -> None:
        """Add a condition."""
        self._conditions.append(f"({condition})")

    def when_is(self, value: Value, *path: str | int) -> None:
        """Add the condition that an attribute has a value."""
        self.when(f"{self.name(*path)} = {self.value(value)}")

    def when_there(self, *path: str | int) -> None:
        """Add the condition that an attribute exists."""
        self.when(f"attribute_exists({self.name(*path)})")

    def when_absent(self, *path: str | int) -> None:
        """Add the condition that an attribute does not exist."""
        self.when(f"attribute_not_exists({self.name(*path)})")

    def request(self, table: str, key: Item) -> dict[str, Any]:
        """Return the arguments of the client's ``update_item``."""
        removes = [
            self.name(*(int(part) if part.isdigit() else part for part in path))
            for path in sorted(self._removes, reverse=True)
        ]
        actions = (("SET", self._sets), ("REMOVE", removes), ("ADD", self._adds), ("DELETE", self._deletes))
        request: dict[str, Any] = {
            "TableName": table,
            "Key": key,
            "UpdateExpression": " ".join(f"{verb} {', '.join(texts)}" for verb, texts in actions if texts),
            "ConditionExpression": " AND ".join(self._conditions),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if self._names:
            request["ExpressionAttributeNames"] = self._names
        if self._values:
            request["ExpressionAttributeValues"] = self._values
        return request
