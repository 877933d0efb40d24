"""The frozen values, and a policy that is valid from birth."""

import dataclasses
import inspect
from typing import Any

import pytest

from incumbent import values
from incumbent.errors import ConfigurationError
from incumbent.values import Duplicate, Failure, Message, Origin, Policy
from incumbent.wakers import Wake

ALL = [each for _, each in inspect.getmembers(values, dataclasses.is_dataclass)]


@pytest.mark.parametrize("kind", ALL)
def test_value_is_frozen_slotted_and_made_by_keyword(kind: Any) -> None:
    """What has been answered cannot be changed, and a misspelt attribute is an error."""
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_values_are_equal_by_what_they_say() -> None:
    """So that an answer can be compared with what was expected."""
    assert Duplicate(state="dead") == Duplicate(state="dead", owner=None)
    assert Message(id="m1", event=[1]) == Message(id="m1", event=[1])
    assert Message(id="m1", event=[1]) != Message(id="m1", event=[1], attempt=1)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("max_pending", 1, 1_000), ("max_message_bytes", 1, 4_194_304), ("max_attempts", 1, 1_000)],
)
def test_policys_numbers_have_bounds(name: str, least: int, most: int) -> None:
    """M6, M7: both ends are allowed, nothing beyond, and no bool or float."""
    allowed: list[Any] = [least, most]
    refused: list[Any] = [least - 1, most + 1, -1, True, 2.0, "3", None]
    for value in allowed:
        assert getattr(Policy(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigurationError, match=name):
            Policy(**{name: value})


def test_window_is_a_quarter_of_an_hour_at_least() -> None:
    """M5: an hour unless set; from 15 minutes to a week."""
    assert Policy().window_ms == 3_600_000
    assert Policy(window_ms=900_000).window_ms == 900_000
    assert Policy(window_ms=7 * 86_400_000).window_ms == 604_800_000
    for window_ms in (899_999, 604_800_001, 0, True, 900_000.0):
        with pytest.raises(ConfigurationError, match="window_ms"):
            Policy(window_ms=window_ms)  # type: ignore[arg-type]


def test_pauses_are_whole_milliseconds_and_at_least_one() -> None:
    """M6: 0 is a pause too: at once."""
    assert Policy(pauses_ms=(0,)).pause_ms(1) == 0
    for pauses_ms in ((), (-1,), (0.5,), (86_400_001,), (1_000, True)):
        with pytest.raises(ConfigurationError, match="pauses_ms"):
            Policy(pauses_ms=pauses_ms)  # type: ignore[arg-type]


def test_order_is_skip_or_block() -> None:
    """M6: nothing else."""
    assert Policy(on_error="block").on_error == "block"
    for on_error in ("retry", "", None, "SKIP"):
        with pytest.raises(ConfigurationError, match="on_error"):
            Policy(on_error=on_error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "pause_ms"),
    [(0, 1_000), (1, 1_000), (2, 10_000), (3, 60_000), (4, 300_000), (5, 300_000), (1_000, 300_000)],
)
def test_pauses_grow_and_the_last_one_stays(attempts: int, pause_ms: int) -> None:
    """M6: 1, 10, 60 seconds, then five minutes each time."""
    assert Policy().pause_ms(attempts) == pause_ms


@pytest.mark.parametrize("error", ["x" * 4_097, "\ud800", None, b"gone", ValueError("gone")])
def test_failure_keeps_what_every_store_can_keep(error: Any) -> None:
    """Text of at most 4,096 bytes, and nothing else."""
    with pytest.raises(ConfigurationError, match="the error"):
        Failure(id="m", error=error)


@pytest.mark.parametrize("after_ms", [-1, True, 0.5, 86_400_001, "5"])
def test_pause_of_a_failure_is_whole_milliseconds(after_ms: Any) -> None:
    """From none to one day."""
    with pytest.raises(ConfigurationError, match="after_ms"):
        Failure(id="m", error="gone", after_ms=after_ms)


@pytest.mark.parametrize("name", ["keyspace", "target", "request_id", "log_stream"])
def test_field_of_an_origin_has_a_limit(name: str) -> None:
    """It is stored beside the messages of a key: 1,024 bytes fit, whatever their characters."""
    for longest, longer in (("x" * 1_024, "x" * 1_025), ("é" * 512, "é" * 512 + "x")):
        given: dict[str, Any] = {name: longest}
        assert getattr(Origin(**given), name) == longest
        with pytest.raises(ConfigurationError, match=f"the origin's {name}"):
            Origin(**{**given, name: longer})
    with pytest.raises(ConfigurationError, match=f"the origin's {name}"):
        Origin(**{**given, name: 7})


def test_what_is_not_said_is_as_the_documentation_says() -> None:
    """The defaults of what users make, each written out."""
    policy = Policy(
        max_pending=100,
        max_message_bytes=3 * 1_024 * 1_024,
        window_ms=3_600_000,
        max_attempts=5,
        pauses_ms=(1_000, 10_000, 60_000, 300_000),
        on_error="skip",
        keep="all",
        result_bytes=0,
    )
    assert vars_of(Policy()) == vars_of(policy)
    message = Message(id="m", event=1, attempt=0, stored_at_ms=0, due_at_ms=0, promised=False, last_error=None)
    assert vars_of(Message(id="m", event=1)) == vars_of(message)
    assert vars_of(Failure(id="m", error="e")) == vars_of(Failure(id="m", error="e", after_ms=None, final=False))
    wake = Wake(key="k", ticket=None, target=None, hops=0, after_ms=0)
    assert vars_of(Wake(key="k", ticket=None, target=None)) == vars_of(wake)


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a value."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
