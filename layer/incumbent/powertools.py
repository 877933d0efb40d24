"""Metrics in CloudWatch's embedded format, and keys in the log lines of a run, by Powertools.

Powertools is imported only if metrics are switched on.
"""

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO, runtime_checkable

from incumbent.lease import Lease
from incumbent.observe import LOG, Fact, FactName, Observer
from incumbent.values import Message

_COUNTED: Mapping[FactName, str] = {
    "claimed": "LeaseAcquired",
    "busy": "LeaseBusy",
    "routed": "MessageRouted",
    "handed_over": "HandedOver",
    "dead": "DeadLettered",
    "lost": "LeaseLost",
    "stop_asked": "StopAsked",
    "superseded": "MessageSuperseded",
    "store_error": "StoreErrors",
    "swept": "SweeperRan",
}
_ENDED: dict[str | None, str] = {"handled": "RunCompleted", "failed": "RunFailed", "stopped": "RunStopped"}
_MEASURED: Mapping[FactName, Mapping[str, str]] = {
    "claimed": {"MailboxDepth": "waiting"},
    "routed": {"MailboxDepth": "waiting"},
    "run_started": {"WaitMs": "waited_ms"},
    "holding": {"HoldingMs": "ms"},
    "released": {"HoldMs": "ms"},
    "handed_over": {"HoldMs": "ms"},
    "swept": {"OrphansFound": "waiting", "OldestWaitingMs": "ms"},
}
_MEASURES = frozenset(name for each in _MEASURED.values() for name in each)
_INCOMPLETE = "SweepIncomplete"
METRICS = frozenset({*_COUNTED.values(), *_ENDED.values(), *_MEASURES, _INCOMPLETE})
"""The names of all metrics."""

_FLAGS_ON = frozenset({"1", "true", "yes", "on", "t", "y"})


_AT_ONCE: frozenset[FactName] = frozenset({"lost", "dead", "holding"})
_MAX_FACTS = 50  # of a line: CloudWatch takes 100 values of a metric


class PowertoolsMetrics:
    """An observer that counts facts in CloudWatch, by lines of the embedded metric format.

    A call of a decorated function is one line: counts are added up, and a measure that was taken more than once is a
    list of numbers. The line is printed when the call ends. Facts collected before are printed with each renewal,
    before a hand-over, with a loss or a dead letter, and before a run that is too short for a renewal, so that a
    killed process loses little. Called directly, as by the sweeper, it prints each fact.

    It is independent of the function's own ``Metrics``. The keyspace is the only dimension; a sweeper's metrics have
    none, since it serves all keyspaces. Key, owner, fence and request id stand beside the numbers, for CloudWatch Logs
    Insights.

    It is safe to call from any thread.
    """

    def __init__(self, namespace: str, *, stream: TextIO | None = None) -> None:
        """Print to ``stream`` (default: standard output). ``namespace`` is CloudWatch's."""
        from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

        self._namespace = namespace
        self._stream = stream
        self._make = EphemeralMetrics
        self._units = {True: MetricUnit.Milliseconds, False: MetricUnit.Count}

    def __call__(self, fact: Fact, /) -> None:
        """Print the fact's metrics, if it has any."""
        self.print([fact])

    def collect(self) -> "CollectedMetrics":
        """Return an observer that prints the facts of one call as one line."""
        return CollectedMetrics(self)

    def print(self, facts: Sequence[Fact]) -> None:
        """Print the metrics of one key's facts, if any, as one line. It names the owner of the last fact."""
        numbers: dict[str, list[int]] = {}
        last: Fact | None = None
        for each in facts:
            for name, value in measured(each).items():
                numbers.setdefault(name, []).append(value)
                last = each
        if last is None:
            return
        values = {name: each if name in _MEASURES else [sum(each)] for name, each in numbers.items()}
        metrics = self._make(namespace=self._namespace)
        metrics.service = ""  # an alarm names its dimensions exactly: an environment variable must not add one
        for name in values:
            metrics.add_metric(name=name, unit=self._units[name.endswith("Ms")], value=0)
        if last.keyspace:
            metrics.add_dimension(name="keyspace", value=last.keyspace)
        for name, said in (
            ("lease_key", last.key),
            ("owner", last.owner),
            ("fence", last.fence),
            ("request_id", last.request_id),
        ):
            if said not in (None, ""):
                metrics.add_metadata(name, said)
        line: dict[str, Any] = {**metrics.serialize_metric_set()}
        # A list only where there are several: Logs Insights calls the parts of a list `WaitMs.0`, `WaitMs.1`.
        line.update({name: each[0] if len(each) == 1 else each for name, each in values.items()})
        # One write: a line of another thread must not come in between.
        stream = self._stream or sys.stdout
        stream.write(f"{json.dumps(line)}\n")
        stream.flush()


class CollectedMetrics:
    """An observer that keeps the facts of one call for one line. Safe to use from any thread."""

    facts = frozenset({*_COUNTED, *_MEASURED, "run_ended"})

    def __init__(self, metrics: PowertoolsMetrics) -> None:
        """Begin without facts. ``metrics`` prints the line."""
        self._metrics = metrics
        self._facts: list[Fact] = []
        self._lock = threading.Lock()

    def __call__(self, fact: Fact, /) -> None:
        """Keep a fact that has metrics. Print at once a fact that alarms use."""
        if not measured(fact):
            return
        with self._lock:
            self._facts.append(fact)
            full = len(self._facts) >= _MAX_FACTS
        if full or fact.fact in _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Print the kept facts."""
        with self._lock:
            facts, self._facts = self._facts, []
        self._metrics.print(facts)


def measured(fact: Fact) -> dict[str, int]:
    """Return the metrics of a fact, by name: whole milliseconds if the name ends in ``Ms``, else a count."""
    counted = _ENDED.get(fact.outcome) if fact.fact == "run_ended" else _COUNTED.get(fact.fact)
    numbers = {name: getattr(fact, field) for name, field in _MEASURED.get(fact.fact, {}).items()}
    if fact.fact == "swept" and fact.error is not None:
        numbers[_INCOMPLETE] = 1
    return ({counted: 1} if counted else {}) | {name: said for name, said in numbers.items() if said is not None}


def from_env(environ: Mapping[str, str]) -> tuple[Observer, ...]:
    """Return the metrics observer if ``INCUMBENT_METRICS_NAMESPACE`` is set and Powertools' own switch is not off."""
    namespace = environ.get("INCUMBENT_METRICS_NAMESPACE", "").strip()
    if not namespace or environ.get("POWERTOOLS_METRICS_DISABLED", "").strip().lower() in _FLAGS_ON:
        return ()
    return _metrics(namespace)


@functools.cache
def _metrics(namespace: str) -> tuple[Observer, ...]:
    try:
        return (PowertoolsMetrics(namespace),)
    except ImportError:  # what can be seen must not decide what is done
        LOG.warning(
            "INCUMBENT_METRICS_NAMESPACE is set, but aws-lambda-powertools is not installed: there are no metrics"
        )
        return ()


@runtime_checkable
class KeyedLogger(Protocol):
    """The part of Powertools' ``Logger`` that incumbent uses."""

    def append_keys(self, **additional_keys: object) -> None:
        """Add keys to every later line."""
        ...

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Leave keys out of every later line."""
        ...

    def get_current_keys(self) -> dict[str, Any]:
        """Return the keys that every line has now."""
        ...


def with_keys(logger: KeyedLogger, work: Callable[[Message, Lease], Any]) -> Callable[[Message, Lease], Any]:
    """Add the keys of the lease to the log lines of a run."""

    def keyed(message: Message, lease: Lease) -> Any:
        with lease_keys(logger, lease):
            return work(message, lease)

    return keyed


@contextmanager
def lease_keys(logger: KeyedLogger, lease: Lease) -> Iterator[None]:
    """Put ``lease_key``, ``owner``, ``fence`` and ``attempt`` on every line within this context.

    The logger has one set of keys for all threads: two runs at once in one process, which Lambda does not have, would
    see each other's keys.
    """
    keys = {"lease_key": lease.key, "owner": lease.owner, "fence": lease.fence, "attempt": lease.attempt}
    before = dict(logger.get_current_keys())  # what it returns is its own
    logger.append_keys(**keys)
    try:
        yield
    finally:
        logger.remove_keys([name for name in keys if name not in before])
        logger.append_keys(**{name: before[name] for name in keys if name in before})
