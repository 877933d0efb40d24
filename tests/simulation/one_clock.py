"""A provider whose store has a clock: every call is one request, as with Redis and Valkey."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from incumbent import rules
from incumbent.clock import Moment
from incumbent.contract import DEFAULT_POLICY
from incumbent.providers.shared import check_note, kept_results
from incumbent.rules import KeyState, Stored
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claim,
    Claimed,
    Continued,
    Debounce,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
    Taken,
)
from tests.simulation.simulated_provider import Parts, SimulatedProvider, body_of, full, in_doubt, lost, messages_of
from tests.simulation.store import KEY, Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An answer: when its try was sent, what was said, how things stood then, by the store's clock."""

    sent: Moment
    said: Any
    state: KeyState
    now_ms: int

    @property
    def lives_ms(self) -> int:
        """How long the lease that was spoken of lives."""
        expires_ms: int = self.said.expires_ms
        return expires_ms - self.now_ms

    def until_ms(self, at_ms: int | None) -> int | None:
        """In how long a moment of the store's clock is."""
        return None if at_ms is None else max(0, at_ms - self.now_ms)

    @property
    def holder(self) -> str | None:
        """Who owned the key then."""
        return self.state.owner if rules.owned(self.state, self.now_ms) else None


class OneClockProvider(SimulatedProvider):
    """Leases and a mailbox for the one simulated key, by the store's clock."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._fences: dict[str, int] = {}

    # --- the lease

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """R2."""
        heard = self._run(ttl_ms, lambda state, now_ms, _: self._rules.acquire(state, now_ms, owner, ttl_ms))
        if isinstance(heard.said, rules.Held):
            return Acquisition(acquired=False, owner=heard.said.owner, expires_in_ms=heard.lives_ms)
        self._fences[owner] = heard.said.fence
        return Acquisition(
            acquired=True,
            owner=owner,
            fence=heard.said.fence,
            expires_in_ms=heard.lives_ms,
            deadline=self._until(heard.sent, ttl_ms, heard.lives_ms),
        )

    def get_lease_owner(self, key: str) -> str | None:
        """R3."""
        return self._run(None, lambda state, *_: (state, True)).holder

    def release_lease(self, key: str, owner: str) -> None:
        """R5."""
        fence = self._fences.get(owner)
        self._run(None, lambda state, now_ms, _: (self._rules.release(state, now_ms, owner, fence), True))
        self._fences.pop(owner, None)

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """R4."""
        return bool(self._renew(owner, ttl_ms).said != "lost")

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """R6."""
        fence = self._fences.get(from_owner)
        heard = self._run(
            ttl_ms,
            lambda state, now_ms, repeated: self._rules.transfer(
                state, now_ms, from_owner, to_owner, ttl_ms, fence=fence, repeated=repeated
            ),
        )
        if heard.said == "unknown":
            raise in_doubt("transfer", from_owner)
        self._fences.pop(from_owner, None)
        if heard.said:
            self._fences[to_owner] = heard.state.fence
        return bool(heard.said)

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
        if ticket is not None and self._parts.bugs.ticket_is_owner:
            owner, ticket = ticket, None

        def step(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            stored = None
            if message is not None:
                stored = Stored(
                    id=message.id,
                    body=body_of(message),
                    claimed_by=owner,
                    promised=False,
                    stored_ms=now_ms,
                    due_ms=now_ms + after_ms if after_ms else 0,
                )
            return self._rules.claim(
                state,
                now_ms,
                owner,
                ttl_ms,
                stored,
                policy=policy,
                ticket=ticket,
                as_ticket=as_ticket,
                route=route,
                origin=origin,
                debounce=debounce,
                interrupt=interrupt,
            )

        heard = self._run(ttl_ms, step)
        match heard.said:
            case rules.Granted() as said:
                self._fences[owner] = said.fence
                return Claimed(
                    owner=owner,
                    fence=said.fence,
                    messages=messages_of(said.given),
                    waiting=said.waiting,
                    expires_in_ms=heard.lives_ms,
                    deadline=self._until(heard.sent, ttl_ms, heard.lives_ms),
                )
            case rules.Accepted() as said:
                return Routed(
                    owner=said.owner,
                    waiting=said.stored,
                    due_in_ms=heard.until_ms(said.due_ms),
                    superseded=said.superseded,
                )
            case rules.Known() as said:
                return Duplicate(state=said.state, owner=said.owner)
            case rules.Held() as said:
                return Busy(owner=said.owner, expires_in_ms=heard.lives_ms)
            case "full":
                raise full(policy)
            case rules.Nothing() as said:
                return Idle(due_in_ms=heard.until_ms(said.due_ms))
            case _:
                raise AssertionError(heard.said)

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
        fence = self._fences.get(owner) if fence is None else fence
        kept = kept_results(key, handled, results, policy)
        heard = self._run(
            ttl_ms,
            lambda state, now_ms, repeated: self._rules.settle(
                state,
                now_ms,
                owner,
                ttl_ms,
                handled=handled,
                failed=failed,
                dropped=dropped,
                deferred=deferred,
                policy=policy,
                stopped=stopped,
                results=kept,
                hold_ms=hold_ms,
                hold_reason=hold_reason,
                next_owner=next_owner,
                ticket=ticket,
                fence=fence,
                repeated=repeated,
            ),
            give_up_at,
        )
        if heard.said == "unknown":
            raise in_doubt("settle", owner)
        self._fences.pop(owner, None)
        match heard.said:
            case rules.Granted() as said:
                self._fences[said.owner] = said.fence
                return Continued(
                    owner=said.owner,
                    fence=said.fence,
                    messages=() if ticket is not None else messages_of(said.given),
                    waiting=said.waiting,
                    expires_in_ms=heard.lives_ms,
                    deadline=self._until(heard.sent, ttl_ms, heard.lives_ms),
                    stop=said.stop,
                )
            case rules.Freed() as said:
                return Released(remaining=said.remaining, due_in_ms=heard.until_ms(said.due_ms), stop=said.stop)
            case _:
                raise lost("settle", owner, heard.holder)

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
        heard = self._renew(owner, ttl_ms, fence, give_up_at, note=check_note(key, note))
        if heard.said == "lost":
            raise lost("beat", owner, heard.holder)
        return Beat(
            fence=heard.said.fence,
            waiting=heard.said.waiting,
            expires_in_ms=heard.lives_ms,
            deadline=self._until(heard.sent, ttl_ms, heard.lives_ms),
            stop=heard.said.stop,
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
        fence = self._fences.get(owner) if fence is None else fence
        heard = self._run(
            ttl_ms, lambda state, now_ms, _: self._rules.take(state, now_ms, owner, ttl_ms, fence), give_up_at
        )
        if heard.said == "lost":
            raise lost("take", owner, heard.holder)
        return Taken(messages_of(heard.said.given, have), heard.said.stop)

    def peek(self, key: str) -> Sequence[Message]:
        """M3."""
        return messages_of(self._run(None, lambda state, *_: (state, True)).state.mail)

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """M8."""
        heard = self._run(None, lambda state, now_ms, _: (state, rules.orphaned_since(state, now_ms)))
        if heard.said is not None:
            state = replace(heard.state, owner=None)
            yield Orphan(
                key=KEY,
                target=state.origin.target if state.origin else None,
                age_ms=heard.now_ms - heard.said,
                waiting=len(rules.due(state, heard.now_ms)),
            )

    # --- parts

    def _renew(
        self,
        owner: str,
        ttl_ms: int,
        fence: int | None = None,
        give_up_at: Moment | None = None,
        *,
        note: str | None = None,
    ) -> Heard:
        fence = self._fences.get(owner) if fence is None else fence
        heard = self._run(
            ttl_ms,
            lambda state, now_ms, _: self._rules.renew(state, now_ms, owner, ttl_ms, fence, note=note),
            give_up_at,
        )
        if heard.said == "lost":
            self._fences.pop(owner, None)
        else:
            self._fences[owner] = heard.said.fence
        return heard

    def _run(
        self,
        ttl_ms: int | None,
        step: Callable[[KeyState, int, bool], tuple[KeyState, Any]],
        give_up_at: Moment | None = None,
    ) -> Heard:
        """Have one step carried out. It is told the store's time, and whether its request is a repetition (R9)."""
        store = self._parts.store

        def send(number: int, sent: Moment) -> Heard:
            def carry_out(asked: Asked) -> tuple[Any, KeyState, int]:
                return store.carry_out(asked, lambda state, now_ms: step(state, now_ms, number > 1))

            said, state, now_ms = self._request(number, carry_out)
            return Heard(sent=sent, said=said, state=state, now_ms=now_ms)

        return self._ask(ttl_ms, send, give_up_at)
