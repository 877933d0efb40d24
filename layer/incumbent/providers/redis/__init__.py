"""The Redis and Valkey provider: one Lua script per call."""

from incumbent.providers.redis.logins import login_from_env
from incumbent.providers.redis.provider import RedisProvider
from incumbent.providers.redis.server import client_from_env

__all__ = ["RedisProvider", "client_from_env", "login_from_env"]
