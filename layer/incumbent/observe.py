"""Facts about what incumbent did, and the observers that get them."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Protocol, TextIO, TypeAlias, get_args

from incumbent import results
from incumbent.frozen import dataclass
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
    "stop_asked",
    "superseded",
    "holding",
    "stop_sent",
    "held",
    "resumed",
    "cancelled",
    "refused",
    "store_error",
    "orphan",
    "swept",
]
_ALL: frozenset[FactName] = frozenset(get_args(FactName))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that happened to a key. It holds no event; ``error`` is an exception's text, which may quote one.

    ``sent`` is a message that ``send`` has stored. ``outcome`` is the state for ``sent`` and ``duplicate``; for an
    ended run it is ``handled``, ``failed``, ``stopped``, ``deferred`` or ``lost``; for an orphan it is ``woken``,
    ``failed``, ``untargeted``, ``paused`` or ``remaining``. ``holder`` is the owner of the key when that is not this
    invocation. ``ms`` is the duration of a run or a hold, or how long an orphan has been one.

    ``stop_asked`` is a run that has seen the mark of a stop, ``error`` its reason (M16). ``superseded`` are messages
    that a later one has replaced (M21). ``holding`` comes with each renewal of a run that is longer than its ttl:
    ``ms`` is for how long its invocation has held the key.

    ``stop_sent``, ``held``, ``resumed`` and ``cancelled`` come from the calls of these names: ``outcome`` is ``marked``
    or ``no run`` of a stop, ``held`` or ``not held`` of a resume, and the message's state of a cancel; ``error`` is the
    reason that the caller gave, ``ms`` how long the key is held.

    ``dead`` is a message that moved to the dead letters. ``orphan`` is a key that the sweeper found, of function
    ``target``; only the first of each target that could not be woken gives the reason, in ``error``. ``swept`` ends
    every pass of the sweeper: it has no key, ``waiting`` is how many orphans there were, ``ms`` the age of the oldest,
    ``error`` what the pass could not list.
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
    """A callable that takes facts. An error that it raises is logged and not propagated."""

    def __call__(self, fact: Fact, /) -> None:
        """Take one fact."""
        ...


def tell(observers: Iterable[Observer], fact: Fact) -> None:
    """Pass a fact to all observers."""
    for observer in observers:
        guarded("observer", observer, fact)


def guarded(what: str, hook: Callable[..., object], *arguments: object) -> None:
    """Call a hook and log what it raises: a hook must not change the outcome of a run."""
    try:
        results.refuse_unfinished(hook(*arguments), what)
    except (Exception, SystemExit):
        LOG.exception("%s raised; the run goes on", what)


def heard_by(observers: Iterable[Observer]) -> frozenset[FactName]:
    """Return the facts that any of the observers takes. Others need not be made.

    An observer takes all facts unless it names its own in an attribute ``facts``.
    """
    named: set[FactName] = set()
    for observer in observers:
        facts = getattr(observer, "facts", None)
        if not isinstance(facts, frozenset):
            return _ALL
        named |= facts
    return frozenset(named)


def collects(observers: Iterable[Observer]) -> bool:
    """Return whether any of the observers keeps the facts of a call, so that each call has its own (`collect`)."""
    return any(callable(getattr(observer, "collect", None)) for observer in observers)


class Collected(Observer, Protocol):
    """An observer of one call."""

    def flush(self) -> None:
        """Report the facts collected so far, if any."""
        ...


def collect(observers: Iterable[Observer]) -> tuple[tuple[Observer, ...], tuple[Collected, ...]]:
    """Return the observers of one call, and those among them that need a flush at its end.

    An observer with a method ``collect()`` is replaced by what that returns: one that keeps the call's facts and
    reports them together.
    """
    collectors = [(id(observer), getattr(observer, "collect", None)) for observer in observers]
    collected: dict[int, Collected] = {name: collect() for name, collect in collectors if callable(collect)}
    if not collected:
        return tuple(observers), ()
    return tuple(collected.get(id(each), each) for each in observers), tuple(collected.values())


def leave_untraced() -> None:
    """Let X-Ray's SDK, if it is loaded, record nothing of this thread outside Lambda.

    There the SDK keeps a segment per thread, and clients that it has patched raise or log in a thread without one. The
    caller's segment could end while this thread still runs.
    """
    recorder = getattr(sys.modules.get("aws_xray_sdk.core"), "xray_recorder", None)
    nothing = getattr(sys.modules.get("aws_xray_sdk.core.models.dummy_entities"), "DummySegment", None)
    if recorder is not None and nothing is not None and "LAMBDA_TASK_ROOT" not in os.environ:
        guarded("X-Ray's SDK", lambda: recorder.set_trace_entity(nothing()))


class Trace:
    """An observer that writes each fact as one line, ``INCUMBENT {json}``, for other programs to read."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, fact: Fact, /) -> None:
        """Write the line, without the empty fields."""
        said = {name: getattr(fact, name) for name in Fact.__annotations__}
        line = json.dumps({name: value for name, value in said.items() if value not in (None, ())})
        stream = self._stream or sys.stderr
        stream.write(f"INCUMBENT {line}\n")  # one call, so that lines of other threads do not mix with it
        stream.flush()


class FactLog:
    """An observer that logs the facts that an operator should look into, without payloads."""

    facts: frozenset[FactName] = frozenset({"lost", "wake_failed", "chain_cut", "store_error", "dead", "orphan"})

    def __call__(self, fact: Fact, /) -> None:
        """Log the fact."""
        error = None if fact.error is None else printable(fact.error, keep="\\")
        if fact.fact in {"lost", "wake_failed", "chain_cut", "store_error"}:
            LOG.warning("%s: key %r, owner %r: %s", fact.fact, fact.key, fact.owner, error)
        elif fact.fact == "dead":
            LOG.warning("dead: key %r, message %s, attempt %s: %s", fact.key, fact.message_ids, fact.attempt, error)
        elif fact.fact == "orphan" and fact.outcome in {"failed", "untargeted"} and fact.error is not None:
            LOG.warning("orphan: key %r could not be woken: %s", fact.key, error)


def from_env(environ: Mapping[str, str]) -> tuple[Observer, ...]:
    """Return the observers of every function: the log and, with ``INCUMBENT_TRACE``, the trace."""
    return _TRACED if flag(environ, "INCUMBENT_TRACE") else _LOGGED


log_fact: Final = FactLog()
_LOGGED: tuple[Observer, ...] = (log_fact,)
_TRACED: tuple[Observer, ...] = (*_LOGGED, Trace())
