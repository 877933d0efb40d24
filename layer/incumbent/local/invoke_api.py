"""The Invoke API of Lambda, as far as boto3's ``invoke`` needs it, and SQS' SendMessage for delayed wakes."""

import base64
import binascii
import json
import re
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from incumbent.errors import ConfigurationError
from incumbent.local.files import MAX_ASYNC_EVENT_BYTES, MAX_EVENT_BYTES, parse_json
from incumbent.local.http_server import Handler
from incumbent.local.invocations import Pending
from incumbent.local.template import LATEST
from incumbent.local.wake_queue import SEND_MESSAGE, UnknownQueue, WakeQueue

_PATH = re.compile(r"/2015-03-31/functions/([^/]+)/invocations/?")
_MAX_BYTES = {"RequestResponse": MAX_EVENT_BYTES, "Event": MAX_ASYNC_EVENT_BYTES, "DryRun": MAX_EVENT_BYTES}
_LOG_TAIL_BYTES = 4_096


class Invoker(Protocol):
    """What the Invoke API hands its requests to."""

    wake_queue: WakeQueue

    def submit_bytes(
        self,
        function: str,
        body: bytes,
        *,
        asynchronous: bool,
        trace_id: str | None,
        client_context: str | None,
    ) -> Pending:
        """Send an invocation; raise ConfigurationError where there is no such function."""
        ...

    def check_function(self, function: str) -> None:
        """Raise ConfigurationError where there is no such function."""
        ...


class InvokeApi(Handler):
    """``POST /2015-03-31/functions/{name}/invocations``: RequestResponse, Event, DryRun. SendMessage of one queue."""

    def do_POST(self) -> None:  # noqa: N802 - the base class calls it by this name
        """Invoke, or keep a wake."""
        body = self.read_body()
        if self.headers.get("X-Amz-Target") == SEND_MESSAGE:
            self._keep_wake(body)
            return
        url = urlsplit(self.path)
        match = _PATH.fullmatch(url.path)
        kind = self.headers.get("X-Amz-Invocation-Type") or "RequestResponse"
        if match is None:
            self._refuse(404, "UnknownOperationException", f"only Lambda's Invoke API is here, not {url.path}")
            return
        if kind not in _MAX_BYTES:
            self._refuse(400, "InvalidParameterValueException", f"unknown invocation type {kind!r}")
            return
        if len(body) > _MAX_BYTES[kind]:
            self._refuse(413, "RequestTooLargeException", f"{len(body):,} bytes; allowed are {_MAX_BYTES[kind]:,}")
            return
        function = unquote(match[1])
        for qualifier in parse_qs(url.query).get("Qualifier", []):
            function = f"{function}:{qualifier}"
        try:
            self._invoke(function, kind, body or b"{}")
        except ConfigurationError as error:
            self._refuse(404, "ResourceNotFoundException", f"Function not found: {error}")
        except (ValueError, binascii.Error) as error:
            self._refuse(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not the Invoke API: every other method."""
        self._refuse(
            404, "UnknownOperationException", f"only Lambda's Invoke API is here: {message or explain or code}"
        )

    def _invoke(self, function: str, kind: str, body: bytes) -> None:
        invoker: Invoker = self.server.owner
        parse_json(body)
        context = self.headers.get("X-Amz-Client-Context")
        if kind == "DryRun":
            invoker.check_function(function)
            self.reply(204)
            return
        pending = invoker.submit_bytes(
            function,
            body,
            asynchronous=kind == "Event",
            trace_id=self.headers.get("X-Amzn-Trace-Id"),
            client_context=base64.b64decode(context, validate=True).decode() if context else None,
        )
        headers = {"x-amzn-RequestId": pending.request_id, "X-Amz-Executed-Version": LATEST}
        if kind == "Event":
            self.reply(202, b"", headers)
            return
        invocation = pending.result()
        if self.headers.get("X-Amz-Log-Type") == "Tail":
            text = "".join(f"{line.text}\n" for line in invocation.logs)
            headers["X-Amz-Log-Result"] = base64.b64encode(text.encode()[-_LOG_TAIL_BYTES:]).decode()
        if invocation.error is not None:
            headers["X-Amz-Function-Error"] = "Unhandled"
        answer = invocation.payload if invocation.error is None else invocation.error
        self.reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json", **headers})

    def _keep_wake(self, body: bytes) -> None:
        invoker: Invoker = self.server.owner
        try:
            status, answer = 200, invoker.wake_queue.send(parse_json(body))
        except UnknownQueue as error:
            status, answer = 400, {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": str(error)}
        except (ValueError, AttributeError) as error:
            status, answer = 400, {"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": str(error)}
        self.reply(status, json.dumps(answer).encode(), {"Content-Type": "application/x-amz-json-1.0"})

    def _refuse(self, status: int, kind: str, message: str) -> None:
        body = {"Type": "User", "Message": message, "message": message}
        self.reply(status, json.dumps(body).encode(), {"Content-Type": "application/json", "x-amzn-ErrorType": kind})


def split_function_name(function: str) -> tuple[str, str]:
    """Split a name, a partial or a full ARN into the function's name and its qualifier, maybe empty."""
    parts = function.split(":")
    if "function" in parts:
        parts = parts[parts.index("function") + 1 :]
    return parts[0], parts[1] if len(parts) > 1 else ""
