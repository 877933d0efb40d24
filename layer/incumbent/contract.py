"""What a backend promises: three Protocols with their rules, how they are detected, and the no-op provider.

Leasing and delivery are separate concerns. A backend offers each only if it can really do it. incumbent decides by
the methods that a value has, never by its class, so a provider from another package works as it stands.

Rules of the lease
------------------
R1   One owner: on the store's clock a key has at most one owner at any instant.
R2   Acquire: a free or expired key is granted with a new fence. A key that the same owner holds is granted again with
     the same fence, for at least ``ttl_ms`` from now. A key that another owner holds is not granted, and the answer
     names the holder, learnt in the same request. An owner string is good for one tenure of a key: the caller does
     not use it again after release, transfer or loss. A call that names a fence acts in that fence's tenure alone.
R3   Expiry: a lease whose ttl has passed counts as if it had never existed. The late owner's renew and transfer return
     ``False``, its release changes nothing, its settle raises ``LeaseLost``. Nothing revives it. Without a shared
     clock, the owner stops at the expiry, and other callers wait until the expiry plus the skew margin.
R4   Renew: only a live lease of that owner; keeps the fence; never brings the expiry forward.
R5   Release: only by its owner; from any other caller it changes nothing; calling it twice is harmless.
R6   Transfer: one atomic step, from a live owner, full ttl, a new fence, the key never free in between. The same
     call repeated after it worked returns ``True`` again.
R7   Fence: grows strictly with each grant of a key, across release, expiry, clean-up, restart, and failover as far as
     the clocks allow.
R8   Lost replies: an effect happens at most once however often a call is repeated, and the answer is one that some
     try could truthfully have given; if a try took effect, the answer says so.
R9   An unknown outcome is an error: ``LeaseUnavailable``, never ``False``, ``None`` or ``LeaseLost``.
R10  Validation before any request, the same in every provider: key 1 to 1,024 bytes of UTF-8, owner 1 to 512,
     ``ttl_ms`` an ``int`` from 1 to 86,400,000. Any character is allowed, and two keys never share a record.
R11  One request per call, contended or not; the exceptions are listed with the provider and counted in a test.
R12  The owner's deadline is the earlier of two moments: the time at which the try that was answered was sent, plus
     the ttl, less a margin of max(10 ms, ttl/100); and the expiry that the store reports. It holds on the monotonic
     and on the wall clock.

Rules of the mailbox
--------------------
M1   Write first: ``claim`` stores the message and tries to own the key in one step. The first case that fits decides:
     (1) the caller owns the key already: ``Claimed``; (2) the message was handled or died within the window:
     ``Duplicate``; (3) it waits and the key has a live owner: ``Duplicate``, or ``Routed`` if this very call stored
     it; (4) it waits and the key has no owner: ``Claimed``; (5) otherwise the call stores it: ``Claimed`` or
     ``Routed``. If nothing is due in (4) and (5), because the message pauses or a pausing one blocks it (M6: failure),
     it is promised and the key stays free: ``Duplicate``, or ``Routed`` for the call that stored it. A claim without
     a message succeeds only if something is due; else it gets ``Busy`` or ``Idle``.
M2   Close only when empty: ``settle`` frees the key only if no due message waits, atomically with the check; otherwise
     the key passes to the successor in the same step.
M3   Promised: a message is promised from the moment a caller was told that it is safe, and the store writes the mark
     before the answer. The message leaves when it is handled or dead or, while not promised, when its own invocation
     reports its failure (``dropped``). Under ``on_error="block"``, a message that its source will deliver again is
     reported as ``failed``.
M4   Order: due messages are delivered oldest first per key, in the order they were stored. A message that died with
     its run goes to the end (M6: failure).
M5   Once per id: an id that waits, runs, was handled or died within the window is not stored twice. The event stored
     first under an id is the one that runs, promised or not. The window is bounded in time (an hour by default) and
     in number (the last 256 of a key).
M6   Failure: a delivery is counted in the step that gives the message to a run. A failed promised message becomes due
     again after a growing pause; later ones skip ahead or are blocked (blocking keeps their order only if the failed
     one stays, M3: promised). After ``max_attempts`` deliveries it is a dead letter. A message whose body cannot be
     read is a dead letter as soon as it is given to a tenure, its text kept; ``take`` leaves it to the next tenure.
     A message that was given to a tenure which ended without settling it (by expiry, release, transfer, or a settle
     that does not name it) died with its run. It pauses like one that failed, from when strangers may own the key
     (R3), and goes behind all that is stored when the next tenure begins, its claim's own message included. Where
     a paused message blocks later ones, it keeps its place.
M7   Limits: ``max_pending`` bounds what is routed. A call that finds the key free stores its message and owns the key
     even when the mailbox is full, until 100 messages more are stored; then it can own the key without a message. No
     key stores more than 1,100: a redrive beyond is refused. A store may have less room (DynamoDB: 400 KB).
     An event that some supported interpreter would not read back unchanged is refused before any request: values that
     JSON does not have, names that are not text, more than 500 levels, integers of more than 4,300 digits.
M8   Orphans: due messages without a live owner go to the next claim. If no claim comes, ``orphans`` finds them, one
     key of each target in turn. Whom to wake is what the last owner said, else the first sender that said it.
M9   Hand over: the key passes to a one-use ticket. The caller that claims with the ticket while the ticket holds the
     key owns the key under its own owner string. A ticket can be redeemed once.
M10  Cost: an uncontended run is two requests, ``claim`` and ``settle``.
M11  One retry authority: a source retries until it was told "accepted"; from then on the mailbox does. The package
     keeps this rule, not the store.
M12  Format: every stored record carries a version; an unknown version raises ``StoredFormatUnknown``. A listing skips
     the records that it cannot read, goes on, and raises the error at the end with what it skipped.
M13  Never past the end: no renewal after the invocation's deadline or after a loss. The package keeps this rule, not
     the store.
"""

import inspect
import logging
import os
import warnings
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Protocol, TypeGuard

from incumbent.clock import Moment
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
    """Exclusive ownership of a key for a limited time, by the store's clock.

    Every method validates its arguments first (R10: raises ``ConfigurationError``) and raises ``LeaseUnavailable``
    when the outcome is unknown (R9). A lease does not guarantee that a late owner has stopped working: pass ``fence``
    to every system that the owner writes to.
    """

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Acquire the lease if the key is free or already this owner's (R2)."""
        ...

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner as other callers see it (R3: expiry).

        ``None`` means that the key has no owner, never that the store could not be asked (R9: raises).
        """
        ...

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5). Messages that remain become orphans (M8)."""
        ...

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease to at least ``ttl_ms`` from now (R4). Return ``False`` when it is lost (R3)."""
        ...

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key to ``to_owner`` without a gap (R6). Return ``False`` when ``from_owner`` does not hold it."""
        ...


class Mailbox(Protocol):
    """Messages stored beside the lease; each call is one atomic step.

    ``policy`` says how messages are kept; every caller of a keyspace must pass the same one.

    ``fence`` is the fence that the owner was granted: the call then acts in that tenure only, and in another tenure of
    the same owner string it is refused as lost. Without it, the owner string alone decides (R2). No try begins whose
    answer could come after ``give_up_at``, as when the lease would be over by then; if none was answered, the call
    raises ``LeaseUnavailable`` (R9).
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

        ``ticket``: redeem this ticket (M9: hand over; takes no message). ``as_ticket``: ``owner`` is a ticket that the
        caller will send to another function; nothing is delivered, and the message is promised. ``route=False``: if
        another owner holds the key, store nothing and return ``Busy``. Of ``message``, only ``id`` and ``event``
        count. ``origin`` is recorded with the key when the caller comes to own it; a field that it lacks keeps the
        value that an earlier call gave.

        A message found out of attempts moves to the dead letters and is listed in the answer's ``dead_lettered`` (M6).

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
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Released | Continued:
        """Record the outcome of the run's messages and free the key if nothing is due; else pass it on (M2).

        ``handled``: removed. ``failed``: due again after a pause, or a dead letter (M6), at once if ``final``.
        ``dropped``: the caller's own event, whose source is told of the failure; it is removed unless it is promised
        (M3), and counts as failed then. ``deferred``: these keep their place, promised, and their delivery to this run
        is not counted. What the run was given and is not named has died with it (M6). With neither ``next_owner`` nor
        ``ticket`` the key is freed whatever waits (M8: orphans). The answer's ``dead_lettered`` lists what moved to
        the dead letters.

        Raises ``LeaseLost`` when the caller's lease is over; then nothing was settled (R3).
        """
        ...

    def beat(
        self, key: str, owner: str, ttl_ms: int, *, fence: int | None = None, give_up_at: Moment | None = None
    ) -> Beat:
        """Renew the lease (R4) and report how many messages wait. Raises ``LeaseLost``."""
        ...

    def take(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        have: Sequence[str] = (),
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Sequence[Message]:
        """Renew the lease and take all due messages that were never delivered, oldest first.

        Each counts as a delivery (M6). ``have`` lists ids that the caller holds already; the answer leaves them out.
        It includes all else that this tenure was given, so that a call whose reply was lost can be repeated (R8).
        Raises ``LeaseLost``.
        """
        ...

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first. Changes nothing.

        Raises ``StoredFormatUnknown`` when some cannot be read; its ``readable`` holds the others (M12).
        """
        ...

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Find keys with due messages and no live owner, ``limit`` at most (M8).

        Targets take turns: first the oldest key of each, then the second of each, and so on. All keys without a
        recorded target count as one target. Raises ``StoredFormatUnknown`` after the last, with the records that
        could not be read in ``skipped`` (M12).
        """
        ...


class Archive(Protocol):
    """Message states and dead letters, which a mailbox may offer in addition.

    Dead letters are kept for 14 days. Where the body of one cannot be read, its event is the stored text (M6).
    """

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> MessageState | None:
        """Return the state of a message id; ``None`` when it was never stored or has left the window (M5).

        The state is ``"running"`` only while the owner that was given the message holds its lease; when that lease
        has ended, it is ``"waiting"`` (R3).
        """
        ...

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key, or of all keys, the longest dead first per key.

        Raises ``StoredFormatUnknown`` after the last, with the records that could not be read in ``skipped`` (M12).
        """
        ...

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox, promised and undelivered.

        Return ``False`` if the dead letter does not exist. The letter is put back once, however often calls are
        repeated or overlap, and whatever has become of the message meanwhile (R8: lost replies). It is put back or
        purged, never both. Raises ``MailboxFull`` (M7: limits); then the letter is kept.
        """
        ...

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good. Return ``False`` if it does not exist.

        Its id stays a duplicate in the window (M5). Raises ``StoredFormatUnknown`` for a letter of a later version,
        and leaves that letter as it is (M12).
        """
        ...


_LEASE_METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
_MAILBOX_METHODS = ("claim", "settle", "beat", "take", "peek", "orphans")
_ARCHIVE_METHODS = ("find", "dead_letters", "redrive", "purge")
# A store's own objects are passed to a provider, and are not providers; they have the methods of one of these rows:
_CLIENT_METHODS = (
    ("execute_command",),  # Redis and Valkey
    ("get_paginator", "get_waiter"),  # a boto3 client
    ("get_available_subresources",),  # a boto3 resource, such as a Table
    ("client", "resource"),  # a boto3 session
)
# Neither are these, and callables: factories and classes, which make one.
_MISTAKES = (str, bytes, int, float, os.PathLike, Mapping, Sequence, AbstractSet, Iterator, Coroutine, ModuleType)


def _is_coroutine_function(method: object) -> bool:
    called = getattr(method, "__call__", None)  # noqa: B004 - of what kind it is
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(called)


def _has(value: object, names: Iterable[str]) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def is_lease_provider(value: object) -> TypeGuard[LeaseProvider]:
    """Return whether a value has all five methods of a lease provider. A class is not a provider; its instance is."""
    return _has(value, _LEASE_METHODS)


def is_mailbox(value: object) -> TypeGuard[Mailbox]:
    """Return whether a value has all six methods of a mailbox."""
    return _has(value, _MAILBOX_METHODS)


def is_archive(value: object) -> TypeGuard[Archive]:
    """Return whether a value has all four methods of an archive."""
    return _has(value, _ARCHIVE_METHODS)


class NoopLeaseProvider:
    """A lease provider that grants everything: every acquire wins, renew and transfer return ``True``, no key is owned.

    It stands in for a backend that cannot lease. It protects nothing.
    """

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Grant the lease, without a fence."""
        check_lease(key, owner, ttl_ms)
        return Acquisition(acquired=True, owner=owner, expires_in_ms=ttl_ms)

    def get_lease_owner(self, key: str) -> str | None:
        """Return ``None``: no key is ever owned."""
        check_key(key)
        return None

    def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""
        check_owner(owner, check_key(key))

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Return ``True``."""
        check_lease(key, owner, ttl_ms)
        return True

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Return ``True``."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        return True


def check_waits(backend: object, ttl_ms: int) -> None:
    """Refuse a provider whose client may wait longer than a lease of ``ttl_ms`` lasts.

    Only a provider with a method ``check_ttl(ttl_ms)`` is checked; that method raises ``ConfigurationError``.
    """
    check = getattr(backend, "check_ttl", None)
    if callable(check):
        check(ttl_ms)


def check_backend(backend: object) -> None:
    """Refuse a value that cannot be a backend.

    That is a name, a path, settings, a collection, a store's bare client, a module, a class or a function; and a
    provider whose methods are coroutine functions. A value with the methods of a provider is one, whatever its class.
    Raises ``ConfigurationError``.
    """
    for name in ("get_lease_provider", *_LEASE_METHODS, *_MAILBOX_METHODS, *_ARCHIVE_METHODS):
        if not isinstance(backend, type) and _is_coroutine_function(getattr(backend, name, None)):
            raise ConfigurationError(
                f"{type(backend).__name__}.{name} is a coroutine function: a provider's methods are not async"
            )
    if is_lease_provider(backend) or _has(backend, ("get_lease_provider",)):
        return
    of_a_store = any(_has(backend, methods) for methods in _CLIENT_METHODS)
    if of_a_store or isinstance(backend, _MISTAKES) or callable(backend):
        raise ConfigurationError(
            f"{shown(backend)} is not a lease provider: pass an instance, such as RedisProvider(url=...) or "
            "DynamoDBProvider(client=...), or leave provider= out and set INCUMBENT_PROVIDER"
        )


def resolve_lease_provider(backend: object) -> LeaseProvider:
    """Return a backend's lease provider: the backend itself, or what its ``get_lease_provider()`` returns.

    For a backend that cannot lease, warn and return a ``NoopLeaseProvider``. ``None`` is not such a backend: it raises
    a ``ConfigurationError`` that says what to set.
    """
    if backend is None:
        raise ConfigurationError(
            "no lease provider: set INCUMBENT_PROVIDER to redis, dynamodb or memory (none for no leases at all), "
            "or pass provider="
        )
    check_backend(backend)
    if is_lease_provider(backend):
        return backend
    offer = getattr(backend, "get_lease_provider", None)
    if callable(offer):
        offered = offer()
        if is_lease_provider(offered):
            check_backend(offered)
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
