"""Every limit, version and retention, written out: who changes one decides it, and says so in the documentation."""

import importlib
from typing import Any

import pytest

DAY_MS = 86_400_000

LIMITS: dict[str, dict[str, Any]] = {
    "control_requests": {"VERSION": 1, "MAX_KEYS": 1_000},
    "controlling": {"_FIRST_PAUSE_MS": 50, "_MAX_PAUSE_MS": 1_000},
    "event_reader": {"_MAX_NUMBER": 10**256},
    "invocation": {"MAX_REASON_BYTES": 1_024},
    "reporting": {"MAX_ERROR": 500},
    "results": {"MAX_RESULT_BYTES": 6_291_556, "MAX_VALUES": 10_000},
    "retry": {"MAX_TRIES": 3, "WAITS_MS": (1_000, 500, 250), "MAX_BUDGET_MS": 3_000, "MIN_BUDGET_MS": 250},
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
    "waiting": {"_FIRST_PAUSE_MS": 50, "_MAX_PAUSE_MS": 1_000},
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
