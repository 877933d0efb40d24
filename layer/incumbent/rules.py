"""The pure state machine of one key: what every provider does, and what the memory provider executes.

The state of a key is one frozen value. Each call is one function ``(state, now_ms, ...) -> (state, answer)`` that
neither waits nor sends a request; a provider makes it atomic. The numbers in the comments are those of the rules in
``contract``. ``now_ms`` is the store's clock. Where no clock is shared, a provider passes ``skew_ms``, by which other
callers wait longer than the owner may rely on its lease (R3: expiry).

How a message goes through a key::

    claim/routed ──> due ──grant/take──> given to a tenure ──settle──> handled, stopped
                      ^                        │
                      ├──── pause, deferred <──┤ failed, died        ──> dead (out of attempts)
    later (M14) ──────┘                        └ dropped, not promised ──> gone, with a trace (M3)

    waiting ──cancel──> cancelled (M19)      waiting ──a later one, keep="latest"──> superseded (M21)

A *tenure* is the time from one grant to the next; its fence is its name. A message is given to a tenure when it is
counted as delivered in it. What a tenure was given and did not settle, its run died with: the next grant ends that run,
and until then the message counts as if it had. So no message was ever given to a tenure before the last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Literal, TypeAlias

from incumbent.frozen import changer, dataclass, maker, replace
from incumbent.traces import KINDS, REMEMBERED, Ended, Outcome, Traces
from incumbent.values import FOREVER_MS, Debounce, Failure, MessageState, Origin, Orphan, Policy

LETTERS_MS = 14 * 86_400_000  # M6: for how long dead letters are kept
BEYOND = 100  # M7: how many messages owners that die may leave behind in a mailbox that is full
MAX_STORED = 1_000 + BEYOND  # M7: of a key, whatever its policy is
INTERRUPTED = "a later message interrupts this run"  # M16

__all__ = ["KINDS", "REMEMBERED", "Ended", "Outcome", "Traces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored message. ``claimed_by`` is the owner string of the claim that stored it or took it over."""

    id: str
    body: str
    claimed_by: str
    promised: bool
    stored_ms: int
    attempts: int = 0
    due_ms: int = 0
    delivered_fence: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A message out of attempts, kept for an operator (M6)."""

    id: str
    body: str
    attempts: int
    error: str | None
    stored_ms: int
    died_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenureEnd:
    """How the last tenure that did not expire ended: the evidence for a repeated call (R8: lost replies).

    ``fence`` is the tenure's for a release or a settle that freed the key, else the new grant's.
    """

    how: Literal["released", "settled", "moved", "transferred"]
    owner: str
    successor: str | None
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """All that is known of one key.

    ``block`` and ``pauses_ms`` are the policy of the last claim that came to run messages (a ticket's claim does not)
    or of the last settle since: what ends a run need not know the policy.

    Before ``quiet_until_ms`` and ``held_until_ms`` no caller is granted the key (M15). ``stop`` is the mark of the
    live tenure, with the reason, which may be empty (M16); ``note`` is the JSON that its run has noted (M18).
    """

    owner: str | None = None
    expires_ms: int = 0
    since_ms: int = 0
    fence: int = 0
    mail: tuple[Stored, ...] = ()
    ended: Sequence[Ended] = Traces()
    dead: tuple[Dead, ...] = ()
    tenure_end: TenureEnd | None = None
    block: bool = False
    pauses_ms: tuple[int, ...] = ()
    origin: Origin | None = None
    quiet_until_ms: int = 0
    held_until_ms: int = 0
    held_reason: str | None = None
    stop: str | None = None
    note: str | None = None


# --- answers of the functions below, to which a provider adds moments and events


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The caller's tenure: its fence, the given messages, the number of other due ones, and its expiry."""

    owner: str
    fence: int
    given: tuple[Stored, ...]
    waiting: int
    expires_ms: int
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Another owner's tenure, or one that has just ended or a key that is held (``owner`` is ``None``)."""

    owner: str | None
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The message is stored and promised. ``due_ms`` is when a free key can be granted, if this made it earlier."""

    owner: str | None
    stored: int
    due_ms: int | None = None
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The id is known in this state."""

    state: MessageState
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The key is free; ``remaining`` messages are stored, and it can be granted for them from ``due_ms`` on."""

    remaining: int
    due_ms: int | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No message may run now; a free key can be granted from ``due_ms`` on, if something waits."""

    due_ms: int | None = None


# --- what makes them, for each run


_make_ended = maker(Ended)
_make_freed = maker(Freed)
_make_granted = maker(Granted)
_make_tenure_end = maker(TenureEnd)
_change_state = changer(KeyState)
_change_stored = changer(Stored)


Full = Literal["full"]
Lost = Literal["lost"]
Unknown = Literal["unknown"]


# --- queries on a state


def owned(state: KeyState, now_ms: int, skew_ms: int = 0) -> bool:
    """Return whether other callers must respect an owner (R3: expiry plus skew)."""
    return state.owner is not None and now_ms < state.expires_ms + skew_ms


def owned_by(state: KeyState, owner: str, now_ms: int, fence: int | None = None) -> bool:
    """Return whether that owner's lease is live (R3: expiry), in the tenure of ``fence`` if it is known (R2)."""
    return state.owner == owner and now_ms < state.expires_ms and (fence is None or fence == state.fence)


def due(state: KeyState, now_ms: int, skew_ms: int = 0) -> list[Stored]:
    """Messages that are due and not given to the live tenure, oldest first; blocked ones are not due (M6)."""
    if not state.mail:
        return []
    live = owned(state, now_ms, skew_ms)
    found: list[Stored] = []
    for message in state.mail if live else _after_runs(state, now_ms, skew_ms):
        if live and message.delivered_fence == state.fence:
            continue
        if message.due_ms <= now_ms:
            found.append(message)
        elif state.block and message.attempts:  # what was only delayed blocks nothing (M14)
            break
    return found


def not_before_ms(state: KeyState) -> int:
    """Return the moment before which no caller is granted the key (M15: not before)."""
    return max(state.quiet_until_ms, state.held_until_ms) if state.quiet_until_ms else state.held_until_ms


def next_due_ms(state: KeyState, now_ms: int) -> int | None:
    """Return when a free key can next be granted for a stored message; ``None`` if that is not known.

    Where paused messages block, what waits behind one is due with it (M6: failure).
    """
    if not state.mail or state.held_until_ms == FOREVER_MS:
        return None
    moments: list[int] = []
    for message in _after_runs(state, now_ms):
        moments.append(max(message.due_ms, now_ms))
        if state.block and message.attempts and message.due_ms > now_ms:
            break
    return max(min(moments), not_before_ms(state))


def given(state: KeyState) -> tuple[Stored, ...]:
    """Return the messages that the present tenure was given."""
    return tuple([message for message in state.mail if message.delivered_fence == state.fence])


def state_of(state: KeyState, message_id: str, now_ms: int, window_ms: int, skew_ms: int = 0) -> MessageState | None:
    """Return the state of an id, within the window (M5); the messages of an expired owner wait (R3)."""
    message = _find(state.mail, message_id)
    if message is not None:
        running = owned(state, now_ms, skew_ms) and message.delivered_fence == state.fence
        return "running" if running else "waiting"
    trace = trace_of(state, message_id, now_ms, window_ms)
    return None if trace is None else _for_good(trace)


def trace_of(state: KeyState, message_id: str, now_ms: int, window_ms: int) -> Ended | None:
    """Return the latest trace of an id that left for good, within the window (M5)."""
    return Traces.of(state.ended).latest(message_id, now_ms, window_ms)


def _for_good(trace: Ended) -> MessageState:
    assert trace.outcome != "failed"  # noqa: S101 - such a message has not left for good
    return trace.outcome


def _find(messages: Iterable[Stored], message_id: str) -> Stored | None:
    for message in messages:
        if message.id == message_id:
            return message
    return None


def orphaned_since(state: KeyState, now_ms: int, skew_ms: int = 0) -> int | None:
    """Return since when due messages have had no live owner (M8); ``None`` if none is due or the owner is live."""
    if owned(state, now_ms, skew_ms):
        return None
    waiting = due(state, now_ms, skew_ms)
    if not waiting or now_ms < not_before_ms(state):
        return None
    since_ms = min(max(message.due_ms, message.stored_ms) for message in waiting)
    return max(_ended_ms(state, skew_ms), since_ms, not_before_ms(state))


def shared(orphans: Iterable[Orphan]) -> Iterator[Orphan]:
    """Let targets take turns: the first orphan of each, then the second of each, and so on (M8)."""
    by_target: dict[str, list[Orphan]] = {}
    for orphan in orphans:
        by_target.setdefault(orphan.target or "", []).append(orphan)
    for turn in zip_longest(*by_target.values()):
        yield from (orphan for orphan in turn if orphan is not None)


# --- parts of a step


Ends: TypeAlias = tuple[bool, tuple[int, ...]]
"""What is noted of a policy with the key, since it ends the key's runs: ``block`` and ``pauses_ms``."""


def _grant(
    state: KeyState,
    owner: str,
    now_ms: int,
    ttl_ms: int,
    skew_ms: int = 0,
    *,
    origin: Origin | None = None,
    policy: Policy | None = None,
    mail: Sequence[Stored] | None = None,
    max_attempts: int = 0,
) -> KeyState:
    """Start a tenure: a new fence, greater than any before and not behind the clock (R7); earlier runs are over.

    ``policy`` is that of a caller that comes to run messages; ``mail`` are the messages if it has brought another. The
    first message is given in the same step if it is due and was given less than ``max_attempts`` times.
    """
    fence = max(state.fence + 1, now_ms * 1_000)
    ends = (state.block, state.pauses_ms) if policy is None else _ends(policy)
    taken_back = _taken_back(state.mail if mail is None else mail, min(now_ms, _ended_ms(state, skew_ms)), ends)
    if max_attempts and taken_back:
        first = taken_back[0]
        if first.due_ms <= now_ms and first.attempts < max_attempts:
            taken_back = (_given_in(fence, first), *taken_back[1:])
    return _change_state(
        state,
        owner=owner,
        fence=fence,
        expires_ms=now_ms + ttl_ms,
        since_ms=now_ms,
        mail=taken_back,
        tenure_end=None,
        block=ends[0],
        pauses_ms=ends[1],
        origin=described(state.origin, origin),
        stop=None,
        note=None,
    )


def _free(
    state: KeyState,
    now_ms: int,
    end: TenureEnd,
    *,
    ends: Ends | None = None,
    mail: tuple[Stored, ...] | None = None,
    ended: Traces | None = None,
) -> KeyState:
    """End a tenure on purpose: the key is free from now on.

    ``ends`` are those of the last run's policy; ``mail`` and ``ended`` are what its outcome has left.
    """
    block, pauses_ms = ends or (state.block, state.pauses_ms)
    return _change_state(
        state,
        owner=None,
        expires_ms=now_ms,
        since_ms=now_ms,
        mail=state.mail if mail is None else mail,
        ended=state.ended if ended is None else ended,
        tenure_end=end,
        block=block,
        pauses_ms=pauses_ms,
        stop=None,
        note=None,
    )


def _ended_ms(state: KeyState, skew_ms: int) -> int:
    """When the tenure ended, or will unless it is renewed, for strangers (R3)."""
    return state.expires_ms + (skew_ms if state.owner is not None else 0)


def _after_runs(state: KeyState, now_ms: int, skew_ms: int = 0) -> tuple[Stored, ...]:
    """The messages as they are once the last tenure is over."""
    return _taken_back(state.mail, min(now_ms, _ended_ms(state, skew_ms)), (state.block, state.pauses_ms))


def _taken_back(mail: Sequence[Stored], ended_ms: int, ends: Ends) -> tuple[Stored, ...]:
    """Take back what the last tenure was given and did not settle: its run died with it, or dies now (M6).

    Such a message pauses as if it had failed when the tenure ended, and goes behind all that wait; where paused
    messages block, it keeps its place.
    """
    if not mail:
        return ()
    block, pauses_ms = ends
    kept: list[Stored] = []
    behind: list[Stored] = []
    for message in mail:
        if not message.delivered_fence:
            kept.append(message)
            continue
        died = replace(message, delivered_fence=0, due_ms=ended_ms + _pause_ms(pauses_ms, message.attempts))
        (kept if block else behind).append(died)
    return (*kept, *behind)


def _pause_ms(pauses_ms: Sequence[int], attempts: int) -> int:
    """The pause after that many deliveries, of which there was one; none where no policy was noted yet."""
    return pauses_ms[min(attempts, len(pauses_ms)) - 1] if pauses_ms else 0


def kept_pauses(policy: Policy) -> tuple[int, ...]:
    """The pauses that are noted with a key: as many as there can be."""
    return policy.pauses_ms[: policy.max_attempts]


def _ends(policy: Policy) -> Ends:
    return policy.on_error == "block", kept_pauses(policy)


def _note(state: KeyState, policy: Policy) -> KeyState:
    """Note with the key what ends its runs."""
    block, pauses_ms = _ends(policy)
    return replace(state, block=block, pauses_ms=pauses_ms)


def _running(state: KeyState) -> list[str]:
    """The ids of what the last tenure was given and did not settle yet."""
    return [message.id for message in state.mail if message.delivered_fence]


def _bury_spent(state: KeyState, ids: Sequence[str], now_ms: int, max_attempts: int) -> KeyState:
    """Bury those whose run died and that are out of attempts: they need not pause first (M6)."""
    return _bury(state, [each for each in state.mail if each.id in ids and each.attempts >= max_attempts], now_ms)


def _bury(state: KeyState, spent: Sequence[Stored], now_ms: int) -> KeyState:
    """Move messages that are out of attempts to the dead letters (M6: failure)."""
    if not spent:
        return state
    ids = {message.id for message in spent}
    return replace(
        state,
        mail=tuple(other for other in state.mail if other.id not in ids),
        dead=(
            *(other for other in letters(state, now_ms) if other.id not in ids),
            *(
                Dead(
                    id=message.id,
                    body=message.body,
                    attempts=message.attempts,
                    error=message.error,
                    stored_ms=message.stored_ms,
                    died_ms=now_ms,
                )
                for message in spent
            ),
        ),
        ended=Traces.of(state.ended).plus(_trace(state, message, "dead", now_ms) for message in spent),
    )


def dead_lettered(before: KeyState, after: KeyState) -> tuple[Dead, ...]:
    """Return the messages that became dead letters between two states (M6), in order."""
    if after.dead is before.dead:
        return ()
    return tuple(letter for letter in after.dead if letter not in before.dead)


def _trace(state: KeyState, message: Stored, outcome: Outcome, now_ms: int, result: str | None = None) -> Ended:
    by, fence = message.claimed_by, state.fence
    return _make_ended(id=message.id, outcome=outcome, claimed_by=by, fence=fence, at_ms=now_ms, result=result)


def _change(state: KeyState, ids: Iterable[str], change: Callable[[Stored], Stored]) -> KeyState:
    chosen = frozenset(ids)
    if not chosen:
        return state
    return replace(
        state,
        mail=tuple(change(message) if message.id in chosen else message for message in state.mail),
    )


def _deliver(state: KeyState, now_ms: int, max_attempts: int) -> KeyState:
    """Give the oldest due message to the present tenure and count it (M4, M6); move those out of attempts away."""
    while waiting := due(state, now_ms):
        oldest = waiting[0]
        if oldest.attempts < max_attempts:
            return _give(state, [oldest.id])
        state = _bury(state, [oldest], now_ms)
    return state


def _give(state: KeyState, ids: Iterable[str]) -> KeyState:
    """Give messages to the present tenure, and count each delivery in the same step (M6)."""
    chosen = frozenset(ids)
    if not chosen:
        return state
    mail = [_given_in(state.fence, message) if message.id in chosen else message for message in state.mail]
    return replace(state, mail=tuple(mail))


def _given_in(fence: int, message: Stored) -> Stored:
    """Return a message as it is once a tenure is given it, the delivery counted (M6)."""
    return _change_stored(message, attempts=message.attempts + 1, delivered_fence=fence)


def _forget(state: KeyState, now_ms: int, window_ms: int) -> KeyState:
    """Remove the oldest traces: those older than the window, and all but the last 256 of each kind (M5)."""
    ended = Traces.of(state.ended)
    kept = ended.forgotten(now_ms, window_ms)
    return state if kept is ended else replace(state, ended=kept)


def _granted(state: KeyState, now_ms: int) -> Granted:
    assert state.owner is not None  # noqa: S101 - callers have just granted or compared it
    messages = given(state)
    return _make_granted(
        owner=state.owner,
        fence=state.fence,
        given=messages,
        waiting=len(due(state, now_ms)) if len(messages) < len(state.mail) else 0,
        expires_ms=state.expires_ms,
        stop=state.stop,
    )


# --- the lease


def acquire(state: KeyState, now_ms: int, owner: str, ttl_ms: int, skew_ms: int = 0) -> tuple[KeyState, Granted | Held]:
    """Grant a free or expired key, or one that is already this owner's; else return the holder (R2, M15)."""
    if owned(state, now_ms, skew_ms):
        if state.owner != owner:
            return state, Held(owner=state.owner, expires_ms=state.expires_ms)
        again = replace(state, expires_ms=max(state.expires_ms, now_ms + ttl_ms))  # R4: never forward
        return again, _granted(again, now_ms)
    if now_ms < not_before_ms(state):
        return state, Held(owner=None, expires_ms=not_before_ms(state))
    new = _grant(state, owner, now_ms, ttl_ms, skew_ms)
    return new, _granted(new, now_ms)


def renew(
    state: KeyState, now_ms: int, owner: str, ttl_ms: int, fence: int | None = None, *, note: str | None = None
) -> tuple[KeyState, Granted | Lost]:
    """Extend a live lease of that owner; keep the fence; never bring the expiry forward (R4).

    ``note`` replaces what the run has noted before (M18).
    """
    if not owned_by(state, owner, now_ms, fence):
        return state, "lost"
    kept = state.note if note is None else note
    renewed = replace(state, expires_ms=max(state.expires_ms, now_ms + ttl_ms), note=kept)
    return renewed, _granted(renewed, now_ms)


def release(state: KeyState, now_ms: int, owner: str, fence: int | None = None) -> KeyState:
    """Free the key if its live owner asks, in its own tenure; for any other caller change nothing (R5)."""
    if not owned_by(state, owner, now_ms, fence):
        return state
    return _free(state, now_ms, TenureEnd(how="released", owner=owner, successor=None, fence=state.fence))


def transfer(
    state: KeyState,
    now_ms: int,
    owner: str,
    successor: str,
    ttl_ms: int,
    *,
    fence: int | None = None,
    repeated: bool = False,
) -> tuple[KeyState, bool | Unknown]:
    """Pass the key on in one step, with a full ttl and a new fence; the same call repeated returns true again (R6)."""
    if owned_by(state, owner, now_ms, fence):
        new = _grant(state, successor, now_ms, ttl_ms)
        moved = TenureEnd(how="transferred", owner=owner, successor=successor, fence=new.fence)
        return replace(new, tenure_end=moved), True
    end = state.tenure_end
    if (
        end is not None
        and (end.how, end.owner, end.successor, end.fence) == ("transferred", owner, successor, state.fence)
        and owned_by(state, successor, now_ms)
    ):
        return state, True
    return state, "unknown" if repeated else False  # R9


# --- the mailbox


def claim(  # noqa: C901, PLR0912 - the decisions of M1 stand in the rule's order, in one place
    state: KeyState,
    now_ms: int,
    owner: str,
    ttl_ms: int,
    message: Stored | None,
    *,
    policy: Policy,
    ticket: str | None = None,
    as_ticket: bool = False,
    route: bool = True,
    origin: Origin | None = None,
    debounce: Debounce | None = None,
    interrupt: bool = False,
    skew_ms: int = 0,
) -> tuple[KeyState, Granted | Accepted | Known | Held | Nothing | Full]:
    """Store the message and try to own the key, in one step, decided in the rule's order (M1).

    A message with a ``due_ms`` is not due before (M14). ``debounce`` is what an arrival on a key without an owner
    waits for (M15). ``interrupt``: a message that is stored behind an owner marks its tenure (M16).
    """
    live = owned(state, now_ms, skew_ms)
    not_yet = now_ms < not_before_ms(state)

    if live and state.owner == owner:  # (1) owned already: nothing is stored twice, nothing delivered twice
        return _claim_again(_with_target(state, origin), now_ms, message, policy, as_ticket=as_ticket)
    ended = Traces.of(state.ended)
    if ended.has_failed(owner, now_ms, policy.window_ms):
        return state, Nothing()  # a late copy of a claim whose own message has failed since (M3)
    if message is None:
        redeems = ticket is not None and state.owner == ticket  # M9
        if live and not redeems:
            return state, Held(owner=state.owner, expires_ms=state.expires_ms)
        if not_yet:  # the ticket's tenure ends: its function is woken again when the key may be granted (M15)
            over = TenureEnd(how="released", owner=state.owner or "", successor=None, fence=state.fence)
            freed = _free(state, now_ms, over) if live else state
            return freed, Nothing(due_ms=next_due_ms(freed, now_ms))
        if not live and not _has_work(state if as_ticket else _note(state, policy), now_ms, policy, skew_ms):
            return state, Nothing(due_ms=next_due_ms(state, now_ms))
        return _own(state, now_ms, owner, ttl_ms, policy=policy, origin=origin, as_ticket=as_ticket, skew_ms=skew_ms)

    left = ended.latest(message.id, now_ms, policy.window_ms)
    if left is not None:  # (2) it left for good within the window; the latest trace counts
        if left.claimed_by == owner:  # routed by this very claim, and finished since (R8)
            return state, Accepted(owner=state.owner if live else None, stored=len(state.mail))
        return state, Known(state=_for_good(left), owner=state.owner if live else None)
    stored = _find(state.mail, message.id)
    if stored is not None:
        if live:  # (3) it waits or runs: promised before the caller is told so (M3)
            promised = _with_target(_change(state, [message.id], lambda m: replace(m, promised=True)), origin)
            if stored.claimed_by == owner:
                return promised, Accepted(owner=state.owner, stored=len(state.mail))
            running = stored.delivered_fence == state.fence
            return promised, Known(state="running" if running else "waiting", owner=state.owner)
        for_later = as_ticket and not stored.attempts and stored.due_ms > now_ms and not due(state, now_ms, skew_ms)
        if for_later or not_yet:
            promised = _with_target(_change(state, [message.id], lambda m: replace(m, promised=True)), origin)
            # A repeated call learns the moment once more: the first answer may have been lost (R8).
            return _promised(promised, now_ms, stored, owner, before=KeyState())
        # (4) it waits and the key is free: now this caller's
        mine = _change(state, [message.id], lambda m: replace(m, claimed_by=owner, promised=m.promised or as_ticket))
        return _own(
            mine,
            now_ms,
            owner,
            ttl_ms,
            policy=policy,
            origin=origin,
            as_ticket=as_ticket,
            skew_ms=skew_ms,
            wanted=stored,
        )
    if live:  # (5) stored behind an owner
        if not route:
            return state, Held(owner=state.owner, expires_ms=state.expires_ms)
        kept, replaced = _superseded(state, now_ms) if policy.keep == "latest" else (state, ())
        if len(kept.mail) >= policy.max_pending:  # M7
            return state, "full"
        routed = _with_target(replace(kept, mail=_placed(kept.mail, replace(message, promised=True))), origin)
        if interrupt and routed.stop is None:
            routed = replace(routed, stop=INTERRUPTED)
        return _forget(routed, now_ms, policy.window_ms) if replaced else routed, Accepted(
            owner=state.owner, stored=len(routed.mail), superseded=replaced
        )
    if not_yet and not route:
        return state, Held(owner=None, expires_ms=not_before_ms(state))
    if (
        not_yet and len(state.mail) >= policy.max_pending
    ):  # no caller is granted the key, so it is bounded like a held one
        return state, "full"
    # (5) stored and owned even if the mailbox is full, unless it would only wait behind a blocking one (M7: limits)
    if len(state.mail) >= policy.max_pending + BEYOND:
        return state, "full"
    bounded = len(state.mail) >= policy.max_pending and policy.on_error == "block" and not as_ticket
    if bounded and not _has_work(_note(state, policy), now_ms, policy, skew_ms):
        return state, "full"
    mail = _placed(state.mail, message if message.promised == as_ticket else replace(message, promised=as_ticket))
    mine = state if debounce is None or message.due_ms > now_ms else _quieted(state, mail, now_ms, debounce)
    for_later = as_ticket and message.due_ms > now_ms and not due(state, now_ms, skew_ms)
    if for_later or now_ms < not_before_ms(mine):
        mine = replace(mine, mail=mail)
        promised = _with_target(_change(mine, [message.id], lambda m: replace(m, promised=True)), origin)
        return _promised(promised, now_ms, message, owner, before=state)
    return _own(
        mine,
        now_ms,
        owner,
        ttl_ms,
        policy=policy,
        origin=origin,
        as_ticket=as_ticket,
        skew_ms=skew_ms,
        wanted=message,
        mail=mail,
    )


def _placed(mail: tuple[Stored, ...], message: Stored) -> tuple[Stored, ...]:
    """Put a message at the end of the mailbox; one for later before those that are for a later moment still (M14)."""
    if not message.due_ms:
        return (*mail, message)
    places = (place for place, other in enumerate(mail) if not other.attempts and other.due_ms > message.due_ms)
    place = next(places, len(mail))
    return (*mail[:place], message, *mail[place:])


def _promised(
    state: KeyState, now_ms: int, wanted: Stored, owner: str, *, before: KeyState
) -> tuple[KeyState, Accepted | Known]:
    """Answer for a message that waits though the key has no owner: it is promised (M3).

    The caller learns when the key can be granted if that is earlier than it was: else another caller has learnt it.
    """
    if wanted.claimed_by != owner:
        return state, Known(state="waiting", owner=None)
    due_ms, known_ms = next_due_ms(state, now_ms), next_due_ms(before, now_ms)
    earlier = due_ms is not None and (known_ms is None or due_ms < known_ms)
    return state, Accepted(owner=None, stored=len(state.mail), due_ms=due_ms if earlier else None)


def _quieted(state: KeyState, mail: Sequence[Stored], now_ms: int, debounce: Debounce) -> KeyState:
    """Let the key wait until no message has come for a while, but not for ever (M15: debounce)."""
    first_ms = min(message.stored_ms for message in mail if not message.attempts and message.due_ms <= now_ms)
    until_ms = min(now_ms + debounce.quiet_ms, first_ms + debounce.max_ms)
    return replace(state, quiet_until_ms=until_ms)


def _superseded(state: KeyState, now_ms: int) -> tuple[KeyState, tuple[str, ...]]:
    """Take out what is due and was never delivered: a later message replaces it (M21: latest)."""
    gone = [message for message in state.mail if not message.attempts and message.due_ms <= now_ms]
    for message in gone:
        state = _remove(state, message, "superseded", now_ms)
    return state, tuple(message.id for message in gone)


def described(known: Origin | None, origin: Origin | None) -> Origin | None:
    """Return the caller's origin, each field with its latest value; a missing field was never given."""
    if known is None or origin is None:
        return known or origin
    if origin.keyspace and origin.target and origin.request_id and origin.log_stream:
        return origin
    return Origin(
        keyspace=origin.keyspace or known.keyspace,
        target=origin.target or known.target,
        request_id=origin.request_id or known.request_id,
        log_stream=origin.log_stream or known.log_stream,
    )


def _with_target(state: KeyState, origin: Origin | None) -> KeyState:
    """Keep whom to wake where no owner has said it, as one that took the lease by hand has not (M8)."""
    known = state.origin or Origin()
    if origin is None or not origin.target or known.target:
        return state
    return replace(state, origin=replace(known, keyspace=known.keyspace or origin.keyspace, target=origin.target))


def _has_work(state: KeyState, now_ms: int, policy: Policy, skew_ms: int) -> bool:
    """Whether the next owner of a free key has something to run among what is stored, or at least to bury (M6)."""
    spent = any(message.delivered_fence and message.attempts >= policy.max_attempts for message in state.mail)
    return spent or bool(due(state, now_ms, skew_ms))


def _claim_again(
    state: KeyState, now_ms: int, message: Stored | None, policy: Policy, *, as_ticket: bool
) -> tuple[KeyState, Granted]:
    """Answer a claim by the present owner from the present state (M1, case 1).

    An owner that only acquired the lease has no message yet: it stores its own and gets the oldest.
    """
    if message is not None and state_of(state, message.id, now_ms, policy.window_ms) is None:
        state = replace(state, mail=_placed(state.mail, replace(message, promised=as_ticket)))
    if not given(state) and not as_ticket:
        state = _deliver(state, now_ms, policy.max_attempts)
    return state, _granted(state, now_ms)


def _own(
    state: KeyState,
    now_ms: int,
    owner: str,
    ttl_ms: int,
    *,
    policy: Policy,
    origin: Origin | None,
    as_ticket: bool,
    skew_ms: int,
    wanted: Stored | None = None,
    mail: tuple[Stored, ...] | None = None,
) -> tuple[KeyState, Granted | Accepted | Known | Nothing]:
    """Grant the key and give its oldest due message to the new owner; a ticket gets none (M6).

    ``wanted`` is the caller's own message, as it was before; ``mail`` are the messages if it was not among them.
    """
    running = _running(state) if state.mail else []
    known = None if as_ticket else policy  # a caller that only sends need not know how failures pause
    most = 0 if as_ticket or running else policy.max_attempts  # those whose run died may have to be buried first
    new = _grant(state, owner, now_ms, ttl_ms, skew_ms, origin=origin, policy=known, mail=mail, max_attempts=most)
    if as_ticket:
        return new, _granted(new, now_ms)
    if running:
        new = _bury_spent(new, running, now_ms, policy.max_attempts)
    granted = _granted(new, now_ms)
    if not granted.given:
        new = _deliver(new, now_ms, policy.max_attempts)
        granted = _granted(new, now_ms)
    if granted.given:
        return new, granted
    # There is nothing to run: all due messages were out of attempts, or the caller's own message is not due.
    freed = _free(new, now_ms, TenureEnd(how="released", owner=owner, successor=None, fence=new.fence))
    if wanted is None:
        return freed, Nothing(due_ms=next_due_ms(freed, now_ms))
    if all(message.id != wanted.id for message in freed.mail):
        return freed, Known(state="dead", owner=None)
    # It pauses, or waits behind a paused one: the mailbox runs it when it is due (M6, M8), so it is promised (M3).
    promised = _change(freed, [wanted.id], lambda m: replace(m, promised=True, claimed_by=wanted.claimed_by))
    return _promised(promised, now_ms, wanted, owner, before=promised)


def settle(  # noqa: C901, PLR0912 - one branch for each outcome
    state: KeyState,
    now_ms: int,
    owner: str,
    ttl_ms: int,
    *,
    handled: Sequence[str],
    failed: Sequence[Failure],
    dropped: Sequence[Failure],
    deferred: Sequence[str],
    policy: Policy,
    stopped: Sequence[str] = (),
    results: Mapping[str, str] | None = None,
    hold_ms: int = 0,
    hold_reason: str | None = None,
    next_owner: str | None = None,
    ticket: str | None = None,
    fence: int | None = None,
    repeated: bool = False,
) -> tuple[KeyState, Granted | Freed | Lost | Unknown]:
    """Record the outcome of messages, and free the key if nothing may run, else pass it on, in one step (M2).

    ``results`` are those to keep (M17). With ``hold_ms`` the key is held from now on (M15).
    """
    successor = next_owner or ticket
    if not owned_by(state, owner, now_ms, fence):
        ids = [*handled, *stopped, *(failure.id for failure in dropped)]
        return state, _settled_before(state, now_ms, owner, successor, ids, fence=fence, repeated=repeated)

    failures = {failure.id: failure for failure in (*failed, *dropped)} if failed or dropped else {}
    drops = {failure.id for failure in dropped} if dropped else ()
    kept: list[Stored] = []
    spent: list[Stored] = []
    died: list[Stored] = []
    traces: list[Ended] = []
    for message in state.mail:
        if message.id in handled:
            traces.append(_trace(state, message, "handled", now_ms, (results or {}).get(message.id)))
        elif message.id in stopped:
            traces.append(_trace(state, message, "stopped", now_ms))
        elif message.id in drops and not message.promised:  # its source is told, and keeps it (M3: promised)
            traces.append(_trace(state, message, "failed", now_ms))
        elif message.id in failures:  # the mailbox retries a promised message, even one promised meanwhile (M3)
            failure = failures[message.id]
            is_spent = failure.final or message.attempts >= policy.max_attempts
            (spent if is_spent else kept).append(_failed(message, failure, now_ms, policy))
        elif message.id in deferred:
            kept.append(_put_back(message, state.fence))
        elif message.delivered_fence and message.attempts >= policy.max_attempts:  # and not named: as after a crash
            died.append(message)
        else:
            kept.append(message)
    settled, mark = _make_tenure_end(how="settled", owner=owner, successor=None, fence=state.fence), state.stop
    ends = _ends(policy)
    mail = _taken_back(kept, now_ms, ends)
    ended = Traces.of(state.ended).plus(traces).forgotten(now_ms, policy.window_ms)
    state = _free(state, now_ms, settled, ends=ends, mail=mail, ended=ended)
    if spent or died:
        state = _bury(state, (*spent, *died), now_ms)
    if hold_ms:
        state = hold(state, now_ms, now_ms + hold_ms, hold_reason)
    if successor is None or not mail or now_ms < not_before_ms(state) or not due(state, now_ms):
        return _freed(state, now_ms, mark)
    new = _grant(state, successor, now_ms, ttl_ms)
    if ticket is not None:
        new = _change(new, [m.id for m in new.mail], lambda m: replace(m, promised=True))  # M3
    else:
        new = _deliver(new, now_ms, policy.max_attempts)
        if not given(new):  # all due messages were out of attempts
            return _freed(_free(new, now_ms, settled), now_ms, mark)
    new = replace(new, tenure_end=TenureEnd(how="moved", owner=owner, successor=successor, fence=new.fence))
    return new, replace(_granted(new, now_ms), stop=mark)


def _freed(state: KeyState, now_ms: int, stop: str | None = None) -> tuple[KeyState, Freed]:
    return state, _make_freed(remaining=len(state.mail), due_ms=next_due_ms(state, now_ms), stop=stop)


def _remove(state: KeyState, message: Stored, outcome: Outcome, now_ms: int) -> KeyState:
    return replace(
        state,
        mail=tuple(other for other in state.mail if other.id != message.id),
        ended=Traces.of(state.ended).plus([_trace(state, message, outcome, now_ms)]),
    )


def _failed(message: Stored, failure: Failure, now_ms: int, policy: Policy) -> Stored:
    """Let a failed message pause (M6)."""
    pause_ms = policy.pause_ms(message.attempts) if failure.after_ms is None else failure.after_ms
    return replace(message, due_ms=now_ms + pause_ms, error=failure.error, delivered_fence=0)


def _put_back(message: Stored, fence: int) -> Stored:
    """Put a deferred message back: promised, at its place, its delivery in this tenure not counted."""
    attempts = message.attempts - 1 if message.delivered_fence == fence else message.attempts
    return replace(message, attempts=attempts, delivered_fence=0, promised=True)


def _settled_before(
    state: KeyState,
    now_ms: int,
    owner: str,
    successor: str | None,
    finished: Sequence[str],
    *,
    fence: int | None,
    repeated: bool,
) -> Granted | Freed | Lost | Unknown:
    """Answer a settle by a caller that is not the live owner: with its earlier effect, a loss, or unknown."""
    end = state.tenure_end
    if end is not None and end.owner == owner:
        if end.how == "moved" and end.successor == successor and owned_by(state, end.successor or "", now_ms):
            return _granted(state, now_ms)
        if end.how == "settled":
            return _freed(state, now_ms)[1]
    if repeated:  # R9
        if any(each.id in finished and each.fence == fence and each.outcome != "cancelled" for each in state.ended):
            return Freed(remaining=len(state.mail))
        return "unknown"
    return "lost"


def take(
    state: KeyState, now_ms: int, owner: str, ttl_ms: int, fence: int | None = None, *, at_most: int | None = None
) -> tuple[KeyState, Granted | Lost]:
    """Renew the lease, and give all due messages that were never delivered to the present run, oldest first.

    ``at_most`` bounds how many it gives, for a store whose senders always come first; the next take gives the others.

    It stops at the first due message that was delivered before: after a failed run that held several, they are
    delivered one by one (M6), and no newer one goes ahead of them (M4). The answer lists all that the tenure was
    given, so that a repeated take gets the same answer as the first (R8).
    """
    state, answer = renew(state, now_ms, owner, ttl_ms, fence)
    if answer == "lost":
        return state, answer
    fresh: list[str] = []
    for message in due(state, now_ms):
        if message.attempts or len(fresh) == at_most:
            break
        fresh.append(message.id)
    state = _give(state, fresh)
    return state, _granted(state, now_ms)


# --- dead letters


def letters(state: KeyState, now_ms: int) -> tuple[Dead, ...]:
    """Return the dead letters that are not too old; older ones are removed when the next one comes."""
    return tuple(letter for letter in state.dead if now_ms - letter.died_ms < LETTERS_MS)


def redrive(state: KeyState, now_ms: int, message_id: str) -> tuple[KeyState, bool | Full]:
    """Put a dead letter back at the end of the mailbox: promised, undelivered, its id no longer dead.

    It is refused if the key stores the maximum of 1,100 messages (M7: limits).
    """
    for letter in state.dead:
        if letter.id == message_id and all(stored.id != message_id for stored in state.mail):
            if len(state.mail) >= MAX_STORED:
                return state, "full"
            back = Stored(
                id=letter.id, body=letter.body, claimed_by="", promised=True, stored_ms=now_ms, error=letter.error
            )
            rest = tuple(trace for trace in state.ended if (trace.id, trace.outcome) != (message_id, "dead"))
            return replace(purge(state, message_id)[0], mail=(*state.mail, back), ended=rest), True
    return state, False


def purge(state: KeyState, message_id: str) -> tuple[KeyState, bool]:
    """Remove a dead letter; the trace of its id stays."""
    rest = tuple(letter for letter in state.dead if letter.id != message_id)
    return replace(state, dead=rest), len(rest) < len(state.dead)


# --- control


def stop(state: KeyState, now_ms: int, fence: int | None, reason: str, skew_ms: int = 0) -> tuple[KeyState, int | None]:
    """Mark the live tenure, or only the one of that fence; return its fence, or ``None`` if it is not live (M16).

    The first reason stands: a repeated call changes nothing.
    """
    if not owned(state, now_ms, skew_ms) or fence not in (None, state.fence):
        return state, None
    return state if state.stop is not None else replace(state, stop=reason), state.fence


def hold(state: KeyState, now_ms: int, until_ms: int, reason: str | None) -> KeyState:
    """Grant the key to no caller until then (M15). It never shortens a hold that is longer."""
    if until_ms <= max(now_ms, state.held_until_ms):
        return state
    return replace(state, held_until_ms=until_ms, held_reason=reason)


def resume(state: KeyState, now_ms: int) -> tuple[KeyState, bool]:
    """End a hold. Return whether there was one."""
    if now_ms >= state.held_until_ms:  # when it ended still says since when what is due is an orphan (M8)
        return state, False
    return replace(state, held_until_ms=0, held_reason=None), True


def cancel(
    state: KeyState, now_ms: int, message_id: str, window_ms: int, skew_ms: int = 0
) -> tuple[KeyState, MessageState | None]:
    """Remove a message that waits; return its state then (M19). One that runs is left to its run."""
    for message in state.mail:
        if message.id == message_id:
            if owned(state, now_ms, skew_ms) and message.delivered_fence == state.fence:
                return state, "running"
            return _forget(_remove(state, message, "cancelled", now_ms), now_ms, window_ms), "cancelled"
    return state, state_of(state, message_id, now_ms, window_ms, skew_ms)
