"""The resume event, which starts the next invocation of a key, and the wakers that send it."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from incumbent import results
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.errors import ConfigurationError, IncumbentError, StoredFormatUnknown
from incumbent.frozen import dataclass, replace
from incumbent.owners import is_ticket
from incumbent.stand_in import STAND_IN
from incumbent.validation import shown

RESUME_VERSION = 1
QUEUE_VERSION = 1
MAX_DELAY_S = 900
"""The longest delay of one message in SQS, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """A request to continue a key: its ticket (M9: hand over), the function to call, and the length of the chain.

    ``key`` is the provider's, keyspace included. ``target`` is a function's ARN or name, with its alias. ``hops``
    counts the invocations that woke one another so far. ``after_ms`` is in how many milliseconds the target is to be
    called, 0 for at once; only a waker that can delay is asked for a later wake, and the resume event does not say it.
    """

    key: str
    ticket: str | None
    target: str | None
    hops: int = 0
    after_ms: int = 0

    def to_event(self) -> dict[str, Any]:
        """Make the resume event: small, versioned JSON that ``@leased`` recognises."""
        return {"incumbent": {"v": RESUME_VERSION, "key": self.key, "ticket": self.ticket, "hops": self.hops}}

    @classmethod
    def from_event(cls, event: object) -> "Wake | None":
        """Read a resume event. Return ``None`` for every other event.

        A ticket without the prefix of tickets is dropped: a forged event must not name a run's owner (M9: hand over).
        Raises ``StoredFormatUnknown`` for a later version (M12: format).
        """
        if not isinstance(event, dict) or len(event) != 1 or "incumbent" not in event:
            return None
        match event["incumbent"]:
            case {"v": int(version), "key": str(key), "ticket": str() | None as ticket, "hops": int(hops)} if (
                version == RESUME_VERSION and key and ticket != "" and hops >= 0
            ):
                real = ticket is not None and is_ticket(ticket)
                return cls(key=key, ticket=ticket if real else None, target=None, hops=hops)
            case {"v": int(version), "key": str()} if version > RESUME_VERSION:
                raise StoredFormatUnknown(f"a resume event of version {version}: this function knows {RESUME_VERSION}")
            case _:
                return None

    def to_queue(self, now_ms: int) -> str:
        """Make the body of a queue's message: versioned JSON, without payload, that says when the wake is due.

        ``now_ms`` is the present, epoch milliseconds.
        """
        said = {"key": self.key, "ticket": self.ticket, "target": self.target, "hops": self.hops}
        return json.dumps({"incumbent_wake": {"v": QUEUE_VERSION, **said, "at_ms": now_ms + self.after_ms}})

    @classmethod
    def from_queue(cls, body: str, now_ms: int) -> "Wake | None":
        """Read the body of a queue's message. ``after_ms`` is then what remains of the delay; 0 means: wake now.

        Return ``None`` for every other body. Raises ``StoredFormatUnknown`` for a later version (M12: format).
        """
        try:
            read = json.loads(body)
        except (ValueError, RecursionError):
            return None
        inner = read.get("incumbent_wake") if isinstance(read, dict) and len(read) == 1 else None
        match inner:
            case {"v": int(version), "target": str(target), "at_ms": int(at_ms), **said} if version == QUEUE_VERSION:
                wake = cls.from_event({"incumbent": {**said, "v": RESUME_VERSION}})
                return wake and replace(wake, target=target, after_ms=max(0, at_ms - now_ms))
            case {"v": int(version), "key": str()} if version > QUEUE_VERSION:
                raise StoredFormatUnknown(f"a queued wake of version {version}: this function knows {QUEUE_VERSION}")
            case _:
                return None


class Waker(Protocol):
    """A callable that starts the next invocation. It raises if that failed, or if the outcome is unknown.

    A waker with an attribute ``delays`` that is ``True`` obeys ``Wake.after_ms``; only such a waker gets wakes with a
    delay. A wake that comes late, early or twice does no harm.
    """

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake."""
        ...


def check_waker(waker: object) -> None:
    """Refuse a value that is not a waker: a name other than ``"auto"``, a class, or an ``async def``."""
    if waker not in (None, "auto") and (isinstance(waker, type) or not callable(waker) or results.is_async(waker)):
        raise ConfigurationError(f"waker is {shown(waker)}: give a callable that is not async, 'auto' or None")


def can_delay(waker: Waker | None) -> bool:
    """Return whether a waker obeys ``Wake.after_ms``."""
    return getattr(waker, "delays", False) is True


def send_wake(waker: Waker, wake: Wake) -> None:
    """Call a waker. Raises ``ConfigurationError`` if it returns a coroutine or the like, which wakes nothing."""
    call: Callable[[Wake], object] = waker  # a user's may return anything
    results.refuse_unfinished(call(wake), "waker")


class _Client:
    """A boto3 client that is made on first use, once in each process, unless one is given."""

    def __init__(self, service: Literal["lambda", "sqs"], given: Any) -> None:
        self.client = given
        self._service = service
        self._made_in: int | None = None  # the process: a child must not share the connections of its parent

    def get(self, key: str) -> Any:
        """Return the client. ``key`` is for the error: ``ConfigurationError`` without a region."""
        if self.client is None or self._made_in not in (None, os.getpid()):
            import boto3
            from botocore.config import Config
            from botocore.exceptions import NoRegionError

            try:
                self.client = boto3.client(
                    self._service,
                    region_name=os.environ.get("AWS_REGION") or None,  # which not every botocore reads by itself
                    config=Config(connect_timeout=1, read_timeout=3, retries={"total_max_attempts": 2}),
                )
            except NoRegionError as cause:
                raise ConfigurationError(f"cannot wake a function for key {key!r}: set AWS_REGION") from cause
            self._made_in = os.getpid()
        return self.client


def _is_kept(wake: Wake) -> bool:
    """Refuse a wake without a target. Under a test's stand-in, keep it for the test instead of sending it."""
    if wake.target is None:
        raise ConfigurationError(
            f"key {wake.key!r} has no target to wake: set INCUMBENT_TARGET to the function's name or ARN",
            key=wake.key,
        )
    if STAND_IN.wakes is None:
        return False
    STAND_IN.wakes.append(wake)
    return True


class LambdaWaker:
    """A waker that invokes the target asynchronously, at once. It needs ``lambda:InvokeFunction`` on the target.

    The client is made on first use, with timeouts of 1 s to connect and 3 s to read and two attempts: a wake sent
    twice is harmless (M9: hand over). Under ``incumbent.testing.stand_in`` no client is made and nothing is sent: the
    wake is kept for the test.
    """

    def __init__(self, client: Any = None) -> None:
        """Take a boto3 Lambda client, which keeps its settings; without one the waker makes its own."""
        self._client = _Client("lambda", client)

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake. Raises ``ConfigurationError`` without a target, ``IncumbentError`` when Lambda refuses."""
        if _is_kept(wake):
            return
        answer = self._client.get(wake.key).invoke(
            FunctionName=wake.target,
            InvocationType="Event",
            Payload=json.dumps(wake.to_event()).encode(),
        )
        answer["Payload"].read()  # empty; reading it frees the connection for the next wake
        if answer["StatusCode"] != 202:  # noqa: PLR2004 - "accepted", the only success of an asynchronous invoke
            raise IncumbentError(f"Lambda answered {answer['StatusCode']} to the wake of {wake.target}", key=wake.key)


class SqsWaker:
    """A waker that can delay: it sends the wake to a standard queue. It needs ``sqs:SendMessage`` on that queue.

    The function ``incumbent.sweeper.handler``, mapped to the queue, invokes the target when the wake is due, and sends
    the wake on if that is later: SQS delays a message by 15 minutes at most. The delay is rounded up to whole seconds.
    The body is versioned JSON without payload. The client is made like that of `LambdaWaker`, and under
    ``incumbent.testing.stand_in`` nothing is sent.
    """

    delays = True

    def __init__(self, queue_url: str, *, client: Any = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Send to the queue of this URL. A FIFO queue is refused: it cannot delay single messages."""
        given: object = queue_url
        if not isinstance(given, str) or not given or given.endswith(".fifo"):
            raise ConfigurationError(f"queue_url is {shown(given)}: pass the URL of a standard queue")
        self._queue_url = queue_url
        self._client = _Client("sqs", client)
        self._clock = clock

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake. Raises ``ConfigurationError`` without a target, and botocore's errors."""
        if _is_kept(wake):
            return
        self._client.get(wake.key).send_message(
            QueueUrl=self._queue_url,
            MessageBody=wake.to_queue(self._clock.now().wall_ms),
            DelaySeconds=min(MAX_DELAY_S, -(-wake.after_ms // 1_000)),
        )


class SplittingWaker:
    """A waker that can delay: one waker sends the wakes at once, and another, which can delay, the later ones."""

    delays = True

    def __init__(self, at_once: Waker, later: Waker) -> None:
        """Take both wakers."""
        self._at_once = at_once
        self._later = later

    def __call__(self, wake: Wake, /) -> None:
        """Send the wake by the waker for its delay."""
        (self._later if wake.after_ms else self._at_once)(wake)


def waker_from_env(environ: Mapping[str, str]) -> Waker:
    """Return the waker of ``waker="auto"``: it can delay if ``INCUMBENT_WAKE_QUEUE_URL`` is set."""
    queue_url = environ.get("INCUMBENT_WAKE_QUEUE_URL", "").strip()
    return SplittingWaker(LambdaWaker(), SqsWaker(queue_url)) if queue_url else LambdaWaker()
