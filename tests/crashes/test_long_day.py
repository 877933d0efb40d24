"""Invocations with everything that goes wrong on a long day, and then the books are balanced."""

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from incumbent import is_archive
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import LocalLambda
from incumbent.local.report import Answer, Fact, overlaps, read_facts, runs
from tests.budgets import budget
from tests.crashes.test_matrix import TEMPLATE
from tests.end_to_end.conftest import Store, store

__all__ = ["store"]

KEYS = 50
INVOCATIONS = budget({"redis": 250, "dynamodb": 80}, soak={"redis": 2_000, "dynamodb": 400})
TRIES = 3  # of a source whose invocation fails
POINTS = ("claim.before", "claim.after", "run.begin", "run.end", "settle.before", "settle.after", "wake.before")


class Day:
    """One day, from its seed."""

    def __init__(self, cloud: LocalLambda, asked: Path, facts: list[Fact], seed: int) -> None:
        self.cloud = cloud
        self.asked = asked
        self.facts = facts
        self.chance = random.Random(seed)  # noqa: S311 - a day that can be played again
        self.accepted: set[str] = set()
        self.poison: set[str] = set()
        self.lock = threading.Lock()
        self.over = threading.Event()

    def event(self, number: int) -> dict[str, Any]:
        """A message: one in 100 always fails, one in 200 hangs, most are quick."""
        key, message_id = f"k{self.chance.randrange(KEYS)}", f"m{number}"
        event: dict[str, Any] = {"key": key, "id": message_id, "ms": self.chance.randrange(4)}
        event["takes"] = self.chance.random() < 0.3
        if self.chance.random() < 0.01:
            event["raises"] = True
            self.poison.add(message_id)
        elif self.chance.random() < 0.005:
            event["hangs"] = True
        return event

    def mishap(self, key: str) -> None:
        """Now and then a process is killed at some point, or a wake fails."""
        if self.chance.random() < 0.02:
            (self.asked / f"w!{key}").write_text(self.chance.choice(POINTS), encoding="utf-8")
        if self.chance.random() < 0.05:
            (self.asked / f"w!{key}.wake-fails").touch()

    def deliver(self, event: dict[str, Any], *, asynchronous: bool) -> None:
        """Invoke as a source does: until it is accepted, or it gives up."""
        function = "HurriedFunction" if event.get("hangs") else "WorkerFunction"
        for _ in range(1 if asynchronous else TRIES):
            ended = self.cloud.submit(function, event, asynchronous=asynchronous, label=event["id"]).result()
            if ended.ok:
                with self.lock:
                    self.accepted.add(event["id"])
                return

    def sweep(self) -> None:
        """The sweeper, all day."""
        while not self.over.is_set():
            self.cloud.submit("SweepingFunction", {}, asynchronous=True).result()
            self.over.wait(0.7)


@pytest.fixture
def seed() -> int:
    """``DAY_SEED``, or a fixed one; it is printed, and shown when the test fails."""
    chosen = int(os.environ.get("DAY_SEED", "20261129"))
    print(f"DAY_SEED={chosen}")
    return chosen


@pytest.mark.timeout(600)
def test_what_was_accepted_is_what_was_handled_and_what_is_dead(store: Store, seed: int, tmp_path: Path) -> None:
    """The books balance exactly, in spite of kills, timeouts, failing wakes, poison and duplicates (M3, M6, M8)."""
    facts: list[Fact] = []
    asked = tmp_path / "asked"
    asked.mkdir()

    def heard(line: Any) -> None:
        facts.extend(read_facts(line.text))

    with LocalLambda.from_template(
        TEMPLATE, env={**store.environment, "DIE_AT": str(asked)}, on_log=heard, retry_delays_ms=(50, 100)
    ) as cloud:
        day = Day(cloud, asked, facts, seed)
        sweeper = threading.Thread(target=day.sweep)
        sweeper.start()
        number, sent = 0, 0
        senders: list[threading.Thread] = []
        while sent < INVOCATIONS[store.name]:
            event = day.event(number)
            number += 1
            day.mishap(event["key"])
            for _ in range(2 if day.chance.random() < 0.05 else 1):  # delivered twice
                how = {"asynchronous": day.chance.random() < 0.5}
                senders.append(threading.Thread(target=day.deliver, args=(event,), kwargs=how))
                senders[-1].start()
                sent += 1
            while sum(sender.is_alive() for sender in senders[-40:]) > 12:
                SYSTEM_CLOCK.sleep_ms(2)
        for sender in senders:
            sender.join()
        keys = [f"w/k{number}" for number in range(KEYS)]
        for _ in range(200):
            if not any(store.mailbox.peek(key) for key in keys):
                break
            SYSTEM_CLOCK.sleep_ms(200)
        day.over.set()
        sweeper.join()
        cloud.wait_idle()
        answers = [Answer.of(invocation) for invocation in cloud.invocations]

    assert {key: ids for key in keys if (ids := [message.id for message in store.mailbox.peek(key)])} == {}
    provider: object = store.provider
    assert is_archive(provider)
    dead = {letter.message.id for letter in provider.dead_letters(None, 10_000)}
    handled = Counter(
        message
        for fact in facts
        if fact.fact == "run_ended" and fact.outcome == "handled"
        for message in fact.message_ids
    )
    assert day.accepted - set(handled) - dead == set(), "accepted, and neither handled nor dead"
    assert not set(handled) & day.poison
    lost = {fact.owner for fact in facts if "lost" in (fact.fact, fact.outcome)}  # these knew, and settled nothing
    both = [pair for pair in overlaps(runs(facts, answers)) if not lost & {run.owner for run in pair}]
    assert both == [], "two runs of a key at once, neither of which had lost its lease"
    crashes = sum(invocation.outcome in {"crash", "timeout"} for invocation in cloud.invocations)
    assert crashes > 0, "nothing went wrong on this day"
    print(
        f"{sent} invocations of {number} messages, {crashes} crashes and timeouts, {len(day.accepted)} accepted, "
        f"{len(handled)} handled, {sum(count - 1 for count in handled.values())} of them again, {len(dead)} dead"
    )
