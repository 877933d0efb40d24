"""The Redis and Valkey provider: one Lua script a call."""

from incumbent.providers.redis.provider import RedisProvider

__all__ = ["RedisProvider"]
