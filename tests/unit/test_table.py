"""DynamoDB's requests one by one: what is sent, what an answer or a refusal means, and what becomes of each error."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from incumbent.errors import LeaseUnavailable, MailboxFull, StoredFormatUnknown
from incumbent.providers.dynamodb.attributes import size_of, typed
from incumbent.providers.dynamodb.client import Clients
from incumbent.providers.dynamodb.expression import Request, Update
from incumbent.providers.dynamodb.item import NO_RECORD, decode
from incumbent.providers.dynamodb.names import owner_digest
from incumbent.providers.dynamodb.table import Answer, Table, TableCall, item_full
from incumbent.rules import TenureEnd
from incumbent.testing.clock import FakeClock
from tests.unit.test_item import item_of

CALL = TableCall(name="claim", key="orders/k", pk="x#orders/k", names=("A",))
KEY = {"pk": {"S": "x#orders/k"}, "sk": {"S": "lease"}}
READ = ("get_item", {"TableName": "t", "Key": KEY, "ConsistentRead": True})


class Script:
    """A client that answers what a test says, and notes what it was asked."""

    def __init__(self, *answers: Any, tries: int = 1) -> None:
        self.meta = SimpleNamespace(
            config=Config(connect_timeout=1, read_timeout=1, retries={"total_max_attempts": tries})
        )
        self.answers = list(answers)
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(**request: Any) -> Any:
            self.asked.append((name, request))
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def table(client: Script, clock: FakeClock | None = None) -> Table:
    """A table that is asked through a client."""
    clients = Clients(cast("Any", client), None, None)
    return Table("t", clients=clients, clock=clock or FakeClock(wall_ms=5_000, mono_ms=0))


def error(code: str, said: str = "no", status: int = 400, **more: Any) -> ClientError:
    """What botocore raises."""
    found = {"Error": {"Code": code, "Message": said}, "ResponseMetadata": {"HTTPStatusCode": status, **more}}
    return ClientError(cast("Any", found), "Any")


def refused(item: Any = None, **more: Any) -> ClientError:
    """A condition that does not hold."""
    found = error("ConditionalCheckFailedException", RetryAttempts=0, **more)
    if item is not None:
        cast("Any", found.response)["Item"] = item
    return found


def applied(item: Any = None, retries: int = 0) -> dict[str, Any]:
    """The answer to an update."""
    return {"ResponseMetadata": {"RetryAttempts": retries}} | ({} if item is None else {"Attributes": item})


def request(returns: Any = "ALL_NEW") -> Request:
    """An update."""
    update = Update()
    update.set(7, "fence")
    update.when_is(1, "v")
    return update.request(returns)


UPDATE = ("update_item", request().arguments("t", KEY))


# --- what is sent


def test_update_is_asked_at_the_time_of_its_sending() -> None:
    """For its lease item; the answer is what stands there then."""
    item = item_of(fence=7, left=f"r:{owner_digest('A')}::5")
    client, times = Script(applied(item)), list[int]()

    def plan(now_ms: int) -> tuple[Request, str]:
        times.append(now_ms)
        return request(), "said"

    answer = table(client).update(CALL, plan)
    assert client.asked == [UPDATE]
    assert UPDATE[1]["Key"] == KEY
    assert times == [answer.now_ms] == [5_000]
    record = decode(item, key="orders/k", names=("A",))
    assert record.state.tenure_end == TenureEnd(how="released", owner="A", successor=None, fence=7)
    assert answer == Answer(applied=True, record=record, sent=answer.sent, said="said")


@pytest.mark.parametrize("returns", ["ALL_NEW", "UPDATED_NEW", "NONE"])
def test_answer_of_an_update(returns: Any) -> None:
    """Which may be nothing; what was written is known all the same."""
    answered = {"ALL_NEW": item_of(fence=3), "UPDATED_NEW": {"edits": typed(9)}, "NONE": None}[returns]
    answer = table(Script(applied(answered))).update(CALL, lambda _: (request(returns), "said"))
    found = {"ALL_NEW": (3, 0), "UPDATED_NEW": (7, 9), "NONE": (0, 0)}[returns]
    assert (answer.applied, answer.record.number("fence"), answer.record.number("edits")) == (True, *found)
    assert answer.record.exists is (returns != "NONE")


def test_reads_and_writes_of_single_items() -> None:
    """Each by its name, every read after all writes that were answered; what is missing is ``None``."""
    item = item_of(fence=3)
    client = Script({"Item": item}, {}, {"Item": {"x": {"N": "1"}}}, {}, {}, {}, {})
    asked = table(client)
    answer = asked.read(CALL)
    assert (answer.applied, answer.now_ms, answer.repeated) == (False, 5_000, False)
    assert answer.record == decode(item, key="orders/k")
    assert asked.read(CALL).record is NO_RECORD
    assert asked.get(CALL, "body#m") == {"x": {"N": "1"}}
    assert asked.get(CALL, "body#m") is None
    asked.put(CALL, item)
    asked.delete(CALL, "dead#m")
    asked.sweep(CALL, "body#m")
    body = {"TableName": "t", "Key": {"pk": {"S": "x#orders/k"}, "sk": {"S": "body#m"}}}
    letter = {"TableName": "t", "Key": {"pk": {"S": "x#orders/k"}, "sk": {"S": "dead#m"}}}
    assert client.asked == [
        READ,
        READ,
        ("get_item", {**body, "ConsistentRead": True}),
        ("get_item", {**body, "ConsistentRead": True}),
        ("put_item", {"TableName": "t", "Item": item}),
        ("delete_item", letter),
        ("delete_item", body),
    ]


@pytest.mark.parametrize("method", ["query", "scan"])
def test_search_goes_on_from_page_to_page(method: str) -> None:
    """It is asked for the next only when its caller comes so far."""
    client = Script({"Items": [1, 2], "LastEvaluatedKey": KEY}, {"Items": [], "LastEvaluatedKey": "y"}, {"Items": [3]})
    found = getattr(table(client), method)(CALL, Limit=2)
    assert client.asked == []
    assert [next(found), next(found)] == [1, 2]
    first, further = {"TableName": "t", "Limit": 2}, "ExclusiveStartKey"
    assert client.asked == [(method, first)]
    assert list(found) == [3]
    assert client.asked[1:] == [(method, {**first, further: KEY}), (method, {**first, further: "y"})]


def keys_of(count: int, first: int = 0) -> list[Any]:
    """The keys of lease items."""
    return [{"pk": {"S": f"x#{n}"}, "sk": {"S": "lease"}} for n in range(first, first + count)]


def test_many_records_are_read_by_fifty() -> None:
    """What DynamoDB has left is asked for again, before the others and after a pause."""
    calls = {f"x#{n}": TableCall(name="orphans", key=str(n), pk=f"x#{n}") for n in range(60)}
    left = {"UnprocessedKeys": {"t": {"Keys": keys_of(2, 48)}}}
    client = Script({"Responses": {"t": ["a", "b"]}, **left}, {"Responses": {"t": ["c"]}, "UnprocessedKeys": {}})
    clock = FakeClock(wall_ms=5_000)
    found: list[Any] = list(table(client, clock).read_many(calls))
    assert found == ["a", "b", "c"]
    assert clock.now().wall_ms == 5_050
    asked = [
        ("batch_get_item", {"RequestItems": {"t": {"Keys": each, "ConsistentRead": True}}})
        for each in (keys_of(50), keys_of(2, 48) + keys_of(10, 50))
    ]
    assert client.asked == asked
    assert list(table(Script()).read_many({})) == []
    assert list(table(Script({"Responses": {}})).read_many({"x#1": calls["x#1"]})) == []


@pytest.mark.parametrize(
    ("count", "unread", "left", "rounds"),
    [(1, 1, 1, 20), (49, 1, 1, 20), (50, 1, 1, 21), (60, 50, 60, 21), (100, 1, 1, 22)],
)
def test_records_that_stay_unread_are_an_error(count: int, unread: int, left: int, rounds: int) -> None:
    """It says how many, and what to do."""
    calls = {f"x#{n}": TableCall(name="orphans", key=str(n), pk=f"x#{n}") for n in range(count)}
    client = Script(*[{"Responses": {"t": []}, "UnprocessedKeys": {"t": {"Keys": keys_of(unread)}}}] * 30)
    said = f"^orphans: DynamoDB left {left} records unread: it is throttling; repeat the call$"
    with pytest.raises(LeaseUnavailable, match=said):
        list(table(client).read_many(calls))
    assert len(client.asked) == rounds


# --- what a refusal means


def test_refusal_that_shows_the_record() -> None:
    """The rules decide on it."""
    answer = table(Script(refused(item_of(fence=3)))).update(CALL, lambda _: (request(), "said"))
    assert answer == Answer(applied=False, record=decode(item_of(fence=3), key="orders/k"), sent=answer.sent)


@pytest.mark.parametrize("repeated", [False, True])
def test_record_is_read_where_nothing_shows_it(repeated: bool) -> None:  # noqa: FBT001 - pytest
    """After a refusal without it, or instead of an update that a plan does without; its time is the first one's."""
    for plan, answers in ((request(), [refused()]), (None, [])):
        clock = FakeClock(wall_ms=5_000)

        def late(_: int, plan: Any = plan, clock: FakeClock = clock) -> Any:
            clock.advance(7)
            return plan and (plan, "said")

        client = Script(*answers, {"Item": item_of(fence=3)})
        answer = table(client, clock).update(CALL, late, repeated=repeated)
        assert (answer.applied, answer.now_ms, answer.repeated, answer.said) == (False, 5_000, repeated, None)
        assert answer.record.number("fence") == 3
        assert client.asked[-1] == READ
        assert len(client.asked) == 1 + len(answers)


@pytest.mark.parametrize(
    ("first", "tries", "flag", "doubt"),
    [
        ("", 1, False, False),
        ("", 1, True, True),
        ("again", 1, False, True),
        ("inside", 1, False, True),
        ("untold", 1, False, False),
        ("untold", 3, False, True),
    ],
)
@pytest.mark.parametrize("ends", ["applied", "refused", "read"])
def test_update_that_may_have_been_applied_before(
    first: str,
    tries: int,
    flag: bool,  # noqa: FBT001 - pytest
    doubt: bool,  # noqa: FBT001 - pytest
    ends: str,
) -> None:
    """R9: the call says so, or it is not the first try, or the client has repeated it, or may have."""
    told = {"inside": {"RetryAttempts": 1}, "untold": {}}.get(first, {"RetryAttempts": 0})
    found: Any = {"ResponseMetadata": told, "Attributes": item_of(fence=3)}
    if ends != "applied":
        found = error("ConditionalCheckFailedException")
        found.response["ResponseMetadata"] = told
        if ends == "refused":
            found.response["Item"] = item_of(fence=3)
    answers = [found, {"Item": item_of(fence=3)}]
    client = Script(*([ReadTimeoutError(endpoint_url="t"), *answers] if first == "again" else answers), tries=tries)
    answer = table(client).update(CALL, lambda _: (request(), "said"), repeated=flag)
    assert (answer.applied, answer.repeated, answer.record.number("fence")) == (ends == "applied", doubt, 3)


# --- what becomes of errors

AGAIN = "repeat the call"
NOT_FOUND = "the table, or its index, does not exist: check table_name and the Region"
FORM = "DynamoDB refuses the request's form: check that the table's keys are pk and sk, strings"
NO_HELP = "DynamoDB refuses the request, and repeating it does not help: see the cause"
NETWORK = "the connection failed or took too long: repeat the call; check the network and the endpoint"
TOO_LARGE = "an item would be larger than DynamoDB's 400 KB: look at what other code has added to it"
BUSY = f"DynamoDB is throttling or failing: {AGAIN}"
ERRORS: tuple[tuple[Exception, int, str], ...] = (
    *(
        (error(code), 3, BUSY)
        for code in (
            "InternalServerError",
            "LimitExceededException",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestTimeout",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "Throttling",
            "ThrottlingException",
            "TransactionConflictException",
        )
    ),
    (error("Odd", status=500), 3, BUSY),
    (error("Odd", status=499), 1, NO_HELP),
    (error(""), 3, f"DynamoDB refuses the request, and its reason was cut off: {AGAIN}"),
    (error("400"), 3, f"DynamoDB refuses the request, and its reason was cut off: {AGAIN}"),
    (error("ResourceNotFoundException"), 1, NOT_FOUND),
    (
        error("AccessDeniedException"),
        1,
        "the function's role does not permit this: allow it on the table and its index",
    ),
    (error("UnrecognizedClientException"), 1, "the credentials are not those of this account"),
    (error("ExpiredTokenException"), 1, "the credentials have expired"),
    (error("ValidationException"), 1, FORM),
    (error("ValidationException", "Item size has exceeded the maximum allowed size"), 1, TOO_LARGE),
    (error("Odd", "the maximum allowed size"), 1, NO_HELP),
    (ReadTimeoutError(endpoint_url="t"), 3, NETWORK),
    (ConnectTimeoutError(endpoint_url="t"), 3, NETWORK),
    (EndpointConnectionError(endpoint_url="t"), 3, NETWORK),
    (ChecksumError(checksum_type="crc", expected_checksum="1", actual_checksum="2"), 3, NETWORK),
    (NoCredentialsError(), 1, "botocore cannot send the request: check credentials and configuration"),
)


@pytest.mark.parametrize(("raised", "tries", "advice"), ERRORS)
def test_error_is_tried_again_if_that_may_help(raised: Exception, tries: int, advice: str) -> None:
    """And what to do is said."""
    client = Script(*[raised] * tries)
    with pytest.raises(LeaseUnavailable) as found:
        table(client).read(TableCall(name="peek", key="k", pk="x#k"))
    assert (
        str(found.value) == f"peek of key 'k': the store gave no answer ({type(raised).__name__}: {raised}); {advice}"
    )
    assert (len(client.asked), found.value.key, found.value.__cause__) == (tries, "k", raised)


@pytest.mark.parametrize("name", ["beat", "release_lease", "renew_lease", "settle", "take", "transfer_lease"])
def test_owner_waits_longer_for_a_throttled_table(name: str) -> None:
    """It cannot leave that to a source."""
    throttled = error("ThrottlingException")
    client = Script(*[throttled] * 3, {"Item": item_of(fence=3)})
    assert table(client).read(TableCall(name=name, key="k", pk="x#k")).record.number("fence") == 3
    for other, raised in (
        (name, ReadTimeoutError(endpoint_url="t")),
        ("claim", throttled),
        ("acquire_lease", throttled),
    ):
        with pytest.raises(LeaseUnavailable):
            table(Script(*[raised] * 3)).read(TableCall(name=other, key="k", pk="x#k"))


def test_call_ends_in_time() -> None:
    """After a sixth of its ttl, and before what its caller says."""
    clock, throttled = FakeClock(wall_ms=5_000, mono_ms=0), error("ThrottlingException")
    with pytest.raises(LeaseUnavailable, match="throttling"):
        table(Script(*[throttled] * 100), clock).read(TableCall(name="take", key="k", pk="x#k", ttl_ms=1_500))
    assert clock.now().mono_ms <= 250
    for left_ms, tried in ((1_999, False), (2_000, True)):  # a try waits twice
        client, now = Script({}, {}), FakeClock(wall_ms=5_000, mono_ms=0)
        call = TableCall(name="take", key="k", pk="x#k", give_up_at=now.now().plus(left_ms))
        with nullcontext() if tried else pytest.raises(LeaseUnavailable, match="it was not tried"):
            table(client, now).read(call)
        assert len(client.asked) == tried


def test_item_that_would_be_too_large_is_a_full_mailbox() -> None:
    """M7: for what adds a message; for all else it is an error of the table."""
    raised = error("ValidationException", "Item size to update has exceeded the maximum allowed size")
    for name in ("claim", "redrive"):
        with pytest.raises(
            MailboxFull, match=r"^the item of key 'k' is near the 400 KB that DynamoDB allows\. "
        ) as full:
            table(Script(raised)).update(TableCall(name=name, key="k", pk="x#k"), lambda _: (request(), "said"))
        assert (full.value.key, full.value.owner) == ("k", None)
    with pytest.raises(LeaseUnavailable, match=TOO_LARGE):
        table(Script(raised)).update(TableCall(name="settle", key="k", pk="x#k"), lambda _: (request(), "said"))
    record = decode(item_of(fence=3), key="k")
    full_item = item_full("k", record, owner="A")
    assert f"allows: 0 messages, {size_of(record.item)} bytes in all. This message was not stored" in str(full_item)
    assert (full_item.key, full_item.owner) == ("k", "A")


def test_attribute_of_another_type_is_told_by_the_record() -> None:
    """M12: DynamoDB only says that the expression does not fit."""
    raised = error("ValidationException", "The provided expression refers to ... update expression ...")
    client = Script(raised, {"Item": item_of(fence={"S": "x"})})
    with pytest.raises(StoredFormatUnknown):
        table(client).update(CALL, lambda _: (request(), "said"))
    assert client.asked == [UPDATE, READ]
    client = Script(raised, {"Item": item_of(fence=3)})
    with pytest.raises(LeaseUnavailable, match=FORM):
        table(client).update(CALL, lambda _: (request(), "said"))
    assert client.asked == [UPDATE, READ]
    for other in (error("ValidationException"), error("Odd", "update expression")):
        client = Script(other)
        with pytest.raises(LeaseUnavailable):
            table(client).update(CALL, lambda _: (request(), "said"))
        assert client.asked == [UPDATE]


@pytest.mark.parametrize("raised", [error("Odd"), NoCredentialsError(), ReadTimeoutError(endpoint_url="t")])
def test_sweep_that_fails_is_left_to_ttl(raised: ClientError | BotoCoreError) -> None:
    """It is tried once."""
    client = Script(raised)
    table(client).sweep(CALL, "body#m")
    assert len(client.asked) == 1


OF_NOTHING = "2745614147"
HEADS: tuple[tuple[dict[str, str] | None, bool], ...] = (
    (None, True),
    ({"x-amz-crc32": OF_NOTHING}, True),
    ({"x-amz-crc32": OF_NOTHING, "content-length": "9"}, True),
    ({"x-amz-crc32": "1"}, False),
    ({"x-amz-crc32": "1", "content-length": "2", "date": "d"}, False),
    ({"x-amz-crc32": "1", "transfer-encoding": "chunked"}, True),
    ({"content-length": "2", "date": "d"}, True),
    ({"date": "d", "content-length": "2"}, False),
    ({"content-length": "20", "date": "d"}, False),
    ({"date": "d"}, False),
    ({}, False),
    ({"date": "d", "transfer-encoding": "chunked"}, True),
)


@pytest.mark.parametrize(("head", "whole"), HEADS)
def test_empty_answer_counts_if_its_head_says_so(head: dict[str, str] | None, whole: bool) -> None:  # noqa: FBT001
    """R9: botocore takes one that broke off for an empty one, in every request; one that holds something is whole."""
    metadata: dict[str, Any] = {"RetryAttempts": 0} | ({} if head is None else {"HTTPHeaders": head})
    empty = {"ResponseMetadata": metadata}
    batch = {"x#k": TableCall(name="peek", key="k", pk="x#k")}
    asks: dict[str, tuple[Callable[[Table], Any], dict[str, Any]]] = {
        "update_item": (lambda it: it.update(CALL, lambda _: (request("NONE"), "said")), {"Attributes": {}}),
        "get_item": (lambda it: it.get(CALL, "x"), {"Item": {}}),
        "put_item": (lambda it: it.put(CALL, {}), {"Attributes": {}}),
        "delete_item": (lambda it: it.delete(CALL, "x"), {"Attributes": {}}),
        "query": (lambda it: list(it.query(CALL)), {"Items": []}),
        "scan": (lambda it: list(it.scan(CALL)), {"Items": []}),
        "batch_get_item": (lambda it: list(it.read_many(batch)), {"Responses": {}}),
    }
    for name, (ask, full) in asks.items():
        client = Script(*[empty] * 3)
        if not whole:
            with pytest.raises(LeaseUnavailable, match=r"\(_CutOff: the answer broke off\); the connection failed"):
                ask(table(client))
            assert [asked for asked, _ in client.asked] == [name] * 3
        elif name not in {"query", "scan", "batch_get_item"}:  # an answer of theirs is never empty
            ask(table(client))
        ask(table(Script({**full, **empty})))
