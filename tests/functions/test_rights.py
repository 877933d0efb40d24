"""Each function may do exactly what it does: its calls to AWS are recorded, and compared with its policy.

What is recorded is what leaves botocore, while each function goes through what can happen to it: small and large
messages, follow-ups, late duplicates, failures, dead letters, hand-overs, a record that is gone. A right that nothing
here needs is one too many; a call without a right would be refused.
"""

import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType
from typing import Any

import boto3
import botocore.handlers
import pytest
import yaml
from botocore.config import Config

from incumbent import Claimed, Message, Origin, Wake, addresses, sweeper
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.template import Template
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.traces import MAX_INLINE
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, valkey
from tests.build.test_template import CloudFormationLoader, as_list, statements
from tests.functions.conftest import FUNCTIONS, Context, converse_stream
from tests.functions.test_webhook import said, signed

Load = Callable[..., Sequence[ModuleType]]
Handler = Callable[..., Any]
Right = tuple[str, str]

REQUESTS = itertools.count(1)

ROOT = FUNCTIONS.parent
EVENTS = ROOT / "events"
LARGE = "x" * 5_000  # kept as an item of its own
PASSWORD = "s3cret"
STEP_MS = 20_000  # of functions/thread: with a millisecond more, a run begins, and defers itself
ORDERS = "local-orders"  # the keyspace of the function's orders

# What an action is called whose name is not the operation's.
ACTIONS = {
    ("bedrock-runtime", "ConverseStream"): "bedrock:InvokeModelWithResponseStream",
    ("lambda", "Invoke"): "lambda:InvokeFunction",
}
# What Lambda's pollers do under the function's role, as its documentation lists it.
POLLERS = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}


@dataclass(slots=True)
class Cloud:
    """AWS as far as the functions go, but for DynamoDB: answers well, unless told otherwise, and notes every call."""

    calls: set[Right] = field(default_factory=set)
    on_invoke: Callable[[], int] = lambda: 202
    on_converse: Callable[[], object] = lambda: None
    parameters: dict[str, str] = field(default_factory=dict)

    def note(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        """Note what botocore is about to send."""
        service, operation = model.service_model.service_name, model.name
        action = ACTIONS.get((service, operation), f"{service}:{operation}")
        request = params["body"] if isinstance(params["body"], dict) else json.loads(params["body"] or b"{}")
        self.calls.update((action, resource) for resource in _resources(service, request, params["url_path"]))


def _resources(service: str, request: dict[str, Any], path: str) -> list[str]:
    """What a request is about, by its name in the template."""
    if service == "dynamodb":
        names = list(request["RequestItems"]) if "RequestItems" in request else [request["TableName"]]
        index = f"/{request['IndexName']}" if "IndexName" in request else ""
        return [f"{name}{index}" for name in names]
    if service == "lambda":
        (name,) = re.findall(r"local-(\w+)", path)
        return [f"{name.capitalize()}Function"]
    return [service]


def rights(name: str) -> set[Right]:
    """What a function's policy allows, in the same words."""
    document = yaml.load((ROOT / "template.yaml").read_text("utf-8"), Loader=CloudFormationLoader)  # noqa: S506
    granted = set()
    for statement in statements(document["Resources"][name]):
        for action in as_list(statement["Action"]):
            for resource in as_list(statement["Resource"]):
                granted.add((action, _granted(action, resource)))
    return {(action, resource) for action, resource in granted if action not in POLLERS}


def _granted(action: str, resource: dict[str, Any]) -> str:
    said_by: str
    (said_by,) = resource["Fn::If"][1].values() if "Fn::If" in resource else resource.values()
    if "/index/" in said_by:
        return said_by.replace("${", "").replace(".Arn}/index/", "/")
    if action.startswith("dynamodb:"):
        return said_by.removesuffix(".Arn")
    if action == "lambda:InvokeFunction":
        own = re.findall(r"\$\{AWS::StackName\}-(\w+)$", said_by)
        return f"{own[0].capitalize()}Function" if own else said_by.removesuffix(".Arn")
    return {"bedrock": "bedrock-runtime"}.get(service := action.partition(":")[0], service)


@dataclass(slots=True, kw_only=True)
class Store:
    """The template's tables on moto, and what the test does to them without being recorded."""

    client: Any
    mailbox: DynamoDBProvider

    def lose(self, key: str) -> None:
        """Take the record of a key away, as TTL does, or somebody with a console."""
        name = {"pk": {"S": f"incumbent#{key}"}, "sk": {"S": "lease"}}
        answer = self.client.delete_item(TableName="LeaseTable", Key=name, ReturnValues="ALL_OLD")
        assert answer.get("Attributes"), "there was no such record"

    def handle(self, key: str, *ids: str) -> None:
        """Let a key handle messages, and so many others that their traces stand in pages."""
        for message_id in (*ids, *(f"other-{number}" for number in range(2 * MAX_INLINE))):
            claimed = self.mailbox.claim(key, f"by-{message_id}", 30_000, Message(id=message_id, event={}))
            assert isinstance(claimed, Claimed)
            self.mailbox.settle(key, claimed.owner, ttl_ms=30_000, handled=[message_id], fence=claimed.fence)

    def hold(self, key: str) -> None:
        """Let no run of the key begin for a minute, so that a message which comes asks for a wake then."""
        self.mailbox.hold(key, for_ms=60_000)

    def leave(self, key: str, event: Any, *, function: str) -> None:
        """Store a message that no run was given, on a key that is free."""
        origin = Origin(keyspace=function, target=arn(function))
        message = Message(id=f"left at {key}", event=event)
        self.mailbox.claim(key, "gone", 30_000, message, as_ticket=True, origin=origin)
        self.mailbox.release_lease(key, "gone")


@pytest.fixture
def store(moto_server: DynamoDBServer) -> Store:
    """The tables, made before anything is recorded."""
    client = boto3.client(
        "dynamodb", endpoint_url=moto_server.endpoint_url, config=Config(connect_timeout=1, read_timeout=2)
    )
    for table in Template.load(ROOT / "template.yaml").tables():
        with suppress(client.exceptions.ResourceInUseException):
            client.create_table(**table)
    return Store(client=client, mailbox=DynamoDBProvider(table_name="LeaseTable", client=client))


@pytest.fixture
def cloud(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """AWS on this machine; every session of boto3 that is made after the store's reports to it."""
    cloud = Cloud()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
            target = self.headers.get("x-amz-target", "")
            status = 200
            answer: dict[str, Any] = {}
            if "/invocations" in self.path:
                status = cloud.on_invoke()
            elif target.endswith(".GetParameter"):
                answer = {"Parameter": {"Name": request["Name"], "Value": cloud.parameters[request["Name"]]}}
            elif target.endswith(".SendMessage"):
                said = hashlib.md5(request["MessageBody"].encode(), usedforsecurity=False).hexdigest()
                answer = {"MessageId": "m", "MD5OfMessageBody": said}
            elif target.endswith(".GetSecretValue"):
                answer = {"SecretString": PASSWORD}
            body, kind = json.dumps(answer).encode(), "application/json"
            if "/converse-stream" in self.path:
                cloud.on_converse()
                body, kind = converse_stream("answer"), "application/vnd.amazon.eventstream"
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    report = ("before-call", cloud.note)
    botocore.handlers.BUILTIN_HANDLERS.append(report)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for service in ("LAMBDA", "SQS", "SSM", "SECRETS_MANAGER", "BEDROCK_RUNTIME"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", f"http://127.0.0.1:{server.server_port}")
        yield cloud
        server.shutdown()
        thread.join()
    botocore.handlers.BUILTIN_HANDLERS.remove(report)


@pytest.fixture(scope="module")
def guarded() -> Iterator[ValkeyServer]:
    """A Valkey that wants a password."""
    with valkey(password=PASSWORD) as server:
        yield server


def arn(function: str) -> str:
    """The ARN of a function of the stack ``local``."""
    return f"arn:aws:lambda:eu-central-1:123456789012:function:{function}"


@pytest.fixture
def start(
    load: Load, moto_server: DynamoDBServer, guarded: ValkeyServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Handler]]:
    """Start a function of the stack ``local`` in a new environment, on a store."""

    def start(name: str, provider: str, **variables: str) -> Handler:
        function = f"local-{name}"
        variables = {
            "AWS_LAMBDA_FUNCTION_NAME": function,
            "INCUMBENT_PROVIDER": provider,
            "INCUMBENT_WAKE_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/wakes",
            **variables,
        }
        if provider == "dynamodb":
            variables |= {
                **moto_server.environment,
                "INCUMBENT_TABLE_NAME": "LeaseTable",
                "ORDER_TABLE_NAME": "OrderTable",
                "TRANSCRIPT_TABLE_NAME": "TranscriptTable",
            }
        else:
            for table in ("ORDER_TABLE_NAME", "TRANSCRIPT_TABLE_NAME"):
                monkeypatch.delenv(table, raising=False)
            variables |= {
                "INCUMBENT_REDIS_URL": f"redis://127.0.0.1:{guarded.port}/0",
                "INCUMBENT_REDIS_SECRET_ID": "redis",
            }
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        forget()
        (app,) = (sweeper,) if name == "sweeper" else load(name, "app")  # that one is the layer's

        def invoke(event: Any, *, remaining_ms: int = 60_000) -> Any:
            request_id = f"request-{next(REQUESTS)}"
            return app.handler(
                event,
                Context(
                    aws_request_id=request_id,
                    remaining_ms=remaining_ms,
                    function_name=function,
                    invoked_function_arn=arn(function),
                ),
            )

        return invoke

    yield start
    forget()


def forget() -> None:
    """Forget what `send` keeps for the life of an environment."""
    addresses.provider_from_env.cache_clear()
    addresses.auto_waker.cache_clear()
    sweeper._from_env.cache_clear()  # noqa: SLF001
    sweeper._waker.cache_clear()  # noqa: SLF001
    sweeper._later_waker.cache_clear()  # noqa: SLF001


def chat(thread: str, message_id: str, text: str = "hello") -> Any:
    """A message to a thread."""
    event = json.loads((EVENTS / "chat-message.json").read_text("utf-8"))
    event["body"] = json.dumps({"thread_id": thread, "text": text})
    event["requestContext"]["requestId"] = message_id
    return event


def record(order_id: str, message_id: str, note: str = "") -> Any:
    """A batch of one update."""
    event = json.loads((EVENTS / "sqs-standard.json").read_text("utf-8"))
    event["Records"] = event["Records"][:1]
    body = json.dumps({"order_id": order_id, "action": "reserve", "note": note})
    event["Records"][0] |= {"messageId": message_id, "body": body}
    return event


def losing(store: Store, key: str) -> Callable[[], int]:
    """A Lambda that takes no wake, while the record of the key goes."""

    def refuse() -> int:
        with suppress(AssertionError):  # the waker asks twice
            store.lose(key)
        return 500

    return refuse


def test_thread_function(cloud: Cloud, store: Store, start: Callable[..., Handler]) -> None:
    """A conversation with large follow-ups, one that is handed over, and one whose record is lost."""
    at_once = {"MODEL_ID": "example.model-v1:0", "QUIET_MS": "1"}
    thread = start("thread", "dynamodb", **at_once, INCUMBENT_WAKE_QUEUE_URL="")  # waits for a quiet time in place
    follow_ups = [chat("t-1", name, LARGE) for name in ("b", "c")]

    def post() -> None:
        while follow_ups:
            assert thread(follow_ups.pop())["statusCode"] == 202

    cloud.on_converse = post
    assert thread(chat("t-1", "a"))["statusCode"] == 200
    store.handle("local-thread/t-4", "z")
    assert thread(chat("t-4", "z"))["statusCode"] == 200
    assert thread(chat("t-2", "d"), remaining_ms=STEP_MS + 1)["statusCode"] == 202
    cloud.on_invoke = losing(store, "local-thread/t-3")
    thread(chat("t-3", "e"), remaining_ms=STEP_MS + 1)
    assert thread(chat("t-1", "s", "stop"))["statusCode"] == 200
    thread = start("thread", "dynamodb")
    assert thread(chat("t-5", "g"))["statusCode"] == 202
    store.lose("local-thread/t-5")  # else a sweep finds it
    thread = start("thread", "redis", **at_once, INCUMBENT_WAKE_QUEUE_URL="")
    assert thread(chat("t-1", "f"))["statusCode"] == 200
    assert cloud.calls == rights("ThreadFunction")


def test_orders_function(cloud: Cloud, store: Store, start: Callable[..., Handler]) -> None:
    """Updates small and large, one for a busy order, one behind others, and one whose record is lost."""
    orders = start("orders", "dynamodb")
    nothing_failed: dict[str, list[object]] = {"batchItemFailures": []}
    store.handle(f"{ORDERS}/o-4", "z")
    assert orders(record("o-4", "z")) == nothing_failed
    assert orders(record("o-1", "a", LARGE)) == nothing_failed
    store.leave(f"{ORDERS}/o-2", record("o-2", "left", LARGE)["Records"][0], function="local-orders")
    assert orders(record("o-2", "b", LARGE)) == nothing_failed
    ticket = store.mailbox.get_lease_owner(f"{ORDERS}/o-2")
    resume = {"incumbent": {"v": 1, "key": f"{ORDERS}/o-2", "ticket": ticket, "hops": 1}}
    assert orders(resume) == nothing_failed
    assert store.mailbox.peek(f"{ORDERS}/o-2") == ()
    cloud.on_invoke = losing(store, f"{ORDERS}/o-3")
    store.leave(f"{ORDERS}/o-3", record("o-3", "left")["Records"][0], function="local-orders")
    orders(record("o-3", "c"))
    store.hold(f"{ORDERS}/o-5")
    assert orders(record("o-5", "e")) == nothing_failed
    orders = start("orders", "redis")
    assert orders(record("o-1", "d")) == nothing_failed
    assert cloud.calls == rights("OrdersFunction")


def test_sweeper_function(cloud: Cloud, store: Store, start: Callable[..., Handler]) -> None:
    """Every function that keeps messages has left some behind; a wake is due later; an operator frees a key."""
    store.leave("local-thread/s-1", {}, function="local-thread")
    store.leave("local-orders/s-1", {}, function="local-orders")
    store.leave("local-verify/s-1", {}, function="local-verify")
    sweeper = start("sweeper", "dynamodb")
    assert sweeper({})["woken"] == 3
    wake = Wake(key="local-orders/s-1", ticket=None, target=arn("local-orders"), after_ms=3_600_000)
    body = wake.to_queue(SYSTEM_CLOCK.now().wall_ms)
    assert sweeper({"Records": [{"messageId": "m", "body": body}]}) == {"batchItemFailures": []}
    store.handle("local-orders/s-2", "z")
    key = "local-orders/s-2"
    for message_id in ("hangs", "large", "waits"):
        store.mailbox.claim(key, f"by-{message_id}", 30_000, Message(id=message_id, event=LARGE))
    for do, more in (
        ("keys", {}),
        ("show", {"events": True}),
        ("hold", {"for_ms": 600_000}),
        ("stop", {"reason": "it hangs"}),
        ("cancel", {"id": "large"}),
        ("cancel", {"id": "z"}),
        ("release", {}),
        ("resume", {}),
    ):
        request = {"do": do, **({} if do == "keys" else {"key": key}), **more}
        assert sweeper({"incumbent": {"v": 1, "control": request}})["v"] == 1
    start("sweeper", "redis")({})
    assert cloud.calls == rights("SweeperFunction")
    for each in ("local-thread/s-1", "local-orders/s-1", "local-verify/s-1", key):
        store.lose(each)


def test_webhook_function(cloud: Cloud, store: Store, start: Callable[..., Handler]) -> None:
    """A large message, the same once more, and one whose record is lost before its thread is woken."""
    cloud.parameters["/slack/secret"] = "example-signing-secret"
    variables = {"SLACK_SIGNING_SECRET_PARAMETER": "/slack/secret", "INCUMBENT_TARGET": "local-thread"}
    webhook = start("webhook", "dynamodb", **variables)

    def post(event_id: str, thread: str) -> int:
        payload = {**said(text=LARGE, thread_ts=thread), "event_id": event_id}
        return int(webhook(signed(payload))["statusCode"])

    assert [post("a", "1"), post("a", "1")] == [200, 200]
    store.handle("local-thread/slack:T0EXAMPLE1:C0EXAMPLE5:4", "z")
    assert post("z", "4") == 200
    cloud.on_invoke = losing(store, "local-thread/slack:T0EXAMPLE1:C0EXAMPLE5:2")
    assert post("b", "2") == 200
    store.hold("local-thread/slack:T0EXAMPLE1:C0EXAMPLE5:5")
    assert post("d", "5") == 200
    webhook = start("webhook", "redis", **variables)
    assert post("c", "3") == 200
    assert cloud.calls == rights("WebhookFunction")


def test_verify_function(cloud: Cloud, store: Store, start: Callable[..., Handler]) -> None:
    """Messages small and large, one behind others, one whose key is held; and the journal, from begin to end."""
    verify = start("verify", "dynamodb")

    def message(key: str, message_id: str, filling: str = "") -> dict[str, Any]:
        return {"key": key, "id": message_id, "run": "journal-1", "ms": 1, "filling": filling}

    def ask(do: str) -> Any:
        return verify({"journal": "journal-1", "do": do})

    ask("begin")
    store.handle("local-verify/v-4", "z")
    verify(message("v-4", "z"))
    assert verify(message("v-1", "a", LARGE))["attempt"] == 1
    store.leave("local-verify/v-2", message("v-2", "left", LARGE), function="local-verify")
    assert verify(message("v-2", "b", LARGE))["status"] == "accepted"
    ticket = store.mailbox.get_lease_owner("local-verify/v-2")
    verify({"incumbent": {"v": 1, "key": "local-verify/v-2", "ticket": ticket, "hops": 1}})
    cloud.on_invoke = losing(store, "local-verify/v-3")
    store.leave("local-verify/v-3", message("v-3", "left"), function="local-verify")
    verify(message("v-3", "c"))
    store.hold("local-verify/v-5")
    assert verify(message("v-5", "d"))["status"] == "accepted"
    assert {run["id"] for run in ask("report")["runs"]} >= {"a", "left"}
    ask("end")
    assert ask("report") == {"runs": []}
    verify = start("verify", "redis")
    ask("begin")
    verify(message("v-1", "d"))
    assert [run["id"] for run in ask("end")["runs"]] == ["d"]
    assert cloud.calls == rights("VerifyFunction")


def test_every_function_has_its_test() -> None:
    """One that joins the template joins this file."""
    names = {name for name in globals() if re.fullmatch(r"test_\w+_function", name)}
    functions = {spec.logical_id for spec in Template.load(ROOT / "template.yaml").functions()}
    functions |= {"VerifyFunction", "WebhookFunction"}  # where parameters ask for them
    assert {f"{name.split('_')[1].capitalize()}Function" for name in names} == functions
