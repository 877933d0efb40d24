"""What docs/local.md shows can be typed in and is so."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.report import Fact, story
from incumbent.observe import FactName
from incumbent.testing.servers import ValkeyServer, valkey

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "local.md").read_text("utf-8")


def blocks(language: str, page: str = PAGE) -> list[str]:
    """The page's blocks of that language; of none, those at a terminal."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands(page: str = PAGE) -> list[list[str]]:
    """The command lines of the page that begin with our name."""
    lines = [
        shlex.split(line, comments=True)
        for block in blocks("", page)
        for line in block.replace("\\\n", "").splitlines()
    ]
    return [words[1:] for words in lines if words[:1] == ["incumbent"]]


WALK = PAGE[PAGE.index("## Dead letters and the sweeper") : PAGE.index("## From a test")]


@pytest.mark.parametrize("words", commands(PAGE.replace(WALK, "")), ids=lambda words: " ".join(words)[:60])
def test_commands_of_the_page_run(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the checkout, as they stand."""
    monkeypatch.chdir(ROOT)
    assert main(words) == 0, capsys.readouterr()


def test_scenario_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the project's own: five messages of two threads."""
    monkeypatch.chdir(ROOT)
    shutil.copytree(ROOT / "events", tmp_path / "events")
    (scenario,) = blocks("json")
    file = tmp_path / "events" / "scenarios" / "mine.json"
    file.write_text(scenario)
    assert main(["replay", str(file), "--provider", "memory"]) == 0
    out = capsys.readouterr().out
    assert json.loads(scenario)["description"] in out
    assert out.splitlines()[-1].startswith("sent 5, handled once 5, ")


@pytest.mark.parametrize("page", ["README.md", "docs/local.md"])
def test_what_is_to_be_installed_is_there(page: str) -> None:
    """The extras are the project's, the command is one that it installs, and both pages say the same."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / page).read_text("utf-8")
    _, _, install = text.partition("## Install\n")
    (block, *_) = blocks("", install)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert lines[:3] == [
        ["python3", "-m", "venv", ".venv"],
        [".", ".venv/bin/activate"],
        ["pip", "install", "/path/to/this/checkout[local]", "pytest"],
    ]
    assert set(re.findall(r"\[(\w+)\]'", text)) <= set(project["optional-dependencies"])
    assert all(words[0] in {"python", *project["scripts"]} for words in lines[3:])
    assert "3.11 or newer" in text
    assert project["requires-python"] == ">=3.11"


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """With nothing in it that somebody else has left."""
    with valkey() as server:
        yield server


def test_walk_through_dead_letters_goes_as_it_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_valkey: ValkeyServer,
) -> None:
    """Its two files and its commands: one message fails, dies, is looked at, put back and handled."""
    monkeypatch.chdir(tmp_path)
    for name, language in {"app.py": "python", "template.yaml": "yaml"}.items():
        Path(name).write_text(blocks(language, WALK)[0])
    told = {}
    for line in blocks("", WALK)[0].replace("redis://127.0.0.1:6400/0", own_valkey.url).splitlines():
        match shlex.split(line.replace("$INCUMBENT_REDIS_URL", own_valkey.url), comments=True):
            case ["export", *variables]:
                for each in variables:
                    monkeypatch.setenv(*each.split("=", 1))
            case ["echo", text, ">", file]:
                Path(file).write_text(text)
            case ["sleep", seconds]:
                SYSTEM_CLOCK.sleep_ms(int(seconds) * 1_000)
            case ["incumbent", *words]:
                code = main(words)
                told[line.partition("#")[0].strip()] = (code, "".join(capsys.readouterr()))
            case other:
                assert other == []
    codes, said = [code for code, _ in told.values()], [text for _, text in told.values()]
    assert codes == [0, 0, 0, 0, 0, 1, 0, 0], told
    assert "attempt 1" in said[0]
    assert said[1].startswith("my-worker/t9  1 message for ")
    assert "attempt 2" in said[2]
    assert "2 times  RuntimeError: not today" in said[3]
    assert json.loads(said[4])["event"] == {"thread_id": "t9", "id": "m1"}
    assert "could not be woken" in said[5]
    assert "handled m1" in said[6]
    assert said[7] == "0 dead letters\n"


def test_first_function_is_invoked_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page for beginners gives three files and a command, in a folder that holds nothing else."""
    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    for name, language in {"app.py": "python", "template.yaml": "yaml"}.items():
        Path(name).write_text(blocks(language, page)[0])
    echo, invoke = (shlex.split(line) for line in blocks("", page)[0].splitlines())
    assert echo[0::2] == ["echo", ">"]
    Path(echo[3]).write_text(echo[1])
    assert invoke[0] == "incumbent"
    assert main(invoke[1:]) == 0
    assert "order-1001 has fence " in capsys.readouterr().out


def test_page_explains_every_word_of_a_replay() -> None:
    """Whatever fact an invocation tells, its words are in the table."""
    table = PAGE[PAGE.index("| what happened |") :].partition("\n\n")[0]
    explained = {word for row in table.splitlines() for word in re.findall(r"`([^`]+)`", row.split("|")[1])}
    outcomes = {
        "run_ended": ("handled", "failed", "deferred", "lost"),
        "duplicate": ("handled",),
        "sent": ("", "handled"),
    }
    for name, waiting in itertools.product(get_args(FactName), (0, 2)):
        for outcome in outcomes.get(name, ("",)):
            fact = Fact(
                t_ms=0, fact=name, message_ids=("a",), holder="step-1", outcome=outcome, waiting=waiting, error="..."
            )
            assert story([fact], str) in explained | {""}, fact


def test_example_of_a_test_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the checkout, as it stands."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(blocks("python", PAGE.replace(WALK, ""))[0], names)  # noqa: S102
    names["test_a_thread_has_one_owner_at_a_time"]()


def test_making_the_demo_says_that_it_installs_before_it_does(tmp_path: Path) -> None:
    """Minutes without a word look like a hang."""
    words = ["make", "-n", "demo", f"VENV={tmp_path / 'new'}"]
    steps = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert steps.index(f'echo "installing what the demo needs into {tmp_path / "new"}') < steps.index(" -m venv ")
