"""One invocation's work on one key: claim, run, settle, and go on or hand over. No AWS and no store in here.

::

    claim ──Routed/Duplicate/Busy/Idle──> answer at once
      │ Claimed
      v
    heartbeat, handler for the oldest due message      <────────────┐
      │                                                             │ another (new owner, no gap)
      v                                                             │
    heartbeat stopped, settle ── time for another? ─────────────────┤
      │ nothing due                  │ no                           │
      v                              v                              │
    key free                     ticket, waker ── it failed, and there is time after all

A caller who waits (HTTP) gets its own message run and what else waits handed over. Without a waker the rest is run in
place.
"""

from dataclasses import replace
from typing import Any, NoReturn

from incumbent.calls import Call, Completed, Outcome, Postponed, Work
from incumbent.clock import deadline
from incumbent.ending import Ending
from incumbent.errors import IncumbentError, LeaseLost, LeaseUnavailable, MailboxFull, RetryLater
from incumbent.lease import _CURRENT
from incumbent.observe import LOG, guarded
from incumbent.progress import Progress, Setup
from incumbent.reporting import describe
from incumbent.tenure import Holding, Tenure, report_lost, take
from incumbent.values import Busy, Claimed, Duplicate, Failure, Idle, Message, Routed


class _Run:
    """The outcome of one run of the handler."""

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self.result: Any = None
        self.error: BaseException | None = None
        self.took_ms = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        """What it ran: the messages that it was started for, and those that it took."""
        return self.holding.lease.held

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]

    @property
    def is_deferred(self) -> bool:
        return self.error is None and self.holding.lease.deferred

    @property
    def outcome(self) -> str:
        """How the handler ended, in the words of the fact ``run_ended``."""
        if self.error is not None:
            return "failed"
        return "deferred" if self.is_deferred else "handled"


class Invocation:
    """One invocation's work on a key, from the claim to the answer."""

    def __init__(self, setup: Setup, call: Call, work: Work) -> None:
        self.progress = Progress(setup, call)
        self.report = self.progress.report
        self._setup = setup
        self._call = call
        self._work = work
        self._ending = Ending(self.progress)

    def serve(self) -> Outcome:
        """Follow the diagram at the top of this module."""
        own = self.progress.own
        claim = self._claim()
        while isinstance(claim, Tenure):
            self._run_until_settled(claim)
            if own.fate.error is not None:
                raise own.fate.error
            if own.fate.answer is not None:
                return own.fate.answer
            if own.id is None:
                return Completed()
            if own.fate.is_settled:
                return Postponed(reason="queued")
            # The key is free, and this invocation's message waits behind a pause: a claim now promises it (M3).
            claim = self._claim()
        return claim

    def _claim(self, *, may_make_room: bool = True) -> Tenure | Routed | Duplicate | Busy | Idle:
        """Acquire or route."""
        call, settings, mailbox, report = self._call, self._setup.settings, self._setup.mailbox, self.report
        owner = call.new_owner()
        if mailbox is None:
            return self._acquire(owner)
        try:
            answer = mailbox.claim(
                call.full_key,
                owner,
                settings.ttl_ms,
                call.message,
                ticket=call.ticket,
                route=settings.when_busy == "enqueue",
                origin=call.origin,
                policy=settings.policy,
            )
        except MailboxFull as full:
            if full.owner is not None or call.message is None or not may_make_room:
                raise
            self._make_room()
            return self._claim(may_make_room=False)
        if isinstance(answer, Claimed | Duplicate | Idle):
            report.dead(answer.dead_lettered)
        match answer:
            case Claimed():
                tenure = Tenure.of(answer, self.progress.own)
                report.tell(
                    "claimed",
                    owner=owner,
                    fence=answer.fence,
                    waiting=answer.waiting,
                    message_ids=tuple(tenure.ids),
                )
                return tenure
            case Routed():
                report.tell("routed", holder=answer.owner, waiting=answer.waiting)
            case Duplicate():
                report.tell("duplicate", holder=answer.owner, outcome=answer.state)
            case Busy():
                report.tell("busy", holder=answer.owner)
            case Idle():
                report.tell("idle")
        return answer

    def _make_room(self) -> None:
        """Run what waits, as if this invocation had been woken: a free key has no owner to make room (M7: limits)."""
        woken = Invocation(self._setup, replace(self._call, message=None, ticket=None), self._work)
        try:
            woken.serve()
        finally:
            woken.report.flush()

    def _acquire(self, owner: str) -> Tenure | Busy | Idle:
        """Claim from a provider that only leases: the only message is this invocation's."""
        call, clock, ttl_ms = self._call, self._setup.clock, self._setup.settings.ttl_ms
        if call.message is None:
            return Idle()
        sent = clock.now()
        answer = self._setup.provider.acquire_lease(call.full_key, owner, ttl_ms)
        if not answer.acquired:
            self.report.tell("busy", holder=answer.owner)
            return Busy(owner=answer.owner or "", expires_in_ms=getattr(answer, "expires_in_ms", None))
        fence = getattr(answer, "fence", None) or 0
        self.report.tell("claimed", owner=owner, fence=fence, message_ids=(call.message.id,))
        message = replace(call.message, attempt=1, stored_at_ms=sent.wall_ms)
        return Tenure(
            owner=owner,
            fence=fence,
            messages=(self.progress.own.prepared(message),),
            waiting=0,
            deadline=getattr(answer, "deadline", None) or deadline(sent, ttl_ms),
        )

    def _run_until_settled(self, tenure: Tenure | None) -> None:
        """Run one message after the other, as long as this invocation gets a next one."""
        while tenure is not None:
            if self.progress.should_hand_over_first(tenure.ids):
                tenure = self._ending.settle(tenure, deferred=tenure.ids, another=False)
                continue
            run = self._run(tenure)
            try:
                tenure = self._finish_run(tenure, run)
            except LeaseUnavailable as error:
                if not self.progress.own.fate.is_settled:
                    raise
                # It settled another invocation's message, which is still stored. This invocation has its answer.
                self.report.store_error(error, owner=run.holding.lease.owner)
                return

    def _run(self, tenure: Tenure) -> _Run:
        """Run the handler once, under a heartbeat that is over before this returns."""
        holding = Holding(self._gather(tenure), self.progress)
        lease, heartbeat = holding.lease, holding.heartbeat
        run = _Run(holding)
        began = self._setup.clock.now()
        self.report.tell(
            "run_started",
            owner=tenure.owner,
            fence=tenure.fence,
            attempt=lease.attempt,
            message_ids=tuple(run.ids),
            waited_ms=max(0, began.wall_ms - lease.messages[0].stored_at_ms),
        )
        current = _CURRENT.set(lease)
        try:
            if not heartbeat.start():
                self.report.flush()
            lease.assert_held()  # a claim that was answered too late starts nothing (R12)
            run.result = self._work(lease.messages[0], lease)
        except BaseException as error:  # noqa: BLE001 - also the handler's own sys.exit must not leave the key held
            run.error = error
        finally:
            heartbeat.stop()
            lease.end()
            _CURRENT.reset(current)
        if heartbeat.is_copy:
            self._end_child(run)
        run.took_ms = began.until(self._setup.clock.now())
        self.progress.longest_ms = max(self.progress.longest_ms, run.took_ms)
        return run

    def _end_child(self, run: _Run) -> NoReturn:
        """End a process that a handler has forked and let return: only the parent settles, and answers the source."""
        if run.error is not None and not isinstance(run.error, Exception):
            raise run.error
        LOG.error(
            "a child process returned from the handler of key %r: it is ended here, and settles nothing; end it with "
            "os._exit(), or use multiprocessing",
            self._call.key,
            exc_info=run.error,
        )
        raise SystemExit(1) from run.error

    def _gather(self, tenure: Tenure) -> Tenure:
        """With ``deliver="all"``: let a burst collect, and start the run for all that is due (not a retry, M6)."""
        settings = self._setup.settings
        if self._setup.mailbox is None or settings.deliver != "all" or tenure.messages[0].attempt > 1:
            return tenure
        if settings.gather_ms:
            self._setup.clock.sleep_ms(settings.gather_ms)
        elif not tenure.waiting:
            return tenure
        try:
            taken, held_until = take(tenure, self.progress, tenure.ids, give_up_at=tenure.deadline)
        except LeaseUnavailable as error:  # the lease stands, and so do the messages: they run next
            self.report.store_error(error, owner=tenure.owner)
            return tenure
        except LeaseLost as loss:
            report_lost(tenure, self.progress, loss)
            raise
        arrived = map(self.progress.own.prepared, taken)
        return tenure._replace(messages=(*tenure.messages, *arrived), waiting=0, deadline=held_until)

    def _finish_run(self, tenure: Tenure, run: _Run) -> Tenure | None:
        """Report the outcome of a run, and settle it. Return this invocation's next tenure."""
        error, ids, own, heartbeat = run.error, run.ids, self.progress.own, run.holding.heartbeat
        loss = heartbeat.loss
        self.report.tell(
            "run_ended",
            owner=tenure.owner,
            fence=tenure.fence,
            outcome=run.outcome if loss is None else "lost",
            message_ids=tuple(ids),
            attempt=run.holding.lease.attempt,
            ms=run.took_ms,
            error=None if error is None else describe(error),
        )
        if loss is not None:
            raise loss from (None if error is loss else error)
        self._note_fate(run, ids)
        is_over = error is not None and not isinstance(error, Exception)
        another = not is_over and not run.is_deferred and self.progress.time_for_another()
        if is_over:
            own.end(error=error)  # SystemExit and its like end the invocation, also for another's message
        try:
            return self._ending.settle(
                tenure,
                another=another,  # not if it deferred: its messages would be given again at once
                handled=ids if error is None and not run.is_deferred else (),
                failed=() if error is None else [_failure(each, error) for each in ids],
                deferred=ids if run.is_deferred else (),
                heartbeat=heartbeat,
            )
        except IncumbentError as unsettled:
            raise unsettled from error

    def _note_fate(self, run: _Run, ids: list[str]) -> None:
        """Note what has become of this invocation's message, and pass on what has become of others."""
        own, error = self.progress.own, run.error
        has_own = own.is_among(ids)
        if error is not None:
            if has_own:
                own.end(error=error)
            else:  # no source gets the error
                LOG.error(
                    "a run of key %r failed: messages %s, attempt %s",
                    self._call.key,
                    ids,
                    run.holding.lease.attempt,
                    exc_info=error,
                )
        elif run.is_deferred:
            if has_own:
                own.end(answer=Postponed(reason="deferred"))
        else:
            if has_own:
                own.end(answer=Completed(result=run.result))
            if self._setup.on_result is not None:
                for message in run.messages:
                    if message.id != own.id:
                        guarded("on_result", self._setup.on_result, message, run.result)


def _failure(message_id: str, error: BaseException) -> Failure:
    """Return what is kept of a failed run. A subclass of ``RetryLater`` may have set no pause, or one not allowed."""
    failure = Failure(id=message_id, error=describe(error))
    if isinstance(error, RetryLater):
        try:
            return replace(failure, after_ms=error.after_ms)
        except Exception:  # noqa: BLE001 - its run must be settled nevertheless
            LOG.exception("%s has no usable after_ms: the policy's pause counts", type(error).__name__)
    return failure
