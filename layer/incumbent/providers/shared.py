"""What every provider checks and says in the same way, written once; a provider for another store may use it too.

``check_claim`` and ``check_settle`` check the arguments of a call (R10). ``lease_lost``, ``in_doubt``, ``mailbox_full``
and ``redrive_full`` make its errors. ``stored_message`` and ``dead_message`` make messages of what the rules keep.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from incumbent import rules
from incumbent.errors import (
    ConfigurationError,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
)
from incumbent.frozen import replace
from incumbent.providers.unreadable import message_of
from incumbent.rules import MAX_STORED, Dead, KeyState, Stored
from incumbent.validation import (
    MAX_TTL_MS,
    check_lease,
    check_message_id,
    check_ms,
    check_owner,
    check_settlement,
    check_text,
    from_json,
    to_json,
)
from incumbent.values import FOREVER_MS, Debounce, Failure, KeyStatus, Message, Policy, Status

MAX_HOLD_MS = 14 * MAX_TTL_MS  # and of what is sent for later (M14)
MAX_NOTE_BYTES = 1_024
MAX_REASON_BYTES = 1_024

# --- arguments


def check_claim(
    key: str,
    owner: str,
    ttl_ms: int,
    message: Message | None,
    *,
    ticket: str | None,
    policy: Policy,
    after_ms: int,
    debounce: Debounce | None,
) -> str | None:
    """Check the arguments of a claim (R10). Return the message's event as it is stored; ``None`` without a message.

    Raises ``ConfigurationError``, ``MessageInvalid`` and ``MessageTooLarge``.
    """
    check_lease(key, owner, ttl_ms)
    if ticket is not None:
        check_owner(ticket, key, "the ticket")
    check_ms("after_ms", after_ms, 0, MAX_HOLD_MS, key)
    if debounce is not None:
        check_ms("debounce_ms", debounce.quiet_ms, 1, MAX_TTL_MS, key)
        check_ms("debounce_max_ms", debounce.max_ms, debounce.quiet_ms, MAX_TTL_MS, key)
    if message is None:
        return None
    check_message_id(message.id, key)
    return to_json(message.event, key=key, message_id=message.id, most_bytes=policy.max_message_bytes)


def check_settle(
    key: str,
    owner: str,
    ttl_ms: int,
    *,
    handled: Sequence[str],
    failed: Sequence[Failure],
    dropped: Sequence[Failure],
    deferred: Sequence[str],
    stopped: Sequence[str],
    hold_ms: int,
    next_owner: str | None,
    ticket: str | None,
    fence: int | None,
) -> list[str]:
    """Check the arguments of a settle (R10). Return the ids that it names. Raises ``ConfigurationError``."""
    check_lease(key, owner, ttl_ms, fence)
    check_ms("hold_ms", hold_ms, 0, MAX_HOLD_MS, key)
    others = [*deferred, *stopped]
    if failed or dropped:
        others = [*(failure.id for failure in (*failed, *dropped)), *others]
    return check_settlement(key, handled, others, next_owner, ticket)


def check_note(key: str, note: object) -> str | None:
    """Return a run's note as JSON text, ``None`` if there is none (M18). Raises ``ConfigurationError``."""
    if note is None:
        return None
    try:
        return to_json(note, key=key, message_id="note", most_bytes=MAX_NOTE_BYTES)
    except MessageInvalid as cause:
        raise ConfigurationError(f"the note of key {key!r} is not JSON: {cause}", key=key) from cause
    except MessageTooLarge as cause:
        raise ConfigurationError(
            f"the note of key {key!r} is larger than {MAX_NOTE_BYTES:,} bytes of JSON: store it elsewhere", key=key
        ) from cause


def check_reason(key: str, reason: str | None) -> str:
    """Return why a key is held or a tenure stopped; text of at most 1,024 bytes. Raises ``ConfigurationError``."""
    return "" if reason is None else check_text("the reason", reason, MAX_REASON_BYTES, key)


def check_hold(key: str, for_ms: int | None) -> None:
    """Raise ``ConfigurationError`` unless a key can be held for so long; ``None`` is for ever."""
    if for_ms is not None:
        check_ms("for_ms", for_ms, 1, MAX_HOLD_MS, key)


def held_until(for_ms: int | None, now_ms: int) -> int:
    """Return when a hold that begins now ends."""
    return FOREVER_MS if for_ms is None else now_ms + for_ms


def kept_results(
    key: str, handled: Sequence[str], results: Mapping[str, object] | None, policy: Policy
) -> dict[str, str]:
    """Return the results to keep as JSON text, which is empty for one that is too large (M17: result).

    Raises ``MessageInvalid`` for one that is not JSON.
    """
    kept: dict[str, str] = {}
    for message_id in handled if policy.result_bytes and results else ():
        if message_id in (results or {}):
            try:
                kept[message_id] = to_json(
                    (results or {})[message_id], key=key, message_id=message_id, most_bytes=policy.result_bytes
                )
            except MessageTooLarge:
                kept[message_id] = ""
    return kept


# --- errors


def lease_lost(call: str, key: str, owner: str, holder: str | None) -> LeaseLost:
    """Make the error of a call by an owner whose lease is over (R3). ``holder`` is the present owner."""
    later = " in a later tenure" if holder == owner else ""
    return LeaseLost(
        f"{call} of key {key!r}: owner {owner!r} no longer holds it (holder: {holder!r}{later}); nothing was changed, "
        "and messages that were not settled are still stored",
        key=key,
        owner=owner,
        holder=holder,
    )


def in_doubt(call: str, key: str, owner: str, holder: str | None) -> LeaseUnavailable:
    """Make the error of a repeated call that finds no evidence of an earlier try's effect (R9)."""
    return LeaseUnavailable(
        f"{call} of key {key!r} by owner {owner!r}: an earlier try went unanswered, and the key (holder: {holder!r}) "
        "no longer shows whether it took effect; messages that were not settled are still stored",
        key=key,
    )


def stop_in_doubt(key: str) -> LeaseUnavailable:
    """Make the error of a repeated stop that may have marked a tenure before the present one (R9)."""
    return LeaseUnavailable(
        f"stop of key {key!r}: an earlier try went unanswered, and perhaps marked a tenure that is over; look, and "
        "stop the present one by its fence",
        key=key,
    )


def hold_in_doubt(key: str) -> LeaseUnavailable:
    """Make the error of a repeated hold that may have held the key before others resumed it (R9)."""
    return LeaseUnavailable(
        f"hold of key {key!r}: an earlier try went unanswered, and other callers have resumed the key since; it was "
        "not held again",
        key=key,
    )


def resume_in_doubt(key: str) -> LeaseUnavailable:
    """Make the error of a repeated resume that finds the key resumed by others since (R9)."""
    return LeaseUnavailable(
        f"resume of key {key!r}: an earlier try went unanswered, and other callers have resumed the key since; it is "
        "not held now",
        key=key,
    )


def mailbox_full(key: str, policy: Policy, *, owner: str | None) -> MailboxFull:
    """Make the error of a claim on a full mailbox (M7). ``owner`` is the present one."""
    return MailboxFull(
        f"key {key!r} stores {policy.max_pending:,} messages or more (max_pending): this one was not stored, and its "
        "source keeps it; retry when the owner has run some of them",
        key=key,
        owner=owner,
    )


def redrive_full(key: str, message_id: str) -> MailboxFull:
    """Make the error of a redrive into a full mailbox (M7)."""
    return MailboxFull(
        f"key {key!r} stores {MAX_STORED:,} messages, the maximum for a key: dead letter {message_id!r} was not put "
        "back and is kept; redrive it when the owner has run some of them",
        key=key,
    )


# --- messages


def stored_message(stored: Stored, body: str | None, *, why_gone: str = "its body is gone") -> Message:
    """Make a message of a stored one and its body; ``why_gone`` explains a body of ``None``."""
    return message_of(
        body,
        stored.id,
        stored.attempts,
        stored.stored_ms,
        due_at_ms=stored.due_ms,
        promised=stored.promised,
        last_error=stored.error,
        why_gone=why_gone,
    )


def dead_message(letter: Dead, body: str | None) -> Message:
    """Make a message of a dead letter: it is not due, and its source has been answered."""
    return message_of(
        body,
        letter.id,
        letter.attempts,
        letter.stored_ms,
        promised=True,
        last_error=letter.error,
    )


# --- what is known


def status_of(state: KeyState, message_id: str, now_ms: int, window_ms: int, skew_ms: int = 0) -> Status:
    """Return what is known of a message id (M5, M17, M18)."""
    for message in state.mail:
        if message.id == message_id:
            running = rules.owned(state, now_ms, skew_ms) and message.delivered_fence == state.fence
            return Status(
                state="running" if running else "waiting",
                attempt=message.attempts,
                stored_at_ms=message.stored_ms,
                due_at_ms=message.due_ms,
                owner=state.owner if running else None,
                fence=state.fence if running else None,
                note=from_json(state.note) if running and state.note else None,
            )
    trace = rules.trace_of(state, message_id, now_ms, window_ms)
    return Status(state="unknown") if trace is None else status_left(trace.outcome, trace.at_ms, trace.result)


def status_left(outcome: str, at_ms: int, result: str | None) -> Status:
    """Return what is known of a message that left: ``result`` is its JSON, empty if it was too large to keep (M17)."""
    state: Any = outcome
    if result:
        return Status(state=state, left_at_ms=at_ms, result=from_json(result), result_is="kept")
    return Status(state=state, left_at_ms=at_ms, result_is="none" if result is None else "too large")


def key_status(
    key: str, state: KeyState, messages: Sequence[Message], now_ms: int, *, events: bool, skew_ms: int = 0
) -> KeyStatus:
    """Return what is known of a key; ``messages`` are those of ``state.mail``, in order."""
    live = rules.owned(state, now_ms, skew_ms)
    shown = [each if events else replace(each, event=None) for each in messages]
    runs = [live and stored.delivered_fence == state.fence for stored in state.mail]
    return KeyStatus(
        key=key,
        owner=state.owner if live else None,
        fence=state.fence if live else None,
        since_ms=state.since_ms or None,
        expires_in_ms=max(0, state.expires_ms - now_ms) if live else None,
        held_until_ms=state.held_until_ms if now_ms < state.held_until_ms else None,
        held_reason=state.held_reason if now_ms < state.held_until_ms else None,
        quiet_until_ms=state.quiet_until_ms if now_ms < state.quiet_until_ms else None,
        stop=state.stop if live else None,
        note=from_json(state.note) if live and state.note else None,
        target=state.origin.target if state.origin else None,
        running=tuple(each for each, running in zip(shown, runs, strict=True) if running),
        waiting=tuple(each for each, running in zip(shown, runs, strict=True) if not running),
    )


def is_active(status: KeyStatus) -> bool:
    """Return whether a key belongs in a list of keys: it has an owner, messages, or a hold."""
    return bool(status.owner or status.running or status.waiting or status.held_until_ms)
