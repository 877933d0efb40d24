"""One tenure of a key: what was granted, and the lease and the heartbeat under which its messages run."""

from collections.abc import Sequence
from typing import NamedTuple

from incumbent.clock import Moment, deadline
from incumbent.errors import LeaseLost
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.lease import Lease
from incumbent.observe import guarded, leave_untraced
from incumbent.own_message import OwnMessage
from incumbent.progress import Progress
from incumbent.values import Claimed, Continued, Message


class Tenure(NamedTuple):
    """What a claim or a settle granted: the owner that holds the key, and the messages that it runs."""

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    deadline: Moment

    @classmethod
    def of(cls, granted: Claimed | Continued, own: OwnMessage) -> "Tenure":
        """Return the tenure that a claim or a settle granted."""
        return cls(
            owner=granted.owner,
            fence=granted.fence,
            messages=tuple(map(own.prepared, granted.messages)),
            waiting=granted.waiting,
            deadline=granted.deadline,
        )

    @property
    def ids(self) -> list[str]:
        """The ids of its messages."""
        return [message.id for message in self.messages]


class Holding:
    """A tenure while its messages run: the handler's ``lease``, the ``heartbeat``, and the calls that both make."""

    def __init__(self, tenure: Tenure, progress: Progress) -> None:
        self._tenure = tenure
        self._progress = progress
        call, settings = progress.call, progress.settings
        self.heartbeat = Heartbeat(
            self._renew,
            held_until=tenure.deadline,
            every_ms=settings.beat_ms,
            invocation_ends=call.ends,
            clock=progress.clock,
            on_lost=self._on_lost,
            on_error=self._on_error,
            lost=self._lost,
            before_each=self._before_each,
            pacemaker=progress.setup.pacemaker,
        )
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
            clock=progress.clock,
            can_defer=progress.setup.mailbox is not None,
        )

    def _renew(self, give_up_at: Moment) -> Renewal:
        tenure, setup, key = self._tenure, self._progress.setup, self._progress.call.full_key
        ttl_ms = setup.settings.ttl_ms
        if setup.mailbox is not None:
            beat = setup.mailbox.beat(key, tenure.owner, ttl_ms, fence=tenure.fence, give_up_at=give_up_at)
            return Renewal(deadline=beat.deadline, waiting=beat.waiting)
        sent = setup.clock.now()
        if not setup.provider.renew_lease(key, tenure.owner, ttl_ms):
            raise self._lost("its renewal was refused")
        return Renewal(deadline=deadline(sent, ttl_ms))

    def _take(self, have: Sequence[str]) -> Sequence[Message]:
        if self._progress.setup.mailbox is None:
            return ()
        taken, held_until = take(self._tenure, self._progress, have, give_up_at=self.heartbeat.held_until)
        if not self.lease.ended:
            self.heartbeat.extend(held_until, waiting=0)
        return taken

    def _lost(self, why: str) -> LeaseLost:
        key = self._progress.call.key
        return LeaseLost(
            f"the lease of key {key!r} is lost: {why}; nothing of this run is settled, and its messages run again",
            key=key,
            owner=self._tenure.owner,
        )

    def _before_each(self) -> None:
        leave_untraced()
        self._progress.report.flush()

    def _on_error(self, error: Exception) -> None:
        self._progress.report.store_error(error, owner=self._tenure.owner)

    def _on_lost(self, loss: LeaseLost) -> None:
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


def report_lost(tenure: Tenure, progress: Progress, loss: LeaseLost) -> None:
    """Report that the lease of a tenure was found lost."""
    progress.report.tell("lost", owner=tenure.owner, fence=tenure.fence, holder=loss.holder, error=str(loss))
