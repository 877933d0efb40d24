"""Recognises an event's source by the event's shape: its message id, whether a caller waits, and its answer's form."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

from incumbent.credentials import copied, without_credentials
from incumbent.frozen import dataclass, replace
from incumbent.validation import MAX_MESSAGE_ID_BYTES, fit

T = TypeVar("T")

Kind: TypeAlias = Literal[
    "http", "rest", "alb", "lattice", "websocket", "caller", "state-machine", "record", "eventbridge", "plain"
]

_HTTP = frozenset({"http", "rest", "alb", "lattice", "websocket"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of an event. ``message_id`` is the source's id for the event, the same on every delivery.

    ``synchronous``: a caller waits for the answer. A source of kind ``"caller"`` waits for an answer in a shape that
    only the application knows; ``name`` says which source it is. A source of kind ``"state-machine"`` takes every
    answer for its task's result.
    """

    kind: Kind
    message_id: str | None
    synchronous: bool = False
    multi_value_headers: bool = False
    name: str = ""

    @property
    def http(self) -> bool:
        """Whether the caller speaks HTTP, so that errors are answered with a status."""
        return self.kind in _HTTP

    def answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Make the answer in the source's shape: an HTTP response, or the body for every other source."""
        if not self.http:
            return dict(body)
        fields = {**(headers or {}), "content-type": "application/json"}
        response: dict[str, Any] = {"statusCode": status, "body": json.dumps(body)}
        if self.multi_value_headers:
            response["multiValueHeaders"] = {name: [value] for name, value in fields.items()}
        else:
            response["headers"] = fields
        if self.kind == "alb":
            response["statusDescription"] = f"{status} {_REASONS[status]}"
        if self.kind in {"alb", "rest", "lattice"}:
            response["isBase64Encoded"] = False
        return response


PLAIN = Source(kind="plain", message_id=None)
"""The source of an event that has no shape that is known."""

# It waits, but for the result of this task: it is better served by a run behind older ones than by "accepted".
_TASK = Source(kind="state-machine", message_id=None)

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
    if not _is_mapping(event):
        return _source_of_list(event) if isinstance(event, list) and event else PLAIN
    if _SHAPED.isdisjoint(event):
        return _TASK if _is_of_an_execution(event) else PLAIN
    for name, is_one, name_of in _rows_of(event, _CALLERS_BY_FIELD):
        if is_one(event):
            return Source(kind="caller", message_id=_text(name_of(event)), synchronous=True, name=name)
    context = event.get("requestContext")
    if isinstance(context, Mapping) and (request := _request(event, context)):
        return request
    if "raw_path" in event and "method" in event:  # VPC Lattice, version 1
        return Source(kind="lattice", message_id=None, synchronous=True)
    if (records := _records(event)) is not None:
        # One record is one message; a batch of several has no name of its own.
        return source_of(records[0]) if len(records) == 1 else Source(kind="record", message_id=None)
    if "detail-type" in event and "source" in event:
        message_id = _text(event.get("id"))
        replay = _text(event.get("replay-name"))
        if message_id and replay:  # asked for on purpose: not a duplicate of the first time
            message_id = _text(f"{message_id}#replay#{replay}")
        return Source(kind="eventbridge", message_id=message_id)
    return _TASK if _is_of_an_execution(event) else _record(event)


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101 - in this order it is quick


def _source_of_list(event: list[Any]) -> Source:
    """Recognise AppSync's batch, and the records that EventBridge Pipes delivers as a bare list."""
    if _is_appsync(event[0]):
        return Source(kind="caller", message_id=None, synchronous=True, name="AppSync")
    if not isinstance(event[0], Mapping):
        return PLAIN
    first = _record(event[0])
    return first if len(event) == 1 else replace(first, message_id=None)


def _is_of_an_execution(event: Mapping[str, Any]) -> bool:
    """Return whether an event is a task of Step Functions: its input has the execution's ARN or context object."""
    for value in (event, *event.values()):
        arn = value
        if not isinstance(value, str):
            arn = _execution_id(value) if _is_mapping(value) and "Execution" in value else None
        if isinstance(arn, str) and arn.startswith("arn:") and _EXECUTION.match(arn):
            return True
    return False


_EXECUTION = re.compile(r"arn:[^:]+:states:[^:]*:[^:]*:(?:execution|express):")


def _request(event: Mapping[str, Any], context: Mapping[str, Any]) -> Source | None:
    """Recognise a request, whose answer is an HTTP response, by its context."""
    if "elb" in context:
        many = isinstance(event.get("multiValueHeaders"), Mapping)
        trace = _header(event, "x-amzn-trace-id")
        return Source(kind="alb", message_id=trace, synchronous=True, multi_value_headers=many)
    if "connectionId" in context:
        own = _text(context.get("messageId")) or _text(context.get("requestId"))
        return Source(kind="websocket", message_id=own, synchronous=True)
    if "http" in context:
        return Source(kind="http", message_id=_text(context.get("requestId")), synchronous=True)
    if "serviceNetworkArn" in context:  # VPC Lattice, version 2
        return Source(kind="lattice", message_id=None, synchronous=True)
    if "httpMethod" in event:
        # Its caller may choose requestId, by a header, but not the extended one.
        own = _text(context.get("extendedRequestId")) or _text(context.get("requestId"))
        return Source(kind="rest", message_id=own, synchronous=True)
    return None


def _records(event: Mapping[str, Any]) -> list[Any] | None:
    """Return the records of a batch, under any of the names that sources use."""
    records = event.get("Records")
    if isinstance(records, list):
        return records
    if event.get("eventSource") not in _GROUPING:
        return None
    for part, grouped in (("messages", False), ("records", True), ("rmqMessagesByQueue", True)):
        inner = event.get(part)
        if isinstance(inner, list):
            return inner
        if grouped and isinstance(inner, Mapping):
            return [record for group in inner.values() if isinstance(group, list) for record in group]
    return None


# As AWS' pages and Powertools' samples have them.
_GROUPING = ("aws:kafka", "SelfManagedKafka", "aws:SelfManagedKafka", "aws:mq", "aws:amq", "aws:rmq")


def _record(event: Mapping[str, Any]) -> Source:
    """Recognise one record of a batch, or an event that is one, by its source's id."""
    for name_of in _rows_of(event, _RECORDS_BY_FIELD):
        name = name_of(event)
        if name is not None:
            return Source(kind="record", message_id=_text(name))
    return PLAIN


def _kafka(event: Mapping[str, Any]) -> object:
    """Return a record's place in its log, with its time: a topic that was deleted and made again counts from zero."""
    match event:
        case {"topic": str(topic), "partition": int(partition), "offset": int(offset), **rest}:
            return f"{topic}/{partition}/{offset}/{rest.get('timestamp', '')}"
        case _:
            return None


def _s3(event: Mapping[str, Any]) -> object:
    """Return an id of the event, object, order (``sequencer``) and request."""
    match event:
        case {
            "eventName": str(done),
            "s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key), **item}, **s3},
        }:
            sent = event.get("responseElements")
            asked = sent.get("x-amz-request-id") if isinstance(sent, Mapping) else None
            when = item.get("sequencer") or event.get("eventTime")
            return json.dumps([bucket, key, item.get("versionId"), done, when, asked, s3.get("configurationId")])
        case _:
            return None


def _at(*path: str) -> Callable[[Mapping[str, Any]], object]:
    """Make a function that returns the value at a path in an event, or ``None``."""

    def found(event: Any) -> object:
        for name in path:
            event = event.get(name) if isinstance(event, Mapping) else None
        return event

    return found


def _by_field(rows: Iterable[tuple[tuple[str, ...], T]]) -> Mapping[str, list[tuple[int, T]]]:
    """Index a table's rows by the fields that an event has, one of each row's at least. A row keeps its rank."""
    index: dict[str, list[tuple[int, T]]] = {}
    for rank, (fields, row) in enumerate(rows):
        for name in fields:
            index.setdefault(name, []).append((rank, row))
    return index


def _rows_of(event: Mapping[str, Any], index: Mapping[str, list[tuple[int, T]]]) -> Iterable[T]:
    """Return the rows whose fields an event has, in the table's order. Most events have none."""
    found: list[tuple[int, T]] = []
    for name in event:
        if name in index:
            found += index[name]
    if len(found) > 1:
        found.sort(key=_rank)
    return [row for _, row in found]


def _rank(found: tuple[int, Any]) -> int:
    return found[0]


_execution_id = _at("Execution", "Id")

# The records with an id of their source's: a field that shows the record, and its id.
_RECORDS: tuple[tuple[str, Callable[[Mapping[str, Any]], object]], ...] = (
    ("receiptHandle", _at("messageId")),  # SQS
    ("Sns", _at("Sns", "MessageId")),
    ("kinesis", _at("eventID")),
    ("kinesisSchemaVersion", _at("eventID")),  # Kinesis through EventBridge Pipes
    ("dynamodb", _at("eventID")),
    ("topic", _kafka),
    ("s3", _s3),
    ("ses", _at("ses", "mail", "messageId")),
    ("destination", _at("messageID")),  # ActiveMQ
    ("basicProperties", _at("basicProperties", "messageId")),  # RabbitMQ: only where its sender gave one
    ("CodePipeline.job", _at("CodePipeline.job", "id")),
    ("ResponseURL", _at("RequestId")),  # CloudFormation's custom resources
    ("DeploymentId", _at("LifecycleEventHookExecutionId")),  # CodeDeploy
    ("eventType", _at("eventId")),  # IoT's registry
)
_RECORDS_BY_FIELD = _by_field(((name,), name_of) for name, name_of in _RECORDS)


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda event: all(name in event for name in names)


def _is_appsync(event: object) -> bool:
    if not isinstance(event, Mapping):
        return False
    info = event.get("info")
    if isinstance(info, Mapping):
        return "fieldName" in info or "channel" in info
    return "fieldName" in event and "arguments" in event


def _is_authorizer(event: Mapping[str, Any]) -> bool:
    """Return whether an event with an authorizer's fields is for one, of API Gateway or of AppSync."""
    return "authorizationToken" in event or event.get("type") == "REQUEST"


def _is_of_a_provider_framework(event: Mapping[str, Any]) -> bool:
    """Return whether the AWS CDK's provider framework waits for a custom resource's data: it hides the address."""
    return event.get("ResponseURL") == "..."


def _is_custom_orchestration(event: Mapping[str, Any]) -> bool:
    context = event.get("context")
    return "state" in event and isinstance(context, Mapping) and "agentConfiguration" in context


def _is_analytics_record(event: Mapping[str, Any]) -> bool:
    return "recordId" in event and any(name in event for name in _ANALYTICS_METADATA)


_ANALYTICS_METADATA = ("kinesisStreamRecordMetadata", "kinesisFirehoseRecordMetadata", "lambdaDeliveryRecordMetadata")


def _is_connecting(event: Mapping[str, Any]) -> bool:
    """Return whether a WebSocket is being opened: a success would admit it before the handler has decided."""
    context = event.get("requestContext")
    return isinstance(context, Mapping) and "connectionId" in context and context.get("eventType") == "CONNECT"


def _is_alexa(event: Mapping[str, Any]) -> bool:
    request = event.get("request")
    return isinstance(request, Mapping) and "requestId" in request and ("session" in event or "context" in event)


def _is_edge(event: Mapping[str, Any]) -> bool:
    return any("cf" in record for record in _all_records(event))


def _is_mail_to_decide_on(event: Mapping[str, Any]) -> bool:
    action = _at("ses", "receipt", "action", "invocationType")
    return any(action(record) == "RequestResponse" for record in (event, *_all_records(event)))


def _all_records(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    records = event.get("Records")
    return (each for each in (records if isinstance(records, list) else ()) if isinstance(each, Mapping))


def _no_name(event: Mapping[str, Any]) -> None:
    del event


_Caller: TypeAlias = tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], object]]

# The sources that wait for an answer in their own shape: fields of which the event has one, the source's name, how to
# recognise it, and its id for the event.
_CALLERS: tuple[tuple[tuple[str, ...], _Caller], ...] = (
    (("authorizationToken", "methodArn", "routeArn"), ("an authorizer's gateway", _is_authorizer, _no_name)),
    (("protocolData",), ("AWS IoT's gateway", _has("protocolData", "protocols"), _no_name)),
    (("requestContext",), ("a WebSocket's $connect", _is_connecting, _at("requestContext", "requestId"))),
    (("info", "fieldName"), ("AppSync", _is_appsync, _no_name)),
    (("actionGroup",), ("a Bedrock agent", _has("messageVersion", "agent", "actionGroup"), _no_name)),
    (("invokeModelRawResponse",), ("a Bedrock agent", _has("promptType", "invokeModelRawResponse"), _no_name)),
    (("context",), ("a Bedrock agent", _is_custom_orchestration, _no_name)),
    (("bot",), ("Lex", _has("bot", "invocationSource"), _no_name)),
    (("request",), ("Alexa", _is_alexa, _at("request", "requestId"))),
    (("triggerSource",), ("Cognito", _has("triggerSource", "userPoolId"), _no_name)),
    (("Details",), ("Amazon Connect", lambda event: _at("Details", "ContactData")(event) is not None, _no_name)),
    (("deliveryStreamArn",), ("Firehose", _has("deliveryStreamArn", "records"), _no_name)),
    (("recordId",), ("Firehose", _has("recordId", "approximateArrivalTimestamp"), _at("recordId"))),
    (("applicationArn",), ("Kinesis Data Analytics", _has("applicationArn", "records"), _no_name)),
    (("recordId",), ("Kinesis Data Analytics", _is_analytics_record, _at("recordId"))),
    (("transformId",), ("CloudFormation", _has("transformId", "fragment"), _at("requestId"))),
    (("ResponseURL",), ("the CDK's provider framework", _is_of_a_provider_framework, _at("RequestId"))),
    (("isFinalInvokeForWindow",), ("a stream's tumbling window", _has("isFinalInvokeForWindow"), _no_name)),
    (("getObjectContext",), ("S3 Object Lambda", _has("getObjectContext"), _at("xAmzRequestId"))),
    (("invocationSchemaVersion",), ("S3 Batch Operations", _has("invocationSchemaVersion", "tasks"), _no_name)),
    (("widgetContext",), ("a CloudWatch dashboard", _has("widgetContext"), _no_name)),
    (("serverId",), ("Transfer Family", _has("serverId", "protocol", "username"), _no_name)),
    (("Records",), ("CloudFront", _is_edge, _no_name)),
    (("ses", "Records"), ("SES", _is_mail_to_decide_on, _no_name)),
)
_CALLERS_BY_FIELD = _by_field(_CALLERS)

# An event with none of these fields has no shape that is known.
_SHAPED = frozenset({*_CALLERS_BY_FIELD, *_RECORDS_BY_FIELD, "raw_path", "Records", "eventSource", "detail-type"})


def stored_form(event: Any, source: Source | None = None) -> Any:
    """Return what the mailbox stores of an event by default: everything but a request's credentials.

    ``source`` is the event's, if it is known already.
    """
    if isinstance(event, list):
        return copied(event, _stored_alone, into=list)
    return without_credentials(event) if _has_credentials(event, source) else event


def _stored_alone(event: Any) -> Any:
    """Return what is stored of one event, or a copy of a list of requests."""
    if isinstance(event, list):
        return list(event) if any(_has_credentials(each) for each in event) else event
    return without_credentials(event) if _has_credentials(event) else event


def _has_credentials(event: Any, source: Source | None = None) -> bool:
    """Return whether an event may have a request's credentials: a caller's, or CodePipeline's."""
    if not _is_mapping(event):
        return False
    context = event.get("requestContext")
    return (
        (context is not None and _is_mapping(context))
        or (len(event) > 1 and isinstance(event.get("headers"), Mapping))  # a request as a sender may write it
        or "CodePipeline.job" in event
        or (source or source_of(event)).synchronous
    )


def _header(event: Mapping[str, Any], wanted: str) -> str | None:
    for part in ("headers", "multiValueHeaders"):
        headers = event.get(part)
        if isinstance(headers, Mapping):
            for name, value in headers.items():
                if name.lower() == wanted:
                    return _text(value[0] if isinstance(value, list) and value else value)
    return None


def _text(value: object) -> str | None:
    """Return an id; one that is too long (its sender may lengthen it) is digested."""
    if not isinstance(value, str) or not value:
        return None
    return fit(value, MAX_MESSAGE_ID_BYTES)
