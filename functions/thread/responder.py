"""Who answers: a model on Amazon Bedrock, or a small stand-in that needs none."""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

from transcript import Turn


class Responder(Protocol):
    """One step of an agent: reads the transcript, which ends with the user, and says what comes next."""

    def answer(self, turns: Sequence[Turn]) -> str:
        """Return the next thing to say."""
        ...


class LocalResponder:
    """A stand-in, no model: it says back what it was asked, after ``think_ms`` of thinking."""

    def __init__(self, *, think_ms: int) -> None:
        self.think_ms = think_ms

    def answer(self, turns: Sequence[Turn]) -> str:
        """Say back what was asked since the last answer."""
        time.sleep(self.think_ms / 1000)
        asked = list(itertools.takewhile(lambda turn: turn.role == "user", reversed(turns)))
        return "You said: " + " / ".join(turn.text for turn in reversed(asked))


class ConverseResponder:
    """Amazon Bedrock's Converse.

    Unchecked against the real service: tried only with botocore's own description of the request and answer.
    """

    def __init__(self, *, model_id: str, client: Any = None) -> None:
        self.model_id = model_id
        if client is None:
            import boto3
            from botocore.config import Config

            # One try, shorter than a step may take. What fails here is retried by the mailbox.
            config = Config(connect_timeout=2, read_timeout=15, retries={"total_max_attempts": 1})
            client = boto3.client("bedrock-runtime", config=config)
        self.client = client

    def answer(self, turns: Sequence[Turn]) -> str:
        """Ask the model for its answer, at most a thousand tokens of it."""
        response = self.client.converse(
            modelId=self.model_id, messages=as_messages(turns), inferenceConfig={"maxTokens": 1000}
        )
        content = response["output"]["message"]["content"]
        return "".join(block.get("text", "") for block in content)


def as_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Shape the transcript as Converse wants it: the user first, then by turns, each once in a row."""
    from_user = itertools.dropwhile(lambda turn: turn.role != "user", turns)
    return [
        {"role": role, "content": [{"text": turn.text} for turn in spoken]}
        for role, spoken in itertools.groupby(from_user, key=lambda turn: turn.role)
    ]


def responder_from_env() -> Responder:
    """Take the model that ``MODEL_ID`` names, else the local responder, which thinks for ``THINK_MS``."""
    if model_id := os.environ.get("MODEL_ID"):
        return ConverseResponder(model_id=model_id)
    return LocalResponder(think_ms=int(os.environ.get("THINK_MS") or 40))
