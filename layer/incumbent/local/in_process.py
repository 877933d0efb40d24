"""Runs functions as threads of this process: for the memory provider, whose store is one process's own.

It is no Lambda: nothing is frozen, killed or cut off, and no variable says that it is one.
"""

import contextlib
import importlib.util
import io
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from incumbent import async_handlers
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.local.files import parse_json
from incumbent.local.fleet import request_id
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
from incumbent.local.isolated_aws import closed, closed_process
from incumbent.local.ledger import Ledger
from incumbent.local.template import LATEST, Function, FunctionSpec, find_function
from incumbent.local.timers import Timers
from incumbent.local.wake_queue import VARIABLE, WAITED_FOR_MS, WAITED_FOR_SKIPPING_MS, WakeQueue
from incumbent.pacemaker import pacemaker_of

_ENVIRONMENT = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a handler gets beside its event, in the shape of Lambda's own."""

    aws_request_id: str
    invoked_function_arn: str
    function_name: str
    memory_limit_in_mb: int
    log_stream_name: str
    clock: Clock
    deadline: Moment
    function_version: str = LATEST
    client_context: None = None
    identity: None = None

    @property
    def log_group_name(self) -> str:
        """The log group that Lambda would write to."""
        return f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left until the deadline, not below 0. Nothing happens at it."""
        return max(0, self.clock.now().until(self.deadline))


class InProcessLambda(Invoking):
    """Calls handlers in ``concurrency`` threads a function; a context manager, one at a time in a process.

    While it is open, what is printed goes to ``on_log``, the functions' variables are the process's, all of them
    together, and boto3 finds no AWS but the Invoke API of this one, with its queue of delayed wakes. Failed
    asynchronous invocations are retried as by `LocalLambda`. A trace id and a client context go no further.

    ``skip_pauses`` skips the time in which no invocation runs and something is waited for: a retry, a wake that is due
    within a day, a call that `after` was given. The system's clock is ahead in this process until the cloud closes.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        *,
        env: Mapping[str, str] | None = None,
        concurrency: int = 8,
        retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
        on_log: OnLog = ignore,
        on_invocation: OnInvocation = ignore,
        clock: Clock = SYSTEM_CLOCK,
        skip_pauses: bool = False,
    ) -> None:
        """Import nothing yet."""
        self._functions = tuple(functions)
        self._specs = [each for each in functions if isinstance(each, FunctionSpec)]
        self._env = dict(env or {})
        self._clock = clock
        self._retry_delays_ms = tuple(retry_delays_ms)
        self._ledger = Ledger(on_log, on_invocation)
        self._timers = Timers(clock, self._ledger, skip=self._skip if skip_pauses else None)
        self._ahead_ms = SYSTEM_CLOCK.skipped_ms
        self._handlers: dict[str, Callable[[Any, Context], Any]] = {}
        self._current = threading.local()
        self._threads = {
            spec.logical_id: ThreadPoolExecutor(concurrency, thread_name_prefix="incumbent-environment")
            for spec in self._specs
        }
        self._api = Server(InvokeApi, self)
        self._url = f"http://{self._api.address}"
        self.wake_queue = WakeQueue(
            self._url,
            lambda target, event: self.submit_bytes(target, event, asynchronous=True),
            ledger=self._ledger,
            timers=self._timers,
            clock=clock,
            waited_for_ms=WAITED_FOR_SKIPPING_MS if skip_pauses else WAITED_FOR_MS,
        )
        self._variables = {**closed(self._url), VARIABLE: self.wake_queue.url, **self._env}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self._api.stop)
        self._stack.enter_context(closed_process(closed(self._url)))
        self._stack.enter_context(_restored_imports([spec.path for spec in self._specs]))
        self._stack.enter_context(contextlib.redirect_stdout(_Lines(self._printed)))
        self._stack.enter_context(contextlib.redirect_stderr(_Lines(self._printed)))
        for threads in self._threads.values():
            self._stack.callback(threads.shutdown)
        self._stack.callback(self._timers.close)
        self._api.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        SYSTEM_CLOCK.skipped_ms = self._ahead_ms

    def check_function(self, function: str) -> None:
        """Raise ConfigurationError where there is no such function."""
        self._find(function)

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
        spec, arn = self._find(function)
        pending = Pending(request_id())
        sent_at_ms = self._clock.now().wall_ms

        def run(attempt: int) -> None:
            invocation = self._attempt(
                spec,
                parse_json(body),
                pending.request_id,
                arn=arn,
                label=label,
                asynchronous=asynchronous,
                attempt=attempt,
                sent_at_ms=sent_at_ms,
            )
            if self._ledger.ended(invocation):
                self._timers.after(invocation.retried_in_ms or 0, lambda: begin(attempt + 1))
            else:
                pending.resolve(invocation)
            self._timers.ended()

        def begin(attempt: int) -> None:
            self._timers.begun()
            self._threads[spec.logical_id].submit(run, attempt)

        self._ledger.began()
        begin(1)
        return pending

    def warm(self, function: str, environments: int | None = None) -> None:
        """Import the function's handler.

        Raises:
            ConfigurationError: there is no such function.
            CannotStart: it cannot be imported; the text says why.
        """
        spec, _ = self._find(function)
        try:
            self._handler(spec)
        except Exception as cause:
            raise CannotStart(f"{function} cannot start: {type(cause).__name__}: {cause}") from cause

    def wait_idle(self, timeout_ms: int = 300_000) -> None:
        """Wait until no invocation runs, waits or is to be retried, and raise what a listener raised.

        Raises:
            TimeoutError: that took longer than ``timeout_ms``.
        """
        self._ledger.wait_idle(timeout_ms)

    @property
    def is_idle(self) -> bool:
        """Whether no invocation runs, waits or is to be retried."""
        return self._ledger.is_idle

    def after(self, ms: int, call: Callable[[], object], *, waited_for: bool = True) -> None:
        """Call in so many milliseconds; `wait_idle` waits for that if it is ``waited_for``."""
        (self._timers.awaited if waited_for else self._timers.after)(ms, call)

    def _skip(self, ms: int) -> bool:
        if self._ledger.is_idle:
            return False
        SYSTEM_CLOCK.skipped_ms += ms
        pacemaker_of(SYSTEM_CLOCK).stir()
        return True

    def _attempt(
        self,
        spec: FunctionSpec,
        event: Any,
        request_id: str,
        *,
        arn: str,
        label: str,
        asynchronous: bool,
        attempt: int,
        sent_at_ms: int,
    ) -> Invocation:
        started = self._clock.now()
        context = Context(
            aws_request_id=request_id,
            invoked_function_arn=arn,
            function_name=spec.name,
            memory_limit_in_mb=spec.memory_mb,
            log_stream_name=threading.current_thread().name,
            clock=self._clock,
            deadline=started.plus(spec.timeout_ms),
        )
        lines: list[LogLine] = []
        self._current.work = (spec.logical_id, request_id, lines)
        payload: Any = None
        error: dict[str, Any] | None = None
        outcome = Outcome.OK
        try:
            payload = parse_json(json.dumps(self._handler(spec)(event, context)))
        except BaseException as raised:  # noqa: BLE001 - a handler may even exit, and its caller is told
            outcome = Outcome.ERROR
            error = {
                "errorType": type(raised).__name__,
                "errorMessage": str(raised),
                "stackTrace": traceback.format_tb(raised.__traceback__)[1:],  # without this frame
            }
        async_handlers.close()  # its thread may not come again
        self._current.work = None
        again = asynchronous and error is not None and attempt <= spec.max_retry_attempts
        return Invocation(
            request_id=request_id,
            label=label,
            function=spec.logical_id,
            invoked_arn=arn,
            environment=_ENVIRONMENT,
            log_stream=context.log_stream_name,
            asynchronous=asynchronous,
            attempt=attempt,
            cold_start=False,
            sent_at_ms=sent_at_ms,
            started_at_ms=started.wall_ms,
            ended_at_ms=self._clock.now().wall_ms,
            outcome=outcome,
            event=event,
            payload=payload,
            error=error,
            logs=tuple(lines),
            retried_in_ms=retry_delay_ms(self._retry_delays_ms, attempt) if again else None,
        )

    def _handler(self, spec: FunctionSpec) -> Callable[[Any, Context], Any]:
        with self._ledger.changed:
            handler = self._handlers.get(spec.logical_id)
            if handler is None:
                os.environ.update(_variables(spec, self._variables))
                handler = self._handlers[spec.logical_id] = _import_handler(spec)
            return handler

    def _find(self, function: str) -> tuple[FunctionSpec, str]:
        """The function, and the ARN that it is invoked by."""
        name, qualifier = split_function_name(function)
        spec = find_function(self._functions, name)
        return spec, spec.arn + (f":{qualifier}" if qualifier else "")

    def _printed(self, text: str) -> None:
        work: tuple[str, str, list[LogLine]] | None = getattr(self._current, "work", None)
        line = LogLine(
            at_ms=self._clock.now().wall_ms,
            function=work[0] if work else "",
            environment=_ENVIRONMENT,
            log_stream=threading.current_thread().name,
            request_id=work[1] if work else None,
            text=text,
        )
        if work:
            work[2].append(line)
        self._ledger.printed(line)


class _Lines(io.TextIOBase):
    """A text stream that passes on whole lines, each thread's own."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._begun = threading.local()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun.text = (getattr(self._begun, "text", "") + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)


def _variables(spec: FunctionSpec, env: Mapping[str, str]) -> dict[str, str]:
    variables = {**spec.environment, **env}
    return {name: value for name, value in variables.items() if not name.startswith("AWS_LAMBDA_")}


def _import_handler(spec: FunctionSpec) -> Callable[[Any, Context], Any]:
    module_name, _, name = spec.handler.rpartition(".")
    file = spec.code.joinpath(*module_name.replace("/", ".").split(".")).with_suffix(".py")
    # Not by its name: every function's module is called app, and the second one must not be the first.
    found = importlib.util.spec_from_file_location(module_name, file)
    if module_name.partition(".")[0] == "incumbent":  # the layer's, which is here
        layers: Callable[[Any, Context], Any] = getattr(importlib.import_module(module_name), name)
        return layers
    if found is None or found.loader is None or not file.is_file():
        raise ImportError(f"there is no module {module_name} in CodeUri")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    handler: Callable[[Any, Context], Any] = getattr(module, name)
    return handler


@contextlib.contextmanager
def _restored_imports(paths: Sequence[Sequence[os.PathLike[str]]]) -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    folders = tuple(str(folder) for each in paths for folder in each)
    sys.path[:0] = list(dict.fromkeys(folders))
    code = tuple(str(each[0]) + os.sep for each in paths)
    try:
        yield
    finally:
        sys.path[:] = path
        # Only what came from the functions' own folders is forgotten: it has the variables of this time in it.
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(code):
                del sys.modules[name]
