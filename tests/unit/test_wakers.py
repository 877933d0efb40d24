"""The resume event is small, versioned and told from every other; Lambda's waker sends it or says that it could not."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from incumbent import ConfigurationError, IncumbentError, LambdaWaker, SqsWaker, StoredFormatUnknown, Wake
from incumbent.testing import stand_in
from incumbent.testing.clock import FakeClock
from incumbent.wakers import SplittingWaker, can_delay, check_waker, waker_from_env
from tests.unit.stage import ARN, RecordingWaker

EVENTS = Path(__file__).parents[2] / "events"
WAKE = Wake(key="orders/k", ticket="ticket.abc", target=ARN, hops=3)
EVENT = {"incumbent": {"v": 1, "key": "orders/k", "ticket": "ticket.abc", "hops": 3}}


def test_resume_event_is_versioned_json() -> None:
    """Key, ticket and hops; not the target, which is who gets it."""
    assert WAKE.to_event() == EVENT
    assert Wake.from_event(json.loads(json.dumps(EVENT))) == Wake(
        key="orders/k", ticket="ticket.abc", target=None, hops=3
    )


def test_resume_event_without_a_ticket_is_the_sweepers() -> None:
    """Whoever gets it claims the key if something is due."""
    wake = Wake(key="orders/k", ticket=None, target=ARN)
    assert Wake.from_event(wake.to_event()) == Wake(key="orders/k", ticket=None, target=None, hops=0)


@pytest.mark.parametrize(
    "changed",
    [
        {"v": "1"},
        {"v": None},
        {"key": ""},
        {"key": None},
        {"key": 7},
        {"ticket": ""},
        {"ticket": 7},
        {"ticket": ["ticket.abc"]},
        {"hops": -1},
        {"hops": "3"},
        {"hops": 1.5},
        {"hops": None},
    ],
    ids=repr,
)
def test_forged_resume_event_is_none(changed: Mapping[str, Any]) -> None:
    """It is then an event like any other, which has a key by the user's rule or none."""
    assert Wake.from_event({"incumbent": {**EVENT["incumbent"], **changed}}) is None


def test_resume_event_of_a_later_version_is_refused() -> None:
    """M12: it is not guessed at, and not taken for an event of the user's."""
    with pytest.raises(StoredFormatUnknown, match="version 2"):
        Wake.from_event({"incumbent": {"v": 2, "key": "orders/k", "lot": "of news"}})


@pytest.mark.parametrize("owner", ["request-1.0123456789abcdef0123", "somebody", "tickets.abc", "Ticket.abc"])
def test_ticket_that_is_none_by_its_name_redeems_nothing(owner: str) -> None:
    """M9: a forged event must not take a running owner's key by naming that owner."""
    wake = Wake.from_event({"incumbent": {**EVENT["incumbent"], "ticket": owner}})
    assert wake == Wake(key="orders/k", ticket=None, target=None, hops=3)


@pytest.mark.parametrize("missing", ["v", "key", "ticket", "hops"])
def test_resume_event_that_lacks_something_is_none(missing: str) -> None:
    """A version says what is in it."""
    inner = {name: value for name, value in EVENT["incumbent"].items() if name != missing}
    assert Wake.from_event({"incumbent": inner}) is None


@pytest.mark.parametrize(
    "event", [None, "incumbent", [], {}, {"incumbent": None}, {"incumbent": "text"}, {**EVENT, "more": 1}], ids=repr
)
def test_other_events_are_none(event: Any) -> None:
    """Also one that has such a part beside others: an HTTP body cannot smuggle one in."""
    assert Wake.from_event(event) is None


@pytest.mark.parametrize("file", sorted(EVENTS.glob("*.json")), ids=lambda file: file.stem)
def test_no_sample_event_is_a_resume_event(file: Path) -> None:
    """None of the sources looks like it."""
    assert Wake.from_event(json.loads(file.read_text("utf-8"))) is None


# --- Lambda's waker, on the real client


@dataclass(slots=True)
class Lambda:
    """The Invoke API as far as a waker sees it: notes what it is asked, answers with ``status``."""

    url: str = ""
    status: int = 202
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    callers: list[Any] = field(default_factory=list)

    def client(self, **config: Any) -> Any:
        """A real client of it."""
        return boto3.client("lambda", endpoint_url=self.url, config=Config(**config))


@pytest.fixture
def invoke_api() -> Iterator[Lambda]:
    """An endpoint of this machine."""
    api = Lambda()

    class Endpoint(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            api.callers.append(self.client_address)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            api.asked.append((unquote(self.path), self.headers["x-amz-invocation-type"], body))
            self.send_response(api.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        api.url = f"http://127.0.0.1:{server.server_port}"
        yield api
        server.shutdown()
        thread.join()


def test_waker_invokes_the_target_asynchronously(invoke_api: Lambda, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ARN as it was invoked, its alias kept; the client is its own."""
    # H47: self-invoke goes to the wrong alias: bolt-python #864.
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", invoke_api.url)
    waker = LambdaWaker()
    waker(WAKE)
    waker(WAKE)
    path = f"/2015-03-31/functions/{ARN}/invocations"
    assert invoke_api.asked == [(path, "Event", EVENT)] * 2
    assert len(set(invoke_api.callers)) == 1  # over one connection
    waker._client.client.close()  # noqa: SLF001 - a process keeps it, a test does not


def test_waker_waits_for_seconds_and_not_for_minutes(invoke_api: Lambda, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's own waits are 60 s: as long as many an invocation."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", invoke_api.url)
    waker = LambdaWaker()
    waker(WAKE)
    config = waker._client.client.meta.config  # noqa: SLF001 - it cannot be seen from outside
    assert (config.connect_timeout, config.read_timeout) == (1, 3)
    assert config.retries["total_max_attempts"] == 2
    waker._client.client.close()  # noqa: SLF001 - as above


def test_waker_uses_the_client_that_it_is_given(invoke_api: Lambda) -> None:
    """It keeps its settings."""
    client = invoke_api.client()
    LambdaWaker(client)(WAKE)
    assert len(invoke_api.asked) == 1
    client.close()


def test_waker_makes_no_client_before_its_first_wake() -> None:
    """A function that never hands over does not pay for boto3."""
    assert LambdaWaker()._client.client is None  # noqa: SLF001 - it cannot be seen from outside


def test_waker_finds_its_region_or_says_what_to_set(invoke_api: Lambda, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that Lambda sets and the error names, whatever botocore reads."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", invoke_api.url)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    waker = LambdaWaker()
    waker(WAKE)
    waker._client.client.close()  # noqa: SLF001 - a process keeps it, a test does not
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        LambdaWaker()(WAKE)


def test_wake_without_a_target_says_what_to_set() -> None:
    """Nothing is sent."""
    with pytest.raises(ConfigurationError, match="INCUMBENT_TARGET") as error:
        LambdaWaker()(Wake(key="orders/k", ticket="t", target=None))
    assert error.value.key == "orders/k"


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500])
def test_refused_wake_raises(invoke_api: Lambda, status: int) -> None:
    """Whoever calls it takes the ticket back."""
    client = invoke_api.client(retries={"total_max_attempts": 1})
    invoke_api.status = status
    with pytest.raises(ClientError):
        LambdaWaker(client)(WAKE)
    client.close()


def test_wake_that_reaches_nobody_raises(invoke_api: Lambda) -> None:
    """A network that is not there."""
    client = boto3.client("lambda", endpoint_url="http://127.0.0.1:9", config=Config(retries={"total_max_attempts": 1}))
    with pytest.raises(BotoCoreError):
        LambdaWaker(client)(WAKE)
    client.close()


def test_answer_that_is_not_accepted_raises(invoke_api: Lambda) -> None:
    """A success of another kind promises nothing."""
    client = invoke_api.client()
    invoke_api.status = 200
    with pytest.raises(IncumbentError, match="answered 200") as error:
        LambdaWaker(client)(WAKE)
    assert error.value.key == "orders/k"
    client.close()


def test_any_callable_is_a_waker() -> None:
    """A queue, a scheduler: it gets the wake, and what it raises is a failure."""
    sent: list[Wake] = []
    waker: Callable[[Wake], None] = sent.append
    waker(WAKE)
    assert sent == [WAKE]


def test_resume_event_of_a_later_version_is_not_guessed_at() -> None:
    """It fails, so that Lambda brings it again when the function knows it, perhaps (M12)."""
    event = Wake(key="orders/k", ticket="ticket.abc", target=ARN).to_event()
    event["incumbent"]["v"] = 2
    with pytest.raises(StoredFormatUnknown, match="version 2"):
        Wake.from_event(event)


# --- wakes with a delay

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/wakes"


@dataclass(slots=True)
class Queue:
    """A client of SQS that notes what it is asked."""

    sent: list[dict[str, Any]] = field(default_factory=list)

    def send_message(self, **asked: Any) -> dict[str, Any]:
        """Note it."""
        self.sent.append(asked)
        return {"MessageId": "1"}


def test_resume_event_does_not_say_when_it_was_due() -> None:
    """Whoever gets it looks into the store."""
    assert Wake(key="orders/k", ticket="ticket.abc", target=ARN, hops=3, after_ms=1_000).to_event() == EVENT


@pytest.mark.parametrize(
    ("after_ms", "delay_s"), [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (900_000, 900), (900_001, 900), (86_400_000, 900)]
)
def test_delay_is_in_whole_seconds_and_never_beyond_what_sqs_takes(after_ms: int, delay_s: int) -> None:
    """A wake that comes too early would have to be sent once more."""
    queue = Queue()
    SqsWaker(QUEUE, client=queue)(Wake(key="orders/k", ticket=None, target=ARN, after_ms=after_ms))
    (sent,) = queue.sent
    assert (sent["QueueUrl"], sent["DelaySeconds"]) == (QUEUE, delay_s)


def test_queued_wake_is_read_with_what_remains_of_its_delay() -> None:
    """A delay longer than SQS knows is split up by whoever reads it."""
    queue, clock = Queue(), FakeClock(wall_ms=1_700_000_000_000)
    wake = Wake(key="orders/k", ticket="ticket.abc", target=ARN, hops=3, after_ms=1_000_000)
    SqsWaker(QUEUE, client=queue, clock=clock)(wake)
    body = queue.sent[0]["MessageBody"]
    assert json.loads(body) == {
        "incumbent_wake": {
            "v": 1,
            "key": "orders/k",
            "ticket": "ticket.abc",
            "target": ARN,
            "hops": 3,
            "at_ms": 1_700_001_000_000,
        }
    }
    assert Wake.from_queue(body, 1_700_000_900_000) == Wake(
        key="orders/k", ticket="ticket.abc", target=ARN, hops=3, after_ms=100_000
    )
    late = Wake.from_queue(body, 1_700_001_000_001)
    assert late is not None
    assert late.after_ms == 0


@pytest.mark.parametrize(
    "changed",
    [{"v": "1"}, {"key": ""}, {"key": 7}, {"ticket": 7}, {"target": None}, {"hops": -1}, {"at_ms": "soon"}],
    ids=repr,
)
def test_forged_queued_wake_is_none(changed: Mapping[str, Any]) -> None:
    """It is checked like a resume event."""
    inner = json.loads(Wake(key="k", ticket=None, target=ARN).to_queue(0))["incumbent_wake"]
    assert Wake.from_queue(json.dumps({"incumbent_wake": inner}), 0) is not None
    assert Wake.from_queue(json.dumps({"incumbent_wake": {**inner, **changed}}), 0) is None
    assert Wake.from_queue(json.dumps({"incumbent_wake": inner, "more": 1}), 0) is None


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "[" * 100_000, json.dumps(EVENT)])
def test_other_bodies_are_no_queued_wakes(body: str) -> None:
    """Also what is not JSON."""
    assert Wake.from_queue(body, 0) is None


def test_queued_wake_of_a_later_version_is_refused() -> None:
    """M12: its queue keeps it."""
    with pytest.raises(StoredFormatUnknown, match="version 2"):
        Wake.from_queue(json.dumps({"incumbent_wake": {"v": 2, "key": "orders/k"}}), 0)


def test_ticket_that_is_none_by_its_name_is_not_queued_further() -> None:
    """M9: as in a resume event."""
    wake = Wake.from_queue(Wake(key="k", ticket="somebody", target=ARN).to_queue(0), 0)
    assert wake is not None
    assert wake.ticket is None


@pytest.mark.parametrize("url", ["", None, 7, QUEUE + ".fifo"])
def test_queue_that_cannot_delay_is_refused(url: Any) -> None:
    """SQS refuses a delay for one message of a FIFO queue."""
    with pytest.raises(ConfigurationError, match="standard queue"):
        SqsWaker(url)


def test_queue_is_told_nothing_without_a_target() -> None:
    """As Lambda's waker says it."""
    queue = Queue()
    with pytest.raises(ConfigurationError, match="INCUMBENT_TARGET"):
        SqsWaker(QUEUE, client=queue)(Wake(key="orders/k", ticket=None, target=None))
    assert queue.sent == []


def test_stand_in_keeps_later_wakes_too() -> None:
    """No client is made."""
    wakes: list[Wake] = []
    later = Wake(key="orders/k", ticket=None, target=ARN, after_ms=1_000)
    with stand_in(wakes=wakes):
        SqsWaker(QUEUE)(later)
        waker_from_env({"INCUMBENT_WAKE_QUEUE_URL": QUEUE})(later)
        waker_from_env({"INCUMBENT_WAKE_QUEUE_URL": QUEUE})(WAKE)
    assert wakes == [later, later, WAKE]


def test_queue_makes_the_environments_waker_delay() -> None:
    """Without it the sweeper is the clock."""
    assert can_delay(waker_from_env({"INCUMBENT_WAKE_QUEUE_URL": QUEUE}))
    assert not can_delay(waker_from_env({"INCUMBENT_WAKE_QUEUE_URL": ""}))
    assert isinstance(waker_from_env({}), LambdaWaker)
    assert can_delay(SqsWaker(QUEUE))
    assert not can_delay(None)
    assert not can_delay(RecordingWaker())


def test_wakes_at_once_and_later_ones_go_by_a_waker_each() -> None:
    """A hand-over does not pay for a queue."""
    at_once, later = RecordingWaker(), RecordingWaker()
    waker = SplittingWaker(at_once, later)
    waker(WAKE)
    delayed = Wake(key="orders/k", ticket=None, target=ARN, after_ms=1)
    waker(delayed)
    assert (at_once.wakes, later.wakes) == ([WAKE], [delayed])


async def wake_later(_: Wake) -> None:
    """A coroutine function, whose call sends nothing."""


@pytest.mark.parametrize("waker", ["other", RecordingWaker, wake_later, 5], ids=["name", "class", "async", "number"])
def test_value_that_sends_no_wake_is_not_a_waker(waker: object) -> None:
    """Before the first event."""
    with pytest.raises(ConfigurationError, match="give a callable that is not async, 'auto' or None"):
        check_waker(waker)


@pytest.mark.parametrize("waker", [None, "auto", RecordingWaker(), lambda _: None])
def test_value_that_sends_wakes_is_a_waker(waker: object) -> None:
    """None sends none, as asked."""
    check_waker(waker)
