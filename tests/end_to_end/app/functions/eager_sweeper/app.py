"""A sweeper that does not back off: a test's passes come every quarter of a second, in place of every minute."""

from typing import Any

from incumbent import LambdaWaker
from incumbent.providers import from_env
from incumbent.sweeper import sweep


def handler(event: object, context: Any) -> int:
    """Sweep once; a mailbox that is made anew has no memory of what earlier passes woke."""
    mailbox: Any = from_env()
    return sweep(mailbox, LambdaWaker()).woken
