"""What every test finds: an environment that reaches no account, and the stores, each started at its first use."""

import functools
import gc
import os
import shutil
import signal
import warnings
from collections.abc import Iterator

import pytest
from botocore.loaders import JSONFileLoader

from incumbent import addresses, policies, sweeper
from incumbent.providers.memory import provider as memory
from incumbent.testing import servers
from incumbent.testing.redis_cluster import Cluster, redis_cluster
from incumbent.testing.redis_deployments import why_no_redis
from incumbent.testing.servers import AWS_ENVIRONMENT, DynamoDBServer, ValkeyServer, why_no_dynalite
from tests.budgets import SOAKING

# ruff: noqa: SLF001 - what the package keeps for a process is its own
# The suite lies in the package, and its asserts are to say as much as those of a test file.
pytest.register_assert_rewrite("incumbent.testing.conformance")


# The modules that take longest, which come first, lest one processor waits for the other at the end.
LONGEST = (
    *("faults/test_lost_replies", "conformance/test_dynamodb", "local/test_cli", "verify/test_verify"),
    *("end_to_end/test_every_store", "unit/test_dynamodb_provider", "conformance/test_redis", "crashes/test_matrix"),
    *("end_to_end/test_recovery", "linearizability/test_histories", "interleavings/test_interleavings"),
    *("local/test_pages", "lifecycle/test_timeouts", "lifecycle/test_freeze", "faults/test_clusters"),
    *("end_to_end/test_fuzz", "build/test_built", "build/test_benchmarks", "faults/test_kills", "unit/test_doctor"),
    *("linearizability/test_calls_between_requests", "simulation/test_simulation", "crashes/test_long_day"),
)


def why_no_chromium() -> str | None:
    """Why no page can be shown here, for people to read; None when it can."""
    return None if shutil.which("chromium") else "it is not on PATH: Debian's package `chromium` puts it there"


def pytest_configure() -> None:
    """Refuse to run without a server where it was said that it must be there; collect no garbage until all is found."""
    gc.disable()  # what is imported and collected stays
    # The background jobs of a shell ignore Ctrl-C, and so would all that the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, reason in (("dynalite", why_no_dynalite()), ("Redis", why_no_redis()), ("Chromium", why_no_chromium())):
        variable = f"INCUMBENT_REQUIRE_{name.upper()}"
        if reason is not None and os.environ.get(variable) == "1":
            raise pytest.UsageError(f"{variable} is 1, but {name} cannot be started: {reason}")


def pytest_report_header() -> list[str]:
    """Say at the top of a run what it leaves out."""
    servers = {
        "dynalite, the second implementation of DynamoDB": why_no_dynalite(),
        "Redis, beside Valkey, and TLS": why_no_redis(),
        "Chromium, which shows the page of a replay": why_no_chromium(),
    }
    return [f"left out: {name}: {reason}" for name, reason in servers.items() if reason is not None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first."""
    ranks = {f"tests/{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_collection_finish() -> None:
    """Keep the tests themselves out of each later collection of garbage, and let there be fewer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def environment_without_an_account() -> Iterator[None]:
    """Credentials that open nothing, and none of our own settings from outside, for the whole run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("AWS_", "INCUMBENT_")):
                patch.delenv(name)
        for name, value in AWS_ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def service_models_read_once() -> Iterator[None]:
    """Each session of boto3 reads DynamoDB's model, which takes longer than most tests."""
    read = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


@pytest.fixture(autouse=True)
def new_process() -> None:
    """Forget what the package keeps for the life of a process, so that no test depends on those before it."""
    for cached in (
        memory._process_memory,
        addresses.provider_from_env,
        addresses.auto_waker,
        sweeper._from_env,
        sweeper._waker,
        sweeper._later_waker,
    ):
        cached.cache_clear()
    policies._SEEN_OF_ENVIRONMENTS.clear()


@pytest.fixture
def connections_that_redis_py_drops() -> Iterator[None]:
    """Let redis-py's client of a cluster drop the connections to a node that has gone, without closing them.

    Those of earlier tests are collected before the test, and its own after it.
    """

    def collect() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    collect()
    yield
    collect()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    """A Valkey that all tests share; each uses keys of its own."""
    with servers.valkey() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[ValkeyServer]:
    """A Valkey in cluster mode that all tests share; each uses keys of its own."""
    with servers.valkey(cluster=True) as server:
        yield server


@pytest.fixture(scope="session")
def three_primaries() -> Iterator[Cluster]:
    """A Redis cluster of three primaries and three replicas that tests share which leave it as it is."""
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def moto_server() -> Iterator[DynamoDBServer]:
    """moto behind one lock, which all tests share; each makes a table of its own."""
    with servers.locked_moto() as server:
        yield server


@pytest.fixture(scope="session")
def dynalite_server() -> Iterator[DynamoDBServer]:
    """A dynalite that all tests share; each makes a table of its own."""
    with servers.dynalite() as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb_server(request: pytest.FixtureRequest) -> Iterator[DynamoDBServer]:
    """A DynamoDB that returns the old item with a refusal, as AWS does: dynalite, or the slower moto in a soak."""
    if SOAKING or why_no_dynalite() is not None:
        yield request.getfixturevalue("moto_server")
    else:
        with servers.dynalite(tells_old=True) as server:
            yield server
