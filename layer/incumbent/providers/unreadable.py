"""Messages whose stored body cannot be read: a provider makes them dead letters, so that they block nothing (M6).

Another version, a person, or an interpreter with other limits may have written such a body. Its message becomes a dead
letter at once, with the unchanged text as its event.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from incumbent.errors import LeaseLost
from incumbent.frozen import dataclass, maker, replace
from incumbent.validation import UnreadableBody, from_json, raw_text
from incumbent.values import Claim, Claimed, Continued, Duplicate, Failure, Idle, Message, Released, Routed

_make_message = maker(Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Message):
    """A message whose body cannot be read. ``event`` is its text, or ``None`` if it is gone; ``why`` is the reason."""

    why: str


class Settle(Protocol):
    """A function that makes messages of an owner's tenure dead letters; with ``next_owner`` the key passes on."""

    def __call__(
        self, owner: str, *, fence: int, failed: Sequence[Failure], next_owner: str | None
    ) -> Released | Continued:
        """Settle the failed messages, and nothing else."""
        ...


def message_of(
    body: str | bytes | None,
    message_id: str,
    attempt: int,
    stored_at_ms: int,
    *,
    due_at_ms: int = 0,
    promised: bool = False,
    last_error: str | None = None,
    why_gone: str = "its body is gone",
) -> Message:
    """Make a message from its stored body. The other arguments are the message's fields."""
    event, why = None, why_gone
    if body is not None:
        try:
            event = from_json(body)
        except UnreadableBody as cause:
            event, why = raw_text(body), str(cause)
        else:
            return _make_message(
                id=message_id,
                event=event,
                attempt=attempt,
                stored_at_ms=stored_at_ms,
                due_at_ms=due_at_ms,
                promised=promised,
                last_error=last_error,
            )
    return Unreadable(
        id=message_id,
        event=event,
        attempt=attempt,
        stored_at_ms=stored_at_ms,
        due_at_ms=due_at_ms,
        promised=promised,
        last_error=last_error,
        why=why,
    )


def readable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages that can be read. The others are given to the next tenure, which makes them dead letters."""
    return tuple(message for message in messages if not isinstance(message, Unreadable))


def all_readable(messages: Sequence[Message]) -> bool:
    """Return whether all messages can be read, as nearly always."""
    return Unreadable not in map(type, messages)


def claim_readable(claim: Callable[[], Claim], settle: Settle, own: Message | None) -> Claim:
    """Claim until the given message can be read. Sends two more requests for each one that cannot.

    ``own`` is the caller's message; another body may be stored under its id.
    """
    dead_lettered: tuple[Message, ...] = ()
    while True:
        answer = claim()
        if not isinstance(answer, Claimed) or not answer.messages:
            break
        given = readable(answer.messages)
        if given:
            answer = answer if len(given) == len(answer.messages) else replace(answer, messages=given)
            break
        dead_lettered = (*dead_lettered, *answer.dead_lettered)
        try:
            dead_lettered = (
                *dead_lettered,
                *settle(
                    answer.owner, fence=answer.fence, failed=_failures(answer.messages), next_owner=None
                ).dead_lettered,
            )
        except LeaseLost:  # the lease ended meanwhile: the message becomes a dead letter when it is given again
            continue
    if isinstance(answer, Routed) and own is not None and own.id in {message.id for message in dead_lettered}:
        answer = Duplicate(state="dead", owner=answer.owner)  # its trace would make it this call's, finished since
    if dead_lettered and isinstance(answer, Claimed | Duplicate | Idle):
        return replace(answer, dead_lettered=(*dead_lettered, *answer.dead_lettered))
    return answer


def go_on_readable(answer: Released | Continued, settle: Settle) -> Released | Continued:
    """Pass a key on until the message that its successor gets can be read."""
    while isinstance(answer, Continued) and answer.messages:
        given = readable(answer.messages)
        if given:
            return answer if len(given) == len(answer.messages) else replace(answer, messages=given)
        before, owner = answer, answer.owner
        try:
            answer = settle(owner, fence=before.fence, failed=_failures(before.messages), next_owner=owner)
        except LeaseLost:  # the caller's own settle has worked nevertheless
            return Released(remaining=len(before.messages) + before.waiting, dead_lettered=before.dead_lettered)
        answer = replace(answer, dead_lettered=(*before.dead_lettered, *answer.dead_lettered))
    return answer


def _failures(messages: Sequence[Message]) -> list[Failure]:
    return [
        Failure(id=each.id, error=f"the stored body cannot be read: {each.why}", final=True)
        for each in messages
        if isinstance(each, Unreadable)
    ]
