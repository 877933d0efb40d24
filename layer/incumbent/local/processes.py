"""A process that never outlives the one that started it, not even when that one is killed."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from incumbent.clock import SYSTEM_CLOCK

_START_MS = 30_000
_STOP_S = 10
_POLL_MS = 5
_SAID = 2_000

# Runs "$@" until it ends, or until standard input says a line or ends. It waits for it, so
# that no zombie stays behind where process 1 does not reap.
_SUPERVISE = """
exec 3<&0
"$@" 3<&- </dev/null &
child=$!
{ read -r _; kill -KILL $child; } <&3 >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $child
status=$?
kill $watcher 2>/dev/null
wait
exit $status
"""


class NotStarted(RuntimeError):
    """A process ended, or was not ready in time; the text ends with what it had to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """A running process; `supervised` makes one.

    ``process_group`` is what a signal by `os.killpg` reaches: the process, and the shell that watches it.
    """

    name: str
    process_group: int
    _shell: "subprocess.Popen[bytes]"
    _output: IO[bytes]
    _errors: IO[bytes]

    def first_line(self) -> str:
        """Wait for the first line that the process prints.

        Raises `NotStarted`.
        """
        self.wait_until(lambda: "\n" in _text(self._output))
        return _text(self._output).partition("\n")[0]

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Ask again and again until ``ready`` says yes.

        Raises `NotStarted` when the process has ended, or when half a minute has passed.
        """
        give_up = SYSTEM_CLOCK.now().plus(_START_MS)
        while not ready():
            ended = self._shell.poll() is not None
            if ended or SYSTEM_CLOCK.now().until(give_up) <= 0:
                how = "ended at once" if ended else f"was not ready within {_START_MS} ms"
                said = (_text(self._output) + _text(self._errors)).strip()[-_SAID:]
                raise NotStarted(f"{self.name} {how}: {said or 'it said nothing'}")
            SYSTEM_CLOCK.sleep_ms(_POLL_MS)


@contextmanager
def supervised(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Supervised]:
    """Run a command for as long as the context lasts, with ``environment`` added to this process's own.

    It ends by SIGKILL: what it has not written by then is lost.
    """
    its_end, our_end = os.pipe()
    with (
        # Files, since a full pipe without a reader would block its writer.
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        os.fdopen(its_end, "rb") as standard_input,
        # As long as this end is open and silent, the process lives; our death closes it.
        os.fdopen(our_end, "wb", buffering=0) as leash,
    ):
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISE, "sh", *words],
            stdin=standard_input,
            stdout=output,
            stderr=errors,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
        )
        try:
            standard_input.close()
            yield Supervised(
                name=Path(words[0]).name,
                process_group=shell.pid,
                _shell=shell,
                _output=output,
                _errors=errors,
            )
        finally:
            _signal(shell, signal.SIGCONT)  # a shell that a test froze would not notice
            with suppress(BrokenPipeError):
                leash.write(b"\n")  # said, not only closed: a fork of ours may hold this end too
            with suppress(subprocess.TimeoutExpired):
                shell.wait(_STOP_S)
            _signal(shell, signal.SIGKILL)
            shell.wait()


def _signal(shell: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Signal the shell's group, unless all of it is gone already."""
    if shell.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, number)


def _text(file: IO[bytes]) -> str:
    """What a child wrote so far; read beside the file's position, which the child shares."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
