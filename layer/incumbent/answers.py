"""What a source is answered, by the table *What each source is answered* of docs/semantics.md."""

from collections.abc import Mapping
from typing import Any

from incumbent import observe, results
from incumbent.calls import Call, Completed, Outcome, Postponed, Stopped
from incumbent.errors import (
    ConfigurationError,
    DuplicateMessage,
    IncumbentError,
    LeaseBusy,
    LeaseKeyMissing,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
)
from incumbent.options import CheckedOptions
from incumbent.sources import Source
from incumbent.values import Busy, Duplicate, Idle, Routed

ANSWERED = (LeaseKeyMissing, LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge)
"""The errors that an HTTP caller gets as a status."""

_RETRY_AFTER = {"retry-after": "1"}

# What an HTTP caller is told. The log has the details, which may name hosts, roles, tables and the event's own data.
_STATUS: Mapping[type[IncumbentError], tuple[int, str]] = {
    LeaseKeyMissing: (400, "the request has no key"),
    LeaseUnavailable: (503, "temporarily unavailable; retry"),
    MessageInvalid: (400, "the request cannot be stored as JSON"),
    MailboxFull: (429, "too many requests are waiting; retry later"),
    MessageTooLarge: (413, "the request is too large"),
}


class Answers:
    """Makes the answers of one decorated function."""

    def __init__(self, options: CheckedOptions) -> None:
        self._options = options
        self._rejects = options.settings.when_busy == "reject"

    def check_source(self, source: Source) -> None:
        """Refuse a source whose answer only the application can make, unless it makes it."""
        if source.kind == "caller" and self._options.on_busy is None:
            raise ConfigurationError(
                f"{self._options.name}: {source.name} waits for an answer in its own shape, which incumbent cannot "
                "make when this invocation does not run the event: give on_busy="
            )

    def answer(  # noqa: C901 - one case for each row of the table
        self, event: Any, context: Any, source: Source, call: Call | None, outcome: Outcome
    ) -> Any:
        """Return the answer to an invocation, or raise the error that its source should see."""
        if call is None or call.message is None:
            return {"status": "resumed" if isinstance(outcome, Completed) else "idle"}
        if isinstance(outcome, Completed):
            return outcome.result
        if self._options.on_busy is not None:
            asked = _as_asked(outcome)
            if isinstance(asked, Routed | Duplicate | Busy):
                made = self._options.on_busy(event, context, outcome=asked)
                results.refuse_unfinished(made, f"{self._options.name}: on_busy")
                return made
        if source.kind == "state-machine":
            self._refuse_a_result(call, outcome)
        said = call.said
        headers = self._options.answer_headers
        match outcome:
            case Postponed() | Routed():
                return source.answer(202, {"status": "accepted", **said}, headers)
            case Stopped():
                return source.answer(200, {"status": "stopped", **said}, headers)
            case Duplicate(state="waiting" | "running"):
                return source.answer(202, {"status": "accepted", "state": outcome.state, **said}, headers)
            case Duplicate():
                return source.answer(200, {"status": outcome.state, **said}, headers)
            case Busy():
                return self._busy(source, call)
            case Idle():  # a late copy of a claim whose run has failed since; its source was told
                raise LeaseUnavailable(
                    f"message {call.message.id!r} of key {call.key!r} was claimed by this call before and failed; it "
                    "is not stored, so deliver it again",
                    key=call.key,
                )

    def error(self, source: Source, error: IncumbentError) -> Any:
        """Return the answer to an HTTP caller whose event could not be served."""
        observe.LOG.error("answered with an error: %s", error)
        status, said = _STATUS[type(error)]
        # Retrying an event without a key, or one that is too large, cannot succeed.
        again = _RETRY_AFTER if isinstance(error, LeaseUnavailable | MailboxFull) else {}
        body = {"error": type(error).__name__, "message": said}
        return source.answer(status, body, {**self._options.answer_headers, **again})

    def _busy(self, source: Source, call: Call) -> Any:
        headers = self._options.answer_headers
        if not self._rejects:
            return source.answer(200, {"status": "skipped", **call.said}, headers)
        if source.http:
            body = {"error": "LeaseBusy", "message": "the key is busy; retry"}
            return source.answer(409, body, {**headers, **_RETRY_AFTER})
        raise LeaseBusy(
            f"another invocation owns key {call.key!r} and when_busy is 'reject': nothing was stored, and the source "
            "keeps its event",
            key=call.key,
        )

    def _refuse_a_result(self, call: Call, outcome: Outcome) -> None:
        """Raise instead of answering: a state machine would take any answer for the result of its task."""
        left = _as_asked(outcome)
        if isinstance(left, Duplicate) and left.state not in ("waiting", "running"):
            raise DuplicateMessage(
                f"message {call.said['message_id']!r} of key {call.key!r} is {left.state} already, and its result "
                "is not kept: catch DuplicateMessage and read what the run wrote, or give on_busy=",
                key=call.key,
                state=left.state,
            )
        if self._rejects and isinstance(outcome, Postponed | Routed | Duplicate):
            raise LeaseBusy(
                f"message {call.said['message_id']!r} of key {call.key!r} runs or waits already: try again later",
                key=call.key,
            )


def _as_asked(outcome: Outcome) -> Outcome:
    """Return an outcome as ``on_busy`` knows it: a run that deferred or was stopped left its message like another."""
    match outcome:
        case Postponed():
            return Routed(owner=None)
        case Stopped():
            return Duplicate(state="stopped")
        case _:
            return outcome
