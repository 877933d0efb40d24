"""Checks of a handler's result, before its message counts as handled."""

import collections.abc
import inspect
import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal

from incumbent.errors import ResultRefused

MAX_RESULT_BYTES = 6_291_556
"""The largest answer that Lambda takes, in bytes as sent."""

_LAZY = (map, filter, collections.abc.Generator, collections.abc.AsyncGenerator, collections.abc.Coroutine)


def check_done(result: object, key: str) -> None:
    """Refuse unfinished work, such as a generator: it would run, if at all, after the lease was released."""
    if not isinstance(result, _LAZY):
        return
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    raise ResultRefused(
        f"the handler of key {key!r} returned a {type(result).__name__}, whose work is not done: finish it in the "
        "handler (list(...), await) and return its result; the message counts as failed",
        key=key,
    )


def check_answer(result: object, key: str) -> None:
    """Refuse a result that Lambda's runtime client cannot send: one that is not JSON, or more than 6 MB.

    Inside Lambda the encoder is the runtime client's; elsewhere one with the same results: decimals are numbers, bytes
    are text, and a result that is only bytes is sent unchanged.
    """
    try:
        size = len(result if isinstance(result, bytes) else _encoder()(result).encode())
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


def _encoder() -> Callable[[object], str]:
    runtime_client = sys.modules.get("awslambdaric.lambda_runtime_marshaller")  # loaded before any handler in Lambda
    encode: Callable[[object], str] = getattr(runtime_client, "to_json", _to_json)
    return encode


def _to_json(result: object) -> str:
    return json.dumps(result, ensure_ascii=False, default=_default)


def _default(value: object) -> object:
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else float(value)
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
