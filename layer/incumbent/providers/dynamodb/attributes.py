"""Values as the API writes them, their sizes, and the version that every item has (M12)."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from incumbent.errors import StoredFormatUnknown

VERSION = 1

Value: TypeAlias = str | int | bool | Sequence["Value"] | Mapping[str, "Value"] | frozenset[str]
Typed: TypeAlias = Mapping[str, Any]  # a value as the API writes it: {"S": "text"}
Item: TypeAlias = Mapping[str, Typed]


def typed(value: Value) -> dict[str, Any]:
    """Return a value in the API's form. The format has no floats."""
    match value:
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": str(value)}
        case int():
            return {"N": str(value)}
        case frozenset():
            return {"SS": sorted(value)}
        case Mapping():
            return {"M": {name: typed(inner) for name, inner in value.items()}}
        case _:
            return {"L": [typed(inner) for inner in value]}


def size_of(item: Item) -> int:
    """Return the bytes of an item as DynamoDB counts them, names included (at most a few too many)."""
    return sum(len(name.encode()) + size_of_value(value) for name, value in item.items())


def size_of_value(value: Typed) -> int:
    """Return the bytes of one value as DynamoDB counts them."""
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return len(inner.encode())
        case "N":
            return len(inner) // 2 + 2
        case "SS":
            return sum(len(each.encode()) + 1 for each in inner) + 3
        case "L":
            return sum(size_of_value(each) + 1 for each in inner) + 3
        case "M":
            return sum(len(name.encode()) + size_of_value(each) + 1 for name, each in inner.items()) + 3
        case _:
            return 1


def number(item: Item, name: str) -> int:
    """Return an attribute that is a number; 0 if it is missing."""
    return int(item[name]["N"]) if name in item else 0


def text(item: Item, name: str) -> str | None:
    """Return an attribute that is a string; ``None`` if it is missing."""
    return str(item[name]["S"]) if name in item else None


def elements(item: Item, name: str) -> frozenset[str]:
    """Return an attribute that is a set; an empty one if it is missing."""
    return frozenset(item[name]["SS"]) if name in item else frozenset()


def cut(text: str, most_bytes: int) -> str:
    """Return a text of at most so many bytes."""
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def seconds(now_ms: int) -> int:
    """Return whole epoch seconds, the unit of TTL."""
    return now_ms // 1_000


def check_version(item: Item, *, key: str) -> None:
    """Refuse an item of another version (M12)."""
    if item.get("v") != {"N": str(VERSION)}:
        raise StoredFormatUnknown(
            f"record {item.get('sk', {}).get('S', 'lease')!r} of key {key!r} has version {item.get('v')!r}; this code "
            f"knows {VERSION}: deploy the version that wrote it, or a newer one. The record was left as it is",
            key=key,
        )
