"""A front door: stores its message for the worker that its event names, or asks another service of AWS."""

from typing import Any

import boto3

from incumbent import send


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Send, or with ``ask`` call that service."""
    if "ask" in event:
        return {"tables": boto3.client(event["ask"]).list_tables()["TableNames"]}
    target = event.get("target", "WorkerFunction")
    sent = send(event["key"], event, message_id=event["message"], target=target, keyspace="work")
    return {"statusCode": 202, "woken": sent.woken}
