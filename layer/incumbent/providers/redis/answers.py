"""The answers of the scripts: their messages, and the errors that they stand for."""

from collections.abc import Iterator, Sequence
from typing import Any

from incumbent.clock import Moment
from incumbent.errors import LeaseUnavailable, StoredFormatUnknown
from incumbent.frozen import dataclass, replace
from incumbent.providers.shared import status_left
from incumbent.providers.unreadable import message_of
from incumbent.validation import from_json
from incumbent.values import Message, Status


@dataclass(slots=True)
class ScriptAnswer:
    """An answer: when its try was sent, its first word, the numbers or words after that, and what else came."""

    sent: Moment
    word: bytes
    numbers: list[bytes]
    more: Sequence[Any]


def read(sent: Moment, raw: Any, *, call: str, key: str) -> ScriptAnswer:
    """Read an answer.

    Raises ``StoredFormatUnknown`` where a script has refused records, and ``LeaseUnavailable`` for what none answers.
    """
    if type(raw) is bytes and raw:  # as mostly: a word, and numbers
        word, *numbers = raw.split(b" ")
        return ScriptAnswer(sent, word, numbers, ())
    parts: Sequence[Any] = [raw] if isinstance(raw, bytes) else raw
    if not parts or not isinstance(parts[0], bytes) or not parts[0]:
        raise senseless(key, raw)
    first, more = parts[0], parts[1:]
    word, *numbers = first.split(b" ")
    if word == b"format":
        raise unknown_format(f"{call} of key {key!r}: its record {text(more[0])!r}", more[1], key)
    if word == b"broken":
        raise StoredFormatUnknown(
            f"{call} of key {key!r}: parts of its record {text(more[0])!r} are missing, as after an eviction or an "
            "edit by hand; it was left as it is. Look at the lease and its companions, and remove what is left of them",
            key=key,
        )
    return ScriptAnswer(sent, word, numbers, more)


def text(value: bytes) -> str:
    """Decode a value, which another program may have written, and not as UTF-8."""
    return value.decode(errors="backslashreplace")


def holder(answer: ScriptAnswer) -> str | None:
    """Return the owner that an answer names; ``None`` if the key has none."""
    return text(answer.more[0]) or None


def lives(pttl: bytes) -> int | None:
    """Return how long a lease lives; ``None`` for a lease of another program that does not expire."""
    number = int(pttl)
    return number if number >= 0 else None


def triples(parts: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Take the parts of an answer in threes: id, meta, body of each message."""
    yield from zip(parts[::3], parts[1::3], parts[2::3], strict=True)


def messages(parts: Sequence[bytes]) -> tuple[Message, ...]:
    """Read messages."""
    return tuple(message(*each) for each in triples(parts)) if parts else ()


def dead_messages(parts: Sequence[bytes]) -> tuple[Message, ...]:
    """Read dead messages: they are not due, and their source has been answered."""
    return tuple(replace(each, due_at_ms=0, promised=True) for each in messages(parts)) if parts else ()


def message(message_id: bytes, meta: bytes, body: bytes) -> Message:
    """Read a message. The meta holds attempts, times, whether it is promised, and its last error if it has one."""
    attempts, stored, due, promised, *error = meta.split(b" ", 4)
    return message_of(
        body,
        text(message_id),
        int(attempts),
        int(stored),
        due_at_ms=int(due),
        promised=promised == b"1",
        last_error=text(error[0]) if error else None,
    )


def moment(due: bytes) -> int | None:
    """Read in how many milliseconds a key can be granted; ``None`` if there is nothing to tell."""
    return None if due == b"-" else int(due)


def marked(answer: ScriptAnswer, place: int) -> tuple[Sequence[bytes], str | None]:
    """Take the mark of a tenure from an answer (M16): it is the last part if the word at that place says so."""
    if len(answer.numbers) <= place:
        return answer.more, None
    return answer.more[:-1], text(answer.more[-1])


def status(key: str, answer: ScriptAnswer) -> Status:
    """Read what is known of a message id; see ``status.lua``."""
    match answer.word, answer.numbers:
        case b"found", []:
            return Status(state="unknown")
        case b"found", [state, at]:
            (result,) = answer.more
            return status_left(text(state), int(at), text(result[1:]) if result else None)
        case b"found", [b"waiting", attempt, stored, due]:
            return Status(state="waiting", attempt=int(attempt), stored_at_ms=int(stored), due_at_ms=int(due))
        case b"found", [b"running", attempt, stored, due, fence]:
            owner, note = answer.more
            return Status(
                state="running",
                attempt=int(attempt),
                stored_at_ms=int(stored),
                due_at_ms=int(due),
                owner=text(owner),
                fence=int(fence),
                note=from_json(text(note)) if note else None,
            )
        case _:
            raise senseless(key, answer)


def unknown_format(what: str, version: bytes, key: str) -> StoredFormatUnknown:
    """Make the error of a record of a later version."""
    return StoredFormatUnknown(
        f"{what} has format {text(version)}, which this version cannot read; it was left as it is. Run the "
        "version that wrote it, or a newer one",
        key=key,
    )


def unreadable(call: str, record: str, message_id: bytes, version: bytes, *, key: str) -> StoredFormatUnknown:
    """Make the error of one message that a listing could not read; the version is empty if the message is broken."""
    what = f"{call} of key {key!r}: message {text(message_id)!r} in its record {record!r}"
    if version:
        return unknown_format(what, version, key)
    return StoredFormatUnknown(
        f"{what} is broken; it was left as it is. Look at the key's lease and its companions", key=key
    )


def senseless(key: str, answer: Any) -> LeaseUnavailable:
    """Make the error of an answer that no script gives."""
    return LeaseUnavailable(f"key {key!r}: unexpected reply of the store: {answer!r}", key=key)
