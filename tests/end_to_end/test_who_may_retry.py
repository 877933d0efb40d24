"""The table *Who may retry*, every cell: what each source is told, and where its message is afterwards.

Each source by its real sample event, on every store. A row says how it comes about, what the three classes of sources
are told, and what becomes of the message.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

from incumbent import Failure, Lease, LeaseUnavailable, Message, Policy, leased, leased_function
from tests.end_to_end.stores import ObservedStore
from tests.functions.test_sources import ORDER, SAMPLES, Sample, load
from tests.unit.stage import Meddled, RecordingWaker, context, raising

TTL_MS = 30_000
LEFT_MS = 8_000  # of an invocation: less than a renewal takes, so that no heartbeat moves a clock
ONCE = Policy(max_attempts=1)
DONE = {"statusCode": 200, "body": "ran"}

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A sample event: where its key stands, its own name for it, and how its failures are told."""

    name: str
    key: str
    message_id: str | None
    kind: str
    records: EventType | None = None

    def event(self) -> Any:
        """One message of it."""
        event = load(self.name)
        if self.records is not None:
            event["Records"] = event["Records"][:1]
        return event


def _records(name: str, key: str, at: str, records: EventType) -> Source:
    message_id = str(load(name)["Records"][0][at])
    return Source(name=name, key=key, message_id=message_id, kind="record", records=records)


def _kind(sample: Sample) -> str:
    if sample.name == "step-functions":
        return "state_machine"
    return "http" if sample.http else "asynchronous"


BODY = "powertools_json(body).order_id"
SOURCES = [
    *(Source(name=each.name, key=each.key, message_id=each.message_id, kind=_kind(each)) for each in SAMPLES),
    _records("sqs-standard", BODY, "messageId", EventType.SQS),
    _records("sqs-fifo", BODY, "messageId", EventType.SQS),
    _records("kinesis", "kinesis.partitionKey", "eventID", EventType.KinesisDataStreams),
    _records("dynamodb-stream", "dynamodb.Keys.order_id.S", "eventID", EventType.DynamoDBStreams),
]


class Cell:
    """One source's message, and a function that takes it."""

    def __init__(self, observed: ObservedStore, source: Source, **options: Any) -> None:
        self.provider, self.source = observed.provider, source
        self.meddled = Meddled(observed.provider)
        self.do: Callable[[Lease], Any] = lambda _: DONE
        self.clock = observed.clock
        self.keyspace = f"t{next(_numbers)}"
        self.key = f"{self.keyspace}/{ORDER}"
        self.id = source.message_id or "request"
        self.waker = RecordingWaker()
        chosen: dict[str, Any] = {
            "key_jmespath": source.key,
            "keyspace": self.keyspace,
            "provider": self.meddled,
            "waker": None,
            "clock": observed.clock,
            **options,
        }
        if chosen["waker"] == "recording":
            chosen["waker"] = self.waker
        if source.records is None:
            self.handler: Callable[[Any, Any], Any] = self._whole(chosen)
        else:
            self.handler = self._by_record(chosen, BatchProcessor(source.records, raise_on_entire_batch_failure=False))

    def _whole(self, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
        @leased(**options)
        def handler(event: Any, context: object, **more: Lease) -> Any:
            return self.do(more["lease"])

        return handler

    def _by_record(self, options: dict[str, Any], processor: BatchProcessor) -> Callable[[Any, Any], Any]:
        @leased_function(load=dict, **options)
        def apply(record: Any, lambda_context: Any = None, **more: Lease) -> Any:
            return self.do(more["lease"])

        def handler(event: Any, context: Any) -> Any:
            return process_partial_response(event=event, record_handler=apply, processor=processor, context=context)

        return handler

    def told(self) -> str:
        """Bring the message; return what its source is told."""
        event = copy.deepcopy(self.source.event())
        try:
            answer = self.handler(event, context(self.clock, time_left_ms=LEFT_MS, request_id="request"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the source sees a failed invocation
            return f"error {type(error).__name__}"
        match self.source.kind:
            case "http":
                headers = {
                    name.lower() for name in {**answer.get("headers", {}), **answer.get("multiValueHeaders", {})}
                }
                return f"{answer['statusCode']}{' later' if 'retry-after' in headers else ''}"
            case "record":
                return "failure" if answer["batchItemFailures"] else "success"
            case _:
                return "success"

    def afterwards(self) -> str:
        """Where the message is now."""
        state = self.provider.find(self.key, self.id).state
        if state in {"handled", "dead"}:
            return state
        stored = [message for message in self.provider.peek(self.key) if message.id == self.id]
        if not stored:
            return "gone"
        return "promised" if stored[0].promised else "kept"

    def own(self, message: Message | None = None) -> None:
        """Let somebody else own the key, for that message if there is one."""
        if message is None:
            self.provider.acquire_lease(self.key, "somebody", TTL_MS)
        else:
            self.provider.claim(self.key, "somebody", TTL_MS, message)

    @property
    def message(self) -> Message:
        """The message, as somebody else may have brought it."""
        return Message(id=self.id, event={})


# --- how each row comes about


def returns(_: Cell) -> None:
    """The run returns."""


def raises(cell: Cell) -> None:
    """The run raises."""
    cell.do = raising(ValueError("no"))


def returns_what_cannot_be_sent(cell: Cell) -> None:
    """Lambda cannot marshal it; a batch processor does not try."""
    cell.do = lambda _: {"at": datetime(2026, 11, 2, tzinfo=UTC)}


def returns_work_that_is_not_done(cell: Cell) -> None:
    """A generator that a decorator has hidden."""
    cell.do = lambda _: (each for each in [DONE])


def raises_after_a_duplicate(cell: Cell) -> None:
    """While it runs, the message comes once more and is told that it is safe; then the run raises."""

    def do(_: Lease) -> None:
        assert cell.told() in {"202", "success"}
        raise ValueError("no")

    cell.do = do


def defers(cell: Cell) -> None:
    """The run cannot finish."""
    cell.do = lambda lease: lease.defer()


def is_routed(cell: Cell) -> None:
    """Somebody owns the key."""
    cell.own()


def comes_behind_older_ones(cell: Cell) -> None:
    """A dead owner has left a message."""
    cell.provider.claim(cell.key, "dead", TTL_MS, Message(id="older", event={}), as_ticket=True)
    cell.provider.release_lease(cell.key, "dead")


def is_running(cell: Cell) -> None:
    """The same message runs elsewhere."""
    cell.own(cell.message)


def is_waiting(cell: Cell) -> None:
    """The same message waits behind somebody."""
    cell.own()
    cell.provider.claim(cell.key, "sender", TTL_MS, cell.message)


def was_handled(cell: Cell) -> None:
    """The same message was handled."""
    cell.own(cell.message)
    cell.provider.settle(cell.key, "somebody", ttl_ms=TTL_MS, handled=[cell.id])


def has_died(cell: Cell) -> None:
    """The same message is a dead letter."""
    cell.own(cell.message)
    failure = Failure(id=cell.id, error="no")
    cell.provider.settle(cell.key, "somebody", ttl_ms=TTL_MS, failed=[failure], policy=ONCE)


def finds_no_room(cell: Cell) -> None:
    """Somebody owns the key, and as many messages are stored as may be."""
    cell.own(Message(id="m0", event={}))


def cannot_claim(cell: Cell) -> None:
    """The store gives no answer."""
    cell.meddled.before["claim"] = raising(LeaseUnavailable("no answer"))


def cannot_settle(cell: Cell) -> None:
    """The store gives no answer any more when the run has ended."""
    cell.meddled.before["settle"] = raising(LeaseUnavailable("no answer"))


def loses_its_lease(cell: Cell) -> None:
    """Somebody else has the key when the run ends."""

    def do(lease: Lease) -> Any:
        assert cell.provider.transfer_lease(cell.key, lease.owner, "thief", TTL_MS)
        return DONE

    cell.do = do


Arrange: TypeAlias = Callable[[Cell], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What each class of sources is told, and where the message is afterwards."""

    how: Arrange
    http: str
    asynchronous: str
    record: str
    afterwards: str | dict[str, str]
    options: dict[str, Any]
    to_state_machine: str | None = None

    @property
    def state_machine(self) -> str:
        """A state machine takes what it is told for a result: as an asynchronous source, but where there is none."""
        return self.to_state_machine or self.asynchronous

    def where(self, kind: str) -> str:
        """Where the message of a class of sources is afterwards."""
        if isinstance(self.afterwards, str):
            return self.afterwards
        return self.afterwards.get(kind, self.afterwards["asynchronous"])

    def __str__(self) -> str:
        """Name the test."""
        said = [value if isinstance(value, str) else name for name, value in self.options.items()]
        return "-".join([self.how.__name__, *said])


def row(  # noqa: D103, PLR0917 - a line of the table
    how: Arrange,
    http: str,
    asynchronous: str,
    record: str,
    afterwards: str | dict[str, str],
    to_state_machine: str | None = None,
    **options: Any,
) -> Row:
    return Row(
        how=how,
        http=http,
        asynchronous=asynchronous,
        record=record,
        afterwards=afterwards,
        options=options,
        to_state_machine=to_state_machine,
    )


BEHIND = {"http": "promised", "asynchronous": "handled", "record": "promised"}
KEPT = {"http": "gone", "state_machine": "gone", "asynchronous": "kept", "record": "kept"}
TABLE = [
    row(returns, "200", "success", "success", "handled"),
    row(raises, "error ValueError", "error ValueError", "failure", "gone"),
    row(raises, "error ValueError", "error ValueError", "failure", KEPT, policy=Policy(on_error="block")),
    row(
        returns_what_cannot_be_sent,
        "error ResultRefused",
        "error ResultRefused",
        "success",
        {"http": "gone", "asynchronous": "gone", "record": "handled"},
    ),
    row(returns_work_that_is_not_done, "error ResultRefused", "error ResultRefused", "failure", "gone"),
    row(raises_after_a_duplicate, "error ValueError", "error ValueError", "failure", "promised"),
    row(defers, "202", "success", "success", "promised"),
    row(is_routed, "202", "success", "success", "promised"),
    row(comes_behind_older_ones, "202", "success", "success", BEHIND, waker="recording"),
    row(is_running, "202", "success", "success", "promised"),
    row(is_waiting, "202", "success", "success", "promised"),
    row(was_handled, "200", "success", "success", "handled", "error DuplicateMessage"),
    row(has_died, "200", "success", "success", "dead", "error DuplicateMessage"),
    row(is_running, "202", "success", "success", "promised", "error LeaseBusy", when_busy="reject"),
    row(is_waiting, "202", "success", "success", "promised", "error LeaseBusy", when_busy="reject"),
    row(is_routed, "409 later", "error LeaseBusy", "failure", "gone", when_busy="reject"),
    row(is_routed, "200", "success", "success", "gone", when_busy="skip"),
    row(finds_no_room, "429 later", "error MailboxFull", "failure", "gone", policy=Policy(max_pending=1)),
    row(returns, "413", "error MessageTooLarge", "failure", "gone", policy=Policy(max_message_bytes=9)),
    row(cannot_claim, "503 later", "error LeaseUnavailable", "failure", "gone"),
    row(cannot_settle, "503 later", "error LeaseUnavailable", "failure", "kept"),
    row(returns, "400", "error LeaseKeyMissing", "failure", "gone", key_jmespath="nothing.there"),
    row(loses_its_lease, "error LeaseLost", "error LeaseLost", "failure", "kept"),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_source_is_told_who_may_retry(observed: ObservedStore, row: Row) -> None:
    """A source retries until it was told "accepted"; from then on the mailbox does (M11, M3)."""
    found, expected = {}, {}
    # A run is much the same on both kinds of DynamoDB: one source of each kind will do for one of them.
    for source in {each.kind: each for each in SOURCES}.values() if observed.name == "dynamodb" else SOURCES:
        cell = Cell(observed, source, **row.options)
        row.how(cell)
        found[source.name] = (cell.told(), cell.afterwards())
        kind = source.kind
        expected[source.name] = (getattr(row, kind), row.where(kind))
    assert found == expected
