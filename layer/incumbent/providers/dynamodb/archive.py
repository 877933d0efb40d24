"""What became of messages: dead letters, and keys whose messages nobody owns."""

import heapq
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from incumbent import rules
from incumbent.errors import IncumbentError, MailboxFull, StoredFormatUnknown
from incumbent.providers.dynamodb import item, updates
from incumbent.providers.dynamodb.expression import Update
from incumbent.providers.dynamodb.item import Item, Record, Reference, typed
from incumbent.providers.dynamodb.steps import Steps, When
from incumbent.providers.dynamodb.table import Answer, Call, item_full
from incumbent.providers.full import redrive_full
from incumbent.rules import KeyState
from incumbent.values import DeadLetter, Orphan

_AT_ONCE = 50


def dead_letters(steps: Steps, key: str | None, limit: int) -> Iterator[DeadLetter]:
    """The dead letters of one key, by a query; those of all keys by a scan, which reads the whole table."""
    sk, value = {"#sk": "sk"}, {":dead": typed(item.DEAD)}
    if key is not None:
        call = steps.call("dead_letters", key)
        found = steps.table.query(
            call,
            KeyConditionExpression="#pk = :pk AND begins_with(#sk, :dead)",
            ExpressionAttributeNames=sk | {"#pk": "pk"},
            ExpressionAttributeValues=value | {":pk": typed(call.pk)},
            ConsistentRead=True,
        )
    else:
        found = steps.table.scan(
            steps.call("dead_letters", "*"),
            FilterExpression="begins_with(#pk, :prefix) AND begins_with(#sk, :dead)",
            ExpressionAttributeNames=sk | {"#pk": "pk"},
            ExpressionAttributeValues=value | {":prefix": typed(item.partition(steps.prefix, ""))},
            ConsistentRead=True,
        )
    skipped: list[IncumbentError] = []
    for pk, items in _by_partition(found):
        if limit <= 0:
            break
        letters = _letters(item.key_of(steps.prefix, pk), items, skipped)
        yield from letters[:limit]
        limit -= len(letters)
    if skipped:
        raise StoredFormatUnknown.of(skipped)


def _letters(key: str, items: Iterable[Item], skipped: list[IncumbentError]) -> list[DeadLetter]:
    """The dead letters of a key, the longest dead first; what cannot be read is skipped."""
    letters: list[tuple[tuple[int, int, int], DeadLetter]] = []
    for each in items:
        if item.is_purged(each):
            continue
        try:
            rank, letter = item.dead_letter(each, key=key)
        except StoredFormatUnknown as error:
            skipped.append(error)
            continue
        letters.append((rank, DeadLetter(key=key, message=item.dead_message(letter), died_at_ms=letter.died_ms)))
    return [letter for _, letter in sorted(letters, key=lambda letter: letter[0])]


def _by_partition(found: Iterator[Item]) -> Iterator[tuple[str, list[Item]]]:
    """Items in runs of one partition key, in which a query and a scan return them."""
    pk, items = "", list[Item]()
    for each in found:
        if each["pk"]["S"] != pk and items:
            yield pk, items
            items = []
        pk = each["pk"]["S"]
        items.append(each)
    if items:
        yield pk, items


def redrive(steps: Steps, call: Call, message_id: str) -> bool:  # noqa: C901 - each way out cleans up
    """Put a dead letter back: first into the mailbox, then out of the dead letters, so that it is never nowhere."""
    found = steps.table.get(call, item.dead_name(message_id))
    if found is None or item.is_purged(found):
        return False
    letter = item.dead_letter(found, key=call.key)[1]
    answer: Answer[bool | rules.Full] = steps.table.read(call)
    room = item.INLINE_BYTES_A_KEY - answer.record.number("inline_bytes")
    text = letter.body
    if len(text.encode()) > min(item.INLINE_BYTES, room):
        reference = Reference(item.digest(f"redrive.{secrets.token_hex(12)}"))
        steps.table.put(call, item.body_item(call.pk, message_id, reference, text, answer.now_ms))
        letter = replace(letter, body=reference)

    def rule(state: KeyState, when: When) -> tuple[KeyState, bool | rules.Full]:
        new, back = rules.redrive(replace(state, dead=(letter,)), when.now_ms, message_id)
        if back == "full":
            return state, back
        if back:
            return replace(new, dead=()), True
        # What stands there by nobody's claim was put back: by an earlier try, or by a call that ended before its last
        # step, which is then taken here.
        return state, any((message.id, message.by) == (message_id, "") for message in state.mail)

    def write(record: Record, new: KeyState, now_ms: int) -> Update:
        if not item.takes(record.item, new.mail[-1]):
            raise item_full(call.key, record, owner=None)
        change = updates.Change(record=record, new=new, shard=steps.shard(call), skew_ms=steps.skew_ms, beside=True)
        return change.update(now_ms)

    own = rules.Stored(id=message_id, body=letter.body, by="", promised=True, stored_ms=0)
    try:
        step = steps.step(call, answer, rule, write=write)
    except MailboxFull:
        steps.sweep_bodies(call, [own], answer.record)
        raise
    if step.said is True:
        steps.table.delete(call, item.dead_name(message_id), died_ms=letter.died_ms)
    if not (step.said is True and step.answer.applied) and not step.answer.repeated:
        steps.sweep_bodies(call, [own], step.answer.record)
    if step.said == "full":
        raise redrive_full(call.key, message_id)
    return step.said


def purge(steps: Steps, call: Call, message_id: str) -> bool:
    """Remove a dead letter: marked first, by this call's own mark and without its body, which is what counts (R8)."""
    sk = item.dead_name(message_id)
    mark = secrets.token_hex(8)
    found = steps.table.mark_purged(call, sk, mark)
    if found is None:
        return False
    if found.get("purged") != typed(mark):
        item.check_version(found, key=call.key)
        return False
    steps.table.sweep(call, sk, died_ms=item.number(found, "died"))
    return True


def orphans(steps: Steps, limit: int) -> Iterator[Orphan]:
    """M8, by the index and then by the records themselves, since the index is late and knows no renewals.

    Targets take turns, as the index names them, each with its oldest key first. A record that cannot be read does not
    hide the others: ``StoredFormatUnknown`` comes after them.
    """
    listing = _Listing(steps)
    while limit > 0 and listing.targets:
        for target in listing.targets:
            orphan = listing.oldest(target)
            if orphan is not None and limit > 0:
                limit -= 1
                yield orphan
    if listing.skipped:
        raise StoredFormatUnknown.of(listing.skipped)


class _Listing:
    """The keys that may be orphans, by target; their records are read as far as they are asked for."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._now_ms = steps.clock.now().wall_ms
        self._unread: dict[str, deque[tuple[int, str]]] = {}
        self._found: dict[str, list[tuple[int, str, Record]]] = {}
        self.skipped: list[IncumbentError] = []
        for since_ms, pk, target in _candidates(steps, self._now_ms):
            self._unread.setdefault(target, deque()).append((since_ms, pk))
            self._found.setdefault(target, [])

    @property
    def targets(self) -> list[str]:
        """The targets that may have further orphans."""
        return [target for target, found in self._found.items() if found or self._unread[target]]

    def oldest(self, target: str) -> Orphan | None:
        """Take the target's oldest orphan out of the listing.

        The index says of each key from when on its messages can be orphans at the earliest, so reading goes on until
        nothing that is still unread can be older than what was found.
        """
        found, unread = self._found[target], self._unread[target]
        while unread and (not found or unread[0][0] <= found[0][0]):
            self._read(target)
        if not found:
            return None
        since_ms, key, record = heapq.heappop(found)
        return Orphan(
            key=key,
            target=record.state.origin.target if record.state.origin else None,
            age_ms=max(0, self._now_ms - since_ms),
            waiting=len(rules.due(replace(record.state, owner=None), self._now_ms)),
        )

    def _read(self, first: str) -> None:
        """Read the records of the next few keys: of that target, and of the others in turns."""
        target_of: dict[str, str] = {}
        targets = [first, *(target for target in self._unread if target != first)]
        while len(target_of) < _AT_ONCE and (targets := [target for target in targets if self._unread[target]]):
            for target in targets[: _AT_ONCE - len(target_of)]:
                target_of[self._unread[target].popleft()[1]] = target
        calls = {pk: self._steps.call("orphans", item.key_of(self._steps.prefix, pk)) for pk in target_of}
        for stored in self._steps.table.read_many(calls):
            pk = stored["pk"]["S"]
            key = calls[pk].key
            try:
                record = item.decode(stored, key=key)
            except StoredFormatUnknown as cause:
                self.skipped.append(cause)
                continue
            since_ms = rules.orphaned_since(record.state, self._now_ms, self._steps.skew_ms)
            if since_ms is not None:
                heapq.heappush(self._found[target_of[pk]], (since_ms, key, record))


def _candidates(steps: Steps, now_ms: int) -> Iterator[tuple[int, str, str]]:
    """Keys in which messages are stored: since when they can be orphans at the earliest, partition key, target."""
    call = steps.call("orphans", "*")

    def of(number: int) -> Iterator[tuple[int, str, str]]:
        # All that the index projects: to name what it does not project is refused.
        page = steps.table.query(
            call,
            IndexName=item.INDEX,
            KeyConditionExpression="#shard = :shard AND #since <= :until",
            ExpressionAttributeNames={"#shard": "orphan_shard", "#since": "orphan_since"},
            ExpressionAttributeValues={
                ":shard": typed(item.shard(steps.prefix, number)),
                ":until": typed(now_ms + steps.skew_ms),
            },
        )
        for each in page:
            yield int(each["orphan_since"]["N"]), each["pk"]["S"], each.get("target", {}).get("S", "")

    return heapq.merge(*(of(number) for number in range(item.SHARDS)))
