"""Leases and Lambda's durable executions, on the SDK's own runner: inside a step, and refused elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aws_durable_execution_sdk_python import durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python_testing.runner import DurableFunctionTestRunner

from incumbent import ConfigurationError, Lease, LeaseKeyMissing, async_handlers, current_lease, leased, leased_function
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import stand_in
from tests.unit.stage import Meddled

ORDER = {"order_id": "order-1001", "request_id": "request-1"}
MINUTE = Duration.from_minutes(1)


class Shop:
    """A store, an order's function under its lease, and what it saw."""

    def __init__(self, **options: Any) -> None:
        self.store = MemoryProvider()
        self.provider = Meddled(self.store)
        self.ran: list[str] = []
        self.options: dict[str, Any] = {
            "key_jmespath": "order_id",
            "keyspace": "orders",
            "provider": self.provider,
            **options,
        }

    def reserve(self) -> Any:
        """The order's function."""

        def reserve(order: Any, *, lease: Lease) -> str:
            self.ran.append(lease.key)
            assert self.owner() == lease.owner
            return f"reserved {lease.key}"

        return leased_function(**self.options)(reserve)

    def owner(self) -> str | None:
        """Who has the order."""
        return self.store.get_lease_owner("orders/order-1001")


def result_of(handler: Any) -> Any:
    """Run a durable handler to its end, its waits passed over."""
    with DurableFunctionTestRunner(handler, poll_interval=0.01) as runner:
        result = runner.run(input=json.dumps(ORDER), execution_timeout=30)
    scheduler = runner._scheduler  # noqa: SLF001 - it stops its event loop, and leaves it open
    scheduler._thread.join()  # noqa: SLF001
    scheduler._loop.close()  # noqa: SLF001
    return result


def status_of(result: Any) -> str:
    """How it ended."""
    return str(result.status.value)


def test_lease_inside_of_a_step_is_held_for_the_step() -> None:
    """The handler starts anew after each wait; the step's result is kept, so the order is reserved once."""
    shop = Shop(when_busy="reject")
    reserve = shop.reserve()
    owners: list[str | None] = []

    def handle(order: Any, context: Any) -> Any:
        reserved = context.step(lambda _: reserve(order), name="reserve")
        owners.append(shop.owner())
        context.wait(MINUTE)
        return reserved

    result = result_of(durable_execution(handle))
    assert (status_of(result), json.loads(result.result)) == ("SUCCEEDED", "reserved order-1001")
    assert len(owners) == 2  # before the wait, and after it
    assert owners == [None, None]
    assert shop.ran == ["order-1001"]


def test_step_whose_key_is_busy_is_tried_again() -> None:
    """when_busy="reject" raises, and the step's own retries go on until the key is free."""
    shop = Shop(when_busy="reject")
    reserve = shop.reserve()
    shop.store.acquire_lease("orders/order-1001", "somebody", 30_000)
    tries = 0

    def free_at_the_third() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            shop.store.release_lease("orders/order-1001", "somebody")

    shop.provider.before["claim"] = free_at_the_third
    result = result_of(durable_execution(lambda order, context: context.step(lambda _: reserve(order), name="reserve")))
    assert (status_of(result), tries, shop.ran) == ("SUCCEEDED", 3, ["order-1001"])


def test_durable_execution_above_a_lease_is_refused() -> None:
    """Its waits would leave the handler by a BaseException, and the key with it; nothing is claimed."""
    shop = Shop()

    def handle(order: Any, context: Any, *, lease: Lease) -> None:
        shop.ran.append(lease.key)
        context.wait(MINUTE)

    both: list[Any] = [leased(**shop.options)(handle), leased_function(**shop.options)(handle)]
    for decorated in both:
        result = result_of(durable_execution(decorated))
        assert status_of(result) == "FAILED"
        assert "@durable_execution stands above the lease" in result.error.message
        assert "put the lease inside a step" in result.error.message
    assert (shop.ran, shop.provider.calls) == ([], [])


def test_lease_above_a_durable_execution_is_refused() -> None:
    """Its event has a checkpoint's token, good for this invocation only: stored, it would be run by another."""
    shop = Shop()
    handler: Any = leased(**{**shop.options, "key_jmespath": None}, key="k")(durable_execution(lambda order, _: order))
    arn = "arn:aws:lambda:eu-central-1:123456789012:function:orders:1/durable-execution/e/1"
    event = {"DurableExecutionArn": arn, "CheckpointToken": "t", "InitialExecutionState": {"Operations": []}}
    with pytest.raises(ConfigurationError, match="stands above @durable_execution"):
        handler(event, None)
    assert "stands above @durable_execution" in result_of(handler_of_the_runner(handler)).error.message
    assert shop.provider.calls == []


def handler_of_the_runner(handler: Any) -> Any:
    """As the runner calls it: with an object of the SDK's instead of the event."""

    def call(event: Any, context: Any) -> Any:
        try:
            return handler(event, context)
        except ConfigurationError as error:
            return {"Status": "FAILED", "Error": {"ErrorMessage": str(error), "ErrorType": "ConfigurationError"}}

    return call


@pytest.mark.parametrize("decorator", ["def", "async def"])
def test_wait_inside_of_a_lease_is_refused(decorator: str) -> None:
    """The function fails with its reason, the execution with it, and the key is free."""
    shop = Shop()

    def handle(order: Any, context: Any) -> Any:
        def waits(order: Any) -> None:
            shop.ran.append("began")
            context.wait(MINUTE)

        async def waits_too(order: Any) -> None:
            waits(order)

        try:
            return leased_function(**shop.options)(waits if decorator == "def" else waits_too)(order)
        finally:
            async_handlers.close()  # of the runner's thread, which ends

    result = result_of(durable_execution(handle))
    assert (status_of(result), shop.ran) == ("FAILED", ["began"])
    assert "the durable execution waits inside the lease" in result.error.message
    assert shop.owner() is None
    assert shop.store.peek("orders/order-1001") == ()


def test_errors_of_a_step_are_its_own() -> None:
    """What has nothing to do with a suspension goes through as it is."""
    shop = Shop()

    def stop(order: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leased_function(**shop.options)(stop)(ORDER)
    with pytest.raises(LeaseKeyMissing):
        leased_function(**shop.options)(stop)({})
    assert current_lease() is None


def test_documented_example_runs() -> None:
    """The one of docs/policies.md: it waits for an hour, and the order is free meanwhile."""
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text("utf-8")
    (example,) = re.findall(r"## Durable functions\n.*?```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "policies.md", "exec"), names)  # noqa: S102 - the documentation's own example
    with stand_in():
        result = result_of(names["handler"])
    assert status_of(result) == "SUCCEEDED"
    assert json.loads(result.result).startswith("reserved under fence ")
