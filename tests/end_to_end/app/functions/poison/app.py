"""Kills its process, or raises, whenever it meets a message that says so."""

import os
import signal
from pathlib import Path
from typing import Any

from incumbent import Lease, Message, Policy, leased
from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers import from_env

PROVIDER = from_env()
if os.environ["INCUMBENT_PROVIDER"] == "dynamodb":  # an answer that comes late costs a delivery, and here each counts
    from botocore.config import Config

    from incumbent.providers.dynamodb import DynamoDBProvider

    patient = Config(connect_timeout=1, read_timeout=1)
    PROVIDER = DynamoDBProvider(table_name=os.environ["INCUMBENT_TABLE_NAME"], boto_config=patient)


def dead_lettered(message: Message) -> None:
    """Print it, as a hook would page somebody."""
    print(f"dead_lettered {message.id} after {message.attempt}", flush=True)


@leased(
    key_jmespath="key",
    message_id_jmespath="id",
    provider=PROVIDER,
    ttl_ms=int(os.environ.get("LIVES_MS", "1500")),
    policy=Policy(max_attempts=2, pauses_ms=(50,)),
    on_dead_letter=dead_lettered,
)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Die, raise, or handle it; die for the first time when as many wait as the message says."""
    if event.get("poison") == "kills":
        while lease.attempt == 1 and lease.waiting < int(event.get("behind", "0")):
            SYSTEM_CLOCK.sleep_ms(20)
            lease.renew()
        os.kill(os.getpid(), signal.SIGKILL)
    if event.get("poison") == "raises" and not Path(os.environ.get("CURED", "never")).exists():
        raise ValueError("never")
    return str(event["id"])
