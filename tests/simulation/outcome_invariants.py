"""What must always hold of results, of notes, and of what a later message replaces (M17, M18, M21)."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from incumbent import rules
from incumbent.rules import KeyState
from incumbent.values import Beat, KeyStatus, Policy, Routed, Status
from tests.simulation.store import Asked, Effect


@dataclass(slots=True, kw_only=True)
class OutcomeInvariants:
    """The memory of what runs returned and noted, and of what was replaced, and its judge."""

    policy: Policy
    skew_ms: int
    broken: Callable[[str, str], None]
    returned: dict[tuple[str, str], Any] = field(default_factory=dict)
    handled_by: dict[str, str] = field(default_factory=dict)
    notes: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def witness(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        """A request has changed something."""
        granted = after.owner is not None and (after.owner, after.fence) != (before.owner, before.fence)
        if after.note is not None and (granted or after.owner is None):
            self.broken("M18", f"{after.owner} begins with the note {after.note}")
        elif after.owner is not None and after.note != before.note and not granted:
            if asked.call != "beat" or asked.owner != after.owner:
                self.broken("M18", f"a {asked.call} by {asked.owner} changes the note of {after.owner}")
            self.notes[after.fence].add(after.note or "")
        stored = asked.message_id in {each.id for each in after.mail} - {each.id for each in before.mail}
        if stored and asked.call == "claim" and not granted and rules.owned(before, now_ms):
            self._replaces(asked, after, now_ms)

    def _replaces(self, asked: Asked, after: KeyState, now_ms: int) -> None:
        """M21: of what is due and was never delivered, the latest stays."""
        for message in after.mail if self.policy.keep == "latest" else ():
            if message.id != asked.message_id and not message.attempts and message.due_ms <= now_ms - self.skew_ms:
                self.broken("M21", f"{asked.message_id} is stored behind {after.owner}, and {message.id} still waits")

    def supersedes(self, asked: Asked, before: KeyState, message_id: str, now_ms: int) -> None:
        """A message leaves because a later one replaces it."""
        asked.effects.append(Effect("superseded", message_id))
        (message,) = (each for each in before.mail if each.id == message_id)
        if self.policy.keep != "latest" or asked.call != "claim":
            self.broken("M21", f"{message_id} is replaced by a {asked.call}")
        if message.attempts or message.due_ms > now_ms + self.skew_ms:
            self.broken("M21", f"{message_id} is replaced, and was delivered {message.attempts} times, or is for later")

    def completes(self, owner: str, message_id: str, result: object) -> None:
        """A run has done what it had to do for a message."""
        self.returned[owner, message_id] = result

    def told(self, message_id: str, result: object) -> None:
        """A source is told what the run of its message returned."""
        if result not in self._results(message_id):
            self.broken("M17", f"the source of {message_id} is told the result {result!r}, which is not its own")

    def _results(self, message_id: str) -> list[Any]:
        owner = self.handled_by.get(message_id)
        return [
            result
            for (by, handled), result in self.returned.items()
            if handled == message_id and (owner is None or by == owner)
        ]

    def answered(self, asked: Asked, answer: object) -> None:
        """A call ends, with an answer or an error."""
        match answer:
            case Routed():
                gone = {effect.owner for effect in asked.effects if effect.what == "superseded"}
                if set(answer.superseded) != gone and not (asked.repeated and gone.issuperset(answer.superseded)):
                    self.broken("M21", f"{asked.owner} has replaced {gone}, and is told: {answer.superseded}")
            case Beat() if asked.note is not None and json.dumps(asked.note) not in self.notes[answer.fence]:
                self.broken("M18", f"{asked.owner} is told that it has noted {asked.note!r}, and it has not")
            case Status():
                self._noted(answer.fence, answer.note)
                if asked.call == "find":
                    self._found(asked.sought, answer)
            case KeyStatus():
                self._noted(answer.fence, answer.note)
            case _:
                pass

    def _noted(self, fence: int | None, note: object) -> None:
        if note is not None and json.dumps(note) not in self.notes[fence or 0]:
            self.broken("M18", f"the note {note!r} is shown, and the tenure {fence} has not noted it")

    def _found(self, message_id: str, status: Status) -> None:
        """M17."""
        kept, result = "none", None
        if status.state == "handled" and self.policy.result_bytes:
            result = self.returned[self.handled_by[message_id], message_id]
            kept = "kept"
            if len(json.dumps(result)) > self.policy.result_bytes:
                kept, result = "too large", None
        if (status.result_is, status.result) != (kept, result):
            self.broken("M17", f"of {message_id} ({status.state}) the result {result!r} ({kept}) is found as {status}")
