"""Connections to one server, for incumbent's own use: what a call needs of redis-py's client, and no more."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import RedisError, ResponseError

from incumbent.clock import Clock

STALE_MS = 1_000
"""A connection that was not used for longer is looked at before it is used: the server may have closed it."""


class Connections:
    """Connections to one server, each used by one call at a time, and made when none is idle.

    They repeat no command. Answers are bytes. Raises redis-py's errors; a connection that has failed is closed.
    """

    def __init__(self, pool: ConnectionPool, clock: Clock) -> None:
        """Take redis-py's pool, which has read the URL. Connections are kept here."""
        self._connect: Callable[[], Any] = functools.partial(pool.connection_class, **pool.connection_kwargs)
        self._clock = clock
        self._idle: list[tuple[Any, int]] = []  # each with the time at which it was used last
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def execute_command(self, *words: Any, **_: Any) -> Any:
        """Send a command and return its answer."""
        now_ms = self._clock.now().wall_ms
        connection = self._take(now_ms)
        try:
            connection.send_packed_command((_packed(words),), check_health=False)
            answer = connection.read_response(disable_decoding=True)
        except ResponseError:  # an answer, too
            self._give_back(connection, now_ms)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(connection, now_ms)
        return answer

    def disconnect(self, **_: Any) -> None:
        """Close the idle connections; the next command makes a new one."""
        with self._lock:
            idle = self._idle
            self._idle = []
        for connection, _used_ms in idle:
            connection.disconnect()

    def close(self) -> None:
        """Close all connections: those in use when their command is answered."""
        self._closed = True
        self.disconnect()

    def _take(self, now_ms: int) -> Any:
        if self._process != os.getpid():  # a fork: its parent goes on with these
            self._idle = []
            self._process = os.getpid()
        try:
            connection, used_ms = self._idle.pop()
        except IndexError:
            return self._connect()
        if now_ms - used_ms > STALE_MS and _is_stale(connection):
            connection.disconnect()  # sending connects it again
        return connection

    def _give_back(self, connection: Any, now_ms: int) -> None:
        if self._closed:
            connection.disconnect()
        else:
            self._idle.append((connection, now_ms))


def _is_stale(connection: Any) -> bool:
    """Return whether a connection was closed by the server, or has more to read than it should."""
    try:
        return bool(connection.can_read())
    except (RedisError, OSError):
        return True


@functools.cache
def _form(count: int) -> bytes:
    """Return the form of a command of so many words: each with its length."""
    return b"*%d\r\n" % count + b"$%d\r\n%b\r\n" * count


def _packed(words: tuple[Any, ...]) -> bytes:
    """Return a command as the server reads it. A script's words are bytes but for the first."""
    raw: Sequence[Any] = (words[0].encode(), *words[1:])
    form = _form(len(raw))
    try:
        return form % tuple(chain.from_iterable(zip(map(len, raw), raw, strict=True)))
    except TypeError:  # a word is a number or text
        raw = [word if type(word) is bytes else str(word).encode() for word in raw]
        return form % tuple(chain.from_iterable(zip(map(len, raw), raw, strict=True)))
