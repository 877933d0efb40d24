"""What docs/local.md shows can be typed in and is so."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from incumbent.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "local.md").read_text("utf-8")


def blocks(language: str, page: str = PAGE) -> list[str]:
    """The page's blocks of that language; of none, those at a terminal."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands(page: str = PAGE) -> list[list[str]]:
    """The command lines of the page that begin with our name."""
    lines = [shlex.split(line, comments=True) for block in blocks("", page) for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["incumbent"]]


@pytest.mark.parametrize("words", [each for each in commands() if each[0] in {"replay", "invoke"}], ids=" ".join)
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
