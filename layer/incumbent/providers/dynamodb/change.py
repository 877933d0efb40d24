"""The exact change from a record to the rules' new state.

The rules have decided on a record that a request has shown. ``Change`` writes their decision under the condition that
nothing has happened meanwhile that would change it:

* ``fence``, the lease's owner: no grant, no freeing;
* its expiry: no renewal by an owner that was found expired, no expiry of one that was found live;
* ``edits``: no change inside the mailbox (a mark, a delivery by ``take``, a dead letter put back);
* ``not_before``: no hold and no end of one, where the step grants or frees the key, or stores on a free one (M15);
* its ``stop``: no mark, where the live owner's own step ends its tenure, so that the answer carries it (M16);
* the place behind the last message: no new message, but only where one more would change the decision: to free the
  key because nothing is due, to free it with messages that all pause (which the orphans' index shows only when the
  pauses end), to remove the last message and the list with it, to append, to put what died with its run behind all
  others. Passing the key on to a due message depends on no later one.

Every element of the list that is changed or removed is named by its id as well.
"""

from incumbent.frozen import dataclass
from incumbent.providers.dynamodb import item, traces
from incumbent.providers.dynamodb.attributes import VERSION, Typed, elements, seconds, text, typed
from incumbent.providers.dynamodb.expression import Update
from incumbent.providers.dynamodb.item import Record
from incumbent.rules import KeyState, Stored

MAX_PLACES = 24  # an expression holds 4 KB and 300 operators: beyond so many places, the whole list is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change from a record to a new state.

    ``held``: the live owner acts, and a renewal meanwhile does not matter. ``closes``: if the key is freed, it is
    because nothing is due. ``beside``: the change happens beside a tenure, whether its lease is live or not.
    ``late``: other writes have come first so often that a ``take`` leaves to the next one what comes meanwhile.
    ``moved`` tells which traces a page holds now. ``resumed`` names the call that ends a hold.
    """

    record: Record
    new: KeyState
    shard: str
    skew_ms: int
    held: bool = False
    closes: bool = False
    beside: bool = False
    late: bool = False
    moved: traces.Moved = traces.NONE_MOVED
    resumed: str | None = None

    def update(self, now_ms: int) -> Update:
        """Make the update for that time."""
        update = Update()
        self._guard(update, now_ms)
        self._lease(update)
        self._control(update, now_ms)
        self._messages(update)
        self._delivery_of_head(update)
        self._sets(update)
        self._index(update, now_ms)
        return update

    # --- what it is

    @property
    def _old(self) -> KeyState:
        return self.record.state

    @property
    def _granted(self) -> bool:
        return self.new.owner is not None and self.new.fence != self._old.fence

    @property
    def _freed(self) -> bool:
        return self.new.owner is None and (self._old.owner is not None or self.new.fence != self._old.fence)

    @property
    def _mail_changed(self) -> bool:
        return self.new.mail != self._old.mail

    @property
    def _empties(self) -> bool:
        """Whether the whole list is removed, or does not exist, so that TTL may delete the record."""
        return not self.new.mail and (bool(self._old.mail) or self.new.owner is None or self._holds)

    @property
    def _ends(self) -> bool:
        """Whether the live owner's own step ends its tenure."""
        return self.held and (self._granted or self._freed)

    @property
    def leaves_nothing(self) -> bool:
        """Whether the live owner's own step frees its key and leaves no message: no answer would say more."""
        return self.held and self._freed and not self.new.mail

    @property
    def _holds(self) -> bool:
        """Whether a hold or a burst begins, goes on for longer, or is ended (M15)."""
        old, new = self._old, self.new
        return (old.quiet_until_ms, old.held_until_ms, old.held_reason) != (
            new.quiet_until_ms,
            new.held_until_ms,
            new.held_reason,
        )

    def _not_before(self, now_ms: int) -> str | None:
        """Return ``not_before`` as it will stand. What is over goes with the next exact grant, or its end."""
        if self._granted or self._freed:
            return item.not_before_text(self.new, now_ms)
        if self._holds:
            return item.not_before_text(self.new)
        return text(self.record.item, "not_before")

    def _hides(self, now_ms: int) -> bool:
        """Return whether the orphans' index hides the key for a while, since all stored messages pause (M8)."""
        return self._orphans_from_ms(now_ms) > now_ms

    def _orphans_from_ms(self, now_ms: int) -> int:
        """Return when what is stored on a free key may be orphans; that it is held is seen in the record (M15)."""
        if not self.new.mail:
            return item.NEVER_MS if item.is_held(self._not_before(now_ms)) else now_ms
        return max(now_ms, min(message.due_ms for message in self.new.mail))

    @property
    def _added(self) -> list[Stored]:
        known = {message.id for message in self._old.mail}
        return [message for message in self.new.mail if message.id not in known]

    @property
    def _takes(self) -> bool:
        """Whether a run takes messages: all that are due, so none may have come since (M6), unless that never ends."""
        if not self.held or self._granted or self._freed or self.late:
            return False
        before = {message.id: message.delivered_fence for message in self._old.mail}
        return any(each.delivered_fence and not before.get(each.id) for each in self.new.mail)

    @property
    def _ends_a_run(self) -> bool:
        """Whether a message may go behind all others because its run died (M6); one that has failed may look alike."""
        if self.new.block or not self.new.mail:
            return False
        last = self.new.mail[-1]
        return any(
            message.delivered_fence and not last.delivered_fence and message.attempts == last.attempts
            for message in self._old.mail
            if message.id == last.id
        )

    # --- what must not have happened meanwhile

    def _guard(self, update: Update, now_ms: int) -> None:
        if not self.record.exists:
            update.when_absent("pk")
            return
        update.when_is(VERSION, "v")
        self._when_lease_is(update, "holder")
        self._when_as_it_was(update, "fence")
        if self.held:
            update.when(f"{update.name('lease', 'expires')} > {update.value(now_ms)}")
        elif not self.beside and "lease" in self.record.item:
            self._when_lease_is(update, "expires")
        if self._ends:
            self._when_lease_is(update, "stop")
        # With a tenure ends what it was given, perhaps since: an owner may have sent a claim while its lease lived.
        changed = self._mail_changed or self.new.ended != self._old.ended
        if self._granted or self._freed or self._holds or changed:
            self._when_as_it_was(update, "edits")
        elsewhere = self.held or (self.beside and self.new.owner is not None)
        if self._ends or self._holds or self._empties or not elsewhere:
            self._when_as_it_was(update, "not_before")
        if self._holds:  # or it was held again or resumed in the same way, after a try that went unanswered
            self._when_as_it_was(update, "resumed")
        closes = self._freed and (self.closes or self._hides(now_ms))
        if self._added or self._takes or self._empties or self._ends_a_run or closes:
            self._when_no_more(update)
        elif self._freed:  # what is stored keeps the record from TTL
            update.when_there("mail", 0)

    def _when_as_it_was(self, update: Update, name: str) -> None:
        value = self.record.item.get(name)
        if value is None:
            update.when_absent(name)
        else:
            update.when(f"{update.name(name)} = {update.typed_value(value)}")

    def _when_lease_is(self, update: Update, name: str) -> None:
        lease = self.record.item.get("lease")
        if lease is None:
            update.when_absent("lease")
        elif name in lease["M"]:
            update.when(f"{update.name('lease', name)} = {update.typed_value(lease['M'][name])}")
        else:
            update.when_absent("lease", name)

    def _when_no_more(self, update: Update) -> None:
        """Add the condition that no message was added: ``size`` of a missing list fails in some implementations."""
        count = len(self._old.mail)
        if count:
            update.when_there("mail", count - 1)
        update.when_absent("mail", count)

    # --- what is written

    def _lease(self, update: Update) -> None:
        old, new = self._old, self.new
        if not self.record.exists:
            update.set(VERSION, "v")
        if new.fence != old.fence:
            update.set(new.fence, "fence")
        if new.owner is None:
            if old.owner is not None:
                update.remove("lease")
        elif self._granted or not self.record.exists:  # without what was marked and noted before
            update.set_to(update.typed_value(item.lease(new.owner, new.expires_ms, new.since_ms)), "lease")
        elif new.expires_ms != old.expires_ms:  # a renewal: R4
            until = update.value(new.expires_ms)
            update.when(f"{update.name('lease', 'expires')} <= {until}")
            update.set_to(until, "lease", "expires")
        self._policy(update)
        if new.origin != old.origin:
            self._describe(update)
        self._tenure_end(update)

    def _tenure_end(self, update: Update) -> None:
        """Write how a tenure ended; a grant takes out how an earlier one did, which counts for nothing any more."""
        new, end = self.new, self.new.tenure_end
        if end is not None and end != self._old.tenure_end:  # else its fence tells that it is over
            freed_ms = new.expires_ms if new.owner is None else None
            update.set(item.left_text(end.how, end.owner, end.successor, freed_ms), "left")
            if new.owner is not None:
                update.set(end.fence, "left_fence")
        elif self._granted and "left" in self.record.item:
            update.remove("left")

    def _policy(self, update: Update) -> None:
        noted = item.policy_text_of(self.new)
        if noted != item.policy_text_of(self._old):
            update.give(noted, "policy")

    def _control(self, update: Update, now_ms: int) -> None:
        after = self._not_before(now_ms)
        if after != text(self.record.item, "not_before"):
            update.give(after, "not_before")
        if self.resumed is not None:
            update.set(self.resumed, "resumed")
        if self._granted or self._freed:
            return
        if self.new.stop is not None and self._old.stop is None:
            mark = update.value(item.stop_value(self.new.stop))
            stop = update.name("lease", "stop")
            update.set_to(f"if_not_exists({stop}, {mark})", "lease", "stop")  # one since the read stands (M16)
        if self.new.note is not None and self.new.note != self._old.note:
            update.set(self.new.note, "lease", "note")

    def _messages(self, update: Update) -> None:
        old, new, added = self._old.mail, self.new.mail, self._added
        kept = {message.id: message for message in new}
        gone = [place for place, message in enumerate(old) if message.id not in kept]
        changed = [place for place, message in enumerate(old) if kept.get(message.id, message) != message]
        in_place = [*(message.id for message in old if message.id in kept), *(message.id for message in added)]
        moved = in_place != [message.id for message in new]
        for place in [*gone, *changed][:MAX_PLACES]:
            update.when_is(old[place].id, "mail", place, "id")
        if not new:
            if old:
                update.remove("mail")
        elif moved or len(gone) + len(changed) > MAX_PLACES or (added and not old):
            self._when_as_it_was(update, "edits")
            self._when_no_more(update)
            update.set_to(update.typed_value(self._whole_list()), "mail")
        else:
            for place in changed:
                self._message(update, place, old[place], kept[old[place].id])
            for place in gone:
                update.remove("mail", place)
            for place, message in enumerate(added, len(old)):
                update.set(item.fields(message, head=False, stored=len(new)), "mail", place)
        if self._mail_changed and not self._granted and not self._freed:
            update.add(1, "edits")

    def _message(self, update: Update, place: int, old: Stored, new: Stored) -> None:
        """Write the differences; the delivery of the message that will be the head is written beside the list.

        An attribute of a message is never removed: one that is zero now is written as zero.
        """
        head, stored = new.id == self.new.mail[0].id, len(self.new.mail)
        before = item.fields(old, head=head, stored=stored)
        after = dict.fromkeys(before, 0) | item.fields(new, head=head, stored=stored)
        for name, value in after.items():
            if before.get(name) != value:
                update.set(value, "mail", place, name)

    def _whole_list(self) -> Typed:
        """Return the new list, each message with its stored attributes that this version does not know (M12)."""
        stored = self.record.item.get("mail", {"L": []})["L"]
        before = {message.id: stored[place]["M"] for place, message in enumerate(self._old.mail)}
        written: list[Typed] = []
        for place, message in enumerate(self.new.mail):
            known = item.fields(message, head=place == 0, stored=len(self.new.mail))
            foreign = {name: value for name, value in before.get(message.id, {}).items() if name not in item.FIELDS}
            written.append({"M": foreign | typed(known)["M"]})
        return {"L": written}

    def _delivery_of_head(self, update: Update) -> None:
        stored, head = self.record.item, self.new.mail[0] if self.new.mail else None
        given: int | None = None
        said: str | None = None
        if head is not None and (head.attempts or head.due_ms or head.delivered_fence):
            given, said = head.delivered_fence, item.head_text(head.attempts, head.due_ms)
        if given != (self.record.number("given") if "given" in stored else None):
            update.give(given, "given")
        if said != text(stored, "head"):
            update.give(said, "head")

    def _sets(self, update: Update) -> None:
        stays = [trace for trace in self.record.inline(self.new.ended) if trace not in self.moved.traces]
        self._set(update, "known", item.known(self.new.mail, stays))
        self._set(update, "ended", frozenset(map(traces.trace_text, stays)))
        self._set(update, "tombs", traces.tombs(stays))
        if self.moved.traces:
            self._pages(update)

    def _pages(self, update: Update) -> None:
        """Write what the item shows of its pages: of ``past`` only the buckets that are new."""
        before, after = traces.past_of(self.record.item), self.moved.past
        if not before:
            update.set(after, "past")
        for bucket, (old, new) in enumerate(zip(before, after, strict=False)):
            if old != new:
                update.set(new, "past", bucket)
        if self.moved.rare != text(self.record.item, "rare"):
            update.give(self.moved.rare, "rare")

    def _set(self, update: Update, name: str, after: frozenset[str]) -> None:
        """Make a set what it is to be. Elements that others add meanwhile stay, where it only grows or only shrinks.

        Only a step that adds its own message does both to ``known``, and it is refused if others add theirs.
        """
        before = elements(self.record.item, name)
        if before - after and after - before:
            update.set(after, name)
        elif before - after:
            update.delete(before - after, name)
        elif after - before:
            update.add(after - before, name)

    def _index(self, update: Update, now_ms: int) -> None:
        """Write the orphans' index and TTL. A renewal changes neither; a transfer only if it may end earlier."""
        new, stored = self.new, self.record.item
        shown = bool(new.mail) or item.is_held(self._not_before(now_ms))
        if shown and (self._holds or "orphan_shard" not in stored):
            update.set(self.shard, "orphan_shard")
        elif not shown and "orphan_shard" in stored:
            update.remove("orphan_shard")
        since_ms = self._since_ms(now_ms)
        if since_ms is not None:
            update.set(since_ms, "orphan_since")
        if new.owner is None and not new.mail:
            update.set(seconds(max(now_ms, new.held_until_ms)) + item.IDLE_S, "expires_on")
        elif "expires_on" in stored or self._granted:  # a cancel may have emptied the record meanwhile
            update.remove("expires_on")

    def _since_ms(self, now_ms: int) -> int | None:
        """Return what ``orphan_since`` becomes; ``None`` if it stays."""
        before_ms, edge_ms = self.record.number("orphan_since"), self.new.expires_ms + self.skew_ms
        if self._freed:
            return self._orphans_from_ms(now_ms)
        if self._granted:
            return None if self.held and before_ms <= edge_ms else edge_ms
        if self.new.owner is None and (self._holds or self._mail_changed):
            since_ms = self._orphans_from_ms(now_ms)
            # Never later while messages are stored: a call that has seen less may add one that is due.
            return since_ms if not (self._old.mail and self.new.mail) or before_ms > since_ms else None
        return None if "orphan_since" in self.record.item else now_ms

    def _describe(self, update: Update) -> None:
        """Write what the origin says; what it lacks stays as it was."""
        if self.new.origin is not None:
            for name, value in item.described(self.new.origin, self.new.owner or "").items():
                update.set(value, name)
