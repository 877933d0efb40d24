"""``@leased`` and ``leased_function``: checked when they decorate, and then plain functions with an owner a key."""

from __future__ import annotations  # so that annotations are text, as in many a user's module

import asyncio
import contextlib
import enum
import functools
import inspect
import json
import logging
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jmespath
import pytest
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from incumbent import (
    Busy,
    ConfigurationError,
    Duplicate,
    DuplicateMessage,
    Idle,
    Lease,
    LeaseBusy,
    LeaseKeyMissing,
    LeaseLost,
    LeaseUnavailable,
    Message,
    Policy,
    Routed,
    Stop,
    Wake,
    current_lease,
    leased,
    leased_function,
)
from incumbent.clock import SYSTEM_CLOCK
from incumbent.options import CheckedOptions
from incumbent.providers.memory import MemoryProvider, process_memory
from incumbent.settings import Settings
from incumbent.sources import source_of
from incumbent.stand_in import STAND_IN
from incumbent.testing import stand_in
from tests.unit.stage import ARN, Facts, Little, Meddled, RecordingWaker, StepClock, beside, context, raising

if TYPE_CHECKING:
    from tests.unit.stage import Context

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "events"
TTL_MS = 30_000


def load(name: str) -> Any:
    """Read one sample event."""
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


ORDER_KEYS: Mapping[str, str] = {
    "alb": "powertools_json(body).order_id",
    "api-gateway-http": "powertools_json(body).order_id",
    "api-gateway-rest": "pathParameters.order_id",
    "chat-message": "powertools_json(body).thread_id",
    "eventbridge": "detail.order_id",
    "eventbridge-replayed": "detail.order_id",
    "function-url": "powertools_json(body).order_id",
    "invoke": "order_id",
    "s3-via-eventbridge": "detail.object.key",
    "slack": "powertools_json(body).event.thread_ts",
    "sns": "powertools_json(Records[0].Sns.Message).order_id",
    "step-functions": "input.order_id",
}


@dataclass(slots=True)
class Shop:
    """A store, its clock, and handlers that note what they are given."""

    clock: StepClock = field(default_factory=StepClock)
    facts: Facts = field(default_factory=Facts)
    store: Any = None
    seen: list[Any] = field(default_factory=list)
    during: Callable[[Any], Any] = lambda _: None

    def __post_init__(self) -> None:
        """Begin empty."""
        self.store = Meddled(MemoryProvider(clock=self.clock))

    def handler(self, **options: Any) -> Any:
        """A decorated handler; ``during`` is what it does, with its event."""
        chosen = {
            "key_jmespath": "k",
            "keyspace": "shop",
            "provider": self.store,
            "clock": self.clock,
            "waker": None,
            "observer": self.facts,
            **options,
        }

        @leased(**chosen)
        def handler(event: Any, context: Any, *, lease: Lease) -> Any:
            self.seen.append(event)
            return self.during(event)

        return handler

    def context(self, request_id: str = "request-1", **more: Any) -> Context:
        """An invocation's context."""
        return context(self.clock, request_id=request_id, **more)

    def peek(self, key: str = "shop/a") -> list[Message]:
        """What is stored of a key."""
        return list(self.store.peek(key))

    def occupy(self, key: str = "shop/a") -> None:
        """Let somebody else own a key."""
        self.store.acquire_lease(key, "somebody", TTL_MS)


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


# --- what is refused when it decorates


def plain(event: Any, context: Any) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give key= or key_jmespath="),
        ({"key": "k", "key_jmespath": "k"}, "one of them"),
        ({"key": ""}, "non-empty text or a callable"),
        ({"key": 7}, "non-empty text or a callable"),
        ({"key": b"k"}, "non-empty text or a callable"),
        ({"key_jmespath": ""}, "not a JMESPath expression"),
        ({"key_jmespath": "a["}, "not a JMESPath expression"),
        ({"key_jmespath": 7}, "not a JMESPath expression"),
        ({"key_jmespath": "powertool_json(body).id"}, "a function that JMESPath does not have"),
        ({"key_jmespath": "powertools_jsn(body).id"}, "a function that JMESPath does not have"),
        ({"key": "k", "message_id": len, "message_id_jmespath": "id"}, "not both"),
        ({"key": "k", "message_id": "id"}, "give a callable"),
        ({"key": "k", "message_id_jmespath": "id["}, "not a JMESPath expression"),
        ({"key": "k", "keyspace": "a/b"}, "without a slash"),
        ({"key": "k", "keyspace": 7}, "without a slash"),
        ({"key": "k", "store": "body"}, "store is 'body'"),
        ({"key": "k", "store": None}, "store is None"),
        ({"key": "k", "target": ""}, "give a function's name or ARN"),
        ({"key": "k", "target": 7}, "give a function's name or ARN"),
        ({"key": "k", "on_busy": 1}, "on_busy is 1"),
        ({"key": "k", "on_result": 1}, "on_result is 1"),
        ({"key": "k", "on_lost": 1}, "on_lost is 1"),
        ({"key": "k", "on_dead_letter": 1}, "on_dead_letter is 1"),
        ({"key": "k", "observer": 1}, "observer is 1"),
        ({"key": "k", "waker": "lambda"}, "give a callable that is not async, 'auto' or None"),
        ({"key": "k", "waker": 7}, "give a callable that is not async, 'auto' or None"),
        ({"key": "k", "logger": logging.getLogger()}, "Powertools Logger"),
        ({"key": "k", "ttl_ms": 0}, "ttl_ms"),
        ({"key": "k", "ttl_ms": True}, "ttl_ms"),
        ({"key": "k", "ttl_ms": 1_000, "renew_every_ms": 501}, "renew_every_ms"),
        ({"key": "k", "when_busy": "wait"}, "when_busy"),
        ({"key": "k", "deliver": "two"}, "deliver"),
        ({"key": "k", "debounce_ms": 100}, "debounce_ms"),
        ({"key": "k", "drain_ms": -1}, "drain_ms"),
        ({"key": "k", "stop_before_ms": 0.5}, "stop_before_ms"),
        ({"key": "k", "max_hops": -1}, "max_hops"),
    ],
    ids=repr,
)
def test_options_that_cannot_work_are_refused_at_decoration(options: dict[str, Any], said: str) -> None:
    """Each with a message that names it, from both decorators, before any event comes."""
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        leased(**options)(plain)
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        leased_function(**options)(plain)


def test_refusal_names_the_handler() -> None:
    """Somebody reads it in a log without a traceback."""
    with pytest.raises(ConfigurationError, match=r"test_decorators\.plain"):
        leased()(plain)


def test_unknown_option_is_refused() -> None:
    """As an argument that a function does not have, with those that it has."""
    wrong: dict[str, Any] = {"key": "k", "lease_ms": 1}
    for decorator in (leased, leased_function):
        with pytest.raises(TypeError, match="no option lease_ms; it has answer_headers, cancel_on_stop, clock,"):
            decorator(**wrong)


def test_decorators_take_keywords_only() -> None:
    """``@leased`` without parentheses is a mistake that shows at once."""
    bare: Any = leased
    with pytest.raises(TypeError):
        bare(plain)
    with pytest.raises(TypeError):
        bare("key")


class Callme:
    """No function, though it can be called."""

    def __call__(self, event: Any, context: Any) -> None:
        """Do nothing."""

    def method(self, event: Any, context: Any) -> None:
        """Do nothing."""


def generator(event: Any, context: Any) -> Any:
    """A generator function."""
    yield event


async def async_generator(event: Any, context: Any) -> Any:
    """An asynchronous one."""
    yield event


@pytest.mark.parametrize(
    "thing",
    [Callme, Callme(), functools.partial(plain, None), generator, async_generator, None, "plain", print],
    ids=["class", "callable object", "partial", "generator", "async generator", "none", "text", "builtin"],
)
@pytest.mark.parametrize("decorator", [leased, leased_function])
def test_what_is_no_plain_function_is_refused(decorator: Any, thing: Any) -> None:
    """A class would not be a function for the middleware above; a generator's work would come after the settle."""
    with pytest.raises(ConfigurationError, match=r"decorates functions|is a generator"):
        decorator(key="k")(thing)


def test_handler_that_is_leased_already_is_refused() -> None:
    """It would wait for itself."""
    for decorator in (leased, leased_function):
        with pytest.raises(ConfigurationError, match="leased already"):
            decorator(key="k")(leased(key="k")(plain))


def test_result_is_a_plain_function_with_the_handlers_name() -> None:
    """Powertools' middleware wants a real one; what it is called is what is traced."""
    for decorated in (leased(key="k")(plain), leased_function(key="k")(plain)):
        assert inspect.isfunction(decorated)
        assert (decorated.__name__, decorated.__doc__) == ("plain", "A handler.")
        assert decorated.__module__ == __name__
        assert inspect.unwrap(decorated) is plain
        assert list(inspect.signature(decorated).parameters) == ["event", "context"]


# --- the key


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"key": "all", "key_jmespath": None}, "all"),
        ({"key": lambda event: event["k"] + "!", "key_jmespath": None}, "a!"),
        ({"key_jmespath": "k"}, "a"),
        ({"key_jmespath": "n"}, "7"),
        ({"key": lambda _: 0, "key_jmespath": None}, "0"),
        ({"key_jmespath": "powertools_json(body).id"}, "inner"),
        ({"key_jmespath": "join('-', [k, powertools_base64(b64)])"}, "a-text"),
    ],
    ids=["constant", "callable", "expression", "integer", "zero", "json", "functions"],
)
def test_key_is_a_constant_a_callable_or_an_expression(shop: Shop, options: dict[str, Any], key: str) -> None:
    """Text, or a whole number; with Powertools' functions."""
    keys: list[str] = []
    event = {"k": "a", "n": 7, "body": '{"id": "inner"}', "b64": "dGV4dA=="}

    def during(_: Any) -> None:
        lease = current_lease()
        assert lease is not None
        keys.append(lease.key)

    shop.during = during
    shop.handler(**options)(event, shop.context())
    assert keys == [key]
    assert {fact.key for fact in shop.facts.told} == {f"shop/{key}"}


@pytest.mark.parametrize("value", [None, "", {}, {"a": 1}, [], ["a"], True, False, 1.0, float("nan")], ids=repr)
@pytest.mark.parametrize(
    "options", [{"key_jmespath": "k"}, {"key": lambda event: event["k"], "key_jmespath": None}], ids=["jmespath", "key"]
)
def test_value_that_is_no_key_is_refused(shop: Shop, options: dict[str, Any], value: Any) -> None:
    """The error names the expression and what it gave; nothing was asked, nothing was run."""
    # H38: default key shared by strangers: oxbow #9.
    with pytest.raises(LeaseKeyMissing) as error:
        shop.handler(**options)({"k": value}, shop.context())
    assert ("key_jmespath 'k'" if options["key_jmespath"] else "<lambda>") in str(error.value)
    assert type(value).__name__ in str(error.value)
    assert (shop.store.calls, shop.seen) == ([], [])


@pytest.mark.parametrize(
    ("options", "event", "cause"),
    [
        ({"key": lambda event: event["missing"], "key_jmespath": None}, {}, KeyError),
        ({"key": lambda event: event.order, "key_jmespath": None}, {}, AttributeError),
        ({"key_jmespath": "powertools_json(body).id"}, {"body": "{not json"}, Exception),
        ({"key_jmespath": "powertools_json(body).id"}, {"body": None}, Exception),
        ({"key_jmespath": "length(k)"}, {"k": 7}, Exception),
    ],
)
def test_key_that_raises_is_missing(shop: Shop, options: dict[str, Any], event: Any, cause: type[Exception]) -> None:
    """Whatever a callable or an expression raises means that the event lacks what it needs; it is the cause."""
    with pytest.raises(LeaseKeyMissing) as error:
        shop.handler(**options)(event, shop.context())
    assert isinstance(error.value.__cause__, cause)
    assert shop.store.calls == []


@pytest.mark.parametrize("path", ["a", "a.b", "a.b.c", "_a1.B_2", "missing.b"])
@pytest.mark.parametrize(
    "event",
    [
        {"a": "text", "_a1": {"B_2": 7}},
        {"a": {"b": {"c": "deep"}, "c": 1}},
        {"a": {"b": None}},
        {"a": {"b": ["c"]}, "a.b": "no"},
        {"a": None},
        {},
        [{"a": 1}],
        "a",
        None,
    ],
)
def test_path_gives_what_jmespath_gives(path: str, event: Any) -> None:
    """It is read without jmespath, which takes 5 ms to import."""
    options = CheckedOptions("orders", {"key_jmespath": path}, Settings())
    assert isinstance(options.key.choose, functools.partial)
    assert options.key.choose(event) == jmespath.search(path, event)


def test_function_that_jmespath_does_not_have_blames_the_expression(shop: Shop) -> None:
    """Not the event: where it stands behind a value, it shows at the first event that has the value."""
    handler = shop.handler(key_jmespath="a.b[?c == lower(d)] | [0].c")
    with pytest.raises(ConfigurationError, match=r"Shop\.handler.*a function that JMESPath does not have.*lower"):
        handler({"a": {"b": [{"c": "x", "d": "X"}]}}, shop.context())
    assert shop.store.calls == []


def test_own_error_of_a_key_function_goes_through(shop: Shop) -> None:
    """It may say better what is wrong."""
    said = LeaseKeyMissing("no thread in this channel")
    with pytest.raises(LeaseKeyMissing) as error:
        shop.handler(key=raising(said), key_jmespath=None)({}, shop.context())
    assert error.value is said


class Colour(str, enum.Enum):  # noqa: UP042 - the kind that shows itself by another text
    """What parsers make of a field with few values."""

    RED = "red"


class Number(int, enum.Enum):
    """What parsers make of a field with few numbers."""

    FIVE = 5


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (Colour.RED, "red"),
        (Number.FIVE, "5"),
        (HTTPStatus.OK, "200"),
        (-7, "-7"),
        (10**20, "1" + "0" * 20),
    ],
    ids=["text enum", "number enum", "IntEnum", "negative", "long"],
)
def test_key_is_its_characters(shop: Shop, key: Any, name: str) -> None:
    """Not how its type shows it."""
    shop.handler(key=lambda _: key, key_jmespath=None, message_id=lambda _: key)({}, shop.context())
    assert {(fact.key, fact.message_id) for fact in shop.facts.told} == {(f"shop/{name}", name)}


def test_number_with_thousands_of_digits_is_no_key(shop: Shop) -> None:
    """Python refuses to write it out; that is no reason for another error."""
    for options in ({"key": lambda _: 10**5_000}, {"key": "k", "message_id": lambda _: 10**5_000}):
        with pytest.raises(LeaseKeyMissing, match="int"):
            shop.handler(**options, key_jmespath=None)({}, shop.context())
    assert shop.store.calls == []


def test_key_that_no_store_takes_is_missing(shop: Shop) -> None:
    """R10: nothing was asked. One that is too long is taken by its digest: test_long_names.py."""
    with pytest.raises(LeaseKeyMissing, match="no usable key"):
        shop.handler()({"k": "\ud800"}, shop.context())
    assert shop.store.calls == []


@pytest.mark.parametrize("key", ["a/b", "{a}", "%41", "a\0b", "🔑", " "])
def test_any_character_is_allowed_in_a_key(shop: Shop, key: str) -> None:
    """H27."""
    shop.handler()({"k": key}, shop.context())
    assert {fact.key for fact in shop.facts.told} == {f"shop/{key}"}


# --- the keyspace


def test_keyspace_keeps_two_handlers_apart(shop: Shop) -> None:
    """Unless set it is the function's name as Lambda says it, else the handler's."""
    shop.handler(keyspace=None)({"k": "a"}, shop.context())
    (key,) = {fact.key for fact in shop.facts.told}
    assert key == f"{__name__}.Shop.handler.<locals>.handler/a"


def test_keyspace_is_the_functions_name_in_lambda(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when an event comes, so that a layer's module may be imported anywhere."""
    handler = shop.handler(keyspace=None)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    handler({"k": "a"}, shop.context())
    assert {fact.key for fact in shop.facts.told} == {"orders/a"}


def test_empty_keyspace_leaves_the_key_as_it_stands(shop: Shop) -> None:
    """For sharing it with others."""
    shop.handler(keyspace="")({"k": "a/b"}, shop.context())
    assert {fact.key for fact in shop.facts.told} == {"a/b"}


def test_keys_of_two_keyspaces_never_meet(shop: Shop) -> None:
    """H28: a keyspace holds no slash, so the first one parts them."""
    shop.handler(keyspace="a")({"k": "b/c"}, shop.context())
    with pytest.raises(ConfigurationError):
        shop.handler(keyspace="a/b")


# --- the message's id


@pytest.mark.parametrize(
    ("name", "message_id"),
    [
        ("alb", "Root=1-69071f92-3f1c2b7a9d5e4c6081a2b3c4"),
        ("api-gateway-http", "QhYA0g3sliAEPvQ="),
        ("api-gateway-rest", "QhYBSExampleAEbGw="),
        ("chat-message", "QhX7cjVWliAEJ3w="),
        ("eventbridge", "6a7e8feb-b491-4cf7-a9f1-bf3703467718"),
        ("eventbridge-replayed", "6a7e8feb-b491-4cf7-a9f1-bf3703467718#replay#orders-after-outage"),
        ("function-url", "5c0b8b1e-2f43-4c1a-9f0d-1d2f6c9f7a10"),
        ("invoke", "request-1"),
        ("s3-via-eventbridge", "2ee9cc15-d022-99ea-1fb8-1b1bac4850f9"),
        ("slack", "QhYCVExampleAEcOw="),
        ("sns", "95df01b4-ee98-5cb9-9903-4c221d41eb5e"),
        ("step-functions", "request-1"),
    ],
)
def test_message_id_is_the_sources_own(shop: Shop, name: str, message_id: str) -> None:
    """The same on every delivery; else the request id, which an asynchronous retry keeps."""
    handler = shop.handler(key_jmespath=ORDER_KEYS[name])
    handler(load(name), shop.context())
    assert {fact.message_id for fact in shop.facts.told} == {message_id}
    with contextlib.suppress(DuplicateMessage):  # a state machine is told by an error
        handler(load(name), shop.context())  # delivered again
    assert shop.facts.told[-1].outcome == "handled"
    assert len(shop.seen) == 1


@pytest.mark.parametrize("name", ["sqs-standard", "sqs-fifo", "kinesis", "dynamodb-stream"])
def test_batch_has_the_requests_id(shop: Shop, name: str) -> None:
    """Several records are no one message: ``leased_function`` is for each of them."""
    shop.handler(key="all", key_jmespath=None)(load(name), shop.context())
    assert {fact.message_id for fact in shop.facts.told} == {"request-1"}


def test_batch_of_one_has_its_records_id(shop: Shop) -> None:
    """With a batch size of one, the event is the record's."""
    event = {"Records": load("sqs-standard")["Records"][:1]}
    shop.handler(key="all", key_jmespath=None)(event, shop.context())
    assert {fact.message_id for fact in shop.facts.told} == {"059f36b4-87a3-44ab-83d2-661975830a7d"}


@pytest.mark.parametrize(
    ("options", "message_id"),
    [
        ({"message_id_jmespath": "id"}, "7"),
        ({"message_id": lambda event: f"delivery-{event['id']}"}, "delivery-7"),
    ],
)
def test_message_id_may_be_chosen(shop: Shop, options: dict[str, Any], message_id: str) -> None:
    """A webhook's delivery id, say."""
    shop.handler(**options)({"k": "a", "id": 7}, shop.context())
    assert {fact.message_id for fact in shop.facts.told} == {message_id}


@pytest.mark.parametrize("value", [None, "", True, 1.5, {}, "\ud800"], ids=repr)
def test_chosen_message_id_that_is_none_is_refused(shop: Shop, value: Any) -> None:
    """M5. To take another instead would make two messages of one."""
    with pytest.raises(LeaseKeyMissing, match="message id"):
        shop.handler(message_id_jmespath="id")({"k": "a", "id": value}, shop.context())
    assert shop.store.calls == []


def test_message_id_at_its_bound_is_taken(shop: Shop) -> None:
    """256 bytes, whatever they are."""
    shop.handler(message_id_jmespath="id")({"k": "a", "id": "ü" * 128}, shop.context())
    assert len(shop.seen) == 1


def test_overlong_id_of_a_source_is_cut_down(shop: Shop) -> None:
    """A load balancer's client can make its trace header as long as it likes: its digest stands for it."""
    ids = []
    for length in (300, 301):
        event = load("alb")
        event["headers"]["x-amzn-trace-id"] = "x" * length
        ids.append(source_of(event).message_id or "")
        shop.handler(key="k", key_jmespath=None)(event, shop.context())
    assert len(shop.store.calls) == 4  # two claims and two settles
    assert len(set(ids)) == 2
    assert max(map(len, ids)) <= 256


def test_invocation_without_a_context_has_an_id_of_its_own(shop: Shop) -> None:
    """In a test, at a terminal: each call is a message."""
    handler = shop.handler()
    handler({"k": "a"})
    handler({"k": "a"}, None)
    handler({"k": "a"}, object())
    assert len(shop.seen) == 3


# --- settings and the environment


def test_settings_come_from_the_environment_unless_given(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """``INCUMBENT_TTL_MS``, ``INCUMBENT_RENEW_EVERY_MS``; an argument wins."""
    monkeypatch.setenv("INCUMBENT_TTL_MS", "60000")
    monkeypatch.setenv("INCUMBENT_RENEW_EVERY_MS", "5000")
    lives: list[int] = []

    def during(_: Any) -> None:
        busy = shop.store.acquire_lease("shop/a", "stranger", TTL_MS)
        lives.append(busy.expires_in_ms)
        assert 4_000 <= shop.clock.next_pause_ms() <= 5_000

    shop.during = during
    shop.handler()({"k": "a"}, shop.context())
    shop.handler(ttl_ms=20_000)({"k": "a"}, shop.context("request-2"))
    assert lives == [60_000, 20_000]


@pytest.mark.parametrize("text", ["30s", "30_000.0", "abc", "1e3"])
@pytest.mark.parametrize("variable", ["INCUMBENT_TTL_MS", "INCUMBENT_RENEW_EVERY_MS"])
def test_setting_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    """It names the variable."""
    monkeypatch.setenv(variable, text)
    for decorator in (leased, leased_function):
        with pytest.raises(ConfigurationError, match=variable):
            decorator(key="k")(plain)


def test_setting_that_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bounds as for the argument; an empty one is not set."""
    monkeypatch.setenv("INCUMBENT_TTL_MS", "0")
    with pytest.raises(ConfigurationError, match="ttl_ms"):
        leased(key="k")
    monkeypatch.setenv("INCUMBENT_TTL_MS", "")
    leased(key="k")


def test_nothing_configured_says_what_to_set(shop: Shop) -> None:
    """It is not a backend that cannot lease: the handler is not run."""
    # H34: the body runs without the lease: redis-py #621, portalocker #137.
    handler = shop.handler(provider=None)
    with pytest.raises(ConfigurationError, match=r"INCUMBENT_PROVIDER.*redis, dynamodb, memory, none.*provider="):
        handler({"k": "a"}, shop.context())
    assert shop.seen == []


def test_unknown_provider_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that are known."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "etcd")
    with pytest.raises(ConfigurationError, match="'etcd'; known are"):
        shop.handler(provider=None)({"k": "a"}, shop.context())
    assert shop.seen == []


@pytest.mark.parametrize("variable", ["AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_RUNTIME_API"])
def test_memory_is_refused_in_lambda(shop: Shop, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Every environment would own every key."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    monkeypatch.setenv(variable, "orders")
    with pytest.raises(ConfigurationError, match="share no memory"):
        shop.handler(provider=None, waker=None)({"k": "a"}, shop.context())
    assert shop.seen == []


def test_provider_of_the_environment_is_one_for_all_functions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two handlers of one process share its memory."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    key = f"k-{id(shop)}"
    handler = shop.handler(provider=None, clock=SYSTEM_CLOCK)
    other = shop.handler(provider=None, clock=SYSTEM_CLOCK, message_id_jmespath="id")
    shop.during = lambda event: event["id"] == "m1" and other({"k": key, "id": "m2"})
    handler({"k": key, "id": "m1"}, shop.context())
    assert [fact.fact for fact in shop.facts.told if fact.message_id == "m2"][:1] == ["routed"]
    assert list(process_memory().peek(f"shop/{key}")) == []


def test_provider_is_made_once_though_two_events_come_at_once(shop: Shop) -> None:
    """Each of two would own every key, were it memory."""
    made: list[MemoryProvider] = []
    both = threading.Barrier(2, timeout=0.05)

    class Backend:
        def get_lease_provider(self) -> MemoryProvider:
            made.append(MemoryProvider(clock=shop.clock))
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait()
            return made[-1]

    handler = shop.handler(provider=Backend(), key="k", key_jmespath=None)
    with beside(lambda: handler({}, None)), beside(lambda: handler({}, None)):
        pass
    assert len(made) == 1


def test_memory_of_a_process_is_made_once() -> None:
    """Whoever asks first, and however many at once: two memories would be two owners of every key."""
    code = """
        from incumbent.providers.memory import provider as memory
        from incumbent.testing.conformance.subject import at_once

        for _ in range(200):
            memory._process_memory.cache_clear()  # as in a process that has just begun
            assert len({id(made) for made in at_once(4, lambda _: memory.process_memory())}) == 1
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_backend_that_cannot_lease_warns_and_runs_all(shop: Shop) -> None:
    """As a single process would without it."""

    class Backend:
        def get_lease_provider(self) -> None:
            return None

    with pytest.warns(RuntimeWarning, match="Backend cannot lease"):
        shop.handler(provider=Backend())({"k": "a"}, shop.context())
    assert len(shop.seen) == 1


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_disabled_warns_and_runs_all(shop: Shop, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """For an emergency: no store is asked, nobody is locked out."""
    monkeypatch.setenv("INCUMBENT_DISABLED", value)
    shop.occupy()
    shop.store.calls.clear()
    with pytest.warns(RuntimeWarning, match="INCUMBENT_DISABLED"):
        shop.handler()({"k": "a"}, shop.context())
    assert (len(shop.seen), shop.store.calls) == (1, [])


def test_disabled_is_yes_or_no(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that is neither must not switch every lease off."""
    monkeypatch.setenv("INCUMBENT_DISABLED", "whatever")
    with pytest.raises(ConfigurationError, match="INCUMBENT_DISABLED is 'whatever'"):
        shop.handler()({"k": "a"}, shop.context())
    assert (shop.seen, shop.store.calls) == ([], [])


def test_disabled_function_that_is_woken_says_that_its_messages_wait(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are safe, and run once it is enabled again."""
    monkeypatch.setenv("INCUMBENT_DISABLED", "1")
    with pytest.warns(RuntimeWarning, match="INCUMBENT_DISABLED"):
        assert (
            shop.handler()(Wake(key="shop/a", ticket=None, target=None).to_event(), shop.context())["status"] == "idle"
        )
    assert "'shop/a' wait until it is unset" in caplog.text


def test_facts_of_a_woken_run_name_its_invocation(shop: Shop) -> None:
    """By the id under which its log lines are found."""
    shop.occupy()
    shop.handler()({"k": "a"}, shop.context())
    shop.clock.advance(60_000)
    shop.facts.told.clear()
    shop.handler()(Wake(key="shop/a", ticket=None, target=None).to_event(), shop.context(request_id="request-9"))
    assert shop.seen == [{"k": "a"}]
    assert {fact.request_id for fact in shop.facts.told} == {"request-9"}


@pytest.mark.parametrize("value", ["", " ", "0", "false", "False", "no", " off"])
def test_disabled_may_be_said_to_be_off(shop: Shop, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A template with a parameter sets it either way."""
    monkeypatch.setenv("INCUMBENT_DISABLED", value)
    shop.occupy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shop.handler()({"k": "a"}, shop.context())["status"] == "accepted"
    assert shop.seen == []


def test_leases_come_back_when_the_switch_for_an_emergency_is_off(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests share a process, none runs without a lease because one before it did."""
    handler = shop.handler()
    monkeypatch.setenv("INCUMBENT_DISABLED", "1")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="INCUMBENT_DISABLED"):
            handler({"k": "a"}, shop.context())
    assert shop.store.calls == []
    monkeypatch.delenv("INCUMBENT_DISABLED")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handler({"k": "a"}, shop.context())
    assert shop.store.calls == ["claim", "settle"]


def test_keyspace_of_a_test_ends_with_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says under a stand-in is not kept for the events after it."""
    handler = shop.handler(keyspace=None)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "in-test")
    with stand_in(MemoryProvider(clock=shop.clock)):
        handler({"k": "a"}, shop.context())
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    shop.occupy("orders/a")
    assert handler({"k": "a"}, shop.context())["status"] == "accepted"


def test_stand_in_goes_before_every_provider(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a user's handler needs neither its store nor its environment."""
    monkeypatch.setenv("INCUMBENT_DISABLED", "1")
    handler = shop.handler(provider=SimpleNamespace(get_lease_provider=raising))
    token = STAND_IN.set(MemoryProvider(clock=shop.clock))
    try:
        handler({"k": "a"}, shop.context())
    finally:
        STAND_IN.reset(token)
    assert shop.seen == [{"k": "a"}]


def test_provider_that_only_leases_cannot_enqueue(shop: Shop) -> None:
    """Asking for more than it can do is refused at the first event, before anything is asked."""
    little = Little(shop.store)
    for options in ({}, {"when_busy": "reject", "deliver": "all"}):
        with pytest.raises(ConfigurationError, match="stores no messages"):
            shop.handler(provider=little, **options)({"k": "a"}, shop.context())
    assert (shop.store.calls, shop.seen) == ([], [])
    shop.handler(provider=little, when_busy="reject")({"k": "a"}, shop.context())
    assert len(shop.seen) == 1


# --- what the handler gets


def test_lease_is_given_to_whom_takes_it(shop: Shop) -> None:
    """By name or by ``**kwargs``; a handler without it finds ``current_lease()``."""
    got: list[Any] = []
    decorate = leased(key="a", provider=shop.store, clock=shop.clock, waker=None)

    @decorate
    def with_lease(event: Any, context: Any, lease: Lease) -> None:
        got.append(lease is current_lease())

    @decorate
    def with_kwargs(event: Any, context: Any, **more: Any) -> None:
        got.append(more["lease"] is current_lease())

    @decorate
    def without(event: Any, context: Any) -> None:
        got.append(current_lease() is not None)

    handlers: tuple[Any, ...] = (with_lease, with_kwargs, without)
    for handler in handlers:
        handler({}, shop.context())
    assert got == [True, True, True]
    assert current_lease() is None


def test_other_arguments_go_through(shop: Shop) -> None:
    """What a middleware above hands down by keyword, to follow-ups as well."""
    got: list[Any] = []

    @leased(key="a", provider=shop.store, clock=shop.clock, waker=None, message_id_jmespath="id")
    def handler(event: Any, context: Any, *, tenant: str) -> None:
        got.append((event["id"], context, tenant))
        if event["id"] == 1:
            handler({"id": 2}, None, tenant="another")

    own = shop.context()
    handler({"id": 1}, own, tenant="tenant-a")
    assert got == [(1, own, "tenant-a"), (2, own, "tenant-a")]


def test_own_run_gets_the_event_itself(shop: Shop) -> None:
    """Credentials included; what is stored lacks them, and the event is left as it was."""
    event = load("api-gateway-http")
    before = json.dumps(event)
    stored: list[Any] = []
    key = "shop/order-1001"
    shop.during = lambda _: stored.extend(message.event for message in shop.peek(key))
    shop.handler(key_jmespath=ORDER_KEYS["api-gateway-http"])(event, shop.context())
    assert shop.seen[0] is event
    assert json.dumps(event) == before
    assert "example-access-token" not in json.dumps(stored)
    assert stored[0]["body"] == event["body"]


def test_follow_up_gets_what_was_stored(shop: Shop) -> None:
    """``store=`` chooses it, and follow-ups get exactly that."""
    handler = shop.handler(store=lambda event: {"k": event["k"], "text": event["text"]}, message_id_jmespath="id")
    shop.during = lambda event: (
        event["text"] == "one"
        and handler({"k": "a", "id": 2, "text": "two", "secret": "s3cret"}, shop.context("request-2"))
    )
    handler({"k": "a", "id": 1, "text": "one", "secret": "s3cret"}, shop.context())
    assert shop.seen == [
        {"k": "a", "id": 1, "text": "one", "secret": "s3cret"},
        {"k": "a", "text": "two"},
    ]


def test_origin_says_whom_to_wake(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function as it was invoked, alias included; ``INCUMBENT_TARGET``, then ``target=`` go before."""
    # H47: self-invoke goes to the wrong alias.
    targets: list[str | None] = []

    def woken(**options: Any) -> None:
        waker = RecordingWaker()
        handler = shop.handler(waker=waker, drain_ms=0, message_id_jmespath="id", **options)
        shop.during = lambda event: event["id"] == 1 and handler({"k": "a", "id": 2}, shop.context("request-2"))
        handler({"k": "a", "id": 1}, shop.context())
        targets.append(waker.wakes[0].target)
        shop.store = Meddled(MemoryProvider(clock=shop.clock))

    woken()
    monkeypatch.setenv("INCUMBENT_TARGET", "from-the-environment")
    woken()
    woken(target="given:live")
    assert targets == [ARN, "from-the-environment", "given:live"]


def test_waker_is_lambdas_own_inside_lambda_only(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """``"auto"``: nobody to wake at a terminal; none where it is said so."""
    handler = shop.handler(waker="auto", drain_ms=0, message_id_jmespath="id")
    shop.during = lambda event: event["id"] == 1 and handler({"k": "a", "id": 2}, shop.context("request-2"))
    handler({"k": "a", "id": 1}, shop.context())
    assert shop.facts.names[-1] == "released"
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:9")
    handler = shop.handler(waker="auto", drain_ms=0, message_id_jmespath="id")  # the environment is read once
    handler({"k": "a", "id": 1}, shop.context())
    shop.during = lambda event: handler({"k": "a", "id": 4}, shop.context()) if event.get("id") == 3 else None
    handler({"k": "a", "id": 3}, shop.context("request-3"))
    assert "wake_failed" in shop.facts.names


# --- waking


def test_resume_event_is_recognised(shop: Shop) -> None:
    """It has no key by the user's rule: what it says is what is gone on with."""
    waker = RecordingWaker()
    handler = shop.handler(waker=waker, drain_ms=0, message_id_jmespath="id")
    shop.during = lambda event: event["id"] == 1 and handler({"k": "a", "id": 2}, shop.context("request-2"))
    handler({"k": "a", "id": 1}, shop.context())
    (wake,) = waker.wakes
    assert handler(wake.to_event(), shop.context("request-3")) == {"status": "resumed"}
    assert handler(wake.to_event(), shop.context("request-3")) == {"status": "idle"}
    assert [event["id"] for event in shop.seen] == [1, 2]


def test_chain_of_wakes_is_counted(shop: Shop) -> None:
    """Each hands the count on; the last that may says so instead of waking another."""
    waker = RecordingWaker()
    handler = shop.handler(waker=waker, drain_ms=0, message_id_jmespath="id", max_hops=2)
    shop.during = lambda event: [
        handler({"k": "a", "id": number}, shop.context(f"request-{number}")) for number in (2, 3, 4) if event["id"] == 1
    ]
    handler({"k": "a", "id": 1}, shop.context())
    while len(shop.seen) < 3:
        handler(waker.wakes[-1].to_event(), shop.context("woken"))
    assert [wake.hops for wake in waker.wakes] == [1, 2]
    assert shop.facts.names[-1] == "chain_cut"
    assert [message.id for message in shop.peek()] == ["4"]


def test_resume_event_of_another_keyspace_is_ignored(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Sent to the wrong function: its handler would not know the messages."""
    wake = Wake(key="orders/a", ticket="t", target=None)
    assert shop.handler()(wake.to_event(), shop.context()) == {"status": "idle"}
    assert "keyspace is 'shop'" in caplog.text
    assert shop.store.calls == []


def test_resume_event_of_an_empty_keyspace(shop: Shop) -> None:
    """Every key is its own."""
    shop.store.acquire_lease("orders/a", "before", TTL_MS)
    shop.store.claim("orders/a", "sender", TTL_MS, Message(id="m1", event={"n": 1}))
    shop.store.release_lease("orders/a", "before")
    wake = Wake(key="orders/a", ticket=None, target=None)
    assert shop.handler(keyspace="")(wake.to_event(), shop.context()) == {"status": "resumed"}
    assert shop.seen == [{"n": 1}]


# --- what is answered


def test_busy_under_reject_is_an_error_of_its_source(shop: Shop) -> None:
    """It says which key, and that the source keeps its event."""
    # H50: error message hides which key was meant: Powertools #6308.
    shop.occupy()
    with pytest.raises(LeaseBusy, match="another invocation owns key 'a'") as error:
        shop.handler(when_busy="reject")({"k": "a"}, shop.context())
    assert error.value.key == "a"
    assert shop.peek() == []


def test_busy_under_skip_is_told(shop: Shop) -> None:
    """H44: skipped event vanishes without a trace: Inngest #2566."""
    shop.occupy()
    answer = shop.handler(when_busy="skip")({"k": "a"}, shop.context())
    assert answer == {"status": "skipped", "key": "a", "message_id": "request-1"}
    assert shop.facts.names == ["busy"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, Routed), ({"when_busy": "skip"}, Busy), ({"when_busy": "reject"}, Busy)],
)
def test_on_busy_makes_the_answer(shop: Shop, options: dict[str, Any], kind: type) -> None:
    """It gets the event, the context and what came of the claim; what it returns is the result."""
    got: list[Any] = []

    def on_busy(event: Any, context: Any, *, outcome: object) -> str:
        got.append((event, context, outcome))
        return "mine"

    shop.occupy()
    own, event = shop.context(), {"k": "a"}
    assert shop.handler(on_busy=on_busy, **options)(event, own) == "mine"
    assert got[0][:2] == (event, own)
    assert isinstance(got[0][2], kind)


def test_on_busy_is_asked_about_duplicates_too(shop: Shop) -> None:
    """Handled ones as well; not about a run."""
    got: list[Any] = []
    handler = shop.handler(on_busy=lambda *_, outcome: got.append(outcome))
    handler({"k": "a"}, shop.context())
    assert got == []
    handler({"k": "a"}, shop.context())
    assert got == [Duplicate(state="handled")]


@pytest.mark.parametrize("source", ["plain", "http", "state-machine"])
def test_on_busy_answers_for_a_message_that_defers(shop: Shop, source: str) -> None:
    """Whoever waits gets no "accepted" for the result; the message is stored, and no owner has it yet."""
    event: dict[str, Any] = {
        "plain": {},
        "http": load("function-url"),
        "state-machine": {"Execution": {"Id": "arn:aws:states:eu-central-1:1:execution:machine:one"}},
    }[source]

    def defers(event: Any, context: Any, *, lease: Any) -> Any:
        return lease.defer()

    options: dict[str, Any] = {"key": "a", "provider": shop.store, "clock": shop.clock, "waker": None}
    handler: Any = leased(**options, keyspace="shop", on_busy=lambda *_, outcome: outcome)(defers)
    assert handler(event, shop.context()) == Routed(owner=None)
    assert len(shop.store.peek("shop/a")) == 1


def test_state_machine_that_defers_under_reject_is_told_to_try_again(shop: Shop) -> None:
    """Without on_busy it is answered as one that was routed: only "reject" raises."""

    def defers(event: Any, context: Any, *, lease: Any) -> Any:
        return lease.defer()

    event = {"Execution": {"Id": "arn:aws:states:eu-central-1:1:execution:machine:one"}}
    options: dict[str, Any] = {"key": "a", "provider": shop.store, "clock": shop.clock, "waker": None}
    handler: Any = leased(**options, keyspace="shop", when_busy="reject")(defers)
    with pytest.raises(LeaseBusy, match="runs or waits already"):
        handler(event, shop.context())
    handler = leased(**options, keyspace="other")(defers)
    assert handler(event, shop.context())["status"] == "accepted"


class Shade(enum.StrEnum):
    """A value that JSON stores as text."""

    RED = "red"


class Named(dict[str, Any]):
    """An application's own dict."""


@pytest.mark.parametrize(
    "event",
    [
        {"k": "a", "t": (1, 2)},
        {"k": "a", "shade": Shade.RED},
        Named(k="a"),
        {"k": "a", "inner": Named()},
        {"k": "a", "t": [1, 2]},
    ],
    ids=repr,
)
def test_own_message_gets_its_calls_arguments_whatever_is_in_it(shop: Shop, event: Any) -> None:
    """Also an event that its first run sees as it is stored: the message is told by its id."""
    ran: list[Any] = []

    def apply(order: Any, mode: str = "default", *more: Any, lease: Any = None) -> None:
        ran.append((order, mode))
        if order.get("t") == "outer":
            return
        if len(ran) == 1:
            applied({"k": "a", "t": "outer"}, mode="other")

    applied = leased_function(key_jmespath="k", keyspace="shop", provider=shop.store, clock=shop.clock)(apply)
    applied(event, mode="given")
    assert ran == [(json.loads(json.dumps(event)), "given"), ({"k": "a", "t": "outer"}, "default")]


def test_equal_message_of_another_call_does_not_get_this_calls_arguments(shop: Shop) -> None:
    """A message is told by its id: another one may say the same."""
    ran: list[str] = []

    def apply(order: Any, mode: str = "default") -> None:
        ran.append(mode)
        if len(ran) == 1:
            applied({"k": "a", "t": (1,)}, mode="other")

    applied = leased_function(key_jmespath="k", keyspace="shop", provider=shop.store, clock=shop.clock)(apply)
    applied({"k": "a", "t": (1,)}, mode="given")
    assert ran == ["given", "default"]


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        ({"messageId": "m-1", "receiptHandle": "h"}, True),
        ({}, True),
        ({"requestContext": {"http": {}, "requestId": "r-1"}}, False),
        ({"Execution": {"Id": "arn:aws:states:eu-central-1:1:execution:machine:one"}}, False),
        ({"Records": [{"messageId": "m-1"}, {"messageId": "m-2"}]}, False),
    ],
    ids=["record", "asynchronous", "http", "state machine", "batch"],
)
def test_failed_message_blocks_its_key_if_its_source_delivers_it_again(shop: Shop, event: Any, *, kept: bool) -> None:
    """M6: under the same id; else the caller decides, and nothing waits for it."""

    def fails(event: Any, context: Any) -> None:
        raise ValueError("no")

    options: dict[str, Any] = {"key": "a", "provider": shop.store, "clock": shop.clock, "waker": None}
    handler: Any = leased(**options, keyspace="shop", policy=Policy(on_error="block"))(fails)
    with pytest.raises(ValueError, match="no"):
        handler(event, shop.context())
    assert bool(shop.peek()) is kept


def test_own_message_in_another_form_is_made_again_with_its_arguments(shop: Shop) -> None:
    """A record's data class: what was stored is loaded, and the call's arguments are kept."""
    ran: list[Any] = []

    def apply(order: Any, mode: str = "default") -> None:
        ran.append((order, mode))

    applied = leased_function(
        key_jmespath="k", keyspace="shop", provider=shop.store, clock=shop.clock, load=lambda stored: ("loaded", stored)
    )(apply)
    applied({"k": "a", "t": (1,)}, mode="given")
    assert ran == [(("loaded", {"k": "a", "t": [1]}), "given")]


def test_on_busy_may_route_by_means_of_its_own(shop: Shop) -> None:
    """With a provider that only leases."""
    queue: list[Any] = []
    shop.occupy()

    def on_busy(event: Any, context: Any, *, outcome: Busy) -> str:
        queue.append((outcome.owner, event))
        return "queued"

    handler = shop.handler(provider=Little(shop.store), when_busy="skip", on_busy=on_busy)
    assert handler({"k": "a"}, shop.context()) == "queued"
    assert queue == [("somebody", {"k": "a"})]


def test_on_busy_answers_for_a_message_behind_older_ones(shop: Shop) -> None:
    """A caller who waits: handed over, not run here, as if it was routed, to nobody yet."""
    key = "shop/order-1001"
    shop.occupy(key)
    shop.store.claim(key, "sender", TTL_MS, Message(id="older", event={}))
    shop.store.release_lease(key, "somebody")
    handler = shop.handler(
        key_jmespath=ORDER_KEYS["function-url"], waker=RecordingWaker(), on_busy=lambda *_, outcome: outcome
    )
    assert handler(load("function-url"), shop.context()) == Routed(owner=None)
    assert shop.seen == []


def test_late_copy_of_a_claim_that_failed_is_an_error(shop: Shop) -> None:
    """Nobody was told that it is safe, in whatever shape it came."""
    # H5: a delayed duplicate of an old claim.
    shop.store.after["claim"] = lambda _: Idle()
    with pytest.raises(LeaseUnavailable, match="deliver it again"):
        shop.handler()({"k": "a"}, shop.context())
    answer = shop.handler(key_jmespath=ORDER_KEYS["function-url"])(load("function-url"), shop.context())
    assert (answer["statusCode"], answer["headers"]["retry-after"]) == (503, "1")
    with pytest.raises(LeaseUnavailable, match="deliver it again"):
        shop.handler(on_busy=lambda *_, outcome: outcome)({"k": "a"}, shop.context())
    task = {"k": "a", "Execution": {"Id": "arn:aws:states:eu-central-1:1:execution:machine:one"}}
    with pytest.raises(LeaseUnavailable, match="deliver it again"):
        shop.handler(when_busy="reject")(task, shop.context())


def test_lost_lease_is_an_error_and_told_once(shop: Shop) -> None:
    """The hook gets the handle of the run that lost."""
    lost: list[Lease] = []
    leases: list[Any] = []

    def during(_: Any) -> None:
        leases.append(current_lease())
        shop.clock.advance(TTL_MS)

    shop.during = during
    with pytest.raises(LeaseLost) as error:
        shop.handler(on_lost=lost.append)({"k": "a"}, shop.context(time_left_ms=9_000))
    assert error.value.key == "a"
    assert lost == leases


def test_results_of_follow_ups_go_to_the_hook(shop: Shop) -> None:
    """The invocation answers with its own."""
    results: list[Any] = []
    handler = shop.handler(
        message_id_jmespath="id", on_result=lambda message, result: results.append((message.id, result))
    )

    def during(event: Any) -> str:
        if event["id"] == 1:
            handler({"k": "a", "id": 2}, shop.context("request-2"))
        return f"result {event['id']}"

    shop.during = during
    assert handler({"k": "a", "id": 1}, shop.context()) == "result 1"
    assert results == [("2", "result 2")]


def test_dead_letters_go_to_the_hook(shop: Shop) -> None:
    """Out of attempts."""
    dead: list[Message] = []
    handler = shop.handler(message_id_jmespath="id", policy=Policy(max_attempts=1), on_dead_letter=dead.append)

    def during(event: Any) -> None:
        if event["id"] == 2:
            raise ValueError("broken")
        handler({"k": "a", "id": 2}, shop.context("request-2"))

    shop.during = during
    handler({"k": "a", "id": 1}, shop.context())
    assert [(message.id, message.last_error) for message in dead] == [("2", "ValueError: broken")]


# --- async handlers


def test_async_handler_is_run(shop: Shop) -> None:
    """Lambda's runtime client does not await: the decorated handler is an ordinary function."""
    handler: Any

    async def work(event: Any, context: Any, *, lease: Lease) -> Any:
        await asyncio.sleep(0)
        shop.seen.append((event["id"], current_lease() is lease, await asyncio.to_thread(current_lease) is lease))
        if event["id"] == 1:
            await asyncio.to_thread(handler, {"id": 2}, None)
        return event["id"]

    handler = leased(key="a", provider=shop.store, clock=shop.clock, waker=None, message_id_jmespath="id")(work)
    assert handler({"id": 1}, shop.context()) == 1
    assert shop.seen == [(1, True, True), (2, True, True)]
    assert not inspect.iscoroutinefunction(handler)


# --- records of a batch


@pytest.fixture
def records() -> list[Any]:
    """The records of the SQS sample: order 1001, 1002, 1001."""
    loaded: list[Any] = load("sqs-standard")["Records"]
    return loaded


def order_of(record: Any) -> str:
    """The order that a record is about."""
    return str(json.loads(record["body"])["order_id"])


def for_records(shop: Shop, **options: Any) -> dict[str, Any]:
    """Options of a function for one record."""
    return {"key": order_of, "keyspace": "shop", "provider": shop.store, "clock": shop.clock, **options}


def test_message_is_the_first_argument_or_the_named_one(shop: Shop, records: list[Any]) -> None:
    """By position or by keyword; others that have a default go along with the own run as they are."""
    got: list[Any] = []

    @leased_function(**for_records(shop))
    def first(record: Any, retries: int = 3, *, tenant: str = "none", lease: Lease) -> str:
        got.append((record["messageId"][:8], retries, tenant, lease.key))
        return "done"

    @leased_function(argument="record", **for_records(shop))
    def named(prefix: str = "", record: Any = None) -> str:
        got.append((prefix, record["messageId"][:8]))
        return prefix

    assert first(records[0]) == "done"
    assert first(record=records[1], tenant="tenant-a") == "done"
    assert first(records[2], 5) == "done"
    assert named("p", {**records[0], "messageId": "another"}) == "p"
    assert named(record={**records[0], "messageId": "a third"}, prefix="q") == "q"
    assert got == [
        ("059f36b4", 3, "none", "order-1001"),
        ("059f36b5", 3, "tenant-a", "order-1002"),
        ("059f36b6", 5, "none", "order-1001"),
        ("p", "another"),
        ("q", "a third"),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_id_that_comes_again_runs_what_was_stored_first(shop: Shop, is_async: bool) -> None:  # noqa: FBT001
    """M5: the accepted record, made anew and without the arguments of the later call."""
    got: list[Any] = []
    options = for_records(shop, key="k", message_id=lambda record: record["id"], load=lambda stored: [stored])
    shop.store.acquire_lease("shop/k", "dead", 30_000)
    shop.store.claim("shop/k", "by", 30_000, Message(id="d", event={"id": "d", "amount": 1}))
    shop.clock.advance(30_000)

    def plain(record: Any, tenant: str = "none") -> None:
        got.append((record, tenant))

    async def later(record: Any, tenant: str = "none") -> None:
        got.append((record, tenant))

    function = leased_function(**options)(later if is_async else plain)
    function({"id": "d", "amount": 2}, tenant="other")
    function({"id": "e", "amount": 3}, tenant="other")
    assert got == [([{"id": "d", "amount": 1}], "none"), ({"id": "e", "amount": 3}, "other")]


def test_named_argument_must_be_there() -> None:
    """At decoration; without any argument there is no message."""
    with pytest.raises(ConfigurationError, match="has no argument 'event'"):
        leased_function(key="k", argument="event")(lambda _record: None)
    with pytest.raises(ConfigurationError, match="has no argument"):
        leased_function(key="k")(lambda: None)
    with pytest.raises(ConfigurationError, match="has no argument"):
        leased_function(key="k")(lambda *, lease: lease)


def test_call_without_its_message_says_so(shop: Shop) -> None:
    """As Python would."""

    @leased_function(**for_records(shop))
    def function(record: Any, more: int = 0) -> None:
        """Do nothing."""

    with pytest.raises(TypeError, match="without 'record'"):
        function(more=1)
    with pytest.raises(TypeError):
        function(1, 2, 3)


def test_function_may_take_the_lease_by_kwargs(shop: Shop, records: list[Any]) -> None:
    """As a handler may."""
    got: list[Any] = []

    @leased_function(**for_records(shop))
    def function(record: Any, **more: Any) -> None:
        got.append(more)

    function(records[0], tenant="tenant-a")
    (more,) = got
    assert (more["tenant"], more["lease"].key) == ("tenant-a", "order-1001")


def test_time_is_the_invocations(shop: Shop, records: list[Any]) -> None:
    """An argument ``lambda_context`` or ``context`` says how much is left."""
    left: list[Any] = []

    @leased_function(**for_records(shop))
    def by_powertools(record: Any, lambda_context: Any, *, lease: Lease) -> None:
        left.append(lease.time_left_ms)

    @leased_function(**for_records(shop))
    def by_hand(record: Any, *, context: Any = None, lease: Lease) -> None:
        left.append(lease.time_left_ms)

    by_powertools(records[0], shop.context(time_left_ms=40_000))
    by_hand(records[1], context=shop.context(time_left_ms=30_000))
    by_hand(records[2])
    assert left == [40_000, 30_000, None]


def test_powertools_record_is_one_for_follow_ups_too(shop: Shop, records: list[Any]) -> None:
    """What is stored is its JSON; the own run gets the very object, a follow-up one made anew."""
    got: list[Any] = []

    @leased_function(**for_records(shop))
    def function(record: SQSRecord) -> None:
        got.append(record)
        if len(got) == 1:
            assert [message.event for message in shop.peek("shop/order-1001")] == [records[0]]
            answer = function(SQSRecord(records[2]))
            assert answer["status"] == "accepted"

    own = SQSRecord(records[0])
    function(own)
    assert got[0] is own
    assert [type(record) for record in got] == [SQSRecord, SQSRecord]
    assert [record.message_id for record in got] == [records[0]["messageId"], records[2]["messageId"]]


def test_class_of_the_record_must_be_known_where_it_could_not_be_made_again(shop: Shop, records: list[Any]) -> None:
    """A record that is handed over comes back as JSON: nothing is stored that could not be run then."""

    def function(record):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        raise AssertionError(record)

    leased_one = leased_function(**for_records(shop))(function)
    with pytest.raises(ConfigurationError, match="annotate 'record'"):
        leased_one(SQSRecord(records[0]))
    assert shop.store.calls == []


def test_class_of_the_record_may_be_one_of_a_union(shop: Shop, records: list[Any]) -> None:
    """``SQSRecord | None`` names it too."""
    got: list[Any] = []

    @leased_function(**for_records(shop))
    def function(record: SQSRecord | None = None) -> None:
        got.append(type(record))
        if len(got) == 1:
            function(SQSRecord(records[2]))

    function(SQSRecord(records[0]))
    assert got == [SQSRecord, SQSRecord]


def test_messages_of_one_invocation_have_ids_of_their_own(shop: Shop) -> None:
    """Three values of one key in one invocation are three messages, though their source names none of them."""
    ran: list[str] = []

    @leased_function(key_jmespath="order", provider=shop.store, clock=shop.clock)
    def apply(update: Any, context: Any = None) -> None:
        ran.append(update["what"])

    for what in ("create", "pay", "cancel"):
        apply({"order": "1", "what": what}, shop.context())
    assert ran == ["create", "pay", "cancel"]


def test_another_messages_arguments_are_not_this_calls(shop: Shop) -> None:
    """A follow-up that is run in place is run without what this call was given besides its message."""
    ran: list[tuple[str, str]] = []

    @leased_function(key="k", provider=shop.store, clock=shop.clock)
    def apply(item: Any, user: str = "nobody") -> None:
        ran.append((item, user))
        if item == "alice's":
            apply("bob's", user="bob")

    apply("alice's", user="alice")
    assert ran == [("alice's", "alice"), ("bob's", "nobody")]


def test_argument_that_a_message_does_not_bring_is_refused() -> None:
    """Whoever runs a message that another call left behind could not give it."""
    with pytest.raises(ConfigurationError, match="'tenant' besides its message 'item'"):

        @leased_function(key="k")
        def apply(item: Any, tenant: str) -> None:
            raise AssertionError(item, tenant)


def test_payload_that_looks_like_a_resume_event_is_a_message(shop: Shop) -> None:
    """What a function is called with is never taken for a wake: ``resume`` is there for that."""
    ran: list[Any] = []

    @leased_function(key="k", provider=shop.store, clock=shop.clock)
    def apply(item: Any) -> None:
        ran.append(item)

    payload = {"incumbent": {"v": 1, "key": "x", "ticket": None, "hops": 0}}
    apply(payload)
    assert ran == [payload]


def test_wake_of_another_function_is_left_to_it(shop: Shop) -> None:
    """Two functions of one handler: the first that is asked does not take the other's."""

    @leased_function(key="k", keyspace="a", provider=shop.store, clock=shop.clock)
    def first(item: Any) -> None:
        raise AssertionError(item)

    event = Wake(key="b/k", ticket=None, target=None).to_event()
    assert first.resume(event) is False


def test_functions_of_one_lambda_function_do_not_run_each_others_messages(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a keyspace of its own inside the deployed one, unless they are given one."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    options: dict[str, Any] = {"key": "k", "provider": shop.store, "clock": shop.clock, "observer": shop.facts}

    @leased_function(**options)
    def one(item: Any) -> None:
        two({"of": "two"})

    @leased_function(**options)
    def two(item: Any) -> None:
        shop.seen.append(item)

    one({"of": "one"})
    assert shop.seen == [{"of": "two"}]
    here = f"{__name__}.test_functions_of_one_lambda_function_do_not_run_each_others_messages.<locals>"
    assert {fact.key for fact in shop.facts.told} == {f"orders.{here}.one/k", f"orders.{here}.two/k"}


def test_owners_name_is_no_ticket() -> None:
    """A forged resume event cannot redeem what a running owner holds."""
    wake = Wake.from_event({"incumbent": {"v": 1, "key": "s/k", "ticket": "request.0123", "hops": 0}})
    assert wake is not None
    assert wake.ticket is None


def test_callers_are_not_told_what_only_we_should_know(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """The answer says what to do; hosts, roles, tables and the event's own data are in the log alone."""
    event = load("api-gateway-http")
    event["body"] = '{"thread_id": ["secret-123"]}'
    answer = shop.handler(key_jmespath="powertools_json(body).thread_id")(event, shop.context())
    assert answer["statusCode"] == 400
    assert "secret-123" not in answer["body"]
    assert "secret-123" in caplog.text


def test_handlers_own_errors_are_not_answered_for_it(shop: Shop) -> None:
    """What a handler raises is raised, also where it is an error of ours."""

    @leased(key="k", provider=shop.store, clock=shop.clock)
    def handler(event: Any, context: Any) -> Any:
        raise LeaseUnavailable("of another store")

    with pytest.raises(LeaseUnavailable, match="of another store"):
        handler(load("api-gateway-http"), shop.context())


def test_async_handler_is_refused_in_a_running_loop(shop: Shop) -> None:
    """Before anything is claimed: it could not be run there; a plain one could."""

    async def work(event: Any, context: Any) -> str:
        raise AssertionError(event)

    def plainly(event: Any, context: Any) -> str:
        return "done"

    decorators: tuple[Any, ...] = (leased, leased_function)

    async def outside() -> None:
        for decorator in decorators:
            decorate = decorator(key="k", provider=shop.store, clock=shop.clock, waker=None)
            with pytest.raises(ConfigurationError, match="running event loop"):
                decorate(work)({}, None)
            assert shop.store.calls == []
            assert decorate(plainly)({}, None) == "done"
            shop.store.calls.clear()

    asyncio.run(outside())


def test_lease_holds_nothing_after_its_run(shop: Shop) -> None:
    """A thread or a task that a run has left behind is told so."""
    kept: list[Lease] = []

    @leased(key="k", provider=shop.store, clock=shop.clock)
    def handler(event: Any, context: Any, **more: Lease) -> None:
        kept.append(more["lease"])

    handler({}, shop.context())
    assert kept[0].stop is Stop.LOST
    with pytest.raises(LeaseLost, match="is over"):
        kept[0].assert_held()
    with pytest.raises(LeaseLost, match="is over"):
        kept[0].take()


def test_store_and_load_go_together(shop: Shop, records: list[Any]) -> None:
    """What the message is made of, and made into again; the own run gets what was passed."""
    got: list[Any] = []

    @dataclass
    class Order:
        order_id: str
        text: str

    @leased_function(
        **for_records(
            shop,
            key=lambda order: order.order_id,
            message_id=lambda order: order.text,
            store=lambda order: [order.order_id, order.text],
            load=lambda stored: Order(*stored),
        )
    )
    def function(order: Order) -> None:
        got.append(order)
        if order.text == "one":
            function(Order("order-1", "two"))

    one = Order("order-1", "one")
    function(one)
    assert got[0] is one
    assert got[1] == Order("order-1", "two")


def test_one_failing_record_is_the_only_failure_of_its_batch(shop: Shop) -> None:
    """Powertools' batch processor: per record; the others are handled, and the next delivery runs it again."""
    # H48: batch with several groups fails as one: Powertools #2981.
    event = load("sqs-fifo")
    ran: list[str] = []
    broken = {event["Records"][1]["messageId"]}

    @leased_function(**for_records(shop))
    def record_handler(record: SQSRecord, lambda_context: Any = None) -> None:
        ran.append(record.message_id)
        if record.message_id in broken:
            raise ValueError("broken")

    def handler(event: Any, context: Any) -> Any:
        processor = BatchProcessor(event_type=EventType.SQS)
        return process_partial_response(
            event=event, record_handler=record_handler, processor=processor, context=context
        )

    failed = event["Records"][1]["messageId"]
    assert handler(event, shop.context()) == {"batchItemFailures": [{"itemIdentifier": failed}]}
    assert len(ran) == 3
    broken.clear()
    assert handler({"Records": event["Records"]}, shop.context("request-2")) == {"batchItemFailures": []}
    assert ran[3:] == [failed]


def test_record_of_a_busy_key_is_accepted_and_run_by_its_owner(shop: Shop, records: list[Any]) -> None:
    """Two batches at once with the same order: no failure, one owner, both run."""
    ran: list[str] = []

    @leased_function(**for_records(shop))
    def record_handler(record: SQSRecord) -> None:
        ran.append(record.message_id)
        if len(ran) == 1:
            answered.append(batch([records[2]]))

    def batch(some: list[Any]) -> Any:
        processor = BatchProcessor(event_type=EventType.SQS)
        return process_partial_response(
            event={"Records": some}, record_handler=record_handler, processor=processor, context=None
        )

    answered: list[Any] = []
    assert batch([records[0]]) == {"batchItemFailures": []}
    assert answered == [{"batchItemFailures": []}]
    assert ran == [records[0]["messageId"], records[2]["messageId"]]


def test_record_runs_and_hands_the_rest_over(shop: Shop, records: list[Any]) -> None:
    """With a waker its batch does not wait for others' messages; ``resume`` goes on, with the annotated class."""
    waker = RecordingWaker()
    got: list[Any] = []

    @leased_function(**for_records(shop, waker=waker))
    def function(record: SQSRecord, lambda_context: Any = None, *, lease: Lease) -> str:
        got.append((record.message_id, lease.time_left_ms, lambda_context))
        if len(got) == 1:
            function(SQSRecord(records[2]))
        return "own"

    assert function(SQSRecord(records[0])) == "own"
    assert len(got) == len(waker.wakes) == 1
    event = waker.wakes[0].to_event()
    assert function.resume({"Records": records}, shop.context()) is False
    woken = shop.context(time_left_ms=50_000)
    assert function.resume(event, woken) is True
    assert got[1] == (records[2]["messageId"], 50_000, woken)
    assert function.resume(event, shop.context()) is True
    assert len(got) == 2


def test_resume_of_a_plain_function_gives_what_was_stored(shop: Shop, records: list[Any]) -> None:
    """Or what ``load`` makes of it."""
    waker = RecordingWaker()
    got: list[Any] = []

    def chosen(**more: Any) -> Any:
        @leased_function(**for_records(shop, waker=waker, **more))
        def function(record: Any) -> None:
            got.append(record)
            if len(got) % 2:
                function({**records[0], "messageId": f"m{len(got)}"})

        return function

    for function in (chosen(), chosen(load=lambda stored: ("loaded", stored["messageId"]))):
        function({**records[0], "messageId": f"own{len(got)}"})
        function.resume(waker.wakes.pop().to_event())
    assert got[1] == {**records[0], "messageId": "m1"}
    assert got[3] == ("loaded", "m3")


def test_record_whose_store_is_down_is_a_failure_of_its_own(shop: Shop, records: list[Any]) -> None:
    """It is raised into the batch processor, not answered."""
    shop.store.before["claim"] = raising(LeaseUnavailable("down", key="k"))

    @leased_function(**for_records(shop))
    def function(record: Any) -> None:
        """Do nothing."""

    with pytest.raises(LeaseUnavailable):
        function(records[0])


def test_async_function_of_a_record(shop: Shop, records: list[Any]) -> None:
    """Run to its end, as a handler is."""

    @leased_function(**for_records(shop))
    async def function(record: Any, *, lease: Lease) -> str:
        await asyncio.sleep(0)
        return lease.key

    assert function(records[0]) == "order-1001"


# --- what it costs to import


@pytest.mark.parametrize("decoration", ["key='k'", "key_jmespath='powertools_json(body).id'"])
def test_decorating_imports_no_store_and_no_loop(decoration: str) -> None:
    """A function pays for the store that it uses: boto3 is 200 ms, redis 120, asyncio 40 on a fast machine."""
    code = f"""
        import sys
        import incumbent

        @incumbent.leased({decoration})
        def handler(event, context):
            return "done"

        @incumbent.leased_function({decoration})
        def function(record):
            return "done"

        print(*sorted({{"redis", "boto3", "asyncio"}} & set(sys.modules)))
        import os
        os.environ["INCUMBENT_PROVIDER"] = "none"
        assert handler({{"body": '{{"id": "a"}}'}}) == "done"
        print(*sorted({{"redis", "boto3", "asyncio"}} & set(sys.modules)))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.split() == []


def test_expression_imports_jmespath_alone() -> None:
    """Ten modules at most beside inspect; Powertools only for one of its functions, since it brings botocore along."""
    code = """
        import inspect, sys
        import incumbent
        before = set(sys.modules)
        incumbent.leased(key_jmespath="a", message_id_jmespath="b || c.d")(lambda event, context: None)
        print(*sorted(set(sys.modules) - before))
        incumbent.leased(key_jmespath="powertools_json(a).b")(lambda event, context: None)
        print("aws_lambda_powertools" in sys.modules)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    loaded, powertools = ended.stdout.splitlines()
    assert {name.partition(".")[0] for name in loaded.split()} == {"jmespath"}
    assert len(loaded.split()) <= 10
    assert powertools == "True"


def test_importing_alone_imports_no_jmespath_and_no_powertools() -> None:
    """They come with an expression."""
    code = """
        import sys
        import incumbent
        incumbent.leased(key="k")(lambda event, context: None)
        print(*sorted({"jmespath", "aws_lambda_powertools"} & set(sys.modules)))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == []


@pytest.mark.parametrize("hook", ["key", "message_id", "store", "on_busy", "on_result", "on_lost", "on_dead_letter"])
def test_async_hook_is_refused_at_decoration(hook: str) -> None:
    """Nobody would await it."""

    async def waits(*_: Any) -> None:
        """Never called."""

    options: dict[str, Any] = {"key": "k", hook: waits}
    with pytest.raises(ConfigurationError, match=f"{hook} is async"):
        leased(**options)(plain)


@pytest.mark.parametrize("policy", [{}, {"max_pending": 1}, "policy", 1], ids=repr)
def test_policy_is_a_policy(policy: Any) -> None:
    """Not what looks like one's arguments."""
    with pytest.raises(ConfigurationError, match="Policy"):
        leased(key="k", policy=policy)(plain)


def test_method_is_refused_at_decoration() -> None:
    """It would take the event for itself."""

    def handle(self: object, event: Any, context: Any) -> None:
        """Never called."""

    for decorate in (leased(key="k"), leased_function(key="k")):
        with pytest.raises(ConfigurationError, match="is a method"):
            decorate(handle)


def test_interval_of_the_environment_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decorator says nothing of it."""
    monkeypatch.setenv("INCUMBENT_RENEW_EVERY_MS", "20000")
    with pytest.raises(ConfigurationError, match="from the environment: INCUMBENT_RENEW_EVERY_MS"):
        leased(key="k")(plain)


def test_invocation_too_short_for_its_own_end_is_refused(shop: Shop) -> None:
    """Every run would be told to stop as it begins, and defer, in a chain without end."""
    handler = shop.handler(stop_before_ms=20_000)
    for event in ({"k": "a"}, Wake(key="shop/a", ticket=None, target=None).to_event()):
        with pytest.raises(ConfigurationError, match="raise the function's timeout"):
            handler(event, shop.context(time_left_ms=20_000))
    assert (shop.seen, shop.store.calls) == ([], [])
    handler({"k": "a"}, shop.context(time_left_ms=20_001))
    assert shop.seen == [{"k": "a"}]


def test_message_id_that_is_none_names_its_expression(shop: Shop) -> None:
    """As a key's error does."""
    with pytest.raises(LeaseKeyMissing, match=r"message_id_jmespath 'nothing' gave NoneType None.* no message id"):
        shop.handler(message_id_jmespath="nothing")({"k": "a"}, shop.context())


def test_waker_is_made_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a client and its connections: not one for each event, also where a test's store stands in."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    made: list[RecordingWaker] = []

    def make(_: object) -> RecordingWaker:
        made.append(RecordingWaker())
        return made[-1]

    monkeypatch.setattr("incumbent.endpoint.waker_from_env", make)
    handler = shop.handler(waker="auto", message_id_jmespath="id")
    with stand_in(shop.store):
        handler({"k": "a", "id": 1}, shop.context())
        handler({"k": "a", "id": 2}, shop.context())
    assert len(made) == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("aws_request_id", 5, "aws_request_id is int 5 instead of text"),
        ("get_remaining_time_in_millis", lambda: None, "NoneType None instead of a number"),
        ("get_remaining_time_in_millis", lambda: "1000", "str '1000' instead of a number"),
    ],
)
@pytest.mark.parametrize(
    "event", [{"id": "a"}, Wake(key="shop/a", ticket="t", target=None).to_event()], ids=["event", "wake"]
)
def test_context_that_lambda_does_not_make_is_refused(event: Any, name: str, value: Any, said: str) -> None:
    """A test's own context says what is wrong with it, before anything is stored."""
    provider = MemoryProvider()

    @leased(key=lambda event: event["id"], provider=provider, keyspace="shop", waker=None)
    def handler(event: Any, context: object) -> None: ...

    with pytest.raises(ConfigurationError, match=said):
        handler(event, SimpleNamespace(**{name: value}))
    assert provider.get_lease_owner("shop/a") is None


def test_decorator_that_does_not_pass_the_lease_on_is_named(shop: Shop, records: list[Any]) -> None:
    """It accepts anything, so that this shows at the first call only; another function's mistake keeps its name."""

    def layer(function: Any) -> Any:
        @functools.wraps(function)
        def inner(record: Any, **_: Any) -> Any:
            return function(record)

        return inner

    @leased_function(**for_records(shop))
    @layer
    def optional(record: Any, *, lease: Lease | None = None) -> bool:
        return lease is None

    @leased_function(**for_records(shop))
    @layer
    def mistaken(record: Any) -> None:
        raise TypeError("f() got an unexpected keyword argument 'lease'")

    assert optional(records[0])
    with pytest.raises(TypeError, match=r"f\(\) got"):
        mistaken(records[1])
