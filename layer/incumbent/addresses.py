"""Which store, key and function a call from outside of a run means: by its arguments, else by the environment."""

import functools
import os
from typing import Any, Protocol, cast

from incumbent import observe, powertools, providers
from incumbent.backends import is_mailbox, resolve_lease_provider
from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import LeaseProvider, Mailbox
from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass
from incumbent.keyspaces import check_keyspace, full_key
from incumbent.stand_in import STAND_IN, clock_in_force
from incumbent.validation import flag
from incumbent.wakers import Waker, waker_from_env


class LeasingMailbox(LeaseProvider, Mailbox, Protocol):
    """A provider that keeps messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A key in a store. ``full_key`` is the provider's; ``target`` is the function that was named."""

    mailbox: LeasingMailbox
    full_key: str
    keyspace: str
    target: str | None


def address_of(call: str, key: str, *, target: str | None, keyspace: str | None, provider: object | None) -> Address:
    """Find what a call means. ``call`` begins the text of an error, such as ``"send to"``.

    Raises ``ConfigurationError``.
    """
    mailbox, name = mailbox_of(provider), function_of(target)
    space = function_name(name) if keyspace is None else check_keyspace(keyspace)
    if keyspace is None and not space:
        raise ConfigurationError(
            f"{call} key {key!r}: in which keyspace? Give keyspace=, or target= (or INCUMBENT_TARGET), the function "
            "whose name it is",
            key=key,
        )
    return Address(mailbox=mailbox, full_key=full_key(space, key), keyspace=space, target=name)


def mailbox_of(provider: object | None) -> LeasingMailbox:
    """Return the test's provider, the given one, or that of the environment."""
    chosen = STAND_IN.provider or provider
    backend = provider_from_env() if chosen is None else resolve_lease_provider(chosen)
    if not is_mailbox(backend):
        raise ConfigurationError(f"{type(backend).__name__} stores no messages: give a provider with a mailbox")
    return cast("LeasingMailbox", backend)


def refuse_disabled(call: str, key: str, why: str) -> None:
    """Refuse a call that would have no effect since leasing is switched off. A test's stand-in goes before that."""
    if STAND_IN.provider is None and flag(os.environ, "INCUMBENT_DISABLED"):
        raise ConfigurationError(f"{call} key {key!r}: INCUMBENT_DISABLED is set, so {why}; unset it", key=key)


def function_of(target: str | None) -> str | None:
    """Return the named function, else that of the environment."""
    return target or os.environ.get("INCUMBENT_TARGET") or None


def function_name(target: str | None) -> str:
    """Return the name in a target: ``name``, ``account:function:name`` or an ARN, each with or without an alias."""
    match (target or "").split(":"):
        case ["arn", _, "lambda", _, _, "function", name, *_] | [_, "function", name, *_]:
            return name
        case [name, *_]:
            return name
        case _:
            return ""


class Reporter:
    """Tells the observers of the environment what became of one call on a key."""

    def __init__(self, address: Address) -> None:
        """Begin without a fact."""
        self._address = address
        self._observers = (*observe.from_env(os.environ), *powertools.from_env(os.environ))

    def tell(self, fact: observe.FactName, **said: Any) -> None:
        """Report one fact."""
        now_ms = clock_in_force(SYSTEM_CLOCK).now().wall_ms
        more: Any = {"keyspace": self._address.keyspace, **said}
        observe.tell(self._observers, observe.Fact(fact=fact, key=self._address.full_key, t_ms=now_ms, **more))


@functools.cache
def provider_from_env() -> LeaseProvider:
    """Return the environment's provider, made once in each process."""
    return providers.from_env()


@functools.cache
def auto_waker() -> Waker:
    """Return the environment's waker, made once in each process."""
    return waker_from_env(os.environ)
