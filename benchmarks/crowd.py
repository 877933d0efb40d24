"""Many invocations at once, on a virtual clock: real runs over a store that is slow or throttles."""

import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from incumbent.calls import Call
from incumbent.errors import IncumbentError, LeaseLost, MailboxFull
from incumbent.lease import Lease
from incumbent.observe import Fact
from incumbent.runner import Runner
from incumbent.settings import Settings
from incumbent.sweeper import Swept, sweep
from incumbent.values import Message, Origin
from incumbent.wakers import Wake
from tests.simulation.environment import Environment
from tests.simulation.scheduler import Scheduler, Workers

LATENCY_MS = 5
TARGET = "arn:aws:lambda:eu-central-1:123456789012:function:scale"
INVOCATION_MS = 60_000
MAX_TRIES = 6
_COLD_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """Messages at a steady rate, for so long, each for the key that ``key_of`` names by its number."""

    per_s: int
    seconds: int
    key_of: Callable[[int], str]


class Crowd:
    """Sources, environments and a sweeper. ``store`` makes the provider of an environment.

    A source that is refused tries again, five times, after 1, 2, 4, 8 and 16 seconds, less some jitter.
    """

    def __init__(self, scheduler: Scheduler, *, settings: Settings, work_ms: int) -> None:
        self.scheduler = scheduler
        self.settings = settings
        self.work_ms = work_ms
        self.make_provider: Callable[[Environment], Any] = _unset
        self.facts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.arrived: dict[str, int] = {}
        self.accepted: set[str] = set()
        self.ran: Counter[str] = Counter()
        self.answered_ms: dict[str, int] = {}
        self.by_key: dict[str, str] = {}
        self.first_ms: int | None = None
        """How long the run of the message ``first`` takes, if there is one."""
        self.most_at_once = 0
        self.given_up = 0
        self.swept: list[Swept] = []
        self._warm: list[Environment] = []
        self._providers: dict[Environment, Any] = {}
        self._made = 0
        self._at_once = 0
        self._to_come = 0

    # --- what happens

    def arrive(self, messages: Arriving, *, after_ms: int = 0) -> None:
        """Let messages arrive at a steady rate."""
        for number in range(messages.per_s * messages.seconds):
            self.message_at(after_ms + number * 1_000 // messages.per_s, messages.key_of(number), f"m{number:06}")

    def message_at(self, at_ms: int, key: str, message_id: str) -> None:
        """Let one message arrive."""
        self._to_come += 1
        self.arrived[message_id] = at_ms
        self.by_key[message_id] = key
        self.scheduler.at(at_ms, lambda: self._invoke(key, message_id, 1))

    def sweep_every(self, pause_ms: int, *, limit: int = 100, at_most: int = 1_000) -> None:
        """Let a sweeper pass, until no message waits or is to come."""
        sweeper = Environment("sweeper", self.scheduler)
        provider = self.make_provider(sweeper)

        def passes() -> None:
            for _ in range(at_most):
                sweeper.clock.sleep_ms(pause_ms)
                if not self._to_come and not self._at_once and self.is_quiet():
                    return
                try:
                    self.swept.append(
                        sweep(provider, self._wake, limit=limit, observers=(), clock=sweeper.clock, budget_ms=50_000)
                    )
                except IncumbentError as error:
                    self.refusals[f"sweep: {type(error).__name__}"] += 1

        self.scheduler.spawn(sweeper, passes)

    def sweep_once(self, limit: int, took: Callable[[int], object]) -> None:
        """Let a sweeper pass once, wake nothing, and tell how many milliseconds it took."""
        sweeper = Environment("sweeper", self.scheduler)
        provider = self.make_provider(sweeper)

        def passes() -> None:
            began = self.scheduler.now_ms
            self.swept.append(sweep(provider, lambda _: None, limit=limit, observers=(), clock=sweeper.clock))
            took(self.scheduler.now_ms - began)

        self.scheduler.spawn(sweeper, passes)

    def is_quiet(self) -> bool:
        """Whether every message that was accepted has run."""
        return all(each in self.ran for each in self.accepted)

    # --- invocations

    def _invoke(self, key: str, message_id: str | None, tries: int, wake: Wake | None = None) -> None:
        environment = self._warm.pop() if self._warm else self._new()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.scheduler.spawn(environment, lambda: self._serve(environment, key, message_id, tries, wake))

    def _new(self) -> Environment:
        self._made += 1
        environment = Environment(f"e{self._made}", self.scheduler)
        self._providers[environment] = self.make_provider(environment)
        return environment

    def _serve(self, environment: Environment, key: str, message_id: str | None, tries: int, wake: Wake | None) -> None:
        clock = environment.clock
        runner = Runner(
            self._providers[environment],
            self.settings,
            clock=clock,
            waker=self._wake,
            observers=(self._note,),
            pacemaker=environment.pacemaker,
        )
        message = None if message_id is None else Message(id=message_id, event={"text": "hello"})
        call = Call(
            full_key=key,
            key=key,
            message=message,
            event=None if message is None else message.event,
            ticket=None if wake is None else wake.ticket,
            hops=0 if wake is None else wake.hops,
            origin=Origin(keyspace="", target=TARGET, request_id=f"{message_id or 'wake'}-{tries}"),
            ends=clock.now().plus(INVOCATION_MS),
            comes_again=True,
        )
        refused = None
        try:
            runner.serve(call, lambda each, lease: self._work(environment, each, lease))
        except IncumbentError as error:
            refused = error
        self._at_once -= 1
        self._warm.append(environment)
        if message_id is None:
            return
        if refused is None:
            self._to_come -= 1
            self.accepted.add(message_id)
            return
        self.refusals[_word(refused)] += 1
        if tries >= MAX_TRIES:
            self._to_come -= 1
            self.given_up += 1
            return
        pause_ms = 1_000 << (tries - 1)
        again_ms = self.scheduler.random.randint(pause_ms // 2, pause_ms)
        self.scheduler.after(again_ms, lambda: self._invoke(key, message_id, tries + 1))

    def _work(self, environment: Environment, message: Message, lease: Lease) -> None:
        is_first = any(each.id == "first" for each in lease.messages)
        environment.clock.sleep_ms(self.first_ms if is_first and self.first_ms is not None else self.work_ms)
        now_ms = self.scheduler.now_ms
        for each in lease.messages:
            self.ran[each.id] += 1
            self.answered_ms.setdefault(each.id, now_ms - self.arrived.get(each.id, now_ms))

    def _wake(self, wake: Wake) -> None:
        self.scheduler.after(_COLD_MS, lambda: self._invoke(wake.key, None, 1, wake))

    def _note(self, fact: Fact) -> None:
        self.facts[fact.fact] += 1

    # --- figures

    @property
    def lost(self) -> int:
        """How many messages were accepted and never ran."""
        return sum(each not in self.ran for each in self.accepted)

    @property
    def twice(self) -> int:
        """How many messages ran more than once."""
        return sum(count > 1 for count in self.ran.values())

    def percentile(self, percent: int, of: Callable[[str], bool] = lambda _: True) -> float | None:
        """The milliseconds after which so many of the messages that ran had run."""
        times = [ms for each, ms in self.answered_ms.items() if each in self.arrived and of(each)]
        if len(times) < 2:
            return None
        return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def simulate(seed: int, prepare: Callable[[Scheduler], None]) -> None:
    """Carry out a schedule, from its first event to its last. The same seed gives the same schedule."""
    state = random.getstate()
    random.seed(seed)  # the pauses between tries, and the jitter of renewals
    workers = Workers()
    try:
        scheduler = Scheduler(seed, workers, stuck_s=3_600, max_events=100_000_000)
        prepare(scheduler)
        scheduler.run()
    finally:
        workers.dismiss()
        random.setstate(state)


def _word(error: IncumbentError) -> str:
    match error:
        case MailboxFull():
            return "full"
        case LeaseLost():
            return "lost"
        case _:
            return "unavailable"


def _unset(_: Environment) -> Any:
    raise TypeError("the crowd has no store")
