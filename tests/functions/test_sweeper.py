"""The sweeper's function: it sweeps what the environment names, and ends in time."""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from uuid import uuid4

import pytest

from incumbent import Message, Origin, Wake
from incumbent.providers.memory import process_memory
from tests.functions.conftest import Context

TTL_MS = 30_000
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:thread:live"

Load = Callable[..., Sequence[ModuleType]]


@pytest.fixture
def app(load: Load, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The function, as a new environment imports it, on this process's memory."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    (app,) = load("sweeper", "app")
    return app


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
    """Without time to wake anybody it counts, and leaves the rest to the next minute."""
    swept = app.handler({}, Context(aws_request_id="r", remaining_ms=app.END_MS - 1))
    assert (swept["found"], swept["woken"], swept["left"]) == (3, 0, 3)


def test_limit_comes_from_the_environment(app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that fails uses up nothing of it, so here, where no Lambda is, all three are tried."""
    monkeypatch.setenv("SWEEP_LIMIT", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    swept = app.handler({}, Context(aws_request_id="r"))
    assert (swept["found"], swept["failed"], swept["left"]) == (3, 3, 0)


def test_provider_without_messages_is_a_mistake_that_is_told(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweeper that never finds anything would look well."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "none")
    (app,) = load("sweeper", "app")
    with pytest.raises(TypeError, match="stores no messages"):
        app.handler({}, Context(aws_request_id="r"))


def test_wake_of_the_sweeper_is_small() -> None:
    """It carries no ticket: whoever is woken claims the key as anybody would (M8)."""
    event = Wake(key="k", ticket=None, target=ARN).to_event()
    assert event == {"incumbent": {"v": 1, "key": "k", "ticket": None, "hops": 0}}
