"""What `make bench` measures: every row comes out. No time is asserted; what cannot flake is asserted elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cold_starts, growth, spent
from benchmarks.bars import BARS
from benchmarks.capacity import Item, item_bytes

ROOT = Path(__file__).parents[2]
ROWS = {
    "### What the rest is spent on": [*spent.DECORATOR, *spent.DYNAMODB],
    "## Redis": [
        "two bare EVALSHA",
        "**incumbent, acquire and release**",
        "**incumbent, claim and settle**",
        "**incumbent, `@leased`**",
        "redis-py Lock",
        "python-redis-lock",
        "pottery Redlock",
        "fencekit",
        "Powertools idempotency, Redis",
        "lock and list by hand",
        "PING",
        "**incumbent, acquire refused**",
        "redis-py Lock refused, and GET",
        "fencekit refused",
    ],
    "## The decorator alone": [
        "Powertools idempotency, records in a dictionary",
        "**incumbent, `@leased`, a key for each call**",
        "**incumbent, `@leased`, one key, window full**",
        "**incumbent, claim and settle**",
        "**incumbent, acquire and release**",
    ],
    "## DynamoDB": [
        "two bare UpdateItem",
        "two bare UpdateItem, parameters not validated",
        "**incumbent, acquire and release**",
        "**incumbent, claim and settle**",
        "**incumbent, `@leased`**",
        "python-dynamodb-lock",
        "Powertools idempotency, DynamoDB",
    ],
    "### Units by how busy the key is": [
        "idle key, first run",
        "idle key, tenth run",
        "busy key, window full: a run, on average",
        "idle key: a renewal",
        "busy key, window full: a renewal",
        "two runs, with a hand-over to another function between them",
        "a message routed to the owner",
        "a waiting message, of 10: settle, and take it",
        "a waiting message, of 100: settle, and take it",
    ],
    "### Waiting messages": [f"{each:,}" for each in growth.WAITING],
    "### Remembered ids": [f"{each:,}" for each in growth.TRACES],
    "### Stored keys": [f"{each:,}" for each in growth.KEYS],
    "### The size of a message": [f"{each:,}" for each in growth.SIZES_KB],
    "### The sweeper": ["100"],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a quick run of all sections."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return (folder / "performance.md").read_text("utf-8")


def rows(page: str, heading: str) -> list[str]:
    """The first cells of the tables below a heading, until the next heading of any level; without their headings."""
    text = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads = [before for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False) if "|---" in line]
    return [line.split("|")[1].strip() for line in lines if line not in heads]


@pytest.mark.parametrize("heading", ROWS)
def test_every_row_comes_out(page: str, heading: str) -> None:
    """DynamoDB's rows come once for each stand-in that is installed."""
    found = rows(page, heading)
    assert found[: len(ROWS[heading])] == ROWS[heading]


def test_every_cold_start_comes_out(page: str) -> None:
    """Each handler answered twice in a runtime client of its own."""
    names = [f"**{name}**" if name.startswith("incumbent") else name for name in cold_starts.STARTS]
    assert rows(page, "## Cold starts") == names


def test_every_bar_is_judged(page: str) -> None:
    """Each bar has a row, and all but the one that a quick run is too short for have a figure."""
    assert rows(page, "## The bars") == [bar.what for bar in BARS]
    assert page.count("| not measured |") == 1


def test_plots_of_the_page_are_there() -> None:
    """The page that is published shows only files that are published with it."""
    docs = ROOT / "docs"
    shown = {line.partition("](")[2].rstrip(")") for line in (docs / "performance.md").read_text("utf-8").splitlines()}
    plots = {name for name in shown if name.endswith(".svg")}
    assert plots == {f"performance/{file.name}" for file in (docs / "performance").iterdir()}


def test_item_sizes_are_those_that_aws_documents() -> None:
    """Names and text count in UTF-8, numbers by their digits, a list or map three bytes and one for each element."""
    item: Item = {
        "pk": {"S": "é"},
        "n": {"N": "-123.40"},
        "b": {"B": "aGVsbG8="},
        "t": {"BOOL": True},
        "l": {"L": [{"S": "ab"}, {"NULL": True}]},
        "m": {"M": {"k": {"N": "7"}}},
        "s": {"SS": ["a", "bc"]},
    }
    assert item_bytes(item) == (2 + 2) + (1 + 2 + 1 + 1) + (1 + 5) + (1 + 1) + (1 + 3 + 3 + 2) + (1 + 3 + 2 + 2) + (
        1 + 3
    )
