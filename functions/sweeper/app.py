"""Wake whoever left messages behind: once a minute, every key in which messages are due and nobody owns them."""

import os
from dataclasses import asdict
from functools import cache
from typing import Any

from incumbent import LambdaWaker, Mailbox, is_mailbox, observe, powertools
from incumbent.providers import from_env
from incumbent.sweeper import sweep

# What is kept of the invocation's time for the pass that has begun, so that it ends in order.
END_MS = 10_000


def handler(event: object, context: Any) -> dict[str, int]:
    """Sweep once, and say what was found; the next minute goes on with what is left.

    It needs no lease: two that run at once wake the same functions twice, and the second wake does nothing.
    """
    swept = sweep(
        mailbox(),
        waker(),
        limit=int(os.environ.get("SWEEP_LIMIT", "100")),
        budget_ms=max(0, context.get_remaining_time_in_millis() - END_MS),
        observers=(*observe.from_env(os.environ), *powertools.from_env(os.environ)),
    )
    return asdict(swept)


@cache
def mailbox() -> Mailbox:
    """The store that the environment names."""
    provider: object = from_env()
    if not is_mailbox(provider):
        raise TypeError(f"{type(provider).__name__} stores no messages: there is nothing to sweep")
    return provider


@cache
def waker() -> LambdaWaker:
    """Lambda's Invoke."""
    return LambdaWaker()
