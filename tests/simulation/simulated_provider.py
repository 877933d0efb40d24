"""What the simulated providers share: how requests are repeated, and answers in the contract's words."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from incumbent.clock import Moment, deadline
from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.retry import call_with_retry
from incumbent.rules import Stored
from incumbent.values import Message, Policy
from tests.simulation.environment import Environment
from tests.simulation.network import TIMEOUT_MS, Network, NoAnswer
from tests.simulation.store import KEY, Asked, Rules, Store

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bugs:
    """Seeded bugs of a provider; all of them off is how it should be."""

    deadline_after_answer: bool = False
    remaining_unread: bool = False
    ticket_is_owner: bool = False


NO_BUGS = Bugs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a provider is made of."""

    environment: Environment
    store: Store
    network: Network
    rules: Rules
    bugs: Bugs


class SimulatedProvider:
    """Asks the simulated store from one environment."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.environment.clock
        self._rules = parts.rules

    @property
    def _asked(self) -> Asked:
        """The call that the running task is in."""
        return asked_by(self._parts.environment)

    def _ask(self, ttl_ms: int | None, send: Callable[[int, Moment], A], give_up_at: Moment | None = None) -> A:
        """Repeat as the real providers do."""
        return call_with_retry(
            send,
            clock=self._clock,
            call=self._asked.call,
            key=KEY,
            ttl_ms=ttl_ms,
            waits_ms=TIMEOUT_MS // 2,
            errors=(NoAnswer,),
            classify_error=lambda _: (True, "repeat it"),
            give_up_at=give_up_at,
        )

    def _request(self, number: int, carry_out: Callable[[Asked], A]) -> A:
        """Send one request of a try."""
        asked = self._asked
        asked.requests += 1
        asked.repeated = asked.repeated or number > 1
        return self._parts.network.request(
            self._parts.environment, f"{asked.call} ({number})", lambda: carry_out(asked)
        )

    def _until(self, sent: Moment, ttl_ms: int, expires_in_ms: int) -> Moment:
        """R12."""
        bugs = self._parts.bugs
        return deadline(
            self._clock.now() if bugs.deadline_after_answer else sent,
            ttl_ms,
            None if bugs.remaining_unread else expires_in_ms,
        )


def asked_by(environment: Environment) -> Asked:
    """The call that the running task is in."""
    asked = environment.scheduler.running.call
    return asked if isinstance(asked, Asked) else Asked(call="look")


def body_of(message: Message) -> str:
    """What is stored of a message."""
    return json.dumps(message.event)


def messages_of(stored: Sequence[Stored], have: Sequence[str] = ()) -> tuple[Message, ...]:
    """Stored messages in the contract's form."""
    return tuple(
        Message(
            id=each.id,
            event=json.loads(each.body),
            attempt=each.attempts,
            stored_at_ms=each.stored_ms,
            due_at_ms=each.due_ms,
            promised=each.promised,
            last_error=each.error,
        )
        for each in stored
        if each.id not in have
    )


def lost(call: str, owner: str, holder: str | None) -> LeaseLost:
    """The error of an owner whose lease is over."""
    return LeaseLost(f"{call}: {owner} does not hold the key, but {holder}", key=KEY, owner=owner, holder=holder)


def in_doubt(call: str, owner: str) -> LeaseUnavailable:
    """The error of a call that may have taken effect (R9)."""
    return LeaseUnavailable(f"{call} by {owner}: it cannot be known whether it took effect", key=KEY)


def full(policy: Policy) -> MailboxFull:
    """The error of a message for which there is no room (M7)."""
    return MailboxFull(f"{policy.max_pending} messages are stored", key=KEY)
