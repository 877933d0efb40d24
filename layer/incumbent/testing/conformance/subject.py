"""What the suite asks of a provider under test, and what all its tests share."""

import itertools
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pytest

from incumbent.contract import Archive, Control, LeaseProvider, Mailbox

T = TypeVar("T")
P = ParamSpec("P")

TTL_MS = 30_000
PATIENCE_MS = 30_000  # of real time, after which threads that wait for one another count as stuck


class MailboxProvider(LeaseProvider, Mailbox, Protocol):
    """A backend that leases and stores messages."""


class ArchiveProvider(MailboxProvider, Archive, Protocol):
    """A backend that also says what became of messages."""


class ControlProvider(ArchiveProvider, Control, Protocol):
    """A backend by which keys can be looked at, held and stopped."""


class Subject:
    """A provider under test.

    A test file gives ``make_provider`` and ``pass_time``. A store that needs a server has an autouse fixture in the
    subclass start it, and keep what ``make_provider`` needs in ``self``: each test has an instance of its own.
    """

    skew_ms = 0
    """How much longer than the owner may believe strangers must wait (R3): 0 where a clock is shared."""

    slack_ms = 0
    """How much real time may pass unnoticed between two calls: 0 where time passes by ``pass_time`` alone.

    Over a real server's clock, some hundred milliseconds: "just before" is then that much earlier.
    """

    def make_provider(self) -> Any:
        """Return a provider over an empty store, or over one that it shares: each test uses keys of its own."""
        raise NotImplementedError

    def pass_time(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass for everything that the provider has stored."""
        raise NotImplementedError

    def make_other(self, provider: Any) -> Any:
        """Return another client of the same store, as another process has it; the same one if there is none."""
        return provider

    # --- what the tests use

    @pytest.fixture
    def provider(self) -> Any:
        """The provider under test."""
        return self.make_provider()

    @pytest.fixture
    def key(self) -> str:
        """A key that no other test uses."""
        return fresh_key()

    def pass_almost(self, ms: int) -> int:
        """Let almost ``ms`` pass since a moment ago: all but the last millisecond. Return what is left."""
        almost_ms = max(0, ms - 1 - self.slack_ms)
        self.pass_time(almost_ms)
        return ms - almost_ms

    def expire(self, ttl_ms: int = TTL_MS) -> None:
        """Let a lease of ``ttl_ms`` end for everybody: the strangers' edge (R3)."""
        self.pass_time(ttl_ms + self.skew_ms)

    def about(self, ms: int | None, expected_ms: int) -> bool:
        """Whether a reported remaining time is the expected one, less what may have passed unnoticed."""
        return ms is not None and expected_ms - self.slack_ms <= ms <= expected_ms


_numbers = itertools.count(1)


def fresh_key() -> str:
    """Return a key that no other test uses, on a server that many tests share."""
    return f"key-{next(_numbers)}-{uuid.uuid4().hex[:12]}"


def at_once(count: int, call: Callable[Concatenate[int, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    """Call it in ``count`` threads that begin at one moment, each with its number; return the answers in order.

    The interpreter changes threads as often as it can meanwhile, so that a step which is not atomic is seen. Raises
    what the first failing one raised, after all have ended.
    """
    barrier = threading.Barrier(count)
    answers: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(timeout=PATIENCE_MS / 1000)
            answers[number] = call(number, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_MS / 1000)
    finally:
        sys.setswitchinterval(interval_s)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"some of {count} threads are still busy")
    return [answers[number] for number in range(count)]
