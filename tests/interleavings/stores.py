"""The stores on which operations meet: each makes providers, moves time, and shows the key after every request."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from incumbent import rules
from incumbent.providers.dynamodb import DynamoDBProvider, item, traces
from incumbent.providers.dynamodb.attributes import Item, elements
from incumbent.providers.dynamodb.bodies import Reference, body_names
from incumbent.providers.dynamodb.names import BODY, DEAD, ENDED, LEASE, partition, result_name
from incumbent.providers.dynamodb.traces import texts_of
from incumbent.providers.memory import MemoryProvider
from incumbent.rules import KeyState
from incumbent.testing.clock import FakeClock
from tests.interleavings.invariants import Picture
from tests.interleavings.operations import IDS, KEY, Provider
from tests.interleavings.turns import ReplyLost, Turns
from tests.simulation.dynamodb import Client, Refused, Table
from tests.simulation.network import NoAnswer
from tests.simulation.store import Asked

T = TypeVar("T")
# Called after every request that was carried out.
Requested = Callable[[], None]

SKEW_MS = 1_000
PREFIX = "interleaved"
START_MS = 1_800_000_000_000
INLINE_TRACES = MAX_MARKS = 1


def _nothing() -> None:
    """Before anybody wants to know."""


class Store(Protocol):
    """One key in one store. ``loses_replies``: its providers repeat a request whose reply was lost."""

    skew_ms: int
    loses_replies: bool
    requested: Requested

    def provider(self, like: Provider | None = None) -> Provider:
        """Another client, whose requests wait for their turn; or one that remembers what another store's does."""
        ...

    def copy(self) -> "Store | None":
        """The same key at the same time, in a store of its own; ``None`` where it has to be made anew."""
        ...

    def pass_time(self, ms: int) -> None:
        """Move the one clock."""
        ...

    def picture(self) -> Picture:
        """The key as it is now."""
        ...


class MemoryStore:
    """The rules: every call is one step."""

    skew_ms = 0
    loses_replies = False

    def __init__(self, turns: Turns, *, wall_ms: int = START_MS, state: KeyState | None = None) -> None:
        self.requested: Requested = _nothing
        self._turns = turns
        self._clock = FakeClock(wall_ms=wall_ms)
        self._provider = MemoryProvider(clock=self._clock)
        if state is not None:
            self._keys[KEY] = state

    @property
    def _keys(self) -> dict[str, KeyState]:
        return self._provider._keys  # noqa: SLF001 - the rules have no other window

    def provider(self, like: Provider | None = None) -> Provider:
        """All share one memory."""
        provider: Any = _Stepping(self._provider, self._turns, self)
        chosen: Provider = provider
        return chosen

    def copy(self) -> "MemoryStore":
        """The state and the time are all there is."""
        return MemoryStore(self._turns, wall_ms=self._clock.now().wall_ms, state=self._keys.get(KEY))

    def pass_time(self, ms: int) -> None:
        """Move the one clock."""
        self._clock.advance(ms)

    def picture(self) -> Picture:
        """The state itself."""
        state = self._keys.get(KEY, KeyState())
        letters = tuple(letter.id for letter in state.dead)
        return Picture(state=state, letters=letters, now_ms=self._clock.now().wall_ms)


class _Stepping:
    """Each call of a provider is one request."""

    def __init__(self, provider: object, turns: Turns, store: MemoryStore) -> None:
        self._provider = provider
        self._turns = turns
        self._store = store

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._provider, name)

        def step(*args: Any, **options: Any) -> Any:
            self._turns.before_request()
            try:
                return call(*args, **options)
            finally:
                self._store.requested()

        return step


class DynamoDBStore:
    """The real provider over the table in memory, which evaluates its expressions."""

    skew_ms = SKEW_MS
    loses_replies = True

    def __init__(self, turns: Turns, *, wall_ms: int = START_MS, table: Table | None = None) -> None:
        self.requested: Requested = _nothing
        self._turns = turns
        self._clock = FakeClock(wall_ms=wall_ms)
        self._table = table or Table()
        self._client: Any = Client(self._table, self._way)

    def _way(self, operation: str, carry_out: Callable[[Asked, int], T | Refused]) -> T | Refused:
        self._turns.before_request()
        found = carry_out(Asked(call=operation), self._clock.now().wall_ms)
        self.requested()
        try:
            self._turns.after_request()
        except ReplyLost as cause:
            raise NoAnswer("the reply was lost") from cause
        return found

    def provider(self, like: Provider | None = None) -> Provider:
        """One that remembers its own grants."""
        made = DynamoDBProvider(
            table_name="simulated", client=self._client, key_prefix=PREFIX, max_clock_skew_ms=SKEW_MS, clock=self._clock
        )
        made._steps.inline_traces = INLINE_TRACES  # noqa: SLF001 - few, so that operations meet over pages
        made._steps.max_marks = MAX_MARKS  # noqa: SLF001 - and few, so that they are made anew
        return made

    def copy(self) -> "DynamoDBStore":
        """A table with the same items."""
        return DynamoDBStore(self._turns, wall_ms=self._clock.now().wall_ms, table=self._table.copy())

    def pass_time(self, ms: int) -> None:
        """Move the one clock."""
        self._clock.advance(ms)

    def picture(self) -> Picture:
        """The items of the key."""
        return picture_of(self._table.items_of(partition(PREFIX, KEY)), self._clock.now().wall_ms)


def picture_of(items: Iterable[Item], now_ms: int) -> Picture:
    """The items of one partition key, read as the key that they are."""
    by_name = {each["sk"]["S"]: each for each in items}
    lease = by_name.get(LEASE, {})
    pages = [each for name, page in by_name.items() if name.startswith(ENDED) for each in texts_of(page, key=KEY)]
    state = item.decode(lease, key=KEY, names=IDS, pages=pages).state
    return Picture(
        state=state,
        letters=tuple(each["id"]["S"] for name, each in by_name.items() if name.startswith(DEAD)),
        bodies=frozenset(name for name in by_name if name.startswith(BODY)),
        needed=frozenset(
            name
            for message_id, body in [
                *((message.id, message.body) for message in state.mail),
                *((each["id"]["S"], Reference(each["ref"]["S"])) for each in by_name.values() if "ref" in each),
            ]
            if isinstance(body, Reference)
            for name in body_names(message_id, body)
        ),
        has_index=True,
        indexed_ms=int(lease["orphan_since"]["N"]) if "orphan_shard" in lease and "orphan_since" in lease else None,
        faults=(
            *_faults(lease, item.decode(lease, key=KEY, names=IDS).state, state),
            *(
                f"the result of {trace.id} is missing"
                for trace in state.ended
                if trace.result and result_name(trace.id, trace.fence) not in by_name
            ),
        ),
        now_ms=now_ms,
    )


def _faults(lease: Item, inline: KeyState, state: KeyState) -> Iterable[str]:
    """Where attributes of the lease item say different things. ``state`` has the traces of the pages, too."""

    def differ(name: str, found: object, wanted: object) -> Iterable[str]:
        if found != wanted:
            yield f"{name} is {found} where the record has {wanted}"

    if not lease:
        return
    known = frozenset(each for each in elements(lease, "known") if not each.startswith("="))
    yield from differ(
        "known", known, frozenset(each for each in item.known(state.mail, inline.ended) if each[0] != "=")
    )
    yield from differ("tombs", elements(lease, "tombs"), traces.tombs(inline.ended))
    shown = item.decode(lease, key=KEY, names=IDS)
    for trace in state.ended:
        kind = rules.KINDS[trace.outcome]
        if trace not in inline.ended and kind not in shown.past_kinds(trace.id, trace.claimed_by):
            yield f"past and rare do not show {trace}, which is {kind}"
    yield from differ("room", item.inline_bytes(state.mail) <= 2 * item.INLINE_BYTES_A_KEY, True)  # noqa: FBT003
    yield from differ("orphan_shard", "orphan_shard" in lease, bool(state.mail) or state.held_until_ms > 0)
    yield from differ("expires_on", "expires_on" in lease, state.owner is None and not state.mail)
    if not state.mail:
        yield from differ("head", [name for name in ("head", "given") if name in lease], [])
    elif "head" in lease:
        yield from differ("given", "given" in lease, True)  # noqa: FBT003 - a value
