"""The list of seeded faults fits the code."""

from pathlib import Path

import pytest

from tests.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_breaks_a_line_that_stands_there_once(mutant: Mutant) -> None:
    """What a mutant replaces is in its file, once; the tests that must notice exist."""
    text = (ROOT / "layer" / "incumbent" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file()


def test_there_are_as_many_as_there_must_be() -> None:
    """At least 25, each with a name of its own."""
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
