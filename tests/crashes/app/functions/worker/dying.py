"""Dies by SIGKILL at named points: before and after each call of the store and the waker, and each request of one."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ASKED = Path(os.environ["DIE_AT"])


class _UnderWay(threading.local):
    """The call that a thread makes, and how many requests it has made: DynamoDB's calls may make several."""

    call: tuple[str, str] | None = None
    requests = 0


_UNDER_WAY = _UnderWay()


def die(key: str, point: str) -> None:
    """End this process if the key's file asks for this point; it asks once."""
    asked = ASKED / key.replace("/", "!")
    if asked.exists() and asked.read_text(encoding="utf-8") == point:
        asked.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A provider or a waker of which every call is two points; the key of a call is its first argument's."""

    def __init__(self, real: Any, name: str = "") -> None:
        self._real = real
        self._name = name

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        return self._dying(name, method) if callable(method) else method

    def __call__(self, wake: Any) -> None:
        """Wake, as a waker does; fail if the key's file asks for that."""
        fails = ASKED / f"{wake.key.replace('/', '!')}.wake-fails"
        if fails.exists():
            fails.unlink(missing_ok=True)
            raise ConnectionError("the wake was not sent")
        self._dying(self._name, self._real)(wake)

    def _dying(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **more: Any) -> Any:
            key = getattr(first, "key", first)
            said = "redeem" if name == "claim" and more.get("ticket") else name
            _UNDER_WAY.call, _UNDER_WAY.requests = (str(key), said), 0
            die(str(key), f"{said}.before")
            answer = method(first, *rest, **more)
            die(str(key), f"{said}.after")
            _UNDER_WAY.call = None
            return answer

        return call


def count_requests(client: Any) -> None:
    """Make each request of a boto3 client two points more."""

    def sent(**_: Any) -> None:
        if _UNDER_WAY.call:
            _UNDER_WAY.requests += 1
            die(_UNDER_WAY.call[0], f"{_UNDER_WAY.call[1]}.request-{_UNDER_WAY.requests}.before")

    def answered(**_: Any) -> None:
        if _UNDER_WAY.call:
            die(_UNDER_WAY.call[0], f"{_UNDER_WAY.call[1]}.request-{_UNDER_WAY.requests}.after")

    client.meta.events.register("before-send.dynamodb.*", sent)
    client.meta.events.register("after-call.dynamodb.*", answered)
