"""What an event's source is, by the event's shape: its message id, whether somebody waits, and how it is answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from incumbent.validation import MAX_MESSAGE_ID_BYTES, fit

Kind: TypeAlias = Literal["http", "rest", "alb", "record", "eventbridge", "plain"]

# Never stored: what lets its reader act for the caller (H61).
_SECRET_HEADERS = frozenset(
    {
        "authorization",
        "cookie",
        "proxy-authorization",
        "set-cookie",
        "x-amz-security-token",
        "x-api-key",
        "x-amzn-oidc-accesstoken",
        "x-amzn-oidc-data",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an event came from. ``message_id`` is the source's own name for it, the same on every delivery."""

    kind: Kind
    message_id: str | None
    synchronous: bool = False
    multi_value_headers: bool = False

    def answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """The answer in the source's own shape: an HTTP response, or the body for everybody else."""
        if not self.synchronous:
            return dict(body)
        fields = {"content-type": "application/json", **(headers or {})}
        response: dict[str, Any] = {"statusCode": status, "body": json.dumps(body)}
        if self.multi_value_headers:
            response["multiValueHeaders"] = {name: [value] for name, value in fields.items()}
        else:
            response["headers"] = fields
        if self.kind == "alb":
            response["statusDescription"] = f"{status} {_REASONS[status]}"
        if self.kind in {"alb", "rest"}:
            response["isBase64Encoded"] = False
        return response


_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    409: "Conflict",
    413: "Content Too Large",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


def source_of(event: object) -> Source:
    """Recognise a whole event, or one record of a batch."""
    if not isinstance(event, Mapping):
        return Source(kind="plain", message_id=None)
    context = event.get("requestContext")
    if isinstance(context, Mapping):
        if "elb" in context:
            headers = event.get("multiValueHeaders")
            many = isinstance(headers, Mapping)
            trace = _header(event, "x-amzn-trace-id")
            return Source(kind="alb", message_id=trace, synchronous=True, multi_value_headers=many)
        if "http" in context:
            return Source(kind="http", message_id=_text(context.get("requestId")), synchronous=True)
        if "httpMethod" in event:
            # Its caller may choose requestId, by a header, but not the extended one.
            own = _text(context.get("extendedRequestId")) or _text(context.get("requestId"))
            return Source(kind="rest", message_id=own, synchronous=True)
    records = event.get("Records")
    if isinstance(records, list):
        # One record is one message; a batch of several has no name of its own.
        return source_of(records[0]) if len(records) == 1 else Source(kind="record", message_id=None)
    if "detail-type" in event and "source" in event:
        message_id = _text(event.get("id"))
        replay = _text(event.get("replay-name"))
        if message_id and replay:  # asked for on purpose: not a duplicate of the first time
            message_id = _text(f"{message_id}#replay#{replay}")
        return Source(kind="eventbridge", message_id=message_id)
    return _record(event)


def _record(event: Mapping[str, Any]) -> Source:
    if "messageId" in event and "receiptHandle" in event:  # SQS
        return Source(kind="record", message_id=_text(event["messageId"]))
    sns = event.get("Sns")
    if isinstance(sns, Mapping):
        return Source(kind="record", message_id=_text(sns.get("MessageId")))
    if "eventID" in event and ("kinesis" in event or "dynamodb" in event):
        return Source(kind="record", message_id=_text(event["eventID"]))
    return Source(kind="plain", message_id=None)


def stored_form(event: Any) -> Any:
    """What is kept of an event unless ``store=`` chooses: all but the credentials of a request (HTTP, WebSocket)."""
    request = event.get("requestContext") if isinstance(event, Mapping) else None
    if not isinstance(request, Mapping):
        return event
    kept = dict(event)
    identity = request.get("identity")
    if isinstance(identity, Mapping) and "apiKey" in identity:  # what x-api-key held
        kept["requestContext"] = {**request, "identity": {**identity, "apiKey": None}}
    for part in ("headers", "multiValueHeaders"):
        headers = kept.get(part)
        if isinstance(headers, Mapping):
            kept[part] = {name: value for name, value in headers.items() if name.lower() not in _SECRET_HEADERS}
    kept.pop("cookies", None)
    return kept


def _header(event: Mapping[str, Any], wanted: str) -> str | None:
    for part in ("headers", "multiValueHeaders"):
        headers = event.get(part)
        if isinstance(headers, Mapping):
            for name, value in headers.items():
                if name.lower() == wanted:
                    return _text(value[0] if isinstance(value, list) and value else value)
    return None


def _text(value: object) -> str | None:
    """Text that is an id; of one that is too long (its sender may lengthen it) the digest."""
    if not isinstance(value, str) or not value:
        return None
    return fit(value, MAX_MESSAGE_ID_BYTES)
