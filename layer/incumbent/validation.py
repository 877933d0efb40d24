"""The checks that every provider makes before any request (R10: validation, M5: once per id, M7: limits)."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, TypeVar

from incumbent.errors import ConfigurationError, MessageInvalid, MessageTooLarge

T = TypeVar("T")

MAX_KEY_BYTES = 1_024
MAX_OWNER_BYTES = 512
MAX_MESSAGE_ID_BYTES = 256
MAX_ERROR_BYTES = 4_096
MAX_TTL_MS = 86_400_000
MAX_FENCE = 2**63 - 1
MAX_LIMIT = 1_000_000_000
MAX_DEPTH = 500  # levels of an event: Python 3.11 reads 992 of them back, less the depth of its caller
MAX_DIGITS = 4_300  # of an integer: what Python reads unless it was told otherwise
_YES = frozenset({"1", "true", "yes", "on", "y", "t"})
_NO = frozenset({"", "0", "false", "no", "off", "n", "f"})
_BEGINNING_BYTES = 128  # shown of a name that is too long, before its digest
_FITTED = r"~sha256\.[0-9a-f]{64}\Z"  # compiled at the first use, not at the import
_MAX_SHOWN = 80  # characters: enough to recognise it


def shown(value: object) -> str:
    """Return a value as an error shows it: shortened, and also if its ``repr`` raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a number with thousands of digits is one; others may raise anything
        return "..."
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def printable(text: str, *, keep: str = "") -> str:
    """The text on one line, with an escape for every character that a terminal might obey or cannot show.

    These are control characters, those that change the direction of writing, lone surrogates, and whatever else
    `str.isprintable` names; and the backslash, so that two texts never look alike. ``keep`` are characters that stay.
    """
    return "".join(
        each if each in keep or (each.isprintable() and each != "\\") else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def json_text(value: object, *, indent: int | None = None) -> str:
    """The value as JSON that a terminal can show: what `printable` would escape is written as JSON escapes it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else _json_escape(each) for each in text)


def encodable(text: str, encoding: str) -> str:
    """The text with JSON's escape for every character that the encoding does not have."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(each if _has(encoding, each) else _json_escape(each) for each in text)
    return text


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def check_text(name: str, value: object, most: int, key: str | None = None) -> str:
    """Check a text: 1 to ``most`` bytes of UTF-8, any character."""
    if type(value) is str and value.isascii() and 0 < len(value) <= most:
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a str, not {type(value).__name__}: {shown(value)}", key=key)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as cause:
        raise ConfigurationError(f"{name} is not valid Unicode: {shown(value)}", key=key) from cause
    if not 1 <= size <= most:
        raise ConfigurationError(f"{name} has {size:,} bytes; allowed are 1 to {most:,}: {shown(value)}", key=key)
    return value


def check_key(key: object) -> str:
    """Check a key: 1 to 1,024 bytes of UTF-8, any character."""
    return check_text("the key", key, MAX_KEY_BYTES)


def is_fitted(text: str) -> bool:
    """Return whether a text is the digested form of one that was too long, as listings show it."""
    return "~sha256." in text and re.search(_FITTED, text) is not None


def fit(text: str, most_bytes: int) -> str:
    """Shorten a text to at most ``most_bytes`` of UTF-8: a longer one becomes its beginning and its digest.

    Two texts never get the same result: one that looks shortened is shortened too. So apply it only once. A text
    that is not valid Unicode is returned unchanged, for a check to refuse.
    """
    if text.isascii() and len(text) <= most_bytes and not is_fitted(text):
        return text
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return text
    if len(raw) <= most_bytes and not is_fitted(text):
        return text
    import hashlib  # 5 ms, and most names fit

    return f"{raw[:_BEGINNING_BYTES].decode(errors='ignore')}~sha256.{hashlib.sha256(raw).hexdigest()}"


def fit_message_id(message_id: Any) -> Any:
    """Return the id of a message as it is stored. A value that is not text is left to the check of ids."""
    return fit(message_id, MAX_MESSAGE_ID_BYTES) if isinstance(message_id, str) else message_id


def check_owner(owner: object, key: str, name: str = "the owner") -> str:
    """Check an owner: 1 to 512 bytes of UTF-8, any character."""
    return check_text(name, owner, MAX_OWNER_BYTES, key)


def check_message_id(message_id: object, key: str) -> str:
    """Check a message id: 1 to 256 bytes of UTF-8, any character."""
    return check_text("the message id", message_id, MAX_MESSAGE_ID_BYTES, key)


def check_error(error: object) -> str:
    """Check the text of an exception: at most 4,096 bytes of UTF-8, which may be empty."""
    return "" if error == "" else check_text("the error", error, MAX_ERROR_BYTES)


def check_origin(name: str, value: object) -> None:
    """Check a field of an origin: at most 1,024 bytes of UTF-8, or empty, or ``None``."""
    if value is None or value == "" or (isinstance(value, str) and value.isascii() and len(value) <= MAX_KEY_BYTES):
        return
    check_text(f"the origin's {name}", value, MAX_KEY_BYTES)


def check_ms(name: str, value: object, least: int, most: int, key: str | None = None) -> int:
    """Check whole milliseconds within bounds; a bool or a float is refused."""
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(
            f"{name} must be whole milliseconds (an int), not {type(value).__name__}: {shown(value)}", key=key
        )
    if not least <= value <= most:
        raise ConfigurationError(f"{name} is {shown(value)} ms; allowed are {least:,} to {most:,}", key=key)
    return value


def check_limit(limit: object) -> int:
    """Check the maximum length of a listing: a whole number from 0 to 1,000,000,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT:
        raise ConfigurationError(f"limit is {shown(limit)}: give a whole number from 0 to {MAX_LIMIT:,}")
    return limit


def flag(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a switch in the environment is on. A value that is neither yes nor no is refused."""
    given = environ.get(name)
    if not given:
        return False
    said = given.strip().lower()
    if said in _YES or said in _NO:
        return said in _YES
    raise ConfigurationError(f"{name} is {shown(environ[name])}: give 1 or 0")


def check_ttl(ttl_ms: object, key: str | None = None) -> int:
    """Check a ttl: 1 to 86,400,000 whole milliseconds (one day)."""
    return check_ms("ttl_ms", ttl_ms, 1, MAX_TTL_MS, key)


def check_transfer(key: object, from_owner: object, to_owner: object, ttl_ms: object) -> None:
    """Check a transfer: two owners that differ, since an owner string is good for one tenure (R2: acquire)."""
    checked = check_key(key)
    check_owner(from_owner, checked, "from_owner")
    check_owner(to_owner, checked, "to_owner")
    check_ttl(ttl_ms, checked)
    if from_owner == to_owner:
        raise ConfigurationError(
            f"transfer of key {checked!r} from owner {from_owner!r} to itself: give the successor its own owner string",
            key=checked,
        )


def check_lease(key: object, owner: object, ttl_ms: object, fence: object = None) -> None:
    """Check the arguments that most calls share; ``fence`` is ``None`` where the caller does not know it."""
    checked = check_text("the key", key, MAX_KEY_BYTES)
    check_text("the owner", owner, MAX_OWNER_BYTES, checked)
    check_ms("ttl_ms", ttl_ms, 1, MAX_TTL_MS, checked)
    if fence is not None:
        check_fence(fence, checked)


def check_fence(fence: object, key: str) -> None:
    """Check a fence; ``None`` is one that the caller does not know. Raises ``ConfigurationError``."""
    if fence is not None and (type(fence) is not int or not 0 <= fence <= MAX_FENCE):
        raise ConfigurationError(
            f"fence of key {key!r} is {shown(fence)}: pass the fence that the owner was granted", key=key
        )


def check_settlement(
    key: str,
    handled: Sequence[str],
    others: Sequence[str],
    next_owner: str | None,
    ticket: str | None,
) -> list[str]:
    """Check the arguments of a settle: valid ids, each once; a successor or a ticket, not both. Return the ids."""
    if isinstance(handled, str):
        raise ConfigurationError(f"settle of key {key!r}: handled is text, not a list of ids: {handled!r}", key=key)
    named = [*handled, *others]
    for message_id in named:
        check_text("the message id", message_id, MAX_MESSAGE_ID_BYTES, key)
    if len(named) > 1 and len(set(named)) != len(named):
        raise ConfigurationError(f"settle of key {key!r} names a message twice: {named!r}", key=key)
    if next_owner is not None and ticket is not None:
        raise ConfigurationError(f"settle of key {key!r}: give next_owner or ticket, not both", key=key)
    if next_owner is not None:
        check_owner(next_owner, key, "next_owner")
    if ticket is not None:
        check_owner(ticket, key, "ticket")
    return named


def to_json(event: object, *, key: str, message_id: str, most_bytes: int) -> str:
    """Return the event as JSON text, the only form in which events are stored.

    Raises ``MessageInvalid`` for a value that JSON does not have or that some supported interpreter cannot read back,
    and ``MessageTooLarge`` beyond ``most_bytes`` of UTF-8.
    """
    wrong: str | None
    cause: Exception | None = None
    text, size, escaped = "", 0, False
    try:
        try:
            text = at_any_depth(_ENCODER.encode, event)
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:  # a lone surrogate: legal in JSON when escaped
            text, escaped = at_any_depth(_ASCII_ENCODER.encode, event), True
            size = len(text)
    except RecursionError as error:
        wrong, cause = _TOO_DEEP, error
    except (TypeError, ValueError) as error:
        wrong, cause = str(error), error
    else:
        if size > most_bytes:
            raise MessageTooLarge(
                f"message {message_id!r} of key {key!r} has {size:,} bytes, more than the {most_bytes:,} that may "
                "be stored: keep the body elsewhere and send its location, or choose what is stored with store=",
                key=key,
            )
        wrong = None if not escaped and _is_flat(event) else _look_through(event, escaped=escaped)[0]
    if wrong is None:
        return text
    raise MessageInvalid(
        f"message {message_id!r} of key {key!r} cannot be stored as JSON and read back unchanged ({wrong}): decorate "
        "outside parsers, or choose what is stored with store=",
        key=key,
    ) from cause


def is_plain(event: object) -> bool:
    """Return whether an event that `to_json` takes is read back as the same types: no tuple or enum in it."""
    return _look_through(event, escaped=True)[1]


def from_json(text: str | bytes) -> Any:
    """Read the stored text of an event.

    Raises ``UnreadableBody`` for text that some supported interpreter cannot read: text that is not JSON, NaN, an
    infinity (``1e999`` is one), an integer of more digits or a nesting of more levels than `to_json` takes.
    """
    try:
        stored = text.decode() if isinstance(text, bytes) else text
        event = at_any_depth(_decoded, stored)
    except RecursionError as cause:
        raise UnreadableBody(_TOO_DEEP) from cause
    except ValueError as cause:
        raise UnreadableBody(str(cause)) from cause
    deep = len(stored) > 2 * MAX_DEPTH and stored.count("[") + stored.count("{") > MAX_DEPTH
    if deep and (wrong := _look_through(event, escaped=False)[0]):
        raise UnreadableBody(wrong)
    return event


class UnreadableBody(ValueError):
    """A stored body cannot be read; the error's text says why. Providers make its message a dead letter (M6)."""


def raw_text(text: str | bytes) -> str:
    """Return a body that cannot be read as text for people."""
    return text.decode(errors="backslashreplace") if isinstance(text, bytes) else text


def at_any_depth(convert: Callable[[Any], T], value: Any) -> T:
    """Convert it; on a fresh stack where recursion fails, since the reason may be how deep the caller already is."""
    try:
        return convert(value)
    except RecursionError:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(convert, value).result()


def _decoded(text: str) -> Any:
    """Read JSON: at once if no white space is around it, as in what our own encoder wrote."""
    try:
        event, end = _DECODER.raw_decode(text)
    except ValueError:
        end = -1
    return event if end == len(text) else _DECODER.decode(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{shown(digits)} is more than a float holds")
    return number


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_TOO_LONG = 10**MAX_DIGITS
_PAIR = "[\ud800-\udbff][\udc00-\udfff]"  # two characters that JSON reads back as one


_PLAIN: frozenset[type] = frozenset({str, dict, list, int, bool, float, NoneType})  # the types that JSON is read as
_TEXT: frozenset[type] = frozenset({str})
_LEAVES = frozenset({str, bool, float, NoneType})  # of them, those in which nothing is wrong unless it is escaped


def _kind_of(value: object) -> type:
    """Return as which of these types a value is written that is of none of them itself."""
    return list if isinstance(value, tuple) else next((each for each in _PLAIN if isinstance(value, each)), NoneType)


def _is_flat(event: object) -> bool:
    """Return whether an event is an object of texts and the like: nothing is wrong in one, as is seen at a glance."""
    return type(event) is dict and _TEXT.issuperset(map(type, event)) and _LEAVES.issuperset(map(type, event.values()))


def _look_through(event: object, *, escaped: bool) -> tuple[str | None, bool]:  # noqa: C901, PLR0912 - one loop
    """Return which part of an event would not be read back unchanged, if any, and whether all types are JSON's.

    Level by level, so that no depth is too much. ``escaped``: there may be lone surrogates in it.
    """
    plain = True
    level: list[Any] = [event]
    for depth in range(MAX_DEPTH + 1):
        if not escaped and _LEAVES.issuperset(map(type, level)):
            break
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind not in _PLAIN:
                plain, kind = False, _kind_of(value)
            if kind is str:
                if escaped and re.search(_PAIR, value):
                    return "a text has the two halves of a surrogate pair", plain
            elif kind is dict:
                if depth == MAX_DEPTH:
                    return _TOO_DEEP, plain
                if not _TEXT.issuperset(map(type, value)):
                    plain = False
                    for name in value:
                        if not isinstance(name, str):
                            named = type(name).__name__
                            return f"a dictionary has the name {shown(name)}, a {named}: names are text", plain
                if escaped:
                    below.extend(value)
                below.extend(value.values())
            elif kind is list:
                if depth == MAX_DEPTH:
                    return _TOO_DEEP, plain
                below.extend(value)
            elif kind is int and not -_TOO_LONG < value < _TOO_LONG:
                return f"an integer has more than {MAX_DIGITS:,} digits", plain
        if not below:
            break
        level = below
    return None, plain
