"""Every source of docs/sources.json: told by its shape, answered in it or refused, stored without credentials."""

import copy
import json
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from incumbent import ConfigurationError, Lease, LeaseUnavailable, Message, current_lease, leased_function, send
from incumbent.sources import source_of, stored_form
from tests.unit.stage import raising
from tests.unit.test_decorators import Shop

DOCS = Path(__file__).parents[2] / "docs"
ROWS: list[dict[str, Any]] = json.loads((DOCS / "sources.json").read_text("utf-8"))
HTTP = {"http", "rest", "alb", "lattice", "websocket"}
CALLERS = [row for row in ROWS if row["kind"] == "caller"]


def name(row: dict[str, Any]) -> str:
    """Name the test."""
    return str(row["source"])


def each(rows: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Parametrise by rows."""
    return pytest.mark.parametrize("row", rows, ids=name)


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


def test_page_has_the_table() -> None:
    """``python docs/sources.py`` writes it."""
    made = runpy.run_path(str(DOCS / "sources.py"))
    assert (DOCS / "sources.md").read_text("utf-8") == made["page"]()


def test_every_sample_of_powertools_is_named_once() -> None:
    """A hundred and more events of its public test set."""
    samples = [sample for row in ROWS for sample in row["powertools_samples"]]
    assert len(samples) == len(set(samples)) >= 125


@each(ROWS)
def test_source_is_told_by_its_shape(row: dict[str, Any]) -> None:
    """Kind and id; what needs anything is listed as needing it."""
    source = source_of(row["event"])
    assert (source.kind, source.message_id) == (row["kind"], row["message_id"])
    assert source.synchronous == (row["kind"] in {*HTTP, "caller"})
    assert ("`on_busy=`" in row["needs"]) == (row["kind"] == "caller")
    if source.synchronous:
        assert ("`message_id=`" in row["needs"]) == (row["message_id"] is None)


@each(CALLERS)
@pytest.mark.parametrize("when_busy", ["enqueue", "reject", "skip"])
def test_caller_with_a_shape_of_its_own_is_refused_without_on_busy(
    shop: Shop, row: dict[str, Any], when_busy: str
) -> None:
    """Before anything is asked, and not only when the key is busy."""
    handler = shop.handler(key="a", key_jmespath=None, when_busy=when_busy)
    with pytest.raises(ConfigurationError, match=r"waits for an answer in its own shape.*on_busy="):
        handler(row["event"], shop.context())
    apply = leased_function(key="a", keyspace="shop", provider=shop.store)(one)
    with pytest.raises(ConfigurationError, match="on_busy="):
        apply(row["event"])
    assert shop.store.calls == []


def held() -> Lease:
    """The lease of this run."""
    lease = current_lease()
    assert lease is not None
    return lease


def one(event: Any) -> None:
    """A function of one event."""


@each(CALLERS)
def test_caller_is_answered_by_on_busy_whenever_its_event_is_not_run(shop: Shop, row: dict[str, Any]) -> None:
    """Routed, a duplicate, refused, deferred."""
    options: dict[str, Any] = {"key": "a", "key_jmespath": None, "on_busy": lambda *_, outcome: type(outcome).__name__}
    shop.during = lambda _: held().defer()
    assert shop.handler(**options)(row["event"], shop.context()) == "Routed"
    shop.occupy()
    assert shop.handler(**options)(row["event"], shop.context("request-2")) in {"Routed", "Duplicate"}
    assert shop.handler(**options)(row["event"], shop.context("request-2")) == "Duplicate"
    other = shop.handler(**options, when_busy="reject", message_id=lambda _: "another")
    assert other(row["event"], shop.context()) == "Busy"


@each(CALLERS)
def test_caller_sees_an_error_as_a_failed_invocation(shop: Shop, row: dict[str, Any]) -> None:
    """It has no shape for one."""
    shop.store.before["claim"] = raising(LeaseUnavailable("no answer"))
    handler = shop.handler(key="a", key_jmespath=None, on_busy=lambda *_, outcome: outcome)
    with pytest.raises(LeaseUnavailable):
        handler(row["event"], shop.context())


@each([row for row in ROWS if row["kind"] in HTTP])
def test_http_caller_is_answered_with_a_status_whatever_happens(shop: Shop, row: dict[str, Any]) -> None:
    """A gateway that finds no statusCode tells its client "Internal server error"."""
    handler = shop.handler(key="a", key_jmespath=None)
    shop.occupy()
    answers = [handler(row["event"], shop.context())]
    answers.append(shop.handler(key="a", key_jmespath=None, when_busy="reject")(row["event"], shop.context("r-9")))
    answers.append(shop.handler()(row["event"], shop.context()))
    shop.store.before["claim"] = raising(LeaseUnavailable("no answer"))
    answers.append(handler(row["event"], shop.context()))
    assert [answer["statusCode"] for answer in answers] in ([202, 202, 400, 503], [202, 409, 400, 503])
    assert all(isinstance(json.loads(answer["body"]), dict) for answer in answers)


@each([row for row in ROWS if row["kind"] not in {*HTTP, "caller"}])
def test_source_that_does_not_wait_is_told_success(shop: Shop, row: dict[str, Any]) -> None:
    """With what became of its event, for logs."""
    shop.occupy()
    answer = shop.handler(key="a", key_jmespath=None)(row["event"], shop.context())
    assert answer == {"status": "accepted", "key": "a", "message_id": row["message_id"] or "request-1"}


@pytest.mark.parametrize("source", ["aws:kafka", "SelfManagedKafka"])
def test_kafka_record_is_its_place_in_the_log(source: str) -> None:
    """Another partition, offset or a topic that was made anew is another message; one record alone has the same id."""
    record = {"topic": "t", "partition": 1, "offset": 0, "timestamp": 5, "value": ""}
    ids = {
        source_of({**record, **other}).message_id for other in ({}, {"partition": 2}, {"offset": 1}, {"timestamp": 6})
    }
    assert len(ids) == 4
    assert source_of({"eventSource": source, "records": {"t-1": [record]}}).message_id in ids
    assert source_of({"eventSource": source, "records": {"t-1": [record], "t-2": [record]}}).message_id is None


def test_records_of_a_pipe_are_known_by_their_ids() -> None:
    """EventBridge Pipes sends a bare list: one record is one message, several have no name of their own."""
    record = {"messageId": "m-1", "receiptHandle": "h", "body": "{}", "eventSource": "aws:sqs"}
    one, several = source_of([record]), source_of([record, {**record, "messageId": "m-2"}])
    assert (one.kind, one.message_id, several.kind, several.message_id) == ("record", "m-1", "record", None)


# --- what is not stored

SECRET = "s3cret"


def requests() -> dict[str, Any]:
    """Events of all kinds of requests with a secret in every place where one may stand."""
    others = (
        "X-Auth-Key",
        "X-Private-Key",
        "X-Functions-Key",
        "Signing-Key",
        "DPoP",
        "X-Otp",
        "X-Passcode",
        "X.Api.Key",
    )
    aws = "x-amz-server-side-encryption-customer-key"
    headers = {"Authorization": SECRET, "accept": "kept", "Cookie": SECRET, "X-Api-Key": SECRET, aws: SECRET}
    headers |= dict.fromkeys(others, SECRET)
    lists = {header: [value] for header, value in headers.items()}
    query = {"access_token": SECRET, "X-Amz-Signature": SECRET, "order": "kept", "token[]": SECRET, "pwd": SECRET}
    text = f"order=kept&access_token={SECRET}&x=1&Signature={SECRET}&token%5B%5D={SECRET}&secretKey={SECRET}"
    http = {
        "headers": headers,
        "multiValueHeaders": lists,
        "cookies": [SECRET],
        "queryStringParameters": query,
        "multiValueQueryStringParameters": {parameter: [value] for parameter, value in query.items()},
        "rawQueryString": text,
        "body": "kept",
    }
    authorizer = {"claims": {"sub": "kept"}, "jwt": {"claims": {"sub": "kept"}}, "accessToken": SECRET}
    context = {"requestId": "kept", "identity": {"apiKey": SECRET, "sourceIp": "kept"}, "authorizer": authorizer}
    socket = {**context, "connectionId": "c"}
    appsync = {"arguments": {"token": "kept"}, "info": {"fieldName": "f"}, "request": {"headers": headers}}
    return {
        "http": {**http, "requestContext": {**context, "http": {"userAgent": "kept"}}},
        "rest": {**http, "httpMethod": "GET", "requestContext": context},
        "alb": {**http, "requestContext": {"elb": {"targetGroupArn": "kept"}}},
        "connect": {**http, "requestContext": {**socket, "eventType": "CONNECT"}},
        "message": {"body": "kept", "requestContext": {**socket, "eventType": "MESSAGE"}},
        "lattice 1": {**http, "method": "GET", "raw_path": f"/kept?{text}", "query_string_parameters": query},
        "lattice 2": {**http, "headers": lists, "path": "/kept", "requestContext": {"serviceNetworkArn": "kept"}},
        "appsync": appsync,
        "appsync batch": [appsync, appsync],
        "appsync events": {"events": ["kept"], "info": {"channel": {}}, "request": {"headers": headers}},
        "appsync authorizer": {
            "authorizationToken": SECRET,
            "requestContext": {"apiId": "kept"},
            "requestHeaders": headers,
        },
        "token authorizer": {"type": "TOKEN", "methodArn": "kept", "authorizationToken": f"Bearer {SECRET}"},
        "request authorizer": {**http, "type": "REQUEST", "routeArn": "kept", "identitySource": [SECRET]},
        "cognito": {
            "triggerSource": "kept",
            "userPoolId": "kept",
            "request": {"password": SECRET, "challengeAnswer": SECRET, "privateChallengeParameters": {"a": SECRET}},
        },
        "iot authorizer": {
            "token": SECRET,
            "signatureVerified": True,
            "protocols": ["http", "mqtt", "kept"],
            "protocolData": {
                "http": {"headers": {"any-name": SECRET}, "queryString": f"?any-name={SECRET}"},
                "mqtt": {"username": f"?any-name={SECRET}", "password": SECRET},
            },
        },
        "macro": {
            "transformId": "kept",
            "fragment": {},
            "templateParameterValues": {"DbPassword": SECRET, "a": "kept"},
        },
        "sent by hand": {"headers": headers, "body": "kept"},
        "sent by hand, many": [{"headers": headers, "json": "kept"}, {"cookies": [SECRET], "headers": {}}],
        "transfer family": {"serverId": "kept", "protocol": "SFTP", "username": "kept", "password": SECRET},
        "codepipeline": {
            "CodePipeline.job": {
                "id": "kept",
                "data": {"artifactCredentials": {"secretAccessKey": SECRET, "sessionToken": SECRET}},
            }
        },
        "object lambda": {
            "getObjectContext": {"inputS3Url": f"https://kept/?X-Amz-Security-Token={SECRET}", "outputToken": SECRET},
            "userRequest": {"url": f"https://kept/o?X-Amz-Credential={SECRET}&X-Amz-Date=1", "headers": headers},
            "kept": "kept",
        },
        "edge": {"Records": [{"cf": {"request": {"uri": "kept", "headers": {"authorization": [{"value": SECRET}]}}}}]},
        "alexa": {
            "session": {"user": {"userId": "kept", "accessToken": SECRET}},
            "context": {"System": {"apiAccessToken": SECRET}},
            "request": {"requestId": "kept"},
        },
        "bedrock agent": {
            "messageVersion": "1.0",
            "agent": {},
            "actionGroup": "kept",
            "sessionAttributes": {"accessToken": SECRET},
        },
    }


@pytest.mark.parametrize("source", requests())
def test_no_credential_is_stored_wherever_it_stands(shop: Shop, source: str) -> None:
    """H61: by ``leased``, and by ``send``; the invocation's own run gets the event itself."""
    event = requests()[source]
    whole = copy.deepcopy(event)
    assert SECRET in json.dumps(event)
    shop.occupy()
    shop.handler(key="a", key_jmespath=None, on_busy=lambda *_, outcome: outcome)(event, shop.context())
    send("a", event, keyspace="shop", provider=shop.store, waker=None)
    stored: list[Message] = shop.peek()
    assert len(stored) == 2
    for message in stored:
        text = json.dumps(message.event)
        assert SECRET not in text
        assert text.count("kept") == json.dumps(event).count("kept")
    assert event == whole


@pytest.mark.parametrize(
    "name",
    ["nextToken", "taskToken", "resultToken", "ResponseURL", "apiKeyId", "tokenUse", "x-amzn-trace-id", "author"],
)
def test_what_is_not_a_credential_is_stored(name: str) -> None:
    """What a follow-up goes on with, or answers to."""
    event = {"requestContext": {"http": {}, name: "kept"}, "headers": {name: "kept"}, "rawQueryString": f"{name}=kept"}
    assert stored_form(event) == event


def test_value_that_is_not_json_is_left_as_it_is() -> None:
    """The check of the stored event refuses it then, and names it."""
    other = [("a", "b"), Decimal(1), object()]
    event = {"requestContext": {"http": {}}, "headers": {"others": other}}
    stored = stored_form(event)["headers"]["others"]
    assert [type(each) for each in stored] == [tuple, Decimal, object]
    assert stored == other


@pytest.mark.parametrize("inner", [None, True, 7, 1.5, "text", "info", b"fieldName", ["info"], [{}], object()])
def test_event_without_a_shape_is_stored_as_it_is(inner: object) -> None:
    """Also where it stands in a list, or where other events have a group of fields."""
    names = ("incumbent", "Records", "requestContext", "info", "detail", "context", "headers", "CodePipeline.job")
    for event in (inner, [inner], [[inner]], [inner, {}], *({name: inner} for name in names)):
        assert stored_form(event) == event
        assert source_of(event).message_id is None
