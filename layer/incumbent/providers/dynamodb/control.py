"""Control: looking at a key, and holding, stopping and cancelling what runs there (M15, M16, M19)."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, Literal, TypeAlias

from incumbent import rules
from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import IncumbentError, StoredFormatUnknown
from incumbent.frozen import replace
from incumbent.providers.dynamodb import item, quick
from incumbent.providers.dynamodb.attributes import text, typed
from incumbent.providers.dynamodb.bodies import WHY_GONE
from incumbent.providers.dynamodb.change import Change
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.names import SHARDS, key_of, shard
from incumbent.providers.dynamodb.steps import Steps, When
from incumbent.providers.dynamodb.table import Answer, TableCall
from incumbent.providers.shared import (
    check_hold,
    check_reason,
    held_until,
    hold_in_doubt,
    is_active,
    key_status,
    resume_in_doubt,
    status_left,
    status_of,
    stop_in_doubt,
    stored_message,
)
from incumbent.rules import KeyState
from incumbent.validation import check_fence, check_key, check_limit, check_message_id, check_owner
from incumbent.values import KeyStatus, MessageState, Policy, Status

Marked: TypeAlias = "int | Literal['free', 'unknown']"

_AT_ONCE = 50
_NO_EVENT = "null"


class Controls:
    """A control in DynamoDB."""

    _steps: Steps

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """Mark the live tenure, so that its run stops (M16)."""
        check_fence(fence, check_key(key))
        return _stop(self._steps, self._steps.call("stop", key), fence, check_reason(key, reason))

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """Return the mark of the owner's tenure, without a renewal (M16)."""
        check_owner(owner, check_key(key))
        check_fence(fence, key)
        return _watch(self._steps, self._steps.call("watch", key, owner), owner, fence)

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """Grant the key to no caller for a while (M15)."""
        why = check_reason(check_key(key), reason)
        check_hold(key, for_ms)
        _hold(self._steps, self._steps.call("hold", key), for_ms, why)

    def resume(self, key: str) -> bool:
        """End a hold (M15)."""
        return _resume(self._steps, self._steps.call("resume", check_key(key)))

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Remove a message that waits (M19)."""
        check_message_id(message_id, check_key(key))
        return _cancel(self._steps, self._steps.call("cancel", key, message_id), message_id, policy)

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """Return what is known of a key."""
        return _show(self._steps, self._steps.call("show", check_key(key)), events=events)

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """List the keys that have an owner, messages or a hold, ``limit`` at most, without events.

        Reads the orphans' index, which may be a moment late, and the keys in it.
        """
        return _keys(self._steps, check_limit(limit))


def _stop(steps: Steps, call: TableCall, fence: int | None, reason: str) -> int | None:
    """Mark the live tenure (M16).

    Without a fence, the record is read first, so that each try means one tenure. If one went unanswered, and another
    tenure is live since, that one is not marked, and the outcome is unknown (R9).
    """
    meant: list[int] = []

    def rule(state: KeyState, when: When) -> tuple[KeyState, Marked]:
        marked, live = rules.stop(state, when.now_ms, fence, reason, steps.skew_ms)
        if live is None:
            return state, "unknown" if when.repeated else "free"
        if marked != state and when.repeated and meant[-1:] not in ([], [live]):
            return state, "unknown"
        meant.append(live)
        return marked, live

    shown: Answer[Marked]
    if fence is None:
        shown = steps.table.read(call)
    else:
        shown = steps.table.update(
            call, lambda now_ms: (quick.stop(fence, reason, now_ms=now_ms, skew_ms=steps.skew_ms), fence)
        )
    step = steps.step(call, shown, rule, beside=True)
    if step.said == "unknown":
        raise stop_in_doubt(call.key)
    return None if step.said == "free" else step.said


def _watch(steps: Steps, call: TableCall, owner: str, fence: int | None) -> str | None:
    """Return the mark of the owner's tenure (M16). Raises ``LeaseLost``."""
    answer = steps.table.read(call)
    if not rules.owned_by(answer.record.state, owner, answer.now_ms, fence):
        raise steps.lost(call, owner, answer)
    return answer.record.state.stop


def _hold(steps: Steps, call: TableCall, for_ms: int | None, reason: str) -> None:
    """Grant the key to no caller for a while (M15). A repetition does not hold what others have resumed since (R8)."""
    shown: Answer[None] = steps.table.read(call)
    before, until_ms = text(shown.record.item, "resumed"), held_until(for_ms, shown.now_ms)
    for turn in count():
        shown = steps.shown_again(call, shown, turn)
        record = shown.record
        if rules.hold(record.state, shown.now_ms, until_ms, reason) == record.state:
            return
        if shown.repeated and text(record.item, "resumed") != before:
            raise hold_in_doubt(call.key)

        def plan(now_ms: int, record: item.Record = record) -> tuple[Request, None]:
            new = rules.hold(record.state, now_ms, until_ms, reason)
            change = Change(record=record, new=new, shard=steps.shard(call), skew_ms=steps.skew_ms, beside=True)
            return change.update(now_ms).request(), None

        shown = steps.table.update(call, plan, repeated=shown.repeated)
        if shown.applied:
            return
    raise AssertionError  # shown_again ends it


def _resume(steps: Steps, call: TableCall) -> bool:
    """End a hold, and note which call did, so that a repetition ends no other (M15, R8)."""
    own = secrets.token_hex(8)
    shown: Answer[bool] = steps.table.read(call)
    before = text(shown.record.item, "resumed")
    for turn in count():
        shown = steps.shown_again(call, shown, turn)
        record, by = shown.record, text(shown.record.item, "resumed")
        if by == own:
            return True
        if rules.resume(record.state, shown.now_ms)[0] == record.state:
            if shown.repeated and by != before:
                raise resume_in_doubt(call.key)
            return False

        def plan(now_ms: int, record: item.Record = record) -> tuple[Request, bool]:
            new, held = rules.resume(record.state, now_ms)
            change = Change(record=record, new=new, shard=steps.shard(call), skew_ms=steps.skew_ms, beside=True)
            return replace(change, resumed=own if held else None).update(now_ms).request(), held

        shown = steps.table.update(call, plan, repeated=shown.repeated)
        if shown.applied:
            return bool(shown.said)
    raise AssertionError  # shown_again ends it


def _cancel(steps: Steps, call: TableCall, message_id: str, policy: Policy) -> Status:
    """Remove a message that waits (M19)."""

    def rule(state: KeyState, when: When) -> tuple[KeyState, MessageState | None]:
        return rules.cancel(state, when.now_ms, message_id, policy.window_ms, steps.skew_ms)

    shown: Answer[MessageState | None] = steps.table.read(call)
    step = steps.step(call, shown, rule, beside=True, window_ms=policy.window_ms)
    return status(steps, call, step.answer, message_id, policy)


def status(steps: Steps, call: TableCall, answer: Answer[Any], message_id: str, policy: Policy) -> Status:
    """Return what is known of a message id, its result and the traces in pages included (M5, M17)."""
    answer = steps.remember(call, answer, message_id)
    state = answer.record.state
    waits = any(message.id == message_id for message in state.mail)
    trace = None if waits else rules.trace_of(state, message_id, answer.now_ms, policy.window_ms)
    if trace is not None:
        return status_left(trace.outcome, trace.at_ms, steps.result(call, trace))
    return status_of(state, message_id, answer.now_ms, policy.window_ms, steps.skew_ms)


def _show(steps: Steps, call: TableCall, *, events: bool) -> KeyStatus:
    """Return what is known of a key; with ``events``, large bodies are read. One that leaves meanwhile is left out."""
    answer = steps.table.read(call)
    state = answer.record.state
    if not events:
        return _status(steps, call.key, state, answer.now_ms)
    texts = [steps.text(call, each.id, each.body) for each in state.mail]
    pairs = [
        (each, found)
        for each, found in zip(state.mail, texts, strict=True)
        if found is not None or steps.is_stored(call, each)
    ]
    state = replace(state, mail=tuple(each for each, _ in pairs))
    messages = [stored_message(each, found, why_gone=WHY_GONE) for each, found in pairs]
    return key_status(call.key, state, messages, answer.now_ms, events=True, skew_ms=steps.skew_ms)


def _status(steps: Steps, key: str, state: KeyState, now_ms: int) -> KeyStatus:
    messages = [stored_message(each, _NO_EVENT) for each in state.mail]
    return key_status(key, state, messages, now_ms, events=False, skew_ms=steps.skew_ms)


def _keys(steps: Steps, limit: int) -> Iterator[KeyStatus]:
    """List the keys in the orphans' index, which has all that store messages or are held. Their records decide."""
    call = steps.call("keys", "*")
    now_ms = steps.clock.now().wall_ms
    skipped: list[IncumbentError] = []
    indexed = _indexed(steps, call)
    while limit > 0 and (pks := list(islice(indexed, _AT_ONCE))):
        calls = {pk: steps.call("keys", key_of(steps.prefix, pk)) for pk in pks}
        for stored in steps.table.read_many(calls):
            key = calls[stored["pk"]["S"]].key
            try:
                found = _status(steps, key, item.decode(stored, key=key).state, now_ms)
            except StoredFormatUnknown as cause:
                skipped.append(cause)
                continue
            if limit > 0 and is_active(found):
                limit -= 1
                yield found
    if skipped:
        raise StoredFormatUnknown.of(skipped)


def _indexed(steps: Steps, call: TableCall) -> Iterator[str]:
    for number in range(SHARDS):
        page = steps.table.query(
            call,
            IndexName=item.INDEX,
            KeyConditionExpression="#shard = :shard",
            ExpressionAttributeNames={"#shard": "orphan_shard"},
            ExpressionAttributeValues={":shard": typed(shard(steps.prefix, number))},
        )
        yield from (each["pk"]["S"] for each in page)
