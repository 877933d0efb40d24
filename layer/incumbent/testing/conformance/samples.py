"""Arguments that every provider refuses, and odd ones that every provider takes."""

import json
import math
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

MAX_TTL_MS = 86_400_000

BAD_KEYS: dict[str, Any] = {
    "empty": "",
    "too long": "k" * 1_025,
    "too long in bytes": "é" * 513,
    "lone surrogate": "\ud800",
    "bytes": b"key",
    "none": None,
    "number": 7,
}
BAD_OWNERS: dict[str, Any] = {
    "empty": "",
    "too long": "o" * 513,
    "too long in bytes": "é" * 257,
    "lone surrogate": "\udfff",
    "bytes": b"owner",
    "none": None,
    "number": 7,
}
BAD_TTLS: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "bool": True,
    "fraction": 0.5,
    "whole float": 30_000.0,
    "nan": float("nan"),
    "infinite": float("inf"),
    "more than a day": MAX_TTL_MS + 1,
    "2**63": 2**63,
    "text": "5",
    "none": None,
}

# Appended to a fresh key, each of them must name a key of its own (R10).
ODD_ENDINGS = [
    "",
    " ",
    "\0",
    "\0\0",
    "\n",
    "\r\n",
    "\t",
    "{}",
    "{",
    "}",
    "{x}",
    "%",
    "%%",
    "%7B",
    "%7B%7D",
    "%7b",
    "%25",
    "%257B",
    "#",
    "#lease",
    ":",
    "::",
    ":lease",
    ":state",
    ":mail",
    "/",
    "\\",
    "*",
    "?",
    "[a]",
    '"',
    "'",
    "é",
    "e\u0301",  # looks like the one before
    "🐍",
    "\U0010ffff",
    "\u202e",
    "a:b",
    "a",
    "b",
    "a#b",
    "A",
]
BAD_IDS: dict[str, Any] = {
    "empty": "",
    "too long": "i" * 257,
    "too long in bytes": "é" * 129,
    "lone surrogate": "\ud800",
    "bytes": b"id",
    "none": None,
    "number": 7,
}
NOT_JSON: dict[str, Any] = {
    "set": {1, 2},
    "bytes": b"bytes",
    "object": object(),
    "nan": math.nan,
    "infinity": {"deep": [math.inf]},
    "date": {"at": datetime(2026, 1, 1, tzinfo=UTC)},
    "decimal": [Decimal("1.5")],
    "number as a name": {"orders": [{1: "a"}]},
    "number as a name in an object of another kind": [OrderedDict({1: "a"})],
    "names that meet": {1: "a", "1": "b"},
    "fraction as a name": {1.5: "a"},
    "truth as a name": {True: "a"},
    "none as a name": {None: "a"},
    "halves of a pair": ["\ud83d\ude00"],
    "halves of a pair in a name": {"\ud83d\ude00": 1},
    "501 levels": json.loads("[" * 501 + "]" * 501),
    "901 levels": {"v": json.loads("[" * 900 + "]" * 900)},
    "501 levels of objects": json.loads('{"a":' * 501 + "1" + "}" * 501),
    "4,301 digits": {"n": 10**4_300},
    "minus 4,301 digits": {"n": [-(10**4_300)]},
}
EVENTS: dict[str, Any] = {
    "null": None,
    "false": False,
    "zero": 0,
    "empty text": "",
    "empty list": [],
    "empty object": {},
    "empty things in things": {"a": {}, "b": [], "c": [[], {}], "d": "", "e": None},
    "text": "a text",
    "unicode": "é e\u0301 🐍 \u202e \U0010ffff",
    "control characters": "\0\1\b\t\n\r\x1f\x7f\u2028\u2029",
    "quotes": "\"'\\/ \\u0041 \\\\",
    "lone surrogate": "\ud83d",
    "what looks like markup": "{} {{x}} %s %7B $(x) <b> #a :b {tag}:1",
    "floats": [0.1, -0.0, 1e-300, 1.7976931348623157e308, 3.0, 1e22, 0.30000000000000004],
    "integers": [0, -1, 2**31, 2**53, 2**53 + 1, -(2**63), 2**64, 10**40],
    "booleans beside numbers": [True, 1, 1.0, False, 0, 0.0, None],
    "order of names": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    "odd names": {"": 1, " ": 2, "\0": 3, "é": 4, "a.b": 5, "a[0]": 6, "#": 7, ":": 8, "owner": 9, "ttl": 10},
    "text that looks like numbers": ["1", "1.0", "1e5", "true", "null", "NaN", ""],
    "deep": json.loads("[" * 60 + "]" * 60),
    "500 levels": json.loads('[{"a":' * 250 + "1" + "}]" * 250),
    "4,300 digits": [10**4_300 - 1, -(10**4_300) + 1],
    "long list": list(range(1_000)),
    "2 KiB to the byte": "x" * (2_048 - 2),
    "2 KiB and a byte": "x" * (2_048 - 1),
    "3 KB": "é" * 1_500,
    "60 KB": {"text": "🐍" * 15_000},
    "200 KB": ["x" * 100_000, "é" * 50_000],
}


def table(values: dict[str, Any]) -> Any:
    """Mark a test to be run for each row."""
    return [pytest.param(value, id=name.replace(" ", "-")) for name, value in values.items()]
