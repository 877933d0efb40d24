"""What lies between an environment and the store: requests that get lost, come late, come twice, or kill."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.simulation.environment import Environment
from tests.simulation.scheduler import Scheduler

T = TypeVar("T")

TIMEOUT_MS = 300  # a wait for the connection and one for the answer
_LATENCY_MS = 6

ON_REQUESTS = (
    "lost",  # never arrives
    "mute",  # is carried out, and the answer gets lost
    "late",  # is carried out long after its sender has given up
    "twice",  # is carried out, and later once more
    "slow",  # is carried out at once, and answered just in time
    "cut",  # never arrives, nor does anything else that its sender asks for a while
    "throttled",  # is refused by the store before anything is done
    "crash before",  # its sender dies in sending it
    "crash after",  # its sender dies when it has been carried out
    "pause before",  # its sender stands still between looking at its clock and sending
    "pause after",  # its sender stands still while it is carried out and answered
)
ON_STEPS = ("crash", "pause", "clock")
FAULTS = (*ON_REQUESTS, *ON_STEPS)


class NoAnswer(Exception):
    """What a vendor's client raises: no answer in time, or no service."""


class Throttled(NoAnswer):
    """The store has refused the request before doing anything."""


class Faults:
    """A few faults of some kinds, scattered over a schedule. None once it is calm."""

    def __init__(
        self,
        chance: random.Random,
        *,
        kinds: Sequence[str],
        most: int,
        each: float,
        opening: Sequence[str | None] = (),
    ) -> None:
        """``most`` faults, ``each`` as likely wherever one can be, after an ``opening`` for the first requests."""
        self._opening = list(opening)
        self._random = chance
        self._on_requests = [kind for kind in kinds if kind in ON_REQUESTS]
        self._on_steps = [kind for kind in kinds if kind in ON_STEPS]
        self._left = most
        self._each = each

    def calm(self) -> None:
        """Nothing fails from now on."""
        self._left = 0
        self._opening.clear()

    def of_request(self) -> str | None:
        """What happens to the next request."""
        if self._opening:
            return self._opening.pop(0)
        return self._draw(self._on_requests)

    def of_step(self) -> str | None:
        """What happens in the next step of a handler."""
        return self._draw(self._on_steps)

    def of(self, kinds: Sequence[str]) -> str | None:
        """What of some other kinds happens next."""
        return self._draw(kinds)

    def _draw(self, kinds: Sequence[str]) -> str | None:
        if not self._left or not kinds or self._random.random() >= self._each:
            return None
        self._left -= 1
        return self._random.choice(kinds)


class Network:
    """Carries requests. ``longest_ms`` bounds how late a request comes and how long an environment stands still."""

    def __init__(
        self,
        scheduler: Scheduler,
        faults: Faults,
        *,
        longest_ms: int,
        crash: Callable[[Environment], None],
        say: Callable[[str], None] | None,
    ) -> None:
        self._scheduler = scheduler
        self._faults = faults
        self._longest_ms = longest_ms
        self._crash = crash
        self._say = say

    def request(self, environment: Environment, name: str, carry_out: Callable[[], T]) -> T:
        """Send a request and wait for its answer. Raises ``NoAnswer``."""
        scheduler = self._scheduler
        fault = environment.opening.pop(0) if environment.opening else self._faults.of_request()
        if fault is not None and self._say is not None:
            self._say(f"{environment.name}: {name} meets a fault: {fault}")
        fault = self._before(environment, fault)
        task = scheduler.running
        turn = task.turn + 1
        answers: list[T] = []

        def answered(answer: T) -> None:
            if not answers:
                answers.append(answer)
                scheduler.wake(task, turn)

        def arrive() -> None:
            answer = carry_out()
            if fault == "crash after":
                self._crash(environment)
            back_ms = self._back_ms(fault)
            if back_ms is not None:
                scheduler.after(back_ms, lambda: answered(answer))

        for arrives_ms in self._arrivals_ms(fault):
            scheduler.after(arrives_ms, arrive)
        if fault == "pause after":
            environment.stand_still(self.a_while_ms())
        scheduler.pause(TIMEOUT_MS)
        if not answers:
            raise NoAnswer("timed out")
        return answers[0]

    def _before(self, environment: Environment, fault: str | None) -> str | None:
        """What befalls the sender in sending; return what befalls the request then. Raises ``NoAnswer``."""
        scheduler = self._scheduler
        if fault == "crash before":
            self._crash(environment)
            scheduler.pause(0)
        if fault == "pause before":
            environment.stand_still(self.a_while_ms())
            scheduler.pause(0)
        if fault == "throttled":
            scheduler.pause(scheduler.random.randint(0, _LATENCY_MS))
            raise Throttled("throttled")
        if fault == "cut":
            environment.cut_until_ms = scheduler.now_ms + self.a_while_ms()
        return "lost" if environment.cut_until_ms > scheduler.now_ms else fault

    def _arrivals_ms(self, fault: str | None) -> tuple[int, ...]:
        """After how long the request arrives, each time that it does."""
        chance, soon_ms = self._scheduler.random, self._scheduler.random.randint(0, _LATENCY_MS)
        match fault:
            case "lost":
                return ()
            case "late":
                return (TIMEOUT_MS + chance.randint(0, self._longest_ms),)
            case "twice":
                return (soon_ms, chance.randint(1, self._longest_ms))
            case _:
                return (soon_ms,)

    def _back_ms(self, fault: str | None) -> int | None:
        """How long its answer takes; ``None`` if it gets lost."""
        chance = self._scheduler.random
        match fault:
            case "mute" | "late":
                return None
            case "slow":
                return TIMEOUT_MS - chance.randint(_LATENCY_MS + 1, TIMEOUT_MS // 2)
            case _:
                return chance.randint(0, _LATENCY_MS)

    def a_while_ms(self) -> int:
        """How long something stands still."""
        return self._scheduler.random.randint(self._longest_ms // 8, self._longest_ms)
