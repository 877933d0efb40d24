"""The responders: a model on Amazon Bedrock, or a small stand-in for it."""

import asyncio
import itertools
import os
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from transcript import Turn

STOPPED = "[stopped by the user]"


class Responder(Protocol):
    """One step of an agent: reads the transcript, which ends with a question, and says the answer in pieces.

    A transcript may end with an answer that was cut: then the pieces continue it.
    """

    def answer(self, turns: Sequence[Turn]) -> AsyncGenerator[str, None]:
        """Yield the text of the next turn in pieces."""
        ...


class LocalResponder:
    """A stand-in for a model: repeats the question, with ``think_ms`` of thinking before each word."""

    def __init__(self, *, think_ms: int) -> None:
        self.think_ms = think_ms

    async def answer(self, turns: Sequence[Turn]) -> AsyncGenerator[str, None]:
        """Repeat what was asked since the last answer, word by word, from where a cut answer ended."""
        begun = turns[-1].text if turns[-1].state == "cut" else ""
        open_turns = turns[:-1] if turns[-1].state == "cut" else turns
        asked = list(itertools.takewhile(lambda turn: turn.role == "user", reversed(open_turns)))
        whole = "You said: " + " / ".join(turn.text for turn in reversed(asked))
        for word in re.findall(r"\s*\S+", whole.removeprefix(begun)):
            await asyncio.sleep(self.think_ms / 1000)
            yield str(word)


class ConverseResponder:
    """Amazon Bedrock's ConverseStream.

    Not tested against the real service: only against botocore's description of request and answer.
    """

    def __init__(self, *, model_id: str, client: Any = None) -> None:
        self.model_id = model_id
        if client is None:
            import boto3
            from botocore.config import Config

            # One try, shorter than a step may take. If it fails, the mailbox retries the message.
            config = Config(connect_timeout=2, read_timeout=15, retries={"total_max_attempts": 1})
            client = boto3.client("bedrock-runtime", config=config)
        self.client = client

    async def answer(self, turns: Sequence[Turn]) -> AsyncGenerator[str, None]:
        """Ask the model for an answer of at most a thousand tokens; it may be cancelled while the model thinks."""
        response = await asyncio.to_thread(
            self.client.converse_stream,
            modelId=self.model_id,
            messages=as_messages(turns),
            inferenceConfig={"maxTokens": 1000},
        )
        events = iter(response["stream"])
        try:
            while event := await asyncio.to_thread(next, events, None):
                yield event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")
        finally:
            response["stream"].close()


def as_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Convert the transcript for Converse: user first, then alternating, with adjacent turns of a role merged."""
    from_user = itertools.dropwhile(lambda turn: turn.role != "user", turns)
    return [
        {"role": role, "content": [{"text": as_text(turn)} for turn in spoken]}
        for role, spoken in itertools.groupby(from_user, key=lambda turn: turn.role)
    ]


def as_text(turn: Turn) -> str:
    """Return what the model reads of a turn: a stopped answer says so, and none may end with a space."""
    if turn.state == "stopped":
        return f"{turn.text} {STOPPED}".strip()
    return turn.text.rstrip()


def responder_from_env() -> Responder:
    """Return the model that ``MODEL_ID`` names, else the local responder, which thinks for ``THINK_MS`` a word."""
    if model_id := os.environ.get("MODEL_ID"):
        return ConverseResponder(model_id=model_id)
    return LocalResponder(think_ms=int(os.environ.get("THINK_MS") or 40))
