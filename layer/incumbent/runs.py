"""One invocation's work on one key: claim, run, settle, and go on or hand over. No AWS and no store in here.

::

    claim ──Routed/Duplicate/Busy/Idle──> answer at once
      │ Claimed
      v
    heartbeat, handler for the oldest due message      <────────────┐
      │                                                             │ another (new owner, no gap)
      v                                                             │
    heartbeat joined, settle ── time for another? ──────────────────┤
      │ nothing due                  │ no                           │
      v                              v                              │
    key free                     ticket, waker ── it failed, and there is time after all

A caller who waits (HTTP) gets its own message run and what else waits handed over. Without a waker the rest is run in
place.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeAlias

from incumbent.clock import Clock, Moment, deadline
from incumbent.contract import LeaseProvider, Mailbox, is_mailbox
from incumbent.errors import (
    ConfigurationError,
    IncumbentError,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
    RetryLater,
)
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.lease import _CURRENT, Lease
from incumbent.observe import LOG, Fact, FactName, Observer, collect, guarded, leave_untraced, tell
from incumbent.owners import new_owner, new_ticket
from incumbent.validation import MAX_TTL_MS, at_any_depth, check_ms, is_plain, shown
from incumbent.values import (
    Busy,
    Claimed,
    Continued,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Policy,
    Released,
    Routed,
)
from incumbent.wakers import Wake, Waker, send_wake

MIN_TTL_MS = 100  # shorter ones end before a run can begin; what says 30 means seconds
MAX_ERROR = 500  # characters of an exception kept with its message


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How runs go; checked when a handler is decorated. Durations are whole milliseconds.

    ``stop_before_ms`` and ``drain_ms`` may be ``None``: 5,000 but at most a quarter of what the invocation has; and
    as long as there is time for another run.
    """

    ttl_ms: int = 30_000
    renew_every_ms: int | None = None
    when_busy: Literal["enqueue", "reject", "skip"] = "enqueue"
    deliver: Literal["one", "all"] = "one"
    gather_ms: int = 0
    drain_ms: int | None = None
    stop_before_ms: int | None = None
    max_hops: int = 100
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        """Refuse timings and words that cannot work, each with a message of its own."""
        given: object = self.policy
        if not isinstance(given, Policy):
            raise ConfigurationError(f"policy is {shown(given)}: give a Policy(...)")
        check_ms("ttl_ms", self.ttl_ms, MIN_TTL_MS, MAX_TTL_MS)
        if self.renew_every_ms is not None:
            check_ms("renew_every_ms", self.renew_every_ms, 1, MAX_TTL_MS)
            if self.renew_every_ms * 2 > self.ttl_ms:
                raise ConfigurationError(
                    f"renew_every_ms is {self.renew_every_ms:,}, more than half of ttl_ms ({self.ttl_ms:,}): one "
                    "renewal that fails would lose the lease"
                )
        check_ms("gather_ms", self.gather_ms, 0, MAX_TTL_MS)
        if self.gather_ms and self.deliver != "all":
            raise ConfigurationError("gather_ms collects messages for one run: it needs deliver='all'")
        if self.gather_ms * 3 > self.ttl_ms:
            raise ConfigurationError(
                f"gather_ms is {self.gather_ms:,}, more than a third of ttl_ms ({self.ttl_ms:,}): the lease is not "
                "renewed while messages gather"
            )
        if self.drain_ms is not None:
            check_ms("drain_ms", self.drain_ms, 0, MAX_TTL_MS)
        if self.stop_before_ms is not None:
            check_ms("stop_before_ms", self.stop_before_ms, 0, MAX_TTL_MS)
        check_ms("max_hops", self.max_hops, 0, 1_000_000)
        if self.when_busy not in ("enqueue", "reject", "skip"):
            raise ConfigurationError(f"when_busy is {self.when_busy!r}; allowed are 'enqueue', 'reject' and 'skip'")
        if self.deliver not in ("one", "all"):
            raise ConfigurationError(f"deliver is {self.deliver!r}; allowed are 'one' and 'all'")

    @property
    def beat_ms(self) -> int:
        """How often to renew: a third of the ttl unless set."""
        return self.renew_every_ms or self.ttl_ms // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The input of one invocation: its key, and its own message or the ticket with which it was woken.

    ``full_key`` is the provider's, with its keyspace; ``key`` is the user's. ``message`` is the stored form of the
    event, ``event`` what this invocation's run gets. ``said`` holds the key and id for the answer. ``synchronous``: a
    caller waits for the answer. ``comes_again``: after a failure the source delivers the event again under the same id.
    """

    full_key: str
    key: str
    message: Message | None
    said: Mapping[str, str] = field(default_factory=dict)
    event: Any = None
    ticket: str | None = None
    hops: int = 0
    origin: Origin
    ends: Moment | None = None
    synchronous: bool = False
    comes_again: bool = False

    def new_owner(self) -> str:
        """Make the owner string of one run."""
        return new_owner(self.origin.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """This invocation's message ran; ``result`` is what it returned. A woken invocation has no result."""

    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """This invocation's message is promised and runs later: it deferred itself, or older ones go first."""

    reason: Literal["deferred", "queued"]


Outcome: TypeAlias = Completed | Postponed | Routed | Duplicate | Busy | Idle
Work: TypeAlias = Callable[[Message, Lease], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tenure:
    owner: str
    fence: int
    messages: tuple[Message, ...]
    waiting: int
    deadline: Moment


@dataclass(slots=True)
class _Run:
    """The outcome of one run of the handler."""

    lease: Lease
    heartbeat: Heartbeat
    result: Any = None
    error: BaseException | None = None
    took_ms: int = 0

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.lease.held]


class Runner:
    """Serves calls with one provider and one set of settings. Keeps nothing between calls."""

    def __init__(
        self,
        provider: LeaseProvider,
        settings: Settings,
        *,
        clock: Clock,
        waker: Waker | None = None,
        observers: Sequence[Observer] = (),
        on_result: Callable[[Message, Any], object] | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        on_dead_letter: Callable[[Message], object] | None = None,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self.provider = provider
        self.mailbox: Mailbox | None = provider if is_mailbox(provider) else None
        self.settings = settings
        self.clock = clock
        self.waker = waker
        self.observers = observers
        self.on_result = on_result
        self.on_lost = on_lost
        self.on_dead_letter = on_dead_letter
        self.thread = thread

    def serve(self, call: Call, work: Work) -> Outcome:
        """Acquire the key or route the message, and run the due messages.

        Raises what the run of this invocation's message raised, ``LeaseLost`` when a run lost its lease, and the errors
        of the store's calls.
        """
        stay = _Invocation(self, call, work)
        try:
            return stay.serve()
        except LeaseUnavailable as error:
            stay.tell("store_error", error=describe(error))
            raise
        except (MailboxFull, MessageInvalid, MessageTooLarge) as error:
            stay.tell("refused", error=describe(error))
            raise
        finally:
            stay.flush()


class _Invocation:
    """One invocation's work on a key, from the claim to the answer."""

    def __init__(self, runner: Runner, call: Call, work: Work) -> None:
        self.runner = runner
        self.settings = runner.settings
        self.clock = runner.clock
        self.call = call
        self.work = work
        self.observers, self.collected = collect(runner.observers)
        self.process = os.getpid()
        self.began = runner.clock.now()
        self.longest_ms = 0
        self.own: Completed | Postponed | None = None
        self.own_is_promised = False
        self.own_is_settled = False
        self.has_made_room = False
        self.own_error: BaseException | None = None
        self.may_wake = runner.waker is not None

    # --- the way through

    def serve(self) -> Outcome:
        """Follow the diagram at the top of this module."""
        claim = self.claim()
        while isinstance(claim, _Tenure):
            self.run_until_settled(claim)
            if self.own_error is not None:
                raise self.own_error
            if self.own is not None:
                return self.own
            if self.call.message is None:
                return Completed()
            if self.own_is_promised:
                return Postponed(reason="queued")
            # The key is free, and this invocation's message waits behind a pause: a claim now promises it (M3).
            claim = self.claim()
        return claim

    def run_until_settled(self, tenure: _Tenure | None) -> None:
        """Run one message after the other, as long as this invocation gets a next one."""
        while tenure is not None:
            if self.should_hand_over_first(tenure):
                behind = [message.id for message in tenure.messages]
                tenure = self.settle(tenure, deferred=behind, another=False)
                continue
            run = self.run(tenure)
            try:
                tenure = self.finish_run(tenure, run)
            except LeaseUnavailable as error:
                if not self.own_is_settled:
                    raise
                # Another invocation's message, which is still stored. The own message is settled, and is the answer.
                self.tell("store_error", owner=run.lease.owner, error=describe(error))
                return

    def should_hand_over_first(self, tenure: _Tenure) -> bool:
        """Return whether a caller waits for the answer while older messages go first and can be handed over."""
        return (
            self.caller_waits()
            and self.own_is_open()
            and self.can_wake()
            and not self.has_own([message.id for message in tenure.messages])
        )

    def claim(self) -> _Tenure | Routed | Duplicate | Busy | Idle:
        """Acquire or route."""
        call, owner, settings = self.call, self.call.new_owner(), self.settings
        mailbox = self.runner.mailbox
        if mailbox is None:
            return self.acquire(owner)
        try:
            answer = mailbox.claim(
                call.full_key,
                owner,
                settings.ttl_ms,
                call.message,
                ticket=call.ticket,
                route=settings.when_busy == "enqueue",
                origin=call.origin,
                policy=settings.policy,
            )
        except MailboxFull as full:
            if full.owner is not None or call.message is None or self.has_made_room:
                raise
            # The key is free, so no owner makes room: this invocation does, as if it had been woken (M7: limits).
            self.has_made_room = True
            _Invocation(self.runner, replace(call, message=None, ticket=None), self.work).serve()
            return self.claim()
        if isinstance(answer, Claimed | Duplicate | Idle):
            self.report_dead(answer.dead_lettered)
        match answer:
            case Claimed():
                self.tell(
                    "claimed",
                    owner=owner,
                    fence=answer.fence,
                    waiting=answer.waiting,
                    message_ids=tuple(message.id for message in answer.messages),
                )
                return self.tenure(answer)
            case Routed():
                self.tell("routed", holder=answer.owner, waiting=answer.waiting)
            case Duplicate():
                self.tell("duplicate", holder=answer.owner, outcome=answer.state)
            case Busy():
                self.tell("busy", holder=answer.owner)
            case Idle():
                self.tell("idle")
        return answer

    def acquire(self, owner: str) -> _Tenure | Busy | Idle:
        """Claim from a provider that only leases: the only message is this invocation's."""
        if self.call.message is None:
            return Idle()
        sent = self.clock.now()
        answer = self.runner.provider.acquire_lease(self.call.full_key, owner, self.settings.ttl_ms)
        if not answer.acquired:
            self.tell("busy", holder=answer.owner)
            return Busy(owner=answer.owner or "", expires_in_ms=getattr(answer, "expires_in_ms", None))
        fence = getattr(answer, "fence", None) or 0
        self.tell("claimed", owner=owner, fence=fence, message_ids=(self.call.message.id,))
        return _Tenure(
            owner=owner,
            fence=fence,
            messages=(self.started(replace(self.call.message, attempt=1, stored_at_ms=sent.wall_ms)),),
            waiting=0,
            deadline=getattr(answer, "deadline", None) or deadline(sent, self.settings.ttl_ms),
        )

    def run(self, tenure: _Tenure) -> _Run:
        """Run the handler once, under a heartbeat that is over before this returns."""
        lease, heartbeat = self.lease(self.gather(tenure))
        run = _Run(lease, heartbeat)
        began = self.clock.now()
        self.tell(
            "run_started",
            owner=tenure.owner,
            fence=tenure.fence,
            attempt=lease.attempt,
            message_ids=tuple(run.ids),
            waited_ms=max(0, began.wall_ms - lease.messages[0].stored_at_ms),
        )
        current = _CURRENT.set(lease)
        try:
            if not heartbeat.start():
                self.flush()
            lease.assert_held()  # a claim that was answered too late starts nothing (R12)
            run.result = self.work(lease.messages[0], lease)
        except BaseException as error:  # noqa: BLE001 - also the handler's own sys.exit must not leave the key held
            run.error = error
        finally:
            heartbeat.stop()
            lease.end()
            _CURRENT.reset(current)
        if heartbeat.is_copy:
            self.end_child(run)
        run.took_ms = began.until(self.clock.now())
        self.longest_ms = max(self.longest_ms, run.took_ms)
        return run

    def end_child(self, run: _Run) -> NoReturn:
        """End a process that a handler has forked and let return: only the parent settles, and answers the source."""
        if run.error is not None and not isinstance(run.error, Exception):
            raise run.error
        LOG.error(
            "a child process returned from the handler of key %r: it is ended here, and settles nothing; end it with "
            "os._exit(), or use multiprocessing",
            self.call.key,
            exc_info=run.error,
        )
        raise SystemExit(1) from run.error

    def gather(self, tenure: _Tenure) -> _Tenure:
        """With ``deliver="all"``: let a burst collect, and start the run for all that is due (not a retry, M6)."""
        mailbox, settings = self.runner.mailbox, self.settings
        if mailbox is None or settings.deliver != "all" or tenure.messages[0].attempt > 1:
            return tenure
        if settings.gather_ms:
            self.clock.sleep_ms(settings.gather_ms)
        elif not tenure.waiting:
            return tenure
        sent = self.clock.now()
        have = [message.id for message in tenure.messages]
        try:
            taken = mailbox.take(
                self.call.full_key,
                tenure.owner,
                settings.ttl_ms,
                have=have,
                fence=tenure.fence,
                give_up_at=tenure.deadline,
            )
        except LeaseUnavailable as error:  # the lease stands, and so do the messages: they run next
            self.tell("store_error", owner=tenure.owner, error=describe(error))
            return tenure
        except LeaseLost as loss:
            self.report_lost(tenure, loss)
            raise
        return replace(
            tenure,
            messages=(*tenure.messages, *map(self.started, taken)),
            waiting=0,
            deadline=deadline(sent, settings.ttl_ms),
        )

    def finish_run(self, tenure: _Tenure, run: _Run) -> _Tenure | None:
        """Report the outcome of a run, and settle it."""
        call, error, ids = self.call, run.error, run.ids
        loss = run.heartbeat.loss
        outcome = (
            "lost"
            if loss is not None
            else "failed"
            if error is not None
            else "deferred"
            if run.lease.deferred
            else "handled"
        )
        self.tell(
            "run_ended",
            owner=tenure.owner,
            fence=tenure.fence,
            outcome=outcome,
            message_ids=tuple(ids),
            attempt=run.lease.attempt,
            ms=run.took_ms,
            error=None if error is None else describe(error),
        )
        if loss is not None:
            raise loss from (None if error is loss else error)
        handled: list[str] = []
        failed: list[Failure] = []
        deferred: list[str] = []
        if error is not None:
            failed = [_failure(each, error) for each in ids]
            if self.has_own(ids):
                self.own_error = error
            else:  # no source gets the error
                LOG.error(
                    "a run of key %r failed: messages %s, attempt %s", call.key, ids, run.lease.attempt, exc_info=error
                )
        elif run.lease.deferred:
            deferred = ids
            if self.has_own(ids):
                self.own = Postponed(reason="deferred")
        else:
            handled = ids
            if self.has_own(ids):
                self.own = Completed(result=run.result)
            self.give_results(run)
        waits = error is None and run.lease.deferred  # its messages would be given again at once
        another = not waits and (error is None or isinstance(error, Exception)) and self.time_for_another()
        if error is not None and not isinstance(error, Exception):
            self.own_error = error  # SystemExit and its like end the invocation, also for another's message
        try:
            return self.settle(
                tenure, handled=handled, failed=failed, deferred=deferred, another=another, heartbeat=run.heartbeat
            )
        except IncumbentError as unsettled:
            raise unsettled from error

    def settle(
        self,
        tenure: _Tenure,
        *,
        another: bool,
        handled: Sequence[str] = (),
        failed: Sequence[Failure] = (),
        deferred: Sequence[str] = (),
        heartbeat: Heartbeat | None = None,
    ) -> _Tenure | None:
        """Settle: free the key, continue here, or hand over. Return the next tenure if it is this invocation's."""
        call, settings, mailbox = self.call, self.settings, self.runner.mailbox
        if mailbox is None:
            self.release(tenure)
            return None
        if heartbeat is not None and self.clock.now().until(heartbeat.held_until) * 3 < settings.ttl_ms * 2:
            try:
                heartbeat.renew()  # so that the tries of settle have the time they may need
            except LeaseUnavailable as error:  # the lease is held until its deadline, and settle may have more luck
                self.tell("store_error", owner=tenure.owner, error=describe(error))
        own = call.message.id if call.message is not None else None
        if not another and own is not None and self.own_is_open() and own not in deferred:
            deferred = [*deferred, own]  # never reached: promised in the same step, so it may be answered for (M3)
        ticket = new_ticket() if not another and self.can_wake() else None
        try:
            answer = mailbox.settle(
                call.full_key,
                tenure.owner,
                ttl_ms=settings.ttl_ms,
                handled=handled,
                failed=[failure for failure in failed if failure.id != own or self.keeps_failures()],
                dropped=[failure for failure in failed if failure.id == own and not self.keeps_failures()],
                deferred=deferred,
                next_owner=call.new_owner() if another else None,
                ticket=ticket,
                policy=settings.policy,
                fence=tenure.fence,
            )
        except LeaseLost as loss:
            self.report_lost(tenure, loss, heartbeat)
            raise
        self.own_is_promised = self.own_is_promised or own in deferred
        self.own_is_settled = own is not None and (self.own_is_promised or not self.own_is_open())
        self.report_dead(answer.dead_lettered)
        if isinstance(answer, Released):
            self.told_released(tenure, remaining=answer.remaining)
            if answer.remaining and not another and call.hops >= settings.max_hops:
                self.tell("chain_cut", waiting=answer.remaining, error=f"{call.hops} invocations woke one another")
            return None
        self.tell("continued", owner=answer.owner, fence=answer.fence, holder=tenure.owner, waiting=answer.waiting)
        if ticket is None:
            return self.tenure(answer)
        return self.hand_over(ticket)

    def release(self, tenure: _Tenure) -> None:
        """Free the key of a provider that only leases. A failure does not change the outcome of the run."""
        try:
            self.runner.provider.release_lease(self.call.full_key, tenure.owner)
        except LeaseUnavailable as error:  # the lease ends by itself
            self.tell("store_error", owner=tenure.owner, error=describe(error))
        else:
            self.told_released(tenure, remaining=0)

    def hand_over(self, ticket: str) -> _Tenure | None:
        """Wake a successor for the ticket. If that fails, continue here or leave the key to the next claim (M8)."""
        call, waker, mailbox = self.call, self.runner.waker, self.runner.mailbox
        assert waker is not None  # noqa: S101 - a ticket is only made when there is a waker
        assert mailbox is not None  # noqa: S101
        self.flush()  # before a call that may last until the invocation is cut off
        try:
            send_wake(waker, Wake(key=call.full_key, ticket=ticket, target=call.origin.target, hops=call.hops + 1))
        except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and must not lose the ticket
            self.may_wake = False
            self.tell("wake_failed", owner=ticket, error=describe(error))
        else:
            self.tell("handed_over", owner=ticket, ms=self.began.until(self.clock.now()))
            return None
        try:
            return self.take_back(mailbox, ticket)
        except LeaseUnavailable as error:  # the messages are promised, and the ticket's lease ends by itself (M8)
            self.tell("store_error", owner=ticket, error=describe(error))
            return None

    def take_back(self, mailbox: Mailbox, ticket: str) -> _Tenure | None:
        """Continue here with a ticket whose wake failed, if there is time; else release it."""
        call = self.call
        if not self.time_for_another():
            self.runner.provider.release_lease(call.full_key, ticket)
            return None
        # The wake may have been sent nevertheless: the first to redeem the ticket continues (M9: hand over).
        answer = mailbox.claim(
            call.full_key,
            call.new_owner(),
            self.settings.ttl_ms,
            None,
            ticket=ticket,
            origin=call.origin,
            policy=self.settings.policy,
        )
        if isinstance(answer, Claimed | Duplicate | Idle):
            self.report_dead(answer.dead_lettered)
        return self.tenure(answer) if isinstance(answer, Claimed) else None

    # --- decisions

    def can_wake(self) -> bool:
        """Return whether the rest can be handed over; a chain that is too long is cut and left to the sweeper."""
        return self.may_wake and self.call.hops < self.settings.max_hops

    def time_for_another(self) -> bool:
        """Return whether the next message runs here, and is not handed over."""
        can_wake = self.can_wake()
        if self.caller_waits() and can_wake and not self.own_is_open():
            return False  # the caller has waited for its own run and waits for no other
        now = self.clock.now()
        if self.settings.drain_ms is not None and self.began.until(now) >= self.settings.drain_ms:
            return False
        if self.call.ends is None:
            return True
        return now.until(self.call.ends) - self.stop_before_ms() > self.longest_ms

    def caller_waits(self) -> bool:
        """Return whether a caller is blocked on this response, unless ``drain_ms`` decides."""
        return self.call.synchronous if self.settings.drain_ms is None else self.settings.drain_ms == 0

    def stop_before_ms(self) -> int:
        """Return how many milliseconds before the invocation's end a run should end."""
        if self.settings.stop_before_ms is not None:
            return self.settings.stop_before_ms
        if self.call.ends is None:
            return 0
        return min(5_000, max(0, self.began.until(self.call.ends)) // 4)

    def own_is_open(self) -> bool:
        """Return whether this invocation's message has neither run nor been promised yet."""
        return self.call.message is not None and self.own is None and self.own_error is None

    def keeps_failures(self) -> bool:
        """Return whether this invocation's message stays after a failure, and blocks later ones (M6, "block")."""
        return self.call.comes_again and self.settings.policy.on_error == "block"

    def has_own(self, ids: Sequence[str]) -> bool:
        """Return whether this invocation's message is among them."""
        return self.call.message is not None and self.call.message.id in ids

    # --- parts

    def tenure(self, granted: Claimed | Continued) -> _Tenure:
        """Make the tenure that a claim or a settle granted."""
        return _Tenure(
            owner=granted.owner,
            fence=granted.fence,
            messages=tuple(self.started(message) for message in granted.messages),
            waiting=granted.waiting,
            deadline=granted.deadline,
        )

    def started(self, message: Message) -> Message:
        """Return the message for its run: this invocation's message gets the original event, not the stored form.

        If another event is stored under its id, the one stored first runs (M5: once per id).
        """
        own = self.call.message
        if own is None or own.id != message.id or not self.own_is_open():  # a run may have changed the event meanwhile
            return message
        if message.event is not own.event and as_stored(own.event) != as_stored(message.event):
            LOG.warning(
                "message %r of key %r was delivered again with another event: the event stored first runs",
                message.id,
                self.call.key,
            )
            return message
        if message.event is not own.event and not is_plain(own.event):  # what is read back differs: every run sees that
            return message
        return replace(message, event=self.call.event)

    def lease(self, tenure: _Tenure) -> tuple[Lease, Heartbeat]:
        """Make the handle of one tenure and its heartbeat, not started yet."""
        call, settings, provider, mailbox = self.call, self.settings, self.runner.provider, self.runner.mailbox

        def lost(why: str) -> LeaseLost:
            return LeaseLost(
                f"the lease of key {call.key!r} is lost: {why}; nothing of this run is settled, and its messages run "
                "again",
                key=call.key,
                owner=tenure.owner,
            )

        def renew(give_up_at: Moment) -> Renewal:
            sent = self.clock.now()
            if mailbox is not None:
                beat = mailbox.beat(
                    call.full_key, tenure.owner, settings.ttl_ms, fence=tenure.fence, give_up_at=give_up_at
                )
                return Renewal(deadline=beat.deadline, waiting=beat.waiting)
            if not provider.renew_lease(call.full_key, tenure.owner, settings.ttl_ms):
                raise lost("its renewal was refused")
            return Renewal(deadline=deadline(sent, settings.ttl_ms))

        def take(have: Sequence[str]) -> Sequence[Message]:
            if mailbox is None:
                return ()
            sent = self.clock.now()
            taken = mailbox.take(
                call.full_key,
                tenure.owner,
                settings.ttl_ms,
                have=have,
                fence=tenure.fence,
                give_up_at=heartbeat.held_until,
            )
            if not handle.ended:
                heartbeat.extend(deadline(sent, settings.ttl_ms), waiting=0)
            return taken

        def on_lost(loss: LeaseLost) -> None:
            self.tell("lost", owner=tenure.owner, fence=tenure.fence, holder=loss.holder, error=str(loss))
            handle.lost()
            if self.runner.on_lost is not None:
                guarded("on_lost", self.runner.on_lost, handle)

        heartbeat = Heartbeat(
            renew,
            held_until=tenure.deadline,
            every_ms=settings.beat_ms,
            invocation_ends=call.ends,
            clock=self.clock,
            on_lost=on_lost,
            on_error=lambda error: self.tell("store_error", owner=tenure.owner, error=describe(error)),
            lost=lost,
            prepare=leave_untraced,
            before_each=self.flush,
            thread=self.runner.thread,
        )
        handle = Lease(
            key=call.key,
            owner=tenure.owner,
            fence=tenure.fence,
            messages=tenure.messages,
            heartbeat=heartbeat,
            take=take,
            ends=call.ends,
            stop_before_ms=self.stop_before_ms(),
            waiting=tenure.waiting,
            clock=self.clock,
            can_defer=mailbox is not None,
        )
        return handle, heartbeat

    def give_results(self, run: _Run) -> None:
        """Pass the results of other messages to the hook."""
        if self.runner.on_result is not None:
            for message in run.lease.held:
                if not self.has_own([message.id]):
                    guarded("on_result", self.runner.on_result, message, run.result)

    def report_dead(self, dead_lettered: Sequence[Message]) -> None:
        """Report the messages that a call has moved to the dead letters (M6: failure)."""
        for message in dead_lettered:
            self.tell("dead", message_ids=(message.id,), attempt=message.attempt, error=message.last_error)
            if self.runner.on_dead_letter is not None:
                guarded("on_dead_letter", self.runner.on_dead_letter, message)

    def report_lost(self, tenure: _Tenure, loss: LeaseLost, heartbeat: Heartbeat | None = None) -> None:
        """Report that a call found the lease lost, also to the run's hooks if there was a run."""
        if heartbeat is not None:
            heartbeat.lose(loss)
        else:
            self.tell("lost", owner=tenure.owner, fence=tenure.fence, holder=loss.holder, error=str(loss))

    def told_released(self, tenure: _Tenure, *, remaining: int) -> None:
        self.tell(
            "released",
            owner=tenure.owner,
            fence=tenure.fence,
            waiting=remaining,
            ms=self.began.until(self.clock.now()),
        )

    def flush(self) -> None:
        """Have the observers that collect facts tell what they have: not in a forked child, whose facts are copies."""
        for each in self.collected if os.getpid() == self.process else ():
            guarded("observer", each.flush)

    def tell(self, fact: FactName, **said: Any) -> None:
        """Pass a fact of this call to the observers."""
        tell(
            self.observers,
            Fact(
                fact=fact,
                key=self.call.full_key,
                t_ms=self.clock.now().wall_ms,
                keyspace=self.call.origin.keyspace,
                request_id=self.call.origin.request_id,
                message_id=self.call.message.id if self.call.message is not None else None,
                **said,
            ),
        )


def as_stored(event: Any) -> str:
    """Return a text that is equal for events with the same stored form, whatever the order of their names."""
    return at_any_depth(_in_order, event)


def _in_order(event: Any) -> str:
    return json.dumps(json.loads(json.dumps(event)), sort_keys=True)


def _failure(message_id: str, error: BaseException) -> Failure:
    """Return what is kept of a failed run. A subclass of ``RetryLater`` may have set no pause, or one not allowed."""
    failure = Failure(id=message_id, error=describe(error))
    if isinstance(error, RetryLater):
        try:
            return replace(failure, after_ms=error.after_ms)
        except Exception:  # noqa: BLE001 - its run must be settled nevertheless
            LOG.exception("%s has no usable after_ms: the policy's pause counts", type(error).__name__)
    return failure


def describe(error: BaseException) -> str:
    """Return the text of an exception in a form that every store takes, even if its ``str`` raises."""
    try:
        said = str(error)
    except BaseException as failed:  # noqa: BLE001 - its run must be settled nevertheless
        said = f"(its text raised {type(failed).__name__})"
    return f"{type(error).__name__}: {said}".encode(errors="backslashreplace").decode()[:MAX_ERROR]
