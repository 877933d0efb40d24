"""Every limit, version and retention, written out: who changes one decides it, and says so in the documentation."""

import importlib
import inspect
from typing import Any

import pytest

import incumbent
from incumbent.observe import log_fact

DAY_MS = 86_400_000

LIMITS: dict[str, dict[str, Any]] = {
    "control_requests": {"VERSION": 1, "MAX_KEYS": 1_000},
    "event_reader": {"_MAX_NUMBER": 10**256},
    "invocation": {"MAX_REASON_BYTES": 1_024},
    "reporting": {"MAX_ERROR": 500},
    "results": {"MAX_RESULT_BYTES": 6_291_556, "MAX_VALUES": 10_000},
    "retry": {
        "MAX_TRIES": 3,
        "WAITS_MS": (1_000, 500, 250),
        "MAX_BUDGET_MS": 3_000,
        "MIN_BUDGET_MS": 250,
        "FIRST_LOOK_MS": 50,
        "MAX_LOOK_MS": 1_000,
    },
    "rules": {"LETTERS_MS": 14 * DAY_MS, "BEYOND": 100, "MAX_STORED": 1_100},
    "settings": {"MIN_TTL_MS": 100},
    "sweeper": {
        "LIMIT": 100,
        "MOST": 10_000,
        "MAX_FAILURES": 3,
        "PROBE": 10,
        "PAUSE_MS": 60_000,
        "MAX_PAUSE_MS": 900_000,
        "END_MS": 10_000,
        "EARLY_MS": 30_000,
    },
    "traces": {"REMEMBERED": 256},
    "validation": {
        "MAX_KEY_BYTES": 1_024,
        "MAX_OWNER_BYTES": 512,
        "MAX_MESSAGE_ID_BYTES": 256,
        "MAX_ERROR_BYTES": 4_096,
        "MAX_TTL_MS": DAY_MS,
        "MAX_FENCE": 9_223_372_036_854_775_807,
        "MAX_LIMIT": 1_000_000_000,
        "MAX_DEPTH": 500,
        "MAX_DIGITS": 4_300,
    },
    "values": {"MAX_RESULT_BYTES": 262_144, "MAX_WINDOW_MS": 7 * DAY_MS, "FOREVER_MS": 253_402_300_799_000},
    "wakers": {"RESUME_VERSION": 1, "QUEUE_VERSION": 1, "MAX_DELAY_S": 900},
    "providers.shared": {"MAX_HOLD_MS": 14 * DAY_MS, "MAX_NOTE_BYTES": 1_024, "MAX_REASON_BYTES": 1_024},
    "providers.dynamodb.attributes": {"VERSION": 1},
    "providers.dynamodb.bodies": {"PART_BYTES": 393_216, "KEPT_S": 1_209_600, "PARTS_KEPT_S": 2_419_200},
    "providers.dynamodb.change": {"MAX_PLACES": 24},
    "providers.dynamodb.item": {
        "INLINE_BYTES": 2_048,
        "INLINE_BYTES_A_KEY": 8_192,
        "MAX_ITEM_BYTES": 163_840,
        "FEW": 100,
        "AT_ONCE": 50,
        "IDLE_S": 1_296_000,
    },
    "providers.dynamodb.letters": {"_ERROR_BYTES": 4_096},
    "providers.dynamodb.names": {"SHARDS": 8, "SHORT": 3, "BUCKETS": 64, "OWNER": 10, "_MAX_SORT_KEY_BYTES": 1_024},
    "providers.dynamodb.provider": {"_MAX_PREFIX_BYTES": 255, "_MAX_SKEW_MS": 60_000},
    "providers.dynamodb.steps": {"MAX_ROUNDS": 32, "_EXACT_ROUNDS": 4},
    "providers.dynamodb.traces": {"MAX_INLINE": 4, "MAX_MARKS": 272, "_SPARE_S": 3_600},
    "providers.redis.names": {"MAX_PREFIX_BYTES": 256},
}


@pytest.mark.parametrize("module", LIMITS)
def test_limit_is_what_is_documented(module: str) -> None:
    """Also where a test of its effect would take the same name."""
    found = importlib.import_module(f"incumbent.{module}")
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]


# What an argument is that is not given, of what everyone may call.
DEFAULTS: dict[str, dict[str, Any]] = {
    "Claimed": {"dead_lettered": ()},
    "Continued": {"dead_lettered": ()},
    "Duplicate": {"dead_lettered": ()},
    "Fact": {"message_ids": ()},
    "Failure": {"final": False},
    "Idle": {"dead_lettered": ()},
    "ListIncomplete": {"skipped": ()},
    "Message": {"attempt": 0, "stored_at_ms": 0, "due_at_ms": 0, "promised": False},
    "Origin": {"keyspace": ""},
    "Policy": {
        "max_pending": 100,
        "max_message_bytes": 3 * 1_024**2,
        "window_ms": 3_600_000,
        "max_attempts": 5,
        "pauses_ms": (1_000, 10_000, 60_000, 300_000),
        "on_error": "skip",
        "keep": "all",
        "result_bytes": 0,
    },
    "Released": {"dead_lettered": ()},
    "RetryLater": {"reason": "the handler asked for a pause", "scope": "message"},
    "Routed": {"superseded": ()},
    "Status": {"result_is": "none"},
    "Stop": {"start": 1},
    "StoredFormatUnknown": {"skipped": (), "readable": ()},
    "Wake": {"hops": 0, "after_ms": 0},
    "hold": {"waker": "auto"},
    "keys": {"limit": 1_000},
    "resume": {"waker": "auto"},
    "send": {"waker": "auto", "ttl_ms": 30_000, "after_ms": 0},
    "show": {"events": False},
    "providers.dynamodb.DynamoDBProvider": {"key_prefix": "incumbent", "max_clock_skew_ms": 1_000},
    "providers.redis.RedisProvider": {"key_prefix": "incumbent"},
    "settings.Settings": {
        "ttl_ms": 30_000,
        "when_busy": "enqueue",
        "deliver": "one",
        "debounce_ms": 0,
        "min_gap_ms": 0,
        "cancel_on_stop": False,
        "max_hops": 100,
    },
    "sweeper.sweep": {"limit": 100, "observers": (log_fact,)},
}


def found(name: str) -> Any:
    """Return what has this name in the package."""
    module, _, own_name = name.rpartition(".")
    return getattr(importlib.import_module(f"incumbent.{module}") if module else incumbent, own_name)


PUBLIC = {name for name in incumbent.__all__ if callable(getattr(incumbent, name))}


@pytest.mark.parametrize("name", sorted(PUBLIC | DEFAULTS.keys()))
def test_default_is_what_is_documented(name: str) -> None:
    """Of numbers, words and switches."""
    arguments = inspect.signature(found(name)).parameters.values()
    values = {each.name: each.default for each in arguments if isinstance(each.default, int | str | tuple)}
    assert values == DEFAULTS.get(name, {})
