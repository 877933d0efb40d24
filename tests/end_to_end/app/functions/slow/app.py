"""Runs until it is killed, if its message says so."""

import time
from typing import Any

from incumbent import leased


@leased(key_jmespath="key", message_id_jmespath="id", ttl_ms=1_500, waker=None)
def handler(event: dict[str, Any], context: object, **more: Any) -> str:
    """Print that the run has begun; go on for long on the first delivery of a message that wants it."""
    if event.get("hangs") and more["lease"].attempt == 1:
        print(f"hanging on {event['id']}", flush=True)
        time.sleep(25)
    return str(event["id"])
