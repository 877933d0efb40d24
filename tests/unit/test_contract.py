"""Finding out what a backend can do, and what takes its place when it cannot lease."""

import inspect
import logging
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import redis
import valkey

from incumbent import contract, leased
from incumbent.backends import (
    NoopLeaseProvider,
    is_archive,
    is_control,
    is_lease_provider,
    is_mailbox,
    resolve_lease_provider,
)
from incumbent.contract import Archive, Control, LeaseProvider, Mailbox
from incumbent.errors import ConfigurationError
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.values import Acquisition

PROTOCOLS: dict[type, Any] = {
    LeaseProvider: is_lease_provider,
    Mailbox: is_mailbox,
    Archive: is_archive,
    Control: is_control,
}


def methods_of(protocol: type) -> list[str]:
    """The methods that a Protocol names."""
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_")]


def made_of(methods: list[str], **more: Any) -> Any:
    """An object of a class that knows nothing of ours, with these methods."""
    return SimpleNamespace(**dict.fromkeys(methods, print), **more)


class Foreign:
    """A lease provider from elsewhere: it imports nothing of ours, and says only what it must."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Any:
        """Say who won."""
        return Acquisition(acquired=True, owner=owner)

    def get_lease_owner(self, key: str) -> str | None:
        """Say who owns."""
        return None

    def release_lease(self, key: str, owner: str) -> None:
        """Free."""

    def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Extend."""
        return True

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Pass on."""
        return True


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_provider_is_found_by_its_methods(protocol: type) -> None:
    """Whatever its class."""
    assert PROTOCOLS[protocol](made_of(methods_of(protocol)))
    assert PROTOCOLS[protocol](MemoryProvider())


@pytest.mark.parametrize(
    ("protocol", "missing"), [(protocol, name) for protocol in PROTOCOLS for name in methods_of(protocol)]
)
def test_provider_needs_every_method(protocol: type, missing: str) -> None:
    """All of them, and callable."""
    rest = [name for name in methods_of(protocol) if name != missing]
    assert not PROTOCOLS[protocol](made_of(rest))
    assert not PROTOCOLS[protocol](made_of(rest, **{missing: "a text"}))
    assert not PROTOCOLS[protocol](made_of(rest, **{missing: None}))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [None, "redis", 7, object(), MemoryProvider, Foreign, {}])
def test_what_is_no_provider_is_none(protocol: type, value: object) -> None:
    """A class is not: its instance may be."""
    assert not PROTOCOLS[protocol](value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("provider", [MemoryProvider, RedisProvider, DynamoDBProvider])
def test_provider_takes_what_the_contract_says(provider: type, protocol: type) -> None:
    """Names, order and defaults of the arguments: a call by keyword works with every provider."""
    for name in methods_of(protocol):
        ours = inspect.signature(getattr(provider, name)).parameters
        said = inspect.signature(getattr(protocol, name)).parameters
        assert [(each.name, each.kind, each.default) for each in ours.values()] == [
            (each.name, each.kind, each.default) for each in said.values()
        ], name


def test_rules_are_in_the_contract() -> None:
    """Who implements it reads all of them in one place."""
    assert contract.__doc__ is not None
    for rule in [*(f"R{number}" for number in range(1, 13)), *(f"M{number}" for number in range(1, 11)), "M12"]:
        assert f"\n{rule} " in contract.__doc__, rule


def test_noop_never_says_no() -> None:
    """Every acquire wins, and nobody ever owns: the behaviour of one process that does not lease."""
    noop = NoopLeaseProvider()
    for owner in ("A", "B"):
        answer = noop.acquire_lease("thread-1", owner, 1_000)
        assert (answer.acquired, answer.owner, answer.fence, answer.expires_in_ms) == (True, owner, None, 1_000)
    assert noop.get_lease_owner("thread-1") is None
    assert noop.renew_lease("thread-1", "nobody", 1_000) is True
    assert noop.transfer_lease("thread-1", "nobody", "B", 1_000) is True
    noop.release_lease("thread-1", "nobody")
    assert noop.get_lease_owner("thread-1") is None
    assert is_lease_provider(noop)
    assert not is_mailbox(noop)


def test_noop_validates_all_the_same() -> None:
    """R10: what a store would refuse is seen before there is one."""
    noop = NoopLeaseProvider()
    for refused in (
        lambda: noop.acquire_lease("", "A", 1_000),
        lambda: noop.acquire_lease("k", "A", 0),
        lambda: noop.get_lease_owner(""),
        lambda: noop.release_lease("k", ""),
        lambda: noop.renew_lease("k", "A", True),  # noqa: FBT003 - the wrong kind of number
        lambda: noop.transfer_lease("k", "A", "A", 1_000),
    ):
        with pytest.raises(ConfigurationError):
            refused()


def test_provider_resolves_to_itself() -> None:
    """Ours, and anybody's; without a warning."""
    for provider in (MemoryProvider(), Foreign(), NoopLeaseProvider()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resolve_lease_provider(provider) is provider


def test_backend_may_offer_its_provider() -> None:
    """By get_lease_provider()."""
    provider = Foreign()
    assert resolve_lease_provider(made_of([], get_lease_provider=lambda: provider)) is provider


def test_provider_comes_before_what_it_offers() -> None:
    """A value that leases itself is not asked for another."""
    both = made_of(methods_of(LeaseProvider), get_lease_provider=Foreign)
    assert resolve_lease_provider(both) is both


@pytest.mark.parametrize(
    "backend",
    [object(), made_of([], get_lease_provider=lambda: None), made_of([], get_lease_provider="a text")],
)
def test_backend_that_cannot_lease_is_replaced_with_a_warning(
    backend: object, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, that says whose fault it is, for people who run tests; one log line for those who run functions."""
    with pytest.warns(RuntimeWarning, match=type(backend).__name__) as warned, caplog.at_level(logging.WARNING):
        provider = resolve_lease_provider(backend)
    assert isinstance(provider, NoopLeaseProvider)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "backend",
    [
        *("redis", {}, {"url": "redis://"}, 0, 7, NoopLeaseProvider, b"redis"),
        redis.Redis(),
        type("Mine", (redis.Redis,), {})(),
        type("Mine", (valkey.Valkey,), {})(),
        redis.Redis().pipeline(),
        boto3.client("dynamodb", region_name="eu-central-1"),
        boto3.resource("dynamodb", region_name="eu-central-1").Table("leases"),
        boto3.Session(region_name="eu-central-1"),
        *([MemoryProvider()], (MemoryProvider(),), {MemoryProvider()}, deque([MemoryProvider()])),
        methods_of,
        partial(MemoryProvider),
        cache(methods_of),
        MemoryProvider().acquire_lease,
        redis,
        Path("redis"),
        (MemoryProvider() for _ in range(1)),
    ],
    ids=lambda backend: type(backend).__name__,
)
def test_what_can_only_be_a_mistake_is_refused(backend: object) -> None:
    """A name, settings, a class, a client: a handler under no lease is no answer to that."""
    with pytest.raises(ConfigurationError, match="is not a lease provider"):
        resolve_lease_provider(backend)
    with pytest.raises(ConfigurationError, match="is not a lease provider"):
        leased(key="k", provider=backend)(test_nothing_configured_is_not_a_backend_that_cannot_lease)


async def nothing(*_: object) -> None:
    """Answer with a coroutine."""


class AsyncCall:
    """A callable that answers with a coroutine."""

    async def __call__(self, *_: object) -> None:
        """Answer later."""


@pytest.mark.parametrize("name", sorted({name for protocol in PROTOCOLS for name in methods_of(protocol)}))
@pytest.mark.parametrize("method", [nothing, partial(nothing), AsyncCall()], ids=["function", "partial", "object"])
def test_provider_with_coroutine_methods_is_refused_at_decoration(name: str, method: Any) -> None:
    """Nothing awaits what its methods return: every event would fail."""
    names = [name for protocol in PROTOCOLS for name in methods_of(protocol)]
    backend = made_of([each for each in names if each != name], **{name: method})
    with pytest.raises(ConfigurationError, match=f"{name} is a coroutine function"):
        leased(key="k", provider=backend)(test_nothing_configured_is_not_a_backend_that_cannot_lease)
    with pytest.raises(ConfigurationError, match=f"{name} is a coroutine function"):
        resolve_lease_provider(made_of([], get_lease_provider=lambda: backend))


def test_offer_that_is_a_coroutine_is_refused_at_decoration() -> None:
    """As a method of a provider is."""
    backend = made_of([], get_lease_provider=nothing)
    with pytest.raises(ConfigurationError, match="get_lease_provider is a coroutine function"):
        leased(key="k", provider=backend)(test_nothing_configured_is_not_a_backend_that_cannot_lease)


def test_methods_decide_before_the_class() -> None:
    """A client of a store that has all methods of a provider is one; so is a list, or a callable."""
    methods = {name: lambda *_: None for name in methods_of(LeaseProvider)}
    for base in (redis.Redis, list, AsyncCall):
        provider: Any = type("Mine", (base,), methods)()
        assert resolve_lease_provider(provider) is provider


def test_backend_that_offers_something_else_is_refused() -> None:
    """A broken offer is a mistake, and no lease is no answer to it."""
    broken = made_of([], get_lease_provider=lambda: made_of(["acquire_lease"]))
    with pytest.raises(ConfigurationError, match="lacks"):
        resolve_lease_provider(broken)


def test_nothing_configured_is_not_a_backend_that_cannot_lease() -> None:
    """It is an error that says what to set."""
    # H34: redis-py #621, portalocker #137: the body runs without the lease.
    with pytest.raises(ConfigurationError, match="INCUMBENT_PROVIDER"):
        resolve_lease_provider(None)


# Each method with arguments of which none is wrong, and, of each argument, what is.
RIGHT: Mapping[str, Mapping[str, Any]] = {
    "acquire_lease": {"key": "k", "owner": "A", "ttl_ms": 30_000},
    "get_lease_owner": {"key": "k"},
    "release_lease": {"key": "k", "owner": "A"},
    "renew_lease": {"key": "k", "owner": "A", "ttl_ms": 30_000},
    "transfer_lease": {"key": "k", "from_owner": "A", "to_owner": "B", "ttl_ms": 30_000},
    "claim": {"key": "k", "owner": "A", "ttl_ms": 30_000, "message": None, "ticket": "T", "after_ms": 0},
    "settle": {"key": "k", "owner": "A", "ttl_ms": 30_000, "next_owner": "B", "hold_ms": 0, "fence": 1},
    "beat": {"key": "k", "owner": "A", "ttl_ms": 30_000, "fence": 1},
    "take": {"key": "k", "owner": "A", "ttl_ms": 30_000, "fence": 1},
    "peek": {"key": "k"},
    "orphans": {"limit": 1},
    "find": {"key": "k", "message_id": "m"},
    "dead_letters": {"key": "k", "limit": 1},
    "redrive": {"key": "k", "message_id": "m"},
    "purge": {"key": "k", "message_id": "m"},
    "show": {"key": "k"},
    "keys": {"limit": 1},
    "stop": {"key": "k", "fence": 1, "reason": "why"},
    "watch": {"key": "k", "owner": "A", "fence": 1},
    "hold": {"key": "k", "for_ms": 1, "reason": "why"},
    "resume": {"key": "k"},
    "cancel": {"key": "k", "message_id": "m"},
}
WRONG: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(
        ("key", "owner", "from_owner", "to_owner", "next_owner", "ticket", "message_id"), ("", 7, "\ud800")
    ),
    "ttl_ms": (0, 86_400_001, True),
    "fence": (-1, 2**63, True),
    "limit": (-1, 1_000_000_001, True),
    "reason": (7, "x" * 1_025),
    "for_ms": (0, 14 * 86_400_000 + 1),
    "hold_ms": (-1, 14 * 86_400_000 + 1),
    "after_ms": (-1, 14 * 86_400_000 + 1),
}


class Silent:
    """In place of what sends requests: none may be sent."""

    def __getattr__(self, name: str) -> Any:
        """Fail."""
        raise AssertionError(name)


def silent(kind: type) -> Any:
    """A provider that must send nothing."""
    if kind in (MemoryProvider, NoopLeaseProvider):
        return kind()
    provider: Any
    if kind is RedisProvider:
        provider = RedisProvider(url="redis://localhost")
        provider._server = Silent()  # noqa: SLF001 - in its place
        return provider
    provider = DynamoDBProvider(table_name="table", client=boto3.client("dynamodb", region_name="eu-central-1"))
    provider._steps.table = Silent()  # noqa: SLF001 - in its place
    return provider


@pytest.mark.parametrize(
    ("kind", "name", "argument"),
    [
        (kind, name, argument)
        for kind in (MemoryProvider, RedisProvider, DynamoDBProvider, NoopLeaseProvider)
        for name, given in RIGHT.items()
        for argument in given
        if argument in WRONG and hasattr(kind, name)
    ],
)
def test_argument_that_is_wrong_is_refused_before_any_request(kind: type, name: str, argument: str) -> None:
    """R10: by every method, also by those whose answer is read later."""
    provider = silent(kind)
    for wrong in WRONG[argument]:
        with pytest.raises(ConfigurationError):
            getattr(provider, name)(**{**RIGHT[name], argument: wrong})


def test_every_method_is_in_the_table() -> None:
    """A method that joins the contract joins it."""
    assert {name for protocol in PROTOCOLS for name in methods_of(protocol)} == {*RIGHT}
