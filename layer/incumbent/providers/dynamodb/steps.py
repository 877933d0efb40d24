"""Carries out one step of the rules: decides on the record that the table has shown, and writes exactly that."""

import random
import secrets
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Generic, TypeAlias, TypeVar

from incumbent import rules
from incumbent.clock import Clock, Moment, deadline
from incumbent.errors import LeaseLost, LeaseUnavailable, StoredFormatUnknown
from incumbent.frozen import dataclass, replace
from incumbent.providers.dynamodb import item, traces
from incumbent.providers.dynamodb.attributes import Item, check_version, typed
from incumbent.providers.dynamodb.bodies import WHY_GONE, Reference, body_items, body_names, body_of
from incumbent.providers.dynamodb.change import Change
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.item import Record
from incumbent.providers.dynamodb.letters import dead_item
from incumbent.providers.dynamodb.names import (
    ENDED,
    dead_name,
    digest,
    owner_digest,
    partition,
    result_name,
    shard_of,
)
from incumbent.providers.dynamodb.table import Answer, Table, TableCall
from incumbent.providers.shared import dead_message, in_doubt, lease_lost, stored_message
from incumbent.rules import Ended, KeyState, Outcome, Stored
from incumbent.values import Message

A = TypeVar("A")

_PAGES = 66  # read at once: enough for the last 256 ids that were handled one by one
MAX_ROUNDS = 32  # how often one call decides again because another write came first
_AT_ONCE_ROUNDS = 4  # then it pauses first: so many callers write at once that only one of them gets on in each round
_PAUSE_MS = 5
_MAX_PAUSE_MS = 100
_EXACT_ROUNDS = 4  # of these, in how many a ``take`` insists on all that is stored


@dataclass(frozen=True, slots=True)
class When:
    """The time of a rule's decision, and whether an earlier try may have taken effect (R9).

    ``late``: other writes have come first so often that a ``take`` leaves to the next one what comes meanwhile.
    """

    now_ms: int
    repeated: bool
    late: bool = False


# What a quick update says: the rest of the answer is read from the record.
GRANTED = rules.Granted(owner="", fence=0, given=(), waiting=0, expires_ms=0)
ACCEPTED = rules.Accepted(owner=None, stored=0)
FREED = rules.Freed(remaining=0)

# The rules' decision on a state.
Rule: TypeAlias = Callable[[KeyState, When], tuple[KeyState, A]]
# How the step from a record to a state is written, at a time; the last tells which traces a page holds now.
Write: TypeAlias = Callable[[Record, KeyState, int, traces.Moved], Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[A]):
    """The end of a step: the rules' answer, and the table's answer behind it."""

    said: A
    answer: Answer[A]


class Steps:
    """The steps of one provider's keys."""

    def __init__(self, table: Table, *, prefix: str, skew_ms: int, clock: Clock) -> None:
        self.table = table
        self.prefix = prefix
        self.skew_ms = skew_ms
        self.clock = clock
        self.inline_traces = traces.MAX_INLINE
        self.max_marks = traces.MAX_MARKS

    def call(
        self, name: str, key: str, *names: str, ttl_ms: int | None = None, give_up_at: Moment | None = None
    ) -> TableCall:
        """Make a call of this provider. ``ttl_ms`` and ``give_up_at`` bound its duration."""
        pk = partition(self.prefix, key)
        return TableCall(name=name, key=key, pk=pk, ttl_ms=ttl_ms, give_up_at=give_up_at, names=names)

    def shard(self, call: TableCall) -> str:
        """Return the partition of the key in the orphans' index."""
        return shard_of(self.prefix, call.key)

    def step(
        self,
        call: TableCall,
        shown: Answer[A],
        rule: Rule[A],
        *,
        held: bool = False,
        closes: bool = False,
        beside: bool = False,
        window_ms: int | None = None,
        fills: bool = False,
    ) -> Step[A]:
        """Decide on the shown record and write the decision, again after each refusal.

        A step that changes nothing writes nothing. An answer that was applied already, with the rules' answer, ends the
        step. ``held``, ``closes`` and ``beside`` are those of ``Change``. With ``window_ms``, traces may move into a
        page; with ``fills``, even before there are too many. Raises ``LeaseUnavailable`` when other writes came first
        too often.
        """
        for turn in count():
            if shown.said is not None:
                return Step(said=shown.said, answer=shown)
            shown, late = self.shown_again(call, shown, turn), turn >= _EXACT_ROUNDS
            new, said = rule(shown.record.state, When(shown.now_ms, shown.repeated, late))
            if new == shown.record.state:
                return Step(said=said, answer=shown)
            write = partial(self._write, call, held=held, closes=closes, beside=beside, late=late)
            shown = self.attempt(call, shown, rule, write, late=late, window_ms=window_ms, fills=fills)
        raise AssertionError  # shown_again ends it

    def _write(
        self,
        call: TableCall,
        record: Record,
        new: KeyState,
        now_ms: int,
        moved: traces.Moved,
        *,
        held: bool,
        closes: bool,
        beside: bool,
        late: bool,
    ) -> Request:
        """Write exactly the change from a record to a new state."""
        change = Change(
            record=record,
            new=new,
            shard=self.shard(call),
            skew_ms=self.skew_ms,
            held=held,
            closes=closes,
            beside=beside,
            late=late,
            moved=moved,
        )
        return change.update(now_ms).request("NONE" if change.leaves_nothing else "ALL_NEW")

    def shown_again(self, call: TableCall, shown: Answer[A], turn: int) -> Answer[A]:
        """Return what a round decides on: what the last refusal has shown or, after several, the record after a pause.

        Without it, of a burst of callers whose exact writes exclude one another, all but a few would give up. Raises
        ``LeaseUnavailable`` when other writes came first too often.
        """
        if turn == MAX_ROUNDS:
            raise contended(call)
        if turn < _AT_ONCE_ROUNDS or shown.applied:
            return shown
        longest_ms = min(_PAUSE_MS << (turn - _AT_ONCE_ROUNDS), _MAX_PAUSE_MS)
        self.clock.sleep_ms(random.randint(1, longest_ms))  # noqa: S311 - spreads those who decide again
        return replace(self.table.read(call), repeated=shown.repeated)

    def attempt(
        self,
        call: TableCall,
        shown: Answer[A],
        rule: Rule[A],
        write: Write,
        *,
        late: bool = False,
        window_ms: int | None,
        fills: bool = False,
    ) -> Answer[A]:
        """Write once the rules' decision on the shown record.

        Pages, results and dead letters are written before it; large bodies are deleted after it.
        """
        record, before = shown.record, shown.record.state
        decided = rule(before, When(shown.now_ms, shown.repeated, late))[0]
        most = self.inline_traces // 4 if fills else self.inline_traces
        moved = traces.NONE_MOVED
        if window_ms is not None and (old := self._surplus(record, decided, most)):
            self.table.put(call, traces.page_item(call.pk, old, window_ms))
            moved = self._moved(call, shown, old)
        self.put_results(call, decided.ended, window_ms or 0)
        dead = decided.dead
        texts = [self.text(call, each.id, each.body) or "null" for each in dead]
        # A body in parts stays where it is, and is the letter's.
        in_parts = {(each.id, each.body) for each in dead if isinstance(each.body, Reference) and each.body.parts > 1}
        letters = [
            each if (each.id, each.body) in in_parts else replace(each, body=text)
            for each, text in zip(dead, texts, strict=True)
        ]
        fences = {trace.id: trace.fence for trace in decided.ended if trace.outcome == "dead"}
        names = [secrets.token_hex(8) for _ in letters]
        try:
            for rank, (each, name) in enumerate(zip(letters, names, strict=True), len(before.ended)):
                # The rank: what died just before has a trace already.
                self.table.put(call, dead_item(call.pk, each, fences.get(each.id, before.fence), rank, name))
        except LeaseUnavailable:  # one may have been written, and nothing says that its message is dead
            for each, name in zip(letters, names, strict=True):
                self.table.sweep(call, dead_name(each.id, name))
            raise
        left: list[tuple[str, str]] = []

        def plan(now_ms: int) -> tuple[Request, A] | None:
            # The clock never goes back behind the refusal, which would contradict it.
            now_ms = max(now_ms, shown.now_ms)
            new, said = rule(before, When(now_ms, shown.repeated, late))
            if new == before or [letter.id for letter in new.dead] != [letter.id for letter in dead]:
                return None
            kept = {message.id for message in new.mail}
            left[:] = [(message.id, message.body) for message in before.mail if message.id not in kept]
            return write(record, new, now_ms, moved), said

        answer = self.table.update(call, plan, repeated=shown.repeated)
        # A body that the record no longer names is not used, unless a letter names it.
        self.sweep_bodies(call, [each for each in left if each not in in_parts], answer.record)
        if answer.applied:
            return replace(answer, dead_lettered=tuple(map(dead_message, letters, texts)))
        for letter, name in zip(letters, names, strict=True):
            self._take_letter_back(call, letter, name, before, answer)
        return answer

    def _take_letter_back(
        self, call: TableCall, letter: rules.Dead, name: str, before: KeyState, answer: Answer[A]
    ) -> None:
        """Delete a dead letter that was written for an update that was then refused.

        It stays if the message has died since: perhaps by this very update, whose request came twice. Of several
        letters of one id, a listing has one.
        """
        record = self.remember(call, answer, letter.id).record
        known = {traces.trace_text(trace) for trace in before.ended}
        new = [trace for trace in record.state.ended if traces.trace_text(trace) not in known]
        if not any(trace.outcome == "dead" and digest(trace.id) == digest(letter.id) for trace in new):
            self.table.sweep(call, dead_name(letter.id, name))

    @staticmethod
    def _surplus(record: Record, decided: KeyState, most: int) -> tuple[Ended, ...]:
        """Return the traces that a page is to take: all that the record holds, if there are too many with the new."""
        stays = record.inline(decided.ended)
        if len(stays) <= most:
            return ()
        here = frozenset(record.state.ended)
        return tuple(trace for trace in stays if trace in here)

    def remember(self, call: TableCall, answer: Answer[A], message_id: str, claim: str = "") -> Answer[A]:
        """Return the answer with the traces of the record's pages, if they may tell of an id or of a claim."""
        record = answer.record
        if not record.may_have_paged(message_id, claim):
            return answer
        texts: list[str] = []
        for _, found in self._pages(call, record.past_kinds(message_id, claim)):
            texts += found
            if any(digest(message_id) in text or owner_digest(claim) in text for text in found):
                break
        return replace(answer, record=item.decode(record.item, key=call.key, names=call.names, pages=texts))

    def _pages(self, call: TableCall, kinds: Iterable[Outcome]) -> Iterator[tuple[Item, list[str]]]:
        """Yield the pages that may hold the last traces of these kinds (M5), the newest first, and what stands in them.

        A page is as old as its newest trace; its others may be older than those of the next page, or stand in that one
        too. Raises ``StoredFormatUnknown`` (M12).
        """
        ages: dict[Outcome, list[tuple[int, int]]] = {kind: [] for kind in kinds}
        known: set[str] = set()
        pages = self.table.query(
            call,
            KeyConditionExpression="#pk = :pk AND begins_with(#sk, :ended)",
            ExpressionAttributeNames={"#pk": "pk", "#sk": "sk"},
            ExpressionAttributeValues={":pk": typed(call.pk), ":ended": typed(ENDED)},
            ConsistentRead=True,
            ScanIndexForward=False,
            Limit=_PAGES,
        )
        for page in pages:
            texts = traces.texts_of(page, key=call.key)
            age = traces.page_age(page)
            if all(len(newer) - bisect_right(newer, age) >= rules.REMEMBERED for newer in ages.values()):
                return
            yield page, texts
            for text in set(texts) - known:
                if (kind := traces.kind_of(text)) in ages:
                    insort(ages[kind], traces.age_of(text))
            known.update(texts)

    def _moved(self, call: TableCall, shown: Answer[A], moved: tuple[Ended, ...]) -> traces.Moved:
        """Return what a record is to show of its pages, of which one has been written.

        Marks of ids are only added, until there are too many: then they are made anew from the pages, that of the
        last ids that are remembered (M5). They stay as they are if another version has written one of the pages (M12).
        """
        found = traces.moved_into_page(shown.record.item, moved)
        if sum(map(len, found.past)) <= self.max_marks:
            return found
        last: list[Ended] = []
        with suppress(StoredFormatUnknown):
            for page, texts in self._pages(call, ["handled"]):
                if traces.is_kept(page, shown.now_ms):
                    last += traces.handled_in(texts)
            return replace(found, past=traces.past((), last))
        return found

    def put_results(self, call: TableCall, ended: Iterable[Ended], window_ms: int) -> None:
        """Store what runs returned, where it is kept, before their traces say so (M17)."""
        for trace in ended:
            if trace.result and not isinstance(trace.result, traces.ResultElsewhere):
                self.table.put(call, traces.result_item(call.pk, trace, window_ms))

    def result(self, call: TableCall, trace: Ended) -> str | None:
        """Return what a run returned, empty if it was too large to keep; ``None`` if it is not kept (M17)."""
        if not isinstance(trace.result, traces.ResultElsewhere):
            return trace.result
        return traces.result_of(self.table.get(call, result_name(trace.id, trace.fence)), key=call.key)

    def sweep_bodies(self, call: TableCall, bodies: Iterable[tuple[str, str]], record: Record) -> None:
        """Delete the large bodies, each of a message's id, that a record no longer holds."""
        needed = {(message.id, message.body) for message in record.state.mail}
        for message_id, body in bodies:
            if isinstance(body, Reference) and (message_id, body) not in needed:
                for name in body_names(message_id, body):
                    self.table.sweep(call, name)

    def text(self, call: TableCall, message_id: str, body: str) -> str | None:
        """Return the text of a message. A large one is read; ``None`` if it is gone."""
        if not isinstance(body, Reference):
            return body
        texts: list[str] = []
        for name in body_names(message_id, body):
            found = self.table.get(call, name)
            if found is None:
                return None
            check_version(found, key=call.key)
            text = body_of(found)
            if text is None:
                return None
            texts.append(text)
        return "".join(texts)

    def put_body(self, call: TableCall, message_id: str, name: str, text: str, due_ms: int) -> Reference:
        """Store a large body under a name, before anything refers to it. It is kept from ``due_ms`` on."""
        reference, items = body_items(call.pk, message_id, name, text, due_ms)
        self.put_all(call, items)
        return reference

    def put_all(self, call: TableCall, items: Iterable[Item]) -> None:
        """Write items, one after the other."""
        for each in items:
            self.table.put(call, each)

    def messages(
        self, call: TableCall, stored: Sequence[Stored], own: Mapping[tuple[str, str], str] | None = None
    ) -> tuple[Message, ...]:
        """Return messages for a run, with their texts. ``own`` holds texts that the caller already has.

        Raises ``LeaseUnavailable`` for a message that another call of the same owner has settled meanwhile, which
        removed its text.
        """
        found: list[Message] = []
        for each in stored:
            text = (own or {}).get((each.id, each.body)) or self.text(call, each.id, each.body)
            if text is None and isinstance(each.body, Reference) and not self.is_stored(call, each):
                raise LeaseUnavailable(
                    f"{call.name} of key {call.key!r}: message {each.id!r} was settled meanwhile, by another call of "
                    "the same owner; repeat this one",
                    key=call.key,
                )
            found.append(stored_message(each, text, why_gone=WHY_GONE))
        return tuple(found)

    def is_stored(self, call: TableCall, message: Stored) -> bool:
        """Return whether the record still holds a message whose body was just read."""
        mail = self.table.read(call).record.state.mail
        return any((each.id, each.body) == (message.id, message.body) for each in mail)

    def lost(self, call: TableCall, owner: str, answer: Answer[A]) -> LeaseLost:
        """Make the error of a call by an owner whose lease is over (R3)."""
        return lease_lost(call.name, call.key, owner, self.owner(answer))

    def in_doubt(self, call: TableCall, owner: str, answer: Answer[A]) -> LeaseUnavailable:
        """Make the error of a call whose earlier try may have taken effect, without evidence either way (R9)."""
        return in_doubt(call.name, call.key, owner, self.owner(answer))

    def owner(self, answer: Answer[A]) -> str | None:
        """Return the owner of the key as other callers see it (R3: expiry plus skew)."""
        state = answer.record.state
        return state.owner if rules.owned(state, answer.now_ms, self.skew_ms) else None


def until(answer: Answer[A], ttl_ms: int) -> Moment:
    """Return until when the owner may rely on its lease (R12), from the try that was answered and the item's expiry."""
    return deadline(answer.sent, ttl_ms, expires_in_ms(answer))


def expires_in_ms(answer: Answer[A]) -> int:
    """Return how long the lease in the record lives, from the sending on; 0 while other callers wait out the skew."""
    return max(0, answer.record.state.expires_ms - answer.now_ms)


def due_in_ms(answer: Answer[A], at_ms: int | None) -> int | None:
    """Return how long after the sending a key can be granted."""
    return None if at_ms is None else max(0, at_ms - answer.now_ms)


def waiting(answer: Answer[A]) -> int:
    """Return the number of due messages that the present tenure was not given."""
    return len(rules.due(answer.record.state, answer.now_ms))


def contended(call: TableCall) -> LeaseUnavailable:
    """Make the error of a call whose every write came after another caller's."""
    return LeaseUnavailable(
        f"{call.name} of key {call.key!r}: other writes came first {MAX_ROUNDS} times in a row, so this one was not "
        "applied; repeat it",
        key=call.key,
    )
