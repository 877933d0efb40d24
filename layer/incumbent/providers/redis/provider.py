"""The Redis and Valkey provider: a key's lease and mailbox in one hash slot, one Lua script per call."""

import functools
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from incumbent.clock import SYSTEM_CLOCK, Clock, Moment, deadline
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import IncumbentError, LeaseLost, LeaseUnavailable, StoredFormatUnknown
from incumbent.providers.redis.names import Names
from incumbent.providers.redis.server import REPEATED, Client, Place, Server, is_odd_record
from incumbent.providers.shared import mailbox_full, redrive_full
from incumbent.providers.unreadable import claim_readable, go_on_readable, message_of, readable
from incumbent.rules import BEYOND, MAX_STORED, kept_pauses, shared
from incumbent.validation import (
    check_key,
    check_lease,
    check_limit,
    check_message_id,
    check_owner,
    check_settlement,
    check_transfer,
    to_json,
)
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claim,
    Claimed,
    Continued,
    DeadLetter,
    Duplicate,
    Failure,
    Idle,
    Message,
    MessageState,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
)

REMEMBERED_FENCES = 1_024
BROKEN = (ValueError, KeyError, TypeError)  # reading a broken meta of a message raises one of these


class RedisProvider:
    """Leases, mailboxes and dead letters in Redis (5 or newer) or Valkey; standalone, replicated or in cluster mode.

    Every call is one request, an EVALSHA. Further requests: one EVAL when the server has forgotten the script; those
    that a cluster's client sends after MOVED; for ``orphans`` and ``dead_letters(None)`` the SCANs and one request for
    each key found; two for each message whose body cannot be read, when it is claimed; and, with ``url``, one INFO at
    the first call, which warns if the server may evict leases. Replicas are refused: they may be behind.

    The lease is the plain string ``<key_prefix>:lease:<key>`` with the owner as its value and PX as its expiry, so
    other programs that use the same string and incumbent exclude each other. A lease that another program has written
    is *foreign*: messages for its key are stored and promised, and wait for the next owner that reads this mailbox.

    Promised messages are as durable as the server: without AOF a crash, and with asynchronous replication a fail-over,
    can lose the last accepted messages, or let two owners run. Pass ``fence`` to every system that you write to.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        client: Client | None = None,
        password: Callable[[], str] | None = None,
        key_prefix: str = "incumbent",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take a URL, or a client of the package redis or of its fork valkey. Sends nothing before the first call.

        ``url`` has redis-py's form: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS, parameters such
        as ``socket_timeout=0.3`` (seconds; default a twentieth of the ttl, from 0.25 to 1). ``cluster=true`` says
        that the server is in cluster mode. A client made from the URL repeats no command, and a call ends well before
        the next renewal is due.

        ``password`` is called for the password whenever a connection is made (``SecretPassword``, or a callable that
        makes tokens); the URL then holds at most the user.

        ``client`` keeps its settings, and the caller closes it. A client that repeats commands, as redis-py does by
        default, does not say which try was answered: a transfer or settle by an owner that has lost then raises
        ``LeaseUnavailable``, since it may have taken effect (R9). Prefer a client with ``retry=Retry(NoBackoff(), 0)``
        and timeouts of a tenth of the ttl.

        Raises ``ConfigurationError``; so does each call with a ttl that is shorter than a ``socket_timeout`` set in
        the URL or in the client (redis-py's default is 5 seconds).
        """
        self._names = Names(key_prefix)
        self._server = Server(url=url, client=client, clock=clock, password=password)
        self._fences = _Fences()
        self._sought = Place()

    def close(self) -> None:
        """Close the connections that the provider has opened itself. A later call opens them again."""
        self._server.close()

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a ttl that is shorter than the client may wait for one answer. Raises ``ConfigurationError``."""
        self._server.check_ttl(ttl_ms)

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Acquire the lease if the key is free or already this owner's (R2)."""
        check_lease(key, owner, ttl_ms)
        sent, answer = self._run("acquire", key, owner, ttl_ms, call="acquire", ttl_ms=ttl_ms)
        match answer:
            case [b"granted", fence, pttl]:
                self._fences.keep(key, owner, fence)
                return Acquisition(
                    acquired=True,
                    owner=owner,
                    fence=int(fence),
                    expires_in_ms=pttl,
                    deadline=deadline(sent, ttl_ms, pttl),
                )
            case [_, holder, pttl]:
                return Acquisition(acquired=False, owner=_text(holder), expires_in_ms=_lives(pttl))
            case _:
                raise _senseless(key, answer)

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, or ``None`` if the key is free (R3)."""
        check_key(key)
        _, answer = self._run("owner", key, call="get_lease_owner")
        match answer:
            case [b"held", owner]:
                return _text(owner)
            case [b"free"]:
                return None
            case _:
                raise _senseless(key, answer)

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5)."""
        check_owner(owner, check_key(key))
        self._run("release", key, owner, self._fences.of(key, owner), call="release")
        self._fences.forget(key, owner)

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease, or return ``False`` when it is lost (R4)."""
        check_lease(key, owner, ttl_ms)
        _, [answer, *_] = self._renew(key, owner, ttl_ms, call="renew")
        return bool(answer == b"renewed")

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key to ``to_owner`` without a gap, or return ``False`` if it is not ``from_owner``'s (R6)."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        fence = self._fences.of(key, from_owner)
        _, answer = self._run(
            "transfer", key, from_owner, to_owner, ttl_ms, fence, REPEATED, call="transfer", ttl_ms=ttl_ms
        )
        match answer:
            case [b"moved", fence, _]:
                self._fences.forget(key, from_owner)
                self._fences.keep(key, to_owner, fence)
                return True
            case [b"lost", _]:
                self._fences.forget(key, from_owner)
                return False
            case [_, holder]:
                raise _unknown("transfer", key, from_owner, _text(holder))
            case _:
                raise _senseless(key, answer)

    # --- the mailbox

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
        """Store the message and try to own the key, in one step (M1)."""
        return claim_readable(
            lambda: self._claim(
                key,
                owner,
                ttl_ms,
                message,
                ticket=ticket,
                as_ticket=as_ticket,
                route=route,
                origin=origin,
                policy=policy,
            ),
            functools.partial(self._settle, key, ttl_ms=ttl_ms, policy=policy, give_up_at=None),
            message,
        )

    def _claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        message: Message | None,
        *,
        ticket: str | None,
        as_ticket: bool,
        route: bool,
        origin: Origin | None,
        policy: Policy,
    ) -> Claim:
        check_lease(key, owner, ttl_ms)
        if ticket is not None:
            check_owner(ticket, key, "the ticket")
        message_id, body = None, None
        if message is not None:
            message_id = check_message_id(message.id, key)
            body = to_json(message.event, key=key, message_id=message_id, most_bytes=policy.max_message_bytes)
        sent, answer = self._run(
            "claim",
            key,
            owner,
            ttl_ms,
            message_id,
            body,
            ticket,
            as_ticket,
            route,
            policy.on_error == "block",
            policy.max_pending,
            BEYOND,
            policy.max_attempts,
            policy.window_ms,
            _pauses(policy),
            *(() if origin is None else (origin.keyspace, origin.target, origin.request_id, origin.log_stream)),
            call="claim",
            ttl_ms=ttl_ms,
        )
        match answer:
            case [b"claimed", fence, pttl, waiting, dead_lettered, *messages]:
                self._fences.keep(key, owner, fence)
                return Claimed(
                    owner=owner,
                    fence=int(fence),
                    messages=_messages(messages),
                    waiting=waiting,
                    expires_in_ms=pttl,
                    deadline=deadline(sent, ttl_ms, pttl),
                    dead_lettered=_letters(dead_lettered),
                )
            case [b"routed", holder, stored]:
                return Routed(owner=_text(holder) or None, waiting=stored)
            case [b"duplicate", state, holder, dead_lettered]:
                return Duplicate(
                    state=cast("MessageState", _text(state)),
                    owner=_text(holder) or None,
                    dead_lettered=_letters(dead_lettered),
                )
            case [b"busy", holder, pttl]:
                return Busy(owner=_text(holder), expires_in_ms=_lives(pttl))
            case [b"full", holder]:
                raise mailbox_full(key, policy, owner=_text(holder) or None)
            case [b"idle", dead_lettered]:
                return Idle(dead_lettered=_letters(dead_lettered))
            case _:
                raise _senseless(key, answer)

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
        """Record the outcome of the run's messages, and free the key or pass it on (M2)."""
        settled = self._settle(
            key,
            owner,
            ttl_ms=ttl_ms,
            handled=handled,
            failed=failed,
            dropped=dropped,
            deferred=deferred,
            next_owner=next_owner,
            ticket=ticket,
            policy=policy,
            fence=fence,
            give_up_at=give_up_at,
        )
        more = functools.partial(self._settle, key, ttl_ms=ttl_ms, policy=policy, give_up_at=give_up_at)
        return go_on_readable(settled, more)

    def _settle(
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
        policy: Policy,
        fence: int | None,
        give_up_at: Moment | None,
    ) -> Released | Continued:
        check_lease(key, owner, ttl_ms, fence)
        others = [*(failure.id for failure in (*failed, *dropped)), *deferred]
        check_settlement(key, handled, others, next_owner, ticket)
        successor = next_owner or ticket
        failures = [part for each in (*failed, *dropped) for part in (each.id, each.error, _pause(each))]
        sent, answer = self._run(
            "settle",
            key,
            owner,
            ttl_ms,
            successor,
            ticket is not None,
            self._fence(key, owner, fence),
            REPEATED,
            policy.on_error == "block",
            policy.max_attempts,
            policy.window_ms,
            _pauses(policy),
            len(handled),
            len(failed),
            len(dropped),
            len(deferred),
            *handled,
            *failures,
            *deferred,
            call="settle",
            ttl_ms=ttl_ms,
            give_up_at=give_up_at,
        )
        match answer:
            case [b"continued", granted, pttl, waiting, dead_lettered, *messages] if successor is not None:
                self._fences.forget(key, owner)
                self._fences.keep(key, successor, granted)
                return Continued(
                    owner=successor,
                    fence=int(granted),
                    messages=() if ticket is not None else _messages(messages),
                    waiting=waiting,
                    expires_in_ms=pttl,
                    deadline=deadline(sent, ttl_ms, pttl),
                    dead_lettered=_letters(dead_lettered),
                )
            case [b"released", left, dead_lettered]:
                self._fences.forget(key, owner)
                return Released(remaining=left, dead_lettered=_letters(dead_lettered))
            case [b"lost", holder]:
                raise self._lost("settle", key, owner, holder)
            case [b"unknown", holder]:
                raise _unknown("settle", key, owner, _text(holder))
            case _:
                raise _senseless(key, answer)

    def beat(
        self, key: str, owner: str, ttl_ms: int, *, fence: int | None = None, give_up_at: Moment | None = None
    ) -> Beat:
        """Renew the lease (R4) and report how many messages wait."""
        check_lease(key, owner, ttl_ms, fence)
        sent, answer = self._renew(key, owner, ttl_ms, call="beat", fence=fence, give_up_at=give_up_at)
        match answer:
            case [b"renewed", granted, pttl, waiting]:
                return Beat(
                    fence=int(granted),
                    waiting=waiting,
                    expires_in_ms=pttl,
                    deadline=deadline(sent, ttl_ms, pttl),
                )
            case [_, holder]:
                raise self._lost("beat", key, owner, holder)
            case _:
                raise _senseless(key, answer)

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
        """Renew the lease and take all due messages that were never delivered (M6)."""
        check_lease(key, owner, ttl_ms, fence)
        known = self._fence(key, owner, fence)
        _, answer = self._run(
            "take", key, owner, ttl_ms, known, *have, call="take", ttl_ms=ttl_ms, give_up_at=give_up_at
        )
        match answer:
            case [b"taken", granted, _, _, _, *messages]:
                self._fences.keep(key, owner, granted)
                return readable(_messages(messages))
            case [_, holder]:
                raise self._lost("take", key, owner, holder)
            case _:
                raise _senseless(key, answer)

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first.

        Raises ``StoredFormatUnknown`` when some cannot be read; its ``readable`` holds the others (M12).
        """
        check_key(key)
        _, [_, odd, *found] = self._run("peek", key, call="peek")
        skipped = self._odd("peek", key, "meta", odd)
        messages: list[Message] = []
        for each in _triples(found):
            try:
                messages.append(_message(*each))
            except BROKEN as cause:
                skipped.append(self._broken("peek", key, "meta", each[0], cause))
        if skipped:
            raise StoredFormatUnknown.of(skipped, readable=messages)
        return tuple(messages)

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """M8. SCAN finds the keys, and each is asked by one request more: oldest first of those that it has time for.

        A key whose records cannot be read is left out, and raises ``StoredFormatUnknown`` after the others.
        """
        return self._orphans(check_limit(limit))

    def _orphans(self, limit: int) -> Iterator[Orphan]:
        found: list[tuple[int, str, str | None, int]] = []
        now = 0
        skipped: list[IncumbentError] = []
        for key in self._keys_with("mail", call="orphans", place=self._sought):
            answer = self._read("orphan", key, skipped, call="orphans")
            if answer is None:
                continue
            if answer[0] == b"orphan":
                _, since, at, target, waiting = answer
                now = max(now, int(at))
                found.append((int(since), key, _text(target) or None, waiting))
        oldest_first = (
            Orphan(key=key, target=target, age_ms=now - since, waiting=waiting)
            for since, key, target, waiting in sorted(found, key=lambda each: each[:2])
        )
        yield from islice(shared(oldest_first), limit)
        if skipped:
            raise StoredFormatUnknown.of(skipped)

    # --- the archive

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> MessageState | None:
        """Return the state of a message id, or ``None`` if it is not known (M5)."""
        check_message_id(message_id, check_key(key))
        _, [_, state] = self._run("find", key, message_id, policy.window_ms, call="find")
        return cast("MessageState | None", _text(state) or None)

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key (M6), or of all keys, by SCAN and one request for each key.

        Letters that cannot be read are skipped; ``StoredFormatUnknown`` names them after the others.
        """
        return self._dead_letters(key if key is None else check_key(key), check_limit(limit))

    def _dead_letters(self, key: str | None, limit: int) -> Iterator[DeadLetter]:
        keys = self._keys_with("dead", call="dead_letters") if key is None else [key]
        skipped: list[IncumbentError] = []
        for each in keys:
            if limit <= 0:
                break
            if key is None:
                answer = self._read("letters", each, skipped, limit, call="dead_letters")
                if answer is None:
                    continue
            else:
                _, answer = self._run("letters", each, limit, call="dead_letters")
            _, odd, *letters = answer
            skipped += self._odd("dead_letters", each, "letters", odd)
            for letter in _triples(letters):
                try:
                    (message,) = _letters(letter)
                    found = DeadLetter(key=each, message=message, died_at_ms=json.loads(letter[1])["died"])
                except BROKEN as cause:
                    skipped.append(self._broken("dead_letters", each, "letters", letter[0], cause))
                    continue
                limit -= 1
                yield found
        if skipped:
            raise StoredFormatUnknown.of(skipped)

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox (M6)."""
        check_message_id(message_id, check_key(key))
        answer = self._dead("redrive", key, message_id, MAX_STORED)
        if answer == b"full":
            raise redrive_full(key, message_id)
        return answer == b"redriven"

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good (M6)."""
        check_message_id(message_id, check_key(key))
        return self._dead("purge", key, message_id, secrets.token_hex(8)) == b"purged"

    # --- requests

    def _run(
        self,
        name: str,
        key: str,
        *arguments: Any,
        call: str,
        ttl_ms: int | None = None,
        give_up_at: Moment | None = None,
    ) -> tuple[Moment, list[Any]]:
        """Run a script on a key. Return when the try that was answered was sent, and its answer."""
        sent, answer = self._server.run(
            name, self._names.of(key), arguments, call=call, key=key, ttl_ms=ttl_ms, give_up_at=give_up_at
        )
        match answer:
            case [b"format", record, version]:
                raise _unknown_format(f"{call} of key {key!r}: its record {_text(record)!r}", version, key)
            case [b"broken", record]:
                raise StoredFormatUnknown(
                    f"{call} of key {key!r}: parts of its record {_text(record)!r} are missing, as after an eviction "
                    f"or an edit by hand; it was left as it is. Look at {self._names.of(key)[1].decode()!r} and "
                    "its companions, and remove what is left of them",
                    key=key,
                )
            case _:
                return sent, answer

    def _fence(self, key: str, owner: str, fence: int | None) -> bytes | int | None:
        return self._fences.of(key, owner) if fence is None else fence

    def _renew(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        call: str,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> tuple[Moment, list[Any]]:
        known = self._fence(key, owner, fence)
        sent, answer = self._run("renew", key, owner, ttl_ms, known, call=call, ttl_ms=ttl_ms, give_up_at=give_up_at)
        if answer[0] == b"renewed":
            self._fences.keep(key, owner, answer[1])
        else:
            self._fences.forget(key, owner)
        return sent, answer

    def _read(self, name: str, key: str, skipped: list[IncumbentError], *arguments: Any, call: str) -> list[Any] | None:
        """Run a script that reads one key of many. A key that cannot be read is noted in ``skipped``."""
        try:
            return self._run(name, key, *arguments, call=call)[1]
        except StoredFormatUnknown as error:
            skipped.append(error)
        except LeaseUnavailable as error:
            if not is_odd_record(error.__cause__):
                raise
            skipped.append(error)
        return None

    def _odd(self, call: str, key: str, record: str, odd: Sequence[bytes]) -> list[IncumbentError]:
        """Make the errors of the messages that a script could not read (``odd``: id, format ...)."""
        return [
            _unknown_format(f"{call} of key {key!r}: message {_text(each)!r} in its record {record!r}", version, key)
            if version
            else self._broken(call, key, record, each)
            for each, version in zip(odd[::2], odd[1::2], strict=True)
        ]

    def _broken(
        self, call: str, key: str, record: str, message_id: bytes, cause: Exception | None = None
    ) -> StoredFormatUnknown:
        why = f" ({type(cause).__name__}: {cause})" if cause else ""
        return StoredFormatUnknown(
            f"{call} of key {key!r}: message {_text(message_id)!r} in its record {record!r} is broken{why}; it was "
            f"left as it is. Look at {self._names.of(key)[1].decode()!r} and its companions",
            key=key,
        )

    def _dead(self, call: str, key: str, message_id: str, *more: str | int) -> bytes:
        """Run a script on a dead letter and return its answer."""
        answer: bytes
        _, [answer] = self._run(call, key, message_id, REPEATED, *more, call=call)
        if answer == b"unknown":
            raise LeaseUnavailable(
                f"{call} of key {key!r}: an earlier try went unanswered, and dead letter {message_id!r} is gone now: "
                "that try has removed it, or another caller",
                key=key,
            )
        return answer

    def _keys_with(self, companion: str, *, call: str, place: Place | None = None) -> Iterator[str]:
        """Find the keys that have this companion."""
        for name in self._server.scan(self._names.pattern(companion), call=call, place=place):
            key = self._names.key_of(name, companion)
            if key is not None:
                yield key

    def _lost(self, call: str, key: str, owner: str, holder: bytes) -> LeaseLost:
        self._fences.forget(key, owner)
        present = _text(holder) or None
        later = " in a later tenure" if present == owner else ""
        return LeaseLost(
            f"{call} of key {key!r}: owner {owner!r} no longer holds it (holder: {present!r}{later}); nothing was "
            "changed, and messages that were not settled are still stored",
            key=key,
            owner=owner,
            holder=present,
        )


class _Fences:
    """The fences of this provider's grants, sent with each call so that none acts on another tenure (R2: acquire)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fences: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def of(self, key: str, owner: str) -> bytes | None:
        with self._lock:
            return self._fences.get((key, owner))

    def keep(self, key: str, owner: str, fence: bytes) -> None:
        with self._lock:
            self._fences[key, owner] = fence
            self._fences.move_to_end((key, owner))
            if len(self._fences) > REMEMBERED_FENCES:
                self._fences.popitem(last=False)

    def forget(self, key: str, owner: str) -> None:
        with self._lock:
            self._fences.pop((key, owner), None)


def _pauses(policy: Policy) -> str:
    """The pauses as a script reads them, and as they stand in the state."""
    return ",".join(map(str, kept_pauses(policy)))


def _text(value: bytes) -> str:
    """Decode a value, which another program may have written, and not as UTF-8."""
    return value.decode(errors="backslashreplace")


def _lives(pttl: int) -> int | None:
    """Return how long a lease lives; ``None`` for a lease of another program that does not expire."""
    return pttl if pttl >= 0 else None


def _triples(answer: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    yield from zip(answer[::3], answer[1::3], answer[2::3], strict=True)


def _messages(answer: Sequence[bytes]) -> tuple[Message, ...]:
    return tuple(_message(*each) for each in _triples(answer))


def _letters(answer: Sequence[bytes]) -> tuple[Message, ...]:
    """Read dead messages: they are not due, and their source has been answered."""
    return tuple(replace(message, due_at_ms=0, promised=True) for message in _messages(answer))


def _pause(failure: Failure) -> int | str | None:
    return "final" if failure.final else failure.after_ms


def _message(message_id: bytes, meta: bytes, body: bytes) -> Message:
    kept = json.loads(meta)
    return message_of(
        body,
        id=_text(message_id),
        attempt=kept["attempts"],
        stored_at_ms=kept["stored"],
        due_at_ms=kept["due"],
        promised=kept["promised"],
        last_error=kept.get("error"),
    )


def _unknown_format(what: str, version: bytes, key: str) -> StoredFormatUnknown:
    return StoredFormatUnknown(
        f"{what} has format {_text(version)}, which this version cannot read; it was left as it is. Run the "
        "version that wrote it, or a newer one",
        key=key,
    )


def _unknown(call: str, key: str, owner: str, holder: str) -> LeaseUnavailable:
    """Make the error of a repeated call that finds no evidence of its own effect (R9: unknown outcome)."""
    return LeaseUnavailable(
        f"{call} of key {key!r} by owner {owner!r}: an earlier try went unanswered, and the key (holder: "
        f"{holder or None!r}) no longer shows whether it took effect; messages that were not settled are still stored",
        key=key,
    )


def _senseless(key: str, answer: list[Any]) -> LeaseUnavailable:
    return LeaseUnavailable(f"key {key!r}: unexpected reply of the store: {answer!r}", key=key)
