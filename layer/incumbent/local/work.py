"""One attempt at an invocation, on its way through a local Lambda."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from incumbent.local.files import parse_json
from incumbent.local.invocations import Invocation, LogLine, Outcome, Pending
from incumbent.local.timers import Timer


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One attempt at an invocation, on its way; what of it changes is guarded by its fleet."""

    pending: Pending
    label: str
    body: bytes
    invoked_arn: str
    trace_id: str
    client_context: str | None
    asynchronous: bool
    sent_at_ms: int
    attempt: int = 1
    started_at_ms: int = 0
    deadline_at_ms: int = 0
    cold_start: bool = False
    deadline: Timer | None = None
    timed_out: bool = False
    answered: bool = False
    unread: bool = False
    logs: list[LogLine] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The same for every attempt."""
        return self.pending.request_id

    def ended(
        self,
        *,
        function: str,
        environment: str,
        log_stream: str,
        now_ms: int,
        outcome: Outcome,
        payload: bytes,
        error: Mapping[str, Any] | None,
        retried_in_ms: int | None,
    ) -> Invocation:
        """Return what became of it. ``environment`` and ``log_stream`` are empty if no environment ever had it."""
        return Invocation(
            request_id=self.request_id,
            label=self.label,
            function=function,
            invoked_arn=self.invoked_arn,
            environment=environment,
            log_stream=log_stream,
            asynchronous=self.asynchronous,
            attempt=self.attempt,
            cold_start=self.cold_start,
            sent_at_ms=self.sent_at_ms,
            started_at_ms=self.started_at_ms or now_ms,
            ended_at_ms=now_ms,
            outcome=outcome,
            event=parse_json(self.body),
            payload=parse_json(payload) if payload else None,
            error=error,
            logs=tuple(self.logs),
            retried_in_ms=retried_in_ms,
        )

    def next_attempt(self) -> "Work":
        """Return the same invocation's next attempt."""
        return Work(
            pending=self.pending,
            label=self.label,
            body=self.body,
            invoked_arn=self.invoked_arn,
            trace_id=self.trace_id,
            client_context=self.client_context,
            asynchronous=self.asynchronous,
            sent_at_ms=self.sent_at_ms,
            attempt=self.attempt + 1,
        )
