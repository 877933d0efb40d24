"""The command line, as somebody at a terminal meets it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK
from tests.local.conftest import TEMPLATE

EVENT = TEMPLATE.parent / "events" / "message.json"
ROOT = Path(__file__).parents[2]
COMMON = ["--template", str(TEMPLATE), "--parameter", "Secret=s3cret"]


@pytest.fixture
def scenario(tmp_path: Path) -> Any:
    """Write a scenario and return its path."""

    def write(*steps: dict[str, Any], function: str = "TracedFunction") -> str:
        file = tmp_path / "scenario.json"
        file.write_text(json.dumps({"function": function, "event": str(EVENT), "steps": list(steps)}))
        return str(file)

    return write


def step(at_ms: int, message: str, **changes: Any) -> dict[str, Any]:
    """One message of the key that is named like its first letter."""
    return {"at_ms": at_ms, "id": f"step-{message}", "set": {"key": message[0], "message": message, **changes}}


@pytest.mark.parametrize("provider", ["none", "memory"])
def test_a_replay_tells_every_invocation_and_closes_with_the_counts(
    scenario: Any, capsys: pytest.CaptureFixture[str], provider: str
) -> None:
    """In processes or in threads: a line each, and 0 where all was well."""
    file = scenario(step(0, "a1"), step(0, "b1"), {**step(60, "a2"), "async": True})
    assert main(["replay", file, *COMMON, "--provider", provider, "--concurrency", "2"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["time", "thread", "invocation", "message", "what", "happened"]
    assert sorted(line.split(maxsplit=2)[2].split() for line in lines[1:4]) == [
        [message[0], f"step-{message}", message, "owned", "·", "ran", message, "·", "released"]
        for message in ("a1", "a2", "b1")
    ]
    assert lines[3].split()[3] == "step-a2"
    assert lines[-1] == "sent 3, handled once 3, routed 0, owners 3, overlaps 0, lost 0, handled twice 0"
    assert err == ""


@pytest.mark.parametrize("provider", ["redis", "memory"])
def test_a_front_door_and_its_worker_are_one_replay(
    scenario: Any, capsys: pytest.CaptureFixture[str], provider: str
) -> None:
    """What the one sends is handled by the other, whoever that is woken."""
    words = ["--provider", provider, "--concurrency", "2"]
    file = scenario(step(0, "a1"), step(5, "a2"), step(10, "b1"), function="FrontFunction")
    assert main(["replay", file, *COMMON, *words]) == 0
    *lines, closing = capsys.readouterr().out.splitlines()
    assert closing.startswith("sent 3, handled once 3, ")
    assert closing.endswith("overlaps 0, lost 0, handled twice 0")
    assert any(
        line.split(maxsplit=2)[2].split() == ["a", "step-a1", "a1", "sent", "·", "HTTP", "202"] for line in lines
    )


@pytest.mark.parametrize("provider", ["redis", "dynamodb", "memory"])
def test_what_is_still_stored_waits_and_is_not_lost(
    scenario: Any, capsys: pytest.CaptureFixture[str], provider: str
) -> None:
    """A failed message in its pause. That is good, but for a replay in which nothing was handled."""
    words = [*COMMON, "--provider", provider, "--concurrency", "1"]
    failing = step(0, "w1", do="fail")
    assert main(["replay", scenario(failing, step(0, "x1"), function="FrontFunction"), *words]) == 0
    closing = capsys.readouterr().out.splitlines()[-2:]
    assert closing[0].endswith("lost 0, handled twice 0, waiting 1")
    assert closing[1] == "waiting: w1"
    assert main(["replay", scenario(step(0, "y1", do="fail"), function="FrontFunction"), *words]) == 1


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([step(0, "a1", without="run_ended"), step(80, "a2")], "lost: a1"),
        ([step(0, "a1", twice=True)], "handled twice: a1"),
        ([step(0, "a1", ms=120), step(30, "a2", ms=10)], "overlap: a: step-a1 with step-a2"),
    ],
)
def test_a_replay_that_finds_a_fault_says_which_and_exits_1(
    scenario: Any, capsys: pytest.CaptureFixture[str], steps: list[dict[str, Any]], told: str
) -> None:
    """A lost message, one handled twice, two runs at once."""
    assert main(["replay", scenario(*steps), *COMMON, "--provider", "none", "--concurrency", "2"]) == 1
    assert told in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("provider", ["memory", "redis"])
def test_the_demo_loses_nothing_and_runs_one_owner_at_a_time(capsys: pytest.CaptureFixture[str], provider: str) -> None:
    """The project's own scenario on its own template: three threads, 27 invocations at almost the same time."""
    words = [str(ROOT / "events" / "scenarios" / "chat-burst.json"), "--template", str(ROOT / "template.yaml")]
    assert main(["replay", *words, "--provider", provider]) == 0
    *lines, closing = capsys.readouterr().out.splitlines()
    assert closing.startswith("sent 27, handled once 27, ")
    assert closing.endswith("overlaps 0, lost 0, handled twice 0")
    assert sum(" · HTTP 20" in line for line in lines) == 27


def test_a_replay_tells_what_failed_and_shows_logs_on_request(
    scenario: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error stands in its line, the handler's own lines among them; that nothing was handled is a failure."""
    file = scenario({"at_ms": 0, "set": {"do": "raise", "text": "oh dear"}}, function="EchoFunction")
    assert main(["replay", file, *COMMON, "--provider", "none", "--logs", "--cold", "--concurrency", "1"]) == 1
    out = capsys.readouterr().out
    assert "step-1" in out
    assert "error: RuntimeError: oh dear" in out
    assert "| [ERROR] RuntimeError: oh dear" in out
    assert "refused: step-1" in out


def test_invoke_prints_the_answer_and_nothing_else_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """What the function prints goes to standard error; the exit code says whether it went well."""
    words = ["invoke", "TracedFunction", "-e", str(EVENT), *COMMON, "--provider", "none", "--env", "A=b"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"message": "m", "provider": "none", "lambda": True}
    assert '"claimed"' in err


def test_invoke_prints_the_error_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the shape in which Lambda tells it."""
    (tmp_path / "event.json").write_text('{"do": "raise", "text": "oh dear"}')
    words = ["invoke", "EchoFunction", "-e", str(tmp_path / "event.json"), *COMMON, "--provider", "memory"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["errorMessage"] == "oh dear"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["replay", "nowhere.json"], "cannot read the scenario nowhere.json: No such file or directory"),
        (["replay", str(EVENT)], "unknown field 'key'"),
        (["invoke", "EchoFunction", "-e", "nowhere.json"], "cannot read the event nowhere.json: No such file"),
        (["invoke", "Nope", "-e", str(EVENT)], "the template has no function 'Nope'; it has BrokenFunction"),
        (["invoke", "EchoFunction", "-e", str(EVENT), "--template", "gone.yaml"], "cannot read the template gone.yaml"),
        (["invoke", "EchoFunction", "-e", str(EVENT), "--parameter", "Colour=red"], "has no parameter 'Colour'"),
        (["invoke", "EchoFunction", "-e", str(TEMPLATE)], "template.yaml is no JSON: Expecting value at line 1"),
    ],
)
def test_what_cannot_be_tried_is_one_line_and_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: a wrong path, an unknown function, a bad scenario, a wrong parameter."""
    assert main([*words[:1], *COMMON, *words[1:], "--provider", "none"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("incumbent: ")
    assert told in err
    assert err.count("\n") == 1


def test_a_function_that_cannot_start_is_told_before_anything_is_sent(
    scenario: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own error, and so is a function that is not there."""
    file = scenario({"at_ms": 0}, function="BrokenFunction")
    assert main(["replay", file, *COMMON, "--provider", "none"]) == 2
    assert capsys.readouterr().err == "incumbent: BrokenFunction cannot start: ValueError: no luck today\n"
    assert main(["replay", scenario({"at_ms": 0}, function="Nope"), *COMMON, "--provider", "none"]) == 2
    assert "no function 'Nope'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["replay"], ["invoke", "F"], ["replay", "x", "--concurrency", "0"]])
def test_wrong_words_are_answered_with_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own: exit code 2."""
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    assert "usage: incumbent" in capsys.readouterr().err


@pytest.mark.parametrize("provider", ["none", "memory"])
def test_a_reader_that_leaves_ends_the_command_quietly(scenario: Any, provider: str) -> None:
    """As with `| head -1`: no traceback, no process left."""
    file = scenario({**step(0, "a1"), "repeat": 50, "every_ms": 20})
    command = subprocess.Popen(
        [*(sys.executable, "-m", "incumbent.cli", "replay", file, *COMMON, "--provider", provider)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.stdout.close()
    command.stdout = None
    _, err = command.communicate(timeout=20)
    assert (command.returncode, err) == (1, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """Ended or killed in the middle of an invocation, with other environments frozen: all are gone."""
    (tmp_path / "event.json").write_text('{"do": "sleep", "ms": 60000}')
    (tmp_path / "s.json").write_text(
        '{"function": "EchoFunction", "event": "event.json", "steps": [{"at_ms": 0, "id": "x"}]}'
    )
    mark = f"MARK={tmp_path}"
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "incumbent.cli", "replay", str(tmp_path / "s.json"), *COMMON),
            *("--provider", "none", "--concurrency", "3", "--logs", "--env", mark),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    while b"begun" not in command.stdout.readline():
        pass
    assert len(alive_with(mark)) == 3
    command.send_signal(number)
    _, err = command.communicate(timeout=20)
    if number is signal.SIGTERM:
        assert (command.returncode, err) == (130, b"incumbent: interrupted\n")
    give_up = SYSTEM_CLOCK.now().plus(5_000)
    while alive_with(mark) and SYSTEM_CLOCK.now().until(give_up) > 0:
        SYSTEM_CLOCK.sleep_ms(10)
    assert alive_with(mark) == []


def alive_with(variable: str) -> list[int]:
    """The processes that have the variable in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if variable.encode() in variables:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(("words", "shown"), [((), False), (("--env", "POWERTOOLS_METRICS_DISABLED=false"), True)])
def test_metrics_are_shown_on_request(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], *, shown: bool
) -> None:
    """Their lines are for CloudWatch, and would hide what a function says to people."""
    event = ROOT / "events" / "sqs-standard.json"
    options = ["--event", str(event), "--template", str(ROOT / "template.yaml"), "--provider", "none", *words]
    assert main(["invoke", "OrdersFunction", *options]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"batchItemFailures": []}
    assert ("CloudWatchMetrics" in printed.err) is shown


def test_an_invocation_of_two_threads_keeps_to_its_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one is named, the others are counted."""
    file = tmp_path / "batch.json"
    event = str(ROOT / "events" / "sqs-standard.json")
    file.write_text(json.dumps({"function": "OrdersFunction", "event": event, "steps": [{"at_ms": 0, "id": "batch"}]}))
    words = ["--template", str(ROOT / "template.yaml"), "--provider", "redis", "--concurrency", "1"]
    main(["replay", str(file), *words])
    head, *lines = [line for line in capsys.readouterr().out.splitlines() if line][1:]
    line = next(line for line in [head, *lines] if " batch " in line)
    assert re.match(r" *\d+ ms  \S+ \+1 +batch", line)
    assert line.index(" batch ") == len("     time  thread          ") - 1


@pytest.mark.parametrize("command", ["replay", "invoke"])
def test_every_option_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """None stands there by its name alone."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    _, _, options = capsys.readouterr().out.partition("options:")
    said = re.split(r"\n  (?=-)", options)[1:]
    assert len(said) >= 8
    assert [each for each in said if not re.search(r"  +[a-z]", each)] == []
