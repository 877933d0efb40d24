"""Writes docs/reference.md from the docstrings: what can be called, with what, and what it answers.

    python docs/reference.py

A test compares the page with what this would write.
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from incumbent import Policy

PAGE = Path(__file__).with_name("reference.md")
HEAD = """\
# Reference

Made from the docstrings by `docs/reference.py`. Durations are whole milliseconds; arguments are keywords where a `*`
stands before them.
"""
MADE_FOR_YOU = {"Lease"}
OURS = {"end", "ended", "lost", "when_lost", "deferred"}  # of a handle, for the runs
PARTS = {
    "For handlers": (
        "incumbent",
        ["leased", "leased_function", "current_lease", "Lease", "Stop", "Policy", "RetryLater"],
    ),
    "The front door": ("incumbent", ["send", "Sent", "status"]),
    "What messages and answers hold": (
        "incumbent",
        ["Message", "Origin", "DeadLetter", "Routed", "Duplicate", "Busy", "Fact", "Wake", "LambdaWaker"],
    ),
    "Errors": (
        "incumbent",
        [
            "IncumbentError",
            "ConfigurationError",
            "LeaseKeyMissing",
            "LeaseBusy",
            "LeaseLost",
            "LeaseUnavailable",
            "MailboxFull",
            "MessageTooLarge",
            "ResultRefused",
            "StoredFormatUnknown",
        ],
    ),
    "Providers": ("incumbent.providers", ["from_env"]),
    "Memory": ("incumbent.providers.memory", ["MemoryProvider"]),
    "Redis and Valkey": ("incumbent.providers.redis", ["RedisProvider", "client_from_env"]),
    "DynamoDB": ("incumbent.providers.dynamodb", ["DynamoDBProvider"]),
    "The sweeper": ("incumbent.sweeper", ["sweep"]),
    "The contract, for who writes a provider": (
        "incumbent",
        [
            *("LeaseProvider", "Mailbox", "Archive", "NoopLeaseProvider"),
            *("is_lease_provider", "is_mailbox", "is_archive", "resolve_lease_provider"),
            *(
                "Acquisition",
                "Claimed",
                "Idle",
                "Failure",
                "Released",
                "Continued",
                "Beat",
                "Orphan",
                "Waker",
                "Observer",
            ),
        ],
    ),
    "For tests": ("incumbent.testing", ["lease", "run", "stand_in", "FakeContext", "FakeClock"]),
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, (module, names) in PARTS.items():
        parts.append(f"## {title}\n\nFrom `{module}`.\n")
        parts += [entry(name, getattr(importlib.import_module(module), name)) for name in names]
    return "\n".join(parts)


def entry(name: str, found: Any) -> str:
    """One name: how it is called, what its docstring says, and a class's public methods and properties."""
    parts = [f"### {name}", f"```python\n{called(name, found)}\n```", said(found)]
    if inspect.isclass(found):
        parts.append(said(found.__init__) if "__init__" in vars(found) else "")
        parts.append("\n".join(members(found)))
    return "\n\n".join(part for part in parts if part) + "\n"


def members(found: type) -> Iterator[str]:
    """A line for each public method, property and value of a class."""
    for name, member in vars(found).items():
        if name.startswith("_") or name in OURS:
            continue
        if isinstance(member, Enum):
            yield f"- `{found.__name__}.{name}`"
        elif isinstance(member, property):
            yield f"- `{name}`: {' '.join(said(member).split())}"
        elif callable(member) and member.__doc__:
            yield f"- `{called(name, member)}`: {' '.join(said(member).split())}"


def called(name: str, found: Any) -> str:
    """The signature, without what only a type checker reads at length."""
    if name in MADE_FOR_YOU or getattr(found, "_is_protocol", False):
        return name
    if inspect.isclass(found) and issubclass(found, Enum):
        return name
    if inspect.isclass(found) and issubclass(found, Exception) and "__init__" not in vars(found):
        return name
    signature = inspect.signature(found)
    kept = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    plain = [each.replace(annotation=each.empty) for each in kept]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty)).replace(
        repr(Policy()), "Policy()"
    )
    text = re.sub(r"<function ([\w.]+) at 0x\w+>", r"\1", text)
    text = re.sub(r"<[\w.]+\.(\w+) object at 0x\w+>", r"\1()", text)
    return name + "\n    ".join(textwrap.wrap(text, 110, break_long_words=False))


def said(found: Any) -> str:
    """The docstring."""
    return inspect.cleandoc(found.__doc__ or "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
