"""Dead letters and orphans in the table."""

import heapq
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from incumbent import rules
from incumbent.errors import IncumbentError, LeaseUnavailable, StoredFormatUnknown
from incumbent.frozen import replace
from incumbent.providers.dynamodb import item
from incumbent.providers.dynamodb.attributes import VERSION, Item, elements, typed
from incumbent.providers.dynamodb.bodies import body_items
from incumbent.providers.dynamodb.change import Change
from incumbent.providers.dynamodb.expression import Request, Update
from incumbent.providers.dynamodb.item import Record
from incumbent.providers.dynamodb.letters import Letter, dead_letter
from incumbent.providers.dynamodb.names import DEAD, SHARDS, dead_names, digest, key_of, partition, shard
from incumbent.providers.dynamodb.steps import MAX_ROUNDS, Steps, contended
from incumbent.providers.dynamodb.table import Answer, TableCall, item_full
from incumbent.providers.shared import dead_message, redrive_full
from incumbent.retry import search_is_over
from incumbent.values import DeadLetter, Orphan

_AT_ONCE = 50


def dead_letters(steps: Steps, key: str | None, limit: int) -> Iterator[DeadLetter]:
    """List the dead letters of one key by a query, or of all keys by a scan, which reads the whole table."""
    sk, value = {"#sk": "sk"}, {":dead": typed(DEAD)}
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
            ExpressionAttributeValues=value | {":prefix": typed(partition(steps.prefix, ""))},
            ConsistentRead=True,
        )
    skipped: list[IncumbentError] = []
    for pk, items in _by_partition(found):
        if limit <= 0:
            break
        letters = _letters(key_of(steps.prefix, pk), items, skipped)
        yield from _shown(steps, key_of(steps.prefix, pk), letters[:limit], skipped)
        limit -= len(letters)
    if skipped:
        raise StoredFormatUnknown.of(skipped)


def _letters(key: str, items: Iterable[Item], skipped: list[IncumbentError]) -> list[Letter]:
    """Return the dead letters of a key, the longest dead first; those that cannot be read are skipped.

    An id has several letters if a caller died while writing one, or if the id left the window and died again: the
    latest counts.
    """
    letters: list[Letter] = []
    for each in items:
        try:
            letters.append(dead_letter(each, key=key))
        except StoredFormatUnknown as error:
            skipped.append(error)
    letters.sort(key=lambda letter: letter.order)
    latest = {letter.dead.id: letter for letter in letters}
    return [letter for letter in letters if latest[letter.dead.id] is letter]


def _shown(steps: Steps, key: str, letters: Iterable[Letter], skipped: list[IncumbentError]) -> Iterator[DeadLetter]:
    """Dead letters with their bodies."""
    call = steps.call("dead_letters", key)
    for letter in letters:
        try:
            text = steps.text(call, letter.dead.id, letter.dead.body)
        except StoredFormatUnknown as error:
            skipped.append(error)
            continue
        yield DeadLetter(key=key, message=dead_message(letter.dead, text), died_at_ms=letter.dead.died_ms)


def _by_partition(found: Iterator[Item]) -> Iterator[tuple[str, list[Item]]]:
    """Group items by partition key; a query and a scan return those of one key together."""
    pk, items = "", list[Item]()
    for each in found:
        if each["pk"]["S"] != pk and items:
            yield pk, items
            items = []
        pk = each["pk"]["S"]
        items.append(each)
    if items:
        yield pk, items


def redrive(steps: Steps, call: TableCall, message_id: str) -> bool:
    """Put a dead letter back: add it to the mailbox, then delete the letter, so that it is always in one of them."""
    said, record = _spend_once(steps, call, message_id, _put_back)
    if said is None:  # by a call that ended before its last step, which this call has done
        return any((message.id, message.claimed_by) == (message_id, "") for message in record.state.mail)
    return said


def purge(steps: Steps, call: TableCall, message_id: str) -> bool:
    """Remove a dead letter, unless it was put back meanwhile."""
    return bool(_spend_once(steps, call, message_id, _let_go)[0])


def _spend_once(
    steps: Steps,
    call: TableCall,
    message_id: str,
    spend: Callable[[Steps, TableCall, Answer[None], Sequence[Letter], str], Answer[None]],
) -> tuple[bool | None, Record]:
    """Spend an id's dead letter, and then delete it. Return ``None`` if another call has spent it already.

    The update that spends the letter notes that in the record, so that no other call, and no repetition, does it again,
    whatever has become of the message since. The call reads the record before the letter, and writes the record only if
    it is unchanged, so only this call spends a letter that existed then and was not spent.
    """
    own = secrets.token_hex(8)
    answer: Answer[None] = steps.table.read(call)
    for _ in range(MAX_ROUNDS):
        record = answer.record
        letters = _letters_of(steps, call, message_id)
        if any(each.endswith(f".{own}") for each in _spent(record)):  # a try whose reply was lost
            _discard(steps, call, record, letters)
            return True, record
        if not letters and answer.repeated:
            raise LeaseUnavailable(
                f"{call.name} of key {call.key!r}: a reply was lost, and the record no longer shows whether that try "
                f"took effect; look whether message {message_id!r} waits",
                key=call.key,
            )
        if not letters or (spend is _put_back and any(message.id == message_id for message in record.state.mail)):
            return False, record
        if letters[-1].name in _spent(record):
            _discard(steps, call, record, letters)
            return None, record
        answer = spend(steps, call, answer, letters, own)
        if answer.applied:
            _discard(steps, call, answer.record, letters)
            return True, answer.record
    raise contended(call)


def _put_back(steps: Steps, call: TableCall, shown: Answer[None], letters: Sequence[Letter], own: str) -> Answer[None]:
    """Put the latest letter back into the record as it was read, and note all letters of the id as spent.

    Raises ``MailboxFull`` (M7).
    """
    record, letter = shown.record, letters[-1].dead
    text = steps.text(call, letter.id, letter.body) or ""
    large = len(text.encode()) > min(item.INLINE_BYTES, item.INLINE_BYTES_A_KEY - item.inline_bytes(record.state.mail))
    reference, bodies = body_items(call.pk, letter.id, digest(f"redrive.{own}"), text, shown.now_ms)
    letter = replace(letter, body=reference if large else text)
    before = replace(record.state, dead=(letter,))
    new, back = rules.redrive(before, shown.now_ms, letter.id)
    if back == "full":
        raise redrive_full(call.key, letter.id)
    if not item.takes(record.item, new.mail[-1]):
        raise item_full(call.key, record, owner=None)
    if large:
        steps.put_all(call, bodies)

    def plan(now_ms: int) -> tuple[Request, None]:
        new = replace(rules.redrive(before, now_ms, letter.id)[0], dead=())
        change = Change(record=record, new=new, shard=steps.shard(call), skew_ms=steps.skew_ms, beside=True)
        update = change.update(now_ms)
        _spend(update, letters, own)
        return update.request(), None

    answer = steps.table.update(call, plan, repeated=shown.repeated)
    if large and not answer.repeated:
        steps.sweep_bodies(call, [(letter.id, reference)], answer.record)
    return answer


def _let_go(steps: Steps, call: TableCall, shown: Answer[None], letters: Sequence[Letter], own: str) -> Answer[None]:
    """Note an id's letters as spent. The count of edits tells callers that have read the record before."""
    record = shown.record
    if not record.exists:  # TTL has deleted the record, so no letter can be put back into it
        return replace(shown, applied=True)

    def plan(_: int) -> tuple[Request, None]:
        update = Update()
        update.when_is(VERSION, "v")
        if "edits" in record.item:
            update.when_is(record.number("edits"), "edits")
        else:
            update.when_absent("edits")
        update.add(1, "edits")
        _spend(update, letters, own)
        return update.request(), None

    return steps.table.update(call, plan, repeated=shown.repeated)


def _letters_of(steps: Steps, call: TableCall, message_id: str) -> list[Letter]:
    """Return all dead letters of an id, the latest last. Raises ``StoredFormatUnknown`` (M12)."""
    found = steps.table.query(
        call,
        KeyConditionExpression="#pk = :pk AND begins_with(#sk, :names)",
        ExpressionAttributeNames={"#pk": "pk", "#sk": "sk"},
        ExpressionAttributeValues={":pk": typed(call.pk), ":names": typed(dead_names(message_id))},
        ConsistentRead=True,
    )
    letters = [dead_letter(each, key=call.key) for each in found]
    return sorted((each for each in letters if each.dead.id == message_id), key=lambda letter: letter.order)


def _spend(update: Update, letters: Sequence[Letter], own: str) -> None:
    """Note letters as spent, the latest by this call."""
    update.add(frozenset([*(letter.name for letter in letters), f"{letters[-1].name}.{own}"]), "spent")


def _spent(record: Record) -> frozenset[str]:
    return elements(record.item, "spent")


def _discard(steps: Steps, call: TableCall, record: Record, letters: Sequence[Letter]) -> None:
    """Delete spent letters, and only then the note that they are spent."""
    for letter in letters:
        steps.table.delete(call, letter.sk)
        steps.sweep_bodies(call, [(letter.dead.id, letter.dead.body)], record)
    names = {letter.name for letter in letters}
    spent = frozenset(each for each in _spent(record) if each.partition(".")[0] in names)

    def plan(_: int) -> tuple[Request, None]:
        update = Update()
        update.when_is(VERSION, "v")
        update.delete(spent, "spent")
        return update.request(), None

    if spent:
        with suppress(LeaseUnavailable):  # a remaining note is harmless
            steps.table.update(call, plan)


def orphans(steps: Steps, limit: int) -> Iterator[Orphan]:
    """Find orphans by the index and then by the records, since the index is late and does not see renewals (M8).

    Targets take turns, as the index names them, each with its oldest key first. A record that cannot be read does not
    hide the others: ``StoredFormatUnknown`` is raised after them.
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
    """The keys that may be orphans, by target. Their records are read only as needed."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._now_ms = steps.clock.now().wall_ms
        self._unread: dict[str, deque[tuple[int, str]]] = {}
        self._found: dict[str, list[tuple[int, str, Record]]] = {}
        self.skipped: list[IncumbentError] = []
        for since_ms, pk, target in _candidates(steps, self._now_ms):
            self._unread.setdefault(target, deque()).append((since_ms, pk))
            self._found.setdefault(target, [])
            if search_is_over(steps.clock):
                break

    @property
    def targets(self) -> list[str]:
        """Return the targets that may have further orphans."""
        return [target for target, found in self._found.items() if found or self._unread[target]]

    def oldest(self, target: str) -> Orphan | None:
        """Take the target's oldest orphan out of the listing.

        The index has the earliest time at which the messages of each key can be orphans, so reading goes on until no
        unread key can be older than the one found.
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
            waiting=len(rules.due(record.state, self._now_ms, self._steps.skew_ms)),
        )

    def _read(self, first: str) -> None:
        """Read the records of the next few keys: of that target, and of the others in turn."""
        target_of: dict[str, str] = {}
        targets = [first, *(target for target in self._unread if target != first)]
        while len(target_of) < _AT_ONCE and (targets := [target for target in targets if self._unread[target]]):
            for target in targets[: _AT_ONCE - len(target_of)]:
                target_of[self._unread[target].popleft()[1]] = target
        calls = {pk: self._steps.call("orphans", key_of(self._steps.prefix, pk)) for pk in target_of}
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
    """Yield keys with stored messages: the earliest time at which they can be orphans, partition key, target."""
    call = steps.call("orphans", "*")

    def of(number: int) -> Iterator[tuple[int, str, str]]:
        # All attributes that the index projects; DynamoDB refuses a request that names another.
        page = steps.table.query(
            call,
            IndexName=item.INDEX,
            KeyConditionExpression="#shard = :shard AND #since <= :until",
            ExpressionAttributeNames={"#shard": "orphan_shard", "#since": "orphan_since"},
            ExpressionAttributeValues={
                ":shard": typed(shard(steps.prefix, number)),
                ":until": typed(now_ms + steps.skew_ms),
            },
        )
        for each in page:
            yield int(each["orphan_since"]["N"]), each["pk"]["S"], each.get("target", {}).get("S", "")

    return heapq.merge(*(of(number) for number in range(SHARDS)))
