"""``incumbent doctor`` as an operator meets it: at a terminal, and through the sweeper's function."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from incumbent.cli import main
from incumbent.local import FunctionSpec, LocalLambda
from incumbent.testing.servers import AWS_ENVIRONMENT, ValkeyServer

Run = Callable[..., tuple[int, list[str]]]
CODE = Path(__file__).parents[2] / "functions" / "sweeper"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; return its exit code and its lines."""

    def run(*words: str) -> tuple[int, list[str]]:
        code = main(["doctor", *words])
        out, err = capsys.readouterr()
        return code, (out or err).splitlines()

    return run


@pytest.fixture
def prefix(valkey_server: ValkeyServer) -> Iterator[str]:
    """A prefix of the test's own, of which nothing is left."""
    prefix = f"doctor-{uuid.uuid4().hex[:8]}"
    yield prefix
    bare = redis.Redis.from_url(valkey_server.url)
    assert bare.keys(f"*{prefix}*") == []
    bare.close()


def test_each_check_is_a_line(run: Run, valkey_server: ValkeyServer, prefix: str) -> None:
    """Status, name, what was found, what to do; warnings are no failure to a script."""
    code, lines = run("--provider", "redis", "--redis-url", valkey_server.url, "--key-prefix", prefix)
    assert code == 0
    assert lines[0] == "ok           timings: ttl 30,000 ms, renewed every 10,000 ms"
    assert any(line.startswith("warning      persistence: AOF is off; replicas: 0; ") for line in lines)
    assert lines[-1] == "not checked  sweeper: no sweeper is named; name its function with --sweeper"
    assert {line[:11].strip() for line in lines} == {"ok", "warning", "not checked"}


def test_each_check_is_an_object_for_programs(run: Run, valkey_server: ValkeyServer, prefix: str) -> None:
    """The same, one JSON object a line."""
    code, lines = run("--json", "--provider", "redis", "--redis-url", valkey_server.url, "--key-prefix", prefix)
    objects = [json.loads(line) for line in lines]
    assert code == 0
    assert objects[0] == {
        "name": "timings",
        "status": "ok",
        "found": "ttl 30,000 ms, renewed every 10,000 ms",
        "advice": "",
    }


def test_failure_and_wrong_use_are_exit_codes(run: Run) -> None:
    """1 when something has failed, 2 when no store is named."""
    code, lines = run("--provider", "redis", "--redis-url", "redis://127.0.0.1:1/0")
    assert code == 1
    assert [line for line in lines if line.startswith("failed       store: ")]
    assert run()[0] == 2
    code, lines = run("--through", "shop-sweeper", "--table", "leases")
    assert code == 2
    assert "--through checks the store of that function" in lines[0]


@pytest.fixture
def deployed(valkey_server: ValkeyServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLambda]:
    """The sweeper's function, with a store that the terminal does not know."""
    environment = {
        **AWS_ENVIRONMENT,
        "INCUMBENT_PROVIDER": "redis",
        "INCUMBENT_REDIS_URL": valkey_server.url,
        "INCUMBENT_KEY_PREFIX": prefix,
    }
    sweeper = FunctionSpec(
        logical_id="SweeperFunction",
        name="shop-sweeper",
        handler="incumbent.sweeper.handler",
        code=CODE,
        path=(CODE,),
        timeout_ms=60_000,
        environment=environment,
    )
    with LocalLambda([sweeper]) as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", cloud.url)
        yield cloud


def test_sweeper_function_checks_the_store_from_where_it_runs(run: Run, deployed: LocalLambda) -> None:
    """And whether its role may wake the functions; the rest is asked with the terminal's rights."""
    code, lines = run("--through", "shop-sweeper", "--function", "shop-sweeper", "--function", "shop-gone")
    assert any(line.startswith("ok           calls: acquire, ") for line in lines)
    assert "ok           shop-sweeper: wake: this caller may invoke it" in lines
    assert any(line.startswith("failed       shop-gone: wake: ") for line in lines)
    assert any(line.startswith("not checked  shop-sweeper: schedule: ") for line in lines)
    assert code == 1
    assert [invocation.ok for invocation in deployed.invocations] == [True]


def test_sweeper_function_that_cannot_answer_is_a_failure(run: Run, deployed: LocalLambda) -> None:
    """One that is not there, for instance."""
    code, lines = run("--through", "shop-other")
    assert code == 1
    assert lines[0].startswith("failed       shop-other: doctor: ResourceNotFoundException: ")


def test_sweeper_still_sweeps(deployed: LocalLambda) -> None:
    """For every other event, such as its schedule's."""
    assert deployed.invoke("shop-sweeper", {"source": "aws.events"}).payload["found"] == 0
