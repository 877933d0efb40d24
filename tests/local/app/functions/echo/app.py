"""A handler that does what its event says, to see what the local Lambda makes of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import shared_by_layer  # type: ignore[import-not-found]

calls = 0
ticks = 0


def _tick(file: str) -> None:
    global ticks  # noqa: PLW0603 - what a background thread does to its module is what is looked at
    with Path(file).open("ab", buffering=0) as seen:
        while True:
            ticks += 1
            seen.write(b".")
            time.sleep(0.002)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Tell what it was given, after doing what ``event["do"]`` names."""
    global calls  # noqa: PLW0603
    calls += 1
    do = event.get("do")
    while ticks < event.get("ticks", 0):
        time.sleep(0.002)
    if do == "sleep":
        print("begun")
        time.sleep(event["ms"] / 1_000)
    elif do == "print":
        print(event["text"])
        print(event["text"].upper(), file=sys.stderr, end=event.get("end", "\n"))
    elif do == "raise":
        raise RuntimeError(event["text"])
    elif do == "exit":
        os._exit(event["code"])
    elif do == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif do == "tick":
        Path(event["file"]).touch()  # the thread may be frozen before it has begun
        threading.Thread(target=_tick, args=(event["file"],), daemon=True).start()
    elif do == "spawn":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(event["ms"] / 1_000)
    elif do == "abandon":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os._exit(0)
    return {
        "pid": os.getpid(),
        "calls": calls,
        "ticks": ticks,
        "event": event,
        "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn,
        "time_left_ms": context.get_remaining_time_in_millis(),
        "client": getattr(context.client_context, "custom", None),
        "trace_id": os.environ.get("_X_AMZN_TRACE_ID"),
        "layer": shared_by_layer.FROM_THE_LAYER,
        "environ": {name: value for name, value in os.environ.items() if name in event.get("environ", [])},
    }
