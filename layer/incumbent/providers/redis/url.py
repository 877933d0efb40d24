"""The address of a server: reading a URL, or several of one cluster."""

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass
from incumbent.providers.redis.clients import in_ms
from incumbent.retry import wait_ms

_UNREADABLE = (
    "the Redis URL cannot be read: in user and password, write characters other than letters and digits as %XX"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A server, or the seeds of a cluster: those of its nodes that a client asks for all the others.

    ``url`` is redis-py's, of the first seed. ``set_wait_ms`` is the wait for an answer that the URL sets, if any.
    """

    url: str
    seeds: tuple[tuple[str, int], ...]
    cluster: bool
    set_wait_ms: float | None


def one_url(url: object) -> str:
    """Return one URL for several of the same cluster, which differ in host and port only.

    No message quotes a URL: it may hold a password.
    """
    if isinstance(url, str) and url:
        return url
    if not isinstance(url, list | tuple) or not url or not all(isinstance(each, str) for each in url):
        raise ConfigurationError(
            f"url must be a str such as redis://host:6379/0, or a list of them, not {type(url).__name__}"
        )
    try:
        parts = [urlsplit(each) for each in url]
    except ValueError:  # its text may be a piece of the password
        raise ConfigurationError(_UNREADABLE) from None
    first = parts[0]
    login = first.netloc.rpartition("@")[0]
    if any(
        each._replace(netloc="") != first._replace(netloc="") or each.netloc.rpartition("@")[0] != login
        for each in parts
    ):
        raise ConfigurationError(
            "the Redis URLs differ in more than host and port: several URLs name nodes of one cluster, with the same "
            "scheme, login, database and parameters"
        )
    hosts = ",".join(each.netloc.rpartition("@")[2] for each in parts)
    return urlunsplit(first._replace(netloc=f"{login}@{hosts}" if login else hosts))


def read_url(url: str) -> ServerAddress:
    """Read a URL, whose hosts are separated by commas.

    No message quotes the URL: it may hold a password.
    """
    try:
        scheme, place, path, query, fragment = urlsplit(url)
        login, at, hosts = place.rpartition("@")
        rests = [(scheme, f"{login}{at}{host.strip()}", path, query, "") for host in hosts.split(",")]
        ports = [urlsplit(urlunsplit(rest)).port for rest in rests]
        empty = len(ports) > 1 and not all(host.strip() for host in hosts.split(","))
        if fragment or empty:  # an unescaped # would cut a password there
            raise ValueError  # noqa: TRY301 - the same advice helps
    except ValueError:  # its text may be a piece of the password
        raise ConfigurationError(_UNREADABLE) from None
    parameters = parse_qsl(query, keep_blank_values=True)
    said = [value.lower() for name, value in parameters if name == "cluster"]
    if any(value not in ("true", "false") for value in said):
        raise ConfigurationError(f"the Redis URL says cluster={said[0]!r}; allowed are true and false")
    query = urlencode([(name, value) for name, value in parameters if name != "cluster"])
    urls = [urlunsplit((scheme, netloc, path, query, "")) for _, netloc, *_ in rests]
    cluster = said[-1:] == ["true"]
    try:
        found = [_connection_settings(each) for each in urls]
    except (ValueError, TypeError, RedisError) as cause:
        raise ConfigurationError(
            f"the Redis URL cannot be used ({cause}): it reads redis://user:password@host:port/database, rediss:// "
            "for TLS, with ?cluster=true for a server in cluster mode, of which several nodes may be named: "
            "redis://host:port,host:port/?cluster=true"
        ) from None
    if len(urls) > 1 and not cluster:
        raise ConfigurationError(
            "the Redis URL names several servers, which are nodes of one cluster: add cluster=true, or leave one"
        )
    if cluster and found[0].get("db"):
        raise ConfigurationError("the Redis URL names a database, but a cluster has only database 0")
    if cluster and scheme == "unix":
        raise ConfigurationError("the Redis URL names a Unix socket, but a cluster is reached by host and port")
    said_wait = any(name == "socket_timeout" for name, _ in parameters)
    return ServerAddress(
        url=urls[0],
        seeds=tuple((str(each.get("host", "localhost")), int(each.get("port", 6379))) for each in found),
        cluster=cluster,
        set_wait_ms=in_ms(found[0]["socket_timeout"]) if said_wait else None,
    )


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


def _connection_settings(url: str) -> dict[str, Any]:
    """Return redis-py's settings for a connection. Raises its errors for a URL that it cannot use."""
    pool = ConnectionPool.from_url(url, **settings(url, wait_ms()))
    pool.connection_class(**pool.connection_kwargs)  # connects to nothing, but knows its parameters
    return dict(pool.connection_kwargs)
