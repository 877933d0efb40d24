"""The environments of one function, and the invocations that wait for one.

Workers pull: an invocation waits in the queue until some worker polls. New environments are started for what
waits beyond the polls that are open or sure to come, so that a worker on its way back is not passed over.
"""

import functools
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from incumbent.local.environment import Environment, Phase, Poll, Settings
from incumbent.local.invocations import Outcome
from incumbent.local.template import FunctionSpec
from incumbent.local.timers import Timers
from incumbent.local.work import Work

# A worker that closes its connection to open another answers within this; after it, it counts as crashed.
_RECONNECT_MS = 500


class Ended(Protocol):
    """Told of every attempt that is over, without the lock."""

    def __call__(
        self,
        spec: FunctionSpec,
        work: Work,
        environment: Environment | None,
        *,
        outcome: Outcome,
        payload: bytes,
        error: Mapping[str, Any] | None,
    ) -> None:
        """Take one attempt: ``payload`` is JSON, ``error`` what went wrong where something did."""
        ...


class Fleet:
    """Hands the invocations of one function to its environments, at most ``limit`` of them."""

    def __init__(
        self,
        *,
        spec: FunctionSpec,
        settings: Settings,
        limit: int,
        init_timeout_ms: int,
        enforce_timeouts: bool,
        timers: Timers,
        changed: threading.Condition,
        ended: Ended,
    ) -> None:
        """Start nothing yet. ``changed`` is the lock of the whole local Lambda, notified of every change."""
        self.spec = spec
        self.environments: list[Environment] = []
        self.init_error: Mapping[str, Any] | None = None  # why the last environment that failed to start did
        self._settings = settings
        self._limit = limit
        self._init_timeout_ms = init_timeout_ms
        self._enforce_timeouts = enforce_timeouts
        self._timers = timers
        self._changed = changed
        self._ended = ended
        self._queue: deque[Work] = deque()
        self._polls: list[Poll] = []
        self._number = 0
        self._closed = False

    @property
    def quiet(self) -> bool:
        """Whether nothing waits and nothing goes on. To be asked under the lock."""
        return not self._queue and all(each.settled for each in self.environments)

    @property
    def ready(self) -> int:
        """How many environments have all their workers ready. To be asked under the lock."""
        workers = self._settings.workers or 1
        return sum(each.polls_seen >= workers for each in self.environments)

    def submit(self, work: Work) -> None:
        """Queue one attempt."""
        with self._changed:
            if not self._closed:
                self._queue.append(work)
                self._hand_out()
                return
        self._end(work, None, Outcome.CRASH, error=_closed())

    def warm(self, environments: int) -> None:
        """Start environments until there are that many, or as many as there may be."""
        with self._changed:
            self._start(min(environments, self._limit) - len(self.environments))

    def close(self) -> list[Environment]:
        """End all environments and give up what waits; return the environments, which may not be gone yet."""
        with self._changed:
            self._closed = True
            waiting, self._queue = list(self._queue), deque()
            environments = list(self.environments)
        for environment in environments:
            environment.end()
        for work in waiting:
            self._end(work, None, Outcome.CRASH, error=_closed())
        return environments

    # ---- what environments ask and tell

    def poll(self, poll: Poll) -> None:
        """A worker is ready for work."""
        with self._changed:
            environment = poll.environment
            environment.expected = max(0, environment.expected - 1)
            if environment.phase is Phase.GONE:
                poll.given.set()
                return
            environment.phase = Phase.READY
            environment.polls_seen += 1
            self._polls.append(poll)
            self._hand_out()
            self._changed.notify_all()

    def answered(self, environment: Environment, work: Work, payload: bytes, error: Mapping[str, Any] | None) -> None:
        """A worker answered: the attempt is over."""
        with self._changed:
            if work not in environment.in_flight or (work.timed_out and self._enforce_timeouts):
                return  # too late: its process is being ended
            environment.in_flight.remove(work)
            environment.expected += 1
            work.answered = True
        if not work.timed_out:  # where timeouts are not enforced, its caller has been told
            self._end(work, environment, Outcome.OK if error is None else Outcome.ERROR, payload, error)

    def hung_up(self, environment: Environment, work: Work, *, unread: bool) -> None:
        """A connection ended that had work. What was not read was never begun."""
        with self._changed:
            work.unread = work.unread or unread
            if not environment.multi_concurrent or environment.phase is Phase.GONE:
                return  # the end of the process decides
        if unread:
            self._give_back(environment, work)
        else:
            self._timers.after(_RECONNECT_MS, functools.partial(self._lost, environment, work))

    def stirred(self) -> None:
        """An environment was parked, or stopped or let go by hand: look again at what waits."""
        with self._changed:
            self._hand_out()
            self._changed.notify_all()

    def ending(self, environment: Environment) -> None:
        """The process is gone; its polls end."""
        with self._changed:
            # What waits may be this one's to fail (`gone` decides), so nothing is started for it yet.
            environment.expected = self._settings.workers or 1
            for poll in [poll for poll in self._polls if poll.environment is environment]:
                self._polls.remove(poll)
                poll.given.set()

    def gone(self, environment: Environment) -> None:
        """The process is gone: tell what became of its work, and start another where some waits."""
        with self._changed:
            self.environments.remove(environment)
            lost, environment.in_flight = environment.in_flight, []
            unlucky: Work | None = None
            if environment.polls_seen == 0 and not (environment.killed or self._closed):
                self.init_error = environment.init_error or _init_error(environment)
                unlucky = self._queue.popleft() if self._queue else None
        if unlucky is not None:
            unlucky.started_at_ms = self._settings.clock.now().wall_ms
            self._end(unlucky, environment, Outcome.INIT_ERROR, error=self.init_error)
        for work in reversed(lost):
            if work.unread and not work.timed_out and not self._closed:
                self._give_back(environment, work)
            elif work.timed_out and not self._enforce_timeouts:
                pass  # its caller has been told
            elif work.timed_out:
                self._end(work, environment, Outcome.TIMEOUT, error=self._timeout_error(work))
            else:
                self._end(work, environment, Outcome.CRASH, error=_exit_error(work, environment))
        with self._changed:
            self._hand_out()
            self._changed.notify_all()

    # ---- under the lock

    def _hand_out(self) -> None:
        while self._queue:
            poll = self._take_poll()
            if poll is None:
                break
            work = self._queue.popleft()
            environment = poll.environment
            environment.in_flight.append(work)
            work.started_at_ms = self._settings.clock.now().wall_ms
            work.deadline_at_ms = work.started_at_ms + self.spec.timeout_ms
            work.cold_start = environment.cold
            environment.cold = False
            work.deadline = self._timers.after(
                self.spec.timeout_ms, functools.partial(self._expired, environment, work)
            )
            poll.work = work
            poll.given.set()
        coming = sum(each.expected for each in self.environments if not each.held)
        per_environment = self._settings.workers or 1
        self._start(-(-(len(self._queue) - coming) // per_environment))

    def _take_poll(self) -> Poll | None:
        for poll in reversed(self._polls):  # the one used last, as Lambda does
            if poll.environment.held:
                continue
            self._polls.remove(poll)
            if not poll.hung_up:
                return poll
            poll.given.set()
        return None

    def _start(self, wanted: int) -> None:
        for _ in range(min(wanted, self._limit - len(self.environments))):
            if self._closed:
                return
            self._number += 1
            name = f"{self.spec.logical_id}-{self._number}"
            environment = Environment(name=name, spec=self.spec, settings=self._settings, fleet=self)
            self.environments.append(environment)
            self._timers.after(self._init_timeout_ms, functools.partial(self._init_expired, environment))
            environment.start()

    # ---- without the lock

    def _expired(self, environment: Environment, work: Work) -> None:
        with self._changed:
            if work not in environment.in_flight:
                return
            work.timed_out = True
        if self._enforce_timeouts:
            environment.end()
        else:  # the caller is told; the code runs on
            self._end(work, environment, Outcome.TIMEOUT, error=self._timeout_error(work))

    def _init_expired(self, environment: Environment) -> None:
        if environment.phase is Phase.STARTING:
            environment.init_error = {
                "errorType": "Sandbox.Timedout",
                "errorMessage": f"Init timed out after {self._init_timeout_ms / 1_000:.2f} seconds",
            }
            environment.end()

    def _give_back(self, environment: Environment, work: Work) -> None:
        with self._changed:
            if work in environment.in_flight:
                environment.in_flight.remove(work)
            if work.deadline is not None:
                work.deadline.cancel()
            work.unread = False
            work.logs.clear()
            self._queue.appendleft(work)
            self._hand_out()

    def _lost(self, environment: Environment, work: Work) -> None:
        with self._changed:
            if work not in environment.in_flight:
                return
            environment.in_flight.remove(work)
            self._changed.notify_all()
        if not work.timed_out:
            self._end(work, environment, Outcome.CRASH, error=_exit_error(work, environment))

    def _end(
        self,
        work: Work,
        environment: Environment | None,
        outcome: Outcome,
        payload: bytes = b"null",
        error: Mapping[str, Any] | None = None,
    ) -> None:
        if work.deadline is not None:
            work.deadline.cancel()
        self._ended(self.spec, work, environment, outcome=outcome, payload=payload, error=error)

    def _timeout_error(self, work: Work) -> Mapping[str, Any]:
        seconds = self.spec.timeout_ms / 1_000
        return {
            "errorType": "Sandbox.Timedout",
            "errorMessage": f"RequestId: {work.request_id} Error: Task timed out after {seconds:.2f} seconds",
        }


def request_id() -> str:
    """Return a new request id, as Lambda makes them."""
    return str(uuid.uuid4())


def _exit_error(work: Work, environment: Environment) -> Mapping[str, Any]:
    return {
        "errorType": "Runtime.ExitError",
        "errorMessage": f"RequestId: {work.request_id} Error: {environment.exit_reason}",
    }


def _init_error(environment: Environment) -> Mapping[str, Any]:
    said = f": {environment.last_line}" if environment.last_line else ""
    return {"errorType": "Runtime.ExitError", "errorMessage": f"Error: {environment.exit_reason}{said}"}


def _closed() -> Mapping[str, Any]:
    return {"errorType": "Local.Closed", "errorMessage": "the local Lambda was closed before it could run"}
