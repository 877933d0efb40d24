"""Every call of the contract, tried on a key of the doctor's own."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor.check import Check, is_refused, text_of
from incumbent.errors import ListIncomplete, StoredFormatUnknown
from incumbent.keyspaces import split_key
from incumbent.retry import search_until
from incumbent.validation import shown
from incumbent.values import Claimed, Failure, Message, Origin, Policy, Routed

T = TypeVar("T")

_ONCE = Policy(max_attempts=1)
_LARGE = "x" * 4_000  # kept as an item of its own in a table
_LOOKED_AT = 1_000
_SEARCH_MS = 10_000  # for the keys that wait
_LONG_MS = 10 * 60_000  # as the alarm OldestWaitingMessageAlarm counts


class UnexpectedAnswer(Exception):
    """A call returned what the calls before it do not lead to."""


class Trial:
    """Calls on one key: those that worked, and a check for each of the others."""

    def __init__(self) -> None:
        """Begin without a call."""
        self.worked: list[str] = []
        self.others: list[Check] = []

    def make(self, name: str, call: Callable[[], T], *, wanted: Callable[[T], object] = lambda _: True) -> T | None:
        """Make a call and return its answer, or ``None`` if it raises or does not answer what is ``wanted``."""
        try:
            said = call()
            if not wanted(said):
                raise UnexpectedAnswer(f"it answered {shown(said)}")  # noqa: TRY301 - reported like any error
        except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
            advice = "allow what it needs (docs/lambda.md)" if is_refused(error) else "see the error"
            self.others.append(Check.failed(name, text_of(error), advice))
            return None
        self.worked.append(name)
        return said


def reach(store: Any, key: str, *, of_functions: bool) -> tuple[Check, Exception | None]:
    """Make one call. Return the check, and what the store or its client raised.

    ``of_functions``: the caller has the rights of a function that runs messages; else the sweeper's call is made.
    """

    def call() -> None:
        if of_functions:
            store.get_lease_owner(key)
            return
        with suppress(StoredFormatUnknown):
            list(islice(store.orphans(1), 1))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a provider warns of has a check here
            call()  # connects
        began = SYSTEM_CLOCK.now()
        call()
    except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
        return Check.failed("store", text_of(error), "no call was tried"), error
    ms = began.until(SYSTEM_CLOCK.now())
    return Check.ok("store", f"{type(store).__name__} answers after {ms:,} ms"), None


def try_calls(store: Any, key: str, ttl_ms: int, *, of_functions: bool, one_login: bool) -> Iterator[Check]:
    """Make every call on ``key``; without the rights of functions, only the sweeper's.

    ``one_login``: a caller that may make one call is meant to make all, those for dead letters included.
    """
    if of_functions:
        trial = Trial()
        _lease_a_key(trial, store, key, ttl_ms)
        _run_messages(trial, store, key, ttl_ms, one_login=one_login)
        if trial.worked:
            yield Check.ok("calls", f"{', '.join(trial.worked)} work on a key of the doctor's own")
        yield from trial.others
    else:
        found = "a sweeper does not have the functions' rights on the table"
        advice = "run incumbent doctor --function NAME at a terminal, which looks at the rights of the function's role"
        yield Check.unchecked("calls", found, advice)
    yield from _waiting(store, one_login=one_login)


def _lease_a_key(trial: Trial, store: Any, key: str, ttl_ms: int) -> None:
    trial.make("acquire", lambda: store.acquire_lease(key, "a", ttl_ms), wanted=lambda said: said.acquired)
    trial.make("transfer", lambda: store.transfer_lease(key, "a", "b", ttl_ms), wanted=bool)
    trial.make("renew", lambda: store.renew_lease(key, "b", ttl_ms), wanted=bool)
    trial.make("release", lambda: store.release_lease(key, "b"))


def _run_messages(trial: Trial, store: Any, key: str, ttl_ms: int, *, one_login: bool) -> None:
    """Run a large message, take a small one, and let that die if the caller may look after dead letters."""
    origin = Origin(keyspace=split_key(key)[0])

    def claim(owner: str, message: Message | None) -> Any:
        return store.claim(key, owner, ttl_ms, message, origin=origin, policy=_ONCE)

    def settle(owner: str, fence: int, **outcome: Any) -> Any:
        return store.settle(key, owner, ttl_ms=ttl_ms, fence=fence, policy=_ONCE, **outcome)

    own, other = Message(id="m1", event=_LARGE), Message(id="m2", event={})
    claimed = trial.make("claim", lambda: claim("c", own), wanted=lambda said: isinstance(said, Claimed))
    if claimed is None:
        return
    fence = claimed.fence
    trial.make("route", lambda: claim("d", other), wanted=lambda said: isinstance(said, Routed))
    trial.make("beat", lambda: store.beat(key, "c", ttl_ms, fence=fence))
    trial.make(
        "take",
        lambda: store.take(key, "c", ttl_ms, have=["m1"], fence=fence),
        wanted=lambda said: [each.id for each in said] == ["m2"],
    )
    trial.make("peek", lambda: store.peek(key))
    trial.make("find", lambda: store.find(key, "m1", policy=_ONCE), wanted=lambda said: said.state == "running")
    if not _may_see_letters(trial, store, key, one_login=one_login):
        trial.make("settle", lambda: settle("c", fence, handled=["m1", "m2"]))
        return
    failure = Failure(id="m2", error="incumbent doctor", final=True)
    trial.make("settle", lambda: settle("c", fence, handled=["m1"], failed=[failure]))
    trial.make("redrive", lambda: store.redrive(key, "m2"), wanted=bool)
    again = trial.make("claim again", lambda: claim("e", None), wanted=lambda said: isinstance(said, Claimed))
    if again is not None:
        trial.make("fail", lambda: settle("e", again.fence, failed=[failure]))
    trial.make("purge", lambda: store.purge(key, "m2"), wanted=bool)


def _may_see_letters(trial: Trial, store: Any, key: str, *, one_login: bool) -> bool:
    """Return whether the caller may list dead letters, for which functions need no right on a table."""
    try:
        list(store.dead_letters(key, 1))
    except Exception as error:  # noqa: BLE001 - as above
        if is_refused(error) and not one_login:
            found = "this caller lacks dynamodb:Query, which incumbent dead needs"
            trial.others.append(Check.unchecked("dead letters", found, "allow it on the table to operators"))
        else:
            trial.others.append(Check.failed("dead letters", text_of(error), "see the error"))
        return False
    trial.worked.append("dead letters")
    return True


def _waiting(store: Any, *, one_login: bool) -> Iterator[Check]:
    """Look at the keys that wait for a sweeper: how many, of which keyspaces, and whether they can be read."""
    keyspaces = Counter[str]()
    oldest_ms = 0
    unread: StoredFormatUnknown | None = None
    try:
        with search_until(SYSTEM_CLOCK.now().plus(_SEARCH_MS)):
            for orphan in store.orphans(_LOOKED_AT):
                keyspaces[split_key(orphan.key)[0]] += 1
                oldest_ms = max(oldest_ms, orphan.age_ms)
    except StoredFormatUnknown as error:
        unread = error
    except Exception as error:  # noqa: BLE001 - as above
        if is_refused(error) and not one_login:
            found = f"this caller lacks a right of sweepers: {text_of(error)}"
            advice = "allow dynamodb:Query on the index orphans and dynamodb:BatchGetItem on the table to sweepers"
            yield Check.unchecked("waiting keys", found, advice)
        else:
            misses = "misses these keys, too" if isinstance(error, ListIncomplete) else "finds nothing either"
            yield Check.failed("waiting keys", text_of(error), f"a sweeper {misses}: see the error")
        return
    if unread is not None:
        found = f"not every record can be read: {text_of(unread)}"
        yield Check.failed("formats", found, "deploy the release that wrote them, or a newer one")
    else:
        yield Check.ok("formats", "every key that waits can be read")
    named = ", ".join(f"{name or 'none'} ({number:,})" for name, number in sorted(keyspaces.items()))
    found = f"{keyspaces.total():,} for the sweeper" + (f", by keyspace: {named}" if named else "")
    if oldest_ms > _LONG_MS:
        yield Check.warning(
            "waiting keys", f"{found}, the oldest for {oldest_ms // 1_000:,} s", "is the sweeper running?"
        )
    else:
        yield Check.ok("waiting keys", found)
