"""Functions as Lambda imports them, with a model that does what the test says."""

import importlib
import json
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from incumbent import addresses
from incumbent.local.template import Template
from incumbent.providers.memory import provider as memory
from incumbent.testing.servers import AWS_ENVIRONMENT, DynamoDBServer, valkey

FUNCTIONS = Path(__file__).parents[2] / "functions"


@contextmanager
def table_on(running: AbstractContextManager[DynamoDBServer], key: str, variable: str) -> Iterator[dict[str, str]]:
    """Make the template's table of that key; yield the variables under which its function finds it."""
    import boto3

    template = Template.load(FUNCTIONS.parent / "template.yaml")
    (table,) = (table for table in template.tables() if table["KeySchema"][0]["AttributeName"] == key)
    with running as server:
        session = boto3.Session("incumbent", "incumbent", region_name="eu-central-1")
        client = session.client("dynamodb", endpoint_url=server.endpoint_url)
        client.create_table(**table)
        client.close()
        yield {**server.environment, variable: table["TableName"]}


@pytest.fixture(scope="module")
def redis_environment() -> Iterator[dict[str, str]]:
    """The variables under which a function finds a server of its own."""
    with valkey() as server:
        yield {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": server.url}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the runtime client hands to a handler."""

    aws_request_id: str
    remaining_ms: int = 60_000
    function_name: str = "thread"
    function_version: str = "$LATEST"
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:123456789012:function:thread"
    memory_limit_in_mb: int = 512
    log_group_name: str = "/aws/lambda/thread"
    log_stream_name: str = "2026/11/02/[$LATEST]0123456789abcdef"

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation has left."""
        return self.remaining_ms


@dataclass(slots=True, kw_only=True)
class Model:
    """Bedrock's ConverseStream as far as this goes: counts what it was asked, and does in between what it is told."""

    while_thinking: list[Callable[[], object]] = field(default_factory=list)
    asked: list[list[dict[str, Any]]] = field(default_factory=list)

    def converse(self, messages: list[dict[str, Any]]) -> str:
        """Note the question, do the next thing on the list, and answer."""
        self.asked.append(messages)
        if self.while_thinking:
            self.while_thinking.pop(0)()
        return f"answer {len(self.asked)}"


def converse_stream(text: str) -> bytes:
    """Return Bedrock's answer: a stream of events, with the text in two pieces."""
    first, space, rest = text.partition(" ")
    pieces = [first + space, rest]
    events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
    events += [("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in pieces]
    events += [("messageStop", {"stopReason": "end_turn"})]
    return b"".join(_framed(name, json.dumps(event).encode()) for name, event in events)


def _framed(name: str, payload: bytes) -> bytes:
    """One event in the encoding of event streams: lengths and their checksum, headers, payload, checksum."""
    said = {":message-type": "event", ":event-type": name, ":content-type": "application/json"}
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()
        for key, value in said.items()
    )
    prelude = (16 + len(headers) + len(payload)).to_bytes(4) + len(headers).to_bytes(4)
    frame = prelude + zlib.crc32(prelude).to_bytes(4) + headers + payload
    return frame + zlib.crc32(frame).to_bytes(4)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model behind an endpoint of this machine, which botocore takes for Bedrock's."""
    model = Model()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = model.converse(request["messages"])
            body = converse_stream(text)
            self.send_response(200)
            self.send_header("content-type", "application/vnd.amazon.eventstream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("MODEL_ID", "example.model-v1:0")
        yield model
        server.shutdown()
        thread.join()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sequence[ModuleType]]]:
    """Import modules of a function's folder afresh, as a new environment would, and forget them afterwards."""
    loaded: list[str] = []

    def load(function: str, *names: str) -> Sequence[ModuleType]:
        folder = FUNCTIONS / function
        monkeypatch.syspath_prepend(str(folder))
        loaded.extend(file.stem for file in folder.glob("*.py"))
        for name in loaded:
            sys.modules.pop(name, None)
        return [importlib.import_module(name) for name in names]

    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    memory._process_memory.cache_clear()  # noqa: SLF001 - a new environment remembers nothing
    addresses.provider_from_env.cache_clear()
    yield load
    for name in loaded:
        sys.modules.pop(name, None)
