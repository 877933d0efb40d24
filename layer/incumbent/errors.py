"""Every error that incumbent raises, in one tree.

::

    IncumbentError
    ├── ConfigurationError      an argument or a setting that cannot work; nothing was sent to a store
    │   └── MessageInvalid      the event cannot be stored as JSON and read back as it is
    ├── LeaseKeyMissing         the event has no usable key; the source keeps the event
    ├── LeaseBusy               another invocation owns the key and when_busy is "reject"; the source retries
    ├── DuplicateMessage        a task of a state machine was run before, and its result is not kept; catch it
    ├── LeaseUnavailable        the store could not be asked, or its answer is not known (R9); retry
    ├── LeaseLost               the lease ended before the run did; nothing was settled (R3)
    ├── MailboxFull             as many messages wait as may wait; nothing was stored (M7)
    ├── MessageTooLarge         the message is larger than may be stored; nothing was stored (M7)
    ├── StoredFormatUnknown     a record was written by a version that this one does not know (M12)
    ├── ResultRefused           a handler returned what Lambda cannot send, or work that is not done; its run failed
    └── RetryLater              raised by a handler: run this message again after a pause of its own (M6)

A message says what happened, to which key, and what to do. What a program needs to know are attributes.
"""

from collections.abc import Sequence
from typing import Any

LONGEST_PAUSE_MS = 86_400_000
_NAMED = 10  # records, in the error of a listing


class IncumbentError(Exception):
    """The root of the tree. ``key`` is the key it happened to, where there is one."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        """Keep the key beside the message."""
        super().__init__(message)
        self.key = key


class ConfigurationError(IncumbentError):
    """An argument or a setting cannot work. Raised before any request; correct it and deploy."""


class MessageInvalid(ConfigurationError):
    """The event cannot be stored as JSON and read back as it is. Raised before any request; nothing was stored (M7).

    So is what JSON cannot say (NaN, bytes, a date), a dictionary whose names are not text, an integer of more than
    4,300 digits, and what is nested more than 500 levels deep: not every supported Python reads that back.
    """


class LeaseKeyMissing(IncumbentError):
    """The event has no usable key. Raised before any request, so the source keeps its event."""


class LeaseBusy(IncumbentError):
    """Another invocation owns the key, and ``when_busy="reject"`` asked to say so. Nothing was stored."""


class DuplicateMessage(IncumbentError):
    """The message of a state machine's task was run before, so this try has no result: results are not kept.

    ``state`` is what became of it: ``"handled"`` or ``"dead"``. Raised instead of an answer that the state machine
    would take for the task's result. Nothing was run.
    """

    def __init__(self, message: str, *, key: str | None = None, state: str | None = None) -> None:
        """Keep what became of the message."""
        super().__init__(message, key=key)
        self.state = state


class LeaseUnavailable(IncumbentError):
    """The store could not be asked, or whether the call took effect cannot be known (R9).

    It never means "not owned" and never "lost". The call may have taken effect; repeating it is safe.
    """


class LeaseLost(IncumbentError):
    """The owner no longer holds the key; what it would have settled is still there (R3).

    ``owner`` is who lost it, ``holder`` who holds the key now, where the store said so.
    """

    def __init__(
        self, message: str, *, key: str | None = None, owner: str | None = None, holder: str | None = None
    ) -> None:
        """Keep who lost the key, and who holds it now."""
        super().__init__(message, key=key)
        self.owner = owner
        self.holder = holder


class MailboxFull(IncumbentError):
    """As many messages are stored for the key as may be; this one was not (M7).

    ``owner`` is who holds the key and works them off; ``None`` where the key is free, or the store did not say.
    """

    def __init__(self, message: str, *, key: str | None = None, owner: str | None = None) -> None:
        """Keep who holds the key."""
        super().__init__(message, key=key)
        self.owner = owner


class MessageTooLarge(IncumbentError):
    """The message is larger than may be stored; it was not (M7)."""


class StoredFormatUnknown(IncumbentError):
    """A stored record carries a version that this one cannot read; it was left as it stands (M12).

    A listing raises it after all that it can read, where it had to leave something out. ``skipped`` then has an error
    for each record that is missing from the list, with the key and the reason. ``readable`` is what ``peek``, which
    answers at once, would have answered.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        skipped: Sequence[IncumbentError] = (),
        readable: Sequence[Any] = (),
    ) -> None:
        """Keep what a listing left out, and what it did not."""
        super().__init__(message, key=key)
        self.skipped = tuple(skipped)
        self.readable = tuple(readable)

    @classmethod
    def of(cls, skipped: Sequence[IncumbentError], *, readable: Sequence[Any] = ()) -> "StoredFormatUnknown":
        """The error of a listing that left out what these errors stand for."""
        message = str(skipped[0])
        if len(skipped) > 1:
            more = len(skipped) - _NAMED
            message = f"{len(skipped):,} records cannot be read and are missing from this list: " + "; ".join(
                [*map(str, skipped[:_NAMED]), *([f"and {more:,} more"] if more > 0 else [])]
            )
        return cls(message, key=skipped[0].key, skipped=skipped, readable=readable)


class ResultRefused(IncumbentError):
    """A handler returned what Lambda cannot send, or work that is not done: its run counts as failed.

    What Lambda cannot send is what the runtime client cannot marshal, or more than 6 MB. Work that is not done is a
    generator, a coroutine, a ``map`` or ``filter``.
    """


class RetryLater(IncumbentError):
    """Raised by a handler: not now; run this message again in ``after_ms`` milliseconds (M6).

    It counts as a delivery. It does not promise that the pause is kept to the millisecond.
    """

    def __init__(self, after_ms: int, reason: str = "the handler asked for a pause") -> None:
        """Refuse a pause that is no whole number of milliseconds from 0 to one day."""
        if type(after_ms) is not int or not 0 <= after_ms <= LONGEST_PAUSE_MS:
            raise ConfigurationError(
                f"RetryLater(after_ms={after_ms!r}): give whole milliseconds from 0 to {LONGEST_PAUSE_MS:,}"
            )
        super().__init__(f"{reason}: again in {after_ms} ms")
        self.after_ms = after_ms
