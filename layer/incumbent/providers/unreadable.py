"""Messages whose stored body cannot be read: a provider buries them, so that they hold nothing up (M6).

Another version's code or a hand may have written such a body, or an interpreter with other limits. Its message becomes
a dead letter at once; its text is kept as it stands, and is the letter's event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from incumbent.errors import LeaseLost
from incumbent.validation import UnreadableBody, from_json, raw_text
from incumbent.values import Claim, Claimed, Continued, Duplicate, Failure, Idle, Message, Released, Routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Message):
    """A message whose body cannot be read: ``event`` is its text, or ``None`` where it is gone; ``why`` says more."""

    why: str


class Settle(Protocol):
    """Buries messages of an owner's tenure; with ``next_owner`` the key passes on."""

    def __call__(self, owner: str, *, failed: Sequence[Failure], next_owner: str | None) -> Released | Continued:
        """Settle what has failed, and nothing else."""
        ...


def message_of(body: str | bytes | None, *, why_gone: str = "its body is gone", **of: Any) -> Message:
    """A message with what is stored of its event."""
    if body is None:
        return Unreadable(event=None, why=why_gone, **of)
    try:
        return Message(event=from_json(body), **of)
    except UnreadableBody as cause:
        return Unreadable(event=raw_text(body), why=str(cause), **of)


def readable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Those that can be read. The others come again in the next tenure, and are buried then."""
    return tuple(message for message in messages if not isinstance(message, Unreadable))


def claim_readable(claim: Callable[[], Claim], settle: Settle, own: Message | None) -> Claim:
    """Claim until what is given can be read. Costs two requests more for each message that cannot.

    ``own`` is the caller's message: another body may be stored under its id.
    """
    buried: tuple[Message, ...] = ()
    while True:
        answer = claim()
        if not isinstance(answer, Claimed) or not answer.messages:
            break
        given = readable(answer.messages)
        if given:
            answer = replace(answer, messages=given)
            break
        buried = (*buried, *answer.buried)
        try:
            buried = (*buried, *settle(answer.owner, failed=_failures(answer.messages), next_owner=None).buried)
        except LeaseLost:  # so slow that the lease is over: the message is buried when it is given again
            continue
    if isinstance(answer, Routed) and own is not None and own.id in {message.id for message in buried}:
        answer = Duplicate(state="dead", owner=answer.owner)  # by its trace it would be this call's, and finished since
    if isinstance(answer, Claimed | Duplicate | Idle):
        return replace(answer, buried=(*buried, *answer.buried))
    return answer


def go_on_readable(answer: Released | Continued, settle: Settle) -> Released | Continued:
    """Pass a key on until what its successor is given can be read."""
    while isinstance(answer, Continued) and answer.messages:
        given = readable(answer.messages)
        if given:
            return replace(answer, messages=given)
        before, owner = answer, answer.owner
        try:
            answer = settle(owner, failed=_failures(before.messages), next_owner=owner)
        except LeaseLost:  # what the caller asked for was settled all the same
            return Released(left=len(before.messages) + before.waiting, buried=before.buried)
        answer = replace(answer, buried=(*before.buried, *answer.buried))
    return answer


def _failures(messages: Sequence[Message]) -> list[Failure]:
    return [
        Failure(id=each.id, error=f"the stored body cannot be read: {each.why}", final=True)
        for each in messages
        if isinstance(each, Unreadable)
    ]
