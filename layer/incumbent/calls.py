"""What an invocation brings, what it answers, and the work that it does."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from incumbent.clock import Moment
from incumbent.frozen import dataclass, field
from incumbent.lease import Lease
from incumbent.values import Busy, Duplicate, Idle, Message, Origin, Routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The input of one invocation: its key, and its own message or the ticket with which it was woken.

    ``full_key`` is the provider's, with its keyspace; ``key`` is the user's. ``message`` is the stored form of the
    event, ``event`` what this invocation's run gets. ``said`` holds the key and id for the answer. ``synchronous``: a
    caller waits for the answer. ``comes_again``: after a failure the source delivers the event again under the same id.
    """

    full_key: str
    key: str
    message: Message | None
    said: Mapping[str, str] = field(default_factory=dict)
    event: Any = None
    ticket: str | None = None
    hops: int = 0
    origin: Origin
    ends: Moment | None = None
    synchronous: bool = False
    comes_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """This invocation's message ran; ``result`` is what it returned. A woken invocation has no result."""

    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """This invocation's message is promised and runs later: it deferred itself, or older ones go first."""

    reason: Literal["deferred", "queued"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """This invocation's message ran and was stopped (M16): it is settled, without a result."""


Outcome: TypeAlias = Completed | Postponed | Stopped | Routed | Duplicate | Busy | Idle
Work: TypeAlias = Callable[[Message, Lease], Any]
