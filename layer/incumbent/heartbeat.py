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
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from incumbent.clock import Clock, Moment
from incumbent.errors import LeaseLost
from incumbent.owners import this_process
from incumbent.pacemaker import Pacemaker, pacemaker_of

_RETRY_MS = 250


class Renewal(NamedTuple):
    """The result of a renewal: the new deadline and, from a mailbox, how many messages wait.

    ``stop`` is the mark of the tenure: why its run should stop, which may be empty; ``None`` if it need not (M16).
    """

    deadline: Moment
    waiting: int | None = None
    stop: str | None = None


class Renewed(Protocol):
    """A tenure that a heartbeat renews, and that it tells what it notices."""

    def before_each(self) -> None:
        """Prepare for a renewal, in the pacemaker's thread."""
        ...

    def renew(self, give_up_at: Moment, /) -> Renewal:
        """Send one renewal. Begin no try whose answer could come after ``give_up_at``, the end of the lease.

        Raises ``LeaseLost`` when it is refused, and any other error when the outcome is unknown.
        """
        ...

    def make_lost(self, why: str, /) -> LeaseLost:
        """Make the error of a lease that is lost."""
        ...

    def on_lost(self, loss: LeaseLost, /) -> None:
        """Take note of the loss: called once, by the thread that notices, the pacemaker's or the run's."""
        ...

    def on_asked(self, reason: str, /) -> None:
        """Take note of the reason of a stop (M16): called once, by the thread that notices."""
        ...

    def on_error(self, error: Exception, /) -> None:
        """Take note of a renewal without an answer."""
        ...


class _Settled:
    """In the place of a tenure that is settled: nothing is renewed and nothing is noticed any more."""

    def before_each(self) -> None:
        """Do nothing."""

    def renew(self, _: Moment, /) -> Renewal:
        """Refuse."""
        raise self.make_lost("its run is over")

    def make_lost(self, why: str, /) -> LeaseLost:
        """Make the error."""
        return LeaseLost(f"the lease is lost: {why}")

    def on_lost(self, _: LeaseLost, /) -> None:
        """Do nothing."""

    def on_asked(self, _: str, /) -> None:
        """Do nothing."""

    def on_error(self, _: Exception, /) -> None:
        """Do nothing."""


_SETTLED = _Settled()


class Heartbeat:
    """Renews one tenure until it is stopped, lost, or the invocation is over (M13: never past the end).

    After ``run_ends`` nothing is renewed either, but the loss that follows is noticed (M20). Each renewal runs in a
    copy of the run's context variables.
    """

    __slots__ = (
        "_clock",
        "_context",
        "_ends",
        "_every_ms",
        "_held_until",
        "_is_stopped",
        "_lock",
        "_loss",
        "_of",
        "_pacemaker",
        "_process",
        "_run_ends",
        "asked",
        "waiting",
    )

    def __init__(
        self,
        of: Renewed,
        *,
        held_until: Moment,
        every_ms: int,
        invocation_ends: Moment | None,
        run_ends: Moment | None = None,
        clock: Clock,
        pacemaker: Pacemaker | None = None,
        asked: str | None = None,
    ) -> None:
        """Begin without a beat. ``asked`` is the mark of the tenure, if it was seen before."""
        self._of = of
        self._held_until = held_until
        self._every_ms = every_ms
        self._ends = invocation_ends
        self._run_ends = run_ends
        self._clock = clock
        self._pacemaker = pacemaker_of(clock) if pacemaker is None else pacemaker
        self._loss: LeaseLost | None = None
        self._lock = threading.Lock()  # held for moments, never while a request or a hook is under way
        self._context: contextvars.Context | None = None
        self._is_stopped = False
        self._process: object = None  # until it begins
        self.waiting: int | None = None
        self.asked = asked
        """The mark of the tenure, once it was seen (M16: stop)."""

    def start(self, now: Moment | None = None) -> bool:
        """Begin, unless the invocation ends before the first renewal is due. Return whether it began.

        ``now`` is the present, if the caller has just looked. Raises what a thread that cannot be started raises.
        """
        self._process = this_process()
        now = self._clock.now() if now is None else now
        due_ms = self._due_ms(now)
        if self._ends is not None and now.until(self._ends) <= due_ms:
            return False
        self._context = contextvars.copy_context()
        self._pacemaker.add(self, _jitter(due_ms), now)
        return True

    def stop(self) -> bool:
        """Stop. No renewal is sent or in flight afterwards. Return whether this is a copy in a forked child."""
        self._is_stopped = True
        is_copy = self.is_copy
        if self._context is not None and not is_copy:
            self._pacemaker.remove(self)
        return is_copy

    def let_go(self) -> None:
        """Let go of the tenure, which is settled: its event and result are then freed at once, by no collector."""
        self._of, self._context = _SETTLED, None

    @property
    def is_copy(self) -> bool:
        """Whether this is a child process, forked from the one that the run is in."""
        return self._process is not None and self._process is not this_process()

    @property
    def is_known_held(self) -> bool:
        """Whether the deadline that this process knows is still in the future."""
        return self._clock.now().until(self._held_until) > 0

    @property
    def held_until(self) -> Moment:
        """Until when the owner may rely on the lease (R12: deadline)."""
        return self._held_until

    @property
    def loss(self) -> LeaseLost | None:
        """Why the lease is lost, noticed here at the latest; ``None`` while it is held, or in a forked copy."""
        return self._loss if self._loss is not None else self.loss_at(self._clock.now())

    def loss_at(self, now: Moment) -> LeaseLost | None:
        """Return the loss as of a moment, at which the caller has looked at the clock."""
        if self._loss is None and now.until(self._held_until) <= 0 and not self.is_copy:
            self.lose(self._of.make_lost("its deadline has passed without a renewal"))
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
        self._of.on_asked(mark)

    def lose(self, loss: LeaseLost) -> None:
        """Note that the lease is over. The first reason counts, and ``on_lost`` is called once."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
        self._of.on_lost(loss)

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
            self.lose(self._of.make_lost("a renewal was answered after its deadline"))
        self.note_stop(stop)

    def _renew_once(self, is_over: Callable[[], bool] = lambda: False) -> None:
        renewal = self._of.renew(self._held_until)  # a try that takes longer would hide the loss
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
        loss = self._of.make_lost("its heartbeat died")
        loss.__cause__ = cause
        self.lose(loss)

    def _beat(self) -> int | None:
        if self._is_stopped:
            return None
        self._of.before_each()
        if self._is_past(self._ends) or self.loss is not None:
            return None  # M13: never past the end
        if self._is_past(self._run_ends):
            return max(1, self._clock.now().until(self._held_until))  # to notice the loss while the run goes on
        pause_ms = None
        try:
            self._renew_once()
            pause_ms = _jitter(self._due_ms(self._clock.now()))
        except LeaseLost as refused:
            self.lose(refused)
        except Exception as error:  # noqa: BLE001 - not a loss: a failed renewal is retried until the deadline
            self._of.on_error(error)
            left_ms = self._clock.now().until(self._held_until)
            pause_ms = max(1, min(_jitter(min(_RETRY_MS, self._every_ms)), left_ms))
        return pause_ms if self._loss is None else None

    def _due_ms(self, now: Moment) -> int:
        """Return the time to the next renewal: the interval, or less if a slow answer used up much of the lease."""
        half_ms = now.until(self._held_until) // 2
        return self._every_ms if half_ms > self._every_ms else max(1, half_ms)

    def _is_past(self, ends: Moment | None) -> bool:
        return ends is not None and self._clock.now().until(ends) <= 0


def _jitter(most_ms: int) -> int:
    import random  # here, as the stores' clients load it too

    return most_ms - int(random.random() * (most_ms // 5 + 1))  # noqa: S311 - spreads owners that began at once
