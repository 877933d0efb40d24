"""Valkey as a store on which operations meet: its scripts are single steps, so calls come between calls."""

import itertools
import json
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
from incumbent.testing.servers import ValkeyServer
from tests.conformance.test_redis import pass_key_time
from tests.interleavings.invariants import Picture
from tests.interleavings.operations import KEY, Provider
from tests.interleavings.stores import Requested
from tests.interleavings.turns import ReplyLost, Turns

_OUTCOMES: Any = {"h": "handled", "d": "dead", "f": "failed"}


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
        """One that remembers the fences of its own grants."""
        return RedisProvider(client=self._client, key_prefix=self._prefix)

    def copy(self) -> None:
        """It has to be made anew: a key cannot be copied with its times."""

    def pass_time(self, ms: int) -> None:
        """Let what is stored grow older."""
        pass_key_time(self._bare, self._names, ms)
        self._passed_ms += ms

    def picture(self) -> Picture:
        """The key's records; times go on as if the server's clock had been moved."""
        lease, state, mail, meta, body, ended, dead, letters = self._names
        with self._bare.pipeline(transaction=False) as asked:
            asked.get(lease).execute_command("PEXPIRETIME", lease)
            asked.hgetall(state).zrange(mail, 0, -1).hgetall(meta).hkeys(body).hgetall(ended)
            asked.zrange(dead, 0, -1).hkeys(letters)
            owner, expires, fields, ids, metas, bodies, traces, dead_ids, letter_ids = asked.execute()
        faults = []
        if set(ids) != set(metas) or set(ids) != set(bodies):
            faults.append(f"mail {ids}, meta {list(metas)} and body {bodies} differ")
        if set(dead_ids) != set(letter_ids):
            faults.append(f"dead {dead_ids} and letters {letter_ids} differ")
        return Picture(
            state=KeyState(
                owner=owner,
                expires_ms=(expires if owner else int(fields.get("until", 0))) + self._passed_ms,
                fence=int(fields.get("fence", 0)),
                mail=tuple(self._stored(each, json.loads(metas[each])) for each in ids if each in metas),
                ended=tuple(_traces(traces)),
                block=fields.get("block") == "1",
            ),
            letters=tuple(dead_ids),
            faults=tuple(faults),
        )

    def _stored(self, message_id: str, meta: Any) -> Stored:
        return Stored(
            id=message_id,
            body="",
            claimed_by=meta["by"],
            promised=meta["promised"],
            stored_ms=meta["stored"] + self._passed_ms,
            attempts=meta["attempts"],
            due_ms=meta["due"] + self._passed_ms if meta["due"] else 0,
            delivered_fence=int(meta["given"]),
        )


def _traces(traces: dict[str, str]) -> Iterator[Ended]:
    for name, text in sorted(traces.items()):
        outcome, _, number = name.partition(":")
        if outcome not in _OUTCOMES or not number:
            continue
        fence, _, size, rest = text.split(" ", 3)
        by, message_id = rest[: int(size)], rest[int(size) :]
        yield Ended(id=message_id, outcome=_OUTCOMES[outcome], claimed_by=by, fence=int(fence), at_ms=int(number))


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
