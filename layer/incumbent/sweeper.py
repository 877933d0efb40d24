"""The sweeper: finds keys with due messages and no live owner, and wakes the function of each.

It also delivers delayed wakes, and lets an operator control keys from inside the VPC. `handler` is a Lambda function:
``Handler: incumbent.sweeper.handler``, once a minute.
"""

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from incumbent import observe, powertools
from incumbent.backends import is_mailbox, resolve_lease_provider
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.contract import LeaseProvider, Mailbox
from incumbent.errors import ConfigurationError, IncumbentError, ListIncomplete, StoredFormatUnknown
from incumbent.frozen import dataclass
from incumbent.observe import Fact, Observer, log_fact, tell
from incumbent.providers import from_env
from incumbent.retry import search_until
from incumbent.rules import shared
from incumbent.stand_in import STAND_IN
from incumbent.validation import MAX_TTL_MS, check_ms
from incumbent.values import Orphan
from incumbent.wakers import LambdaWaker, SqsWaker, Wake, Waker, send_wake

LIMIT = 100
MOST = 10_000
LOOK_AHEAD = 10  # times the limit: orphans that cannot be woken must not hide the ones after them

MAX_FAILURES = 3  # of one target in a pass; then its other keys wait for a later pass
PROBE = 10  # a target that makes no progress gets a tenth of the limit at most
PAUSE_MS = 60_000  # after the second wake without progress; each further one doubles it
MAX_PAUSE_MS = 15 * 60_000
END_MS = 10_000  # of its time, reserved by the handler for a wake that has begun
EARLY_MS = 30_000  # passes start with some jitter: a pause that ends within the next half minute counts as over

Fate: TypeAlias = Literal["woken", "failed", "untargeted", "paused", "remaining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The counts of one pass.

    ``found`` counts the orphans examined: all of them, but at most ten times the limit. ``oldest_ms`` is how long the
    oldest has been an orphan. ``woken`` were woken. The wakes of ``failed`` raised. ``untargeted`` have no recorded
    target. ``paused`` were woken before without progress and wait for their next try. ``remaining`` remain for a later
    pass: the limit or the time was used up, or the target failed too often in this pass.
    """

    found: int
    oldest_ms: int
    woken: int
    failed: int
    untargeted: int
    remaining: int
    paused: int = 0


@dataclass(slots=True, kw_only=True)
class _Tried:
    """How often a key or a target was woken without progress, when last, and when it may be woken again."""

    times: int = 0
    woken_ms: int = 0
    due_ms: int = 0

    def again(self, now_ms: int) -> None:
        self.times += 1
        self.woken_ms = now_ms
        pause_ms = min(PAUSE_MS * 2 ** min(self.times - 2, 10), MAX_PAUSE_MS) - EARLY_MS if self.times > 1 else 0
        self.due_ms = now_ms + pause_ms


class _Memory:
    """What earlier passes over a mailbox did, so that this pass backs off from keys that make no progress.

    A key has made progress when it is no longer an orphan, or has become one again since it was woken. A target has
    made progress when one of its keys has. A new execution environment remembers nothing and wakes all once more.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], _Tried] = {}
        self._targets: dict[str, _Tried] = {}

    def compare(self, listed: Sequence[Orphan], began_ms: int, *, complete: bool, gaps: bool) -> None:
        """Forget the keys and targets that have made progress.

        ``began_ms``: when the listing began. Ages are measured since, so no orphan is taken for younger than it is.
        ``complete``: the listing left no orphan out. ``gaps``: it left some out, whatever their age.
        """
        since = {_name(orphan): began_ms - orphan.age_ms for orphan in listed}
        # Keys are tried in the order of the listing: where a newer one is in it, those that were tried would be too.
        whole = set[str]() if gaps else {target for target, key in since if (target, key) not in self._keys}
        for name, tried in list(self._keys.items()):
            moved = since[name] > tried.woken_ms if name in since else complete or name[0] in whole
            if moved:
                del self._keys[name]
                self._targets.pop(name[0], None)

    def times(self, orphan: Orphan) -> int:
        """Return how often the key was woken without progress."""
        tried = self._keys.get(_name(orphan))
        return tried.times if tried else 0

    def paused(self, orphan: Orphan, now_ms: int) -> bool:
        """Return whether the key or its target waits for its next try."""
        tried = (self._keys.get(_name(orphan)), self._targets.get(orphan.target or ""))
        return any(each is not None and now_ms < each.due_ms for each in tried)

    def stalled(self, target: str) -> bool:
        """Return whether the target was woken before without progress."""
        return target in self._targets

    def keep(self, orphans: Iterable[Orphan], now_ms: int) -> None:
        """Remember which orphans were tried in this pass."""
        targets = set[str]()
        for orphan in orphans:
            self._keys.setdefault(_name(orphan), _Tried()).again(now_ms)
            targets.add(orphan.target or "")
        for target in targets:
            self._targets.setdefault(target, _Tried()).again(now_ms)


_MEMORIES: WeakKeyDictionary[Mailbox, _Memory] = WeakKeyDictionary()
_REMEMBERING = threading.Lock()


class _Pass:
    """One pass: wakes targets, and counts what became of each orphan."""

    def __init__(self, waker: Waker, memory: _Memory, listed: Sequence[Orphan], *, limit: int, now_ms: int) -> None:
        self.fates: Counter[Fate] = Counter()
        self.tried: list[Orphan] = []
        self._waker = waker
        self._memory = memory
        self._limit = limit
        self._now_ms = now_ms
        self._keys = Counter(orphan.target or "" for orphan in listed)
        self._woken: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._told: set[str] = set()

    def serve(self, orphan: Orphan, *, over: bool) -> tuple[Fate, str | None]:
        """Wake the orphan's target, unless there is a reason not to. Return the outcome and the error.

        The error is returned once per target, however many keys it has.
        """
        fate, error = self._serve(orphan, over=over)
        self.fates[fate] += 1
        target = orphan.target or ""
        if error is None or target in self._told:
            return fate, None
        self._told.add(target)
        if self._keys[target] > 1:
            error = f"{error} ({self._keys[target]:,} keys with {f'target {target!r}' if target else 'no target'} wait)"
        return fate, error

    def _serve(self, orphan: Orphan, *, over: bool) -> tuple[Fate, str | None]:
        target = orphan.target
        if not target:
            return "untargeted", (
                "no target is recorded: the function that stores its messages has no invoked_function_arn and no "
                "INCUMBENT_TARGET; set INCUMBENT_TARGET there (the next message of the key finds them)"
            )
        if self._memory.paused(orphan, self._now_ms):
            return "paused", None
        most = max(1, self._limit // PROBE) if self._memory.stalled(target) else self._limit
        gave_up = self._failed[target] >= MAX_FAILURES and not self._woken[target]
        if over or gave_up or self.fates["woken"] >= self._limit or self._woken[target] >= most:
            return "remaining", None
        self.tried.append(orphan)
        try:
            send_wake(self._waker, Wake(key=orphan.key, ticket=None, target=target))
        except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and must not stop the others
            self._failed[target] += 1
            return "failed", f"{type(error).__name__}: {error}"
        self._woken[target] += 1
        return "woken", None


def sweep(
    mailbox: Mailbox,
    waker: Waker,
    *,
    limit: int = LIMIT,
    budget_ms: int | None = None,
    observers: Sequence[Observer] = (log_fact,),
    clock: Clock = SYSTEM_CLOCK,
) -> Swept:
    """Wake the targets of orphans: at most ``limit``, and none once ``budget_ms`` milliseconds have passed.

    Half of ``budget_ms`` is for finding them, three eighths for the search of a whole store. Where that is not enough,
    as in a Redis with many keys, the pass serves what it found, and this process's next pass continues the search
    there.

    A target is the function as it was invoked, alias included, stored with its key. It gets a resume event without a
    ticket: it claims the key if that is still free and a message is due, and else ends quietly. So several sweepers at
    once do no harm, nor does one that wakes twice.

    Targets take turns, each with its oldest key first, so that thousands of keys of one target do not hide another
    target's only key. This process remembers what its earlier passes over the same ``mailbox`` woke. A target none of
    whose keys has made progress since is tried again in the next pass, then after 1, 2, 4, 8 and then every 15 minutes,
    with a tenth of ``limit``; a single key of any other target is tried again at the same intervals. A target whose
    wakes fail three times in a pass, and never work in it, gets no further wakes in that pass.

    Observers get a fact for each orphan, with the first error of each target, and one for the end of the pass
    (``swept``), even if it found nothing. Raises what ``orphans`` raises; ``StoredFormatUnknown`` and
    ``ListIncomplete``, which concern only some of the keys, are raised after all others were served.

    Does not guarantee that the woken function makes progress. Watch the age of the oldest orphan: it grows while a
    function makes no progress.
    """
    if type(limit) is not int or not 1 <= limit <= MOST:
        raise ConfigurationError(f"limit is {limit!r}; allowed are whole numbers from 1 to {MOST:,}")
    if budget_ms is not None:
        check_ms("budget_ms", budget_ms, 0, MAX_TTL_MS)
    began = clock.now()
    listed: list[Orphan] = []
    left_out: StoredFormatUnknown | ListIncomplete | None = None
    found_by = None if budget_ms is None else began.plus(budget_ms // 2)
    # A search that has used up its time yields all that it found, and then says what it left out: that needs time, too.
    searched_by = None if budget_ms is None else began.plus(budget_ms * 3 // 8)
    try:
        with search_until(searched_by):
            for orphan in mailbox.orphans(limit * LOOK_AHEAD):
                listed.append(orphan)
                if found_by is not None and clock.now().until(found_by) <= 0:
                    break
    except (StoredFormatUnknown, ListIncomplete) as cause:
        left_out = cause
    in_time = found_by is None or clock.now().until(found_by) > 0
    gaps = isinstance(left_out, ListIncomplete)
    now_ms = clock.now().wall_ms
    memory = _memory(mailbox)
    complete = in_time and not gaps and len(listed) < limit * LOOK_AHEAD
    memory.compare(listed, began.wall_ms, complete=complete, gaps=gaps)
    this = _Pass(waker, memory, listed, limit=limit, now_ms=now_ms)
    for orphan in shared(sorted(listed, key=memory.times)):
        over = budget_ms is not None and began.until(clock.now()) >= budget_ms
        fate, error = this.serve(orphan, over=over)
        tell(observers, _fact(orphan, fate, error, clock))
    memory.keep(this.tried, now_ms)
    oldest_ms = max((orphan.age_ms for orphan in listed), default=0)
    said = None if left_out is None else str(left_out)
    tell(observers, Fact(fact="swept", key="", t_ms=clock.now().wall_ms, waiting=len(listed), ms=oldest_ms, error=said))
    if left_out is not None:
        raise left_out
    return Swept(
        found=len(listed),
        oldest_ms=oldest_ms,
        woken=this.fates["woken"],
        failed=this.fates["failed"],
        untargeted=this.fates["untargeted"],
        remaining=this.fates["remaining"],
        paused=this.fates["paused"],
    )


def _memory(mailbox: Mailbox) -> _Memory:
    """Return the memory of earlier passes over this mailbox; an empty one if the mailbox is not hashable."""
    try:
        with _REMEMBERING:
            return _MEMORIES.setdefault(mailbox, _Memory())
    except TypeError:
        return _Memory()


def _name(orphan: Orphan) -> tuple[str, str]:
    return orphan.target or "", orphan.key


def _fact(orphan: Orphan, fate: Fate, error: str | None, clock: Clock) -> Fact:
    return Fact(
        fact="orphan",
        key=orphan.key,
        t_ms=clock.now().wall_ms,
        target=orphan.target,
        outcome=fate,
        waiting=orphan.waiting,
        ms=orphan.age_ms,
        error=error,
    )


def handler(event: object, context: Any) -> dict[str, Any]:
    """Sweep once, as a Lambda function that a schedule invokes every minute; answers what ``Swept`` says.

    Three kinds of events ask it for something else. A batch of records of the queue for delayed wakes (`SqsWaker`): it
    wakes the target of each that is due, sends the others on with the rest of their delay, and answers which records
    failed. ``{"incumbent": {"v": 1, "control": {...}}}``: it carries out what `incumbent.control_requests` says, if it
    was invoked by the alias ``INCUMBENT_CONTROL_ALIAS``, where that is set.
    ``{"incumbent": {"doctor": {"functions": [...]}}}``: it answers what `incumbent.doctor` finds.

    The environment names the store, as for every function (``INCUMBENT_PROVIDER`` and what belongs to it), the queue
    (``INCUMBENT_WAKE_QUEUE_URL``), and in ``INCUMBENT_SWEEP_LIMIT`` how many keys a pass may wake (100). No wake begins
    in the last 10 seconds before the invocation's timeout. The function needs ``lambda:InvokeFunction`` on every
    function that keeps messages, and no lease: two that run at once wake the same functions twice, and the second wake
    does nothing.

    Raises ``ConfigurationError``, and what `sweep` raises.
    """
    match event:
        case {"incumbent": {"doctor": asked}}:
            from incumbent import doctor

            return doctor.answer(asked)
        case {"incumbent": {"control": _} as asked}:
            from incumbent import control_requests

            _check_alias(context)
            return control_requests.answer(asked, _mailbox(), make_waker=_waker)
        case _:
            pass
    observers = (*observe.from_env(os.environ), *powertools.from_env(os.environ))
    budget_ms = max(0, context.get_remaining_time_in_millis() - END_MS)
    match event:
        case {"Records": [*records]}:
            return wake_queued(records, _waker(), _later_waker, budget_ms=budget_ms, observers=observers)
        case _:
            pass
    swept = sweep(
        _mailbox(),
        _waker(),
        limit=_limit(os.environ.get("INCUMBENT_SWEEP_LIMIT", "").strip() or str(LIMIT)),
        budget_ms=budget_ms,
        observers=observers,
    )
    return asdict(swept)


def wake_queued(
    records: Sequence[Any],
    waker: Waker,
    make_later: Callable[[], Waker],
    *,
    budget_ms: int,
    observers: Sequence[Observer],
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, Any]:
    """Wake the targets of SQS' records that are due, and send the others on. Answer a partial batch response.

    A record that is not a queued wake fails, and so does one whose wake raises, or for which ``budget_ms`` milliseconds
    do not suffice: SQS delivers it again, and moves it to the dead-letter queue in the end. ``make_later`` makes the
    waker that can delay, when one is needed.
    """
    began, failed = clock.now(), list[dict[str, str]]()
    for record in records:
        now = clock.now()
        key, wake = "", None
        try:
            if began.until(now) >= budget_ms:
                raise IncumbentError("the time of this invocation is over")  # noqa: TRY301 - reported like the others
            wake = Wake.from_queue(record["body"], now.wall_ms)
            if wake is None:
                raise ConfigurationError("its body is not a queued wake")  # noqa: TRY301 - as above
            key = wake.key
            send_wake(make_later() if wake.after_ms else waker, wake)
        except Exception as error:  # noqa: BLE001 - one record must not fail the others
            failed.append({"itemIdentifier": str(record.get("messageId", ""))})
            said = f"record {record.get('messageId')}: {type(error).__name__}: {error}"
            target = None if wake is None else wake.target
            tell(observers, Fact(fact="wake_failed", key=key, t_ms=now.wall_ms, target=target, error=said))
    return {"batchItemFailures": failed}


def _check_alias(context: Any) -> None:
    """Refuse a request for control that came by another alias than the one for it, whose policy says who may."""
    alias = os.environ.get("INCUMBENT_CONTROL_ALIAS", "").strip()
    if alias and not str(context.invoked_function_arn).endswith(f":function:{context.function_name}:{alias}"):
        raise ConfigurationError(
            f"control is not allowed through {context.invoked_function_arn}: invoke {context.function_name}:{alias}"
        )


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST))):
        raise ConfigurationError(
            f"INCUMBENT_SWEEP_LIMIT is {text[:20]!r}; allowed are whole numbers from 1 to {MOST:,}"
        )
    return int(text)


def _mailbox() -> Mailbox:
    """Return the mailbox of a test that stands in, or else the environment's."""
    stand_in = STAND_IN.provider
    provider = _from_env() if stand_in is None else resolve_lease_provider(stand_in)
    if not is_mailbox(provider):
        raise ConfigurationError(f"{type(provider).__name__} stores no messages: there is nothing to sweep")
    return provider


@functools.cache
def _from_env() -> LeaseProvider:
    return from_env()


@functools.cache
def _waker() -> Waker:
    return LambdaWaker()


@functools.cache
def _later_waker() -> Waker:
    queue_url = os.environ.get("INCUMBENT_WAKE_QUEUE_URL", "").strip()
    if not queue_url:
        raise ConfigurationError("a wake is due later: set INCUMBENT_WAKE_QUEUE_URL to the queue that it came from")
    return SqsWaker(queue_url)
