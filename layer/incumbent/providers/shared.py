"""What every provider checks and says in the same way, written once; a provider for another store may use it too.

``check_claim`` and ``check_settle`` check the arguments of a call (R10). ``lease_lost``, ``in_doubt``, ``mailbox_full``
and ``redrive_full`` make its errors. ``stored_message`` and ``dead_message`` make messages of what the rules keep.
"""

from collections.abc import Sequence

from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.providers.unreadable import message_of
from incumbent.rules import MAX_STORED, Dead, Stored
from incumbent.validation import check_lease, check_message_id, check_owner, check_settlement, to_json
from incumbent.values import Failure, Message, Policy

# --- arguments


def check_claim(
    key: str, owner: str, ttl_ms: int, message: Message | None, *, ticket: str | None, policy: Policy
) -> str | None:
    """Check the arguments of a claim (R10). Return the message's event as it is stored; ``None`` without a message.

    Raises ``ConfigurationError``, ``MessageInvalid`` and ``MessageTooLarge``.
    """
    check_lease(key, owner, ttl_ms)
    if ticket is not None:
        check_owner(ticket, key, "the ticket")
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
    next_owner: str | None,
    ticket: str | None,
    fence: int | None,
) -> list[str]:
    """Check the arguments of a settle (R10). Return the ids that it names. Raises ``ConfigurationError``."""
    check_lease(key, owner, ttl_ms, fence)
    others = [*(failure.id for failure in (*failed, *dropped)), *deferred]
    check_settlement(key, handled, others, next_owner, ticket)
    return [*handled, *others]


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
        why_gone=why_gone,
        id=stored.id,
        attempt=stored.attempts,
        stored_at_ms=stored.stored_ms,
        due_at_ms=stored.due_ms,
        promised=stored.promised,
        last_error=stored.error,
    )


def dead_message(letter: Dead, body: str | None) -> Message:
    """Make a message of a dead letter: it is not due, and its source has been answered."""
    return message_of(
        body,
        id=letter.id,
        attempt=letter.attempts,
        stored_at_ms=letter.stored_ms,
        promised=True,
        last_error=letter.error,
    )
