"""The resume event, which starts the next invocation of a key, and the wakers that send it."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from incumbent import results
from incumbent.errors import ConfigurationError, IncumbentError, StoredFormatUnknown
from incumbent.owners import is_ticket
from incumbent.stand_in import STAND_IN
from incumbent.validation import shown

RESUME_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """A request to continue a key: its ticket (M9: hand over), the function to call, and the length of the chain.

    ``key`` is the provider's, keyspace included. ``target`` is a function's ARN or name, with its alias. ``hops``
    counts the invocations that woke one another so far.
    """

    key: str
    ticket: str | None
    target: str | None
    hops: int = 0

    def to_event(self) -> dict[str, Any]:
        """Make the resume event: small, versioned JSON that ``@leased`` recognises."""
        return {"incumbent": {"v": RESUME_VERSION, "key": self.key, "ticket": self.ticket, "hops": self.hops}}

    @classmethod
    def from_event(cls, event: object) -> "Wake | None":
        """Read a resume event. Return ``None`` for every other event.

        A ticket without the prefix of tickets is dropped: a forged event must not name a run's owner (M9: hand over).
        Raises ``StoredFormatUnknown`` for a later version (M12: format).
        """
        inner = event.get("incumbent") if isinstance(event, dict) and len(event) == 1 else None
        match inner:
            case {"v": int(version), "key": str(key), "ticket": str() | None as ticket, "hops": int(hops)} if (
                version == RESUME_VERSION and key and ticket != "" and hops >= 0
            ):
                real = ticket is not None and is_ticket(ticket)
                return cls(key=key, ticket=ticket if real else None, target=None, hops=hops)
            case {"v": int(version), "key": str()} if version > RESUME_VERSION:
                raise StoredFormatUnknown(f"a resume event of version {version}: this function knows {RESUME_VERSION}")
            case _:
                return None


class Waker(Protocol):
    """A callable that starts the next invocation. It raises if that failed, or if the outcome is unknown."""

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake."""
        ...


def check_waker(waker: object) -> None:
    """Refuse a value that is not a waker: a name other than ``"auto"``, a class, or an ``async def``."""
    if waker not in (None, "auto") and (isinstance(waker, type) or not callable(waker) or results.is_async(waker)):
        raise ConfigurationError(f"waker is {shown(waker)}: give a callable that is not async, 'auto' or None")


def send_wake(waker: Waker, wake: Wake) -> None:
    """Call a waker. Raises ``ConfigurationError`` if it returns a coroutine or the like, which wakes nothing."""
    call: Callable[[Wake], object] = waker  # a user's may return anything
    results.refuse_unfinished(call(wake), "waker")


class LambdaWaker:
    """A waker that invokes the target asynchronously. It needs ``lambda:InvokeFunction`` on the target.

    The client is made on first use, with timeouts of 1 s to connect and 3 s to read and two attempts: a wake sent
    twice is harmless (M9: hand over). Under ``incumbent.testing.stand_in`` no client is made and nothing is sent: the
    wake is kept for the test.
    """

    def __init__(self, client: Any = None) -> None:
        """Take a boto3 Lambda client, which keeps its settings; without one the waker makes its own."""
        self._client = client
        self._made_in: int | None = None  # the process: a child must not share the connections of its parent

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake. Raises ``ConfigurationError`` without a target, ``IncumbentError`` when Lambda refuses."""
        if wake.target is None:
            raise ConfigurationError(
                f"key {wake.key!r} has no target to wake: set INCUMBENT_TARGET to the function's name or ARN",
                key=wake.key,
            )
        if STAND_IN.wakes is not None:
            STAND_IN.wakes.append(wake)
            return
        if self._client is None or self._made_in not in (None, os.getpid()):
            import boto3
            from botocore.config import Config
            from botocore.exceptions import NoRegionError

            try:
                self._client = boto3.client(
                    "lambda",
                    region_name=os.environ.get("AWS_REGION") or None,  # which not every botocore reads by itself
                    config=Config(connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 2}),
                )
            except NoRegionError as cause:
                raise ConfigurationError(f"cannot wake a function for key {wake.key!r}: set AWS_REGION") from cause
            self._made_in = os.getpid()
        answer = self._client.invoke(
            FunctionName=wake.target,
            InvocationType="Event",
            Payload=json.dumps(wake.to_event()).encode(),
        )
        answer["Payload"].read()  # empty; reading it frees the connection for the next wake
        if answer["StatusCode"] != 202:  # noqa: PLR2004 - "accepted", the only success of an asynchronous invoke
            raise IncumbentError(f"Lambda answered {answer['StatusCode']} to the wake of {wake.target}", key=wake.key)
