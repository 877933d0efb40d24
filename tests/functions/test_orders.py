"""The orders function: batches of SQS record by record, and orders that no stale owner changes."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import yaml

from incumbent import Message
from incumbent.backends import is_mailbox
from incumbent.providers import from_env
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import FakeClock, stand_in
from incumbent.testing.servers import dynalite, dynalite_available, locked_moto
from tests.build.test_template import CloudFormationLoader
from tests.functions.conftest import FUNCTIONS, Context, table_on

Load = Callable[..., Sequence[ModuleType]]

EVENTS = FUNCTIONS.parent / "events"
BATCHES = ("sqs-standard", "sqs-fifo")
KEPT_IN = {"memory": "MemoryOrders", "redis": "RedisOrders", "moto": "DynamoDBOrders"}
if dynalite_available():
    KEPT_IN["dynalite"] = "DynamoDBOrders"

# Two owners, the later one with the higher fence, as far apart as a store's microseconds put them.
EARLIER, LATER = 1_793_610_930_412_000, 1_793_610_930_412_001


# --- where orders are kept


@pytest.fixture(scope="module")
def moto_environment() -> Iterator[dict[str, str]]:
    """A table on moto."""
    with table_on(locked_moto(), "order_id", "ORDER_TABLE_NAME") as environment:
        yield environment


@pytest.fixture(scope="module")
def dynalite_environment() -> Iterator[dict[str, str]]:
    """A table on dynalite, which takes no expression that the real service would refuse."""
    with table_on(dynalite(), "order_id", "ORDER_TABLE_NAME") as environment:
        yield environment


@pytest.fixture
def kept(load: Load) -> ModuleType:
    """The function's module."""
    (module,) = load("orders", "orders")
    return module


@pytest.fixture(params=KEPT_IN)
def orders(request: pytest.FixtureRequest, kept: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A place for orders, chosen by the environment as the function chooses it."""
    environment = {"INCUMBENT_PROVIDER": "memory"}
    if request.param != "memory":
        environment = request.getfixturevalue(f"{request.param}_environment")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = kept.orders_from_env()
    assert type(found).__name__ == KEPT_IN[request.param]
    yield found
    if hasattr(found, "client"):
        found.client.close()


@pytest.fixture
def order(request: pytest.FixtureRequest) -> str:
    """An order that no other test uses."""
    return f"order/{request.node.name} {{é}}"


def test_unknown_order_has_no_updates(orders: Any, order: str) -> None:
    """Nothing is written by looking."""
    assert orders.load(order) == []


def test_updates_are_kept_in_the_order_of_their_runs(orders: Any, order: str) -> None:
    """Whatever their message ids: each run has a fence of its own."""
    updates: list[dict[str, Any]] = [{"n": n, "text": "grüße 🙂"} for n in range(12)]
    for n, update in enumerate(updates):
        orders.apply(order, update, message_id=f"message {12 - n}", fence=EARLIER + n)
    assert orders.load(order) == updates


def test_message_is_applied_once(orders: Any, order: str) -> None:
    """Messages are delivered at least once: the second time changes nothing, under whichever fence."""
    orders.apply(order, {"n": 1}, message_id="a", fence=EARLIER)
    orders.apply(order, {"n": 2}, message_id="a", fence=EARLIER)
    orders.apply(order, {"n": 3}, message_id="a", fence=LATER)
    assert orders.load(order) == [{"n": 1}]


def test_stale_owner_changes_nothing(orders: Any, kept: ModuleType, order: str) -> None:
    """A later owner was there: a lower fence is refused (H37)."""
    orders.apply(order, {"n": 1}, message_id="a", fence=LATER)
    with pytest.raises(kept.StaleOwner, match="later than fence"):
        orders.apply(order, {"n": 2}, message_id="b", fence=EARLIER)
    assert orders.load(order) == [{"n": 1}]


def test_orders_do_not_meet(orders: Any, order: str) -> None:
    """The same message id may come for two."""
    for name in (order, f"{order}:b"):
        orders.apply(name, {"of": name}, message_id="a", fence=EARLIER)
    assert orders.load(order) == [{"of": order}]


def test_full_order_is_refused_before_the_store_refuses_it(orders: Any, kept: ModuleType, order: str) -> None:
    """What it holds stays, a repeated message is still known, and the error says what to do."""
    texts = [f"{n:02}{'é' * 2_500}" for n in range(120)]

    def apply_all() -> None:
        for n, text in enumerate(texts):
            orders.apply(order, {"text": text}, message_id=f"m{n}", fence=EARLIER + n)

    with pytest.raises(kept.OrderFull, match=r"would hold 35\d,\d{3} bytes.*archive it") as full:
        apply_all()
    held = orders.load(order)
    assert [update["text"] for update in held] == texts[: len(held)]
    assert len(held) > 65
    assert full.value.order_id == order
    orders.apply(order, {"text": "again"}, message_id="m3", fence=EARLIER + 200)
    assert orders.load(order) == held
    with pytest.raises(kept.StaleOwner):
        orders.apply(order, {"text": "late"}, message_id="late", fence=EARLIER)
    with pytest.raises(kept.OrderFull):
        orders.apply(f"{order}2", {"text": "x" * 400_000}, message_id="large", fence=EARLIER)


def test_store_without_a_place_for_orders_is_named(kept: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """DynamoDB needs a table."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "dynamodb")
    with pytest.raises(RuntimeError, match="ORDER_TABLE_NAME"):
        kept.orders_from_env()


# --- the function


class Shop:
    """The function, with leases and orders in memory, and what it was sent."""

    def __init__(self, app: ModuleType) -> None:
        self.app = app
        provider: object = from_env()
        assert is_mailbox(provider)
        self.mailbox: Any = provider

    def deliver(self, event: Any) -> list[str]:
        """Invoke it with a batch; return the ids of the records that it reports as failed."""
        answer = self.app.handler(event, Context(aws_request_id="request-1", function_name="orders"))
        return [failed["itemIdentifier"] for failed in json.loads(json.dumps(answer))["batchItemFailures"]]

    def actions(self, order_id: str) -> list[str]:
        """What was done to an order, in order."""
        return [update["action"] for update in self.app.orders().load(order_id)]

    def key(self, order_id: str) -> str:
        """The provider's key of an order."""
        return f"orders/{order_id}"


@pytest.fixture
def shop(load: Load, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Shop:
    """The function with a memory that no other test uses."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    (app,) = load("orders", "app")
    return Shop(app)


def batch(name: str, prefix: str) -> Any:
    """A sample batch, for orders that no other test uses."""
    event = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    for record in event["Records"]:
        body = json.loads(record["body"])
        body["order_id"] = f"{prefix}-{body['order_id']}"
        record["body"] = json.dumps(body)
        record["messageId"] = f"{prefix}-{record['messageId']}"
        if "MessageGroupId" in record["attributes"]:
            record["attributes"]["MessageGroupId"] = body["order_id"]
    return event


@pytest.fixture(params=BATCHES)
def event(request: pytest.FixtureRequest) -> Any:
    """A batch of three records for two orders: standard, then FIFO."""
    return batch(request.param, request.node.name)


def orders_of(event: Any) -> tuple[str, str]:
    """The two orders of a sample batch: the one with two records, and the other."""
    one, other, again = (json.loads(record["body"])["order_id"] for record in event["Records"])
    assert one == again != other
    return one, other


def ids(event: Any) -> list[str]:
    """The records' ids."""
    return [record["messageId"] for record in event["Records"]]


def refuse(shop: Shop, monkeypatch: pytest.MonkeyPatch, *order_ids: str) -> None:
    """Let the place for orders fail for some of them."""
    whole = shop.app.orders()

    class Failing:
        def apply(self, order_id: str, update: dict[str, Any], **more: Any) -> None:
            if order_id in order_ids:
                raise ConnectionError(order_id)
            whole.apply(order_id, update, **more)

        def load(self, order_id: str) -> Any:
            return whole.load(order_id)

    monkeypatch.setattr(shop.app, "orders", Failing)


def test_batch_is_applied_in_order(shop: Shop, event: Any) -> None:
    """Each order gets its own updates, and no record is reported."""
    one, other = orders_of(event)
    assert shop.deliver(event) == []
    assert (shop.actions(one), shop.actions(other)) == (["reserve", "release"], ["reserve"])


def test_batch_delivered_again_changes_nothing(shop: Shop, event: Any) -> None:
    """SQS delivers at least once."""
    one, other = orders_of(event)
    for _ in range(2):
        assert shop.deliver(copy.deepcopy(event)) == []
    assert (shop.actions(one), shop.actions(other)) == (["reserve", "release"], ["reserve"])


def test_failed_record_of_a_standard_queue_is_its_own_failure(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The other order's record is applied and not reported (H48)."""
    event = batch("sqs-standard", request.node.name)
    one, other = orders_of(event)
    refuse(shop, monkeypatch, other)
    assert shop.deliver(event) == [ids(event)[1]]
    assert shop.actions(one) == ["reserve", "release"]


@pytest.mark.parametrize("kind", BATCHES)
def test_failed_record_leaves_one_line_in_the_log(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """A batch that failed in part succeeds as an invocation: only this line, with its traceback, says what failed."""
    event = batch(kind, request.node.name)
    refuse(shop, monkeypatch, orders_of(event)[0])
    shop.deliver(event)
    failures = [each for each in caplog.records if each.name == "app"]
    assert [each.levelname for each in failures] == ["WARNING"] * (1 if kind == "sqs-fifo" else 2)
    assert "ConnectionError" in caplog.text
    monkeypatch.undo()


def test_failed_record_of_a_group_holds_back_the_rest_of_its_group_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In a FIFO queue the later record must not overtake; the other group's is applied (H48)."""
    event = batch("sqs-fifo", request.node.name)
    one, other = orders_of(event)
    refuse(shop, monkeypatch, one)
    assert shop.deliver(event) == [ids(event)[0], ids(event)[2]]
    assert (shop.actions(one), shop.actions(other)) == ([], ["reserve"])
    monkeypatch.undo()


def test_failed_record_is_applied_when_it_comes_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What was reported is not remembered as done; what was not, is."""
    event = batch("sqs-fifo", request.node.name)
    one, other = orders_of(event)
    whole = shop.app.orders
    refuse(shop, monkeypatch, one)
    failed = shop.deliver(event)
    monkeypatch.setattr(shop.app, "orders", whole)
    event["Records"] = [record for record in event["Records"] if record["messageId"] in failed]
    assert shop.deliver(event) == []
    assert (shop.actions(one), shop.actions(other)) == (["reserve", "release"], ["reserve"])


def test_record_without_an_order_is_its_own_failure(shop: Shop, event: Any) -> None:
    """It has no key: nothing runs, and the others are as they would be."""
    one, _ = orders_of(event)
    event["Records"][1]["body"] = "no JSON"
    assert shop.deliver(event) == [ids(event)[1]]
    assert shop.actions(one) == ["reserve", "release"]


def test_records_of_a_busy_order_are_handed_over(shop: Shop, event: Any) -> None:
    """They are done for SQS, wait in the order's mailbox in order, and the next owner runs them."""
    one, other = orders_of(event)
    shop.mailbox.claim(shop.key(one), "somebody", 30_000, Message(id="first", event=event["Records"][1]))
    assert shop.deliver(event) == []
    assert (shop.actions(one), shop.actions(other)) == ([], ["reserve"])
    first, *waiting = shop.mailbox.peek(shop.key(one))
    assert [message.id for message in waiting] == [ids(event)[0], ids(event)[2]]
    shop.mailbox.settle(shop.key(one), "somebody", handled=[first.id], ttl_ms=30_000)
    assert shop.deliver({"incumbent": {"v": 1, "key": shop.key(one), "ticket": None, "hops": 0}}) == []
    assert shop.actions(one) == ["reserve", "release"]
    assert shop.mailbox.peek(shop.key(one)) == ()


def test_resume_event_of_another_function_applies_nothing(shop: Shop) -> None:
    """It is none of ours and no batch: the invocation fails, and whoever sent it hears of it."""
    with pytest.raises(KeyError, match="Records"):
        shop.deliver({"incumbent": {"v": 1, "key": "thread/t-1", "ticket": None, "hops": 0}})


def test_what_was_handled_is_remembered_for_as_long_as_its_queue_may_bring_it_again(shop: Shop) -> None:
    """M5: the function's window covers every receive of a record, and all of the time that its queue keeps it."""
    text = (FUNCTIONS.parent / "template.yaml").read_text("utf-8")
    resources = yaml.load(text, Loader=CloudFormationLoader)["Resources"]  # noqa: S506 - a SafeLoader
    mappings = [
        each
        for each in resources.values()
        if each["Type"] == "AWS::Lambda::EventSourceMapping"
        and each["Properties"]["FunctionName"] == {"Ref": "OrdersFunction"}
    ]
    assert len(mappings) == len(BATCHES)
    for mapping in mappings:
        queue = resources[mapping["Properties"]["EventSourceArn"]["Fn::GetAtt"].removesuffix(".Arn")]["Properties"]
        receives_s = queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"]
        assert shop.app.POLICY.window_ms >= max(receives_s, queue["MessageRetentionPeriod"]) * 1_000


@pytest.mark.parametrize("minute", [6, 18, 24, 4 * 24 * 60 - 1])
def test_record_that_comes_again_late_is_not_applied_again(shop: Shop, event: Any, minute: int) -> None:
    """Its deletion failed, or the whole batch did: at the last receive, or after it lay there for days."""
    one, _ = orders_of(event)
    clock = FakeClock()
    provider = MemoryProvider(clock=clock)
    with stand_in(provider):
        assert shop.deliver(copy.deepcopy(event)) == []
        clock.advance(minute * 60_000)
        assert shop.deliver(copy.deepcopy(event)) == []
        assert [provider.find(shop.key(one), each, policy=shop.app.POLICY).state for each in ids(event)[:1]] == [
            "handled"
        ]
    assert shop.actions(one) == ["reserve", "release"]
