"""The permissions that a user of the server needs. The documentation and the errors take them from here."""

SCRIPTS_RUN = (
    *("del", "get", "hdel", "hget", "hlen", "hmget", "hset", "pexpire", "pttl", "set", "time"),
    *("zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zrevrange", "zscore"),
)
"""The commands that the Lua scripts call. The server checks each against the user's rights."""

COMMANDS = ("eval", "evalsha", "scan", "select", *SCRIPTS_RUN)
"""All commands of a provider. ``select`` is for a URL that names a database other than 0."""

CLUSTER_COMMANDS = ("cluster|slots", "command", "asking")
"""Further commands of the client of a server in cluster mode.

``asking`` is for slots that move to another node. ``command`` is for a ``RedisCluster`` that the caller makes, and for
the doctor: the provider's own client knows where the keys of its scripts are.
"""


def acl_rules(key_prefix: str) -> str:
    """Return the rules for ``ACL SETUSER``, or for an access string of ElastiCache and MemoryDB.

    They suffice for every call, standalone and in cluster mode, and let the user read and write only the provider's
    keys. Add ``on`` and the password.
    """
    keys = (f"~{key_prefix}:lease:*", f"~{{{key_prefix}:lease:*")
    return " ".join([*(f"+{command}" for command in (*COMMANDS, *CLUSTER_COMMANDS)), *keys])
