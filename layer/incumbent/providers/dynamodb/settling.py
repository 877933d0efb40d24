"""Settles: record the outcome of a run, and free its key or pass it on, in as few requests as that takes (M2, M10).

::

    1  the quick settle       the only message, stored by its owner itself, is handled or dropped, and nothing waits
       refused                the refusal shows the record
    2  the exact settle       all else, on the record that was shown or, where a quick one could not help, read

A settle that finds the record full of traces moves them into a page, which is a put more. Each fourth tenure of a key,
as its fence tells, expects that and reads the record at once, since a refused request costs as many write units as a
write. Each result that is kept is a put more, too (M17).
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from incumbent import rules
from incumbent.frozen import dataclass
from incumbent.providers.dynamodb import quick
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.steps import FREED, Steps, When, due_in_ms, expires_in_ms, until, waiting
from incumbent.providers.dynamodb.table import Answer, TableCall
from incumbent.rules import KeyState
from incumbent.values import Continued, Failure, Policy, Released

Said: TypeAlias = "rules.Granted | rules.Freed | rules.Lost | rules.Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """One settle."""

    steps: Steps
    call: TableCall
    owner: str
    ttl_ms: int
    handled: Sequence[str]
    failed: Sequence[Failure]
    dropped: Sequence[Failure]
    deferred: Sequence[str]
    next_owner: str | None
    ticket: str | None
    policy: Policy
    stopped: Sequence[str]
    results: Mapping[str, str]
    hold_ms: int
    hold_reason: str
    fence: int | None

    def carry_out(self) -> Released | Continued:
        """Settle. Raises ``LeaseLost``, ``LeaseUnavailable`` where the outcome is not known (R9), and the table's."""
        step = self.steps.step(
            self.call,
            self._first(),
            self._rule,
            held=True,
            closes=self._successor is not None,
            window_ms=self.policy.window_ms,
            fills=self._fills,
        )
        answer = step.answer
        match self._said_in_full(answer, step.said):
            case rules.Granted() as granted:
                given = () if self.ticket is not None else rules.given(answer.record.state)
                return Continued(
                    owner=granted.owner,
                    fence=answer.record.state.fence,
                    messages=self.steps.messages(self.call, given),
                    waiting=waiting(answer),
                    expires_in_ms=expires_in_ms(answer),
                    deadline=until(answer, self.ttl_ms),
                    stop=granted.stop,
                    dead_lettered=answer.dead_lettered,
                )
            case rules.Freed() as freed:
                return Released(
                    remaining=len(answer.record.state.mail),
                    due_in_ms=due_in_ms(answer, freed.due_ms),
                    stop=freed.stop,
                    dead_lettered=answer.dead_lettered,
                )
            case "lost":
                raise self.steps.lost(self.call, self.owner, answer)
            case _:
                raise self.steps.in_doubt(self.call, self.owner, answer)

    @property
    def _successor(self) -> str | None:
        return self.next_owner or self.ticket

    @property
    def _fills(self) -> bool:
        """Whether as many tenures have come since the last page as the record may have traces."""
        inline = self.steps.inline_traces
        return self.fence is not None and inline > 1 and self.fence % inline == inline - 1

    @property
    def _finished(self) -> list[str]:
        return [*self.handled, *self.stopped, *(failure.id for failure in self.dropped)]

    def _first(self) -> Answer[Said]:
        """Try the quick settle if it may do, else read the record."""
        others = self.failed or self.deferred or self.results or self.hold_ms or self._fills
        fence, ids = self.fence, self._finished
        if fence is None or len(ids) != 1 or others:
            return self.steps.table.read(self.call)

        def freeing(now_ms: int) -> tuple[Request, Said]:
            request = quick.settle(
                self.owner,
                ids[0],
                "handled" if self.handled else "stopped" if self.stopped else "failed",
                fence=fence,
                policy=self.policy,
                inline=self.steps.inline_traces,
                now_ms=now_ms,
            )
            return request, FREED

        return self.steps.table.update(self.call, freeing)

    def _rule(self, state: KeyState, when: When) -> tuple[KeyState, Said]:
        return rules.settle(
            state,
            when.now_ms,
            self.owner,
            self.ttl_ms,
            handled=self.handled,
            failed=self.failed,
            dropped=self.dropped,
            deferred=self.deferred,
            policy=self.policy,
            stopped=self.stopped,
            results=self.results,
            hold_ms=self.hold_ms,
            hold_reason=self.hold_reason,
            next_owner=self.next_owner,
            ticket=self.ticket,
            fence=self.fence,
            repeated=when.repeated,
        )

    def _said_in_full(self, answer: Answer[Said], said: Said) -> Said:
        """Look also at the traces in pages, before an earlier try counts as unknown (R9)."""
        if said != "unknown":
            return said
        for message_id in self._finished:
            record = self.steps.remember(self.call, answer, message_id, self.owner).record
            said = self._rule(record.state, When(answer.now_ms, repeated=True))[1]
            if said != "unknown":
                break
        return said
