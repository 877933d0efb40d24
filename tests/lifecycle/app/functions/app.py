"""A function that does what its event says, and tells what it saw of its lease, its threads and its process."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from incumbent import Lease, LeaseLost, leased
from incumbent.providers import from_env

TTL_MS = int(os.environ.get("LIVES_MS", "1800"))
LOOKS_EVERY_S = 0.005
PROVIDER = from_env()  # it connects at the first call
if os.environ["INCUMBENT_PROVIDER"] == "dynamodb":  # boto3 and its client take long: in the init no timeout cuts short
    from botocore.config import Config

    from incumbent.providers.dynamodb import DynamoDBProvider

    patient = Config(connect_timeout=max(1, TTL_MS / 10_000), read_timeout=max(1, TTL_MS / 10_000))
    PROVIDER = DynamoDBProvider(table_name=os.environ["INCUMBENT_TABLE_NAME"], boto_config=patient)
    PROVIDER.renew_lease("of nobody", "nobody", TTL_MS)


def say(text: str) -> None:
    """Print a line by one write, so that the lines of several processes do not mix."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write(key: str, fence: int, text: str) -> bool:
    """Write to what is guarded by the fence: a file that refuses a smaller one."""
    with Path(os.environ["GUARDED"]).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        written = json.loads(file.read() or "{}")
        if fence < written.get(key, [0])[0]:
            return False
        file.truncate(0)
        file.write(json.dumps({**written, key: [fence, text]}))
        return True


def until_lost(event: dict[str, Any], lease: Lease) -> str:
    """Believe for as long as the lease says so; then try everything that a late owner should not get."""
    believed_ms = 0
    while True:
        now_ms = time.time_ns() // 1_000_000  # read before the look, so that it is never later than the belief
        stop = lease.stop
        if stop is not None:
            break
        believed_ms = now_ms
        time.sleep(LOOKS_EVERY_S)
    refusals = []
    for attempt in (lease.assert_held, lease.renew, lease.take):
        try:
            attempt()
        except LeaseLost:
            refusals.append("LeaseLost")
    wrote = write(lease.key, lease.fence, "late")
    say("LATE " + json.dumps({"believed_ms": believed_ms, "stop": stop.value, "refusals": refusals, "wrote": wrote}))
    return "late"


def until_told(event: dict[str, Any], lease: Lease) -> str:
    """Wait for the file, whatever becomes of the lease."""
    write(lease.key, lease.fence, lease.messages[0].id)
    say(f"wrote {lease.messages[0].id}")
    while not Path(os.environ["GO"]).exists():
        time.sleep(LOOKS_EVERY_S)
    return "told"


def while_renewed(event: dict[str, Any], lease: Lease) -> str:
    """Take longer than the lease would live."""
    time.sleep(TTL_MS * 1.2 / 1_000)
    return "renewed"


def between_renewals(event: dict[str, Any], lease: Lease) -> str:
    """End after the first renewal, and well before the second."""
    time.sleep(TTL_MS * 0.4 / 1_000)
    return "renewed once"


def raises(event: dict[str, Any], lease: Lease) -> str:
    """Fail after the first renewal."""
    between_renewals(event, lease)
    raise ValueError("it failed")


def in_a_child(event: dict[str, Any], lease: Lease) -> dict[str, Any]:
    """Fork, as Lambda advises for work in parallel, and let the child look at the lease after the ttl."""
    here, there = multiprocessing.Pipe()

    def look() -> None:
        time.sleep(TTL_MS * 1.2 / 1_000)
        try:
            lease.assert_held()
            held = "held"
        except Exception as error:  # noqa: BLE001 - the test looks at it
            held = type(error).__name__
        there.send({"stop": str(lease.stop), "held": held, "fence": lease.fence})

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()
    told: dict[str, Any] = here.recv()
    child.join()
    return {**told, "status": child.exitcode, "same fence": told["fence"] == lease.fence, "parent": str(lease.stop)}


def at_once(event: dict[str, Any], lease: Lease) -> str:
    """Do nothing."""
    return "at once"


DEEDS = {
    each.__name__: each
    for each in (until_lost, until_told, while_renewed, between_renewals, raises, in_a_child, at_once)
}


@leased(key_jmespath="key", message_id_jmespath="id", provider=PROVIDER, ttl_ms=TTL_MS, waker=None)
def run(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Do ``event["do"]`` at the first delivery, ``event["again"]`` at a later one."""
    do = event.get("do" if lease.attempt == 1 else "again", "at_once")
    say(f"running {event['id']} attempt {lease.attempt}")
    return DEEDS[do](event, lease)


@leased(key_jmespath="key", message_id_jmespath="id", provider=PROVIDER, ttl_ms=TTL_MS, waker=None)
async def run_awaiting(event: dict[str, Any], context: object, *, lease: Lease) -> str:
    """Await for longer than the lease would live."""
    await asyncio.sleep(TTL_MS * 1.2 / 1_000)
    return "awaited"


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Tell which threads were alive when the invocation began."""
    alive = sorted(thread.name for thread in threading.enumerate())
    return {"alive": alive, "pid": os.getpid(), "answer": run(event, context)}  # type: ignore[call-arg]


def awaiting_handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Tell the same, around a coroutine."""
    alive = sorted(thread.name for thread in threading.enumerate())
    return {"alive": alive, "pid": os.getpid(), "answer": run_awaiting(event, context)}  # type: ignore[call-arg]
