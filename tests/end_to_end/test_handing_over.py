"""The key is passed from invocation to invocation: in order, never free in between, and each wake runs once."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from incumbent import LambdaWaker, Message, Origin, send
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.invocations import Invocation
from incumbent.providers import from_env
from tests.end_to_end.conftest import RECOVERY, Line, Store

Start = Callable[..., Line]


def waker_of(line: Line) -> LambdaWaker:
    """Wakes functions of the local Lambda."""
    return LambdaWaker(boto3.client("lambda", endpoint_url=line.cloud.url))


def send_all(line: Line, function: str, count: int, **event: Any) -> list[str]:
    """Send so many messages of one key; the first of them wakes the function."""
    waker, ids = waker_of(line), [f"m{number:02}" for number in range(count)]
    for message_id in ids:
        body = {"key": "k", "id": message_id, **event}
        send("k", body, message_id=message_id, target=function, provider=line.store.provider, waker=waker)
    return ids


def hops(line: Line) -> list[int]:
    """How long the chain was at each invocation that a wake started, in order of their beginning."""
    woken = sorted(_woken(line), key=lambda invocation: invocation.started_at_ms)
    return [invocation.event["incumbent"]["hops"] for invocation in woken]


def _woken(line: Line) -> list[Invocation]:
    return [each for each in line.cloud.invocations if "incumbent" in each.event]


@contextmanager
def sampled(store: Store, key: str) -> Iterator[list[str | None]]:
    """Ask the server all the time who owns the key, over a connection of its own."""
    owners: list[str | None] = []
    provider, over = from_env(store.environment), threading.Event()

    def look() -> None:
        while not over.is_set():
            owners.append(provider.get_lease_owner(key))
            SYSTEM_CLOCK.sleep_ms(5 if store.name == "redis" else 25)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield owners
    finally:
        over.set()
        thread.join()


def test_sixty_messages_go_through_a_chain_of_invocations(start: Start, store: Store) -> None:
    """All handled once and in order, the key never free before the last one, every hop counted (M9, M4)."""
    line = start(template=RECOVERY, concurrency=2)
    line.cloud.warm("RelayFunction")
    with sampled(store, "RelayFunction/k") as owners:
        ids = send_all(line, "RelayFunction", 60)
        line.cloud.wait_idle()
    assert line.ran() == [(message_id,) for message_id in ids]
    assert len({fact.request_id for fact in line.facts if fact.fact == "run_started"}) >= 10
    held = [owner is not None for owner in owners]
    first, last = held.index(True), len(held) - 1 - held[::-1].index(True)
    assert all(held[first : last + 1]), "the key was free for a moment"
    assert len(set(owners)) > 10, "hardly anything was sampled"
    assert hops(line) == list(range(len(hops(line))))
    assert line.summary().overlaps == ()
    assert [fact.fact for fact in line.facts if fact.fact in {"chain_cut", "lost", "wake_failed"}] == []
    assert list(store.mailbox.peek("RelayFunction/k")) == []


def test_chain_that_grows_too_long_is_cut_and_resumed_by_the_sweeper(start: Start, store: Store) -> None:
    """After ``max_hops`` nobody is woken, nothing is lost, and the next pass begins a new chain."""
    line = start(template=RECOVERY, concurrency=2, env={"MAX_HOPS": "1"})
    line.cloud.warm("RelayFunction")
    ids = send_all(line, "RelayFunction", 12)
    line.cloud.wait_idle()
    assert hops(line) == [0, 1]
    assert [fact.fact for fact in line.facts][-1] == "chain_cut"
    left = [message.id for message in store.mailbox.peek("RelayFunction/k")]
    assert left == ids[12 - len(left) :]
    assert left

    passes = 0
    while store.mailbox.peek("RelayFunction/k"):
        swept = line.cloud.invoke("SweeperFunction", {}).payload
        assert (swept["found"], swept["woken"], swept["remaining"]) == (1, 1, 0)
        line.cloud.wait_idle()
        passes += 1
    assert hops(line) in ([0, 1] * (passes + 1), [0, 1] * passes + [0])
    assert line.ran() == [(message_id,) for message_id in ids]
    assert line.cloud.invoke("SweeperFunction", {}).payload["found"] == 0


def test_one_long_answer_is_written_by_several_invocations(start: Start, store: Store, tmp_path: Path) -> None:
    """Each is cut by its deadline and defers; there is one answer in the end, and the key was never free."""
    line = start(template=RECOVERY, concurrency=2, env={"DRAFTS": str(tmp_path)})
    line.cloud.warm("NovelFunction")
    with sampled(store, "NovelFunction/k") as owners:
        send_all(line, "NovelFunction", 1)
        line.cloud.wait_idle()
    deferred, handled = line.ran("deferred"), line.ran()
    assert handled == [("m00",)]
    assert len(deferred) >= 3
    assert set(deferred) == {("m00",)}
    assert hops(line) == list(range(len(deferred) + 1))
    published = [each.text for each in line.cloud.logs if each.text.startswith("published")]
    assert published == ["published xxxxxxxxxxxxxxxx for m00"]
    held = [owner is not None for owner in owners]
    assert all(held[held.index(True) : len(held) - held[::-1].index(True)])
    assert {fact.fact for fact in line.facts if fact.fact in {"run_ended", "dead", "lost"}} == {"run_ended"}


def test_invocation_woken_twice_runs_once(start: Start, store: Store) -> None:
    """The same resume event to two workers at once, many times: one of them runs, the other ends quietly (M9)."""
    # H53: asynchronous invocations may be delivered twice.
    line = start(template=RECOVERY, concurrency=2)
    line.cloud.warm("QueueFunction")
    rounds = 100
    for number in range(rounds):
        key, ticket = f"QueueFunction/{number}", f"ticket.{number}"
        event = {"Records": [{"messageId": f"m{number}"}]}
        origin = Origin(keyspace="QueueFunction", target="QueueFunction")
        store.mailbox.claim(key, ticket, 30_000, Message(id=f"m{number}", event=event), as_ticket=True, origin=origin)
        wake = {"incumbent": {"v": 1, "key": key, "ticket": ticket, "hops": 0}}
        both = [line.cloud.submit("QueueFunction", wake) for _ in range(2)]
        ended = [each.result() for each in both]
        answers = sorted(json.dumps(each.payload) for each in ended)
        assert answers == ['{"status": "idle"}', '{"status": "resumed"}'], (number, ended)
    assert line.ran() == [(f"m{number}",) for number in range(rounds)]
    assert line.summary().overlaps == ()
    environments = {each.environment for each in line.cloud.invocations}
    assert len(environments) == 2, "one worker had all of them"
