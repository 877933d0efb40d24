"""The handler, the provider and the tests that docs/testing.md shows, as they stand there."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

# pytest finds the page's own tests below, as if they had been written here.
for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
    exec(compile(block, str(PAGE), "exec"))  # noqa: S102 - what is run is the project's own page


def test_page_shows_a_handler_and_a_provider_with_their_tests() -> None:
    """Else nothing here would have been run."""
    assert {"answer", "test_answer_is_one_for_a_burst", "test_answer_on_a_store"} <= set(globals())
    assert {"DictProvider", "TestDictProvider"} <= set(globals())
