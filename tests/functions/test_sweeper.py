"""The sweeper's function, which is in the layer: it sweeps what the environment names, and ends in time."""

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from incumbent import ConfigurationError, Message, Origin, StoredFormatUnknown, Wake, sweeper
from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers.memory import process_memory
from incumbent.testing import stand_in
from incumbent.testing.servers import AWS_ENVIRONMENT
from tests.functions.conftest import Context

TTL_MS = 30_000
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:thread:live"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The function, as in a new environment, on this process's memory."""
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    caches = (sweeper._from_env, sweeper._waker, sweeper._later_waker)  # noqa: SLF001
    for cache in caches:
        cache.cache_clear()
    yield sweeper
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def orphans() -> Iterator[None]:
    """Three keys with a message and no owner; their messages are handled in the end, since the memory is shared."""
    provider, keys = process_memory(), [f"sweeper-test/{uuid4()}" for _ in range(3)]
    for key in keys:
        origin = Origin(keyspace="sweeper-test", target=ARN)
        provider.claim(key, "ticket", TTL_MS, Message(id="m1", event={}), as_ticket=True, origin=origin)
        provider.release_lease(key, "ticket")
    yield
    for key in keys:
        provider.claim(key, "owner", TTL_MS, None)
        provider.settle(key, "owner", ttl_ms=TTL_MS, handled=["m1"])


def test_nothing_to_sweep_is_a_good_pass(app: ModuleType) -> None:
    """Most minutes are."""
    assert app.handler({}, Context(aws_request_id="r"))["found"] == 0


def test_pass_ends_before_the_invocation(app: ModuleType, orphans: None) -> None:
    """Without time it finds one key and wakes none; the next pass continues the search there."""
    swept = app.handler({}, Context(aws_request_id="r", remaining_ms=app.END_MS - 1))
    assert (swept["found"], swept["woken"], swept["remaining"]) == (1, 0, 1)


def test_limit_comes_from_the_environment(app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake that fails uses up nothing of it, so here, where no Lambda is, all three are tried."""
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    swept = app.handler({}, Context(aws_request_id="r"))
    assert (swept["found"], swept["failed"], swept["remaining"]) == (3, 3, 0)


def test_provider_without_messages_is_a_mistake_that_is_told(app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweeper that never finds anything would look well."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "none")
    with pytest.raises(ConfigurationError, match="stores no messages"):
        app.handler({}, Context(aws_request_id="r"))


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "9" * 5_000, "many", "1.5", "\u0663"])
def test_limit_that_makes_no_sense_is_refused(app: ModuleType, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """As a setting that cannot work, by its name or as the limit it is."""
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", limit)
    with pytest.raises(ConfigurationError, match=r"INCUMBENT_SWEEP_LIMIT|limit is"):
        app.handler({}, Context(aws_request_id="r"))
    monkeypatch.setenv("INCUMBENT_SWEEP_LIMIT", " ")
    assert app.handler({}, Context(aws_request_id="r"))["found"] == 0


def test_environment_remembers_what_its_passes_woke(
    app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: it backs off from a function that makes no progress, from one invocation to the next."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    swept = [app.handler({}, Context(aws_request_id="r")) for _ in range(3)]
    assert [(each["failed"], each["paused"]) for each in swept] == [(3, 0), (3, 0), (0, 3)]


def test_wake_of_the_sweeper_is_small() -> None:
    """It carries no ticket: whoever is woken claims the key as anybody would (M8)."""
    event = Wake(key="k", ticket=None, target=ARN).to_event()
    assert event == {"incumbent": {"v": 1, "key": "k", "ticket": None, "hops": 0}}


# --- delayed wakes


def record(message_id: str, body: str) -> dict[str, Any]:
    """A record as SQS' mapping brings it."""
    return {"messageId": message_id, "eventSource": "aws:sqs", "body": body}


def queued(message_id: str, after_ms: int, key: str = "thread/k") -> dict[str, Any]:
    """The record of a wake that is due in so many milliseconds."""
    wake = Wake(key=key, ticket=None, target=ARN, hops=2, after_ms=after_ms)
    return record(message_id, wake.to_queue(SYSTEM_CLOCK.now().wall_ms))


def test_queued_wake_that_is_due_wakes_its_function_and_another_is_sent_on(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS delays a message by 15 minutes at most: the rest of a longer delay remains."""
    monkeypatch.setenv("INCUMBENT_WAKE_QUEUE_URL", "https://sqs.eu-central-1.amazonaws.com/123456789012/wakes")
    wakes: list[Wake] = []
    event = {"Records": [queued("a", -5), queued("b", 3_600_000), queued("c", 0, key="thread/l")]}
    with stand_in(wakes=wakes):
        assert app.handler(event, Context(aws_request_id="r")) == {"batchItemFailures": []}
    assert [(wake.key, wake.target, wake.hops) for wake in wakes] == [
        ("thread/k", ARN, 2),
        ("thread/k", ARN, 2),
        ("thread/l", ARN, 2),
    ]
    assert wakes[0].after_ms == wakes[2].after_ms == 0
    assert 3_590_000 < wakes[1].after_ms <= 3_600_000
    assert wakes[0].to_event() == {"incumbent": {"v": 1, "key": "thread/k", "ticket": None, "hops": 2}}


def test_record_that_fails_is_reported_alone(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQS brings it again, and gives up in the end; no payload is in the log, and the others are served."""
    monkeypatch.delenv("INCUMBENT_WAKE_QUEUE_URL", raising=False)
    wakes: list[Wake] = []
    later = json.dumps({"incumbent_wake": {"v": 2, "key": "thread/k"}})
    records = [record("a", "hello"), record("b", later), queued("c", 60_000), {"messageId": "d"}, queued("e", 0)]
    with stand_in(wakes=wakes):
        answer = app.handler({"Records": records}, Context(aws_request_id="r"))
    assert answer == {"batchItemFailures": [{"itemIdentifier": each} for each in "abcd"]}
    assert len(wakes) == 1
    assert caplog.text.count("wake_failed") == 4
    assert "record a: ConfigurationError: its body is not a queued wake" in caplog.text
    assert "hello" not in caplog.text
    assert "version 2" in caplog.text
    assert "set INCUMBENT_WAKE_QUEUE_URL" in caplog.text


def test_no_queued_wake_begins_at_the_end(app: ModuleType) -> None:
    """What is left of the batch comes again."""
    context = Context(aws_request_id="r", remaining_ms=app.END_MS)
    wakes: list[Wake] = []
    with stand_in(wakes=wakes):
        answer = app.handler({"Records": [queued("a", 0)]}, context)
    assert (answer, wakes) == ({"batchItemFailures": [{"itemIdentifier": "a"}]}, [])


def test_function_that_is_gone_fails_its_record(app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any wake that Lambda refuses."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    answer = app.handler({"Records": [queued("a", 0)]}, Context(aws_request_id="r"))
    assert answer == {"batchItemFailures": [{"itemIdentifier": "a"}]}


# --- control

CONTROL = {"incumbent": {"v": 1, "control": {"do": "keys", "keyspace": "sweeper-test"}}}


def test_operator_s_request_is_carried_out(app: ModuleType, orphans: None) -> None:
    """On the store of the environment; nothing is swept."""
    answer = app.handler(CONTROL, Context(aws_request_id="r"))
    assert len(answer["keys"]) == 3
    key = answer["keys"][0]["key"]
    hold = {"incumbent": {"v": 1, "control": {"do": "hold", "key": key}}}
    assert app.handler(hold, Context(aws_request_id="r"))["key"]["held"]
    resume = {"incumbent": {"v": 1, "control": {"do": "resume", "key": key}}}
    with stand_in(process_memory(), wakes=(wakes := list[Wake]())):
        assert app.handler(resume, Context(aws_request_id="r"))["woken"] == ARN
    assert [wake.key for wake in wakes] == [key]


@pytest.mark.parametrize("arn", ["", ":live", ":control"])
def test_alias_decides_who_may_control(app: ModuleType, monkeypatch: pytest.MonkeyPatch, arn: str) -> None:
    """The schedule, the queue and the doctor invoke the function by other names, which have other policies."""
    monkeypatch.setenv("INCUMBENT_CONTROL_ALIAS", "control")
    name = "arn:aws:lambda:eu-central-1:123456789012:function:shop-sweeper"
    context = Context(aws_request_id="r", function_name="shop-sweeper", invoked_function_arn=f"{name}{arn}")
    if arn == ":control":
        assert app.handler(CONTROL, context)["v"] == 1
    else:
        with pytest.raises(ConfigurationError, match="invoke shop-sweeper:control"):
            app.handler(CONTROL, context)
    assert app.handler({}, context)["found"] == 0


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        ({"v": 2, "control": {"do": "keys"}}, StoredFormatUnknown),
        ({"control": {"do": "keys"}}, ConfigurationError),
        ({"v": 1, "control": {"do": "drop"}}, ConfigurationError),
    ],
)
def test_event_for_control_is_checked(app: ModuleType, inner: dict[str, Any], error: type[Exception]) -> None:
    """A request that is not understood must not become a pass of the sweeper."""
    with pytest.raises(error):
        app.handler({"incumbent": inner}, Context(aws_request_id="r"))


def test_metrics_of_a_pass_are_printed(
    app: ModuleType, orphans: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a namespace is set for them; an alarm counts what could not be woken."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:1")
    app.handler({}, Context(aws_request_id="r"))
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("INCUMBENT_METRICS_NAMESPACE", "Shop")
    app.handler({}, Context(aws_request_id="r"))
    printed = capsys.readouterr().out
    assert '"Namespace":"Shop"' in printed.replace(" ", "")
    assert "Orphan" in printed
