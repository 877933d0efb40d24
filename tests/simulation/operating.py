"""What an operator does to the key while others use it: stop, hold, resume, cancel, and look."""

import random
from contextlib import suppress

from incumbent.errors import LeaseUnavailable
from incumbent.values import Policy
from tests.simulation.drafts import Act
from tests.simulation.environment import EnvironmentClock
from tests.simulation.store import KEY
from tests.simulation.watched import WatchedProvider

_LOOKS_AT_IT_MS = 400


def operate(
    provider: WatchedProvider, act: Act, clock: EnvironmentClock, chance: random.Random, policy: Policy
) -> None:
    """Carry out one act; once more where the outcome is unknown, as the errors say."""
    fence = None
    if act.looks:
        with suppress(LeaseUnavailable):
            fence = provider.show(KEY).fence
        clock.sleep_ms(chance.randint(0, _LOOKS_AT_IT_MS))
    for _ in range(2):
        with suppress(LeaseUnavailable):
            _carry_out(provider, act, fence, policy)
            return


def _carry_out(provider: WatchedProvider, act: Act, fence: int | None, policy: Policy) -> None:
    match act.call:
        case "stop":
            provider.stop(KEY, fence=fence, reason=f"stop at {act.at_ms}")
        case "hold":
            provider.hold(KEY, for_ms=act.for_ms, reason=f"hold at {act.at_ms}")
        case "resume":
            provider.resume(KEY)
        case "cancel":
            provider.cancel(KEY, act.message_id)
        case "find":
            provider.find(KEY, act.message_id, policy=policy)
        case "show":
            provider.show(KEY)
