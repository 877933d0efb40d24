"""Each source, with what it really sends: one owner a key, and answers in the shape that the source understands."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecord
from aws_lambda_powertools.utilities.data_classes.kinesis_stream_event import KinesisStreamRecord

from incumbent import (
    DuplicateMessage,
    Lease,
    LeaseBusy,
    LeaseUnavailable,
    Message,
    Policy,
    current_lease,
    leased,
    leased_function,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from tests.functions.conftest import Context
from tests.unit.stage import Meddled, StepClock

EVENTS = Path(__file__).parents[2] / "events"
ORDER = "order-1001"
KEY = f"orders/{ORDER}"


def load(name: str) -> Any:
    """Read one sample event."""
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample event: where its key stands, and the source's own name for it (none: the request's)."""

    name: str
    key: str
    message_id: str | None
    http: bool = False

    def __str__(self) -> str:
        """Name the test."""
        return self.name

    def event(self) -> Any:
        """The event, a copy of one's own."""
        return load(self.name)


BODY = "powertools_json(body).order_id"
SAMPLES = [
    Sample(
        name="api-gateway-rest",
        key="pathParameters.order_id",
        message_id="QhYBSExampleAEbGw=",
        http=True,
    ),
    Sample(name="api-gateway-http", key="pathParameters.order_id", message_id="QhYA0g3sliAEPvQ=", http=True),
    Sample(name="function-url", key=BODY, message_id="5c0b8b1e-2f43-4c1a-9f0d-1d2f6c9f7a10", http=True),
    Sample(name="alb", key=BODY, message_id="Root=1-69071f92-3f1c2b7a9d5e4c6081a2b3c4", http=True),
    Sample(
        name="sns",
        key="powertools_json(Records[0].Sns.Message).order_id",
        message_id="95df01b4-ee98-5cb9-9903-4c221d41eb5e",
    ),
    Sample(name="eventbridge", key="detail.order_id", message_id="6a7e8feb-b491-4cf7-a9f1-bf3703467718"),
    Sample(name="step-functions", key="input.order_id", message_id=None),
    Sample(name="invoke", key="order_id", message_id=None),
]
HTTP = [sample for sample in SAMPLES if sample.http]
OTHERS = [sample for sample in SAMPLES if not sample.http]


@pytest.fixture
def clock() -> StepClock:
    """A clock that only the test moves."""
    return StepClock()


@pytest.fixture
def provider(clock: FakeClock) -> MemoryProvider:
    """A store that is empty."""
    return MemoryProvider(clock=clock)


class Orders:
    """A handler of orders for one source, and what it saw."""

    def __init__(self, sample: Sample, provider: object, clock: FakeClock, **options: Any) -> None:
        """Decorate it as a user would."""
        self.sample = sample
        self.leases: list[Lease] = []
        self.events: list[Any] = []
        self.meanwhile: Callable[[], object] | None = None
        self.raises: Exception | None = None
        chosen: dict[str, Any] = {"key_jmespath": sample.key, "waker": None, **options}

        @leased(provider=provider, keyspace="orders", clock=clock, **chosen)
        def handler(event: Any, context: object, *, lease: Lease) -> Any:
            assert current_lease() is lease
            self.leases.append(lease)
            self.events.append(event)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            if self.raises is not None:
                raise self.raises
            return {"statusCode": 200, "body": "ran"}

        self._handler: Any = handler

    def __call__(self, event: Any, request_id: str = "request-1") -> Any:
        """Invoke it; what it answers goes through JSON, as the runtime client sends it."""
        return json.loads(json.dumps(self._handler(event, Context(aws_request_id=request_id))))


def renamed(sample: Sample, event: Any) -> Any:
    """The same event as another message of its source."""
    text = json.dumps(event)
    return json.loads(text if sample.message_id is None else text.replace(sample.message_id, "another-message"))


def shape(sample: Sample, answer: Any, status: int) -> dict[str, Any]:
    """Check that an answer is one that this HTTP source takes; return its body."""
    assert answer["statusCode"] == status
    assert {name.lower(): value for name, value in answer["headers"].items()}["content-type"] == "application/json"
    if sample.name in {"alb", "api-gateway-rest"}:
        assert answer["isBase64Encoded"] is False
    if sample.name == "alb":
        assert answer["statusDescription"].startswith(f"{status} ")
    assert isinstance(answer["body"], str)
    return dict(json.loads(answer["body"]))


class TestEverySource:
    """What holds wherever an event comes from."""

    @pytest.mark.parametrize("sample", SAMPLES, ids=str)
    def test_handler_runs_under_the_lease_of_its_key(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """No way in runs the body without it (H34, H35); the answer goes back as it is."""
        orders = Orders(sample, provider, clock)
        owners: list[str | None] = []
        orders.meanwhile = lambda: owners.append(provider.get_lease_owner(KEY))
        assert orders(sample.event()) == {"statusCode": 200, "body": "ran"}
        assert [lease.key for lease in orders.leases] == [ORDER]
        assert owners == [orders.leases[0].owner]
        assert provider.get_lease_owner(KEY) is None

    @pytest.mark.parametrize("sample", SAMPLES, ids=str)
    def test_message_has_the_source_s_own_id(self, sample: Sample, provider: MemoryProvider, clock: FakeClock) -> None:
        """The same on every delivery; where the source has none, the request's, which a retry keeps."""
        orders = Orders(sample, provider, clock)
        orders(sample.event(), "request-9")
        assert orders.leases[0].messages[0].id == (sample.message_id or "request-9")

    @pytest.mark.parametrize("sample", SAMPLES, ids=str)
    def test_second_delivery_runs_nothing(self, sample: Sample, provider: MemoryProvider, clock: FakeClock) -> None:
        """It is answered as a success, with what became of the first."""
        orders = Orders(sample, provider, clock)
        orders(sample.event())
        if sample.name == "step-functions":  # whose result that would be
            with pytest.raises(DuplicateMessage):
                orders(sample.event())
            return
        again = orders(sample.event())
        body = shape(sample, again, 200) if sample.http else again
        assert body["status"] == "handled"
        assert len(orders.leases) == 1

    @pytest.mark.parametrize("sample", SAMPLES, ids=str)
    def test_follow_up_is_accepted_and_runs_next(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Who comes while another one runs is told so at once; its event arrives as it was sent, less credentials."""
        orders = Orders(sample, provider, clock)
        second = renamed(sample, sample.event())
        answers: list[Any] = []
        orders.meanwhile = lambda: answers.append(orders(second, "another-message"))
        orders(sample.event())
        body = shape(sample, answers[0], 202) if sample.http else answers[0]
        assert body == {"status": "accepted", "key": ORDER, "message_id": "another-message"}
        assert [lease.messages[0].id for lease in orders.leases] == [
            sample.message_id or "request-1",
            "another-message",
        ]
        own, followed = orders.events
        assert own == sample.event()
        if not sample.http:
            assert followed == second

    @pytest.mark.parametrize("sample", SAMPLES, ids=str)
    def test_error_of_the_handler_reaches_the_source(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """It goes on as it was raised; nothing stays behind, since the source knows."""
        orders = Orders(sample, provider, clock)
        orders.raises = ValueError("out of stock")
        with pytest.raises(ValueError, match="out of stock"):
            orders(sample.event())
        assert provider.peek(KEY) == ()
        assert provider.get_lease_owner(KEY) is None


class TestHttp:
    """API Gateway's REST and HTTP APIs, function URLs, load balancers: each is answered in its own shape."""

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_busy_under_reject_is_a_conflict(self, sample: Sample, provider: MemoryProvider, clock: FakeClock) -> None:
        """With when to come again; nothing is stored."""
        provider.acquire_lease(KEY, "somebody", 30_000)
        answer = Orders(sample, provider, clock, when_busy="reject")(sample.event())
        assert shape(sample, answer, 409)["error"] == "LeaseBusy"
        assert answer["headers"]["retry-after"] == "1"
        assert provider.peek(KEY) == ()

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_busy_under_skip_is_a_success(self, sample: Sample, provider: MemoryProvider, clock: FakeClock) -> None:
        """It says that nothing was done."""
        provider.acquire_lease(KEY, "somebody", 30_000)
        answer = Orders(sample, provider, clock, when_busy="skip")(sample.event())
        assert shape(sample, answer, 200)["status"] == "skipped"

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_event_without_a_key_is_the_caller_s_mistake(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Coming again would not help, so nothing says when."""
        answer = Orders(sample, provider, clock, key_jmespath="nowhere.to_be_found")(sample.event())
        body = shape(sample, answer, 400)
        assert body["error"] == "LeaseKeyMissing"
        assert body["message"]
        assert "retry-after" not in answer["headers"]

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_full_mailbox_is_too_many_requests(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """The caller keeps its message, and is told to come again."""
        policy = Policy(max_pending=1)
        provider.claim(KEY, "somebody", 30_000, Message(id="first", event={}), policy=policy)
        answer = Orders(sample, provider, clock, policy=policy)(sample.event())
        assert shape(sample, answer, 429)["error"] == "MailboxFull"
        assert answer["headers"]["retry-after"] == "1"

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_event_that_is_too_large_is_refused(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Before anything is stored."""
        answer = Orders(sample, provider, clock, policy=Policy(max_message_bytes=16))(sample.event())
        assert shape(sample, answer, 413)["error"] == "MessageTooLarge"
        assert provider.peek(KEY) == ()

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_store_that_gives_no_answer_is_unavailable(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Not a conflict, and not an accepted."""
        meddled = Meddled(provider)

        def fail() -> None:
            raise LeaseUnavailable("no answer", key=KEY)

        meddled.before["claim"] = fail
        orders = Orders(sample, meddled, clock)
        assert shape(sample, orders(sample.event()), 503)["error"] == "LeaseUnavailable"
        assert orders.leases == []

    @pytest.mark.parametrize("sample", HTTP, ids=str)
    def test_credentials_are_not_stored(self, sample: Sample, provider: MemoryProvider, clock: FakeClock) -> None:
        """What is in the store, and what a follow-up gets, has neither Authorization nor Cookie (H61)."""
        provider.claim(KEY, "somebody", 30_000, Message(id="first", event={}))
        Orders(sample, provider, clock)(sample.event())
        _, stored = provider.peek(KEY)
        kept = json.dumps(stored.event).lower()
        assert "bearer" in json.dumps(sample.event()).lower()
        assert "bearer" not in kept
        assert "cookie" not in kept
        assert stored.event["body"] == sample.event()["body"]

    def test_load_balancer_with_lists_of_headers_gets_lists(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """A target group with multi-value headers takes no others."""
        (sample,) = (each for each in HTTP if each.name == "alb")
        event = sample.event()
        event["multiValueHeaders"] = {name: [value] for name, value in event.pop("headers").items()}
        provider.acquire_lease(KEY, "somebody", 30_000)
        answer = Orders(sample, provider, clock)(event)
        assert answer["multiValueHeaders"] == {"content-type": ["application/json"]}
        assert "headers" not in answer


class TestAsynchronous:
    """Those who ask again when the invocation fails, and are content when it does not."""

    @pytest.mark.parametrize("sample", OTHERS, ids=str)
    def test_busy_under_reject_fails_so_that_the_source_asks_again(
        self, sample: Sample, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Its event is not stored: the source still has it."""
        provider.acquire_lease(KEY, "somebody", 30_000)
        orders = Orders(sample, provider, clock, when_busy="reject")
        with pytest.raises(LeaseBusy, match="'order-1001'"):
            orders(sample.event())
        assert provider.peek(KEY) == ()

    def test_replay_of_an_event_is_a_message_of_its_own(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """EventBridge replays an event under its old id because somebody asked for it: it runs again, once a replay."""
        (sample,) = (each for each in OTHERS if each.name == "eventbridge")
        orders = Orders(sample, provider, clock)
        for name in ("eventbridge", "eventbridge-replayed", "eventbridge-replayed"):
            orders(load(name))
        first, replayed = (lease.messages[0].id for lease in orders.leases)
        assert replayed == f"{first}#replay#{load('eventbridge-replayed')['replay-name']}"

    def test_objects_of_one_name_are_one_key(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """S3's notifications come through EventBridge, and are told apart by its id."""
        sample = Sample(name="s3-via-eventbridge", key="detail.object.key", message_id=None)
        orders = Orders(sample, provider, clock)
        orders(sample.event())
        assert orders.leases[0].key == "incoming/order-1001.json"
        assert orders.leases[0].messages[0].id == sample.event()["id"]


class TestStateMachine:
    """Step Functions: a task waits for its result, and each try is an invocation with a request id of its own."""

    NAME = "join('/', [execution, state, entered_at])"

    class Task(Orders):
        """The task of an order, as docs/lambda.md has it."""

        def __init__(self, provider: object, clock: FakeClock, **options: Any) -> None:
            """Named by its execution, its state, and when that was entered."""
            (sample,) = (each for each in OTHERS if each.name == "step-functions")
            super().__init__(sample, provider, clock, message_id_jmespath=TestStateMachine.NAME, **options)
            self.tries = 0

        def run(self, **changes: Any) -> Any:
            """Invoke it as a try of its own."""
            self.tries += 1
            return self({**self.sample.event(), "retry_count": self.tries - 1, **changes}, f"request-{self.tries}")

    def test_try_after_a_success_is_not_given_something_else_as_its_result(
        self, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """By name, so that the state machine can catch it: {"status": "handled"} would be the state's result."""
        task = self.Task(provider, clock, when_busy="reject")
        task.run()
        with pytest.raises(DuplicateMessage, match="is handled already, and its result is not kept") as caught:
            task.run()
        assert (caught.value.key, caught.value.state) == (ORDER, "handled")
        assert len(task.leases) == 1

    def test_state_that_is_entered_again_runs_again(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """A loop of the state machine: what differs is when it was entered."""
        task = self.Task(provider, clock, when_busy="reject")
        task.run()
        task.run(entered_at="2026-11-02T09:15:31.007Z")
        task.run(execution=task.sample.event()["execution"] + "-again")
        assert len(task.leases) == 3

    def test_try_after_a_failure_runs(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """As its Retry means it."""
        task = self.Task(provider, clock, when_busy="reject")
        task.raises = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            task.run()
        task.raises = None
        assert task.run() == {"statusCode": 200, "body": "ran"}

    def test_try_while_the_first_runs_is_busy(self, provider: MemoryProvider, clock: FakeClock) -> None:
        """The state machine's own timeout was shorter: under "reject" its Retry on LeaseBusy goes on."""
        task = self.Task(provider, clock, when_busy="reject")
        errors: list[type[Exception]] = []

        def again() -> None:
            with pytest.raises(LeaseBusy, match="runs or waits already") as caught:
                task.run()
            errors.append(caught.type)

        task.meanwhile = again
        task.run()
        assert errors == [LeaseBusy]

    @pytest.mark.parametrize("place", ["execution", "context", "whole"])
    def test_state_machine_is_told_by_its_execution(
        self, place: str, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """By the ARN as it stands, or by the context object, as a part of the task's input or as all of it."""
        arn = load("step-functions")["execution"]
        context = {"Execution": {"Id": arn.replace(":execution:", ":express:")}, "State": {"Name": "S"}}
        event = {"execution": {"execution": arn}, "context": {"context": context}, "whole": context}[place]
        orders = Orders(SAMPLES[0], provider, clock, key="k", key_jmespath=None)
        orders(event)
        with pytest.raises(DuplicateMessage):
            orders(event)

    def test_on_busy_may_read_the_result_where_the_run_has_written_it(
        self, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """It makes the answer, as for every source."""
        task = self.Task(provider, clock, on_busy=lambda *_, outcome: f"read what was {outcome.state}")
        task.run()
        assert task.run() == "read what was handled"


STREAMS: dict[str, tuple[EventType, str, str]] = {
    "kinesis": (EventType.KinesisDataStreams, "kinesis.partitionKey", "kinesis.sequenceNumber"),
    "dynamodb-stream": (EventType.DynamoDBStreams, "dynamodb.Keys.order_id.S", "dynamodb.SequenceNumber"),
}


@pytest.mark.parametrize("name", STREAMS)
class TestStreams:
    """Kinesis and DynamoDB streams: record by record, in order, by Powertools' batch utility."""

    class Records:
        """A function of one record inside a batch."""

        def __init__(self, name: str, provider: object, clock: FakeClock) -> None:
            """Decorate it as a user would."""
            event_type, key, self.number_at = STREAMS[name]
            self.processor = BatchProcessor(event_type=event_type)
            self.ran: list[str] = []
            self.kinds: set[type] = set()
            self.fails: set[str] = set()

            def apply(record: KinesisStreamRecord | DynamoDBRecord, *, lease: Lease) -> None:
                assert provider_of_lease.get_lease_owner(f"orders/{lease.key}") == lease.owner
                self.kinds.add(type(record))
                self.ran.append(str(record["eventID"]))
                if record["eventID"] in self.fails:
                    raise ValueError(record["eventID"])

            provider_of_lease: Any = provider
            self.apply = leased_function(
                key_jmespath=key, provider=provider, keyspace="orders", clock=clock, waker=None
            )(apply)

        def __call__(self, event: Any) -> list[str]:
            """Invoke it; return what it reports as failed."""
            context: Any = Context(aws_request_id="request-1")
            response = process_partial_response(
                event=event, record_handler=self.apply, processor=self.processor, context=context
            )
            return [str(each["itemIdentifier"]) for each in response["batchItemFailures"]]

    def test_records_run_each_under_its_own_key(self, name: str, provider: MemoryProvider, clock: FakeClock) -> None:
        """In the order of the stream, as Powertools' data classes."""
        records = self.Records(name, provider, clock)
        event = load(name)
        assert records(event) == []
        assert records.ran == [record["eventID"] for record in event["Records"]]
        assert records.kinds == {KinesisStreamRecord if name == "kinesis" else DynamoDBRecord}

    def test_failed_record_is_reported_and_the_others_are_not_run_again(
        self, name: str, provider: MemoryProvider, clock: FakeClock
    ) -> None:
        """Lambda asks again from the failed record on: those behind it that were handled are known (H48)."""
        records = self.Records(name, provider, clock)
        event = load(name)
        failed = event["Records"][1]
        records.fails = {failed["eventID"]}
        inner, number = records.number_at.split(".")
        assert records(event) == [failed[inner][number]]
        records.fails = set()
        records.ran.clear()
        again = copy.deepcopy(event)
        again["Records"] = again["Records"][1:]
        assert records(again) == []
        assert records.ran == [failed["eventID"]]

    def test_record_of_a_busy_key_is_handed_over(self, name: str, provider: MemoryProvider, clock: FakeClock) -> None:
        """It counts as done here: the owner, or the next one, runs it."""
        records = self.Records(name, provider, clock)
        event = load(name)
        key = f"orders/{ORDER}"
        provider.claim(key, "somebody", 30_000, Message(id="first", event={}))
        assert records(event) == []
        mine = [record["eventID"] for record in event["Records"] if ORDER in json.dumps(record)]
        assert [message.id for message in provider.peek(key)][1:] == mine
        assert not set(mine) & set(records.ran)
