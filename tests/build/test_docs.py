"""What the pages for Lambda and for operations say is so: their examples run, their tables are the code's own."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent.powertools import METRICS
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN
from tests.build.test_template import FUNCTIONS, CloudFormationLoader, as_list, rights
from tests.functions.conftest import Context
from tests.unit.stage import Meddled

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lambda.md").read_text("utf-8")


class Example:
    """A Python block of the page: with which event it is to be tried, and what it answers."""

    def __init__(self, heading: str, code: str) -> None:
        """Read the two comments that each block begins with."""
        first, second, *_ = code.splitlines()
        self.heading = heading
        self.code = code
        self.event = json.loads((ROOT / first.removeprefix("# ")).read_text("utf-8"))
        self.answer = json.loads(second.removeprefix("# answers "))

    @property
    def messages(self) -> int:
        """How many messages its event holds."""
        return len(self.event.get("Records", [None]))


def examples() -> Iterator[Any]:
    """Every Python block, under the heading that it stands below."""
    heading = ""
    for found in re.finditer(r"^#{2,3} ([^\n]+)$|```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL):
        if found[1]:
            heading = found[1]
        else:
            yield pytest.param(Example(heading, found[2]), id=f"{heading} {found.start()}")


@pytest.mark.parametrize("example", list(examples()))
def test_example_runs_as_it_stands(example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its source's event: it answers what it says, and each message was claimed, run and reported as handled."""
    file = tmp_path / "app.py"
    file.write_text(example.code, "utf-8")
    provider = Meddled(MemoryProvider())
    token = STAND_IN.set(provider)
    try:
        handler = runpy.run_path(str(file))["handler"]
        answer = handler(example.event, Context(aws_request_id="request-1"))
    finally:
        STAND_IN.reset(token)
    assert json.loads(json.dumps(answer)) == example.answer
    assert provider.calls == ["claim", "settle"] * example.messages
    capsys.readouterr()


def test_every_source_has_its_example() -> None:
    """Each sample event of a source is tried; the chat message and Slack's have functions of their own."""
    tried = set(re.findall(r"^# events/([\w-]+)\.json$", PAGE, re.MULTILINE))
    there = {file.stem for file in (ROOT / "events").glob("*.json")}
    assert there - tried == {"chat-message", "eventbridge-replayed", "slack"}
    assert len(list(examples())) == PAGE.count("```python")


def column(page: str, title: str, number: int = 0) -> list[str]:
    """The cells of a column of the table whose first row begins with ``title``."""
    _, _, table = page.partition(f"| {title} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [row.strip("|").split("|")[number].strip() for row in rows]


def code(cells: list[str]) -> list[str]:
    """Everything in them that is set as code."""
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_table_of_metrics_is_whole() -> None:
    """Every metric that is written stands in it once, and no other."""
    assert sorted(code(column(PAGE, "metric"))) == sorted(METRICS)


def test_table_of_rights_is_what_the_policies_say() -> None:
    """The actions of the page and those of the template's functions are the same; what else they do is their own."""
    import yaml

    text = (ROOT / "template.yaml").read_text("utf-8")
    template = yaml.load(text, Loader=CloudFormationLoader)  # noqa: S506
    granted = {
        action
        for name in FUNCTIONS
        for sid, (actions, _) in rights(template["Resources"][name]).items()
        if sid not in {"AskTheModel", "ReadTheSigningSecret", "Transcripts", "Orders"}
        for action in as_list(list(actions))
    }
    encrypted = {"kms:Decrypt"}  # for customer-managed keys, which the template does not make
    assert set(code(column(PAGE, "what it does", 2))) - encrypted == granted


def test_table_of_variables_is_whole() -> None:
    """Every variable that the package reads stands in it."""
    source = "".join(file.read_text("utf-8") for file in (ROOT / "layer" / "incumbent").glob("**/*.py"))
    named = {name for name in code(column(PAGE, "variable")) if name.startswith("INCUMBENT_")}
    assert named == set(re.findall(r"\"(INCUMBENT_[A-Z_]+)\"", source))


PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_table_is_longer_than_200(page: Path) -> None:
    """A longer one cannot be read as text, nor its table on a phone."""
    lines = page.read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("|") and len(line) > 200] == []


def test_sentences_name_their_actor() -> None:
    """Somebody, nobody and whoever hide who acts: the caller, the source, the owner, the store or the handler."""
    files = [
        *PAGES,
        ROOT / "template.yaml",
        *(file for file in (ROOT / "functions").rglob("*") if file.suffix != ".pyc"),
    ]
    hidden = re.compile(r"\b(somebody|nobody|whoever)\b", re.IGNORECASE)
    assert [file for file in files if file.is_file() and hidden.search(file.read_text("utf-8"))] == []


def test_first_function_of_the_guide_runs() -> None:
    """The page for beginners shows a handler, and names an event that it answers."""
    example, *others = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "start.md").read_text("utf-8"), re.DOTALL)
    event = json.loads((ROOT / example.splitlines()[0].removeprefix("# try it with ")).read_text("utf-8"))
    token = STAND_IN.set(MemoryProvider())
    try:
        names: dict[str, Any] = {"__name__": "start"}
        exec(compile(example, "start.md", "exec"), names)  # noqa: S102 - the documentation's own example
        answer = names["handler"](event, Context(aws_request_id="request-1"))
    finally:
        STAND_IN.reset(token)
    assert re.fullmatch(r"order-1001 has fence \d+", answer["body"])
    for other in others:
        compile(other, "start.md", "exec")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists, and a heading that stands in it."""
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, anchor
