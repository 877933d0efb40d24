"""What goes over the wire to DynamoDB: counted, checked against what AWS refuses, and cut where a test wants it."""

import io
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import urllib3
from botocore.awsrequest import AWSResponse, HeadersDict
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session
from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords

from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb.attributes import size_of
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import DynamoDBServer, create_table

_VERBS = {"SET", "REMOVE", "ADD", "DELETE"}
_FUNCTIONS = {"contains", "attribute_exists", "attribute_not_exists", "if_not_exists", "list_append", "size"}
_WORDS = frozenset({"AND", "OR", "NOT", *_VERBS, *_FUNCTIONS})
_RESERVED = frozenset(map(str.lower, ReservedKeywords.get_reserved_keywords()))
_TOKEN = re.compile(r"[#:]?\w+|<=|>=|<>|[-+=<>(),.\[\]]|\s+")

Fault = Callable[[Any], Any]


def check(params: Mapping[str, Any], **_: Any) -> None:
    """Refuse what AWS refuses and emulators let pass (H57): for the event ``provide-client-params.dynamodb``."""
    used: set[str] = set()
    for name in ("UpdateExpression", "ConditionExpression", "KeyConditionExpression", "FilterExpression"):
        text: str = params.get(name, "")
        tokens = [token for token in _TOKEN.findall(text) if token.strip()]
        assert "".join(tokens) == re.sub(r"\s+", "", text), text
        assert len(text.encode()) <= 4_096, text
        operators = [token for token in tokens if token in _WORDS or token in {"=", "<", ">", "<=", ">=", "+", "-"}]
        assert len(operators) <= 300, text
        for token in tokens:
            if token[0].isalnum() and not token.isdigit() and token not in {"begins_with", *_WORDS}:
                assert token.lower() not in _RESERVED, f"{token} is a reserved word: {text}"
        used |= {token for token in tokens if token[0] in "#:"}
    used |= {token for token in _TOKEN.findall(params.get("ProjectionExpression", "")) if token[0] == "#"}
    names, values = params.get("ExpressionAttributeNames", {}), params.get("ExpressionAttributeValues", {})
    assert used == {*names, *values}, f"defined and used differ: {used ^ {*names, *values}}"
    paths = [_path(target, names) for target in _targets(params.get("UpdateExpression", ""))]
    for path in paths:
        others = [other for other in paths if other is not path]
        assert not any(path[: len(other)] == other for other in others), f"{path} overlaps: {paths}"
    for value in [*values.values(), *params.get("Item", {}).values()]:
        _check_value(value)
    if "Item" in params:
        assert size_of(params["Item"]) <= 400 * 1024


def _targets(text: str) -> Iterator[str]:
    """The paths that an update expression writes."""
    for section in re.findall(r"(?:SET|REMOVE|ADD|DELETE) .*?(?=$| (?:SET|REMOVE|ADD|DELETE) )", text):
        depth, action = 0, ""
        for character in section.partition(" ")[2] + ",":
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "," and not depth:
                yield re.split(r"[\s=]", action.strip())[0]
                action = ""
            else:
                action += character


def _path(target: str, names: Mapping[str, str]) -> list[str]:
    return [names.get(part, part) for part in re.findall(r"#?\w+|\[\d+\]", target)]


def _check_value(value: Mapping[str, Any]) -> None:
    ((kind, inner),) = value.items()
    match kind:
        case "N":
            assert re.fullmatch(r"-?\d{1,38}", inner), f"{inner} is no whole number"
        case "SS":
            assert inner, "an empty set"
        case "L":
            for each in inner:
                _check_value(each)
        case "M":
            for each in inner.values():
                _check_value(each)
        case _:
            assert kind in {"S", "BOOL"}, kind


def digits(number: int, size: int) -> str:
    """A number, six bits a character."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return "".join(letters[number >> 6 * place & 63] for place in reversed(range(size)))


class Place:
    """A table on a server."""

    def __init__(self, server: DynamoDBServer, *, tells_old: bool) -> None:
        self.server = server
        self.reads_more = 0 if tells_old else 1
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.client = self.connect()
        self.spare: list[Any] = []  # clients that no test uses at the moment: it takes long to make one
        create_table(self.client, self.name)

    def close(self) -> None:
        """Close the connections."""
        for client in (self.client, *self.spare):
            client.close()

    def connect(self, **config: Any) -> Any:
        """A client whose every request is checked."""
        settings: Any = {
            "connect_timeout": 5,
            "read_timeout": 5,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
        made = boto3.client("dynamodb", endpoint_url=self.server.endpoint_url, config=Config(**(settings | config)))
        made.meta.events.register("provide-client-params.dynamodb", check)
        return made

    def item(self, pk: str, sk: str = "lease") -> dict[str, Any]:
        """An item as it stands; empty if there is none."""
        found = self.client.get_item(TableName=self.name, Key={"pk": {"S": pk}, "sk": {"S": sk}}, ConsistentRead=True)
        return {
            name: {"SS": sorted(value["SS"])} if "SS" in value else value
            for name, value in found.get("Item", {}).items()
        }

    def items(self, pk: str) -> list[str]:
        """The sort keys of all items of a key."""
        found = self.client.query(
            TableName=self.name,
            KeyConditionExpression="#pk = :pk",
            ExpressionAttributeNames={"#pk": "pk"},
            ExpressionAttributeValues={":pk": {"S": pk}},
        )
        return sorted(each["sk"]["S"] for each in found["Items"])

    def change(self, pk: str, expression: str, *, sk: str = "lease", **values: Any) -> None:
        """Change an item, the key's own unless another is named, as other code would."""
        words = set(re.findall(r"#\w+", expression))
        request: dict[str, Any] = {
            "TableName": self.name,
            "Key": {"pk": {"S": pk}, "sk": {"S": sk}},
            "UpdateExpression": expression,
            "ExpressionAttributeNames": {word: word[1:] for word in words},
        }
        if values:
            request["ExpressionAttributeValues"] = {f":{name}": value for name, value in values.items()}
        self.client.update_item(**request)


class Wire:
    """One provider of its own client: what it sends is counted, and the next requests may have faults."""

    def __init__(self, place: Place, clock: FakeClock, prefix: str, **config: Any) -> None:
        self._place = place
        self._config = config
        self.client = place.spare.pop() if place.spare and not config else place.connect(**config)
        self.client.meta.events.register("before-send.dynamodb", self._before_send)
        self.provider = DynamoDBProvider(table_name=place.name, client=self.client, key_prefix=prefix, clock=clock)
        self.sent: list[str] = []
        self.fences: dict[str, int] = {}  # of the tenures that its calls were granted, by owner
        self.faults: list[Fault | None] = []
        self._line = URLLib3Session(timeout=5)

    def close(self) -> None:
        """Leave the client to the next test."""
        self._line.close()
        self.client.meta.events.unregister("before-send.dynamodb", self._before_send)
        if self._config:
            self.client.close()
        else:
            self._place.spare.append(self.client)

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        target = request.headers["X-Amz-Target"]
        self.sent.append((target.decode() if isinstance(target, bytes) else target).partition(".")[2])
        fault = self.faults.pop(0) if self.faults else None
        instead = fault(request) if fault is not None else None
        return instead if isinstance(instead, AWSResponse) else None

    def count(self, call: Callable[[DynamoDBProvider], Any]) -> tuple[Any, list[str]]:
        """What a call answers, and the requests that it sent."""
        self.sent.clear()
        answer = call(self.provider)
        return answer, list(self.sent)

    # --- faults

    def reply_lost(self, request: Any) -> None:
        """It is applied, and the answer never comes."""
        self._line.send(request)
        raise ReadTimeoutError(endpoint_url=request.url)

    def request_lost(self, request: Any) -> None:
        """It never arrives."""
        raise ReadTimeoutError(endpoint_url=request.url)

    def answered(self, code: str, status: int) -> Fault:
        """It never arrives, and DynamoDB says no."""

        def fault(request: Any) -> AWSResponse:
            body = f'{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"said so"}}'.encode()
            raw = urllib3.HTTPResponse(body=io.BytesIO(body), status=status, preload_content=False)
            headers: Any = HeadersDict({"content-length": str(len(body))})
            return AWSResponse(request.url, status, headers, raw)

        return fault

    def copied_later(self, into: list[Callable[[], Any]]) -> Fault:
        """It is lost here, and a copy of it is kept that arrives when the test lets it."""

        def fault(request: Any) -> None:
            into.append(lambda: self._line.send(request))
            raise ReadTimeoutError(endpoint_url=request.url)

        return fault
