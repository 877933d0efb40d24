"""Requests to one Redis or Valkey server or cluster: connections, retries, and explanations of errors."""

import functools
import hashlib
import importlib
import inspect
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ClusterError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.retry import Retry

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError
from incumbent.providers.redis.permissions import acl_rules
from incumbent.providers.secrets import SecretPassword
from incumbent.retry import call_with_retry, check_wait, search_is_over, wait_ms
from incumbent.validation import shown

if TYPE_CHECKING:
    from valkey import Valkey
    from valkey.cluster import ValkeyCluster

    Client: TypeAlias = redis.Redis | RedisCluster | Valkey | ValkeyCluster
else:
    Client = redis.Redis | RedisCluster  # the package valkey is loaded by its users, if there are any
Argument: TypeAlias = str | bytes | int | bool | None

SCAN_COUNT = 1_000

# The scripts that do not touch messages.
_LEASE_ONLY = ("owner", "release")

_ERRORS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError)
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_CLIENT_WAITS_MS = 1_000
_SHORTER_WAIT = "Give the client a shorter socket_timeout, a tenth of the ttl or less, or a URL without one"
_MAYBE_LATER = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")


# Classes of both packages that take a command and do not return its answer.
_NO_ANSWERS = frozenset({"Pipeline", "ClusterPipeline", "PubSub", "ClusterPubSub", "Sentinel"})


class _Repeated:
    """A placeholder for the argument that tells a script whether the request may be a repetition (R9)."""


REPEATED = _Repeated()


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with the shared code before it, and the name that the server gives it."""

    text: bytes
    sha: str


@functools.cache
def script(name: str) -> Script:
    """Load a script from its file."""
    folder = files("incumbent.providers.redis") / "scripts"
    shared = ("common",) if name in _LEASE_ONLY else ("common", "mail")
    before, asked, after = (
        b"\n".join((folder / f"{part}.lua").read_bytes() for part in parts)
        for parts in (shared, (name,), ("primary_check",))
    )
    text = b"\n".join((before, b"local function run()", asked, b"end", after))
    return Script(text=text, sha=hashlib.sha1(text, usedforsecurity=False).hexdigest())


class Server:
    """The server or cluster behind a provider, connected at the first request.

    Answers are bytes, whatever the client decodes.
    """

    def __init__(
        self, *, url: str | None, client: Client | None, clock: Clock, password: Callable[[], str] | None = None
    ) -> None:
        if (url is None) == (client is None):
            raise ConfigurationError("RedisProvider: give either url= or client=")
        if password is not None and (url is None or not callable(password)):
            raise ConfigurationError("RedisProvider: password= is a callable, and goes with url=")
        self._clock = clock
        self._client = client
        self._url = ""
        self._credentials: CredentialProvider | None = None
        self._cluster = False
        self._ours: dict[int, Client] = {}  # by how long they wait
        self._lock = threading.Lock()
        self._checked = client is not None
        if client is not None:
            _check_client(client)
        # The wait for an answer that the URL or the client sets; None if this class chooses it.
        self._set_wait_ms = None if client is None else _waits_ms(client)
        if url is not None:
            if password is not None and isinstance(url, str):
                url, self._credentials = _without_login(url, password)
            self._url, self._cluster, self._set_wait_ms = _read_url(url)
        # The errors of the package valkey, which is loaded only if such a client is given.
        self._valkey_errors = () if _package(client) != "valkey" else _errors_of_valkey()
        # R9 (unknown outcome): if the client repeats commands, our first try may be its second.
        self._first_try = 1 if client is None or not _repeats(client) else 2

    def run(
        self,
        name: str,
        names: Sequence[bytes],
        arguments: Sequence[Argument | _Repeated],
        *,
        call: str,
        key: str,
        ttl_ms: int | None,
        give_up_at: Moment | None = None,
    ) -> tuple[Moment, list[Any]]:
        """Run a script by its name, or by its text if the server does not know it.

        Return when the try that was answered was sent, and its answer. Raises ``LeaseUnavailable``, and
        ``ConfigurationError`` if the client waits longer than the ttl.
        """
        code = script(name)
        check_wait(self._set_wait_ms, ttl_ms, key=key, advice=_SHORTER_WAIT)

        def send(number: int, sent: Moment) -> tuple[Moment, list[Any]]:
            client = self._reach(ttl_ms)
            told = [_told(number > 1 if argument is REPEATED else argument) for argument in arguments]
            try:
                return sent, self._send(client, "EVALSHA", code.sha, len(names), *names, *told)
            except NoScriptError:
                return sent, self._send(client, "EVAL", code.text, len(names), *names, *told)

        answer: tuple[Moment, list[Any]] = self._ask(send, call=call, key=key, ttl_ms=ttl_ms, give_up_at=give_up_at)
        return answer

    def check_ttl(self, ttl_ms: int) -> None:
        """Refuse a ttl that is shorter than the wait that the URL or the client sets."""
        check_wait(self._set_wait_ms, ttl_ms, advice=_SHORTER_WAIT)

    def scan(self, pattern: str, *, call: str, place: "Place | None" = None) -> Iterator[bytes]:
        """Find names by SCAN on every primary, each once; never blocks the server for long.

        A name that comes or goes meanwhile may or may not be found. Raises ``LeaseUnavailable``. ``place`` is where to
        begin, and where the search has stopped when it took too long (`incumbent.retry.search_until`).
        """
        place = place or Place()
        seen: set[bytes] = set()
        nodes = list(enumerate(self._ask(lambda *_: _primaries(self._reach()), call=call, key=pattern)))
        begins = place.node % len(nodes)
        rounds = nodes[begins:] + nodes[:begins]
        if place.cursor:
            rounds.append(nodes[begins])  # for what lies before the place
        for number, node in rounds:
            cursor, place.cursor = place.cursor, 0
            while True:
                words = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
                cursor, names = self._ask(
                    lambda *_, node=node, words=words: self._send(node, *words),
                    call=call,
                    key=pattern,
                )
                for name in names:
                    if name not in seen:
                        seen.add(name)
                        yield name
                if search_is_over(self._clock):
                    place.node, place.cursor = (number, cursor) if cursor else ((number + 1) % len(nodes), 0)
                    return
                if not cursor:
                    break
        place.node = 0

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
        return call_with_retry(
            send,
            clock=self._clock,
            call=call,
            key=key,
            ttl_ms=ttl_ms,
            waits_ms=wait_ms(ttl_ms) if self._set_wait_ms is None else self._set_wait_ms,
            errors=_ERRORS,
            classify_error=_classify_error,
            first_try=self._first_try,
            give_up_at=give_up_at,
        )

    def _send(self, client: Any, *words: Any) -> Any:
        """Send one command. If a former primary refuses it after a fail-over, the next try goes to the new one."""
        try:
            try:
                return client.execute_command(*words, NEVER_DECODE=True)
            except self._valkey_errors as error:
                raise _twin(error) from error
        except ReadOnlyError:
            with suppress(AttributeError):  # a cluster's client finds the new primary by itself
                client.connection_pool.disconnect(inuse_connections=False)
            raise
        except AttributeError as error:
            if not hasattr(client, "get_primaries"):
                raise
            # redis-py does not know nodes without slots, and cannot follow the first slot that moves to a new node.
            raise ClusterDownError("CLUSTERDOWN a slot is moving to a node that has none yet") from error

    def _reach(self, ttl_ms: int | None = None) -> Client:
        """Return the client, made at its first use. Check once whether its server may evict leases."""
        client = self._client
        if client is None:
            waits_ms = wait_ms(None if self._set_wait_ms is not None else ttl_ms)
            with self._lock:
                if waits_ms not in self._ours:
                    self._ours[waits_ms] = _connect(
                        self._url, cluster=self._cluster, waits_ms=waits_ms, credentials=self._credentials
                    )
                client = self._ours[waits_ms]
        if not self._checked:
            memory: dict[str, Any] = {}
            with suppress(ResponseError):  # INFO is not permitted
                memory = _primaries(client)[0].execute_command("INFO", "memory")
            self._checked = True
            _warn_of_eviction(memory)
        return client


def _package(client: object) -> str | None:
    """Return the package of a client: ``redis``, or its fork ``valkey``; ``None`` for neither."""
    of = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    return next((name for name in of if name in ("redis", "valkey")), None)


def _check_client(client: object) -> None:
    """Refuse an object that does not answer single commands: an asyncio client, a pipeline, a pool, a class."""
    command = getattr(client, "execute_command", None)
    kind = f"{type(client).__module__}.{type(client).__name__}"
    if inspect.iscoroutinefunction(command):
        kind = f"an asyncio client ({kind})"
    elif callable(command) and not isinstance(client, type) and _answers(client):
        return
    raise ConfigurationError(
        f"client is {shown(client) if isinstance(client, type) else kind}: give a redis.Redis or a redis.cluster."
        "RedisCluster, or a valkey.Valkey or a valkey.cluster.ValkeyCluster; of a Sentinel that is "
        "sentinel.master_for(...)"
    )


def _answers(client: object) -> bool:
    return not any(base.__name__ in _NO_ANSWERS for base in type(client).__mro__)


def _errors_of_valkey() -> tuple[type[Exception], ...]:
    errors = importlib.import_module("valkey.exceptions")
    return errors.ValkeyError, errors.ValkeyClusterException


def _twin(error: Exception) -> Exception:
    """Return redis-py's equivalent of an error of its fork."""
    for kind in type(error).__mro__:
        twin = getattr(redis.exceptions, kind.__name__.replace("Valkey", "Redis"), None)
        if isinstance(twin, type) and issubclass(twin, (RedisError, RedisClusterException)):
            return twin(*error.args)
    return RedisError(*error.args)


@dataclass(slots=True)
class Place:
    """Where a search of all keys has stopped: at which primary, with which cursor."""

    node: int = 0
    cursor: int = 0


def _primaries(client: Any) -> list[Any]:
    """Return a client for every primary."""
    if hasattr(client, "get_primaries"):
        connection = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
        return [connection(node) for node in client.get_primaries()]
    return [client]


def _told(argument: Any) -> bytes:
    """Encode an argument for a script."""
    match argument:
        case None:
            return b""
        case bool():
            return b"1" if argument else b"0"
        case bytes():
            return argument
        case _:
            return str(argument).encode(errors="backslashreplace")


def _read_url(url: object) -> tuple[str, bool, float | None]:
    """Check a URL. Return it without incumbent's parameter ``cluster``, that parameter, and the wait that it sets.

    No message quotes the URL: it may hold a password.
    """
    if not isinstance(url, str) or not url:
        raise ConfigurationError(f"url must be a str such as redis://host:6379/0, not {type(url).__name__}")
    try:
        scheme, place, path, query, fragment = parts = urlsplit(url)
        _ = parts.port
        if fragment:  # an unescaped # would cut a password there
            raise ValueError  # noqa: TRY301 - the same advice helps
    except ValueError:  # its text may be a piece of the password
        raise ConfigurationError(
            "the Redis URL cannot be read: in user and password, write characters other than letters and digits as %XX"
        ) from None
    parameters = parse_qsl(query, keep_blank_values=True)
    said = [value.lower() for name, value in parameters if name == "cluster"]
    if any(value not in ("true", "false") for value in said):
        raise ConfigurationError(f"the Redis URL says cluster={said[0]!r}; allowed are true and false")
    query = urlencode([(name, value) for name, value in parameters if name != "cluster"])
    rest = urlunsplit((scheme, place, path, query, ""))
    cluster = said[-1:] == ["true"]
    try:
        pool = ConnectionPool.from_url(rest, **_settings(rest, wait_ms()))
        pool.connection_class(**pool.connection_kwargs)  # connects to nothing, but knows its parameters
    except (ValueError, TypeError, RedisError) as cause:
        raise ConfigurationError(
            f"the Redis URL cannot be used ({cause}): it reads redis://user:password@host:port/database, rediss:// "
            "for TLS, with ?cluster=true for a server in cluster mode"
        ) from None
    if cluster and pool.connection_kwargs.get("db"):
        raise ConfigurationError("the Redis URL names a database, but a cluster has only database 0")
    if cluster and scheme == "unix":
        raise ConfigurationError("the Redis URL names a Unix socket, but a cluster is reached by host and port")
    said_wait = any(name == "socket_timeout" for name, _ in parameters)
    return rest, cluster, _in_ms(pool.connection_kwargs["socket_timeout"]) if said_wait else None


def _settings(url: str, waits_ms: int) -> dict[str, Any]:
    """Return the settings of incumbent's clients that differ from redis-py's defaults. The URL's parameters override.

    RESP3 and CLIENT SETINFO are off: they cost three requests for each new connection and bring nothing.
    """
    settings: dict[str, Any] = {
        "socket_timeout": waits_ms / 1_000,
        "socket_connect_timeout": waits_ms / 1_000,
        "protocol": 2,
        "driver_info": None,
    }
    if not url.startswith("unix:"):
        settings["socket_keepalive"] = True
    return settings


def _connect(url: str, *, cluster: bool, waits_ms: int, credentials: CredentialProvider | None) -> Client:
    """Make a client that repeats no command (R9: unknown outcome). For a cluster this requests its slots."""
    settings = _settings(url, waits_ms) | {"retry": Retry(NoBackoff(), 0)}
    if credentials is not None:
        settings["credential_provider"] = credentials
    if not cluster:
        return redis.Redis.from_url(url, **settings)
    try:
        return RedisCluster.from_url(url, **settings)
    except RedisClusterException as error:
        if isinstance(refusal := _refusal(error), _REFUSED):
            raise refusal from error
        raise


def login_from_env(environ: Mapping[str, str]) -> tuple[str, Callable[[], str] | None]:
    """Return the URL that the environment names, and a callable for the password if that is in a secret.

    Raises ``ConfigurationError`` if ``INCUMBENT_REDIS_URL`` is not set.
    """
    url, secret_id = environ.get("INCUMBENT_REDIS_URL"), environ.get("INCUMBENT_REDIS_SECRET_ID")
    if not url:
        raise ConfigurationError("INCUMBENT_PROVIDER is redis, but INCUMBENT_REDIS_URL is not set")
    return url, SecretPassword(secret_id) if secret_id else None


def client_from_env(environ: Mapping[str, str] | None = None) -> Client:
    """Make a client of the server that the environment names, for the application's own data beside the leases.

    It logs in as ``from_env``'s provider does (``INCUMBENT_REDIS_URL``, ``INCUMBENT_REDIS_SECRET_ID``), waits a second
    at most unless the URL sets another timeout, and repeats no command. The caller closes it. Raises
    ``ConfigurationError``; a cluster's client requests its slots at once, and raises redis-py's errors.
    """
    url, password = login_from_env(os.environ if environ is None else environ)
    credentials: CredentialProvider | None = None
    if password is not None:
        url, credentials = _without_login(url, password)
    url, cluster, _ = _read_url(url)
    return _connect(url, cluster=cluster, waits_ms=_CLIENT_WAITS_MS, credentials=credentials)


class _Login(CredentialProvider):
    """A credential provider that calls for the password whenever a connection is made."""

    def __init__(self, user: str | None, password: Callable[[], str]) -> None:
        self._user = user
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._password()
        except ConfigurationError:
            raise
        except Exception as cause:
            raise redis.ConnectionError(f"could not fetch the password: {type(cause).__name__}: {cause}") from cause
        return (self._user, password) if self._user else (password,)


def _without_login(url: str, password: Callable[[], str]) -> tuple[str, CredentialProvider]:
    """Take the user out of a URL whose password comes from a callable: redis-py takes both from one place."""
    parts = urlsplit(url)
    if parts.password:
        raise ConfigurationError("RedisProvider: the URL holds a password, and password= is given too: leave one out")
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=place)), _Login(unquote(parts.username or "") or None, password)


def _waits_ms(client: Any) -> float | None:
    """Return how long a given client waits for an answer; ``None`` if it does not say."""
    try:
        if hasattr(client, "get_primaries"):
            connection: Any = importlib.import_module(f"{_package(client) or 'redis'}.connection").Connection(
                **client.nodes_manager.connection_kwargs
            )
        else:
            pool = client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)  # connects to nothing
        return _in_ms(connection.socket_timeout)
    except (AttributeError, TypeError):
        return None


def _in_ms(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds * 1_000


def _repeats(client: Any) -> bool:
    """Return whether a client repeats commands. A client that does not say counts as repeating."""
    if hasattr(client, "get_primaries"):
        retry = getattr(client, "retry", None)
        return retry is None or _retries(retry) != 0
    try:
        settings = client.connection_pool.connection_kwargs
        retry = settings.get("retry")
    except AttributeError:
        return True
    if retry is not None:
        return _retries(retry) != 0
    return bool(settings.get("retry_on_timeout") or settings.get("retry_on_error"))


def _retries(retry: Any) -> int:
    """Return how often a client repeats a command; the package valkey has the number in a private attribute."""
    count: int = retry.get_retries() if hasattr(retry, "get_retries") else getattr(retry, "_retries", 1)
    return count


def _warn_of_eviction(memory: dict[str, Any]) -> None:
    """Warn of a server that may evict live leases when its memory is short."""
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and memory.get("maxmemory"):
        warnings.warn(
            f"this server's maxmemory-policy is {policy}: when memory is short it evicts live leases and messages, "
            "and two owners may run at once; set it to noeviction",
            RuntimeWarning,
            stacklevel=2,
        )


def _refusal(error: BaseException) -> BaseException:
    """Return the first error that a cluster's client met: the client wraps it, and guesses at the reason."""
    while isinstance(error, RedisClusterException) and (before := error.__cause__ or error.__context__):
        error = before
    return error


def is_odd_record(error: BaseException | None) -> bool:
    """Return whether an error concerns the records of one key, and not the server or other keys."""
    text = str(error)
    if not isinstance(error, ResponseError) or isinstance(error, OutOfMemoryError | ReadOnlyError | NoPermissionError):
        return False
    # A script met a value that no version writes, and Lua raised. The server's errors in a script are named here.
    broken = text.startswith(("user_script:", "Error running script")) and not any(
        word in text for word in ("ACL", "MISCONF", "NOPERM", "OOM", "READONLY", "can't run this command")
    )
    return "WRONGTYPE" in text or broken


def _classify_error(error: Exception) -> tuple[bool, str]:  # noqa: C901 - one line for each kind of error
    """Return whether another try may help after an error, and what to do about it."""
    text = str(error)
    status = str(getattr(error, "status_code", None) or text.partition(" ")[0])
    if isinstance(_refusal(error), _REFUSED):
        return False, (
            "the server refuses these credentials, or they do not permit this: check user, password and ACL "
            f"({acl_rules('<prefix>')})"
        )
    match error:
        case OutOfMemoryError():
            return False, "the server's memory is full: nothing was changed; make room, or raise maxmemory"
        case ReadOnlyError():
            return True, "this server is a replica: give the address of the primary"
        case TryAgainError() | ClusterDownError() | SlotNotCoveredError():
            return True, "the cluster is being rearranged: nothing was changed; try again later"
        case ClusterError() if "TTL exhausted" in text:  # redis-py's error after TRYAGAIN
            return True, "the cluster is being rearranged: nothing was changed; try again later"
        case AskError():
            return False, "this server is a node of a cluster: add cluster=true to the URL, or give a RedisCluster"
        case RedisClusterException() if "cluster mode is not enabled" in text.lower():
            return False, "this server is not in cluster mode: leave cluster=true out of the URL"
        case ResponseError() if "WRONGTYPE" in text:
            return False, (
                "one of this key's names holds a value of another type, which was left as it is: choose another "
                "key_prefix, or remove it"
            )
        case ResponseError() if "OOM" in text:
            return False, "the server's memory is full: nothing was changed; make room, or raise maxmemory"
        case ResponseError():
            return status in _MAYBE_LATER, "the server refused the request: see its message"
        case redis.ConnectionError() | redis.TimeoutError() | RedisClusterException() | OSError():
            return True, (
                "check that the server is up and can be reached from here (address, port, security group; rediss:// "
                "if it requires TLS); the call may have taken effect, and repeating it is safe"
            )
        case _:
            return False, "the client could not send the request or parse the answer: see the cause"
