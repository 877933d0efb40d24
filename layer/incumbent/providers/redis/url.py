"""The address of a server: reading a URL, and the login that it or the environment names."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import redis
from redis.connection import ConnectionPool
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from incumbent.errors import ConfigurationError
from incumbent.providers.redis.clients import in_ms
from incumbent.providers.secrets import SecretPassword
from incumbent.retry import wait_ms


def read_url(url: object) -> tuple[str, bool, float | None]:
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
        pool = ConnectionPool.from_url(rest, **settings(rest, wait_ms()))
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
    return rest, cluster, in_ms(pool.connection_kwargs["socket_timeout"]) if said_wait else None


def settings(url: str, waits_ms: int) -> dict[str, Any]:
    """Return the settings of incumbent's clients that differ from redis-py's defaults. The URL's parameters override.

    RESP3 and CLIENT SETINFO are off: they cost three requests for each new connection and bring nothing.
    """
    found: dict[str, Any] = {
        "socket_timeout": waits_ms / 1_000,
        "socket_connect_timeout": waits_ms / 1_000,
        "protocol": 2,
        "driver_info": None,
    }
    if not url.startswith("unix:"):
        found["socket_keepalive"] = True
    return found


def without_login(url: str, password: Callable[[], str]) -> tuple[str, CredentialProvider]:
    """Take the user out of a URL whose password comes from a callable: redis-py takes both from one place."""
    parts = urlsplit(url)
    if parts.password:
        raise ConfigurationError("RedisProvider: the URL holds a password, and password= is given too: leave one out")
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=place)), _Login(unquote(parts.username or "") or None, password)


def login_from_env(environ: Mapping[str, str]) -> tuple[str, Callable[[], str] | None]:
    """Return the URL that the environment names, and a callable for the password if that is in a secret.

    Raises ``ConfigurationError`` if ``INCUMBENT_REDIS_URL`` is not set.
    """
    url, secret_id = environ.get("INCUMBENT_REDIS_URL"), environ.get("INCUMBENT_REDIS_SECRET_ID")
    if not url:
        raise ConfigurationError("INCUMBENT_PROVIDER is redis, but INCUMBENT_REDIS_URL is not set")
    return url, SecretPassword(secret_id) if secret_id else None


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
