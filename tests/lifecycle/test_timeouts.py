"""The end of an invocation is the end of its renewals, whether Lambda kills the process or lets it run on (M13)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import Outcome
from tests.end_to_end.conftest import Line, Store
from tests.lifecycle.conftest import Start
from tests.lifecycle.test_freeze import TTL_MS, owner_of, wait_out_the_pause

MUCH_LATER_MS = 700  # for a machine that is busy with other things


def freed_after_ms(line: Line, function: str, *, at_most_ms: int) -> int | None:
    """How long the key is still owned; ``None`` when it is longer than that."""
    began = SYSTEM_CLOCK.now()
    while owner_of(line, function) is not None:
        if began.until(SYSTEM_CLOCK.now()) > at_most_ms:
            return None
        SYSTEM_CLOCK.sleep_ms(20)
    return began.until(SYSTEM_CLOCK.now())


def lives_ms(store: Store) -> int:
    """How long strangers wait for an owner that is silent: on DynamoDB a second more, for clocks that differ (R3)."""
    return TTL_MS + (1_000 if store.name == "dynamodb" else 0) + MUCH_LATER_MS


def test_owner_that_is_killed_at_its_deadline_blocks_the_key_for_the_ttl(start: Start, store: Store) -> None:
    """Then the source's retry runs the message once more, under the same request id, as attempt 2 (M8)."""
    line = start(concurrency=1, retry_delays_ms=(lives_ms(store) + 500,))
    pending = line.cloud.invoke_async("ShortFunction", {"key": "k", "id": "m1", "do": "until_told"})
    while not line.cloud.invocations:
        SYSTEM_CLOCK.sleep_ms(10)

    assert line.cloud.invocations[0].outcome is Outcome.TIMEOUT
    assert freed_after_ms(line, "ShortFunction", at_most_ms=lives_ms(line.store)) is not None

    done = pending.result()
    assert (done.attempt, done.payload["answer"]) == (2, "at once")
    line.wait_for("running m1 attempt 2")
    assert line.ran() == [("m1",)]
    assert list(line.store.mailbox.peek("ShortFunction/k")) == []


@pytest.mark.parametrize(("store", "workers"), [("redis", None), ("redis", 4), ("dynamodb", 4)], indirect=["store"])
def test_code_that_runs_on_past_its_timeout_is_not_renewed(
    start: Start, go: Path, guarded: Callable[[str], Any], workers: int | None
) -> None:
    """Its key is free within the ttl, a later invocation runs its message, and what it ends with is lost."""
    line = start(concurrency=2, workers_per_environment=workers, enforce_timeouts=False)
    line.cloud.warm("ShortFunction", 1)
    first = line.cloud.submit("ShortFunction", {"key": "k", "id": "m1", "do": "until_told"})
    line.wait_for("running m1 attempt 1")
    late = first.result()
    assert late.outcome is Outcome.TIMEOUT
    assert freed_after_ms(line, "ShortFunction", at_most_ms=lives_ms(line.store)) is not None

    second = line.cloud.invoke("ShortFunction", {"key": "k", "id": "m2"})
    assert second.payload["answer"] == "at once"
    wait_out_the_pause(line, "ShortFunction")
    assert line.cloud.invoke("ShortFunction", {"key": "k", "id": "m3"}).payload["answer"] == "at once"
    go.touch()
    while not any(each.fact == "lost" for each in line.facts):
        SYSTEM_CLOCK.sleep_ms(20)
    while not line.ran("lost"):
        SYSTEM_CLOCK.sleep_ms(20)
    line.cloud.wait_idle()

    assert line.ran() == [("m2",), ("m1",), ("m3",)]
    assert line.ran("lost") == [("m1",)]
    assert list(line.store.mailbox.peek("ShortFunction/k")) == []


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_heartbeat_that_knows_no_end_is_seen(start: Start, go: Path) -> None:
    """It owns the key for as long as the forgotten code runs: the proof that the test before can fail."""
    line = start(concurrency=1, workers_per_environment=1)
    assert line.cloud.invoke("ShortLeftRunningFunction", {"key": "k", "id": "m1", "do": "until_told"}).outcome is (
        Outcome.TIMEOUT
    )
    assert freed_after_ms(line, "ShortLeftRunningFunction", at_most_ms=lives_ms(line.store)) is None
