"""The local Lambda: the functions of a template, run by real runtime clients, behind an Invoke API."""

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.errors import ConfigurationError
from incumbent.local.environment import Environment, Settings
from incumbent.local.fleet import Fleet, request_id
from incumbent.local.http_server import Server
from incumbent.local.invocations import (
    RETRY_DELAYS_MS,
    CannotStart,
    Invocation,
    Invoking,
    LogLine,
    OnInvocation,
    OnLog,
    Outcome,
    Pending,
    ignore,
    retry_delay_ms,
)
from incumbent.local.invoke_api import InvokeApi, split_function_name
from incumbent.local.isolated_aws import closed
from incumbent.local.ledger import Ledger
from incumbent.local.process_reaper import ProcessReaper
from incumbent.local.template import Function, FunctionSpec, Template, find_function
from incumbent.local.timers import Timers
from incumbent.local.wake_queue import VARIABLE, WakeQueue
from incumbent.local.work import Work


class LocalLambda(Invoking):
    """Runs functions in processes of the real runtime client, started when they are needed.

    Use it as a context manager; at its end every process is killed. All methods may be called from any thread.

    It does: one invocation at a time an environment, warm reuse, cold starts, at most ``concurrency``
    environments a function (what comes beyond waits), freezing between invocations, timeouts by SIGKILL,
    crashes, retries of asynchronous invocations under the same request id, the Invoke API for boto3, and a
    queue for delayed wakes (``INCUMBENT_WAKE_QUEUE_URL``), whose messages invoke their targets when they are due.
    It does not: throttle, limit memory, detect recursion, run extensions, check permissions, poll queues or
    streams, or keep apart the versions and aliases of a function (the qualifier is passed on, the code is one).
    """

    def __init__(
        self,
        functions: Sequence[Function],
        *,
        env: Mapping[str, str] | None = None,
        concurrency: int = 8,
        workers_per_environment: int | None = None,
        enforce_timeouts: bool = True,
        freezing: bool = True,
        python: str | None = None,
        retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
        init_timeout_ms: int = 30_000,
        on_log: OnLog = ignore,
        on_invocation: OnInvocation = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Listen for invocations; start no process before one comes.

        Args:
            functions: What to run, as `Template.functions` or `Template.declared` has it.
            env: Variables that every function gets, beside its own and before them.
            concurrency: How many environments a function has at most.
            workers_per_environment: Unless ``None``, every environment is of the kind that Managed Instances
                have: so many worker processes, never frozen, timeouts not enforced.
            enforce_timeouts: Kill an environment whose invocation is not over at its deadline. Else the
                caller is told, and the code runs on.
            freezing: Stop an environment's processes between invocations.
            python: The interpreter that runs the functions, with awslambdaric in it; this one unless given.
            retry_delays_ms: The pauses before the retries of an asynchronous invocation, Lambda's 60 and 120 seconds
                unless given; the last one counts for all further ones. Below the ttl, a retry of an invocation that
                was killed finds its key taken, as it never does on Lambda.
            init_timeout_ms: How long an environment may take until it is ready.
            on_log: Called with each line that is printed, from several threads. What it raises, `wait_idle` raises.
            on_invocation: Called with each attempt that has ended; the same holds for it.
            clock: Where time comes from.

        Raises:
            ConfigurationError: an argument that cannot work.
        """
        _check_positive(concurrency=concurrency, init_timeout_ms=init_timeout_ms)
        if workers_per_environment is not None:
            _check_positive(workers_per_environment=workers_per_environment)
        self._clock = clock
        self._retry_delays_ms = tuple(retry_delays_ms)
        self._ledger = Ledger(on_log, on_invocation)
        self._closed = False
        self._timers = Timers(clock, self._ledger)
        self._reaper = ProcessReaper()
        self._api = Server(InvokeApi, self)
        self.wake_queue = WakeQueue(self.url, self._wake, ledger=self._ledger, timers=self._timers, clock=clock)
        multi_concurrent = workers_per_environment is not None
        settings = Settings(
            clock=clock,
            python=python or sys.executable,
            variables={**closed(self.url), VARIABLE: self.wake_queue.url, **(env or {})},
            workers=workers_per_environment,
            freezing=freezing and not multi_concurrent,
            reaper=self._reaper,
            on_log=self._ledger.printed,
        )
        self._functions = tuple(functions)
        self._concurrency = concurrency
        self._fleets = {
            spec.logical_id: Fleet(
                spec=spec,
                settings=settings,
                limit=concurrency,
                init_timeout_ms=init_timeout_ms,
                enforce_timeouts=enforce_timeouts and not multi_concurrent,
                timers=self._timers,
                changed=self._ledger.changed,
                ended=self._attempt_ended,
            )
            for spec in functions
            if isinstance(spec, FunctionSpec)
        }
        self._api.start()

    @classmethod
    def from_template(cls, path: Path | str, *, parameters: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Run the functions of the SAM template at ``path``.

        ``parameters`` are values of the template's parameters, ``settings`` the arguments of the class.

        Raises:
            ConfigurationError: the template cannot be read, or an argument cannot work.
        """
        return cls(Template.load(path, parameters).declared(settings.get("env") or ()), **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process, end every thread; what was not over ends as a crash. Twice is fine."""
        with self._ledger.changed:
            if self._closed:
                return
            self._closed = True
        self._api.stop()
        for environment in [each for fleet in self._fleets.values() for each in fleet.close()]:
            environment.wait_gone()
        self._timers.close()
        self._reaper.close()

    # ---- invoking

    @property
    def url(self) -> str:
        """The address of the Invoke API: ``boto3.client("lambda", endpoint_url=...)``."""
        return f"http://{self._api.address}"

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
        fleet, qualifier = self._find(function)
        now = self._clock.now()
        pending = Pending(request_id())
        work = Work(
            pending=pending,
            label=label,
            body=body,
            invoked_arn=fleet.spec.arn + (f":{qualifier}" if qualifier else ""),
            trace_id=trace_id or _trace_id(now.wall_ms),
            client_context=client_context,
            asynchronous=asynchronous,
            sent_at_ms=now.wall_ms,
        )
        self._ledger.began()
        fleet.submit(work)
        return pending

    def check_function(self, function: str) -> None:
        """Raise ConfigurationError where there is no such function."""
        self._find(function)

    def warm(self, function: str, environments: int | None = None) -> None:
        """Start environments until ``environments`` are ready for work (all there may be unless given).

        Raises:
            ConfigurationError: there is no such function.
            CannotStart: an environment could not start; the text is its own error.
        """
        fleet, _ = self._find(function)
        wanted = min(environments or self._concurrency, self._concurrency)
        with self._ledger.changed:
            fleet.init_error = None
        fleet.warm(wanted)
        with self._ledger.changed:
            self._ledger.changed.wait_for(lambda: fleet.ready >= wanted or fleet.init_error is not None or self._closed)
            error = fleet.init_error
        if error is not None:
            raise CannotStart(f"{function} cannot start: {error['errorType']}: {error['errorMessage']}")

    def wait_idle(self, timeout_ms: int = 300_000) -> None:
        """Wait until no invocation waits, runs or is to be retried and every environment is at rest.

        Raises:
            TimeoutError: that took longer than ``timeout_ms``.
        """
        self._ledger.wait_idle(timeout_ms, lambda: all(fleet.quiet for fleet in self._fleets.values()))

    @property
    def is_idle(self) -> bool:
        """Whether no invocation waits, runs or is to be retried."""
        return self._ledger.is_idle

    def after(self, ms: int, call: Callable[[], object], *, waited_for: bool = True) -> None:
        """Call in so many milliseconds; `wait_idle` waits for that if it is ``waited_for``."""
        (self._timers.awaited if waited_for else self._timers.after)(ms, call)

    # ---- looking

    def environments(self, function: str | None = None) -> tuple[Environment, ...]:
        """Return the environments that exist now, of one function or of all, oldest first."""
        with self._ledger.changed:
            fleets = self._fleets.values() if function is None else (self._find(function)[0],)
            return tuple(each for fleet in fleets for each in fleet.environments)

    @property
    def invocations(self) -> tuple[Invocation, ...]:
        """Every attempt that has ended, in the order in which they did."""
        return self._ledger.invocations

    @property
    def failures(self) -> tuple[Invocation, ...]:
        """The last attempts of the asynchronous invocations that were given up: the on-failure destination."""
        return self._ledger.failures

    @property
    def logs(self) -> tuple[LogLine, ...]:
        """Every line that was printed, in the order in which they were read."""
        return self._ledger.logs

    # ---- what the fleets tell

    def _attempt_ended(
        self,
        spec: FunctionSpec,
        work: Work,
        environment: Environment | None,
        *,
        outcome: Outcome,
        payload: bytes,
        error: Mapping[str, Any] | None,
    ) -> None:
        again = work.asynchronous and outcome is not Outcome.OK and work.attempt <= spec.max_retry_attempts
        invocation = work.ended(
            function=spec.logical_id,
            environment=environment.name if environment is not None else "",
            log_stream=environment.log_stream if environment is not None else "",
            now_ms=self._clock.now().wall_ms,
            outcome=outcome,
            payload=payload,
            error=error,
            retried_in_ms=retry_delay_ms(self._retry_delays_ms, work.attempt) if again else None,
        )
        if self._ledger.ended(invocation, lambda: not self._closed):
            following = work.next_attempt()
            self._timers.after(invocation.retried_in_ms or 0, lambda: self._fleets[spec.logical_id].submit(following))
        else:
            work.pending.resolve(invocation)

    def _wake(self, target: str, event: bytes) -> None:
        with self._ledger.changed:
            if self._closed:
                return
        self.submit_bytes(target, event, asynchronous=True)

    def _find(self, function: str) -> tuple[Fleet, str]:
        name, qualifier = split_function_name(function)
        return self._fleets[find_function(self._functions, name).logical_id], qualifier


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"{name} must be a whole number of at least 1, not {value!r}")


def _trace_id(now_ms: int) -> str:
    return f"Root=1-{now_ms // 1_000:08x}-{secrets.token_hex(12)};Parent={secrets.token_hex(8)};Sampled=0"
