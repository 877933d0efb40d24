"""Requests to the table: their retries, the records that refusals show, and explanations of errors."""

import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import boto3
from botocore.config import Config
from botocore.endpoint import DEFAULT_TIMEOUT
from botocore.exceptions import BotoCoreError, ChecksumError, ClientError, HTTPClientError, NoRegionError
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from incumbent.clock import Clock, Moment
from incumbent.errors import ConfigurationError, LeaseUnavailable, MailboxFull
from incumbent.providers.dynamodb.expression import Update
from incumbent.providers.dynamodb.item import LEASE, Item, Record, decode, size_of, typed
from incumbent.retry import call_with_retry, check_wait, wait_ms
from incumbent.validation import shown
from incumbent.values import Message

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

A = TypeVar("A")

_SHORTER_WAIT = "Set connect_timeout and read_timeout in its config to a second or two"
_BATCH = 50
_MAX_BATCHES = 20  # further requests of one reading: DynamoDB may leave keys unread
_PAUSE_MS = 50

_CRC32_OF_NOTHING = str(zlib.crc32(b"{}"))
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

    ``record`` is the item after the update or, if it was refused, the item that refused it. ``sent`` is when the try
    that was answered was sent. ``repeated`` says that an earlier try may have taken effect (R9). If the update was
    applied, ``said`` is the call's answer, and ``dead_lettered`` are the messages that it moved to the dead letters.
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

    def __init__(
        self,
        name: str,
        *,
        client: "DynamoDBClient | None",
        session: boto3.session.Session | None,
        config: Config | None,
        clock: Clock,
    ) -> None:
        if client is not None:
            _check_client(client)
        if session is not None and not callable(getattr(session, "client", None)):
            raise ConfigurationError(f"boto3_session is {shown(session)}: give a boto3.session.Session")
        if config is not None and not isinstance(config, Config):
            raise ConfigurationError(f"boto_config is {shown(config)}: give a botocore.config.Config")
        self._name = name
        self._given = client
        self._ours: dict[
            tuple[int, int], DynamoDBClient
        ] = {}  # by process, since a child must not share it, and by wait
        self._session = session
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()

    def check_ttl(self, ttl_ms: int, key: str | None = None) -> None:
        """Refuse a ttl that is shorter than the wait that the user has set. Raises ``ConfigurationError``."""
        given = self._given is not None
        config = self._given.meta.config if self._given is not None else self._config
        check_wait(_set_wait_ms(config, given=given), ttl_ms, key=key, advice=_SHORTER_WAIT)

    def client(self, call: TableCall) -> "DynamoDBClient":
        """Return the given client, or make one whose waits suit the ttl.

        Raises ``ConfigurationError`` if none can be made, or if the user has set waits longer than the lease lives.
        """
        if call.ttl_ms is not None:
            self.check_ttl(call.ttl_ms, call.key)
        if self._given is not None:
            return self._given
        waits_ms = wait_ms(call.ttl_ms)
        ours = os.getpid(), waits_ms
        with self._lock:
            if ours not in self._ours:
                config = _our_config(waits_ms)
                try:
                    self._ours[ours] = (self._session or boto3.session.Session(region_name=_region())).client(
                        "dynamodb", config=config if self._config is None else config.merge(self._config)
                    )
                except (BotoCoreError, ValueError) as cause:
                    advice = "set AWS_REGION" if isinstance(cause, NoRegionError) else "check boto3_session"
                    raise ConfigurationError(f"cannot make a client for DynamoDB ({cause}): {advice}") from cause
            return self._ours[ours]

    # --- the lease item

    def close(self) -> None:
        """Close the clients that this object has made. A later call makes new ones."""
        with self._lock:
            ours, self._ours = self._ours, {}
        for (process, _), client in ours.items():
            if process == os.getpid():
                client.close()

    def update(
        self, call: TableCall, plan: Callable[[int], tuple[Update, A] | None], *, repeated: bool = False
    ) -> Answer[A]:
        """Send an update until it is applied or refused.

        ``plan`` makes the update from the time of each try; if it returns ``None``, there is nothing to write at that
        time, and the item is read instead. ``repeated`` is true if earlier requests of the same call are in doubt.
        """
        doubt = repeated

        def send(number: int, sent: Moment) -> Answer[A] | Moment:
            nonlocal doubt
            doubt = doubt or number > 1
            planned = plan(sent.wall_ms)
            if planned is None:
                return sent
            update, said = planned
            client = self.client(call)
            try:
                found = _whole(client.update_item(**update.request(self._name, _key(call.pk, LEASE))))
            except ClientError as error:
                if call.name in _ADDING and _is_too_large(error):
                    raise item_full(call.key, None, owner=None) from error
                if error.response["Error"]["Code"] != _REFUSED:
                    raise
                doubt = doubt or _tried_inside(client, error.response)
                refused: Mapping[str, Any] = error.response
                old = refused.get("Item")
                if old is None:  # the item does not exist, or this store does not return it
                    return sent
                return Answer(applied=False, record=self._decode(call, old), sent=sent, repeated=doubt)
            doubt = doubt or _tried_inside(client, found)
            record = self._decode(call, found["Attributes"])
            return Answer(applied=True, record=record, sent=sent, repeated=doubt, said=said)

        answer = self._ask(call, send)
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
        self._ask(call, lambda *_: _whole(self.client(call).put_item(TableName=self._name, Item=written)))

    def delete(self, call: TableCall, sk: str) -> None:
        """Delete an item, whether it exists or not."""
        self._ask(call, lambda *_: self._delete(call, sk))

    def sweep(self, call: TableCall, sk: str) -> None:
        """Delete an item that is no longer needed. If that fails, TTL deletes it."""
        with suppress(BotoCoreError, ClientError):
            self._delete(call, sk)

    def query(self, call: TableCall, **request: Any) -> Iterator[Item]:
        """Yield all items that a query finds, page by page."""
        return self._pages(call, lambda **more: self.client(call).query(TableName=self._name, **request, **more))

    def scan(self, call: TableCall, **request: Any) -> Iterator[Item]:
        """Yield all items that a scan finds, page by page. It reads the whole table."""
        return self._pages(call, lambda **more: self.client(call).scan(TableName=self._name, **request, **more))

    # --- parts

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
        return lambda *_: _whole(self.client(call).batch_get_item(RequestItems=request))

    def _get(self, call: TableCall, sk: str) -> Item | None:
        found = self.client(call).get_item(TableName=self._name, Key=_key(call.pk, sk), ConsistentRead=True)
        stored: Item | None = _whole(found).get("Item")
        return stored

    def _delete(self, call: TableCall, sk: str) -> Any:
        return _whole(self.client(call).delete_item(TableName=self._name, Key=_key(call.pk, sk)))

    @staticmethod
    def _decode(call: TableCall, item: Item | None) -> Record:
        return decode(item, key=call.key, names=call.names)

    def _ask(self, call: TableCall, send: Callable[[int, Moment], A]) -> A:
        return call_with_retry(
            send,
            clock=self._clock,
            call=call.name,
            key=call.key,
            ttl_ms=call.ttl_ms,
            give_up_at=call.give_up_at,
            waits_ms=_waits_ms(self.client(call)),
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


def _tried_inside(client: "DynamoDBClient", response: Mapping[str, Any]) -> bool:
    """Return whether the client has repeated the request: then even our first try was a repetition (R9)."""
    retries: Mapping[str, object] = getattr(client.meta.config, "retries", None) or {}
    at_most = 0 if retries.get("total_max_attempts") == 1 else 1
    return bool(response.get("ResponseMetadata", {}).get("RetryAttempts", at_most))


def _waits_ms(client: "DynamoDBClient") -> float:
    """Return how long a client waits for a connection, or for an answer, in milliseconds."""
    config = client.meta.config
    waits_s: list[float | None] = [getattr(config, name, None) for name in ("connect_timeout", "read_timeout")]
    return max(math.inf if wait_s is None else wait_s * 1_000 for wait_s in waits_s)


def _region() -> str | None:
    """Return the Region from Lambda's own variable, which not every botocore reads."""
    return os.environ.get("AWS_REGION") or None


def _our_config(waits_ms: int) -> Config:
    """Return the settings of incumbent's clients: shorter waits than botocore's 60 s, and no retries inside (R9)."""
    return Config(
        connect_timeout=waits_ms / 1_000,
        read_timeout=waits_ms / 1_000,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )


def _check_client(client: object) -> None:
    """Refuse an object that is not a DynamoDB client: a ``Table``, another service's client, an asyncio client.

    The client of a resource (``.meta.client``) takes plain Python values, and would write typed ones a second time.
    """
    asynchronous = any(kind.__module__.startswith("aiobotocore") for kind in type(client).__mro__)
    asks = all(callable(getattr(client, name, None)) for name in ("update_item", "batch_get_item", "query"))
    if asynchronous or not asks or not hasattr(getattr(client, "meta", None), "config") or _is_of_a_resource(client):
        raise ConfigurationError(
            f"client is {shown(client)}: give boto3.client('dynamodb', config=Config(connect_timeout=1, "
            "read_timeout=1)); neither a boto3 resource or Table nor its .meta.client can take its place"
        )


def _is_of_a_resource(client: Any) -> bool:
    """Return whether a client changes the items it is given, as the client of a boto3 resource does. Sends nothing."""
    item = {"pk": {"S": "x"}}
    request = {"TableName": "t", "Item": item}
    with suppress(Exception):  # from a Stubber, for instance, which expects another request
        model = client.meta.service_model.operation_model("PutItem")
        client.meta.events.emit("before-parameter-build.dynamodb.PutItem", params=request, model=model, context={})
    return request.get("Item") != {"pk": {"S": "x"}}


def _set_wait_ms(config: Config | None, *, given: bool) -> float | None:
    """Return how long the user's settings wait for an answer. ``given``: they are those of a whole client.

    In settings that are only merged into incumbent's, botocore's default counts as not set.
    """
    seconds = getattr(config, "read_timeout", None)
    if config is None or (not given and seconds == DEFAULT_TIMEOUT):
        return None
    return math.inf if seconds is None else seconds * 1_000


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
    if isinstance(error, HTTPClientError | NoConnectionError | ChecksumError | ResponseParserError):
        return True, "the connection failed or took too long: repeat the call; check the network and the endpoint"
    return False, "botocore cannot send the request: check credentials and configuration"
