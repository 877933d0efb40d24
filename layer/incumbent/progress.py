"""How far an invocation has come, and what it still has time and means for."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from incumbent.calls import Call
from incumbent.clock import Clock, Moment
from incumbent.contract import LeaseProvider, Mailbox
from incumbent.lease import Lease
from incumbent.observe import FactName, Observer
from incumbent.own_message import OwnMessage
from incumbent.owners import new_owners
from incumbent.pacemaker import Pacemaker
from incumbent.reporting import Reporter
from incumbent.settings import Settings
from incumbent.values import Debounce, Message
from incumbent.wakers import Waker, can_delay


class Setup(NamedTuple):
    """What all invocations of one handler share. ``mailbox`` is the provider, if it stores messages.

    ``stores``, ``debounce`` and ``beat_ms`` are the settings'. ``interrupts``: a claim does so (M16). ``heard`` are the
    facts that the observers take; ``None`` if one of them is made anew for each invocation.
    """

    provider: LeaseProvider
    mailbox: Mailbox | None
    settings: Settings
    stores: bool
    debounce: Debounce | None
    interrupts: bool
    beat_ms: int
    heard: frozenset[FactName] | None
    clock: Clock
    pacemaker: Pacemaker
    waker: Waker | None = None
    observers: Sequence[Observer] = ()
    on_result: Callable[[Message, Any], object] | None = None
    on_lost: Callable[[Lease], object] | None = None
    on_dead_letter: Callable[[Message], object] | None = None


class Progress:
    """One invocation: its call, its message, the facts that it reports, and what it decides by."""

    __slots__ = ("_owners", "began", "call", "clock", "longest_ms", "may_wake", "own", "report", "settings", "setup")

    def __init__(self, setup: Setup, call: Call) -> None:
        self.setup = setup
        self.settings = setup.settings
        self.clock = setup.clock
        self.call = call
        self.own = OwnMessage(call, setup.settings.policy)
        self.report = Reporter(call, setup.clock, setup.observers, setup.on_dead_letter, setup.heard)
        self.began = setup.clock.now()
        self.longest_ms = 0
        """How long the longest run has taken: another one may take as long."""
        self.may_wake = setup.waker is not None
        """Whether the waker is still trusted: no wake of this invocation has failed."""
        self._owners: list[str] = []

    def new_owner(self) -> str:
        """Make the owner string of one run."""
        if not self._owners:
            self._owners = new_owners(self.call.origin.request_id)
        return self._owners.pop()

    def can_wake(self) -> bool:
        """Return whether the rest can be handed over; a chain that is too long is cut and left to the sweeper."""
        return self.may_wake and self.call.hops < self.settings.max_hops

    def can_wake_later(self) -> bool:
        """Return whether this invocation can have the key's function woken at a later moment."""
        return self.can_wake() and can_delay(self.setup.waker) and self.call.origin.target is not None

    def caller_waits(self) -> bool:
        """Return whether a caller is blocked on this response, unless ``drain_ms`` decides."""
        return self.call.synchronous if self.settings.drain_ms is None else self.settings.drain_ms == 0

    def should_hand_over_first(self, messages: Sequence[Message]) -> bool:
        """Return whether a caller waits for the answer while these older messages go first and can be handed over."""
        own = self.own
        return self.may_wake and own.is_open and self.caller_waits() and self.can_wake() and not own.is_among(messages)

    def time_for_another(self, now: Moment) -> bool:
        """Return whether the next message, as of now, runs here, and is not handed over."""
        if self.may_wake and not self.own.is_open and self.caller_waits() and self.can_wake():
            return False  # the caller has waited for its own run and waits for no other
        if self.settings.drain_ms is not None and self.began.until(now) >= self.settings.drain_ms:
            return False
        if self.call.ends is None:
            return True
        return now.until(self.call.ends) - self.stop_before_ms() > self.longest_ms

    def stop_before_ms(self) -> int:
        """Return how many milliseconds before the invocation's end a run should end."""
        if self.settings.stop_before_ms is not None:
            return self.settings.stop_before_ms
        if self.call.ends is None:
            return 0
        return min(5_000, max(0, self.began.until(self.call.ends)) // 4)
