"""incumbent's calls as they are measured, the same on every store."""

from typing import Any

from benchmarks.measure import Run
from incumbent import Continued, Message, Policy, leased

TTL_MS = 30_000
HOUR_MS = 60 * 60_000
LARGE = Policy(max_pending=1_000)


def lease_only(provider: Any) -> Run:
    """Acquire and release."""

    def run(key: str) -> None:
        provider.acquire_lease(key, "owner", TTL_MS)
        provider.release_lease(key, "owner")

    return run


def refused(provider: Any) -> Run:
    """Acquire a lease that another owner holds; the answer names the holder."""
    provider.acquire_lease("refused", "holder", HOUR_MS)

    return lambda _: provider.acquire_lease("refused", "owner", TTL_MS)


def with_message(provider: Any) -> Run:
    """Claim with a message, and settle it as handled."""

    def run(key: str) -> None:
        claim_and_settle(provider, key, key)

    return run


def claim_and_settle(provider: Any, key: str, name: str, *, event: Any = None) -> None:
    """Carry out one run of a key; ``name`` is its message's id and its owner."""
    claimed = provider.claim(key, name, TTL_MS, Message(id=name, event=event or {"text": "hello"}))
    provider.settle(key, name, handled=[name], ttl_ms=TTL_MS, fence=claimed.fence)


def decorated(provider: Any, *, key: str | None = None) -> Run:
    """Call a handler under ``@leased``, heartbeat included; ``key`` is that of all calls unless each has its own."""

    @leased(
        key=(lambda event: event["id"]) if key is None else key,
        message_id=lambda event: event["id"],
        provider=provider,
        keyspace="",
    )
    def handler(event: Any, context: object) -> None:
        """Do nothing."""

    return lambda name: handler({"id": name}, None)


def fill(provider: Any, key: str, waiting: int) -> int:
    """Own the key as ``owner/0``, store that many messages behind the owner's, which is ``own``; return the fence."""
    claimed = provider.claim(key, "owner/0", HOUR_MS, Message(id="own", event={"text": "hello"}), policy=LARGE)
    for number in range(waiting):
        message = Message(id=f"m{number}", event={"text": "hello"})
        provider.claim(key, f"sender/{number}", TTL_MS, message, policy=LARGE)
    fence: int = claimed.fence
    return fence


class Drain:
    """The owner of a key that was filled, which settles one message after another."""

    def __init__(self, provider: Any, key: str, fence: int) -> None:
        self._provider = provider
        self._key = key
        self._fence = fence
        self._handled = "own"
        self._number = 0

    def __call__(self, _: str = "") -> bool:
        """Settle the message and take the next; return whether there was one."""
        answer = self._provider.settle(
            self._key,
            f"owner/{self._number}",
            handled=[self._handled],
            next_owner=f"owner/{self._number + 1}",
            ttl_ms=HOUR_MS,
            policy=LARGE,
            fence=self._fence,
        )
        self._number += 1
        if not isinstance(answer, Continued):
            return False
        self._fence = answer.fence
        self._handled = answer.messages[0].id
        return True
