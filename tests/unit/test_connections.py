"""Incumbent's own connections to one server: when one is made, kept, looked at, and closed."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from incumbent.providers.redis.connections import STALE_MS, Connections
from incumbent.testing.clock import FakeClock


class Wire:
    """A connection that answers what it was told to, and counts."""

    made: list["Wire"]

    def __init__(self, **_: Any) -> None:
        self.made.append(self)
        self.sent: list[bytes] = []
        self.closed = 0
        self.looks = 0
        self.readable: Any = False
        self.answer: Any = b"OK"

    def send_packed_command(self, command: tuple[bytes], *, check_health: bool) -> None:
        """No PING is sent before a command."""
        assert check_health is False
        self.sent += command

    def read_response(self, *, disable_decoding: bool) -> Any:
        """Answers are bytes."""
        assert disable_decoding is True
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def can_read(self) -> bool:
        """Say so, or fail."""
        self.looks += 1
        if isinstance(self.readable, BaseException):
            raise self.readable
        return bool(self.readable)

    def disconnect(self) -> None:
        """Count it."""
        self.closed += 1


class Pooled:
    """Connections, and those that were made."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.made: list[Wire] = []
        kind = type("Counted", (Wire,), {"made": self.made})
        pool: Any = SimpleNamespace(connection_class=kind, connection_kwargs={})
        self.connections = Connections(pool, self.clock)

    def send(self) -> Any:
        """Send a command."""
        return self.connections.execute_command("GET", b"k", 1, "text")


def test_connection_is_used_again() -> None:
    """Also after an error that the server answered; words are written with their lengths."""
    pooled = Pooled()
    assert pooled.send() == b"OK"
    (wire,) = pooled.made
    assert wire.sent == [b"*4\r\n$3\r\nGET\r\n$1\r\nk\r\n$1\r\n1\r\n$4\r\ntext\r\n"]
    wire.answer = ResponseError("ERR no")
    with pytest.raises(ResponseError):
        pooled.send()
    wire.answer = b"again"
    assert pooled.send() == b"again"
    assert (len(pooled.made), wire.closed, wire.looks) == (1, 0, 0)


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt()])
def test_connection_that_fails_is_closed_and_not_used_again(error: BaseException) -> None:
    """Its answer may still come, and would be taken for the next command's."""
    pooled = Pooled()
    pooled.send()
    pooled.made[0].answer = error
    with pytest.raises(type(error)):
        pooled.send()
    assert pooled.send() == b"OK"
    assert [wire.closed for wire in pooled.made] == [1, 0]


@pytest.mark.parametrize("readable", [True, OSError("gone"), False])
@pytest.mark.parametrize("idle_ms", [STALE_MS, STALE_MS + 1])
def test_connection_that_was_idle_for_long_is_looked_at(idle_ms: int, readable: object) -> None:
    """One with something to read was closed by the server: it connects again by itself."""
    pooled = Pooled()
    pooled.send()
    (wire,) = pooled.made
    wire.readable = readable
    pooled.clock.advance(idle_ms)
    assert pooled.send() == b"OK"
    looked = idle_ms > STALE_MS
    assert (wire.looks, wire.closed) == (looked, looked and bool(readable))
    assert pooled.made == [wire]


def test_idle_connections_are_closed_and_made_anew() -> None:
    """By `disconnect`, and the next command goes to the new one."""
    pooled = Pooled()
    pooled.send()
    pooled.connections.disconnect(inuse_connections=False)
    pooled.send()
    assert [wire.closed for wire in pooled.made] == [1, 0]
    pooled.connections.close()
    assert [wire.closed for wire in pooled.made] == [1, 1]


def test_connection_in_use_is_closed_when_its_command_is_answered() -> None:
    """After `close`, none is kept."""
    pooled = Pooled()
    pooled.connections.close()
    assert pooled.send() == b"OK"
    pooled.send()
    assert [wire.closed for wire in pooled.made] == [1, 1]


def test_fork_uses_no_connection_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would read one another's answers; the parent's stay open."""
    pooled = Pooled()
    pooled.send()
    monkeypatch.setattr("incumbent.providers.redis.connections.os.getpid", lambda: -1)
    pooled.send()
    pooled.send()
    assert [(wire.closed, len(wire.sent)) for wire in pooled.made] == [(0, 1), (0, 2)]
