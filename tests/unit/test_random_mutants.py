"""The random faults are those that a test should notice, and the same ones for the same seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import drawn, first_failure, killer
from tests.mutants.changes import Change, changes, differs
from tests.mutants.survivors import SURVIVORS
from tests.mutants.targets import PACKAGE, ROOT, targets


def news(code: str, suffix: str = ".py") -> set[str]:
    """What a text may become."""
    return {change.apply(code) for change in changes(code, suffix=suffix) if differs(code, change, suffix=suffix)}


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("a < b", "(a <= b)"),
        ("a is None", "(a is not None)"),
        ("a and b", "(a or b)"),
        ("a and b", "(a)"),
        ("not a", "(a)"),
        ("a + 1", "(a - 1)"),
        ("a + 1", "a + 2"),
        ("a + 3_000", "a + 6000"),
        ("f(x, y=z)", "(f(x))"),
        ("f(x)", "(x)"),
        ("if a:\n    b()", "if (not (a)):\n    b()"),
        ("if a:\n    b()", "if a:\n    pass"),
        ("[x for x in y if x]", "[x for x in y if (not (x))]"),
        ("a.b = c", "pass"),
        ("a = True", "a = False"),
        ("é = f(x, y)", "é = (x)"),
        ("f'{a} <= {b}'", "f'{a} < {b}'"),
        ("f'{a} AND NOT {b}'", "f'{a} AND {b}'"),
    ],
)
def test_python_is_changed_in_one_place(code: str, changed: str) -> None:
    """A comparison, a condition, an operator, a constant, an argument, a call, a statement, DynamoDB's expressions."""
    assert changed in news(code)


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("if a == b then", "if a ~= b then"),
        ("if a == b then", "if not (a == b) then"),
        ("return a and not b", "return a or not b"),
        ("return a and not b", "return a and  b"),
        ("x = n + 1", "x = n + 2"),
        ("x = n + 1", "x = n - 1"),
        ("    call('DEL', KEY)\n", "    \n"),
        ("k.owner = false\n", "\n"),
    ],
)
def test_lua_is_changed_in_one_place(code: str, changed: str) -> None:
    """A comparison, a condition, an operator, a number, a statement."""
    assert changed in news(code, ".lua")


@pytest.mark.parametrize(
    "code",
    [
        '"""One and two < three."""',
        "def f(a: 'x and y' = b) -> c[1]: ...",
        "raise ValueError(f'{a} = {len(b)}')",
        "log.info('one', 2)",
        "from a import b",
        "@dataclass(frozen=True)\nclass A: ...",
        "x: int",
    ],
)
def test_what_no_test_should_notice_is_left_alone(code: str) -> None:
    """Docstrings, annotations, texts of errors, log lines, imports, decorators."""
    assert news(code) - {"pass"} == set()


def test_comments_and_texts_of_lua_are_left_alone() -> None:
    """They hold words that look like operators."""
    assert news("-- a and b == 1\nlocal x = 'c and not d'", ".lua") == set()


def test_change_to_the_same_bytecode_is_none() -> None:
    """It could not be noticed."""
    code = "def f():\n    if a and not b:\n        return 1\n"
    same = Change(
        start=code.index("a"), end=code.index(":\n        "), line=2, old="a and not b", new="(a and (not b))"
    )
    assert not differs(code, same, suffix=".py")


def test_every_changed_file_and_its_tests_exist() -> None:
    """Rules, both stores, the scripts, and what is above them."""
    found = {target.file: target for target in targets()}
    assert {Path(file).suffix for file in found} == {".py", ".lua"}
    assert {file.partition("/")[0] for file in found} >= {"rules.py", "invocation.py", "heartbeat.py", "providers"}
    for target in found.values():
        for tests in target.stages:
            for word in tests:
                assert not word.startswith("tests/") or (ROOT / word.partition("::")[0]).exists()


def test_same_seed_draws_the_same_faults() -> None:
    """So that a survivor can be looked at again."""
    assert drawn(5, 8) == drawn(5, 8)
    assert drawn(5, 8) != drawn(6, 8)
    assert all(fault.text != (PACKAGE / fault.file).read_text(encoding="utf-8") for fault in drawn(5, 8))


def test_known_survivors_are_still_there() -> None:
    """One whose line has gone excuses nothing any more."""
    lines = [line for target in targets() for line in (PACKAGE / target.file).read_text(encoding="utf-8").splitlines()]
    assert [known for known in SURVIVORS if not any(known.line in line for line in lines)] == []


def test_test_that_fails_for_another_reason_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails without the fault too, and one that fails now and then: the rest of the stage still runs."""
    runs: list[tuple[str, ...]] = []
    answers = {
        ("tests",): "a::red",
        ("tests", "--deselect", "a::red"): "a::unsteady",
        ("tests", "--deselect", "a::red", "--deselect", "a::unsteady"): "a::right",
    }

    def first_failure(tests: Sequence[str], layer: Path) -> str | None:
        runs.append(tuple(tests))
        if len(tests) > 1 or tests[0] == "tests":
            return answers[tuple(tests)]
        return tests[0] if tests[0] == "a::red" or (tests[0] == "a::right" and layer != PACKAGE.parent) else None

    monkeypatch.setattr("tests.mutants.__main__.first_failure", first_failure)
    (fault,) = drawn(5, 1)
    assert killer(replace(fault, stages=(("tests",),))) == "a::right"
    assert len(runs) == 8


def test_name_of_a_failed_test_may_hold_blanks(tmp_path: Path) -> None:
    """Parameters do."""
    failing = tmp_path / "test_it.py"
    failing.write_text(
        "import pytest\n@pytest.mark.parametrize('a', ['b c'])\ndef test_it(a): assert a == 'no'\n", encoding="utf-8"
    )
    failed = first_failure([str(failing), "--rootdir", str(tmp_path)], PACKAGE.parent)
    assert failed is not None
    assert failed.endswith("test_it.py::test_it[b c]")
