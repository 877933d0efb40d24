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

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

from incumbent.calls import Call, Completed, Outcome, Postponed, Stopped, Work
from incumbent.clock import Moment, deadline
from incumbent.ending import Ending
from incumbent.errors import IncumbentError, LeaseUnavailable, MailboxFull, MessageTooLarge, RetryLater
from incumbent.frozen import maker, replace
from incumbent.later import ask_again, ask_for_wake
from incumbent.lease import _CURRENT
from incumbent.observe import LOG, guarded
from incumbent.progress import Progress, Setup
from incumbent.reporting import describe
from incumbent.results import as_sent
from incumbent.tenure import Holding, Tenure
from incumbent.validation import to_json
from incumbent.values import Busy, Claim, Claimed, Debounce, Duplicate, Failure, Idle, Message, Routed

MAX_REASON_BYTES = 1_024

_make_completed = maker(Completed)


class _Run:
    """One run of the handler, which is over.

    ``outcome`` is how it ended, in the words of the fact ``run_ended``. ``messages`` are what it ran: those that it was
    started for, and those that it took. ``spared`` came with the stop, which does not concern them (M16).
    """

    __slots__ = (
        "attempt",
        "began",
        "ended",
        "error",
        "heartbeat",
        "ids",
        "messages",
        "outcome",
        "owner",
        "result",
        "spared",
    )

    def __init__(
        self, holding: Holding, began: Moment, ended: Moment, result: Any, error: BaseException | None
    ) -> None:
        lease = holding.lease
        self.began = began
        self.ended = ended
        self.result = result
        self.error = error
        self.heartbeat = holding.heartbeat
        self.owner = lease.owner
        self.attempt = lease.messages[0].attempt
        self.outcome: Literal["failed", "stopped", "deferred", "handled"]
        if error is None:
            self.outcome = "deferred" if lease.deferred else "handled"
        else:
            self.outcome = "stopped" if lease.cancelled else "failed"
        self.messages = lease.held
        self.spared: Sequence[str] = holding.spared
        late = holding.came_with_the_stop
        if late and self.outcome == "stopped":
            self.messages = tuple(message for message in self.messages if message.id not in late)
            self.spared = (*self.spared, *late)
        self.ids = [message.id for message in self.messages]


class Invocation:
    """One invocation's work on a key, from the claim to the answer."""

    __slots__ = ("_call", "_ending", "_setup", "_work", "progress", "report")

    def __init__(self, setup: Setup, call: Call, work: Work) -> None:
        self.progress = Progress(setup, call)
        self.report = self.progress.report
        self._setup = setup
        self._call = call
        self._work = work
        self._ending = Ending(self.progress)

    def serve(self) -> Outcome:
        """Follow the diagram at the top of this module."""
        outcome = self._serve()
        if self._setup.settings.wait_ms is None:
            return outcome
        from incumbent.waiting import wait_for_result  # here, as few functions wait

        return wait_for_result(self.progress, outcome)

    def _serve(self) -> Outcome:
        own = self.progress.own
        claim = self._claim()
        while isinstance(claim, Tenure):
            self._run_until_settled(claim)
            if own.error is not None:
                raise own.error
            if own.answer is not None:
                return own.answer
            if own.id is None:
                return Completed()
            if own.is_settled:
                return Postponed(reason="queued")
            # The key is free, and this invocation's message waits behind a pause: a claim now promises it (M3).
            claim = self._claim()
        return claim

    def _claim(self, *, may_make_room: bool = True) -> Tenure | Routed | Duplicate | Busy | Idle:
        """Acquire or route."""
        call, setup = self._call, self._setup
        settings, mailbox, owner = setup.settings, setup.mailbox, self.progress.new_owner()
        if mailbox is None:
            return self._acquire(owner)
        try:
            answer = mailbox.claim(
                call.full_key,
                owner,
                settings.ttl_ms,
                call.message,
                ticket=call.ticket,
                route=setup.stores,
                origin=call.origin,
                policy=settings.policy,
                debounce=None if setup.debounce is None else self._debounce(setup.debounce),
                interrupt=setup.interrupts and call.message is not None,
            )
        except MailboxFull as full:
            if full.owner is not None or call.message is None or not may_make_room:
                raise
            self._make_room()
            return self._claim(may_make_room=False)
        return self._note_claim(answer, owner)

    def _debounce(self, debounce: Debounce) -> Debounce | None:
        """Return the wait for quiet after a message's arrival (M15), if its function can be woken when it is over."""
        return debounce if self._call.message is not None and self.progress.can_wake_later() else None

    def _note_claim(self, answer: Claim, owner: str) -> Tenure | Routed | Duplicate | Busy | Idle:
        """Report a claim's answer, and ask for the wake that it calls for."""
        call, report = self._call, self.report
        match answer:
            case Claimed():
                if answer.dead_lettered:
                    report.dead(answer.dead_lettered)
                tenure = Tenure.of(answer, self.progress.own)
                if "claimed" in report.heard:
                    ids = tuple(tenure.ids)
                    report.tell("claimed", owner=owner, fence=answer.fence, waiting=answer.waiting, message_ids=ids)
                return tenure
            case Routed():
                report.tell("routed", holder=answer.owner, waiting=answer.waiting)
                if answer.superseded:
                    report.tell("superseded", message_ids=answer.superseded)
                ask_for_wake(self.progress, answer.due_in_ms)
            case Duplicate():
                report.dead(answer.dead_lettered)
                report.tell("duplicate", holder=answer.owner, outcome=answer.state)
            case Busy():
                report.tell("busy", holder=answer.owner)
            case Idle():
                report.dead(answer.dead_lettered)
                report.tell("idle")
                if call.message is None:  # woken too early, or for nothing
                    ask_again(self.progress, answer.due_in_ms)
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
        begins = self.progress.own.is_open
        while tenure is not None:
            if self.progress.should_hand_over_first(tenure.messages):
                tenure = self._ending.settle(tenure, deferred=tenure.ids, another=False)
                continue
            if self._setup.settings.deliver == "all":
                tenure, begins = self._gather(tenure, begins=begins), False
                if tenure is None:
                    return
            run = self._run(tenure)
            try:
                tenure = self._finish_run(tenure, run)
            except LeaseUnavailable as error:
                if not self.progress.own.is_settled:
                    raise
                # It settled another invocation's message, which is still stored. This invocation has its answer.
                self.report.store_error(error, owner=run.owner)
                return
            finally:
                run.heartbeat.let_go()

    def _gather(self, tenure: Tenure, *, begins: bool) -> Tenure | None:
        """Return the tenure with all that its run starts for."""
        from incumbent.gathering import gather, is_interruption  # here, as most functions run one message at a time

        tenure = gather(tenure, self.progress, begins=begins)
        if not is_interruption(tenure.stop):
            return tenure
        # A new grant has no mark (M16: stop). It gets the same messages, and that which marked this one.
        another = self._ending.settle(tenure, deferred=[*tenure.ids, *tenure.spared], another=True)
        return None if another is None else gather(another, self.progress, begins=False)

    def _run(self, tenure: Tenure) -> _Run:
        """Run the handler once, under a heartbeat that is over before this returns."""
        clock, result, error, first = self._setup.clock, None, None, tenure.messages[0]
        if "run_started" in self.report.heard:
            self.report.tell(
                "run_started",
                owner=tenure.owner,
                fence=tenure.fence,
                attempt=first.attempt,
                message_ids=tuple(tenure.ids),
                waited_ms=max(0, clock.now().wall_ms - first.stored_at_ms),
            )
        began = clock.now()
        holding = Holding(tenure, self.progress, began)
        lease = holding.lease
        before = _CURRENT.get()
        try:
            _CURRENT.set(lease)
            holding.start()
            lost = holding.heartbeat.loss_at(began)
            if lost is not None:  # a claim that was answered too late starts nothing (R12)
                raise lost  # noqa: TRY301 - the run ends like one that lost its lease itself
            result = self._work(first, lease)
        except BaseException as raised:  # noqa: BLE001 - also the handler's own sys.exit must not leave the key held
            error = raised
        finally:
            try:
                is_copy = holding.stop()
                lease.end()
                _CURRENT.set(before)
            except BaseException:  # a signal handler's: it may have come before anything was done
                holding.stop()
                lease.end()
                _CURRENT.set(before)
                raise
        if is_copy:
            self._end_child(error)
        run = _Run(holding, began, clock.now(), result, error)
        took_ms = began.until(run.ended)
        self.progress.longest_ms = max(self.progress.longest_ms, took_ms)
        return run

    def _end_child(self, error: BaseException | None) -> NoReturn:
        """End a process that a handler has forked and let return: only the parent settles, and answers the source."""
        if error is not None and not isinstance(error, Exception):
            raise error
        LOG.error(
            "a child process returned from the handler of key %r: it is ended here, and settles nothing; end it with "
            "os._exit(), or use multiprocessing",
            self._call.key,
            exc_info=error,
        )
        raise SystemExit(1) from error

    def _finish_run(self, tenure: Tenure, run: _Run) -> Tenure | None:
        """Report the outcome of a run, and settle it. Return this invocation's next tenure."""
        error, ids, own, ended = run.error, run.ids, self.progress.own, run.outcome
        loss = run.heartbeat.loss_at(run.ended)
        if "run_ended" in self.report.heard:
            self.report.tell(
                "run_ended",
                owner=tenure.owner,
                fence=tenure.fence,
                outcome=ended if loss is None else "lost",
                message_ids=tuple(ids),
                attempt=run.attempt,
                ms=run.began.until(run.ended),
                error=describe(error) if error is not None and ended == "failed" else None,
            )
        if loss is not None:
            raise loss from (None if error is loss else error)
        self._note_fate(run)
        is_over = ended == "failed" and not isinstance(error, Exception)
        if is_over:
            own.end(error=error)  # SystemExit and its like end the invocation, also for another's message
        settings = self._setup.settings
        policy, gap_ms = settings.policy, settings.min_gap_ms
        hold_ms, hold_reason = (0, None) if error is None and not gap_ms else self._hold(run)
        failures = [_failure(each, error) for each in ids] if ended == "failed" and error is not None else []
        now = self._setup.clock.now()  # once more: hooks may have taken their time
        try:
            return self._ending.settle(
                tenure,
                # not if it deferred: its messages would be given again at once
                another=not is_over and ended != "deferred" and self.progress.time_for_another(now),
                handled=ids if ended == "handled" else (),
                failed=failures,
                pauses_ms={
                    each.id: policy.pause_ms(message.attempt) if each.after_ms is None else each.after_ms
                    for each, message in zip(failures, run.messages, strict=False)
                }
                if failures
                else {},
                deferred=[*ids, *run.spared] if ended == "deferred" else run.spared,
                stopped=ids if ended == "stopped" else (),
                results=self._results(run) if ended == "handled" and policy.result_bytes else None,
                hold_ms=hold_ms,
                hold_reason=hold_reason,
                heartbeat=run.heartbeat,
                now=now,
            )
        except IncumbentError as unsettled:
            raise unsettled from error

    def _note_fate(self, run: _Run) -> None:
        """Note what has become of this invocation's message, and pass on what has become of others."""
        own = self.progress.own
        if own.id is not None and own.id in run.ids:
            if run.outcome == "handled":
                own.end(answer=_make_completed(result=run.result))
            elif run.outcome == "failed":
                own.end(error=run.error)
            else:
                own.end(answer=Stopped() if run.outcome == "stopped" else Postponed(reason="deferred"))
        elif run.outcome == "failed":  # no source gets the error
            said = (self._call.key, run.ids, run.attempt)
            LOG.error("a run of key %r failed: messages %s, attempt %s", *said, exc_info=run.error)
        if run.outcome == "handled" and self._setup.on_result is not None:
            self._pass_on(run, self._setup.on_result)

    def _pass_on(self, run: _Run, hook: Callable[[Message, Any], object]) -> None:
        """Give the results of others' messages to the hook."""
        for message in run.messages:
            if message.id != self.progress.own.id:
                guarded("on_result", hook, message, run.result)

    def _results(self, run: _Run) -> dict[str, Any] | None:
        """Return what the store keeps of a result (M17), for each message; ``None`` if it is not JSON."""
        most_bytes = self._setup.settings.policy.result_bytes
        for result in (lambda: run.result, lambda: as_sent(run.result)):
            try:
                to_json(result(), key=self._call.key, message_id=run.ids[0], most_bytes=most_bytes)
            except MessageTooLarge:  # which the store notes
                pass
            except Exception:  # noqa: BLE001, S112 - a leased_function may return anything
                continue
            return dict.fromkeys(run.ids, result())
        return None

    def _hold(self, run: _Run) -> tuple[int, str | None]:
        """Return for how long the key is held after a run, and why: its handler asked for it, or runs need a gap."""
        settings, error = self._setup.settings, run.error
        holds: list[tuple[int, str]] = []
        if settings.min_gap_ms:
            rest_ms = settings.min_gap_ms - run.began.until(self._setup.clock.now())
            holds.append((rest_ms, f"two runs begin at least {settings.min_gap_ms:,} ms apart (min_gap_ms)"))
        if isinstance(error, RetryLater) and error.scope == "key":
            holds.append((_failure("", error).after_ms or 0, describe(error)))
        hold_ms, reason = max(holds, default=(0, ""))
        return (hold_ms, _cut(reason)) if hold_ms > 0 else (0, None)


def _cut(reason: str) -> str:
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def _failure(message_id: str, error: BaseException) -> Failure:
    """Return what is kept of a failed run. A subclass of ``RetryLater`` may have set no pause, or one not allowed."""
    failure = Failure(id=message_id, error=describe(error))
    if isinstance(error, RetryLater):
        try:
            return replace(failure, after_ms=error.after_ms)
        except Exception:  # noqa: BLE001 - its run must be settled nevertheless
            LOG.exception("%s has no usable after_ms: the policy's pause counts", type(error).__name__)
    return failure
