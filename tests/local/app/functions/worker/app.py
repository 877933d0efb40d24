"""A worker that owns the key of its messages, and handles, defers or fails as they say."""

from typing import Any

from incumbent import Lease, leased


@leased(key_jmespath="key", message_id_jmespath="message", keyspace="work")
def handler(event: dict[str, Any], context: Any, *, lease: Lease) -> Any:
    """Print what it was woken for."""
    print("worked on", *(message.id for message in lease.messages))
    do = lease.messages[0].event.get("do")
    if do == "fail":
        raise RuntimeError("not today")
    return {"arn": context.invoked_function_arn}
