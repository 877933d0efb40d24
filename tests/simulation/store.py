"""The simulated store: the state of one key, changed by one request at a time through the real rules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from incumbent import rules
from incumbent.rules import KeyState
from incumbent.values import Debounce
from tests.simulation.environment import EPOCH_MS
from tests.simulation.scheduler import Scheduler

KEY = "simulated/key"
NOTHING_YET = KeyState()


@dataclass(slots=True, kw_only=True)
class Asked:
    """One call of a provider, and what becomes of it at the store with each request of each try.

    ``effects`` are what its requests have changed, in their order. ``repeated`` says that an answer was missing,
    ``most_requests`` how many requests the call may take where no answer is missing (M10).
    """

    call: str
    owner: str = ""
    invocation: str = ""
    message_id: str | None = None
    ticket: str | None = None
    as_ticket: bool = False
    successor: str | None = None
    handled: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    cancelled: str | None = None
    sought: str = ""
    note: Any = None
    fence: int | None = None
    after_ms: int = 0
    for_ms: int = 0
    debounce: Debounce | None = None
    began_ms: int = 0
    requests: int = 0
    repeated: bool = False
    most_requests: int = 3
    effects: list["Effect"] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.call} by {self.owner}" if self.owner else self.call


@dataclass(frozen=True, slots=True)
class Effect:
    """What a request has done: the key ``granted``, ``freed`` or ``passed``, a message ``stored`` or ``cancelled``.

    Where a message is ``superseded``, ``owner`` is its id.
    """

    what: str
    owner: str | None = None


class Rules:
    """The rules as they are. A seeded bug is a subclass in which one of them is broken."""

    acquire = staticmethod(rules.acquire)
    renew = staticmethod(rules.renew)
    release = staticmethod(rules.release)
    transfer = staticmethod(rules.transfer)
    claim = staticmethod(rules.claim)
    settle = staticmethod(rules.settle)
    take = staticmethod(rules.take)
    stop = staticmethod(rules.stop)
    hold = staticmethod(rules.hold)
    resume = staticmethod(rules.resume)
    cancel = staticmethod(rules.cancel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A key's state as a table without a clock keeps it. ``edits`` counts changes of which no fence tells."""

    state: KeyState = NOTHING_YET
    edits: int = 0
    exists: bool = False


# Called with every request that was carried out: by whom, the state before and after, what was said, and the time.
Witness: TypeAlias = Callable[[Asked, KeyState, KeyState, object, int], None]
# What a request makes of the record, and says then; ``None`` where its condition does not hold.
Write: TypeAlias = Callable[[Record], tuple[Record, Any] | None]


class Store:
    """One key's record. Every request is one step of it, witnessed."""

    def __init__(self, scheduler: Scheduler, witness: Witness) -> None:
        self._scheduler = scheduler
        self._witness = witness
        self.record = Record()

    def carry_out(
        self, asked: Asked, step: Callable[[KeyState, int], tuple[KeyState, Any]]
    ) -> tuple[Any, KeyState, int]:
        """One step by the store's clock, which is true time: what it says, the state after it, and the time."""
        now_ms, before = EPOCH_MS + self._scheduler.now_ms, self.record.state
        after, said = step(before, now_ms)
        if after is not before:
            self.record = Record(state=after)
        self._witness(asked, before, after, said, now_ms)
        return said, after, now_ms

    def write(self, asked: Asked, write: Write, now_ms: int) -> tuple[Any, Record]:
        """One conditional write by its sender's clock: what it says, ``None`` if refused, and the record then."""
        before, written, said = self.record, write(self.record), None
        if written is not None:
            self.record, said = written
        self._witness(asked, before.state, self.record.state, said, now_ms)
        return said, self.record
