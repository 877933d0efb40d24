"""What is refused before any request: both sides of each bound (R10, M5, M7)."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import ConfigurationError, MessageTooLarge
from incumbent.validation import (
    MAX_TTL_MS,
    check_key,
    check_lease,
    check_message_id,
    check_ms,
    check_owner,
    check_settlement,
    check_transfer,
    check_ttl,
    encodable,
    json_text,
    printable,
    shown,
    to_json,
)

TEXTS: dict[str, tuple[Callable[[Any], str], int]] = {
    "key": (check_key, 1_024),
    "owner": (lambda value: check_owner(value, "thread-1"), 512),
    "message id": (lambda value: check_message_id(value, "thread-1"), 256),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("filling", ["x", "é", "€", "🐍"])
def test_text_is_measured_in_bytes(name: str, filling: str) -> None:
    """R10: of UTF-8: the longest is allowed, one character more is not."""
    check, most = TEXTS[name]
    longest = filling * (most // len(filling.encode()))
    longest += "x" * (most - len(longest.encode()))
    assert check(longest) == longest
    with pytest.raises(ConfigurationError, match=f"{most + 1:,} bytes"):
        check(longest + "x")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", b"bytes", None, 7, 1.5, True, ["x"], "\ud800", "x\udfff"])
def test_what_is_no_text_is_refused(name: str, value: object) -> None:
    """R10: nothing is converted; the message says which argument it was."""
    # H27: moto takes an empty key, Redis takes all.
    with pytest.raises(ConfigurationError, match=f"the {name}"):
        TEXTS[name][0](value)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["x", " ", "\0", "\n", "{}", "%7B", "#", ":", "🐍", "\u202e"])
def test_any_character_is_allowed(name: str, value: str) -> None:
    """R10: and returned as it came."""
    assert TEXTS[name][0](value) == value


def test_long_value_is_shown_in_part() -> None:
    """A message is to be read: it does not repeat a megabyte."""
    with pytest.raises(ConfigurationError) as raised:
        check_key("k" * 1_000_000)
    assert len(str(raised.value)) < 200


def test_error_names_the_key() -> None:
    """Where there is one."""
    # H50: Powertools #6308.
    for refused in (
        lambda: check_owner("", "thread-1"),
        lambda: check_message_id("", "thread-1"),
        lambda: check_ttl(0, "thread-1"),
        lambda: check_lease("thread-1", "A", 0),
        lambda: check_transfer("thread-1", "A", "A", 1),
        lambda: check_settlement("thread-1", ["m1", "m1"], [], None, None),
        lambda: to_json({1, 2}, key="thread-1", message_id="m1", most_bytes=100),
    ):
        with pytest.raises(ConfigurationError) as raised:
            refused()
        assert raised.value.key == "thread-1"


@pytest.mark.parametrize("ttl_ms", [1, 2, 30_000, MAX_TTL_MS])
def test_ttl_is_whole_milliseconds_of_a_day_at_most(ttl_ms: int) -> None:
    """R10."""
    assert check_ttl(ttl_ms) == ttl_ms


@pytest.mark.parametrize(
    "ttl_ms", [0, -1, True, False, 0.5, 1.0, math.nan, math.inf, MAX_TTL_MS + 1, 2**63, -(2**63), "5", b"5", None, [1]]
)
def test_another_ttl_is_refused(ttl_ms: object) -> None:
    """R10: no bool, no float, nothing that a store would round or take for something else."""
    # H26: 0 locks for ever in redis-py; 0 frees in Mastra.
    with pytest.raises(ConfigurationError, match="ttl_ms"):
        check_ttl(ttl_ms)


def test_milliseconds_keep_their_bounds() -> None:
    """Both ends are allowed."""
    assert check_ms("drain_ms", 0, 0, 10) == 0
    assert check_ms("drain_ms", 10, 0, 10) == 10
    for value in (-1, 11):
        with pytest.raises(ConfigurationError, match=f"drain_ms is {value}"):
            check_ms("drain_ms", value, 0, 10)


def test_transfer_goes_to_another_owner() -> None:
    """R2: an owner string is good for one tenure; each argument is checked under its own name."""
    check_transfer("thread-1", "A", "B", 1)
    with pytest.raises(ConfigurationError, match="itself"):
        check_transfer("thread-1", "A", "A", 1)
    with pytest.raises(ConfigurationError, match="from_owner"):
        check_transfer("thread-1", "", "B", 1)
    with pytest.raises(ConfigurationError, match="to_owner"):
        check_transfer("thread-1", "A", None, 1)
    with pytest.raises(ConfigurationError, match="ttl_ms"):
        check_transfer("thread-1", "A", "B", 0)
    with pytest.raises(ConfigurationError, match="the key"):
        check_transfer("", "A", "B", 1)


def test_settlement_names_each_message_once() -> None:
    """M2: with one end each, and one successor."""
    check_settlement("thread-1", ["m1", "m2"], ["m3"], None, None)
    check_settlement("thread-1", [], [], "B", None)
    check_settlement("thread-1", [], [], None, "T")
    for handled, others, next_owner, ticket, match in (
        (["m1", "m1"], [], None, None, "twice"),
        (["m1"], ["m1"], None, None, "twice"),
        ([], ["m1", "m1"], None, None, "twice"),
        ([""], [], None, None, "message id"),
        ([], ["x" * 257], None, None, "message id"),
        ([], [], "B", "T", "not both"),
        ([], [], "", None, "next_owner"),
        ([], [], None, "", "ticket"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            check_settlement("thread-1", handled, others, next_owner, ticket)


def text_of(event: object, most_bytes: int = 1_000) -> str:
    """As it is stored."""
    return to_json(event, key="thread-1", message_id="m1", most_bytes=most_bytes)


def test_event_is_stored_as_short_json() -> None:
    """Without spaces, and with characters as they are."""
    assert text_of({"a": [1, 2.5, None, True], "é": "🐍"}) == '{"a":[1,2.5,null,true],"é":"🐍"}'


def test_lone_surrogate_is_stored_escaped() -> None:
    """It is legal in JSON, and no UTF-8: a browser cuts an emoji in half, and the event must still be kept."""
    text = text_of({"text": "é\ud83d"})
    assert text.isascii()
    assert json.loads(text) == {"text": "é\ud83d"}


@pytest.mark.parametrize("event", [{1, 2}, b"x", object(), math.nan, [math.inf], {"a": -math.inf}, {(1, 2): 3}, 1j])
def test_what_json_cannot_say_is_refused(event: object) -> None:
    """M1: with what to do about it."""
    with pytest.raises(ConfigurationError, match="store="):
        text_of(event)


def test_event_that_contains_itself_is_refused() -> None:
    """Whatever json makes of it."""
    event: list[object] = []
    event.append(event)
    with pytest.raises(ConfigurationError):
        text_of(event)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigurationError):
        text_of(deep)


@pytest.mark.parametrize("filling", ["x", "é", "🐍"])
def test_size_is_counted_in_bytes(filling: str) -> None:
    """M7: of what is stored; the limit itself is allowed."""
    event = filling * 100
    size = len(json.dumps(event, ensure_ascii=False).encode())
    assert text_of(event, size)
    with pytest.raises(MessageTooLarge, match=f"{size:,} bytes") as raised:
        text_of(event, size - 1)
    assert raised.value.key == "thread-1"


def test_size_of_what_is_escaped_is_its_own() -> None:
    """M7: six bytes for a lone surrogate, and for every other character beside it that is not ASCII."""
    event = "\ud83d" * 10
    assert text_of(event, 62)
    with pytest.raises(MessageTooLarge):
        text_of(event, 61)


@pytest.mark.parametrize(
    ("text", "shown_as"),
    [
        ("plain é 🐍", "plain é 🐍"),
        ("a\nb\r\x1b[2J\x9b\x7f\0", r"a\nb\r\x1b[2J\x9b\x7f\x00"),
        ("\u202e\u2066\u200b\u2028\ufeff", r"\u202e\u2066\u200b\u2028\ufeff"),
        ("\ud800\U000e0001", r"\ud800\U000e0001"),
        (r"a\nb", r"a\\nb"),
        ("\\\n", r"\\\n"),
    ],
)
def test_what_a_terminal_might_obey_is_escaped(text: str, shown_as: str) -> None:
    """On one line, and in JSON so that it reads back."""
    assert printable(text) == shown_as
    for indent in (None, 2):
        as_json = json_text({"k": text}, indent=indent)
        assert json.loads(as_json) == {"k": text}
        assert as_json.replace("\n", "").isprintable()
    for encoding in ("ascii", "latin-1", "utf-8"):
        written = encodable(json_text(text), encoding)
        assert json.loads(written.encode(encoding).decode(encoding)) == text


def test_value_in_an_error_is_short() -> None:
    """80 characters of what it looks like, and of what has no looks nothing."""

    class Shy:
        def __repr__(self) -> str:
            raise ValueError

    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == f"'{'x' * 79}..."
    assert shown(Shy()) == "..."


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"key": ""}, "the key"), ({"owner": ""}, "the owner"), ({"ttl_ms": 0}, "ttl_ms"), ({"fence": -1}, "fence")],
)
def test_each_argument_of_a_call_is_checked(wrong: dict[str, Any], said: str) -> None:
    """R10: whichever it is."""
    right: dict[str, Any] = {"key": "k", "owner": "A", "ttl_ms": 1, "fence": 0}
    check_lease(**right)
    with pytest.raises(ConfigurationError, match=said):
        check_lease(**{**right, **wrong})
