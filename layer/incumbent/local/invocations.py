"""The values in which a local run is told: invocations that ended, log lines, and what is still on its way."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from incumbent.errors import ConfigurationError
from incumbent.local.files import MAX_ASYNC_EVENT_BYTES, MAX_EVENT_BYTES, parse_json


class CannotStart(RuntimeError):
    """No environment of a function can start; the text is the function's own error."""


class Outcome(StrEnum):
    """How one attempt at an invocation ended."""

    OK = "ok"
    """The handler returned."""
    ERROR = "error"
    """The handler raised, or answered with what is not JSON."""
    TIMEOUT = "timeout"
    """It was not over at its deadline."""
    CRASH = "crash"
    """The process ended in the middle of it."""
    INIT_ERROR = "init error"
    """The process ended, or said why it cannot go on, before it took any invocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line that a function printed.

    ``request_id`` is the invocation in whose time it was printed: ``None`` before the first one, and always
    where several share a process. ``environment`` and ``log_stream`` are empty where there is no process.
    """

    at_ms: int
    function: str
    environment: str
    log_stream: str
    request_id: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One attempt at one invocation, as it ended.

    Times are epoch milliseconds. ``sent_at_ms`` is when the caller asked, ``started_at_ms`` when a process
    was given it (for an init error: when it was given up). ``attempt`` counts from 1; the attempts of one
    asynchronous invocation share their request id. ``payload`` is what the handler returned, ``error`` what
    Lambda would tell its caller: ``errorType``, ``errorMessage`` and, from Python, ``stackTrace``. ``retried_in_ms`` is
    the pause before the next attempt, ``None`` where this was the last one.
    """

    request_id: str
    label: str
    function: str
    invoked_arn: str
    environment: str
    log_stream: str
    asynchronous: bool
    attempt: int
    cold_start: bool
    sent_at_ms: int
    started_at_ms: int
    ended_at_ms: int
    outcome: Outcome
    event: Any
    payload: Any
    error: Mapping[str, Any] | None
    logs: tuple[LogLine, ...]
    retried_in_ms: int | None = None

    @property
    def id(self) -> str:
        """Unique per attempt: the request id and the attempt."""
        return f"{self.request_id}#{self.attempt}"

    @property
    def ok(self) -> bool:
        """Whether the handler returned."""
        return self.outcome is Outcome.OK


class Pending:
    """An invocation that may not be over yet."""

    __slots__ = ("_done", "_result", "request_id")

    def __init__(self, request_id: str) -> None:
        """Start as not over."""
        self.request_id = request_id
        self._done = threading.Event()
        self._result: Invocation | None = None

    def resolve(self, invocation: Invocation) -> None:
        """Give the last attempt, once."""
        self._result = invocation
        self._done.set()

    @property
    def done(self) -> bool:
        """Whether it is over: for an asynchronous one, with no retry to come."""
        return self._done.is_set()

    def result(self, timeout_ms: int | None = None) -> Invocation:
        """Wait for the last attempt and return it, whatever its outcome.

        Raises:
            TimeoutError: it was not over within ``timeout_ms``.
        """
        self._done.wait(None if timeout_ms is None else timeout_ms / 1_000)
        if self._result is None:
            raise TimeoutError(f"invocation {self.request_id} was not over after {timeout_ms} ms")
        return self._result


RETRY_DELAYS_MS = (60_000, 120_000)
"""The pauses before the first and the second retry of an asynchronous invocation, as Lambda has them."""


def retry_delay_ms(delays_ms: Sequence[int], attempt: int) -> int:
    """Return the pause after an attempt, counted from 1; the last pause counts for all further ones."""
    return delays_ms[min(attempt, len(delays_ms)) - 1] if delays_ms else 0


class Cloud(Protocol):
    """What can be asked to invoke functions: processes (`LocalLambda`) or threads (`InProcessLambda`)."""

    def submit(self, function: str, event: Any, *, asynchronous: bool = False, label: str = "") -> Pending:
        """Send an invocation and return at once."""
        ...

    def check_function(self, function: str) -> None:
        """Raise ConfigurationError where there is no such function."""
        ...

    def warm(self, function: str, environments: int | None = None) -> None:
        """Have ``environments`` of the function ready before the first invocation; all unless given."""
        ...

    def wait_idle(self, timeout_ms: int = 300_000) -> None:
        """Wait until no invocation runs, waits or is to be retried; raise TimeoutError if that takes longer."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no invocation runs, waits or is to be retried."""
        ...

    def after(self, ms: int, call: Callable[[], object], *, waited_for: bool = True) -> None:
        """Call in so many milliseconds of the cloud's time; `wait_idle` waits for that if it is ``waited_for``."""
        ...


class Invoking(ABC):
    """The ways to invoke a function of a cloud, all by its `submit_bytes`."""

    @abstractmethod
    def submit_bytes(
        self,
        function: str,
        body: bytes,
        *,
        asynchronous: bool = False,
        label: str = "",
        trace_id: str | None = None,
        client_context: str | None = None,
    ) -> Pending:
        """Send an invocation whose event is JSON already; what the Invoke API does.

        Raises:
            ConfigurationError: there is no such function.
        """

    def invoke(self, function: str, event: Any, *, label: str = "") -> Invocation:
        """Invoke, wait, and return how it ended, whatever the outcome.

        ``function`` is a logical id, a name, or an ARN, with or without a qualifier. ``label`` is a name of
        the caller's own for it.

        Raises:
            ConfigurationError: there is no such function.
        """
        return self.submit(function, event, label=label).result()

    def invoke_async(self, function: str, event: Any, *, label: str = "") -> Pending:
        """Invoke asynchronously, so that it is retried when it fails, and return at once.

        Raises:
            ConfigurationError: there is no such function.
        """
        return self.submit(function, event, asynchronous=True, label=label)

    def submit(self, function: str, event: Any, *, asynchronous: bool = False, label: str = "") -> Pending:
        """Send an invocation of either kind and return at once.

        Raises:
            ConfigurationError: there is no such function.
        """
        return self.submit_bytes(function, encode(event), asynchronous=asynchronous, label=label)


OnLog = Callable[[LogLine], object]
OnInvocation = Callable[[Invocation], object]


class Listeners:
    """Calls those who listen. What they raise must not change what becomes of an invocation: it is kept."""

    def __init__(self, on_log: OnLog, on_invocation: OnInvocation) -> None:
        """Keep whom to call."""
        self._on_log = on_log
        self._on_invocation = on_invocation
        self.raised: Exception | None = None

    def log(self, line: LogLine) -> None:
        """Tell of a line."""
        try:
            self._on_log(line)
        except Exception as error:  # noqa: BLE001 - whatever it is, `check` raises it
            self.raised = self.raised or error

    def invocation(self, invocation: Invocation) -> None:
        """Tell of an attempt that has ended."""
        try:
            self._on_invocation(invocation)
        except Exception as error:  # noqa: BLE001 - as in `log`
            self.raised = self.raised or error

    def check(self) -> None:
        """Raise what a listener raised first, once."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


def ignore(_: object) -> None:
    """Do nothing: the report is not needed."""


def encode(event: Any) -> bytes:
    """Return the event as Lambda would carry it.

    Raises:
        ConfigurationError: it cannot be read again: it is nested too deep, or a number in it is too large.
    """
    try:
        body = json.dumps(event, separators=(",", ":")).encode()
        parse_json(body)
    except (ValueError, RecursionError) as cause:
        raise ConfigurationError(f"the event cannot be sent: {cause}") from cause
    return body


def check_size(event: Any, *, asynchronous: bool) -> None:
    """Refuse what Lambda would refuse before it invokes anything.

    Raises:
        ConfigurationError: the event is larger than Lambda takes.
    """
    size, most = len(encode(event)), MAX_ASYNC_EVENT_BYTES if asynchronous else MAX_EVENT_BYTES
    if size > most:
        kind = "an asynchronous" if asynchronous else "a synchronous"
        raise ConfigurationError(f"the event has {size:,} bytes; Lambda takes {most:,} in {kind} invocation")
