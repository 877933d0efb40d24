"""The handle that a run gets: what it holds, what it was started for, and when to stop."""

import enum
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError, LeaseLost, LeaseUnavailable
from incumbent.heartbeat import Heartbeat
from incumbent.values import Message


class Stop(enum.Enum):
    """Why a run should end now."""

    LOST = "lost"
    """The lease is over; whatever is written from here on must be refused by its fence."""
    DEADLINE = "deadline"
    """The invocation is nearly over: keep what is done and ``return lease.defer()``."""


class Deferred:
    """What ``lease.defer()`` returns, for the handler to return: not done, go on in the next invocation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED: Final = Deferred()


class Lease:
    """One run's hold of a key.

    ``key`` is the user's, without its keyspace; ``owner`` names this run; ``fence`` grows with every grant of the key
    (0 from a provider that has none); ``messages`` is what the run was started for, oldest first.

    It is safe to use from any thread of the run. It is worth nothing after the handler returned.

    A child process that the run forks has a copy. Its ``key``, ``owner``, ``fence`` and ``messages`` are good. What
    the parent renews or loses is not seen: ``stop`` is ``LOST`` only if it was before the fork, and once the deadline
    that was known then has passed, ``assert_held()`` raises ``LeaseUnavailable``. ``renew``, ``take`` and ``defer`` are
    the parent's and raise ``ConfigurationError``. Look at ``stop`` in the parent, and tell the child.

    Not promised: that no other run exists while ``stop`` is ``None``. A paused process may look too late, so give
    ``fence`` to what you write to, and let that refuse a smaller one.
    """

    def __init__(
        self,
        *,
        key: str,
        owner: str,
        fence: int,
        messages: Sequence[Message],
        heartbeat: Heartbeat,
        take: Callable[[Sequence[str]], Sequence[Message]],
        ends: Moment | None,
        stop_before_ms: int,
        waiting: int,
        clock: Clock,
        can_defer: bool,
    ) -> None:
        self.key: Final = key
        """The key as the decorator made it from the event, without its keyspace; too long a one is digested."""
        self.owner: Final = owner
        """The opaque name of this run."""
        self.fence: Final = fence
        """Grows with every grant of the key; 0 from a provider that has none."""
        self.messages: Final = tuple(messages)
        """What this run was started for, oldest first. ``take()`` does not add to it."""
        self._heartbeat = heartbeat
        self._take = take
        self._ends = ends
        self._stop_before_ms = stop_before_ms
        self._waiting = waiting
        self._clock = clock
        self._can_defer = can_defer
        self._taken: list[Message] = []
        self._taking = threading.Lock()
        self._deferred = False
        self._ended = False
        self._callback: Callable[[], object] | None = None

    @property
    def attempt(self) -> int:
        """Which delivery of the first message this is: 1 for the first."""
        return self.messages[0].attempt

    @property
    def waiting(self) -> int:
        """How many messages are due besides this run's, as of the last request; costs none."""
        seen = self._heartbeat.waiting
        return self._waiting if seen is None else seen

    @property
    def time_left_ms(self) -> int | None:
        """Milliseconds until the invocation ends; ``None`` where that is not known."""
        return None if self._ends is None else max(0, self._clock.now().until(self._ends))

    @property
    def stop(self) -> Stop | None:
        """Why this run should end now, or ``None``. Look at it between steps; costs no request."""
        if self._ended or self._heartbeat.loss is not None:
            return Stop.LOST
        left_ms = self.time_left_ms
        if left_ms is not None and left_ms <= self._stop_before_ms:
            return Stop.DEADLINE
        return None

    def assert_held(self) -> None:
        """Raise ``LeaseLost`` if the lease is over, as far as can be told without a request.

        It is also over for what a run leaves behind when it returns, a task or a thread. In a forked child process it
        raises ``LeaseUnavailable`` once nothing is known any more.
        """
        if self._ended:  # first: what a run has left behind must not be the one to notice a loss
            raise LeaseLost(
                f"the run of key {self.key!r} is over: what it has left behind holds nothing",
                key=self.key,
                owner=self.owner,
            )
        if self._heartbeat.loss is not None:
            raise self._heartbeat.loss
        if self._heartbeat.is_copy and not self._heartbeat.is_known_held:
            raise LeaseUnavailable(
                f"key {self.key!r}: a child process does not see whether its parent has renewed the lease; look at "
                "lease.stop in the parent, or give the fence to what you write to",
                key=self.key,
            )

    def renew(self) -> None:
        """Renew now. For handlers that starve the heartbeat, in long calls that hold the GIL.

        Raises ``LeaseLost``, or ``LeaseUnavailable`` when the store gave no answer (the lease is held until its
        deadline all the same).
        """
        self._refuse_in_a_child("renew")
        self.assert_held()
        self._heartbeat.renew(lambda: self._ended)

    def take(self) -> list[Message]:
        """Take what has arrived since, oldest first: it becomes part of this run. One request.

        What failed before is not among it: it gets a run of its own. Once the invocation is over nothing is (M13).
        Raises ``LeaseLost``, or ``LeaseUnavailable`` when the store gave no answer; then nothing is lost, and the next
        ``take`` brings it.
        """
        self._refuse_in_a_child("take")
        self.assert_held()
        if self.time_left_ms == 0:
            return []
        with self._taking:  # two threads must not be given the same message
            try:
                arrived = list(self._take([message.id for message in self.held]))
            except LeaseLost as refused:
                if not self._ended:  # else it was given up meanwhile, and not lost
                    self._heartbeat.lose(refused)
                raise
            self._taken += arrived
        self.assert_held()
        return arrived

    def defer(self) -> Deferred:
        """Say that this run cannot finish: ``return lease.defer()``.

        Its messages keep their place, no attempt is counted, and the next invocation of the key goes on. Keep what
        is done (a checkpoint under the fence) before you return.

        Raises ``ConfigurationError`` with a provider that only leases: raise instead, so that the source retries.
        """
        self._refuse_in_a_child("defer")
        if not self._can_defer:
            raise ConfigurationError(
                f"defer() of key {self.key!r}: this provider stores no messages, so nobody would go on; raise instead, "
                "and the source retries",
                key=self.key,
            )
        self._deferred = True
        return DEFERRED

    def _refuse_in_a_child(self, call: str) -> None:
        if self._heartbeat.is_copy:
            raise ConfigurationError(
                f"{call}() of key {self.key!r} in a child process: the run is its parent's; call it there, and pass on "
                "what it brings",
                key=self.key,
            )

    def end(self) -> None:
        """The run has returned: from now on the handle holds nothing."""
        self._ended = True

    @property
    def ended(self) -> bool:
        """Whether the run has returned."""
        return self._ended

    def when_lost(self, callback: Callable[[], object] | None) -> None:
        """Call this once when the lease is lost, from whichever thread notices; now if it is lost already."""
        self._callback = callback
        if self._heartbeat.loss is not None:
            self.lost()

    def lost(self) -> None:
        """Do what ``when_lost`` was given."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def deferred(self) -> bool:
        """Whether ``defer()`` was called."""
        return self._deferred

    @property
    def held(self) -> tuple[Message, ...]:
        """All messages of this run: those it was started for, and those it took."""
        return (*self.messages, *self._taken)


_CURRENT: ContextVar[Lease | None] = ContextVar("incumbent_lease", default=None)


def current_lease() -> Lease | None:
    """The lease of the run that is calling, also in what it awaits; ``None`` outside of runs.

    A context variable carries it: threads that a handler starts itself do not inherit it (``contextvars`` tells how).
    """
    return _CURRENT.get()
