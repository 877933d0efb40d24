"""Requests to the table: their retries, the records that refusals show, and explanations of errors."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from botocore.exceptions import BotoCoreError, ChecksumError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from incumbent.clock import Clock, Moment
from incumbent.errors import LeaseUnavailable, MailboxFull
from incumbent.frozen import dataclass, replace
from incumbent.providers.dynamodb.attributes import Item, size_of, typed
from incumbent.providers.dynamodb.client import Clients, tried_inside, waits_ms
from incumbent.providers.dynamodb.expression import Request
from incumbent.providers.dynamodb.item import NO_RECORD, Record, decode
from incumbent.providers.dynamodb.names import LEASE
from incumbent.retry import call_with_retry
from incumbent.values import Message

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

A = TypeVar("A")

_BATCH = 50
_MAX_BATCHES = 20  # further requests of one reading: DynamoDB may leave keys unread
_PAUSE_MS = 50

_CRC32_OF_NOTHING = str(zlib.crc32(b"{}"))
# An owner that cannot renew or settle stops its whole key, while a claim's source comes again: claims give up first.
_OF_OWNERS = frozenset({"beat", "release_lease", "renew_lease", "settle", "take", "transfer_lease"})
_ADDING = frozenset({"claim", "redrive"})  # calls that add a message, and may find no room for it
_REFUSED = "ConditionalCheckFailedException"
_PASSING = frozenset(
    {
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
    }
)
_ADVICE: Mapping[str, str] = {
    "ResourceNotFoundException": "the table, or its index, does not exist: check table_name and the Region",
    "AccessDeniedException": "the function's role does not permit this: allow it on the table and its index",
    "UnrecognizedClientException": "the credentials are not those of this account",
    "ExpiredTokenException": "the credentials have expired",
    "ValidationException": "DynamoDB refuses the request's form: check that the table's keys are pk and sk, strings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCall:
    """One call of the contract, shared by its requests. ``names`` are the owners and ids that it mentions.

    None of its tries begins whose answer could come after ``give_up_at``.
    """

    name: str
    key: str
    pk: str
    ttl_ms: int | None = None
    give_up_at: Moment | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[A]):
    """The table's answer to an update.

    ``record`` is the item after the update, as far as the update is answered with it; if it was refused, the item that
    refused it. ``sent`` is when the try that was answered was sent. ``repeated`` says that an earlier try may have
    taken effect (R9). If the update was applied, ``said`` is the call's answer, and ``dead_lettered`` are the messages
    that it moved to the dead letters.
    """

    applied: bool
    record: Record
    sent: Moment
    repeated: bool = False
    said: A | None = None
    dead_lettered: tuple[Message, ...] = ()

    @property
    def now_ms(self) -> int:
        """The time that the request contained."""
        return self.sent.wall_ms


class Table:
    """One table and its client, which is made at the first request."""

    def __init__(self, name: str, *, clients: Clients, clock: Clock) -> None:
        self._name = name
        self._clients = clients
        self._clock = clock

    # --- the lease item

    def update(
        self, call: TableCall, plan: Callable[[int], tuple[Request, A] | None], *, repeated: bool = False
    ) -> Answer[A]:
        """Send an update until it is applied or refused.

        ``plan`` makes the update from the time of each try; if it returns ``None``, there is nothing to write at that
        time, and the item is read instead. ``repeated`` is true if earlier requests of the same call are in doubt.
        """
        client, doubt = self._client(call), repeated

        def send(number: int, sent: Moment) -> Answer[A] | Moment:
            nonlocal doubt
            doubt = doubt or number > 1
            planned = plan(sent.wall_ms)
            if planned is None:
                return sent
            request, said = planned
            try:
                found = _whole(client.update_item(**request.arguments(self._name, _key(call.pk, LEASE))))
            except ClientError as error:
                if call.name in _ADDING and _is_too_large(error):
                    raise item_full(call.key, None, owner=None) from error
                if error.response["Error"]["Code"] != _REFUSED:
                    if _meets_odd_type(error):  # which reading the item tells (M12)
                        self._decode(call, self._get(call, LEASE))
                    raise
                doubt = doubt or tried_inside(client, error.response)
                refused: Mapping[str, Any] = error.response
                old = refused.get("Item")
                if old is None:  # the item does not exist, or this store does not return it
                    return sent
                return Answer(applied=False, record=self._decode(call, old), sent=sent, repeated=doubt)
            doubt = doubt or tried_inside(client, found)
            answered = request.returns != "NONE"
            record = self._decode(call, request.item(found.get("Attributes", {}))) if answered else NO_RECORD
            return Answer(applied=True, record=record, sent=sent, repeated=doubt, said=said)

        answer = self._ask(call, send, client)
        if isinstance(answer, Moment):  # the refusal's time decides, also for the item read after it
            return replace(self.read(call), sent=answer, repeated=doubt)
        return answer

    def read(self, call: TableCall) -> Answer[Any]:
        """Read the lease item, after every write that was answered."""

        def send(_: int, sent: Moment) -> Answer[Any]:
            return Answer(applied=False, record=self._decode(call, self._get(call, LEASE)), sent=sent)

        return self._ask(call, send)

    def read_many(self, calls: Mapping[str, TableCall]) -> Iterator[Item]:
        """Read the lease items of several partition keys, in any order; missing ones are left out."""
        wanted: list[Any] = [_key(pk, LEASE) for pk in calls]
        batches_left = len(wanted) // _BATCH + _MAX_BATCHES
        while wanted:
            batch, wanted = wanted[:_BATCH], wanted[_BATCH:]
            call = calls[batch[0]["pk"]["S"]]
            found = self._ask(call, self._reading(call, batch))
            yield from found["Responses"].get(self._name, [])
            unread = found.get("UnprocessedKeys", {}).get(self._name)
            if unread:
                batches_left -= 1
                if not batches_left:
                    raise LeaseUnavailable(
                        f"{call.name}: DynamoDB left {len(wanted) + len(unread['Keys'])} records unread: it is "
                        "throttling; repeat the call"
                    )
                self._clock.sleep_ms(_PAUSE_MS)
                wanted = [*unread["Keys"], *wanted]

    # --- the other items

    def get(self, call: TableCall, sk: str) -> Item | None:
        """Read an item."""
        return self._ask(call, lambda *_: self._get(call, sk))

    def put(self, call: TableCall, item: Item) -> None:
        """Write a whole item."""
        written: Any = item
        self._ask(call, lambda *_: _whole(self._client(call).put_item(TableName=self._name, Item=written)))

    def delete(self, call: TableCall, sk: str) -> None:
        """Delete an item, whether it exists or not."""
        self._ask(call, lambda *_: self._delete(call, sk))

    def sweep(self, call: TableCall, sk: str) -> None:
        """Delete an item that is no longer needed. If that fails, TTL deletes it."""
        with suppress(BotoCoreError, ClientError):
            self._delete(call, sk)

    def query(self, call: TableCall, **request: Any) -> Iterator[Item]:
        """Yield all items that a query finds, page by page."""
        return self._pages(call, lambda **more: self._client(call).query(TableName=self._name, **request, **more))

    def scan(self, call: TableCall, **request: Any) -> Iterator[Item]:
        """Yield all items that a scan finds, page by page. It reads the whole table."""
        return self._pages(call, lambda **more: self._client(call).scan(TableName=self._name, **request, **more))

    # --- parts

    def _client(self, call: TableCall) -> "DynamoDBClient":
        return self._clients.client(call.ttl_ms, call.key)

    def _pages(self, call: TableCall, page: Callable[..., Any]) -> Iterator[Item]:
        further: dict[str, Any] = {}
        while True:
            found = self._ask(call, lambda *_: _whole(page(**further)))  # noqa: B023 - called before further changes
            yield from found["Items"]
            if "LastEvaluatedKey" not in found:
                return
            further = {"ExclusiveStartKey": found["LastEvaluatedKey"]}

    def _reading(self, call: TableCall, batch: list[Any]) -> Callable[[int, Moment], Any]:
        request: Any = {self._name: {"Keys": batch, "ConsistentRead": True}}
        return lambda *_: _whole(self._client(call).batch_get_item(RequestItems=request))

    def _get(self, call: TableCall, sk: str) -> Item | None:
        found = self._client(call).get_item(TableName=self._name, Key=_key(call.pk, sk), ConsistentRead=True)
        stored: Item | None = _whole(found).get("Item")
        return stored

    def _delete(self, call: TableCall, sk: str) -> Any:
        return _whole(self._client(call).delete_item(TableName=self._name, Key=_key(call.pk, sk)))

    @staticmethod
    def _decode(call: TableCall, item: Item | None) -> Record:
        return decode(item, key=call.key, names=call.names)

    def _ask(self, call: TableCall, send: Callable[[int, Moment], A], client: "DynamoDBClient | None" = None) -> A:
        return call_with_retry(
            send,
            clock=self._clock,
            call=call.name,
            key=call.key,
            ttl_ms=call.ttl_ms,
            passes=_is_refusal if call.name in _OF_OWNERS else None,
            give_up_at=call.give_up_at,
            waits_ms=waits_ms(self._client(call) if client is None else client),
            errors=(BotoCoreError, ClientError),
            classify_error=_classify_error,
        )


def item_full(key: str, record: Record | None, *, owner: str | None) -> MailboxFull:
    """Make the error of a call that would add a message to an item near DynamoDB's limit (M7)."""
    held = "" if record is None else f": {len(record.state.mail):,} messages, {size_of(record.item):,} bytes in all"
    return MailboxFull(
        f"the item of key {key!r} is near the 400 KB that DynamoDB allows{held}. This message was not stored, and its "
        "source keeps it; retry when the owner has run some of them. Shorter message ids and a smaller max_pending "
        "leave more room",
        key=key,
        owner=owner,
    )


def _is_too_large(error: ClientError) -> bool:
    said = error.response["Error"]
    return said["Code"] == "ValidationException" and "maximum allowed size" in said.get("Message", "")


def _meets_odd_type(error: ClientError) -> bool:
    said = error.response["Error"]
    return said["Code"] == "ValidationException" and "update expression" in said.get("Message", "")


class _CutOff(HTTPClientError):
    """An answer of which only a part has arrived."""

    fmt = "the answer broke off"


def _whole(response: Any) -> Any:
    """Return a response, unless the connection broke before all of it had arrived.

    botocore takes a part for the whole, and an answer that it cannot parse for an empty one: of a read, for "no such
    item", which would mean that the key is free. In its last attempt it overlooks a wrong checksum too. So an empty
    answer counts only if its head says that it is empty. A part of any other answer cannot be parsed at all.
    """
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    if headers is None or len(response) > 1:
        return response
    if "x-amz-crc32" in headers:
        empty = headers["x-amz-crc32"] == _CRC32_OF_NOTHING
    else:  # the last line of an incomplete head may have lost its end
        empty = headers.get("content-length") == str(len("{}")) and list(headers)[-1] != "content-length"
    if not empty and "transfer-encoding" not in headers:  # chunked answers show whether all chunks have arrived
        raise _CutOff
    return response


def _is_refusal(error: Exception) -> bool:
    """Return whether DynamoDB has answered: what is tried again then is for lack of units or trouble of its own."""
    return isinstance(error, ClientError)


def _key(pk: str, sk: str) -> dict[str, Any]:
    return {"pk": typed(pk), "sk": typed(sk)}


def _classify_error(error: Exception) -> tuple[bool, str]:
    """Return whether another try may help after an error, and what to do."""
    if isinstance(error, ClientError):
        code = error.response["Error"]["Code"]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if _is_too_large(error):
            return False, "an item would be larger than DynamoDB's 400 KB: look at what other code has added to it"
        if code in _PASSING or status >= 500:  # noqa: PLR2004 - HTTP: the server's fault
            return True, "DynamoDB is throttling or failing: repeat the call"
        if not code or code.isdecimal():
            return True, "DynamoDB refuses the request, and its reason was cut off: repeat the call"
        return False, _ADVICE.get(code, "DynamoDB refuses the request, and repeating it does not help: see the cause")
    if isinstance(error, HTTPClientError | NoConnectionError | ChecksumError):
        return True, "the connection failed or took too long: repeat the call; check the network and the endpoint"
    return False, "botocore cannot send the request: check credentials and configuration"
