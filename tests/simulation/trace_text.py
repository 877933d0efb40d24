"""How a trace says things: owners by short names, answers and states in a line."""

import re

from incumbent.rules import KeyState
from incumbent.values import Acquisition, Beat, Busy, Claimed, Continued, Duplicate, Message, Released, Routed
from tests.simulation.environment import EPOCH_MS

_OWNER = re.compile(r"([\w'-]+)\.([0-9a-f]{48}|[0-9a-f]{20})(?![\w-])")
_FENCE = 100_000_000  # of a fence only the end is shown: it begins with the date


class Names:
    """Numbers the owners and tickets of each request as they come up, so that the same schedule reads the same."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def shorten(self, text: str) -> str:
        """The text with short names."""
        return _OWNER.sub(lambda found: self._name(found.group(), found.group(1)), text)

    def _name(self, owner: str, request: str) -> str:
        if owner not in self._known:
            self._counts[request] = self._counts.get(request, 0) + 1
            self._known[owner] = f"{request}.{self._counts[request]}"
        return self._known[owner]


def answer_in_short(answer: object) -> str:
    """What a call was answered."""
    match answer:
        case Claimed() | Continued():
            ids = [message.id for message in answer.messages]
            return (
                f"{type(answer).__name__}: {answer.owner}, fence {answer.fence % _FENCE}, {ids}, {answer.waiting} wait"
            )
        case Routed():
            return f"Routed behind {answer.owner}"
        case Duplicate():
            return f"Duplicate, {answer.state}, owner {answer.owner}"
        case Busy():
            return f"Busy, owner {answer.owner}"
        case Released():
            return f"Released, {answer.remaining} left"
        case Beat():
            return f"Beat, {answer.waiting} wait"
        case Acquisition():
            return f"{'acquired' if answer.acquired else 'not acquired'}, owner {answer.owner}"
        case Exception():
            return f"{type(answer).__name__}: {answer}"
        case list() | tuple():
            return str([each.id if isinstance(each, Message) else each for each in answer])
        case _:
            return repr(answer)


def state_in_short(state: KeyState) -> str:
    """A key's state."""
    mail = ", ".join(
        f"{message.id}{'!' if message.promised else ''} by {message.claimed_by or 'nobody'} x{message.attempts}"
        f"{' given' if state.owner is not None and message.delivered_fence == state.fence else ''}"
        f"{f' due {message.due_ms - EPOCH_MS}' if message.due_ms else ''}"
        for message in state.mail
    )
    ended = ", ".join(f"{trace.id} {trace.outcome}" for trace in state.ended)
    held = f"{state.owner} until {state.expires_ms - EPOCH_MS}" if state.owner else "free"
    barred_ms = max(state.quiet_until_ms, state.held_until_ms)
    held += f", not before {barred_ms - EPOCH_MS}" if barred_ms else ""
    held += f", marked {state.stop!r}" if state.stop is not None else ""
    return f"{held}, fence {state.fence % _FENCE}, mail [{mail}], ended [{ended}]"
