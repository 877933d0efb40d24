"""Sees to it that no process outlives the one that started it, not even when that one is killed."""

import subprocess
import threading
from contextlib import suppress

# Keeps a list of process groups; when its parent is gone, it ends them.
_WATCH = """
groups=" "
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
"""


class ProcessReaper:
    """A shell that reads from us which process groups are alive; our end, of whatever kind, closes the pipe."""

    def __init__(self) -> None:
        """Start the shell, out of reach of what signals our own group gets."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._lock = threading.Lock()

    def hold(self, group: int) -> None:
        """End this process group should we end first."""
        self._say(f"+ {group}\n")

    def drop(self, group: int) -> None:
        """Forget a process group that is gone."""
        self._say(f"- {group}\n")

    def close(self) -> None:
        """End what is still held, and the shell."""
        with self._lock:
            if self._shell.stdin is not None:
                self._shell.stdin.close()
        self._shell.wait()

    def _say(self, line: str) -> None:
        with self._lock, suppress(BrokenPipeError, ValueError):  # another process killed the shell, or we are closed
            if self._shell.stdin is not None:
                self._shell.stdin.write(line.encode())
