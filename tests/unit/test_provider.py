"""What DynamoDB's provider hands on: every argument of a claim and of a settle, and no other."""

from typing import Any

import boto3
import pytest
from botocore.config import Config

from incumbent.clock import Moment
from incumbent.errors import ConfigurationError
from incumbent.providers.dynamodb import DynamoDBProvider, provider
from incumbent.providers.unreadable import Unreadable
from incumbent.values import Claimed, Continued, Debounce, Failure, Message, Origin, Policy, Released

ENDS = Moment(wall_ms=9, mono_ms=9)
BAD = Unreadable(id="b1", event="[", why="broken")
GOOD = Message(id="m1", event=1)
REST: dict[str, Any] = {"waiting": 0, "expires_in_ms": 1, "deadline": ENDS}


@pytest.mark.parametrize(
    ("name", "least", "most", "wrong"),
    [
        ("max_clock_skew_ms", 0, 60_000, (-1, 60_001)),
        ("key_prefix", "p", "é" * 127 + "p", ("", "é" * 128, "p#")),
        ("table_name", "t", "t" * 999, ("",)),
    ],
)
def test_settings_have_limits(name: str, least: Any, most: Any, wrong: tuple[Any, ...]) -> None:
    """The error says which, and what to give."""
    for value in (least, most):
        DynamoDBProvider(**{"table_name": "t", name: value})
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^{name} is"):
            DynamoDBProvider(**{"table_name": "t", name: value})


def test_ttl_is_longer_than_the_client_waits() -> None:
    """At decoration."""
    store = DynamoDBProvider(table_name="t", boto_config=Config(read_timeout=7))
    store.check_ttl(7_000)
    with pytest.raises(ConfigurationError):
        store.check_ttl(6_999)


class Made:
    """Stands for the classes that carry calls out: notes how they were made, and answers what a test says."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.told: list[dict[str, Any]] = []

    def __call__(self, *, steps: Any, call: Any, **told: Any) -> "Made":
        """Note it."""
        del steps
        bounds = {"names": call.names, "call": call.name, "key": call.key, "within": call.ttl_ms, "by": call.give_up_at}
        self.told.append({**told, **bounds})
        return self

    def carry_out(self) -> Any:
        """Answer."""
        return self.answers.pop(0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """In place of both classes."""
    made = Made()
    for name in ("Claiming", "Settling"):
        monkeypatch.setattr(provider, name, made)
    return made


@pytest.fixture
def store() -> DynamoDBProvider:
    """A provider that sends nothing."""
    return DynamoDBProvider(client=boto3.client("dynamodb", region_name="eu-central-1"), table_name="table")


SETTLED: dict[str, Any] = {
    **dict.fromkeys(("handled", "dropped", "deferred", "stopped"), ()),
    **dict.fromkeys(("next_owner", "ticket", "by")),
    "ttl_ms": 30_000,
    "policy": Policy(),
    "results": {},
    "hold_ms": 0,
    "hold_reason": "",
    "call": "settle",
    "key": "k",
    "within": 30_000,
}
DIED = [Failure(id="b1", error="the stored body cannot be read: broken", final=True)]


def test_settle_is_handed_on_as_a_whole(store: DynamoDBProvider, made: Made) -> None:
    """And what follows it, because a message cannot be read, settles that message and nothing else."""
    made.answers = [Continued(owner="B", fence=5, messages=(BAD,), **REST), Released(remaining=0)]
    policy = Policy(result_bytes=9)
    failed, dropped = [Failure(id="f", error="no")], [Failure(id="d", error="no")]
    store.settle(
        "k",
        "A",
        ttl_ms=30_000,
        handled=["h"],
        failed=failed,
        dropped=dropped,
        deferred=["w"],
        next_owner="B",
        policy=policy,
        stopped=["s"],
        results={"h": [1]},
        hold_ms=7,
        hold_reason="why",
        fence=4,
        give_up_at=ENDS,
    )
    first, then = made.told
    assert sorted(first.pop("names")) == ["A", "B", "d", "f", "h", "s", "w"]
    assert first == {
        **SETTLED,
        "owner": "A",
        "handled": ["h"],
        "failed": failed,
        "dropped": dropped,
        "deferred": ["w"],
        "next_owner": "B",
        "policy": policy,
        "stopped": ["s"],
        "results": {"h": "[1]"},
        "hold_ms": 7,
        "hold_reason": "why",
        "fence": 4,
        "by": ENDS,
    }
    assert sorted(then.pop("names")) == ["B", "B", "b1"]
    assert then == {
        **SETTLED,
        "owner": "B",
        "failed": DIED,
        "next_owner": "B",
        "policy": policy,
        "fence": 5,
        "by": ENDS,
    }


def test_claim_is_handed_on_as_a_whole(store: DynamoDBProvider, made: Made) -> None:
    """And the settle of what cannot be read, after which it is repeated."""
    bad, good = (Claimed(owner="A", fence=4, messages=(each,), **REST) for each in (BAD, GOOD))
    made.answers = [bad, Released(remaining=0), good]
    origin, policy, debounce = Origin(keyspace="x"), Policy(max_pending=7), Debounce(quiet_ms=5, max_ms=6)
    told: dict[str, Any] = {"ticket": "T", "as_ticket": True, "route": False, "origin": origin, "policy": policy}
    told |= {"after_ms": 9, "debounce": debounce, "interrupt": True}
    store.claim("k", "A", 30_000, GOOD, **told)
    first, settle, again = made.told
    assert first == again
    assert [*first.pop("names")] == ["A", "T", "m1"]
    bounds = {"call": "claim", "key": "k", "within": 30_000, "by": None}
    assert first == {**told, "owner": "A", "ttl_ms": 30_000, "message_id": "m1", "text": "1", **bounds}
    assert sorted(settle.pop("names")) == ["A", "b1"]
    assert settle == {**SETTLED, "owner": "A", "failed": DIED, "policy": policy, "fence": 4}


def test_claim_without_a_message_is_handed_on(store: DynamoDBProvider, made: Made) -> None:
    """What concerns a message does not matter then."""
    made.answers = [Claimed(owner="A", fence=4, messages=(), **REST)]
    store.claim("k", "A", 30_000, None, after_ms=9, debounce=Debounce(quiet_ms=5, max_ms=6))
    (told,) = made.told
    assert (told["message_id"], told["after_ms"], told["debounce"], told["names"]) == ("", 0, None, ("A",))
    usual = {"ticket": None, "as_ticket": False, "route": True, "origin": None, "interrupt": False}
    assert {name: told[name] for name in usual} == usual
    assert told["policy"] == Policy()
