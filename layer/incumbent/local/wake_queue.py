"""The queue of delayed wakes, and what the sweeper's function does with its messages: invoke a target when it is due.

It stands for SQS as far as `incumbent.SqsWaker` needs it: SendMessage with DelaySeconds, in whole seconds.
"""

import hashlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from incumbent.clock import Clock
from incumbent.errors import ConfigurationError, IncumbentError
from incumbent.local.invocations import LogLine, encode
from incumbent.local.ledger import Ledger
from incumbent.local.timers import Timers
from incumbent.wakers import MAX_DELAY_S, Wake

VARIABLE = "INCUMBENT_WAKE_QUEUE_URL"
"""The variable by which functions find the queue; set to nothing, their wakes have no delay."""
SEND_MESSAGE = "AmazonSQS.SendMessage"
"""What SQS' JSON protocol calls the operation."""
WAITED_FOR_MS = 60_000
"""How far ahead a wake may be due for the cloud to be waited for; a later one is dropped when the cloud closes."""
WAITED_FOR_SKIPPING_MS = 86_400_000
"""The same where pauses are skipped."""


class UnknownQueue(Exception):
    """The message is for another queue."""


class WakeQueue:
    """Keeps wakes until they are due, and then passes the resume event to ``invoke``, as an asynchronous invocation."""

    def __init__(
        self,
        url: str,
        invoke: Callable[[str, bytes], object],
        *,
        ledger: Ledger,
        timers: Timers,
        clock: Clock,
        waited_for_ms: int = WAITED_FOR_MS,
    ) -> None:
        """Take the address of the Invoke API, behind which the queue is."""
        self.url = f"{url}/000000000000/incumbent-wakes"
        self._invoke = invoke
        self._ledger = ledger
        self._timers = timers
        self._clock = clock
        self._waited_for_ms = waited_for_ms

    def send(self, request: Mapping[str, Any]) -> Mapping[str, str]:
        """Take a request of SendMessage, and return the answer.

        Raises:
            UnknownQueue: it is for another queue.
            ValueError: it is not a wake, or SQS would refuse its delay.
        """
        if request.get("QueueUrl") != self.url:
            raise UnknownQueue(f"only the queue {self.url} is here")
        body, delay_s = request.get("MessageBody"), request.get("DelaySeconds", 0)
        if not isinstance(body, str) or not isinstance(delay_s, int) or not 0 <= delay_s <= MAX_DELAY_S:
            raise ValueError(f"a message needs a text and a delay of 0 to {MAX_DELAY_S} seconds")
        try:
            wake = Wake.from_queue(body, self._clock.now().wall_ms)
        except IncumbentError as error:
            raise ValueError(str(error)) from error
        if wake is None or wake.target is None:
            raise ValueError("the message is not a wake")
        self._keep(wake, wake.target, delay_s * 1_000)
        digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
        return {"MessageId": str(uuid.uuid4()), "MD5OfMessageBody": digest}

    def _keep(self, wake: Wake, target: str, delay_ms: int) -> None:
        due_in_ms = max(wake.after_ms, delay_ms)  # beyond SQS' limit, the sweeper's function sends the wake on

        def deliver() -> None:
            try:
                self._invoke(target, encode(wake.to_event()))
            except ConfigurationError as error:
                self._ledger.printed(self._line(f"cannot wake {target}: {error}"))

        if due_in_ms <= self._waited_for_ms:
            self._timers.awaited(due_in_ms, deliver)
        else:
            self._timers.after(due_in_ms, deliver)

    def _line(self, text: str) -> LogLine:
        now_ms = self._clock.now().wall_ms
        return LogLine(at_ms=now_ms, function="", environment="", log_stream="", request_id=None, text=text)
