"""What the calls take and answer: frozen values, valid from birth."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from incumbent.clock import Moment
from incumbent.errors import ConfigurationError
from incumbent.validation import MAX_TTL_MS, check_error, check_ms, check_origin

MessageState: TypeAlias = Literal["waiting", "running", "handled", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One stored JSON value.

    ``attempt`` counts the deliveries, this one included: 1 in the first run, 0 while it was never given to one.
    ``stored_at_ms`` is epoch milliseconds by the clock that stored it (Redis: the server's). ``due_at_ms`` is in
    the future while a failed message pauses. ``promised`` says that some source was told "accepted" (M3).
    ``last_error`` is what its last run raised.
    """

    id: str
    event: Any
    attempt: int = 0
    stored_at_ms: int = 0
    due_at_ms: int = 0
    promised: bool = False
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A message whose run raised: which, why, and when to run it again (``None``: after the policy's pause).

    ``error`` is text of at most 4,096 bytes, kept with the message; ``after_ms`` at most a day. ``final``: it is a dead
    letter at once, whatever attempts are left.
    """

    id: str
    error: str
    after_ms: int | None = None
    final: bool = False

    def __post_init__(self) -> None:
        """Refuse what not every store could keep."""
        check_error(self.error)
        if self.after_ms is not None:
            check_ms("after_ms", self.after_ms, 0, MAX_TTL_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the messages of a key are kept (M5, M6, M7). The same values belong to every caller of a keyspace.

    ``max_pending`` bounds the stored messages of a key, the running ones included. ``window_ms`` is how long a
    handled or dead id is remembered (an hour; 15 minutes to 7 days), at most the last 256 of a key: make it as long as
    the source may bring a handled message again. ``pauses_ms`` are the pauses after the first, second ... failure, the
    last one for all that follow. ``on_error`` is what later messages do meanwhile: ``"skip"`` ahead or ``"block"``,
    which keeps the mailbox in charge of a failed message that its source would bring again (a record, an asynchronous
    event).
    """

    max_pending: int = 100
    max_message_bytes: int = 256 * 1024
    window_ms: int = 60 * 60_000
    max_attempts: int = 5
    pauses_ms: tuple[int, ...] = (1_000, 10_000, 60_000, 300_000)
    on_error: Literal["skip", "block"] = "skip"

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name, value, most in (
            ("max_pending", self.max_pending, 1_000),
            ("max_message_bytes", self.max_message_bytes, 1024 * 1024),
            ("max_attempts", self.max_attempts, 1_000),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigurationError(f"{name} is {value!r}; allowed are whole numbers from 1 to {most:,}")
        check_ms("window_ms", self.window_ms, 15 * 60_000, 7 * MAX_TTL_MS)
        if not self.pauses_ms:
            raise ConfigurationError("pauses_ms is empty: give at least one pause in milliseconds")
        for pause_ms in self.pauses_ms:
            check_ms("pauses_ms", pause_ms, 0, MAX_TTL_MS)
        if self.on_error not in ("skip", "block"):
            raise ConfigurationError(f"on_error is {self.on_error!r}; allowed are 'skip' and 'block'")

    def pause_ms(self, attempts: int) -> int:
        """Return the pause after that many deliveries."""
        return self.pauses_ms[min(max(attempts, 1), len(self.pauses_ms)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who asks: kept beside the lease so that a sweeper can wake the right function, and people can look.

    ``target`` is the function's ARN with its alias, as it was invoked. ``keyspace`` is the application's.
    """

    keyspace: str = ""
    target: str | None = None
    request_id: str | None = None
    log_stream: str | None = None

    def __post_init__(self) -> None:
        """Refuse what would not fit beside the messages of a key: more than 1,024 bytes each."""
        for name in ("keyspace", "target", "request_id", "log_stream"):
            check_origin(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The answer to ``acquire_lease``. ``owner`` is the winner: the caller, or the present holder.

    ``deadline`` is until when the caller may believe (R12); ``None`` from providers that do not say.
    """

    acquired: bool
    owner: str | None
    fence: int | None = None
    expires_in_ms: int | None = None
    deadline: Moment | None = None


# ``buried`` in the answers of claim and settle: the messages that this very call moved to the dead letters (M6), so
# that somebody can be told. It is told once: a call that is repeated after a lost reply may have nothing to say any
# more. So it is no part of what makes two answers equal, and the dead letters themselves are what counts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The caller owns the key.

    ``messages`` is the oldest due message (none for a ticket, which runs nothing), ``waiting`` how many more are
    due. The caller's own message need not be the one: older ones go first (M4). ``buried`` died in this call.
    """

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    expires_in_ms: int
    deadline: Moment
    buried: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The message is stored and promised; ``owner`` holds the key, or ``None`` where nobody does at this moment.

    ``waiting`` is how many messages the key stores now, where the store said so.
    """

    owner: str | None
    waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The id is known already, and nothing was stored twice (M5). ``buried`` died in this call, perhaps itself."""

    state: MessageState
    owner: str | None = None
    buried: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Another owner holds the key, and nothing was stored."""

    owner: str
    expires_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Nothing is due: there is nothing to own the key for. ``buried`` died in this call."""

    buried: tuple[Message, ...] = field(default=(), compare=False)


Claim: TypeAlias = Claimed | Routed | Duplicate | Busy | Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The key is free. ``left`` messages are still stored (paused, or left behind by a caller with no successor).

    ``buried`` died in this call.
    """

    left: int = 0
    buried: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The key passed to the successor without a gap (R6), with a new fence.

    ``messages`` is the oldest due message, ``waiting`` how many more are due. ``messages`` is empty for a ticket.
    ``buried`` died in this call.
    """

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    expires_in_ms: int
    deadline: Moment
    buried: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The lease was renewed; ``waiting`` is how many messages are due that this owner was not given."""

    fence: int
    waiting: int
    expires_in_ms: int
    deadline: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message out of attempts, kept for people (M6): its last error is ``message.last_error``."""

    key: str
    message: Message
    died_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A key with due messages and no live owner. ``age_ms`` is for how long; ``target`` is what to wake."""

    key: str
    target: str | None
    age_ms: int
    waiting: int
