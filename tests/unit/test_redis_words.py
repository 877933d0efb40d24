"""What Redis' scripts are told and answer: each request and each answer as a whole."""

import ssl
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ClusterError,
    InvalidResponse,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.retry import Retry

from incumbent.clock import Moment
from incumbent.errors import (
    ConfigurationError,
    IncumbentError,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    StoredFormatUnknown,
)
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.explanations import classify_error, is_odd_record
from incumbent.providers.redis.names import COMPANIONS, Names
from incumbent.providers.redis.scripting import script
from incumbent.providers.redis.server import _warn_of_eviction
from incumbent.testing.clock import FakeClock
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claimed,
    Continued,
    DeadLetter,
    Debounce,
    Duplicate,
    Failure,
    Idle,
    KeyStatus,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
    Status,
)

KEY = "orders/k"
SENT = Moment(wall_ms=1_000, mono_ms=500)
GIVE_UP = Moment(wall_ms=9_000, mono_ms=8_500)
MESSAGE = Message(id="m1", event=[1])


class Server:
    """Notes what a script is told, and answers what a test says."""

    def __init__(self) -> None:
        self.raw: list[Any] = []
        self.told: list[tuple[Any, ...]] = []

    def run(self, name: str, names: Any, arguments: Any, **how: Any) -> tuple[Moment, Any]:
        """Note it."""
        del names
        said = tuple(each(is_repeated=True) if callable(each) else each for each in arguments)
        assert [each(is_repeated=False) == each(is_repeated=True) for each in arguments if callable(each)] in (
            [],
            [False],
        )
        self.told.append((name, *said, {name: value for name, value in how.items() if value is not None}))
        return SENT, self.raw.pop(0)

    def nodes(self, **_: Any) -> dict[str, Any]:
        """One."""
        return {"a": "a"}

    def scan(self, _node: str, pattern: str, _cursor: int, **_: Any) -> tuple[int, list[bytes]]:
        """Three keys that have each companion."""
        place = 1 + COMPANIONS.index(pattern.rpartition(":")[2])
        return 0, [Names("incumbent").of(f"orders/{number}")[place] for number in (1, 2, 3)]

    def search_is_over(self) -> bool:
        """There is time."""
        return False


@pytest.fixture
def server() -> Server:
    """A server without a store."""
    return Server()


@pytest.fixture
def provider(server: Server) -> Any:
    """A provider that asks it."""
    provider = RedisProvider(url="redis://localhost")
    provider._server = server  # type: ignore[assignment] # noqa: SLF001 - in its place
    return provider


def how(call: str, *, ttl_ms: int | None = None, **more: Any) -> dict[str, Any]:
    """How a script is run."""
    return {"call": call, "key": KEY, **({} if ttl_ms is None else {"ttl_ms": ttl_ms}), **more}


POLICY = Policy(on_error="block", max_attempts=2, window_ms=900_000, max_pending=7, pauses_ms=(3, 4, 5))
USUAL = b"0 5 3600000 100 100 1000,10000,60000,300000"


def test_claim_is_told(provider: Any, server: Server) -> None:
    """All of it, and no more."""
    server.raw = [b"own 4 300 990"] * 3
    provider.claim(KEY, "A", 300, MESSAGE)
    origin = Origin(keyspace="orders", target="f", request_id="r", log_stream="l")
    more: dict[str, Any] = {"ticket": "T", "as_ticket": True, "route": False, "origin": origin, "policy": POLICY}
    provider.claim(KEY, "A", 300, MESSAGE, after_ms=9, debounce=Debounce(quiet_ms=5, max_ms=6), interrupt=True, **more)
    latest = Policy(keep="latest", pauses_ms=(3,))
    provider.claim(KEY, "A", 300, MESSAGE, policy=latest, origin=Origin())
    assert server.told[0][-2] == USUAL
    assert server.told == [
        ("claim", b"A", b"300", b"m1", b"[1]", b"", b"", USUAL, how("claim", ttl_ms=300)),
        (
            *("claim", b"A", b"300", b"m1", b"[1]", b"T", b"TBIA9Q5M6", b"1 2 900000 7 100 3,4"),
            *(b"orders", b"f", b"r", b"l", how("claim", ttl_ms=300)),
        ),
        (
            *("claim", b"A", b"300", b"m1", b"[1]", b"", b"L", b"0 5 3600000 100 100 3"),
            *(b"", b"", b"", b"", how("claim", ttl_ms=300)),
        ),
    ]


def test_claim_without_a_message_is_told(provider: Any, server: Server) -> None:
    """Of a woken function."""
    server.raw = [[b"idle -"]]
    provider.claim(KEY, "A", 300, None, ticket="T")
    assert server.told == [("claim", b"A", b"300", b"", b"", b"T", b"", USUAL, how("claim", ttl_ms=300))]


PARTS = [b"m2", b"2 70 80 1 no luck", b"[2]", b"m3", b"1 71 81 0", b"{}"]
TWO = Message(id="m2", event=[2], attempt=2, stored_at_ms=70, due_at_ms=80, promised=True, last_error="no luck")
THREE = Message(id="m3", event={}, attempt=1, stored_at_ms=71, due_at_ms=81)
DEAD_TWO = Message(id="m2", event=[2], attempt=2, stored_at_ms=70, promised=True, last_error="no luck")
ENDS = Moment(wall_ms=1_240, mono_ms=740)  # a little before, by as much as clocks may drift


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            b"own 4 250 990",
            Claimed(
                owner="A",
                fence=4,
                messages=(Message(id="m1", event=[1], attempt=1, stored_at_ms=990),),
                waiting=0,
                expires_in_ms=250,
                deadline=ENDS,
            ),
        ),
        (
            [b"claimed 4 250 6 1", *PARTS],
            Claimed(
                owner="A",
                fence=4,
                messages=(THREE,),
                waiting=6,
                expires_in_ms=250,
                deadline=ENDS,
                dead_lettered=(DEAD_TWO,),
            ),
        ),
        ([b"routed 3 -", b"B"], Routed(owner="B", waiting=3)),
        ([b"routed 3 70", b"", b"m8", b"m9"], Routed(owner=None, waiting=3, due_in_ms=70, superseded=("m8", "m9"))),
        ([b"duplicate handled", b"B"], Duplicate(state="handled", owner="B")),
        (
            [b"duplicate dead", b"", *PARTS[:3]],
            Duplicate(state="dead", owner=None, dead_lettered=(DEAD_TWO,)),
        ),
        ([b"busy 250", b"B"], Busy(owner="B", expires_in_ms=250)),
        ([b"busy -1", b""], Busy(owner=None, expires_in_ms=None)),  # of another program
        ([b"idle 70"], Idle(due_in_ms=70)),
        ([b"idle -", *PARTS[:3]], Idle(dead_lettered=(DEAD_TWO,))),
    ],
)
def test_answer_to_a_claim_is_read(provider: Any, server: Server, raw: Any, said: object) -> None:
    """M1."""
    server.raw = [raw]
    assert provider.claim(KEY, "A", 300, MESSAGE) == said


def test_settle_is_told(provider: Any, server: Server) -> None:
    """All of it, and no more."""
    server.raw = [b"released 0"] * 2 + [[b"continued 5 250 1 0"]] * 2
    provider.settle(KEY, "A", ttl_ms=300)
    provider.settle(
        KEY,
        "A",
        ttl_ms=300,
        handled=["h1", "h2"],
        failed=[Failure(id="f1", error="no", after_ms=7), Failure(id="f2", error="", final=True)],
        dropped=[Failure(id="d1", error="no")],
        deferred=["w1"],
        stopped=["s1"],
        results={"h2": [5], "x": 1},
        hold_ms=8,
        hold_reason="gap",
        policy=Policy(result_bytes=9, pauses_ms=(3,)),
        fence=4,
        give_up_at=GIVE_UP,
    )
    provider.settle(KEY, "A", ttl_ms=300, next_owner="B")
    provider.settle(KEY, "A", ttl_ms=300, ticket="T")
    assert server.told == [
        ("settle", b"A", b"300", b"", b"", b"R", USUAL, how("settle", ttl_ms=300)),
        (
            *("settle", b"A", b"300", b"4", b"", b"R", b"0 5 3600000 100 100 3", b"hh1", b"rh2", b"[5]"),
            *("ff1", "no", b"7", "ff2", "", b"final", "dd1", "no", b"", "ww1", "ss1", b"k8", "gap"),
            how("settle", ttl_ms=300, give_up_at=GIVE_UP, names_count=8),
        ),
        ("settle", b"A", b"300", b"", b"B", b"R", USUAL, how("settle", ttl_ms=300)),
        ("settle", b"A", b"300", b"", b"T", b"TR", USUAL, how("settle", ttl_ms=300)),
    ]


@pytest.mark.parametrize(
    ("raw", "successor", "said"),
    [
        (b"released 3", {}, Released(remaining=3)),
        (b"released 3 -", {}, Released(remaining=3)),
        ([b"released 3 70", *PARTS[:3]], {}, Released(remaining=3, due_in_ms=70, dead_lettered=(DEAD_TWO,))),
        (
            [b"released 3 70 1", *PARTS[:3], b"why"],
            {},
            Released(remaining=3, due_in_ms=70, stop="why", dead_lettered=(DEAD_TWO,)),
        ),
        (
            [b"continued 5 250 6 1 1", *PARTS, b"why"],
            {"next_owner": "B"},
            Continued(
                owner="B",
                fence=5,
                messages=(THREE,),
                waiting=6,
                expires_in_ms=250,
                deadline=ENDS,
                stop="why",
                dead_lettered=(DEAD_TWO,),
            ),
        ),
        (
            [b"continued 5 250 6 1", *PARTS],
            {"ticket": "T"},
            Continued(
                owner="T", fence=5, messages=(), waiting=6, expires_in_ms=250, deadline=ENDS, dead_lettered=(DEAD_TWO,)
            ),
        ),
    ],
)
def test_answer_to_a_settle_is_read(
    provider: Any, server: Server, raw: Any, successor: dict[str, str], said: object
) -> None:
    """M2."""
    server.raw = [raw]
    assert provider.settle(KEY, "A", ttl_ms=300, **successor) == said


def test_lease_calls_are_told_and_read(provider: Any, server: Server) -> None:
    """R2 to R6."""
    server.raw = [b"granted 4 250", [b"held 250", b"B"], [b"held -1", b"B"], [b"held", b"B"], b"free", b"released"]
    assert [provider.acquire_lease(KEY, "A", 300) for _ in range(3)] == [
        Acquisition(acquired=True, owner="A", fence=4, expires_in_ms=250, deadline=ENDS),
        Acquisition(acquired=False, owner="B", expires_in_ms=250),
        Acquisition(acquired=False, owner="B"),
    ]
    assert [provider.get_lease_owner(KEY) for _ in range(2)] == ["B", None]
    provider.release_lease(KEY, "A")
    server.raw = [b"renewed 4 250 0", [b"lost", b"B"], b"moved", [b"lost", b"B"]]
    assert [provider.renew_lease(KEY, "A", 300) for _ in range(2)] == [True, False]
    assert [provider.transfer_lease(KEY, "A", "B", 300) for _ in range(2)] == [True, False]
    assert server.told[2:] == [
        ("acquire", "A", 300, how("acquire", ttl_ms=300)),
        ("owner", how("get_lease_owner")),
        ("owner", how("get_lease_owner")),
        ("release", "A", how("release")),
        *([("renew", "A", 300, b"", how("renew", ttl_ms=300))] * 2),
        *([("transfer", "A", "B", 300, b"1", how("transfer", ttl_ms=300))] * 2),
    ]


def test_beat_and_take_are_told_and_read(provider: Any, server: Server) -> None:
    """R4, M6, M16, M18."""
    server.raw = [b"renewed 4 250 6", [b"renewed 4 250 6", b"why"]]
    beat = Beat(fence=4, waiting=6, expires_in_ms=250, deadline=ENDS)
    assert provider.beat(KEY, "A", 300) == beat
    assert provider.beat(KEY, "A", 300, note="x", fence=4, give_up_at=GIVE_UP) == Beat(
        fence=4, waiting=6, expires_in_ms=250, deadline=ENDS, stop="why"
    )
    server.raw = [[b"taken 1 2 3 4", *PARTS], [b"taken 1 2 3 4 1", *PARTS[:3], b"why"]]
    taken = provider.take(KEY, "A", 300)
    assert (list(taken), taken.stop) == ([TWO, THREE], None)
    taken = provider.take(KEY, "A", 300, have=["m1", "m9"], fence=4, give_up_at=GIVE_UP)
    assert (list(taken), taken.stop) == ([TWO], "why")
    asked = list(server.told)
    server.raw = [[b"taken 1 2 3 4", *PARTS[:3], b"b1", b"0 70 80 1", b"["]]
    assert list(provider.take(KEY, "A", 300)) == [TWO]  # the next tenure is given what cannot be read
    assert asked == [
        ("renew", "A", 300, b"", how("beat", ttl_ms=300)),
        ("renew", "A", 300, b"4", '"x"', how("beat", ttl_ms=300, give_up_at=GIVE_UP)),
        ("take", "A", 300, b"", how("take", ttl_ms=300)),
        ("take", "A", 300, b"4", "m1", "m9", how("take", ttl_ms=300, give_up_at=GIVE_UP)),
    ]


def test_control_is_told_and_read(provider: Any, server: Server) -> None:
    """M15, M16, M19; each call that changes something has a name of its own."""
    server.raw = [b"stopped 4", b"none", b"watched", [b"watched", b"why"], b"held", b"held", b"resumed", b"free"]
    assert (provider.stop(KEY, fence=4, reason="why"), provider.stop(KEY)) == (4, None)
    assert (provider.watch(KEY, "A", fence=4), provider.watch(KEY, "A")) == (None, "why")
    provider.hold(KEY, for_ms=9, reason="why")
    provider.hold(KEY)
    assert (provider.resume(KEY), provider.resume(KEY)) == (True, False)
    own = [each for told in server.told for each in told if isinstance(each, str) and len(each) == 16]
    assert len({*own}) == 6
    assert [tuple("OWN" if each in own else each for each in told if each != {}) for told in server.told] == [
        ("stop", b"4", "why", "OWN", b"1", how("stop")),
        ("stop", b"", "", "OWN", b"1", how("stop")),
        ("watch", "A", b"4", how("watch")),
        ("watch", "A", b"", how("watch")),
        ("hold", 9, "why", "OWN", b"1", how("hold")),
        ("hold", b"", "", "OWN", b"1", how("hold")),
        ("resume", "OWN", b"1", how("resume")),
        ("resume", "OWN", b"1", how("resume")),
    ]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"found", Status(state="unknown")),
        ([b"found handled 70", b""], Status(state="handled", left_at_ms=70, result_is="none")),
        ([b"found handled 70", b"r"], Status(state="handled", left_at_ms=70, result_is="too large")),
        ([b"found stopped 70", b"r[5]"], Status(state="stopped", left_at_ms=70, result=[5], result_is="kept")),
        (b"found waiting 2 70 80", Status(state="waiting", attempt=2, stored_at_ms=70, due_at_ms=80)),
        (
            [b"found running 2 70 80 4", b"A", b'"x"'],
            Status(state="running", attempt=2, stored_at_ms=70, due_at_ms=80, owner="A", fence=4, note="x"),
        ),
        (
            [b"found running 2 70 80 4", b"A", b""],
            Status(state="running", attempt=2, stored_at_ms=70, due_at_ms=80, owner="A", fence=4),
        ),
    ],
)
def test_status_is_told_and_read(provider: Any, server: Server, raw: Any, said: Status) -> None:
    """M5, M17, M19."""
    server.raw = [raw, raw]
    policy = Policy(window_ms=900_000)
    assert provider.find(KEY, "m1", policy=policy) == provider.cancel(KEY, "m1", policy=policy) == said
    assert server.told == [("find", "m1", 900_000, how("find")), ("cancel", "m1", 900_000, how("cancel"))]


def test_key_is_told_and_read(provider: Any, server: Server) -> None:
    """With all that is known, and with nothing."""
    parts = [b"A", b"f", b"gap", b'"x"', [b"why"], [], PARTS[:3], PARTS[3:]]
    server.raw = [[b"key 4 70 250 90 95", *parts], [b"key 0 0 -2 0 0", b"", b"", b"", b"", [], [], [], []]]
    assert provider.show(KEY, events=True) == KeyStatus(
        key=KEY,
        owner="A",
        fence=4,
        since_ms=70,
        expires_in_ms=250,
        held_until_ms=90,
        held_reason="gap",
        quiet_until_ms=95,
        stop="why",
        note="x",
        target="f",
        running=(TWO,),
        waiting=(THREE,),
    )
    nothing: dict[str, Any] = {**dict.fromkeys(KeyStatus.__annotations__), "key": KEY, "running": (), "waiting": ()}
    assert provider.show(KEY) == KeyStatus(**nothing)
    assert server.told == [("show", b"1", how("show")), ("show", b"", how("show"))]


def test_archive_is_told_and_read(provider: Any, server: Server) -> None:
    """M6."""
    server.raw = [[b"letters", [], b"m2", b"99 2 70 80 1 no luck", b"[2]"], b"redriven", b"none", b"purged", b"none"]
    assert list(provider.dead_letters(KEY, 9)) == [DeadLetter(key=KEY, message=DEAD_TWO, died_at_ms=99)]
    assert (provider.redrive(KEY, "m1"), provider.redrive(KEY, "m1")) == (True, False)
    assert (provider.purge(KEY, "m1"), provider.purge(KEY, "m1")) == (True, False)
    assert server.told[0] == ("letters", 9, how("dead_letters"))
    assert server.told[1] == ("redrive", "m1", b"1", 1_100, how("redrive"))
    assert server.told[3][:3] + server.told[3][4:] == ("purge", "m1", b"1", how("purge"))
    assert len(server.told[3][3]) == 16


CALLS: dict[str, Callable[[Any], object]] = {
    "acquire": lambda provider: provider.acquire_lease(KEY, "A", 300),
    "owner": lambda provider: provider.get_lease_owner(KEY),
    "transfer": lambda provider: provider.transfer_lease(KEY, "A", "B", 300),
    "claim": lambda provider: provider.claim(KEY, "A", 300, MESSAGE),
    "settle": lambda provider: provider.settle(KEY, "A", ttl_ms=300),
    "beat": lambda provider: provider.beat(KEY, "A", 300),
    "take": lambda provider: provider.take(KEY, "A", 300),
    "watch": lambda provider: provider.watch(KEY, "A"),
    "find": lambda provider: provider.find(KEY, "m1"),
    "show": lambda provider: provider.show(KEY),
    "stop": lambda provider: provider.stop(KEY),
    "hold": lambda provider: provider.hold(KEY),
    "resume": lambda provider: provider.resume(KEY),
    "redrive": lambda provider: provider.redrive(KEY, "m1"),
    "purge": lambda provider: provider.purge(KEY, "m1"),
    "peek": lambda provider: provider.peek(KEY),
    "letters": lambda provider: list(provider.dead_letters(KEY, 9)),
}

ODD_KEY = [b"key 4 70 250 0 0", b"A", b"", b"", b"", [], [b"m9", b"7"], [], []]


@pytest.mark.parametrize(
    ("call", "raw", "error", "said"),
    [
        *((call, b"nonsense", LeaseUnavailable, "unexpected reply") for call in list(CALLS)[:10]),
        *((call, [], LeaseUnavailable, "unexpected reply") for call in CALLS),
        *((call, [b"format", b"r", b"9"], StoredFormatUnknown, "its record 'r' has format 9") for call in CALLS),
        *((call, [b"broken", b"r"], StoredFormatUnknown, "parts of its record 'r' are missing") for call in CALLS),
        *((call, [b"lost", b"B"], LeaseLost, "no longer holds it") for call in ("settle", "beat", "take", "watch")),
        *((call, [b"unknown", b"B"], LeaseUnavailable, "unanswered") for call in ("settle", "transfer")),
        *(
            (call, b"unknown", LeaseUnavailable, "unanswered")
            for call in ("stop", "hold", "resume", "redrive", "purge")
        ),
        ("claim", [b"full", b"B"], MailboxFull, "100 messages or more"),
        ("redrive", b"full", MailboxFull, "1,100 messages"),
        ("peek", [b"peek", [b"m9", b"7"]], StoredFormatUnknown, "message 'm9' in its record 'messages' has format 7"),
        ("peek", [b"peek", [b"m9", b""]], StoredFormatUnknown, "message 'm9' in its record 'messages' is broken"),
        ("show", ODD_KEY, StoredFormatUnknown, "message 'm9' in its record 'messages' has format 7"),
        ("letters", [b"letters", [b"m9", b""]], StoredFormatUnknown, "message 'm9' in its record 'letters' is broken"),
    ],
)
def test_answer_that_is_an_error(  # noqa: PLR0917 - columns of the table
    provider: Any, server: Server, call: str, raw: Any, error: type[IncumbentError], said: str
) -> None:
    """R9, M12: each names its key."""
    server.raw = [raw]
    with pytest.raises(error, match=said) as raised:
        CALLS[call](provider)
    errors = getattr(raised.value, "skipped", None) or [raised.value]
    assert [each.key for each in errors] == [KEY]
    if isinstance(raised.value, LeaseLost):
        assert (raised.value.owner, raised.value.holder) == ("A", "B")
    if call == "claim" and isinstance(raised.value, MailboxFull):
        assert raised.value.owner == "B"


def test_message_that_cannot_be_read_is_settled_and_nothing_else(provider: Any, server: Server) -> None:
    """M6: after a claim, which is repeated, and after a settle, whose time it shares."""
    bad = [b"b1", b"1 70 80 1", b"["]
    server.raw = [[b"claimed 4 250 0 0", *bad], b"released 0", [b"idle -"]]
    provider.claim(KEY, "A", 300, MESSAGE, policy=POLICY)
    server.raw = [[b"continued 5 250 0 0", *bad], b"released 0"]
    provider.settle(KEY, "A", ttl_ms=300, next_owner="B", hold_ms=0, policy=POLICY, give_up_at=GIVE_UP)
    claim, died, again, _, died_then = server.told
    assert claim == again
    told = b"1 2 900000 7 100 3,4"
    said = ("fb1", died[8], b"final")
    assert "cannot be read" in died[8]
    assert died == ("settle", b"A", b"300", b"4", b"", b"R", told, *said, how("settle", ttl_ms=300))
    then = how("settle", ttl_ms=300, give_up_at=GIVE_UP)
    assert died_then == ("settle", b"B", b"300", b"5", b"B", b"R", told, *said, then)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9])
def test_lists_end_at_their_limit(provider: Any, server: Server, limit: int) -> None:
    """And ask for no more than that."""
    key = [b"key 4 70 250 0 0", b"A", b"", b"", b"", [], [], [], []]
    server.raw = [key] * 9
    assert len(list(provider.keys(limit))) == min(limit, 3)
    assert len(server.told) == min(limit, 3)
    server.raw = [
        [b"letters", [], *[b"m2", b"99 2 70 80 1 no luck", b"[2]"] * min(left, 2)]
        for left in (limit, limit - 2, limit - 4)
    ]
    server.told.clear()
    assert len(list(provider.dead_letters(None, limit))) == min(limit, 6)
    assert [told[1] for told in server.told] == [left for left in (limit, limit - 2, limit - 4) if left > 0]


def test_oldest_orphans_are_listed_first(provider: Any, server: Server) -> None:
    """With what is known of each, by the latest clock."""
    server.raw = [[b"orphan 70 100 2", b"f"], [b"none"], [b"orphan 60 110 1", b""]]
    listed = list(provider.orphans(9))
    assert listed == [
        Orphan(key="orders/3", target=None, age_ms=50, waiting=1),
        Orphan(key="orders/1", target="f", age_ms=40, waiting=2),
    ]
    server.raw = [[b"orphan 70 100 2", b"f"], [b"none"], [b"orphan 60 110 1", b""]]
    assert [each.key for each in provider.orphans(1)] == ["orders/3"]


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (3, ("owner", "acquire", "release", "transfer", "stop", "watch")),
        (4, ("renew", "take", "peek", "orphan", "show")),
        (5, ("find", "cancel")),
        (7, ("claim", "settle", "letters", "redrive", "purge")),
        (8, ("hold", "resume")),
    ],
)
def test_script_gets_no_more_names_than_it_may_touch(count: int, names: tuple[str, ...]) -> None:
    """In a cluster, each more makes it likelier that a script is refused while a slot moves."""
    assert {name: script(name).names for name in names} == dict.fromkeys(names, count)


# Of each kind of error: whether another try may help, and words of the advice.
MEANINGS: list[tuple[Exception, bool, str]] = [
    (AuthenticationError("WRONGPASS"), False, "check user, password and ACL"),
    (OutOfMemoryError("OOM"), False, "raise maxmemory"),
    (ReadOnlyError("READONLY"), True, "a replica"),
    (TryAgainError("TRYAGAIN"), True, "redis-cli --cluster fix"),
    (ClusterError("TTL exhausted."), True, "redis-cli --cluster fix"),
    (ClusterDownError("CLUSTERDOWN"), True, "is being rearranged"),
    (SlotNotCoveredError("a slot"), True, "is being rearranged"),
    (AskError("1 127.0.0.1:7001"), False, "add cluster=true"),
    (RedisClusterException("Cluster mode is not enabled on this node"), False, "leave cluster=true out"),
    (ResponseError("WRONGTYPE"), False, "a value of another type"),
    (ResponseError("OOM"), False, "raise maxmemory"),
    *(
        (ResponseError(f"{word} x"), True, "see its message")
        for word in ("BUSY", "LOADING", "MASTERDOWN", "NOREPLICAS")
    ),
    *((ResponseError(f"{word} x"), True, "see its message") for word in ("CLUSTERDOWN", "TRYAGAIN")),
    (ResponseError("ERR unknown command"), False, "see its message"),
    (redis.ConnectionError("refused"), True, "address, port, security group"),
    (redis.TimeoutError("slow"), True, "address, port, security group"),
    (RedisClusterException("no node"), True, "address, port, security group"),
    (OSError("no route"), True, "address, port, security group"),
    (ValueError("what"), False, "see the cause"),
    (ssl.SSLCertVerificationError("expired"), False, "is not trusted here"),
    (ssl.SSLError("CERTIFICATE_REQUIRED"), False, "ssl_certfile=PATH"),
    (ssl.SSLError("WRONG_VERSION_NUMBER"), True, "did not answer in TLS"),
    (TimeoutError("the handshake operation timed out"), True, "did not answer in TLS"),
    (InvalidResponse(r"Protocol Error: b'\x15\x03\x03'"), False, "speaks TLS on this port"),
    (ConnectionResetError("reset"), True, "closed the connection without an answer"),
    (redis.ConnectionError("Connection closed by server."), True, "closed the connection without an answer"),
]


@pytest.mark.parametrize("row", MEANINGS, ids=lambda row: repr(row[0])[:40])
def test_error_is_explained(row: tuple[Exception, bool, str]) -> None:
    """R9: each kind by itself, and whether the call is repeated after it."""
    error, again, advice = row
    helps, said = classify_error(error)
    assert helps is again
    assert advice in said


@pytest.mark.parametrize(
    ("error", "odd"),
    [
        (ResponseError("WRONGTYPE Operation against a key"), "odd"),
        (ResponseError("user_script:7: attempt to index a nil value"), "odd"),
        (ResponseError("Error running script (call to f_1): attempt to index a nil value"), "odd"),
        *(
            (ResponseError(f"user_script:7: {said}"), "")
            for said in ("ACL no", "MISCONF no", "NOPERM no", "OOM no", "READONLY no", "can't run this command")
        ),
        (ResponseError("ERR attempt to index a nil value"), ""),
        (OutOfMemoryError("command not allowed"), ""),
        (ReadOnlyError("You can't write against a read only replica."), ""),
        (redis.ConnectionError("WRONGTYPE"), ""),
        (None, ""),
    ],
)
def test_error_of_one_keys_records_is_told_from_the_servers(error: Exception | None, odd: str) -> None:
    """M12: a search goes on behind it, and reports the key."""
    assert is_odd_record(error) is bool(odd)


@pytest.mark.parametrize(
    ("memory", "warns"),
    [
        ({}, 0),
        ({"maxmemory": "100"}, 0),
        ({"maxmemory_policy": "noeviction", "maxmemory": "100"}, 0),
        ({"maxmemory_policy": "volatile-lru"}, 0),
        ({"maxmemory_policy": "volatile-lru", "maxmemory": "0"}, 0),
        ({"maxmemory_policy": "volatile-lru", "maxmemory": "1"}, 1),
    ],
)
def test_server_that_evicts_is_warned_of(memory: dict[str, str], warns: int) -> None:
    """Only one that has a limit evicts; a server may say neither."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _warn_of_eviction(memory)
    assert len(told) == warns


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "either url= or client="),
        ({"url": "redis://h", "client": redis.Redis()}, "either url= or client="),
        ({"client": redis.Redis(), "password": lambda: "s"}, "password= is a callable, and goes with url="),
        ({"url": "redis://h", "password": "s"}, "password= is a callable, and goes with url="),
    ],
)
def test_provider_is_given_a_url_or_a_client(given: dict[str, Any], wrong: str) -> None:
    """And a password only beside a URL."""
    with pytest.raises(ConfigurationError, match=wrong):
        RedisProvider(**given)


def test_pool_of_a_former_primary_is_asked_for_new_connections() -> None:
    """R9: the next try goes to the primary of now; what other threads have sent is not cut off."""
    closed: list[dict[str, bool]] = []
    client = redis.Redis(retry=Retry(NoBackoff(), 0))
    client.connection_pool.disconnect = lambda **how: closed.append(how)  # type: ignore[method-assign]

    def refuse(*_: Any, **__: Any) -> Any:
        raise ReadOnlyError("You can't write against a read only replica.")

    client.execute_command = refuse  # type: ignore[method-assign]
    with pytest.raises(LeaseUnavailable, match="a replica"):
        RedisProvider(client=client, clock=FakeClock()).get_lease_owner("k")
    assert closed
    assert all(how == {"inuse_connections": False} for how in closed)


@pytest.mark.parametrize("url", ["", [], (), [7], 7, b"redis://h"])
def test_url_is_text_or_several(url: Any) -> None:
    """Nothing else names a server."""
    with pytest.raises(ConfigurationError, match="url must be a str"):
        RedisProvider(url=url)
