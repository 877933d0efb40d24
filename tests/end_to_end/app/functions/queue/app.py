"""Takes one record of a queue at a time; its message id is the record's."""

from typing import Any

from incumbent import leased


@leased(key_jmespath="powertools_json(Records[0].body).order_id")
def handler(event: dict[str, Any], context: object) -> str:
    """Say which record it was."""
    return str(event["Records"][0]["messageId"])
