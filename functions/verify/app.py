"""Run what ``incumbent verify --stack`` sends: a run takes a while, or dies, and writes itself into a journal.

It is deployed with the template's parameter ``Verify=true`` only. The journal is a key that is held, so its messages
are kept and not run.
"""

import os
from typing import Any

from incumbent import Lease, cancel, hold, leased, resume, send, show
from incumbent.clock import SYSTEM_CLOCK

KEYSPACE = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "verify")
JOURNAL_LIVES_MS = 60 * 60_000
MAX_RUN_MS = 10_000


def is_about_the_journal(event: Any) -> bool:
    """Return whether an event is a request of the command, and not a message."""
    return "journal" in event


# With drain_ms=0 an invocation runs its own message only, and hands the others to one that it wakes.
@leased(key_jmespath="key", message_id_jmespath="id", keyspace=KEYSPACE, unless=is_about_the_journal, drain_ms=0)
def handler(event: dict[str, Any], context: Any, *, lease: Lease | None) -> Any:
    """Run a message: take ``ms`` milliseconds, and end the process if it is to die at its first attempt."""
    if lease is None:
        return answer(event["journal"], event["do"])
    if "ran" in event:  # from the journal of a command that was killed, whose hold is over
        return {}
    began_ms = SYSTEM_CLOCK.now().wall_ms
    SYSTEM_CLOCK.sleep_ms(min(event["ms"], MAX_RUN_MS))
    if event.get("dies") and lease.attempt == 1:
        os._exit(1)
    ran = {
        "key": event["key"],
        "id": event["id"],
        "fence": lease.fence,
        "attempt": lease.attempt,
        "request_id": context.aws_request_id,
        "began_ms": began_ms,
        "ended_ms": SYSTEM_CLOCK.now().wall_ms,
    }
    send(event["run"], {"ran": ran}, message_id=f"{event['id']}@{lease.fence}", keyspace=KEYSPACE, waker=None)
    return ran


def answer(journal: str, do: str) -> dict[str, Any]:
    """Begin a journal, return what it says, or end it."""
    if do == "begin":
        hold(journal, for_ms=JOURNAL_LIVES_MS, reason="incumbent verify", keyspace=KEYSPACE)
        return {"began": journal}
    said = show(journal, events=True, keyspace=KEYSPACE).waiting
    if do == "end":
        for message in said:
            cancel(journal, message.id, keyspace=KEYSPACE)
        resume(journal, keyspace=KEYSPACE, waker=None)
    return {"runs": [message.event["ran"] for message in said]}
