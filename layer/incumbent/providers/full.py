"""The errors of a full mailbox (M7: limits), the same for every store."""

from incumbent.errors import MailboxFull
from incumbent.rules import MAX_STORED
from incumbent.values import Policy


def mailbox_full(key: str, policy: Policy, *, owner: str | None) -> MailboxFull:
    """Make the error of a claim on a full mailbox."""
    return MailboxFull(
        f"key {key!r} stores {policy.max_pending:,} messages or more (max_pending): this one was not stored, and its "
        "source keeps it; retry when the owner has run some of them",
        key=key,
        owner=owner,
    )


def redrive_full(key: str, message_id: str) -> MailboxFull:
    """Make the error of a redrive into a full mailbox."""
    return MailboxFull(
        f"key {key!r} stores {MAX_STORED:,} messages, the maximum for a key: dead letter {message_id!r} was not put "
        "back and is kept; redrive it when the owner has run some of them",
        key=key,
    )
