"""What must always hold of messages for later, of holds, of stops, and of what was cancelled (M14, M15, M16, M19)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from incumbent import rules
from incumbent.rules import KeyState
from incumbent.values import Beat, Status, Taken
from tests.simulation.environment import EPOCH_MS
from tests.simulation.scheduler import Scheduler
from tests.simulation.store import Asked, Effect


@dataclass(slots=True, kw_only=True)
class ControlInvariants:
    """The memory of what was marked, held, delayed and taken out, and its judge.

    ``barred_ms`` is the last moment at which the key may have been held or quiet, by whichever clock.
    """

    scheduler: Scheduler
    skew_ms: int
    broken: Callable[[str, str], None]
    marks: dict[int, str] = field(default_factory=dict)
    marked_ms: dict[int, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    due_ms: dict[str, int] = field(default_factory=dict)
    held_until_ms: int = 0
    barred_ms: int = -1

    def witness(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        """A request was carried out."""
        until_ms = max(rules.not_before_ms(before), rules.not_before_ms(after))
        self.barred_ms = max(self.barred_ms, min(self.scheduler.now_ms, until_ms + self.skew_ms - EPOCH_MS))
        self.held_until_ms = max(self.held_until_ms, after.held_until_ms)
        if after is before:
            return
        granted = after.owner is not None and (after.owner, after.fence) != (before.owner, before.fence)
        stored = asked.message_id in {message.id for message in after.mail} - {message.id for message in before.mail}
        self._marks(asked, before, after, granted=granted)
        if granted and asked.call != "transfer" and until_ms > now_ms + self.skew_ms:
            self.broken("M15", f"{after.owner} is granted the key {until_ms - now_ms} ms too early")
        if stored and asked.debounce is not None and not rules.owned(before, now_ms, self.skew_ms):
            self._waits_for_quiet(asked, before, after, now_ms)
        if stored and asked.after_ms:
            self.due_ms[asked.message_id or ""] = now_ms + asked.after_ms
        self._given(after, now_ms)

    def may_be_barred(self, since_ms: int, state: KeyState) -> bool:
        """Whether the key may have been held or quiet at some time since then, by whichever clock (M15)."""
        now_ms = rules.not_before_ms(state) + self.skew_ms - EPOCH_MS
        return max(self.barred_ms, now_ms) >= since_ms

    def _marks(self, asked: Asked, before: KeyState, after: KeyState, *, granted: bool) -> None:
        """M16: a mark is set once, by a stop of this tenure or by an interrupting claim."""
        if granted:
            if after.stop is not None:
                self.broken("M16", f"{after.owner} begins with the mark {after.stop!r}")
        elif after.owner is not None and after.stop != before.stop:
            if before.stop is not None or asked.call not in ("stop", "claim"):
                self.broken("M16", f"a {asked.call} changes the mark {before.stop!r} to {after.stop!r}")
            if asked.call == "stop" and asked.fence not in (None, after.fence):
                self.broken("M16", f"a stop of tenure {asked.fence} marks tenure {after.fence}")
            self.marks[after.fence] = after.stop or ""
            self.marked_ms[after.fence] = self.scheduler.now_ms

    def _waits_for_quiet(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        """M15: debounce."""
        assert asked.debounce is not None
        fresh = [each.stored_ms for each in before.mail if not each.attempts and each.due_ms <= now_ms]
        last_ms = min([now_ms, *fresh]) + asked.debounce.max_ms
        if after.owner == asked.owner and min(now_ms + asked.debounce.quiet_ms, last_ms) > now_ms + self.skew_ms:
            self.broken("M15", f"{asked.owner} brings {asked.message_id} to a free key, and does not wait for quiet")
        if after.quiet_until_ms > max(before.quiet_until_ms, last_ms + self.skew_ms):
            self.broken("M15", f"{asked.message_id} lets the key wait for ever: {after.quiet_until_ms - EPOCH_MS}")

    def _given(self, after: KeyState, now_ms: int) -> None:
        """M14: not before."""
        for message in rules.given(after) if after.owner is not None else ():
            due_ms = self.due_ms.pop(message.id, 0)
            if now_ms + self.skew_ms < due_ms:
                self.broken("M14", f"{message.id} is given {due_ms - now_ms} ms before it is due")

    def leaves(self, asked: Asked, before: KeyState, message_id: str) -> bool:
        """Whether a message leaves because its run was stopped, or because it was cancelled."""
        if message_id in asked.stopped:
            self.left[message_id] = "stopped"
            if before.fence not in self.marks:
                self.broken("M16", f"{asked.owner} settles {message_id} as stopped, and was not asked to stop")
        elif message_id == asked.cancelled:
            self.left[message_id] = "cancelled"
            asked.effects.append(Effect("cancelled"))
            believes = rules.owned(
                before, EPOCH_MS + self.scheduler.now_ms - self.skew_ms // 2
            )  # a clock may be behind
            if believes and message_id in {given.id for given in rules.given(before)}:
                self.broken("M19", f"{message_id} is cancelled while {before.owner} runs it")
        return message_id in self.left

    def runs(self, message_id: str) -> None:
        """A message is stored again, or comes to a handler that holds the key."""
        if message_id in self.left:
            self.broken("M16", f"{message_id} was {self.left[message_id]}, and is stored or run again")

    def stops(self, owner: str, fence: int, reason: str | None) -> None:
        """A handler sees that it should stop."""
        if self.marks.get(fence) != reason:
            self.broken("M16", f"{owner} is stopped by the mark {reason!r}, and its tenure was not marked so")

    def answered(self, asked: Asked, answer: object) -> None:
        """A call ends, with an answer or an error."""
        match answer:
            case Beat() | Taken() if answer.stop is not None or asked.fence in self.marks:
                fence = asked.fence or 0
                if answer.stop is None and self.marked_ms[fence] < asked.began_ms:
                    self.broken("M16", f"{asked.owner} is not told of its mark by a {asked.call}")
                elif answer.stop is not None and self.marks.get(fence) != answer.stop:
                    self.broken("M16", f"{asked.owner} is told of the mark {answer.stop!r}, which is not its own")
            case int() if asked.call == "stop" and answer not in self.marks:
                self.broken("R8", f"a stop is told that tenure {answer} is marked, and it is not")
            case Status() if asked.call == "cancel":
                said, left = answer.state == "cancelled", self.left.get(asked.cancelled or "") == "cancelled"
                if said is not left and (said or asked.effects):
                    self.broken("R8", f"the cancel of {asked.cancelled} is told that it is {answer.state}")
            case None if asked.call == "hold" and self.scheduler.now_ms < asked.began_ms + asked.for_ms:
                if self.held_until_ms < EPOCH_MS + asked.began_ms + asked.for_ms - 2 * self.skew_ms:
                    self.broken("R8", "a hold is told that the key is held, and it is not")
