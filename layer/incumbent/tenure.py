"""One tenure of a key: what was granted, and the lease and the heartbeat under which its messages run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from incumbent.backends import is_control
from incumbent.clock import Moment, deadline
from incumbent.errors import LeaseLost
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.lease import Lease
from incumbent.observe import guarded, leave_untraced
from incumbent.own_message import OwnMessage
from incumbent.progress import Progress
from incumbent.values import Claimed, Continued, Message

if TYPE_CHECKING:
    from incumbent.watch import Watch


class Tenure(NamedTuple):
    """What a claim or a settle granted: the owner that holds the key, and the messages that it runs.

    ``stop`` is its mark, if that was seen before its run begins (M16). ``spared`` are the messages that came with it:
    they are no part of the run, and run next.
    """

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    deadline: Moment
    stop: str | None = None
    spared: tuple[str, ...] = ()

    @classmethod
    def of(cls, granted: Claimed | Continued, own: OwnMessage) -> "Tenure":
        """Return the tenure that a claim or a settle granted."""
        messages = tuple(map(own.prepared, granted.messages))
        return cls(granted.owner, granted.fence, messages, granted.waiting, granted.deadline)

    @property
    def ids(self) -> list[str]:
        """The ids of its messages."""
        return [message.id for message in self.messages]


class Holding:
    """A tenure while its messages run: the handler's ``lease``, the ``heartbeat``, and the calls that both make."""

    __slots__ = (
        "_began",
        "_limit",
        "_progress",
        "_tenure",
        "_watch",
        "came_with_the_stop",
        "heartbeat",
        "lease",
        "spared",
    )

    def __init__(self, tenure: Tenure, progress: Progress, began: Moment, *, runs: bool = True) -> None:
        """Prepare for a run that begins now, or for the time before it, which has no limit of its own (M20)."""
        self._tenure = tenure
        self._progress = progress
        self._began = began
        call, setup = progress.call, progress.setup
        limit_ms = setup.settings.max_run_ms if runs else None
        self._limit = None if limit_ms is None else began.plus(limit_ms)
        self.heartbeat = Heartbeat(
            self,
            held_until=tenure.deadline,
            every_ms=setup.beat_ms,
            invocation_ends=call.ends,
            run_ends=self._limit,
            clock=setup.clock,
            pacemaker=setup.pacemaker,
            asked=tenure.stop,
        )
        self.spared = tenure.spared
        self.came_with_the_stop: list[str] = []
        self.lease = Lease(
            key=call.key,
            owner=tenure.owner,
            fence=tenure.fence,
            messages=tenure.messages,
            heartbeat=self.heartbeat,
            take=self._take,
            ends=call.ends,
            stop_before_ms=progress.stop_before_ms(),
            waiting=tenure.waiting,
            clock=setup.clock,
            can_defer=setup.mailbox is not None,
        )
        self._watch = None if setup.settings.watch_ms is None else self._make_watch(setup.settings.watch_ms)

    def start(self) -> None:
        """Begin to renew and to look for a stop. If there is nothing to renew, the facts so far are told now."""
        if not self.heartbeat.start(self._began):
            self._progress.report.flush()
        if self._watch is not None:
            self._watch.start()

    def stop(self) -> bool:
        """Stop both. No request is sent or in flight afterwards. Return whether this is a copy in a forked child."""
        is_copy = self.heartbeat.stop()
        if self._watch is not None:
            self._watch.stop()
        return is_copy

    def _make_watch(self, every_ms: int) -> "Watch | None":
        """Make the watch, where the provider can tell of a stop."""
        tenure, setup, provider = self._tenure, self._progress.setup, cast("object", self._progress.setup.provider)
        key = self._progress.call.full_key
        if not is_control(provider):
            return None
        from incumbent.watch import Watch  # here, as few functions watch

        return Watch(
            lambda: provider.watch(key, tenure.owner, fence=tenure.fence),
            self.heartbeat,
            every_ms=every_ms,
            pacemaker=setup.pacemaker,
            prepare=leave_untraced,
            on_error=self.on_error,
        )

    # --- for the heartbeat

    def renew(self, give_up_at: Moment) -> Renewal:
        """Send one renewal, with the run's note."""
        tenure, setup, key = self._tenure, self._progress.setup, self._progress.call.full_key
        ttl_ms = setup.settings.ttl_ms
        if setup.mailbox is not None:
            note = self.lease.unsent_note
            noted: dict[str, Any] = {} if note is None else {"note": note}
            beat = setup.mailbox.beat(key, tenure.owner, ttl_ms, fence=tenure.fence, give_up_at=give_up_at, **noted)
            if noted:
                self.lease.note_sent(note)
            self._report_holding()
            return Renewal(deadline=beat.deadline, waiting=beat.waiting, stop=beat.stop)
        sent = setup.clock.now()
        if not setup.provider.renew_lease(key, tenure.owner, ttl_ms):
            raise self.make_lost("its renewal was refused")
        self._report_holding()
        return Renewal(deadline=deadline(sent, ttl_ms))

    def _take(self, have: Sequence[str]) -> Sequence[Message]:
        if self._progress.setup.mailbox is None:
            return ()
        taken, held_until = take(self._tenure, self._progress, have, give_up_at=self.heartbeat.held_until)
        if not self.lease.ended:
            if mark_in(taken) is not None:
                self.came_with_the_stop += [message.id for message in taken]
            self.heartbeat.extend(held_until, waiting=0, stop=mark_in(taken))
        return taken

    def make_lost(self, why: str) -> LeaseLost:
        """Make the error of this lease."""
        key, settings = self._progress.call.key, self._progress.settings
        if self._limit is not None and self._progress.clock.now().until(self._limit) <= 0:
            why = f"its run took longer than max_run_ms ({settings.max_run_ms:,}), so it was not renewed any more"
        return LeaseLost(
            f"the lease of key {key!r} is lost: {why}; nothing of this run is settled, and its messages run again",
            key=key,
            owner=self._tenure.owner,
        )

    def before_each(self) -> None:
        """Print the facts so far, since the invocation may be cut off."""
        leave_untraced()
        self._progress.report.flush()

    def _report_holding(self) -> None:
        """Report that the key is held for long already: an alarm must not wait for its release."""
        held_ms = self._progress.began.until(self._progress.clock.now())
        if held_ms > self._progress.settings.ttl_ms:
            self._progress.report.tell("holding", owner=self._tenure.owner, fence=self._tenure.fence, ms=held_ms)

    def on_error(self, error: Exception) -> None:
        """Report a store that gave no answer."""
        self._progress.report.store_error(error, owner=self._tenure.owner)

    def on_asked(self, reason: str) -> None:
        """Report a stop, and tell the run."""
        report_asked(self._tenure, self._progress, reason)
        self.lease.asked()

    def on_lost(self, loss: LeaseLost) -> None:
        """Report the loss, and tell the run and the hook."""
        report_lost(self._tenure, self._progress, loss)
        self.lease.lost()
        hook = self._progress.setup.on_lost
        if hook is not None:
            guarded("on_lost", hook, self.lease)


def take(
    tenure: Tenure, progress: Progress, have: Sequence[str], *, give_up_at: Moment
) -> tuple[Sequence[Message], Moment]:
    """Take the due messages that were never delivered. Return them, and until when the lease is held now."""
    mailbox, ttl_ms = progress.setup.mailbox, progress.settings.ttl_ms
    assert mailbox is not None  # noqa: S101 - callers have looked
    sent = progress.clock.now()
    taken = mailbox.take(
        progress.call.full_key, tenure.owner, ttl_ms, have=have, fence=tenure.fence, give_up_at=give_up_at
    )
    return taken, deadline(sent, ttl_ms)


def mark_in(taken: Sequence[Message]) -> str | None:
    """Return the mark of the tenure that a take has brought (M16: stop)."""
    mark: str | None = getattr(taken, "stop", None)  # a provider of another package may return any sequence
    return mark


def report_asked(tenure: Tenure, progress: Progress, reason: str) -> None:
    """Report that a tenure was found asked to stop."""
    progress.report.tell("stop_asked", owner=tenure.owner, fence=tenure.fence, error=reason or None)


def report_lost(tenure: Tenure, progress: Progress, loss: LeaseLost) -> None:
    """Report that the lease of a tenure was found lost."""
    progress.report.tell("lost", owner=tenure.owner, fence=tenure.fence, holder=loss.holder, error=str(loss))
