"""What must always hold, checked with every request that the store carries out, against what calls were told before.

It is told everything and does nothing: what runs and believes, what each call's tries did, what was promised to whom.
A violation names the rule and ends the schedule.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from incumbent import rules
from incumbent.errors import LeaseLost, MailboxFull
from incumbent.lease import Lease
from incumbent.observe import Fact
from incumbent.rules import KeyState
from incumbent.values import Busy, Claimed, Continued, Duplicate, Message, Policy, Released, Routed
from tests.simulation.control_invariants import ControlInvariants
from tests.simulation.environment import EPOCH_MS, Environment
from tests.simulation.outcome_invariants import OutcomeInvariants
from tests.simulation.scheduler import Scheduler
from tests.simulation.store import NOTHING_YET, Asked, Effect
from tests.simulation.trace_text import answer_in_short, state_in_short


class Violation(AssertionError):
    """A rule does not hold."""


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A handler at work."""

    environment: Environment
    lease: Lease

    @property
    def believes(self) -> bool:
        """Whether the run would be told now that it holds the key, if it asked. Asking itself would leave a mark."""
        held_until = self.lease._heartbeat.held_until  # noqa: SLF001 - see above
        return self.environment.clock.now().until(held_until) > 0


@dataclass(slots=True, kw_only=True)
class Invariants:
    """The memory of one schedule, and its judge. ``skew_ms`` is ``None`` where the store has a clock."""

    scheduler: Scheduler
    policy: Policy
    skew_ms: int | None
    say: Callable[[str], None] | None = None
    runs: list[Run] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    tickets: set[str] = field(default_factory=set)
    settling: set[str] = field(default_factory=set)
    completed: set[tuple[str, str]] = field(default_factory=set)
    accepted: dict[str, str] = field(default_factory=dict)
    handled: Counter[str] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    deliveries: Counter[str] = field(default_factory=Counter)
    failed_invocations: set[str] = field(default_factory=set)
    state: KeyState = NOTHING_YET
    owned_ms: int = -1
    came_to_its_end: bool = False
    control: ControlInvariants = field(init=False)
    outcomes: OutcomeInvariants = field(init=False)

    def __post_init__(self) -> None:
        """Judge control and outcomes apart."""
        self.outcomes = OutcomeInvariants(policy=self.policy, skew_ms=self.skew_ms or 0, broken=self._broken)
        self.control = ControlInvariants(scheduler=self.scheduler, skew_ms=self.skew_ms or 0, broken=self._broken)

    # --- what the store has done

    def witness(self, asked: Asked, before: KeyState, after: KeyState, said: object, now_ms: int) -> None:
        """A request was carried out. ``said`` is ``None`` where its sender decides what to say."""
        self.state = after
        self.control.witness(asked, before, after, now_ms)
        self._said(asked, before, said, now_ms)
        if after is not before:
            self._effect(asked, before, after)
            self._lease(before, after)
            self._mail(asked, before, after, now_ms)
            self.outcomes.witness(asked, before, after, now_ms)
            self._given(asked, before, after, now_ms)
            self._closed(asked, before, after, now_ms)
        if self.say is not None:
            self.say(f"    store: {asked}: {'nothing changes' if after is before else state_in_short(after)}")
        self.owned_ms = self._last_owned_ms()
        self.watch()

    def _last_owned_ms(self) -> int:
        """When an owner last held the key, by whichever clock."""
        if self.state.owner is None:
            return self.owned_ms
        return min(self.scheduler.now_ms, self.state.expires_ms + 2 * (self.skew_ms or 0) - EPOCH_MS)

    def watch(self) -> None:
        """R1, R12: at any instant one run believes at most, and it is the one that the store knows of."""
        if not self.runs:
            return
        believers = [run for run in self.runs if run.lease.owner not in self.lost and run.believes]
        if len(believers) > 1:
            self._broken("R1", f"several runs believe: {[run.lease.owner for run in believers]}")
        for run in believers:
            if (self.state.owner, self.state.fence) != (run.lease.owner, run.lease.fence):
                self._broken(
                    "R12",
                    f"{run.lease.owner} believes until {run.lease._heartbeat.held_until}"  # noqa: SLF001 - as above
                    f", and the store has {self.state.owner}",
                )

    def _lease(self, before: KeyState, after: KeyState) -> None:
        granted = after.owner is not None and after.owner != before.owner
        if after.fence < before.fence or (granted and after.fence == before.fence):
            self._broken("R7", f"fence {after.fence} of {after.owner} after {before.fence}")
        kept = after.owner is not None and (after.owner, after.fence) == (before.owner, before.fence)
        if kept and after.expires_ms < before.expires_ms:
            self._broken("R4", f"the lease of {after.owner} was shortened by {before.expires_ms - after.expires_ms} ms")

    def _mail(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        ids = [message.id for message in after.mail]
        if len(set(ids)) < len(ids):
            self._broken("M5", f"an id stands twice in the mailbox: {ids}")
        stood = {message.id for message in before.mail}
        for message_id in ids:
            if message_id not in stood:
                self._came(asked, message_id)
        stands, dead_lettered = set(ids), {trace.id for trace in after.ended if trace.outcome == "dead"}
        superseded = {trace.id for trace in after.ended if trace.outcome == "superseded"}
        for message in before.mail:
            if message.id not in stands and message.id in superseded:
                self.control.left[message.id] = "superseded"
                self.outcomes.supersedes(asked, before, message.id, now_ms)
            elif message.id not in stands:
                self._left(asked, before, message.id, dead_lettered)
        for message_id, why in self.accepted.items():
            if message_id not in stands and not self._is_over(message_id):
                self._broken("M3", f"message {message_id} is lost: {why}, and now it is nowhere")

    def _came(self, asked: Asked, message_id: str) -> None:
        if message_id in self.dead:
            self._broken("M5", f"dead message {message_id} is stored again")
        if self.handled[message_id]:
            self._broken("M5", f"handled message {message_id} is stored again")
        self.control.runs(message_id)
        if asked.invocation in self.failed_invocations:
            self._broken("M3", f"a late claim stores {message_id} again, whose source was told that it failed")

    def _is_over(self, message_id: str) -> bool:
        """Whether a message has left for good, by a way that its source may rely on."""
        return bool(self.handled[message_id]) or message_id in self.dead or message_id in self.control.left

    def _left(self, asked: Asked, before: KeyState, message_id: str, dead_lettered: set[str]) -> None:
        if message_id in dead_lettered:
            self.dead.add(message_id)
            if self.deliveries[message_id] < self.policy.max_attempts:
                self._broken("M6", f"message {message_id} is dead after {self.deliveries[message_id]} deliveries")
        elif message_id in asked.handled:
            self.handled[message_id] += 1
            self.outcomes.handled_by[message_id] = asked.owner
            if (asked.owner, message_id) not in self.completed:
                self._broken("M3", f"{asked.owner} settles {message_id} as handled, but never came to its end")
        elif not self.control.leaves(asked, before, message_id) and message_id not in asked.dropped:
            self._broken("M3", f"message {message_id} left the mailbox by a {asked.call} that does not name it")

    def _given(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        """M4, M6: oldest first, each counted, and none to a ticket."""
        if after.owner is None:
            return
        counts = {message.id: (message.attempts, message.delivered_fence) for message in before.mail}
        paused = passed = False
        for message in after.mail:
            is_given = message.delivered_fence == after.fence
            is_new = is_given and counts.get(message.id, (0, 0))[1] != after.fence
            if is_new:
                self.deliveries[message.id] += 1
                if after.owner in self.tickets:
                    self._broken("M9", f"ticket {after.owner} is given {message.id}")
                if message.attempts > self.policy.max_attempts or message.due_ms > now_ms + (self.skew_ms or 0):
                    self._broken(
                        "M6", f"{message.id} is out of attempts, or pauses, and is given: {state_in_short(after)}"
                    )
                self._ended(asked, before, message.id, now_ms)
                if passed or (paused and after.block):
                    self._broken("M4", f"{message.id} goes ahead of older messages: {state_in_short(after)}")
            elif message.attempts < counts.get(message.id, (0, 0))[0] and counts[message.id][1] != before.fence:
                self._broken("M6", f"a delivery of {message.id} in an earlier tenure is counted no more")
            elif message.attempts > counts.get(message.id, (0, 0))[0]:
                self._broken("M6", f"message {message.id} is counted and not given")
            if not is_given and message.due_ms <= now_ms:
                passed = True
            paused = paused or (
                not is_given and message.due_ms > now_ms and message.attempts > 0
            )  # M14: blocks nothing

    def _ended(self, asked: Asked, before: KeyState, message_id: str, now_ms: int) -> None:
        """M6: what died with its run is given again after a pause; the giver's clock may be ahead by the skew.

        What its run has deferred has not died.
        """
        for message in before.mail:
            if message.id == message_id and message.delivered_fence and message_id not in asked.deferred:
                due_ms = min(now_ms, before.expires_ms) + self.policy.pause_ms(message.attempts)
                if now_ms + (self.skew_ms or 0) < due_ms:
                    self._broken("M6", f"{message_id} has died with its run, and is given again without a pause")

    def _effect(self, asked: Asked, before: KeyState, after: KeyState) -> None:
        """Note what this request has done for its call."""
        moved = (after.owner, after.fence) != (before.owner, before.fence)
        stood = {message.id for message in before.mail}
        stores = asked.message_id in {message.id for message in after.mail} - stood
        if asked.call == "claim" and (moved or stores):
            if after.owner == asked.owner:
                asked.effects.append(Effect("granted", asked.owner))
            elif stores:
                asked.effects.append(Effect("stored"))
        elif asked.call in ("settle", "transfer") and moved and before.owner == asked.owner:
            asked.effects.append(Effect("freed" if after.owner is None else "passed", after.owner))

    def _closed(self, asked: Asked, before: KeyState, after: KeyState, now_ms: int) -> None:
        freed = before.owner == asked.owner and after.owner is None
        barred = self.control.may_be_barred(asked.began_ms, self.state)  # M15
        if asked.call == "settle" and asked.successor and freed and not barred and rules.due(after, now_ms):
            self._broken("M2", f"the key is freed, and messages are due: {state_in_short(after)}")

    def _said(self, asked: Asked, before: KeyState, said: object, now_ms: int) -> None:
        """What a store with a clock may say of how a request found things."""
        if asked.call != "claim" or self.skew_ms is not None:
            return
        live = rules.owned(before, now_ms) or self.control.may_be_barred(asked.began_ms, self.state)
        room = len(before.mail) < self.policy.max_pending + rules.BEYOND
        if said == "full" and not live and room and self.policy.on_error != "block":
            self._broken("M7", "a message is refused by a full mailbox that nobody owns")
        waits = isinstance(said, rules.Accepted) or (
            isinstance(said, rules.Known) and said.state in ("waiting", "running")
        )
        if waits and not live and self._is_due(asked.message_id, now_ms):
            self._broken("M1", f"{asked.message_id} is answered for, and nobody owns the key")

    def _is_due(self, message_id: str | None, now_ms: int) -> bool:
        """Whether a message waits and should run now: one that pauses, or is behind one that does, waits for nobody."""
        return message_id in {message.id for message in rules.due(replace(self.state, owner=None), now_ms)}

    # --- what the providers were asked, and answered

    def asked(self, asked: Asked, environment: Environment) -> None:
        """A call begins."""
        asked.invocation = environment.serves
        if asked.as_ticket:
            self.tickets.add(asked.owner)
        if asked.call == "settle":
            if asked.ticket is not None:
                self.tickets.add(asked.ticket)
            if asked.owner in self.lost:
                self._broken("R3", f"{asked.owner} settles, and knows that its lease is lost")
            self.settling.add(asked.owner)
            for task in environment.tasks:
                beat = task.call
                if isinstance(beat, Asked) and beat.call == "beat" and beat.owner == asked.owner:
                    self._broken("H11", f"{asked.owner} settles while a renewal of its lease is in flight")
        if asked.call == "beat" and asked.owner in self.settling:
            self._broken("H11", f"{asked.owner} settles, and its lease is renewed afterwards")

    def answered(self, asked: Asked, answer: object) -> None:
        """A call ends, with an answer or an error."""
        if asked.call == "settle":
            self._settled(asked, answer)
        elif asked.call == "claim":
            self._claimed(asked, answer)
        else:
            self.control.answered(asked, answer)
        self.outcomes.answered(asked, answer)
        if asked.call == "transfer" and answer is False and asked.effects:
            self._broken("R8", f"{asked.owner} has transferred the key and is told that it did not")
        if self.say is not None:
            self.say(f"  {asked.invocation}: {asked} is answered: {answer_in_short(answer)}")

    def _settled(self, asked: Asked, answer: object) -> None:
        effect = asked.effects[0] if asked.effects else None
        if effect is None and isinstance(answer, Released | Continued):
            self._broken("R8", f"{asked.owner} has settled nothing and is told that it did")
        if effect is not None and isinstance(answer, LeaseLost):
            self._broken("R8", f"{asked.owner} has settled and is told that it lost")
        if isinstance(answer, Continued) and effect != Effect("passed", answer.owner):
            self._broken("R8", f"{asked.owner} is told that the key passed to {answer.owner}, but: {effect}")

    def _claimed(self, asked: Asked, answer: object) -> None:
        effect = asked.effects[0] if asked.effects else None
        if effect == Effect("stored") and not isinstance(answer, Exception):
            mine = any(m.id == asked.message_id and m.claimed_by == asked.owner for m in self.state.mail)
            if not isinstance(answer, Routed | Claimed) and not (isinstance(answer, Duplicate) and not mine):
                self._broken("R8", f"{asked.message_id} was stored by this very claim, which is told {answer}")
        if isinstance(answer, Busy | Duplicate) and answer.owner == asked.owner:
            self._broken("R8", f"{asked.owner} is told that it lost to itself")
        if self.skew_ms is None or self.control.may_be_barred(asked.began_ms, self.state):
            return
        accepted = isinstance(answer, Routed) or (
            isinstance(answer, Duplicate) and answer.state in ("waiting", "running")
        )
        free = self._last_owned_ms() < asked.began_ms
        surely_ms = EPOCH_MS + asked.began_ms - self.skew_ms  # by whichever clock
        if accepted and free and self._is_due(asked.message_id, surely_ms):
            self._broken("M1", f"{asked.message_id} is answered for, and nobody has owned the key since")
        if isinstance(answer, MailboxFull) and free and self.policy.on_error != "block":
            self._broken("M7", "a message is refused by a full mailbox that nobody owns")
        if not asked.repeated and asked.requests > asked.most_requests:
            self._broken("M10", f"a claim took {asked.requests} requests, and no answer was lost")

    # --- what the runs do

    def noted(self, fact: Fact) -> None:
        """A fact that a runner told."""
        if fact.fact == "lost" and fact.owner is not None:
            self.lost.add(fact.owner)

    def begins(self, run: Run) -> None:
        """A handler begins."""
        self.runs.append(run)
        for message in run.lease.messages:
            self.reaches(run, message)
        self.watch()

    def reaches(self, run: Run, message: Message) -> None:
        """A message comes to a handler."""
        if run.believes:
            self.control.runs(message.id)
        if self.handled[message.id] and run.believes:
            self._broken("M5", f"{message.id} was handled, and {run.lease.owner} runs it again")

    def completes(self, run: Run, result: object) -> None:
        """A handler has done what it had to do for all its messages, and returns."""
        for message in run.lease.held:
            self.outcomes.completes(run.lease.owner, message.id, result)
        self.completed |= {(run.lease.owner, message.id) for message in run.lease.held}

    def ends(self, run: Run) -> None:
        """A handler is over, one way or another."""
        self.runs = [other for other in self.runs if other is not run]

    # --- what the sources are told

    def accepts(self, message_id: str, why: str) -> None:
        """A source is told that its message is safe."""
        self.accepted.setdefault(message_id, why)
        stands = {message.id: message for message in self.state.mail}
        if message_id in stands and not stands[message_id].promised:
            self._broken("M3", f"message {message_id} is answered for and not promised: {why}")
        if message_id not in stands and not self._is_over(message_id):
            self._broken("M3", f"message {message_id} is lost: {why}, and it is nowhere")

    def fails(self, invocation: str) -> None:
        """A source is told that its own message's run has failed: it keeps the message."""
        self.failed_invocations.add(invocation)

    def over(self, environment: Environment, invocation: str) -> None:
        """An invocation is over: the environment may freeze."""
        if environment.pacemaker.live or any(task.call is not None for task in environment.tasks):
            self._broken("H13", f"{invocation} is over, and something of it is alive")

    def at_the_end(self) -> None:
        """Nothing waits, nobody runs, and whatever was promised came to an end."""
        self.came_to_its_end = True
        if self.state.mail:
            self._broken("M8", f"it is quiet, and messages wait: {state_in_short(self.state)}")
        for message_id, why in self.accepted.items():
            if not self._is_over(message_id):
                self._broken("M3", f"message {message_id} was never run to an end: {why}")

    def _broken(self, rule: str, how: str) -> None:
        self.scheduler.fail(Violation(f"{rule}: {how}"))
