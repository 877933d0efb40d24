"""The sweeper's function, which is in the layer: it sweeps what the environment names, and ends in time."""

from collections.abc import Iterator
from types import ModuleType
from uuid import uuid4

import pytest

from incumbent import ConfigurationError, Message, Origin, Wake, sweeper
from incumbent.providers.memory import process_memory
from incumbent.testing.servers import AWS_ENVIRONMENT
from tests.functions.conftest import Context

TTL_MS = 30_000
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:thread:live"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The function, as in a new environment, on this process's memory."""
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    caches = (sweeper._from_env, sweeper._waker)  # noqa: SLF001
    for cache in caches:
        cache.cache_clear()
    yield sweeper
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def orphans() -> Iterator[None]:
    """Three keys with a message and no owner; their messages are handled in the end, since the memory is shared."""
    provider, keys = process_memory(), [f"sweeper-test/{uuid4()}" for _ in range(3)]
    for key in keys:
        origin = Origin(keyspace="sweeper-test", target=ARN)
        provider.claim(key, "ticket", TTL_MS, Message(id="m1", event={}), as_ticket=True, origin=origin)
        provider.release_lease(key, "ticket")
    yield
    for key in keys:
        provider.claim(key, "owner", TTL_MS, None)
        provider.settle(key, "owner", ttl_ms=TTL_MS, handled=["m1"])


def test_nothing_to_sweep_is_a_good_pass(app: ModuleType) -> None:
    """Most minutes are."""
    assert app.handler({}, Context(aws_request_id="r"))["found"] == 0


def test_pass_ends_before_the_invocation(app: ModuleType, orphans: None) -> None:
    """Without time it finds one key and wakes none; the next pass continues the search there."""
    swept = app.handler({}, Context(aws_request_id="r", remaining_ms=app.END_MS - 1))
    assert (swept["found"], swept["woken"], swept["remaining"]) == (1, 0, 1)


def test_limit_comes_from_the_environment(app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that fails uses up nothing of it, so here, where no Lambda is, all three are tried."""
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    swept = app.handler({}, Context(aws_request_id="r"))
    assert (swept["found"], swept["failed"], swept["remaining"]) == (3, 3, 0)


def test_provider_without_messages_is_a_mistake_that_is_told(app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweeper that never finds anything would look well."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "none")
    with pytest.raises(ConfigurationError, match="stores no messages"):
        app.handler({}, Context(aws_request_id="r"))


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "9" * 5_000, "many", "1.5", "\u0663"])
def test_limit_that_makes_no_sense_is_refused(app: ModuleType, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """As a setting that cannot work, by its name or as the limit it is."""
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", limit)
    with pytest.raises(ConfigurationError, match=r"INCUMBENT_SWEEP_LIMIT|limit is"):
        app.handler({}, Context(aws_request_id="r"))
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", " ")
    assert app.handler({}, Context(aws_request_id="r"))["found"] == 0


def test_environment_remembers_what_its_passes_woke(
    app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: it backs off from a function that makes no progress, from one invocation to the next."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    swept = [app.handler({}, Context(aws_request_id="r")) for _ in range(3)]
    assert [(each["failed"], each["paused"]) for each in swept] == [(3, 0), (3, 0), (0, 3)]


def test_wake_of_the_sweeper_is_small() -> None:
    """It carries no ticket: whoever is woken claims the key as anybody would (M8)."""
    event = Wake(key="k", ticket=None, target=ARN).to_event()
    assert event == {"incumbent": {"v": 1, "key": "k", "ticket": None, "hops": 0}}
