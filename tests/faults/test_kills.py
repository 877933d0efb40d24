"""SIGKILL before and after each request of a control call, and before the wake that follows it (M14 to M19)."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.testing.contract_calls import (
    CALLS,
    EVERYTHING,
    KEY,
    TTL_MS,
    ContractCall,
    ask,
    bare,
    claim,
    look,
    message,
    release,
)
from incumbent.testing.proxy import Fault, LoseReply, LoseRequest, Pass, Request
from tests.faults.killed import LATER_MS, TARGET, Place, die_at_the_wake, make_call
from tests.faults.stores import DynamoDBStore, Store

# What `stop`, `hold`, `resume`, `cancel`, `lease.note`, `send(after_ms=)`, `wait`, `show` and the runs themselves ask.
KILLED = (
    *("stop", "stop of another tenure", "hold", "hold without an end", "resume", "cancel", "cancel of what runs"),
    *("cancel of a large body", "note", "find", "show", "claim for later as a ticket", "claim for later, routed"),
    *("claim when quiet", "claim that prolongs a burst", "claim that interrupts", "claim that replaces"),
    *("settle stopped", "settle with a result", "settle and hold"),
)
# A repetition is told of what the one that was killed has done, and says so.
TOLD_OTHERWISE = ("resume",)
PATIENCE_MS = 30_000
FAULTS: tuple[Callable[..., Fault], ...] = (LoseRequest, LoseReply)  # before a request, and after it

# Processes are forked from one that has imported everything, and has no threads.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.killed"])

CONTROL = [pytest.param(call, id=call.name.replace(" ", "-")) for call in CALLS if call.name in KILLED]


def place_of(store: Store, *, through_network: bool = True) -> Place:
    """Where another process finds the keys of a store."""
    if isinstance(store, DynamoDBStore):
        port = store.network.port if through_network else int(store.past.meta.endpoint_url.rpartition(":")[2])
        return Place(port=port, prefix=store.prefix, table_name=store.table_name)
    return Place(port=store.network.port, prefix=store.prefix)


def killed_at(store: Store, call: ContractCall, number: int, fault: Callable[..., Fault]) -> bool:
    """Bring the key to where the call matters, and kill the process that makes it. Say whether it came that far."""
    store.begin()
    for step in call.before:
        step(store.bare())
    process = FORKS.Process(target=make_call, args=(place_of(store), call.name))
    requests, started = itertools.count(), threading.Event()

    def kill() -> None:
        started.wait()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)

    def choose(_: Request) -> Fault:
        return fault(meanwhile=kill) if next(requests) == number else Pass()

    store.network.choose(choose)
    process.start()
    started.set()
    process.join(PATIENCE_MS / 1_000)
    store.network.choose(lambda _: Pass())
    assert process.exitcode in (0, 1, -signal.SIGKILL)
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("call", CONTROL)
@pytest.mark.parametrize("store", ["valkey", "dynamodb"], indirect=True)
def test_killed_call_has_happened_or_not_and_can_be_made_again(store: Store, call: ContractCall) -> None:
    """Each is one step (R8): no look finds a half of it, and the same call by another ends as if it were the first."""
    store.begin()
    for step in call.before:
        step(store.bare())
    before = look(store.bare())
    said = [bare(ask(call.call, store.bare())) for _ in range(1 + call.twice)]
    after = look(store.bare())
    seen = []
    for number, fault in ((place // 2, FAULTS[place % 2]) for place in itertools.count()):
        if not killed_at(store, call, number, fault):
            break
        seen.append(look(store.bare()))
        assert seen[-1] in (before, after), (number, fault)
        again = bare(ask(call.call, store.bare()))
        assert again in said or call.name in TOLD_OTHERWISE, (number, fault)
        assert look(store.bare()) == after, (number, fault)
    assert seen[0] == before, "killed before its first request"
    assert seen[-1] == after, "killed after its last one"


def wait_for(found: Callable[[], Any]) -> Any:
    """Ask until there is something."""
    began = SYSTEM_CLOCK.now()
    while not (something := found()):
        assert began.until(SYSTEM_CLOCK.now()) < PATIENCE_MS
        SYSTEM_CLOCK.sleep_ms(20)
    return something


def killed_before_the_wake(store: Store, what: str) -> None:
    """Ask for something, and be killed when the wake is to be sent."""
    process = FORKS.Process(target=die_at_the_wake, args=(place_of(store), what))
    process.start()
    process.join(PATIENCE_MS / 1_000)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("store", ["valkey", "dynamodb"], indirect=True)
def test_message_for_later_whose_sender_died_before_the_wake_is_swept_when_it_is_due(store: Store) -> None:
    """It is promised with the step that stores it (M14), and the sweeper is the clock of the wake that never came."""
    killed_before_the_wake(store, "send")
    (stored,) = store.bare().peek(KEY)
    assert (stored.id, stored.promised) == ("m1", True)
    assert stored.due_at_ms - stored.stored_at_ms == LATER_MS
    (orphan,) = wait_for(lambda: [each for each in store.bare().orphans(EVERYTHING) if each.key == KEY])
    assert (orphan.target, orphan.waiting) == (TARGET, 1)
    assert SYSTEM_CLOCK.now().wall_ms >= stored.due_at_ms


@pytest.mark.parametrize("store", ["valkey", "dynamodb"], indirect=True)
def test_key_whose_resumer_died_before_the_wake_is_swept_at_once(store: Store) -> None:
    """The hold is over all the same (M15)."""
    for step in (claim("A", 1), release("A"), lambda p: p.hold(KEY)):
        step(store.bare())
    store.bare().claim(KEY, "B", TTL_MS, message(2))
    assert [each for each in store.bare().orphans(EVERYTHING) if each.key == KEY] == []
    killed_before_the_wake(store, "resume")
    assert store.bare().show(KEY).held_until_ms is None
    assert wait_for(lambda: [each for each in store.bare().orphans(EVERYTHING) if each.key == KEY])
