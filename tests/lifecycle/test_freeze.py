"""A frozen environment believes nothing that is over, revives nothing, and leaves nothing alive (R3, R12, H11, H13)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import Invocation, Outcome
from tests.end_to_end.conftest import Line, Store
from tests.lifecycle.conftest import Start

TTL_MS = 1_800


def owner_of(line: Line, function: str, key: str = "k") -> str | None:
    """Whom the store has for owner."""
    return line.store.provider.get_lease_owner(f"{function}/{key}")


def wait_until_free(line: Line, function: str) -> None:
    """Wait until the store has none."""
    while owner_of(line, function) is not None:
        SYSTEM_CLOCK.sleep_ms(20)


def wait_out_the_pause(line: Line, function: str) -> None:
    """Wait until what died with its run is due again; it goes behind what never ran (M6)."""
    while any(message.due_at_ms > SYSTEM_CLOCK.now().wall_ms for message in line.store.mailbox.peek(f"{function}/k")):
        SYSTEM_CLOCK.sleep_ms(10)


def said_late(line: Line) -> Mapping[str, Any]:
    """What the late owner saw."""
    (said,) = [each.text for each in line.cloud.logs if each.text.startswith("LATE ")]
    told: Mapping[str, Any] = json.loads(said.removeprefix("LATE "))
    return told


def check_lost(line: Line, late: Invocation) -> None:
    """The invocation failed, told one loss, and settled nothing."""
    assert late.outcome is Outcome.ERROR, late
    assert late.error is not None
    assert late.error["errorType"] == "LeaseLost"
    owner = next(each.owner for each in line.facts if each.fact == "claimed" and each.request_id == late.request_id)
    told = [each.fact for each in line.facts if each.owner == owner]
    assert told == ["claimed", "run_started", "lost", "run_ended"]


def test_owner_that_was_frozen_past_its_lease_changes_nothing_of_the_next_ones(
    start: Start, go: Path, guarded: Callable[[str], Any]
) -> None:
    """Thawed while its successor runs, it looks and believes no more; its calls and its write are refused."""
    line = start(concurrency=2)
    first = line.cloud.submit("WholeFunction", {"key": "k", "id": "m1", "do": "until_lost", "again": "until_told"})
    line.wait_for("running m1 attempt 1")
    (frozen,) = line.cloud.environments("WholeFunction")
    frozen.freeze()
    wait_until_free(line, "WholeFunction")
    second = line.cloud.submit("WholeFunction", {"key": "k", "id": "m2", "do": "until_told"})
    line.wait_for("wrote m2")  # what is guarded knows the next fence now
    next_owner = owner_of(line, "WholeFunction")

    frozen.thaw()
    late = first.result()

    check_lost(line, late)
    assert owner_of(line, "WholeFunction") == next_owner
    go.touch()
    assert second.result().payload["answer"] == "told"
    wait_out_the_pause(line, "WholeFunction")
    assert line.cloud.invoke("WholeFunction", {"key": "k", "id": "m3"}).payload["answer"] == "at once"
    began = [each for each in line.facts if each.fact == "run_started"]
    assert said_late(line)["believed_ms"] < began[1].t_ms
    assert said_late(line)["stop"] == "lost"
    assert said_late(line)["refusals"] == ["LeaseLost"] * 3
    assert said_late(line)["wrote"] is False
    assert guarded("k") == "m1"
    assert line.ran() == [("m2",), ("m1",), ("m3",)]
    assert list(line.store.mailbox.peek("WholeFunction/k")) == []


def test_lease_that_ended_during_a_freeze_is_not_revived_though_nobody_came(start: Start) -> None:
    """The key stays free after the thaw, and the message is run again, behind what never ran (M6)."""
    line = start(concurrency=1)
    first = line.cloud.submit("WholeFunction", {"key": "k", "id": "m1", "do": "until_lost"})
    line.wait_for("running m1 attempt 1")
    (frozen,) = line.cloud.environments("WholeFunction")
    frozen.freeze()
    wait_until_free(line, "WholeFunction")

    frozen.thaw()
    late = first.result()

    check_lost(line, late)
    assert owner_of(line, "WholeFunction") is None
    assert said_late(line)["refusals"] == ["LeaseLost"] * 3
    assert line.cloud.invoke("WholeFunction", {"key": "k", "id": "m2"}).ok
    wait_out_the_pause(line, "WholeFunction")
    assert line.cloud.invoke("WholeFunction", {"key": "k", "id": "m3"}).ok
    assert line.ran() == [("m2",), ("m1",), ("m3",)]


def nothing_is_left(line: Line, function: str, *deeds: str) -> None:
    """After each deed, the thread that the next invocation finds is asleep; nothing tells anything of an older run."""
    for number, deed in enumerate(deeds):
        done = line.cloud.invoke(function, {"key": "k", "id": f"m{number}", "do": deed})
        assert done.ok is (deed != "raises"), done
        line.cloud.wait_idle()
        SYSTEM_CLOCK.sleep_ms(TTL_MS)
        after = line.cloud.invoke(function, {"key": f"after-{number}", "id": "a", "do": "between_renewals"})
        assert after.ok, after
        assert not after.cold_start
        assert after.payload["alive"] in (["MainThread"], ["MainThread", "incumbent-heartbeat"])
    ends = [each.owner for each in line.facts if each.fact == "released"]
    assert len(ends) == len(deeds) * 2
    for owner in ends:
        assert [each.fact for each in line.facts if each.owner == owner][-1] == "released"


@pytest.mark.parametrize(
    ("function", "deeds"),
    [("WholeFunction", ("at_once", "while_renewed", "raises")), ("AwaitingFunction", ("awaits",))],
)
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_nothing_of_a_run_is_alive_in_the_next_invocation(start: Start, function: str, deeds: tuple[str, ...]) -> None:
    """Frozen for longer than the ttl and used again, the environment has its main thread and one that sleeps."""
    nothing_is_left(start(concurrency=1), function, *deeds)


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_heartbeat_that_is_left_running_is_seen(start: Start) -> None:
    """The proof that the test before can fail: it tells of a loss afterwards."""
    with pytest.raises(AssertionError, match=r"incumbent-heartbeat|lost"):
        nothing_is_left(start(concurrency=1), "LeftRunningFunction", "between_renewals")


def commands_while_idle(line: Line, store: Store, function: str) -> int:
    """How many commands reach the server in the interval and a half after a run that was renewed."""
    server = redis.Redis.from_url(store.environment["INCUMBENT_REDIS_URL"])
    assert line.cloud.invoke(function, {"key": "k", "id": "m1", "do": "between_renewals"}).ok
    line.cloud.wait_idle()
    before: Any = server.info("stats")
    SYSTEM_CLOCK.sleep_ms(TTL_MS)
    after: Any = server.info("stats")
    server.close()
    return int(after["total_commands_processed"]) - int(before["total_commands_processed"]) - 1  # that INFO itself


@pytest.mark.parametrize("store", ["redis"], indirect=True)
@pytest.mark.parametrize(("function", "asks"), [("WholeFunction", False), ("LeftRunningFunction", True)])
def test_idle_environment_asks_the_store_nothing(start: Start, store: Store, function: str, *, asks: bool) -> None:
    """Not even where nothing freezes it; a heartbeat that is left running would be seen."""
    line = start({"LIVES_MS": str(TTL_MS * 2)}, concurrency=1, freezing=False)
    assert (commands_while_idle(line, store, function) > 0) is asks
