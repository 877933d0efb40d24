"""What the processes of one environment print, line by line."""

import os
import select
import socket
import threading
from collections.abc import Callable

# A frame: its type (these bytes and a level), the text's length, a time, the text; 4, 4 and 8 bytes and the text.
_FRAME = b"\xa5\x5a\x00"
_HEADER_BYTES = 16
_CHUNK_BYTES = 65_536


class Output:
    """The pipe into which processes print, and into which the runtime client writes log records as frames.

    `drain` reads what is there by now: called before an answer is taken, it has every line that the handler printed,
    since the process is waiting.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        """Open the pipe; ``write_end`` is for the processes."""
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._on_line = on_line
        self._rest = b""
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        """Read until the last process has closed its end."""
        os.close(self.write_end)
        threading.Thread(target=self._read, name="incumbent-logs", daemon=True).start()

    def drain(self, *, to_the_end: bool = False) -> None:
        """Read what has been printed by now; ``to_the_end`` also takes text without a newline for a line."""
        with self._lock:
            while not self._ended:
                try:
                    chunk = os.read(self._read_end, _CHUNK_BYTES)
                except BlockingIOError:
                    break
                self._ended = not chunk
                self._rest += chunk
                while (text := self._next()) is not None:
                    self._tell(text)
            if self._rest and (to_the_end or self._ended):
                # Of a frame that a kill has cut off, only the text.
                text = self._rest[_HEADER_BYTES:] if self._rest.startswith(_FRAME) else self._rest
                self._rest = b""
                self._tell(text)

    def _tell(self, text: bytes) -> None:
        for line in text.removesuffix(b"\n").split(b"\n"):
            self._on_line(line.decode(errors="replace").rstrip("\r"))

    def _next(self) -> bytes | None:
        """Take the next whole line or log record; ``None`` if there is none yet."""
        frame, newline = self._rest.find(_FRAME), self._rest.find(b"\n")
        if frame == 0:
            end = _HEADER_BYTES + int.from_bytes(self._rest[4:8])
            if len(self._rest) < end:
                return None
            start, rest = _HEADER_BYTES, end
        elif newline >= 0 and (frame < 0 or newline < frame):
            start, end, rest = 0, newline, newline + 1
        elif frame > 0:  # printed without a newline before a record
            start, end, rest = 0, frame, frame
        else:
            return None
        text, self._rest = self._rest[start:end], self._rest[rest:]
        return text

    def _read(self) -> None:
        while not self._ended:
            readable(self._read_end, None)
            self.drain()
        with self._lock:
            os.close(self._read_end)


def readable(file: int | socket.socket, timeout_ms: int | None) -> bool:
    """Wait until there is something to read, the end included; say whether that was in time."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_ms))
