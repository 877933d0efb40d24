"""An exception thrown at any step, as by the handler of a signal, hinders no later call and leaves nothing running."""

import functools
import gc
import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from incumbent import Beat, Claimed, Lease, current_lease, leased
from incumbent.calls import Call
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.pacemaker import pacemaker_of
from incumbent.providers.memory import MemoryProvider
from incumbent.retry import call_with_retry
from incumbent.runner import Runner
from incumbent.settings import Settings
from incumbent.testing.clock import FakeClock
from incumbent.values import Claim, Message, Origin

TTL_MS = 30_000


class TimeUpError(Exception):
    """What the handler of SIGALRM raises, and the user's handler keeps."""


class Asking(MemoryProvider):
    """A provider in memory that sends its claims and beats as those with a network do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.clock = clock

    def _ask(self, call: str, key: str, ttl_ms: int, **more: Any) -> None:
        call_with_retry(
            lambda *_: None,
            clock=self.clock,
            call=call,
            key=key,
            ttl_ms=ttl_ms,
            waits_ms=1_000,
            errors=(ConnectionError,),
            classify_error=lambda _: (True, ""),
            **more,
        )

    def claim(self, key: str, owner: str, ttl_ms: int, message: Message | None, **more: Any) -> Claim:
        """Ask, and claim."""
        self._ask("claim", key, ttl_ms)
        return super().claim(key, owner, ttl_ms, message, **more)

    def beat(self, key: str, owner: str, ttl_ms: int, **more: Any) -> Beat:
        """Ask, and beat."""
        self._ask("beat", key, ttl_ms)
        return super().beat(key, owner, ttl_ms, **more)


def test_claims_work_after_an_exception_thrown_at_any_step_of_a_renewal() -> None:
    """Whatever step it is thrown at, the handler that keeps it goes on, and so do the claims after it."""
    for at in itertools.count(1):
        clock = FakeClock()
        provider = Asking(clock)
        reached = False

        def work(_: Message, lease: Lease, at: int = at) -> None:
            nonlocal reached
            reached = throw_into(lease.renew, at)

        call = Call(full_key="k", key="k", message=Message(id="m", event=1), origin=Origin())
        Runner(provider, Settings(ttl_ms=TTL_MS), clock=clock).serve(call, work)
        clock.advance(2 * TTL_MS)
        claimed = provider.claim("another", "B", TTL_MS, Message(id="m2", event=2))
        assert isinstance(claimed, Claimed), f"thrown at step {at}"
        if not reached:
            assert at > 40
            return


@pytest.mark.parametrize("options", [{}, {"watch_ms": 20}, {"deliver": "all", "debounce_ms": 1}], ids=str)
def test_run_that_is_interrupted_at_any_step_leaves_nothing_of_it(options: Any) -> None:
    """M13: no heartbeat goes on, in the event's run or in the wait before it, and no lease is current."""

    @leased(key=lambda event: event["key"], provider=MemoryProvider(), waker=None, keyspace="shop", **options)
    def handler(event: Any, context: object = None) -> None:
        lease = current_lease()
        assert lease is not None
        lease.take()

    handler({"key": "first"})
    for at in itertools.count(1):
        reached = throw_into(functools.partial(handler, {"key": f"k{at}"}), at)
        assert pacemaker_of(SYSTEM_CLOCK).live == 0, f"thrown at step {at}"
        assert current_lease() is None, f"thrown at step {at}"
        if not reached:
            assert at > 100
            return


def throw_into(
    call: Callable[[], object], at: int, error: type[BaseException] = TimeUpError, *, within: str = "incumbent."
) -> bool:
    """Call it, and throw at that step of it. Return whether there was such a step.

    A step is where the interpreter runs the handlers of signals: as a function begins, and after a call of a built-in;
    here in functions ``within`` the package alone: in those of `threading`, it may leave a lock taken for ever.
    """
    steps = 0

    def step(frame: FrameType, what: str, _: object) -> None:
        nonlocal steps
        if what in {"call", "c_return"} and str(frame.f_globals.get("__name__")).startswith(within):
            steps += 1
            if steps == at:
                raise error

    before = sys.getprofile()
    gc.disable()  # nothing is to be thrown into a finalizer, which would keep it
    sys.setprofile(step)
    try:
        call()
    except (Exception, error):  # the same, or what was made of it
        if steps < at:
            raise
    finally:
        sys.setprofile(before)
        gc.enable()
    return steps >= at
