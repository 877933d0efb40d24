"""What a backend promises: two Protocols with their rules, how they are detected, and the no-op.

Leasing and delivery are separate concerns. A backend offers each only if it can really do it, and incumbent finds
out by the methods that a value has, never by its class: a provider from another package works as it stands.

Rules of the lease
------------------
R1   One owner: on the store's clock a key has at most one owner at any instant.
R2   Acquire: free or expired, granted with a new fence. Held by the same owner, granted again, same fence, at least
     ``ttl_ms`` from now. Held by another, not granted, and the answer names the holder, learnt in the same request.
     An owner string is good for one tenure of a key: it is not used again after release, transfer or loss.
R3   Expiry: a lease whose ttl has passed is as if it had never been. The late owner's renew and transfer are
     ``False``, its release changes nothing, its settle raises ``LeaseLost``. Nothing revives it. Without a shared
     clock the owner's edge is the expiry, the strangers' edge is expiry plus the skew margin.
R4   Renew: only a live lease of that owner; keeps the fence; never brings the expiry forward.
R5   Release: only by its owner; for anybody else it changes nothing; calling it twice is fine.
R6   Transfer: one atomic step, from a live owner, full ttl, a new fence, the key never free in between. The same
     call repeated after it worked is ``True`` again.
R7   Fence: grows strictly with each grant of a key, across release, expiry, clean-up, restart, and failover as far as
     the clocks allow.
R8   Lost replies: an effect happens at most once however often a call is repeated, and the answer is one that some
     try could truthfully have given; if a try took effect, the answer says so.
R9   Not knowing is an error: ``LeaseUnavailable``, never ``False``, ``None`` or ``LeaseLost``.
R10  Validation before any request, the same everywhere: key 1 to 1,024 bytes of UTF-8, owner 1 to 512, ``ttl_ms`` an
     ``int`` from 1 to 86,400,000. Any character is allowed, and two keys never meet in one record.
R11  One request a call, contended or not; the exceptions are listed with the provider and counted in a test.
R12  The owner's deadline is the earlier of the sending of the try that answered plus ttl, less a margin of
     max(10 ms, ttl/100), and the expiry that the store reports; on the monotonic and the wall clock alike.

Rules of the mailbox
--------------------
M1   Write first: ``claim`` stores the message and tries to own the key in one step. In this order: (1) owned by the
     caller already, ``Claimed``; (2) handled or dead within the window, ``Duplicate``; (3) waiting with a live owner,
     ``Duplicate``, or ``Routed`` if this very call stored it; (4) waiting with no owner, ``Claimed``; (5) otherwise it
     is stored, ``Claimed`` or ``Routed``. In (4) and (5), with nothing due (it pauses, or is blocked by one that does,
     M6), it is promised and the key stays free: ``Duplicate``, or ``Routed`` by the call that stored it. Without a
     message only if something is due, else ``Busy`` or ``Idle``.
M2   Close only when empty: ``settle`` frees the key only if nothing due waits, atomically with the check; otherwise
     the key passes to the successor in the same step.
M3   Promised: a message is promised from the moment anybody was told it is safe, and the mark is written before the
     answer. It leaves when handled or dead or, while not promised, when its own invocation reports its failure
     (``dropped``). Under ``on_error="block"`` a message whose source will bring it again is reported as ``failed``.
M4   Order: due messages are delivered oldest first per key, in the order they were stored.
M5   Once per id: an id that waits, runs, was handled or died within the window is not stored twice: what was stored
     first under it is what runs, promised or not. The window is bounded in time (an hour unless set) and in number
     (the last 256 of a key).
M6   Failure: a delivery is counted in the step that gives the message to a run. A failed promised message becomes due
     again after a growing pause, later ones skip ahead or are blocked (which keeps their order only if the failed one
     stays, M3); after ``max_attempts`` it is a dead letter. One whose body cannot be read is a dead
     letter as soon as it is given to a tenure, its text kept; ``take`` leaves it to the next tenure.
M7   Limits: ``max_pending`` bounds what is routed. A call that finds the key free stores its message and owns the key
     even when the mailbox is full, until 100 messages more are stored; then it can own the key without a message. No
     key stores more than 1,100: a redrive beyond is refused. A store may have less room (DynamoDB: 400 KB).
     What is not read back as it is by every supported interpreter is refused before any request: what JSON cannot
     say, names that are not text, more than 500 levels, integers of more than 4,300 digits.
M8   Orphans: due messages without a live owner go to the next claim, and ``orphans`` finds them when none comes, a
     key of each target in turn.
M9   Hand over: the key passes to a one-use ticket; whoever claims with the ticket while it holds the key owns it
     under an owner of its own. A ticket is spent once.
M10  Cost: an uncontended run is two requests, ``claim`` and ``settle``.
M12  Format: every stored record carries a version; an unknown one raises ``StoredFormatUnknown``. A listing leaves out
     what it cannot read, goes on, and raises it at the end with what it left out.
"""

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeGuard

from incumbent.errors import ConfigurationError
from incumbent.validation import check_key, check_lease, check_owner, check_transfer, shown
from incumbent.values import (
    Acquisition,
    Beat,
    Claim,
    Continued,
    DeadLetter,
    Failure,
    Message,
    MessageState,
    Origin,
    Orphan,
    Policy,
    Released,
)

DEFAULT_POLICY = Policy()


class LeaseProvider(Protocol):
    """Owning a key until a moment, by the store's clock.

    Every method validates first (R10, ``ConfigurationError``) and raises ``LeaseUnavailable`` where the outcome
    cannot be known (R9). Not promised: that an owner which stopped believing has stopped working. Give ``fence`` to
    what it writes to.
    """

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Own the key if it is free or already this owner's (R2)."""
        ...

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, by the strangers' edge (R3); ``None`` means nobody, never "could not ask" (R9)."""
        ...

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5). Messages may be left behind; they are orphans then (M8)."""
        ...

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease to at least ``ttl_ms`` from now (R4); ``False`` when it is lost (R3)."""
        ...

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key on without a gap (R6); ``False`` when ``from_owner`` does not hold it."""
        ...


class Mailbox(Protocol):
    """Storing messages beside the lease, each call one atomic step.

    ``policy`` says how messages are kept; it is the same for every caller of a keyspace.
    """

    def claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        message: Message | None,
        *,
        ticket: str | None = None,
        as_ticket: bool = False,
        route: bool = True,
        origin: Origin | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> Claim:
        """Store the message and try to own the key (M1).

        ``ticket``: redeem it (M9; without a message). ``as_ticket``: ``owner`` is a ticket to be sent to somebody;
        nothing is delivered, and the message is promised. ``route=False``: store nothing behind another owner, answer
        ``Busy``. Of ``message`` only ``id`` and ``event`` count.

        What is found out of attempts moves to the dead letters, and is in the answer's ``buried`` (M6).

        Raises ``MailboxFull``, ``MessageInvalid`` and ``MessageTooLarge`` (M7), ``LeaseUnavailable`` (R9),
        ``StoredFormatUnknown`` (M12).
        """
        ...

    def settle(
        self,
        key: str,
        owner: str,
        *,
        ttl_ms: int,
        handled: Sequence[str] = (),
        failed: Sequence[Failure] = (),
        dropped: Sequence[Failure] = (),
        deferred: Sequence[str] = (),
        next_owner: str | None = None,
        ticket: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> Released | Continued:
        """Say what became of the run's messages and free the key if nothing is due, else pass it on (M2).

        ``handled``: leave. ``failed``: due again after a pause, or dead (M6), at once if it is ``final``. ``dropped``:
        the caller's own event, whose source is told of the failure; leaves unless it is promised (M3), in which case it
        has failed. ``deferred``: stay at their place, promised, their delivery to this run not counted. What is not
        named stays, as after a crash. With neither ``next_owner`` nor ``ticket`` the key is freed whatever waits (M8).
        What moves to the dead letters is in the answer's ``buried``.

        Raises ``LeaseLost`` when the caller's lease is over: then nothing was settled (R3).
        """
        ...

    def beat(self, key: str, owner: str, ttl_ms: int) -> Beat:
        """Renew (R4) and say how many messages wait. Raises ``LeaseLost``."""
        ...

    def take(self, key: str, owner: str, ttl_ms: int, *, have: Sequence[str] = ()) -> Sequence[Message]:
        """Renew, and be given all due messages that were never delivered, oldest first, counted (M6).

        ``have`` are ids that the caller holds already: they are left out of the answer. All else that this tenure was
        given is in it, so that a call whose reply was lost can be repeated (R8). Raises ``LeaseLost``.
        """
        ...

    def peek(self, key: str) -> Sequence[Message]:
        """Look at all stored messages, oldest first; changes nothing.

        Raises ``StoredFormatUnknown`` where some cannot be read; its ``readable`` are the others (M12).
        """
        ...

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Find keys with due messages and no live owner, ``limit`` at most (M8).

        Targets take turns: first the oldest key of each, then the second of each, and so on. Keys without a recorded
        target count as one target's. Raises ``StoredFormatUnknown`` after the last, with what could not be read in
        ``skipped`` (M12).
        """
        ...


class Archive(Protocol):
    """Looking at what became of messages, and putting dead letters back; what a mailbox may offer besides.

    Dead letters are kept for 14 days. Of one whose body cannot be read the event is the stored text (M6).
    """

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> MessageState | None:
        """Say what became of an id; ``None`` when it was never stored or the window forgot it (M5).

        ``"running"`` only under a live owner that was given the message; when its lease has ended, ``"waiting"`` (R3).
        """
        ...

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key, or of all keys, the longest dead first per key.

        Raises ``StoredFormatUnknown`` after the last, with what could not be read in ``skipped`` (M12).
        """
        ...

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox, promised and undelivered; ``False`` if there is none.

        A letter is put back once, however often calls are repeated or overlap, and whatever has become of the message
        meanwhile (R8); and it is put back or purged, never both.

        Raises ``MailboxFull`` (M7): the letter is kept.
        """
        ...

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good; ``False`` if there is none. Its id stays a duplicate in the window.

        Raises ``StoredFormatUnknown`` for a letter of a later version, which it leaves as it stands (M12).
        """
        ...


_LEASE_METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
_MAILBOX_METHODS = ("claim", "settle", "beat", "take", "peek", "orphans")
_ARCHIVE_METHODS = ("find", "dead_letters", "redrive", "purge")
_CLIENTS = ("redis", "valkey", "botocore", "boto3")  # packages whose objects are given to a provider, and are none


def _has(value: object, names: Iterable[str]) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def is_lease_provider(value: object) -> TypeGuard[LeaseProvider]:
    """Whether all five methods are there and callable. A class is not a provider; its instance is."""
    return _has(value, _LEASE_METHODS)


def is_mailbox(value: object) -> TypeGuard[Mailbox]:
    """Whether all six methods are there and callable."""
    return _has(value, _MAILBOX_METHODS)


def is_archive(value: object) -> TypeGuard[Archive]:
    """Whether all four methods are there and callable."""
    return _has(value, _ARCHIVE_METHODS)


class NoopLeaseProvider:
    """Leasing that never says no: every acquire wins, renew and transfer are ``True``, nobody ever owns.

    It keeps the behaviour of a single process where a backend cannot lease. It protects nothing.
    """

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Always granted, without a fence."""
        check_lease(key, owner, ttl_ms)
        return Acquisition(acquired=True, owner=owner, expires_in_ms=ttl_ms)

    def get_lease_owner(self, key: str) -> str | None:
        """Nobody."""
        check_key(key)
        return None

    def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""
        check_owner(owner, check_key(key))

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Always renewed."""
        check_lease(key, owner, ttl_ms)
        return True

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Always transferred."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        return True


def check_waits(backend: object, ttl_ms: int) -> None:
    """Refuse a provider whose client may wait longer than a lease of ``ttl_ms`` lives, where the provider can tell.

    It can where it has a method ``check_ttl(ttl_ms)``, which raises ``ConfigurationError``.
    """
    check = getattr(backend, "check_ttl", None)
    if callable(check):
        check(ttl_ms)


def check_backend(backend: object) -> None:
    """Refuse what can only be a mistake: a name, settings, a store's bare client, a class without an instance."""
    of_a_store = type(backend).__module__.partition(".")[0] in _CLIENTS
    if of_a_store or isinstance(backend, str | bytes | int | float | Mapping | type):
        raise ConfigurationError(
            f"{shown(backend)} is no lease provider: give one that is made, such as RedisProvider(url=...) or "
            "DynamoDBProvider(client=...), or leave provider= out and set INCUMBENT_PROVIDER"
        )


def resolve_lease_provider(backend: object) -> LeaseProvider:
    """Find the lease provider in what is given: itself, what its ``get_lease_provider()`` returns, or the no-op.

    A backend that cannot lease falls back to ``NoopLeaseProvider`` with one warning. ``None`` is not such a backend:
    it raises ``ConfigurationError`` that says what to set.
    """
    if backend is None:
        raise ConfigurationError(
            "no lease provider: set INCUMBENT_PROVIDER to redis, dynamodb or memory (none for no leases at all), "
            "or give provider="
        )
    check_backend(backend)
    if is_lease_provider(backend):
        return backend
    offer = getattr(backend, "get_lease_provider", None)
    if callable(offer):
        offered = offer()
        if is_lease_provider(offered):
            return offered
        if offered is not None:
            raise ConfigurationError(
                f"{type(backend).__name__}.get_lease_provider() returned a {type(offered).__name__}, which lacks "
                f"some of {', '.join(_LEASE_METHODS)}"
            )
    warnings.warn(
        f"{type(backend).__name__} cannot lease: every invocation runs at once (NoopLeaseProvider)",
        RuntimeWarning,
        stacklevel=2,
    )
    logging.getLogger("incumbent").warning(
        "%s cannot lease: every invocation runs at once (NoopLeaseProvider)", type(backend).__name__
    )
    return NoopLeaseProvider()
