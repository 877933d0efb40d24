"""The operations that are put between one another's requests: each a few calls by one caller, as in ordinary life.

To add one, write its calls as a function of a ``Caller`` and name it in ``OPERATIONS``. ``needs`` says in which states
it has anything to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from incumbent.contract import Archive, Control, LeaseProvider, Mailbox
from incumbent.errors import LeaseLost, MailboxFull
from incumbent.values import Claim, Claimed, Continued, Debounce, Duplicate, Failure, Message, Origin, Policy, Routed
from tests.interleavings.invariants import History, Intent, Violation

KEY = "interleaved/key"
TTL_MS = 30_000
HOLD_MS = 40_000
BURST = Debounce(quiet_ms=HOLD_MS, max_ms=2 * HOLD_MS)
SMALL: Any = {"amount": 1}
IDS = (*(f"m{number}" for number in range(4)), *(f"new-{name}" for name in "abc"))  # all that are ever stored
LARGE: Any = {"text": "x" * 3_000}  # stands in an item of its own, in DynamoDB
ORIGIN = Origin(keyspace="orders", target="arn:aws:lambda:eu-west-1:123456789012:function:orders")


class Provider(LeaseProvider, Mailbox, Archive, Control, Protocol):
    """All that a store can do."""


@dataclass(slots=True, kw_only=True)
class Caller:
    """Makes calls with one provider, and tells the history what each is for and what was answered.

    ``run`` is the run that the state begins with, if it has an owner: the calls of its heartbeat and its end.
    """

    provider: Provider
    history: History
    policy: Policy
    name: str
    pass_time: Callable[[int], None]
    owner: str = ""
    given: tuple[str, ...] = ()
    fence: int | None = None
    ticket: str | None = None
    intent: Intent = field(default_factory=Intent)

    def claim(self, owner: str, message_id: str | None, event: Any = SMALL, **more: Any) -> Claim:
        """A claim; what was promised by its answer is kept in mind."""
        options: dict[str, Any] = {"origin": ORIGIN, "policy": self.policy, **more}
        self.intent = Intent(
            call="claim",
            owner=owner,
            stores=message_id,
            marks="interrupt" in more,
            supersedes=options["policy"].keep == "latest",
        )
        message = None if message_id is None else Message(id=message_id, event=event)
        answer = self.provider.claim(KEY, owner, TTL_MS, message, **options)
        told = isinstance(answer, Routed) or (isinstance(answer, Duplicate) and answer.state in ("waiting", "running"))
        if message_id is not None and (told or (more.get("as_ticket") and isinstance(answer, Claimed))):
            self.history.accepted(message_id, f"{self.intent} was answered {type(answer).__name__}")
        if isinstance(answer, Claimed) and not more.get("as_ticket"):
            self.run_of(answer)
        return answer

    def run_of(self, answer: Claimed | Continued) -> None:
        """A tenure of this caller's begins."""
        self.owner, self.fence = answer.owner, answer.fence
        self.given = tuple(message.id for message in answer.messages)

    def settle(
        self,
        *,
        handled: Sequence[str] = (),
        failed: Sequence[str] = (),
        dropped: Sequence[str] = (),
        deferred: Sequence[str] = (),
        stopped: Sequence[str] = (),
        **more: Any,
    ) -> Any:
        """A settle of the tenure."""
        self.intent = Intent(
            call="settle",
            owner=self.owner,
            handled=frozenset(handled),
            dropped=frozenset(dropped),
            deferred=frozenset(deferred),
            stopped=frozenset(stopped),
        )
        answer = self.provider.settle(
            KEY,
            self.owner,
            ttl_ms=TTL_MS,
            handled=handled,
            failed=[Failure(id=each, error="it raised") for each in failed],
            dropped=[Failure(id=each, error="it raised") for each in dropped],
            deferred=deferred,
            stopped=stopped,
            fence=self.fence,
            **{"policy": self.policy, **more},
        )
        if isinstance(answer, Continued) and "next_owner" in more:
            self.run_of(answer)
        return answer

    def intending(self, call: str, **more: Any) -> Provider:
        """Return the provider for one other call, which is noted first."""
        self.intent = Intent(call=call, owner=self.owner, **more)
        return self.provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Calls by one caller. ``by_owner``: by the owner that the state begins with, with the provider that it has."""

    name: str
    act: Callable[[Caller], object]
    needs: str = ""
    by_owner: bool = False


def _claim(message_id: str | None, **more: Any) -> Callable[[Caller], object]:
    return lambda caller: caller.claim(f"x-{caller.name}", _named(caller, message_id), **more)


def _named(caller: Caller, message_id: str | None) -> str | None:
    """A new message has an id of its own for each caller."""
    return f"new-{caller.name}" if message_id == "new" else message_id


def _redeem(caller: Caller) -> object:
    return caller.claim(f"x-{caller.name}", None, ticket=caller.ticket)


def _send(caller: Caller) -> object:
    """As ``send`` does whose wake fails: the ticket gives the key up."""
    answer = caller.claim(f"t-{caller.name}", f"new-{caller.name}", as_ticket=True)
    if isinstance(answer, Claimed):
        caller.intending("release").release_lease(KEY, answer.owner)
    return answer


def _run_all(caller: Caller) -> None:
    """Run whatever is due, to its end."""
    caller.claim(f"x-{caller.name}", None)
    while caller.owner:
        following = f"{caller.owner}+"
        answer = caller.settle(handled=caller.given, next_owner=following)
        if not isinstance(answer, Continued):
            caller.owner = ""


def _run_own(caller: Caller) -> None:
    """Run one message: the two requests of an ordinary run."""
    answer = caller.claim(f"x-{caller.name}", f"new-{caller.name}")
    if isinstance(answer, Claimed):
        caller.settle(handled=caller.given)


def _die(caller: Caller) -> None:
    """Own the key, and be heard of no more."""
    caller.claim(f"x-{caller.name}", None)
    caller.pass_time(TTL_MS + 2_000)


def _acquire(caller: Caller) -> None:
    caller.intending("acquire").acquire_lease(KEY, f"x-{caller.name}", TTL_MS)


def _acquire_and_claim(caller: Caller) -> object:
    caller.intending("acquire").acquire_lease(KEY, f"x-{caller.name}", TTL_MS)
    return caller.claim(f"x-{caller.name}", None)


def _take(caller: Caller) -> None:
    taken = caller.intending("take").take(KEY, caller.owner, TTL_MS, fence=caller.fence)
    caller.given = tuple(message.id for message in taken)


def _redrive(caller: Caller) -> None:
    caller.intending("redrive", redrives="m1").redrive(KEY, "m1")


def _purge(caller: Caller) -> None:
    caller.history.to_purge.add("m1")
    if caller.intending("purge").purge(KEY, "m1"):
        caller.history.was_purged("m1")


def _release(caller: Caller) -> None:
    caller.intending("release").release_lease(KEY, caller.owner)


def _transfer(caller: Caller) -> object:
    if caller.intending("transfer").transfer_lease(KEY, caller.owner, f"{caller.owner}+", TTL_MS):
        caller.owner = f"{caller.owner}+"
        return caller.claim(caller.owner, None)
    return None


def _beat(caller: Caller) -> None:
    caller.intending("beat").beat(KEY, caller.owner, TTL_MS, fence=caller.fence)


def _stop(caller: Caller) -> None:
    """Whoever runs."""
    caller.intending("stop", marks=True).stop(KEY, reason="enough")


def _stop_the_run(caller: Caller) -> None:
    """The run that the caller has seen, and no other."""
    fence = caller.intending("look").show(KEY).fence
    if fence is not None:
        caller.intending("stop", marks=True, marks_fence=fence).stop(KEY, fence=fence)


def _hold(caller: Caller) -> None:
    caller.intending("hold").hold(KEY, for_ms=HOLD_MS, reason="it cools down")


def _resume(caller: Caller) -> None:
    caller.intending("resume").resume(KEY)


def _hold_and_resume(caller: Caller) -> object:
    _hold(caller)
    _resume(caller)
    return caller.claim(f"x-{caller.name}", None)


def _cancel(caller: Caller) -> None:
    caller.intending("cancel", cancels="m1").cancel(KEY, "m1", policy=caller.policy)


def _note(caller: Caller) -> None:
    caller.intending("beat").beat(KEY, caller.owner, TTL_MS, note={"step": 3})


def _watch(caller: Caller) -> None:
    caller.intending("watch").watch(KEY, caller.owner)


def _latest(caller: Caller) -> object:
    policy = replace(caller.policy, keep="latest")
    return caller.claim(f"x-{caller.name}", f"new-{caller.name}", policy=policy)


def _keep_result(caller: Caller) -> object:
    policy = replace(caller.policy, result_bytes=100)
    results = {each: {"of": each} for each in caller.given}
    return caller.settle(handled=caller.given, results=results, policy=policy)


def _look(caller: Caller) -> None:
    """All that only reads."""
    provider = caller.intending("look")
    for message in provider.peek(KEY):
        if not message.event:
            raise Violation(f"peek shows {message.id} without its event")
    provider.find(KEY, "m1")
    for letter in provider.dead_letters(None, 10):
        if letter.key != KEY:
            raise Violation(f"a dead letter of {letter.key}")
    list(provider.orphans(10))
    provider.show(KEY, events=True)
    if any(status.key != KEY for status in provider.keys(10)):
        raise Violation("keys lists another key")


OPERATIONS = (
    Operation(name="claim new", act=_claim("new")),
    Operation(name="claim new, large", act=_claim("new", event=LARGE)),
    Operation(name="claim new, unrouted", act=_claim("new", route=False)),
    Operation(name="claim m1", act=_claim("m1", event=SMALL)),
    Operation(name="claim m1 as a ticket", act=_claim("m1", as_ticket=True)),
    Operation(name="claim", act=_claim(None)),
    Operation(name="send", act=_send),
    Operation(name="run own", act=_run_own),
    Operation(name="run all", act=_run_all),
    Operation(name="die", act=_die),
    Operation(name="acquire", act=_acquire),
    Operation(name="acquire and claim", act=_acquire_and_claim),
    Operation(name="redeem", act=_redeem, needs="ticket"),
    Operation(name="redrive", act=_redrive, needs="letter"),
    Operation(name="purge", act=_purge, needs="letter"),
    Operation(name="look", act=_look),
    Operation(name="claim again", act=lambda caller: caller.claim(caller.owner, None), needs="owner", by_owner=True),
    Operation(name="handled", act=lambda caller: caller.settle(handled=caller.given), needs="owner", by_owner=True),
    Operation(
        name="handled, go on",
        act=lambda caller: caller.settle(handled=caller.given, next_owner=f"{caller.owner}+"),
        needs="owner",
        by_owner=True,
    ),
    Operation(
        name="deferred, pass on",
        act=lambda caller: caller.settle(deferred=caller.given, ticket=f"t-{caller.owner}"),
        needs="owner",
        by_owner=True,
    ),
    Operation(name="failed", act=lambda caller: caller.settle(failed=caller.given), needs="owner", by_owner=True),
    Operation(
        name="failed, go on",
        act=lambda caller: caller.settle(failed=caller.given, next_owner=f"{caller.owner}+"),
        needs="owner",
        by_owner=True,
    ),
    Operation(name="dropped", act=lambda caller: caller.settle(dropped=caller.given), needs="owner", by_owner=True),
    Operation(name="release", act=_release, needs="owner", by_owner=True),
    Operation(name="transfer", act=_transfer, needs="owner", by_owner=True),
    Operation(name="take", act=_take, needs="owner", by_owner=True),
    Operation(name="beat", act=_beat, needs="owner", by_owner=True),
    Operation(name="stop", act=_stop),
    Operation(name="stop the run", act=_stop_the_run),
    Operation(name="hold", act=_hold),
    Operation(name="resume", act=_resume, needs="hold"),
    Operation(name="hold and resume", act=_hold_and_resume),
    Operation(name="cancel", act=_cancel),
    Operation(name="claim for later", act=_claim("new", after_ms=HOLD_MS)),
    Operation(name="send for later", act=_claim("new", after_ms=HOLD_MS, as_ticket=True)),
    Operation(name="claim when quiet", act=_claim("new", debounce=BURST)),
    Operation(name="interrupt", act=_claim("new", interrupt=True)),
    Operation(name="latest", act=_latest),
    Operation(name="stopped", act=lambda caller: caller.settle(stopped=caller.given), needs="owner", by_owner=True),
    Operation(
        name="handled, hold",
        act=lambda caller: caller.settle(handled=caller.given, next_owner=f"{caller.owner}+", hold_ms=HOLD_MS),
        needs="owner",
        by_owner=True,
    ),
    Operation(name="handled, with a result", act=_keep_result, needs="owner", by_owner=True),
    Operation(name="note", act=_note, needs="owner", by_owner=True),
    Operation(name="watch", act=_watch, needs="owner", by_owner=True),
)

# What an operation may raise: it came too late, or there was no room.
EXPECTED = (LeaseLost, MailboxFull)
