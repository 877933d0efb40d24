"""The part ``conformance``: runs the suite by pytest in this process, and reports each failure."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent.doctor.check import Check
from incumbent.verify.store import VerifiedStore

NAME = "conformance"
_MAX_SHOWN = 10
_MAX_REPEATED = 20  # where more fail, the store is at fault
_MAX_TEXT = 300
# What a user's own runs of pytest are told by.
_OF_PYTEST = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def conformance(store: VerifiedStore, matching: str = "") -> Iterator[Check]:
    """Run the tests whose names contain ``matching``, all unless it is given; repeat once those that failed.

    A request over a real network may take too long, and many writers of one item may leave one without a turn.
    """
    pytest.register_assert_rewrite("incumbent.testing.conformance")
    first = _ran(store, lambda name: matching in name)
    failed, seldom = first.failed, []
    if 0 < len(first.failed) <= _MAX_REPEATED:
        names = {name for name, _ in first.failed}
        failed = _ran(store, lambda name: name in names).failed
        seldom = sorted(names - {name for name, _ in failed})
    for name, text in failed[:_MAX_SHOWN]:
        yield Check.failed(f"{NAME}: {name}", text, f"repeat it: --only {NAME} --matching {name.partition('[')[0]}")
    if len(failed) > _MAX_SHOWN:
        yield Check.failed(NAME, f"{len(failed) - _MAX_SHOWN:,} more tests failed", "the first ones may say why")
    elif not first.run:
        yield Check.failed(NAME, "no test has such a name", "see --matching")
    elif seldom:
        reasons = dict(first.failed)
        found = f"{first.run:,} tests, of which these passed only when they were repeated: {', '.join(seldom)}"
        yield Check.warning(
            NAME, f"{found}; the first failed with {reasons[seldom[0]]}", "is the store slow from here?"
        )
    elif not failed:
        yield Check.ok(NAME, f"{first.run:,} tests passed")


def _ran(store: VerifiedStore, chosen: Callable[[str], bool]) -> "_Listener":
    """Run the chosen tests, and return what became of them.

    Raises ``KeyboardInterrupt``, and ``RuntimeError`` if pytest broke off: then not all have run.
    """
    listener = _Listener(store, chosen)
    # Without the last two plugins: what the rest of this process leaves to the garbage collector is no finding.
    without = ("cacheprovider", "terminal", "unraisableexception", "threadexception")
    quiet = (*(word for name in without for word in ("-p", f"no:{name}")), "--noconftest", "--disable-plugin-autoload")
    kept = {name: os.environ.pop(name) for name in _OF_PYTEST if name in os.environ}
    try:
        code = pytest.main(
            ["-c", os.devnull, "--rootdir", str(Path(__file__).parent), *quiet, "--pyargs", "incumbent.verify.suite"],
            plugins=[listener],
        )
    finally:
        os.environ.update(kept)
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        ended = getattr(code, "name", code)
        raise RuntimeError(f"pytest broke off ({ended}) after {listener.run:,} tests; the others were not run")
    return listener


class _Listener:
    """A plugin of pytest: gives tests the store, and notes what became of them."""

    def __init__(self, store: VerifiedStore, chosen: Callable[[str], bool]) -> None:
        self.run = 0
        self.failed: list[tuple[str, str]] = []
        self._store = store
        self._chosen = chosen

    @pytest.fixture(scope="session")
    def verified_store(self) -> VerifiedStore:
        """The store that is verified."""
        return self._store

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the tests that were not asked for."""
        items[:] = [each for each in items if self._chosen(each.name)]

    def pytest_collectreport(self, report: Any) -> None:
        """Note what could not be collected."""
        if report.failed:
            self.failed.append((report.nodeid, _last_line(report)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test's end, and each failure."""
        self.run += report.when == "call"
        if report.failed:
            name = report.nodeid.rpartition("::")[2]
            self.failed.append((name, _last_line(report)))


def _last_line(report: Any) -> str:
    """Return what was raised, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}..."
