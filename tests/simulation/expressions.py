"""The part of DynamoDB's expressions that the provider writes, understood: conditions, and what an update does.

An expression is read once and kept: it is asked far more often than there are different ones. Numbers are whole here.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = dict[str, Any]  # as the API writes it: {"S": "text"}
Item: TypeAlias = dict[str, Value]

_TOKENS = re.compile(r"\s*(<=|>=|<>|[=<>+\-(),.\[\]]|[#:]?\w+)")
_VERBS = ("SET", "REMOVE", "ADD", "DELETE")


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression is about: the item as it is, and what the placeholders stand for."""

    item: Item
    names: Mapping[str, str]
    values: Mapping[str, Value]


Read: TypeAlias = Callable[[Scope], Value | None]
Holds: TypeAlias = Callable[[Scope], bool]
Path: TypeAlias = tuple[str | int, ...]


def holds(condition: str, item: Item, request: Mapping[str, Any]) -> bool:
    """Whether an item meets a condition; no condition is always met."""
    return not condition or _condition(condition)(_scope(item, request))


def demands(condition: str) -> list[str]:
    """The parts of a condition that must all hold."""
    found, depth = [""], 0
    for word in re.split(r"( AND |[()])", condition):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if word == " AND " and not depth:
            found.append("")
        else:
            found[-1] += word
    return found


def updated(update: str, item: Item, request: Mapping[str, Any]) -> Item:
    """The item after an update. All of it reads the item as it was before."""
    scope, after = _scope(item, request), {name: _copy(value) for name, value in item.items()}
    removals: list[Path] = []
    for verb, path, read in _update(update):
        named: Path = tuple(scope.names.get(part, part) if isinstance(part, str) else part for part in path)
        value = read(scope)
        match verb:
            case "SET":
                _put(after, named, value)
            case "REMOVE":
                removals.append(named)
            case "ADD":
                _add(after, str(named[0]), value)
            case _:
                _take_out(after, str(named[0]), value)
    for named in sorted(removals, key=_place, reverse=True):  # from the back: the others stay where they were
        _drop(after, named)
    return after


def _place(path: Path) -> tuple[str, ...]:
    return tuple(f"{part:08d}" if isinstance(part, int) else part for part in path)


def _scope(item: Item, request: Mapping[str, Any]) -> Scope:
    return Scope(item, request.get("ExpressionAttributeNames", {}), request.get("ExpressionAttributeValues", {}))


# --- reading expressions


class _Reader:
    """Reads the tokens of one expression from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKENS.findall(text)
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise ValueError(f"{expected or 'more'} is expected, not {token!r}: {' '.join(self.tokens)}")
        self.at += 1
        return token

    def condition(self) -> Holds:
        either = [self.all_of()]
        while self.next == "OR":
            self.take()
            either.append(self.all_of())
        return either[0] if len(either) == 1 else lambda scope: any(each(scope) for each in either)

    def all_of(self) -> Holds:
        both = [self.one()]
        while self.next == "AND":
            self.take()
            both.append(self.one())
        return both[0] if len(both) == 1 else lambda scope: all(each(scope) for each in both)

    def one(self) -> Holds:
        match self.next:
            case "NOT":
                self.take()
                inner = self.one()
                return lambda scope: not inner(scope)
            case "(":
                self.take()
                inner = self.condition()
                self.take(")")
                return inner
            case "attribute_exists" | "attribute_not_exists" | "contains" | "begins_with" as name:
                self.take()
                return _FUNCTIONS[name](*self.arguments())
            case _:
                left, compare, right = self.operand(), _COMPARISONS[self.take()], self.operand()
                return lambda scope: compare(left(scope), right(scope))

    def arguments(self) -> list[Read]:
        self.take("(")
        found = [self.operand()]
        while self.next == ",":
            self.take()
            found.append(self.operand())
        self.take(")")
        return found

    def operand(self) -> Read:
        left = self.term()
        if self.next != "+":
            return left
        self.take()
        right = self.term()
        return lambda scope: _sum(left(scope), right(scope))

    def term(self) -> Read:
        match self.next:
            case "if_not_exists":
                self.take()
                path, other = self.arguments()
                return lambda scope: other(scope) if (found := path(scope)) is None else found
            case "size":
                self.take()
                (sized,) = self.arguments()
                return lambda scope: None if (found := sized(scope)) is None else {"N": str(len(*found.values()))}
            case "list_append":
                self.take()
                first, second = self.arguments()
                return lambda scope: _joined(first(scope), second(scope))
            case token if token.startswith(":"):
                self.take()
                return lambda scope: scope.values[token]
            case _:
                path_read = self.path()
                return lambda scope: _found(scope, path_read)

    def path(self) -> Path:
        parts: list[str | int] = [self.take()]
        while self.next in (".", "["):
            if self.take() == ".":
                parts.append(self.take())
            else:
                parts.append(int(self.take()))
                self.take("]")
        return tuple(parts)


@functools.cache
def _condition(text: str) -> Holds:
    reader = _Reader(text)
    read = reader.condition()
    if reader.next:
        raise ValueError(f"not understood from {reader.next!r} on: {text}")
    return read


@functools.cache
def _update(text: str) -> tuple[tuple[str, Path, Read], ...]:
    reader, verb = _Reader(text), ""
    actions: list[tuple[str, Path, Read]] = []
    while reader.next:
        verb = reader.take() if reader.next in _VERBS else verb
        path = reader.path()
        read: Read = _nothing
        if verb == "SET":
            reader.take("=")
        if verb != "REMOVE":
            read = reader.operand()
        actions.append((verb, path, read))
        if reader.next == ",":
            reader.take()
    return tuple(actions)


# --- what they mean


def _nothing(_: Scope) -> None:
    return None


def _found(scope: Scope, path: Path) -> Value | None:
    value: Any = {"M": scope.item}
    for part in path:
        if value is None:
            return None
        if isinstance(part, int):
            inner = value.get("L", ())
            value = inner[part] if part < len(inner) else None
        else:
            value = value.get("M", {}).get(scope.names.get(part, part))
    found: Value | None = value
    return found


def _number(value: Value | None) -> int | None:
    return None if value is None or "N" not in value else int(value["N"])


def _ordered(compare: Callable[[int, int], bool]) -> Callable[[Value | None, Value | None], bool]:
    def holds(left: Value | None, right: Value | None) -> bool:
        one, other = _number(left), _number(right)
        return one is not None and other is not None and compare(one, other)

    return holds


def _equal(left: Value | None, right: Value | None) -> bool:
    if left is None or right is None:
        return False
    return _number(left) == _number(right) if "N" in left else left == right


def _sum(left: Value | None, right: Value | None) -> Value:
    one, other = _number(left), _number(right)
    if one is None or other is None:
        raise ValueError(f"not two numbers: {left!r}, {right!r}")
    return {"N": str(one + other)}


def _joined(first: Value | None, second: Value | None) -> Value:
    if first is None or second is None:
        raise ValueError(f"not two lists: {first!r}, {second!r}")
    return {"L": [*map(_copy, first["L"]), *map(_copy, second["L"])]}


def _contains(path: Read, value: Read) -> Holds:
    def contains(scope: Scope) -> bool:
        found, wanted = path(scope), value(scope)
        if found is None or wanted is None:
            return False
        return wanted["S"] in (found["S"] if "S" in found else found.get("SS", ()))  # of a text, any part

    return contains


def _begins_with(path: Read, value: Read) -> Holds:
    def begins(scope: Scope) -> bool:
        found, wanted = path(scope), value(scope)
        return found is not None and wanted is not None and str(found.get("S", "")).startswith(str(wanted["S"]))

    return begins


_COMPARISONS: Mapping[str, Callable[[Value | None, Value | None], bool]] = {
    "=": _equal,
    "<": _ordered(int.__lt__),
    "<=": _ordered(int.__le__),
    ">": _ordered(int.__gt__),
    ">=": _ordered(int.__ge__),
}
_FUNCTIONS: Mapping[str, Callable[..., Holds]] = {
    "attribute_exists": lambda path: lambda scope: path(scope) is not None,
    "attribute_not_exists": lambda path: lambda scope: path(scope) is None,
    "contains": _contains,
    "begins_with": _begins_with,
}


# --- changing an item


def _copy(value: Value) -> Value:
    ((kind, inner),) = value.items()
    if kind == "L":
        return {"L": [_copy(each) for each in inner]}
    if kind == "M":
        return {"M": {name: _copy(each) for name, each in inner.items()}}
    return {kind: list(inner) if kind == "SS" else inner}


def _parent(item: Item, path: Path) -> Any:
    """What holds the last part of a path: a list's or a map's inside."""
    inside: Any = item
    for part in path[:-1]:
        value = inside[part]
        inside = value["L"] if "L" in value else value["M"]
    return inside


def _put(item: Item, path: Path, value: Value | None) -> None:
    if value is None:
        raise ValueError(f"nothing to put at {path}")
    inside, last = _parent(item, path), path[-1]
    if isinstance(last, int) and last >= len(inside):
        inside.append(_copy(value))
    else:
        inside[last] = _copy(value)


def _drop(item: Item, path: Path) -> None:
    inside, last = _parent(item, path), path[-1]
    if isinstance(last, str):
        inside.pop(last, None)
    elif last < len(inside):
        del inside[last]


def _add(item: Item, name: str, value: Value | None) -> None:
    if value is None:
        raise ValueError(f"nothing to add to {name}")
    if "N" in value:
        item[name] = _sum(item.get(name, {"N": "0"}), value)
    else:
        item[name] = {"SS": sorted({*item.get(name, {"SS": []})["SS"], *value["SS"]})}


def _take_out(item: Item, name: str, value: Value | None) -> None:
    if value is None or name not in item:
        return
    left = sorted({*item[name]["SS"]} - {*value["SS"]})
    if left:
        item[name] = {"SS": left}
    else:
        del item[name]
