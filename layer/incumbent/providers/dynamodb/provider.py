"""The DynamoDB provider: each call is one conditional update. If refused, the rules decide on the shown record."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from incumbent import rules
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import ConfigurationError, IncumbentError, StoredFormatUnknown
from incumbent.frozen import replace
from incumbent.providers.dynamodb import archive, quick
from incumbent.providers.dynamodb.bodies import WHY_GONE
from incumbent.providers.dynamodb.change import MAX_PLACES
from incumbent.providers.dynamodb.claiming import Claiming
from incumbent.providers.dynamodb.client import Clients
from incumbent.providers.dynamodb.control import Controls, status
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.settling import Settling
from incumbent.providers.dynamodb.steps import (
    FREED,
    GRANTED,
    Step,
    Steps,
    When,
    due_in_ms,
    expires_in_ms,
    until,
    waiting,
)
from incumbent.providers.dynamodb.table import Table, TableCall
from incumbent.providers.shared import (
    check_claim,
    check_note,
    check_reason,
    check_settle,
    kept_results,
    stored_message,
)
from incumbent.providers.unreadable import claim_readable, go_on_readable, readable
from incumbent.rules import KeyState
from incumbent.validation import (
    check_key,
    check_lease,
    check_limit,
    check_message_id,
    check_ms,
    check_owner,
    check_transfer,
)
from incumbent.values import (
    Acquisition,
    Beat,
    Claim,
    Continued,
    DeadLetter,
    Debounce,
    Failure,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Status,
    Taken,
)

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from mypy_boto3_dynamodb import DynamoDBClient

_MAX_PREFIX_BYTES = 255
_MAX_SKEW_MS = 60_000


class DynamoDBProvider(Controls):
    """Leases and mailboxes in one DynamoDB table; ``template.yaml`` describes it.

    ``client`` is a low-level client, which keeps its settings; requests that it repeats count as repeated (R9).
    Without it the provider makes one at the first call from ``boto3_session``, with timeouts of a second, which
    ``boto_config`` overrides. ``key_prefix`` keeps applications apart in one table and contains no ``#``.
    ``max_clock_skew_ms`` is the most by which any two callers' clocks may differ, in milliseconds: DynamoDB has no
    clock to read, so other callers wait that much longer after an expiry (R3).

    One request a call (R11, M10), except: two for an acquire by the present owner, a message that is routed, an id
    that waits on a free key, an id that is known or has the mark of one that is, a duplicate to be promised, a
    grant of a key whose oldest message was delivered before or pauses, a take of what waits, a release or a transfer
    by a run, and each settle but the quick one: of the only message, which its owner stored itself and with a body in
    the record, if it is handled or dropped, nothing waits, and the call names the fence. Three for a message that is
    routed while the holder leaves, and for each fourth settle; five for a redrive or a purge; one more for each dead
    letter, for a refusal that tells no old item, as where there is none, and for each other write that comes between
    an answer and what follows from it (two, after a pause, from the fifth on); three more for a message whose body
    cannot be read. A body over 2 KiB, or without room among 8 KiB a key, costs a put, a delete, and a read when another
    run gets it; above 384 KiB, for each 384 KiB.

    Of control, two for ``hold``, a ``stop`` that names no fence, a ``resume`` and a ``cancel`` that find something,
    a claim on a key that was held or waited for quiet, or with ``after_ms`` or ``debounce``, and a settle that holds or
    whose tenure is marked; one more to keep a result, and to find it. ``keys`` reads the orphans' index and the records
    of all keys in it, so it needs the rights of ``orphans``.

    Nothing is kept between calls but the client.

    Not promised: anything across Regions. A global table lets the last writer win, and a lease would have two owners.
    """

    def __init__(
        self,
        *,
        table_name: str,
        client: "DynamoDBClient | None" = None,
        boto3_session: "Session | None" = None,
        boto_config: "Config | None" = None,
        key_prefix: str = "incumbent",
        max_clock_skew_ms: int = 1_000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Check the arguments without a connection. Raises ``ConfigurationError``."""
        if not table_name:
            raise ConfigurationError("table_name is empty: give the name or the ARN of the table")
        if not 1 <= len(key_prefix.encode()) <= _MAX_PREFIX_BYTES:
            raise ConfigurationError(f"key_prefix is {key_prefix!r}: give 1 to {_MAX_PREFIX_BYTES} bytes")
        if "#" in key_prefix:
            raise ConfigurationError(f"key_prefix is {key_prefix!r}: '#' separates it from the key; remove the '#'")
        if client is not None and (boto3_session is not None or boto_config is not None):
            raise ConfigurationError("give client, or boto3_session and boto_config, not both")
        check_ms("max_clock_skew_ms", max_clock_skew_ms, 0, _MAX_SKEW_MS)
        self._clients = Clients(client, boto3_session, boto_config)
        self._table = Table(table_name, clients=self._clients, clock=clock)
        self._steps = Steps(self._table, prefix=key_prefix, skew_ms=max_clock_skew_ms, clock=clock)

    def close(self) -> None:
        """Close the connections that the provider has opened itself. A later call opens them again."""
        self._clients.close()

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a ttl that is shorter than the client may wait for one answer. Raises ``ConfigurationError``."""
        self._clients.check_ttl(ttl_ms)

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Acquire the lease if the key is free or already this owner's (R2)."""
        check_lease(key, owner, ttl_ms)
        call = self._steps.call("acquire_lease", key, owner, ttl_ms=ttl_ms)
        skew_ms = self._steps.skew_ms

        def first(now_ms: int) -> tuple[Request, rules.Granted | rules.Held]:
            request = quick.acquire(owner, ttl_ms=ttl_ms, now_ms=now_ms, skew_ms=skew_ms)
            return request, GRANTED

        def rule(state: KeyState, when: When) -> tuple[KeyState, rules.Granted | rules.Held]:
            return rules.acquire(state, when.now_ms, owner, ttl_ms, skew_ms)

        step = self._steps.step(call, self._table.update(call, first), rule)
        answer = step.answer
        if isinstance(step.said, rules.Held):
            held_ms = due_in_ms(answer, step.said.expires_ms) if step.said.owner is None else expires_in_ms(answer)
            return Acquisition(acquired=False, owner=step.said.owner, expires_in_ms=held_ms)
        return Acquisition(
            acquired=True,
            owner=owner,
            fence=answer.record.state.fence,
            expires_in_ms=expires_in_ms(answer),
            deadline=until(answer, ttl_ms),
        )

    def get_lease_owner(self, key: str) -> str | None:
        """Return the live owner, or ``None`` if the key is free (R3)."""
        call = self._steps.call("get_lease_owner", check_key(key))
        return self._steps.owner(self._table.read(call))

    def release_lease(self, key: str, owner: str) -> None:
        """Free the key if that owner holds it (R5)."""
        check_owner(owner, check_key(key))
        call = self._steps.call("release_lease", key, owner)

        def first(now_ms: int) -> tuple[Request, rules.Freed]:
            return quick.release(owner, now_ms=now_ms), FREED

        def rule(state: KeyState, when: When) -> tuple[KeyState, rules.Freed]:
            return rules.release(state, when.now_ms, owner), FREED

        self._steps.step(call, self._table.update(call, first), rule, held=True)

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend a live lease, or return ``False`` when it is lost (R4)."""
        check_lease(key, owner, ttl_ms)
        call = self._steps.call("renew_lease", key, owner, ttl_ms=ttl_ms)
        return self._renew(call, owner, ttl_ms, None, shows=False).said != "lost"

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass the key to ``to_owner`` without a gap, or return ``False`` if it is not ``from_owner``'s (R6)."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        call = self._steps.call("transfer_lease", key, from_owner, to_owner, ttl_ms=ttl_ms)

        def first(now_ms: int) -> tuple[Request, bool | rules.Unknown]:
            skew_ms = self._steps.skew_ms
            return quick.transfer(from_owner, to_owner, ttl_ms=ttl_ms, now_ms=now_ms, skew_ms=skew_ms), True

        def rule(state: KeyState, when: When) -> tuple[KeyState, bool | rules.Unknown]:
            return rules.transfer(state, when.now_ms, from_owner, to_owner, ttl_ms, repeated=when.repeated)

        step = self._steps.step(call, self._table.update(call, first), rule, held=True)
        if step.said == "unknown":
            raise self._steps.in_doubt(call, from_owner, step.answer)
        return bool(step.said)

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
        after_ms: int = 0,
        debounce: Debounce | None = None,
        interrupt: bool = False,
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
                after_ms=after_ms,
                debounce=debounce,
                interrupt=interrupt,
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
        after_ms: int,
        debounce: Debounce | None,
        interrupt: bool,
    ) -> Claim:
        text = check_claim(
            key, owner, ttl_ms, message, ticket=ticket, policy=policy, after_ms=after_ms, debounce=debounce
        )
        names = [owner, *([] if ticket is None else [ticket]), *([] if message is None else [message.id])]
        return Claiming(
            steps=self._steps,
            call=self._steps.call("claim", key, *names, ttl_ms=ttl_ms),
            owner=owner,
            ttl_ms=ttl_ms,
            message_id="" if message is None else message.id,
            text=text or "",
            policy=policy,
            ticket=ticket,
            as_ticket=as_ticket,
            route=route,
            origin=origin,
            after_ms=0 if message is None else after_ms,
            debounce=None if message is None else debounce,
            interrupt=interrupt,
        ).carry_out()

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
            stopped=stopped,
            results=results,
            hold_ms=hold_ms,
            hold_reason=hold_reason,
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
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        fence: int | None,
        give_up_at: Moment | None,
    ) -> Released | Continued:
        kept = kept_results(key, handled, results, policy)
        reason = check_reason(key, hold_reason)
        ids = check_settle(
            key,
            owner,
            ttl_ms,
            handled=handled,
            failed=failed,
            dropped=dropped,
            deferred=deferred,
            stopped=stopped,
            hold_ms=hold_ms,
            next_owner=next_owner,
            ticket=ticket,
            fence=fence,
        )
        names = [owner, *ids, *([] if next_owner is None else [next_owner]), *([] if ticket is None else [ticket])]
        return Settling(
            steps=self._steps,
            call=self._steps.call("settle", key, *names, ttl_ms=ttl_ms, give_up_at=give_up_at),
            owner=owner,
            ttl_ms=ttl_ms,
            handled=handled,
            failed=failed,
            dropped=dropped,
            deferred=deferred,
            next_owner=next_owner,
            ticket=ticket,
            policy=policy,
            stopped=stopped,
            results=kept,
            hold_ms=hold_ms,
            hold_reason=reason,
            fence=fence,
        ).carry_out()

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
        """Renew the lease (R4) and report how many messages wait."""
        check_lease(key, owner, ttl_ms, fence)
        noted = check_note(key, note)
        call = self._steps.call("beat", key, owner, ttl_ms=ttl_ms, give_up_at=give_up_at)
        step = self._renew(call, owner, ttl_ms, fence, shows=True, note=noted)
        if step.said == "lost":
            raise self._steps.lost(call, owner, step.answer)
        return Beat(
            fence=step.answer.record.state.fence,
            waiting=waiting(step.answer),
            expires_in_ms=expires_in_ms(step.answer),
            deadline=until(step.answer, ttl_ms),
            stop=step.answer.record.state.stop,
        )

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
        """Renew the lease and take all due messages that were never delivered (M6).

        The first request renews and shows what waits, a second one delivers it.
        """
        check_lease(key, owner, ttl_ms, fence)
        call = self._steps.call("take", key, owner, ttl_ms=ttl_ms, give_up_at=give_up_at)

        def rule(state: KeyState, when: When) -> tuple[KeyState, rules.Granted | rules.Lost]:
            return rules.take(state, when.now_ms, owner, ttl_ms, fence, at_most=MAX_PLACES if when.late else None)

        shown = replace(self._renew(call, owner, ttl_ms, fence, shows=True).answer, said=None)
        step = self._steps.step(call, shown, rule, held=True)
        if step.said == "lost":
            raise self._steps.lost(call, owner, step.answer)
        given = [stored for stored in rules.given(step.answer.record.state) if stored.id not in have]
        return Taken(readable(self._steps.messages(call, given)), step.answer.record.state.stop)

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first.

        A body that TTL has deleted is ``None``; a message that leaves meanwhile is left out. Raises
        ``StoredFormatUnknown`` when some cannot be read; its ``readable`` holds the others (M12).
        """
        call = self._steps.call("peek", check_key(key))
        messages: list[Message] = []
        skipped: list[IncumbentError] = []
        for stored in self._table.read(call).record.state.mail:
            try:
                text = self._steps.text(call, stored.id, stored.body)
            except StoredFormatUnknown as error:
                skipped.append(error)
                continue
            if text is not None or self._steps.is_stored(call, stored):
                messages.append(stored_message(stored, text, why_gone=WHY_GONE))
        if skipped:
            raise StoredFormatUnknown.of(skipped, readable=messages)
        return tuple(messages)

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Find keys with due messages and no live owner (M8).

        Reads the index and each key in it that may be an orphan by now, those of long runs included.
        """
        return archive.orphans(self._steps, check_limit(limit))

    # --- the archive

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Return what is known of a message id (M5, M17). A result costs a read more."""
        check_message_id(message_id, check_key(key))
        call = self._steps.call("find", key, message_id)
        return status(self._steps, call, self._table.read(call), message_id, policy)

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key, or of all keys, which reads the whole table (M6).

        Raises ``StoredFormatUnknown`` after the last, with the letters that could not be read.
        """
        return archive.dead_letters(self._steps, key if key is None else check_key(key), check_limit(limit))

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox (M6)."""
        check_message_id(message_id, check_key(key))
        return archive.redrive(self._steps, self._steps.call("redrive", key, message_id), message_id)

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good (M6)."""
        check_message_id(message_id, check_key(key))
        return archive.purge(self._steps, self._steps.call("purge", key, message_id), message_id)

    # --- parts

    def _renew(
        self, call: TableCall, owner: str, ttl_ms: int, fence: int | None, *, shows: bool, note: str | None = None
    ) -> Step[rules.Granted | rules.Lost]:
        def first(now_ms: int) -> tuple[Request, rules.Granted | rules.Lost]:
            return quick.renew(owner, fence, ttl_ms=ttl_ms, now_ms=now_ms, shows=shows, note=note), GRANTED

        def rule(state: KeyState, when: When) -> tuple[KeyState, rules.Granted | rules.Lost]:
            return rules.renew(state, when.now_ms, owner, ttl_ms, fence, note=note)

        return self._steps.step(call, self._table.update(call, first), rule, held=True)
