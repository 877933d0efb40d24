"""The memory provider: a dictionary and a lock over the pure rules. It is the executable reference.

It serves one process. Every call is one step under the lock and never raises ``LeaseUnavailable``.
"""

import functools
import threading

from incumbent.providers.memory.archive import MemoryArchives
from incumbent.providers.memory.claiming import MemoryClaims
from incumbent.providers.memory.control import MemoryControls
from incumbent.providers.memory.leases import MemoryLeases
from incumbent.providers.memory.mailbox import MemoryMailboxes


class MemoryProvider(MemoryLeases, MemoryClaims, MemoryMailboxes, MemoryArchives, MemoryControls):
    """Leases and mailboxes in this process's memory. Other processes do not see them, and a restart loses them."""


_MAKING = threading.Lock()


def process_memory() -> MemoryProvider:
    """Return the one memory provider of this process, which all its functions share."""
    with _MAKING:  # a cache alone may make two for two threads at once, and every key would have two owners
        return _process_memory()


@functools.cache
def _process_memory() -> MemoryProvider:
    return MemoryProvider()
