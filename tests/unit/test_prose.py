"""The words of the package: the actor is named, and a docstring says what its function does."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "layer" / "incumbent"
HIDDEN = re.compile(r"\b(somebody|nobody|whoever|whosever)\b", re.IGNORECASE)
ONLY_RULES = re.compile(r"([RM]\d+\W*)+")
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_actors_are_named() -> None:
    """The caller, the source, the owner, the store, the handler, the provider."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]
    assert files
    assert [file for file in files if HIDDEN.search(file.read_text("utf-8"))] == []


def test_docstrings_are_more_than_the_number_of_a_rule() -> None:
    """``help()`` of a provider's method says what the method does; the rule's number follows."""
    found = [
        f"{file.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, DOCUMENTED) and ONLY_RULES.fullmatch(ast.get_docstring(node) or "")
    ]
    assert found == []
