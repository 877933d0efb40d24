"""Requests to one Redis or Valkey server or cluster: which client sends them, and how often they are tried."""

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.credentials import CredentialProvider
from redis.exceptions import NoScriptError, ReadOnlyError, RedisClusterException, ResponseError, TryAgainError
from redis.retry import Retry

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError
from incumbent.providers.redis.clients import (
    Client,
    check_client,
    is_cluster,
    package,
    primaries_now,
    repeats,
    waits_ms,
)
from incumbent.providers.redis.connections import Connections
from incumbent.providers.redis.explanations import (
    ERRORS,
    REFUSED,
    classify_error,
    errors_of_valkey,
    is_migrating,
    refusal,
    twin,
)
from incumbent.providers.redis.logins import LoginPool, login_from_env, without_login
from incumbent.providers.redis.scripting import script
from incumbent.providers.redis.url import ServerAddress, one_url, read_url, settings
from incumbent.retry import call_with_retry, check_wait, search_is_over, wait_ms

SCAN_COUNT = 1_000

_CLIENT_WAITS_MS = 1_000
_wait_ms = functools.lru_cache(maxsize=16)(wait_ms)
_SHORTER_WAIT = "Give the client a shorter socket_timeout, a tenth of the ttl or less, or a URL without one"

Argument: TypeAlias = str | bytes | int | Callable[[bool], bytes]
"""What a script is told. A function is told whether the request may be a repetition (R9), and returns the argument."""


class Server:
    """The server or cluster behind a provider, connected at the first request.

    Answers are bytes, whatever the client decodes.
    """

    def __init__(
        self,
        *,
        url: str | Sequence[str] | None,
        client: Client | None,
        clock: Clock,
        password: Callable[[], str] | None = None,
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigurationError("RedisProvider: give either url= or client=")
        if password is not None and (url is None or not callable(password)):
            raise ConfigurationError("RedisProvider: password= is a callable, and goes with url=")
        self._clock = clock
        self._client = client
        self._address: ServerAddress | None = None
        self._credentials: CredentialProvider | None = None
        self._ours: dict[int, Any] = {}  # by how long they wait
        self._lock = threading.Lock()
        self._checked = client is not None
        if client is not None:
            check_client(client)
        # The wait for an answer that the URL or the client sets; None if this class chooses it.
        self._set_wait_ms = None if client is None else waits_ms(client)
        if url is not None:
            url = one_url(url)
            if password is not None:
                url, self._credentials = without_login(url, password)
            self._address = read_url(url)
            self._set_wait_ms = self._address.set_wait_ms
        # The errors of the package valkey, which is loaded only if such a client is given.
        self._valkey_errors = () if package(client) != "valkey" else errors_of_valkey()
        # R9 (unknown outcome): if the client repeats commands, our first try may be its second.
        self._first_try = 1 if client is None or not repeats(client) else 2

    def run(
        self,
        name: str,
        names: Callable[[int], Sequence[bytes]],
        arguments: Sequence[Argument],
        *,
        call: str,
        key: str,
        ttl_ms: int | None,
        give_up_at: Moment | None = None,
        names_count: int | None = None,
    ) -> tuple[Moment, Any]:
        """Run a script by its name, or by its text if the server does not know it.

        ``names`` returns as many of the key's names as the script gets: ``names_count`` if that is given. Return when
        the try that was answered was sent, and its answer. Raises ``LeaseUnavailable``, and ``ConfigurationError`` if
        the client waits longer than the ttl.
        """
        code = script(name)
        check_wait(self._set_wait_ms, ttl_ms, key=key, advice=_SHORTER_WAIT)
        names_count = code.names if names_count is None else names_count
        keys, count = names(names_count), b"%d" % names_count

        def send(number: int, sent: Moment) -> tuple[Moment, Any]:
            client = self._reach(ttl_ms)
            told = [each if type(each) is bytes else _told(each, is_repeated=number > 1) for each in arguments]
            try:
                answer = self._send(client, "EVALSHA", code.sha, count, *keys, *told)
            except NoScriptError:
                answer = self._send(client, "EVAL", code.text, count, *keys, *told)
            self._check_eviction(client, keys[0])
            return sent, answer

        answer: tuple[Moment, Any] = self._ask(send, call=call, key=key, ttl_ms=ttl_ms, give_up_at=give_up_at)
        return answer

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a ttl that is shorter than the wait that the URL or the client sets."""
        check_wait(self._set_wait_ms, ttl_ms, advice=_SHORTER_WAIT)

    def nodes(self, *, call: str, key: str) -> dict[str, Any]:
        """Return a client for each primary by its address, as the cluster is now. Raises ``LeaseUnavailable``."""

        def look(*_: object) -> dict[str, Any]:
            try:
                return primaries_now(self._reach())
            except self._valkey_errors as error:
                raise twin(error) from error

        found: dict[str, Any] = self._ask(look, call=call, key=key)
        return found

    def scan(self, node: Any, pattern: str, cursor: int, *, call: str) -> tuple[int, Sequence[bytes]]:
        """Ask a primary for names by one SCAN. Return the next cursor and the names. Raises ``LeaseUnavailable``."""
        words = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        cursor, names = self._ask(lambda *_: self._send(node, *words), call=call, key=pattern)
        return int(cursor), names

    def search_is_over(self) -> bool:
        """Whether a search has taken as long as it may (`incumbent.retry.search_until`)."""
        return search_is_over(self._clock)

    def close(self) -> None:
        """Close the connections that this object has opened. A later call opens them again."""
        with self._lock:
            ours, self._ours = self._ours, {}
        for client in ours.values():
            client.close()

    def _ask(
        self,
        send: Callable[[int, Moment], Any],
        *,
        call: str,
        key: str,
        ttl_ms: int | None = None,
        give_up_at: Moment | None = None,
    ) -> Any:
        handled = sys.exc_info()[1]

        def attempt(number: int, sent: Moment) -> Any:
            try:
                return send(number, sent)
            except RedisClusterException:  # no node that the client knows: the next try begins with the seeds
                self.close()
                raise

        return call_with_retry(
            attempt,
            clock=self._clock,
            call=call,
            key=key,
            ttl_ms=ttl_ms,
            waits_ms=_wait_ms(ttl_ms) if self._set_wait_ms is None else self._set_wait_ms,
            errors=ERRORS,
            classify_error=lambda error: classify_error(error, handled),
            passes=is_migrating,
            first_try=self._first_try,
            give_up_at=give_up_at,
        )

    def _send(self, client: Any, *words: Any) -> Any:
        """Send one command. If a former primary refuses it after a fail-over, the next try goes to the new one."""
        try:
            try:
                return client.execute_command(*words, NEVER_DECODE=True)
            except self._valkey_errors as error:
                raise twin(error) from error
        except ReadOnlyError:
            with suppress(AttributeError):  # a cluster's client finds the new primary by itself
                getattr(client, "connection_pool", client).disconnect(inuse_connections=False)
            raise
        except AttributeError as error:
            if not is_cluster(client):
                raise
            # redis-py does not know nodes without slots, and cannot follow the first slot that moves to a new node.
            raise TryAgainError("TRYAGAIN the slot is moving to a node that has none yet") from error

    def _reach(self, ttl_ms: int | None = None) -> Any:
        """Return what sends commands, made at its first use."""
        client = self._client
        if client is None:
            waits = _wait_ms(None if self._set_wait_ms is not None else ttl_ms)
            client = self._ours.get(waits)
            if client is None:
                with self._lock:
                    client = self._ours.get(waits) or self._connect(waits)
                    self._ours[waits] = client
        return client

    def _connect(self, waits: int) -> Any:
        assert self._address is not None, "a given client needs no other"  # noqa: S101 - for the type checker
        if self._address.cluster:
            return _client(self._address, waits=waits, credentials=self._credentials)
        kind = ConnectionPool if self._credentials is None else LoginPool
        given = _never_repeating(self._address, waits, self._credentials)
        return Connections(kind.from_url(self._address.url, **given), self._clock)

    def _check_eviction(self, client: Any, name: bytes) -> None:
        """Ask once whether the server may evict leases: the node that has just answered about this name."""
        if self._checked:
            return
        memory: Mapping[str, Any] = {}
        try:
            node = client.get_redis_connection(client.get_node_from_key(name)) if is_cluster(client) else client
            memory = _facts(node.execute_command("INFO", "memory"))
        except ResponseError:  # INFO is not permitted
            pass
        except ERRORS:  # the next call asks
            return
        self._checked = True
        _warn_of_eviction(memory)


def _told(argument: Argument, *, is_repeated: bool) -> bytes:
    """Encode an argument for a script."""
    if isinstance(argument, str):
        return argument.encode(errors="backslashreplace")
    if isinstance(argument, int):
        return b"%d" % argument
    return argument if isinstance(argument, bytes) else argument(is_repeated)


def _never_repeating(address: ServerAddress, waits: int, credentials: CredentialProvider | None) -> dict[str, Any]:
    """Return the settings of a client that repeats no command (R9: unknown outcome)."""
    found = settings(address.url, waits) | {"retry": Retry(NoBackoff(), 0)}
    return found if credentials is None else found | {"credential_provider": credentials}


def _client(address: ServerAddress, *, waits: int, credentials: CredentialProvider | None) -> Client:
    """Make a client of redis-py. For a cluster this requests its slots, of one seed after the other."""
    given = _never_repeating(address, waits, credentials)
    if not address.cluster:
        kind = ConnectionPool if credentials is None else LoginPool
        return redis.Redis.from_pool(kind.from_url(address.url, **given))
    if credentials is not None:
        given["connection_pool_class"] = LoginPool
    others = [ClusterNode(*seed) for seed in address.seeds[1:]]  # type: ignore[no-untyped-call]
    try:
        return _LateCommands.from_url(address.url, startup_nodes=others, **given)
    except RedisClusterException as error:
        if isinstance(cause := refusal(error), REFUSED):
            raise cause from error
        tried = ", ".join(f"{host}:{port}" for host, port in address.seeds)
        raise RedisClusterException(f"of the cluster's nodes, {tried} was tried. {error}") from error


class _LateCommands(RedisCluster):
    """redis-py's client, which asks for the server's commands only when one is sent whose keys it cannot tell.

    Its own constructor sends COMMAND to the primary of the first slot, and no key can be reached while that is away.
    """

    def command(self, **options: Any) -> Any:
        if not hasattr(self, "commands_parser"):  # the constructor asks
            return {}
        return super().command(**options)


def client_from_env(environ: Mapping[str, str] | None = None) -> Client:
    """Make a client of the server that the environment names, for the application's own data beside the leases.

    It logs in as ``from_env``'s provider does (``INCUMBENT_REDIS_URL``, ``INCUMBENT_REDIS_SECRET_ID``), waits a second
    at most unless the URL sets another timeout, and repeats no command. The caller closes it. Raises
    ``ConfigurationError``; a cluster's client requests its slots at once, and raises redis-py's errors.
    """
    url, password = login_from_env(os.environ if environ is None else environ)
    credentials: CredentialProvider | None = None
    if password is not None:
        url, credentials = without_login(url, password)
    return _client(read_url(url), waits=_CLIENT_WAITS_MS, credentials=credentials)


def _facts(info: Any) -> Mapping[str, Any]:
    """Return the facts in an answer to INFO, which redis-py's clients read already."""
    if isinstance(info, Mapping):
        return info
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def _warn_of_eviction(memory: Mapping[str, Any]) -> None:
    """Warn of a server that may evict live leases when its memory is short."""
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and int(memory.get("maxmemory", 0)):
        warnings.warn(
            f"this server's maxmemory-policy is {policy}: when memory is short it evicts live leases and messages, "
            "and two owners may run at once; set it to noeviction",
            RuntimeWarning,
            stacklevel=2,
        )
