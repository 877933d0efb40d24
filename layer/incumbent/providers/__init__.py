"""The providers, one module for each store, and the choice among them by the environment."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from incumbent.backends import NoopLeaseProvider
from incumbent.errors import ConfigurationError

if TYPE_CHECKING:
    from incumbent.contract import LeaseProvider

_KNOWN = "redis, dynamodb, memory, none"


def from_env(environ: Mapping[str, str] | None = None) -> "LeaseProvider":
    """Make the provider that the environment names.

    ``INCUMBENT_PROVIDER`` is ``redis`` (with ``INCUMBENT_REDIS_URL``, whose password may be in the secret that
    ``INCUMBENT_REDIS_SECRET_ID`` names), ``dynamodb`` (with ``INCUMBENT_TABLE_NAME``),
    ``memory`` (one process; refused inside Lambda) or ``none`` (no leases at all). ``INCUMBENT_KEY_PREFIX`` keeps
    applications apart (``incumbent`` unless set).

    Raises ``ConfigurationError`` that says what to set. Makes no connection.
    """
    env = os.environ if environ is None else environ
    name = env.get("INCUMBENT_PROVIDER", "")
    prefix = env.get("INCUMBENT_KEY_PREFIX") or "incumbent"
    match name:
        case "redis":
            from incumbent.providers.redis import RedisProvider, login_from_env

            url, password = login_from_env(env)
            return RedisProvider(url=url, password=password, key_prefix=prefix)
        case "dynamodb":
            from incumbent.providers.dynamodb import DynamoDBProvider

            return DynamoDBProvider(table_name=_need(env, "INCUMBENT_TABLE_NAME", name), key_prefix=prefix)
        case "memory":
            if env.get("AWS_LAMBDA_RUNTIME_API") or env.get("AWS_LAMBDA_FUNCTION_NAME"):
                raise ConfigurationError(
                    "INCUMBENT_PROVIDER=memory inside Lambda: environments share no memory, so each would own every "
                    "key; set redis or dynamodb"
                )
            from incumbent.providers.memory import process_memory

            return process_memory()
        case "none":
            return NoopLeaseProvider()
        case "":
            raise ConfigurationError(f"no lease provider: set INCUMBENT_PROVIDER to one of {_KNOWN}, or give provider=")
        case _:
            raise ConfigurationError(f"INCUMBENT_PROVIDER is {name!r}; known are {_KNOWN}")


def _need(env: Mapping[str, str], variable: str, name: str) -> str:
    value = env.get(variable, "")
    if not value:
        raise ConfigurationError(f"INCUMBENT_PROVIDER is {name}, but {variable} is not set")
    return value
