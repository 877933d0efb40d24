"""What is left behind is found: by the sweeper, by the source's own retry, by whoever comes next."""

from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from incumbent import LambdaWaker, send
from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.invocations import Outcome
from tests.end_to_end.conftest import RECOVERY, Line, Store

Start = Callable[..., Line]


def sweep_until(line: Line, is_over: Callable[[], bool]) -> None:
    """Let the sweeper come every quarter of a second, in place of every minute, and not back off for a minute."""
    give_up = SYSTEM_CLOCK.now().plus(150_000)
    while not is_over():
        if SYSTEM_CLOCK.now().until(give_up) <= 0:
            pytest.fail("\n".join(map(str, [*line.facts, *line.cloud.invocations])))
        swept = line.cloud.invoke("EagerSweeperFunction", {})
        assert swept.outcome is Outcome.OK, swept.error
        SYSTEM_CLOCK.sleep_ms(250)
    line.cloud.wait_idle()


def give(line: Line, function: str, message_id: str, **event: str) -> None:
    """Store a message that is promised from the start; wake its function if nobody owns the key."""
    waker = LambdaWaker(boto3.client("lambda", endpoint_url=line.cloud.url))
    body = {"key": "k", "id": message_id, **event}
    send("k", body, message_id=message_id, target=function, provider=line.store.provider, waker=waker)


def test_message_of_a_crashed_owner_is_run_when_nobody_comes_again(start: Start, store: Store) -> None:
    """A caller who waits tries once: its owner dies, and the sweeper's wake runs the message as attempt 2 (M8)."""
    # H40: Mastra #23801.
    line = start(template=RECOVERY, concurrency=2)
    assert line.cloud.invoke("CrashingFunction:live", {"key": "k"}).outcome is Outcome.CRASH
    (message,) = store.mailbox.peek("CrashingFunction/k")
    assert message.attempt == 1

    sweep_until(line, lambda: bool(line.ran()))

    assert line.ran() == [(message.id,)]
    assert list(store.mailbox.peek("CrashingFunction/k")) == []
    woken = {
        each.invoked_arn.partition(":function:")[2] for each in line.cloud.invocations if "incumbent" in each.event
    }
    assert woken == {"CrashingFunction:live"}, "the alias was not kept"  # H47: bolt-python #864


def test_retry_of_a_crashed_invocation_runs_its_message_once_more(start: Start, store: Store) -> None:
    """Lambda retries under the same request id: that is the message, found and run as attempt 2, not a second (H54)."""
    line = start(template=RECOVERY, concurrency=2, retry_delays_ms=(2_500,))
    done = line.cloud.invoke_async("CrashingFunction", {"key": "k"}).result()
    assert (done.attempt, done.outcome, done.payload) == (2, Outcome.OK, 2)
    assert line.ran() == [(done.request_id,)]
    assert list(store.mailbox.peek("CrashingFunction/k")) == []


def test_retry_that_comes_while_the_dead_owner_still_holds_the_key_is_promised(start: Start, store: Store) -> None:
    """It is told "accepted", as a duplicate of what seems to run; from then on the sweeper sees to it (M3, H49)."""
    line = start(template=RECOVERY, concurrency=2, retry_delays_ms=(0,), env={"LIVES_MS": "2000"})
    line.cloud.warm("CrashingFunction")
    done = line.cloud.invoke_async("CrashingFunction", {"key": "k"}).result()
    assert (done.attempt, done.outcome) == (2, Outcome.OK)
    assert done.payload["state"] == "running"
    assert [(each.id, each.promised) for each in store.mailbox.peek("CrashingFunction/k")] == [(done.request_id, True)]
    sweep_until(line, lambda: bool(line.ran()))
    assert line.ran() == [(done.request_id,)]


def test_message_that_kills_its_process_holds_nobody_up(start: Start, store: Store) -> None:
    """Those behind it run before it comes again, once each, in order; after its attempts it is a dead letter (M6)."""
    # H43: SQS FIFO users; Azure entities #2228.
    line = start(store.patient, template=RECOVERY, concurrency=2, retry_delays_ms=(3_000,))
    give(line, "PoisonFunction", "m1", poison="kills", behind="3")
    for message_id in ("m2", "m3", "m4"):
        give(line, "PoisonFunction", message_id)

    sweep_until(line, lambda: any(fact.fact == "dead" for fact in line.facts))

    began = [fact.message_ids for fact in line.facts if fact.fact == "run_started"]
    assert began == [("m1",), ("m2",), ("m3",), ("m4",), ("m1",)]
    assert line.ran() == [("m2",), ("m3",), ("m4",)]
    assert [fact.message_ids for fact in line.facts if fact.fact == "dead"] == [("m1",)]
    assert [each.text for each in line.cloud.logs if each.text.startswith("dead_lettered")] == [
        "dead_lettered m1 after 2"
    ]
    assert list(store.mailbox.peek("PoisonFunction/k")) == []


def test_message_that_always_raises_holds_nobody_up(start: Start, store: Store) -> None:
    """Those behind it run at once, and do not even wait for its pause (M6)."""
    # On a busy machine a settle may take longer than the usual lease, and what it passed on would go behind.
    line = start({**store.patient, "LIVES_MS": "30000"}, template=RECOVERY, concurrency=1)
    line.cloud.warm("PoisonFunction")
    give(line, "PoisonFunction", "m1", poison="raises")
    for message_id in ("m2", "m3", "m4"):
        give(line, "PoisonFunction", message_id)
    sweep_until(line, lambda: any(fact.fact == "dead" for fact in line.facts))
    assert line.ran() == [("m2",), ("m3",), ("m4",)]
    assert line.ran("failed") == [("m1",), ("m1",)]
    assert line.summary().dead == ("m1",)
    assert line.summary().lost == ()


def test_dead_letter_that_is_redriven_wakes_its_function(
    start: Start, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, without anybody naming the function: it is recorded with the key."""
    cured = tmp_path / "cured"
    line = start(template=RECOVERY, concurrency=1, env={**store.patient, "CURED": str(cured)})
    give(line, "PoisonFunction", "m1", poison="raises")
    sweep_until(line, lambda: any(fact.fact == "dead" for fact in line.facts))
    cured.touch()
    for name, value in {**store.environment, "AWS_ENDPOINT_URL_LAMBDA": line.cloud.url}.items():
        monkeypatch.setenv(name, value)

    assert main(["dead", "redrive", "k", "m1", "--keyspace", "PoisonFunction"]) == 0

    line.cloud.wait_idle()
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "m1 is back in the mailbox of PoisonFunction/k"
    assert told[1].startswith("woke arn:aws:lambda:")
    assert line.ran() == [("m1",)]
    assert main(["dead", "ls"]) == 0
    assert capsys.readouterr().out.splitlines() == ["0 dead letters"]
