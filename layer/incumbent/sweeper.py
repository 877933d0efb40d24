"""The sweeper: finds keys with due messages and no live owner, and wakes the function of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.contract import Mailbox
from incumbent.errors import ConfigurationError, StoredFormatUnknown
from incumbent.observe import Fact, Observer, log_fact, tell
from incumbent.validation import MAX_TTL_MS, check_ms
from incumbent.values import Orphan
from incumbent.wakers import Wake, Waker

LIMIT = 100
MOST = 10_000
LOOK_AHEAD = 10  # times the limit: orphans that nobody can wake must not hide those behind them

Fate: TypeAlias = Literal["woken", "failed", "untargeted", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a pass has found and done.

    ``found`` counts the orphans that were looked at: all, but at most ten times the limit. ``oldest_ms`` is for how
    long the oldest has been one. ``woken`` were woken, the wakes of ``failed`` raised, ``untargeted`` have nothing
    recorded that could be woken, and ``left`` are for the next pass: the limit or the time was used up.
    """

    found: int
    oldest_ms: int
    woken: int
    failed: int
    untargeted: int
    left: int


def sweep(
    mailbox: Mailbox,
    waker: Waker,
    *,
    limit: int = LIMIT,
    budget_ms: int | None = None,
    observers: Sequence[Observer] = (log_fact,),
    clock: Clock = SYSTEM_CLOCK,
) -> Swept:
    """Wake the targets of orphans, the oldest first: at most ``limit``, and none once ``budget_ms`` have passed.

    A target is the function as it was invoked, alias included, kept with its key. It gets a resume event without a
    ticket: it claims the key if that is still free and something is due, and else ends quietly. So several sweepers at
    once do no harm, nor does one that wakes twice.

    Observers are told of each orphan, and of the end of the pass (``swept``) whatever it found. Raises what ``orphans``
    raises; ``StoredFormatUnknown``, which stands for a few keys only, after all others were served.

    Not promised: that who is woken does anything. Watch the age of the oldest orphan: it grows if nothing helps.
    """
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit is {limit!r}; allowed are whole numbers from 1 to {MOST:,}")
    if budget_ms is not None:
        check_ms("budget_ms", budget_ms, 0, MAX_TTL_MS)
    began = clock.now()
    fates: Counter[Fate] = Counter()
    oldest_ms = 0
    unread: StoredFormatUnknown | None = None
    try:
        for orphan in mailbox.orphans(limit * LOOK_AHEAD):
            over = fates["woken"] >= limit or (budget_ms is not None and began.until(clock.now()) >= budget_ms)
            fate, error = ("left", None) if over else _wake(orphan, waker)
            fates[fate] += 1
            oldest_ms = max(oldest_ms, orphan.age_ms)
            tell(observers, _fact(orphan, fate, error, clock))
    except StoredFormatUnknown as cause:
        unread = cause
    swept = Swept(
        found=fates.total(),
        oldest_ms=oldest_ms,
        woken=fates["woken"],
        failed=fates["failed"],
        untargeted=fates["untargeted"],
        left=fates["left"],
    )
    tell(observers, Fact(fact="swept", key="", t_ms=clock.now().wall_ms, waiting=swept.found, ms=oldest_ms))
    if unread is not None:
        raise unread
    return swept


def _wake(orphan: Orphan, waker: Waker) -> tuple[Fate, str | None]:
    if not orphan.target:
        return "untargeted", (
            "no target is recorded: whoever stores its messages has no invoked_function_arn and no INCUMBENT_TARGET; "
            "the next message of the key finds them"
        )
    try:
        waker(Wake(key=orphan.key, ticket=None, target=orphan.target))
    except Exception as error:  # noqa: BLE001 - a waker may be anybody's, and one that fails must not stop the others
        return "failed", f"{type(error).__name__}: {error}"
    return "woken", None


def _fact(orphan: Orphan, fate: Fate, error: str | None, clock: Clock) -> Fact:
    return Fact(
        fact="orphan",
        key=orphan.key,
        t_ms=clock.now().wall_ms,
        outcome=fate,
        waiting=orphan.waiting,
        ms=orphan.age_ms,
        error=error,
    )
