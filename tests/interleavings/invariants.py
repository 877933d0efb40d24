"""What must hold of a key after every request, whichever calls are on their way; and what must hold when all are over.

A store is read as a ``Picture`` of the key. ``History`` compares each picture with the one before it, knows which call
sent the request in between, and remembers what was promised, handled and dead_lettered. A violation names the rule.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from incumbent.rules import KeyState, Stored, not_before_ms
from incumbent.values import Policy


class Violation(AssertionError):
    """A rule does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A key as its store holds it.

    ``letters`` are the ids of the dead letters, ``bodies`` the bodies outside the record, ``needed`` those that the
    record names. ``indexed_ms`` is from when on the orphans' index shows the key (``None``: never; the stores without
    an index find what is there). ``faults`` are parts of the record that do not fit together. ``now_ms`` is the time.
    """

    now_ms: int = 0

    state: KeyState = field(default_factory=KeyState)
    letters: tuple[str, ...] = ()
    bodies: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    has_index: bool = False
    indexed_ms: int | None = None
    faults: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Intent:
    """What a call is for: all that its requests may do to messages."""

    call: str = "nothing"
    owner: str = ""
    stores: str | None = None
    handled: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    deferred: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    redrives: str | None = None
    cancels: str | None = None
    marks: bool = False
    marks_fence: int | None = None
    supersedes: bool = False

    def __str__(self) -> str:
        return f"{self.call} by {self.owner}" if self.owner else self.call


@dataclass(slots=True, kw_only=True)
class History:
    """The memory of one schedule, and its judge."""

    policy: Policy
    skew_ms: int
    picture: Picture = field(default_factory=Picture)
    promised: set[str] = field(default_factory=set)
    handled: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    letters: set[str] = field(default_factory=set)
    to_purge: set[str] = field(default_factory=set)
    purged: Counter[str] = field(default_factory=Counter)
    said_purged: Counter[str] = field(default_factory=Counter)
    lost_replies: int = 0

    def copy(self) -> "History":
        """One that goes on by itself."""
        return replace(
            self,
            promised=set(self.promised),
            handled=Counter(self.handled),
            gone=set(self.gone),
            letters=set(self.letters),
            to_purge=set(self.to_purge),
            purged=Counter(self.purged),
            said_purged=Counter(self.said_purged),
        )

    # --- after every request

    def request(self, intent: Intent, picture: Picture) -> None:
        """A request of a call was carried out, and this is the key now."""
        before, self.picture = self.picture, picture
        if picture.faults:
            raise Violation(f"{intent}: {'; '.join(picture.faults)}")
        self._lease(intent, before.state, picture.state)
        self._not_before(intent, before.state, picture)
        self._mark(intent, before.state, picture.state)
        self._came_and_left(intent, before.state, picture.state)
        self._letters(intent, picture)
        self._index(intent, picture)
        missing = picture.needed - picture.bodies
        if missing:
            raise Violation(f"M3: {intent} leaves messages without their bodies: {sorted(missing)}")
        self.promised.update(message.id for message in picture.state.mail if message.promised)
        for message_id in self.promised:
            self._is_safe(message_id, f"after {intent}")

    def accepted(self, message_id: str, why: str) -> None:
        """A caller was told that its message is safe (M3)."""
        self.promised.add(message_id)
        self._is_safe(message_id, why)
        for message in self.picture.state.mail:
            if message.id == message_id and not message.promised:
                raise Violation(f"M3: {message_id} is answered for and not promised: {why}")

    def was_purged(self, message_id: str) -> None:
        """A caller was told that it has removed a dead letter (R8)."""
        self.said_purged[message_id] += 1
        if self.said_purged[message_id] > self.purged[message_id]:
            raise Violation(f"R8: purge says that it has removed {message_id}, which another call did, or put back")

    def end(self) -> None:
        """Nothing is on its way any more."""
        strays = set(self.picture.letters) - self.letters
        if strays:
            raise Violation(f"M6: there are dead letters of messages that are not dead: {sorted(strays)}")
        unneeded = self.picture.bodies - self.picture.needed
        if unneeded and not self.lost_replies:  # a lost try may come late and need its body: TTL takes it
            raise Violation(f"bodies are left that belong to no message: {sorted(unneeded)}")

    # --- the rules

    def _is_safe(self, message_id: str, why: str) -> None:
        stored = any(message.id == message_id for message in self.picture.state.mail)
        left = self.handled[message_id] or message_id in self.gone or self.purged[message_id]
        if not (stored or left or message_id in self.letters):
            raise Violation(f"M3: promised message {message_id} is lost {why}")

    @staticmethod
    def _lease(intent: Intent, before: KeyState, after: KeyState) -> None:
        granted = after.owner is not None and after.owner != before.owner
        if after.fence < before.fence or (granted and after.fence == before.fence):
            raise Violation(f"R7: {intent} gives {after.owner} fence {after.fence} after {before.fence}")
        kept = after.owner is not None and (after.owner, after.fence) == (before.owner, before.fence)
        if kept and after.expires_ms < before.expires_ms:
            raise Violation(f"R4: {intent} shortens the lease by {before.expires_ms - after.expires_ms} ms")

    @staticmethod
    def _not_before(intent: Intent, before: KeyState, picture: Picture) -> None:
        """M15: until then the key is granted to no caller; a live owner may transfer it."""
        after = picture.state
        granted = after.owner is not None and after.fence != before.fence
        if granted and intent.call != "transfer" and picture.now_ms < not_before_ms(before):
            wait_ms = not_before_ms(before) - picture.now_ms
            raise Violation(f"M15: {intent} is granted the key {wait_ms} ms before it may be")

    @staticmethod
    def _mark(intent: Intent, before: KeyState, after: KeyState) -> None:
        """M16: only a stop marks, only the tenure that it means, and no tenure begins with a mark."""
        if after.stop is None:
            return
        if after.owner is None or after.fence != before.fence:
            raise Violation(f"M16: after {intent} a mark is left of an earlier tenure")
        if before.stop is None and not (intent.marks and intent.marks_fence in (None, after.fence)):
            raise Violation(f"M16: {intent} marks tenure {after.fence}, which it does not mean")

    def _came_and_left(self, intent: Intent, before: KeyState, after: KeyState) -> None:
        stood = {message.id: message for message in before.mail}
        ids = [message.id for message in after.mail]
        if len(set(ids)) < len(ids):
            raise Violation(f"M5: {intent} leaves an id twice in the mailbox: {ids}")
        self._order(intent, before, after)
        for message in after.mail:
            if message.id not in stood:
                self._came(intent, message)
            else:
                self._counted(intent, stood[message.id], message, after)
        for message in before.mail:
            if message.id not in set(ids):
                self._left(intent, message, before, after)

    @staticmethod
    def _order(intent: Intent, before: KeyState, after: KeyState) -> None:
        """M4: all keep their order, but for what died with its run (M6), which goes behind the others."""
        now = {message.id: message.delivered_fence for message in after.mail}
        over = {
            message.id
            for message in before.mail
            if message.delivered_fence and now.get(message.id) != message.delivered_fence
        }
        goes_on = (after.owner, after.fence) == (before.owner, before.fence)
        moves = set() if after.block or goes_on else over
        kept = [message.id for message in before.mail if message.id in now and message.id not in moves]
        known = {message.id for message in before.mail} - moves
        if [message_id for message_id in now if message_id in known] != kept:
            raise Violation(f"M4: {intent} changes the order from {[each.id for each in before.mail]} to {list(now)}")
        stale = [message_id for message_id, given in now.items() if given not in (0, after.fence)]
        if stale:
            raise Violation(f"M6: after {intent} an earlier tenure still runs {stale}")

    @staticmethod
    def _counted(intent: Intent, before: Stored, after: Stored, state: KeyState) -> None:
        """M6: who is given a message is counted; only one that is put off is taken back."""
        is_given = after.delivered_fence == state.fence and before.delivered_fence != after.delivered_fence
        taken_back = after.id in intent.deferred
        allowed = {before.attempts + is_given} | ({before.attempts - 1 + is_given} if taken_back else set())
        if after.attempts not in allowed:
            raise Violation(f"M6: {intent} counts {after.attempts} deliveries of {after.id} after {before.attempts}")

    def _came(self, intent: Intent, message: Stored) -> None:
        if intent.redrives == message.id:
            if message.id not in self.letters:
                raise Violation(f"R8: {intent} puts {message.id} back, whose dead letter was put back before")
            self.letters.discard(message.id)
        elif intent.stores != message.id:
            raise Violation(f"{intent} stores {message.id}, which it does not name")
        elif self.handled[message.id] or message.id in self.letters | self.gone:
            raise Violation(f"M5: {intent} stores {message.id}, which was handled or is dead")

    def _left(self, intent: Intent, message: Stored, before: KeyState, after: KeyState) -> None:
        traces = [
            trace.outcome
            for trace in after.ended
            if trace not in before.ended
            if trace.id == message.id
            and trace.fence >= before.fence  # not one in a page, of a letter that was put back
        ]
        if traces == ["dead"]:
            self.letters.add(message.id)
            if message.attempts < self.policy.max_attempts:
                raise Violation(f"M6: {intent} buries {message.id} after {message.attempts} deliveries")
        elif traces == ["handled"] and message.id in intent.handled:
            self.handled[message.id] += 1
        elif traces == ["failed"] and message.id in intent.dropped and not message.promised:
            pass
        elif self._ended_on_purpose(intent, message, traces):
            self.gone.add(message.id)
        elif traces == ["cancelled"] and message.id == intent.cancels:
            self.gone.add(message.id)
            if before.owner is not None and message.delivered_fence == before.fence and self._is_live(before):
                raise Violation(f"M19: {intent} removes {message.id} while it runs")
        else:
            raise Violation(
                f"M3: {message.id} left the mailbox by a {intent} that does not name it, with traces {traces}"
            )

    @staticmethod
    def _ended_on_purpose(intent: Intent, message: Stored, traces: Sequence[str]) -> bool:
        """M16, M21: its own run was stopped, or a later message has replaced it before any run."""
        if list(traces) == ["superseded"]:
            return intent.supersedes and not message.attempts
        return list(traces) == ["stopped"] and message.id in intent.stopped

    def _is_live(self, state: KeyState) -> bool:
        return self.picture.now_ms < state.expires_ms

    def _letters(self, intent: Intent, picture: Picture) -> None:
        missing = self.letters - set(picture.letters)
        self.letters -= missing & self.to_purge  # by whichever call came to its last step
        self.purged.update(missing & self.to_purge)
        missing -= self.to_purge
        if missing:
            raise Violation(f"M6: after {intent} there is no dead letter of {sorted(missing)}")

    def _index(self, intent: Intent, picture: Picture) -> None:
        """M8: from when on the key's messages may be orphans, the index shows it, and never later."""
        state = picture.state
        if not picture.has_index or not state.mail:
            return
        due: list[int] = []
        for message in state.mail:
            due.append(max(message.due_ms, message.stored_ms))
            if state.block and message.attempts:  # the others wait behind it; one that is for later lets them pass
                break
        free_ms = state.expires_ms + (self.skew_ms if state.owner is not None else 0)
        true_ms = max(free_ms, min(due), not_before_ms(state))
        if picture.indexed_ms is None or picture.indexed_ms > true_ms:
            late = "never" if picture.indexed_ms is None else f"{picture.indexed_ms - true_ms} ms too late"
            raise Violation(f"M8: after {intent} the index shows the key {late}")
