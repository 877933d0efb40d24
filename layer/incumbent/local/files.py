"""Reads the files that a person names: events, scenarios, templates. Every fault is one line."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from incumbent.errors import ConfigurationError

MAX_DEPTH = 256
"""How many lists and objects may stand inside one another, in files and in answers: each Python here reads that."""

MAX_DIGITS = 4_300
"""How many digits a whole number may have: what Python reads unless it is told otherwise."""

MAX_EVENT_BYTES = 6 * 1024 * 1024
"""What Lambda takes as the event of a synchronous invocation, and as its answer."""

MAX_ASYNC_EVENT_BYTES = 1024 * 1024
"""What Lambda takes as the event of an asynchronous invocation."""


def read_text(file: Path, what: str, *, max_bytes: int) -> str:
    """Read a file of UTF-8, with or without a byte order mark; ``what`` is what it holds, for the error.

    Raises:
        ConfigurationError: it cannot be read, is larger than ``max_bytes``, or is not UTF-8.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(max_bytes + 1)
    except OSError as cause:
        raise ConfigurationError(f"cannot read {what} {file}: {cause.strerror}") from cause
    except ValueError as cause:  # a path with a NUL, or with half of a surrogate pair
        raise ConfigurationError(f"cannot read {what} {str(file)!r}: {cause}") from cause
    if len(data) > max_bytes:
        raise ConfigurationError(f"{file} is larger than {max_bytes:,} bytes, which is the limit for {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise ConfigurationError(f"{file} is not UTF-8: {cause.reason} at byte {cause.start}") from cause


def load_json(file: Path, what: str, *, max_bytes: int = MAX_EVENT_BYTES, unique_names: bool = False) -> Any:
    """Read a JSON file; ``what`` is what it holds, for the error.

    ``unique_names`` refuses an object that has one name twice; otherwise the last one counts, as on Lambda.

    Raises:
        ConfigurationError: it cannot be read, is not JSON, or is nested deeper than `MAX_DEPTH`; the text says where.
    """
    text = read_text(file, what, max_bytes=max_bytes)
    try:
        return parse_json(text, unique_names=unique_names)
    except json.JSONDecodeError as cause:
        where = f"line {cause.lineno}, column {cause.colno}"
        raise ConfigurationError(f"{file} is not JSON: {cause.msg} at {where}") from cause
    except ValueError as cause:
        raise ConfigurationError(f"{file} cannot be read: {cause}") from cause


def parse_json(text: str | bytes, *, unique_names: bool = False) -> Any:
    """Parse JSON that everything here can handle further.

    Raises:
        ValueError: it is not JSON (``NaN`` and ``Infinity`` are not), a number is too large, or it is nested deeper
            than `MAX_DEPTH`.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_whole,
            parse_float=_finite,
            object_pairs_hook=_unique if unique_names else None,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(value)
    return value


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def check_depth(value: Any) -> None:
    """Raise ValueError where lists and objects stand inside one another deeper than `MAX_DEPTH`."""
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        level = _containers(inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
    if level:
        raise ValueError(_TOO_DEEP)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if isinstance(each, dict | list)]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it has a whole number of {len(text):,} digits, and {MAX_DIGITS:,} are the limit")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return found
