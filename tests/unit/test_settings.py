"""The settings of a function: their defaults, what is just allowed and just not, and what follows from them."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast, get_args

import pytest

from incumbent.errors import ConfigurationError
from incumbent.settings import Settings, WhenBusy
from incumbent.values import Debounce, Policy

DAY_MS = 86_400_000
KEEPS = Policy(result_bytes=1)


def test_settings_that_nothing_is_said_of() -> None:
    """Each written out."""
    settings = Settings()
    assert {field.name: getattr(settings, field.name) for field in dataclasses.fields(Settings)} == {
        **dict.fromkeys(("renew_every_ms", "wait_ms", "debounce_max_ms", "drain_ms", "stop_before_ms", "watch_ms")),
        "ttl_ms": 30_000,
        "when_busy": "enqueue",
        "deliver": "one",
        "debounce_ms": 0,
        "min_gap_ms": 0,
        "cancel_on_stop": False,
        "max_run_ms": None,
        "max_hops": 100,
        "policy": Policy(),
    }
    assert (settings.beat_ms, settings.debounce, settings.stores) == (10_000, None, True)


@pytest.mark.parametrize(
    ("common", "name", "least", "most"),
    [
        ({}, "ttl_ms", 100, DAY_MS),
        ({}, "renew_every_ms", 1, 15_000),
        ({"ttl_ms": DAY_MS}, "renew_every_ms", 1, DAY_MS // 2),
        ({}, "drain_ms", 0, DAY_MS),
        ({}, "stop_before_ms", 0, DAY_MS),
        ({}, "max_hops", 0, 1_000_000),
        ({"deliver": "all"}, "debounce_ms", 0, DAY_MS),
        ({"deliver": "all", "debounce_ms": 7}, "debounce_max_ms", 7, DAY_MS),
        ({}, "min_gap_ms", 0, DAY_MS),
        ({"when_busy": "wait", "policy": KEEPS}, "wait_ms", 1, DAY_MS),
        ({}, "watch_ms", 1, 9_999),
        ({"renew_every_ms": 500}, "watch_ms", 1, 499),
        ({}, "max_run_ms", 30_000, DAY_MS),
    ],
)
def test_bounds_of_a_setting(common: dict[str, Any], name: str, least: int, most: int) -> None:
    """Both are allowed, and nothing beyond them."""
    for right in (least, most):
        assert getattr(Settings(**{**common, name: right}), name) == right
    for wrong in (least - 1, most + 1):
        with pytest.raises(ConfigurationError, match=name):
            Settings(**{**common, name: wrong})


@pytest.mark.parametrize("when_busy", ["enqueue", "reject", "skip", "wait", "interrupt"])
def test_who_stores_behind_an_owner(when_busy: Any) -> None:
    """All but those that leave the message to its source, or drop it; only these need no mailbox."""
    more: dict[str, Any] = {"wait_ms": 1, "policy": KEEPS} if when_busy == "wait" else {}
    settings = Settings(when_busy=when_busy, **more)
    assert settings.stores is (when_busy not in {"reject", "skip"})
    assert settings.needs_mailbox == (f"when_busy={when_busy!r}" if settings.stores else "")


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ({"deliver": "all"}, "deliver='all'"),
        ({"min_gap_ms": 1}, "min_gap_ms"),
        ({"watch_ms": 1}, "watch_ms"),
        ({"cancel_on_stop": True}, "cancel_on_stop"),
    ],
)
def test_option_that_needs_a_mailbox(more: dict[str, Any], needs: str) -> None:
    """It is named."""
    assert Settings(when_busy="skip", **more).needs_mailbox == needs


def test_what_follows_from_others() -> None:
    """A third of the ttl; four times the pause, and a day at most."""
    assert Settings(renew_every_ms=7).beat_ms == 7
    assert Settings(ttl_ms=100).beat_ms == 33
    assert Settings(deliver="all", debounce_ms=7).debounce == Debounce(quiet_ms=7, max_ms=28)
    assert Settings(deliver="all", debounce_ms=7, debounce_max_ms=9).debounce == Debounce(quiet_ms=7, max_ms=9)
    assert Settings(deliver="all", debounce_ms=DAY_MS // 2).debounce == Debounce(quiet_ms=DAY_MS // 2, max_ms=DAY_MS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"deliver": "all", "debounce_max_ms": 9}, "set debounce_ms"),
        ({"debounce_ms": 9}, "needs deliver='all'"),
        ({"policy": None}, r"give a Policy\(...\)"),
        ({"when_busy": "wait", "wait_ms": 1}, "this policy keeps none"),
        ({"when_busy": "skip", "wait_ms": 1}, "belong together"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], said: str) -> None:
    """The error says what to do."""
    with pytest.raises(ConfigurationError, match=said):
        Settings(**settings)


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (partial(Settings, when_busy=cast("Any", "?")), get_args(WhenBusy)),
        (partial(Settings, deliver=cast("Any", "?")), ("one", "all")),
        (partial(Policy, on_error=cast("Any", "?")), ("skip", "block")),
        (partial(Policy, keep=cast("Any", "?")), ("all", "latest")),
    ],
)
def test_unknown_word_is_refused_with_those_that_are_known(
    make: Callable[[], object], allowed: tuple[str, ...]
) -> None:
    """So that the reader need not look them up."""
    with pytest.raises(ConfigurationError) as error:
        make()
    named = re.findall("'([^']+)'", str(error.value))
    assert named == ["?", *allowed]
