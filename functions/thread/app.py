"""Answer the messages of a chat thread: one owner per thread, one step at a time, with follow-ups folded in."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from incumbent import Lease, Message, leased
from responder import Responder, responder_from_env
from transcript import Transcripts, Turn, transcripts_from_env

# The longest that one step may take. A new step begins only while the invocation has that much time left.
STEP_MS = 20_000


@leased(key_jmespath="powertools_json(body).thread_id", stop_before_ms=STEP_MS)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Answer until every message has an answer.

    A caller that posts while this runs is answered "accepted" at once, and the next ``take()`` returns its message.

    A message may arrive a second time, if an owner died before it could report the message as handled. The
    transcript recognises it, as long as it keeps that turn, and the question is not added twice. So the model's
    answer is written at least once, and never by an owner that has a successor.
    """
    if not any(text_of(message) for message in lease.messages):
        return reply(400, error="a message needs a text")

    turns = transcripts().load(lease.key, fence=lease.fence)  # from here on, an earlier owner's save is refused
    turns = fold(turns, lease.messages)
    while turns[-1].role == "user":
        if lease.stop:  # lost, or the invocation is nearly over
            return lease.defer()  # not done: the next invocation continues from what was saved
        turns = [*turns, Turn(role="assistant", text=responder().answer(turns))]
        transcripts().save(lease.key, turns, fence=lease.fence)
        turns = fold(turns, lease.take())  # messages that have arrived since

    return reply(200, answer=turns[-1].text)


def fold(turns: list[Turn], messages: Sequence[Message]) -> list[Turn]:
    """Add the questions of the messages, each once and in order."""
    known = {turn.message_id for turn in turns}
    asked = [
        Turn(role="user", text=text_of(message), message_id=message.id)
        for message in messages
        if message.id not in known and text_of(message)
    ]
    return turns + asked


def text_of(message: Message) -> str:
    """Return the message's text, empty if it has none: a retry would not change that."""
    return str(json.loads(message.event["body"]).get("text") or "").strip()


def reply(status: int, **body: str) -> dict[str, Any]:
    """Return an answer in API Gateway's format."""
    return {"statusCode": status, "headers": {"content-type": "application/json"}, "body": json.dumps(body)}


# Both are made on first use and kept for the next invocation, not at import: a snapshot would copy connections.


@cache
def transcripts() -> Transcripts:
    """Return the store of transcripts."""
    return transcripts_from_env()


@cache
def responder() -> Responder:
    """Return the responder."""
    return responder_from_env()
