"""What a backend promises: four Protocols, with their rules. `incumbent.backends` says how they are detected.

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
     the records that it cannot read, goes on, and raises the error at the end with what it skipped. Where parts of
     the store give no answer (R9), it may list the others, and then raises ``ListIncomplete``.
M13  Never past the end: no renewal after the run's end (also when an exception of a signal handler ends it, at any
     step of the package's functions), after the invocation's deadline, or after a loss. The package keeps this rule,
     not the store.

Rules of control
----------------
M14  Later: a message may be sent for later, at most 14 days. It is stored and promised at once, and is not due before.
     It blocks no other message. It goes to the end of the mailbox, but before the first message that was never
     delivered and is for a later moment still; so such messages are delivered in the order of their due times.
M15  Not before: a key may carry two moments before which no caller is granted it, with a ticket or without:
     ``quiet_until`` and ``held_until`` (with a reason). Meanwhile a claim with a message stores and promises it
     (``Routed``, bounded by ``max_pending``), or gets ``Busy`` with ``route=False``; a claim without one gets ``Idle``,
     and a ticket redeemed then is spent; ``acquire_lease`` is refused; ``settle`` frees the key though something is
     due; ``orphans`` leaves the key out. A live owner is not disturbed: it renews, takes, transfers and settles.
     *Debounce*: a message that is stored on a key without an owner sets ``quiet_until`` to ``quiet_ms`` from now, but
     at most ``max_ms`` after the first due message that was never delivered was stored. *Hold*: ``hold`` sets
     ``held_until`` and ``resume`` clears it; ``settle`` with ``hold_ms`` holds from the settle on. A hold is never
     shortened but by ``resume``.
M16  Stop: ``stop`` marks the live tenure and nothing else; with the fence of another tenure it changes nothing. Each
     grant begins without a mark, so no successor inherits one. Every answer to the owner (``beat``, ``take``,
     ``settle``) carries the mark, and ``watch`` reads it without a renewal. The first reason stands. A message that
     the owner reports as ``stopped`` leaves in that state. With ``interrupt``, the claim that stores behind an owner
     marks it in the same step. A stop is for what the run had: of a run that it cancels, the package defers the
     messages that came with the mark, and an interruption before a run begins interrupts nothing.
M17  Result: with ``Policy(result_bytes=n)``, what a run returned is kept beside the handled id for the window, as JSON
     of at most n bytes; a larger one is kept as "too large".
M18  Note: the owner sends a note with ``beat``, JSON of at most 1 KB. It belongs to the tenure and ends with it.
M19  Cancel: ``cancel`` removes one message that waits, failed before or not; its state is ``cancelled`` in the window.
     One that runs is not touched, and the answer names its run.
M20  Run limit: a run that takes longer than its limit is not renewed any more, so the key moves on when its lease ends,
     the delivery counted as of a crash (M6). The package keeps this rule, not the store.
M21  Latest: with ``Policy(keep="latest")``, a message that is stored behind an owner replaces the due ones that were
     never delivered. They leave as ``superseded``, and the answer lists them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from incumbent.clock import Moment
from incumbent.values import (
    Acquisition,
    Beat,
    Claim,
    Continued,
    DeadLetter,
    Debounce,
    Failure,
    KeyStatus,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Status,
    Taken,
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
        after_ms: int = 0,
        debounce: Debounce | None = None,
        interrupt: bool = False,
    ) -> Claim:
        """Store the message and try to own the key (M1).

        ``ticket``: redeem this ticket (M9: hand over; takes no message). ``as_ticket``: ``owner`` is a ticket that the
        caller will send to another function; nothing is delivered, and the message is promised. ``route=False``: if
        another owner holds the key, store nothing and return ``Busy``. Of ``message``, only ``id`` and ``event``
        count. ``origin`` is recorded with the key when the caller comes to own it; a field that it lacks keeps the
        value that an earlier call gave. ``after_ms``: the message is due so many milliseconds from now, at most 14 days
        (M14: later). ``debounce``: on a key without an owner, wait for quiet (M15). ``interrupt``: if another owner
        holds the key, mark its tenure (M16: stop).

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
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Released | Continued:
        """Record the outcome of the run's messages and free the key if nothing is due; else pass it on (M2).

        ``handled``: removed; ``results`` holds what their runs returned (M17: result). ``stopped``: removed, as stopped
        (M16: stop). ``failed``: due again after a pause, or a dead letter (M6), at once if ``final``. ``dropped``: the
        caller's own event, whose source is told of the failure; it is removed unless it is promised (M3), and counts as
        failed then. ``deferred``: these keep their place, promised, and their delivery to this run is not counted. What
        the run was given and is not named has died with it (M6). With neither ``next_owner`` nor ``ticket``, and with
        ``hold_ms``, which holds the key from now on (M15), the key is freed whatever waits (M8: orphans). The answer's
        ``dead_lettered`` lists what moved to the dead letters.

        Raises ``LeaseLost`` when the caller's lease is over; then nothing was settled (R3).
        """
        ...

    def beat(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        note: Any = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Beat:
        """Renew the lease (R4) and report how many messages wait. ``note`` replaces the run's last one (M18).

        Raises ``LeaseLost``.
        """
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
    ) -> Taken:
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


class Control(Protocol):
    """Ways to look at a key and to hold or stop it, which a mailbox may offer in addition (M14 to M21).

    Those who do not use them pay nothing for them. Every method sends one request; ``keys`` and a ``show`` with events
    may send more. They raise ``LeaseUnavailable`` (R9) and ``StoredFormatUnknown`` (M12).
    """

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """Mark the live tenure, or only that of ``fence``, so that its run stops (M16).

        Return the fence of the tenure that it marks or that is marked already, or ``None`` if no such tenure is live.
        ``reason`` is text of at most 1,024 bytes. A call that is repeated after a lost reply marks no second tenure
        (R8). Does not guarantee that the run notices before it ends.
        """
        ...

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """Return the mark of the owner's live tenure, ``None`` if it has none (M16). It renews nothing.

        The answer may be a moment old. Raises ``LeaseLost``.
        """
        ...

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """Grant the key to no caller for ``for_ms`` milliseconds (at most 14 days), or until ``resume`` (M15).

        A call that is repeated after a lost reply does not hold again what was resumed since (R8).
        """
        ...

    def resume(self, key: str) -> bool:
        """End a hold. Return whether the key was held. What is due is an orphan from now on (M8)."""
        ...

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Remove a message that waits (M19). Return its status now: ``"cancelled"`` if this call or an earlier one did.

        A message that runs is not touched: its status names the owner and the fence, for ``stop``.
        """
        ...

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """Return what is known of a key. ``events`` includes the events of its messages."""
        ...

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """List keys that have an owner or messages, or are held, ``limit`` at most, without events.

        A key whose lease a caller took by ``acquire_lease`` and that stores no message may be missing. Raises
        ``StoredFormatUnknown`` after the last, with the records that could not be read in ``skipped`` (M12).
        """
        ...


class Archive(Protocol):
    """Message states and dead letters, which a mailbox may offer in addition.

    Dead letters are kept for 14 days. Where the body of one cannot be read, its event is the stored text (M6).
    """

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Return what is known of a message id; ``"unknown"`` if it was never stored or has left the window (M5).

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
