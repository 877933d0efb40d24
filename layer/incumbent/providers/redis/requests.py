"""What all calls of the provider share: running a script on a key, and reading its answer."""

from collections.abc import Callable, Sequence
from functools import partial

from incumbent.clock import Clock, Moment
from incumbent.errors import IncumbentError
from incumbent.providers.redis.answers import ScriptAnswer, read, unreadable
from incumbent.providers.redis.clients import Client
from incumbent.providers.redis.names import Names
from incumbent.providers.redis.search import ScanPlace, Search
from incumbent.providers.redis.server import Argument, Server


def repeated(is_repeated: bool) -> bytes:  # noqa: FBT001 - called by `Server.run`
    """Tell a script whether the request may be a repetition (R9)."""
    return b"1" if is_repeated else b"0"


def told_fence(fence: int | None) -> bytes:
    """Tell a script a fence; nothing if it is not known."""
    return b"" if fence is None else b"%d" % fence


class Requests:
    """Requests about the keys of one prefix on one server."""

    def __init__(
        self,
        *,
        url: str | Sequence[str] | None,
        client: Client | None,
        password: Callable[[], str] | None,
        key_prefix: str,
        clock: Clock,
    ) -> None:
        self._names = Names(key_prefix)
        self._server = Server(url=url, client=client, clock=clock, password=password)

    def close(self) -> None:
        """Close the connections that the provider has opened itself. A later call opens them again."""
        self._server.close()

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a ttl that is shorter than the client may wait for one answer. Raises ``ConfigurationError``."""
        self._server.check_ttl(ttl_ms)

    def _run(
        self,
        name: str,
        key: str,
        *arguments: Argument,
        call: str,
        ttl_ms: int | None = None,
        give_up_at: Moment | None = None,
        names_count: int | None = None,
    ) -> ScriptAnswer:
        """Run a script on a key, and return its answer. Raises ``LeaseUnavailable`` and ``StoredFormatUnknown``."""
        names = partial(self._names.of, key)
        sent, raw = self._server.run(
            name,
            names,
            arguments,
            call=call,
            key=key,
            ttl_ms=ttl_ms,
            give_up_at=give_up_at,
            names_count=names_count,
        )
        return read(sent, raw, call=call, key=key)

    def _search(self, call: str, *, place: ScanPlace | None = None) -> Search:
        return Search(self._server, self._names, call=call, place=place)

    def _read(self, search: Search, name: str, key: str, *arguments: Argument, call: str) -> ScriptAnswer | None:
        """Run a script that reads one key of many; what cannot be read is noted in the search."""
        return search.read(key, lambda: self._run(name, key, *arguments, call=call))

    @staticmethod
    def _odd(call: str, key: str, record: str, odd: Sequence[bytes]) -> list[IncumbentError]:
        """Make the errors of the messages that a script could not read (``odd``: id, format ...)."""
        return [
            unreadable(call, record, message_id, version, key=key)
            for message_id, version in zip(odd[::2], odd[1::2], strict=True)
        ]
