"""What a user of the server must be allowed to do: named in the documentation and in errors from here."""

SCRIPTS_RUN = (
    *("del", "get", "hdel", "hget", "hlen", "hmget", "hset", "persist", "pexpire", "pttl", "set", "time"),
    *("zadd", "zcard", "zrange", "zrem", "zrevrange", "zscore"),
)
"""The commands that the Lua scripts call: the server checks each against the user's rights."""

COMMANDS = ("eval", "evalsha", "scan", "select", *SCRIPTS_RUN)
"""All commands of a provider. ``select`` is for a URL that names a database other than 0."""

CLUSTER_COMMANDS = ("cluster|slots", "command", "asking")
"""What the client of a server in cluster mode sends besides: ``asking`` while slots move to another node."""


def acl_rules(key_prefix: str) -> str:
    """Return the rules for ``ACL SETUSER``, or for an access string of ElastiCache and MemoryDB.

    They are enough for every call, standalone and in cluster mode, and let the user read and write nothing but the
    provider's keys. ``on`` and the password are not in them.
    """
    keys = (f"~{key_prefix}:lease:*", f"~{{{key_prefix}:lease:*")
    return " ".join([*(f"+{command}" for command in (*COMMANDS, *CLUSTER_COMMANDS)), *keys])
