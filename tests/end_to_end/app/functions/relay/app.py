"""Has time for about four messages, and leaves the rest to the next invocation."""

import os
import time
from typing import Any

from incumbent import Lease, leased

TAKES_MS = 50


@leased(
    key_jmespath="key",
    message_id_jmespath="id",
    stop_before_ms=9_700,
    max_hops=int(os.environ.get("MAX_HOPS", "100")),
)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Take a twentieth of a second."""
    time.sleep(TAKES_MS / 1_000)
    return lease.messages[0].id
