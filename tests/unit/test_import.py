"""What ``import incumbent`` loads: a cold start pays for each module and pattern, so their number has a budget."""

import subprocess
import sys

# What Lambda's runtime client has loaded already, and what types and context variables need.
BEFORE = "import contextvars, decimal, json, logging, math, re, sys, threading, typing\n"
MODULES = f"{BEFORE}before = set(sys.modules)\nimport incumbent\nprint(*sorted(set(sys.modules) - before))"
PATTERNS = f"{BEFORE}before = set(re._cache)\nimport incumbent\nprint(*(each[1] for each in set(re._cache) - before))"
MAX_MODULES = 43
MAX_PATTERNS = 2


def printed(code: str) -> list[str]:
    """What code prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_import_loads_few_modules() -> None:
    """No client of a store, no Powertools, no event loop, no inspect; of the package only what a run needs."""
    loaded = printed(MODULES)
    assert [name for name in loaded if name.partition(".")[0] != "incumbent"] == []
    assert len(loaded) <= MAX_MODULES, loaded
    for name in ("retry", "rules", "sweeper", "operations", "cli", "local", "testing"):
        assert f"incumbent.{name}" not in loaded


def test_decorating_loads_no_module() -> None:
    """Neither inspect nor jmespath for a handler with nothing around it whose key is at a path, and no store."""
    assert loaded_by("@incumbent.leased(key_jmespath='detail.id', message_id_jmespath='id')") == []


def loaded_by(decorator: str) -> list[str]:
    """The modules that a decorator loads after ``import incumbent``."""
    return printed(
        f"{BEFORE}import incumbent\nbefore = set(sys.modules)\n{decorator}\ndef handler(event, context): ...\n"
        "print(*sorted(set(sys.modules) - before))"
    )


def test_import_compiles_few_patterns() -> None:
    """A regular expression costs up to a millisecond: one that few events need is compiled at its first use."""
    patterns = printed(PATTERNS)
    assert len(patterns) <= MAX_PATTERNS, patterns
