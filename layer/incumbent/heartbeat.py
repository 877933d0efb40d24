"""The heartbeat of a run: renews its lease while it goes on, and notices when the lease is lost.

The process's pacemaker calls it from a thread, so that a handler that holds the event loop or burns CPU does not starve
it. It is stopped before its run is settled and before the handler returns, and stopping waits for a renewal that is in
flight: then Lambda freezes the environment, and what remained would renew inside the next invocation.

A lease is lost when a renewal is refused, when its deadline has passed (R12), or when the thread dies. A loss is final:
a renewal that is answered after the deadline revives nothing (R3: expiry).

A child process that a run forks gets a copy without the thread. It cannot see the renewals of its parent, so it reports
no loss.
"""

import contextvars
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from incumbent.clock import Clock, Moment
from incumbent.errors import LeaseLost
from incumbent.pacemaker import Pacemaker, pacemaker_of

_RETRY_MS = 250


class Renewal(NamedTuple):
    """The result of a renewal: the new deadline and, from a mailbox, how many messages wait.

    ``stop`` is the mark of the tenure: why its run should stop, which may be empty; ``None`` if it need not (M16).
    """

    deadline: Moment
    waiting: int | None = None
    stop: str | None = None


class Heartbeat:
    """Renews one tenure until it is stopped, lost, or the invocation is over (M13: never past the end).

    ``renew`` sends one renewal and begins no try whose answer could come after the moment that it is given, the end of
    the lease; it raises ``LeaseLost`` when it is refused and any other error when the outcome is unknown. ``on_lost``
    is called once, with the reason, by the thread that notices: this one, or the run's. So is ``on_asked``, with the
    reason of a stop (M16). After ``run_ends`` nothing is renewed either, but the loss that follows is noticed (M20).
    Each renewal runs in a copy of the run's context variables. ``before_each`` is called before it.
    """

    def __init__(
        self,
        renew: Callable[[Moment], Renewal],
        *,
        held_until: Moment,
        every_ms: int,
        invocation_ends: Moment | None,
        run_ends: Moment | None = None,
        clock: Clock,
        on_lost: Callable[[LeaseLost], None],
        on_error: Callable[[Exception], None],
        on_asked: Callable[[str], None] = lambda _: None,
        lost: Callable[[str], LeaseLost],
        before_each: Callable[[], None] = lambda: None,
        pacemaker: Pacemaker | None = None,
    ) -> None:
        self._renew = renew
        self._held_until = held_until
        self._every_ms = every_ms
        self._ends = invocation_ends
        self._run_ends = run_ends
        self._clock = clock
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_asked = on_asked
        self._make_lost = lost
        self._before_each = before_each
        self._pacemaker = pacemaker_of(clock) if pacemaker is None else pacemaker
        self._loss: LeaseLost | None = None
        self._lock = threading.Lock()  # held for moments, never while a request or a hook is under way
        self._context: contextvars.Context | None = None
        self._is_stopped = False
        self._process = os.getpid()
        self.waiting: int | None = None
        self.asked: str | None = None
        """The mark of the tenure, once it was seen (M16: stop)."""

    def start(self) -> bool:
        """Begin, unless the invocation ends before the first renewal is due. Return whether it began.

        Raises what a thread that cannot be started raises.
        """
        due_ms = self._due_ms()
        if self._ends is not None and self._clock.now().until(self._ends) <= due_ms:
            return False
        self._context = contextvars.copy_context()
        self._pacemaker.add(self, _jitter(due_ms))
        return True

    def stop(self) -> None:
        """Stop. No renewal is sent or in flight afterwards."""
        self._is_stopped = True
        if self._context is not None and not self.is_copy:
            self._pacemaker.remove(self)

    @property
    def is_copy(self) -> bool:
        """Whether this is a child process, forked from the one that the run is in."""
        return os.getpid() != self._process

    @property
    def is_known_held(self) -> bool:
        """Whether the deadline that this process knows is still in the future."""
        return self._left_ms() > 0

    @property
    def held_until(self) -> Moment:
        """Until when the owner may rely on the lease (R12: deadline)."""
        return self._held_until

    @property
    def loss(self) -> LeaseLost | None:
        """Why the lease is lost, noticed here at the latest; ``None`` while it is held, or in a forked copy."""
        if self._loss is None and not self.is_known_held and not self.is_copy:
            self.lose(self._make_lost("its deadline has passed without a renewal"))
        return self._loss

    @property
    def is_over(self) -> bool:
        """Whether nothing is renewed any more: the time of the invocation or of the run is over (M13, M20)."""
        return self._is_past(self._ends) or self._is_past(self._run_ends)

    def note_stop(self, mark: str | None) -> None:
        """Note what an answer of the store says of a stop. The first mark counts, and ``on_asked`` is called once."""
        if mark is None:
            return
        with self._lock:
            if self.asked is not None:
                return
            self.asked = mark
        self._on_asked(mark)

    def lose(self, loss: LeaseLost) -> None:
        """Note that the lease is over. The first reason counts, and ``on_lost`` is called once."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
        self._on_lost(loss)

    def renew(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Renew now, from the run itself. Sends nothing once the invocation is over (M13: never past the end).

        ``is_over`` is called after the answer: if the run has ended meanwhile, a refusal concerns only the caller,
        since the lease was released and not lost.

        Raises ``LeaseLost`` when the lease is over, and ``LeaseUnavailable`` when the store gave no answer; the lease
        is still held until its deadline then.
        """
        if self.loss is not None:
            raise self.loss
        if self.is_over:
            return
        try:
            self._renew_once(is_over)
        except LeaseLost as refused:
            if is_over():
                raise
            self.lose(refused)
        if not is_over() and self.loss is not None:
            raise self.loss

    def extend(self, held_until: Moment, *, waiting: int | None, stop: str | None = None) -> None:
        """Note a renewal by the heartbeat or by another call.

        A renewal that is answered after the deadline revives nothing (R3: expiry). Of two that overlap, the one sent
        later counts, by the monotonic clock: the wall clock may have been set back in between.
        """
        with self._lock:
            late = self._clock.now().until(self._held_until) <= 0
            if self._loss is None and not late:
                if held_until.mono_ms > self._held_until.mono_ms:
                    self._held_until = held_until
                self.waiting = waiting
        if late:
            self.lose(self._make_lost("a renewal was answered after its deadline"))
        self.note_stop(stop)

    def _renew_once(self, is_over: Callable[[], bool] = lambda: False) -> None:
        renewal = self._renew(self._held_until)  # a try that takes longer would hide the loss
        if not is_over():
            self.extend(renewal.deadline, waiting=renewal.waiting, stop=renewal.stop)

    def beat(self) -> int | None:
        """Renew as the pacemaker says. Return in how many milliseconds the next is due; ``None`` when all is over."""
        try:
            return None if self._context is None else self._context.run(self._beat)
        except BaseException as died:  # noqa: BLE001 - if the heartbeat dies, the run must learn of it
            self.die(died)
            return None

    def die(self, cause: BaseException) -> None:
        """Note that no renewal comes any more, since the thread died."""
        loss = self._make_lost("its heartbeat died")
        loss.__cause__ = cause
        self.lose(loss)

    def _beat(self) -> int | None:
        if self._is_stopped:
            return None
        self._before_each()
        if self._is_past(self._ends) or self.loss is not None:
            return None  # M13: never past the end
        if self._is_past(self._run_ends):
            return max(1, self._left_ms())  # to notice the loss while the run goes on
        pause_ms = None
        try:
            self._renew_once()
            pause_ms = _jitter(self._due_ms())
        except LeaseLost as refused:
            self.lose(refused)
        except Exception as error:  # noqa: BLE001 - not a loss: a failed renewal is retried until the deadline
            self._on_error(error)
            pause_ms = max(1, min(_jitter(min(_RETRY_MS, self._every_ms)), self._left_ms()))
        return pause_ms if self._loss is None else None

    def _due_ms(self) -> int:
        """Return the time to the next renewal: the interval, or less if a slow answer used up much of the lease."""
        return max(1, min(self._every_ms, self._left_ms() // 2))

    def _left_ms(self) -> int:
        return self._clock.now().until(self._held_until)

    def _is_past(self, ends: Moment | None) -> bool:
        return ends is not None and self._clock.now().until(ends) <= 0


def _jitter(most_ms: int) -> int:
    import random  # here, as the stores' clients load it too

    return most_ms - int(random.random() * (most_ms // 5 + 1))  # noqa: S311 - spreads owners that began at once
