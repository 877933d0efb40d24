"""Kills its process, or raises, whenever it meets a message that says so."""

import os
import signal
from pathlib import Path
from typing import Any

from incumbent import Message, Policy, leased


def buried(message: Message) -> None:
    """Print it, as a hook would page somebody."""
    print(f"buried {message.id} after {message.attempt}", flush=True)


@leased(
    key_jmespath="key",
    message_id_jmespath="id",
    ttl_ms=500,
    policy=Policy(max_attempts=2, pauses_ms=(50,)),
    on_dead_letter=buried,
)
def handler(event: dict[str, Any], context: object) -> str:
    """Die, raise, or handle it."""
    if event.get("poison") == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if event.get("poison") == "raises" and not Path(os.environ.get("CURED", "never")).exists():
        raise ValueError("never")
    return str(event["id"])
