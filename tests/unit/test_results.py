"""What a handler returns is known to be good before its message counts as handled."""

import asyncio
import concurrent.futures
import contextlib
import decimal
import functools
import inspect
import io
import itertools
import json
import sqlite3
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from awslambdaric.lambda_runtime_marshaller import LambdaMarshaller
from botocore.response import StreamingBody

from incumbent import ConfigurationError, Message, ResultRefused, leased, leased_function
from incumbent.providers.memory import MemoryProvider
from incumbent.results import MAX_RESULT_BYTES, check_answer, is_coroutine_function, refuse_unfinished, unfinished
from tests.unit.stage import context
from tests.unit.test_decorators import Shop

WHEN = datetime(2026, 11, 2, tzinfo=UTC)
Point = namedtuple("Point", "x y")  # noqa: PYI024 - as users write it

CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

VALUES: dict[str, Any] = {
    "nothing": None,
    "text": "naïve ☃",
    "object": {"a": [1, 2.5, True, None], "b": {"c": "d"}},
    "tuple": (1, 2),
    "named tuple": Point(1, 2),
    "decimal": {"price": decimal.Decimal("1.10")},
    "decimal that is no number": decimal.Decimal("NaN"),
    "not a number": float("nan"),
    "bytes alone": b"\xff\x00",
    "bytes of text inside": {"a": b"abc"},
    "other bytes inside": {"a": b"\xff"},
    "numbers as names": {1: "a", None: "b", 1.5: "c", False: "d"},
    "bytes as names": {b"a": 1},
    "tuple as a name": {(1, 2): 1},
    "datetime": {"at": WHEN},
    "datetime as a name": {WHEN: 1},
    "set": {1, 2},
    "exception": ValueError("no"),
    "class": ValueError,
    "lone surrogate": {"a": "\ud800"},
    "circle": CIRCLE,
    "views": {}.keys(),
}


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


def marshalled(value: Any) -> bool:
    """Whether the runtime client gets it to Lambda."""
    try:
        body, _ = LambdaMarshaller().marshal_response(value)
        if isinstance(body, str):
            body.encode()
    except Exception:  # noqa: BLE001 - whatever it is, there is no answer
        return False
    return True


def taken(value: Any) -> bool:
    """Whether it counts as a result."""
    try:
        check_answer(value, "k")
    except ResultRefused:
        return False
    return True


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("runtime", ["AWS_Lambda_python3.11", "AWS_Lambda_python3.13"])
def test_result_is_good_where_the_runtime_client_marshals_it(
    monkeypatch: pytest.MonkeyPatch, runtime: str, name: str
) -> None:
    """Its encoder knows decimals and bytes, and takes what Python's own does not; the version of the runtime counts."""
    monkeypatch.setenv("AWS_EXECUTION_ENV", runtime)
    assert taken(VALUES[name]) == marshalled(VALUES[name])


@pytest.mark.parametrize("name", [name for name in VALUES if name != "bytes as names"])
def test_result_is_good_on_a_developers_machine_where_it_would_be_in_lambda(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without the runtime client the newest runtimes count; names of bytes are refused, where Lambda sends text."""
    monkeypatch.setenv("AWS_EXECUTION_ENV", "AWS_Lambda_python3.13")
    expected = marshalled(VALUES[name])
    for module in [each for each in sys.modules if each.partition(".")[0] == "awslambdaric"]:
        monkeypatch.delitem(sys.modules, module)
    assert taken(VALUES[name]) == expected


@pytest.mark.parametrize("make", [lambda most: "x" * (most - 2), lambda most: b"x" * most])
def test_result_of_more_than_lambda_takes_is_refused(make: Callable[[int], Any]) -> None:
    """6 MB, as it is sent."""
    assert taken(make(MAX_RESULT_BYTES))
    with pytest.raises(ResultRefused, match="6,291,557 bytes"):
        check_answer(make(MAX_RESULT_BYTES + 1), "k")


def test_run_whose_result_lambda_cannot_take_has_failed(shop: Shop) -> None:
    """Its source is told of an error, and its retry runs the message again: it is no duplicate."""
    handler = shop.handler(message_id_jmespath="id")
    shop.during = lambda _: {"at": WHEN}
    for _ in range(2):
        with pytest.raises(ResultRefused, match=r"key 'a'.*datetime"):
            handler({"k": "a", "id": 1}, shop.context())
    assert [fact.outcome for fact in shop.facts.of("run_ended")] == ["failed", "failed"]
    assert shop.store.find("shop/a", "1").state == "unknown"
    shop.during = lambda _: {"at": WHEN.isoformat()}
    assert handler({"k": "a", "id": 1}, shop.context()) == {"at": WHEN.isoformat()}
    assert shop.store.find("shop/a", "1").state == "handled"


def test_own_message_among_others_is_checked_too(shop: Shop) -> None:
    """With ``deliver="all"`` the run's result is the answer, whichever message was the first."""
    shop.store.claim("shop/a", "dead", 1_000, Message(id="older", event={"k": "a", "id": 0}), as_ticket=True)
    shop.store.release_lease("shop/a", "dead")
    handler = shop.handler(message_id_jmespath="id", deliver="all")
    shop.during = lambda _: WHEN
    with pytest.raises(ResultRefused):
        handler({"k": "a", "id": 1}, shop.context())


def test_results_of_other_messages_may_be_anything(shop: Shop) -> None:
    """They go to ``on_result`` and not to Lambda."""
    got: list[Any] = []
    handler = shop.handler(message_id_jmespath="id", on_result=lambda _, result: got.append(result))

    def work(event: Any) -> Any:
        if event["id"] == 1:
            handler({"k": "a", "id": 2}, shop.context("request-2"))
            return "answer"
        return WHEN

    shop.during = work
    assert handler({"k": "a", "id": 1}, shop.context()) == "answer"
    assert got == [WHEN]
    assert shop.store.find("shop/a", "2").state == "handled"


def test_run_that_defers_is_not_asked_for_a_result(shop: Shop) -> None:
    """``lease.defer()`` is no answer to anybody."""

    @leased(key="a", provider=shop.store, clock=shop.clock, waker=None, keyspace="shop")
    def handler(event: Any, context: Any, *, lease: Any) -> Any:
        return lease.defer()

    assert handler({}, shop.context())["status"] == "accepted"  # type: ignore[call-arg]


# --- work that would begin after the settle


def behind_a_decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    """A middleware of the kind that everybody writes."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


done: list[str] = []


def generates(event: Any, context: Any = None) -> Any:
    """A generator function."""
    done.append("generated")
    yield event


async def generates_later(event: Any, context: Any = None) -> Any:
    """An asynchronous one."""
    done.append("generated")
    yield event


async def awaits_nothing(event: Any, context: Any = None) -> Any:
    """A coroutine that returns another."""
    return asyncio.sleep(0)


def maps(event: Any, context: Any = None) -> Any:
    """Work that nobody has asked for yet."""
    return map(done.append, ["mapped"])


def filters(event: Any, context: Any = None) -> Any:
    """As `maps`."""
    return filter(done.append, ["filtered"])


async def works(event: Any = None, context: Any = None) -> None:
    """Do the work, once it is awaited."""
    await asyncio.sleep(0)
    done.append("worked")


class Lazy:
    """An application's own iterator."""

    def __iter__(self) -> Any:
        """Be one."""
        return self

    def __next__(self) -> Any:
        """Do the work, once it is asked for."""
        done.append("worked")
        raise StopIteration


class Awaits:
    """An application's own awaitable."""

    def __await__(self) -> Any:
        """Do the work, once it is awaited."""
        done.append("worked")
        yield


async def starts_a_task(event: Any, context: Any = None) -> Any:
    """Work that goes on after the handler."""
    return asyncio.create_task(works())


async def gives_an_awaitable(event: Any, context: Any = None) -> Any:
    """What a plain function returns is awaited, and what is awaited is the result."""
    return Awaits()


def returns(make: Callable[[], Any]) -> Callable[..., Any]:
    """A handler that returns it."""

    def returned(event: Any, context: Any = None) -> Any:
        return make()

    return returned


def pooled() -> Any:
    """Work for the threads of a pool."""
    with ThreadPool(1) as pool:
        return pool.map_async(done.append, ())


manage = contextlib.contextmanager(generates)
manage_later = contextlib.asynccontextmanager(generates_later)

LAZY = [generates, generates_later, awaits_nothing, maps, filters]
UNDONE: dict[str, Callable[..., Any]] = {
    "task": starts_a_task,
    "starmap": returns(lambda: itertools.starmap(done.append, [("x",)])),
    "chain": returns(lambda: itertools.chain(map(done.append, ["x"]))),
    "zip": returns(lambda: zip(map(done.append, ["x"]), strict=True)),
    "enumerate": returns(lambda: enumerate(map(done.append, ["x"]))),
    "iter": returns(lambda: iter(lambda: done.append("x"), 1)),
    "reversed": returns(lambda: reversed([1])),
    "own iterator": returns(Lazy),
    "awaitable": gives_an_awaitable,
    "awaitable in an object": returns(lambda: {"r": Awaits()}),
    "future": returns(concurrent.futures.Future),
    "pool": returns(pooled),
    "context manager": returns(lambda: manage({})),
    "async context manager": returns(lambda: manage_later({})),
    "in an object": returns(lambda: {"r": generates({})}),
    "in a list": returns(lambda: [1, works()]),
    "in a tuple": returns(lambda: (1, works())),
    "in a set": returns(lambda: {works()}),
    "deep": returns(lambda: {"a": [({"b": [generates({})]},)]}),
    "behind many": returns(lambda: {"many": [*range(100_000)], "r": generates({})}),
    "in a circle": returns(lambda: [CIRCLE, generates({})]),
}


@pytest.mark.parametrize("name", UNDONE)
@pytest.mark.parametrize("decorate", [leased, leased_function])
def test_work_that_nobody_has_done_has_failed(shop: Shop, decorate: Any, name: str) -> None:
    """In whatever shape, and whatever it is put into; a message that failed so runs again."""
    options = {"key_jmespath": "k", "message_id_jmespath": "id", "keyspace": "shop", "clock": shop.clock}
    decorated = decorate(**options, provider=shop.store, waker=None)(UNDONE[name])
    done.clear()
    with pytest.raises(ResultRefused, match="whose work is not done"):
        decorated({"k": "a", "id": 1}, shop.context())
    assert shop.store.find("shop/a", "1").state == "unknown"
    decorated = decorate(**options, provider=shop.store, waker=None)(returns(lambda: "done"))
    assert decorated({"k": "a", "id": 1}, shop.context()) == "done"  # a task was cancelled, and does not run now
    assert done == []


@pytest.mark.parametrize("name", [name for name in UNDONE if not inspect.iscoroutinefunction(UNDONE[name])])
def test_undone_work_of_another_message_is_retried(shop: Shop, name: str) -> None:
    """A follow-up's result goes to no encoder that would find it."""

    def work(event: Any, context: Any = None) -> Any:
        if event["id"] == 2:
            return UNDONE[name](event)
        return handler({"k": "a", "id": 2}, shop.context("request-2")) and "answer"

    options: dict[str, Any] = {"key_jmespath": "k", "message_id_jmespath": "id", "keyspace": "shop"}
    handler: Any = leased(**options, clock=shop.clock, provider=shop.store, waker=None)(work)
    assert handler({"k": "a", "id": 1}, shop.context()) == "answer"
    (waits,) = shop.store.peek("shop/a")
    assert "whose work is not done" in waits.last_error


@pytest.mark.parametrize(
    "make",
    [
        lambda: io.StringIO("read me"),
        lambda: StreamingBody(io.BytesIO(b"read me"), 7),
        lambda: sqlite3.connect(":memory:").execute("select 1"),
        lambda: range(3),
        {}.items,
        lambda: CIRCLE,
        MagicMock,
        lambda: works,
    ],
)
def test_what_can_be_read_or_called_is_a_result(shop: Shop, make: Callable[[], Any]) -> None:
    """A file, a response's body and a cursor are iterators too, and the work that made them is done."""
    made = make()
    function = leased_function(key="a", provider=shop.store, clock=shop.clock)(lambda _: made)
    assert function({"k": "a"}) is made


@pytest.mark.parametrize("function", LAZY)
@pytest.mark.parametrize("decorate", [leased, leased_function])
def test_work_that_would_begin_after_the_settle_has_failed(
    shop: Shop, decorate: Any, function: Callable[..., Any]
) -> None:
    """Behind a decorator it cannot be told before the call; afterwards it can, and its message is not handled."""
    options = {"key_jmespath": "k", "message_id_jmespath": "id", "keyspace": "shop", "clock": shop.clock}
    decorated = decorate(**options, provider=shop.store, waker=None)(behind_a_decorator(function))
    done.clear()
    with pytest.raises(ResultRefused, match=r"key 'a'.*(generator|coroutine|map|filter)"):
        decorated({"k": "a", "id": 1}, shop.context())
    assert done == []
    assert shop.store.find("shop/a", "1").state == "unknown"


def test_generator_of_another_message_is_retried(shop: Shop) -> None:
    """A follow-up's work was not done either: it pauses, promised, and is not handled."""

    def work(event: Any, context: Any = None) -> Any:
        if event["id"] == 2:
            return generates(event)
        return handler({"k": "a", "id": 2}, shop.context("request-2")) and "answer"

    options: dict[str, Any] = {"key_jmespath": "k", "message_id_jmespath": "id", "keyspace": "shop"}
    handler: Any = leased(**options, clock=shop.clock, provider=shop.store, waker=None)(work)
    assert handler({"k": "a", "id": 1}, shop.context()) == "answer"
    (waits,) = shop.store.peek("shop/a")
    assert (waits.id, waits.attempt, waits.promised) == ("2", 1, True)
    assert "ResultRefused" in waits.last_error


def test_generator_that_a_decorator_uses_up_is_fine(shop: Shop) -> None:
    """Its work is done by then."""

    def collected(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return list(function(*args))

        return wrapper

    handler = leased(key="a", provider=MemoryProvider(clock=shop.clock), clock=shop.clock)(collected(generates))
    assert handler({"k": "a"}, context(shop.clock)) == [{"k": "a"}]


def test_result_of_a_record_is_the_batch_processors(shop: Shop) -> None:
    """A ``leased_function`` answers Python and not Lambda: anything but unfinished work will do."""
    function = leased_function(key="a", provider=shop.store, clock=shop.clock)(lambda _: WHEN)
    assert function({"k": "a"}) == WHEN


def test_answer_is_what_the_handler_returned(shop: Shop) -> None:
    """It is looked at, not changed: the runtime client marshals it as ever."""
    handler = shop.handler()
    given = {"price": decimal.Decimal("1.10")}
    shop.during = lambda _: given
    assert handler({"k": "a"}, shop.context()) is given
    assert json.loads(LambdaMarshaller().marshal_response(given)[0]) == {"price": 1.10}


def test_unfinished_work_is_given_up_if_it_can_be() -> None:
    """Something else that is called ``cancel`` does not matter."""

    class Work:
        cancel: Any = "a policy"

        def __await__(self) -> Any:
            raise NotImplementedError

    given_up: list[bool] = []
    work = Work()
    for cancel in (work.cancel, lambda: given_up.append(True)):
        work.cancel = cancel
        with pytest.raises(ConfigurationError, match="store returned a Work, whose work is not done"):
            refuse_unfinished(work, "store")
    assert given_up == [True]


def test_function_with_attributes_is_looked_at_by_inspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be marked as a coroutine function there; the others are not asked about."""

    def function() -> None:
        """Do nothing."""

    asked: list[object] = []

    def ask(given: object) -> bool:
        asked.append(given)
        return True

    monkeypatch.setattr(inspect, "iscoroutinefunction", ask)
    assert not is_coroutine_function(function)
    setattr(function, "marked", 1)  # noqa: B010 - mypy knows no such attribute
    assert is_coroutine_function(function)
    assert asked == [function]


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """What a generator makes a context of."""
    yield


@pytest.mark.parametrize(
    ("value", "undone"),
    [
        (opened(), True),
        (contextlib.nullcontext(), False),
        (SimpleNamespace(gen=(each for each in "ab")), False),
    ],
)
def test_only_what_a_generator_makes_a_context_of_is_undone(value: object, *, undone: bool) -> None:
    """Locks and files are contexts too, and other values may have a field of that name."""
    assert unfinished(value) is undone
