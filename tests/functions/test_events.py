"""The sample events are what their sources send, complete enough to be told apart by them."""

import base64
import hashlib
import hmac
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

EVENTS = Path(__file__).parents[2] / "events"
SCENARIOS = EVENTS / "scenarios"
ACCOUNT = "123456789012"
HTTP_V2 = ("api-gateway-http", "chat-message", "function-url", "slack")
WITH_CREDENTIALS = ("alb", "api-gateway-http", "api-gateway-rest", "chat-message", "function-url")

# What tells the sources apart: a path into the event, and the value that stands there (None: any).
IDENTIFYING: dict[str, dict[str, str | None]] = {
    "alb": {"requestContext.elb.targetGroupArn": None, "httpMethod": "POST", "path": None},
    "api-gateway-http": {"version": "2.0", "routeKey": "PUT /orders/{order_id}", "requestContext.apiId": None},
    "api-gateway-rest": {
        "resource": "/orders/{order_id}",
        "httpMethod": "PUT",
        "multiValueHeaders": None,
        "requestContext.identity": None,
        "requestContext.requestId": None,
        "requestContext.stage": None,
    },
    "chat-message": {"version": "2.0", "routeKey": "POST /messages", "requestContext.apiId": None},
    "dynamodb-stream": {
        "Records.0.eventSource": "aws:dynamodb",
        "Records.0.dynamodb.SequenceNumber": None,
        "Records.0.dynamodb.Keys": None,
        "Records.0.eventID": None,
    },
    "eventbridge": {"detail-type": None, "source": None, "id": None, "account": ACCOUNT},
    "eventbridge-replayed": {"detail-type": None, "source": None, "id": None, "replay-name": None},
    "function-url": {"version": "2.0", "routeKey": "$default", "requestContext.domainName": None},
    "invoke": {"order_id": None},
    "kinesis": {
        "Records.0.eventSource": "aws:kinesis",
        "Records.0.kinesis.sequenceNumber": None,
        "Records.0.kinesis.partitionKey": None,
        "Records.0.eventID": None,
    },
    "s3-via-eventbridge": {"detail-type": "Object Created", "source": "aws.s3", "detail.object.sequencer": None},
    "slack": {"version": "2.0", "headers.x-slack-signature": None, "headers.x-slack-request-timestamp": None},
    "sns": {"Records.0.EventSource": "aws:sns", "Records.0.Sns.MessageId": None, "Records.0.Sns.TopicArn": None},
    "sqs-fifo": {
        "Records.0.eventSource": "aws:sqs",
        "Records.0.messageId": None,
        "Records.0.receiptHandle": None,
        "Records.0.attributes.MessageGroupId": "order-1001",
        "Records.0.attributes.MessageDeduplicationId": None,
        "Records.0.attributes.SequenceNumber": None,
    },
    "sqs-standard": {
        "Records.0.eventSource": "aws:sqs",
        "Records.0.messageId": None,
        "Records.0.receiptHandle": None,
        "Records.0.attributes.ApproximateReceiveCount": "1",
    },
    "step-functions": {"execution": None, "state": None, "input.order_id": None},
}


def load(name: str) -> Any:
    """Read one sample event."""
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


def at(event: Any, path: str) -> Any:
    """Return what stands at a dotted path."""
    for name in path.split("."):
        event = event[int(name)] if isinstance(event, list) else event[name]
    return event


def test_every_sample_event_is_described_here() -> None:
    """A file that joins the folder joins the table above."""
    assert {file.stem for file in EVENTS.glob("*.json")} == set(IDENTIFYING)


@pytest.mark.parametrize("name", sorted(IDENTIFYING))
def test_event_has_what_identifies_its_source(name: str) -> None:
    """Each path is there with its value, and nothing that the source would fill is empty."""
    event = load(name)
    for path, expected in IDENTIFYING[name].items():
        found = at(event, path)
        assert found, path
        assert expected is None or found == expected


@pytest.mark.parametrize("name", HTTP_V2)
def test_http_v2_event_is_whole(name: str) -> None:
    """Method, path, request id and body stand where a handler looks for them."""
    event = load(name)
    assert event["requestContext"]["http"]["path"] == event["rawPath"]
    assert event["requestContext"]["routeKey"] == event["routeKey"]
    assert event["requestContext"]["requestId"]
    assert event["headers"]["content-length"] == str(len(event["body"].encode()))
    assert isinstance(json.loads(event["body"]), dict)
    assert event["isBase64Encoded"] is False
    assert all(name == name.lower() for name in event["headers"])


@pytest.mark.parametrize("name", WITH_CREDENTIALS)
def test_http_event_carries_credentials(name: str) -> None:
    """Authorization and Cookie are there, so that leaving them out of what is stored can be seen."""
    headers = {name.lower(): value for name, value in load(name)["headers"].items()}
    assert headers["authorization"].startswith("Bearer ")
    assert headers["cookie"]


def test_rest_event_repeats_its_headers_as_lists() -> None:
    """Credentials are in multiValueHeaders too."""
    event = load("api-gateway-rest")
    assert {name: values[-1] for name, values in event["multiValueHeaders"].items()} == event["headers"]


@pytest.mark.parametrize("name", ["sqs-standard", "sqs-fifo"])
def test_sqs_batch_mixes_groups_and_checksums_hold(name: str) -> None:
    """Three records of two orders, each under an id of its own and with its body's MD5."""
    records = load(name)["Records"]
    orders = [json.loads(record["body"])["order_id"] for record in records]
    assert orders == ["order-1001", "order-1002", "order-1001"]
    assert len({record["messageId"] for record in records}) == len(records)
    for record in records:
        assert record["md5OfBody"] == hashlib.md5(record["body"].encode(), usedforsecurity=False).hexdigest()
        assert record["eventSourceARN"].endswith(".fifo") is ("MessageGroupId" in record["attributes"])


def test_kinesis_data_is_base64_of_json() -> None:
    """Each record's data decodes to an order under its partition key."""
    for record in load("kinesis")["Records"]:
        data = json.loads(base64.b64decode(record["kinesis"]["data"]))
        assert data["order_id"] == record["kinesis"]["partitionKey"]


def test_replayed_event_differs_by_its_replay_name_alone() -> None:
    """EventBridge replays an event under its own id."""
    replayed = load("eventbridge-replayed")
    del replayed["replay-name"]
    assert replayed == load("eventbridge")


def test_slack_signature_holds() -> None:
    """The event is signed, by Slack's scheme v0, with the secret ``example-signing-secret``."""
    event = load("slack")
    signed = f"v0:{event['headers']['x-slack-request-timestamp']}:{event['body']}".encode()
    digest = hmac.new(b"example-signing-secret", signed, hashlib.sha256).hexdigest()
    assert event["headers"]["x-slack-signature"] == f"v0={digest}"
    assert json.loads(event["body"])["event_id"]


def steps(name: str) -> list[dict[str, Any]]:
    """Return a scenario's steps."""
    return list(json.loads((SCENARIOS / f"{name}.json").read_text("utf-8"))["steps"])


def test_chat_burst_is_a_burst() -> None:
    """At least 24 invocations over three threads within 200 ms, among them many pairs a moment apart."""
    burst = steps("chat-burst")
    times: dict[str, list[int]] = {}
    for step in burst:
        times.setdefault(step["set"]["body.thread_id"], []).append(step["at_ms"])
    assert len(burst) >= 24
    assert len(times) == 3
    assert max(step["at_ms"] for step in burst) - min(step["at_ms"] for step in burst) <= 200
    pairs = sum(late - early <= 2 for found in times.values() for early, late in itertools.pairwise(found))
    assert pairs >= 10


def test_chat_burst_sends_every_message_once() -> None:
    """Every step has an id of its own, which becomes the request id."""
    scenario = json.loads((SCENARIOS / "chat-burst.json").read_text("utf-8"))
    assert scenario["set"] == {"requestContext.requestId": "{id}"}
    assert len({step["id"] for step in scenario["steps"]}) == len(scenario["steps"])


def test_duplicates_repeat_a_message_as_it_was() -> None:
    """A request id that comes again brings the same thread and text; some come while the first may still run."""
    seen: dict[str, dict[str, Any]] = {}
    for step in steps("duplicates"):
        request_id = step["set"]["requestContext.requestId"]
        assert seen.setdefault(request_id, step["set"]) == step["set"]
    assert len(seen) < len(steps("duplicates"))


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.json")), ids=lambda file: file.stem)
def test_scenario_names_an_event_that_is_there(file: Path) -> None:
    """Its paths start at the scenario's own folder, and what it changes is in the event."""
    scenario = json.loads(file.read_text("utf-8"))
    event = json.loads((file.parent / scenario["event"]).read_text("utf-8"))
    event["body"] = json.loads(event["body"])
    for step in scenario["steps"]:
        for path in scenario.get("set", {}) | step["set"]:
            assert at(event, path)
