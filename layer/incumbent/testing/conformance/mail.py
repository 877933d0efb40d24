"""What the tests of a mailbox are made of."""
# ruff: noqa: S101 - these are tests: assert is how they say it

from collections.abc import Iterable
from typing import Any

from incumbent.testing.conformance.subject import TTL_MS, MailboxProvider, Subject
from incumbent.values import Claimed, Continued, Failure, Message, Orphan, Policy, Routed

EVERYTHING = 10_000
PAUSE_MS = 20_000  # of a failed message: long, so that on a busy machine it is not over by itself


def message(number: int | str = 1) -> Message:
    """A message whose event tells it from others."""
    return Message(id=f"m{number}", event={"text": f"message {number}"})


def failure(number: int | str = 1, *, after_ms: int | None = PAUSE_MS) -> Failure:
    """That message's run raised."""
    return Failure(id=f"m{number}", error=f"failed {number}", after_ms=after_ms)


def ids(messages: Iterable[Message]) -> list[str]:
    """The ids, in order."""
    return [each.id for each in messages]


def same(messages: Iterable[Message]) -> list[tuple[object, ...]]:
    """What of messages is equal to the letter at any time, for a store whose own clock is shifted by ``pass_time``."""
    return [(each.id, each.event, each.attempt, each.promised, each.last_error) for each in messages]


class MailSubject(Subject):
    """A mailbox under test."""

    def claimed(
        self, provider: MailboxProvider, key: str, owner: str, number: int | str | None = 1, **more: Any
    ) -> Claimed:
        """Claim, and own the key."""
        answer = provider.claim(key, owner, TTL_MS, None if number is None else message(number), **more)
        assert isinstance(answer, Claimed), answer
        assert answer.owner == owner
        return answer

    def routed(self, provider: MailboxProvider, key: str, owner: str, number: int | str, **more: Any) -> Routed:
        """Claim, and be routed."""
        answer = provider.claim(key, owner, TTL_MS, message(number), **more)
        assert isinstance(answer, Routed), answer
        return answer

    def continued(self, provider: MailboxProvider, key: str, owner: str, next_owner: str, **more: Any) -> Continued:
        """Settle, and see the key go on."""
        answer = provider.settle(key, owner, ttl_ms=TTL_MS, next_owner=next_owner, **more)
        assert isinstance(answer, Continued), answer
        assert answer.owner == next_owner
        return answer

    def die(self, attempts: int = 1) -> None:
        """Let the owner die, and what it ran pause as after that many deliveries, by the policy unless set (M6)."""
        self.expire()
        self.pass_time(Policy().pause_ms(attempts))

    def own_orphans(self, provider: MailboxProvider, *keys: str) -> list[Orphan]:
        """What ``orphans`` says of these keys: other tests may share the store."""
        return [orphan for orphan in provider.orphans(EVERYTHING) if orphan.key in keys]
