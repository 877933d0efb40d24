"""Whether what a handler returned is good: looked at before its message counts as handled."""

import collections.abc
import inspect
import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal

from incumbent.errors import ResultRefused

MAX_RESULT_BYTES = 6_291_556
"""What Lambda takes for an answer, as it is sent."""

_LAZY = (map, filter, collections.abc.Generator, collections.abc.AsyncGenerator, collections.abc.Coroutine)


def check_done(result: object, key: str) -> None:
    """Refuse work that has not begun: it would be done, if at all, after the lease was given up."""
    if not isinstance(result, _LAZY):
        return
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    raise ResultRefused(
        f"the handler of key {key!r} returned a {type(result).__name__}, whose work is not done: finish it in the "
        "handler (list(...), await) and return what came of it; the message counts as failed",
        key=key,
    )


def check_answer(result: object, key: str) -> None:
    """Refuse what Lambda's runtime client cannot send: what is not JSON, and more than Lambda takes (6 MB).

    The encoder is the runtime client's own inside Lambda, and one that answers as it does elsewhere: decimals are
    numbers, bytes are text; bytes alone are sent as they stand.
    """
    try:
        size = len(result if isinstance(result, bytes) else _encoder()(result).encode())
    except Exception as cause:
        raise ResultRefused(
            f"the handler of key {key!r} returned what Lambda cannot send ({type(cause).__name__}: {cause}): return "
            "JSON; the message counts as failed",
            key=key,
        ) from cause
    if size > MAX_RESULT_BYTES:
        raise ResultRefused(
            f"the handler of key {key!r} returned {size:,} bytes of JSON, and Lambda takes {MAX_RESULT_BYTES:,}: keep "
            "it elsewhere and return its address; the message counts as failed",
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
