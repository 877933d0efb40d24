"""Answer a chat thread as a person expects: what is typed in a row is one question, and "stop" stops the answer."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

from incumbent import Lease, Message, Stop, leased, stop
from responder import Responder, responder_from_env
from transcript import Transcripts, Turn, transcripts_from_env

# The webhook stores messages under this name, too; as INCUMBENT_TARGET, it names the function.
KEYSPACE = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "thread")
# A person who types three lines in a row has one question: it is answered when nothing came for this long.
QUIET_MS = int(os.environ.get("QUIET_MS") or 1_500)
# The longest that the model may take for its next words. With less time left, the next invocation goes on.
STEP_MS = 20_000


def is_stop(event: Any) -> bool:
    """Return whether the user asks to stop the answer. That needs no lease: it is for the run that has it."""
    return "body" in event and text_in(event).lower() == "stop"


@leased(
    key_jmespath="powertools_json(body).thread_id",
    keyspace=KEYSPACE,
    unless=is_stop,
    deliver="all",
    debounce_ms=QUIET_MS,
    debounce_max_ms=4 * QUIET_MS,
    watch_ms=500,
    cancel_on_stop=True,
    stop_before_ms=STEP_MS,
)
async def handler(event: dict[str, Any], context: object, *, lease: Lease | None) -> Any:
    """Answer until every message has an answer, word by word.

    A caller is answered "accepted" at once. What it typed is answered together with what follows within the quiet time;
    what comes later, while this runs, is asked as the next question of this run.

    A message may arrive a second time, if an owner died before it could report the message as handled. The
    transcript recognises it, as long as it keeps that turn, and the question is not added twice. So the model's
    answer is written at least once, and never by an owner that has a successor.
    """
    if lease is None:
        return stop_answer(event)
    if not any(text_of(message) for message in lease.messages):
        return reply(400, error="a message needs a text")

    turns = transcripts().load(lease.key, fence=lease.fence)  # from here on, an earlier owner's save is refused
    turns = fold(turns, lease.messages)
    while turns[-1].role == "user" or turns[-1].state == "cut":
        if lease.stop is Stop.DEADLINE:  # the next invocation continues from what was saved
            return lease.defer()
        turns = await answer(turns, lease)
        turns = fold(turns, lease.take())  # messages that have arrived since

    return reply(200, answer=turns[-1].text)


async def answer(turns: list[Turn], lease: Lease) -> list[Turn]:
    """Return the turns with the answer, or with as much of it as there was time for; they are saved.

    The user's "stop" cancels this at an ``await``. The transcript then keeps what was said until then.
    """
    asked, said = (turns[:-1], turns[-1].text) if turns[-1].state == "cut" else (turns, "")

    def save(state: str) -> list[Turn]:
        answered = [*asked, Turn(role="assistant", text=said, state=state)]
        transcripts().save(lease.key, answered, fence=lease.fence)
        return answered

    try:
        async with aclosing(responder().answer(turns)) as pieces:
            async for piece in pieces:
                said += piece
                lease.note({"words": len(said.split())})
                if lease.stop is Stop.DEADLINE:
                    return save("cut")
    except asyncio.CancelledError:
        if lease.stop is Stop.ASKED:  # else the lease is lost, and a later owner has the thread
            save("stopped")
        raise  # the messages leave as "stopped"
    return save("done")


def stop_answer(event: dict[str, Any]) -> dict[str, Any]:
    """Ask the run that answers the thread to stop. It works however full the thread's mailbox is: it stores nothing."""
    thread = str(json.loads(event["body"])["thread_id"])
    fence = stop(thread, keyspace=KEYSPACE, reason="the user said stop")
    return reply(200, stopping="no" if fence is None else "yes")


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
    return text_in(message.event)


def text_in(event: dict[str, Any]) -> str:
    """Return the text of an HTTP event's body."""
    return str(json.loads(event["body"]).get("text") or "").strip()


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
