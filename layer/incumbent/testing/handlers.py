"""Tests of one's own handler: a lease to hand it, a store under it, and a conversation that is played to it."""

import inspect
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from incumbent import async_handlers
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.contract import LeaseProvider, is_mailbox, resolve_lease_provider
from incumbent.errors import ConfigurationError, LeaseLost
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.keys import split_key
from incumbent.lease import _CURRENT, Lease, Stop
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN
from incumbent.testing.clock import FakeClock
from incumbent.validation import shown
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
        ends = self._time.now().plus(time_left_ms)
        super().__init__(
            key=key,
            owner=owner,
            fence=fence,
            messages=[self._message(event, attempt) for event in events or ({},)],
            heartbeat=Heartbeat(
                self._renewed,
                held_until=ends.plus(_HELD_MS),  # so that it is lost when the test says so, and not before
                every_ms=_HELD_MS // 3,
                invocation_ends=ends,
                clock=self._time,
                on_lost=lambda _: self.lost(),
                on_error=lambda _: None,
                lost=lambda why: LeaseLost(why, key=key, owner=owner),
            ),
            take=self._given,
            ends=ends,
            stop_before_ms=_STOP_BEFORE_MS,
            waiting=0,
            clock=self._time,
            can_defer=True,
        )
        if stop is not None:
            self.show(stop)

    def arrive(self, *events: Any) -> None:
        """Let messages come in: the next ``take()`` brings them."""
        self._arriving.extend(events)

    def show(self, stop: Stop) -> None:
        """Let ``stop`` say this from now on: the lease is lost, or the invocation is nearly over."""
        if stop is Stop.LOST:
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

    def _renewed(self, _give_up_at: Moment) -> Renewal:
        if self._refused is not None:
            raise self._refused
        self.renewals += 1
        return Renewal(deadline=self._heartbeat.held_until)

    def _given(self, have: Sequence[str]) -> Sequence[Message]:
        arrived, self._arriving = list(self._arriving), deque()
        return [self._message(event, 1) for event in arrived]


def lease(
    *events: Any,
    arriving: Sequence[Any] = (),
    stop: Stop | None = None,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the handler: its messages, those that it took included, and what it returned or raised."""

    key: str
    messages: tuple[Message, ...]
    result: Any = None
    error: BaseException | None = None

    @property
    def events(self) -> list[Any]:
        """What its messages hold."""
        return [message.event for message in self.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a conversation.

    ``answers`` are what the invocations of ``events`` returned, ``arrived`` those of what arrived meanwhile; where one
    raised, its exception stands. ``remaining`` is what is still stored for the keys that ran. ``wakes`` is what
    Lambda's waker would have sent: ``wake.to_event()`` is the event of the invocation that goes on.
    """

    answers: tuple[Any, ...]
    arrived: tuple[Any, ...]
    runs: tuple[Run, ...]
    remaining: tuple[Message, ...]
    wakes: tuple[Wake, ...]

    @property
    def results(self) -> list[Any]:
        """What the runs returned, one after the other; ``None`` for one that raised."""
        return [run.result for run in self.runs]


def run(
    handler: Callable[..., Any],
    key: str,
    events: Sequence[Any],
    *,
    arriving: Arriving = (),
    stop: Stop | Mapping[int, Stop] | None = None,
    provider: object | None = None,
    time_left_ms: int = 60_000,
) -> Played:
    """Play the conversation of one key to a decorated handler, on a store of its own, and return what came of it.

    Each of ``events`` is an invocation, one after the other. While the first run of the first one goes on, each of
    ``arriving`` is an invocation of its own, as another caller would make it: it is routed to the run.

    Args:
        handler: What ``@leased`` made.
        key: The key that all of ``events`` are to have, without its keyspace.
        events: The events, as the source sends them.
        arriving: What comes as the first run begins. Or a mapping from a step to what comes then: 0 is the beginning, 1
            the moment before the run's first ``take()``, and so on; steps that the run does not reach come at its end.
        stop: What ``lease.stop`` says in the first run from its beginning on, or from a step on. ``LOST``: another
            owner has the key, and the invocation raises ``LeaseLost``. Steps that are not reached do not come.
        provider: The store, to look into it or to go on with it; a `MemoryProvider` of its own unless given.
        time_left_ms: How many milliseconds each invocation has.

    Not played: time, and wakes. Nothing pauses and nothing retries; a message that waits for its next attempt, or for
    the invocation that would be woken, is ``remaining``.

    Raises ``ConfigurationError`` when there is no event or one has another key, or the provider stores no messages.
    """
    chosen = resolve_lease_provider(MemoryProvider() if provider is None else provider)
    mailbox: object = chosen
    given: object = events
    if not isinstance(given, list | tuple) or not given or not is_mailbox(mailbox):
        raise ConfigurationError("run(handler, key, events) needs a list of events, and a provider with a mailbox")
    stage = _Stage(handler, chosen, key, arriving=_by_step(arriving), stop=_by_step(stop), time_left_ms=time_left_ms)
    wakes: list[Wake] = []
    before = STAND_IN.set(stage, wakes)
    try:
        answers = tuple(stage.play(event) for event in events)
    finally:
        STAND_IN.reset(before)
    remaining = tuple(message for key in dict.fromkeys(stage.keys) for message in mailbox.peek(key))
    return Played(
        answers=answers, arrived=tuple(stage.arrived), runs=tuple(stage.runs), remaining=remaining, wakes=tuple(wakes)
    )


def _by_step(given: Any) -> dict[int, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    return {} if given is None or given == () else {0: given}


class _Stage:
    """Stands before the store, and around each run of the handler (`incumbent.providers.Staged`)."""

    def __init__(
        self,
        handler: Callable[..., Any],
        provider: LeaseProvider,
        key: str,
        *,
        arriving: dict[int, Sequence[Any]],
        stop: dict[int, Stop],
        time_left_ms: int,
    ) -> None:
        self.handler = handler
        self.takes_context = len([name for name in inspect.signature(handler).parameters if name != "lease"]) > 1
        self.provider = provider
        self.key = key
        self.arriving = arriving
        self.stop = stop
        self.time_left_ms = time_left_ms
        self.runs: list[Run] = []
        self.arrived: list[Any] = []
        self.keys: list[str] = []
        self.begun = False

    def get_lease_provider(self) -> LeaseProvider:
        """The store."""
        return self.provider

    def play(self, event: Any) -> Any:
        """An invocation of the conversation's own; its key is looked at."""
        before = len(self.keys)
        answer = self.invoke(event)
        for key in self.keys[before : before + 1]:
            if self.key not in (key, split_key(key)[1]):
                raise ConfigurationError(f"run: the key of {shown(event)} is {key!r}, not {self.key!r}")
        return answer

    def invoke(self, event: Any) -> Any:
        """One invocation; what it raises is its answer."""
        try:
            context = (FakeContext(time_left_ms=self.time_left_ms),) if self.takes_context else ()
            return self.handler(event, *context)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    def staged(self, key: str, work: Work) -> Work:
        """Stand around the runs of one invocation."""

        def run_staged(message: Message, lease: Lease) -> Any:
            self.keys.append(key)
            first, self.begun = not self.begun, True
            if first:
                self._come(0, key, lease)
                lease._take = self._counted(key, lease, lease._take)  # noqa: SLF001 - the stage is a part of the test
            try:
                result = work(message, lease)
            except BaseException as error:
                self.runs.append(Run(key=lease.key, messages=lease.held, error=error))
                raise
            finally:
                if first:
                    for step in sorted(self.arriving):
                        self._arrive(self.arriving.pop(step))
            self.runs.append(Run(key=lease.key, messages=lease.held, result=result))
            return result

        return run_staged

    def _counted(self, key: str, lease: Lease, take: Callable[[Sequence[str]], Sequence[Message]]) -> Any:
        steps = iter(range(1, 1_000_000))

        def taken(have: Sequence[str]) -> Sequence[Message]:
            self._come(next(steps), key, lease)
            return take(have)

        return taken

    def _come(self, step: int, key: str, lease: Lease) -> None:
        """Let happen what happens at a step of the first run."""
        arrived = self.arriving.pop(step, ())
        self._arrive(arrived)
        if arrived:  # as the heartbeat would have it by and by, ``lease.waiting`` says so
            with suppress(LeaseLost):
                lease.renew()
        match self.stop.get(step):
            case Stop.LOST:
                self.provider.transfer_lease(key, lease.owner, f"another.{secrets.token_hex(4)}", _HELD_MS)
                with suppress(LeaseLost):
                    lease.renew()
            case Stop.DEADLINE:
                lease._ends = lease._clock.now().plus(lease._stop_before_ms)  # noqa: SLF001
            case None:
                pass

    def _arrive(self, events: Sequence[Any]) -> None:
        """Invoke once for each, as other environments do: not in this run's thread, nor in its event loop."""

        def arrive() -> None:
            self.arrived.extend(self.invoke(event) for event in events)
            async_handlers.close()

        thread = threading.Thread(target=arrive)
        thread.start()
        thread.join()
