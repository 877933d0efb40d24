"""Changes an event at a dotted path, through strings that hold JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

from incumbent.errors import ConfigurationError
from incumbent.local.files import parse_json

_SEGMENT = re.compile(r'"([^"]+)"|([^."]+)')
_POSITION = re.compile(r"0|[1-9][0-9]*")


def split_path(path: str) -> tuple[str, ...]:
    """Split ``a.b.0."x.y"`` into its names.

    Raises:
        ConfigurationError: a name is empty, or a quote is not closed.
    """
    names, at = [], 0
    while True:
        match = _SEGMENT.match(path, at)
        if match is None:
            raise ConfigurationError(f"{path!r} is not a path: names separated by dots, like body.thread_id")
        names.append(match[1] or match[2])
        at = match.end()
        if at == len(path):
            return tuple(names)
        if path[at] != ".":
            raise ConfigurationError(f"{path!r} is not a path: a dot is missing before {path[at:]!r}")
        at += 1


def changed(event: Any, path: str, value: Any) -> Any:
    """Return ``event`` with ``value`` at ``path``; the event itself stays as it is.

    Where the path meets a string and goes on, the string is read as JSON and written back. The last name of
    an object may be new; all else has to be there.

    Raises:
        ConfigurationError: the path leads nowhere; the text says where it ends.
    """
    return _changed(event, split_path(path), 0, value)


def _changed(here: Any, names: tuple[str, ...], depth: int, value: Any) -> Any:
    if depth == len(names):
        return value
    name = names[depth]
    match here:
        case str():
            try:
                inner = parse_json(here)
            except ValueError:
                inner = None
            if not isinstance(inner, (dict, list)):
                raise _nowhere(names, depth, "is a string without JSON in it")
            return json.dumps(_changed(inner, names, depth, value))
        case dict():
            if name not in here and depth < len(names) - 1:
                raise _nowhere(names, depth, f"has no {name!r}")
            return {**here, name: _changed(here.get(name), names, depth + 1, value)}
        case list():
            if not _POSITION.fullmatch(name) or int(name) >= len(here):
                raise _nowhere(names, depth, f"is a list of {len(here)} and has no {name!r}")
            at = int(name)
            return [*here[:at], _changed(here[at], names, depth + 1, value), *here[at + 1 :]]
        case _:
            raise _nowhere(names, depth, f"is {json.dumps(here)} and has nothing in it")


def filled_in(value: Any, words: Mapping[str, str]) -> Any:
    """Return ``value`` with ``{name}`` replaced by its word in every string, however deep."""
    match value:
        case str():
            for name, word in words.items():
                value = value.replace("{" + name + "}", word)
            return value
        case dict():
            return {name: filled_in(item, words) for name, item in value.items()}
        case list():
            return [filled_in(item, words) for item in value]
        case _:
            return value


def _nowhere(names: tuple[str, ...], depth: int, why: str) -> ConfigurationError:
    where = ".".join(names[:depth]) or "the event"
    return ConfigurationError(f"{'.'.join(names)}: {where} {why}")
