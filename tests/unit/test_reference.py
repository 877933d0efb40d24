"""The reference pages, which `make docs` fills from the docstrings, name all that is public."""

import re
from pathlib import Path

import incumbent

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_every_public_name_is_in_the_reference() -> None:
    """What can be imported from the top can be looked up, once."""
    text = "".join(page.read_text("utf-8") for page in sorted(PAGES.glob("*.md")))
    named = re.findall(r"^\.\. auto\w+:: incumbent\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(incumbent.__all__)
