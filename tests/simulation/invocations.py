"""Who invokes, what is invoked, and what handlers and wakers raise."""

from dataclasses import dataclass

from incumbent.wakers import Wake
from tests.simulation.environment import Environment


class Boom(Exception):
    """What a handler raises."""


class Cancelled(Exception):
    """What comes out of a handler that a stop has cancelled."""


class WakeFailed(Exception):
    """What a waker raises."""


@dataclass(slots=True, kw_only=True, eq=False)
class Source:
    """Who has a message and keeps it until it is told that it is safe."""

    message_id: str
    kind: str
    again: int
    after_ms: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Invocation:
    """One invocation: what it was invoked for, where it runs, whether it is over."""

    name: str
    request_id: str
    environment: Environment
    source: Source | None
    wake: Wake | None
    wakes_again: int = 0
    over: bool = False
