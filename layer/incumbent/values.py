"""The values that calls take and return: frozen, and valid once they are made."""

from collections.abc import Iterable
from typing import Any, Literal, Self, TypeAlias

from incumbent.clock import Moment
from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass, field
from incumbent.validation import MAX_TTL_MS, check_error, check_ms, check_origin

MessageState: TypeAlias = Literal["waiting", "running", "handled", "dead", "stopped", "cancelled", "superseded"]


MAX_RESULT_BYTES = 256 * 1024
MAX_WINDOW_MS = 7 * MAX_TTL_MS
FOREVER_MS = 253_402_300_799_000  # the end of the year 9999: a hold without an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One stored JSON value.

    ``attempt`` counts the deliveries, this one included: 1 in the first run, 0 before any run got it.
    ``stored_at_ms`` is epoch milliseconds by the clock that stored it (Redis: the server's). ``due_at_ms`` is in
    the future while a failed message pauses. ``promised`` says that a source was told "accepted" (M3).
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
    """A message whose run raised: which one, why, and when to run it again.

    ``error`` is text of at most 4,096 bytes, kept with the message. ``after_ms`` is the pause in milliseconds, at most
    a day; ``None`` means the policy's pause. ``final`` makes it a dead letter at once, whatever attempts remain.
    """

    id: str
    error: str
    after_ms: int | None = None
    final: bool = False

    def __post_init__(self) -> None:
        """Refuse values that some store could not keep."""
        check_error(self.error)
        if self.after_ms is not None:
            check_ms("after_ms", self.after_ms, 0, MAX_TTL_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the messages of a key are kept: duplicates, failures and limits (M5, M6, M7).

    Every caller of a keyspace must use the same values. ``max_pending`` bounds the stored messages of a key, the
    running ones included. ``window_ms`` is how long a handled or dead id is remembered (default an hour; 15 minutes to
    7 days), and only the last 256 of a key: make it as long as the source may deliver a handled message again.
    ``pauses_ms`` are the pauses after the first, second ... failure; the last one applies to all that follow.
    ``on_error`` says what later messages do meanwhile: ``"skip"`` ahead or ``"block"``. With ``"block"``, the mailbox
    itself retries a failed message that its source would deliver again (a record, an asynchronous event).
    ``keep="latest"``: a message that is stored behind an owner replaces the due ones that were never delivered (M21).
    ``result_bytes`` is how many bytes of JSON a result may have to be kept for the window (M17: result); 0 keeps none.
    """

    max_pending: int = 100
    max_message_bytes: int = 3 * 1024 * 1024
    window_ms: int = 60 * 60_000
    max_attempts: int = 5
    pauses_ms: tuple[int, ...] = (1_000, 10_000, 60_000, 300_000)
    on_error: Literal["skip", "block"] = "skip"
    keep: Literal["all", "latest"] = "all"
    result_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        for name, value, most in (
            ("max_pending", self.max_pending, 1_000),
            ("max_message_bytes", self.max_message_bytes, 4 * 1024 * 1024),
            ("max_attempts", self.max_attempts, 1_000),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigurationError(f"{name} is {value!r}; allowed are whole numbers from 1 to {most:,}")
        if type(self.result_bytes) is not int or not 0 <= self.result_bytes <= MAX_RESULT_BYTES:
            raise ConfigurationError(
                f"result_bytes is {self.result_bytes!r}; allowed are whole numbers from 0 to {MAX_RESULT_BYTES:,}"
            )
        check_ms("window_ms", self.window_ms, 15 * 60_000, MAX_WINDOW_MS)
        if not self.pauses_ms:
            raise ConfigurationError("pauses_ms is empty: pass at least one pause in milliseconds")
        for pause_ms in self.pauses_ms:
            check_ms("pauses_ms", pause_ms, 0, MAX_TTL_MS)
        if self.on_error not in ("skip", "block"):
            raise ConfigurationError(f"on_error is {self.on_error!r}; allowed are 'skip' and 'block'")
        if self.keep not in ("all", "latest"):
            raise ConfigurationError(f"keep is {self.keep!r}; allowed are 'all' and 'latest'")

    def pause_ms(self, attempts: int) -> int:
        """Return the pause in milliseconds after that many deliveries."""
        return self.pauses_ms[min(max(attempts, 1), len(self.pauses_ms)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """How long a key must be quiet before it is granted, and at most how long after its first message (M15).

    Both in milliseconds, at most a day; ``max_ms`` is not less than ``quiet_ms``.
    """

    quiet_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The caller, stored beside the lease so that a sweeper can wake its function and an operator can find its log.

    ``target`` is the function's ARN with its alias, as it was invoked. ``keyspace`` is the application's.
    """

    keyspace: str = ""
    target: str | None = None
    request_id: str | None = None
    log_stream: str | None = None

    def __post_init__(self) -> None:
        """Refuse a field of more than 1,024 bytes, which would not fit beside the messages of a key."""
        if self.keyspace != "":
            check_origin("keyspace", self.keyspace)
        if self.target is not None:
            check_origin("target", self.target)
        if self.request_id is not None:
            check_origin("request_id", self.request_id)
        if self.log_stream is not None:
            check_origin("log_stream", self.log_stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """The answer to ``acquire_lease``. ``owner`` holds the key: the caller, or another owner.

    Until ``deadline`` the caller may rely on the lease (R12); it is ``None`` from providers that do not report it.
    """

    acquired: bool
    owner: str | None
    fence: int | None = None
    expires_in_ms: int | None = None
    deadline: Moment | None = None


# ``dead_lettered`` in the answers of claim and settle: the messages that this very call moved to the dead letters (M6),
# for the dead-letter hook. A call that is repeated after a lost reply may return it empty, so two answers are compared
# without it. The dead letters themselves are the record.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The caller owns the key.

    ``messages`` holds the oldest due message (none for a ticket, which runs nothing), and ``waiting`` counts the other
    due ones. The message may be another than the caller's: older ones go first (M4). ``dead_lettered`` died in this
    call.
    """

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    expires_in_ms: int
    deadline: Moment
    dead_lettered: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The message is stored and promised. ``owner`` holds the key; ``None`` means that the key is free at this moment.

    ``waiting`` is how many messages the key stores now, or ``None`` if the store did not report it. If
    this call made the moment earlier at which a free key can be granted for a message, ``due_in_ms`` says when that is,
    in milliseconds: its caller is the one to ask for a wake (M14: later, M15: not before). ``superseded`` lists the ids
    that this message has replaced (M21: latest); it may be empty if the answer to a first try was lost.
    """

    owner: str | None
    waiting: int | None = None
    due_in_ms: int | None = field(default=None, compare=False)
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """The id is known already, and nothing was stored twice (M5).

    ``dead_lettered`` died in this call, perhaps this id too.
    """

    state: MessageState
    owner: str | None = None
    dead_lettered: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Another owner holds the key, or the key is held (``owner`` is ``None``), and nothing was stored."""

    owner: str | None
    expires_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Nothing may run now, so the caller does not own the key. ``dead_lettered`` died in this call.

    ``due_in_ms`` says when the key can be granted for a message; ``None`` if none waits, or the key has an owner.
    """

    due_in_ms: int | None = field(default=None, compare=False)
    dead_lettered: tuple[Message, ...] = field(default=(), compare=False)


Claim: TypeAlias = Claimed | Routed | Duplicate | Busy | Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The key is free. ``remaining`` messages are still stored: paused, or no successor was named to get them.

    ``due_in_ms`` says when the key can be granted for one of them. ``stop`` is the mark that the tenure carried (M16).
    ``dead_lettered`` died in this call.
    """

    remaining: int
    due_in_ms: int | None = field(default=None, compare=False)
    stop: str | None = None
    dead_lettered: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The key passed to the successor without a gap (R6), with a new fence. ``stop`` is the mark of the old tenure.

    ``messages`` holds the oldest due message (none for a ticket), and ``waiting`` counts the other due ones.
    ``dead_lettered`` died in this call.
    """

    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    expires_in_ms: int
    deadline: Moment
    stop: str | None = None
    dead_lettered: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The lease was renewed. ``waiting`` counts the due messages that this owner was not given.

    ``stop`` is why the tenure should stop, which may be empty; ``None`` if it need not (M16: stop).
    """

    fence: int
    waiting: int
    expires_in_ms: int
    deadline: Moment
    stop: str | None = None


class Taken(tuple[Message, ...]):  # noqa: SLOT001 - a subclass of tuple with an attribute has no slots
    """The messages that a run has taken, oldest first; ``stop`` as in `Beat`."""

    stop: str | None

    def __new__(cls, messages: Iterable[Message] = (), stop: str | None = None) -> Self:
        """Make it from messages."""
        taken = super().__new__(cls, messages)
        taken.stop = stop
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message out of attempts, kept for an operator (M6). Its last error is ``message.last_error``."""

    key: str
    message: Message
    died_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A key with due messages and no live owner. ``age_ms`` is for how long; ``target`` is the function to wake."""

    key: str
    target: str | None
    age_ms: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is known of a message id.

    ``state`` is ``"waiting"``, ``"running"``, how the message left (``"handled"``, ``"dead"``, ``"stopped"``,
    ``"cancelled"``, ``"superseded"``), or ``"unknown"``: never stored, or forgotten since (M5: once per id). While it
    is stored, ``attempt``, ``stored_at_ms`` and ``due_at_ms`` are those of `Message`; ``left_at_ms`` is when it left.
    While it runs, ``owner`` and ``fence`` name the run and ``note`` is what the run noted last (M18). ``result`` is
    what its run returned, if ``result_is`` says ``"kept"`` (M17). Times are epoch milliseconds by the store's clock.
    """

    state: MessageState | Literal["unknown"]
    attempt: int | None = None
    stored_at_ms: int | None = None
    due_at_ms: int | None = None
    left_at_ms: int | None = None
    owner: str | None = None
    fence: int | None = None
    note: Any = None
    result: Any = None
    result_is: Literal["none", "kept", "too large"] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatus:
    """What is known of a key: its owner, what holds it back, and its messages, oldest first.

    ``since_ms`` is when the tenure began, or the last one ended. ``expires_in_ms`` is how long the lease lives.
    ``held_until_ms`` is ``None`` if the key is not held; a hold without an end is in the year 9999. ``quiet_until_ms``
    is ``None`` if no burst is being collected (M15). ``stop`` is the mark of the live tenure (M16), ``note`` what its
    run noted last (M18). ``running`` and ``waiting`` leave out the events unless the caller asked for them.
    """

    key: str
    owner: str | None
    fence: int | None
    since_ms: int | None
    expires_in_ms: int | None
    held_until_ms: int | None
    held_reason: str | None
    quiet_until_ms: int | None
    stop: str | None
    note: Any
    target: str | None
    running: tuple[Message, ...]
    waiting: tuple[Message, ...]
