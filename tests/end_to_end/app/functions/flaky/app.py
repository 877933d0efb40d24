"""Raises on the first delivery of a message, once it is told to."""

import os
import time
from pathlib import Path
from typing import Any

from incumbent import Lease, Policy, leased


@leased(key_jmespath="key", message_id_jmespath="id", waker=None, policy=Policy(pauses_ms=(50,)))
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Wait for the file, then raise the first time."""
    if event.get("raises") and lease.attempt == 1:
        print(f"running {event['id']}", flush=True)
        while not Path(os.environ["GO"]).exists():
            time.sleep(0.005)
        raise RuntimeError("the model was not there")
    return str(event["id"])
