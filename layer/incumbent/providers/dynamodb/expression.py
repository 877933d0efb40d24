"""Builds one UpdateItem: every value by a placeholder, and a name only where DynamoDB reserves it."""

from collections.abc import Mapping
from typing import Any, Literal

from incumbent.frozen import dataclass
from incumbent.providers.dynamodb.attributes import VERSION, Item, Typed, Value, typed

# Of the names in the format, those that expressions may not contain; all others stand in them as they are.
RESERVED = frozenset({"block", "by", "error", "left", "ref", "stored"})

ANY = "[]"  # in a condition: a place in a list that ``Request.fill`` fills in

# What an applied update answers: the whole item, what it has written, or nothing.
Returns = Literal["ALL_NEW", "UPDATED_NEW", "NONE"]


@dataclass(frozen=True, slots=True)
class Request:
    """One UpdateItem without its key. ``written`` are the attributes that become plain values, by placeholder."""

    update: str
    condition: str
    names: Mapping[str, str]
    values: Mapping[str, Typed]
    written: Mapping[str, str]
    returns: Returns

    def fill(self, values: Mapping[str, Typed], place: int | None = None) -> "Request":
        """Return the request with the values of its slots, and with a place in a list where its condition has none."""
        condition = self.condition if place is None else self.condition.replace(ANY, f"[{place}]")
        return Request(self.update, condition, self.names, {**self.values, **values}, self.written, self.returns)

    def arguments(self, table: str, key: Item) -> dict[str, Any]:
        """Return the arguments of the client's ``update_item``."""
        found: dict[str, Any] = {
            "TableName": table,
            "Key": key,
            "UpdateExpression": self.update,
            "ConditionExpression": self.condition,
            "ReturnValues": self.returns,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if self.names:
            found["ExpressionAttributeNames"] = self.names
        if self.values:
            found["ExpressionAttributeValues"] = self.values
        return found

    def item(self, answered: Item) -> Item:
        """Return what is known of the item after the update, from what was answered and, if not all was, written."""
        if self.returns == "ALL_NEW":
            return answered
        written = {name: self.values[value] for name, value in self.written.items()}
        return {"v": typed(VERSION), **answered, **written}  # an emulator leaves out of a map what is as it was


class Update:
    """A builder of one UpdateItem.

    Removals come last, and from the back of
    a list to its front: DynamoDB counts positions as they were before the update, other implementations as they are
    after each removal, and in this order both have the same result.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Typed] = {}
        self._written: dict[str, str] = {}
        self._sets: list[str] = []
        self._removes: list[tuple[str, ...]] = []
        self._adds: list[str] = []
        self._deletes: list[str] = []
        self._conditions: list[str] = []

    def name(self, *path: str | int) -> str:
        """Return an attribute, or one inside another, as an expression names it: ``name("mail", 3, "due")``."""
        text = ""
        for part in path:
            if isinstance(part, int):
                text += f"[{part}]"
                continue
            named = part
            if part in RESERVED:
                named = f"#{part}"
                self._names[named] = part
            text += f".{named}" if text else named
        return text

    def value(self, value: Value) -> str:
        """Return the placeholder of a value."""
        return self.typed_value(typed(value))

    def typed_value(self, value: Typed) -> str:
        """Return the placeholder of a value that is already in the API's form."""
        for placeholder, known in self._values.items():
            if known == value:
                return placeholder
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = value
        return placeholder

    def set(self, value: Value, *path: str | int) -> None:
        """Set an attribute to a value."""
        self.set_to(self.value(value), *path)

    def set_to(self, expression: str, *path: str | int) -> None:
        """Set an attribute to the value of an expression, which reads the item as it was before.

        A placeholder of which the value is not known yet is a slot, to be filled by ``Request.fill``.
        """
        name = self.name(*path)
        if len(path) == 1 and expression.startswith(":") and " " not in expression:
            self._written[str(path[0])] = expression
        self._sets.append(f"{name} = {expression}")

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
        self.add_to(self.value(value), name)

    def add_to(self, placeholder: str, name: str) -> None:
        """Add the value of a placeholder to a number or to a set."""
        self._adds.append(f"{self.name(name)} {placeholder}")

    def delete(self, elements: frozenset[str], name: str) -> None:
        """Take elements out of a set."""
        self.delete_from(self.value(elements), name)

    def delete_from(self, placeholder: str, name: str) -> None:
        """Take the elements of a placeholder out of a set."""
        self._deletes.append(f"{self.name(name)} {placeholder}")

    def when(self, condition: str) -> None:
        """Add a condition."""
        self._conditions.append(f"({condition})" if " OR " in condition else condition)

    def when_is(self, value: Value, *path: str | int) -> None:
        """Add the condition that an attribute has a value."""
        self.when(f"{self.name(*path)} = {self.value(value)}")

    def when_there(self, *path: str | int) -> None:
        """Add the condition that an attribute exists."""
        self.when(f"attribute_exists({self.name(*path)})")

    def when_absent(self, *path: str | int) -> None:
        """Add the condition that an attribute does not exist."""
        self.when(f"attribute_not_exists({self.name(*path)})")

    def request(self, returns: Returns = "ALL_NEW") -> Request:
        """Return the request."""
        removes = [
            self.name(*(int(part) if part.isdigit() else part for part in path))
            for path in sorted(self._removes, reverse=True)
        ]
        actions = (("SET", self._sets), ("REMOVE", removes), ("ADD", self._adds), ("DELETE", self._deletes))
        return Request(
            update=" ".join(f"{verb} {', '.join(texts)}" for verb, texts in actions if texts),
            condition=" AND ".join(self._conditions),
            names=self._names,
            values=self._values,
            written=self._written,
            returns=returns,
        )
