"""The message that an invocation brings: which event its run gets, and what becomes of it."""

import json
import marshal
from collections.abc import Sequence
from typing import Any

from incumbent.calls import Call, Completed, Postponed, Stopped
from incumbent.frozen import changer, replace
from incumbent.observe import LOG
from incumbent.validation import at_any_depth, is_plain
from incumbent.values import Message, Policy

_change_message = changer(Message)


class OwnMessage:
    """This invocation's message, if it brought one, and what has become of it. A woken invocation brings none.

    ``answer`` or ``error`` is how its run here ended. Without either it has not run here, and ``is_settled`` then means
    promised (M3). ``is_settled`` says that the store knows: the answer stands, whatever happens to other messages.
    """

    __slots__ = ("_call", "answer", "error", "id", "is_open", "is_settled", "stays_after_failure")

    def __init__(self, call: Call, policy: Policy) -> None:
        self._call = call
        self.id: str | None = None if call.message is None else call.message.id
        self.is_open = self.id is not None
        """Whether there is such a message, and it has not run here."""
        self.answer: Completed | Postponed | Stopped | None = None
        self.error: BaseException | None = None
        self.is_settled = False
        self.stays_after_failure: bool = call.comes_again and policy.on_error == "block"
        """Whether it stays in the mailbox after a failure, and blocks later ones (M6: failure)."""

    def is_among(self, messages: Sequence[Message]) -> bool:
        """Return whether the message is one of these."""
        return self.id is not None and self.id in [message.id for message in messages]

    def end(self, *, answer: Completed | Postponed | Stopped | None = None, error: BaseException | None = None) -> None:
        """Note how its run has ended; the store does not know yet."""
        self.answer, self.error, self.is_open = answer, error, False

    def note_settled(self, deferred: Sequence[str]) -> None:
        """Note that a settle has worked, which promised the ``deferred`` messages."""
        if self.id is not None and (not self.is_open or self.id in deferred):
            self.is_settled = True

    def prepared(self, message: Message) -> Message:
        """Return a message for its run: this invocation's message gets the original event, not the stored form.

        If another event is stored under its id, the one stored first runs (M5: once per id).
        """
        own = self._call.message
        if own is None or own.id != message.id or not self.is_open:  # a run may have changed the event meanwhile
            return message
        if message.event is own.event is self._call.event:
            return message
        if message.event is not own.event and not _is_exactly(message.event, own.event):
            if not are_stored_alike(own.event, message.event):
                LOG.warning(
                    "message %r of key %r was delivered again with another event: the event stored first runs",
                    message.id,
                    self._call.key,
                )
                return message
            if not is_plain(own.event):  # what is read back differs: every run sees that
                return message
        change = _change_message if type(message) is Message else replace
        return change(message, event=self._call.event)


def _is_exactly(stored: Any, event: Any) -> bool:
    """Return whether what was read back is the event, type by type. ``False`` where that is not seen at a glance.

    marshal writes JSON's types, each in its own way, and no others: equal bytes are equal values. This takes a
    tenth of the time of the comparisons that decide otherwise.
    """
    try:
        return marshal.dumps(stored, 0) == marshal.dumps(event, 0)
    except ValueError:  # another type, or too deep
        return False


def are_stored_alike(event: Any, other: Any) -> bool:
    """Return whether two events have the same stored form, whatever the order of their names."""
    return at_any_depth(_in_order, event) == at_any_depth(_in_order, other)


def _in_order(event: Any) -> str:
    return json.dumps(json.loads(json.dumps(event)), sort_keys=True)
