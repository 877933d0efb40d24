"""Answer the messages of a chat thread: one owner a thread, one step at a time, follow-ups folded in."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from incumbent import Lease, Message, leased
from responder import Responder, responder_from_env
from transcript import Transcripts, Turn, transcripts_from_env

# The longest that one step may take. A new step is begun only while the invocation has that long to live.
STEP_MS = 20_000


@leased(key_jmespath="powertools_json(body).thread_id", stop_before_ms=STEP_MS)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Answer until nothing is unanswered.

    Whoever posts while this runs is answered "accepted" at once, and its message is in the next ``take()``.

    A message may come a second time, when an owner died before it could report it as handled. The transcript
    knows it then, as long as it keeps that turn, and it is not asked twice; the model's answer is thus written at
    least once, and never by an owner that another one has followed.
    """
    if not any(text_of(message) for message in lease.messages):
        return reply(400, error="a message needs a text")

    turns = transcripts().load(lease.key, fence=lease.fence)  # from here on, an earlier owner's save is refused
    turns = fold(turns, lease.messages)
    while turns[-1].role == "user":
        if lease.stop:  # lost, or the invocation is nearly over
            return lease.defer()  # not done: the next invocation goes on, from what was saved
        turns = [*turns, Turn(role="assistant", text=responder().answer(turns))]
        transcripts().save(lease.key, turns, fence=lease.fence)
        turns = fold(turns, lease.take())  # what has arrived since

    return reply(200, answer=turns[-1].text)


def fold(turns: list[Turn], messages: Sequence[Message]) -> list[Turn]:
    """Add what the messages ask, each once and in order."""
    known = {turn.message_id for turn in turns}
    asked = [
        Turn(role="user", text=text_of(message), message_id=message.id)
        for message in messages
        if message.id not in known and text_of(message)
    ]
    return turns + asked


def text_of(message: Message) -> str:
    """Return what the message says; nothing if it says nothing, since to retry it would not change that."""
    return str(json.loads(message.event["body"]).get("text") or "").strip()


def reply(status: int, **body: str) -> dict[str, Any]:
    """Answer in the shape that API Gateway expects."""
    return {"statusCode": status, "headers": {"content-type": "application/json"}, "body": json.dumps(body)}


# Made on first use and kept for the next invocation, not at import: a snapshot would copy their connections.


@cache
def transcripts() -> Transcripts:
    """Where the transcripts are."""
    return transcripts_from_env()


@cache
def responder() -> Responder:
    """Who answers."""
    return responder_from_env()
