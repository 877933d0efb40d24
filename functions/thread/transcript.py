"""Keep the transcript of each thread, under a fence so that a stale owner cannot overwrite it.

The fence of a lease grows with each grant of a key. A transcript stores the highest fence that it has seen, and
refuses a lower one. Loading raises it too: once an owner has read a transcript, no earlier owner can change what
was read, however late its request arrives.

Transcripts stay until you delete them, but a long one loses its oldest turns: see ``KEEP_BYTES``.
"""

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

# Above this many bytes of UTF-8, the oldest turns are removed. It is half of what a DynamoDB item holds, since moto
# adds the size of the old value to that of the new one. Each question sends all of it to the model: choose a smaller
# number for a model that reads less.
KEEP_BYTES = 200_000
TURN_BYTES = KEEP_BYTES // 2 - 2  # of one turn with its comma, so that an answer never displaces its question
CUT = " [cut off here]"


class StaleOwner(Exception):
    """A later owner has read or written this transcript; nothing was written."""

    def __init__(self, thread: str, fence: int) -> None:
        super().__init__(f"an owner later than fence {fence} has read the transcript of {thread!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn; a question has the ``message_id`` of its message, so that it is not added twice.

    ``state`` marks an answer that the user has ``"stopped"``, and one that was ``"cut"`` by the end of its invocation:
    the next invocation continues that one.
    """

    role: Literal["user", "assistant"]
    text: str
    message_id: str | None = None
    state: str = "done"


class Transcripts(Protocol):
    """A store of transcripts. Both calls raise ``StaleOwner`` if a later owner was there before."""

    def load(self, thread: str, *, fence: int) -> list[Turn]:
        """Return the turns, oldest first, and shut out the owners before this one."""
        ...

    def save(self, thread: str, turns: Sequence[Turn], *, fence: int) -> None:
        """Replace the turns; repeating the call is safe."""
        ...


class DynamoDBTranscripts:
    """One item per thread; each call is one conditional update."""

    def __init__(self, table_name: str, *, client: Any = None) -> None:
        self.table_name = table_name
        if client is None:
            import boto3
            from botocore.config import Config

            client = boto3.client("dynamodb", config=Config(connect_timeout=1, read_timeout=2))
        self.client = client

    def load(self, thread: str, *, fence: int) -> list[Turn]:
        """Return the turns, and shut out the owners before this one."""
        item = self._update(thread, fence, "SET fence = :fence", {})
        return _parse(item["turns"]["S"]) if "turns" in item else []

    def save(self, thread: str, turns: Sequence[Turn], *, fence: int) -> None:
        """Replace the turns."""
        self._update(thread, fence, "SET fence = :fence, turns = :turns", {":turns": {"S": _dump(turns)}})

    def _update(self, thread: str, fence: int, expression: str, values: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self.client.update_item(
                TableName=self.table_name,
                Key={"thread": {"S": thread}},
                UpdateExpression=expression,
                ConditionExpression="attribute_not_exists(fence) OR fence <= :fence",
                ExpressionAttributeValues={":fence": {"N": str(fence)}, **values},
                ReturnValues="ALL_NEW",
            )
        except self.client.exceptions.ConditionalCheckFailedException as error:
            raise StaleOwner(thread, fence) from error
        return dict(answer["Attributes"])


class RedisTranscripts:
    """One hash per thread; each call is one script."""

    def __init__(self, *, prefix: str = "transcript", client: Any = None) -> None:
        if client is None:
            from incumbent.providers.redis import client_from_env

            client = client_from_env()  # connects to the server of the leases, with the same login
        self.prefix = prefix
        self.script = client.register_script(Path(__file__).with_name("transcript.lua").read_text("utf-8"))

    def load(self, thread: str, *, fence: int) -> list[Turn]:
        """Return the turns, and shut out the owners before this one."""
        return self._run(thread, fence)

    def save(self, thread: str, turns: Sequence[Turn], *, fence: int) -> None:
        """Replace the turns."""
        self._run(thread, fence, _dump(turns))

    def _run(self, thread: str, fence: int, *turns: str) -> list[Turn]:
        answer = self.script(keys=[f"{self.prefix}:{thread}"], args=[str(fence), *turns])
        if answer is None:
            raise StaleOwner(thread, fence)
        return _parse(answer)


class MemoryTranscripts:
    """Transcripts of one process, which end with it: for trials with ``INCUMBENT_PROVIDER=memory``."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()

    def load(self, thread: str, *, fence: int) -> list[Turn]:
        """Return the turns, and shut out the owners before this one."""
        return self._write(thread, fence)

    def save(self, thread: str, turns: Sequence[Turn], *, fence: int) -> None:
        """Replace the turns."""
        self._write(thread, fence, _dump(turns))

    def _write(self, thread: str, fence: int, turns: str | None = None) -> list[Turn]:
        with self._lock:
            seen, stored = self._kept.get(thread, (fence, "[]"))
            if seen > fence:
                raise StaleOwner(thread, fence)
            self._kept[thread] = (fence, stored if turns is None else turns)
            return _parse(self._kept[thread][1])


PROCESS_MEMORY = MemoryTranscripts()  # one for all threads of the process


def transcripts_from_env() -> Transcripts:
    """Return the store of transcripts beside the leases."""
    if table_name := os.environ.get("TRANSCRIPT_TABLE_NAME"):
        return DynamoDBTranscripts(table_name)
    match os.environ.get("INCUMBENT_PROVIDER"):
        case "redis":
            # Several functions may share the server: each has its own threads.
            prefix = f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', 'thread')}:transcript"
            return RedisTranscripts(prefix=prefix)
        case "memory" | "none":
            return PROCESS_MEMORY
        case provider:
            message = f"INCUMBENT_PROVIDER={provider} has no store for transcripts: set TRANSCRIPT_TABLE_NAME"
            raise RuntimeError(message)


def _dump(turns: Sequence[Turn]) -> str:
    """Serialise the newest turns, as many as fit."""
    kept: list[Turn] = []
    room = KEEP_BYTES
    for turn in map(_shortened, reversed(turns)):
        room -= _size(turn) + len(", ")
        if room < 0:
            break
        kept.append(turn)
    return _json([asdict(turn) for turn in reversed(kept)])


def _shortened(turn: Turn) -> Turn:
    """Return the turn, or the part of it that fits, with a mark at its end."""
    if _size(turn) <= TURN_BYTES:
        return turn
    cuts = range(len(turn.text))
    fit = bisect_right(cuts, TURN_BYTES, key=lambda cut: _size(replace(turn, text=turn.text[:cut] + CUT)))
    return replace(turn, text=turn.text[: max(0, fit - 1)] + CUT)


def _size(turn: Turn) -> int:
    return len(_json(asdict(turn)).encode())


def _json(value: Any) -> str:
    """Serialise as UTF-8, which has no lone surrogates: an escape in the event's JSON may contain one."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def _parse(stored: str | bytes) -> list[Turn]:
    return [Turn(**turn) for turn in json.loads(stored)]
