"""Every call of the contract, tried on a key of the doctor's own."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor.check import Check, is_refused, text_of
from incumbent.errors import StoredFormatUnknown
from incumbent.keys import split_key
from incumbent.retry import search_until
from incumbent.validation import shown
from incumbent.values import Failure, Message, Origin, Policy

_ONCE = Policy(max_attempts=1)
_LARGE = "x" * 4_000  # kept as an item of its own in a table
_LOOKED_AT = 1_000
_SEARCH_MS = 10_000  # for the keys that wait
_LONG_MS = 10 * 60_000  # as the alarm OldestWaitingMessageAlarm counts


class UnexpectedAnswer(Exception):
    """A call returned what cannot be."""


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
        yield from _as_function(store, key, ttl_ms, one_login=one_login)
    else:
        found = "a sweeper has not the rights of functions on the table"
        advice = "run incumbent doctor --function NAME at a terminal, which looks at the rights of the function's role"
        yield Check.unchecked("calls", found, advice)
    yield from _waiting(store, one_login=one_login)


def _as_function(store: Any, key: str, ttl_ms: int, *, one_login: bool) -> Iterator[Check]:
    """Make the calls of runs, of ``send`` and of ``incumbent dead``."""
    tried: list[str] = []
    failed: list[Check] = []

    def attempt(name: str, call: Callable[[], Any], *, wanted: Callable[[Any], object] = lambda _: True) -> Any:
        """Make one call; note whether it failed. A call whose key is not in the expected state has failed as well."""
        try:
            said = call()
            if not wanted(said):
                raise UnexpectedAnswer(f"it answered {shown(said)}, which is not what these calls lead to")  # noqa: TRY301 - reported like any error
        except Exception as error:  # noqa: BLE001 - as above
            advice = "allow what it needs (docs/lambda.md)" if is_refused(error) else "see the error"
            failed.append(Check.failed(name, text_of(error), advice))
            return None
        tried.append(name)
        return said

    origin = Origin(keyspace=key.partition("/")[0])
    attempt("acquire", lambda: store.acquire_lease(key, "a", ttl_ms), wanted=lambda said: said.acquired)
    attempt("transfer", lambda: store.transfer_lease(key, "a", "b", ttl_ms), wanted=bool)
    attempt("renew", lambda: store.renew_lease(key, "b", ttl_ms), wanted=bool)
    attempt("release", lambda: store.release_lease(key, "b"))
    own, other = Message(id="m1", event=_LARGE), Message(id="m2", event={})
    claimed = attempt(
        "claim",
        lambda: store.claim(key, "c", ttl_ms, own, origin=origin, policy=_ONCE),
        wanted=lambda said: type(said).__name__ == "Claimed",
    )
    if claimed is not None:
        attempt(
            "route",
            lambda: store.claim(key, "d", ttl_ms, other, origin=origin, policy=_ONCE),
            wanted=lambda said: type(said).__name__ == "Routed",
        )
        attempt("beat", lambda: store.beat(key, "c", ttl_ms))
        attempt(
            "take",
            lambda: store.take(key, "c", ttl_ms, have=["m1"]),
            wanted=lambda said: [each.id for each in said] == ["m2"],
        )
        attempt("peek", lambda: store.peek(key))
        attempt("find", lambda: store.find(key, "m1", policy=_ONCE), wanted=lambda said: said == "running")
        letters = _letters(store, key, tried, failed, one_login=one_login)
        ended: dict[str, Any] = {"failed": [Failure(id="m2", error="incumbent doctor")]} if letters else {}
        handled = ["m1"] if letters else ["m1", "m2"]
        attempt("settle", lambda: store.settle(key, "c", ttl_ms=ttl_ms, handled=handled, policy=_ONCE, **ended))
        if letters:
            attempt("redrive", lambda: store.redrive(key, "m2"), wanted=bool)
            attempt("claim again", lambda: store.claim(key, "e", ttl_ms, None, policy=_ONCE))
            failure = Failure(id="m2", error="incumbent doctor", final=True)
            attempt("fail", lambda: store.settle(key, "e", ttl_ms=ttl_ms, failed=[failure], policy=_ONCE))
            attempt("purge", lambda: store.purge(key, "m2"), wanted=bool)
    if tried:
        yield Check.ok("calls", f"{', '.join(tried)} work on a key of the doctor's own")
    yield from failed


def _letters(store: Any, key: str, tried: list[str], failed: list[Check], *, one_login: bool) -> bool:
    """Return whether the caller may look after dead letters, which functions need not do on a table."""
    try:
        list(store.dead_letters(key, 1))
    except Exception as error:  # noqa: BLE001 - as above
        if is_refused(error) and not one_login:
            found = "this caller may not list dead letters, as incumbent dead does"
            failed.append(Check.unchecked("dead letters", found, "allow dynamodb:Query on the table to operators"))
        else:
            failed.append(Check.failed("dead letters", text_of(error), "see the error"))
        return False
    tried.append("dead letters")
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
            found = f"this caller may not search as a sweeper does: {text_of(error)}"
            advice = "allow dynamodb:Query on the index orphans and dynamodb:BatchGetItem on the table to sweepers"
            yield Check.unchecked("waiting keys", found, advice)
        else:
            yield Check.failed("waiting keys", text_of(error), "a sweeper finds nothing so: see the error")
        return
    if unread is not None:
        found = f"{max(1, len(unread.skipped)):,} records cannot be read: {text_of(unread)}"
        yield Check.failed("formats", found, "deploy the release that wrote them, or a newer one")
    else:
        yield Check.ok("formats", "every key that waits can be read")
    named = ", ".join(f"{name or 'none'} ({number:,})" for name, number in sorted(keyspaces.items()))
    found = f"{keyspaces.total():,} keys wait for the sweeper" + (f", in the keyspaces {named}" if named else "")
    if oldest_ms > _LONG_MS:
        yield Check.warning(
            "waiting keys", f"{found}, the oldest for {oldest_ms // 1_000:,} s", "is the sweeper running?"
        )
    else:
        yield Check.ok("waiting keys", found)
