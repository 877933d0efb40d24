"""Retries of requests, in one place, since a provider must know whether a try is a repetition (R9: unknown outcome).

The ttl of a call bounds its duration, so that a renewal ends well before the next is due, and long before the lease
ends. For incumbent's own clients, in the slowest case::

    ttl        wait      a try lasts   tries begin within   the call has ended after   a renewal is due after
    30,000 ms  1,000 ms  2,000 ms      3,000 ms             5,000 ms                   10,000 ms
     6,000 ms    250 ms    500 ms      1,000 ms             1,500 ms                    2,000 ms

A try waits twice at most: for a connection, if it needs one, and for the answer.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError, LeaseUnavailable

T = TypeVar("T")

MAX_TRIES = 3
PAUSE_MS = 20

# Each of these that is used has its own client: one client, as long as an application has one ttl.
WAITS_MS = (1_000, 500, 250)
MAX_BUDGET_MS = 3_000
MIN_BUDGET_MS = 250

# Between two looks for a result that another invocation makes.
FIRST_LOOK_MS = 50
MAX_LOOK_MS = 1_000

_SEARCH_UNTIL: ContextVar[Moment | None] = ContextVar("incumbent_search_until", default=None)


def wait_ms(ttl_ms: int | None = None) -> int:
    """Return how long incumbent's own clients wait for a connection, and again for an answer, in milliseconds.

    It is at most a twentieth of the ttl, but never less than 250 ms, so a ttl below five seconds leaves time for fewer
    tries.
    """
    if ttl_ms is None:
        return WAITS_MS[0]
    return next((wait for wait in WAITS_MS if wait <= ttl_ms // 20), WAITS_MS[-1])


def budget_ms(ttl_ms: int | None = None) -> int:
    """Return for how long a call may begin further tries, in milliseconds: a sixth of the ttl, from 250 to 3,000."""
    if ttl_ms is None:
        return MAX_BUDGET_MS
    return min(max(ttl_ms // 6, MIN_BUDGET_MS), MAX_BUDGET_MS)


def growing_pauses() -> Iterator[int]:
    """Yield how long to wait before each next look for a result: from 50 ms to a second, each half as long again.

    Each is up to a fifth shorter, so that callers that began together do not look together.
    """
    pause_ms = FIRST_LOOK_MS
    while True:
        yield random.randint(pause_ms - pause_ms // 5, pause_ms)  # noqa: S311 - spread
        pause_ms = min(MAX_LOOK_MS, pause_ms * 3 // 2)


def check_wait(wait_ms: float | None, ttl_ms: int | None, *, key: str | None = None, advice: str) -> None:
    """Refuse a wait that the user has set and that is longer than the ttl. Raises ``ConfigurationError``.

    ``wait_ms`` is ``None`` if the user has set none, and infinite if the client waits for ever.
    """
    if wait_ms is not None and ttl_ms is not None and wait_ms > ttl_ms:
        raise ConfigurationError(
            f"the store's client may wait {wait_ms:,.0f} ms for one answer, longer than the lease lives "
            f"(ttl_ms={ttl_ms:,}): a renewal that takes so long loses it. {advice}",
            key=key,
        )


def causes(error: BaseException | None, until: BaseException | None = None) -> Iterator[BaseException]:
    """Yield an error, and those from which it came, each once: one that is raised again may come from itself.

    ``until`` and what it came from are left out.
    """
    seen = [until]
    while error is not None and not any(error is each for each in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


@contextmanager
def search_until(moment: Moment | None) -> Iterator[None]:
    """Within it, a listing that has to search the whole store ends soon after ``moment``, with what it has found.

    ``None`` is for a search that may take its time. The sweeper so keeps time for its wakes, through a contract that
    has no argument for it. The same provider's next listing goes on where this one has stopped.
    """
    before = _SEARCH_UNTIL.set(moment)
    try:
        yield
    finally:
        _SEARCH_UNTIL.reset(before)


def search_is_over(clock: Clock) -> bool:
    """Whether a listing has searched for as long as it may."""
    until = _SEARCH_UNTIL.get()
    return until is not None and clock.now().until(until) <= 0


def call_with_retry(
    send: Callable[[int, Moment], T],
    *,
    clock: Clock,
    call: str,
    key: str,
    ttl_ms: int | None,
    waits_ms: float,
    errors: tuple[type[Exception], ...],
    classify_error: Callable[[Exception], tuple[bool, str]],
    passes: Callable[[Exception], bool] | None = None,
    first_try: int = 1,
    give_up_at: Moment | None = None,
) -> T:
    """Send a request until it is answered, its budget is spent, or an error says that another try cannot help.

    ``send`` gets the number of the try and the time at which it is sent (R12: deadline). ``waits_ms`` is how long its
    client waits for a connection, and again for an answer. ``classify_error`` returns whether another try may help
    after an error, and what to do about it. Tries are not counted while an error ``passes`` by itself. ``first_try`` is
    2 if the vendor's client repeats requests, since then even the first try may be a repetition. No try begins whose
    answer could come after ``give_up_at``.

    Raises ``LeaseUnavailable`` from the vendor's error: the call may or may not have taken effect.
    """
    began = sent = clock.now()
    number = first_try
    failed: Exception | None = None
    advice = ""
    while True:
        if _comes_too_late(sent, give_up_at, ttl_ms, waits_ms):
            tried = "no other try was begun" if failed else "it was not tried"
            raise LeaseUnavailable(
                f"{call} of key {key!r}: {tried}, since its answer could come too late"
                + (f" ({type(failed).__name__}: {failed}); {advice}" if failed else ""),
                key=key,
            ) from failed
        try:
            return send(number, sent)
        except errors as error:
            again, advice = classify_error(error)
            failed = error
            failures = number - first_try + 1
            pause_ms = random.randint(PAUSE_MS // 2, PAUSE_MS << min(failures, MAX_TRIES) - 1)  # noqa: S311 - jitter
            late = began.until(clock.now()) + pause_ms >= budget_ms(ttl_ms)
            enough = failures >= MAX_TRIES and not (passes and passes(error))
            if not again or late or enough:
                raise LeaseUnavailable(
                    f"{call} of key {key!r}: the store gave no answer ({type(error).__name__}: {error}); {advice}",
                    key=key,
                ) from error
        clock.sleep_ms(pause_ms)
        number += 1
        sent = clock.now()


def _comes_too_late(sent: Moment, give_up_at: Moment | None, ttl_ms: int | None, waits_ms: float) -> bool:
    """Return whether a try that begins now could be answered after ``give_up_at``.

    For a ttl below three seconds, and for clients that wait long, a sixth of the ttl is taken as the duration of a try:
    else no time would be left for a renewal.
    """
    if give_up_at is None:
        return False
    lasts_ms = 2 * waits_ms
    return sent.until(give_up_at) < (lasts_ms if ttl_ms is None else min(lasts_ms, ttl_ms // 6))
