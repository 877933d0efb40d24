"""Handles messages, and waits between its last look into the mailbox and the release."""

import time
from typing import Any

from incumbent import Lease, leased

LOOKED_MS = 8


@leased(key_jmespath="key", message_id_jmespath="id", waker=None)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Take what has arrived until nothing has; then let time pass before the key is released."""
    while lease.take():
        pass
    time.sleep(LOOKED_MS / 1_000)
    return str(event["id"])
