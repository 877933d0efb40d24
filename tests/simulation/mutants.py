"""Seeded bugs, each a rule left out: the simulation must find every one of them, or it would not see the real ones.

The names of the first are those under which the rules were found; the shortest account of why each rule is there is
what happens without it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from incumbent import rules
from incumbent.rules import Ended, KeyState, Stored
from tests.simulation.plans import STORES
from tests.simulation.simulated_provider import NO_BUGS, Bugs
from tests.simulation.store import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug: in the rules, in a provider, or in the runtime.

    ``breaks`` are the rules that may show it, ``scenario`` is where it shows soon, ``stores`` on which it can.
    """

    name: str
    says: str
    breaks: tuple[str, ...]
    scenario: str
    rules: Rules = field(default_factory=Rules)
    bugs: Bugs = NO_BUGS
    waits_for_heartbeats: bool = True
    notices_loss: bool = True
    blind_to: str = ""
    first: int = 0  # the seed from which on it is looked for: later than others, if it is rare
    routes_behind_live_only: bool = False
    stores: tuple[str, ...] = ("one clock",)


FAITHFUL = Mutant(name="", says="all as it should be", breaks=(), scenario="", stores=STORES)


class _WithoutBy(Rules):
    """A repeated claim does not know its own message."""

    @staticmethod
    def claim(state: KeyState, now_ms: int, owner: str, *rest: Any, **more: Any) -> Any:
        mine = {message.id for message in state.mail if message.claimed_by == owner}
        blind = replace(
            state,
            mail=tuple(
                replace(message, claimed_by="" if message.id in mine else message.claimed_by) for message in state.mail
            ),
            ended=tuple(
                replace(trace, claimed_by="") if trace.claimed_by == owner and trace.outcome != "failed" else trace
                for trace in state.ended
            ),
        )
        after, said = rules.claim(blind, now_ms, owner, *rest, **more)
        if after == blind:
            return state, said
        seeing = tuple(replace(message, claimed_by=owner) if message.id in mine else message for message in after.mail)
        return replace(after, mail=seeing, ended=state.ended if after.ended == blind.ended else after.ended), said


class _WithoutDupclaim(Rules):
    """A message that waits on a free key is called a duplicate, and nobody runs it."""

    @staticmethod
    def claim(
        state: KeyState, now_ms: int, owner: str, ttl_ms: int, message: Stored | None, *, skew_ms: int = 0, **more: Any
    ) -> Any:
        waits = message is not None and message.id in {stored.id for stored in state.mail}
        if message is not None and waits and not rules.owned(state, now_ms, skew_ms):
            promised = tuple(replace(m, promised=m.promised or m.id == message.id) for m in state.mail)
            new = state if promised == state.mail else replace(state, mail=promised)
            return new, rules.Known(state="waiting", owner=None)
        return rules.claim(state, now_ms, owner, ttl_ms, message, skew_ms=skew_ms, **more)


class _WithoutPromise(Rules):
    """A source is told that its message is safe, and no mark says so."""

    @staticmethod
    def claim(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.claim(state, *rest, **more)
        return (state if isinstance(said, rules.Known) and said.state in ("waiting", "running") else after), said


class _WithoutEvidence(Rules):
    """A repeated settle is judged like a first one."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        return rules.settle(state, *rest, **{**more, "repeated": False})


class _WithoutEvidenceUnknown(Rules):
    """A repeated settle without evidence has lost, rather than not known."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(state, *rest, **more)
        return after, "lost" if said == "unknown" else said


class _WithoutTomb(Rules):
    """A failed own message leaves no trace of its claim."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(state, *rest, **more)
        return _with_traces(after, [trace for trace in after.ended if trace.outcome != "failed"]), said


class _WithoutHandnocount(Rules):
    """Passing the key to a successor counts as a delivery."""

    @staticmethod
    def settle(state: KeyState, now_ms: int, *rest: Any, ticket: str | None = None, **more: Any) -> Any:
        after, said = rules.settle(state, now_ms, *rest, ticket=ticket, **more)
        if ticket is None or not isinstance(said, rules.Granted) or after is state:
            return after, said
        oldest = rules.due(after, now_ms)[0].id
        mail = tuple(replace(m, attempts=m.attempts + (m.id == oldest)) for m in after.mail)
        return replace(after, mail=mail), said


class _WithoutFullown(Rules):
    """A full mailbox refuses the only one who could empty it."""

    @staticmethod
    def claim(
        state: KeyState,
        now_ms: int,
        owner: str,
        ttl_ms: int,
        message: Stored | None,
        *,
        policy: Any,
        skew_ms: int = 0,
        **more: Any,
    ) -> Any:
        known = {stored.id for stored in state.mail} | {trace.id for trace in state.ended}
        if (
            message is not None
            and message.id not in known
            and len(state.mail) >= policy.max_pending
            and state.owner != owner
        ):
            return state, "full"
        return rules.claim(state, now_ms, owner, ttl_ms, message, policy=policy, skew_ms=skew_ms, **more)


class _WithoutDeaddup(Rules):
    """A dead id is not known any more."""

    @staticmethod
    def claim(state: KeyState, *rest: Any, **more: Any) -> Any:
        alive = _with_traces(state, [trace for trace in state.ended if trace.outcome != "dead"])
        after, said = rules.claim(alive, *rest, **more)
        return (state, said) if after is alive else (replace(after, ended=(*state.ended, *after.ended)), said)


class _ClosesWithMessages(Rules):
    """A settle frees the key whatever waits."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        return rules.settle(state, *rest, **{**more, "next_owner": None, "ticket": None})


class _NewestFirst(Rules):
    """The newest due message is delivered."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(replace(state, mail=state.mail[::-1]), *rest, **more)
        return replace(after, mail=after.mail[::-1]), said


class _SameFence(Rules):
    """The key passes on under the fence of the tenure before."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(state, *rest, **more)
        if not isinstance(said, rules.Granted) or after is state:
            return after, said
        mail = tuple(
            replace(m, delivered_fence=state.fence if m.delivered_fence == after.fence else m.delivered_fence)
            for m in after.mail
        )
        return replace(after, fence=state.fence, mail=mail), replace(said, fence=state.fence)


class _LiveForEver(Rules):
    """Settle compares the owner and not the expiry."""

    @staticmethod
    def settle(state: KeyState, now_ms: int, *rest: Any, **more: Any) -> Any:
        return rules.settle(replace(state, expires_ms=max(state.expires_ms, now_ms + 1)), now_ms, *rest, **more)


class _MarkSurvives(Rules):
    """A successor inherits the mark of the tenure before."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(state, *rest, **more)
        passed = isinstance(said, rules.Granted) and after is not state
        return (replace(after, stop=state.stop) if passed else after), said


class _SettlesInHold(Rules):
    """A settle passes a key on although it is held."""

    @staticmethod
    def settle(
        state: KeyState, now_ms: int, *rest: Any, hold_ms: int = 0, hold_reason: str | None = None, **more: Any
    ) -> Any:
        after, said = rules.settle(replace(state, held_until_ms=0), now_ms, *rest, **more)
        if said in ("lost", "unknown"):
            return state, said
        again = replace(after, held_until_ms=state.held_until_ms)
        return rules.hold(again, now_ms, now_ms + hold_ms, hold_reason), said


class _WithoutDebounce(Rules):
    """A message that comes to a free key does not wait for quiet."""

    @staticmethod
    def claim(state: KeyState, *rest: Any, **more: Any) -> Any:
        return rules.claim(state, *rest, **{**more, "debounce": None})


class _NoteSurvives(Rules):
    """A successor inherits the note of the tenure before."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        after, said = rules.settle(state, *rest, **more)
        passed = isinstance(said, rules.Granted) and after is not state
        return (replace(after, note=state.note) if passed else after), said


class _ForgetsResults(Rules):
    """A settle keeps no result, though the policy says so."""

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        return rules.settle(state, *rest, **{**more, "results": None})


class _KeepsAll(Rules):
    """What is stored behind an owner replaces nothing."""

    @staticmethod
    def claim(state: KeyState, *rest: Any, policy: Any, **more: Any) -> Any:
        return rules.claim(state, *rest, policy=replace(policy, keep="all"), **more)


class _ReplacesFailed(Rules):
    """What has failed, or is for later, is replaced as if it had never been delivered and were due."""

    @staticmethod
    def claim(state: KeyState, now_ms: int, *rest: Any, **more: Any) -> Any:
        after, said = rules.claim(state, now_ms, *rest, **more)
        if not isinstance(said, rules.Accepted) or not said.superseded:
            return after, said
        gone = [m for m in after.mail if m.due_ms > now_ms and m.delivered_fence != after.fence]
        traces = [Ended(id=m.id, outcome="superseded", claimed_by="", fence=0, at_ms=now_ms) for m in gone]
        mail = tuple(m for m in after.mail if m not in gone)
        superseded = (*said.superseded, *(m.id for m in gone))
        return replace(after, mail=mail, ended=(*after.ended, *traces)), replace(said, superseded=superseded)


class _DueAtOnce(Rules):
    """What is for later is due at once."""

    @staticmethod
    def claim(state: KeyState, *rest: Any, **more: Any) -> Any:
        return _undelayed(rules.claim, state, *rest, **more)

    @staticmethod
    def settle(state: KeyState, *rest: Any, **more: Any) -> Any:
        return _undelayed(rules.settle, state, *rest, **more)

    @staticmethod
    def take(state: KeyState, *rest: Any, **more: Any) -> Any:
        return _undelayed(rules.take, state, *rest, **more)


def _undelayed(step: Callable[..., Any], state: KeyState, *rest: Any, **more: Any) -> Any:
    blind = replace(state, mail=tuple(replace(m, due_ms=m.due_ms if m.attempts else 0) for m in state.mail))
    after, said = step(blind, *rest, **more)
    return (state if after is blind else after), said


def _with_traces(state: KeyState, traces: list[Ended]) -> KeyState:
    return state if len(traces) == len(state.ended) else replace(state, ended=tuple(traces))


_ALL = (
    Mutant(name="by", says=_WithoutBy.__doc__ or "", breaks=("R8",), scenario="unsure", rules=_WithoutBy()),
    Mutant(
        name="dupclaim",
        says=_WithoutDupclaim.__doc__ or "",
        breaks=("M1",),
        scenario="orphaned",
        rules=_WithoutDupclaim(),
    ),
    Mutant(
        name="promise", says=_WithoutPromise.__doc__ or "", breaks=("M3",), scenario="again", rules=_WithoutPromise()
    ),
    Mutant(
        name="evidence",
        says=_WithoutEvidence.__doc__ or "",
        breaks=("R8",),
        scenario="unsure",
        rules=_WithoutEvidence(),
    ),
    Mutant(
        name="evidence_unknown",
        says=_WithoutEvidenceUnknown.__doc__ or "",
        breaks=("R8",),
        scenario="unsure",
        rules=_WithoutEvidenceUnknown(),
    ),
    Mutant(name="tomb", says=_WithoutTomb.__doc__ or "", breaks=("M3",), scenario="copies", rules=_WithoutTomb()),
    Mutant(
        name="dlstored",
        says="The deadline is counted from the sending alone, whatever the store says of the expiry.",
        breaks=("R1", "R12"),
        scenario="cut_off",
        bugs=Bugs(remaining_unread=True),
    ),
    Mutant(
        name="noshort",
        says="A late copy of a renewal sets the expiry to an earlier time.",
        breaks=("R4", "R12"),
        scenario="long_runs",
        blind_to=r"^lease\.expires <= ",
        stores=("dynamodb",),
    ),
    Mutant(
        name="ticket",
        says="Whoever is woken owns the key as the ticket itself.",
        breaks=("R1", "M9"),
        scenario="hand_over",
        bugs=Bugs(ticket_is_owner=True),
    ),
    Mutant(
        name="handnocount",
        says=_WithoutHandnocount.__doc__ or "",
        breaks=("M6",),
        scenario="hand_over",
        rules=_WithoutHandnocount(),
    ),
    Mutant(
        name="append_any",
        says="Messages are routed only behind an owner that lives, so routing may loop.",
        breaks=("M10",),
        scenario="rush",
        routes_behind_live_only=True,
        stores=("dynamodb",),
    ),
    Mutant(
        name="takeguard",
        says="An exact change of a list that was never edited does not ask whether it has been since.",
        breaks=("M3",),
        scenario="again",
        first=3_000,
        blind_to=r"^attribute_not_exists\(edits\)",
        stores=("dynamodb",),
    ),
    Mutant(
        name="fullown", says=_WithoutFullown.__doc__ or "", breaks=("M7",), scenario="full", rules=_WithoutFullown()
    ),
    Mutant(
        name="deaddup", says=_WithoutDeaddup.__doc__ or "", breaks=("M5",), scenario="poison", rules=_WithoutDeaddup()
    ),
    Mutant(
        name="heartbeat not waited for",
        says="A run is settled while its heartbeat may still renew.",
        breaks=("H11", "H13"),
        scenario="long_runs",
        waits_for_heartbeats=False,
    ),
    Mutant(
        name="deadline after the request",
        says="The deadline is counted from the answer.",
        breaks=("R1", "R12"),
        scenario="cut_off",
        bugs=Bugs(deadline_after_answer=True),
    ),
    Mutant(
        name="close without a look",
        says="A close does not ask whether a message has come since.",
        breaks=("M3",),
        scenario="pair",
        blind_to=r"^attribute_not_exists\(mail\[",
        stores=("dynamodb",),
    ),
    Mutant(
        name="settle under a lost lease",
        says="A run that has lost its lease is settled all the same.",
        breaks=("R3",),
        scenario="long_runs",
        notices_loss=False,
    ),
    Mutant(
        name="closes with messages",
        says=_ClosesWithMessages.__doc__ or "",
        breaks=("M2",),
        scenario="pair",
        rules=_ClosesWithMessages(),
    ),
    Mutant(
        name="newest first", says=_NewestFirst.__doc__ or "", breaks=("M4",), scenario="crowd", rules=_NewestFirst()
    ),
    Mutant(name="same fence", says=_SameFence.__doc__ or "", breaks=("R7",), scenario="pair", rules=_SameFence()),
    Mutant(
        name="mark survives",
        says=_MarkSurvives.__doc__ or "",
        breaks=("M16",),
        scenario="stopped",
        rules=_MarkSurvives(),
    ),
    Mutant(
        name="settles in hold",
        says=_SettlesInHold.__doc__ or "",
        breaks=("M15",),
        scenario="held",
        rules=_SettlesInHold(),
    ),
    Mutant(
        name="debounce",
        says=_WithoutDebounce.__doc__ or "",
        breaks=("M15",),
        scenario="quiet",
        rules=_WithoutDebounce(),
    ),
    Mutant(
        name="note survives",
        says=_NoteSurvives.__doc__ or "",
        breaks=("M18",),
        scenario="answered",
        rules=_NoteSurvives(),
    ),
    Mutant(
        name="forgets results",
        says=_ForgetsResults.__doc__ or "",
        breaks=("M17",),
        scenario="answered",
        rules=_ForgetsResults(),
    ),
    Mutant(name="keeps all", says=_KeepsAll.__doc__ or "", breaks=("M21",), scenario="latest", rules=_KeepsAll()),
    Mutant(
        name="replaces failed",
        says=_ReplacesFailed.__doc__ or "",
        breaks=("M21",),
        scenario="latest",
        rules=_ReplacesFailed(),
    ),
    Mutant(name="due at once", says=_DueAtOnce.__doc__ or "", breaks=("M14",), scenario="later", rules=_DueAtOnce()),
    *(
        Mutant(
            name=f"blind to {attribute}",
            says=f"No condition of the DynamoDB provider takes notice of {attribute}.",
            breaks=breaks,
            scenario=scenario,
            stores=("dynamodb",),
            blind_to=rf"\b{re.escape(attribute)}",
            first=3_000 if attribute == "edits" else 0,
        )
        for attribute, breaks, scenario in (
            ("edits", ("M3",), "again"),
            ("lease.expires", ("R1", "R12"), "only_leases"),
            ("lease.holder", ("R1", "R12"), "only_leases"),
            ("known", ("M5",), "short_of_time"),
            ("tombs", ("M3",), "copies"),
            ("mail[", ("M3",), "pair"),
            ("given", ("M6",), "orphaned"),
            ("not_before", ("M15",), "held"),
        )
    ),
)

MUTANTS: Mapping[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
