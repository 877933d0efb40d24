"""Lists the one-token changes that can be made to a file.

Python is changed by its syntax tree, the expressions of DynamoDB inside its strings by their operators, and Lua by its
tokens. Docstrings, annotations, decorators, log lines and the texts of errors stay as they are: no test should have to
notice them.
"""

import ast
import copy
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

SHOWN = 100  # characters of a change that are printed
LARGE = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Change:
    """One change: the characters from ``start`` to ``end`` become ``new``; ``says`` is for what is too long to read."""

    start: int
    end: int
    line: int
    old: str
    new: str
    says: str = ""

    def apply(self, text: str) -> str:
        """Return the changed text."""
        return f"{text[: self.start]}{self.new}{text[self.end :]}"

    def __str__(self) -> str:
        def short(code: str) -> str:
            line = " ".join(code.split())
            return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."

        return f"{short(self.old)}  ->  {self.says or short(self.new) or '(nothing)'}"


def changes(text: str, *, suffix: str) -> list[Change]:
    """List every change of a file with this suffix, in order; `differs` says which of them matter."""
    found = set(_lua_changes(text) if suffix == ".lua" else _python_changes(text))
    return sorted(found)


def differs(text: str, change: Change, *, suffix: str) -> bool:
    """Whether the changed file compiles, and to other bytecode; of Lua nothing is known, so that it counts as other."""
    if suffix == ".lua":
        return True
    try:
        return _essence(_code(change.apply(text))) != _essence(_code(text))
    except (SyntaxError, ValueError):
        return False


# --- Python

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
LOGS = {"debug", "info", "warning", "error", "exception", "log", "warn"}
PLAIN = {"assert_never", "cast", "TypeVar", "NewType", "getLogger", "namedtuple", "field"}


def _python_changes(text: str) -> Iterator[Change]:
    tree = ast.parse(text)
    place = _Places(text)
    for node in _changeable(tree):
        for old, new, *says in _replacements(node):
            change = place.change(old, new, *says)
            if change is not None:
                yield change
    yield from _expression_changes(text, tree, place)


class _Places:
    """Turns the tree's places, which count bytes of a line, into those of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column_bytes: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column_bytes].decode())

    def change(self, old: ast.AST, new: str, says: str = "") -> Change | None:
        if not isinstance(old, ast.expr | ast.stmt) or old.end_lineno is None or old.end_col_offset is None:
            return None
        start, end = self.at(old.lineno, old.col_offset), self.at(old.end_lineno, old.end_col_offset)
        return Change(start=start, end=end, line=old.lineno, old=self.text[start:end], new=new, says=says)


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what a test should notice."""
    yield node
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.AST) and not _left_alone(node, name, child):
                yield from _changeable(child)


def _left_alone(parent: ast.AST, name: str, child: ast.AST) -> bool:
    match child:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring, or an ellipsis
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=called))) if called in LOGS:
            return True
        case ast.Call(func=ast.Name(id=called)) if called in PLAIN:
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.AnnAssign(value=None) | ast.Assert():
            return True
        case _:
            pass
    return name in {"annotation", "returns", "decorator_list", "bases"} or (
        isinstance(parent, ast.Raise) and name in {"exc", "cause"}
    )


Replaced = tuple[ast.AST, str] | tuple[ast.AST, str, str]  # what, by which code, and what to say of it


def _replacements(node: ast.AST) -> Iterator[Replaced]:
    match node:
        case ast.expr():
            yield from _of_value(node)
        case ast.stmt():
            yield from _of_statement(node)
        case _:
            pass
    for test in _conditions(node):
        yield test, f"(not {_written(test)})"


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.IfExp(test=test) | ast.If(test=test) | ast.While(test=test):
            return [test]
        case ast.comprehension(ifs=ifs):
            return ifs
        case _:
            return []


def _of_statement(node: ast.stmt) -> Iterator[Replaced]:
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Raise() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case _:
            pass


def _of_value(node: ast.expr) -> Iterator[Replaced]:
    changed: Any = copy.copy(node)
    match node:
        case ast.Compare(ops=[operator]):
            changed.ops = [SWAPPED[type(operator)]()]
            yield node, _written(changed)
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, _written(changed)
            for dropped in range(len(node.values)):
                fewer = [value for place, value in enumerate(node.values) if place != dropped]
                yield node, _written(fewer[0] if len(fewer) == 1 else ast.BoolOp(op=node.op, values=fewer))
        case ast.UnaryOp(op=ast.Not()):
            yield node, _written(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
            changed.op = ARITHMETIC[type(node.op)]()
            yield node, _written(changed)
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int(number)):
            yield node, str(_more(number))
        case ast.Call():
            yield from _calls(node)
        case _:
            pass


def _calls(node: ast.Call) -> Iterator[tuple[ast.AST, str, str]]:
    """A call without one of its keyword arguments, and its first argument in its place."""
    for dropped, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            fewer = copy.copy(node)
            fewer.keywords = [*node.keywords[:dropped], *node.keywords[dropped + 1 :]]
            yield node, _written(fewer), f"without {keyword.arg}="
    if node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield node, _written(node.args[0]), "its first argument"


def _more(number: int) -> int:
    """One more; large numbers, of which one more is no fault, are doubled."""
    return number + 1 if number < LARGE else number * 2


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def _written(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _code(text: str) -> CodeType:
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        return compile(text, "changed.py", "exec", dont_inherit=True, optimize=0)


def _essence(code: CodeType) -> tuple[object, ...]:
    """What a code object does, without its lines."""
    constants = tuple(
        _essence(constant) if isinstance(constant, CodeType) else (type(constant), repr(constant))
        for constant in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


EXPRESSION_OPERATORS: tuple[tuple[str, str], ...] = (
    (r" <= ", " < "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" = ", " <> "),
    (r" <> ", " = "),
    (r" AND ", " OR "),
    (r" OR ", " AND "),
    (r"\bNOT ", ""),
    (r"attribute_not_exists\(", "attribute_exists("),
    (r"attribute_exists\(", "attribute_not_exists("),
)


def _expression_changes(text: str, tree: ast.AST, place: _Places) -> Iterator[Change]:
    """Change the operators of expressions that are made of text: ``f"{a} <= {b}"``."""
    messages = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Assert)
    ]
    for start, end, line in _formatted(text, place):
        if any(line in lines for lines in messages):
            continue
        for pattern, new in EXPRESSION_OPERATORS:
            for found in re.finditer(pattern, text[start:end]):
                at = start + found.start()
                yield Change(start=at, end=at + len(found[0]), line=line, old=found[0], new=new)


def _formatted(text: str, place: _Places) -> Iterator[tuple[int, int, int]]:
    """Where the text's formatted strings are, and on which line."""
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)  # from Python 3.12 on; before it, a string is one token
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        whole = token.type == tokenize.STRING and "f" in token.string.partition(token.string[-1])[0].lower()
        if whole or token.type == middle:
            start = place.starts[token.start[0] - 1] + token.start[1]
            yield start, start + len(token.string), token.start[0]


# --- Lua

LUA = re.compile(
    r"""
    (?P<comment>--[^\n]*)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<number>\b\d+(?:\.\d+)?\b)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<operator>==|~=|<=|>=|\.\.\.|\.\.|[-+*/<>])
    """,
    re.VERBOSE,
)
LUA_SWAPPED = {
    "==": "~=",
    "~=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "and": "or",
    "or": "and",
    "not": "",
    "true": "false",
    "false": "true",
    "break": "",
}
LUA_CONDITION = re.compile(r"\b(?P<word>if|elseif|while)\s+(?P<test>[^\n]+?)\s+(?:then|do)\b")
LUA_STATEMENT = re.compile(
    r"^[ ]*(?P<call>[A-Za-z_][\w.]*\([^\n]*\)|[A-Za-z_][\w.\[\]]* = [^\n]*[^,({\n])$", re.MULTILINE
)


def _lua_changes(text: str) -> Iterator[Change]:
    def change(start: int, end: int, new: str) -> Change:
        return Change(start=start, end=end, line=text.count("\n", 0, start) + 1, old=text[start:end], new=new)

    code = list(text)
    for found in LUA.finditer(text):
        if found.lastgroup == "comment":
            code[found.start() : found.end()] = " " * len(found[0])
        elif found.lastgroup == "number" and found[0].isdigit():
            yield change(found.start(), found.end(), str(_more(int(found[0]))))
        elif found.lastgroup in {"name", "operator"} and found[0] in LUA_SWAPPED:
            yield change(found.start(), found.end(), LUA_SWAPPED[found[0]])
    bare = "".join(code)
    for found in LUA_CONDITION.finditer(bare):
        yield change(*found.span("test"), f"not ({found['test']})")
    for found in LUA_STATEMENT.finditer(bare):
        if found["call"].count("(") == found["call"].count(")") and found["call"].count("{") == found["call"].count(
            "}"
        ):
            yield change(*found.span("call"), "")
