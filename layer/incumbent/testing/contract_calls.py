"""Every call of the contract in each of its branches: how a key gets there, the call, and what may be said of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.testing.conformance.subject import ControlProvider
from incumbent.values import (
    Acquisition,
    Beat,
    Claimed,
    Continued,
    DeadLetter,
    Debounce,
    Failure,
    KeyStatus,
    Message,
    Orphan,
    Policy,
    Status,
    Taken,
)

KEY = "k"
TTL_MS = 60_000
ONCE = Policy(max_attempts=1)
NARROW = Policy(max_pending=2)
LATEST = Policy(keep="latest")
KEPT = Policy(result_bytes=64)
BURST = Debounce(quiet_ms=TTL_MS, max_ms=2 * TTL_MS)
PATIENT = Policy(pauses_ms=(600_000,))  # what died pauses for longer than a test takes, however slow the machine is
EVERYTHING = 1_000

Step = Callable[[ControlProvider], Any]


def message(number: int, size: int = 0) -> Message:
    """A message whose event tells it from others; with a size, one that stands in an item of its own."""
    return Message(id=f"m{number}", event={"number": number, "filling": "x" * size})


def failure(number: int, after_ms: int | None = None) -> Failure:
    """What a run raised."""
    return Failure(id=f"m{number}", error="no", after_ms=after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCall:
    """One call, on a key that ``before`` has brought to where it matters."""

    name: str
    before: tuple[Step, ...] = ()
    call: Step
    doubtful: bool = False
    """Nothing in the store tells a repetition whether an earlier try took effect: not knowing is an answer too (R9)."""

    twice: bool = False
    """Who asks once more is told something else, which is as true: a repetition may say that as well (R8)."""


def claim(owner: str, number: int | None, **more: Any) -> Step:
    """A claim, with a message or without."""
    size = more.pop("size", 0)
    more.setdefault("policy", PATIENT)
    return lambda p: p.claim(KEY, owner, TTL_MS, None if number is None else message(number, size), **more)


def settle(owner: str, **more: Any) -> Step:
    """A settle."""
    more.setdefault("policy", PATIENT)
    return lambda p: p.settle(KEY, owner, ttl_ms=TTL_MS, **more)


def release(owner: str) -> Step:
    """A release."""
    return lambda p: p.release_lease(KEY, owner)


def acquire(owner: str) -> Step:
    """An acquire."""
    return lambda p: p.acquire_lease(KEY, owner, TTL_MS)


# A runs m1, and m2 waits.
RUNNING = (claim("A", 1), claim("B", 2))
# m1 and m2 wait, and the key is free.
WAITING = (*RUNNING, release("A"))
# A runs m1, m2 waits, and the key is held from then on; or it is free.
HELD = (*RUNNING, lambda p: p.hold(KEY, for_ms=TTL_MS, reason="an incident"), release("A"))
HELD_TICKET = (claim("T", 1, as_ticket=True), lambda p: p.hold(KEY))
# m1 is a dead letter.
BURIED = (claim("A", 1, policy=ONCE), settle("A", failed=[failure(1)], policy=ONCE))
# m1 is out of attempts, still in the mailbox.
SPENT = (claim("A", 1), release("A"))

CALLS = (
    ContractCall(name="acquire", call=acquire("A")),
    ContractCall(name="acquire again", before=(acquire("A"),), call=acquire("A")),
    ContractCall(name="acquire refused", before=(acquire("B"),), call=acquire("A")),
    ContractCall(name="owner", before=RUNNING, call=lambda p: p.get_lease_owner(KEY)),
    ContractCall(name="owner of a free key", call=lambda p: p.get_lease_owner(KEY)),
    ContractCall(name="renew", before=RUNNING, call=lambda p: p.renew_lease(KEY, "A", 2 * TTL_MS)),
    ContractCall(name="renew refused", before=RUNNING, call=lambda p: p.renew_lease(KEY, "C", TTL_MS)),
    ContractCall(name="release", before=RUNNING, call=release("A")),
    ContractCall(name="release of an empty key", before=(acquire("A"),), call=release("A")),
    ContractCall(name="release by a stranger", before=RUNNING, call=release("C")),
    ContractCall(name="transfer", before=RUNNING, call=lambda p: p.transfer_lease(KEY, "A", "A2", TTL_MS)),
    ContractCall(
        name="transfer by a stranger",
        before=RUNNING,
        call=lambda p: p.transfer_lease(KEY, "C", "C2", TTL_MS),
        doubtful=True,
    ),
    ContractCall(name="claim", call=claim("A", 1)),
    ContractCall(name="claim again", before=RUNNING, call=claim("A", 1)),
    ContractCall(name="claim after an acquire", before=(acquire("A"),), call=claim("A", 1)),
    ContractCall(name="claim behind older ones", before=WAITING, call=claim("C", 3)),
    ContractCall(name="claim of what waits", before=WAITING, call=claim("C", 2)),
    ContractCall(name="claim of a large body", call=claim("A", 1, size=20_000)),
    ContractCall(name="claim routed", before=RUNNING, call=claim("C", 3)),
    ContractCall(name="claim routed, a large body", before=RUNNING, call=claim("C", 3, size=20_000)),
    ContractCall(name="claim of what waits behind an owner", before=RUNNING, call=claim("C", 2)),
    ContractCall(name="claim of what runs", before=RUNNING, call=claim("C", 1)),
    ContractCall(
        name="claim of what was handled", before=(claim("A", 1), settle("A", handled=["m1"])), call=claim("C", 1)
    ),
    ContractCall(name="claim of what is dead", before=BURIED, call=claim("C", 1)),
    ContractCall(
        name="claim of what is out of attempts",
        before=SPENT,
        call=claim("C", 1, policy=ONCE),
        twice=True,
    ),
    ContractCall(
        name="claim of what was dropped", before=(claim("A", 1), settle("A", dropped=[failure(1)])), call=claim("C", 1)
    ),
    ContractCall(name="claim not routed", before=RUNNING, call=claim("C", 3, route=False)),
    ContractCall(name="claim of nothing, busy", before=RUNNING, call=claim("C", None)),
    ContractCall(name="claim of nothing, idle", call=claim("C", None)),
    ContractCall(name="claim of nothing, something due", before=WAITING, call=claim("C", None)),
    ContractCall(name="claim of a full mailbox", before=RUNNING, call=claim("C", 3, policy=NARROW)),
    ContractCall(name="claim as a ticket", call=claim("T", 1, as_ticket=True)),
    ContractCall(name="claim as a ticket, routed", before=RUNNING, call=claim("T", 3, as_ticket=True)),
    ContractCall(
        name="claim with a ticket", before=(claim("T", 1, as_ticket=True),), call=claim("A", None, ticket="T")
    ),
    ContractCall(name="claim with a spent ticket", before=RUNNING, call=claim("C", None, ticket="T")),
    ContractCall(name="settle", before=(claim("A", 1),), call=settle("A", handled=["m1"])),
    ContractCall(name="settle without a successor", before=RUNNING, call=settle("A", handled=["m1"])),
    ContractCall(name="settle on", before=RUNNING, call=settle("A", handled=["m1"], next_owner="A2")),
    ContractCall(name="settle with a ticket", before=RUNNING, call=settle("A", handled=["m1"], ticket="T")),
    ContractCall(
        name="settle, a ticket not needed", before=(claim("A", 1),), call=settle("A", handled=["m1"], ticket="T")
    ),
    ContractCall(name="settle failed", before=RUNNING, call=settle("A", failed=[failure(1)], next_owner="A2")),
    ContractCall(name="settle failed, pausing", before=(claim("A", 1),), call=settle("A", failed=[failure(1)])),
    ContractCall(name="settle dropped", before=(claim("A", 1),), call=settle("A", dropped=[failure(1)])),
    ContractCall(name="settle deferred", before=RUNNING, call=settle("A", deferred=["m1"], ticket="T")),
    ContractCall(name="settle dead", before=(claim("A", 1),), call=settle("A", failed=[failure(1)], policy=ONCE)),
    ContractCall(
        name="settle of a large body",
        before=(claim("A", 1, size=20_000),),
        call=settle("A", handled=["m1"]),
    ),
    ContractCall(name="settle by a stranger", before=RUNNING, call=settle("C", handled=["m1"]), doubtful=True),
    ContractCall(name="beat", before=RUNNING, call=lambda p: p.beat(KEY, "A", 2 * TTL_MS)),
    ContractCall(name="beat by a stranger", before=RUNNING, call=lambda p: p.beat(KEY, "C", TTL_MS)),
    ContractCall(name="take", before=RUNNING, call=lambda p: p.take(KEY, "A", TTL_MS, have=["m1"])),
    ContractCall(name="take of nothing", before=(claim("A", 1),), call=lambda p: p.take(KEY, "A", TTL_MS, have=["m1"])),
    ContractCall(name="take by a stranger", before=RUNNING, call=lambda p: p.take(KEY, "C", TTL_MS)),
    ContractCall(name="peek", before=RUNNING, call=lambda p: p.peek(KEY)),
    ContractCall(name="orphans", before=WAITING, call=lambda p: list(p.orphans(EVERYTHING))),
    ContractCall(name="find", before=RUNNING, call=lambda p: p.find(KEY, "m1")),
    ContractCall(name="find nothing", before=RUNNING, call=lambda p: p.find(KEY, "m9")),
    ContractCall(name="dead letters", before=BURIED, call=lambda p: list(p.dead_letters(KEY, EVERYTHING))),
    ContractCall(name="redrive", before=BURIED, call=lambda p: p.redrive(KEY, "m1")),
    ContractCall(name="redrive nothing", before=RUNNING, call=lambda p: p.redrive(KEY, "m9"), doubtful=True),
    ContractCall(name="purge", before=BURIED, call=lambda p: p.purge(KEY, "m1")),
    ContractCall(name="purge nothing", before=RUNNING, call=lambda p: p.purge(KEY, "m9")),
    ContractCall(name="claim for later", call=claim("A", 1, after_ms=TTL_MS)),
    ContractCall(name="claim for later as a ticket", call=claim("T", 1, after_ms=TTL_MS, as_ticket=True)),
    ContractCall(name="claim for later, routed", before=RUNNING, call=claim("C", 3, after_ms=TTL_MS)),
    ContractCall(name="claim when quiet", call=claim("A", 1, debounce=BURST)),
    ContractCall(
        name="claim that prolongs a burst", before=(claim("A", 1, debounce=BURST),), call=claim("B", 2, debounce=BURST)
    ),
    ContractCall(name="claim of a held key", before=HELD, call=claim("C", 3)),
    ContractCall(name="claim of a held key, of what waits", before=HELD, call=claim("C", 2)),
    ContractCall(name="claim of a held key, not routed", before=HELD, call=claim("C", 3, route=False)),
    ContractCall(
        name="claim of a held key, with a ticket", before=HELD_TICKET, call=claim("C", None, ticket="T"), twice=True
    ),
    ContractCall(name="acquire of a held key", before=HELD, call=acquire("A")),
    ContractCall(name="claim that interrupts", before=RUNNING, call=claim("C", 3, interrupt=True)),
    ContractCall(name="claim that replaces", before=RUNNING, call=claim("C", 3, policy=LATEST), twice=True),
    ContractCall(name="settle stopped", before=RUNNING, call=settle("A", stopped=["m1"], next_owner="A2")),
    ContractCall(
        name="settle with a result",
        before=RUNNING,
        call=settle("A", handled=["m1"], results={"m1": {"total": 7}}, policy=KEPT),
    ),
    ContractCall(
        name="settle with a result that is too large, on",
        before=RUNNING,
        call=settle("A", handled=["m1"], results={"m1": "x" * 100}, policy=KEPT, next_owner="A2"),
    ),
    ContractCall(
        name="settle and hold",
        before=RUNNING,
        call=settle("A", handled=["m1"], next_owner="A2", hold_ms=TTL_MS, hold_reason="it cools down"),
    ),
    ContractCall(
        name="settle of a marked tenure",
        before=(*RUNNING, lambda p: p.stop(KEY, reason="enough")),
        call=settle("A", handled=["m1"]),
        twice=True,
    ),
    ContractCall(name="note", before=RUNNING, call=lambda p: p.beat(KEY, "A", TTL_MS, note={"step": 3})),
    ContractCall(name="stop", before=RUNNING, call=lambda p: bool(p.stop(KEY, reason="enough"))),
    ContractCall(
        name="stop again", before=(*RUNNING, lambda p: p.stop(KEY)), call=lambda p: bool(p.stop(KEY, reason="enough"))
    ),
    ContractCall(name="stop of a free key", call=lambda p: p.stop(KEY)),
    ContractCall(name="stop of another tenure", before=RUNNING, call=lambda p: p.stop(KEY, fence=7), doubtful=True),
    ContractCall(
        name="watch", before=(*RUNNING, lambda p: p.stop(KEY, reason="why")), call=lambda p: p.watch(KEY, "A")
    ),
    ContractCall(name="watch by a stranger", before=RUNNING, call=lambda p: p.watch(KEY, "C")),
    ContractCall(name="hold", before=RUNNING, call=lambda p: p.hold(KEY, for_ms=TTL_MS, reason="an incident")),
    ContractCall(name="hold without an end", call=lambda p: p.hold(KEY)),
    ContractCall(name="resume", before=HELD, call=lambda p: p.resume(KEY)),
    ContractCall(name="resume of what is not held", before=RUNNING, call=lambda p: p.resume(KEY)),
    ContractCall(name="cancel", before=RUNNING, call=lambda p: p.cancel(KEY, "m2")),
    ContractCall(name="cancel of what runs", before=RUNNING, call=lambda p: p.cancel(KEY, "m1")),
    ContractCall(
        name="cancel of a large body", before=(*RUNNING, claim("C", 3, size=20_000)), call=lambda p: p.cancel(KEY, "m3")
    ),
    ContractCall(name="cancel of the last", before=(claim("A", 1), release("A")), call=lambda p: p.cancel(KEY, "m1")),
    ContractCall(name="cancel nothing", before=RUNNING, call=lambda p: p.cancel(KEY, "m9")),
    ContractCall(name="show", before=HELD, call=lambda p: p.show(KEY, events=True)),
    ContractCall(name="keys", before=HELD, call=lambda p: [each for each in p.keys(EVERYTHING) if each.key == KEY]),
)


# --- what came of it


def ask(step: Step, provider: ControlProvider) -> Any:
    """What a call says: its answer, or the kind of error that it raises."""
    try:
        return step(provider)
    except LeaseUnavailable:
        return LeaseUnavailable
    except (LeaseLost, MailboxFull) as refusal:
        return type(refusal), getattr(refusal, "holder", None)


def bare(said: Any) -> Any:  # noqa: C901 - each kind of answer
    """An answer without what differs from key to key and from moment to moment: fences and times."""
    match said:
        case Acquisition():
            return said.acquired, said.owner
        case Claimed() | Continued():
            return type(said), said.owner, bare(said.messages), said.waiting, getattr(said, "stop", None)
        case Beat():
            return said.waiting, said.stop
        case Taken():
            return [bare(each) for each in said], said.stop
        case Status():
            known = replace(said, stored_at_ms=0, due_at_ms=0, left_at_ms=0, fence=0)
            return known, said.fence is None, said.left_at_ms is None
        case KeyStatus():
            key = replace(said, fence=0, since_ms=0, expires_in_ms=0, held_until_ms=0, quiet_until_ms=0)
            held = said.fence is None, said.held_until_ms is None, said.quiet_until_ms is None
            return replace(key, running=(), waiting=()), held, bare(said.running), bare(said.waiting)
        case Message():
            return replace(said, stored_at_ms=0, due_at_ms=0), said.due_at_ms > 0
        case DeadLetter():
            return bare(said.message)
        case Orphan():
            return said.key, said.target, said.waiting
        case tuple() | list():
            return [bare(each) for each in said]
        case _ if hasattr(said, "expires_in_ms"):
            return replace(said, expires_in_ms=0)
        case _:
            return said


def fence_of(said: Any) -> int | None:
    """The fence in an answer that grants something, or says what was granted."""
    fence = getattr(said, "fence", None)
    return fence if isinstance(fence, int) else None


def look(provider: ControlProvider) -> Any:
    """What can be seen of the key: its owner, messages, holds and marks, what became of others, its dead letters."""
    shown = provider.show(KEY)
    there = {each.id for each in (*shown.running, *shown.waiting)}
    gone = [each for each in ("m1", "m2", "m3") if each not in there]
    return [
        bare(shown),
        *(bare(provider.find(KEY, each)) for each in gone),
        bare(list(provider.dead_letters(KEY, EVERYTHING))),
    ]
