"""The updates: those that one request can decide, and the exact change from a known record to the rules' new state.

A quick update is sent without having read the record, so its condition contains everything that the rule checks. If it
is refused, the refusal shows the record, the rules decide on it, and ``Change`` writes their decision under the
condition that nothing has happened meanwhile that would change it:

* ``fence``, ``lease_owner``: no grant, no freeing;
* ``expires_at``: no renewal by an owner that was found expired, no expiry of one that was found live;
* ``edits``: no change inside the mailbox (a mark, a delivery by ``take``, a dead letter put back);
* the place behind the last message: no new message, but only where one more would change the decision: to free the
  key because nothing is due, to free it with messages that all pause (which the orphans' index shows only when the
  pauses end), to remove the last message and the list with it, to append, to put what died with its run behind all
  others. Passing the key on to a due message depends on no later one.

Every element of the list that is changed or removed is named by its id as well.
"""

from dataclasses import dataclass

from incumbent.providers.dynamodb import item
from incumbent.providers.dynamodb.expression import Update
from incumbent.providers.dynamodb.item import Record, digest
from incumbent.rules import BEYOND, KeyState, Stored, TenureEnd, kept_pauses
from incumbent.values import Origin, Policy

MAX_PLACES = 24  # an expression holds 4 KB and 300 operators: beyond so many places, the whole list is written


# --- what one request can decide


def acquire(owner: str, *, ttl_ms: int, now_ms: int, skew_ms: int) -> Update:
    """R2: free or expired, by the strangers' edge, and no message died with its run (M6)."""
    update = Update()
    _when_ours(update)
    update.when(_free(update, now_ms, skew_ms))
    _when_head_is_fresh(update)
    _grant(update, owner, ttl_ms=ttl_ms, now_ms=now_ms, skew_ms=skew_ms)
    return update


def claim(
    owner: str,
    message: Stored | None,
    *,
    shard: str,
    policy: Policy,
    ticket: str | None,
    as_ticket: bool,
    origin: Origin | None,
    ttl_ms: int,
    now_ms: int,
    skew_ms: int,
) -> Update:
    """M1 on a free key with nothing odd: the id unknown, the head never delivered (M6).

    The head, which may be the message itself, is delivered in the same update. Without a message the key is taken only
    if one is stored, or from its ticket (M9).
    """
    update = Update()
    _when_ours(update)
    free = _free(update, now_ms, skew_ms)
    if ticket is not None and ticket != owner and message is None:
        owned, until = update.name("lease_owner"), update.name("expires_at")
        redeem = f"{owned} = {update.value(ticket)} AND {until} > {update.value(now_ms - skew_ms)}"
        free = f"({free}) OR ({redeem})"
    update.when(free)
    update.when(f"NOT contains({update.name('tombs')}, {update.value(str(digest(owner)))})")
    _when_head_is_fresh(update)
    if not as_ticket:
        update.set(1, "head_attempts")
        update.set_to(_next_fence(update, now_ms), "head_given")
        update.give(policy.on_error == "block" or None, "block")
        update.give(item.pauses_text(kept_pauses(policy)), "pauses")
    _grant(update, owner, ttl_ms=ttl_ms, now_ms=now_ms, skew_ms=skew_ms)
    _describe(update, origin)
    if message is None:
        update.when_there("mail", 0)
    else:
        update.when_absent("mail", min(policy.max_pending + BEYOND, item.FEW) - 1)  # M7
        _append(update, shard, message)
    return update


def append(owner: str, message: Stored, *, shard: str, most: int, origin: Origin | None, now_ms: int) -> Update:
    """Store a message behind the holder of the key, or the last one (M1, case 5); the answer names it.

    ``most`` is how many messages may be stored then (M7). If the last owner has left messages that pause, the update is
    refused: the orphans' index would show this one only after the pause (M8).
    """
    update = Update()
    _when_ours(update)
    owned, since = update.name("lease_owner"), update.name("orphan_since")
    shows = f"attribute_not_exists({since}) OR {since} <= {update.value(now_ms)}"
    update.when(f"attribute_exists({owned}) OR {shows}")
    update.when(f"NOT contains({update.name('tombs')}, {update.value(str(digest(owner)))})")
    update.when_absent("mail", most - 1)
    update.set(item.VERSION, "v")
    update.set_to(f"if_not_exists({since}, {update.value(now_ms)})", "orphan_since")
    update.remove("expires_on")
    _offer_target(update, origin)
    _append(update, shard, message)
    return update


def promise(place: int, message_id: str, origin: Origin | None) -> Update:
    """Mark a message as promised, in the place where it was seen (M3)."""
    update = Update()
    _when_ours(update)
    update.when_is(message_id, "mail", place, "id")
    update.set(True, "mail", place, "promised")  # noqa: FBT003 - a value of the format
    _offer_target(update, origin)
    update.add(1, "edits")
    return update


def renew(owner: str, fence: int | None, *, ttl_ms: int, now_ms: int) -> Update:
    """Extend a live lease, and never bring its expiry forward (R4)."""
    update = Update()
    _when_held(update, owner, fence, now_ms)
    until = update.value(now_ms + ttl_ms)
    update.when(f"{update.name('expires_at')} <= {until}")
    update.set_to(until, "expires_at")
    return update


def release(owner: str, fence: int | None, *, empty: bool, now_ms: int) -> Update:
    """Free the key (R5). ``empty``: only if no message is stored, since then TTL may delete the record."""
    update = Update()
    _when_held(update, owner, fence, now_ms)
    _leave(update, TenureEnd(how="released", owner=owner, successor=None, fence=0))
    update.set_to(update.name("fence"), "left_fence")
    update.set(now_ms, "expires_at")
    update.set(now_ms, "since")
    update.set(now_ms, "orphan_since")
    update.remove("lease_owner")
    if empty:
        update.when_absent("mail", 0)
        update.set(item.seconds(now_ms) + item.IDLE_S, "expires_on")
    else:
        update.when_there("mail", 0)
    return update


def transfer(owner: str, successor: str, fence: int | None, *, ttl_ms: int, now_ms: int, skew_ms: int) -> Update:
    """R6: from a live owner to its successor, with a new fence, if there is no run that ends with it (M6)."""
    update = Update()
    _when_held(update, owner, fence, now_ms)
    _when_head_is_fresh(update)
    _leave(update, TenureEnd(how="transferred", owner=owner, successor=successor, fence=0))
    following = f"{update.name('fence')} + {update.value(1)}"
    update.set_to(following, "left_fence")
    update.set_to(following, "fence")
    update.set(successor, "lease_owner")
    update.set(now_ms + ttl_ms, "expires_at")
    update.set(now_ms, "since")
    update.set(now_ms + ttl_ms + skew_ms, "orphan_since")
    return update


# --- their parts


def _when_ours(update: Update) -> None:
    """Add the condition that the item does not exist, or has this version (M12)."""
    update.when(f"attribute_not_exists({update.name('pk')}) OR {update.name('v')} = {update.value(item.VERSION)}")


def _free(update: Update, now_ms: int, skew_ms: int) -> str:
    """Return the condition that the key is free for other callers (R3: expiry plus skew)."""
    owned, until = update.name("lease_owner"), update.name("expires_at")
    return f"attribute_not_exists({owned}) OR {until} <= {update.value(now_ms - skew_ms)}"


def _when_held(update: Update, owner: str, fence: int | None, now_ms: int) -> None:
    """Add the condition that the owner's lease is live (R3), in the tenure of the fence if it is known (R2)."""
    update.when_is(item.VERSION, "v")
    update.when_is(owner, "lease_owner")
    update.when(f"{update.name('expires_at')} > {update.value(now_ms)}")
    if fence is not None:
        update.when_is(fence, "fence")


def _when_head_is_fresh(update: Update) -> None:
    """M6: the head, if there is one, was never delivered and does not pause; so no message was given to the tenure.

    A tenure is given the first that is due, and a fresh head would be.
    """
    for name in ("head_attempts", "head_due"):
        update.when_absent(name)


def _next_fence(update: Update, now_ms: int) -> str:
    """Return the next fence: one more than the last, or the clock's microseconds if there is none (R7)."""
    return f"if_not_exists({update.name('fence')}, {update.value(now_ms * 1_000)}) + {update.value(1)}"


def _grant(update: Update, owner: str, *, ttl_ms: int, now_ms: int, skew_ms: int) -> None:
    update.set(item.VERSION, "v")
    update.set(owner, "lease_owner")
    update.set_to(_next_fence(update, now_ms), "fence")
    update.set(now_ms + ttl_ms, "expires_at")
    update.set(now_ms, "since")
    update.set(now_ms + ttl_ms + skew_ms, "orphan_since")
    for name in ("left", "left_fence", "expires_on"):
        update.remove(name)


def _append(update: Update, shard: str, message: Stored) -> None:
    update.when(f"NOT contains({update.name('ids')}, {update.value(str(digest(message.id)))})")
    mail = update.name("mail")
    one = update.value([item.fields(message, head=True)])  # never delivered: as a head its delivery stands beside
    update.set_to(f"list_append(if_not_exists({mail}, {update.value([])}), {one})", "mail")
    update.add(frozenset({str(digest(message.id))}), "ids")
    update.set(shard, "orphan_shard")
    size = item.inline_bytes([message])
    if size:
        inline = update.name("inline_bytes")
        room = update.value(item.INLINE_BYTES_A_KEY - size)
        update.when(f"attribute_not_exists({inline}) OR {inline} <= {room}")
        update.add(size, "inline_bytes")


def _describe(update: Update, origin: Origin | None) -> None:
    """Write what an origin says; what it lacks stays as it was."""
    for name in item.DESCRIBED:
        value = getattr(origin, name, None)
        if value:
            update.set(value, name)


def _offer_target(update: Update, origin: Origin | None) -> None:
    """Keep the target if no owner has recorded one (M8)."""
    if origin is not None and origin.target:
        for name, value in (("keyspace", origin.keyspace), ("target", origin.target)):
            if value:
                update.set_to(f"if_not_exists({update.name(name)}, {update.value(value)})", name)


def _leave(update: Update, end: TenureEnd | None) -> None:
    if end is None:
        update.remove("left")
        return
    how: dict[str, item.Value] = {"how": end.how, "owner": end.owner}
    if end.successor is not None:
        how["successor"] = end.successor
    update.set(how, "left")


# --- the exact change


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change from a record to a new state.

    ``held``: the live owner acts, and a renewal meanwhile does not matter. ``closes``: if the key is freed, it is
    because nothing is due. ``beside``: the change happens beside a tenure, whether its lease is live or not.
    """

    record: Record
    new: KeyState
    shard: str
    skew_ms: int
    held: bool = False
    closes: bool = False
    beside: bool = False

    def update(self, now_ms: int) -> Update:
        """Make the update for that time."""
        update = Update()
        self._guard(update, now_ms)
        self._lease(update)
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
        return not self.new.mail and (bool(self._old.mail) or self._freed)

    def _hides(self, now_ms: int) -> bool:
        """Return whether the orphans' index hides the key for a while, since all stored messages pause (M8)."""
        return self._orphans_from_ms(now_ms) > now_ms

    def _orphans_from_ms(self, now_ms: int) -> int:
        return max(now_ms, min((message.due_ms for message in self.new.mail), default=0))

    @property
    def _added(self) -> list[Stored]:
        known = {message.id for message in self._old.mail}
        return [message for message in self.new.mail if message.id not in known]

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
        update.when_is(item.VERSION, "v")
        self._when_as_it_was(update, "lease_owner")
        self._when_as_it_was(update, "fence")
        if self.held:
            update.when(f"{update.name('expires_at')} > {update.value(now_ms)}")
        elif not self.beside:
            self._when_as_it_was(update, "expires_at")
        takes_over = self._granted and not self.held  # its deliveries are counted from what a new fence closes off
        ends = self.held and (self._granted or self._freed)  # and with it what it was given, perhaps since
        if self.new.ended != self._old.ended or ends or (self._mail_changed and not takes_over):
            self._when_as_it_was(update, "edits")
        closes = self._freed and (self.closes or self._hides(now_ms))
        if self._added or self._empties or self._ends_a_run or closes:
            self._when_no_more(update)
        elif self._freed:  # what is stored keeps the record from TTL
            update.when_there("mail", 0)

    def _when_as_it_was(self, update: Update, name: str) -> None:
        value = self.record.item.get(name)
        if value is None:
            update.when_absent(name)
        else:
            update.when(f"{update.name(name)} = {update.written(value)}")

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
            update.set(item.VERSION, "v")
        if new.owner != old.owner:
            update.give(new.owner, "lease_owner")
        if new.fence != old.fence:
            update.set(new.fence, "fence")
        if new.expires_ms != old.expires_ms or self._granted or self._freed:  # a beat may have changed it meanwhile
            until = update.value(new.expires_ms)
            if self.held and not self._granted and not self._freed:  # a renewal: R4
                update.when(f"{update.name('expires_at')} <= {until}")
            update.set_to(until, "expires_at")
        if new.since_ms != old.since_ms:
            update.set(new.since_ms, "since")
        self._policy(update)
        if new.origin != old.origin:
            _describe(update, new.origin)
        if new.tenure_end != old.tenure_end:
            _leave(update, new.tenure_end)
            update.give(None if new.tenure_end is None else new.tenure_end.fence, "left_fence")

    def _policy(self, update: Update) -> None:
        if self.new.block != self._old.block:
            update.give(self.new.block or None, "block")
        if self.new.pauses_ms != self._old.pauses_ms:
            update.give(item.pauses_text(self.new.pauses_ms), "pauses")

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
            update.set_to(update.written(self._whole_list()), "mail")
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

    def _whole_list(self) -> item.Typed:
        """Return the new list, each message with its stored attributes that this version does not know (M12)."""
        stored = self.record.item.get("mail", {"L": []})["L"]
        before = {message.id: stored[place]["M"] for place, message in enumerate(self._old.mail)}
        written: list[item.Typed] = []
        for place, message in enumerate(self.new.mail):
            known = item.fields(message, head=place == 0, stored=len(self.new.mail))
            foreign = {name: value for name, value in before.get(message.id, {}).items() if name not in item.FIELDS}
            written.append({"M": foreign | item.typed(known)["M"]})
        return {"L": written}

    def _delivery_of_head(self, update: Update) -> None:
        head = item.delivery(self.new.mail[0]) if self.new.mail else {"attempts": 0, "due": 0, "given": 0}
        for name, value in head.items():
            if value != self.record.number(f"head_{name}"):
                update.give(value or None, f"head_{name}")

    def _sets(self, update: Update) -> None:
        before, after = item.known_ids(self._old), item.known_ids(self.new)
        if after - before:
            update.add(after - before, "ids")
        if before - after:
            update.delete(before - after, "ids")
        if self.new.ended != self._old.ended:
            update.give([item.trace_text(trace) for trace in self.new.ended] or None, "ended")
        if item.tombstones(self.new) != item.tombstones(self._old):
            update.give(item.tombstones(self.new) or None, "tombs")
        bytes_more = item.inline_bytes(self.new.mail) - item.inline_bytes(self._old.mail)
        if not self.new.mail and "inline_bytes" in self.record.item:
            update.remove("inline_bytes")
        elif bytes_more:
            update.add(bytes_more, "inline_bytes")

    def _index(self, update: Update, now_ms: int) -> None:
        """Write the orphans' index and TTL. A renewal changes neither; a transfer only if it may end earlier."""
        new, stored = self.new, self.record.item
        if new.mail and not self._old.mail:
            update.set(self.shard, "orphan_shard")
        elif not new.mail and "orphan_shard" in stored:
            update.remove("orphan_shard")
        if self._freed:
            update.set(self._orphans_from_ms(now_ms), "orphan_since")
        elif self.beside and new.owner is None and self.record.number("orphan_since") > now_ms:
            update.set(now_ms, "orphan_since")  # what is stored beside messages that pause is due at once
        elif self._granted and not (self.held and self.record.number("orphan_since") <= new.expires_ms + self.skew_ms):
            update.set(new.expires_ms + self.skew_ms, "orphan_since")
        elif "orphan_since" not in stored:
            update.set(now_ms, "orphan_since")
        if new.owner is None and not new.mail:
            update.set(item.seconds(now_ms) + item.IDLE_S, "expires_on")
        elif "expires_on" in stored:
            update.remove("expires_on")
