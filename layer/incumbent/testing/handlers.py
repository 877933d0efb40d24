"""Tests of one's own handler: a lease to hand it, and a store under it."""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from incumbent.backends import resolve_lease_provider
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.contract import LeaseProvider
from incumbent.errors import LeaseLost
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.lease import _CURRENT, Lease, Stop
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN
from incumbent.testing.clock import FakeClock
from incumbent.values import Message
from incumbent.wakers import Wake

Arriving: TypeAlias = Sequence[Any] | Mapping[int, Sequence[Any]]
Work: TypeAlias = Callable[[Message, Lease], Any]

_HELD_MS = 30_000
_STOP_BEFORE_MS = 5_000
_ARN = "arn:aws:lambda:eu-central-1:123456789012:function:{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeContext:
    """Lambda's context object: an invocation with an id of its own that began when this was made.

    It has ``time_left_ms`` milliseconds, by ``clock``.
    """

    time_left_ms: int = 60_000
    function_name: str = "handler"
    function_version: str = "$LATEST"
    memory_limit_in_mb: int = 512
    log_stream_name: str = "2026/11/02/[$LATEST]0123456789abcdef0123456789abcdef"
    aws_request_id: str = field(default_factory=lambda: f"request-{secrets.token_hex(8)}")
    clock: Clock = SYSTEM_CLOCK
    _began: Moment = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note when the invocation began."""
        object.__setattr__(self, "_began", self.clock.now())

    @property
    def invoked_function_arn(self) -> str:
        """The function's ARN."""
        return _ARN.format(self.function_name)

    @property
    def log_group_name(self) -> str:
        """The function's log group."""
        return f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation has left."""
        return max(0, self.clock.now().until(self._began.plus(self.time_left_ms)))


class FakeLease(Lease):
    """A lease of nothing, which a test gives to a handler: it is held until `lose`, and what `arrive` brings is taken.

    Its time stands still. As a context manager it is also what ``current_lease()`` returns.
    """

    def __init__(
        self,
        *events: Any,
        arriving: Sequence[Any] = (),
        stop: Stop | None = None,
        stop_reason: str = "",
        key: str = "key",
        owner: str = "owner",
        fence: int = 1,
        attempt: int = 1,
        time_left_ms: int = 60_000,
    ) -> None:
        """Hold the key for ``events``; see `lease`."""
        self._time = FakeClock()
        self._arriving = deque(arriving)
        self._refused: LeaseLost | None = None
        self._seen = 0
        self._entered: Token[Lease | None] | None = None
        self.renewals: int = 0
        """How often the handler has renewed by hand."""
        self.notes: list[Any] = []
        """What the handler has noted, in order."""
        ends = self._time.now().plus(time_left_ms)
        super().__init__(
            key=key,
            owner=owner,
            fence=fence,
            messages=[self._message(event, attempt) for event in events or ({},)],
            heartbeat=Heartbeat(
                _FakeTenure(self),
                held_until=ends.plus(_HELD_MS),  # so that it is lost when the test says so, and not before
                every_ms=_HELD_MS // 3,
                invocation_ends=ends,
                clock=self._time,
            ),
            take=self._given,
            ends=ends,
            stop_before_ms=_STOP_BEFORE_MS,
            waiting=0,
            clock=self._time,
            can_defer=True,
        )
        if stop is not None:
            self.show(stop, stop_reason)

    def arrive(self, *events: Any) -> None:
        """Let messages come in: the next ``take()`` brings them."""
        self._arriving.extend(events)

    def note(self, value: Any) -> None:
        """Keep it in ``notes``, checked as a lease does."""
        super().note(value)
        self.notes.append(self.unsent_note)

    def show(self, stop: Stop, reason: str = "") -> None:
        """Let ``stop`` say this from now on: the lease is lost, it was asked to stop, or its time is nearly over."""
        if stop is Stop.ASKED:
            self._heartbeat.note_stop(reason)
        elif stop is Stop.LOST:
            self._refused = LeaseLost(f"the test has taken key {self.key!r} away", key=self.key, owner=self.owner)
            self._heartbeat.lose(self._refused)
        else:
            self._time.advance(max(0, (self.time_left_ms or 0) - _STOP_BEFORE_MS))

    @property
    def waiting(self) -> int:
        """How many messages have arrived and were not taken."""
        return len(self._arriving)

    def __enter__(self) -> Self:
        self._entered = _CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is not None:
            _CURRENT.reset(self._entered)

    def _message(self, event: Any, attempt: int) -> Message:
        if isinstance(event, Message):
            return event
        self._seen += 1
        return Message(id=f"m{self._seen}", event=event, attempt=attempt, stored_at_ms=self._time.now().wall_ms)

    def renewed(self) -> Renewal:
        """Answer a renewal."""
        if self._refused is not None:
            raise self._refused
        self.renewals += 1
        return Renewal(deadline=self._heartbeat.held_until)

    def _given(self, have: Sequence[str]) -> Sequence[Message]:
        arrived, self._arriving = list(self._arriving), deque()
        return [self._message(event, 1) for event in arrived]


class _FakeTenure:
    """What the heartbeat of a fake lease renews."""

    def __init__(self, of: FakeLease) -> None:
        self._lease = of

    def before_each(self) -> None:
        """Do nothing."""

    def renew(self, _: Moment, /) -> Renewal:
        """Answer as the test says."""
        return self._lease.renewed()

    def make_lost(self, why: str) -> LeaseLost:
        """Make the error."""
        return LeaseLost(why, key=self._lease.key, owner=self._lease.owner)

    def on_lost(self, _: LeaseLost, /) -> None:
        """Pass it on."""
        self._lease.lost()

    def on_asked(self, _: str, /) -> None:
        """Pass it on."""
        self._lease.asked()

    def on_error(self, _: Exception, /) -> None:
        """Do nothing."""


def lease(
    *events: Any,
    arriving: Sequence[Any] = (),
    stop: Stop | None = None,
    stop_reason: str = "",
    key: str = "key",
    owner: str = "owner",
    fence: int = 1,
    attempt: int = 1,
    time_left_ms: int = 60_000,
) -> FakeLease:
    """Make a lease to give to a handler in a unit test. There is no provider, no thread, and time stands still.

    Args:
        events: What the run was started for: JSON events, or `Message` values. An empty event unless given.
        arriving: What the first ``take()`` brings.
        stop: What ``lease.stop`` says from the start.
        stop_reason: What ``lease.stop_reason`` says then, for ``Stop.ASKED``.
        key: The key, as the handler's decorator would make it.
        owner: The run's name.
        fence: The fence of the tenure.
        attempt: Which delivery of ``events`` this is.
        time_left_ms: Milliseconds until the invocation ends; with 5,000 left ``stop`` says ``DEADLINE``.

    A decorated handler is found undecorated in ``handler.__wrapped__``.
    """
    return FakeLease(
        *events,
        arriving=arriving,
        stop=stop,
        stop_reason=stop_reason,
        key=key,
        owner=owner,
        fence=fence,
        attempt=attempt,
        time_left_ms=time_left_ms,
    )


@contextmanager
def stand_in(provider: object | None = None, *, wakes: list[Wake] | None = None) -> Iterator[LeaseProvider]:
    """Put a provider under every decorated handler, in every thread; a `MemoryProvider` of its own unless given.

    It goes before the one that the environment names, before one that was given to the decorator, and before
    ``INCUMBENT_DISABLED``; ``send``, ``status`` and the sweeper's handler use it as well.

    Meanwhile every `LambdaWaker` sends nothing. ``wakes`` is a list that gets each `Wake` instead: give a handler
    ``wake.to_event()`` to play it. A waker that you wrote is called all the same.
    """
    chosen = resolve_lease_provider(MemoryProvider() if provider is None else provider)
    before = STAND_IN.set(chosen, wakes)
    try:
        yield chosen
    finally:
        STAND_IN.reset(before)
