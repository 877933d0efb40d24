"""Every error that incumbent raises, in one tree.

::

    IncumbentError
    ├── ConfigurationError      an argument or a setting is invalid; nothing was sent to a store
    │   └── MessageInvalid      the event cannot be stored as JSON and read back unchanged
    ├── LeaseKeyMissing         the event has no usable key; the source keeps the event
    ├── LeaseBusy               another invocation owns the key and when_busy is "reject"; the source retries
    ├── DuplicateMessage        a task of a state machine ran before, and its result is not kept; catch it
    ├── LeaseUnavailable        the store could not be reached, or the outcome is unknown (R9); retry
    │   └── ListIncomplete      parts of the store gave a listing no answer; it has listed the others
    ├── LeaseLost               the lease ended before the run did; nothing was settled (R3)
    ├── MailboxFull             the key stores as many messages as allowed; nothing was stored (M7)
    ├── MessageTooLarge         the message is larger than allowed; nothing was stored (M7)
    ├── StoredFormatUnknown     a record was written by a version that this one does not know (M12)
    ├── ResultRefused           a handler returned a result that Lambda cannot send, or unfinished work; its run failed
    └── RetryLater              raised by a handler: run this message again after the given pause (M6)

The text of an error says what happened, to which key, and what to do. Its attributes hold the same for programs.
"""

from collections.abc import Sequence
from typing import Any, Literal

MAX_PAUSE_MS = 86_400_000
_NAMED = 10  # records, in the error of a listing


class IncumbentError(Exception):
    """The base of all errors. ``key`` is the key that it concerns, or ``None``."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        """Keep the key beside the message."""
        super().__init__(message)
        self.key = key


class ConfigurationError(IncumbentError):
    """An argument or a setting is invalid. Raised before any request; correct it and deploy."""


class MessageInvalid(ConfigurationError):
    """The event cannot be stored as JSON and read back unchanged. Raised before any request; nothing was stored (M7).

    This covers values that JSON does not have (NaN, bytes, a date), dictionaries whose names are not text, integers of
    more than 4,300 digits, and nesting of more than 500 levels, which not every supported Python reads back.
    """


class LeaseKeyMissing(IncumbentError):
    """The event has no usable key. Raised before any request, so the source keeps its event."""


class LeaseBusy(IncumbentError):
    """Another invocation owns the key, and ``when_busy`` is ``"reject"``. Nothing was stored."""


class DuplicateMessage(IncumbentError):
    """The message of a state machine's task ran before, and its result is not kept, so this try has no result.

    ``state`` is how it left, such as ``"handled"`` or ``"dead"``; ``"stopped"`` also if this run itself was (M16).
    Raised because the state machine would take any answer for the task's result.
    """

    def __init__(self, message: str, *, key: str | None = None, state: str | None = None) -> None:
        """Keep the state of the message."""
        super().__init__(message, key=key)
        self.state = state


class LeaseUnavailable(IncumbentError):
    """The store could not be reached, or the outcome of the call is unknown (R9).

    It never means "not owned" and never "lost". The call may have taken effect; repeating it is safe.
    """


class ListIncomplete(LeaseUnavailable):
    """Parts of the store gave a listing no answer; raised after what the others list (R9).

    ``skipped`` has one error for each part, such as a primary of a Redis cluster or a slot that moves, and then one for
    each record that could not be read (M12).
    """

    def __init__(self, message: str, *, skipped: Sequence[IncumbentError] = ()) -> None:
        """Keep what the listing skipped."""
        super().__init__(message)
        self.skipped = tuple(skipped)

    @classmethod
    def of(cls, skipped: Sequence[IncumbentError]) -> "ListIncomplete":
        """Make the error of a listing that skipped the parts and records of these errors."""
        return cls(f"keys are missing from this list: {_named(skipped)}", skipped=skipped)


class LeaseLost(IncumbentError):
    """The owner no longer holds the key; the messages that it would have settled are still stored (R3).

    ``owner`` lost the key. ``holder`` holds it now, or is ``None`` if the store did not report it.
    """

    def __init__(
        self, message: str, *, key: str | None = None, owner: str | None = None, holder: str | None = None
    ) -> None:
        """Keep the owner that lost the key and the one that holds it now."""
        super().__init__(message, key=key)
        self.owner = owner
        self.holder = holder


class MailboxFull(IncumbentError):
    """The key stores as many messages as allowed; this one was not stored (M7).

    ``owner`` holds the key and runs the stored messages; ``None`` if the key is free or the store did not report it.
    """

    def __init__(self, message: str, *, key: str | None = None, owner: str | None = None) -> None:
        """Keep the owner that holds the key."""
        super().__init__(message, key=key)
        self.owner = owner


class MessageTooLarge(IncumbentError):
    """The message is larger than allowed and was not stored (M7)."""


class StoredFormatUnknown(IncumbentError):
    """A stored record has a version that this release cannot read; it was left as it is (M12).

    A listing that had to skip records raises this error after the last record that it can read. ``skipped`` then has
    one error for each skipped record, with the key and the reason. ``readable`` holds what ``peek``, which returns all
    at once, could read.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        skipped: Sequence[IncumbentError] = (),
        readable: Sequence[Any] = (),
    ) -> None:
        """Keep what a listing skipped, and what it could read."""
        super().__init__(message, key=key)
        self.skipped = tuple(skipped)
        self.readable = tuple(readable)

    @classmethod
    def of(cls, skipped: Sequence[IncumbentError], *, readable: Sequence[Any] = ()) -> "StoredFormatUnknown":
        """Make the error of a listing that skipped the records of these errors."""
        message = str(skipped[0])
        if len(skipped) > 1:
            message = f"{len(skipped):,} records cannot be read and are missing from this list: {_named(skipped)}"
        return cls(message, key=skipped[0].key, skipped=skipped, readable=readable)


class ResultRefused(IncumbentError):
    """A handler returned a result that Lambda cannot send, or unfinished work: its run counts as failed.

    Lambda cannot send a result that the runtime client cannot marshal, or one of more than 6 MB. Unfinished work is an
    iterator other than a file or cursor (a generator, ``map``), an awaitable, a future or the context manager of a
    generator function, also inside a dict, list, tuple or set (in the first 10,000 values).
    """


class RetryLater(IncumbentError):
    """Raised by a handler to have this message run again in ``after_ms`` milliseconds (M6).

    The run counts as a delivery. The pause is not kept to the millisecond. If a subclass sets no ``after_ms``, or one
    that is not allowed, the policy's pause counts.

    ``scope="key"`` holds the key for as long (M15: hold), for an upstream that needs to cool down: no message of the
    key runs meanwhile, and new ones are stored. ``"message"``, the default, lets other messages run.
    """

    scope: Literal["message", "key"] = "message"  # of a subclass that sets none

    def __init__(
        self,
        after_ms: int,
        reason: str = "the handler asked for a pause",
        *,
        scope: Literal["message", "key"] = "message",
    ) -> None:
        """Refuse a pause that is not a whole number of milliseconds from 0 to one day, and any other scope."""
        if type(after_ms) is not int or not 0 <= after_ms <= MAX_PAUSE_MS:
            raise ConfigurationError(
                f"RetryLater(after_ms={after_ms!r}): pass whole milliseconds from 0 to {MAX_PAUSE_MS:,}"
            )
        if scope not in ("message", "key"):
            raise ConfigurationError(f"RetryLater(scope={scope!r}): pass 'message' or 'key'")
        super().__init__(f"{reason}: again in {after_ms} ms")
        self.after_ms = after_ms
        self.scope = scope


def _named(skipped: Sequence[IncumbentError]) -> str:
    """Return the texts of errors in one text, the first ten and how many more there are."""
    more = len(skipped) - _NAMED
    return "; ".join([*map(str, skipped[:_NAMED]), *([f"and {more:,} more"] if more > 0 else [])])
