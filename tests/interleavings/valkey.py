"""Valkey as a store on which operations meet: its scripts are single steps, so calls come between calls."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.rules import Ended, KeyState, Stored
from incumbent.testing.redis_time import pass_key_time
from incumbent.testing.servers import ValkeyServer
from tests.interleavings.invariants import Picture
from tests.interleavings.operations import KEY, Provider
from tests.interleavings.stores import Requested
from tests.interleavings.turns import ReplyLost, Turns
from tests.redis_records import records

SOON_MS = 2_000  # the server's clock goes on between two looks
_OUTCOMES: Any = {
    "h": "handled",
    "s": "stopped",
    "c": "cancelled",
    "r": "superseded",
    "d": "dead",
    "f": "failed",
}


class ValkeyStore:
    """The real scripts on a real server, whose clock goes on; one key of its own."""

    skew_ms = 0
    loses_replies = True

    def __init__(self, turns: Turns, bare: Any, client: "_Client", prefix: str) -> None:
        self.requested: Requested = lambda: None
        self._bare = bare
        self._client = client
        self._prefix = prefix
        self._names = [name.decode() for name in Names(prefix).of(KEY)]
        self._passed_ms = 0
        client.turns, client.store = turns, self

    def provider(self, like: Provider | None = None) -> Provider:
        """One more provider of the key."""
        return RedisProvider(client=self._client, key_prefix=self._prefix)

    def copy(self) -> None:
        """It has to be made anew: a key cannot be copied with its times."""

    def pass_time(self, ms: int) -> None:
        """Let what is stored grow older."""
        pass_key_time(self._bare, self._names, ms)
        self._passed_ms += ms

    def picture(self) -> Picture:
        """The key's records; times go on as if the server's clock had been moved."""
        found = records(self._bare, self._names)
        expires = self._bare.execute_command("PEXPIRETIME", self._names[0])
        owner, state = found["owner"], found["state"] or {}
        faults = list(found["faults"])
        if set(found["dead"]) != set(found["letters"]):
            faults.append(f"dead {found['dead']} and letters {list(found['letters'])} differ")
        fence, control = state.get("fence", 0), state.get("control") or {}
        held_until, hold_lives = control.get("held_until", 0), found["lives"][-1]
        seconds, micros = self._bare.time()
        now_ms = seconds * 1_000 + micros // 1_000
        if owner and owner != state.get("owner") and (control.get("stop") or control.get("note")):
            faults.append(f"the tenure of {state} is over, and has its mark or its note still")
        if held_until > now_ms + SOON_MS and abs(now_ms + hold_lives - held_until) > SOON_MS:
            faults.append(f"held until {held_until}, and a search finds that for {hold_lives} ms")
        if held_until < now_ms and hold_lives > SOON_MS:
            faults.append(f"not held, and a search finds a hold for {hold_lives} ms")
        return Picture(
            now_ms=now_ms + self._passed_ms,
            state=KeyState(
                owner=owner,
                expires_ms=(expires if owner else state.get("until", 0)) + self._passed_ms,
                fence=fence,
                mail=tuple(self._stored(each, meta, fence) for each, meta in found["messages"].items()),
                ended=tuple(_traces(found["traces"])),
                block=state.get("block") == 1,
                quiet_until_ms=self._moment(control.get("quiet_until", 0)),
                held_until_ms=self._moment(held_until),
                stop=control["stop"] if owner and control.get("stop", False) is not False else None,
            ),
            letters=tuple(found["dead"]),
            faults=tuple(faults),
        )

    def _moment(self, stored_ms: int) -> int:
        return stored_ms + self._passed_ms if stored_ms else 0

    def _stored(self, message_id: str, meta: Any, fence: int) -> Stored:
        return Stored(
            id=message_id,
            body="",
            claimed_by=meta["by"],
            promised=meta["promised"],
            stored_ms=meta["stored"] + self._passed_ms,
            attempts=meta["attempts"],
            due_ms=self._moment(meta["due"]),
            delivered_fence=fence if meta["given"] else 0,
        )


def _traces(traces: list[dict[str, Any]]) -> Iterator[Ended]:
    for number, each in enumerate(traces):
        yield Ended(
            id=each["id"],
            outcome=_OUTCOMES[each["outcome"]],
            claimed_by=each["by"],
            fence=each["fence"],
            at_ms=number,
        )


class _Client(redis.Redis):
    """A client whose every script waits for its turn, and may lose its reply."""

    turns: Turns
    store: ValkeyStore

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command. The look at the server's settings, at the first call, is no part of it."""
        send: Callable[..., Any] = super().execute_command
        if args[0] not in ("EVALSHA", "EVAL", "SCAN"):
            return send(*args, **options)
        if args[0] != "EVAL":  # which only follows on an EVALSHA whose script the server had not seen yet
            self.turns.before_request()
        found = send(*args, **options)
        self.store.requested()
        try:
            self.turns.after_request()
        except ReplyLost as cause:
            raise redis.exceptions.ConnectionError("the reply was lost") from cause
        return found


@contextmanager
def valkey_stores(server: ValkeyServer) -> Iterator[Callable[[Turns], ValkeyStore]]:
    """What makes stores, each with a key of its own, on one server."""
    settings: dict[str, Any] = {"port": server.port, "protocol": 2, "driver_info": None}
    numbers, run = itertools.count(), uuid.uuid4().hex[:8]
    bare = redis.Redis(decode_responses=True, **settings)
    client = _Client(retry=Retry(NoBackoff(), 0), **settings)
    yield lambda turns: ValkeyStore(turns, bare, client, f"interleaved-{run}-{next(numbers)}")
    client.close()
    bare.close()
