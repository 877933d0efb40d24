"""The reference page is what the docstrings say."""

import runpy
from pathlib import Path

import incumbent

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_what_the_docstrings_say() -> None:
    """``python docs/reference.py`` writes it."""
    assert (DOCS / "reference.md").read_text("utf-8") == runpy.run_path(str(DOCS / "reference.py"))["page"]()


def test_every_public_name_is_on_the_page() -> None:
    """What can be imported from the top can be looked up."""
    parts = runpy.run_path(str(DOCS / "reference.py"))["PARTS"]
    named = {name for module, names in parts.values() if module == "incumbent" for name in names}
    assert named == set(incumbent.__all__)
