"""What a source is told decides who retries: a queue that delivers again, a mailbox without room."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from incumbent import Claimed, Message
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.invocations import Outcome
from tests.end_to_end.conftest import RECOVERY, Line, Store

Start = Callable[..., Line]

RECORD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "sqs-standard.json").read_text("utf-8"))
QUEUED = {"Records": RECORD["Records"][:1]}
QUEUED_ID = RECORD["Records"][0]["messageId"]


def test_record_that_the_queue_delivers_again_is_not_run_again(start: Start, store: Store) -> None:
    """Handled is answered with success, so that the queue deletes it; its receipt differs, its id does not (M5)."""
    line = start(template=RECOVERY, concurrency=1)
    assert line.cloud.invoke("QueueFunction", QUEUED).payload == QUEUED_ID
    (record,) = QUEUED["Records"]
    attributes = {**record["attributes"], "ApproximateReceiveCount": "2"}
    again = {"Records": [{**record, "receiptHandle": "another", "attributes": attributes}]}
    done = line.cloud.invoke("QueueFunction", again)
    assert (done.outcome, done.payload["status"]) == (Outcome.OK, "handled")
    assert line.ran() == [(QUEUED_ID,)]


def test_record_that_the_queue_delivers_again_while_it_runs_is_promised(start: Start, store: Store) -> None:
    """The visibility timeout was too short: told "accepted", and when its first run dies the mailbox has it (M3)."""
    line = start(template=RECOVERY, concurrency=1)
    key = f"QueueFunction/{json.loads(RECORD['Records'][0]['body'])['order_id']}"
    first = store.mailbox.claim(key, "first", 30_000, Message(id=QUEUED_ID, event=QUEUED))
    assert isinstance(first, Claimed)
    done = line.cloud.invoke("QueueFunction", QUEUED)
    assert (done.outcome, done.payload["state"]) == (Outcome.OK, "running")
    assert [(each.id, each.promised) for each in store.mailbox.peek(key)] == [(QUEUED_ID, True)]
    store.provider.release_lease(key, "first")
    while not list(store.mailbox.orphans(1)):  # what was given to a run that is over pauses first (M6)
        SYSTEM_CLOCK.sleep_ms(20)
    assert line.cloud.invoke("SweeperFunction", {}).payload["woken"] == 1  # the duplicate has said whom to wake
    line.cloud.wait_idle()
    assert line.cloud.invoke("QueueFunction", QUEUED).payload["status"] == "handled"
    assert line.ran() == [(QUEUED_ID,)]


def test_full_mailbox_is_the_sources_failure(start: Start, store: Store, tmp_path: Path) -> None:
    """Nothing is stored, the source keeps its event and brings it again; when there is room it is run (M7)."""
    go = tmp_path / "go"
    line = start(template=RECOVERY, concurrency=2, env={"GO": str(go)}, retry_delays_ms=(100, 2_000))
    first = line.cloud.submit("NarrowFunction", {"key": "k", "id": "m1", "waits": True})
    line.wait_for("waiting with m1")
    second = line.cloud.invoke_async("NarrowFunction", {"key": "k", "id": "m2"})
    while not any(each.outcome is Outcome.ERROR for each in line.cloud.invocations):
        SYSTEM_CLOCK.sleep_ms(5)
    refused = next(each for each in line.cloud.invocations if each.outcome is Outcome.ERROR)
    assert refused.error is not None
    assert refused.error["errorType"] == "MailboxFull"
    assert [message.id for message in store.mailbox.peek("NarrowFunction/k")] == ["m1"]
    go.touch()
    assert first.result().payload == "m1"
    assert second.result().payload == "m2"
    assert line.ran() == [("m1",), ("m2",)]


def test_message_too_large_is_the_sources_failure(start: Start, store: Store) -> None:
    """It is given up by its source, which has a place for that; nothing is stored and nothing runs (M7)."""
    line = start(template=RECOVERY, concurrency=1, retry_delays_ms=(0,))
    done = line.cloud.invoke_async("NarrowFunction", {"key": "k", "id": "m1", "text": "é" * 600}).result()
    assert done.error is not None
    assert done.error["errorType"] == "MessageTooLarge"
    assert [each.request_id for each in line.cloud.failures] == [done.request_id]
    assert list(store.mailbox.peek("NarrowFunction/k")) == []
    assert [fact.fact for fact in line.facts] == ["refused"] * 3
