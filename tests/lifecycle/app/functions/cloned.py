"""The same function restored from a snapshot: its process is copied after import, and its connections are dead.

The snapshot is the worst one: the store was used at import, and Python's random state is the same in every copy.
"""

import contextlib
import os
import random
import socket
from pathlib import Path

from awslambdaric import lambda_runtime_hooks_runner
from snapshot_restore_py import register_after_restore  # type: ignore[import-untyped]

from app import PROVIDER, handler, say  # type: ignore[import-not-found]

__all__ = ["handler"]

random.seed(7)
PROVIDER.get_lease_owner("used-at-import")
for file in Path("/proc/self/fd").iterdir():
    with contextlib.suppress(OSError):  # what lists the folder is closed by now
        if str(file.readlink()).startswith("socket:"):
            with socket.socket(fileno=os.dup(int(file.name))) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            say("cut a connection")

register_after_restore(lambda: say(f"restored {os.getpid()}"))
state = random.getstate()
for _ in range(int(os.environ["CLONES"]) - 1):
    if os.fork() == 0:
        break
random.setstate(state)  # after a fork Python seeds anew; after a restore it does not
lambda_runtime_hooks_runner.run_after_restore()
