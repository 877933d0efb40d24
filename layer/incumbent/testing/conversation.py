"""Tests of one's own handler: a conversation of a key that is played to it, by a clock of its own."""

import functools
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from incumbent.backends import is_control, is_mailbox, resolve_lease_provider
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.contract import LeaseProvider
from incumbent.errors import ConfigurationError, LeaseLost, LeaseUnavailable
from incumbent.keyspaces import split_key
from incumbent.lease import Lease, Stop
from incumbent.providers.memory import MemoryProvider
from incumbent.signatures import data_class, signature_of
from incumbent.stand_in import STAND_IN
from incumbent.testing.clock import FakeClock
from incumbent.testing.handlers import FakeContext
from incumbent.testing.play_time import PlayTime
from incumbent.validation import check_ms, shown
from incumbent.values import Message
from incumbent.wakers import Wake

Arriving: TypeAlias = Sequence[Any] | Mapping[int, Sequence[Any]]
Work: TypeAlias = Callable[[Message, Lease], Any]

_STOLEN_MS = 30_000
_SWEEP_EVERY_MS = 60_000
_MAX_MS = 366 * 86_400_000
STOP_REASON = "the test asks this run to stop"
"""What ``lease.stop_reason`` says in a play."""


@dataclass(frozen=True, slots=True)
class After:
    """An event that comes ``ms`` milliseconds after the one before began, or after the run that it arrives in began."""

    ms: int
    event: Any

    def __post_init__(self) -> None:
        """Refuse a time that is not a whole number of milliseconds."""
        check_ms("After", self.ms, 0, _MAX_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the handler: its messages, those that it took included, and what it returned or raised.

    ``at_ms`` is when it began, in milliseconds since the play did.
    """

    key: str
    messages: tuple[Message, ...]
    result: Any = None
    error: BaseException | None = None
    at_ms: int = 0

    @property
    def events(self) -> list[Any]:
        """What its messages hold."""
        return [message.event for message in self.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a conversation.

    ``answers`` are what the invocations of ``events`` returned, ``arrived`` those of what arrived meanwhile, ``woken``
    those that were woken; where one raised, its exception stands. ``remaining`` is what is still stored for the keys
    that ran. ``wakes`` is what Lambda's waker and the queue's would have sent: ``wake.to_event()`` is the event of the
    invocation that goes on. ``lasted_ms`` is how much time has passed.
    """

    answers: tuple[Any, ...]
    arrived: tuple[Any, ...]
    woken: tuple[Any, ...]
    runs: tuple[Run, ...]
    remaining: tuple[Message, ...]
    wakes: tuple[Wake, ...]
    lasted_ms: int

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
    stop_at_ms: int | None = None,
    step_ms: int = 0,
    lasts_ms: int | None = None,
    provider: object | None = None,
    clock: FakeClock | None = None,
    time_left_ms: int = 60_000,
) -> Played:
    """Play the conversation of one key to a decorated handler, on a store of its own, and return what came of it.

    Each of ``events`` is an invocation, one after the other. While the first run of the first one goes on, each of
    ``arriving`` is an invocation of its own, as another caller would make it: it is routed to the run.

    Time is the play's: it stands still but for what the arguments say, and for what incumbent itself waits for (a
    quiet time, a result). A handler's own sleeps pass no time of the play.

    Args:
        handler: What ``@leased`` or ``leased_function`` made.
        key: The key that all of ``events`` are to have, without its keyspace.
        events: The events, as the source sends them; a ``leased_function`` gets each as the Powertools data class with
            which its argument is annotated. ``After(ms, event)`` comes so many milliseconds after the one before began,
            even if that still runs.
        arriving: What comes as the first run begins. Or a mapping from a step to what comes then: 0 is the beginning, 1
            the moment before the run's first ``take()``, and so on; steps that the run does not reach come at its end.
            ``After(ms, event)`` comes so long after its step.
        stop: What ``lease.stop`` says in the first run from its beginning on, or from a step on. ``LOST``: another
            owner has the key, and the invocation raises ``LeaseLost``. ``ASKED``: an operator stops the run. Steps that
            are not reached do not come.
        stop_at_ms: When an operator stops what runs then, in milliseconds since the play began.
        step_ms: How long each step of a run takes: before each ``take()``, and after the last.
        lasts_ms: For how long the play goes on after its events, in milliseconds. Then the wakes are played, each at
            its time, and every minute the sweeper wakes what it finds. Default: nothing is played.
        provider: The store, to look into it or to go on with it; a `MemoryProvider` of its own unless given.
        clock: The play's clock, if the provider is given one: time passes only with it.
        time_left_ms: How many milliseconds each invocation has.

    Without ``lasts_ms``, nothing pauses and nothing retries: a message that waits for its next attempt, or for the
    invocation that would be woken, is ``remaining``.

    Raises ``ConfigurationError`` when there is no event or one has another key, the provider stores no messages, or
    time is to pass with a provider whose clock the play does not have.
    """
    own_clock = FakeClock() if provider is None and clock is None else clock
    chosen = resolve_lease_provider(MemoryProvider(clock=own_clock or FakeClock()) if provider is None else provider)
    given: object = events
    mailbox: object = chosen
    if not isinstance(given, list | tuple) or not given or not is_mailbox(mailbox):
        raise ConfigurationError("run(handler, key, events) needs a list of events, and a provider with a mailbox")
    timed = any(isinstance(event, After) for event in events) or step_ms or stop_at_ms is not None or lasts_ms
    if timed and own_clock is None:
        raise ConfigurationError(
            "run: time is to pass, but not for the provider: give both the same clock, as in "
            "run(..., provider=MemoryProvider(clock=clock), clock=clock)"
        )
    stage = _Stage(
        handler,
        chosen,
        key,
        arriving=_by_step(arriving),
        stop=_by_step(stop),
        step_ms=check_ms("step_ms", step_ms, 0, _MAX_MS),
        plays_wakes=lasts_ms is not None,
        clock=own_clock,
        time_left_ms=time_left_ms,
    )
    before = STAND_IN.set(stage, stage.wakes)
    try:
        if stop_at_ms is not None:
            stage.time.after(check_ms("stop_at_ms", stop_at_ms, 0, _MAX_MS), stage.stop_what_runs)
        answers = stage.play(events, check_ms("lasts_ms", lasts_ms or 0, 0, _MAX_MS))
    finally:
        stage.time.end()
        STAND_IN.reset(before)
    return Played(
        answers=answers,
        arrived=tuple(stage.arrived),
        woken=tuple(stage.woken),
        runs=tuple(stage.runs),
        remaining=tuple(message for key in dict.fromkeys(stage.keys) for message in mailbox.peek(key)),
        wakes=tuple(stage.wakes),
        lasted_ms=stage.time.gone_ms,
    )


def _by_step(given: Any) -> dict[int, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    return {} if given is None or given == () else {0: given}


class _Wakes(list[Wake]):
    """The wakes of a play, each of which is played if it is to be."""

    def __init__(self, played: Callable[[Wake], object] | None) -> None:
        super().__init__()
        self._played = played

    def append(self, wake: Wake) -> None:
        """Keep it."""
        super().append(wake)
        if self._played is not None:
            self._played(wake)


class _Stage:
    """Stands before the store, and around each run of the handler (`incumbent.stand_in.staged`)."""

    def __init__(
        self,
        handler: Callable[..., Any],
        provider: LeaseProvider,
        key: str,
        *,
        arriving: dict[int, Sequence[Any]],
        stop: dict[int, Stop],
        step_ms: int,
        plays_wakes: bool,
        clock: FakeClock | None,
        time_left_ms: int,
    ) -> None:
        self.handler = handler
        parameters = [each for name, each in signature_of(handler).parameters.items() if name != "lease"]
        self.takes_context = len(parameters) > 1
        self.data_class = data_class(parameters[0].annotation) if hasattr(handler, "resume") else None
        self.provider = provider
        self.key = key
        self.arriving = arriving
        self.stop = stop
        self.step_ms = step_ms
        self.time_left_ms = time_left_ms
        self.time = PlayTime(clock, self._renew)
        self.staged_clock: Clock | None = None if clock is None else self.time
        self.plays_wakes = plays_wakes
        self.wakes = _Wakes(self._play_wake if plays_wakes else None)
        self.runs: list[Run] = []
        self.invoked: list[str] = []
        self.wrong_key: ConfigurationError | None = None
        self.arrived: list[Any] = []
        self.woken: list[Any] = []
        self.keys: list[str] = []
        self.begun = False
        self.is_invoking = False
        self.live: list[Lease] = []

    def get_lease_provider(self) -> LeaseProvider:
        """The store."""
        return self.provider

    def play(self, events: Sequence[Any], lasts_ms: int) -> tuple[Any, ...]:
        """Play all of it, and return the answers of the events."""
        answers: list[Any] = [None] * len(events)
        if self.plays_wakes:
            self.time.after(_SWEEP_EVERY_MS, self._sweep)
        number = 0
        while number < len(events):
            began_ms, first, later_ms = self.time.gone_ms, number, 0
            number += not isinstance(events[number], After)
            while number < len(events) and isinstance(events[number], After):
                later_ms += events[number].ms
                self.time.after(later_ms, functools.partial(self._answer, answers, number, events[number].event))
                number += 1
            if not isinstance(events[first], After):
                self._answer(answers, first, events[first])
            self.time.pass_until(max(began_ms + later_ms, self.time.gone_ms))
        self.time.pass_until(self.time.gone_ms + lasts_ms)
        self.time.finish()
        if self.wrong_key is not None:
            raise self.wrong_key
        return tuple(answers)

    def _answer(self, answers: list[Any], number: int, event: Any) -> None:
        """Play an event: in the play's own thread, unless that is in an invocation already."""

        def invoke() -> None:
            before = len(self.invoked)
            answers[number] = self.invoke(event)
            for key in self.invoked[before : before + 1]:
                bare = split_key(key)[1]
                if self.key not in (key, bare):
                    self.wrong_key = ConfigurationError(f"run: the key of {shown(event)} is {bare!r}, not {self.key!r}")

        if self.is_invoking:
            self.time.beside(invoke)
            return
        self.is_invoking = True
        try:
            invoke()
        finally:
            self.is_invoking = False

    def invoke(self, event: Any) -> Any:
        """One invocation; what it raises is its answer."""
        resume = getattr(self.handler, "resume", None)
        try:
            if resume is not None and Wake.from_event(event) is not None:
                return resume(event, self._context())
            if self.data_class is not None and not hasattr(event, "raw_event"):
                event = self.data_class(event)  # as a batch processor hands a record to a leased function
            return self.handler(event, *((self._context(),) if self.takes_context else ()))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    def _context(self) -> FakeContext:
        return FakeContext(time_left_ms=self.time_left_ms, clock=self.staged_clock or SYSTEM_CLOCK)

    def staged(self, key: str, work: Work) -> Work:
        """Stand around the runs of one invocation."""
        self.invoked.append(key)

        def run_staged(message: Message, lease: Lease) -> Any:
            self.keys.append(key)
            first, self.begun = not self.begun, True
            at_ms = self.time.gone_ms
            self.live.append(lease)
            lease._take = self._stepping(key, lease, lease._take, first=first)  # noqa: SLF001 - a part of the test
            if first:
                self._come(0, key, lease)
            result, error = None, None
            try:
                result = work(message, lease)
            except BaseException as raised:
                error = raised
                raise
            finally:
                self.time.sleep_ms(self.step_ms)
                self.live.remove(lease)
                self.runs.append(Run(key=lease.key, messages=lease.held, result=result, error=error, at_ms=at_ms))
                if first:
                    for step in sorted(self.arriving):
                        self._arrive(self.arriving.pop(step))
            return result

        return run_staged

    def _stepping(
        self, key: str, lease: Lease, take: Callable[[Sequence[str]], Sequence[Message]], *, first: bool
    ) -> Callable[[Sequence[str]], Sequence[Message]]:
        steps = itertools.count(1)

        def taken(have: Sequence[str]) -> Sequence[Message]:
            self.time.sleep_ms(self.step_ms)
            if first:
                self._come(next(steps), key, lease)
            return take(have)

        return taken

    def _come(self, step: int, key: str, lease: Lease) -> None:
        """Let happen what happens at a step of the first run."""
        arrived = self.arriving.pop(step, ())
        self._arrive(arrived)
        match self.stop.get(step):
            case Stop.LOST:
                self.provider.transfer_lease(key, lease.owner, f"another.{secrets.token_hex(4)}", _STOLEN_MS)
            case Stop.ASKED:
                self._stop(key)
            case Stop.DEADLINE:
                lease._ends = lease._clock.now().plus(lease._stop_before_ms)  # noqa: SLF001
            case None:
                pass
        if arrived or self.stop.get(step) in (Stop.LOST, Stop.ASKED):  # as the heartbeat would have it by and by
            with suppress(LeaseLost):
                lease.renew()

    def _arrive(self, events: Sequence[Any]) -> None:
        """Invoke once for each, as other environments do: not in this run's thread, nor in its event loop."""

        def arrive(event: Any) -> None:
            place = len(self.arrived)
            self.arrived.append(None)
            self.arrived[place] = self.invoke(event)

        for event in events:
            if isinstance(event, After):
                come = functools.partial(self.time.beside, functools.partial(arrive, event.event))
                self.time.after(event.ms, come)
            else:
                self.time.beside(functools.partial(arrive, event))

    def stop_what_runs(self) -> None:
        """An operator stops the runs of the conversation's keys."""
        for key in dict.fromkeys(self.invoked):
            self._stop(key)
        self._renew()

    def _stop(self, key: str) -> None:
        provider: object = self.provider
        if not is_control(provider):
            raise ConfigurationError(f"run: {type(provider).__name__} cannot stop a run: it is not a control")
        provider.stop(key, reason=STOP_REASON)

    def _renew(self) -> None:
        """Renew what runs, as the heartbeats would."""
        for lease in tuple(self.live):
            with suppress(LeaseLost, LeaseUnavailable):
                lease.renew()

    def _play_wake(self, wake: Wake) -> None:
        self.time.after(wake.after_ms, functools.partial(self.time.beside, functools.partial(self._wake, wake)))

    def _sweep(self) -> None:
        """Wake what waits without an owner, and sweep again in a minute."""
        mailbox: object = self.provider
        assert is_mailbox(mailbox)  # noqa: S101 - run has looked
        for orphan in mailbox.orphans(len(self.invoked) + 1):
            if orphan.key in self.invoked:
                wake = Wake(key=orphan.key, ticket=None, target=orphan.target)
                self.time.beside(functools.partial(self._wake, wake))
        self.time.after(_SWEEP_EVERY_MS, self._sweep)

    def _wake(self, wake: Wake) -> None:
        place = len(self.woken)
        self.woken.append(None)
        self.woken[place] = self.invoke(wake.to_event())
