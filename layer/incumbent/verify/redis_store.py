"""Redis or Valkey as `VerifiedStore`: its leftovers are found by their names."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.providers import from_env
from incumbent.providers.redis import RedisProvider, client_from_env
from incumbent.providers.redis.names import Names
from incumbent.testing.redis_time import pass_key_time
from incumbent.verify.store import STEM, Dropped, Trial, VerifiedStore

_RUN = re.compile(rb"^\{?" + STEM.encode() + rb"-([0-9a-f]{8})-\d+:lease:(.*?)(\}:[a-z]+)?$", re.DOTALL)
_COUNT = 1_000


class RedisStore(VerifiedStore):
    """One server or a cluster. Its clock goes on by itself: time passes because the stored times are moved."""

    name = "redis"
    slack_ms = 2_000

    def __init__(self, environ: Any, run: str | None = None) -> None:
        """Take the URL without its waits: some leases of the suite are shorter than any client should wait."""
        super().__init__(
            {**environ, "INCUMBENT_REDIS_URL": _without_waits(environ.get("INCUMBENT_REDIS_URL", ""))}, run
        )
        self._bare: Any = None
        self._connecting = threading.Lock()

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return a provider as the environment makes it: with connections of its own."""
        return from_env({**self.environ, "INCUMBENT_KEY_PREFIX": prefix})

    def losing(self, prefix: str, clock: Clock) -> tuple[Any, Dropped]:
        """Return a provider of a client whose replies can be dropped, whatever kind of connection it has."""
        dropped = Dropped()
        return RedisProvider(client=_Losing(self.client(), dropped), key_prefix=prefix, clock=clock), dropped  # type: ignore[arg-type]

    def test_clock(self) -> Clock:
        """The server's clock counts."""
        return SYSTEM_CLOCK

    def pass_time(self, trial: Trial, ms: int) -> None:
        """Move the stored times of the trial's keys. Needs the right to HGETALL, which no call of a provider needs."""
        names = Names(trial.prefix)
        for key in self._storable(names, trial.keys):
            pass_key_time(self.client(), [name.decode() for name in names.of(key)], ms)

    def remove(self, prefix: str, keys: set[str]) -> None:
        """Delete all records of these keys."""
        names = Names(prefix)
        for key in self._storable(names, keys):
            self.client().delete(*names.of(key))

    def begin(self) -> None:
        """Nothing to note: names tell the run."""

    def leftovers(self) -> dict[str, int | None]:
        """Search all names for those of other runs."""
        found: Counter[str] = Counter()
        for name in self._names(f"{STEM}-*"):
            if match := _RUN.match(name):
                found[match[1].decode()] += 1
        return {run: count for run, count in found.items() if run != self.run}

    def remove_run(self, run: str) -> int:
        """Delete every name of a run, one by one: in a cluster, names lie in different slots."""
        names = list(self._names(f"{STEM}-{run}-*"))
        for name in names:
            self.client().delete(name)
        return len(names)

    def close(self) -> None:
        """Close the client."""
        if self._bare is not None:
            self._bare.close()
            self._bare = None

    def end(self) -> None:
        """Nothing was noted."""

    def client(self) -> Any:
        """Return a client of the server or cluster, for what no provider does."""
        with self._connecting:
            if self._bare is None:
                self._bare = client_from_env(self.environ)
        return self._bare

    def _names(self, pattern: str) -> Iterator[bytes]:
        """Yield the names below a prefix: those of leases, and those in braces, on every primary."""
        for glob in (f"{pattern}:lease:*", f"{{{pattern}:lease:*"):
            for name in self.client().scan_iter(match=glob, count=_COUNT):
                yield name if isinstance(name, bytes) else name.encode()

    @staticmethod
    def _storable(names: Names, keys: set[str]) -> Iterator[str]:
        """Yield the keys that can have records: calls are also made with names that every provider refuses."""
        for key in sorted(keys):
            try:
                names.of(key)
            except UnicodeEncodeError:
                continue
            yield key


class _Losing:
    """A client whose replies can be dropped: the command was carried out, and its caller is not told."""

    def __init__(self, client: Any, dropped: Dropped) -> None:
        self._client = client
        self._dropped = dropped

    def execute_command(self, *words: Any, **more: Any) -> Any:
        answer = self._client.execute_command(*words, **more)
        if self._dropped.takes():
            raise ConnectionResetError("incumbent verify has dropped the reply")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _without_waits(url: str) -> str:
    parts = urlsplit(url)
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != "socket_timeout"]
    return urlunsplit(parts._replace(query=urlencode(kept)))
