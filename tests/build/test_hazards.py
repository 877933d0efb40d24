"""The page of hazards and the tests that it stands on agree."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (H\d+) \|", (ROOT / "docs" / "hazards.md").read_text("utf-8"), re.MULTILINE)
TESTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("hazards.toml").read_text("utf-8"))


def test_every_hazard_has_a_row_and_tests() -> None:
    """H1 to the last, in order, in the page and in the map alike."""
    assert [f"H{number}" for number in range(1, len(ROWS) + 1)] == ROWS == list(TESTS)
    assert len(ROWS) >= 63


@pytest.mark.parametrize("hazard", TESTS)
def test_named_tests_exist(hazard: str) -> None:
    """Each hazard has at least one test, and each one named is defined where the map says."""
    assert TESTS[hazard]
    for named in TESTS[hazard]:
        file, name = named.split("::")
        folder = ROOT / "layer" / "incumbent" / "testing" if file.startswith("conformance/") else ROOT / "tests"
        place = folder / file
        if not place.is_file():
            place = ROOT / "tests" / file
        assert re.search(rf"^\s*(async )?def {name}\(", place.read_text("utf-8"), re.MULTILINE), named
