"""Clients that the caller gives: which are accepted, and what they do by themselves."""

import importlib
import inspect
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
from redis.cluster import RedisCluster

from incumbent.errors import ConfigurationError
from incumbent.validation import shown

if TYPE_CHECKING:
    from valkey import Valkey
    from valkey.cluster import ValkeyCluster

    Client: TypeAlias = redis.Redis | RedisCluster | Valkey | ValkeyCluster
else:
    Client = redis.Redis | RedisCluster  # the package valkey is loaded by its users, if there are any

# Classes of both packages that take a command and do not return its answer.
_NO_ANSWERS = frozenset({"Pipeline", "ClusterPipeline", "PubSub", "ClusterPubSub", "Sentinel"})


def package(client: object) -> str | None:
    """Return the package of a client: ``redis``, or its fork ``valkey``; ``None`` for neither."""
    of = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    return next((name for name in of if name in ("redis", "valkey")), None)


def check_client(client: object) -> None:
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


def is_cluster(client: Any) -> bool:
    """Return whether a client is one of a server in cluster mode."""
    return hasattr(client, "get_primaries")


def waits_ms(client: Any) -> float | None:
    """Return how long a given client waits for an answer; ``None`` if it does not say."""
    try:
        if is_cluster(client):
            connection: Any = importlib.import_module(f"{package(client) or 'redis'}.connection").Connection(
                **client.nodes_manager.connection_kwargs
            )
        else:
            pool = client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)  # connects to nothing
        return in_ms(connection.socket_timeout)
    except (AttributeError, TypeError):
        return None


def in_ms(seconds: float | None) -> float:
    """Return a timeout in milliseconds; infinity for none."""
    return math.inf if seconds is None else seconds * 1_000


def repeats(client: Any) -> bool:
    """Return whether a client repeats commands. A client that does not say counts as repeating."""
    if is_cluster(client):
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


def primaries_now(client: Any) -> dict[str, Any]:
    """Return a client for every primary by its address, empty outside cluster mode. Ask for the cluster's nodes before.

    A cluster's client learns of a promoted replica, a new primary or a moved slot only by commands that it routes
    itself, which those to a given primary are not.
    """
    if not is_cluster(client):
        return {"": client}
    client.nodes_manager.initialize()
    connection = getattr(client, "get_redis_connection", None) or client.get_valkey_connection
    return {node.name: connection(node) for node in client.get_primaries()}
