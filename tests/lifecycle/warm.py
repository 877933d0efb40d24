"""Ten thousand invocations of one environment, in a process of their own; prints what it held before and after."""

import json
import os
import resource
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from incumbent import Lease, leased
from incumbent.providers import from_env

PROVIDER = from_env()
COROUTINES_EVERY = 10
FAILURES_EVERY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """An invocation with a minute left."""

    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:123456789012:function:warm"
    log_stream_name: str = "2026/11/02/[$LATEST]0123456789abcdef"

    def get_remaining_time_in_millis(self) -> int:
        """Return the same at all times."""
        return 60_000


@leased(key_jmespath="key", provider=PROVIDER, keyspace="warm", waker=None)
def handle(event: dict[str, Any], context: Context, *, lease: Lease) -> int:
    """Fail now and then."""
    if event["number"] % FAILURES_EVERY == 0:
        raise ValueError(event["number"])
    return lease.attempt


@leased(key_jmespath="key", provider=PROVIDER, keyspace="warm", waker=None)
async def handle_awaiting(event: dict[str, Any], context: Context, *, lease: Lease) -> int:
    """Do the same, awaited."""
    return lease.attempt


def invoke(number: int) -> None:
    """One invocation, of a key that no other has."""
    handler: Callable[..., Any] = handle if number % COROUTINES_EVERY else handle_awaiting
    try:
        assert handler({"key": f"k{number}", "number": number}, Context()) == 1
    except ValueError:
        assert number % FAILURES_EVERY == 0


def held() -> dict[str, int]:
    """What the process holds: threads (the kernel's count too), open files, and its largest size so far."""
    files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return {
        "threads": threading.active_count(),
        "tasks": len(list(Path("/proc/self/task").iterdir())),
        "files": len(files),
        "sockets": sum("socket:" in each for each in files),
        "most_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


if __name__ == "__main__":
    warm_up, many = int(sys.argv[1]), int(sys.argv[2])
    for number in range(warm_up):
        invoke(number)
    before = held()
    for number in range(warm_up, warm_up + many):
        invoke(number)
    sys.stdout.write(json.dumps({"before": before, "after": held()}))
