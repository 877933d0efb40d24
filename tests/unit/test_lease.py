"""The handle of a run says what it holds and when to stop, whoever of the run's threads asks."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence

import pytest

from incumbent import ConfigurationError, Lease, LeaseLost, LeaseUnavailable, Message, Stop, current_lease
from incumbent.clock import Moment
from incumbent.heartbeat import Heartbeat, Renewal
from incumbent.lease import _CURRENT
from incumbent.testing.clock import FakeClock
from tests.unit.stage import PATIENCE_S, beside, raising

HELD_MS = 30_000


class Held:
    """A lease of 30 s, and what its hooks were told."""

    def __init__(
        self,
        take: Callable[[Sequence[str]], Sequence[Message]] = lambda _: (),
        *,
        time_left_ms: int | None = 60_000,
        stop_before_ms: int = 5_000,
        can_defer: bool = True,
    ) -> None:
        self.clock = FakeClock()
        self.losses: list[LeaseLost] = []
        ends: Moment | None = None if time_left_ms is None else self.clock.now().plus(time_left_ms)
        self.heartbeat = Heartbeat(
            self,
            held_until=self.clock.now().plus(HELD_MS),
            every_ms=10_000,
            invocation_ends=ends,
            clock=self.clock,
        )
        self.lease = Lease(
            key="k",
            owner="A",
            fence=7,
            messages=[Message(id="m1", event={"n": 1}, attempt=2)],
            heartbeat=self.heartbeat,
            take=take,
            ends=ends,
            stop_before_ms=stop_before_ms,
            waiting=3,
            clock=self.clock,
            can_defer=can_defer,
        )

    def before_each(self) -> None:
        """Nothing is prepared."""

    def renew(self, _: Moment) -> Renewal:
        """The store's answer."""
        return Renewal(deadline=self.clock.now().plus(HELD_MS), waiting=4)

    def make_lost(self, why: str) -> LeaseLost:
        """The error."""
        return LeaseLost(why, key="k")

    def on_lost(self, loss: LeaseLost) -> None:
        """What the heartbeat tells."""
        self.losses.append(loss)

    def on_asked(self, _: str) -> None:
        """What the heartbeat tells, as a tenure passes it on."""
        self.lease.asked()

    def on_error(self, _: Exception) -> None:
        """Every renewal is answered."""


def test_it_says_what_it_was_given() -> None:
    """Key, owner, fence, messages; the attempt is the first message's."""
    lease = Held().lease
    assert (lease.key, lease.owner, lease.fence) == ("k", "A", 7)
    assert isinstance(lease.messages, tuple)  # whatever it was made of
    assert [message.id for message in lease.messages] == ["m1"]
    assert lease.attempt == 2


def test_waiting_is_as_of_the_last_request() -> None:
    """At first what the claim said, then what a renewal brought; 0 is a number too."""
    held = Held()
    assert held.lease.waiting == 3
    held.lease.renew()
    assert held.lease.waiting == 4
    held.heartbeat.extend(held.clock.now().plus(HELD_MS), waiting=0)
    assert held.lease.waiting == 0


def test_stop_says_that_the_invocation_is_nearly_over() -> None:
    """One millisecond before ``stop_before_ms`` it does not, at it it does, and after the end it still does."""
    held = Held(time_left_ms=20_000)
    held.clock.advance(14_999)
    just_before = held.lease.stop
    held.clock.advance(1)
    assert just_before is None
    assert held.lease.stop is Stop.DEADLINE
    assert held.lease.time_left_ms == 5_000
    held.clock.advance(6_000)
    assert held.lease.time_left_ms == 0
    assert held.lease.stop is Stop.DEADLINE


def test_lease_that_is_lost_says_so_first() -> None:
    """Lost and nearly over is lost: writes must stop, not be rounded off."""
    held = Held(time_left_ms=HELD_MS)
    held.clock.advance(HELD_MS)
    assert held.lease.stop is Stop.LOST
    with pytest.raises(LeaseLost):
        held.lease.assert_held()
    with pytest.raises(LeaseLost):
        held.lease.renew()
    with pytest.raises(LeaseLost):
        held.lease.take()
    assert len(held.losses) == 1


def test_no_time_left_is_not_taken_for_unknown() -> None:
    """0 means now; where the end is not known there is no deadline to stop for."""
    # H46: remaining time 0 read as "not set": Powertools #4759.
    assert Held(time_left_ms=0).lease.time_left_ms == 0
    assert Held(time_left_ms=0).lease.stop is Stop.DEADLINE
    unknown = Held(time_left_ms=None).lease
    assert unknown.time_left_ms is None
    assert unknown.stop is None


def test_stop_before_zero_stops_at_the_end() -> None:
    """It may be set to nothing."""
    held = Held(time_left_ms=1_000, stop_before_ms=0)
    held.clock.advance(999)
    just_before = held.lease.stop
    held.clock.advance(1)
    assert just_before is None
    assert held.lease.stop is Stop.DEADLINE


def test_taken_messages_become_part_of_the_run() -> None:
    """They are held from then on, and the next take says so; what the run was started for stays as it was."""
    asked: list[Sequence[str]] = []

    def take(have: Sequence[str]) -> Sequence[Message]:
        asked.append(have)
        return [Message(id=f"m{len(asked) + 1}", event=None, attempt=1)]

    lease = Held(take).lease
    assert [message.id for message in lease.take()] == ["m2"]
    assert [message.id for message in lease.take()] == ["m3"]
    assert asked == [["m1"], ["m1", "m2"]]
    assert [message.id for message in lease.held] == ["m1", "m2", "m3"]
    assert [message.id for message in lease.messages] == ["m1"]


def test_take_that_got_no_answer_loses_nothing() -> None:
    """The next one asks again for all that it does not have."""
    asked: list[Sequence[str]] = []
    answers: list[Callable[..., Sequence[Message]]] = [
        raising(LeaseUnavailable("no answer", key="k")),
        lambda _: [Message(id="m2", event=None, attempt=1)],
    ]

    def take(have: Sequence[str]) -> Sequence[Message]:
        asked.append(have)
        return answers.pop(0)(have)

    lease = Held(take).lease
    with pytest.raises(LeaseUnavailable):
        lease.take()
    assert [message.id for message in lease.take()] == ["m2"]
    assert asked == [["m1"], ["m1"]]


def test_two_threads_that_take_are_not_given_the_same_message() -> None:
    """A store answers with all that the run does not say it has: one take follows the other."""
    first_is_in, go_on = threading.Event(), threading.Event()

    def take(have: Sequence[str]) -> Sequence[Message]:
        if not first_is_in.is_set():
            first_is_in.set()
            assert go_on.wait(PATIENCE_S)
        return [] if "m2" in have else [Message(id="m2", event=None, attempt=1)]

    lease = Held(take).lease
    with beside(lease.take):
        assert first_is_in.wait(PATIENCE_S)
        with beside(lease.take) as second:
            second.join(timeout=0.02)
            go_on.set()
    assert [message.id for message in lease.held] == ["m1", "m2"]


def test_take_within_a_take_is_refused() -> None:
    """As in a signal handler that interrupts one: it would wait for itself."""

    def take(have: Sequence[str]) -> Sequence[Message]:
        if "m2" not in have:
            with pytest.raises(ConfigurationError, match="in a signal handler"):
                lease.take()
        return [] if "m2" in have else [Message(id="m2", event=None, attempt=1)]

    lease = Held(take).lease
    assert [message.id for message in lease.take()] == ["m2"]
    assert lease.take() == []


def test_take_during_which_the_lease_is_lost_gives_nothing() -> None:
    """R12: answered after the deadline: what it brought runs under the next owner."""
    held: Held

    def take(have: Sequence[str]) -> Sequence[Message]:
        held.clock.advance(HELD_MS)
        return [Message(id="m2", event=None, attempt=1)]

    held = Held(take)
    with pytest.raises(LeaseLost):
        held.lease.take()


def test_nothing_is_taken_once_the_invocation_is_over() -> None:
    """M13: a take renews; where the end is not enforced, a loop of them would hold the key for ever."""
    asked: list[Sequence[str]] = []

    def take(have: Sequence[str]) -> Sequence[Message]:
        asked.append(have)
        return []

    held = Held(take, time_left_ms=10_000)
    held.clock.advance(9_999)
    assert held.lease.take() == []
    held.clock.advance(1)
    assert held.lease.take() == []
    assert len(asked) == 1


def test_defer_is_what_the_handler_returns() -> None:
    """It is noted when it is called, and shows itself in a log."""
    lease = Held().lease
    assert not lease.deferred
    assert repr(lease.defer()) == "DEFERRED"
    assert lease.deferred


def test_defer_is_refused_where_nobody_would_go_on() -> None:
    """A provider that stores nothing: the run is told what to do instead."""
    lease = Held(can_defer=False).lease
    with pytest.raises(ConfigurationError, match="raise an error instead"):
        lease.defer()
    assert not lease.deferred


def test_loss_is_told_to_one_callback_once() -> None:
    """At once where it has happened already, never twice, and not to one that was taken back."""
    told: list[str] = []
    held = Held()
    held.lease.when_lost(lambda: told.append("early"))
    held.lease.when_lost(None)
    held.clock.advance(HELD_MS)
    held.lease.when_lost(lambda: told.append("late"))
    held.lease.lost()
    assert told == ["late"]


def test_handle_holds_nothing_once_its_run_has_returned() -> None:
    """A task or a thread that was left behind is told so, and asks nobody: the key may be another run's by now."""
    asked: list[Sequence[str]] = []

    def take(have: Sequence[str]) -> Sequence[Message]:
        asked.append(have)
        return []

    held = Held(take)
    held.lease.end()
    assert held.lease.stop is Stop.LOST
    for use in (held.lease.assert_held, held.lease.renew, held.lease.take):
        with pytest.raises(LeaseLost, match="is over") as over:
            use()
        assert (over.value.key, over.value.owner) == ("k", "A")
    assert asked == []
    assert held.losses == []  # it was not lost


def test_no_lease_outside_of_runs() -> None:
    """Nobody runs here."""
    assert current_lease() is None


def test_current_lease_goes_along_with_awaits_and_with_a_copied_context() -> None:
    """A context variable carries it: to coroutines, tasks and ``to_thread``, to a thread only with its context."""
    # H33: ownership kept in a thread-local: aredis #119, redis-py.
    lease = Held().lease

    async def awaited() -> list[Lease | None]:
        return [
            current_lease(),
            await asyncio.create_task(asyncio.sleep(0, current_lease())),
            await asyncio.to_thread(current_lease),
        ]

    def inside() -> None:
        _CURRENT.set(lease)
        assert asyncio.run(awaited()) == [lease] * 3
        seen: list[Lease | None] = []
        context = contextvars.copy_context()
        with beside(lambda: seen.append(current_lease())), beside(lambda: seen.append(context.run(current_lease))):
            pass
        assert sorted(seen, key=id) == sorted([None, lease], key=id)

    contextvars.copy_context().run(inside)
    assert current_lease() is None
