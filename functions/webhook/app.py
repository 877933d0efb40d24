"""Receive Slack's events: check that Slack sent them, store each for its thread, and answer in milliseconds.

The worker is the function that ``INCUMBENT_TARGET`` names; a message wakes it, and it may run for minutes. It gets what
``message_of`` returns. The worker posts its answer to Slack (chat.postMessage); that is not shown here.
"""

import base64
import hashlib
import hmac
import json
import os
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.parameters import SSMProvider
from botocore.config import Config

from incumbent import LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge, send, stop

SCHEME = "v0"
# Slack's advice: an older request may be a recording that an attacker replays.
WINDOW_S = 5 * 60
SECRET_KEPT_S = 5 * 60
# Slack's subtypes of messages that people write: with a file, also sent to the channel, by "/me". Every other subtype
# is an edit, a join, a bot's message and the like.
WRITTEN = {None, "file_share", "thread_broadcast", "me_message"}


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Answer 200 once the message is stored. Slack retries other answers, under the same ``event_id``."""
    body = body_of(event)
    if not is_signed(event, body, secret()):
        return answer(401, error="the signature is missing, wrong or old")
    payload = json.loads(body)
    if payload.get("type") == "url_verification":
        return answer(200, challenge=payload["challenge"])
    if payload.get("type") != "event_callback" or not asks(payload["event"]):
        return answer(200)
    try:
        if is_stop(payload["event"]):
            stop(thread_of(payload), reason="the user said stop")  # stores nothing: a full mailbox does not matter
            return answer(200)
        send(thread_of(payload), message_of(payload), message_id=payload["event_id"])
    except (LeaseUnavailable, MailboxFull) as error:
        return answer(503, error=type(error).__name__)
    except MessageInvalid as error:
        return answer(400, {"x-slack-no-retry": "1"}, error=type(error).__name__)
    except MessageTooLarge as error:
        return answer(413, {"x-slack-no-retry": "1"}, error=type(error).__name__)
    return answer(200)


def is_signed(event: dict[str, Any], body: bytes, key: str) -> bool:
    """Return whether the sender signed this body with the secret just now, by Slack's scheme v0."""
    headers = event["headers"]
    sent_at, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
    if not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) <= len("9999999999")):
        return False
    came_at = event["requestContext"]["timeEpoch"] // 1_000  # the gateway's clock, which no sender controls
    if abs(came_at - int(sent_at)) > WINDOW_S:
        return False
    signed = hmac.new(key.encode(), f"{SCHEME}:{sent_at}:".encode() + body, hashlib.sha256)
    return hmac.compare_digest(f"{SCHEME}={signed.hexdigest()}".encode(), signature.encode())


def asks(said: dict[str, Any]) -> bool:
    """Return whether a person wrote this, not a bot (such as this one); edits, joins and the like do not count."""
    written = said.get("type") == "message" and said.get("subtype") in WRITTEN and "bot_id" not in said
    return written and bool(said.get("text"))


def is_stop(said: dict[str, Any]) -> bool:
    """Return whether a person wants the answer that is being written to stop."""
    return str(said["text"]).strip().lower() == "stop"


def thread_of(payload: dict[str, Any]) -> str:
    """Return the key: a message outside a thread begins one."""
    said = payload["event"]
    return f"slack:{payload['team_id']}:{said['channel']}:{said.get('thread_ts') or said['ts']}"


def message_of(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the worker's event, in the format of its HTTP events."""
    return {"body": json.dumps({"thread_id": thread_of(payload), "text": payload["event"]["text"]})}


def body_of(event: dict[str, Any]) -> bytes:
    """Return the bytes that were signed."""
    body: str = event.get("body") or ""
    return base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()


def secret() -> str:
    """Return the app's signing secret: from Parameter Store, read every five minutes, or from the environment."""
    name = os.environ.get("SLACK_SIGNING_SECRET_PARAMETER")
    if name:
        found: Any = parameter_store().get(name, decrypt=True, max_age=SECRET_KEPT_S)
    else:
        found = os.environ["SLACK_SIGNING_SECRET"]
    if not found:
        raise ValueError("the signing secret is empty: set it, since anyone could sign with an empty one")
    return str(found)


@cache
def parameter_store() -> SSMProvider:
    """Return the client, whose tries end before the function does. It is made on first use, not in a snapshot."""
    return SSMProvider(boto_config=Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2}))


def answer(status: int, headers: dict[str, str] | None = None, **body: str) -> dict[str, Any]:
    """Return an answer in API Gateway's format."""
    return {
        "statusCode": status,
        "headers": {"content-type": "application/json", **(headers or {})},
        "body": json.dumps(body),
    }
