"""A store below a prefix of this run's own: what the parts of ``incumbent verify`` need of it, and its removal."""

import secrets
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.errors import ConfigurationError

STEM = "incumbent-verify"
"""What the prefix of every run begins with."""

REQUESTS, WRITE_UNITS, READ_UNITS, SEARCHES = "requests", "write_units", "read_units", "searches"


class Dropped:
    """Drops the reply to one request, after the store has carried it out."""

    def __init__(self) -> None:
        """Drop nothing, and count the replies."""
        self.replies = 0
        self._at = -1
        self._lock = threading.Lock()

    def begin(self, at: int = -1) -> None:
        """Count from 0 again; drop the reply with the number ``at``."""
        with self._lock:
            self.replies, self._at = 0, at

    def takes(self) -> bool:
        """Count a reply, and return whether it is dropped."""
        with self._lock:
            self.replies += 1
            return self.replies == self._at + 1


class VerifiedStore(ABC):
    """One user's store. It can be pickled: another process then opens its own connections to the same store."""

    name = ""
    skew_ms = 0
    slack_ms = 0

    def __init__(self, environ: Mapping[str, str], run: str | None = None) -> None:
        """Connect to nothing. ``run`` names the run; a new name unless it is given."""
        self.environ = dict(environ)
        self.run = run or secrets.token_hex(4)
        self.used: defaultdict[str, float] = defaultdict(float)
        self._open: list[Trial] = []
        self._numbers = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how another process makes its own."""
        return type(self), (self.environ, self.run)

    @property
    def prefix(self) -> str:
        """The key prefix of this run; each trial appends a number."""
        return f"{STEM}-{self.run}"

    @contextmanager
    def trial(self, clock: Clock | None = None) -> Iterator["Trial"]:
        """Give a prefix of its own. What was stored below it is removed at the end."""
        trial = self.begun(clock)
        try:
            yield trial
        finally:
            trial.end()

    def begun(self, clock: Clock | None = None) -> "Trial":
        """Begin a trial, which its caller, or `empty` at last, ends."""
        with self._lock:
            self._numbers += 1
            trial = Trial(self, f"{self.prefix}-{self._numbers}", clock or SYSTEM_CLOCK)
            self._open.append(trial)
        return trial

    def count(self, **used: float) -> None:
        """Add to what was used, by this process or another."""
        with self._lock:
            for name, number in used.items():
                self.used[name] += number

    def ended(self, trial: "Trial") -> None:
        """Forget a trial of which nothing is left."""
        with self._lock:
            self._open.remove(trial)

    def empty(self) -> None:
        """End the trials that were interrupted. Raises what the first removal raised."""
        errors: list[Exception] = []
        for trial in list(self._open):
            try:
                trial.end()
            except Exception as error:  # noqa: BLE001 - the others are removed all the same
                errors.append(error)
        if errors:
            raise errors[0]

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return a provider as a function makes it, below that prefix."""

    @abstractmethod
    def losing(self, prefix: str, clock: Clock) -> tuple[Any, Dropped]:
        """Return a provider, and what drops replies to its requests."""

    @abstractmethod
    def test_clock(self) -> Clock:
        """Return the clock of a test that moves time by `pass_time`."""

    @abstractmethod
    def pass_time(self, trial: "Trial", ms: int) -> None:
        """Let time pass for what is stored below a trial's prefix."""

    @abstractmethod
    def remove(self, prefix: str, keys: set[str]) -> None:
        """Remove all records of these keys."""

    @abstractmethod
    def begin(self) -> None:
        """Note in the store that this run has begun, if that is how leftovers are found."""

    @abstractmethod
    def end(self) -> None:
        """Take that note back: nothing is left of this run."""

    @abstractmethod
    def leftovers(self) -> dict[str, int | None]:
        """Return the runs of which something is left, and of how many keys, if that is known without a search."""

    @abstractmethod
    def remove_run(self, run: str) -> int:
        """Search for all records of a run, remove them, and return how many there were."""


class Trial:
    """One part of a run: a prefix, a clock, and the keys below the prefix that were named in calls."""

    def __init__(self, store: VerifiedStore, prefix: str, clock: Clock) -> None:
        """Open nothing."""
        self.prefix = prefix
        self.keys: set[str] = set()
        self.clock = clock
        self._store = store
        self._opened: list[Any] = []

    def provider(self) -> Any:
        """Return a provider with connections of its own, whose keys are noted."""
        return self._noted(self._store.provider(self.prefix, self.clock))

    def losing(self) -> tuple[Any, Dropped]:
        """Return a provider, and what drops replies to its requests."""
        provider, dropped = self._store.losing(self.prefix, self.clock)
        return self._noted(provider), dropped

    def pass_time(self, ms: int) -> None:
        """Let time pass for what is stored below the prefix."""
        self._store.pass_time(self, ms)

    def end(self) -> None:
        """Remove what was stored below the prefix. May be called again if it was interrupted."""
        self._store.remove(self.prefix, self.keys)
        for each in self._opened:
            getattr(each, "close", lambda: None)()
        self._opened.clear()
        self._store.ended(self)

    def _noted(self, provider: Any) -> Any:
        self._opened.append(provider)
        return Noted(provider, self.keys)


class Noted:
    """A provider that notes each key before a request names it."""

    def __init__(self, provider: Any, keys: set[str]) -> None:
        """Wrap a provider."""
        self._provider = provider
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        """Return the provider's attribute; of a method, one that notes its first argument."""
        found = getattr(self._provider, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            if args and isinstance(args[0], str):
                self._keys.add(args[0])
            return found(*args, **more)

        return call


def store_of(environ: Mapping[str, str]) -> VerifiedStore:
    """Return the store that the environment names. Raises ``ConfigurationError``; connects to nothing."""
    match environ.get("INCUMBENT_PROVIDER", ""):
        case "redis":
            from incumbent.verify.redis_store import RedisStore

            return RedisStore(environ)
        case "dynamodb":
            from incumbent.verify.table_store import TableStore

            return TableStore(environ)
        case name:
            raise ConfigurationError(f"INCUMBENT_PROVIDER is {name!r}: name redis or dynamodb to verify a store")
