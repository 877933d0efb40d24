"""Asks for the wakes that a key needs at a later moment, where the waker can delay one.

Each wait has one caller that asks: who stores a message on a key that is free and not to be granted yet (the store
says so to the one that makes the moment earlier), and the run that lets a message pause or holds its key. A run that
merely finds others' messages paused asks for nothing: else each run of a busy key would add a wake for the same
moment, and each of these would ask again. What is left over, such as the pause after a crash, is the sweeper's.
"""

from collections.abc import Iterable

from incumbent.progress import Progress
from incumbent.reporting import describe
from incumbent.values import Continued, Released
from incumbent.wakers import Wake, send_wake

_SHORT_MS = 1_000  # within which clocks and queues may differ


def ask_for_wake(progress: Progress, due_in_ms: int | None) -> None:
    """Have the key's function woken in ``due_in_ms``, when a free key can be granted for a message (M14, M15).

    Without a waker that can delay, the sweeper is the clock. A failure is reported and changes nothing else: the
    sweeper finds the key.
    """
    if due_in_ms is None or not progress.can_wake_later():
        return
    call, waker = progress.call, progress.setup.waker
    assert waker is not None  # noqa: S101 - can_wake_later has looked
    progress.report.flush()  # before a call that may last until the invocation is cut off
    wake = Wake(key=call.full_key, ticket=None, target=call.origin.target, hops=call.hops + 1, after_ms=due_in_ms)
    try:
        send_wake(waker, wake)
    except Exception as error:  # noqa: BLE001 - a user's waker may raise anything; what is stored is safe
        progress.may_wake = False
        progress.report.tell("wake_failed", error=describe(error))


def ask_again(progress: Progress, due_in_ms: int | None) -> None:
    """Ask once more after a wake that came too early, if little remains: a burst goes on, or clocks differ.

    What waits longer was asked for by the caller that has moved the moment.
    """
    if due_in_ms is not None and due_in_ms <= max(progress.settings.debounce_ms, _SHORT_MS):
        ask_for_wake(progress, due_in_ms)


def ask_for_retries(progress: Progress, answer: Released | Continued, pauses_ms: Iterable[int], hold_ms: int) -> None:
    """Ask for what a settle lets wait: its failed messages, each for its pause, and what waits for its hold."""
    waits = set(pauses_ms)
    if hold_ms and isinstance(answer, Released) and answer.due_in_ms is not None:
        due_in_ms = answer.due_in_ms
        waits = {due_in_ms, *(wait for wait in waits if wait > due_in_ms + _SHORT_MS)}
    for wait in sorted(waits):
        ask_for_wake(progress, wait)
