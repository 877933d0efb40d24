"""Kills its process at the first delivery of a message."""

import os
import signal
from typing import Any

from incumbent import Lease, Policy, leased


@leased(key_jmespath="key", ttl_ms=int(os.environ.get("LIVES_MS", "600")), policy=Policy(pauses_ms=(100,)))
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> int:
    """Live on the second one."""
    if lease.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return lease.attempt
