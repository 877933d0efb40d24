"""What the tests of runs share: a clock that threads wait on, a context, and parts that note or spoil what goes by."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from incumbent import Acquisition, Fact, IncumbentError, Wake
from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.pacemaker import pacemaker_of
from incumbent.testing.clock import FakeClock

PATIENCE_S = 20.0
"""How long a test waits for another thread before it fails: never how long it takes."""

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:orders:live"


@contextmanager
def profiled(note: Callable[..., object]) -> Iterator[None]:
    """Note each call of this thread, without the finalizers of what earlier tests have left."""
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


class StepClock(FakeClock):
    """A clock whose waiting threads wake when the test moves it, and not before."""

    def __init__(self) -> None:
        """Begin like any `FakeClock`."""
        super().__init__()
        self.pauses_ms: list[int] = []
        self.while_sleeping: Callable[[], object] | None = None
        self._waiting = threading.Semaphore(0)

    def wait_ms(self, event: threading.Event, ms: int) -> bool:
        """Wait until ``event`` is set or the clock was moved by ``ms``; say whether it is set."""
        wakes = self.now().plus(ms)
        self.pauses_ms.append(ms)
        self._waiting.release()
        while not event.wait(0.0005):
            if self.now().until(wakes) <= 0:
                return event.is_set()
        return True

    def sleep_ms(self, ms: int) -> None:
        """Let the test do something meanwhile, and pass the time at once."""
        if self.while_sleeping is not None:
            self.while_sleeping()
        super().sleep_ms(ms)

    def next_pause_ms(self) -> int:
        """Wait until a thread waits once more, and return for how long it means to."""
        assert self._waiting.acquire(timeout=PATIENCE_S), "no thread waits for the clock"
        return self.pauses_ms[-1]

    def no_pause_comes(self) -> bool:
        """Whether no thread has begun to wait since."""
        return not self._waiting.acquire(blocking=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Lambda's context object: what the handler is told of its invocation."""

    clock: Clock
    ends: Moment
    aws_request_id: str = "request-1"
    invoked_function_arn: str = ARN
    log_stream_name: str = "2026/11/02/[live]0123456789abcdef"
    function_name: str = "orders"
    function_version: str = "7"
    memory_limit_in_mb: int = 512
    log_group_name: str = "/aws/lambda/orders"

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation has left."""
        return max(0, self.clock.now().until(self.ends))


def context(clock: Clock, *, time_left_ms: int = 60_000, request_id: str = "request-1") -> Context:
    """An invocation that ends ``time_left_ms`` from now."""
    return Context(clock=clock, ends=clock.now().plus(time_left_ms), aws_request_id=request_id)


@dataclass(slots=True)
class RecordingWaker:
    """Notes each wake. ``fails`` is what it raises, ``loses`` whether it sends nothing and still raises nothing."""

    wakes: list[Wake] = field(default_factory=list)
    fails: Exception | None = None
    meanwhile: Callable[[Wake], object] | None = None

    def __call__(self, wake: Wake, /) -> None:
        """Note it; then fail, if that is wanted."""
        self.wakes.append(wake)
        if self.meanwhile is not None:
            self.meanwhile(wake)
        if self.fails is not None:
            raise self.fails


@dataclass(slots=True)
class Facts:
    """An observer that keeps all it is told."""

    told: list[Fact] = field(default_factory=list)

    def __call__(self, fact: Fact, /) -> None:
        """Keep it."""
        self.told.append(fact)

    @property
    def names(self) -> list[str]:
        """What happened, in order."""
        return [fact.fact for fact in self.told]

    def of(self, name: str) -> list[Fact]:
        """All facts of a name."""
        return [fact for fact in self.told if fact.fact == name]


class Meddled:
    """A provider with something put in between: before a call of a name is passed on, or instead of its answer.

    ``before["settle"]`` is called first and may raise; ``after["settle"]`` gets the answer, and what it returns or
    raises is the answer. ``calls`` are the names, in order, and ``named`` the keyword arguments of each. It has exactly
    the methods of what it stands before.
    """

    def __init__(self, provider: Any, names: Sequence[str] | None = None) -> None:
        """Stand before ``provider``; with ``names`` only those of its methods are there."""
        self.calls: list[str] = []
        self.named: list[dict[str, Any]] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[Any], Any]] = {}
        self._provider = provider
        self._names = names

    def __getattr__(self, name: str) -> Any:
        """Pass a method on."""
        method = getattr(self._provider, name)
        if not callable(method) or (self._names is not None and name not in self._names):
            raise AttributeError(name)

        def passed_on(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.named.append(kwargs)
            if name in self.before:
                self.before[name]()
            answer = method(*args, **kwargs)
            return self.after[name](answer) if name in self.after else answer

        return passed_on


class Little:
    """The least that leases: five methods, answers with nothing but ``acquired`` and ``owner``."""

    def __init__(self, provider: Any) -> None:
        """Lease by means of ``provider``."""
        self._provider = provider

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Any:
        """Say no more than one must."""
        answer: Acquisition = self._provider.acquire_lease(key, owner, ttl_ms)

        @dataclass
        class Least:
            acquired: bool
            owner: str | None

        return Least(acquired=answer.acquired, owner=answer.owner)

    def get_lease_owner(self, key: str) -> str | None:
        """Pass on."""
        owner: str | None = self._provider.get_lease_owner(key)
        return owner

    def release_lease(self, key: str, owner: str) -> None:
        """Pass on."""
        self._provider.release_lease(key, owner)

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Pass on."""
        renewed: bool = self._provider.renew_lease(key, owner, ttl_ms)
        return renewed

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass on."""
        moved: bool = self._provider.transfer_lease(key, from_owner, to_owner, ttl_ms)
        return moved


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises it."""

    def fail(*_: object) -> Any:
        raise error

    return fail


def no_heartbeat_is_left() -> bool:
    """Whether every heartbeat's thread ends soon; the thread of this process, by the system's clock, stays."""
    ends = SYSTEM_CLOCK.now().plus(int(PATIENCE_S * 1_000))
    stays = pacemaker_of(SYSTEM_CLOCK)
    kept = getattr(stays._keeper, "thread", None)  # noqa: SLF001 - which thread it is does not concern others
    while [each for each in threading.enumerate() if each.name == "incumbent-heartbeat" and each is not kept]:
        if SYSTEM_CLOCK.now().until(ends) <= 0:
            return False
        SYSTEM_CLOCK.sleep_ms(1)
    return stays.live == 0


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run something in a thread of its own, and end only with it; what it raises, this raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive(), "the thread beside hangs"
    if errors:
        raise errors[0]


class NotAvailableError(IncumbentError):
    """Something went wrong that no test has a better name for."""
