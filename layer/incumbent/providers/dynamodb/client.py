"""The clients through which a table is asked: the user's, checked, or incumbent's own, made at the first request."""

import json
import math
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.endpoint import DEFAULT_TIMEOUT
from botocore.exceptions import BotoCoreError, NoRegionError

from incumbent.errors import ConfigurationError
from incumbent.retry import check_wait, wait_ms
from incumbent.validation import shown

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient

_SHORTER_WAIT = "Set connect_timeout and read_timeout in its config to a second or two"
_OK = 200
_KEPT = "incumbent_params"


class Clients:
    """The client that the user gave, or incumbent's own: one for each process and each length of its waits."""

    def __init__(self, client: "DynamoDBClient | None", session: "Session | None", config: Config | None) -> None:
        if client is not None:
            _check_client(client)
        if session is not None and not callable(getattr(session, "client", None)):
            raise ConfigurationError(f"boto3_session is {shown(session)}: give a boto3.session.Session")
        if config is not None and not isinstance(config, Config):
            raise ConfigurationError(f"boto_config is {shown(config)}: give a botocore.config.Config")
        self._given = client
        self._session = session
        self._config = config
        self._ours: dict[tuple[int, int], DynamoDBClient] = {}  # by process, since a child must not share it, and wait
        self._lock = threading.Lock()

    def check_ttl(self, ttl_ms: int, key: str | None = None) -> None:
        """Refuse a ttl that is shorter than the wait that the user has set. Raises ``ConfigurationError``."""
        given = self._given is not None
        config = self._given.meta.config if self._given is not None else self._config
        if config is not None:
            check_wait(_set_wait_ms(config, given=given), ttl_ms, key=key, advice=_SHORTER_WAIT)

    def client(self, ttl_ms: int | None, key: str) -> "DynamoDBClient":
        """Return the given client, or one whose waits suit the ttl.

        Raises ``ConfigurationError`` if none can be made, or if the user has set waits longer than the lease lives.
        """
        if ttl_ms is not None:
            self.check_ttl(ttl_ms, key)
        if self._given is not None:
            return self._given
        waits_ms = wait_ms(ttl_ms)
        ours = os.getpid(), waits_ms
        client = self._ours.get(ours)
        if client is None:
            with self._lock:
                client = self._ours.get(ours) or self._make(waits_ms)
                self._ours[ours] = client
        return client

    def _make(self, waits_ms: int) -> "DynamoDBClient":
        config = _our_config(waits_ms)
        if self._config is not None:
            config = config.merge(self._config)
        made: Any
        try:
            if self._session is not None:
                made = self._session.client("dynamodb", config=config)
            else:  # as boto3 does, without its resources, which nothing here uses
                session: Any = botocore.session.get_session()
                # botocore would look into the folders of some 400 services, twice, to find that this one exists.
                session.get_component("data_loader").list_available_services = lambda *_, **__: ["dynamodb"]
                made = session.create_client("dynamodb", region_name=_region(), config=config)
        except (BotoCoreError, ValueError) as cause:
            advice = "set AWS_REGION" if isinstance(cause, NoRegionError) else "check boto3_session"
            raise ConfigurationError(f"cannot make a client for DynamoDB ({cause}): {advice}") from cause
        _pass_as_written(made.meta.events)
        client: DynamoDBClient = made
        return client

    def close(self) -> None:
        """Close the clients that this object has made. A later call makes new ones."""
        with self._lock:
            ours, self._ours = self._ours, {}
        for (process, _), client in ours.items():
            if process == os.getpid():
                client.close()


def _pass_as_written(events: Any) -> None:
    """Let updates pass in the API's form, in both directions: botocore would copy each value into the same form."""

    def keep(params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
        context[_KEPT] = params
        return {name: params[name] for name in ("TableName", "Key")}  # what others may look at

    def write(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        params["body"] = json.dumps(context.pop(_KEPT)).encode()

    def read(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
        if response_dict["status_code"] == _OK:
            with suppress(ValueError):  # a broken answer is left to botocore
                customized_response_dict.update(json.loads(response_dict["body"]))
                response_dict["body"] = b"{}"

    # By name, once: a session may give the same client to several providers.
    events.register_last("provide-client-params.dynamodb.UpdateItem", keep, unique_id="incumbent-keep")
    events.register("before-call.dynamodb.UpdateItem", write, unique_id="incumbent-write")
    events.register("before-parse.dynamodb.UpdateItem", read, unique_id="incumbent-read")


def tried_inside(client: "DynamoDBClient", response: Mapping[str, Any]) -> bool:
    """Return whether the client has repeated the request: then even our first try was a repetition (R9)."""
    retries: Mapping[str, object] = getattr(client.meta.config, "retries", None) or {}
    may_repeat = retries.get("total_max_attempts") != 1
    return bool(response.get("ResponseMetadata", {}).get("RetryAttempts", may_repeat))


def waits_ms(client: "DynamoDBClient") -> float:
    """Return how long a client waits for a connection, or for an answer, in milliseconds."""
    config = client.meta.config
    connect_s: float | None = getattr(config, "connect_timeout", None)
    read_s: float | None = getattr(config, "read_timeout", None)
    return math.inf if connect_s is None or read_s is None else max(connect_s, read_s) * 1_000


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
        parameter_validation=False,  # the provider alone writes the parameters
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


def _set_wait_ms(config: Config, *, given: bool) -> float | None:
    """Return how long the user's settings wait for an answer. ``given``: they are those of a whole client.

    In settings that are only merged into incumbent's, botocore's default counts as not set.
    """
    seconds = getattr(config, "read_timeout", None)
    if not given and seconds == DEFAULT_TIMEOUT:
        return None
    return math.inf if seconds is None else seconds * 1_000
