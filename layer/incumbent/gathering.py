"""The messages that a run starts with: with ``deliver="all"`` all that are due, once a burst is over."""

from collections.abc import Sequence

from incumbent.clock import Moment
from incumbent.errors import LeaseLost, LeaseUnavailable
from incumbent.progress import Progress
from incumbent.tenure import Holding, Tenure, mark_in, report_asked, report_lost, take
from incumbent.values import Debounce, Message


def gather(tenure: Tenure, progress: Progress, *, begins: bool) -> Tenure:
    """Return the tenure with all that its run starts for. A message that failed before runs alone (M6: failure).

    ``begins``: this invocation's message has found the key free. Its burst is waited for here if no waker can end it
    later (M15: debounce). Raises ``LeaseLost``.
    """
    settings = progress.settings
    if progress.setup.mailbox is None or settings.deliver != "all" or tenure.messages[0].attempt > 1:
        return tenure
    if begins and settings.debounce is not None and not progress.can_wake_later():
        return _when_quiet(tenure, progress, settings.debounce)
    if not tenure.waiting:
        return tenure
    try:
        taken, held_until = take(tenure, progress, tenure.ids, give_up_at=tenure.deadline)
    except LeaseUnavailable as error:  # the lease stands, and so do the messages: they run next
        progress.report.store_error(error, owner=tenure.owner)
        return tenure
    except LeaseLost as loss:
        report_lost(tenure, progress, loss)
        raise
    mark = mark_in(taken)
    if mark is not None:
        report_asked(tenure, progress, mark)
    return _with(tenure, progress, taken, held_until)._replace(stop=mark)


def _when_quiet(tenure: Tenure, progress: Progress, debounce: Debounce) -> Tenure:
    """Wait in place, renewing, until no message has come for a while or the burst has lasted long enough."""
    clock = progress.clock
    began = clock.now()
    until = _latest(began, progress, debounce.max_ms)
    holding = Holding(tenure, progress, runs=False)
    heartbeat = holding.heartbeat
    first_ms = max(message.stored_at_ms for message in tenure.messages)
    wait_ms = debounce.quiet_ms
    try:
        holding.start()
        while heartbeat.asked is None and (left_ms := clock.now().until(until)) > 0:
            clock.sleep_ms(min(wait_ms, left_ms))
            try:
                taken, held_until = take(tenure, progress, tenure.ids, give_up_at=heartbeat.held_until)
            except LeaseUnavailable as error:  # the lease stands, and so do the messages
                progress.report.store_error(error, owner=tenure.owner)
                break
            heartbeat.extend(held_until, waiting=0, stop=mark_in(taken))
            if heartbeat.loss is not None or not taken:
                break
            tenure = _with(tenure, progress, taken, held_until)
            # By the store's clock alone: how long the last message has been there, if the first came as this began.
            age_ms = began.until(clock.now()) - (max(message.stored_at_ms for message in taken) - first_ms)
            wait_ms = max(1, min(debounce.quiet_ms, debounce.quiet_ms - age_ms))
    except LeaseLost as refused:
        heartbeat.lose(refused)
    finally:
        holding.stop()
    if heartbeat.loss is not None:
        raise heartbeat.loss
    return tenure._replace(deadline=heartbeat.held_until, stop=heartbeat.asked)


def _latest(began: Moment, progress: Progress, max_ms: int) -> Moment:
    """Return when the run begins at the latest: its invocation needs time for it."""
    until = began.plus(max_ms)
    if progress.call.ends is None:
        return until
    ends = progress.call.ends.plus(-progress.stop_before_ms())
    return min(until, ends, key=began.until)


def _with(tenure: Tenure, progress: Progress, taken: Sequence[Message], held_until: Moment) -> Tenure:
    arrived = map(progress.own.prepared, taken)
    return tenure._replace(messages=(*tenure.messages, *arrived), waiting=0, deadline=held_until)
