"""How runs go: the settings of a decorated handler, checked when it is decorated."""

from typing import Literal, TypeAlias, get_args

from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass, field
from incumbent.validation import MAX_TTL_MS, check_ms, shown
from incumbent.values import Debounce, Policy

WhenBusy: TypeAlias = Literal["enqueue", "reject", "skip", "wait", "interrupt"]

MIN_TTL_MS = 100  # shorter ones end before a run can begin; what says 30 means seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How runs go; checked when a handler is decorated. Durations are whole milliseconds.

    ``stop_before_ms`` and ``drain_ms`` may be ``None``: 5,000 but at most a quarter of what the invocation has; and
    as long as there is time for another run. ``debounce_max_ms`` may be ``None``: four times ``debounce_ms``.
    """

    ttl_ms: int = 30_000
    renew_every_ms: int | None = None
    when_busy: WhenBusy = "enqueue"
    wait_ms: int | None = None
    deliver: Literal["one", "all"] = "one"
    debounce_ms: int = 0
    debounce_max_ms: int | None = None
    min_gap_ms: int = 0
    drain_ms: int | None = None
    stop_before_ms: int | None = None
    watch_ms: int | None = None
    cancel_on_stop: bool = False
    max_run_ms: int | None = None
    max_hops: int = 100
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        """Refuse timings and words that cannot work, each with a message of its own."""
        given: object = self.policy
        if not isinstance(given, Policy):
            raise ConfigurationError(f"policy is {shown(given)}: give a Policy(...)")
        check_ms("ttl_ms", self.ttl_ms, MIN_TTL_MS, MAX_TTL_MS)
        if self.renew_every_ms is not None:
            check_ms("renew_every_ms", self.renew_every_ms, 1, MAX_TTL_MS)
            if self.renew_every_ms * 2 > self.ttl_ms:
                raise ConfigurationError(
                    f"renew_every_ms is {self.renew_every_ms:,}, more than half of ttl_ms ({self.ttl_ms:,}): one "
                    "renewal that fails would lose the lease"
                )
        if self.drain_ms is not None:
            check_ms("drain_ms", self.drain_ms, 0, MAX_TTL_MS)
        if self.stop_before_ms is not None:
            check_ms("stop_before_ms", self.stop_before_ms, 0, MAX_TTL_MS)
        check_ms("max_hops", self.max_hops, 0, 1_000_000)
        if self.when_busy not in get_args(WhenBusy):
            known = ", ".join(map(repr, get_args(WhenBusy)))
            raise ConfigurationError(f"when_busy is {self.when_busy!r}; allowed are {known}")
        if self.deliver not in ("one", "all"):
            raise ConfigurationError(f"deliver is {self.deliver!r}; allowed are 'one' and 'all'")
        self._check_pauses()
        self._check_waiting()
        self._check_stopping()

    def _check_pauses(self) -> None:
        check_ms("debounce_ms", self.debounce_ms, 0, MAX_TTL_MS)
        check_ms("min_gap_ms", self.min_gap_ms, 0, MAX_TTL_MS)
        if self.debounce_max_ms is not None:
            check_ms("debounce_max_ms", self.debounce_max_ms, 1, MAX_TTL_MS)
            if self.debounce_max_ms < self.debounce_ms or not self.debounce_ms:
                raise ConfigurationError(
                    f"debounce_max_ms is {self.debounce_max_ms:,} and debounce_ms is {self.debounce_ms:,}: set "
                    "debounce_ms, and debounce_max_ms to no less"
                )
        if self.debounce_ms and self.deliver != "all":
            raise ConfigurationError("debounce_ms collects messages for one run: it needs deliver='all'")
        if self.debounce_ms and self.when_busy in ("reject", "skip"):
            raise ConfigurationError(
                f"debounce_ms collects messages, and when_busy={self.when_busy!r} would store only the first: choose "
                "'enqueue', 'wait' or 'interrupt'"
            )

    def _check_waiting(self) -> None:
        if (self.when_busy == "wait") != (self.wait_ms is not None):
            raise ConfigurationError(
                "when_busy='wait' and wait_ms belong together: wait_ms says how long a caller waits for the result"
            )
        if self.wait_ms is not None:
            check_ms("wait_ms", self.wait_ms, 1, MAX_TTL_MS)
            if not self.policy.result_bytes:
                raise ConfigurationError(
                    "when_busy='wait' answers results that the store keeps, and this policy keeps none: set "
                    "Policy(result_bytes=...) to the size of the largest"
                )

    def _check_stopping(self) -> None:
        if self.watch_ms is not None:
            check_ms("watch_ms", self.watch_ms, 1, MAX_TTL_MS)
            if self.watch_ms >= self.beat_ms:
                raise ConfigurationError(
                    f"watch_ms is {self.watch_ms:,}, and every renewal looks for a stop already, each "
                    f"{self.beat_ms:,} ms: choose a smaller one, or leave it out"
                )
        given: object = self.cancel_on_stop
        if not isinstance(given, bool):
            raise ConfigurationError(f"cancel_on_stop is {shown(given)}: give True or False")
        if self.max_run_ms is not None:
            check_ms("max_run_ms", self.max_run_ms, 1, MAX_TTL_MS)
            if self.max_run_ms < self.ttl_ms:
                raise ConfigurationError(
                    f"max_run_ms is {self.max_run_ms:,}, less than ttl_ms ({self.ttl_ms:,}), for which a lease lives "
                    "without any renewal"
                )

    @property
    def beat_ms(self) -> int:
        """How often to renew: a third of the ttl unless set."""
        return self.renew_every_ms or self.ttl_ms // 3

    @property
    def debounce(self) -> Debounce | None:
        """How long a key must be quiet before its messages run; ``None`` if it need not be."""
        if not self.debounce_ms:
            return None
        return Debounce(quiet_ms=self.debounce_ms, max_ms=self.debounce_max_ms or min(4 * self.debounce_ms, MAX_TTL_MS))

    @property
    def stores(self) -> bool:
        """Whether an invocation stores its message behind an owner."""
        return self.when_busy not in ("reject", "skip")

    @property
    def needs_mailbox(self) -> str:
        """Which option needs a provider that stores messages; empty if none does."""
        needs = {
            f"when_busy={self.when_busy!r}": self.stores,
            "deliver='all'": self.deliver == "all",
            "min_gap_ms": bool(self.min_gap_ms),
            "watch_ms": self.watch_ms is not None,
            "cancel_on_stop": self.cancel_on_stop,
        }
        return next((option for option, needed in needs.items() if needed), "")
