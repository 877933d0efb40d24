"""The same function with a heartbeat that nobody stops and that knows of no end: what the tests must see."""

from app import handler  # type: ignore[import-not-found]
from incumbent.heartbeat import Heartbeat


def goes_on(*_: object) -> bool:
    """Do nothing, and say that nothing is over."""
    return False


for method in ("stop", "let_go", "_is_past"):  # broken in this function's process, and nowhere else
    setattr(Heartbeat, method, goes_on)

__all__ = ["handler"]
