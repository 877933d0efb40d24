"""Checks of a handler's result, before its message counts as handled."""

import json
import math
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from decimal import Decimal
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, NoneType, WrapperDescriptorType

from incumbent.errors import ConfigurationError, ResultRefused

MAX_RESULT_BYTES = 6_291_556
"""The largest answer that Lambda takes, in bytes as sent."""

MAX_VALUES = 10_000
"""How many values in a result are looked at for unfinished work, the outer ones first."""

_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE
_BUILT_IN = (type, BuiltinFunctionType, WrapperDescriptorType, MethodWrapperType)
_FUTURES = (("concurrent.futures", "Future"), ("multiprocessing.pool", "ApplyResult"))
_PLAIN = frozenset({str, int, float, bool, bytes, NoneType, dict, list, tuple, set, frozenset})
_ATOMS = frozenset({str, int, float, bool, bytes, NoneType})


def is_async(hook: object) -> bool:
    """Return whether a hook is an ``async def``, or an object with an ``async def __call__``."""
    return is_coroutine_function(hook) or is_coroutine_function(getattr(type(hook), "__call__", None))  # noqa: B004


def is_coroutine_function(function: object) -> bool:
    """Return what ``inspect`` says, which is imported only for what is neither a plain function nor its method."""
    if not callable(function) or isinstance(function, _BUILT_IN):
        return False
    kind: object = type(function)
    if kind in (FunctionType, MethodType) and not function.__dict__:
        return bool(getattr(function, "__code__").co_flags & _CO_COROUTINE)  # noqa: B009 - it has one
    import inspect

    return inspect.iscoroutinefunction(function)


def unfinished(value: object) -> bool:
    """Return whether the value itself stands for work that is not done: a generator, a coroutine, a future and so on.

    Files, the bodies of responses and database cursors are iterators too, but the work that made them is done.
    """
    if type(value) in _PLAIN:
        return False
    if isinstance(value, Iterator | AsyncIterator):
        return not (hasattr(value, "read") or hasattr(value, "fetchone"))
    if isinstance(value, AbstractContextManager | AbstractAsyncContextManager) and isinstance(
        getattr(value, "gen", None), Generator | AsyncGenerator
    ):
        return True  # of contextlib.contextmanager
    return isinstance(value, (Awaitable, *_futures()))


def drop(value: object) -> None:
    """Give unfinished work up, so that a task does not go on later and Python does not warn about a coroutine."""
    if isinstance(value, Coroutine):
        value.close()
    elif callable(cancel := getattr(value, "cancel", None)):
        cancel()


def refuse_unfinished(answer: object, said: str) -> None:
    """Raise ``ConfigurationError`` if a hook returned unfinished work instead of an answer."""
    if unfinished(answer):
        drop(answer)
        raise ConfigurationError(
            f"{said} returned a {type(answer).__name__}, whose work is not done: finish it there and return the answer"
        )


def check_done(result: object, key: str) -> None:
    """Refuse work that is not done: it would run, if at all, after the lease was released.

    Looks into dicts, lists, tuples and sets, at ``MAX_VALUES`` values at most.
    """
    if type(result) in _ATOMS or (type(result) is dict and _ATOMS.issuperset(map(type, result.values()))):
        return  # the usual results, and quickly
    found = [value for value in _values_in(result) if unfinished(value)]
    if not found:
        return
    for value in found:
        drop(value)
    raise ResultRefused(
        f"the handler of key {key!r} returned a {type(found[0]).__name__}, whose work is not done: finish it in the "
        "handler (list(...), await) and return its result; the message counts as failed",
        key=key,
    )


def _values_in(result: object) -> list[object]:
    """Return a result and the values in it, the outer ones first. A list that holds itself comes only once."""
    values, seen = [result], set[int]()
    for value in values:  # which grows meanwhile
        if not isinstance(value, dict | list | tuple | set | frozenset) or id(value) in seen:
            continue
        seen.add(id(value))
        inner = dict.values(value) if isinstance(value, dict) else value
        values.extend(islice(inner, MAX_VALUES - len(values)))
    return values


def _futures() -> Iterator[type]:
    """Yield the classes of futures that are not awaitable. A value of one is only here if its module is loaded."""
    for module, name in _FUTURES:
        if module in sys.modules:
            yield getattr(sys.modules[module], name)


def check_answer(result: object, key: str) -> None:
    """Refuse a result that Lambda's runtime client cannot send: one that is not JSON, or more than 6 MB.

    Inside Lambda the encoder is the runtime client's; elsewhere one with the same results: decimals are numbers, bytes
    are text, and a result that is only bytes is sent unchanged.
    """
    if result is None or result is True or result is False:
        return
    try:
        text = result if isinstance(result, bytes) else _encoder()(result)
        size = len(text) if text.isascii() else len(text if isinstance(text, bytes) else text.encode())
    except Exception as cause:
        raise ResultRefused(
            f"the handler of key {key!r} returned a result that Lambda cannot send ({type(cause).__name__}: {cause}): "
            "return JSON; the message counts as failed",
            key=key,
        ) from cause
    if size > MAX_RESULT_BYTES:
        raise ResultRefused(
            f"the handler of key {key!r} returned {size:,} bytes of JSON, and Lambda takes {MAX_RESULT_BYTES:,}: keep "
            "it elsewhere and return its location; the message counts as failed",
            key=key,
        )


def as_sent(result: object) -> object:
    """Return a result as what its caller reads: JSON as Lambda sends it, where a decimal is a number.

    Raises any exception for a result that is not JSON.
    """
    return json.loads(result if isinstance(result, bytes) else _encoder()(result))


def _encoder() -> Callable[[object], str]:
    runtime_client = sys.modules.get("awslambdaric.lambda_runtime_marshaller")  # loaded before any handler in Lambda
    encode: Callable[[object], str] = getattr(runtime_client, "to_json", _ENCODER.encode)
    return encode


def _default(value: object) -> object:
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else float(value)
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_default)
