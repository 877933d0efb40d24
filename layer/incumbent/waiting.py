"""Waits for the result of this invocation's message, which another invocation runs (``when_busy="wait"``)."""

from incumbent.backends import is_archive
from incumbent.calls import Completed, Outcome, Postponed
from incumbent.errors import LeaseUnavailable
from incumbent.progress import Progress
from incumbent.retry import growing_pauses
from incumbent.values import Duplicate, Routed, Status


def wait_for_result(progress: Progress, outcome: Outcome) -> Outcome:
    """Return the result of this invocation's message if it is final in time, how it left otherwise, else ``outcome``.

    Looks with growing pauses, from 50 ms to a second, until ``wait_ms`` have passed or the invocation's time is over.
    """
    provider, settings, message = progress.setup.provider, progress.settings, progress.call.message
    if settings.wait_ms is None or message is None or not _may_come(outcome) or not is_archive(provider):
        return outcome
    until = progress.began.plus(settings.wait_ms)
    if progress.call.ends is not None:
        until = min(until, progress.call.ends.plus(-progress.stop_before_ms()), key=progress.began.until)
    pauses = growing_pauses()
    progress.report.flush()
    while True:
        try:
            status = provider.find(progress.call.full_key, message.id, policy=settings.policy)
        except LeaseUnavailable as error:  # what is stored is safe: the answer may still come
            progress.report.store_error(error)
        else:
            final = _final(status)
            if final is not None:
                return final
        left_ms = progress.clock.now().until(until)
        if left_ms <= 0:
            return outcome
        progress.clock.sleep_ms(min(next(pauses), left_ms))


def _may_come(outcome: Outcome) -> bool:
    """Return whether the message waits, runs, or was handled, by this or another delivery of it."""
    return isinstance(outcome, Routed | Postponed) or (
        isinstance(outcome, Duplicate) and outcome.state in ("waiting", "running", "handled")
    )


def _final(status: Status) -> Outcome | None:
    """Return the answer for a message that has left; ``None`` while it is stored, or if it is not known."""
    if status.state == "unknown" or status.state in ("waiting", "running"):
        return None
    if status.state == "handled" and status.result_is == "kept":
        return Completed(result=status.result)
    return Duplicate(state=status.state)
