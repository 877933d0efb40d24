"""The pages on policies and control name every option there is, and their examples run."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from incumbent import Message, Policy, Stop
from incumbent.options import Options
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN
from incumbent.testing import run
from incumbent.testing.conversation import STOP_REASON

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "policies.md").read_text(encoding="utf-8")
CONTROL = (DOCS / "control.md").read_text(encoding="utf-8")

# What says whose the key is and where things are kept is no policy: README and docstring have it.
ELSEWHERE = {
    "key",
    "key_jmespath",
    "message_id",
    "message_id_jmespath",
    "provider",
    "keyspace",
    "ttl_ms",
    "renew_every_ms",
    "target",
    "store",
    "on_result",
    "on_lost",
    "observer",
    "clock",
    "logger",
}


def test_every_option_has_a_paragraph() -> None:
    """A new option of @leased, or a new field of Policy, joins a page: in bold letters, or in a heading."""
    marked = re.findall(r"\*\*(.+?)\*\*|^## (.*)$", PAGE + CONTROL, re.MULTILINE)
    explained = {name for text in marked for name in re.findall(r"`(\w+)", " ".join(text))}
    options = set(Options.__annotations__) - ELSEWHERE
    assert (options | {field.name for field in fields(Policy)}) - explained == set()


def test_example_of_interrupt_runs() -> None:
    """It begins anew with what has arrived, and ends with it."""
    (example,) = re.findall(r"### Interrupt\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    provider = MemoryProvider()
    token = STAND_IN.set(provider)
    try:
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(example, "policies.md", "exec"), names)  # noqa: S102 - the documentation's own example
        handler: Callable[[Any, Any], Any] = names["handler"]
        event = {"thread_id": "t", "id": "m1", "text": "Hi."}
        assert handler({**event, "id": "m0"}, None) == {"steps": ["think", "look up", "write"]}
        key = "example.handler/t"
        provider.claim(key, "a", 30_000, Message(id="m1", event=event), as_ticket=True)
        provider.claim(key, "b", 30_000, Message(id="m2", event={**event, "text": "Stop."}))
        provider.release_lease(key, "a")
        assert handler(event, None) == {"steps": ["Stop.", "think", "look up", "write"]}
        assert provider.peek(key) == ()
    finally:
        STAND_IN.reset(token)


def test_examples_of_control_run() -> None:
    """Each decorates, and answers what its text says."""
    burst, stop, wait, outside = re.findall(r"```python\n(.*?)```", CONTROL, re.DOTALL)
    event = {"thread_id": "t", "order_id": "o", "id": "m1", "text": "Hi."}
    played: list[Any] = []
    for example, name in ((burst, "answer"), (stop, "think"), (wait, "reserve")):
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(example, "control.md", "exec"), names)  # noqa: S102 - the documentation's own example
        key = "o" if name == "reserve" else "t"
        played += run(names[name], key, [event], stop=Stop.ASKED if name == "think" else None).answers
    exec(compile(outside, "control.md", "exec"), {"__name__": "example"})  # noqa: S102 - as above; it only imports
    assert played == [
        "Hi.",
        {"done": [], "stopped": STOP_REASON},
        {"statusCode": 200, "body": "reserved for m1"},
    ]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_in_the_documentation_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
