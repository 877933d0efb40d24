"""A sweeper that is killed at named points."""

from typing import Any

from dying import die  # type: ignore[import-not-found]

from incumbent import LambdaWaker, Wake
from incumbent.providers import from_env
from incumbent.sweeper import sweep


def handler(event: object, context: Any) -> int:
    """Sweep once."""
    die("sweep", "sweep.before")
    provider: Any = from_env()
    waker = LambdaWaker()

    def wake(wake: Wake) -> None:
        die("sweep", "sweep.wake.before")
        waker(wake)
        die("sweep", "sweep.wake.after")

    woken = sweep(provider, wake).woken
    die("sweep", "sweep.after")
    return woken
