"""How runs go: the settings of a decorated handler, checked when it is decorated."""

from dataclasses import dataclass, field
from typing import Literal

from incumbent.errors import ConfigurationError
from incumbent.validation import MAX_TTL_MS, check_ms, shown
from incumbent.values import Policy

MIN_TTL_MS = 100  # shorter ones end before a run can begin; what says 30 means seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How runs go; checked when a handler is decorated. Durations are whole milliseconds.

    ``stop_before_ms`` and ``drain_ms`` may be ``None``: 5,000 but at most a quarter of what the invocation has; and
    as long as there is time for another run.
    """

    ttl_ms: int = 30_000
    renew_every_ms: int | None = None
    when_busy: Literal["enqueue", "reject", "skip"] = "enqueue"
    deliver: Literal["one", "all"] = "one"
    gather_ms: int = 0
    drain_ms: int | None = None
    stop_before_ms: int | None = None
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
        check_ms("gather_ms", self.gather_ms, 0, MAX_TTL_MS)
        if self.gather_ms and self.deliver != "all":
            raise ConfigurationError("gather_ms collects messages for one run: it needs deliver='all'")
        if self.gather_ms * 3 > self.ttl_ms:
            raise ConfigurationError(
                f"gather_ms is {self.gather_ms:,}, more than a third of ttl_ms ({self.ttl_ms:,}): the lease is not "
                "renewed while messages gather"
            )
        if self.drain_ms is not None:
            check_ms("drain_ms", self.drain_ms, 0, MAX_TTL_MS)
        if self.stop_before_ms is not None:
            check_ms("stop_before_ms", self.stop_before_ms, 0, MAX_TTL_MS)
        check_ms("max_hops", self.max_hops, 0, 1_000_000)
        if self.when_busy not in ("enqueue", "reject", "skip"):
            raise ConfigurationError(f"when_busy is {self.when_busy!r}; allowed are 'enqueue', 'reject' and 'skip'")
        if self.deliver not in ("one", "all"):
            raise ConfigurationError(f"deliver is {self.deliver!r}; allowed are 'one' and 'all'")

    @property
    def beat_ms(self) -> int:
        """How often to renew: a third of the ttl unless set."""
        return self.renew_every_ms or self.ttl_ms // 3
