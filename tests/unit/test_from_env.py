"""The provider that the environment names."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from incumbent.backends import NoopLeaseProvider
from incumbent.errors import ConfigurationError
from incumbent.providers import from_env
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider


def test_memory_is_one_for_the_process() -> None:
    """All functions of a process share it, else they would not exclude each other."""
    provider = from_env({"INCUMBENT_PROVIDER": "memory"})
    assert isinstance(provider, MemoryProvider)
    assert from_env({"INCUMBENT_PROVIDER": "memory"}) is provider


@pytest.mark.parametrize("variable", ["AWS_LAMBDA_RUNTIME_API", "AWS_LAMBDA_FUNCTION_NAME"])
def test_memory_is_refused_inside_lambda(variable: str) -> None:
    """Environments share no memory: each would own every key."""
    with pytest.raises(ConfigurationError, match="Lambda"):
        from_env({"INCUMBENT_PROVIDER": "memory", variable: "x"})


def test_none_asks_for_no_leases() -> None:
    """Said aloud, it is no mistake."""
    assert isinstance(from_env({"INCUMBENT_PROVIDER": "none"}), NoopLeaseProvider)


@pytest.mark.parametrize("environ", [{}, {"INCUMBENT_PROVIDER": ""}])
def test_nothing_set_says_what_to_set(environ: Mapping[str, str]) -> None:
    """It is not taken for "none"."""
    with pytest.raises(ConfigurationError, match="INCUMBENT_PROVIDER") as raised:
        from_env(environ)
    for name in ("redis", "dynamodb", "memory", "none"):
        assert name in str(raised.value)


@pytest.mark.parametrize("name", ["Redis", "valkey", " redis", "sqs"])
def test_unknown_name_is_refused(name: str) -> None:
    """With what it was, and what is known."""
    with pytest.raises(ConfigurationError, match="known are redis, dynamodb, memory, none") as raised:
        from_env({"INCUMBENT_PROVIDER": name})
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize(("name", "variable"), [("redis", "INCUMBENT_REDIS_URL"), ("dynamodb", "INCUMBENT_TABLE_NAME")])
@pytest.mark.parametrize("value", [None, ""])
def test_store_without_its_address_is_refused(name: str, variable: str, value: str | None) -> None:
    """It says which variable is missing."""
    environ = {"INCUMBENT_PROVIDER": name} | ({} if value is None else {variable: value})
    with pytest.raises(ConfigurationError, match=variable):
        from_env(environ)


def test_named_store_is_made_without_a_connection() -> None:
    """Nothing is asked before the first call."""
    redis = from_env({"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": "redis://nowhere.invalid:1/0"})
    assert isinstance(redis, RedisProvider)
    dynamodb = from_env({"INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": "no-such-table"})
    assert isinstance(dynamodb, DynamoDBProvider)


def test_environment_of_the_process_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the call, not at import."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "none")
    assert isinstance(from_env(), NoopLeaseProvider)
    monkeypatch.delenv("INCUMBENT_PROVIDER")
    with pytest.raises(ConfigurationError):
        from_env()


def test_only_the_store_that_is_used_is_paid_for() -> None:
    """Importing the package, the memory provider and the choice of providers loads no store's client."""
    code = (
        "import sys, incumbent, incumbent.providers, incumbent.providers.memory;"
        "print([name for name in ('redis', 'boto3', 'botocore') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
