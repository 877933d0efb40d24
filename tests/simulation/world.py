"""One schedule carried out: sources, invocations, handlers, a waker, a sweeper, and what befalls them."""

import random
from collections.abc import Callable
from contextlib import suppress

from incumbent import sending
from incumbent.calls import Call, Completed, Outcome, Postponed, Stopped
from incumbent.errors import IncumbentError, LeaseUnavailable, RetryLater
from incumbent.lease import Lease, Stop
from incumbent.runner import Runner
from incumbent.sweeper import sweep
from incumbent.values import Duplicate, Message, Origin, Routed
from incumbent.wakers import Wake
from tests.simulation.drafts import TTL_MS, Act, Arrival
from tests.simulation.dynamodb import Table, make_provider
from tests.simulation.environment import Environment
from tests.simulation.invariants import Invariants, Run
from tests.simulation.invocations import Boom, Cancelled, Invocation, Source, WakeFailed
from tests.simulation.mutants import FAITHFUL, Mutant
from tests.simulation.network import Faults, Network
from tests.simulation.one_clock_control import ControlledProvider
from tests.simulation.operating import operate
from tests.simulation.plans import Plan, plan_of
from tests.simulation.scheduler import Scheduler, Stuck, Workers
from tests.simulation.simulated_provider import Parts
from tests.simulation.store import KEY, Store
from tests.simulation.trace_text import Names, answer_in_short
from tests.simulation.watched import OnlyLeases, Provider, WatchedProvider

MAX_SWEEPS = 60
_TARGET = "arn:aws:lambda:eu-west-1:123456789012:function:simulated:live"
_HOUR_MS = 3_600_000
_ROUND_TRIP_MS = 20


class World:
    """One schedule: the plan that a seed stands for, and chance from the same seed."""

    def __init__(
        self,
        seed: int,
        workers: Workers,
        *,
        mutant: Mutant = FAITHFUL,
        scenario: str | None = None,
        store: str | None = None,
        trace: list[str] | None = None,
    ) -> None:
        self.scheduler = Scheduler(seed, workers)
        self.chance = self.scheduler.random
        stores = mutant.stores if store is None else (store,)
        self.plan: Plan = plan_of(self.chance, scenario=scenario, stores=stores)
        self.mutant = mutant
        self.trace = trace
        self.names = Names()
        self.is_calm = False
        plan, say = self.plan, None if trace is None else self.say
        self.faults = Faults(
            self.chance, kinds=plan.faults, most=plan.most_faults, each=plan.each_fault, opening=plan.opening
        )
        self.wake_faults = [kind for kind in plan.faults if kind.startswith("wake")]
        self.network = Network(self.scheduler, self.faults, longest_ms=5 * TTL_MS // 2, crash=self.crash, say=say)
        self.invariants = Invariants(
            scheduler=self.scheduler,
            policy=plan.settings.policy,
            skew_ms=None if plan.store == "one clock" else plan.skew_ms,
            say=say,
        )
        self.store = Store(self.scheduler, self.invariants.witness)
        self.table = Table(
            self.invariants.witness,
            blind_to=mutant.blind_to,
            routes_behind_live_only=mutant.routes_behind_live_only,
        )
        self.providers: dict[Environment, WatchedProvider] = {}
        self.warm: list[Environment] = []
        self.under_way: list[Invocation] = []
        self.expected = 0
        self.invoked = 0
        self.environments = 0
        self.failed_once: set[str] = set()
        self.scheduler.watch = self.invariants.watch

    def run(self) -> None:
        """Carry it out to its end. Raises what went wrong."""
        random.seed(self.chance.random())  # the jitter of the code under simulation
        for arrival in self.plan.arrivals:
            self.arrives(arrival)
        for at_ms in self.plan.sweeps_ms:
            self.scheduler.at(at_ms, self.sweep_once)
        for act in self.plan.acts:
            self.acts(act)
        self.scheduler.at(self.plan.calm_ms, self.calm)
        self.scheduler.run()
        if not self.invariants.came_to_its_end:
            raise Stuck("nothing is left to happen, and the end was not reached")

    def say(self, what: str) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            self.trace.append(self.names.shorten(f"{self.scheduler.now_ms:>7}  {what}"))

    # --- sources

    def arrives(self, arrival: Arrival) -> None:
        """A source invokes, at a time."""
        source = Source(
            message_id=arrival.message_id, kind=arrival.kind, again=arrival.again, after_ms=arrival.after_ms
        )
        self.expected += 1
        request_id = f"{arrival.kind}-{self.expected}"
        self.scheduler.at(arrival.at_ms, lambda: self.invoke(request_id, source=source))

    def accepted(self, invocation: Invocation, why: str) -> None:
        """The source is told that its message is safe."""
        self.say(f"{invocation.name}: the source is told: {why}")
        if invocation.source is not None and not self.plan.only_leases:
            self.invariants.accepts(invocation.source.message_id, f"{invocation.name} was told {why}")

    def refused(self, invocation: Invocation, why: str) -> None:
        """The source is told of an error, or of nothing; it may try again."""
        self.say(f"{invocation.name}: the source is told: {why}")
        source = invocation.source
        if source is not None and source.again:
            source.again -= 1
            request_id = invocation.request_id if source.kind == "asynchronous" else f"{invocation.request_id}'"
            self.expected += 1
            self.scheduler.after(
                self.chance.choice((_ROUND_TRIP_MS, 700, TTL_MS)), lambda: self.invoke(request_id, source=source)
            )
        elif invocation.wake is not None and invocation.wakes_again:
            wake, again = invocation.wake, invocation.wakes_again - 1
            self.expected += 1
            self.scheduler.after(TTL_MS // 3, lambda: self.invoke(invocation.request_id, wake=wake, again=again))

    # --- invocations

    def invoke(
        self, request_id: str, *, source: Source | None = None, wake: Wake | None = None, again: int = 2
    ) -> None:
        """Begin an invocation, in a warm environment or a new one."""
        self.expected -= 1
        self.invoked += 1
        environment = self.environment()
        invocation = Invocation(
            name=f"i{self.invoked}",
            request_id=request_id,
            environment=environment,
            source=source,
            wake=wake,
            wakes_again=again,
        )
        environment.serves = invocation.name
        self.under_way.append(invocation)
        what = f"{source.kind} message {source.message_id}" if source else f"wake {wake.ticket if wake else None}"
        self.say(f"{invocation.name} in {environment.name}: {what}")
        self.scheduler.spawn(environment, lambda: self.serve(invocation))
        if self.plan.invocation_ms is not None and not self.is_calm:
            self.scheduler.after(self.plan.invocation_ms, lambda: self.times_out(invocation))

    def environment(self) -> Environment:
        """A warm environment, or a new one with clocks of its own."""
        if self.warm and self.chance.random() < self.plan.warm:
            return self.warm.pop(self.chance.randrange(len(self.warm)))
        self.environments += 1
        stops = self.chance.random() < 0.5
        waits = self.mutant.waits_for_heartbeats
        if self.plan.store != "one clock":
            environment = Environment(
                f"e{self.environments}",
                self.scheduler,
                wall_off_ms=self.within_skew_ms(),
                stops_monotonic=stops,
                waits_for_heartbeats=waits,
            )
        else:
            environment = Environment(
                f"e{self.environments}",
                self.scheduler,
                wall_off_ms=self.chance.choice((0, -_HOUR_MS, _HOUR_MS)),
                drift_ppm=self.chance.choice((0, -3_000, 3_000)),
                stops_monotonic=stops,
                waits_for_heartbeats=waits,
            )
        return environment

    def within_skew_ms(self) -> int:
        """How far a clock is off, so that no two differ by more than the skew: often by just so much."""
        half_ms = self.plan.skew_ms // 2
        return self.chance.choice((-half_ms, half_ms, self.chance.randint(-half_ms, half_ms)))

    def provider(self, environment: Environment) -> WatchedProvider:
        """The provider of an environment, which lives as long as it does."""
        if environment not in self.providers:
            parts = Parts(
                environment=environment,
                store=self.store,
                network=self.network,
                rules=self.mutant.rules,
                bugs=self.mutant.bugs,
            )
            provider: Provider
            match self.plan.store:
                case "one clock":
                    provider = ControlledProvider(parts)
                case _:
                    provider = make_provider(environment, self.table, self.network, skew_ms=self.plan.skew_ms)
            self.providers[environment] = WatchedProvider(provider, environment, self.invariants)
        return self.providers[environment]

    def serve(self, invocation: Invocation) -> None:
        """What the runtime does with an event, and what the source hears of it."""
        environment, source = invocation.environment, invocation.source
        why, error = "it is sent", None
        try:
            if source is not None and source.kind == "sent":
                self.send(invocation, source)
            else:
                why = self.lease(invocation)
        except (Boom, RetryLater, IncumbentError) as raised:
            error = raised
        if environment.dead:
            return
        self.finish(invocation)
        if isinstance(error, Boom | RetryLater):
            self.invariants.fails(invocation.name)
        if error is None:
            self.accepted(invocation, why)
        else:
            self.refused(invocation, f"an error, {answer_in_short(error)}")
        self.invariants.over(environment, invocation.name)

    def lease(self, invocation: Invocation) -> str:
        """``@leased`` without its reading of events: a call, a runner, an answer by the table."""
        environment, source, wake, plan = invocation.environment, invocation.source, invocation.wake, self.plan
        clock = environment.clock
        provider = self.provider(environment)
        runner = Runner(
            OnlyLeases(provider) if plan.only_leases else provider,
            plan.settings,
            clock=clock,
            waker=self.waker(environment) if plan.wakes else None,
            observers=(lambda fact: None if environment.dead else self.invariants.noted(fact),),
            pacemaker=environment.pacemaker,
        )
        event = None if source is None else {"id": source.message_id}
        ends_in_ms = None if self.is_calm else plan.invocation_ms
        call = Call(
            full_key=KEY,
            key="key",
            message=None if source is None else Message(id=source.message_id, event=event),
            event=event,
            ticket=wake.ticket if wake is not None else None,
            hops=wake.hops if wake is not None else 0,
            origin=Origin(keyspace="simulated", target=_TARGET, request_id=invocation.request_id),
            ends=None if ends_in_ms is None else clock.now().plus(ends_in_ms),
            synchronous=source is not None and source.kind == "http",
        )
        outcome = runner.serve(call, lambda message, lease: self.work(environment, message, lease))
        return self.told(outcome, call)

    def told(self, outcome: Outcome, call: Call) -> str:
        """What success the source is told; an error where there is none."""
        if isinstance(outcome, Completed) and call.message is not None:
            self.invariants.outcomes.told(call.message.id, outcome.result)
        if call.message is None or isinstance(outcome, Completed | Postponed | Stopped | Routed | Duplicate):
            return answer_in_short(outcome)
        raise LeaseUnavailable(f"not run and not stored: {answer_in_short(outcome)}")

    def send(self, invocation: Invocation, source: Source) -> None:
        """``send`` from a front door."""
        environment, plan = invocation.environment, self.plan
        sending.send(
            KEY,
            {"id": source.message_id},
            message_id=source.message_id,
            target=_TARGET,
            keyspace="",
            provider=self.provider(environment),
            waker=self.waker(environment),
            policy=plan.settings.policy,
            ttl_ms=TTL_MS,
            after_ms=source.after_ms,
        )

    def finish(self, invocation: Invocation) -> None:
        """An invocation is over, and its environment is free for another."""
        invocation.over = True
        self.under_way = [other for other in self.under_way if other is not invocation]
        if not invocation.environment.dead:
            self.warm.append(invocation.environment)

    # --- what befalls them

    def crash(self, environment: Environment) -> None:
        """An environment dies with all that it does; what it has sent is on its way."""
        if environment.dead:
            return
        environment.die()
        for run in [run for run in self.invariants.runs if run.environment is environment]:
            self.invariants.ends(run)
        for invocation in [each for each in self.under_way if each.environment is environment]:
            self.say(f"{environment.name} crashes")
            self.finish(invocation)
            self.refused(invocation, "nothing: it crashed")

    def times_out(self, invocation: Invocation) -> None:
        """Lambda kills what is not over in time."""
        if not invocation.over:
            self.crash(invocation.environment)

    def step_clock(self, environment: Environment) -> None:
        """Somebody sets the clock of an environment: within the bound, where there is one.

        Backwards only where the monotonic clock never stands still: else no clock would tell how long a freeze was.
        """
        if self.plan.store != "one clock":
            to_ms = self.within_skew_ms()
            environment.clock.step_wall(to_ms - environment.clock.wall_off_ms)
        else:
            steps = (50, TTL_MS, _HOUR_MS) if environment.stops_monotonic else (-_HOUR_MS, -TTL_MS, -50, 50, TTL_MS)
            environment.clock.step_wall(self.chance.choice(steps))

    # --- handlers

    def work(self, environment: Environment, message: Message, lease: Lease) -> object:
        """Handle a message."""
        run = Run(environment=environment, lease=lease)
        self.say(f"  {environment.serves}: {lease.owner} runs {[each.id for each in lease.messages]}")
        self.invariants.begins(run)
        try:
            return self.handle(run, message)
        finally:
            self.invariants.ends(run)
            if not self.mutant.notices_loss:
                _forget_loss(run)

    def handle(self, run: Run, message: Message) -> object:
        """Do some steps, then return, raise, or defer."""
        does, lease, clock, chance = self.plan.handlers, run.lease, run.environment.clock, self.chance
        for _ in range(chance.randint(*does.steps)):
            self.befall(run.environment)
            clock.sleep_ms(chance.randint(*does.step_ms))
            if chance.random() < does.looks and self.should_defer(lease):
                return lease.defer()
            if does.notes and chance.random() < does.notes:
                lease.note(f"{lease.owner} at {self.scheduler.now_ms}")
            with suppress(LeaseUnavailable):
                if chance.random() < does.takes and not self.plan.only_leases:
                    for taken in lease.take():
                        self.invariants.reaches(run, taken)
                if chance.random() < does.renews:
                    lease.renew()
        self.befall(run.environment)
        ids = {each.id for each in lease.held}
        first = (ids & does.raises_at_first) - self.failed_once
        self.failed_once |= first
        if first or ids & does.poison or (not self.is_calm and chance.random() < does.raises):
            raise self.failure(message)
        if not self.is_calm and not self.plan.only_leases and chance.random() < does.defers:
            return lease.defer()
        result = f"done by {lease.owner}"
        self.invariants.completes(run, result)
        return result

    def should_defer(self, lease: Lease) -> bool:
        """Whether a handler that looks leaves its messages to the next run. One that was stopped may be cancelled."""
        match lease.stop:
            case None:
                return False
            case Stop.LOST:
                lease.assert_held()
            case Stop.DEADLINE:
                pass
            case Stop.ASKED:
                self.invariants.control.stops(lease.owner, lease.fence, lease.stop_reason)
                if self.chance.random() < self.plan.handlers.stops:
                    lease.cancelled = True
                    raise Cancelled(lease.key)
        return not self.plan.only_leases

    def failure(self, message: Message) -> Exception:
        """What a handler raises that fails."""
        if self.plan.handlers.cools and self.chance.random() < self.plan.handlers.cools:
            return RetryLater(300, scope="key")
        return self.chance.choice((Boom(message.id), Boom(message.id), RetryLater(300)))

    def befall(self, environment: Environment) -> None:
        """Let something happen to an environment in the middle of its work, or nothing."""
        fault = self.faults.of_step()
        if fault is None:
            return
        self.say(f"{environment.name} meets a fault in its work: {fault}")
        if fault == "crash":
            self.crash(environment)
        elif fault == "pause":
            environment.stand_still(self.network.a_while_ms())
        else:
            self.step_clock(environment)
        self.scheduler.pause(0)

    # --- waking

    def waker(self, environment: Environment) -> Callable[[Wake], None]:
        """A waker that may fail, fail and send, send twice, or be slow."""

        def wake(wake: Wake) -> None:
            self.scheduler.pause(self.chance.randint(0, _ROUND_TRIP_MS))
            fault = self.faults.of(self.wake_faults)
            self.say(f"{environment.serves} wakes for {wake.ticket}: {fault or 'sent'}")
            if fault == "wake dies":
                self.crash(environment)
                self.scheduler.pause(0)
            if fault != "wake fails":
                self.woken(wake, late=fault == "wake late")
            if fault == "wake twice":
                self.woken(wake, late=self.chance.random() < 0.5)
            if fault in ("wake fails", "wake unsure"):
                raise WakeFailed(fault)

        wake.delays = self.plan.delays  # type: ignore[attr-defined]
        return wake

    def woken(self, wake: Wake, *, late: bool) -> None:
        """The event of a wake is on its way."""
        read = Wake.from_event(wake.to_event())
        self.expected += 1
        request_id = f"wake-{self.expected}"
        within_ms = 2 * TTL_MS if late else 2 * _ROUND_TRIP_MS
        self.scheduler.after(
            wake.after_ms + self.chance.randint(0, within_ms), lambda: self.invoke(request_id, wake=read)
        )

    # --- operating, sweeping, and the end

    def acts(self, act: Act) -> None:
        """An operator does something to the key, at a time."""

        def begin() -> None:
            operator = self.environment()
            operator.serves, operator.opening = "operator", list(act.opening)
            self.say(f"an operator: {act.call}")
            self.scheduler.spawn(operator, lambda: self.operate(operator, act))

        self.scheduler.at(act.at_ms, begin)

    def operate(self, operator: Environment, act: Act) -> None:
        """What an operator does, from an environment of its own."""
        operate(self.provider(operator), act, operator.clock, self.chance, self.plan.settings.policy)

    def sweep_once(self) -> None:
        """A sweeper comes by in the middle of it all."""
        sweeper = self.environment()
        sweeper.serves = "sweeper"
        self.scheduler.spawn(sweeper, lambda: self.sweep(sweeper))

    def calm(self) -> None:
        """Nothing fails from now on, and a sweeper goes round until all is quiet."""
        self.say("calm")
        self.is_calm = True
        self.faults.calm()
        sweeper = Environment("sweeper", self.scheduler)
        sweeper.serves = "sweeper"
        self.scheduler.spawn(sweeper, lambda: self.sweep_until_quiet(sweeper))

    def sweep(self, sweeper: Environment) -> None:
        """Wake what has messages and no owner."""
        with suppress(LeaseUnavailable):
            sweep(self.provider(sweeper), self.waker(sweeper), observers=(), clock=sweeper.clock)

    def sweep_until_quiet(self, sweeper: Environment) -> None:
        """Go round until nothing waits and nobody runs."""
        for _ in range(MAX_SWEEPS):
            if not self.under_way and not self.expected and not self.invariants.state.mail:
                break
            self.sweep(sweeper)
            sweeper.clock.sleep_ms(TTL_MS)
        self.invariants.at_the_end()


def _forget_loss(run: Run) -> None:
    """What a runtime does that settles a run although its lease is lost."""
    heartbeat = run.lease._heartbeat  # noqa: SLF001 - a seeded bug
    heartbeat._loss = None  # noqa: SLF001 - as above
    heartbeat._held_until = run.environment.clock.now().plus(TTL_MS)  # noqa: SLF001 - as above
