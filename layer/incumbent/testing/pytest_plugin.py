"""Fixtures for pytest: ``pytest_plugins = ["incumbent.testing.pytest_plugin"]`` in the topmost ``conftest.py``."""

from collections.abc import Iterator

import pytest

from incumbent.providers.memory import MemoryProvider
from incumbent.testing.handlers import FakeContext, stand_in
from incumbent.wakers import Wake


@pytest.fixture
def incumbent_provider(incumbent_wakes: list[Wake]) -> Iterator[MemoryProvider]:
    """A store of the test's own in this process, under every decorated handler, whatever provider that was given."""
    provider = MemoryProvider()
    with stand_in(provider, wakes=incumbent_wakes):
        yield provider


@pytest.fixture
def incumbent_wakes() -> list[Wake]:
    """What Lambda's waker would have sent under `incumbent_provider`, in order."""
    return []


@pytest.fixture
def lambda_context() -> FakeContext:
    """Lambda's context object, for an invocation with a minute left."""
    return FakeContext()
