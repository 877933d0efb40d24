"""One execution environment: a process of the real runtime client and the Runtime API that it alone speaks to.

Because each environment has a listener of its own, who polls is known without asking, and a process that is
gone cannot swallow an invocation: what it did not read goes back to the queue. The kernel tells: a socket
that is closed with unread bytes in it answers with a reset, one that was read to the end with a plain end.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from incumbent.clock import Clock
from incumbent.local.files import parse_json
from incumbent.local.http_server import Handler, Server
from incumbent.local.invocations import LogLine, OnLog
from incumbent.local.output import Output, readable
from incumbent.local.process_reaper import ProcessReaper
from incumbent.local.template import LATEST, FunctionSpec
from incumbent.local.work import Work

_RUNTIME_API = "/2018-06-01/runtime"
_HANG_UP_MS = 1_000
_STOP_TRIES = 200


class Poll:
    """A worker's open long poll, until it is given work, or ``None`` when the environment ends."""

    __slots__ = ("connection", "environment", "given", "work")

    def __init__(self, environment: "Environment", connection: socket.socket) -> None:
        """Start with nothing given."""
        self.environment = environment
        self.connection = connection
        self.work: Work | None = None
        self.given = threading.Event()

    @property
    def hung_up(self) -> bool:
        """Whether the worker is gone: it has nothing to say while it polls, so anything to read is its end.

        Should it go a moment later, `_RuntimeApi.connection_ended` finds out.
        """
        return readable(self.connection, 0)


class Phase(Enum):
    """Where an environment is in its life."""

    STARTING = "starting"
    READY = "ready"
    GONE = "gone"


class Dispatcher(Protocol):
    """What an environment asks and tells; its fleet is one. Each call takes the fleet's lock itself."""

    def poll(self, poll: Poll) -> None:
        """A worker is ready for work."""
        ...

    def answered(self, environment: "Environment", work: Work, payload: bytes, error: Mapping[str, Any] | None) -> None:
        """A worker answered: the attempt is over."""
        ...

    def hung_up(self, environment: "Environment", work: Work, *, unread: bool) -> None:
        """The connection over which the work was given is gone, and the work not answered."""
        ...

    def stirred(self) -> None:
        """An environment was parked, or stopped or let go by hand: look again at what waits."""
        ...

    def ending(self, environment: "Environment") -> None:
        """The process is gone; its polls end."""
        ...

    def gone(self, environment: "Environment") -> None:
        """The process is gone and its connections too: decide what becomes of its work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all environments of one local Lambda have in common."""

    clock: Clock
    python: str
    variables: Mapping[str, str]
    workers: int | None
    freezing: bool
    reaper: ProcessReaper
    on_log: OnLog


class Environment:
    """A process that takes invocations, frozen between them where Lambda would freeze it.

    Tests may `freeze`, `thaw` and `kill` it at any moment. ``name`` is unique within one local Lambda.
    """

    def __init__(self, *, name: str, spec: FunctionSpec, settings: Settings, fleet: Dispatcher) -> None:
        """Start nothing yet."""
        self.name = name
        self.function = spec.logical_id
        day = datetime.fromtimestamp(settings.clock.now().wall_ms / 1_000, UTC)
        self.log_stream = f"{day:%Y/%m/%d}/[{LATEST}]{uuid.uuid4().hex}"
        self.phase = Phase.STARTING
        # Guarded by the fleet's lock:
        self.in_flight: list[Work] = []
        self.expected = settings.workers or 1  # polls that will come without anybody's doing
        self.polls_seen = 0
        self.cold = True
        # Set by its own side, read by the fleet:
        self.init_error: Mapping[str, Any] | None = None
        self.held = False
        self.killed = False
        self.last_line = ""
        self._spec = spec
        self._settings = settings
        self._fleet = fleet
        self._latest: Work | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._signals = threading.Lock()
        self._parked = False
        self._gone = threading.Event()
        self._api = Server(_RuntimeApi, self)
        self._output = Output(self._printed)

    # ---- what tests and callers use

    @property
    def pid(self) -> int:
        """The process id of the runtime client; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The invocations that it has at the moment."""
        return tuple(work.request_id for work in self.in_flight)

    @property
    def frozen(self) -> bool:
        """Whether its processes are stopped: parked between invocations, or by `freeze`."""
        return self._parked or self.held

    def freeze(self) -> None:
        """Stop the processes (SIGSTOP) wherever they are. It gets no invocation until `thaw`."""
        self._stop_or_go(held=True)
        self._fleet.stirred()

    def thaw(self) -> None:
        """Let the processes go on, unless it is between two invocations and would be frozen anyway."""
        self._stop_or_go(held=False)
        self._fleet.stirred()

    def kill(self) -> None:
        """End the processes (SIGKILL) and return when they are gone and their work is accounted for."""
        self.killed = True
        self.end()
        self.wait_gone()

    # ---- what the fleet uses

    @property
    def multi_concurrent(self) -> bool:
        """Whether several workers share it, as on Lambda Managed Instances."""
        return self._settings.workers is not None

    @property
    def settled(self) -> bool:
        """Return whether it is idle: no work, no answer on its way back, frozen if it should be."""
        if self.in_flight:
            return False
        parked = self._parked or not self._settings.freezing
        return self.phase is Phase.STARTING or (self.expected == 0 and parked)

    @property
    def exit_reason(self) -> str:
        """How the process ended, in Lambda's words."""
        code = self._process.returncode if self._process is not None else None
        if code is None or code == 0:
            return "Runtime exited without providing a reason"
        if code < 0:
            return f"Runtime exited with error: signal: {_signal_name(-code)}"
        return f"Runtime exited with error: exit status {code}"

    def start(self) -> None:
        """Start the process and what watches over it; return at once."""
        threading.Thread(target=self._keep, name=f"incumbent-{self.name}", daemon=True).start()

    def end(self) -> None:
        """End the processes (SIGKILL); return at once."""
        with self._signals:
            if self._process is None:
                self.phase = Phase.GONE  # it need not start any more
            elif self.phase is not Phase.GONE:
                _signal_group(self._process.pid, signal.SIGKILL)

    def wait_gone(self) -> None:
        """Wait until the processes are gone and their work is accounted for."""
        self._gone.wait()

    # ---- what its Runtime API uses

    def next_work(self, connection: socket.socket) -> Work | None:
        """Wait for work, frozen where Lambda would freeze; ``None`` when the environment ends.

        Polling again is what says that the last answer was read and all is quiet, so this is where it freezes.
        """
        poll = Poll(self, connection)
        self._fleet.poll(poll)
        if self._settings.freezing and not poll.given.is_set():
            self._stop_or_go(parked=True)
            self._fleet.stirred()
        poll.given.wait()
        self._latest = poll.work
        if self._parked:
            self._stop_or_go(parked=False)
        return poll.work

    def answer(self, work: Work, payload: bytes, error: Mapping[str, Any] | None) -> None:
        """Take a worker's answer, and before it what it printed."""
        self._output.drain(to_the_end=not self.multi_concurrent)
        self._fleet.answered(self, work, payload, error)

    def find(self, request_id: str) -> Work | None:
        """Return the work of that id which is in flight here."""
        return next((work for work in self.in_flight if work.request_id == request_id), None)

    def hung_up(self, work: Work, *, unread: bool) -> None:
        """Tell the fleet that a connection ended which had work and no answer."""
        self._fleet.hung_up(self, work, unread=unread)

    # ---- its own threads

    def _keep(self) -> None:
        self._api.start()
        with self._signals:
            if self.phase is Phase.STARTING:
                try:
                    self._process = self._started()
                    self._settings.reaper.hold(self._process.pid)
                except OSError as error:  # no such interpreter, no such folder
                    self.init_error = {"errorType": "Runtime.InvalidEntrypoint", "errorMessage": str(error)}
        self._output.start()
        if self._process is not None:
            self._process.wait()
        with self._signals:
            self.phase = Phase.GONE
            if self._process is not None:
                _signal_group(self._process.pid, signal.SIGKILL)  # what it may have started
                self._settings.reaper.drop(self._process.pid)
        self._fleet.ending(self)
        self._api.stop()
        self._api.wait_all_closed(_HANG_UP_MS)
        self._output.drain()
        self._fleet.gone(self)
        self._gone.set()

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [self._settings.python, "-m", "awslambdaric", self._spec.handler],
            cwd=self._spec.code,
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            stdout=self._output.write_end,
            stderr=self._output.write_end,
            pass_fds=(self._output.write_end,),
            process_group=0,  # so that signals reach what a handler starts, too
        )

    def _stop_or_go(self, *, held: bool | None = None, parked: bool | None = None) -> None:
        with self._signals:
            held = self.held if held is None else held
            parked = self._parked if parked is None else parked
            if self._process is not None and self.phase is not Phase.GONE:
                _signal_group(self._process.pid, signal.SIGSTOP if held or parked else signal.SIGCONT)
                if held or parked:
                    self._wait_stopped(self._process.pid)
            self.held, self._parked = held, parked

    def _wait_stopped(self, pid: int) -> None:
        """A signal takes effect a little later; who reads `frozen` should be able to rely on it."""
        if not hasattr(os, "waitid"):  # macOS has it since Python 3.13
            return
        how = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            for _ in range(_STOP_TRIES):  # bounded: another process may continue it meanwhile
                if os.waitid(os.P_PID, pid, how) is not None:
                    return
                self._settings.clock.sleep_ms(1)

    def _printed(self, text: str) -> None:
        work = None if self.multi_concurrent else self._latest
        line = LogLine(
            at_ms=self._settings.clock.now().wall_ms,
            function=self.function,
            environment=self.name,
            log_stream=self.log_stream,
            request_id=work.request_id if work is not None else None,
            text=text,
        )
        if text.strip():
            self.last_line = text.strip()
        if work is not None:
            work.logs.append(line)
        self._settings.on_log(line)

    def _variables(self) -> dict[str, str]:
        spec = self._spec
        variables = {
            # Nothing of the caller's own environment comes along, as on Lambda; PATH finds programs.
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in spec.path),
            "_HANDLER": spec.handler,
            "LAMBDA_TASK_ROOT": str(spec.code),
            "AWS_LAMBDA_RUNTIME_API": self._api.address,
            "AWS_LAMBDA_FUNCTION_NAME": spec.name,
            "AWS_LAMBDA_FUNCTION_VERSION": LATEST,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(spec.memory_mb),
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{spec.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": self.log_stream,
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            # Where the runtime client writes log records, framed: their text alone does not tell where one ends.
            "_LAMBDA_TELEMETRY_LOG_FD": str(self._output.write_end),
        }
        if spec.runtime is not None:
            variables["AWS_EXECUTION_ENV"] = f"AWS_Lambda_{spec.runtime}"
        if self._settings.workers is not None:
            variables["AWS_LAMBDA_MAX_CONCURRENCY"] = str(self._settings.workers)
        return variables | dict(spec.environment) | dict(self._settings.variables)


class _RuntimeApi(Handler):
    """The Lambda Runtime API, version 2018-06-01, for the workers of one environment."""

    _work: Work | None = None

    @property
    def _environment(self) -> Environment:
        environment: Environment = self.server.owner
        return environment

    def do_GET(self) -> None:  # noqa: N802 - the base class calls it by this name
        """Next invocation."""
        if self.path != f"{_RUNTIME_API}/invocation/next":
            self._refuse(404, "NotFound", self.path)
            return
        work = self._environment.next_work(self.connection)
        if work is None:
            self.close_connection = True
            return
        self._work = work
        self.reply(200, work.body, self._describe(work))

    def do_POST(self) -> None:  # noqa: N802 - as do_GET
        """Response, error, init error."""
        body = self.read_body()
        match self.path.removeprefix(_RUNTIME_API).strip("/").split("/"):
            case ["invocation", request_id, "response"]:
                unreadable = _unreadable(body)
                self._answer(request_id, body if unreadable is None else b"null", unreadable)
            case ["invocation", request_id, "error"]:
                self._answer(request_id, b"null", self._error(body))
            case ["init", "error"]:
                self._environment.init_error = self._error(body)
                self.reply(202, b'{"status":"OK"}')
            case _:
                self._refuse(404, "NotFound", self.path)

    def connection_ended(self, *, broken: bool) -> None:
        """Say what becomes of work that was given over this connection and not answered."""
        work = self._work
        if work is not None and not work.answered:
            # After its peer's orderly end, only the socket's error tells of a write that is not read.
            unread = broken or self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
            self._environment.hung_up(work, unread=unread)

    def _answer(self, request_id: str, payload: bytes, error: Mapping[str, Any] | None) -> None:
        work = self._work
        if work is None or work.request_id != request_id:  # it has opened another connection meanwhile
            work = self._environment.find(request_id)
        if work is None:
            self._refuse(400, "InvalidRequestID", f"not an invocation of this environment: {request_id}")
            return
        self._work = None
        self._environment.answer(work, payload, error)
        self.reply(202, b'{"status":"OK"}')

    def _error(self, body: bytes) -> Mapping[str, Any]:
        try:
            error = parse_json(body)
        except ValueError:
            error = None
        if isinstance(error, dict):
            return error
        kind = self.headers.get("Lambda-Runtime-Function-Error-Type") or "Runtime.Unknown"
        return {"errorType": kind, "errorMessage": body.decode(errors="replace")}

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self.reply(status, json.dumps({"errorType": kind, "errorMessage": message}).encode())

    def _describe(self, work: Work) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": work.request_id,
            "Lambda-Runtime-Deadline-Ms": str(work.deadline_at_ms),
            "Lambda-Runtime-Invoked-Function-Arn": work.invoked_arn,
            "Lambda-Runtime-Trace-Id": work.trace_id,
        }
        if work.client_context is not None:
            headers["Lambda-Runtime-Client-Context"] = work.client_context
        return headers


def _unreadable(body: bytes) -> Mapping[str, Any] | None:
    """The error in place of an answer that cannot be handed on: it is not JSON, or nested too deep to be read here."""
    try:
        parse_json(body)
    except ValueError as error:
        return {"errorType": "Local.AnswerUnreadable", "errorMessage": f"the answer cannot be read: {error}"}
    return None


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        os.killpg(pid, number)


def _signal_name(number: int) -> str:
    names = {9: "killed", 11: "segmentation fault", 15: "terminated"}
    return names.get(number, str(number))
