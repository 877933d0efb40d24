"""The documentation's examples run as they stand."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    """The Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example_runs_as_it_stands() -> None:
    """Of three simultaneous events one runs, with all three messages, and two are accepted."""
    example = blocks("README.md")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, check=True, timeout=30
    )
    answers = sorted((ast.literal_eval(line) for line in done.stdout.splitlines()), key=lambda said: said["status"])
    assert [answer["status"] for answer in answers] == ["accepted", "accepted", "answered"]
    assert sorted(answers[2]["heard"]) == ["Help?", "Hi.", "It broke."]


def test_the_first_example_has_about_twenty_lines() -> None:
    """What the README calls twenty lines is no more."""
    assert len([line for line in blocks("README.md")[0].splitlines() if line.strip()]) <= 20


def test_links_in_the_readme_lead_somewhere() -> None:
    """Every relative link names a file that exists."""
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
