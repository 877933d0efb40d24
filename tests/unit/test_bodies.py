"""Bodies: what is refused at the door, and that every run of a message sees the same event."""

import enum
import json
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import (
    ConfigurationError,
    Lease,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
    leased,
    leased_function,
    send,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.rules import MAX_STORED
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance.samples import NOT_JSON, table
from incumbent.validation import MAX_DEPTH, UnreadableBody, from_json, is_plain, to_json
from incumbent.values import Failure, Message, Policy
from tests.unit.test_decorators import Shop

TTL_MS = 30_000


class Color(enum.StrEnum):
    """Text that is more than text."""

    RED = "red"


class Size(enum.IntEnum):
    """A number that is more than a number."""

    LARGE = 3


class UserKind(list[Any]):
    """A list that is more than a list."""


Point = namedtuple("Point", "x y")  # noqa: PYI024 - its bare form is what users have

ODD: dict[str, Any] = {
    "tuple": {"k": "a", "v": (1, 2)},
    "tuple in a list": {"k": "a", "v": [(1, (2,))]},
    "named tuple": {"k": "a", "v": Point(1, 2)},
    "text enum": {"k": "a", "v": Color.RED},
    "text enum as a name": {"k": "a", Color.RED: 1},
    "number enum": {"k": "a", "v": Size.LARGE},
    "dictionary with defaults": {"k": "a", "v": defaultdict(list, x=[1])},
    "ordered dictionary": OrderedDict(k="a", v=1),
    "tuple in a list of another kind": {"k": "a", "v": UserKind([(1, 2)])},
}


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


def kinds(value: Any) -> Any:
    """A value with the type of all that is in it."""
    if isinstance(value, dict):
        return type(value), {name: (type(name), kinds(inner)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [kinds(inner) for inner in value]
    return type(value), value


@pytest.mark.parametrize("event", table(ODD))
def test_every_run_sees_the_same_event(shop: Shop, event: Any) -> None:
    """M5: the first run by the caller itself, and the follow-up that reads what was stored."""
    seen: list[Any] = []

    taken: list[Any] = []

    def apply(order: Any, *, lease: Lease) -> None:
        seen.append(order)
        if len(seen) == 1:
            taken[0](event)  # routed behind this run, and run by it as a follow-up

    options: dict[str, Any] = {"keyspace": "shop", "provider": shop.store, "clock": shop.clock, "waker": None}
    taken.append(leased_function(key="a", **options)(apply))
    taken[0](event)
    first, second = seen
    assert kinds(first) == kinds(second)


def test_plain_event_is_run_as_the_object_that_came(shop: Shop) -> None:
    """Nothing is copied where nothing would change."""
    seen: list[Any] = []
    options: dict[str, Any] = {"keyspace": "shop", "provider": shop.store, "clock": shop.clock, "waker": None}
    event = {"k": "a", "v": [1, 2.5, None, True, {"x": "é\ud83d"}]}
    function: Any = leased_function(key="a", **options)(lambda order: seen.append(order))  # noqa: PLW0108 - a function
    function(event)
    assert seen[0] is event


def test_what_a_run_does_to_its_event_is_not_stored(shop: Shop) -> None:
    """M3: the run that is repeated sees what came, not what the first one left of it."""
    seen: list[str] = []

    def change(event: Any) -> None:
        seen.append(json.dumps(event))
        event["items"].append(len(seen))
        del event["k"]
        if len(seen) == 1:
            sent = {"k": "a", "items": []}
            shop.handler(message_id_jmespath="id")({**sent, "id": "m1"}, shop.context("request-2"))  # promises it
            raise ValueError("again")

    shop.during = change
    handler = shop.handler(message_id_jmespath="id")
    event = {"k": "a", "items": [], "id": "m1"}
    with pytest.raises(ValueError, match="again"):
        handler(event, shop.context())
    assert shop.peek()[0].event == {"k": "a", "items": [], "id": "m1"}
    shop.clock.advance(60_000)
    handler({"k": "a", "items": [], "id": "m2"}, shop.context("request-3"))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("event", table(NOT_JSON))
def test_event_that_cannot_be_read_back_is_refused_by_every_door(shop: Shop, event: Any) -> None:
    """M7: before any request, by name of the key, and told as a refusal."""
    body = {"k": "a", "v": event}
    with pytest.raises(MessageInvalid, match="shop/a") as raised:
        send("a", body, keyspace="shop", provider=shop.store, waker=None)
    assert isinstance(raised.value, ConfigurationError)
    assert raised.value.key == "shop/a"
    with pytest.raises(MessageInvalid, match="shop/a"):
        shop.handler()(body, shop.context())
    assert shop.facts.names == ["refused"]
    function: Any = leased_function(key="a", keyspace="shop", provider=shop.store, clock=shop.clock)(
        lambda order: order
    )
    with pytest.raises(MessageInvalid, match="shop/a"):
        function(body)
    assert shop.peek() == []
    assert shop.store.get_lease_owner("shop/a") is None


def test_http_caller_is_told_400(shop: Shop) -> None:
    """It would not help to send it again."""
    event = {
        "version": "2.0",
        "requestContext": {"http": {"method": "POST"}, "requestId": "r1"},
        "k": "a",
        "v": json.loads("[" * 900 + "]" * 900),
    }
    answer = shop.handler()(event, shop.context())
    assert answer["statusCode"] == 400
    assert json.loads(answer["body"])["error"] == "MessageInvalid"
    assert "Retry-After" not in answer["headers"]


def test_error_says_what_cannot_be_read_back_and_the_limit() -> None:
    """H50: each in its words."""
    for event, said in (
        ({"v": [{7: "a"}]}, "the name 7, a int"),
        (json.loads("[" * 501 + "]" * 501), f"more than {MAX_DEPTH} levels"),
        ([10**4_300], "more than 4,300 digits|exceeds? the limit"),
        (["\ud83d\ude00"], "surrogate pair"),
    ):
        with pytest.raises(MessageInvalid, match=f"(?i){said}"):
            to_json(event, key="k", message_id="m", most_bytes=100_000)


def nested(levels: int) -> Any:
    """A dictionary in a dictionary in a dictionary, and so on."""
    value: Any = "t"
    for _ in range(levels):
        value = {"a": value}
    return value


def deep(frames: int, do: Callable[[], Any]) -> Any:
    """Call under so many frames."""
    return do() if not frames else deep(frames - 1, do)


DEEP = {
    "in a request": lambda levels: {"requestContext": nested(levels - 1), "v": "\ud800"},
    "in a list": lambda levels: json.loads("[" * levels + "]" * levels),
    "in a list of requests": lambda levels: [{"requestContext": nested(levels - 2)}],
    "in a body": nested,
}


@pytest.mark.parametrize("made", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("frames", [0, 300, 450, 600])
def test_depth_of_the_caller_does_not_count(frames: int, made: Callable[[int], Any]) -> None:
    """A body has as many levels as it has, whatever the stack it is stored or read on."""
    event = made(MAX_DEPTH)
    store = MemoryProvider()
    said = deep(frames, lambda: send("k", event, keyspace="shop", provider=store, waker=None))
    assert said.state == "waiting"
    [message] = deep(frames, lambda: store.peek("shop/k"))
    assert is_plain(message.event)
    assert json.dumps(message.event) == json.dumps(event)


@pytest.mark.parametrize("frames", [0, 600])
def test_depth_of_the_caller_does_not_stop_its_run(frames: int) -> None:
    """A run compares what it was given with what is stored."""
    event = {"id": "m", "v": nested(MAX_DEPTH - 1)}
    seen: list[Any] = []
    handler: Any = leased(key="k", message_id=lambda _: "m", keyspace="shop", provider=MemoryProvider(), waker=None)(
        lambda event, _: seen.append(event)
    )
    deep(frames, lambda: handler(event, None))
    assert [json.dumps(each) for each in seen] == [json.dumps(event)]


@pytest.mark.parametrize("made", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 700, 900])
def test_event_that_is_too_deep_is_invalid(levels: int, made: Callable[[int], Any]) -> None:
    """Not a RecursionError, wherever its levels are."""
    with pytest.raises(MessageInvalid, match=f"more than {MAX_DEPTH} levels"):
        send("k", made(levels), keyspace="shop", provider=MemoryProvider(), waker=None)


def test_event_that_holds_itself_is_invalid() -> None:
    """Twice, so that its levels double."""
    circle: dict[str, Any] = {}
    circle |= {"a": circle, "b": [circle]}
    around: list[Any] = []
    around += [around, around]
    for event in ({"requestContext": circle}, around):
        with pytest.raises(MessageInvalid, match="Circular"):
            send("k", event, keyspace="shop", provider=MemoryProvider(), waker=None)


def test_size_is_refused_before_what_is_in_it() -> None:
    """What has billions of values is not looked through."""
    with pytest.raises(MessageTooLarge):
        to_json([{1: "x" * 100}], key="k", message_id="m", most_bytes=10)


def test_halves_that_do_not_meet_come_back() -> None:
    """A lone surrogate is legal JSON when it is escaped."""
    event = ["\ud83d", "\ude00", "\ude00\ud83d", {"\ud83d": "\ude00"}]
    assert from_json(to_json(event, key="k", message_id="m", most_bytes=1_000)) == event
    assert is_plain(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "{} {}",
        "[NaN]",
        "-Infinity",
        b"\xff",
        b"\xff\xfe[\x00]\x00",
        "[" * 501 + "]" * 501,
        '{"a":' * 501 + "1" + "}" * 501,
        "[" * 100_000 + "]" * 100_000,
        "[" * 100_000,
        "1" * 4_301,
        "[-" + "1" * 4_301 + "]",
        "1e999",
        '{"a":[-1e999]}',
        "1" * 400 + ".0",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_not_every_interpreter_reads_is_unreadable(text: str | bytes) -> None:
    """M6: with one error, whatever json raises."""
    with pytest.raises(UnreadableBody):
        from_json(text)


def test_caller_deep_in_its_stack_reads_what_others_read() -> None:
    """A readable message is not given up for a deep call."""
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    def at(depth: int) -> Any:
        return from_json(text) if depth == 0 else at(depth - 1)

    assert json.dumps(at(700)) == text


def test_brackets_in_text_are_not_levels() -> None:
    """Also a thousand of them."""
    text = to_json({"v": "[{" * 1_000, "w": [[1]] * 600}, key="k", message_id="m", most_bytes=10_000)
    assert from_json(text)["v"] == "[{" * 1_000


# --- a redrive is bounded: M7


def test_redrive_into_a_mailbox_that_is_full_keeps_the_letter() -> None:
    """As many as any key may store; the letter can be put back when there is room."""
    clock = FakeClock()
    provider = MemoryProvider(clock=clock)
    once = Policy(max_attempts=1, max_pending=1_000)
    provider.claim("k", "A", TTL_MS, Message(id="dead", event=1), policy=once)
    provider.settle("k", "A", ttl_ms=TTL_MS, failed=[Failure(id="dead", error="e")], policy=once)
    for number in range(MAX_STORED):
        provider.claim("k", f"T{number}", TTL_MS, Message(id=f"m{number}", event=1), policy=once, as_ticket=True)
        provider.release_lease("k", f"T{number}")
    with pytest.raises(MailboxFull, match=r"1,100 messages.*is kept"):
        provider.redrive("k", "dead")
    assert [letter.message.id for letter in provider.dead_letters("k", 9)] == ["dead"]
    provider.claim("k", "B", TTL_MS, None)
    provider.settle("k", "B", ttl_ms=TTL_MS, handled=["m0"])
    assert provider.redrive("k", "dead") is True
