"""Tells from traces what became of every message: pure, so that tests invent the traces.

With ``INCUMBENT_TRACE=1`` the runtime prints a line per fact, ``INCUMBENT`` and a JSON object. Together with
the answers that the callers got they decide:

* a *run* is from ``run_started`` to ``run_ended`` of one owner; if its process died, to the end of its
  invocation;
* an *overlap* is two runs of one key, by different owners, that share an instant;
* a message is *handled* by each run that ended with the outcome ``handled`` and named it;
* a message whose invocation was answered well, but which no run handled, which was not turned away in that
  answer, and which is not among the dead, is *waiting* if the store has it still, and else *lost*;
* a message that its invocation's answer gives back to its source (``batchItemFailures``) is *refused*: the source
  has it still;
* an invocation that was answered well and told of no message brought none: a status page, the sweeper.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from incumbent.keyspaces import split_key
from incumbent.local.invocations import Invocation, Outcome
from incumbent.owners import is_ticket, request_of

PREFIX = "INCUMBENT "

Find = Callable[[str, str], str | None]
"""What a store says of a message, by its key and id: waiting, running, how it left, or None."""

_MESSAGE_FACTS = frozenset({"claimed", "routed", "duplicate", "busy", "sent"})
_HTTP_REFUSED = 400
_MAX_NAMES = 12
_MADE_UP = "local-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that the runtime says it did or learnt; ``t_ms`` is epoch milliseconds.

    ``message_id`` is the message that the invocation brought, ``message_ids`` what the fact is about. ``attempt`` is
    which delivery of its first message a run is, from 1; 0 where the fact does not say.
    """

    t_ms: float
    fact: str
    key: str = ""
    owner: str = ""
    request_id: str = ""
    message_id: str = ""
    message_ids: tuple[str, ...] = ()
    holder: str = ""
    outcome: str = ""
    waiting: int = 0
    attempt: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the caller of one invocation was told, at its last attempt or at one before.

    ``label`` is empty for a run that the scenario did not start: a woken successor. ``accepted`` is whether the
    caller may believe that its message is in good hands; ``told`` is the rest of it, for people. ``kept`` are the ids
    of the batch's records that were not given back to their source; ``None`` where none was given back.
    """

    label: str
    request_id: str
    ended_at_ms: float
    accepted: bool
    told: str = ""
    kept: frozenset[str] | None = None

    def accepts(self, message_id: str) -> bool:
        """Whether the caller may believe that this message is in good hands.

        Where records were given back, that goes for those alone that are known to be among the others.
        """
        return self.accepted and (self.kept is None or message_id in self.kept)

    @classmethod
    def of(cls, invocation: Invocation) -> "Answer":
        """Read it from an invocation that has ended."""
        accepted, told = _told(invocation)
        kept, told_of_batch = _kept(invocation.event, invocation.payload) if accepted else (None, "")
        return cls(
            label=invocation.label,
            request_id=invocation.request_id,
            ended_at_ms=invocation.ended_at_ms,
            accepted=accepted,
            told=" · ".join(filter(None, (told, told_of_batch, _told_of_retry(invocation)))),
            kept=kept,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a key's owner."""

    key: str
    owner: str
    started_at_ms: float
    ended_at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What became of everything; the names of messages are sorted.

    ``untraced`` are the labels of invocations that were answered well and told no fact: they brought no message, unless
    a decorator was forgotten. One that was answered with an error counts as a message of its label.
    """

    sent: int
    handled_once: int
    routed: int
    owners: int
    overlaps: tuple[tuple[Run, Run], ...] = ()
    waiting: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    handled_twice: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    turned_away: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    untraced: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing was lost or handled twice, no two runs of a key overlapped, and not all was put off."""
        put_off = self.refused or self.waiting
        return not (self.overlaps or self.lost or self.handled_twice or (put_off and not self.handled_once))


def read_facts(line: str, request_id: str | None = None) -> list[Fact]:
    """Return the facts in a line of a log: none, one, or several where two threads printed at once.

    ``request_id`` is the invocation that printed it, for facts that do not say: ``send`` does not know it, and a leased
    function that is not given the context makes one up.
    """
    facts = []
    for text in line.split(PREFIX)[1:]:
        try:
            raw, _ = json.JSONDecoder().raw_decode(text)
            made_up = str(raw.get("request_id") or _MADE_UP).startswith(_MADE_UP)
            facts.append(_fact({**raw, "request_id": request_id or raw.get("request_id")} if made_up else raw))
        except (LookupError, AttributeError, ArithmeticError, ValueError, TypeError, RecursionError):
            # A function's line that only looks like one.
            continue
    return facts


def _nowhere(_key: str, _message_id: str) -> None:
    return None


def summarise(facts: Iterable[Fact], answers: Iterable[Answer], find: Find = _nowhere) -> Summary:
    """Count. Of several answers to one request the last one holds (an asynchronous invocation is retried).

    ``find`` is asked for messages that were accepted and that no fact accounts for.
    """
    facts = sorted(facts, key=lambda fact: fact.t_ms)
    answers = list(answers)
    last = {answer.request_id: answer for answer in answers if answer.label}
    messages: dict[str, dict[str, None]] = defaultdict(dict)
    keys: dict[str, str] = {}
    turned_away: set[str] = set()
    handled: Counter[str] = Counter()
    dead: set[str] = set()
    stopped: set[str] = set()
    superseded: set[str] = set()
    for fact in facts:
        if fact.fact in _MESSAGE_FACTS and fact.request_id in last:
            messages[fact.request_id].update(dict.fromkeys(_brought(fact)))
            keys.update(dict.fromkeys(_brought(fact), fact.key))
        if fact.fact == "busy":
            turned_away.update(_brought(fact))
        if fact.fact == "run_ended" and fact.outcome == "handled":
            handled.update(fact.message_ids)
        if fact.fact == "run_ended" and fact.outcome == "stopped":
            stopped.update(fact.message_ids)
        if fact.fact == "dead":
            dead.update(fact.message_ids)
        if fact.fact == "superseded":
            superseded.update(fact.message_ids)

    sent: dict[str, bool] = {}  # message: whether anybody was told that it is in good hands
    for request_id, answer in last.items():
        for message in messages.get(request_id) or ({} if answer.accepted else {answer.label: None}):
            sent[message] = sent.get(message, False) or answer.accepts(message)
    told = {fact.request_id for fact in facts}
    accounted = handled.keys() | dead | turned_away | stopped | superseded
    stored = _asked([each for each, good in sent.items() if good and each not in accounted], keys, find)
    handled.update(stored["handled"])  # its run's process died before it could tell
    dead.update(stored["dead"])
    stopped.update(stored["stopped"])
    superseded.update(stored["superseded"])
    return Summary(
        sent=len(sent),
        handled_once=sum(handled[message] == 1 for message in sent),
        routed=sum(fact.fact == "routed" for fact in facts),
        owners=len({(fact.key, fact.owner) for fact in facts if fact.fact == "run_started"}),
        overlaps=overlaps(runs(facts, answers)),
        waiting=_sorted(stored["waiting"] + stored["running"]),
        lost=_sorted(stored[None]),
        handled_twice=_sorted(message for message, times in handled.items() if times > 1),
        refused=_sorted(message for message, accepted in sent.items() if not accepted and not handled[message]),
        turned_away=_sorted(message for message in turned_away if not handled[message]),
        dead=_sorted(dead),
        stopped=_sorted(stopped),
        superseded=_sorted(superseded),
        cancelled=_sorted(stored["cancelled"]),
        untraced=_sorted(answer.label for name, answer in last.items() if answer.accepted and name not in told),
    )


def runs(facts: Iterable[Fact], answers: Iterable[Answer]) -> list[Run]:
    """Return the runs, in the order of their start. A run without an end lasts until its process is gone."""
    ends: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        ends[answer.request_id].append(answer.ended_at_ms)
    opened: dict[tuple[str, str], Fact] = {}
    found = []
    for fact in sorted(facts, key=lambda fact: fact.t_ms):
        which = (fact.key, fact.owner)
        if fact.fact == "run_started":
            opened[which] = fact
        elif fact.fact == "run_ended" and which in opened:
            found.append(_run(opened.pop(which), fact.t_ms))
    for fact in opened.values():
        started_ms = math.floor(fact.t_ms)  # answers are told in whole milliseconds
        end = min((at for at in ends[fact.request_id] if at >= started_ms), default=math.inf)
        found.append(_run(fact, end))
    return sorted(found, key=lambda run: (run.started_at_ms, run.ended_at_ms))


def overlaps(all_runs: Iterable[Run]) -> tuple[tuple[Run, Run], ...]:
    """Return the pairs of runs of one key, by different owners, that share more than a boundary."""
    found = []
    going_on: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(all_runs, key=lambda run: (run.started_at_ms, run.ended_at_ms)):
        going_on[run.key] = [other for other in going_on[run.key] if other.ended_at_ms > run.started_at_ms]
        found += [(other, run) for other in going_on[run.key] if other.owner != run.owner]
        going_on[run.key].append(run)
    return tuple(found)


def story(facts: Iterable[Fact], name: Callable[[str], str], *, ending: str = "") -> str:
    """Return what one invocation did, in a few words. ``name`` tells what a request id is called.

    ``ending`` is what is told of the invocation's end: an error that it names is not told twice.
    """
    told = (_tell(fact, name, ending) for fact in sorted(facts, key=lambda fact: fact.t_ms))
    return " · ".join(text for text in told if text)


def thread_of(key: str) -> str:
    """Return the user's key: what stands behind the keyspace."""
    return split_key(key)[1]


def summary_lines(summary: Summary, name: Callable[[str], str] = str) -> list[str]:
    """Return the closing lines: the counts, and whatever is wrong by name.

    ``name`` tells what a request id is called.
    """
    counts = {
        "sent": summary.sent,
        "handled once": summary.handled_once,
        "routed": summary.routed,
        "owners": summary.owners,
        "overlaps": len(summary.overlaps),
        "lost": len(summary.lost),
        "handled twice": len(summary.handled_twice),
    }
    more = {
        "waiting": summary.waiting,
        "refused": summary.refused,
        "turned away": summary.turned_away,
        "dead": summary.dead,
        "stopped": summary.stopped,
        "superseded": summary.superseded,
        "cancelled": summary.cancelled,
    }
    counts |= {what: len(which) for what, which in more.items() if which}
    lines = [", ".join(f"{what} {count}" for what, count in counts.items())]
    for what, which in {"lost": summary.lost, "handled twice": summary.handled_twice, **more}.items():
        if which:
            lines.append(f"{what}: {_some(which)}")
    if summary.untraced:
        lines.append(f"without a message, since no @leased and no send told of one: {_some(summary.untraced)}")
    pairs: dict[str, list[str]] = defaultdict(list)
    for first, second in summary.overlaps:
        pairs[first.key].append(" with ".join(name(run.owner.rpartition(".")[0]) for run in (first, second)))
    lines += [f"overlap: {thread_of(key)}: {_some(tuple(each))}" for key, each in pairs.items()]
    return lines


def _fact(raw: Mapping[str, Any]) -> Fact:
    def text(name: str) -> str:
        value = raw.get(name)
        return "" if value is None else str(value)

    return Fact(
        t_ms=float(raw["t_ms"]),
        fact=str(raw["fact"]),
        key=text("key"),
        owner=text("owner"),
        request_id=text("request_id"),
        message_id=text("message_id"),
        message_ids=tuple(str(each) for each in raw.get("message_ids") or ()),
        holder=text("holder"),
        outcome=text("outcome"),
        waiting=int(raw.get("waiting") or 0),
        attempt=int(raw.get("attempt") or 0),
        error=text("error"),
    )


def _tell(fact: Fact, name: Callable[[str], str], ending: str) -> str:  # noqa: C901, PLR0912 - a table
    messages = ", ".join(fact.message_ids)
    match fact.fact:
        case "claimed":
            return "owned"
        case "routed":
            return f"routed to {_holder(fact, name)}"
        case "duplicate":
            return f"duplicate, {fact.outcome}" if fact.outcome else "duplicate"
        case "sent":
            return "sent" if fact.outcome in {"", "waiting"} else f"sent before, {fact.outcome}"
        case "busy":
            return f"busy with {_holder(fact, name)}"
        case "run_ended":
            if fact.outcome == "failed" and fact.error and not ending.endswith(fact.error):
                return f"failed {messages} ({fact.error})"
            return f"ran {messages}" if fact.outcome == "handled" else f"{fact.outcome} {messages}"
        case "continued":
            # To a ticket it went on only in name; ``handed_over`` or ``wake_failed`` says what came of it.
            return "" if is_ticket(fact.owner) else "went on"
        case "released":
            return f"released, {fact.waiting} left" if fact.waiting else "released"
        case "handed_over":
            return "handed over"
        case "idle":
            return "nothing due"
        case "lost":
            return "lost its lease"
        case "wake_failed" | "chain_cut" | "store_error":
            return f"{fact.fact.replace('_', ' ')} ({fact.error})"
        case "dead":
            return f"gave up {messages}"
        case _:
            return ""


def _holder(fact: Fact, name: Callable[[str], str]) -> str:
    """Who holds the key: the invocation of an owner, ``<request id>.<random>``, or one that was just woken."""
    request_id = request_of(fact.holder)
    if request_id is None:
        return fact.holder if fact.holder and not is_ticket(fact.holder) else "a successor on its way"
    return name(request_id)


def _told(invocation: Invocation) -> tuple[bool, str]:
    if invocation.outcome is not Outcome.OK:
        error: Mapping[str, Any] = invocation.error or {}
        kind, text = str(error.get("errorType", "")), str(error.get("errorMessage", ""))
        return False, f"{invocation.outcome}: {kind}: {text}".rstrip(": ")
    status = invocation.payload.get("statusCode") if isinstance(invocation.payload, dict) else None
    if type(status) is int:
        return status < _HTTP_REFUSED, f"HTTP {status}"
    return True, ""


def _kept(event: Any, answer: Any) -> tuple[frozenset[str] | None, str]:
    """The ids of a batch's records that its answer does not give back, and what that is for people.

    As Lambda reads it: an identifier that names no record gives back all; of a stream all that stands behind the first.
    """
    failures = answer.get("batchItemFailures") if isinstance(answer, dict) else None
    records = event.get("Records") if isinstance(event, dict) else None
    if not failures or not isinstance(failures, list) or not isinstance(records, list):
        return None, ""
    names = [_names_of_record(record) for record in records]
    by_identifier = {identifier: at for at, (identifier, _) in enumerate(names) if identifier}
    failed = {by_identifier.get(str(each.get("itemIdentifier")) if isinstance(each, dict) else "") for each in failures}
    if None in failed:
        failed = set(range(len(names)))
    elif not any(_is_of_a_queue(record) for record in records):
        failed = set(range(min(at for at in failed if at is not None), len(names)))
    kept = frozenset(message_id for at, (_, message_id) in enumerate(names) if at not in failed)
    return kept, f"{len(failed)} of {len(names)} records given back"


def _is_of_a_queue(record: Any) -> bool:
    return isinstance(record, dict) and "messageId" in record


def _names_of_record(record: Any) -> tuple[str, str]:
    """What a batch's answer calls a record, and the id that its message has unless another is chosen."""
    if not isinstance(record, dict):
        return "", ""
    if _is_of_a_queue(record):
        return str(record["messageId"]), str(record["messageId"])
    inner = record.get("kinesis") or record.get("dynamodb")
    number = inner.get("sequenceNumber") or inner.get("SequenceNumber") if isinstance(inner, dict) else None
    return str(number or ""), str(record.get("eventID") or "")


def _told_of_retry(invocation: Invocation) -> str:
    return "" if invocation.retried_in_ms is None else f"retried in {invocation.retried_in_ms / 1_000:g} s"


def _asked(messages: Iterable[str], keys: Mapping[str, str], find: Find) -> dict[str | None, list[str]]:
    """The messages by what their store says of them."""
    said: dict[str | None, list[str]] = defaultdict(list)
    for message in messages:
        said[find(keys[message], message) if message in keys else None].append(message)
    return said


def _brought(fact: Fact) -> tuple[str, ...]:
    return (fact.message_id,) if fact.message_id else fact.message_ids


def _run(started: Fact, ended_at_ms: float) -> Run:
    return Run(key=started.key, owner=started.owner, started_at_ms=started.t_ms, ended_at_ms=ended_at_ms)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _sorted(messages: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(messages))
