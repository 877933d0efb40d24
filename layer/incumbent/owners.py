"""Owner strings, tickets and other names that no two invocations share, and what stands for a process."""

import os

_TICKET = "ticket."  # the prefix of every ticket, and of no owner
_MAX_REQUEST_ID = 128  # characters of an owner


def random_name() -> str:
    """Return 32 hexadecimal digits that differ also between environments restored from one snapshot, and in forks."""
    return os.urandom(16).hex()


def new_owners(request_id: str | None) -> list[str]:
    """Make the owner strings of two runs: their request's id, and random parts that cannot be guessed.

    Most invocations need both, to claim a key and to name the next run, and random bytes are a call of the system.
    """
    request, digits = (request_id or "run")[:_MAX_REQUEST_ID], os.urandom(20).hex()
    return [f"{request}.{digits[:20]}", f"{request}.{digits[20:]}"]


def new_ticket() -> str:
    """Make a ticket: the one-use name that holds a key until the woken invocation redeems it (M9: hand over)."""
    return f"{_TICKET}{os.urandom(24).hex()}"


def is_ticket(name: str) -> bool:
    """Return whether a name is a ticket and not a run's owner."""
    return name.startswith(_TICKET)


def request_of(owner: str) -> str | None:
    """Return the request id of a run's owner string; ``None`` for a ticket or another program's owner."""
    request_id, dot, _ = owner.rpartition(".")
    return request_id if dot and not is_ticket(owner) else None


class _Here:
    process = object()


def this_process() -> object:
    """Return what stands for this process: the same object as long as it lives, and another one in a forked child.

    Each run looks three times, and ``os.getpid`` is a call of the system.
    """
    return _Here.process


def _note_fork() -> None:
    _Here.process = object()


if hasattr(os, "register_at_fork"):  # where a process can be forked
    os.register_at_fork(after_in_child=_note_fork)
