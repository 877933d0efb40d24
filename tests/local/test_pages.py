"""What docs/local.md shows can be typed in and is so."""

import json
import re
import shlex
import shutil
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
