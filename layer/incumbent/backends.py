"""How a backend is detected by the methods that it has, and the provider that stands in for one that cannot lease."""

import logging
import os
import warnings
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import TypeGuard

from incumbent.contract import Archive, Control, LeaseProvider, Mailbox
from incumbent.errors import ConfigurationError
from incumbent.results import is_async
from incumbent.validation import check_key, check_lease, check_owner, check_transfer, shown
from incumbent.values import Acquisition

_LEASE_METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
_MAILBOX_METHODS = ("claim", "settle", "beat", "take", "peek", "orphans")
_CONTROL_METHODS = ("stop", "watch", "hold", "resume", "cancel", "show", "keys")
_ARCHIVE_METHODS = ("find", "dead_letters", "redrive", "purge")
# A store's own objects are passed to a provider, and are not providers; they have the methods of one of these rows:
_CLIENT_METHODS = (
    ("execute_command",),  # Redis and Valkey
    ("get_paginator", "get_waiter"),  # a boto3 client
    ("get_available_subresources",),  # a boto3 resource, such as a Table
    ("client", "resource"),  # a boto3 session
)
# Neither are these, and callables: factories and classes, which make one.
_MISTAKES = (str, bytes, int, float, os.PathLike, Mapping, Sequence, AbstractSet, Iterator, Coroutine, ModuleType)


def _has(value: object, names: Iterable[str]) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def is_lease_provider(value: object) -> TypeGuard[LeaseProvider]:
    """Return whether a value has all five methods of a lease provider. A class is not a provider; its instance is."""
    return _has(value, _LEASE_METHODS)


def is_mailbox(value: object) -> TypeGuard[Mailbox]:
    """Return whether a value has all six methods of a mailbox."""
    return _has(value, _MAILBOX_METHODS)


def is_control(value: object) -> TypeGuard[Control]:
    """Return whether a value has all seven methods of a control."""
    return _has(value, _CONTROL_METHODS)


def is_archive(value: object) -> TypeGuard[Archive]:
    """Return whether a value has all four methods of an archive."""
    return _has(value, _ARCHIVE_METHODS)


class NoopLeaseProvider:
    """A lease provider that grants everything: every acquire wins, renew and transfer return ``True``, no key is owned.

    It stands in for a backend that cannot lease. It protects nothing.
    """

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Grant the lease, without a fence."""
        check_lease(key, owner, ttl_ms)
        return Acquisition(acquired=True, owner=owner, expires_in_ms=ttl_ms)

    def get_lease_owner(self, key: str) -> str | None:
        """Return ``None``: no key is ever owned."""
        check_key(key)
        return None

    def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""
        check_owner(owner, check_key(key))

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Return ``True``."""
        check_lease(key, owner, ttl_ms)
        return True

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Return ``True``."""
        check_transfer(key, from_owner, to_owner, ttl_ms)
        return True


def check_waits(backend: object, ttl_ms: int) -> None:
    """Refuse a provider whose client may wait longer than a lease of ``ttl_ms`` lasts.

    Only a provider with a method ``check_ttl(ttl_ms)`` is checked; that method raises ``ConfigurationError``.
    """
    check = getattr(backend, "check_ttl", None)
    if check is not None:
        check(ttl_ms)


def check_backend(backend: object) -> None:
    """Refuse a value that cannot be a backend.

    That is a name, a path, settings, a collection, a store's bare client, a module, a class or a function; and a
    provider whose methods are coroutine functions. A value with the methods of a provider is one, whatever its class.
    Raises ``ConfigurationError``.
    """
    for name in ("get_lease_provider", *_LEASE_METHODS, *_MAILBOX_METHODS, *_ARCHIVE_METHODS, *_CONTROL_METHODS):
        if not isinstance(backend, type) and is_async(getattr(backend, name, None)):
            raise ConfigurationError(
                f"{type(backend).__name__}.{name} is a coroutine function: a provider's methods are not async"
            )
    if is_lease_provider(backend) or _has(backend, ("get_lease_provider",)):
        return
    of_a_store = any(_has(backend, methods) for methods in _CLIENT_METHODS)
    if of_a_store or isinstance(backend, _MISTAKES) or callable(backend):
        raise ConfigurationError(
            f"{shown(backend)} is not a lease provider: pass an instance, such as RedisProvider(url=...) or "
            "DynamoDBProvider(client=...), or leave provider= out and set INCUMBENT_PROVIDER"
        )


def resolve_lease_provider(backend: object) -> LeaseProvider:
    """Return a backend's lease provider: the backend itself, or what its ``get_lease_provider()`` returns.

    For a backend that cannot lease, warn and return a ``NoopLeaseProvider``. ``None`` is not such a backend: it raises
    a ``ConfigurationError`` that says what to set.
    """
    if backend is None:
        raise ConfigurationError(
            "no lease provider: set INCUMBENT_PROVIDER to redis, dynamodb or memory (none for no leases at all), "
            "or pass provider="
        )
    check_backend(backend)
    if is_lease_provider(backend):
        return backend
    offer = getattr(backend, "get_lease_provider", None)
    if callable(offer):
        offered = offer()
        if is_lease_provider(offered):
            check_backend(offered)
            return offered
        if offered is not None:
            raise ConfigurationError(
                f"{type(backend).__name__}.get_lease_provider() returned a {type(offered).__name__}, which lacks "
                f"some of {', '.join(_LEASE_METHODS)}"
            )
    warnings.warn(
        f"{type(backend).__name__} cannot lease: every invocation runs at once (NoopLeaseProvider)",
        RuntimeWarning,
        stacklevel=2,
    )
    logging.getLogger("incumbent").warning(
        "%s cannot lease: every invocation runs at once (NoopLeaseProvider)", type(backend).__name__
    )
    return NoopLeaseProvider()
