"""The handle that a run gets: the key that it holds, the messages that it runs, and when to stop."""

import enum
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError, LeaseLost, LeaseUnavailable
from incumbent.heartbeat import Heartbeat
from incumbent.validation import from_json
from incumbent.values import Message


class Stop(enum.Enum):
    """Why a run should end now."""

    LOST = "lost"
    """The lease is over; every later write must be refused by its fence."""
    ASKED = "asked"
    """An operator or a later message has asked this run to stop (M16): keep what is done and return. ``stop_reason``
    says why."""
    DEADLINE = "deadline"
    """The invocation is nearly over: keep what is done and ``return lease.defer()``."""


class Deferred:
    """The result of ``lease.defer()``, for the handler to return: not done, continue in the next invocation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEFERRED"


DEFERRED: Final = Deferred()


def _take_nothing(_: Sequence[str], /) -> Sequence[Message]:
    return ()


class Lease:
    """One run's hold of a key.

    ``key`` is the user's, without its keyspace; ``owner`` names this run; ``fence`` grows with every grant of the key
    (0 from a provider that has none); ``messages`` holds what the run was started for, oldest first.

    It is safe to use from any thread of the run. After the handler has returned it holds nothing.

    A child process that the run forks has a copy. The copy's ``key``, ``owner``, ``fence`` and ``messages`` are valid,
    but it does not see what the parent renews or loses: ``stop`` is ``LOST`` only if it was before the fork, and once
    the deadline known at the fork has passed, ``assert_held()`` raises ``LeaseUnavailable``. ``renew``, ``take`` and
    ``defer`` work only in the parent and raise ``ConfigurationError`` in the child. Check ``stop`` in the parent, and
    tell the child.

    Does not guarantee that no other run exists while ``stop`` is ``None``: a paused process may check too late. Pass
    ``fence`` to every system that you write to, and let that system refuse a smaller one.
    """

    __slots__ = (
        "_callback",
        "_can_defer",
        "_clock",
        "_deferred",
        "_ended",
        "_ends",
        "_heartbeat",
        "_stop_before_ms",
        "_take",
        "_taken",
        "_taker",
        "_taking",
        "_unsent_note",
        "_waiting",
        "_when_asked",
        "cancelled",
        "fence",
        "key",
        "messages",
        "owner",
    )

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
        """The key as the decorator read it from the event, without its keyspace; a key that is too long is digested."""
        self.owner: Final = owner
        """The opaque name of this run."""
        self.fence: Final = fence
        """The fence, which grows with every grant of the key; 0 from a provider that has none."""
        self.messages: Final = tuple(messages)
        """The messages that this run was started for, oldest first. ``take()`` does not add to them."""
        self._heartbeat = heartbeat
        self._take = take
        self._ends = ends
        self._stop_before_ms = stop_before_ms
        self._waiting = waiting
        self._clock = clock
        self._can_defer = can_defer
        self._taken: list[Message] = []
        self._taking = threading.Lock()
        self._taker: int | None = None
        self._deferred = False
        self._ended = False
        self._callback: Callable[[], object] | None = None
        self._when_asked: Callable[[], object] | None = None
        self._unsent_note: Any = None
        self.cancelled: bool = False
        """Whether a stop has cancelled the handler, which let the ``CancelledError`` out (``cancel_on_stop``)."""

    @property
    def attempt(self) -> int:
        """How many times the first message was delivered, this delivery included: 1 for the first."""
        return self.messages[0].attempt

    @property
    def waiting(self) -> int:
        """How many messages are due besides this run's, as of the last request. Sends no request."""
        seen = self._heartbeat.waiting
        return self._waiting if seen is None else seen

    @property
    def time_left_ms(self) -> int | None:
        """Milliseconds until the invocation ends; ``None`` if that is not known."""
        return None if self._ends is None else max(0, self._clock.now().until(self._ends))

    @property
    def stop(self) -> Stop | None:
        """Why this run should end now, or ``None``. Check it between steps; it sends no request."""
        if self._ended or self._heartbeat.loss is not None:
            return Stop.LOST
        if self._heartbeat.asked is not None:
            return Stop.ASKED
        time_left_ms = self.time_left_ms
        if time_left_ms is not None and time_left_ms <= self._stop_before_ms:
            return Stop.DEADLINE
        return None

    @property
    def stop_reason(self) -> str | None:
        """Why this run was asked to stop, which may be empty; ``None`` if it was not. Sends no request."""
        return self._heartbeat.asked

    def assert_held(self) -> None:
        """Raise ``LeaseLost`` if the lease is over, as far as is known without a request.

        For a task or thread that outlives its run, the lease is over when the handler returns. In a forked child
        process this raises ``LeaseUnavailable`` once the deadline known at the fork has passed.
        """
        if self._ended:  # first: a task that outlives its run must not be the one to notice a loss
            raise LeaseLost(
                f"the run of key {self.key!r} is over: a task or thread that outlives it does not hold the lease",
                key=self.key,
                owner=self.owner,
            )
        if self._heartbeat.loss is not None:
            raise self._heartbeat.loss
        if self._heartbeat.is_copy and not self._heartbeat.is_known_held:
            raise LeaseUnavailable(
                f"key {self.key!r}: a child process does not see whether its parent has renewed the lease; check "
                "lease.stop in the parent, or pass the fence to every system that you write to",
                key=self.key,
            )

    def renew(self) -> None:
        """Renew now, in a handler that starves the heartbeat by long calls that hold the GIL.

        Raises ``LeaseLost``, or ``LeaseUnavailable`` when the store gave no answer (the lease is still held until its
        deadline).
        """
        self._refuse_in_a_child("renew")
        self.assert_held()
        self._heartbeat.renew(lambda: self._ended)

    def take(self) -> list[Message]:
        """Take the messages that have arrived since, oldest first, into this run. Sends one request.

        A message that failed before is not among them: it gets its own run. Once the invocation's time is over the
        list is empty (M13: never past the end). Raises ``LeaseLost``, or ``LeaseUnavailable`` when the store gave no
        answer; then nothing is lost, and the next ``take`` returns the messages. In a signal handler that interrupts
        a ``take`` it raises ``ConfigurationError``.
        """
        self._refuse_in_a_child("take")
        self.assert_held()
        if self._heartbeat.is_over:
            return []
        taker = threading.get_ident()
        if self._taker == taker:  # it would wait for itself
            raise ConfigurationError(
                f"take() of key {self.key!r} was called while the same thread is in take(): in a signal handler, only "
                "note what has happened, and take in the run"
            )
        with self._taking:  # two threads must not be given the same message
            self._taker = taker
            try:
                arrived = list(self._take([message.id for message in self.held]))
            except LeaseLost as refused:
                if not self._ended:  # else it was released meanwhile, and not lost
                    self._heartbeat.lose(refused)
                raise
            finally:
                self._taker = None
            self._taken += arrived
        self.assert_held()
        return arrived

    def note(self, value: Any) -> None:
        """Note how far this run has come, for ``status`` and ``show``: JSON of at most 1,024 bytes (M18).

        It is sent with the next renewal, so it costs no request. The last one counts, and it ends with the run. Raises
        ``ConfigurationError`` for a value that is not JSON or too large, and with a provider that only leases.
        """
        from incumbent.providers.shared import check_note  # only runs that note load the rules

        self._refuse_in_a_child("note")
        if not self._can_defer:
            raise ConfigurationError(f"note() of key {self.key!r}: this provider stores no messages", key=self.key)
        text = check_note(self.key, value)
        self._unsent_note = None if text is None else from_json(text)  # as it is now, whatever becomes of the value

    @property
    def unsent_note(self) -> Any:
        """The last note, while no renewal has sent it."""
        return self._unsent_note

    def note_sent(self, note: Any) -> None:
        """Note that a renewal has sent it."""
        if self._unsent_note is note:
            self._unsent_note = None

    def defer(self) -> Deferred:
        """Leave this run's messages to the next invocation: ``return lease.defer()``.

        The messages keep their place, and no attempt is counted. Save the progress (a checkpoint under the fence)
        before you return.

        Raises ``ConfigurationError`` with a provider that only leases: raise an error instead, so that the source
        retries.
        """
        self._refuse_in_a_child("defer")
        if not self._can_defer:
            raise ConfigurationError(
                f"defer() of key {self.key!r}: this provider stores no messages, so no invocation would continue; "
                "raise an error instead, and the source retries",
                key=self.key,
            )
        self._deferred = True
        return DEFERRED

    def _refuse_in_a_child(self, call: str) -> None:
        if self._heartbeat.is_copy:
            raise ConfigurationError(
                f"{call}() of key {self.key!r} in a child process: the run is its parent's; call it in the parent, and "
                "pass the result on",
                key=self.key,
            )

    def end(self) -> None:
        """Note that the run has returned: from now on the handle holds nothing."""
        self._ended = True
        self._take = _take_nothing

    @property
    def ended(self) -> bool:
        """Whether the run has returned."""
        return self._ended

    def when_lost(self, callback: Callable[[], object] | None) -> None:
        """Call this once when the lease is lost, from the thread that notices; now if it is lost already."""
        self._callback = callback
        if callback is not None and not self._ended and self._heartbeat.loss is not None:
            self.lost()

    def when_asked(self, callback: Callable[[], object] | None) -> None:
        """Call this once when the run is asked to stop, from the thread that notices; now if it was asked already."""
        self._when_asked = callback
        if self._heartbeat.asked is not None:
            self.asked()

    def asked(self) -> None:
        """Call what ``when_asked`` was given."""
        callback, self._when_asked = self._when_asked, None
        if callback is not None:
            callback()

    def lost(self) -> None:
        """Call what ``when_lost`` was given."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def deferred(self) -> bool:
        """Whether ``defer()`` was called."""
        return self._deferred

    def holds(self, message_id: str) -> bool:
        """Return whether a message is one of this run's."""
        return self.messages[0].id == message_id or message_id in [message.id for message in self.held]

    @property
    def held(self) -> tuple[Message, ...]:
        """All messages of this run: those that it was started for, and those that it took."""
        return (*self.messages, *self._taken) if self._taken else self.messages


_CURRENT: ContextVar[Lease | None] = ContextVar("incumbent_lease", default=None)


def current_lease() -> Lease | None:
    """Return the lease of the calling run, also in what the run awaits; ``None`` outside runs.

    A context variable carries it: a thread that the handler starts does not inherit it unless it runs in a copy of the
    handler's context (``contextvars.copy_context``).
    """
    return _CURRENT.get()
