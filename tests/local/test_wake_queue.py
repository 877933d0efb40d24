"""Wakes with a delay are kept by the local clouds, and delivered at their time."""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from incumbent import SqsWaker, Wake
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import FunctionSpec, Invocation, LocalLambda, LogLine
from incumbent.local.in_process import InProcessLambda
from incumbent.local.replay import Replay
from incumbent.local.scenario import load_scenario
from incumbent.local.wake_queue import SEND_MESSAGE, VARIABLE
from incumbent.testing.servers import valkey

CODE = Path(__file__).parent / "app" / "functions" / "later"
TRACE = {"INCUMBENT_TRACE": "1"}


def function(name: str) -> FunctionSpec:
    """One of the application's functions."""
    layer = Path(__file__).parents[2] / "layer"
    return FunctionSpec(
        logical_id=name, name=name, handler=f"app.{name}", code=CODE, path=(CODE, layer), timeout_ms=60_000
    )


FUNCTIONS = [function(name) for name in ("burst", "front", "fails_once", "awaited")]


Cloud = LocalLambda | InProcessLambda
Open = Callable[[], AbstractContextManager[Cloud]]


@pytest.fixture(params=["memory", "redis"])
def opened(request: pytest.FixtureRequest) -> Open:
    """Threads on the memory provider, processes on a Valkey; opened by the test, which then catches what they print."""

    @contextmanager
    def on_memory() -> Iterator[Cloud]:
        with InProcessLambda(FUNCTIONS, env={"INCUMBENT_PROVIDER": "memory", **TRACE}, concurrency=12) as cloud:
            yield cloud

    @contextmanager
    def on_redis() -> Iterator[Cloud]:
        with valkey() as server:
            env = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": server.url, **TRACE}
            with LocalLambda(FUNCTIONS, env=env, concurrency=12) as cloud:
                yield cloud

    return on_memory if request.param == "memory" else on_redis


def ended(cloud: Cloud) -> list[Invocation]:
    """Wait for all, the wakes included."""
    cloud.wait_idle(60_000)
    return list(cloud._ledger.invocations)  # noqa: SLF001 - threads have no list of their own


def facts(invocations: list[Invocation], *names: str) -> list[dict[str, Any]]:
    """What the runtime told, in the order of time."""
    lines = [line.text for each in invocations for line in each.logs if line.text.startswith("INCUMBENT ")]
    told = [json.loads(line.removeprefix("INCUMBENT ")) for line in lines]
    return sorted((each for each in told if each["fact"] in names), key=lambda each: each["t_ms"])


def woken(invocations: list[Invocation]) -> list[Invocation]:
    """The invocations that a wake began."""
    return [each for each in invocations if "incumbent" in each.event]


def test_debounced_burst_is_one_run_that_no_invocation_waits_for(opened: Open) -> None:
    """Of 50 messages: 50 short invocations, at most 3 wakes, and one run with all of them."""
    with opened() as cloud:
        cloud.warm("burst", 4)
        for number in range(50):
            cloud.submit("burst", {"key": "k", "message": f"m-{number}"})
        invocations = ended(cloud)
        (run,) = facts(invocations, "run_ended")
        assert (run["outcome"], len(run["message_ids"])) == ("handled", 50)
        assert 1 <= len(woken(invocations)) <= 3
        short = [each for each in invocations if each not in woken(invocations)]
        assert len(short) == 50
        assert all(each.payload["status"] == "accepted" for each in short)
        assert statistics.median(each.ended_at_ms - each.started_at_ms for each in short) < 500


def test_pause_of_a_failed_message_is_kept(opened: Open) -> None:
    """A retry after a second comes after a second, not with the sweeper's next minute."""
    with opened() as cloud:
        cloud.invoke("front", {"key": "first", "message": "m"})  # its invocations make their clients
        before = len(ended(cloud))
        cloud.invoke("front", {"key": "k", "message": "m"})
        invocations = ended(cloud)[before:]
        failed, second = facts(invocations, "run_ended")[0], facts(invocations, "run_started")[1]
        assert facts(invocations, "run_ended")[1]["outcome"] == "handled"
        assert 1_000 <= second["t_ms"] - failed["t_ms"] <= 1_500


def order(item: str) -> Any:
    """What API Gateway makes of a request of one order; each has its own id."""
    event = json.loads((CODE.parents[4] / "events" / "api-gateway-http.json").read_text("utf-8"))
    context = {**event["requestContext"], "requestId": f"request of {item}"}
    body = json.dumps({"order_id": "o-1", "item": item})
    return {**event, "requestContext": context, "body": body, "isBase64Encoded": False}


def test_ten_callers_of_one_order_each_get_the_result_of_their_own_message(opened: Open) -> None:
    """Though one of them runs at a time; those that wait leave an environment to the successor that is woken."""
    with opened() as cloud:
        cloud.warm("awaited")
        pending = {item: cloud.submit("awaited", order(item)) for item in map("item-{}".format, range(10))}
        for item, each in pending.items():
            assert each.result(50_000).payload == {"statusCode": 200, "body": f"reserved {item}"}
        assert {run["outcome"] for run in facts(ended(cloud), "run_ended")} == {"handled"}


def test_wake_is_delivered_not_before_its_time_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the resume event that it stands for."""
    with InProcessLambda([function("burst")], env={"INCUMBENT_PROVIDER": "memory"}) as cloud:
        cloud.warm("burst")
        waker = SqsWaker(cloud.wake_queue.url)
        waker(Wake(key="bursts/other", ticket=None, target="burst", after_ms=1))  # which makes the client
        asked_ms = SYSTEM_CLOCK.now().wall_ms
        waker(Wake(key="bursts/k", ticket=None, target="burst", hops=3, after_ms=1_700))
        *_, woken = ended(cloud)
    assert woken.event == {"incumbent": {"v": 1, "key": "bursts/k", "ticket": None, "hops": 3}}
    assert woken.asynchronous
    assert woken.started_at_ms - woken.sent_at_ms < 500
    assert woken.sent_at_ms >= asked_ms + 1_700


def test_wake_without_a_function_is_told_in_the_log() -> None:
    """As the sweeper's function logs it."""
    lines: list[LogLine] = []
    with InProcessLambda([function("burst")], on_log=lines.append) as cloud:
        SqsWaker(cloud.wake_queue.url)(Wake(key="k", ticket=None, target="gone", after_ms=1))
        cloud.wait_idle(10_000)
    assert "cannot wake gone" in lines[0].text


def test_wake_of_another_day_does_not_hold_up_the_end() -> None:
    """What is due later than a minute from now is dropped when the cloud closes."""
    with InProcessLambda([function("burst")]) as cloud:
        SqsWaker(cloud.wake_queue.url)(Wake(key="k", ticket=None, target="burst", after_ms=86_400_000))
        cloud.wait_idle(1_000)
        assert ended(cloud) == []


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"QueueUrl": "http://elsewhere/q", "MessageBody": "{}"}, "QueueDoesNotExist"),
        ({"MessageBody": "{}"}, "InvalidParameterValue"),
        ({"MessageBody": 3}, "InvalidParameterValue"),
        ({"MessageBody": "{}", "DelaySeconds": 901}, "InvalidParameterValue"),
        ([], "InvalidParameterValue"),
    ],
)
def test_queue_refuses_what_is_not_a_wake(request_: Any, error: str) -> None:
    """It is there for wakes alone."""
    with InProcessLambda([function("burst")]) as cloud:
        if isinstance(request_, dict):
            request_ = {"QueueUrl": cloud.wake_queue.url, **request_}
        asked = Request(  # noqa: S310 - of this machine
            cloud.wake_queue.url.partition("/0")[0] + "/", json.dumps(request_).encode(), {"X-Amz-Target": SEND_MESSAGE}
        )
        with pytest.raises(HTTPError) as refused:
            urlopen(asked)  # noqa: S310 - as above
    with refused.value as answer:
        assert error in json.loads(answer.read())["__type"]


def test_replay_sweeps_until_nothing_waits(tmp_path: Path) -> None:
    """Without the queue, a message in its pause waits for the sweeper, as it does on AWS."""
    sweeper = replace(function("burst"), logical_id="sweeper", name="sweeper", handler="incumbent.sweeper.handler")
    (tmp_path / "event.json").write_text('{"key": "swept", "message": "m"}')
    (tmp_path / "s.json").write_text('{"function": "front", "event": "event.json", "steps": [{"at_ms": 0}]}')
    said: list[str] = []
    replay = Replay(load_scenario(tmp_path / "s.json"), said.append, show_answers=True)
    env = {"INCUMBENT_PROVIDER": "memory", VARIABLE: "", **TRACE}
    with InProcessLambda(
        [*FUNCTIONS, sweeper], env=env, on_log=replay.on_log, on_invocation=replay.on_invocation
    ) as cloud:
        summary = replay.run(cloud, lambda *_: "waiting", sweeper="sweeper", sweep_every_ms=1_500)
    assert (summary.handled_once, summary.waiting) == (1, ())
    assert any("sweeper" in line for line in said)
    assert any('"woken": 1' in line for line in said)
    assert replay.progress.startswith("1 of 1 sent, ")


def test_queue_can_be_left_out() -> None:
    """An empty variable: functions wake at once only, and the sweeper is the clock."""
    with InProcessLambda([function("burst")], env={VARIABLE: "", "INCUMBENT_PROVIDER": "memory"}) as cloud:
        answer = cloud.invoke("burst", {"key": "alone", "message": "m"})
        assert answer.payload == 1
        assert answer.ended_at_ms - answer.started_at_ms >= 1_500
