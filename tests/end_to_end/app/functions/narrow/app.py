"""Has room for one message and none for a large one; it runs until a file is there."""

import os
import time
from pathlib import Path
from typing import Any

from incumbent import Policy, leased


@leased(key_jmespath="key", message_id_jmespath="id", policy=Policy(max_pending=1, max_message_bytes=1_000))
def handler(event: dict[str, Any], context: object) -> str:
    """Wait for the file, if the message says so."""
    if event.get("waits"):
        print(f"waiting with {event['id']}", flush=True)
        while not Path(os.environ["GO"]).exists():
            time.sleep(0.005)
    return str(event["id"])
