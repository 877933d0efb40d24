"""The errors of a mailbox that takes no more (M7), in the same words for every store."""

from incumbent.errors import MailboxFull
from incumbent.rules import MOST_STORED
from incumbent.values import Policy


def mailbox_full(key: str, policy: Policy, *, owner: str | None) -> MailboxFull:
    """The error of a claim."""
    return MailboxFull(
        f"key {key!r} stores {policy.max_pending:,} messages or more (max_pending): this one was not stored, and its "
        "source keeps it; bring it again when the owner has worked some of them off",
        key=key,
        owner=owner,
    )


def redrive_full(key: str, message_id: str) -> MailboxFull:
    """The error of a redrive."""
    return MailboxFull(
        f"key {key!r} stores {MOST_STORED:,} messages, the most that any key may: dead letter {message_id!r} is kept "
        "and was not put back; redrive it when the owner has worked some of them off",
        key=key,
    )
