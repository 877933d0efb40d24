"""The memory provider: the pure rules of `incumbent.rules`, in this process."""

from incumbent.providers.memory.provider import MemoryProvider, process_memory

__all__ = ["MemoryProvider", "process_memory"]
