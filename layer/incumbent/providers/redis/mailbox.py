"""The mailbox: storing messages, and giving them to the owners of their key."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, cast

from incumbent.clock import Moment, deadline
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import StoredFormatUnknown
from incumbent.providers.redis.answers import (
    ScriptAnswer,
    dead_messages,
    holder,
    lives,
    marked,
    messages,
    moment,
    senseless,
    text,
)
from incumbent.providers.redis.names import COMPANIONS
from incumbent.providers.redis.requests import Requests, told_fence
from incumbent.providers.redis.search import ScanPlace
from incumbent.providers.redis.server import Argument
from incumbent.providers.shared import (
    check_claim,
    check_note,
    check_reason,
    check_settle,
    in_doubt,
    kept_results,
    lease_lost,
    mailbox_full,
)
from incumbent.providers.unreadable import claim_readable, go_on_readable, message_of, readable
from incumbent.rules import BEYOND, kept_pauses, shared
from incumbent.validation import check_key, check_lease, check_limit
from incumbent.values import (
    Beat,
    Busy,
    Claim,
    Claimed,
    Continued,
    Debounce,
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
    Taken,
)


class Mailboxes(Requests):
    """A mailbox in Redis."""

    _sought: ScanPlace

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
        body = check_claim(
            key, owner, ttl_ms, message, ticket=ticket, policy=policy, after_ms=after_ms, debounce=debounce
        )
        flags = (b"T" if as_ticket else b"") + (b"" if route else b"B")
        if after_ms or debounce or interrupt or policy.keep == "latest":
            flags += _control_flags(after_ms, debounce, interrupt=interrupt, latest=policy.keep == "latest")
        told: list[Argument] = [
            owner.encode(),
            b"%d" % ttl_ms,
            b"" if message is None else message.id.encode(),
            b"" if body is None else body.encode(),
            b"" if ticket is None else ticket.encode(),
            flags,
            _told_policy(policy),
        ]
        if origin is not None:
            said = (origin.keyspace, origin.target, origin.request_id, origin.log_stream)
            told += [b"" if each is None else each.encode() for each in said]

        answer = self._run("claim", key, *told, call="claim", ttl_ms=ttl_ms)
        if answer.word == b"own" and message is not None:
            return _own(answer, owner, ttl_ms, message.id, body)
        answers = chain([answer], iter(lambda: self._run("claim", key, *told, call="claim", ttl_ms=ttl_ms), None))

        def claim() -> Claim:  # again only after another message, and then its own is stored, and not alone
            return _claimed(next(answers), key, owner, ttl_ms, policy)

        return claim_readable(claim, functools.partial(self._settle, key, ttl_ms=ttl_ms, policy=policy), message)

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
        if isinstance(settled, Released):
            return settled
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
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Released | Continued:
        kept = kept_results(key, handled, results, policy) if results else {}
        reason = check_reason(key, hold_reason)
        check_settle(
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
        successor = next_owner or ticket
        answer = self._run(
            "settle",
            key,
            owner.encode(),
            b"%d" % ttl_ms,
            told_fence(fence),
            b"" if successor is None else successor.encode(),
            _ticket_flags if ticket is not None else _flags,
            _told_policy(policy),
            *_told_handled(handled, kept),
            *(_told_others(failed, dropped, deferred, stopped) if failed or dropped or deferred or stopped else ()),
            *([b"k%d" % hold_ms, reason] if hold_ms else ()),
            call="settle",
            ttl_ms=ttl_ms,
            give_up_at=give_up_at,
            names_count=1 + len(COMPANIONS) if hold_ms else None,
        )
        return _settled(answer, key, owner, ttl_ms, successor, is_ticket=ticket is not None)

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
        text_of_note = check_note(key, note)
        told: list[Argument] = [owner, ttl_ms, told_fence(fence)]
        if text_of_note is not None:
            told.append(text_of_note)
        answer = self._run("renew", key, *told, call="beat", ttl_ms=ttl_ms, give_up_at=give_up_at)
        match answer.word:
            case b"renewed":
                fence, pttl, waiting = map(int, answer.numbers)
                return Beat(
                    fence=fence,
                    waiting=waiting,
                    expires_in_ms=pttl,
                    deadline=deadline(answer.sent, ttl_ms, pttl),
                    stop=text(answer.more[0]) if answer.more else None,
                )
            case b"lost":
                raise lease_lost("beat", key, owner, holder(answer))
            case _:
                raise senseless(key, answer)

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
        """Renew the lease and take all due messages that were never delivered (M6)."""
        check_lease(key, owner, ttl_ms, fence)
        answer = self._run(
            "take", key, owner, ttl_ms, told_fence(fence), *have, call="take", ttl_ms=ttl_ms, give_up_at=give_up_at
        )
        match answer.word:
            case b"taken":
                taken, stop = marked(answer, 4)
                return Taken(readable(messages(taken)), stop)
            case b"lost":
                raise lease_lost("take", key, owner, holder(answer))
            case _:
                raise senseless(key, answer)

    def peek(self, key: str) -> Sequence[Message]:
        """Return all stored messages, oldest first.

        Raises ``StoredFormatUnknown`` when some cannot be read; its ``readable`` holds the others (M12).
        """
        check_key(key)
        odd, *found = self._run("peek", key, call="peek").more
        skipped = self._odd("peek", key, "messages", odd)
        if skipped:
            raise StoredFormatUnknown.of(skipped, readable=messages(found))
        return messages(found)

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Find keys with due messages and no live owner, ``limit`` at most (M8).

        SCAN finds the keys, and each is asked by one request more: oldest first of those that there is time for. A key
        whose records cannot be read is left out, and raises ``StoredFormatUnknown`` after the others; those of a
        primary that does not answer raise ``ListIncomplete``.
        """
        return self._orphans(check_limit(limit))

    def _orphans(self, limit: int) -> Iterator[Orphan]:
        found: list[tuple[int, str, str | None, int]] = []
        latest = 0
        search = self._search("orphans", place=self._sought)
        for key in search.keys("mail"):
            answer = self._read(search, "orphan", key, call="orphans")
            if answer is not None and answer.word == b"orphan":
                since, now, waiting = map(int, answer.numbers)
                latest = max(latest, now)
                found.append((since, key, text(answer.more[0]) or None, waiting))
        oldest_first = (
            Orphan(key=key, target=target, age_ms=latest - since, waiting=waiting)
            for since, key, target, waiting in sorted(found, key=lambda each: each[:2])
        )
        yield from islice(shared(oldest_first), limit)
        search.end()


def _own(answer: ScriptAnswer, owner: str, ttl_ms: int, message_id: str, body: str | None) -> Claimed:
    """Return what the answer to a claim says whose own message is the only one, and given as it was sent."""
    fence, pttl, now = map(int, answer.numbers)
    return Claimed(
        owner=owner,
        fence=fence,
        messages=(message_of(body, message_id, 1, now),),
        waiting=0,
        expires_in_ms=pttl,
        deadline=deadline(answer.sent, ttl_ms, pttl),
    )


def _claimed(answer: ScriptAnswer, key: str, owner: str, ttl_ms: int, policy: Policy) -> Claim:
    """Return what the answer to a claim says."""
    match answer.word:
        case b"claimed":
            fence, pttl, waiting, dead = map(int, answer.numbers)
            return Claimed(
                owner=owner,
                fence=fence,
                messages=messages(answer.more[3 * dead :]),
                waiting=waiting,
                expires_in_ms=pttl,
                deadline=deadline(answer.sent, ttl_ms, pttl),
                dead_lettered=dead_messages(answer.more[: 3 * dead]),
            )
        case b"routed":
            stored, due = answer.numbers
            return Routed(
                owner=holder(answer),
                waiting=int(stored),
                due_in_ms=moment(due),
                superseded=tuple(map(text, answer.more[1:])),
            )
        case b"duplicate":
            state = cast("MessageState", text(answer.numbers[0]))
            return Duplicate(state=state, owner=holder(answer), dead_lettered=dead_messages(answer.more[1:]))
        case b"busy":
            return Busy(owner=holder(answer), expires_in_ms=lives(answer.numbers[0]))
        case b"full":
            raise mailbox_full(key, policy, owner=holder(answer))
        case b"idle":
            return Idle(due_in_ms=moment(answer.numbers[0]), dead_lettered=dead_messages(answer.more))
        case _:
            raise senseless(key, answer)


def _settled(
    answer: ScriptAnswer, key: str, owner: str, ttl_ms: int, successor: str | None, *, is_ticket: bool
) -> Released | Continued:
    """Return what the answer to a settle says."""
    match answer.word:
        case b"released":
            remaining, *due = answer.numbers
            died, stop = marked(answer, 2)
            return Released(
                remaining=int(remaining),
                due_in_ms=moment(due[0]) if due else None,
                stop=stop,
                dead_lettered=dead_messages(died),
            )
        case b"continued" if successor is not None:
            fence, pttl, waiting, dead = map(int, answer.numbers[:4])
            told, stop = marked(answer, 4)
            return Continued(
                owner=successor,
                fence=fence,
                messages=() if is_ticket else messages(told[3 * dead :]),
                waiting=waiting,
                expires_in_ms=pttl,
                deadline=deadline(answer.sent, ttl_ms, pttl),
                stop=stop,
                dead_lettered=dead_messages(told[: 3 * dead]),
            )
        case b"lost":
            raise lease_lost("settle", key, owner, holder(answer))
        case b"unknown":
            raise in_doubt("settle", key, owner, holder(answer))
        case _:
            raise senseless(key, answer)


@functools.lru_cache(maxsize=16)
def _told_policy(policy: Policy) -> bytes:
    """Write a policy as the scripts read it."""
    numbers = (policy.on_error == "block", policy.max_attempts, policy.window_ms, policy.max_pending, BEYOND)
    pauses = ",".join(map(str, kept_pauses(policy)))
    return f"{' '.join(str(int(each)) for each in numbers)} {pauses}".encode()


def _control_flags(after_ms: int, debounce: Debounce | None, *, interrupt: bool, latest: bool) -> bytes:
    """Write what only some claims ask for."""
    flags = (b"I" if interrupt else b"") + (b"L" if latest else b"") + (b"A%d" % after_ms if after_ms else b"")
    return flags if debounce is None else flags + b"Q%dM%d" % (debounce.quiet_ms, debounce.max_ms)


def _told_handled(handled: Sequence[str], results: Mapping[str, str]) -> list[bytes]:
    """Write what was handled, and the results that are kept (M17)."""
    told: list[bytes] = []
    for each in handled:
        if each in results:
            told += (b"r" + each.encode(), results[each].encode())
        else:
            told.append(b"h" + each.encode())
    return told


def _told_others(
    failed: Sequence[Failure], dropped: Sequence[Failure], deferred: Sequence[str], stopped: Sequence[str]
) -> Iterator[Argument]:
    """Write what was not handled."""
    for kind, failures in (("f", failed), ("d", dropped)):
        for each in failures:
            yield from (kind + each.id, each.error, _pause(each))
    yield from ("w" + each for each in deferred)
    yield from ("s" + each for each in stopped)


def _flags(is_repeated: bool) -> bytes:  # noqa: FBT001 - called by `Server.run`
    return b"R" if is_repeated else b""


def _ticket_flags(is_repeated: bool) -> bytes:  # noqa: FBT001 - called by `Server.run`
    return b"TR" if is_repeated else b"T"


def _pause(failure: Failure) -> bytes:
    if failure.final:
        return b"final"
    return b"" if failure.after_ms is None else b"%d" % failure.after_ms
