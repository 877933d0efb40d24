"""A handler that owns nothing and only tells facts, those that its event asks for."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Tell of one run; ``without`` names a fact that is left out, ``twice`` tells of two runs.

    It waits for the file ``after``; its run makes the file ``makes`` and waits for the file ``until``.
    """
    owner = f"{context.aws_request_id}.x"

    def tell(fact: str, **said: Any) -> None:
        said |= {"t_ms": time.time() * 1_000, "fact": fact, "key": f"app/{event['key']}", "owner": owner}
        said |= {"request_id": context.aws_request_id, "message_id": event["message"]}
        if fact != event.get("without"):
            sys.stderr.write(f"INCUMBENT {json.dumps(said)}\n")

    _wait_for(event.get("after"))
    tell("claimed")
    for _ in range(2 if event.get("twice") else 1):
        tell("run_started", message_ids=[event["message"]])
        if "makes" in event:
            Path(event["makes"]).touch()
        _wait_for(event.get("until"))
        tell("run_ended", message_ids=[event["message"]], outcome="handled")
    tell("released")
    if event.get("raises"):
        raise RuntimeError(event["raises"])
    return {"message": event["message"], "provider": os.environ.get("INCUMBENT_PROVIDER"), "lambda": _is_lambda()}


def _wait_for(file: str | None) -> None:
    while file is not None and not Path(file).exists():
        time.sleep(0.002)


def _is_lambda() -> bool:
    return any(name.startswith("AWS_LAMBDA_") for name in os.environ)
