"""Answers what is typed in a row by one run."""

from typing import Any

from incumbent import Lease, leased


@leased(key_jmespath="key", message_id_jmespath="id", deliver="all", debounce_ms=800)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> list[str]:
    """Say what was heard."""
    return [message.event["text"] for message in lease.messages]
