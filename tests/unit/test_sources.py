"""An event's source is told by its shape: what its message is called, whether somebody waits, what is not stored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from incumbent.sources import source_of, stored_form

EVENTS = Path(__file__).parents[2] / "events"


def load(name: str) -> Any:
    """Read one sample event."""
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


# What each sample event is: its kind, its message's own name, whether somebody waits for the answer.
KNOWN: Mapping[str, tuple[str, str | None, bool]] = {
    "alb": ("alb", "Root=1-69071f92-3f1c2b7a9d5e4c6081a2b3c4", True),
    "api-gateway-http": ("http", "QhYA0g3sliAEPvQ=", True),
    "api-gateway-rest": ("rest", "QhYBSExampleAEbGw=", True),
    "chat-message": ("http", "QhX7cjVWliAEJ3w=", True),
    "dynamodb-stream": ("record", None, False),
    "eventbridge": ("eventbridge", "6a7e8feb-b491-4cf7-a9f1-bf3703467718", False),
    "eventbridge-replayed": (
        "eventbridge",
        "6a7e8feb-b491-4cf7-a9f1-bf3703467718#replay#orders-after-outage",
        False,
    ),
    "function-url": ("http", "5c0b8b1e-2f43-4c1a-9f0d-1d2f6c9f7a10", True),
    "invoke": ("plain", None, False),
    "kinesis": ("record", None, False),
    "s3-via-eventbridge": ("eventbridge", "2ee9cc15-d022-99ea-1fb8-1b1bac4850f9", False),
    "slack": ("http", "QhYCVExampleAEcOw=", True),
    "sns": ("record", "95df01b4-ee98-5cb9-9903-4c221d41eb5e", False),
    "sqs-fifo": ("record", None, False),
    "sqs-standard": ("record", None, False),
    "step-functions": ("state-machine", None, False),
}

RECORDS = {
    "dynamodb-stream": "cfcd208495d565ef66e7dff9f98764da",
    "kinesis": "shardId-000000000002:49650000000000000000000000000000000000000000000000000000",
    "sqs-fifo": "059f36b4-87a3-44ab-83d2-661975830a7d",
    "sqs-standard": "059f36b4-87a3-44ab-83d2-661975830a7d",
    "sns": "95df01b4-ee98-5cb9-9903-4c221d41eb5e",
}

HTTP = [name for name, (_, _, synchronous) in KNOWN.items() if synchronous]


def test_every_sample_event_is_in_the_table() -> None:
    """A file that joins the folder joins the table above."""
    assert set(KNOWN) == {file.stem for file in EVENTS.glob("*.json")}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_source_is_told_by_the_events_shape(name: str) -> None:
    """Kind, message id, whether somebody waits."""
    source = source_of(load(name))
    assert (source.kind, source.message_id, source.synchronous) == KNOWN[name]


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_record_has_its_own_id(name: str) -> None:
    """One record of a batch, as ``leased_function`` gets it, and a batch of one."""
    record = load(name)["Records"][0]
    assert source_of(record).message_id == RECORDS[name]
    assert source_of({"Records": [record]}).message_id == RECORDS[name]
    assert not source_of(record).synchronous


def test_batch_of_several_has_no_id() -> None:
    """It is not one message."""
    assert source_of(load("sqs-standard")).message_id is None
    assert source_of({"Records": []}).message_id is None


@pytest.mark.parametrize(
    "event",
    [
        None,
        "text",
        7,
        [],
        {},
        {"requestContext": None},
        {"requestContext": {}},
        {"requestContext": "text", "httpMethod": "GET"},
        {"Records": "text"},
        {"Records": [None]},
        {"Records": ["text"]},
        {"messageId": "m"},
        {"eventID": "e"},
        {"Sns": None},
        {"detail-type": "only"},
    ],
    ids=repr,
)
def test_whatever_else_is_plain(event: Any) -> None:
    """Nothing is guessed: no id, nobody waits, answered with a body."""
    source = source_of(event)
    assert (source.message_id, source.synchronous) == (None, False)
    assert source.answer(202, {"status": "accepted"}) == {"status": "accepted"}


@pytest.mark.parametrize(
    "event",
    [
        {"eventSource": ["aws:kafka"], "records": {}},
        {"eventSource": {}, "messages": []},
        {"request": "requestId", "session": {}},
        {"request": 7, "context": {}},
        {"Records": 7},
        {"requestContext": "elb", "httpMethod": "GET"},
    ],
    ids=repr,
)
def test_familiar_field_with_another_value_is_plain(event: Any) -> None:
    """An application's own names may be the sources'."""
    assert source_of(event).kind == "plain"
    assert stored_form(event) is event


@pytest.mark.parametrize(
    "event",
    [
        {"type": "TOKEN", "authorizationToken": "t", "methodArn": "arn"},
        {"authorizationToken": "t", "requestContext": {"apiId": "a"}},  # AppSync's
        {"type": "REQUEST", "methodArn": "arn", "headers": {}},  # of a REST or WebSocket API
        {"type": "REQUEST", "routeArn": "arn", "headers": {}},  # of an HTTP API
    ],
    ids=repr,
)
def test_authorizer_is_waited_for_by_its_gateway(event: Any) -> None:
    """Its answer is a decision, which only the function can make."""
    source = source_of(event)
    assert (source.kind, source.name, source.message_id) == ("caller", "an authorizer's gateway", None)
    assert source.synchronous


@pytest.mark.parametrize("event", [{"methodArn": "arn"}, {"routeArn": "arn", "type": "T"}, {"type": "REQUEST"}])
def test_some_of_an_authorizers_fields_are_plain(event: Any) -> None:
    """An application's own names may be a gateway's."""
    assert source_of(event).kind == "plain"


@pytest.mark.parametrize("value", [None, "", 7, {"a": 1}])
def test_id_that_is_no_text_is_none(value: Any) -> None:
    """Then the request's own id is taken."""
    assert source_of({"requestContext": {"http": {}, "requestId": value}}).message_id is None
    assert source_of({"messageId": value, "receiptHandle": "r"}).message_id is None
    assert source_of({"detail-type": "d", "source": "s", "id": value, "replay-name": "r"}).message_id is None


def test_rest_event_without_an_extended_id_has_the_requests() -> None:
    """A test event of the console, say. Else the extended one, since a caller may choose the other by a header."""
    event = load("api-gateway-rest")
    del event["requestContext"]["extendedRequestId"]
    assert source_of(event).message_id == "b7d1a1f0-6c0e-4b7e-8c55-5a0c1f7d9e21"


@pytest.mark.parametrize(("size", "kept"), [(256, True), (257, False)])
def test_id_that_its_sender_may_lengthen_is_a_digest(size: int, *, kept: bool) -> None:
    """M5 takes 256 bytes; a trace header may have any length: it still tells two requests apart."""
    event = load("alb")
    ids = []
    for last in "ab":
        event["headers"]["x-amzn-trace-id"] = "x" * (size - 1) + last
        ids.append(source_of(event).message_id)
    assert all(each is not None and len(each.encode()) <= 256 for each in ids)
    assert len(set(ids)) == 2
    assert (ids[0] == "x" * (size - 1) + "a") is kept


@pytest.mark.parametrize(
    ("context", "event"),
    [({"http": {}}, {}), ({"connectionId": "c"}, {}), ({}, {"httpMethod": "GET"})],
    ids=["http", "websocket", "rest"],
)
@pytest.mark.parametrize("request_id", [7, "", None, "r" * 300])
def test_id_of_a_request_is_text_that_a_store_takes(context: Any, event: Any, request_id: Any) -> None:
    """One by hand may have anything there."""
    message_id = source_of({**event, "requestContext": {**context, "requestId": request_id}}).message_id
    if isinstance(request_id, str) and request_id:
        assert message_id is not None
        assert len(message_id) <= 256
    else:
        assert message_id is None


def test_id_with_a_lone_surrogate_is_no_error() -> None:
    """JSON can carry one; the store's check says what is wrong with it."""
    assert source_of({"messageId": "\ud800" * 200, "receiptHandle": "r"}).message_id is not None


def test_replay_is_another_message() -> None:
    """It was asked for on purpose: no duplicate of the first time, nor of another replay; its own retry is one."""
    replayed = load("eventbridge-replayed")
    again = {**replayed, "replay-name": "another"}
    ids = [source_of(event).message_id for event in (load("eventbridge"), replayed, again, replayed)]
    assert len(set(ids)) == 3
    assert ids[1] == ids[3]


def test_replays_with_the_longest_names_keep_apart() -> None:
    """EventBridge allows 64 characters: nothing is cut off that tells two replays from one another."""
    names = ["x" * 64, "x" * 63 + "y"]
    ids = [source_of({**load("eventbridge"), "replay-name": name}).message_id for name in names]
    assert all(each is not None and len(each.encode()) <= 256 for each in ids)
    assert ids[0] != ids[1]


# --- answers


def test_http_answer_of_an_http_api() -> None:
    """Payload 2.0, which a function URL has as well."""
    for name in ("api-gateway-http", "function-url"):
        assert source_of(load(name)).answer(202, {"status": "accepted"}) == {
            "statusCode": 202,
            "headers": {"content-type": "application/json"},
            "body": '{"status": "accepted"}',
        }


def test_http_answer_of_a_rest_api() -> None:
    """Payload 1.0 says how the body is encoded."""
    assert source_of(load("api-gateway-rest")).answer(409, {"error": "LeaseBusy"}, {"retry-after": "1"}) == {
        "statusCode": 409,
        "headers": {"content-type": "application/json", "retry-after": "1"},
        "body": '{"error": "LeaseBusy"}',
        "isBase64Encoded": False,
    }


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (200, "200 OK"),
        (202, "202 Accepted"),
        (400, "400 Bad Request"),
        (409, "409 Conflict"),
        (413, "413 Content Too Large"),
        (429, "429 Too Many Requests"),
        (503, "503 Service Unavailable"),
    ],
)
def test_http_answer_of_a_load_balancer(status: int, description: str) -> None:
    """It wants the reason beside the status."""
    assert source_of(load("alb")).answer(status, {}) == {
        "statusCode": status,
        "statusDescription": description,
        "headers": {"content-type": "application/json"},
        "body": "{}",
        "isBase64Encoded": False,
    }


def test_http_answer_of_a_load_balancer_with_multi_value_headers() -> None:
    """Where the target group has them on, answers without them are refused."""
    event = load("alb")
    event["multiValueHeaders"] = {name: [value] for name, value in event.pop("headers").items()}
    source = source_of(event)
    assert source.message_id == "Root=1-69071f92-3f1c2b7a9d5e4c6081a2b3c4"
    answer = source.answer(503, {}, {"retry-after": "1"})
    assert answer["multiValueHeaders"] == {"content-type": ["application/json"], "retry-after": ["1"]}
    assert "headers" not in answer


# --- what is stored


def secrets_in(event: Any) -> list[str]:
    """Which of the sample credentials can be read in it."""
    text = json.dumps(event)
    return [secret for secret in ("example-access-token", "example-cookie-value") if secret in text]


@pytest.mark.parametrize("name", ["alb", "api-gateway-http", "api-gateway-rest", "chat-message", "function-url"])
def test_credentials_are_not_stored(name: str) -> None:
    """H61: neither in headers, nor repeated in lists, nor as cookies of their own; all else is."""
    event = load(name)
    whole = json.dumps(event)
    kept = stored_form(event)
    assert secrets_in(event) == ["example-access-token", "example-cookie-value"]
    assert secrets_in(kept) == []
    assert json.dumps(event) == whole  # the event itself is the own run's
    assert {part for part in event if kept.get(part) != event[part]} <= {"headers", "multiValueHeaders", "cookies"}
    lost = {header.lower() for header in event["headers"]} - {header.lower() for header in kept["headers"]}
    assert lost == {"authorization", "cookie"}


@pytest.mark.parametrize(
    "header",
    ["X-Api-Key", "Proxy-Authorization", "X-Amz-Security-Token", "x-amzn-oidc-data", "x-amzn-oidc-accesstoken"],
)
def test_other_credentials_are_not_stored_either(header: str) -> None:
    """What lets its reader act for the caller, in any case."""
    event = {"requestContext": {"http": {}}, "headers": {header: "s3cret", "accept": "*/*"}}
    assert stored_form(event)["headers"] == {"accept": "*/*"}


def test_api_key_of_a_rest_event_is_not_stored() -> None:
    """API Gateway repeats it in the identity."""
    event = load("api-gateway-rest")
    event["requestContext"]["identity"]["apiKey"] = "s3cret"
    kept = stored_form(event)
    assert "s3cret" not in json.dumps(kept)
    assert kept["requestContext"]["identity"]["sourceIp"] == "192.0.2.44"
    assert event["requestContext"]["identity"]["apiKey"] == "s3cret"


def test_credentials_of_a_websocket_are_not_stored() -> None:
    """Its connect event has headers too, and is no HTTP request otherwise."""
    event: dict[str, Any] = {
        "requestContext": {"eventType": "CONNECT", "connectionId": "c", "requestId": "r"},
        "headers": {"Cookie": "s3cret", "Host": "example.com"},
        "multiValueHeaders": {"Cookie": ["s3cret"], "Host": ["example.com"]},
    }
    assert stored_form(event) == {
        "requestContext": event["requestContext"],
        "headers": {"Host": "example.com"},
        "multiValueHeaders": {"Host": ["example.com"]},
    }


@pytest.mark.parametrize("name", sorted(set(KNOWN) - set(HTTP)))
def test_whatever_is_no_request_is_stored_as_it_is(name: str) -> None:
    """The very object: nothing is copied."""
    event = load(name)
    assert stored_form(event) is event


@pytest.mark.parametrize("event", [None, "text", 7, [1], {"headers": {"authorization": "ours"}}], ids=repr)
def test_plain_value_is_stored_as_it_is(event: Any) -> None:
    """Also one that happens to have headers."""
    assert stored_form(event) is event


def test_list_that_is_not_copied_is_not_changed() -> None:
    """What an application nests in lists of its own is its own data."""
    event = [[{"requestContext": {}, "headers": {"cookie": "ours"}}]]
    assert stored_form(event) is event
    assert event == [[{"requestContext": {}, "headers": {"cookie": "ours"}}]]


def test_request_without_headers_is_stored() -> None:
    """A test event of the console, say."""
    event: dict[str, Any] = {"requestContext": {"http": {}}, "headers": None, "body": "b"}
    assert stored_form(event) == event
