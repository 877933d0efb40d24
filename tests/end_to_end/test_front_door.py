"""A message comes in at the front and a worker is woken for it: from another process, and through the webhook."""

import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incumbent.testing.servers import AWS_ENVIRONMENT
from tests.end_to_end.conftest import RECOVERY, Line, Store

Start = Callable[..., Line]

SLACK: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "slack.json").read_text("utf-8"))
SLACK_KEY = "RelayFunction/slack:T0EXAMPLE1:C0EXAMPLE5:1793610810.000100"

SENDER = """
import sys
from incumbent import send
for message_id in sys.argv[1:]:
    sent = send("k", {"key": "k", "id": message_id}, message_id=message_id, target="RelayFunction")
    print(sent.message_id, sent.state, sent.woken)
"""
ASKER = """
import sys
from incumbent import status
print(*(status("k", message_id, target="RelayFunction").state for message_id in sys.argv[1:]))
"""


def elsewhere(line: Line, program: str, *words: str, where: str | None = None) -> list[str]:
    """Run a program in a process of its own, which knows the store, and where Lambda is (or is not)."""
    at = {"AWS_ENDPOINT_URL_LAMBDA": where or line.cloud.url}
    environment = {**os.environ, **AWS_ENVIRONMENT, **line.store.environment, **at}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_message_sent_from_another_process_wakes_the_worker(start: Start, store: Store) -> None:
    """The first of a burst wakes it, the others wait behind that; all run once, in order, and can be asked for."""
    line = start(template=RECOVERY, concurrency=2)
    told = elsewhere(line, SENDER, "m1", "m2", "m3", "m1")
    line.cloud.wait_idle()
    assert told[0] == "m1 waiting True"
    assert [word.split()[0] for word in told] == ["m1", "m2", "m3", "m1"]
    assert line.ran() == [("m1",), ("m2",), ("m3",)]
    assert elsewhere(line, ASKER, "m1", "m3", "m4") == ["handled handled unknown"]


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_message_whose_wake_fails_is_stored_all_the_same(start: Start, store: Store) -> None:
    """Nobody listens where Lambda should be: the sender is told, and the next message finds it (M8)."""
    line = start(template=RECOVERY, concurrency=1)
    (told,) = elsewhere(line, SENDER, "m1", where="http://127.0.0.1:1")
    assert told == "m1 waiting False"
    assert [message.id for message in store.mailbox.peek("RelayFunction/k")] == ["m1"]
    (told,) = elsewhere(line, SENDER, "m2")
    line.cloud.wait_idle()
    assert told == "m2 waiting True"
    assert line.ran() == [("m1",), ("m2",)]


def signed(text: str, event_id: str) -> dict[str, Any]:
    """The sample event with another text and id, signed as Slack does."""
    payload = json.loads(SLACK["body"])
    payload["event"]["text"], payload["event_id"] = text, event_id
    body, sent_at = json.dumps(payload), SLACK["headers"]["x-slack-request-timestamp"]
    digest = hmac.new(b"example-signing-secret", f"v0:{sent_at}:{body}".encode(), hashlib.sha256).hexdigest()
    return {**SLACK, "headers": {**SLACK["headers"], "x-slack-signature": f"v0={digest}"}, "body": body}


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_webhook_answers_before_the_worker_has_run(start: Start, store: Store) -> None:
    """Slack is answered while the thread is still worked on; each event runs once, however often it is sent."""
    line = start(template=RECOVERY, concurrency=2)
    line.cloud.warm("WebhookFunction")
    line.cloud.warm("RelayFunction")
    events = [
        SLACK,
        signed("And then?", "Ev0EXAMPLE43"),
        signed("And then?", "Ev0EXAMPLE43"),
        signed("x", "Ev0EXAMPLE44"),
    ]
    answers = [line.cloud.invoke("WebhookFunction", event) for event in events]
    answered_at_ms = answers[0].ended_at_ms
    line.cloud.wait_idle()
    assert [answer.payload["statusCode"] for answer in answers] == [200] * 4
    assert line.ran() == [("Ev0EXAMPLE42",), ("Ev0EXAMPLE43",), ("Ev0EXAMPLE44",)]
    first_end = next(fact.t_ms for fact in line.facts if fact.fact == "run_ended")
    assert answered_at_ms <= first_end
    assert list(store.mailbox.peek(SLACK_KEY)) == []
    forged = {**SLACK, "body": SLACK["body"].replace("release", "Release")}
    assert line.cloud.invoke("WebhookFunction", forged).payload["statusCode"] == 401
    line.cloud.wait_idle()
    assert len(line.ran()) == 3


def test_three_messages_typed_in_a_row_are_one_run(start: Start, store: Store) -> None:
    """All are answered "accepted"; a wake that comes when it is quiet runs them together, in order."""
    line = start(template=RECOVERY, concurrency=3)
    line.cloud.warm("BurstFunction")
    texts = ["Hi.", "It broke.", "Help?"]
    pending = [
        line.cloud.submit("BurstFunction", {"key": "k", "id": f"m{number}", "text": text})
        for number, text in enumerate(texts)
    ]
    answers = [each.result() for each in pending]
    line.cloud.wait_idle()
    (run,) = line.ran()
    assert sorted(run) == ["m0", "m1", "m2"]
    assert [answer.payload["status"] for answer in answers] == ["accepted"] * 3
    assert line.summary().handled_twice == ()
