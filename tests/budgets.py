"""How long the tests that could go on for ever go on: a short budget in ``make test``, a long one in ``make soak``."""

import os
from typing import TypeVar

SOAKING = bool(os.environ.get("SOAK"))
T = TypeVar("T")


def budget(short: T, *, soak: T) -> T:
    """The first in ``make test``, the second where ``SOAK`` is set, as ``make soak`` does."""
    return soak if SOAKING else short
