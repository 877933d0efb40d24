"""The states in which a key is when operations meet: each made by calls, as it would come about."""

from collections.abc import Callable
from dataclasses import dataclass

from incumbent.values import Policy
from tests.interleavings.operations import BURST, HOLD_MS, KEY, LARGE, SMALL, TTL_MS, Caller

PAUSE_MS = 60_000
POLICY = Policy(max_attempts=2, max_pending=4, pauses_ms=(PAUSE_MS,))
BLOCKS = Policy(max_attempts=2, max_pending=4, pauses_ms=(PAUSE_MS,), on_error="block")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state: who makes it, and what there is in it for operations (their ``needs``)."""

    name: str
    make: Callable[[Caller], object]
    has: frozenset[str] = frozenset()
    policy: Policy = POLICY


def _nothing(caller: Caller) -> None:
    """The key was never heard of."""


def _run(caller: Caller, message_id: str = "m0", event: object = SMALL) -> None:
    """An owner runs a message."""
    caller.claim("o", message_id, event)


def _route(caller: Caller, *ids: str, event: object = SMALL) -> None:
    """Messages come while there is an owner."""
    owner, given = caller.owner, caller.given
    for message_id in ids:
        caller.claim(f"r-{message_id}", message_id, event)
    caller.owner, caller.given = owner, given


def _expire(caller: Caller) -> None:
    caller.pass_time(TTL_MS + 2_000)


def _free(caller: Caller) -> None:
    caller.intending("release").release_lease(KEY, caller.owner)
    caller.owner, caller.given = "", ()


def _running(caller: Caller) -> None:
    _run(caller)
    _route(caller, "m1")


def _waiting(caller: Caller) -> None:
    _running(caller)
    caller.settle(handled=["m0"])
    caller.owner, caller.given = "", ()


def _expired(caller: Caller) -> None:
    _running(caller)
    _expire(caller)


def _fail_m1(caller: Caller) -> None:
    """m1 has failed once, and pauses."""
    _waiting(caller)
    caller.claim("f", None)
    caller.settle(failed=["m1"])
    caller.owner, caller.given = "", ()


def _running_beside_a_pause(caller: Caller) -> None:
    _fail_m1(caller)
    _run(caller, "m2")


def _out_of_attempts(caller: Caller) -> None:
    """m1 was given to two owners that died."""
    _waiting(caller)
    for owner in ("d1", "d2"):
        caller.claim(owner, None)
        _expire(caller)
    caller.owner, caller.given = "", ()


def _acquired(caller: Caller, make: Callable[[Caller], object]) -> None:
    """An owner has taken the lease alone, and looked at no message yet."""
    make(caller)
    caller.fence = caller.intending("acquire").acquire_lease(KEY, "o", TTL_MS).fence
    caller.owner = "o"


def _ticket(caller: Caller) -> None:
    caller.claim("t", "m1", as_ticket=True)
    caller.ticket = "t"


def _dead(caller: Caller) -> None:
    _fail_m1(caller)
    caller.pass_time(PAUSE_MS)
    caller.claim("f2", None)
    caller.settle(failed=["m1"])
    caller.owner, caller.given = "", ()


def _large_and_dead(caller: Caller) -> None:
    _run(caller)
    _route(caller, "m1", event=LARGE)
    caller.settle(handled=["m0"])
    caller.claim("f", None)
    caller.settle(failed=["m1"])
    caller.pass_time(PAUSE_MS)
    caller.claim("f2", None)
    caller.settle(failed=["m1"])
    caller.owner, caller.given = "", ()


def _letter_beside_a_pause(caller: Caller) -> None:
    _dead(caller)
    caller.claim("f3", "m2")
    caller.settle(failed=["m2"])  # it is not promised, but this call does not tell its source
    caller.owner, caller.given = "", ()


def _running_beside_a_letter(caller: Caller) -> None:
    _dead(caller)
    _run(caller, "m2")


def _large(caller: Caller) -> None:
    _run(caller, event=LARGE)
    _route(caller, "m1", event=LARGE)


def _full(caller: Caller) -> None:
    _run(caller)
    _route(caller, "m1", "m2", "m3")


def _full_and_free(caller: Caller) -> None:
    _full(caller)
    _free(caller)


def _last_attempt(caller: Caller) -> None:
    """An owner runs m1 for the last time; if it fails, it is dead."""
    _fail_m1(caller)
    caller.pass_time(PAUSE_MS)
    caller.claim("o", None)


def _blocked(caller: Caller) -> None:
    """m1 pauses, and m2 waits behind it."""
    _fail_m1(caller)
    _route(caller, "m2")


def _held(caller: Caller, make: Callable[[Caller], object]) -> None:
    make(caller)
    caller.intending("hold").hold(KEY, for_ms=HOLD_MS)


def _hold_is_over(caller: Caller) -> None:
    _held(caller, _waiting)
    caller.pass_time(HOLD_MS)


def _quiet(caller: Caller) -> None:
    """A burst has begun."""
    caller.claim("q", "m1", debounce=BURST)


def _for_later(caller: Caller) -> None:
    caller.claim("l", "m1", as_ticket=True, after_ms=HOLD_MS)


def _running_beside_one_for_later(caller: Caller) -> None:
    _for_later(caller)
    _run(caller)
    _route(caller, "m2")


def _marked(caller: Caller) -> None:
    _running(caller)
    caller.intending("stop", marks=True).stop(KEY)


OWNER, LETTER, TICKET = frozenset({"owner"}), frozenset({"letter"}), frozenset({"ticket"})
HOLD = frozenset({"hold"})

STATES = (
    State(name="empty", make=_nothing),
    State(name="waiting", make=_waiting),
    State(name="running alone", make=_run, has=OWNER),
    State(name="running", make=_running, has=OWNER),
    State(name="expired owner", make=_expired, has=OWNER),
    State(name="paused", make=_fail_m1),
    State(name="running beside a pause", make=_running_beside_a_pause, has=OWNER),
    State(name="out of attempts", make=_out_of_attempts),
    State(name="acquired, empty", make=lambda caller: _acquired(caller, _nothing), has=OWNER),
    State(name="acquired, waiting", make=lambda caller: _acquired(caller, _waiting), has=OWNER),
    State(name="acquired, out of attempts", make=lambda caller: _acquired(caller, _out_of_attempts), has=OWNER),
    State(name="acquired, paused", make=lambda caller: _acquired(caller, _fail_m1), has=OWNER),
    State(name="last attempt", make=_last_attempt, has=OWNER),
    State(name="ticket", make=_ticket, has=TICKET),
    State(name="large bodies", make=_large, has=OWNER),
    State(name="dead letter", make=_dead, has=LETTER),
    State(name="large dead letter", make=_large_and_dead, has=LETTER),
    State(name="letter beside a pause", make=_letter_beside_a_pause, has=LETTER),
    State(name="running beside a letter", make=_running_beside_a_letter, has=OWNER | LETTER),
    State(name="full", make=_full, has=OWNER),
    State(name="full and free", make=_full_and_free),
    State(name="held, waiting", make=lambda caller: _held(caller, _waiting), has=HOLD),
    State(name="held, running", make=lambda caller: _held(caller, _running), has=HOLD | OWNER),
    State(name="held, ticket", make=lambda caller: _held(caller, _ticket), has=HOLD | TICKET),
    State(name="held, empty", make=lambda caller: _held(caller, _nothing), has=HOLD),
    State(name="hold that is over", make=_hold_is_over),
    State(name="quiet", make=_quiet),
    State(name="for later", make=_for_later),
    State(name="running beside one for later", make=_running_beside_one_for_later, has=OWNER),
    State(name="marked", make=_marked, has=OWNER),
    State(name="blocked", make=_blocked, policy=BLOCKS),
    State(name="blocked, acquired", make=lambda caller: _acquired(caller, _blocked), has=OWNER, policy=BLOCKS),
)
