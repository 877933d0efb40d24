"""Control as JSON requests: checked, carried out, answered without events, here or through the sweeper's function."""

import json
from typing import Any

import pytest

from incumbent import (
    Claimed,
    ConfigurationError,
    Duplicate,
    IncumbentError,
    ListIncomplete,
    Message,
    Origin,
    Policy,
    StoredFormatUnknown,
    control_requests,
)
from incumbent.control_requests import Object, answer, ask, carry_out
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import stand_in
from incumbent.testing.clock import FakeClock
from incumbent.values import FOREVER_MS
from tests.unit.stage import ARN, Meddled, RecordingWaker, raising

TTL_MS = 30_000
WALL_MS = 1_800_000_000_000  # 2027-01-15, 08:00


class Console:
    """A store, a person who sends requests, and what was woken."""

    def __init__(self) -> None:
        """Begin empty."""
        self.clock = FakeClock(wall_ms=WALL_MS)
        store: Any = Meddled(MemoryProvider(clock=self.clock))
        store.staged_clock = self.clock
        self.store: Any = store
        self.waker = RecordingWaker()

    def ask(self, do: str, **said: Any) -> Object:
        """Carry out a request, as JSON there and back."""
        request = json.loads(json.dumps({"do": do, **said}))
        made = carry_out(self.store, request, make_waker=lambda: self.waker)
        assert json.loads(json.dumps(made)) == made
        assert made["v"] == 1
        return made

    def begin(self, key: str, message_id: str = "m1") -> Claimed:
        """Let a run begin."""
        origin = Origin(keyspace=key.partition("/")[0], target=ARN)
        claimed = self.store.claim(
            key, f"o-{message_id}", TTL_MS, Message(id=message_id, event={"n": 1}), origin=origin
        )
        assert isinstance(claimed, Claimed)
        return claimed

    def arrive(self, key: str, message_id: str) -> None:
        """Store a message behind whoever has the key."""
        self.store.claim(key, f"o-{message_id}", TTL_MS, Message(id=message_id, event={"secret": message_id}))


@pytest.fixture
def console() -> Any:
    """On a clock that stands still."""
    console = Console()
    with stand_in(console.store):
        yield console


def test_key_that_hangs_is_found_held_stopped_freed_and_resumed(console: Console) -> None:
    """The operator's way, request by request."""
    run = console.begin("orders/a")
    console.clock.advance(1_000)
    console.arrive("orders/a", "m2")
    console.clock.advance(4_000)
    (found,) = console.ask("keys", only="running")["keys"]
    assert (found["key"], found["fence"], found["age_ms"]) == ("orders/a", run.fence, 5_000)
    assert (found["running"], found["waiting"], found["oldest_ms"]) == (1, 1, 4_000)
    shown = console.ask("show", key="orders/a")["key"]
    assert shown["since"] == "2027-01-15T08:00:00Z"
    assert [each["id"] for each in shown["running"]] == ["m1"]
    assert (shown["waiting"][0]["id"], shown["waiting"][0]["age_ms"]) == ("m2", 4_000)
    held = console.ask("hold", key="orders/a", reason="incident 12")["key"]
    assert (held["held"], held["held_until"], held["held_reason"]) == (True, None, "incident 12")
    assert console.ask("stop", key="orders/a", fence=run.fence, reason="hangs")["fence"] == run.fence
    freed = console.ask("release", key="orders/a")
    assert (freed["released"], freed["woken"]) == ({"owner": "o-m1", "fence": run.fence}, None)
    assert freed["key"]["owner"] is None
    resumed = console.ask("resume", key="orders/a")
    assert (resumed["held"], resumed["woken"], resumed["wake_error"]) == (True, ARN, None)
    assert [wake.key for wake in console.waker.wakes] == ["orders/a"]


def test_release_lets_the_next_run_begin_at_once(console: Console) -> None:
    """If the key is not held. The late run is refused, and a release of a free key does nothing."""
    console.begin("orders/a")
    console.arrive("orders/a", "m2")
    assert console.ask("release", key="orders/a")["woken"] == ARN
    assert console.ask("release", key="orders/a") | {"key": None} == {"v": 1, "released": None, "key": None}


def test_wake_that_fails_is_said_beside_what_was_done(console: Console) -> None:
    """The hold is over all the same."""
    console.arrive("orders/a", "m1")
    console.store.release_lease("orders/a", "o-m1")
    console.ask("hold", key="orders/a")
    resumed = console.ask("resume", key="orders/a")
    assert (resumed["held"], resumed["woken"]) == (True, None)
    assert "no target is known" in resumed["wake_error"]
    assert not resumed["key"]["held"]


def test_answers_hold_events_only_where_show_is_asked_for_them(console: Console) -> None:
    """They go through a function's log and a terminal."""
    console.begin("orders/a")
    console.arrive("orders/a", "m2")
    requests: list[tuple[str, Object]] = [
        ("keys", {}),
        ("show", {"key": "orders/a"}),
        ("cancel", {"key": "orders/a", "id": "m9"}),
        ("hold", {"key": "orders/a"}),
        ("stop", {"key": "orders/a"}),
        ("resume", {"key": "orders/a"}),
    ]
    for do, said in requests:
        assert "secret" not in json.dumps(console.ask(do, **said)), do
    (waiting,) = console.ask("show", key="orders/a", events=True)["key"]["waiting"]
    assert waiting["event"] == {"secret": "m2"}


def test_cancel_says_what_the_message_is_now(console: Console) -> None:
    """Cancelled, running, or never stored."""
    run = console.begin("orders/a")
    console.arrive("orders/a", "m2")
    states = {each: console.ask("cancel", key="orders/a", id=each)["message"] for each in ("m1", "m2", "m3")}
    assert [states[each]["state"] for each in ("m1", "m2", "m3")] == ["running", "cancelled", "unknown"]
    assert states["m1"]["fence"] == run.fence


def test_keys_are_listed_by_keyspace_and_state(console: Console) -> None:
    """With a limit, and with the other keyspaces where the one that was named has none."""
    console.begin("orders/a")
    console.begin("orders/b")
    console.store.release_lease("orders/b", "o-m1")
    console.ask("hold", key="orders/c")

    def keys(**said: Any) -> list[str]:
        return [each["key"] for each in console.ask("keys", **said)["keys"]]

    assert keys() == keys(keyspace="orders") == ["orders/a", "orders/b", "orders/c"]
    assert (keys(only="running"), keys(only="held"), keys(only="waiting")) == (["orders/a"], ["orders/c"], ["orders/b"])
    assert console.ask("keys", limit=2) | {"keys": 0} == {
        "v": 1,
        "keys": 0,
        "more": True,
        "unread": [],
        "there": True,
        "keyspaces": [],
    }
    assert not console.ask("keys", limit=3)["more"]
    none = console.ask("keys", keyspace="order")
    assert (none["there"], none["keys"], none["keyspaces"]) == (False, [], ["orders"])


@pytest.mark.parametrize("kind", [StoredFormatUnknown, ListIncomplete])
def test_what_cannot_be_listed_hides_no_other(
    console: Console, kind: type[StoredFormatUnknown] | type[ListIncomplete]
) -> None:
    """M12, R9: the others are listed, and it is named."""
    console.begin("orders/a")
    found = list(console.store.keys(10))

    def listing(_: object) -> Any:
        yield from found
        raise kind.of([IncumbentError("key 'orders/z': version 9", key="orders/z")])

    console.store.after["keys"] = listing
    made = console.ask("keys")
    assert ([each["key"] for each in made["keys"]], made["unread"]) == (["orders/a"], ["key 'orders/z': version 9"])


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        ("show", "a request for control is 'show'"),
        ({"do": "destroy", "key": "a"}, "its do is one of keys, show, stop"),
        ({"do": "show"}, "show: key is missing"),
        ({"do": "cancel", "key": "a"}, "cancel: id is missing"),
        ({"do": "show", "key": 7}, r"show: key is 7; it takes key \(str\), events \(bool\)"),
        ({"do": "show", "key": "a", "payloads": True}, "show: payloads is True"),
        ({"do": "stop", "key": "a", "fence": True}, "stop: fence is True"),
        ({"do": "keys", "only": "lost"}, "only is 'lost'; allowed are held, running, waiting"),
        ({"do": "keys", "limit": 0}, "limit is 0; allowed are 1 to 1,000"),
        ({"do": "keys", "keyspace": "a/b"}, "without a slash"),
        ({"do": "hold", "key": "a", "for_ms": 0}, "for_ms"),
        ({"do": "hold", "key": ""}, "the key has 0 bytes"),
    ],
)
def test_request_that_makes_no_sense_is_refused(console: Console, request_: object, wrong: str) -> None:
    """Before the store is asked, with what would be right."""
    with pytest.raises(ConfigurationError, match=wrong):
        carry_out(console.store, request_, make_waker=lambda: console.waker)
    assert console.store.calls in ([], ["hold"])


def test_event_has_a_version(console: Console) -> None:
    """A later one is refused as such, and so is what else may stand beside it."""

    def of(event: Object) -> Object:
        return answer(event, console.store, make_waker=lambda: console.waker)

    assert of({"v": 1, "control": {"do": "keys"}})["keys"] == []
    with pytest.raises(StoredFormatUnknown, match="version 2"):
        of({"v": 2, "control": {"do": "keys"}})
    for event in ({"control": {"do": "keys"}}, {"v": True, "control": {}}, {"v": 1, "control": {}, "more": 1}):
        with pytest.raises(ConfigurationError, match="give v and control"):
            of(event)


class Lambda:
    """A client of Lambda that answers one thing."""

    def __init__(self, said: object, *, error: bool = False, raises: Exception | None = None) -> None:
        """Answer this."""
        self.asked: list[Any] = []
        self._said = said
        self._error = error
        self._raises = raises

    def __call__(self, service: str) -> "Lambda":
        """Be the client."""
        assert service == "lambda"
        return self

    def invoke(self, **request: Any) -> Any:
        """Answer."""
        self.asked.append((request["FunctionName"], json.loads(request["Payload"])))
        if self._raises is not None:
            raise self._raises
        body = type("Body", (), {"read": lambda *_: json.dumps(self._said).encode()})()
        return {"Payload": body, **({"FunctionError": "Unhandled"} if self._error else {})}


def test_function_is_asked_for_the_same(console: Console) -> None:
    """By its name, with its alias."""
    client = Lambda({"v": 1, "keys": []})
    assert ask("shop-sweeper:control", {"do": "keys"}, clients=client) == {"v": 1, "keys": []}
    assert client.asked == [("shop-sweeper:control", {"incumbent": {"v": 1, "control": {"do": "keys"}}})]


@pytest.mark.parametrize(
    ("client", "wrong"),
    [
        (
            Lambda({"errorType": "LeaseUnavailable", "errorMessage": "away"}, error=True),
            "raised LeaseUnavailable: away",
        ),
        (Lambda({"found": 0, "woken": 0}), "a layer as new as this command"),
        (Lambda(None), "a layer as new as this command"),
        (Lambda(None, raises=ValueError("no Region")), "could not be invoked: ValueError: no Region"),
    ],
)
def test_function_that_cannot_answer_is_an_error(client: Lambda, wrong: str) -> None:
    """It raises, it is another one or an older one, or it is not there: named in each case."""
    with pytest.raises(IncumbentError, match=f"shop-sweeper .*{wrong}"):
        ask("shop-sweeper", {"do": "keys"}, clients=client)


def test_backend_without_control_is_refused() -> None:
    """A mailbox need not have it."""
    with pytest.raises(ConfigurationError, match="cannot look at keys"):
        control_requests.controlled(object())


def test_store_s_errors_are_raised(console: Console) -> None:
    """R9: nothing is said to be done."""
    console.store.before["stop"] = raising(IncumbentError("away"))
    with pytest.raises(IncumbentError, match="away"):
        console.ask("stop", key="orders/a")


def test_cancel_forgets_nothing_that_the_application_remembers(console: Console) -> None:
    """M5: an operator's process does not know the policy, whose window may be a week."""
    policy = Policy(window_ms=7 * 86_400_000)
    for number in (1, 2):
        console.store.claim("orders/a", f"o{number}", TTL_MS, Message(id=f"m{number}", event={}), policy=policy)
        console.store.settle("orders/a", f"o{number}", ttl_ms=TTL_MS, handled=[f"m{number}"], policy=policy)
        console.clock.advance(3 * 86_400_000)
    console.store.hold("orders/a")
    console.store.claim("orders/a", "o3", TTL_MS, Message(id="m3", event={}), policy=policy)
    assert console.ask("cancel", key="orders/a", id="m3")["message"]["state"] == "cancelled"
    for number in (1, 2):
        again = console.store.claim("orders/a", "late", TTL_MS, Message(id=f"m{number}", event={}), policy=policy)
        assert again == Duplicate(state="handled")


def test_clock_of_an_operator_does_not_end_a_hold(console: Console) -> None:
    """M15: it may be ahead of the store's, by whose time the key is held."""
    console.store.hold("orders/a", for_ms=60_000, reason="why")
    held = console.store.show("orders/a")
    console.clock.advance(61_000)
    shown = control_requests._object(held)  # noqa: SLF001 - as a store tells whose clock is behind
    assert (shown["held"], shown["held_reason"]) == (True, "why")


@pytest.mark.parametrize("for_ms", [None, 90_000])
def test_key_is_held_for_as_long_as_the_request_says(console: Console, for_ms: int | None) -> None:
    """M15: and without a limit if it says nothing."""
    console.ask("hold", key="orders/a", for_ms=for_ms)
    held_until_ms = console.store.show("orders/a").held_until_ms
    assert held_until_ms == (FOREVER_MS if for_ms is None else WALL_MS + for_ms)


def test_each_request_that_changes_a_key_is_reported(
    console: Console, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all that it said, and what became of it."""
    monkeypatch.setenv("INCUMBENT_TRACE", "1")
    fence = console.begin("orders/a").fence
    console.arrive("orders/a", "m2")
    console.ask("stop", key="orders/a", reason="hangs")
    console.ask("hold", key="orders/a", for_ms=90_000, reason="incident 12")
    console.ask("cancel", key="orders/a", id="m2")
    console.ask("resume", key="orders/a")
    lines = capsys.readouterr().err.splitlines()
    every = [json.loads(line.removeprefix("INCUMBENT ")) for line in lines if line.startswith("INCUMBENT ")]
    common = {"key": "orders/a", "keyspace": "orders", "t_ms": WALL_MS}
    assert every == [
        {"fact": "stop_sent", **common, "fence": fence, "outcome": "marked", "error": "hangs"},
        {"fact": "held", **common, "ms": 90_000, "error": "incident 12"},
        {"fact": "cancelled", **common, "message_id": "m2", "outcome": "cancelled"},
        {"fact": "resumed", **common, "outcome": "held"},
    ]


def test_key_is_told_as_a_whole(console: Console) -> None:
    """Times as text, what has passed or is left in milliseconds; a key that nothing is known of has nulls."""
    run = console.begin("orders/a")
    console.clock.advance(1_000)
    console.arrive("orders/a", "m2")
    console.arrive("orders/a", "m3")
    console.clock.advance(1_000)
    console.store.beat("orders/a", run.owner, TTL_MS, note="step", fence=run.fence)
    console.ask("hold", key="orders/a", for_ms=90_000, reason="incident 12")
    console.ask("stop", key="orders/a", reason="hangs")
    common = {
        "key": "orders/a",
        "keyspace": "orders",
        "owner": "o-m1",
        "fence": run.fence,
        "since": "2027-01-15T08:00:00Z",
        "age_ms": 2_000,
        "expires_in_ms": TTL_MS,
        "held": True,
        "held_until": "2027-01-15T08:01:32Z",
        "held_reason": "incident 12",
        "quiet_until": None,
        "stop": "hangs",
        "note": "step",
        "target": ARN,
        "oldest_ms": 1_000,
    }
    one = {"id": "m1", "attempts": 1, "stored_at": "2027-01-15T08:00:00Z", "age_ms": 2_000, "due_in_ms": 0}
    one |= {"promised": False, "last_error": None}
    two = {**one, "id": "m2", "attempts": 0, "stored_at": "2027-01-15T08:00:01Z", "age_ms": 1_000, "promised": True}
    three = {**two, "id": "m3"}
    assert console.ask("show", key="orders/a")["key"] == {**common, "running": [one], "waiting": [two, three]}
    assert console.ask("show", key="orders/a", events=True)["key"] == {
        **common,
        "running": [{**one, "event": {"n": 1}}],
        "waiting": [{**two, "event": {"secret": "m2"}}, {**three, "event": {"secret": "m3"}}],
    }
    listed = {"v": 1, "more": False, "unread": [], "there": True, "keyspaces": []}
    assert console.ask("keys") == {**listed, "keys": [{**common, "running": 1, "waiting": 2}]}
    assert console.ask("keys", keyspace="x") == {**listed, "there": False, "keyspaces": ["orders"], "keys": []}
    assert console.ask("cancel", key="orders/a", id="m1")["message"] == {
        "id": "m1",
        "state": "running",
        "owner": "o-m1",
        "fence": run.fence,
    }
    nothing: dict[str, Any] = {**dict.fromkeys(common), "key": "orders/z", "keyspace": "orders", "held": False}
    assert console.ask("show", key="orders/z")["key"] == {**nothing, "running": [], "waiting": []}


@pytest.mark.parametrize(("limit", "keys", "more"), [(1, 1, True), (2, 2, True), (3, 3, False), (1_000, 3, False)])
def test_list_of_keys_says_whether_there_are_more(console: Console, limit: int, keys: int, *, more: bool) -> None:
    """At its limit, exactly."""
    for key in ("orders/a", "orders/b", "orders/c"):
        console.begin(key)
    said = console.ask("keys", limit=limit)
    assert (len(said["keys"]), said["more"]) == (keys, more)
    for wrong in (0, 1_001):
        with pytest.raises(ConfigurationError, match="allowed are 1 to 1,000"):
            console.ask("keys", limit=wrong)


def test_age_is_not_negative(console: Console) -> None:
    """A store's clock may be ahead of the operator's, or show the same millisecond."""
    console.begin("orders/a")
    console.arrive("orders/a", "m2")
    for ahead_ms in (0, 5):
        console.clock.step_wall(-ahead_ms)
        shown = console.ask("show", key="orders/a")["key"]
        assert (shown["age_ms"], shown["oldest_ms"], shown["waiting"][0]["age_ms"]) == (0, 0, 0)


@pytest.mark.parametrize("left_out", ["acquire_lease", "claim", "hold"])
def test_backend_needs_leases_messages_and_control(left_out: str) -> None:
    """One that lacks a part is refused before it is asked anything."""
    names = {name for name in dir(MemoryProvider) if not name.startswith("_")} - {left_out}
    backend = type("Partial", (), {name: getattr(MemoryProvider, name) for name in names})()
    with pytest.raises(ConfigurationError, match="cannot look at keys"):
        control_requests.controlled(backend)


def test_no_more_keys_are_read_than_are_listed(console: Console) -> None:
    """One more says that there are more."""
    for key in ("orders/a", "orders/b", "orders/c"):
        console.begin(key)
    read: list[str] = []

    def reading(keys: Any) -> Any:
        for each in keys:
            read.append(each.key)
            yield each

    console.store.after["keys"] = reading
    console.ask("keys", limit=1)
    assert len(read) == 2
