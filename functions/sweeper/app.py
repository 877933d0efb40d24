"""Once a minute, wake the functions of keys that have due messages and no owner."""

import os
from dataclasses import asdict
from functools import cache
from typing import Any

from incumbent import LambdaWaker, Mailbox, is_mailbox, observe, powertools
from incumbent.providers import from_env
from incumbent.sweeper import sweep

# The part of the invocation's time that is reserved for ending the pass in order.
END_MS = 10_000


def handler(event: object, context: Any) -> dict[str, int]:
    """Sweep once, and return what was found; the next pass continues with what is left.

    A sweeper needs no lease: two at once wake the same functions twice, and the second wake does nothing.
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
    """Return the store that the environment names."""
    provider: object = from_env()
    if not is_mailbox(provider):
        raise TypeError(f"{type(provider).__name__} stores no messages: there is nothing to sweep")
    return provider


@cache
def waker() -> LambdaWaker:
    """Return the waker, which calls Lambda's Invoke."""
    return LambdaWaker()
