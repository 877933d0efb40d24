"""Handlers in threads of this process."""

import os
import sys
import uuid
from collections.abc import Iterator

import boto3
import pytest

from incumbent.errors import ConfigurationError
from incumbent.local import Invocation, LogLine, Outcome, Template
from incumbent.local.http_server import Handler, Server
from incumbent.local.in_process import InProcessLambda
from incumbent.local.invocations import CannotStart
from tests.local.conftest import PARAMETERS, TEMPLATE

FUNCTIONS = Template.load(TEMPLATE, PARAMETERS).functions()
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:"


def test_invocations_run_at_once_in_one_process() -> None:
    """Eight of them, each with its own request id, and the variables of the template but none of Lambda's."""
    with InProcessLambda(FUNCTIONS, env={"INCUMBENT_PROVIDER": "memory", "AWS_LAMBDA_X": "y"}) as cloud:
        pending = [cloud.submit("EchoFunction", {"do": "sleep", "ms": 100, "environ": ["STAGE"]}) for _ in range(8)]
        done = [each.result() for each in pending]
        traced = cloud.invoke("TracedFunction", {"key": "k", "message": "m"})
    assert {each.payload["pid"] for each in done} == {os.getpid()}
    assert len({each.payload["request_id"] for each in done}) == 8
    assert max(each.started_at_ms for each in done) < min(each.ended_at_ms for each in done)
    assert done[0].payload["environ"] == {"STAGE": "test"}
    assert 19_000 < done[0].payload["time_left_ms"] <= 20_000
    assert traced.payload == {"message": "m", "provider": "memory", "lambda": False}


def test_what_is_printed_belongs_to_its_invocation_and_reaches_nobody_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whole lines, from both streams, while it is open."""
    lines: list[LogLine] = []
    with InProcessLambda(FUNCTIONS, on_log=lines.append) as cloud:
        done = cloud.invoke("EchoFunction", {"do": "print", "text": "here"})
    assert [line.text for line in done.logs] == ["here", "HERE"]
    assert {line.request_id for line in lines} == {done.request_id}
    assert capsys.readouterr() == ("", "")


def test_a_failed_asynchronous_invocation_is_retried() -> None:
    """As often as the template says, under the same request id."""
    ended: list[Invocation] = []
    with InProcessLambda(FUNCTIONS, on_invocation=ended.append, retry_delays_ms=(30,)) as cloud:
        last = cloud.submit("ShortFunction", {"do": "raise", "text": "no"}, asynchronous=True).result()
    assert (last.attempt, last.outcome) == (2, Outcome.ERROR)
    assert last.error is not None
    assert (last.error["errorType"], last.error["errorMessage"]) == ("RuntimeError", "no")
    assert "app.py" in last.error["stackTrace"][0]
    assert [(each.attempt, each.request_id) for each in ended] == [(1, last.request_id), (2, last.request_id)]
    assert ended[1].started_at_ms - ended[0].ended_at_ms >= 29
    assert [each.retried_in_ms for each in ended] == [30, None]


def test_what_is_still_to_be_retried_does_not_hold_up_the_end() -> None:
    """Its pause is a minute, as on Lambda."""
    ended: list[Invocation] = []
    with InProcessLambda(FUNCTIONS, on_invocation=ended.append) as cloud:
        cloud.submit("ShortFunction", {"do": "raise", "text": "no"}, asynchronous=True)
        with pytest.raises(TimeoutError):
            cloud.wait_idle(200)
    assert [each.retried_in_ms for each in ended] == [60_000]


def test_nothing_stays_behind() -> None:
    """Variables, the path, the functions' modules and the streams are as they were."""
    before = (dict(os.environ), list(sys.path), sys.stdout, sys.stderr)
    with InProcessLambda(FUNCTIONS) as cloud:
        assert cloud.invoke("EchoFunction", {}).payload["calls"] == 1
        assert os.environ["STAGE"] == "test"
    assert (dict(os.environ), list(sys.path), sys.stdout, sys.stderr) == before
    code = str(TEMPLATE.parent / "functions")
    assert not [
        name for name, module in sys.modules.items() if (getattr(module, "__file__", "") or "").startswith(code)
    ]
    with InProcessLambda(FUNCTIONS) as cloud:
        assert cloud.invoke("EchoFunction", {}).payload["calls"] == 1


def test_what_cannot_run_is_told() -> None:
    """A handler that cannot be imported, a function that is not there, an answer that is no JSON."""
    with InProcessLambda(FUNCTIONS) as cloud:
        with pytest.raises(CannotStart, match="BrokenFunction cannot start: ValueError: no luck today"):
            cloud.warm("BrokenFunction")
        assert cloud.invoke("BrokenFunction", {}).outcome is Outcome.ERROR
        with pytest.raises(ConfigurationError, match="no function 'Nope'"):
            cloud.check_function("Nope")
        cloud.submit("EchoFunction", {"do": "sleep", "ms": 100})
        with pytest.raises(TimeoutError, match="1 invocations were not over after 10 ms"):
            cloud.wait_idle(10)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A listener where the user's own variables say that AWS is; the requests that it got."""
    requests: list[str] = []

    class Aws(Handler):
        def do_POST(self) -> None:  # noqa: N802 - the base class calls it by this name
            requests.append(self.path)
            self.read_body()
            self.reply(202)

    server = Server(Aws, None)
    server.start()
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_LAMBDA", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.setenv(name, f"http://{server.address}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-users-own")
    monkeypatch.setenv("INCUMBENT_TARGET", "the-users-own")
    yield requests
    server.stop()


def test_no_request_leaves_the_process(aws: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `send` wakes runs here, under its alias; another service answers with an error; all is as it was then."""
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", mine := boto3.Session(aws_access_key_id="mine"))
    before = dict(os.environ)
    for _ in range(2):  # a client that is kept must not look for the cloud that is gone
        ended: list[Invocation] = []
        with InProcessLambda(FUNCTIONS, env={"INCUMBENT_PROVIDER": "memory"}, on_invocation=ended.append) as cloud:
            event = {"key": "k", "message": uuid.uuid4().hex, "target": "WorkerFunction:live"}
            assert cloud.invoke("FrontFunction", event).payload == {"statusCode": 202, "woken": True}
            cloud.wait_idle()
            asked = cloud.invoke("FrontFunction", {"ask": "dynamodb"})
        worker = next(each for each in ended if each.function == "WorkerFunction")
        assert [line.text for line in worker.logs] == [f"worked on {event['message']}"]
        assert (worker.asynchronous, worker.invoked_arn) == (True, f"{ARN}WorkerFunction:live")
        assert asked.error is not None
        assert "only Lambda's Invoke API is here" in asked.error["errorMessage"]
    assert aws == []
    assert dict(os.environ) == before
    assert boto3.DEFAULT_SESSION is mine


def test_a_function_may_wait_for_another() -> None:
    """Each has threads of its own, also where there is but one a function."""
    with InProcessLambda(FUNCTIONS, concurrency=1) as cloud:
        slow = cloud.submit("EchoFunction", {"do": "sleep", "ms": 300})
        assert cloud.invoke("ShortFunction", {}).ok
        assert not slow.done
