"""The thread that renews leases: one for all runs of a process, asleep while none is live.

It waits until a renewal is due, sends it, and waits again. Lambda may freeze the process at any moment: what is due is
decided when the thread wakes, by both clocks (``Heartbeat.beat``). A run costs no thread: it is added when it starts
and removed when it ends, and its removal waits for a renewal that is in flight.

A thread that sends a renewal keeps no time meanwhile. If other runs are live then, a second thread keeps the time for
them, so that a slow store delays one run only; the first thread ends when it has its answer.
"""

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.owners import this_process


class Heart(Protocol):
    """What a pacemaker lets beat."""

    def beat(self) -> int | None:
        """Beat once. Return in how many milliseconds the next beat is due, or ``None`` if it was the last."""
        ...

    def die(self, cause: BaseException) -> None:
        """Take note that no further beat comes, since the thread died."""
        ...


class _Keeper:
    """The thread that keeps the time; there is one at most."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None  # unless it has been started and goes on


class _Flight:
    """One beat under way."""

    __slots__ = ("landed", "thread_id")

    def __init__(self, landed: threading.Event) -> None:
        self.landed = landed
        self.thread_id = threading.get_ident()


class Pacemaker:
    """Lets hearts beat when they are due by ``clock``, each as long as it wants to and is not removed.

    ``stays``: the thread sleeps while there are no hearts; else it ends then.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        stays: bool = True,
        thread: Callable[..., threading.Thread] = threading.Thread,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self._clock = clock
        self._stays = stays
        self._make_thread = thread
        self._make_event = event
        self._begin()

    def _begin(self) -> None:
        """Begin without a thread: at first, and in a forked child, which has none of its parent's threads."""
        self._process = this_process()
        self._lock = threading.Lock()  # held for moments, never while a beat is under way
        self._due: dict[Heart, Moment] = {}
        self._flights: dict[Heart, _Flight] = {}
        self._keeper: _Keeper | None = None
        self._sleeps_until: Moment | None = None
        self._wake = self._make_event()

    @property
    def live(self) -> int:
        """How many hearts beat."""
        return len(self._due)

    def add(self, heart: Heart, in_ms: int, now: Moment | None = None) -> None:
        """Let a heart beat in so many milliseconds, and then as it says.

        ``now`` is the present, if the caller has just looked. Raises ``RuntimeError`` if no thread can be started; then
        the heart is not added.
        """
        if self._process is not this_process():
            self._begin()
        due = (self._clock.now() if now is None else now).plus(in_ms)
        with self._lock:
            self._due[heart] = due
            keeper = self._keeper
            # A thread that an exception kept from starting, or that a bug has ended, is replaced.
            if keeper is None or keeper.thread is None:
                try:
                    self._appoint()
                except BaseException:
                    del self._due[heart]
                    raise
            elif self._sleeps_until is None or due.mono_ms < self._sleeps_until.mono_ms:
                self._sleeps_until = due
                self._wake.set()

    def remove(self, heart: Heart) -> None:
        """Let a heart beat no more. When this returns, none of its beats is under way, except the caller's own."""
        with self._lock:
            self._due.pop(heart, None)
            flight = self._flights.get(heart)
            if not self._due and not self._stays:
                self._wake.set()
        if flight is not None and flight.thread_id != threading.get_ident():
            flight.landed.wait()

    # --- in the thread

    def stir(self) -> None:
        """Look at the clock again: it was moved on."""
        self._wake.set()

    def _appoint(self) -> None:
        """Start the thread that keeps the time from now on. Called under the lock."""
        keeper = self._keeper = _Keeper()
        try:
            thread = self._make_thread(
                target=functools.partial(self._keep_time, keeper), name="incumbent-heartbeat", daemon=True
            )
            thread.start()
            keeper.thread = thread
        except BaseException:
            self._keeper = None
            raise

    def _keep_time(self, keeper: _Keeper) -> None:
        try:
            while (heart := self._next(keeper)) is not None:
                self._beat(heart, keeper)
        except BaseException as died:  # noqa: BLE001 - if the thread dies, the runs must learn of it
            with self._lock:
                hearts, self._due = list(self._due), {}
                self._keeper = None
            for heart in hearts:
                heart.die(died)
        finally:
            keeper.thread = None

    def _next(self, keeper: _Keeper) -> Heart | None:
        """Wait until a heart is due, and return it. Return ``None`` when this thread is needed no more."""
        while True:
            with self._lock:
                if self._keeper is not keeper:
                    return None
                self._wake.clear()
                resting = [heart for heart in self._due if heart not in self._flights]
                if not resting and not self._stays:
                    self._keeper = None
                    return None
                now = self._clock.now()
                first = min(resting, key=lambda heart: self._due[heart].mono_ms, default=None)
                if first is not None:
                    self._sleeps_until = self._due[first]
                    if now.until(self._sleeps_until) <= 0:
                        self._take_off(first, others=len(resting) > 1)
                        return first
                elif self._sleeps_until is not None and now.until(self._sleeps_until) <= 0:
                    self._sleeps_until = None
                # Without a run it sleeps on until then, so that the next runs need not wake it.
                wait_ms = None if self._sleeps_until is None else now.until(self._sleeps_until)
            if wait_ms is None:
                self._wake.wait()
            else:
                self._clock.wait_ms(self._wake, wait_ms)

    def _take_off(self, heart: Heart, *, others: bool) -> None:
        """Stop keeping the time, for a beat. Another thread keeps it for ``others``; if none can start, they wait."""
        self._flights[heart] = _Flight(self._make_event())
        self._keeper = None
        if others:
            with suppress(RuntimeError):
                self._appoint()

    def _beat(self, heart: Heart, keeper: _Keeper) -> None:
        """Let a heart beat that is due, and keep the time again if no other thread does."""
        next_ms: int | None = None
        try:
            next_ms = heart.beat()
        finally:
            with self._lock:
                flight = self._flights.pop(heart)
                if heart in self._due:
                    if next_ms is None:
                        del self._due[heart]
                    else:
                        self._due[heart] = self._clock.now().plus(next_ms)
                if self._keeper is None:
                    self._keeper = keeper
                else:
                    self._wake.set()
            flight.landed.set()


def pacemaker_of(clock: Clock) -> Pacemaker:
    """Return the pacemaker of this process, by the system's clock, or a new one for the clock of a test."""
    return _of_this_process() if clock is SYSTEM_CLOCK else Pacemaker(clock, stays=False)


@functools.cache
def _of_this_process() -> Pacemaker:
    return Pacemaker(SYSTEM_CLOCK)
