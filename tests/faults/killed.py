"""What a process does that is killed in the middle of a call: it makes the call, through a network of the test's."""

import os
import signal
import sys
from dataclasses import dataclass
from typing import NoReturn

from incumbent import Wake, resume, send
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.contract_calls import CALLS, KEY
from tests.faults.stores import Hasty, Provider, dynamodb_client

LATER_MS = 400
TARGET = "handler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the keys are, for a process that has no connection yet. ``table_name`` is empty for a Valkey."""

    port: int
    prefix: str
    table_name: str = ""

    def provider(self) -> Provider:
        """A provider of this process's own."""
        if self.table_name:
            client = dynamodb_client(self.port)
            return DynamoDBProvider(table_name=self.table_name, client=client, key_prefix=self.prefix, clock=Hasty())
        return RedisProvider(url=f"redis://127.0.0.1:{self.port}", key_prefix=self.prefix, clock=Hasty())


def make_call(place: Place, name: str) -> NoReturn:
    """Make a call of the list. Whether it raises is not what matters: nothing hears of it."""
    (call,) = (each for each in CALLS if each.name == name)
    call.call(place.provider())
    sys.exit(0)


def die_at_the_wake(place: Place, what: str) -> NoReturn:
    """Ask for something that wakes a function, and be killed before the wake is sent."""

    def wake(_: Wake) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    wake.delays = True  # type: ignore[attr-defined]
    provider = place.provider()
    if what == "send":
        send(KEY, {}, message_id="m1", target=TARGET, keyspace="", provider=provider, waker=wake, after_ms=LATER_MS)
    else:
        resume(KEY, target=TARGET, keyspace="", provider=provider, waker=wake)
    sys.exit(0)
