"""What Powertools shows of incumbent's work: metrics in CloudWatch's embedded format, keys in the log lines of a run.

Powertools is imported by whoever asks for metrics, and by nobody else.
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
    "store_error": "StoreErrors",
    "swept": "SweeperRan",
}
_ENDED = {"handled": "RunCompleted", "failed": "RunFailed"}
_MEASURED: Mapping[FactName, Mapping[str, str]] = {
    "claimed": {"MailboxDepth": "waiting"},
    "routed": {"MailboxDepth": "waiting"},
    "run_started": {"WaitMs": "waited_ms"},
    "released": {"HoldMs": "ms"},
    "handed_over": {"HoldMs": "ms"},
    "swept": {"OrphansFound": "waiting", "OldestWaitingMs": "ms"},
}
_MEASURES = frozenset(name for each in _MEASURED.values() for name in each)
METRICS = frozenset({*_COUNTED.values(), *_ENDED.values(), *_MEASURES})
"""The names of all metrics."""

_FLAGS_ON = frozenset({"1", "true", "yes", "on", "t", "y"})


_AT_ONCE: frozenset[FactName] = frozenset({"lost", "dead"})
_MOST_FACTS = 50  # of a line: CloudWatch takes 100 values of a metric


class PowertoolsMetrics:
    """An observer that counts facts in CloudWatch, by lines of the embedded metric format.

    A call of a decorated function is one line: counts are added up, and a measure that was taken more than once is a
    list of numbers. The line is printed when the call ends; what was collected before is printed with each renewal,
    before a hand-over, with a loss or a dead letter, and before a run that is too short for a renewal, so that a
    process which is killed takes little of it along. Called by itself, as the sweeper does, it prints each fact.

    The function's own ``Metrics`` have nothing to do with it. The keyspace is the one dimension; a sweeper's metrics
    have none, since it serves all keyspaces. Key, owner, fence and request id stand beside the numbers, for CloudWatch
    Logs Insights.

    It is safe to call from any thread.
    """

    def __init__(self, namespace: str, *, stream: TextIO | None = None) -> None:
        """``namespace`` is CloudWatch's; ``stream`` is standard output unless given."""
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
        """Print the metrics of facts of one key as one line, if they have any; it names the owner of the last one."""
        numbers: dict[str, list[int]] = {}
        counting = [fact for fact in facts if measured(fact)]
        for fact in counting:
            for name, value in measured(fact).items():
                numbers.setdefault(name, []).append(value)
        if not counting:
            return
        fact = counting[-1]
        values = {name: each if name in _MEASURES else [sum(each)] for name, each in numbers.items()}
        metrics = self._make(namespace=self._namespace)
        metrics.service = ""  # an alarm names its dimensions exactly: an environment variable must not add one
        for name in values:
            metrics.add_metric(name=name, unit=self._units[name.endswith("Ms")], value=0)
        if fact.keyspace:
            metrics.add_dimension(name="keyspace", value=fact.keyspace)
        for name, said in (
            ("lease_key", fact.key),
            ("owner", fact.owner),
            ("fence", fact.fence),
            ("request_id", fact.request_id),
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
    """Keeps the facts of one call for one line; safe to use from any thread."""

    def __init__(self, metrics: PowertoolsMetrics) -> None:
        """``metrics`` prints the line."""
        self._metrics = metrics
        self._facts: list[Fact] = []
        self._lock = threading.Lock()

    def __call__(self, fact: Fact, /) -> None:
        """Keep a fact that counts; print at once what an alarm waits for."""
        if not measured(fact):
            return
        with self._lock:
            self._facts.append(fact)
            full = len(self._facts) >= _MOST_FACTS
        if full or fact.fact in _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Print what was kept."""
        with self._lock:
            facts, self._facts = self._facts, []
        self._metrics.print(facts)


def measured(fact: Fact) -> dict[str, int]:
    """The metrics of a fact, by name: whole milliseconds where the name ends in ``Ms``, else a number."""
    counted = _ENDED.get(fact.outcome or "") if fact.fact == "run_ended" else _COUNTED.get(fact.fact)
    numbers = {name: getattr(fact, field) for name, field in _MEASURED.get(fact.fact, {}).items()}
    return ({counted: 1} if counted else {}) | {name: said for name, said in numbers.items() if said is not None}


def from_env(environ: Mapping[str, str]) -> tuple[Observer, ...]:
    """The metrics that ``INCUMBENT_METRICS_NAMESPACE`` asks for; none when Powertools' own switch is off."""
    namespace = environ.get("INCUMBENT_METRICS_NAMESPACE", "").strip()
    if not namespace or environ.get("POWERTOOLS_METRICS_DISABLED", "").strip().lower() in _FLAGS_ON:
        return ()
    return _metrics(namespace)


@functools.cache
def _metrics(namespace: str) -> tuple[Observer, ...]:
    try:
        return (PowertoolsMetrics(namespace),)
    except ImportError:  # what can be seen must not decide what is done
        LOG.warning("INCUMBENT_METRICS_NAMESPACE is set, but aws-lambda-powertools is not here: there are no metrics")
        return ()


@runtime_checkable
class KeyedLogger(Protocol):
    """Powertools' ``Logger``, as far as it is used here."""

    def append_keys(self, **additional_keys: object) -> None:
        """Add keys to every line from here on."""
        ...

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Leave keys out from here on."""
        ...

    def get_current_keys(self) -> dict[str, Any]:
        """The keys that every line has now."""
        ...


def with_keys(logger: KeyedLogger, work: Callable[[Message, Lease], Any]) -> Callable[[Message, Lease], Any]:
    """Make a run whose log lines say under which lease they were written."""

    def keyed(message: Message, lease: Lease) -> Any:
        with lease_keys(logger, lease):
            return work(message, lease)

    return keyed


@contextmanager
def lease_keys(logger: KeyedLogger, lease: Lease) -> Iterator[None]:
    """``lease_key``, ``owner``, ``fence`` and ``attempt`` on every line meanwhile; then as it was before.

    The keys are the logger's, whichever thread it is asked from: two runs at once in one process, which Lambda does
    not have, would see each other's.
    """
    keys = {"lease_key": lease.key, "owner": lease.owner, "fence": lease.fence, "attempt": lease.attempt}
    before = dict(logger.get_current_keys())  # what it returns is its own
    logger.append_keys(**keys)
    try:
        yield
    finally:
        logger.remove_keys([name for name in keys if name not in before])
        logger.append_keys(**{name: before[name] for name in keys if name in before})
