"""The list of hazards names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| H(\d+) \|.*\| (.*) \|$", (ROOT / "docs" / "hazards.md").read_text("utf-8"), re.MULTILINE)


def test_every_hazard_has_a_row() -> None:
    """H1 to H63, in order."""
    assert [int(number) for number, _ in ROWS] == list(range(1, 64))


@pytest.mark.parametrize(("number", "named"), ROWS, ids=lambda value: f"H{value}" if value.isdigit() else "")
def test_named_tests_exist(number: str, named: str) -> None:
    """Each hazard has at least one test, and each one named is defined where the list says."""
    tests = re.findall(r"`([^`]+)::(test_\w+)`", named)
    assert tests, f"H{number} names no test"
    for file, name in tests:
        folder = ROOT / "layer" / "incumbent" / "testing" if file.startswith("conformance/") else ROOT / "tests"
        place = folder / file
        if not place.is_file():
            place = ROOT / "tests" / file
        assert re.search(rf"^\s*(async )?def {name}\(", place.read_text("utf-8"), re.MULTILINE), f"{file}::{name}"
