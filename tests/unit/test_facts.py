"""What each fact says, as a whole: a field that is missing or wrong misleads the reader of an alarm."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import Fact, Lease, LeaseLost, LeaseUnavailable, Message, NoopLeaseProvider, Policy, Wake
from incumbent.settings import Settings
from tests.unit.stage import Little, Meddled, RecordingWaker, raising
from tests.unit.test_runs import KEY, PAUSE_MS, TTL_MS, Line, arrivals

SHORT = {"request_id": "by", "message_id": "own", "message_ids": "ids"}
RANDOM = re.compile(r"(?:request-)?([\w-]+)\.[0-9a-f]{20,}")


def told(line: Line) -> list[str]:
    """All facts so far, a line each: the ms since the first, the name, and the fields that are set.

    An owner stands without its random end, and a fence as its place among the fences.
    """
    facts = line.facts.told
    fences = sorted({fact.fence for fact in facts if fact.fence})
    assert {(fact.key, fact.keyspace) for fact in facts} == {(KEY, "orders")}
    lines = []
    for fact in facts:
        said = {name: getattr(fact, name) for name in Fact.__annotations__ if name not in {"key", "keyspace"}}
        begun = f"{said.pop('t_ms') - facts[0].t_ms} {said.pop('fact')}"
        said["fence"] = fences.index(fact.fence) + 1 if fact.fence else fact.fence
        said["message_ids"] = "+".join(fact.message_ids) or None
        said["error"] = fact.error and fact.error[:25]
        named = " ".join(f"{SHORT.get(name, name)}={value}" for name, value in said.items() if value is not None)
        lines.append(RANDOM.sub(r"\1", f"{begun} {named}").replace("by=request-", "by="))
    return lines


def taking(line: Line, ms: int, then: Callable[[Message, Lease], Any] | None = None) -> Callable[[Message, Lease], Any]:
    """A run that takes so long."""

    def run(message: Message, lease: Lease) -> Any:
        line.clock.advance(ms)
        return None if then is None else then(message, lease)

    return run


def test_hand_over() -> None:
    """A run behind which a message came, and the run of that message."""
    line = Line(waker=RecordingWaker())
    line.during = {"m1": taking(line, 400, arrivals(line, "m2")), "m2": taking(line, 30)}
    line.come("m1", synchronous=True)
    line.clock.advance(100)
    assert line.waker is not None
    line.resume(line.waker.wakes[0])
    assert told(line) == [
        "0 claimed by=m1 owner=m1 fence=1 own=m1 ids=m1 waiting=0",
        "0 run_started by=m1 owner=m1 fence=1 own=m1 ids=m1 attempt=1 waited_ms=0",
        "400 routed by=m2 own=m2 holder=m1 waiting=2",
        "400 run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=handled attempt=1 ms=400",
        "400 continued by=m1 owner=ticket fence=2 own=m1 holder=m1 waiting=1",
        "400 handed_over by=m1 owner=ticket own=m1 ms=400",
        "500 claimed by=resume-1 owner=resume-1 fence=3 ids=m2 waiting=0",
        "500 run_started by=resume-1 owner=resume-1 fence=3 ids=m2 attempt=1 waited_ms=100",
        "530 run_ended by=resume-1 owner=resume-1 fence=3 ids=m2 outcome=handled attempt=1 ms=30",
        "530 released by=resume-1 owner=resume-1 fence=3 waiting=0 ms=30",
    ]


def test_wake_that_failed() -> None:
    """The message runs in place; its caller has what it wanted."""
    line = Line(waker=RecordingWaker(fails=ConnectionError("no route")))
    line.during["m1"] = arrivals(line, "m2")
    line.come("m1", synchronous=True)
    assert told(line) == [
        "0 claimed by=m1 owner=m1 fence=1 own=m1 ids=m1 waiting=0",
        "0 run_started by=m1 owner=m1 fence=1 own=m1 ids=m1 attempt=1 waited_ms=0",
        "0 routed by=m2 own=m2 holder=m1 waiting=2",
        "0 run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=handled attempt=1 ms=0",
        "0 continued by=m1 owner=ticket fence=2 own=m1 holder=m1 waiting=1",
        "0 wake_failed by=m1 owner=ticket own=m1 error=ConnectionError: no route",
        "0 run_started by=m1 owner=m1 fence=3 own=m1 ids=m2 attempt=1 waited_ms=0",
        "0 run_ended by=m1 owner=m1 fence=3 own=m1 ids=m2 outcome=handled attempt=1 ms=0",
        "0 released by=m1 owner=m1 fence=3 own=m1 waiting=0 ms=0",
    ]


def test_ticket_that_cannot_be_taken_back() -> None:
    """The store is down."""
    line = Line(waker=RecordingWaker(fails=ConnectionError("no route")))
    assert line.waker is not None
    line.waker.meanwhile = lambda _: line.store.before.update(claim=raising(LeaseUnavailable("down", key=KEY)))
    line.during["m1"] = arrivals(line, "m2")
    line.come("m1", synchronous=True)
    assert told(line)[4:] == [
        "0 continued by=m1 owner=ticket fence=2 own=m1 holder=m1 waiting=1",
        "0 wake_failed by=m1 owner=ticket own=m1 error=ConnectionError: no route",
        "0 store_error by=m1 owner=ticket own=m1 error=LeaseUnavailable: down",
    ]


def test_chain_that_is_cut() -> None:
    """Nothing is handed over."""
    line = Line(waker=RecordingWaker(), settings=Settings(max_hops=3, drain_ms=0))
    line.leave("m1", "m2")
    line.resume(Wake(key=KEY, ticket=None, target=None, hops=3))
    assert told(line) == [
        "0 claimed by=resume-3 owner=resume-3 fence=1 ids=m1 waiting=1",
        "0 run_started by=resume-3 owner=resume-3 fence=1 ids=m1 attempt=1 waited_ms=0",
        "0 run_ended by=resume-3 owner=resume-3 fence=1 ids=m1 outcome=handled attempt=1 ms=0",
        "0 released by=resume-3 owner=resume-3 fence=1 waiting=1 ms=0",
        "0 chain_cut by=resume-3 waiting=1 error=3 invocations woke one an",
    ]


def test_next_run_in_place() -> None:
    """Without a waker."""
    line = Line()
    line.leave("m1", "m2")
    line.during["m1"] = taking(line, 40)
    line.come("m3")
    assert told(line) == [
        "0 claimed by=m3 owner=m3 fence=1 own=m3 ids=m1 waiting=2",
        "0 run_started by=m3 owner=m3 fence=1 own=m3 ids=m1 attempt=1 waited_ms=0",
        "40 run_ended by=m3 owner=m3 fence=1 own=m3 ids=m1 outcome=handled attempt=1 ms=40",
        "40 continued by=m3 owner=m3 fence=2 own=m3 holder=m3 waiting=1",
        "40 run_started by=m3 owner=m3 fence=2 own=m3 ids=m2 attempt=1 waited_ms=40",
        "40 run_ended by=m3 owner=m3 fence=2 own=m3 ids=m2 outcome=handled attempt=1 ms=0",
        "40 continued by=m3 owner=m3 fence=3 own=m3 holder=m3 waiting=0",
        "40 run_started by=m3 owner=m3 fence=3 own=m3 ids=m3 attempt=1 waited_ms=40",
        "40 run_ended by=m3 owner=m3 fence=3 own=m3 ids=m3 outcome=handled attempt=1 ms=0",
        "40 released by=m3 owner=m3 fence=3 own=m3 waiting=0 ms=40",
    ]


def test_failures_until_death() -> None:
    """Each run says which it is, and the last is followed by the death."""
    line = Line(settings=Settings(policy=Policy(max_attempts=2)))
    line.leave("m1")
    line.during["m1"] = taking(line, 7, raising(ValueError("no")))
    wake = Wake(key=KEY, ticket=None, target=None, hops=1)
    line.resume(wake)
    line.clock.advance(PAUSE_MS)
    line.resume(wake)
    assert told(line) == [
        "0 claimed by=resume-1 owner=resume-1 fence=1 ids=m1 waiting=0",
        "0 run_started by=resume-1 owner=resume-1 fence=1 ids=m1 attempt=1 waited_ms=0",
        "7 run_ended by=resume-1 owner=resume-1 fence=1 ids=m1 outcome=failed attempt=1 ms=7 error=ValueError: no",
        "7 released by=resume-1 owner=resume-1 fence=1 waiting=1 ms=7",
        "1007 claimed by=resume-1 owner=resume-1 fence=2 ids=m1 waiting=0",
        "1007 run_started by=resume-1 owner=resume-1 fence=2 ids=m1 attempt=2 waited_ms=1007",
        "1014 run_ended by=resume-1 owner=resume-1 fence=2 ids=m1 outcome=failed attempt=2 ms=7 error=ValueError: no",
        "1014 dead by=resume-1 ids=m1 attempt=2 error=ValueError: no",
        "1014 released by=resume-1 owner=resume-1 fence=2 waiting=0 ms=7",
    ]


def test_death_that_a_claim_finds() -> None:
    """A message whose every run was cut off dies by the next claim."""
    line = Line(settings=Settings(policy=Policy(max_attempts=1)))
    line.store.claim(KEY, "cut-off", TTL_MS, Message(id="m1", event={}), policy=line.settings.policy)
    line.clock.advance(TTL_MS + PAUSE_MS)
    line.resume(Wake(key=KEY, ticket=None, target=None, hops=1))
    assert told(line) == [
        "0 dead by=resume-1 ids=m1 attempt=1",
        "0 idle by=resume-1",
    ]


def test_message_that_comes_twice() -> None:
    """The second is told who runs the first."""
    line = Line()
    line.during["m1"] = lambda *_: line.come("m1")
    line.come("m1")
    assert told(line)[2:3] == [
        "0 duplicate by=m1 own=m1 holder=m1 outcome=running",
    ]


def test_wake_behind_an_owner_and_wake_for_nothing() -> None:
    """Neither runs."""
    line = Line()
    wake = Wake(key=KEY, ticket=None, target=None, hops=1)
    line.during["m1"] = lambda *_: line.resume(wake)
    line.come("m1")
    line.resume(wake)
    assert [each for each in told(line) if "by=resume-1" in each] == [
        "0 busy by=resume-1 holder=m1",
        "0 idle by=resume-1",
    ]


def test_run_that_loses_its_lease() -> None:
    """Who took the key is told."""
    line = Line()

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(5)
        line.steal()
        lease.renew()

    line.during["m1"] = during
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert told(line)[2:] == [
        "5 lost by=m1 owner=m1 fence=1 own=m1 holder=thief error=beat of key 'orders/k': o",
        "5 run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=lost attempt=1 ms=5 error=LeaseLost: beat of key 'o",
    ]


def test_settle_that_finds_the_lease_lost() -> None:
    """The run itself has noticed nothing."""
    line = Line()
    line.during["m1"] = lambda *_: line.steal()
    with pytest.raises(LeaseLost):
        line.come("m1")
    assert told(line)[2:] == [
        "0 run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=handled attempt=1 ms=0",
        "0 lost by=m1 owner=m1 fence=1 own=m1 holder=thief error=settle of key 'orders/k':",
    ]


def test_long_run_that_is_asked_to_stop() -> None:
    """Each renewal of a run longer than its ttl says so; the mark comes with its reason."""
    line = Line()

    def during(message: Message, lease: Lease) -> None:
        for _ in range(4):  # each a third of the ttl, or a little less
            line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()
        line.store.stop(KEY, reason="a correction")
        lease.renew()

    line.during["m1"] = during
    line.come("m1", time_left_ms=None)
    assert [re.sub(r"\b[34]\d{4}\b", "LONG", each) for each in told(line)[2:]] == [
        "LONG holding by=m1 owner=m1 fence=1 own=m1 ms=LONG",
        "LONG holding by=m1 owner=m1 fence=1 own=m1 ms=LONG",
        "LONG stop_asked by=m1 owner=m1 fence=1 own=m1 error=a correction",
        "LONG run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=handled attempt=1 ms=LONG",
        "LONG released by=m1 owner=m1 fence=1 own=m1 waiting=0 ms=LONG",
    ]


def test_renewals_that_fail() -> None:
    """The run goes on, and the failure is told with its owner."""
    line = Line()

    def during(message: Message, lease: Lease) -> None:
        line.clock.advance(TTL_MS // 2)
        line.store.before["beat"] = raising(LeaseUnavailable("down", key=KEY))

    line.during["m1"] = during
    line.come("m1", time_left_ms=20_000)  # which needs no renewal before that of the settle
    assert told(line)[2:] == [
        "15000 run_ended by=m1 owner=m1 fence=1 own=m1 ids=m1 outcome=handled attempt=1 ms=15000",
        "15000 store_error by=m1 owner=m1 own=m1 error=LeaseUnavailable: down",
        "15000 released by=m1 owner=m1 fence=1 own=m1 waiting=0 ms=15000",
    ]


def test_store_that_only_leases() -> None:
    """It has no fence and nothing that waits."""
    line = Line()
    provider = line.store
    line.store = Little(provider)
    line.during["m1"] = lambda *_: line.come("m2")
    line.store.peek = provider.peek
    line.come("m1")
    assert told(line) == [
        "0 claimed by=m1 owner=m1 fence=0 own=m1 ids=m1",
        "0 run_started by=m1 owner=m1 fence=0 own=m1 ids=m1 attempt=1 waited_ms=0",
        "0 busy by=m2 own=m2 holder=m1",
        "0 run_ended by=m1 owner=m1 fence=0 own=m1 ids=m1 outcome=handled attempt=1 ms=0",
        "0 released by=m1 owner=m1 fence=0 own=m1 waiting=0 ms=0",
    ]


def test_release_that_fails() -> None:
    """The lease ends by itself."""
    line = Line()
    meddled = Meddled(Little(line.store))
    meddled.before["release_lease"] = raising(LeaseUnavailable("down", key=KEY))
    line.store = meddled
    line.come("m1")
    assert told(line)[3:] == [
        "0 store_error by=m1 owner=m1 own=m1 error=LeaseUnavailable: down",
    ]


def test_store_without_an_answer_to_a_follow_up() -> None:
    """This invocation has its answer; the failure is told with the owner of the run."""
    line = Line()
    line.during["m1"] = arrivals(line, "m2")
    line.during["m2"] = lambda *_: line.store.before.update(settle=raising(LeaseUnavailable("down", key=KEY)))
    line.come("m1")
    assert told(line)[6:] == [
        "0 run_ended by=m1 owner=m1 fence=2 own=m1 ids=m2 outcome=handled attempt=1 ms=0",
        "0 store_error by=m1 owner=m1 own=m1 error=LeaseUnavailable: down",
    ]


ALL = Settings(deliver="all")


def test_messages_that_cannot_be_gathered() -> None:
    """The run begins without them, and they run next."""
    line = Line(settings=ALL)
    line.leave("m1", "m2")
    line.store.before["take"] = raising(LeaseUnavailable("down", key=KEY))
    line.during["m1"] = lambda *_: line.store.before.clear()
    line.resume(Wake(key=KEY, ticket=None, target=None, hops=1))
    assert told(line)[:3] == [
        "0 claimed by=resume-1 owner=resume-1 fence=1 ids=m1 waiting=1",
        "0 store_error by=resume-1 owner=resume-1 error=LeaseUnavailable: down",
        "0 run_started by=resume-1 owner=resume-1 fence=1 ids=m1 attempt=1 waited_ms=0",
    ]


def test_lease_that_is_lost_before_all_are_gathered() -> None:
    """No run begins."""
    line = Line(settings=ALL)
    line.leave("m1", "m2")
    line.store.before["take"] = line.steal
    with pytest.raises(LeaseLost):
        line.resume(Wake(key=KEY, ticket=None, target=None, hops=1))
    assert told(line)[1:] == [
        "0 lost by=resume-1 owner=resume-1 fence=1 holder=thief error=take of key 'orders/k': o",
    ]


def test_stop_that_comes_before_all_are_gathered() -> None:
    """It is told, and the run may look at it."""
    line = Line(settings=ALL)
    line.leave("m1", "m2")
    line.store.before["take"] = lambda: line.store.stop(KEY, reason="why")
    line.during["m1"] = lambda *_: line.store.before.clear()
    line.resume(Wake(key=KEY, ticket=None, target=None, hops=1))
    assert told(line)[1:3] == [
        "0 stop_asked by=resume-1 owner=resume-1 fence=1 error=why",
        "0 run_started by=resume-1 owner=resume-1 fence=1 ids=m1 attempt=1 waited_ms=0",
    ]


def test_burst_that_cannot_be_gathered() -> None:
    """It is waited for in place, until the store gives no answer."""
    line = Line(settings=Settings(deliver="all", debounce_ms=1_000, debounce_max_ms=5_000))
    line.store.before["take"] = raising(LeaseUnavailable("down", key=KEY))
    line.come("m1")
    assert told(line)[:3] == [
        "0 claimed by=m1 owner=m1 fence=1 own=m1 ids=m1 waiting=0",
        "1000 store_error by=m1 owner=m1 own=m1 error=LeaseUnavailable: down",
        "1000 run_started by=m1 owner=m1 fence=1 own=m1 ids=m1 attempt=1 waited_ms=1000",
    ]


def test_burst_without_a_store() -> None:
    """There is nothing to wait for."""
    line = Line(store=NoopLeaseProvider(), settings=Settings(deliver="all", debounce_ms=1_000))
    line.serve(line.call("m1"), lambda *_: None)
    assert told(line) == [
        "0 claimed by=m1 owner=m1 fence=0 own=m1 ids=m1",
        "0 run_started by=m1 owner=m1 fence=0 own=m1 ids=m1 attempt=1 waited_ms=0",
        "0 run_ended by=m1 owner=m1 fence=0 own=m1 ids=m1 outcome=handled attempt=1 ms=0",
        "0 released by=m1 owner=m1 fence=0 own=m1 waiting=0 ms=0",
    ]


def test_result_that_cannot_be_looked_up() -> None:
    """It may still come."""
    line = Line(settings=Settings(when_busy="wait", wait_ms=100, policy=Policy(result_bytes=100)))

    def during(message: Message, lease: Lease) -> None:
        line.store.before["find"] = raising(LeaseUnavailable("down", key=KEY))
        line.come("m2")

    line.during["m1"] = during
    line.come("m1")
    assert [re.sub(r"^\d+", "T", each) for each in told(line)[3:5]] == [
        "T store_error by=m2 own=m2 error=LeaseUnavailable: down",
        "T store_error by=m2 own=m2 error=LeaseUnavailable: down",
    ]


def test_messages_that_cannot_be_taken_at_first_are_reported() -> None:
    """The run begins with its own, and takes the others when the store answers."""
    line = Line(settings=Settings(deliver="all"))
    line.leave("m1")
    line.store.before["take"] = raising(LeaseUnavailable("down", key=KEY))
    line.come("m2")
    assert any("store_error" in each and "error=LeaseUnavailable: down" in each for each in told(line))
