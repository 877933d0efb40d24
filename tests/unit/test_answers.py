"""What an HTTP caller is told, status by status."""

import json
from typing import Any

import pytest

from incumbent.errors import (
    IncumbentError,
    LeaseKeyMissing,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
)
from incumbent.values import Busy, Duplicate, Routed
from tests.unit.stage import raising
from tests.unit.test_decorators import Shop, load

SAID = {"key": "a", "message_id": "m1"}


def asked(shop: Shop, **options: Any) -> Any:
    """The answer to a request, and its body."""
    handler = shop.handler(key=lambda _: "a", key_jmespath=None, message_id=lambda _: "m1", **options)
    answer = handler(load("api-gateway-http"), shop.context())
    headers = {name: value for name, value in answer["headers"].items() if name != "content-type"}
    return answer["statusCode"], json.loads(answer["body"]), headers


@pytest.mark.parametrize(
    ("error", "status", "said", "again"),
    [
        (LeaseKeyMissing("no"), 400, "the request has no key", False),
        (LeaseUnavailable("no"), 503, "temporarily unavailable; retry", True),
        (MessageInvalid("no"), 400, "the request cannot be stored as JSON", False),
        (MailboxFull("no"), 429, "too many requests are waiting; retry later", True),
        (MessageTooLarge("no"), 413, "the request is too large", False),
    ],
)
def test_error_of_a_request(error: IncumbentError, status: int, said: str, again: bool) -> None:  # noqa: FBT001 - a row
    """No more than its caller may know, and whether to try again."""
    shop = Shop()
    shop.store.before["claim"] = raising(error)
    body = {"error": type(error).__name__, "message": said}
    more = {"retry-after": "1"} if again else {}
    assert asked(shop) == (status, body, more)
    assert asked(shop, answer_headers={"x-shop": "1"}) == (status, body, {"x-shop": "1", **more})


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (Routed(owner="B", waiting=1), 202, {"status": "accepted", **SAID}),
        (Duplicate(state="waiting"), 202, {"status": "accepted", "state": "waiting", **SAID}),
        (Duplicate(state="running"), 202, {"status": "accepted", "state": "running", **SAID}),
        (Duplicate(state="handled"), 200, {"status": "handled", **SAID}),
        (Duplicate(state="dead"), 200, {"status": "dead", **SAID}),
        (Busy(owner="B", expires_in_ms=1), 200, {"status": "skipped", **SAID}),
    ],
)
def test_answer_of_a_request_that_is_not_run(outcome: Any, status: int, said: dict[str, Any]) -> None:
    """What has become of its message."""
    shop = Shop()
    shop.store.after["claim"] = lambda _: outcome
    assert asked(shop) == (status, said, {})
    assert asked(shop, answer_headers={"x-shop": "1"}) == (status, said, {"x-shop": "1"})


def test_answer_of_a_request_that_is_rejected() -> None:
    """``when_busy="reject"``: the caller tries again."""
    shop = Shop()
    shop.occupy()
    body = {"error": "LeaseBusy", "message": "the key is busy; retry"}
    assert asked(shop, when_busy="reject") == (409, body, {"retry-after": "1"})
    more = {"x-shop": "1", "retry-after": "1"}
    assert asked(shop, when_busy="reject", answer_headers={"x-shop": "1"}) == (409, body, more)
