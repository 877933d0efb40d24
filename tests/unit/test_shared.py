"""What every provider checks and says in the same way."""

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import ConfigurationError, IncumbentError, MessageInvalid, MessageTooLarge
from incumbent.providers import shared
from incumbent.providers.unreadable import Unreadable
from incumbent.rules import Dead, Ended, KeyState, Stored
from incumbent.traces import Traces
from incumbent.values import FOREVER_MS, Debounce, Failure, KeyStatus, Message, Origin, Policy, Status

KEY = "orders/k"
DAY_MS = 86_400_000


def claim(**changed: Any) -> str | None:
    """Check a claim, of which nothing is wrong but what is changed."""
    given: dict[str, Any] = {"message": Message(id="m1", event={"n": 1}), "ticket": None, "policy": Policy()}
    given |= {"after_ms": 0, "debounce": None, **changed}
    owner, ttl_ms, message = given.pop("owner", "A"), given.pop("ttl_ms", 30_000), given.pop("message")
    return shared.check_claim(KEY, owner, ttl_ms, message, **given)


def settle(**changed: Any) -> list[str]:
    """Check a settle, of which nothing is wrong but what is changed."""
    given: dict[str, Any] = dict.fromkeys(("handled", "failed", "dropped", "deferred", "stopped"), ())
    given |= {"hold_ms": 0, "next_owner": None, "ticket": None, "fence": None, **changed}
    return shared.check_settle(KEY, given.pop("owner", "A"), given.pop("ttl_ms", 30_000), **given)


def test_claim_that_is_right() -> None:
    """At the limits, too."""
    assert claim() == '{"n":1}'
    assert claim(message=None) is None
    assert claim(after_ms=14 * DAY_MS, ticket="T" * 512) == '{"n":1}'
    for debounce in (Debounce(quiet_ms=1, max_ms=1), Debounce(quiet_ms=DAY_MS, max_ms=DAY_MS)):
        assert claim(debounce=debounce) == '{"n":1}'


def quiet(**changed: int) -> Any:
    """A debounce whose fields were not checked, as a provider of another package may pass it."""
    debounce = Debounce(quiet_ms=10, max_ms=10)
    for name, value in changed.items():
        object.__setattr__(debounce, name, value)
    return debounce


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"owner": ""}, "owner"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ticket": ""}, "the ticket"),
        ({"after_ms": -1}, "after_ms"),
        ({"after_ms": 14 * DAY_MS + 1}, "after_ms"),
        ({"after_ms": -1, "message": None}, "after_ms"),
        ({"debounce": quiet(quiet_ms=0)}, "debounce_ms"),
        ({"debounce": quiet(quiet_ms=DAY_MS + 1)}, "debounce_ms"),
        ({"debounce": quiet(max_ms=9)}, "debounce_max_ms"),
        ({"debounce": quiet(max_ms=DAY_MS + 1)}, "debounce_max_ms"),
        ({"message": Message(id="", event={})}, "message id"),
        ({"message": Message(id="m7", event=object())}, "message 'm7' of key 'orders/k'"),
    ],
)
def test_claim_that_is_wrong(changed: dict[str, Any], said: str) -> None:
    """R10: the error names what is wrong, and the key."""
    with pytest.raises(ConfigurationError, match=said) as raised:
        claim(**changed)
    assert raised.value.key == KEY


def test_message_that_is_too_large() -> None:
    """M7: the error names it."""
    with pytest.raises(MessageTooLarge, match="message 'm1' of key 'orders/k' has 7 bytes, more than the 6") as raised:
        claim(policy=Policy(max_message_bytes=6))
    assert raised.value.key == KEY


def test_settle_that_is_right() -> None:
    """It names each message once."""
    failed, dropped = [Failure(id="f", error="no")], [Failure(id="d", error="no")]
    assert sorted(settle(handled=["h"], failed=failed, deferred=["e"], stopped=["s"])) == ["e", "f", "h", "s"]
    assert sorted(settle(dropped=dropped, handled=["h", "i"])) == ["d", "h", "i"]
    assert settle(hold_ms=14 * DAY_MS, fence=7, next_owner="B") == []
    assert settle(ticket="T") == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"owner": ""}, "owner"),
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"fence": -1}, "fence"),
        ({"hold_ms": -1}, "hold_ms"),
        ({"hold_ms": 14 * DAY_MS + 1}, "hold_ms"),
        ({"handled": ["a"], "stopped": ["a"]}, "names a message twice"),
        ({"handled": ["a"], "deferred": ["a"]}, "names a message twice"),
        ({"failed": [Failure(id="a", error="no")], "deferred": ["a"]}, "names a message twice"),
        ({"dropped": [Failure(id="a", error="no")], "handled": ["a"]}, "names a message twice"),
        ({"handled": [""]}, "message id"),
        ({"next_owner": "B", "ticket": "T"}, "not both"),
        ({"next_owner": ""}, "next_owner"),
        ({"ticket": ""}, "ticket"),
    ],
)
def test_settle_that_is_wrong(changed: dict[str, Any], said: str) -> None:
    """R10: the error names what is wrong, and the key."""
    with pytest.raises(ConfigurationError, match=said) as raised:
        settle(**changed)
    assert raised.value.key == KEY


def test_notes_and_reasons_have_a_limit() -> None:
    """1,024 bytes of each; no note is not the same as an empty one."""
    assert shared.check_note(KEY, None) is None
    assert shared.check_note(KEY, "") == '""'
    assert shared.check_note(KEY, "x" * 1_022) == f'"{"x" * 1_022}"'
    assert (shared.check_reason(KEY, None), shared.check_reason(KEY, "x" * 1_024)) == ("", "x" * 1_024)
    for check, wrong, said in (
        (shared.check_note, "x" * 1_023, "the note of key 'orders/k' is larger than 1,024 bytes"),
        (shared.check_note, object(), "the note of key 'orders/k' is not JSON: message 'note'"),
        (shared.check_reason, "x" * 1_025, "the reason"),
    ):
        with pytest.raises(ConfigurationError, match=said) as raised:
            check(KEY, wrong)  # type: ignore[arg-type] # each takes its own
        assert raised.value.key == KEY


def test_hold_has_a_limit() -> None:
    """14 days, or none."""
    for right in (None, 1, 14 * DAY_MS):
        shared.check_hold(KEY, right)
    for wrong in (0, 14 * DAY_MS + 1):
        with pytest.raises(ConfigurationError, match="for_ms") as raised:
            shared.check_hold(KEY, wrong)
        assert raised.value.key == KEY
    assert (shared.held_until(None, 5), shared.held_until(7, 5)) == (FOREVER_MS, 12)


def test_results_are_kept_as_text() -> None:
    """M17: those of handled messages, if the policy keeps them; an empty text says that one was too large."""
    policy = Policy(result_bytes=5)
    results = {"a": [1], "b": "too large", "d": 2}
    assert shared.kept_results(KEY, ["a", "b", "c"], results, policy) == {"a": "[1]", "b": ""}
    assert shared.kept_results(KEY, ["a"], results, Policy()) == {}
    assert shared.kept_results(KEY, ["a"], None, policy) == {}
    with pytest.raises(MessageInvalid, match="message 'a' of key 'orders/k'") as raised:
        shared.kept_results(KEY, ["a"], {"a": object()}, policy)
    assert raised.value.key == KEY


@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        (lambda: shared.lease_lost("beat", KEY, "A", "B"), {"owner": "A", "holder": "B"}),
        (lambda: shared.in_doubt("beat", KEY, "A", "B"), {}),
        (lambda: shared.stop_in_doubt(KEY), {}),
        (lambda: shared.hold_in_doubt(KEY), {}),
        (lambda: shared.resume_in_doubt(KEY), {}),
        (lambda: shared.mailbox_full(KEY, Policy(), owner="A"), {"owner": "A"}),
        (lambda: shared.redrive_full(KEY, "m1"), {"owner": None}),
    ],
)
def test_error_says_its_key_to_programs(make: Callable[[], IncumbentError], attributes: dict[str, Any]) -> None:
    """And whom it concerns."""
    error = make()
    assert f"key {KEY!r}" in str(error)
    assert vars(error) == {"key": KEY, **attributes}


def test_lost_lease_says_whether_its_owner_has_another() -> None:
    """R3: the same owner string may hold a later tenure."""
    assert "(holder: 'A' in a later tenure)" in str(shared.lease_lost("beat", KEY, "A", "A"))
    assert "(holder: 'B')" in str(shared.lease_lost("beat", KEY, "A", "B"))
    assert "(holder: None)" in str(shared.lease_lost("beat", KEY, "A", None))


STORED = Stored(
    id="m1", body="[1]", claimed_by="S", promised=True, stored_ms=3, attempts=2, due_ms=9, delivered_fence=7, error="no"
)


def test_stored_message_says_all_that_is_stored() -> None:
    """One without a body says why."""
    common: dict[str, Any] = {"id": "m1", "attempt": 2, "stored_at_ms": 3, "last_error": "no", "promised": True}
    assert shared.stored_message(STORED, "[1]") == Message(event=[1], due_at_ms=9, **common)
    gone = Unreadable(event=None, due_at_ms=9, why="its body is gone", **common)
    assert shared.stored_message(STORED, None) == gone
    assert shared.stored_message(STORED, None, why_gone="eaten") == Unreadable(
        event=None, due_at_ms=9, why="eaten", **common
    )
    broken = shared.stored_message(STORED, "[")
    assert isinstance(broken, Unreadable)
    assert (broken.event, broken.due_at_ms, broken.promised) == ("[", 9, True)
    dead = Dead(id="m1", body="[1]", attempts=2, error="no", stored_ms=3, died_ms=8)
    assert shared.dead_message(dead, "[1]") == Message(event=[1], due_at_ms=0, **common)


STATE = KeyState(
    owner="A",
    expires_ms=100,
    since_ms=40,
    fence=7,
    mail=(STORED, Stored(id="m2", body="{}", claimed_by="S", promised=False, stored_ms=4, due_ms=5, delivered_fence=6)),
    ended=Traces((Ended(id="m0", claimed_by="S", at_ms=50, outcome="handled", fence=6, result="[5]"),)),
    origin=Origin(keyspace="orders", target="f:live"),
    quiet_until_ms=70,
    held_until_ms=80,
    held_reason="incident",
    stop="hangs",
    note='"step 3"',
)


def test_status_says_all_that_is_known() -> None:
    """M5, M17, M18: of one that runs, that waits, that waits after its run was cut off, and that has left."""
    waiting: dict[str, Any] = {"state": "waiting", "attempt": 2, "stored_at_ms": 3, "due_at_ms": 9}
    running = {**waiting, "state": "running", "owner": "A", "fence": 7, "note": "step 3"}
    assert shared.status_of(STATE, "m1", 99, 1_000) == Status(**running)
    assert shared.status_of(STATE, "m1", 100, 1_000) == Status(**waiting)
    assert shared.status_of(STATE, "m1", 100, 1_000, 5) == Status(**running)
    assert shared.status_of(STATE, "m2", 60, 1_000) == Status(state="waiting", attempt=0, stored_at_ms=4, due_at_ms=5)
    assert shared.status_of(STATE, "m3", 60, 1_000) == Status(state="unknown")
    left = Status(state="handled", left_at_ms=50, result=[5], result_is="kept")
    assert shared.status_of(STATE, "m0", 60, 1_000) == left
    assert shared.status_left("handled", 50, None) == Status(state="handled", left_at_ms=50, result_is="none")
    assert shared.status_left("handled", 50, "") == Status(state="handled", left_at_ms=50, result_is="too large")


def test_key_says_all_that_is_known() -> None:
    """With its moments, which end each at its own."""
    one, two = (shared.stored_message(each, each.body) for each in STATE.mail)
    bare = [Message(**{**{name: getattr(each, name) for name in FIELDS}, "event": None}) for each in (one, two)]
    live: dict[str, Any] = {"key": KEY, "owner": "A", "fence": 7, "since_ms": 40, "expires_in_ms": 35}
    live |= {"held_until_ms": 80, "held_reason": "incident", "quiet_until_ms": 70, "stop": "hangs", "note": "step 3"}
    live |= {"target": "f:live", "running": (one,), "waiting": (two,)}
    assert shared.key_status(KEY, STATE, (one, two), 65, events=True) == KeyStatus(**live)
    live |= {"running": (bare[0],), "waiting": (bare[1],)}
    assert shared.key_status(KEY, STATE, (one, two), 65, events=False) == KeyStatus(**live)
    live |= {"quiet_until_ms": None, "expires_in_ms": 30}
    assert shared.key_status(KEY, STATE, (one, two), 70, events=False) == KeyStatus(**live)
    live |= {"held_until_ms": None, "held_reason": None, "expires_in_ms": 0}
    assert shared.key_status(KEY, STATE, (one, two), 104, events=False, skew_ms=5) == KeyStatus(**live)
    free = {**live, **dict.fromkeys(("owner", "fence", "stop", "note", "expires_in_ms"))}
    free |= {"running": (), "waiting": tuple(bare)}
    assert shared.key_status(KEY, STATE, (one, two), 100, events=False) == KeyStatus(**free)
    nothing: dict[str, Any] = {**dict.fromkeys(free), "key": KEY, "running": (), "waiting": ()}
    assert shared.key_status(KEY, KeyState(), (), 0, events=False) == KeyStatus(**nothing)


FIELDS = ("id", "event", "attempt", "stored_at_ms", "due_at_ms", "promised", "last_error")


@pytest.mark.parametrize(
    ("changed", "active"),
    [
        ({}, False),
        ({"owner": "A"}, True),
        ({"running": (Message(id="m1", event=None),)}, True),
        ({"waiting": (Message(id="m1", event=None),)}, True),
        ({"held_until_ms": 1}, True),
        ({"quiet_until_ms": 1}, False),
    ],
)
def test_key_is_listed_for_a_reason(changed: dict[str, Any], *, active: bool) -> None:
    """An owner, messages, or a hold."""
    nothing: dict[str, Any] = {**dict.fromkeys(KeyStatus.__annotations__), "key": KEY, "running": (), "waiting": ()}
    assert shared.is_active(KeyStatus(**{**nothing, **changed})) is active
