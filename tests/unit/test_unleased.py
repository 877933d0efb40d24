"""Events that need no lease pass without one, and every HTTP answer that is made here carries its headers."""

import concurrent.futures
import json
from typing import Any

import pytest

from incumbent import (
    ConfigurationError,
    Lease,
    LeaseKeyMissing,
    LeaseUnavailable,
    current_lease,
    leased,
    leased_function,
    send,
)
from incumbent.sources import source_of
from incumbent.sweeper import sweep
from tests.unit.stage import RecordingWaker, raising
from tests.unit.test_decorators import Shop, load, plain

CORS = {"Access-Control-Allow-Origin": "https://shop.example.com"}


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


def is_ping(event: Any) -> object:
    """What a keep-warm rule sends."""
    return event.get("warmer")


def test_ping_runs_without_a_lease(shop: Shop) -> None:
    """It has no key; the store is not asked; its errors are its own."""
    given: list[Any] = []

    def ran(event: Any, context: Any, *, lease: Lease | None) -> str:
        given.extend((event, lease, current_lease()))
        if event.get("fails"):
            raise LeaseUnavailable("the handler's own")
        return "warm"

    handler: Any = leased(key_jmespath="k", keyspace="shop", provider=shop.store, unless=is_ping, clock=shop.clock)(ran)
    assert handler({"warmer": True}, shop.context()) == "warm"
    assert given == [{"warmer": True}, None, None]
    with pytest.raises(LeaseUnavailable, match="own"):
        handler({"warmer": True, "fails": True}, shop.context())
    assert shop.store.calls == []
    with pytest.raises(LeaseKeyMissing):
        handler({"other": True}, shop.context())
    handler({"k": "a"}, shop.context())
    assert isinstance(given[-2], Lease)


def test_ping_of_an_async_handler_is_awaited(shop: Shop) -> None:
    """It becomes a plain function as ever."""

    @leased(key_jmespath="k", keyspace="shop", provider=shop.store, unless=is_ping, clock=shop.clock)
    async def handler(event: Any, context: Any, *, lease: Lease | None) -> str:
        return "warm" if lease is None else "leased"

    ask: Any = handler
    assert [ask({"warmer": 1}, None), ask({"k": "a"}, None)] == ["warm", "leased"]


def test_handler_that_takes_no_lease_is_given_none(shop: Shop) -> None:
    """Also below a logger's lines."""
    handler: Any = leased(key_jmespath="k", keyspace="shop", provider=shop.store, unless=is_ping, clock=shop.clock)(
        lambda event, _: event
    )
    assert handler({"warmer": 1}, None) == {"warmer": 1}


def test_call_of_a_function_may_pass_too(shop: Shop) -> None:
    """``leased_function``: with the arguments that it was called with."""

    def apply(order: Any, more: int = 0, *, lease: Lease | None) -> Any:
        return order, more, lease

    applied = leased_function(key_jmespath="k", keyspace="shop", provider=shop.store, unless=is_ping, clock=shop.clock)(
        apply
    )
    assert applied({"warmer": 1}, 7) == ({"warmer": 1}, 7, None)
    assert shop.store.calls == []


async def says_no(*_: Any, **__: Any) -> Any:
    """An answer that nobody awaits."""
    return False


class SaysNo:
    """An asynchronous hook that does not look like one."""

    async def __call__(self, *_: Any, **__: Any) -> Any:
        """Answer."""
        return False


def hook_that_returns(make: Any) -> Any:
    """A plain hook whose answer is not one yet."""
    return lambda *_, **__: make()


UNDONE: list[Any] = [
    hook_that_returns(says_no),
    hook_that_returns(concurrent.futures.Future),
    hook_that_returns(lambda: (each for each in [False])),
]


@pytest.mark.parametrize("answer", UNDONE)
@pytest.mark.parametrize("hook", ["unless", "key", "message_id", "store"])
def test_answer_that_is_not_one_yet_switches_no_lease_off(shop: Shop, hook: str, answer: Any) -> None:
    """A coroutine is true of every event; it is refused before the store is asked, whoever waits."""
    options: dict[str, Any] = {"key_jmespath": "k" if hook != "key" else None, hook: answer}
    handler = shop.handler(**options)
    for event in ({"k": "a"}, {"k": "a", **load("function-url")}):
        with pytest.raises(ConfigurationError, match=rf"{hook}.* returned a (coroutine|Future|generator)"):
            handler(event, shop.context())
    assert shop.store.calls == []
    assert shop.seen == []


@pytest.mark.parametrize("answer", UNDONE)
def test_send_refuses_a_stored_value_that_is_not_one_yet(shop: Shop, answer: Any) -> None:
    """As the handlers do."""
    with pytest.raises(ConfigurationError, match=r"store returned a (coroutine|Future|generator)"):
        send("a", {}, keyspace="shop", provider=shop.store, waker=None, store=answer)
    assert shop.store.calls == []


@pytest.mark.parametrize("answer", UNDONE)
def test_answer_of_on_busy_that_is_not_one_yet_is_refused(shop: Shop, answer: Any) -> None:
    """Lambda could not send it either."""
    shop.occupy()
    with pytest.raises(ConfigurationError, match=r"on_busy returned a (coroutine|Future|generator)"):
        shop.handler(on_busy=answer)({"k": "a"}, shop.context())


@pytest.mark.parametrize(
    "hook", ["unless", "key", "message_id", "store", "on_busy", "on_result", "on_lost", "on_dead_letter", "observer"]
)
def test_object_with_an_async_call_is_refused_at_decoration(hook: str) -> None:
    """As an ``async def`` is."""
    options: dict[str, Any] = {"key": "k", hook: SaysNo()}
    with pytest.raises(ConfigurationError, match=f"{hook} is async"):
        leased(**options)(plain)


@pytest.mark.parametrize("answer", UNDONE)
def test_hook_whose_work_is_not_done_is_logged(shop: Shop, caplog: pytest.LogCaptureFixture, answer: Any) -> None:
    """It changes no outcome, and is not lost without a word."""
    shop.handler(observer=answer)({"k": "a"}, shop.context())
    assert "returned a " in caplog.text


@pytest.mark.parametrize("answer", UNDONE)
def test_wake_whose_work_is_not_done_has_failed(shop: Shop, answer: Any) -> None:
    """A waker that returns a coroutine has woken nothing: not for `send`, nor for the sweeper, nor for a handler."""
    assert not send("a", {"k": "a"}, keyspace="shop", target="shop", provider=shop.store, waker=answer).woken
    assert sweep(shop.store, answer, clock=shop.clock).failed == 1
    shop.handler(waker=answer, drain_ms=0)({"k": "a"}, shop.context())
    assert "wake_failed" in shop.facts.names


def test_resume_event_is_never_passed_by(shop: Shop) -> None:
    """Not even by what is true of every event."""
    wakes = RecordingWaker()
    handler = shop.handler(waker=wakes, drain_ms=0)
    shop.during = lambda event: handler({"k": "a", "n": 2}, shop.context("request-2")) if event.get("n") == 1 else None
    handler({"k": "a", "n": 1}, shop.context())
    everything = shop.handler(unless=lambda _: True)
    assert everything(wakes.wakes[0].to_event(), shop.context("request-3")) == {"status": "resumed"}
    assert [event["n"] for event in shop.seen] == [1, 2]


def test_unless_that_raises_says_so(shop: Shop) -> None:
    """A caller is answered 400, as by a key that raises."""
    handler = shop.handler(unless=lambda event: event["missing"])
    with pytest.raises(LeaseKeyMissing, match=r"unless failed on the event \(KeyError"):
        handler({"k": "a"}, shop.context())
    assert handler(load("api-gateway-http"), shop.context())["statusCode"] == 400


@pytest.mark.parametrize("name", ["alb", "api-gateway-http", "api-gateway-rest", "function-url"])
def test_every_http_answer_carries_the_headers(shop: Shop, name: str) -> None:
    """Also errors: a browser shows a page none without CORS'; its own content-type and retry-after stay."""
    event = load(name)
    options: dict[str, Any] = {"key": "a", "key_jmespath": None, "answer_headers": {**CORS, "Content-Type": "text/x"}}
    handler = shop.handler(**options)
    shop.occupy()
    answers = [
        handler(event, shop.context()),
        shop.handler(**options, when_busy="reject", message_id=lambda _: "other")(event, shop.context()),
        shop.handler(**{**options, "key": None, "key_jmespath": "k"})(event, shop.context()),
    ]
    shop.store.before["claim"] = raising(LeaseUnavailable("no answer"))
    answers.append(handler(event, shop.context()))
    assert [answer["statusCode"] for answer in answers] == [202, 409, 400, 503]
    for answer in answers:
        assert answer["headers"]["access-control-allow-origin"] == "https://shop.example.com"
        assert answer["headers"]["content-type"] == "application/json"
        assert ("retry-after" in answer["headers"]) == (answer["statusCode"] in {409, 503})
    assert json.loads(answers[0]["body"])["status"] == "accepted"


def test_lists_of_headers_carry_them_as_lists(shop: Shop) -> None:
    """A load balancer's target group with multi-value headers."""
    event = load("alb")
    event["multiValueHeaders"] = {header: [value] for header, value in event.pop("headers").items()}
    assert source_of(event).multi_value_headers
    shop.occupy()
    answer = shop.handler(key="a", key_jmespath=None, answer_headers=CORS)(event, shop.context())
    assert answer["multiValueHeaders"]["access-control-allow-origin"] == ["https://shop.example.com"]


def test_source_without_headers_is_answered_as_ever(shop: Shop) -> None:
    """There is no place for them."""
    shop.occupy()
    answer = shop.handler(answer_headers=CORS)({"k": "a"}, shop.context())
    assert answer == {"status": "accepted", "key": "a", "message_id": "request-1"}


@pytest.mark.parametrize("option", [{"answer_headers": {"a": 1}}, {"answer_headers": "a"}, {"unless": True}], ids=repr)
def test_options_that_cannot_work_are_refused(option: dict[str, Any]) -> None:
    """When it decorates."""
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        leased(key="k", **option)(plain)
