"""Logging in: the password of a callable or a secret, and what is done when the server refuses it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import redis
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from incumbent.errors import ConfigurationError
from incumbent.providers.secrets import SecretPassword


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
        self._given = threading.local()  # the password that this thread's connection has sent last

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._password()
        except ConfigurationError:
            raise
        except Exception as cause:
            raise redis.ConnectionError(f"could not fetch the password: {type(cause).__name__}: {cause}") from cause
        self._given.password = password
        return (self._user, password) if self._user else (password,)

    def refused(self) -> bool:
        """Return whether another password may be had now that the last one was refused."""
        return isinstance(self._password, SecretPassword) and self._password.refused(self._given.password)


class _Persistent:
    """A connection that logs in once more if its password was refused and the secret may hold a newer one."""

    credential_provider: Any

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's
        connect: Callable[[bool], None] = super().on_connect_check_health  # type: ignore[misc]
        try:
            connect(check_health)
        except AuthenticationError:
            if not self.credential_provider.refused():
                raise
            connect(check_health)


class _PersistentConnection(_Persistent, Connection):
    pass


class _PersistentTLS(_Persistent, SSLConnection):
    pass


class _PersistentSocket(_Persistent, UnixDomainSocketConnection):
    pass


_KINDS: Mapping[type, type] = {
    Connection: _PersistentConnection,
    SSLConnection: _PersistentTLS,
    UnixDomainSocketConnection: _PersistentSocket,
}


class LoginPool(ConnectionPool):
    """Connections whose password may change while they are used."""

    def __init__(self, connection_class: type = Connection, **settings: Any) -> None:
        super().__init__(connection_class=_KINDS[connection_class], **settings)
