"""What can be seen of incumbent's work: facts, and where they go."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, Protocol, TextIO, TypeAlias, runtime_checkable

from incumbent.validation import flag, printable

LOG = logging.getLogger("incumbent")

FactName: TypeAlias = Literal[
    "sent",
    "claimed",
    "routed",
    "duplicate",
    "busy",
    "idle",
    "run_started",
    "run_ended",
    "released",
    "continued",
    "handed_over",
    "wake_failed",
    "chain_cut",
    "dead",
    "lost",
    "refused",
    "store_error",
    "orphan",
    "swept",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that happened to a key. It holds no event; ``error`` is an exception's text, which may quote one.

    ``sent`` is a message that ``send`` has stored. ``outcome`` is for it, and for a duplicate, its state; for an ended
    run ``handled``, ``failed``, ``deferred`` or ``lost``; for an orphan ``woken``, ``failed``, ``untargeted``,
    ``paused`` or ``left``. ``holder`` is who owns the key when it is not this invocation. ``ms`` is how long it took: a
    run, a hold; of an orphan, for how long it has been one.

    ``dead`` is a message that moved to the dead letters. ``orphan`` is a key that the sweeper found, of function
    ``target``; only the first of each target that could not be woken says why, in ``error``. ``swept`` ends a pass of
    the sweeper, whatever it found: it has no key, ``waiting`` is how many orphans there were, ``ms`` the age of the
    oldest.
    """

    fact: FactName
    key: str
    t_ms: int
    keyspace: str | None = None
    request_id: str | None = None
    owner: str | None = None
    fence: int | None = None
    message_id: str | None = None
    message_ids: tuple[str, ...] = ()
    holder: str | None = None
    target: str | None = None
    outcome: str | None = None
    waiting: int | None = None
    attempt: int | None = None
    waited_ms: int | None = None
    ms: int | None = None
    error: str | None = None


class Observer(Protocol):
    """Anything that takes facts. What it raises is logged and goes no further."""

    def __call__(self, fact: Fact, /) -> None:
        """Take one fact."""
        ...


def tell(observers: Iterable[Observer], fact: Fact) -> None:
    """Tell all observers."""
    for observer in observers:
        guarded("observer", observer, fact)


def guarded(what: str, hook: Callable[..., object], *arguments: object) -> None:
    """Call a hook; what it raises is logged, since it must not change what becomes of a run."""
    try:
        hook(*arguments)
    except (Exception, SystemExit):
        LOG.exception("%s raised; the run goes on", what)


@runtime_checkable
class Collector(Protocol):
    """An observer that would rather be told of a whole call than of each fact."""

    def collect(self) -> "Collected":
        """Return an observer for one call."""
        ...


class Collected(Observer, Protocol):
    """An observer of one call."""

    def flush(self) -> None:
        """Tell what has been collected so far, if anything."""
        ...


def collect(observers: Iterable[Observer]) -> tuple[tuple[Observer, ...], tuple[Collected, ...]]:
    """The observers of one call, and those among them that are to be flushed."""
    collected = {id(observer): observer.collect() for observer in observers if isinstance(observer, Collector)}
    return tuple(collected.get(id(each), each) for each in observers), tuple(collected.values())


def leave_untraced() -> None:
    """Have X-Ray's SDK, where it is loaded, record nothing of this thread outside Lambda.

    It keeps its segment for each thread there, and clients that it has patched raise or log where a thread has none. A
    segment of the caller's might end while this thread goes on.
    """
    recorder = getattr(sys.modules.get("aws_xray_sdk.core"), "xray_recorder", None)
    nothing = getattr(sys.modules.get("aws_xray_sdk.core.models.dummy_entities"), "DummySegment", None)
    if recorder is not None and nothing is not None and "LAMBDA_TASK_ROOT" not in os.environ:
        guarded("X-Ray's SDK", lambda: recorder.set_trace_entity(nothing()))


class Trace:
    """Writes each fact as one line, ``INCUMBENT {json}``, for tools that follow what happens."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, fact: Fact, /) -> None:
        """Write the line, leaving out what is not said."""
        said = {field.name: getattr(fact, field.name) for field in fields(fact)}
        line = json.dumps({name: value for name, value in said.items() if value not in (None, ())})
        stream = self._stream or sys.stderr
        stream.write(f"INCUMBENT {line}\n")  # at once: threads that print would mix their lines
        stream.flush()


def log_fact(fact: Fact, /) -> None:
    """Log what somebody should look into, without payloads."""
    error = None if fact.error is None else printable(fact.error)
    if fact.fact in {"lost", "wake_failed", "chain_cut", "store_error"}:
        LOG.warning("%s: key %r, owner %r: %s", fact.fact, fact.key, fact.owner, error)
    elif fact.fact == "dead":
        LOG.warning("dead: key %r, message %s, attempt %s: %s", fact.key, fact.message_ids, fact.attempt, error)
    elif fact.fact == "orphan" and fact.outcome in {"failed", "untargeted"} and fact.error is not None:
        LOG.warning("orphan: key %r could not be woken: %s", fact.key, error)


def from_env(environ: Mapping[str, str]) -> tuple[Observer, ...]:
    """The observers that every function has: the log and, with ``INCUMBENT_TRACE``, the trace."""
    return (log_fact, Trace()) if flag(environ, "INCUMBENT_TRACE") else (log_fact,)
