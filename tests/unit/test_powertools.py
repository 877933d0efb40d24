"""What Powertools shows of incumbent's work, and how its decorators stack: with the real package."""

import asyncio
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import pytest
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.middleware_factory import lambda_handler_decorator
from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, event_source
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
from aws_lambda_powertools.utilities.parser import event_parser
from aws_lambda_powertools.utilities.parser.envelopes import EventBridgeEnvelope
from aws_lambda_powertools.utilities.validation import validator
from pydantic import BaseModel

from incumbent import (
    ConfigurationError,
    Fact,
    Lease,
    LeaseBusy,
    LeaseLost,
    LeaseUnavailable,
    Message,
    Policy,
    current_lease,
    leased,
    leased_function,
)
from incumbent.observe import FactName
from incumbent.powertools import PowertoolsMetrics, from_env, measured
from incumbent.providers.memory import MemoryProvider
from incumbent.sweeper import sweep
from tests.unit.stage import Facts, Meddled, RecordingWaker, StepClock, context

KEY = "orders/order-1"


@pytest.fixture
def clock() -> StepClock:
    """A clock that only moves when it is moved."""
    return StepClock()


@pytest.fixture
def provider(clock: StepClock) -> MemoryProvider:
    """A store that is empty."""
    return MemoryProvider(clock=clock)


class Lines:
    """A stream that metrics are written to, read as CloudWatch reads it."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self.stream = io.StringIO()
        self.observer = PowertoolsMetrics("Shop", stream=self.stream)

    @property
    def blobs(self) -> list[dict[str, Any]]:
        """Every line, each a whole JSON object."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def numbers(self) -> list[tuple[str, float]]:
        """The metrics and their values, in order."""
        return [number for blob in self.blobs for number in numbers(blob)]

    @property
    def names(self) -> list[str]:
        """The metrics that were counted or measured, in order."""
        return [name for name, _ in self.numbers]


def numbers(blob: dict[str, Any]) -> list[tuple[str, float]]:
    """What one line says, by the rules of the embedded metric format."""
    (directive,) = blob["_aws"]["CloudWatchMetrics"]
    said = []
    for metric in directive["Metrics"]:
        value = blob[metric["Name"]]
        said += [(metric["Name"], each) for each in (value if isinstance(value, list) else [value])]
    return said


Decorator: TypeAlias = Callable[[Callable[..., Any]], Any]


def event(text: str = "hello", message_id: str = "m-1") -> dict[str, Any]:
    """An event for the one order."""
    return {"order_id": "order-1", "id": message_id, "text": text}


def http(text: str = "hello", message_id: str = "m-1") -> dict[str, Any]:
    """The same as an HTTP API sends it."""
    request = {"requestId": message_id, "http": {"method": "POST"}}
    return {"version": "2.0", "requestContext": request, "body": json.dumps(event(text, message_id))}


def stacked(*decorators: Any) -> Decorator:
    """Put decorators on a handler, named from the outermost in."""

    def decorate(handler: Any) -> Any:
        for decorator in reversed(decorators):
            handler = decorator(handler)
        return handler

    return decorate


def nothing(event: object, context: object) -> None:
    """Do nothing, as a handler."""


class TestMetrics:
    """CloudWatch's embedded format, one line for each call that counts."""

    @pytest.fixture
    def lines(self) -> Lines:
        """What is written in this test."""
        return Lines()

    def handler(
        self, lines: Lines, provider: object, clock: StepClock, work: Callable[..., Any], **options: Any
    ) -> Any:
        """A handler of orders that is watched."""
        chosen = {"key_jmespath": "order_id", "message_id_jmespath": "id", "waker": None, **options}
        return leased(provider=provider, keyspace="orders", observer=lines.observer, clock=clock, **chosen)(work)

    def test_a_run_is_one_line(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """Acquired, started after no wait, completed, freed after as long as it took."""

        def work(event: object, context: object) -> None:
            clock.advance(40)

        self.handler(lines, provider, clock, work)(event(), context(clock))
        assert lines.numbers == [
            ("LeaseAcquired", 1),
            ("MailboxDepth", 0),
            ("WaitMs", 0),
            ("RunCompleted", 1),
            ("HoldMs", 40),
        ]
        assert len(lines.blobs) == 1

    def test_a_value_is_a_number_and_several_measures_are_a_list(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """Logs Insights calls parts of a list ``WaitMs.0``; counts are added up, so their names stay as they are."""
        handler: Any

        def work(event: dict[str, Any], context: Any) -> None:
            if event["id"] == "m-1":
                handler({**event, "id": "m-2"}, context)
            clock.advance(10)

        handler = self.handler(lines, provider, clock, work)
        handler(event(), context(clock))
        *_, line = lines.blobs
        assert (line["LeaseAcquired"], line["RunCompleted"], line["WaitMs"], line["HoldMs"]) == (1, 2, [0, 10], 20)

    def test_six_records_are_six_lines(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """Each names its key; they were 24 lines and 10 KB."""
        chosen: dict[str, Any] = {"key_jmespath": "order_id", "message_id_jmespath": "id", "keyspace": "orders"}
        apply = leased_function(**chosen, provider=provider, observer=lines.observer, clock=clock)(
            lambda record: record
        )
        for number in range(6):
            apply({"order_id": f"order-{number}", "id": f"m-{number}"})
        assert [blob["lease_key"] for blob in lines.blobs] == [f"orders/order-{number}" for number in range(6)]
        assert len(lines.stream.getvalue()) < 6 * 700

    def test_a_process_that_is_killed_takes_little_along(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """What was counted is printed before a renewal, and before a run that ends before the first one."""
        printed: list[list[str]] = []

        def work(event: object, context: object) -> None:
            printed.append(lines.names)

        self.handler(lines, provider, clock, work)(event(), context(clock, time_left_ms=9_000))
        before = lines.names

        def renewed(event: object, context: object) -> None:
            printed.append(lines.names[len(before) :])
            clock.advance(clock.next_pause_ms())
            clock.next_pause_ms()
            printed.append(lines.names[len(before) :])

        self.handler(lines, provider, clock, renewed)(event(message_id="m-2"), context(clock))
        begun = ["LeaseAcquired", "MailboxDepth", "WaitMs"]
        assert printed == [begun, [], begun]

    def test_what_an_alarm_waits_for_is_printed_at_once(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """A loss is, while the run goes on; and a hand-over comes after the rest."""

        def work(event: object, context: object, *, lease: Lease) -> None:
            provider.release_lease(KEY, lease.owner)
            with pytest.raises(LeaseLost):
                lease.renew()
            assert "LeaseLost" in lines.names
            assert lines.blobs[-1]["owner"] == lease.owner

        with pytest.raises(LeaseLost):
            self.handler(lines, provider, clock, work)(event(), context(clock))
        assert lines.names.count("LeaseLost") == 1

    @pytest.mark.parametrize("name", get_args(FactName))
    def test_the_facts_of_a_call_are_those_that_count(self, lines: Lines, name: Any) -> None:
        """Others need not be made."""
        fact = Fact(fact=name, key=KEY, t_ms=0, outcome="handled", waiting=1, waited_ms=1, ms=1)
        assert bool(measured(fact)) == (name in lines.observer.collect().facts)

    def test_a_line_holds_fewer_values_than_cloudwatch_takes(self, lines: Lines) -> None:
        """A hundred of a metric; what is more goes into another line."""
        call = lines.observer.collect()
        for _ in range(120):
            call(Fact(fact="run_started", key=KEY, t_ms=0, keyspace="orders", waited_ms=7))
        call.flush()
        call.flush()
        assert [len(blob["WaitMs"]) for blob in lines.blobs] == [50, 50, 20]

    def test_the_keyspace_is_the_only_dimension(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An alarm names its dimensions exactly, so Powertools' service variable adds none."""
        monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "checkout")
        self.handler(lines, provider, clock, nothing)(event(), context(clock))
        for blob in lines.blobs:
            (directive,) = blob["_aws"]["CloudWatchMetrics"]
            assert (directive["Namespace"], directive["Dimensions"]) == ("Shop", [["keyspace"]])
            assert blob["keyspace"] == "orders"

    def test_durations_are_milliseconds_and_the_rest_are_counts(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """CloudWatch shows what it is told."""
        self.handler(lines, provider, clock, nothing)(event(), context(clock))
        units = {
            metric["Name"]: metric["Unit"]
            for blob in lines.blobs
            for metric in blob["_aws"]["CloudWatchMetrics"][0]["Metrics"]
        }
        assert {name for name, unit in units.items() if unit == "Milliseconds"} == {"WaitMs", "HoldMs"}
        assert {unit for name, unit in units.items() if not name.endswith("Ms")} == {"Count"}

    def test_a_line_says_whose_it_is_and_holds_no_payload(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """Key, owner, fence and request are properties; the event is not in it."""
        seen: list[Lease] = []

        def work(event: object, context: object, *, lease: Lease) -> None:
            seen.append(lease)

        self.handler(lines, provider, clock, work)(event("a secret"), context(clock))
        (acquired,) = lines.blobs
        assert acquired["lease_key"] == KEY
        assert (acquired["owner"], acquired["fence"]) == (seen[0].owner, seen[0].fence)
        assert acquired["request_id"] == "request-1"
        assert "a secret" not in lines.stream.getvalue()

    def test_routed_messages_and_their_wait_are_measured(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """The second message is routed, waits 300 ms, and runs in place."""
        handler: Any

        def work(event: dict[str, Any], context: Any) -> None:
            if event["id"] == "m-1":
                handler({**event, "id": "m-2"}, context)
                clock.advance(300)

        handler = self.handler(lines, provider, clock, work)
        handler(event(), context(clock))
        assert ("MessageRouted", 1) in lines.numbers
        assert [value for name, value in lines.numbers if name == "WaitMs"] == [0, 300]
        assert sum(value for name, value in lines.numbers if name == "RunCompleted") == 2

    def test_a_refused_caller_is_counted_as_busy(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """Under reject nothing is routed."""
        provider.acquire_lease(KEY, "somebody", 30_000)
        handler = self.handler(lines, provider, clock, nothing, when_busy="reject")
        with pytest.raises(LeaseBusy):
            handler(event(), context(clock))
        assert lines.numbers == [("LeaseBusy", 1)]

    def test_a_failed_run_is_counted(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """Whatever it raises."""

        def work(event: object, context: object) -> None:
            raise ValueError

        with pytest.raises(ValueError, match=r"^$"):
            self.handler(lines, provider, clock, work)(event(), context(clock))
        assert "RunFailed" in lines.names
        assert "RunCompleted" not in lines.names

    def test_a_run_that_defers_is_neither_completed_nor_failed(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """It goes on elsewhere."""

        def work(event: object, context: object, *, lease: Lease) -> Any:
            return lease.defer()

        handler = self.handler(lines, provider, clock, work, waker=RecordingWaker(), target="orders")
        handler(event(), context(clock))
        assert [name for name in lines.names if name.startswith("Run")] == []
        assert "HandedOver" in lines.names

    def test_a_hand_over_is_counted_and_ends_the_hold(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """An HTTP caller's run passes on what arrived meanwhile."""
        handler: Any

        def work(event: dict[str, Any], context: Any) -> None:
            handler(http(message_id="m-2"), context)
            clock.advance(25)

        options = {"key_jmespath": "powertools_json(body).order_id", "message_id_jmespath": None}
        handler = self.handler(lines, provider, clock, work, waker=RecordingWaker(), **options)
        handler(http(), context(clock))
        assert lines.numbers[-2:] == [("HandedOver", 1), ("HoldMs", 25)]

    def test_a_dead_letter_is_counted(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """A follow-up whose last attempt fails."""
        handler: Any

        def work(event: dict[str, Any], context: Any) -> None:
            if event["id"] == "m-2":
                raise ValueError
            handler({**event, "id": "m-2"}, context)

        handler = self.handler(lines, provider, clock, work, policy=Policy(max_attempts=1))
        handler(event(), context(clock))
        assert lines.names.count("DeadLettered") == 1

    def test_a_lost_lease_is_counted_once(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """By whoever notices first: here the run's own renewal."""

        def work(event: object, context: object, *, lease: Lease) -> None:
            provider.release_lease(KEY, lease.owner)
            lease.renew()

        with pytest.raises(LeaseLost):
            self.handler(lines, provider, clock, work)(event(), context(clock))
        assert lines.names.count("LeaseLost") == 1
        assert "RunCompleted" not in lines.names

    def test_an_error_of_the_store_is_counted(self, lines: Lines, provider: MemoryProvider, clock: StepClock) -> None:
        """Also when it fails the invocation."""
        meddled = Meddled(provider)

        def fail() -> None:
            raise LeaseUnavailable("no answer", key=KEY)

        meddled.before["claim"] = fail
        handler = self.handler(lines, meddled, clock, nothing)
        with pytest.raises(LeaseUnavailable):
            handler(event(), context(clock))
        assert lines.numbers == [("StoreErrors", 1)]

    def test_a_sweep_counts_itself_and_measures_the_oldest(
        self, lines: Lines, provider: MemoryProvider, clock: StepClock
    ) -> None:
        """It has no dimension: it serves all keyspaces. Its line comes when nothing was found, too."""
        sweep(provider, RecordingWaker(), observers=(lines.observer,), clock=clock)
        provider.claim(KEY, "dead-owner", 1_000, Message(id="m-1", event={}))
        clock.advance(62_000)  # the ttl, the pause of what died with its run, and a minute
        sweep(provider, RecordingWaker(), observers=(lines.observer,), clock=clock)
        lines.observer(Fact(fact="swept", key="", t_ms=0, waiting=0, ms=0, error="a primary is silent"))
        nothing, found, incomplete = lines.blobs
        assert nothing["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[]]
        assert numbers(nothing) == [("SweeperRan", 1), ("OrphansFound", 0), ("OldestWaitingMs", 0)]
        assert numbers(found) == [("SweeperRan", 1), ("OrphansFound", 1), ("OldestWaitingMs", 60_000)]
        assert ("SweepIncomplete", 1) in numbers(incomplete)

    def test_a_line_is_written_in_one_piece(self) -> None:
        """So that the heartbeat's thread, which tells of a loss, never cuts a line of the run in two."""
        pieces: list[str] = []

        class Pieces(io.StringIO):
            """A stream that notes what it is given at a time."""

            def write(self, text: str) -> int:
                pieces.append(text)
                return len(text)

        PowertoolsMetrics("Shop", stream=Pieces())(Fact(fact="lost", key=KEY, t_ms=0, keyspace="orders"))
        assert [piece.count("\n") for piece in pieces] == [1]
        assert pieces[0].endswith("}\n")

    def test_what_counts_nothing_prints_nothing(self, lines: Lines) -> None:
        """A duplicate is no metric."""
        lines.observer(Fact(fact="duplicate", key=KEY, t_ms=0))
        assert lines.blobs == []


SMALL = """
import sys
from incumbent import leased

@leased(key="one")
def handler(event, context):
    return event

handler({}, None)
print("loaded", sorted(name for name in sys.modules if name.startswith("aws_lambda_powertools"))[:1])
"""


def run_small(**variables: str) -> list[str]:
    """Run a small function in a process of its own, and return what it printed."""
    environment = {**os.environ, "INCUMBENT_PROVIDER": "memory", **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SMALL], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_metrics_are_switched_on_by_a_variable() -> None:
    """The function itself says nothing of metrics."""
    *blobs, loaded = run_small(INCUMBENT_METRICS_NAMESPACE="Shop")
    assert [name for line in blobs for name, _ in numbers(json.loads(line))] == [
        "LeaseAcquired",
        "MailboxDepth",
        "WaitMs",
        "RunCompleted",
        "HoldMs",
    ]
    assert loaded == "loaded ['aws_lambda_powertools']"


@pytest.mark.parametrize("variables", [{}, {"INCUMBENT_METRICS_NAMESPACE": ""}])
def test_off_imports_nothing_of_powertools(variables: dict[str, str]) -> None:
    """Neither prints anything, nor loads a module."""
    assert run_small(**variables) == ["loaded []"]


def test_powertools_own_switch_turns_them_off() -> None:
    """Who disables metrics disables these."""
    assert from_env({"INCUMBENT_METRICS_NAMESPACE": "Shop", "POWERTOOLS_METRICS_DISABLED": "true"}) == ()
    assert len(from_env({"INCUMBENT_METRICS_NAMESPACE": "Shop", "POWERTOOLS_METRICS_DISABLED": "false"})) == 1


def make_logger(request: pytest.FixtureRequest) -> tuple[Logger, io.StringIO]:
    """A logger of this test's own, and what it wrote."""
    stream = io.StringIO()
    return Logger(service=request.node.name, stream=stream), stream


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    """The log lines, parsed."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


LEASE_KEYS = {"lease_key", "owner", "fence", "attempt"}


class TestLoggerKeys:
    """The log lines of a run name its lease."""

    @pytest.fixture
    def provider(self) -> MemoryProvider:
        """A store that is empty, by the real clock."""
        return MemoryProvider()

    def leased(self, provider: object, logger: Logger) -> Decorator:
        """The decorator, for events of the one order."""
        return leased(key_jmespath="order_id", message_id_jmespath="id", provider=provider, logger=logger, waker=None)

    def test_lines_of_a_run_carry_its_lease(self, request: pytest.FixtureRequest, provider: MemoryProvider) -> None:
        """Key, owner, fence and attempt; before and after the run they are not there."""
        logger, stream = make_logger(request)
        seen: list[Lease] = []

        @self.leased(provider, logger)
        def handler(event: object, context: object, *, lease: Lease) -> None:
            seen.append(lease)
            logger.info("inside")

        logger.info("before")
        handler(event(), None)
        logger.info("after")
        before, inside, after = written(stream)
        assert {name: inside[name] for name in LEASE_KEYS} == {
            "lease_key": "order-1",
            "owner": seen[0].owner,
            "fence": seen[0].fence,
            "attempt": 1,
        }
        assert not LEASE_KEYS & (before.keys() | after.keys())

    def test_keys_are_gone_after_a_run_that_raised(
        self, request: pytest.FixtureRequest, provider: MemoryProvider
    ) -> None:
        """The next invocation of the environment begins clean."""
        logger, stream = make_logger(request)

        @self.leased(provider, logger)
        def handler(event: object, context: object) -> None:
            raise ValueError

        with pytest.raises(ValueError, match=r"^$"):
            handler(event(), None)
        logger.info("after")
        assert not LEASE_KEYS & written(stream)[-1].keys()

    def test_keys_of_the_function_come_back(self, request: pytest.FixtureRequest, provider: MemoryProvider) -> None:
        """A function that logs an owner of its own has it again afterwards."""
        logger, stream = make_logger(request)
        logger.append_keys(owner="team-a")

        @self.leased(provider, logger)
        def handler(event: object, context: object, *, lease: Lease) -> None:
            logger.info(lease.owner)

        handler(event(), None)
        logger.info("after")
        inside, after = written(stream)
        assert inside["owner"] == inside["message"]
        assert after["owner"] == "team-a"

    def test_each_run_of_an_invocation_has_its_own(
        self, request: pytest.FixtureRequest, provider: MemoryProvider
    ) -> None:
        """The follow-up runs under another owner and a larger fence."""
        logger, stream = make_logger(request)
        handler: Any

        def work(event: dict[str, Any], context: object) -> None:
            logger.info(event["id"])
            if event["id"] == "m-1":
                handler({**event, "id": "m-2"}, None)

        handler = self.leased(provider, logger)(work)
        handler(event(), None)
        first, second = written(stream)
        assert (first["message"], second["message"]) == ("m-1", "m-2")
        assert first["owner"] != second["owner"]
        assert first["fence"] < second["fence"]

    def test_lines_of_async_handlers_carry_them(self, request: pytest.FixtureRequest, provider: MemoryProvider) -> None:
        """Also after an await, and beside ``current_lease()``."""
        logger, stream = make_logger(request)

        @self.leased(provider, logger)
        async def handler(event: object, context: object) -> None:
            await asyncio.sleep(0)
            lease = current_lease()
            assert lease is not None
            logger.info(lease.owner)

        handler(event(), None)
        (inside,) = written(stream)
        assert inside["owner"] == inside["message"]

    def test_a_logger_of_another_kind_is_refused(self) -> None:
        """When the handler is decorated, not when it runs."""
        with pytest.raises(ConfigurationError, match="give a Powertools Logger"):
            leased(key="one", logger=print)(nothing)  # type: ignore[arg-type]


class Order(BaseModel):
    """An order as a parser wants it."""

    order_id: str
    text: str


class Kept(BasePersistenceLayer):
    """Powertools' idempotency in a dictionary."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: dict[str, DataRecord] = {}

    def _get_record(self, idempotency_key: str) -> DataRecord:
        try:
            return self.records[idempotency_key]
        except KeyError:
            raise IdempotencyItemNotFoundError from None

    def _put_record(self, data_record: DataRecord) -> None:
        if data_record.idempotency_key in self.records:
            raise IdempotencyItemAlreadyExistsError
        self.records[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord) -> None:
        self.records[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record: DataRecord) -> None:
        del self.records[data_record.idempotency_key]


SCHEMA = {"type": "object", "required": ["order_id", "text"]}


class TestStacking:
    """Powertools' decorators above and below."""

    @pytest.fixture
    def provider(self) -> MemoryProvider:
        """A store that is empty, by the real clock."""
        return MemoryProvider()

    def leased(self, provider: object, **more: Any) -> Decorator:
        """The decorator, for events of the one order."""
        chosen = {"key_jmespath": "order_id", "message_id_jmespath": "id", "keyspace": "orders", "waker": None, **more}
        return leased(provider=provider, **chosen)

    def test_logger_tracer_and_metrics_stand_above(
        self,
        request: pytest.FixtureRequest,
        provider: MemoryProvider,
        clock: StepClock,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """They see the invocation whole: its request id, its cold start, its result; and a resume event, too."""
        logger, stream = make_logger(request)
        tracer = Tracer(service="orders", disabled=True)
        metrics = Metrics(namespace="Shop", service="orders")
        ran: list[str] = []

        def counted(handler: Callable[..., Any]) -> Callable[..., Any]:
            def counting(event: object, context: object) -> Any:
                metrics.add_metric(name="Invocations", unit="Count", value=1)
                return handler(event, context)

            return counting

        @stacked(
            logger.inject_lambda_context(log_event=True),
            tracer.capture_lambda_handler,
            metrics.log_metrics(capture_cold_start_metric=True),
            counted,
            self.leased(provider),
        )
        def handler(event: dict[str, Any], context: object, *, lease: Lease) -> dict[str, str]:
            ran.append(event["text"])
            logger.info("inside")
            return {"owner": lease.owner}

        assert handler(event(), context(clock))["owner"].startswith("request-1.")
        assert handler({"incumbent": {"v": 1, "key": KEY, "ticket": None, "hops": 1}}, context(clock)) == {
            "status": "idle"
        }
        assert ran == ["hello"]
        assert [line["function_request_id"] for line in written(stream)] == ["request-1"] * 3
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert {name for blob in printed for name, _ in numbers(blob)} == {"ColdStart", "Invocations"}

    def test_follow_ups_reach_the_parser_as_the_first_did(self, provider: MemoryProvider) -> None:
        """Own, routed and resumed messages: each is a model inside, and the JSON event in the store."""
        seen: list[object] = []
        stored: list[Any] = []
        handler: Any

        def work(event: Order, context: object, *, lease: Lease) -> None:
            seen.append(event)
            if event.text == "first":
                handler({"order_id": "order-1", "id": "m-2", "text": "second"}, None)
                stored.extend(message.event for message in provider.peek(KEY))

        handler = stacked(self.leased(provider), event_parser(model=Order))(work)
        handler(event("first"), None)
        provider.claim(KEY, "dead-owner", 30_000, Message(id="m-3", event=event("third", "m-3")))
        provider.settle(KEY, "dead-owner", ttl_ms=30_000, deferred=["m-3"])
        handler({"incumbent": {"v": 1, "key": KEY, "ticket": None, "hops": 0}}, None)
        assert seen == [Order(order_id="order-1", text=text) for text in ("first", "second", "third")]
        assert stored[0] == event("first")

    def test_envelopes_are_opened_below(self, provider: MemoryProvider) -> None:
        """The key is read from the event as it came, the handler gets the detail."""
        seen: list[Order] = []

        @stacked(
            self.leased(provider, key_jmespath="detail.order_id"),
            event_parser(model=Order, envelope=EventBridgeEnvelope),
        )
        def handler(event: Order, context: object) -> None:
            seen.append(event)

        handler(
            {
                "version": "0",
                "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
                "detail-type": "Order Changed",
                "source": "com.example.orders",
                "account": "123456789012",
                "time": "2026-11-02T09:15:30Z",
                "region": "eu-central-1",
                "resources": [],
                "detail": {"order_id": "order-1", "text": "hello"},
            },
            None,
        )
        assert seen == [Order(order_id="order-1", text="hello")]

    def test_data_classes_are_made_below(self, provider: MemoryProvider) -> None:
        """An event source is for one run; what is stored is what it was made from."""
        seen: list[object] = []

        @stacked(self.leased(provider, key_jmespath="detail.order_id"), event_source(data_class=EventBridgeEvent))
        def handler(event: EventBridgeEvent, context: object) -> None:
            seen.append(event.detail)
            (running,) = provider.peek(KEY)
            assert running.event == event.raw_event

        handler({"id": "m-1", "detail-type": "x", "source": "y", "detail": {"order_id": "order-1"}}, None)
        assert seen == [{"order_id": "order-1"}]

    def test_lease_that_a_layer_does_not_pass_on_is_refused(self, provider: MemoryProvider) -> None:
        """At decoration, or at the first event if the layer's own signature takes anything.

        Powertools' own event_source, and a middleware by its factory, take no argument more, which their wrappers hide.
        """

        @lambda_handler_decorator
        def middleware(handler: Any, event: Any, context: Any) -> Any:
            return handler(event, context)

        def plain(function: Any) -> Any:
            @functools.wraps(function)
            def wrapper(event: Any, context: Any) -> Any:
                return function(event, context)

            return wrapper

        def needs(event: Any, context: object, *, lease: Lease) -> None:
            """Never called."""

        def likes(event: Any, context: object, *, lease: Lease | None = None) -> tuple[bool, bool]:
            return lease is None, current_lease() is not None

        with pytest.raises(ConfigurationError, match=r"call current_lease\(\)"):
            self.leased(provider)(plain(needs))
        assert self.leased(MemoryProvider())(plain(likes))(event(), None) == (True, True)
        layers: list[Any] = [event_source(data_class=EventBridgeEvent), middleware]
        for layer in layers:
            for function in (needs, likes):
                with pytest.raises(ConfigurationError, match=r"call current_lease\(\)"):
                    self.leased(MemoryProvider())(layer(function))(event(), None)

    def test_lease_reaches_a_handler_through_a_middleware_that_passes_it_on(self, provider: MemoryProvider) -> None:
        """By Powertools' factory, with keywords; the handler's own mistakes keep their names."""

        @lambda_handler_decorator
        def middleware(handler: Any, event: Any, context: Any, **more: Any) -> Any:
            return handler(event, context, **more)

        def needs(event: Any, context: object, *, lease: Lease) -> bool:
            return lease is current_lease()

        def mistaken(event: Any, context: object, *, lease: Lease) -> None:
            sorted([], leased=lease)  # type: ignore[call-overload]

        def says_the_same(event: Any, context: object, *, lease: Lease) -> None:
            raise TypeError("f() got an unexpected keyword argument 'lease'")

        with pytest.raises(TypeError, match=r"f\(\) got"):
            self.leased(MemoryProvider())(says_the_same)(event(), None)
        assert self.leased(provider)(middleware(needs))(event(), None)
        with pytest.raises(TypeError, match="leased"):
            self.leased(MemoryProvider())(middleware(mistaken))(event(), None)

    def test_a_validator_stands_below(self, provider: MemoryProvider) -> None:
        """It refuses an event as if it stood alone, and never sees one that wakes the function."""
        ran: list[str] = []

        @stacked(self.leased(provider), validator(inbound_schema=SCHEMA))
        def handler(event: dict[str, Any], context: object) -> None:
            ran.append(event["text"])

        handler(event(), None)
        handler({"incumbent": {"v": 1, "key": KEY, "ticket": None, "hops": 0}}, None)
        with pytest.raises(Exception, match="must contain"):
            handler({"order_id": "order-1", "id": "m-2"}, None)
        assert ran == ["hello"]

    def test_idempotent_stands_below_and_keeps_the_run_s_own_answer(self, clock: StepClock) -> None:
        """Where the mailbox has forgotten a message, the run is not repeated, and its answer is the first one's."""
        ran: list[str] = []
        layer, config = Kept(), IdempotencyConfig(event_key_jmespath="id")

        def make(provider: MemoryProvider) -> Any:
            @stacked(self.leased(provider), idempotent(persistence_store=layer, config=config))
            def handler(event: dict[str, Any], context: object, *, lease: Lease) -> dict[str, Any]:
                ran.append(event["id"])
                return {"answered": len(ran)}

            return handler

        assert make(MemoryProvider())(event(), context(clock)) == {"answered": 1}
        assert make(MemoryProvider())(event(), context(clock)) == {"answered": 1}
        assert ran == ["m-1"]

    def test_idempotent_below_never_keeps_an_accepted(self, provider: MemoryProvider, clock: StepClock) -> None:
        """What a routed caller is told is no result: its own run has one, later."""
        layer, config = Kept(), IdempotencyConfig(event_key_jmespath="id")
        answers: list[object] = []
        handler: Any

        def work(event: dict[str, Any], context: Any) -> str:
            if event["id"] == "m-1":
                answers.append(handler({**event, "id": "m-2"}, context))
            return f"ran {event['id']}"

        handler = stacked(self.leased(provider), idempotent(persistence_store=layer, config=config))(work)
        handler(event(), context(clock))
        assert answers == [{"status": "accepted", "key": "order-1", "message_id": "m-2"}]
        assert sorted(record.response_data for record in layer.records.values()) == ['"ran m-1"', '"ran m-2"']


class TestWrongOrder:
    """Decorators that must stand below, above: refused at the first event where its type shows them."""

    @pytest.fixture
    def provider(self) -> MemoryProvider:
        """A store that is empty, by the real clock."""
        return MemoryProvider()

    @pytest.fixture
    def ran(self) -> list[object]:
        """What was run."""
        return []

    @pytest.fixture
    def inner(self, provider: MemoryProvider, ran: list[object]) -> Any:
        """A leased handler, to be put below what should be below it."""

        @leased(key_jmespath="order_id", provider=provider, keyspace="orders")
        def handler(event: object, context: object) -> None:
            ran.append(event)

        return handler

    @pytest.mark.parametrize(
        "outer",
        [event_parser(model=Order), event_source(data_class=EventBridgeEvent)],
        ids=["parser", "event source"],
    )
    def test_wrong_order_is_named(
        self, *, inner: Any, provider: MemoryProvider, ran: list[object], clock: StepClock, outer: Any
    ) -> None:
        """The error says which of the two stands where, every time."""
        handler = outer(inner)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="put @leased above @event_parser and @event_source"):
                handler(event(), context(clock))
        assert ran == []
        assert provider.peek(KEY) == ()

    def test_a_leased_handler_may_be_called_from_a_parsed_one(
        self, inner: Any, ran: list[object], clock: StepClock
    ) -> None:
        """Whoever makes the JSON event again has not decorated it."""

        @stacked(event_parser(model=Order))
        def handler(parsed: Order, context: Any) -> None:
            inner(parsed.model_dump(), context)

        handler(event(), context(clock))
        assert ran == [{"order_id": "order-1", "text": "hello"}]

    def test_a_model_given_by_hand_is_refused(self, inner: Any, ran: list[object]) -> None:
        """Not as an event without a key, which would blame the event."""
        with pytest.raises(ConfigurationError, match=r"the event is a Order, but the mailbox stores the JSON event"):
            inner(Order(order_id="order-1", text="hello"), None)
        assert ran == []

    def test_twice_on_one_handler_is_refused_at_once(self, inner: Any, request: pytest.FixtureRequest) -> None:
        """Also with another decorator in between: it would wait for itself."""
        logger, _ = make_logger(request)
        for decorator in (leased(key="one"), leased_function(key="one")):
            with pytest.raises(ConfigurationError, match="leased already"):
                decorator(logger.inject_lambda_context(inner))

    def test_a_parsed_record_needs_to_be_told_how_to_be_stored(self, provider: MemoryProvider) -> None:
        """With ``store`` and ``load`` a model is fine; without them the error says so."""
        seen: list[Order] = []

        def apply(record: Order) -> None:
            seen.append(record)

        chosen: dict[str, Any] = {"key": lambda record: record.order_id, "provider": provider, "keyspace": "orders"}
        with pytest.raises(ConfigurationError, match="give store= and load="):
            leased_function(**chosen)(apply)(Order(order_id="order-1", text="hello"))
        told = leased_function(**chosen, store=Order.model_dump, load=Order.model_validate)(apply)
        told(Order(order_id="order-1", text="hello"))
        assert seen == [Order(order_id="order-1", text="hello")]


def test_observers_and_metrics_stand_beside_one_another(
    provider: MemoryProvider, clock: StepClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An observer of one's own does not switch the variable's metrics off."""
    facts = Facts()
    monkeypatch.setenv("INCUMBENT_METRICS_NAMESPACE", "Both")
    leased(key="one", provider=provider, observer=facts, clock=clock)(nothing)({}, None)
    assert "claimed" in facts.names
    assert '"Namespace": "Both"' in capsys.readouterr().out
