"""The time of a replay: pauses that are skipped, and a sweeper that comes every minute from the start."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import Invocation
from incumbent.local.in_process import InProcessLambda
from incumbent.local.invocations import LogLine
from incumbent.local.replay import Replay
from incumbent.local.report import Summary
from incumbent.local.scenario import load_scenario
from incumbent.local.stores import archive
from incumbent.local.wake_queue import VARIABLE
from tests.local.test_wake_queue import TRACE, function

HOUR_MS = 3_600_000
FUNCTIONS = [function(name) for name in ("burst", "front", "fails_once", "steady", "longer_than_its_ttl")]
FUNCTIONS.append(replace(function("burst"), logical_id="sweeper", name="sweeper", handler="incumbent.sweeper.handler"))


def played(folder: Path, *steps: dict[str, Any], **settings: Any) -> tuple[Summary, Sequence[tuple[int, Invocation]]]:
    """Replay the steps and skip the pauses: what came of it, and when each invocation was sent."""
    (folder / "event.json").write_text('{"key": "k", "message": "m"}')
    document = {"event": "event.json", "steps": [{"set": {"key": "{id}", "message": "{id}"}, **step} for step in steps]}
    (folder / "s.json").write_text(json.dumps(document))
    replay = Replay(load_scenario(folder / "s.json"), lambda _: None)
    env = {"INCUMBENT_PROVIDER": "memory", **TRACE, **settings.pop("env", {})}
    ended: list[Invocation] = []

    def on_invocation(invocation: Invocation) -> None:
        ended.append(invocation)
        replay.on_invocation(invocation)

    with (
        InProcessLambda(
            FUNCTIONS, env=env, on_log=replay.on_log, on_invocation=on_invocation, skip_pauses=True
        ) as cloud,
        archive(env) as find,
    ):
        summary = replay.run(cloud, find, **settings)
    first_ms = min(each.sent_at_ms for each in ended)
    return summary, sorted(((each.sent_at_ms - first_ms, each) for each in ended), key=lambda each: each[0])


def test_pauses_are_skipped_and_runs_are_not(tmp_path: Path) -> None:
    """Hours between two messages, and a debounced burst: seconds of a real clock, which is as it was afterwards."""
    before = SYSTEM_CLOCK.now()
    summary, sent = played(
        tmp_path,
        {"function": "steady", "at_ms": 0, "id": "a"},
        {"function": "longer_than_its_ttl", "at_ms": HOUR_MS, "id": "b"},
        {"function": "burst", "at_ms": 5 * HOUR_MS, "id": "c"},
    )
    took_ms = before.until(SYSTEM_CLOCK.now())
    assert (summary.handled_once, summary.lost, summary.waiting) == (3, (), ())
    at = {each.label: (at_ms, each) for at_ms, each in sent}
    assert HOUR_MS - 2 <= at["b"][0] < HOUR_MS + 1_000
    assert 5 * HOUR_MS - 2 <= at["c"][0] < 5 * HOUR_MS + 1_000
    assert 1_800 <= took_ms < 60_000
    # The thread that renews has noticed: it slept until the renewal of the first run was due.
    assert at["b"][1].payload == "None"


def test_retries_and_wakes_come_at_their_time(tmp_path: Path) -> None:
    """A minute and two more after a failure, as on Lambda; and 1.5 s of quiet."""
    summary, sent = played(
        tmp_path,
        {"function": "front", "at_ms": 0, "id": "bad", "async": True, "set": {"key": 7}},
        {"function": "burst", "at_ms": 100, "id": "quiet"},
    )
    assert (summary.handled_once, summary.refused) == (1, ("bad",))
    first, second, third = (each.started_at_ms for _, each in sent if each.label == "bad")
    assert 60_000 <= second - first < 61_000
    assert 120_000 <= third - second < 121_000
    (woken_ms,) = (at_ms for at_ms, each in sent if each.function == "burst" and not each.label)
    ((sent_ms, quiet),) = ((at_ms, each) for at_ms, each in sent if each.label == "quiet")
    lasted_ms = quiet.ended_at_ms - quiet.sent_at_ms  # on a busy machine a process takes its time to begin
    assert 1_600 <= woken_ms < sent_ms + lasted_ms + 4_900


def test_sweeper_comes_every_minute_from_the_start_until_nothing_waits(tmp_path: Path) -> None:
    """A message that failed runs again after the first minute, though others are still to be sent."""
    steps = (
        {"function": "front", "at_ms": 0, "id": "swept-1"},
        {"function": "burst", "at_ms": 150_000, "id": "between"},
        {"function": "front", "at_ms": 200_000, "id": "swept-2"},
    )
    summary, sent = played(tmp_path, *steps, sweeper="sweeper", env={VARIABLE: ""})
    assert (summary.handled_once, summary.waiting) == (3, ())
    assert [round(at_ms, -3) for at_ms, each in sent if each.function == "sweeper"] == [
        60_000,
        120_000,
        180_000,
        240_000,
    ]
    again = [at_ms for at_ms, each in sent if each.function == "fails_once"]
    assert [60_000 <= at_ms < 61_000 for at_ms in again] == [False, True, False, False]
    assert [240_000 <= at_ms < 241_000 for at_ms in again] == [False, False, False, True]


def test_servers_time_cannot_be_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor that of processes: one line says what can."""
    root = Path(__file__).parents[2]
    words = [str(root / "events" / "scenarios" / "duplicates.json"), "--template", str(root / "template.yaml")]
    assert main(["replay", *words, "--skip-pauses", "--provider", "none"]) == 2
    assert capsys.readouterr().err == (
        "incumbent: --skip-pauses needs --provider memory: a server's time cannot be skipped\n"
    )
    (tmp_path / "s.json").write_text(
        json.dumps(
            {
                "function": "ThreadFunction",
                "event": str(root / "events" / "chat-message.json"),
                "steps": [{"at_ms": 0}, {"at_ms": HOUR_MS, "set": {"requestContext.requestId": "in an hour"}}],
            }
        )
    )
    assert main(["replay", str(tmp_path / "s.json"), *words[1:], "--skip-pauses", "--provider", "memory"]) == 0
    out = capsys.readouterr().out
    assert "sent 2, handled once 2, " in out
    assert re.search(r"^ *360\d", out, re.MULTILINE)


def test_progress_is_known_while_a_line_is_printed(tmp_path: Path) -> None:
    """A terminal asks for it under a lock that the printer waits for."""
    told: list[str] = []

    def say(_: str) -> None:
        terminal = ThreadPoolExecutor(1)
        try:
            told.append(terminal.submit(lambda: replay.progress).result(timeout=20))
        finally:
            terminal.shutdown(wait=False)

    (tmp_path / "event.json").write_text("{}")
    (tmp_path / "s.json").write_text('{"function": "steady", "event": "event.json", "steps": [{"at_ms": 0}]}')
    replay = Replay(load_scenario(tmp_path / "s.json"), say, show_logs=True)
    replay.on_log(LogLine(at_ms=0, function="steady", environment="", log_stream="", request_id=None, text="hello"))
    assert told == ["0 of 1 sent, 0 invocations ended"]
