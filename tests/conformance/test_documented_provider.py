"""The provider and the test that docs/testing.md shows, as they stand there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

# pytest finds the page's own test class below, as if it had been written here.
for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
    exec(compile(block, str(PAGE), "exec"))  # noqa: S102 - what is run is the project's own page


def test_page_shows_a_provider_and_its_test() -> None:
    """Else nothing here would have been run."""
    assert {"DictProvider", "TestDictProvider"} <= set(globals())
