"""The rest of a provider whose store has a clock: a key is looked at, held and stopped, one request a call."""

from collections.abc import Iterable
from typing import Any

from incumbent import rules
from incumbent.contract import DEFAULT_POLICY
from incumbent.providers.shared import check_reason, held_until, is_active, key_status, status_of
from incumbent.rules import KeyState
from incumbent.values import KeyStatus, Policy, Status
from tests.simulation.one_clock import OneClockProvider
from tests.simulation.simulated_provider import lost, messages_of
from tests.simulation.store import KEY


class ControlledProvider(OneClockProvider):
    """Leases, a mailbox and their control for the one simulated key, by the store's clock."""

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """M16."""
        why = check_reason(key, reason)
        heard = self._run(None, lambda state, now_ms, _: self._rules.stop(state, now_ms, fence, why))
        marked: int | None = heard.said
        return marked

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """M16."""
        heard = self._run(None, lambda state, now_ms, _: (state, rules.owned_by(state, owner, now_ms, fence)))
        if not heard.said:
            raise lost("watch", owner, heard.holder)
        return heard.state.stop

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """M15."""
        why = check_reason(key, reason)
        self._run(
            None, lambda state, now_ms, _: (self._rules.hold(state, now_ms, held_until(for_ms, now_ms), why), True)
        )

    def resume(self, key: str) -> bool:
        """M15."""
        return bool(self._run(None, lambda state, now_ms, _: self._rules.resume(state, now_ms)).said)

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """M19."""

        def step(state: KeyState, now_ms: int, _: object) -> tuple[KeyState, Any]:
            state, _said = self._rules.cancel(state, now_ms, message_id, policy.window_ms)
            return state, status_of(state, message_id, now_ms, policy.window_ms)

        found: Status = self._run(None, step).said
        return found

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """M5, M17, M18."""
        heard = self._run(
            None, lambda state, now_ms, _: (state, status_of(state, message_id, now_ms, policy.window_ms))
        )
        found: Status = heard.said
        return found

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """What is known of the key."""
        heard = self._run(None, lambda state, *_: (state, True))
        return key_status(key, heard.state, messages_of(heard.state.mail), heard.now_ms, events=events)

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """The one key, if anything is known of it."""
        return [status for status in (self.show(KEY),) if is_active(status)][:limit]
