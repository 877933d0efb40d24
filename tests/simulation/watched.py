"""A provider in front of another, which tells of every call: what was asked, and what was answered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from incumbent.clock import Moment
from incumbent.contract import DEFAULT_POLICY, Control, LeaseProvider, Mailbox
from incumbent.errors import IncumbentError
from incumbent.values import (
    Acquisition,
    Beat,
    Claim,
    Continued,
    Debounce,
    Failure,
    KeyStatus,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Status,
    Taken,
)
from tests.simulation.environment import Environment
from tests.simulation.scheduler import Died
from tests.simulation.store import Asked

A = TypeVar("A")


class Provider(LeaseProvider, Mailbox, Control, Protocol):
    """The contracts of the lease, the mailbox and its control, and the look at one message."""

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """What is known of a message."""
        ...


class Watcher(Protocol):
    """Who is told."""

    def asked(self, asked: Asked, environment: Environment) -> None:
        """A call begins."""
        ...

    def answered(self, asked: Asked, answer: object) -> None:
        """It ends: with an answer, or with an error."""
        ...


class WatchedProvider:
    """Passes every call on. While it lasts, the task that makes it is known to be in it."""

    def __init__(self, provider: Provider, environment: Environment, watcher: Watcher) -> None:
        self._provider = provider
        self._environment = environment
        self._watcher = watcher

    def _pass_on(self, asked: Asked, call: Callable[[], A]) -> A:
        if self._environment.dead:
            raise Died
        task = self._environment.scheduler.running
        asked.began_ms = self._environment.scheduler.now_ms
        self._watcher.asked(asked, self._environment)
        task.call = asked
        try:
            answer = call()
        except IncumbentError as error:
            self._watcher.answered(asked, error)
            raise
        finally:
            task.call = None
        self._watcher.answered(asked, answer)
        return answer

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """R2."""
        asked = Asked(call="acquire", owner=owner)
        return self._pass_on(asked, lambda: self._provider.acquire_lease(key, owner, ttl_ms))

    def get_lease_owner(self, key: str) -> str | None:
        """R3."""
        return self._pass_on(Asked(call="look"), lambda: self._provider.get_lease_owner(key))

    def release_lease(self, key: str, owner: str) -> None:
        """R5."""
        return self._pass_on(Asked(call="release", owner=owner), lambda: self._provider.release_lease(key, owner))

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """R4."""
        asked = Asked(call="renew", owner=owner)
        return self._pass_on(asked, lambda: self._provider.renew_lease(key, owner, ttl_ms))

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """R6."""
        asked = Asked(call="transfer", owner=from_owner, successor=to_owner)
        return self._pass_on(asked, lambda: self._provider.transfer_lease(key, from_owner, to_owner, ttl_ms))

    # --- the mailbox

    def claim(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        message: Message | None,
        *,
        ticket: str | None = None,
        as_ticket: bool = False,
        route: bool = True,
        origin: Origin | None = None,
        policy: Policy = DEFAULT_POLICY,
        after_ms: int = 0,
        debounce: Debounce | None = None,
        interrupt: bool = False,
    ) -> Claim:
        """M1."""
        message_id = None if message is None else message.id
        asked = Asked(
            call="claim",
            owner=owner,
            message_id=message_id,
            ticket=ticket,
            as_ticket=as_ticket,
            after_ms=after_ms,
            debounce=debounce,
        )
        return self._pass_on(
            asked,
            lambda: self._provider.claim(
                key,
                owner,
                ttl_ms,
                message,
                ticket=ticket,
                as_ticket=as_ticket,
                route=route,
                origin=origin,
                policy=policy,
                after_ms=after_ms,
                debounce=debounce,
                interrupt=interrupt,
            ),
        )

    def settle(
        self,
        key: str,
        owner: str,
        *,
        ttl_ms: int,
        handled: Sequence[str] = (),
        failed: Sequence[Failure] = (),
        dropped: Sequence[Failure] = (),
        deferred: Sequence[str] = (),
        next_owner: str | None = None,
        ticket: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        stopped: Sequence[str] = (),
        results: Mapping[str, Any] | None = None,
        hold_ms: int = 0,
        hold_reason: str | None = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Released | Continued:
        """M2."""
        asked = Asked(
            call="settle",
            owner=owner,
            successor=next_owner or ticket,
            ticket=ticket,
            handled=tuple(handled),
            dropped=tuple(failure.id for failure in dropped),
            stopped=tuple(stopped),
            deferred=tuple(deferred),
        )
        return self._pass_on(
            asked,
            lambda: self._provider.settle(
                key,
                owner,
                ttl_ms=ttl_ms,
                handled=handled,
                failed=failed,
                dropped=dropped,
                deferred=deferred,
                next_owner=next_owner,
                ticket=ticket,
                policy=policy,
                stopped=stopped,
                results=results,
                hold_ms=hold_ms,
                hold_reason=hold_reason,
                fence=fence,
                give_up_at=give_up_at,
            ),
        )

    def beat(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        note: Any = None,
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Beat:
        """R4, M2, M18."""
        asked = Asked(call="beat", owner=owner, fence=fence, note=note)
        return self._pass_on(
            asked, lambda: self._provider.beat(key, owner, ttl_ms, note=note, fence=fence, give_up_at=give_up_at)
        )

    def take(
        self,
        key: str,
        owner: str,
        ttl_ms: int,
        *,
        have: Sequence[str] = (),
        fence: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Taken:
        """M6."""
        asked = Asked(call="take", owner=owner, fence=fence)
        return self._pass_on(
            asked,
            lambda: self._provider.take(key, owner, ttl_ms, have=have, fence=fence, give_up_at=give_up_at),
        )

    def peek(self, key: str) -> Sequence[Message]:
        """M3."""
        return self._pass_on(Asked(call="look"), lambda: self._provider.peek(key))

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """M8."""
        return self._pass_on(Asked(call="look"), lambda: list(self._provider.orphans(limit)))

    # --- control

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """M16."""
        asked = Asked(call="stop", fence=fence)
        return self._pass_on(asked, lambda: self._provider.stop(key, fence=fence, reason=reason))

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """M16."""
        asked = Asked(call="watch", owner=owner)
        return self._pass_on(asked, lambda: self._provider.watch(key, owner, fence=fence))

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """M15."""
        asked = Asked(call="hold", for_ms=for_ms or 0)
        return self._pass_on(asked, lambda: self._provider.hold(key, for_ms=for_ms, reason=reason))

    def resume(self, key: str) -> bool:
        """M15."""
        return self._pass_on(Asked(call="resume"), lambda: self._provider.resume(key))

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """M19."""
        asked = Asked(call="cancel", cancelled=message_id)
        return self._pass_on(asked, lambda: self._provider.cancel(key, message_id, policy=policy))

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """M5."""
        asked = Asked(call="find", sought=message_id)
        return self._pass_on(asked, lambda: self._provider.find(key, message_id, policy=policy))

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """What is known of the key."""
        return self._pass_on(Asked(call="look"), lambda: self._provider.show(key, events=events))

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """The keys that something is known of."""
        return self._pass_on(Asked(call="look"), lambda: list(self._provider.keys(limit)))


class OnlyLeases:
    """The five methods alone of a provider: one that stores no messages."""

    def __init__(self, provider: LeaseProvider) -> None:
        self.acquire_lease: Callable[[str, str, int], Acquisition] = provider.acquire_lease
        self.get_lease_owner: Callable[[str], str | None] = provider.get_lease_owner
        self.release_lease: Callable[[str, str], None] = provider.release_lease
        self.renew_lease: Callable[[str, str, int], bool] = provider.renew_lease
        self.transfer_lease: Callable[[str, str, str, int], bool] = provider.transfer_lease
