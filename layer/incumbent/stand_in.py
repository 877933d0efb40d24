"""The provider that a test puts in the place of every other one in its process; nothing stands in outside of tests."""

from typing import Any, Final, TypeVar, cast

C = TypeVar("C")
W = TypeVar("W")


class StandIn:
    """A test's provider, which replaces the given one in the whole process.

    It is process-wide because threads that a test starts do not inherit context variables.
    """

    def __init__(self) -> None:
        """Begin without a provider."""
        self.provider: object | None = None
        """The test's provider, or ``None``."""
        self.wakes: list[Any] | None = None
        """While a provider stands in: where Lambda's waker keeps each wake instead of sending it."""

    def set(self, provider: object, wakes: list[Any] | None = None) -> object:
        """Set the test's provider. Return the earlier state, for `reset`."""
        before = (self.provider, self.wakes)
        self.provider, self.wakes = provider, [] if wakes is None else wakes
        return before

    def reset(self, before: object) -> None:
        """Restore an earlier state."""
        self.provider, self.wakes = cast("tuple[object | None, list[Any] | None]", before)


STAND_IN: Final = StandIn()
"""The test's provider. Only ``incumbent.testing.stand_in`` sets it."""


def clock_in_force(given: C) -> C:
    """Return the test provider's ``staged_clock``, if it has one, else the given clock."""
    staged_clock = getattr(STAND_IN.provider, "staged_clock", None)
    return given if staged_clock is None else cast("C", staged_clock)


def staged(key: str, work: W) -> W:
    """Wrap a key's runs by the test provider's method ``staged``, if it has one."""
    around = getattr(STAND_IN.provider, "staged", None)
    return work if around is None else cast("W", around(key, work))
