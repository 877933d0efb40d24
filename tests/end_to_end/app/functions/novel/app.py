"""Writes one long answer, page by page, over as many invocations as it takes."""

import os
import time
from pathlib import Path
from typing import Any

from incumbent import Lease, Message, leased

PAGES = 16
TAKES_MS = 50


def published(message: Message, result: Any) -> None:
    """Print the answer, as a worker would post it."""
    print(f"published {result} for {message.id}", flush=True)


@leased(key_jmespath="key", message_id_jmespath="id", stop_before_ms=9_800, on_result=published)
def handler(event: dict[str, Any], context: object, *, lease: Lease) -> Any:
    """Go on with what is written, and stop in time."""
    draft = Path(os.environ["DRAFTS"]) / lease.key
    pages = draft.read_text() if draft.exists() else ""
    while len(pages) < PAGES:
        if lease.stop:
            return lease.defer()
        time.sleep(TAKES_MS / 1_000)
        pages += "x"
        draft.write_text(pages)
    return pages
