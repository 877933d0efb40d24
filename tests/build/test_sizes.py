"""Modules and classes stay short enough to be read at once."""

import ast
from pathlib import Path

import pytest

from tests.conftest import LONGEST

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layer" / "incumbent"
MAX_MODULE = 500  # lines
MAX_CLASS = 250
WHOLE_MODULES = {"rules.py", "testing/proxy.py"}  # each is one thing, which is read as a whole

# Longer than they should be; the list is to become shorter.
LONG_CLASSES = {
    "invocation.py": {"Invocation"},
    "lease.py": {"Lease"},
    "local/service.py": {"LocalLambda"},
    "providers/dynamodb/change.py": {"Change"},
    "providers/dynamodb/provider.py": {"DynamoDBProvider"},
    "providers/dynamodb/steps.py": {"Steps"},
    "testing/conformance/archive.py": {"ArchiveConformance"},
    "testing/conformance/dying.py": {"Dying"},
    "testing/conformance/failing.py": {"Failing"},
    "testing/conformance/later.py": {"LaterConformance"},
    "testing/conformance/settling.py": {"Settling"},
}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_module_and_its_classes_are_short(path: Path) -> None:
    """At most 500 lines, and 250 for a class; those that are longer are listed here."""
    name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_MODULE or name in WHOLE_MODULES
    long_classes = {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= MAX_CLASS
    }
    assert long_classes <= LONG_CLASSES.get(name, set())


def test_modules_that_come_first_are_there() -> None:
    """One that was renamed would come last."""
    assert [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").exists()] == []
