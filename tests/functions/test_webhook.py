"""The webhook lets in what Slack signed just now, stores it for its thread, and refuses everything else."""

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError

from incumbent import Message, Policy
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN

SECRET = "example-signing-secret"
EVENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "slack.json").read_text("utf-8"))
THREAD = "slack:T0EXAMPLE1:C0EXAMPLE5:1793610810.000100"
KEY = f"thread/{THREAD}"
SENT_AT = int(EVENT["headers"]["x-slack-request-timestamp"])
TTL_MS = 60_000

Load = Callable[..., Sequence[ModuleType]]
Webhook = Callable[[Any], dict[str, Any]]


def signed(payload: Any, *, secret: str = SECRET, sent_at: str | None = None, body: str | None = None) -> Any:
    """The sample event with another body, signed as Slack does."""
    headers: dict[str, str] = EVENT["headers"]
    sent_at = headers["x-slack-request-timestamp"] if sent_at is None else sent_at
    body = json.dumps(payload) if body is None else body
    digest = hmac.new(secret.encode(), f"v0:{sent_at}:{body}".encode(), hashlib.sha256).hexdigest()
    signs = {"x-slack-request-timestamp": sent_at, "x-slack-signature": f"v0={digest}"}
    return {**EVENT, "headers": {**headers, **signs}, "body": body}


def said(**changes: Any) -> dict[str, Any]:
    """The sample's payload, with changes to what was said; ``None`` takes something out."""
    payload: dict[str, Any] = json.loads(EVENT["body"])
    payload["event"] = {name: value for name, value in {**payload["event"], **changes}.items() if value is not None}
    return payload


@pytest.fixture
def provider() -> Iterator[MemoryProvider]:
    """A store in which somebody owns the sample's thread, so that nobody has to be woken."""
    provider = MemoryProvider()
    provider.acquire_lease(KEY, "owner", TTL_MS)
    token = STAND_IN.set(provider)
    yield provider
    STAND_IN.reset(token)


@pytest.fixture
def webhook(load: Load, provider: MemoryProvider, monkeypatch: pytest.MonkeyPatch) -> Webhook:
    """The handler, with the secret in its environment."""
    monkeypatch.setenv("SLACK_SIGNING_SECRET", SECRET)
    monkeypatch.setenv("INCUMBENT_TARGET", "thread")
    (app,) = load("webhook", "app")
    return lambda event: dict(app.handler(event, None))


def test_the_sample_event_is_stored_for_its_thread(webhook: Webhook, provider: MemoryProvider) -> None:
    """Under Slack's event_id, in the shape that the thread's function knows."""
    assert webhook(EVENT)["statusCode"] == 200
    (stored,) = provider.peek(KEY)
    assert (stored.id, stored.promised) == ("Ev0EXAMPLE42", True)
    assert json.loads(stored.event["body"]) == {
        "thread_id": THREAD,
        "text": "What is left to do before the release?",
    }


@pytest.mark.parametrize("subtype", ["file_share", "thread_broadcast", "me_message"])
def test_what_a_person_wrote_is_stored_whatever_came_with_it(
    webhook: Webhook, provider: MemoryProvider, subtype: str
) -> None:
    """With a file, to the channel too, or by /me: Slack names it, and somebody waits for an answer all the same."""
    assert webhook(signed(said(subtype=subtype)))["statusCode"] == 200
    (stored,) = provider.peek(KEY)
    assert json.loads(stored.event["body"])["text"] == "What is left to do before the release?"


def test_an_event_that_slack_sends_again_is_stored_once(webhook: Webhook, provider: MemoryProvider) -> None:
    """Slack repeats what it got no answer to, signed anew, under the same event_id (M5)."""
    webhook(EVENT)
    later = str(int(EVENT["headers"]["x-slack-request-timestamp"]) + 60)
    assert webhook(signed(said(), sent_at=later))["statusCode"] == 200
    assert len(provider.peek(KEY)) == 1


def test_challenge_is_answered(webhook: Webhook) -> None:
    """That is how Slack checks the address, once it is signed."""
    challenge = {"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}
    done = webhook(signed(challenge))
    assert (done["statusCode"], json.loads(done["body"])) == (200, {"challenge": challenge["challenge"]})
    assert webhook(signed(challenge, secret="another"))["statusCode"] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="as it was sent"),
        pytest.param({"x-slack-signature": ""}, 401, id="no signature"),
        pytest.param({"x-slack-signature": "v0=" + "0" * 64}, 401, id="a wrong one"),
        pytest.param({"x-slack-signature": EVENT["headers"]["x-slack-signature"].upper()}, 401, id="written otherwise"),
        pytest.param({"x-slack-signature": EVENT["headers"]["x-slack-signature"][3:]}, 401, id="of no scheme"),
        pytest.param({"x-slack-signature": "v0=é"}, 401, id="no ASCII"),
        pytest.param({"x-slack-request-timestamp": ""}, 401, id="no time"),
        pytest.param({"x-slack-request-timestamp": str(SENT_AT + 1)}, 401, id="another time than was signed"),
        pytest.param({"x-slack-request-timestamp": "now"}, 401, id="a time that is none"),
        pytest.param({"x-slack-request-timestamp": "²"}, 401, id="a digit that is no number"),
        pytest.param({"x-slack-request-timestamp": "1" * 5_000}, 401, id="a time without end"),
    ],
)
def test_only_what_slack_signed_is_let_in(
    webhook: Webhook, provider: MemoryProvider, headers: dict[str, str], status: int
) -> None:
    """Everything else is refused, and nothing is stored."""
    assert webhook({**EVENT, "headers": {**EVENT["headers"], **headers}})["statusCode"] == status
    assert len(provider.peek(KEY)) == (status == 200)


def test_a_changed_body_is_refused(webhook: Webhook, provider: MemoryProvider) -> None:
    """The signature is over every byte of it."""
    assert webhook({**EVENT, "body": EVENT["body"].replace("release", "Release")})["statusCode"] == 401
    assert provider.peek(KEY) == ()


@pytest.mark.parametrize(("age_s", "status"), [(300, 200), (301, 401), (-300, 200), (-301, 401)])
def test_a_recording_is_refused_after_five_minutes(webhook: Webhook, age_s: int, status: int) -> None:
    """By the gateway's clock; and so is what claims to come from the future."""
    came_at = EVENT["requestContext"]["timeEpoch"] // 1_000
    assert webhook(signed(said(), sent_at=str(came_at - age_s)))["statusCode"] == status


def test_a_body_in_base64_is_checked_as_it_was_sent(webhook: Webhook, provider: MemoryProvider) -> None:
    """What the gateway does to bytes that it takes for no text."""
    encoded = base64.b64encode(EVENT["body"].encode()).decode()
    assert webhook({**EVENT, "body": encoded, "isBase64Encoded": True})["statusCode"] == 200
    assert len(provider.peek(KEY)) == 1


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(said(bot_id="B0EXAMPLE1"), id="a bot's"),
        pytest.param(said(bot_id="B0EXAMPLE1", subtype="file_share"), id="a bot's file"),
        pytest.param(said(subtype="bot_message"), id="an integration's"),
        pytest.param(said(subtype="message_changed", text=None), id="an edit"),
        pytest.param(said(subtype="message_deleted"), id="a deletion"),
        pytest.param(said(subtype="message_replied"), id="a reply that is told to its thread"),
        pytest.param(said(subtype="channel_join"), id="somebody joining"),
        pytest.param(said(subtype="channel_topic"), id="a new topic"),
        pytest.param(said(subtype="file_share", text=""), id="a file, and no text"),
        pytest.param(said(text=""), id="no text"),
        pytest.param(said(type="reaction_added"), id="no message"),
        pytest.param({"type": "app_rate_limited", "minute_rate_limited": 1}, id="no event"),
    ],
)
def test_what_nobody_asked_is_let_pass(webhook: Webhook, provider: MemoryProvider, payload: dict[str, Any]) -> None:
    """It is answered well, so that Slack does not repeat it; its own answers above all are no questions."""
    assert webhook(signed(payload))["statusCode"] == 200
    assert provider.peek(KEY) == ()


def test_what_begins_a_thread_is_its_first_message(webhook: Webhook, provider: MemoryProvider) -> None:
    """Its own time is the name under which answers to it will come."""
    key = "thread/slack:T0EXAMPLE1:C0EXAMPLE5:1793610930.000200"
    provider.acquire_lease(key, "owner", TTL_MS)
    webhook(signed(said(thread_ts=None)))
    assert len(provider.peek(key)) == 1


def test_full_thread_asks_slack_to_come_again(webhook: Webhook, provider: MemoryProvider) -> None:
    """Slack keeps the event and repeats it (M7)."""
    for number in range(Policy().max_pending):
        provider.claim(KEY, f"claim-{number}", TTL_MS, Message(id=f"m{number}", event={}))
    assert webhook(EVENT)["statusCode"] == 503


def test_stop_is_not_stored_but_stops_the_run_however_full_the_thread_is(
    webhook: Webhook, provider: MemoryProvider
) -> None:
    """It marks the owner, and the owner sees it with its next look."""
    policy = Policy()
    for number in range(policy.max_pending):
        provider.claim(KEY, f"other-{number}", TTL_MS, Message(id=f"m-{number}", event={}), policy=policy)
    assert webhook(signed(said(text="one more")))["statusCode"] == 503
    assert webhook(signed(said(text=" Stop ")))["statusCode"] == 200
    assert len(provider.peek(KEY)) == policy.max_pending
    assert provider.watch(KEY, "owner") == "the user said stop"


def test_message_that_is_too_large_is_refused_for_good(webhook: Webhook) -> None:
    """To repeat it would not help, and Slack is told so."""
    done = webhook(signed(said(text="x" * 3 * 1024**2)))
    assert (done["statusCode"], done["headers"]["x-slack-no-retry"]) == (413, "1")


def test_empty_secret_lets_nobody_in(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset parameter must not become a secret that everybody knows."""
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "")
    with pytest.raises(ValueError, match="secret is empty"):
        webhook(signed(said(), secret=""))


@pytest.fixture
def parameter_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Parameter Store as far as this goes: it holds the secret, and notes what it was asked."""
    asked: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(request)
            found = {"Name": request["Name"], "Type": "SecureString", "Value": SECRET, "Version": 1}
            body = json.dumps({"Parameter": found}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/x-amz-json-1.1")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", f"http://127.0.0.1:{server.server_port}")
        yield asked
        server.shutdown()
        thread.join()


def test_secret_is_read_from_parameter_store_and_kept(
    webhook: Webhook,
    parameter_store: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decrypted, asked once for many events."""
    monkeypatch.delenv("SLACK_SIGNING_SECRET")
    monkeypatch.setenv("SLACK_SIGNING_SECRET_PARAMETER", "/chat/slack-signing-secret")
    assert [webhook(EVENT)["statusCode"] for _ in range(3)] == [200, 200, 200]
    assert parameter_store == [{"Name": "/chat/slack-signing-secret", "WithDecryption": True}]


def test_secret_that_does_not_come_is_an_error_before_the_function_times_out(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a VPC without a way to Parameter Store nobody answers: the error says whom it asked, and Slack asks again."""
    monkeypatch.setenv("SLACK_SIGNING_SECRET_PARAMETER", "/chat/slack-signing-secret")
    (app,) = load("webhook", "app")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", f"http://127.0.0.1:{port}")
        with pytest.raises(GetParameterError, match=f"timeout on endpoint URL.*{port}"):
            app.handler(EVENT, None)
    config = app.parameter_store().client.meta.config
    waits_s = config.retries["total_max_attempts"] * (config.connect_timeout + config.read_timeout)
    assert waits_s <= 6  # of the template's 10 s, less what a cold start and the store may take
