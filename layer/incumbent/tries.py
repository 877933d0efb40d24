"""How a request is repeated: the one place that decides so, since a provider must know which try it is (R9)."""

import random
from collections.abc import Callable
from typing import TypeVar

from incumbent.clock import Clock, Moment
from incumbent.errors import LeaseUnavailable

T = TypeVar("T")

MOST_TRIES = 3
PAUSE_MS = 20


def ask(
    send: Callable[[int, Moment], T],
    *,
    clock: Clock,
    call: str,
    key: str,
    budget_ms: int,
    errors: tuple[type[Exception], ...],
    explain: Callable[[Exception], tuple[bool, str]],
    first_try: int = 1,
) -> T:
    """Send a request until it is answered, its budget is spent, or an error says that trying again is no use.

    ``send`` is given the number of the try and when it was sent (R12). ``explain`` says of an error whether another
    try may help, and what to do about it. ``first_try`` is 2 where the vendor's client repeats on its own, since then
    even the first try may be a repetition.

    Raises ``LeaseUnavailable`` from the vendor's error: the call may or may not have taken effect.
    """
    began = clock.now()
    number = first_try
    while True:
        sent = clock.now()
        try:
            return send(number, sent)
        except errors as error:
            again, advice = explain(error)
            pause_ms = random.randint(PAUSE_MS // 2, PAUSE_MS << (number - first_try))  # noqa: S311 - jitter
            late = began.until(clock.now()) + pause_ms >= budget_ms
            if not again or late or number - first_try + 1 >= MOST_TRIES:
                raise LeaseUnavailable(
                    f"{call} of key {key!r}: the store gave no answer ({type(error).__name__}: {error}); {advice}",
                    key=key,
                ) from error
            clock.sleep_ms(pause_ms)
            number += 1
