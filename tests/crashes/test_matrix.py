"""SIGKILL at every step of a message's way, under the real runtime client, and what is left of it afterwards."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent import Message, Origin, Policy
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import LocalLambda
from incumbent.local.report import Answer, Fact, overlaps, read_facts, runs
from tests.end_to_end.conftest import Store, store

__all__ = ["store"]

TEMPLATE = Path(__file__).parent / "app" / "template.yaml"
POLICY = Policy(max_attempts=2, pauses_ms=(50,))  # as the worker has it
CALLS = ("claim", "settle", "wake", "redeem")
POINTS = (
    *(f"{call}.{side}" for call in CALLS for side in ("before", "after")),
    "run.begin",
    "run.end",
    "take.before",
    "take.after",
    "beat.before",
    "beat.after",
)
# What DynamoDB does in several requests: the second and later ones of a call.
REQUESTS = (
    *(f"claim.request-1.{side}" for side in ("before", "after")),
    *(f"take.request-{number}.{side}" for number in (1, 2) for side in ("before", "after")),
    *(f"settle.request-{number}.{side}" for number in (1, 2) for side in ("before", "after")),
    *(f"redeem.request-1.{side}" for side in ("before", "after")),
)
SWEEPS = ("sweep.wake.before", "sweep.wake.after", "sweep.before", "sweep.after")
HOLDING = ("settle.before", "settle.after")  # whose first run holds the key (M15)
DEADLY = (
    "settle.before",
    "settle.after",
    "settle.request-1.after",
    "settle.request-2.before",
    "settle.request-2.after",
)


class Matrix:
    """All cells of one store at once: each is a key of its own, with three messages."""

    def __init__(self, cloud: LocalLambda, store: Store, asked: Path, facts: list[Fact]) -> None:
        self.cloud = cloud
        self.store = store
        self.asked = asked
        self.facts = facts
        self.keys: dict[str, str] = {}
        self.left: dict[str, Path] = {}

    def begin(self, point: str, *, deadly: bool = False, holding: bool = False) -> str:
        """Send the first of three messages, to be killed at the point; return the cell's key."""
        key = f"{'deadly.' if deadly else ''}{'holding.' if holding else ''}{point}"
        self.keys[key] = point
        self.left[key] = self.asked / f"w!{key}"
        self.left[key].write_text(point, encoding="utf-8")
        ms = 900 if "beat" in point else 0
        first = {"key": key, "id": f"{key}:1", "ms": ms, "takes": "take" in point, "first": True, "holds": holding}
        self.cloud.submit("WorkerFunction", first, asynchronous=True, label=str(first["id"]))
        return key

    def follow(self, key: str) -> None:
        """Send the other two, one after the other; of a deadly cell, the second always fails."""
        for number in (2, 3):
            fails = key.startswith("deadly.") and number == 2
            event = {"key": key, "id": f"{key}:{number}", "takes": "take" in key, "raises": fails}
            self.cloud.submit("WorkerFunction", event, asynchronous=True, label=str(event["id"])).result()
        (self.asked / f"{key}.followed").touch()

    def play(self, points: list[str], *, deadly: bool = False, holding: bool = False) -> None:
        """Four cells at a time, so that there are environments left for those who follow."""
        for some in (points[start : start + 4] for start in range(0, len(points), 4)):
            keys = [self.begin(point, deadly=deadly, holding=holding) for point in some]
            began = SYSTEM_CLOCK.now()
            while waits := [key for key in keys if not self.has_begun(key)]:
                SYSTEM_CLOCK.sleep_ms(5)
                assert began.until(SYSTEM_CLOCK.now()) < 60_000, "\n".join(map(str, self.told_of(waits)))
            for key in keys:
                self.follow(key)

    def told_of(self, keys: list[str]) -> list[object]:
        """The facts of these keys, and the invocations of their messages."""
        facts = [fact for fact in list(self.facts) if fact.key.removeprefix("w/") in keys]
        return [*facts, *(each for each in self.cloud.invocations if each.label.partition(":")[0] in keys)]

    def has_begun(self, key: str) -> bool:
        """Whether the first message of a key owns it, or has died."""
        return not self.left[key].exists() or any(
            fact.fact == "run_started" and fact.key == f"w/{key}" for fact in list(self.facts)
        )

    def plant(self, key: str) -> None:
        """Leave a message behind whose owner is gone at once, so that the sweeper has somebody to wake."""
        self.keys[key] = key
        message = Message(id=f"{key}:1", event={"key": key, "id": f"{key}:1"})
        origin = Origin(target="WorkerFunction")
        self.store.mailbox.claim(f"w/{key}", "gone", 30_000, message, as_ticket=True, origin=origin, policy=POLICY)
        self.store.provider.release_lease(f"w/{key}", "gone")

    def recover(self) -> None:
        """Let time pass and the sweeper sweep, killed at each of its points, until nothing waits."""
        sweeper, points = self.asked / "sweep", list(SWEEPS)
        for _ in range(60):
            self.cloud.wait_idle()
            if points and not sweeper.exists():
                sweeper.write_text(points.pop(0), encoding="utf-8")
                self.plant(f"orphan-{len(points)}")
            if not sweeper.exists() and not any(self.store.mailbox.peek(f"w/{key}") for key in self.keys):
                return
            SYSTEM_CLOCK.sleep_ms(300)
            self.cloud.submit("SweepingFunction", {}, asynchronous=True).result()
        waits = {key: [m.id for m in self.store.mailbox.peek(f"w/{key}")] for key in self.keys}
        raise AssertionError(f"never recovered: { {key: ids for key, ids in waits.items() if ids} }")


@pytest.fixture
def matrix(store: Store, tmp_path: Path) -> Iterator[Matrix]:
    """The application with its points."""
    facts: list[Fact] = []
    asked = tmp_path / "asked"
    asked.mkdir()

    def heard(line: Any) -> None:
        facts.extend(read_facts(line.text))

    with LocalLambda.from_template(
        TEMPLATE,
        env={**store.environment, **store.patient, "DIE_AT": str(asked)},
        on_log=heard,
        retry_delays_ms=(50, 100),
    ) as cloud:
        yield Matrix(cloud, store, asked, facts)


def accepted(cloud: LocalLambda) -> set[str]:
    """The messages for which some source was told "accepted", or that were run for it."""
    return {invocation.label for invocation in cloud.invocations if invocation.label and invocation.ok}


def deliveries(facts: list[Fact], key: str) -> Counter[str]:
    """How often each message of a key was given to a run."""
    return Counter(
        message
        for fact in facts
        if fact.fact == "run_started" and fact.key == f"w/{key}"
        for message in fact.message_ids
    )


def handled(facts: list[Fact], key: str, *, attempt: int | None = None) -> list[str]:
    """The messages of a key in the order in which runs of them ended well: all, or those of one attempt."""
    return [
        message
        for fact in sorted(facts, key=lambda fact: fact.t_ms)
        if fact.fact == "run_ended" and fact.outcome == "handled" and fact.key == f"w/{key}"
        if attempt is None or fact.attempt == attempt
        for message in fact.message_ids
    ]


def test_killed_at_any_step_nothing_is_lost(matrix: Matrix) -> None:
    """All promised messages are handled, in order but for the one in hand, which has one more delivery (M3, M4)."""
    # H32, H40: a crash between any two steps leaves a state that the next one can use.
    points = [*POINTS, *(REQUESTS if matrix.store.name == "dynamodb" else ())]
    matrix.play(points)
    matrix.play(list(DEADLY if matrix.store.name == "dynamodb" else DEADLY[:2]), deadly=True)
    matrix.play(list(HOLDING), holding=True)
    matrix.recover()

    # A second request is spared where a renewal, which comes when it comes, has told already what waits.
    untouched = [key for key, file in matrix.left.items() if file.exists() and "request-2" not in key]
    assert untouched == [], "points that no process ever came to"
    assert all((matrix.asked / f"holding.{point}.held").exists() for point in HOLDING)
    told = accepted(matrix.cloud)
    dead = {letter.message.id for letter in archive(matrix.store).dead_letters(None, 1_000)}
    for key in matrix.keys:
        done = handled(matrix.facts, key)
        for number in (1, 2, 3):
            message = f"{key}:{number}"
            assert message in done or message in dead or message not in told, f"{message} is lost"
            most = 2 if number == 1 or message not in dead else 3
            assert deliveries(matrix.facts, key)[message] <= most + (key.startswith("deadly.") and number == 2)
        # What was in hand when the process died is attempt 2 and goes behind those that never ran; these keep their
        # order (M6). Where the process died before it had stored the first message, that one came later; so did one
        # that has held the key, if its source brought it again.
        firsts = handled(matrix.facts, key, attempt=1)
        stored_late = key in {"claim.before", "claim.request-1.before"} or key.startswith("holding.")
        ordered = [message for message in firsts if not stored_late or message != f"{key}:1"]
        assert ordered == sorted(ordered), f"{key}: out of order"
        assert matrix.store.provider.get_lease_owner(f"w/{key}") is None
    answers = [Answer.of(invocation) for invocation in matrix.cloud.invocations]
    assert overlaps(runs(matrix.facts, answers)) == ()


def archive(store: Store) -> Any:
    """The store, as one that keeps dead letters."""
    return store.provider
