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
from incumbent.local.scenario import load_scenario
from incumbent.testing.servers import ValkeyServer
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
    header, *lines = out.splitlines()
    assert header == f"scenario.json ({provider}, --provider)"
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
    words = [*COMMON, "--provider", provider, "--concurrency", "1", "--env", "INCUMBENT_WAKE_QUEUE_URL="]
    failing = step(0, "w1", do="fail")
    assert main(["replay", scenario(failing, step(0, "x1"), function="FrontFunction"), *words]) == 0
    closing = capsys.readouterr().out.splitlines()[-2:]
    assert closing[0].endswith("lost 0, handled twice 0, waiting 1")
    assert closing[1] == "waiting: w1"
    assert main(["replay", scenario(step(0, "y1", do="fail"), function="FrontFunction"), *words]) == 1


def check_fault(file: str, told: str, capsys: pytest.CaptureFixture[str], *, concurrency: int) -> None:
    """Replay a scenario that ends with a fault."""
    words = ["--provider", "none", "--concurrency", str(concurrency)]
    assert main(["replay", file, *COMMON, *words]) == 1
    assert told in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([step(0, "a1", without="run_ended"), step(80, "a2")], "lost: a1"),
        ([step(0, "a1", twice=True)], "handled twice: a1"),
    ],
)
def test_a_replay_that_finds_a_fault_says_which_and_exits_1(
    scenario: Any, capsys: pytest.CaptureFixture[str], steps: list[dict[str, Any]], told: str
) -> None:
    """A lost message, one handled twice."""
    check_fault(scenario(*steps), told, capsys, concurrency=1)


def test_a_replay_that_finds_two_runs_at_once_says_which_and_exits_1(
    scenario: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second begins inside the first, which waits for it."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    steps = (step(0, "a1", makes=first, until=second), step(30, "a2", after=first, makes=second))
    check_fault(scenario(*steps), "overlap: a: step-a1 with step-a2", capsys, concurrency=2)


@pytest.mark.parametrize("provider", ["memory", "redis"])
def test_the_demo_loses_nothing_and_runs_one_owner_at_a_time(capsys: pytest.CaptureFixture[str], provider: str) -> None:
    """The project's own scenario on its own template: three threads, 27 invocations at almost the same time."""
    words = [str(ROOT / "events" / "scenarios" / "chat-burst.json"), "--template", str(ROOT / "template.yaml")]
    assert main(["replay", *words, "--provider", provider]) == 0
    *lines, closing = capsys.readouterr().out.splitlines()
    assert closing.startswith("sent 27, handled once 27, ")
    assert closing.endswith("overlaps 0, lost 0, handled twice 0")
    assert sum(" · HTTP 20" in line for line in lines) == 27


def test_progress_is_live_in_a_terminal_and_plain_in_a_pipe() -> None:
    """Each invocation's line with its answer; only a terminal is told how far it is, in a line that goes again."""
    scenario = ROOT / "events" / "scenarios" / "duplicates.json"
    words = f"replay {scenario} --template {ROOT / 'template.yaml'} --provider memory --env QUIET_MS=1 --answers"
    command = f"{sys.executable} -m incumbent {words}"
    done = [
        subprocess.run(each, capture_output=True, text=True, timeout=120, check=True, stdin=subprocess.DEVNULL).stdout
        for each in (command.split(), ["script", "-qec", command, "/dev/null"])
    ]
    plain, live = done
    assert "\x1b" not in plain
    assert "invocations ended" not in plain
    ids = {each.id for each in load_scenario(scenario).sendings}
    told = {name for line in lines_of(plain) for name in ids & set(line.split())}
    assert told == ids == {name for line in lines_of(live) for name in ids & set(line.split())}
    assert re.search(r"m11 of 11 sent, \d+ invocations ended\x1b", live)
    for out in done:
        title, head, *lines, counts = lines_of(out)
        assert title.startswith("Deliveries repeated by their source")
        assert head.split() == ["time", "thread", "invocation", "message", "what", "happened"]
        assert counts.startswith("sent 5, handled once 5, ")
        assert counts.endswith("overlaps 0, lost 0, handled twice 0")
        for line, answer in zip(lines[::2], lines[1::2], strict=True):
            code = re.search(r"HTTP (\d+)$", line)
            answered = json.loads(answer.removeprefix(" " * 57 + "= "))
            assert answered.get("statusCode") == (int(code.group(1)) if code else None), line


def lines_of(out: str) -> list[str]:
    """What is left standing of an output: a terminal forgets what its lines show before they are erased."""
    standing = [line.rpartition("\x1b[2K")[2] for line in out.replace("\r", "").splitlines()]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in standing]
    return [line for line in plain if line and not re.fullmatch(r"\d+ of \d+ sent, .*|starting", line)]


@pytest.mark.parametrize("provider", ["memory", "redis"])
def test_a_user_types_in_a_row_and_says_stop(capsys: pytest.CaptureFixture[str], provider: str) -> None:
    """Three messages are one run; the run of the long answer is stopped; the question after that is answered."""
    words = [str(ROOT / "events" / "scenarios" / "chat-stop.json"), "--template", str(ROOT / "template.yaml")]
    assert main(["replay", *words, "--provider", provider]) == 0
    out = capsys.readouterr().out
    assert "ran hotel-1, hotel-2, hotel-3" in out
    assert "stopped story" in out
    assert "ran short" in out
    assert "overlaps 0, lost 0, handled twice 0" in out


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
    assert err.splitlines()[0] == "TracedFunction (none, --provider)"
    assert '"claimed"' in err


def test_invoke_prints_the_error_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the shape in which Lambda tells it."""
    (tmp_path / "event.json").write_text('{"do": "raise", "text": "oh dear"}')
    words = ["invoke", "EchoFunction", "-e", str(tmp_path / "event.json"), *COMMON, "--provider", "memory"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["errorMessage"] == "oh dear"


@pytest.mark.parametrize("shows", [("invoke", "EchoFunction", "-e"), ("replay", "--logs")])
def test_traceback_of_a_function_is_indented_by_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shows: tuple[str, ...]
) -> None:
    """The runtime client indents it by U+00A0, which other output escapes."""
    event, file = {"do": "raise", "text": "oh dear"}, tmp_path / "file.json"
    steps = {"function": "EchoFunction", "event": "event.json", "steps": [{"at_ms": 0}]}
    (tmp_path / "event.json").write_text(json.dumps(event))
    file.write_text(json.dumps(event if shows[0] == "invoke" else steps))
    assert main([*shows, str(file), *COMMON, "--provider", "none"]) == 1
    shown = "".join(capsys.readouterr())
    assert '  File "' in shown
    assert "xa0" not in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["replay", "nowhere.json"], "cannot read the scenario nowhere.json: No such file or directory"),
        (["replay", str(EVENT)], "unknown field 'key'"),
        (["invoke", "EchoFunction", "-e", "nowhere.json"], "cannot read the event nowhere.json: No such file"),
        (["invoke", "Nope", "-e", str(EVENT)], "the template has no function 'Nope'; it has BrokenFunction"),
        (["invoke", "EchoFunction", "-e", str(EVENT), "--template", "gone.yaml"], "cannot read the template gone.yaml"),
        (["invoke", "EchoFunction", "-e", str(EVENT), "--parameter", "Colour=red"], "has no parameter 'Colour'"),
        (["invoke", "EchoFunction", "-e", str(TEMPLATE)], "template.yaml is not JSON: Expecting value at line 1"),
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


def nested(depth: int) -> bytes:
    """Lists inside one another."""
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (nested(257), "nested deeper than 256 levels"),
        (nested(985), "nested deeper than 256 levels"),  # what json on 3.11 still reads, and cannot write again
        (nested(100_000), "nested deeper than 256 levels"),
        (b"[" + b"9" * 4_301 + b"]", "4,301 digits"),
        (b'"\xff"', "is not UTF-8: invalid start byte at byte 1"),
        ("{}".encode("utf-16"), "is not UTF-8"),
        (b"", "is not JSON: Expecting value at line 1, column 1"),
        (b"\0", "is not JSON"),
        (b"{} {}", "is not JSON: Extra data"),
        (b"NaN", "NaN is not JSON"),
        (b"1e999", "the number 1e999 is too large"),
        (b'{"steps": [], "steps": []}', "the name 'steps' stands twice in one object"),
        (b" " * 6_291_457, "is larger than 6,291,456 bytes"),
        (None, "Is a directory"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
@pytest.mark.parametrize("command", ["replay", "invoke"])
def test_a_file_that_cannot_be_used_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: bytes | None, told: str
) -> None:
    """An event or a scenario: too deep, too large, not JSON, not text, not a file."""
    file = tmp_path / "file.json"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    words = {"replay": [str(file)], "invoke": ["EchoFunction", "-e", str(file)]}[command]
    if command == "invoke" and "twice" in told:
        told = "cannot start"  # on Lambda, too, the last one counts
        words[0] = "BrokenFunction"
    code = main([command, *words, *COMMON, "--provider", "none"])
    out, err = capsys.readouterr()
    if told == "cannot start":
        assert json.loads(out)["errorMessage"].endswith("no luck today")
        return
    assert (code, out) == (2, "")
    assert err.startswith("incumbent: ")
    assert told in err
    assert err.count("\n") == 1


def test_a_template_that_cannot_be_used_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too deep, too large, not YAML, not text, not a file, not of a template's shape."""
    head = b"Resources: {EchoFunction: {Type: AWS::Serverless::Function, Properties: "
    for content, told in {
        nested(300): "nested deeper than 256 levels",
        nested(100_000): "nested deeper than 256 levels",
        b"a: &a [*a]": "nested deeper than 256 levels",
        b"Resources: {A: " + b"9" * 5_000 + b"}": "4300 digits",
        b"Resources: {A: 5}": "has no function 'EchoFunction'",
        b"\xff": "is not UTF-8",
        b"\0": "is not YAML: unacceptable character",
        b"x: [": "is not YAML, line 1",
        b" " * 1_000_001: "is larger than 1,000,000 bytes",
        b"Resources: {}\nParameters: []": "Parameters must be a mapping, not []",
        b"Resources: {}\nParameters: {A: 5}": "A must be a mapping, not 5",
        head + b"5}}": "EchoFunction: Properties must be a mapping, not 5",
        head + b"{Environment: 5, Handler: a.b, CodeUri: .}}}\nGlobals: {Function: []}": "Function must be a mapping",
        head + b"{FunctionName: !Sub {}}}}": "its name: the template's Sub cannot be resolved",
        head + b"{Handler: !If [A, a.b, c.d]}}}\nConditions: {A: !Condition A}": "refer to themselves in a circle",
        head + b"{Handler: !If [[], a.b, c.d]}}}": "the template has no condition []",
    }.items():
        file = tmp_path / "template.yaml"
        file.write_bytes(content)
        assert main(["invoke", "EchoFunction", "-e", str(EVENT), "--template", str(file), "--provider", "none"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("incumbent: ")
        assert told in err
        assert err.count("\n") == 1
    assert main(["invoke", "F", "-e", str(EVENT), "--template", str(tmp_path), "--provider", "none"]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some editors write one."""
    (tmp_path / "event.json").write_bytes(b'\xef\xbb\xbf{"do": "nothing"}')
    words = ["invoke", "EchoFunction", "-e", str(tmp_path / "event.json"), *COMMON, "--provider", "memory"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["event"] == {"do": "nothing"}


def test_an_event_that_lambda_would_not_take_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """6 MiB, and 1 MiB where the invocation is asynchronous: in `invoke` and in a step."""
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"text": "x" * 1_100_000}))
    words = ["invoke", "EchoFunction", "-e", str(event), *COMMON, "--provider", "memory"]
    assert main([*words, "--async"]) == 2
    assert "Lambda takes 1,048,576 in an asynchronous invocation" in capsys.readouterr().err
    scenario = tmp_path / "scenario.json"
    step = {"at_ms": 0, "async": True, "event": "event.json", "function": "EchoFunction"}
    scenario.write_text(json.dumps({"steps": [step]}))
    assert main(["replay", str(scenario), *COMMON, "--provider", "memory"]) == 2
    assert "scenario.json: step 1: the event has 1,100,0" in capsys.readouterr().err


@pytest.mark.parametrize("provider", ["none", "memory"])
@pytest.mark.parametrize(
    ("answer", "told"),
    [("__import__('functools').reduce(lambda a, _: [a], range(299), [])", "nested deeper"), ("[10**4999]", "4300")],
)
def test_an_answer_that_cannot_be_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], provider: str, answer: str, told: str
) -> None:
    """The caller is told so, and does not wait for ever."""
    (tmp_path / "app.py").write_text(f"def handler(event, context):\n    return {answer}\n")
    (tmp_path / "template.yaml").write_text(
        "Resources: {F: {Type: AWS::Serverless::Function, Properties: {Handler: app.handler, CodeUri: .}}}"
    )
    words = ["invoke", "F", "-e", str(EVENT), "--template", str(tmp_path / "template.yaml"), "--provider", provider]
    assert main(words) == 1
    assert told in json.loads(capsys.readouterr().out)["errorMessage"]


def test_half_of_a_surrogate_pair_can_be_printed(tmp_path: Path) -> None:
    """The answer is JSON also where the terminal's encoding has no such character."""
    (tmp_path / "event.json").write_text('{"do": "nothing", "text": "\\ud800 \u00e9"}')
    words = ["invoke", "EchoFunction", "-e", str(tmp_path / "event.json"), *COMMON, "--provider", "memory"]
    done = subprocess.run([sys.executable, "-m", "incumbent.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["event"]["text"] == "\ud800 \u00e9"


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
    _, head, *lines = [line for line in capsys.readouterr().out.splitlines() if line][1:]
    line = next(line for line in [head, *lines] if " batch " in line)
    assert re.match(r" *\d+ ms  \S+ \+1 +batch", line)
    assert line.index(" batch ") == len("     time  thread          ") - 1


PROVIDER_TEMPLATE = """
Parameters: {{Provider: {{Type: String, Default: {default}}}}}
Globals: {{Function: {{CodeUri: ., Handler: app.handler}}}}
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties: {{Environment: {{Variables: {{INCUMBENT_PROVIDER: {named}}}}}}}
  G: {{Type: AWS::Serverless::Function, Properties: {{Environment: {{Variables: {{INCUMBENT_PROVIDER: {other}}}}}}}}}
"""


@pytest.mark.parametrize("command", ["replay", "invoke"])
@pytest.mark.parametrize(
    ("named", "other", "words", "header"),
    [
        ("!Ref Provider", "!Ref Provider", [], "memory, as template.yaml says"),
        ("!Ref Provider", "!Ref Provider", ["--parameter", "Provider=none"], "none, as template.yaml says"),
        ("dynamodb", "!Ref AWS::NoValue", ["--provider", "none"], "none, --provider"),
        ("dynamodb", "dynamodb", ["--env", "INCUMBENT_PROVIDER=none"], "none, --env INCUMBENT_PROVIDER"),
        ("dynamodb", "dynamodb", [], "dynamodb, as template.yaml says"),
        ("!Ref AWS::NoValue", "!Ref AWS::NoValue", [], "redis, since template.yaml names no provider"),
        ("dynamodb", "dynamodb", ["--redis-url", "URL"], "redis, --redis-url"),
    ],
)
def test_provider_is_the_one_that_the_template_names(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    valkey_server: ValkeyServer,
    *,
    command: str,
    named: str,
    other: str,
    words: list[str],
    header: str,
) -> None:
    """Unless an option says otherwise; the header says which it is, and why. The function gets the same."""
    (tmp_path / "app.py").write_text(
        "import os\ndef handler(event, context):\n    return os.environ['INCUMBENT_PROVIDER']\n"
    )
    template = PROVIDER_TEMPLATE.format(default="memory", named=named, other=other)
    (tmp_path / "template.yaml").write_text(template)
    (tmp_path / "event.json").write_text("{}")
    (tmp_path / "s.json").write_text('{"function": "F", "event": "event.json", "steps": [{"at_ms": 0}]}')
    own = {"replay": [str(tmp_path / "s.json")], "invoke": ["F", "-e", str(tmp_path / "event.json")]}[command]
    options = [each.replace("URL", valkey_server.url) if each == "URL" else each for each in words]
    assert main([command, *own, "--template", str(tmp_path / "template.yaml"), "--concurrency", "1", *options]) == 0
    out, err = capsys.readouterr()
    said = out if command == "replay" else err
    assert said.splitlines()[0].endswith(f"({header})")
    if command == "invoke":
        assert json.loads(out) == header.partition(",")[0]


@pytest.mark.parametrize(
    ("named", "other", "words", "told"),
    [
        ("redis", "dynamodb", [], "name several providers (dynamodb, redis): choose by --provider"),
        ("valkey", "valkey", [], "INCUMBENT_PROVIDER is 'valkey' (as template.yaml says); known here are redis"),
        (
            "redis",
            "redis",
            ["--provider", "none", "--redis-url", "redis://x"],
            "a Redis URL is given",
        ),
    ],
)
def test_provider_that_cannot_be_chosen_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, named: str, other: str, words: list[str], told: str
) -> None:
    """Nothing is guessed."""
    (tmp_path / "template.yaml").write_text(PROVIDER_TEMPLATE.format(default="x", named=named, other=other))
    assert main(["invoke", "F", "-e", str(EVENT), "--template", str(tmp_path / "template.yaml"), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err


def test_this_projects_own_template_runs_on_dynamodb(capsys: pytest.CaptureFixture[str]) -> None:
    """As it is deployed unless somebody says otherwise."""
    words = ["-e", str(ROOT / "events" / "sqs-standard.json"), "--template", str(ROOT / "template.yaml")]
    assert main(["invoke", "OrdersFunction", *words]) == 0
    assert capsys.readouterr().err.startswith("OrdersFunction (dynamodb, as template.yaml says)\n")


@pytest.mark.parametrize("provider", ["none", "memory"])
def test_retries_are_told_and_shorter_pauses_too(
    scenario: Any, capsys: pytest.CaptureFixture[str], provider: str
) -> None:
    """They are Lambda's unless an option shortens them, and then the header says so."""
    file = scenario({"at_ms": 0, "async": True, "set": {"do": "raise", "text": "no"}}, function="ShortFunction")
    assert main(["replay", file, *COMMON, "--provider", provider, "--concurrency", "1", "--retry-after", "0.02,5"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith(f"({provider}, --provider; retries after 0.02, 5 s, on Lambda 60, 120)")
    assert "error: RuntimeError: no · retried in 0.02 s" in out
    assert "step-1 again" in out
    assert "step-1" in out.splitlines()[-1]


def test_retry_of_a_killed_owner_comes_after_its_lease(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With pauses that are to the ttl as Lambda's and the policy's are to 30 seconds, it finds the key free."""
    (tmp_path / "app.py").write_text(
        "import os, pathlib\n"
        "from incumbent import Policy, leased\n"
        "@leased(key='k', ttl_ms=600, policy=Policy(pauses_ms=(20,)))\n"
        "def handler(event, context):\n"
        "    died = pathlib.Path(__file__).with_name('died')\n"
        "    if not died.exists():\n"
        "        died.touch()\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "template.yaml").write_text(
        "Resources: {F: {Type: AWS::Serverless::Function, Properties: {Handler: app.handler, CodeUri: .}}}"
    )
    (tmp_path / "event.json").write_text("{}")
    (tmp_path / "s.json").write_text('{"function": "F", "event": "event.json", "steps": [{"at_ms": 0, "async": true}]}')
    words = [str(tmp_path / "s.json"), "--template", str(tmp_path / "template.yaml"), "--retry-after", "1.2,2.4"]
    assert main(["replay", *words, "--provider", "redis", "--concurrency", "1"]) == 0
    closing = capsys.readouterr().out.splitlines()[-1]
    assert closing == "sent 1, handled once 1, routed 0, owners 2, overlaps 0, lost 0, handled twice 0"


@pytest.mark.parametrize("pauses", ["", "x", "-1", "nan", "1e9", "1,,2"])
def test_pauses_are_numbers_of_seconds(pauses: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is refused with the usage."""
    with pytest.raises(SystemExit):
        main(["invoke", "F", "-e", "e", f"--retry-after={pauses}"])
    assert "such as 60,120" in capsys.readouterr().err


def test_what_brings_no_message_or_gives_records_back_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A status page, the sweeper, and a batch of which one record failed: 0, and the record is refused."""
    (tmp_path / "app.py").write_text(
        "from incumbent import leased_function\n"
        "from incumbent.providers import from_env\n"
        "from incumbent.sweeper import sweep\n"
        "@leased_function(key_jmespath='body')\n"
        "def apply(record):\n"
        "    if record['body'] == 'bad':\n"
        "        raise ValueError(record['body'])\n"
        "def batch(event, context):\n"
        "    failures = []\n"
        "    for record in event['Records']:\n"
        "        try:\n"
        "            apply(record)\n"
        "        except ValueError:\n"
        "            failures.append({'itemIdentifier': record['messageId']})\n"
        "    return {'batchItemFailures': failures}\n"
        "def status(event, context):\n"
        "    return {'statusCode': 200, 'body': 'ok'}\n"
        "def sweeper(event, context):\n"
        "    sweep(from_env(), None)\n"
    )
    (tmp_path / "template.yaml").write_text(
        "Globals: {Function: {CodeUri: .}}\nResources:\n"
        + "".join(
            f"  {name}: {{Type: AWS::Serverless::Function, Properties: {{Handler: app.{name.lower()}}}}}\n"
            for name in ("Batch", "Status", "Sweeper")
        )
    )
    records = [{"messageId": f"m{at}", "body": body} for at, body in enumerate(("good", "bad", "fine"))]
    for record in records:
        record |= {"eventSource": "aws:sqs", "receiptHandle": "r", "attributes": {}}  # type: ignore[dict-item]
    (tmp_path / "event.json").write_text(json.dumps({"Records": records}))
    steps = [{"at_ms": 0, "function": name} for name in ("Batch", "Status", "Sweeper")]
    (tmp_path / "s.json").write_text(json.dumps({"event": "event.json", "steps": steps}))
    words = [str(tmp_path / "s.json"), "--template", str(tmp_path / "template.yaml"), "--provider", "redis"]
    assert main(["replay", *words, "--concurrency", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 of 3 records given back" in out
    assert "sent 3, handled once 2, routed 0, owners 3, overlaps 0, lost 0, handled twice 0, refused 1" in out
    assert out.splitlines()[-2:] == [
        "refused: m1",
        "without a message, since no @leased and no send told of one: step-2, step-3",
    ]


@pytest.mark.parametrize("command", ["replay", "invoke"])
def test_every_option_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """None stands there by its name alone."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    _, _, options = capsys.readouterr().out.partition("options:")
    said = re.split(r"\n  (?=-)", options)[1:]
    assert len(said) >= 8
    assert [each for each in said if not re.search(r"  +[a-z]", each)] == []
