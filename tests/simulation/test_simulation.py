"""The protocol holds in many thousand schedules, and the simulation would see if it did not."""

import pytest

from tests.budgets import budget
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.search import Wanted, search, search_in_processes, trace

SEEDS = range(budget(1_000, soak=40_000))
FEW = range(400)


@pytest.mark.timeout(600)
def test_every_rule_holds_in_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """R1 to R12, M1 to M11, M14 to M19, M21: one run believes, what is promised is never lost, nothing runs twice."""
    carried_out, broken = 0, []
    for count, found in search_in_processes(SEEDS, Wanted(), jobs=2):
        carried_out += count
        broken += found
    with capsys.disabled():
        print(f"\n{carried_out:,} schedules, seeds {SEEDS.start} to {SEEDS.stop - 1}")  # noqa: T201 - what was looked at
    assert carried_out == len(SEEDS)
    assert not broken, "\n".join(str(each) for each in broken)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_seeded_bug_is_found(mutant: Mutant) -> None:
    """The simulation sees each rule left out, by the rule that it breaks, in a few hundred schedules."""
    wanted = Wanted(mutant=mutant.name, scenario=mutant.scenario)
    found = search(range(mutant.first, mutant.first + len(FEW)), wanted, at_most=1)
    assert found, f"{mutant.name}: {mutant.says}"
    assert found[0].how.startswith(tuple(f"Violation: {rule}:" for rule in mutant.breaks)), found[0]


def test_same_seed_gives_the_same_schedule() -> None:
    """A seed that was printed can be looked at: the same events at the same milliseconds."""
    for seed in range(20):
        lines, broken = trace(seed, Wanted())
        assert lines
        assert trace(seed, Wanted()) == (lines, broken)


def test_failing_seed_says_how_to_see_it_again() -> None:
    """What is printed of a broken rule is a command that shows the schedule, with the rule at its end."""
    (found,) = search(FEW, Wanted(mutant="tomb", scenario="copies"), at_most=1)
    assert str(found).endswith(
        f"python -m tests.simulation --seed {found.seed} --scenario 'copies' --mutant 'tomb' --trace"
    )
    lines, broken = trace(found.seed, Wanted(mutant="tomb", scenario="copies"))
    assert broken == found.how
    assert any("the source is told: an error" in line for line in lines)
