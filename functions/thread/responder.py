"""The responders: a model on Amazon Bedrock, or a small stand-in for it."""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from transcript import Turn


class Responder(Protocol):
    """One step of an agent: reads the transcript, which ends with a user's turn, and returns the next turn's text."""

    def answer(self, turns: Sequence[Turn]) -> str:
        """Return the text of the next turn."""
        ...


class LocalResponder:
    """A stand-in for a model: repeats the question after ``think_ms`` of thinking."""

    def __init__(self, *, think_ms: int) -> None:
        self.think_ms = think_ms

    def answer(self, turns: Sequence[Turn]) -> str:
        """Repeat what was asked since the last answer."""
        time.sleep(self.think_ms / 1000)
        asked = list(itertools.takewhile(lambda turn: turn.role == "user", reversed(turns)))
        return "You said: " + " / ".join(turn.text for turn in reversed(asked))


class ConverseResponder:
    """Amazon Bedrock's Converse.

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

    def answer(self, turns: Sequence[Turn]) -> str:
        """Ask the model for an answer of at most a thousand tokens."""
        response = self.client.converse(
            modelId=self.model_id, messages=as_messages(turns), inferenceConfig={"maxTokens": 1000}
        )
        content = response["output"]["message"]["content"]
        return "".join(block.get("text", "") for block in content)


def as_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Convert the transcript for Converse: user first, then alternating, with adjacent turns of a role merged."""
    from_user = itertools.dropwhile(lambda turn: turn.role != "user", turns)
    return [
        {"role": role, "content": [{"text": turn.text} for turn in spoken]}
        for role, spoken in itertools.groupby(from_user, key=lambda turn: turn.role)
    ]


def responder_from_env() -> Responder:
    """Return the model that ``MODEL_ID`` names, else the local responder, which thinks for ``THINK_MS``."""
    if model_id := os.environ.get("MODEL_ID"):
        return ConverseResponder(model_id=model_id)
    return LocalResponder(think_ms=int(os.environ.get("THINK_MS") or 40))
