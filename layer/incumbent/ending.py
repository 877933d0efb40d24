"""How a tenure ends: its messages are settled, and the key is freed, kept for another run, or handed over."""

from collections.abc import Mapping, Sequence
from typing import Any

from incumbent.clock import Moment
from incumbent.contract import Mailbox
from incumbent.errors import LeaseLost, LeaseUnavailable
from incumbent.heartbeat import Heartbeat
from incumbent.later import ask_again, ask_for_retries
from incumbent.owners import new_ticket
from incumbent.progress import Progress
from incumbent.reporting import describe
from incumbent.tenure import Tenure, report_lost
from incumbent.values import Claimed, Duplicate, Failure, Idle, Released
from incumbent.wakers import Wake, send_wake


class Ending:
    """Ends the tenures of one invocation. Each method returns the next tenure, if it is this invocation's."""

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def settle(
        self,
        tenure: Tenure,
        *,
        another: bool,
        handled: Sequence[str] = (),
        failed: Sequence[Failure] = (),
        pauses_ms: Mapping[str, int] | None = None,
        deferred: Sequence[str] = (),
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        heartbeat: Heartbeat | None = None,
        now: Moment | None = None,
    ) -> Tenure | None:
        """Settle: free the key, continue here if there is ``another`` run, or hand over.

        ``pauses_ms`` are the pauses of the ``failed`` messages. ``hold_ms`` frees the key in any case, and holds it.
        ``heartbeat`` is that of the run, if there was one, and ``now`` the present as it has just been read.
        Raises ``LeaseLost``, ``LeaseUnavailable``.
        """
        progress = self._progress
        call, settings, mailbox, own = progress.call, progress.settings, progress.setup.mailbox, progress.own
        if mailbox is None:
            self._release(tenure)
            return None
        if heartbeat is not None:
            self._renew_for_settle(tenure, heartbeat, progress.clock.now() if now is None else now)
        another = another and not hold_ms
        if not another and own.is_open and own.id not in deferred:
            deferred = [*deferred, own.id or ""]  # never reached: promised in the same step, so it may be answered (M3)
        ticket = new_ticket() if not another and not hold_ms and progress.can_wake() else None
        kept, dropped = failed, failed[:0]
        if failed and not own.stays_after_failure:
            kept = [failure for failure in failed if failure.id != own.id]
            dropped = [failure for failure in failed if failure.id == own.id]
        try:
            answer = mailbox.settle(
                call.full_key,
                tenure.owner,
                ttl_ms=settings.ttl_ms,
                handled=handled,
                failed=kept,
                dropped=dropped,
                deferred=deferred,
                next_owner=progress.new_owner() if another else None,
                ticket=ticket,
                policy=settings.policy,
                stopped=stopped,
                results=results,
                hold_ms=hold_ms,
                hold_reason=hold_reason,
                fence=tenure.fence,
            )
        except LeaseLost as loss:
            if heartbeat is not None:
                heartbeat.lose(loss)  # which reports it, also to the run's hooks
            else:
                report_lost(tenure, progress, loss)
            raise
        own.note_settled(deferred)
        if answer.dead_lettered:
            progress.report.dead(answer.dead_lettered)
        if kept or hold_ms:
            pausing = {each.id for each in kept} - {message.id for message in answer.dead_lettered}
            ask_for_retries(progress, answer, [(pauses_ms or {}).get(each, 0) for each in pausing], hold_ms)
        if isinstance(answer, Released):
            self._note_released(tenure, answer, cut=not another and call.hops >= settings.max_hops)
            return None
        progress.report.tell(
            "continued", owner=answer.owner, fence=answer.fence, holder=tenure.owner, waiting=answer.waiting
        )
        return Tenure.of(answer, own) if ticket is None else self._hand_over(mailbox, ticket)

    def _note_released(self, tenure: Tenure, answer: Released, *, cut: bool) -> None:
        """Report that the key is free. ``cut``: the chain of invocations is too long."""
        if "released" in self._progress.report.heard:
            self._report_released(tenure, remaining=answer.remaining)
        if answer.remaining and cut:
            hops = self._progress.call.hops
            self._progress.report.tell(
                "chain_cut", waiting=answer.remaining, error=f"{hops} invocations woke one another"
            )

    def _renew_for_settle(self, tenure: Tenure, heartbeat: Heartbeat, now: Moment) -> None:
        """Renew once more if a third of the lease has passed, so that the tries of settle have the time they need."""
        progress = self._progress
        if now.until(heartbeat.held_until) * 3 < progress.settings.ttl_ms * 2:
            try:
                heartbeat.renew()
            except LeaseUnavailable as error:  # the lease is held until its deadline, and settle may have more luck
                progress.report.store_error(error, owner=tenure.owner)

    def _release(self, tenure: Tenure) -> None:
        """Free the key of a provider that only leases. A failure does not change the outcome of the run."""
        try:
            self._progress.setup.provider.release_lease(self._progress.call.full_key, tenure.owner)
        except LeaseUnavailable as error:  # the lease ends by itself
            self._progress.report.store_error(error, owner=tenure.owner)
        else:
            self._report_released(tenure, remaining=0)

    def _hand_over(self, mailbox: Mailbox, ticket: str) -> Tenure | None:
        """Wake a successor for the ticket. If that fails, continue here or leave the key to the next claim (M8)."""
        progress = self._progress
        call, waker = progress.call, progress.setup.waker
        assert waker is not None  # noqa: S101 - a ticket is only made when there is a waker
        progress.report.flush()  # before a call that may last until the invocation is cut off
        try:
            send_wake(waker, Wake(key=call.full_key, ticket=ticket, target=call.origin.target, hops=call.hops + 1))
        except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and must not lose the ticket
            progress.may_wake = False
            progress.report.tell("wake_failed", owner=ticket, error=describe(error))
        else:
            progress.report.tell("handed_over", owner=ticket, ms=progress.began.until(progress.clock.now()))
            return None
        try:
            return self._take_back(mailbox, ticket)
        except LeaseUnavailable as error:  # the messages are promised, and the ticket's lease ends by itself (M8)
            progress.report.store_error(error, owner=ticket)
            return None

    def _take_back(self, mailbox: Mailbox, ticket: str) -> Tenure | None:
        """Continue here with a ticket whose wake failed, if there is time; else release it."""
        progress = self._progress
        call, settings = progress.call, progress.settings
        if not progress.time_for_another(progress.clock.now()):
            progress.setup.provider.release_lease(call.full_key, ticket)
            return None
        # The wake may have been sent nevertheless: the first to redeem the ticket continues (M9: hand over).
        answer = mailbox.claim(
            call.full_key,
            progress.new_owner(),
            settings.ttl_ms,
            None,
            ticket=ticket,
            origin=call.origin,
            policy=settings.policy,
        )
        if isinstance(answer, Claimed | Duplicate | Idle):
            progress.report.dead(answer.dead_lettered)
        if isinstance(answer, Idle):  # the key is held or quiet: the ticket is spent
            ask_again(progress, answer.due_in_ms)
        return Tenure.of(answer, progress.own) if isinstance(answer, Claimed) else None

    def _report_released(self, tenure: Tenure, *, remaining: int) -> None:
        self._progress.report.tell(
            "released",
            owner=tenure.owner,
            fence=tenure.fence,
            waiting=remaining,
            ms=self._progress.began.until(self._progress.clock.now()),
        )
