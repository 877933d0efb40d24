"""The messages that a run starts with: with ``deliver="all"`` all that are due, once a burst is over."""

from collections.abc import Sequence

from incumbent.clock import Moment
from incumbent.errors import LeaseLost, LeaseUnavailable
from incumbent.heartbeat import Heartbeat
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
    if mark is None:
        return _with(tenure, progress, taken, held_until)
    report_asked(tenure, progress, mark)
    return tenure._replace(deadline=held_until, stop=mark, spared=tuple(message.id for message in taken))


def is_interruption(mark: str | None) -> bool:
    """Return whether a tenure was marked by a later message, which interrupts nothing before the run has begun."""
    if mark is None:
        return False
    from incumbent.rules import INTERRUPTED  # only runs that are asked to stop before they begin load the rules

    return mark == INTERRUPTED


def _when_quiet(tenure: Tenure, progress: Progress, debounce: Debounce) -> Tenure:
    """Wait in place, renewing, until no message has come for a while or the burst has lasted long enough."""
    clock = progress.clock
    began = clock.now()
    until = _latest(began, progress, debounce.max_ms)
    holding = Holding(tenure, progress, began, runs=False)
    heartbeat = holding.heartbeat
    first_ms = max(message.stored_at_ms for message in tenure.messages)
    wait_ms = debounce.quiet_ms
    try:
        holding.start()
        while not _is_stopped(heartbeat) and (left_ms := clock.now().until(until)) > 0:
            clock.sleep_ms(min(wait_ms, left_ms))
            if _is_stopped(heartbeat):
                break
            try:
                taken, held_until = take(tenure, progress, tenure.ids, give_up_at=heartbeat.held_until)
            except LeaseUnavailable as error:  # the lease stands, and so do the messages
                progress.report.store_error(error, owner=tenure.owner)
                break
            heartbeat.extend(held_until, waiting=0, stop=mark_in(taken))
            if heartbeat.loss is not None or not taken:
                break
            if _is_stopped(heartbeat):
                tenure = tenure._replace(spared=tuple(message.id for message in taken))
                break
            tenure = _with(tenure, progress, taken, held_until)
            # By the store's clock alone: how long the last message has been there, if the first came as this began.
            age_ms = began.until(clock.now()) - (max(message.stored_at_ms for message in taken) - first_ms)
            wait_ms = max(1, min(debounce.quiet_ms, debounce.quiet_ms - age_ms))
    except LeaseLost as refused:
        heartbeat.lose(refused)
    finally:
        try:
            holding.stop()
        except BaseException:  # a signal handler's: it may have come before anything was done
            holding.stop()
            raise
    if heartbeat.loss is not None:
        raise heartbeat.loss
    return tenure._replace(deadline=heartbeat.held_until, stop=heartbeat.asked)


def _is_stopped(heartbeat: Heartbeat) -> bool:
    """Return whether the wait was asked to end, and not only marked by a message that it is for."""
    return heartbeat.asked is not None and not is_interruption(heartbeat.asked)


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
