"""What must hold on every store: each wake runs once, no outage kills a message, nothing stays behind."""

import contextlib
import dataclasses
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import Lease, Message, Origin, Policy, Wake, leased, rules, send
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.sweeper import sweep
from tests.budgets import budget
from tests.end_to_end.stores import STORES, ObservedStore
from tests.unit.stage import context

TTL_MS = 30_000
ORIGIN = Origin(keyspace="k", target="handler")
LEFT_MS = 8_000  # of an invocation: less than a renewal takes, so that no heartbeat moves a clock


def sent(observed: ObservedStore, full_key: str, **event: Any) -> str:
    """Store a promised message on a free key; return the ticket that its function would be woken with."""
    ticket, message = f"ticket.of-{event['id']}", Message(id=event["id"], event=event)
    observed.provider.claim(full_key, ticket, TTL_MS, message, as_ticket=True, origin=ORIGIN, policy=POLICY)
    return ticket


def handler_of(observed: ObservedStore, work: Callable[..., Any], **options: Any) -> Callable[[Any, str], Any]:
    """Decorate a handler; return what invokes it under a request id."""
    chosen: dict[str, Any] = {"key_jmespath": "key", "keyspace": "k", "target": "handler", "waker": None, **options}

    @leased(message_id_jmespath="id", provider=observed.provider, clock=observed.clock, **chosen)
    def handler(event: dict[str, Any], _context: object, **more: Lease) -> Any:
        return work(event, more["lease"])

    def invoke(event: Any, request_id: str) -> Any:
        return handler(event, context(observed.clock, time_left_ms=LEFT_MS, request_id=request_id))

    return invoke


def test_wake_that_arrives_twice_at_once_runs_once(observed: ObservedStore) -> None:
    """The same resume event to two workers at one moment, a hundred times (M9)."""
    # H53: asynchronous invocations may be delivered twice.
    rounds = 100
    runs: Counter[str] = Counter()

    def work(event: dict[str, Any], _: Lease) -> None:
        runs[event["id"]] += 1

    invoke = handler_of(observed, work)
    barrier = threading.Barrier(2)
    answers: list[str] = []

    def worker(number: int) -> None:
        for round_no in range(rounds):
            wake = Wake(key=f"k/{round_no}", ticket=f"ticket.of-m{round_no}", target=None)
            barrier.wait(timeout=20)
            if number == 0:
                sent(observed, wake.key, id=f"m{round_no}")
            barrier.wait(timeout=20)
            answers.append(invoke(wake.to_event(), f"worker-{number}")["status"])

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs == {f"m{number}": 1 for number in range(rounds)}
    assert Counter(answers) == {"resumed": rounds, "idle": rounds}


def test_outage_of_twenty_seconds_leaves_no_dead_letters(observed: ObservedStore) -> None:
    """Every message fails while what the handler calls is down, and each is handled once when it is back (M6)."""
    gone_ms = 0
    handled: list[str] = []
    attempts: list[int] = []

    def work(event: dict[str, Any], lease: Lease) -> None:
        attempts.append(lease.attempt)
        if gone_ms < 20_000:
            raise ConnectionError("the model is down")
        handled.append(event["id"])

    invoke = handler_of(observed, work)
    sent(observed, "k/a", id="m0")
    for number in range(1, 4):
        message = Message(id=f"m{number}", event={"id": f"m{number}"})
        observed.provider.claim("k/a", f"sender {number}", TTL_MS, message)
    observed.provider.release_lease("k/a", "ticket.of-m0")

    def wake(wake: Wake, /) -> None:
        invoke({**wake.to_event()}, f"swept after {gone_ms}")

    while len(handled) < 4:
        assert gone_ms <= 90_000, (handled, attempts)
        sweep(observed.provider, wake, clock=observed.clock)
        observed.pass_time(5_000)
        gone_ms += 5_000
    assert handled == ["m0", "m1", "m2", "m3"]
    assert max(attempts) < Policy().max_attempts
    assert list(observed.provider.dead_letters("k/a", 10)) == []
    assert list(observed.provider.peek("k/a")) == []


HTTP = {"requestContext": {"http": {"method": "POST"}, "requestId": "r"}}
LARGE = "x" * 3_000  # more than stands in a DynamoDB item beside the lease
POLICY = Policy(max_attempts=2, pauses_ms=(1_000,))
KINDS = ("plain", "plain", "http", "takes", "raises", "fails once", "defers", "dies")
KEYS = 5  # so that on each many of every kind meet
RUNS = {
    "memory": 1_000,
    "redis": budget(500, soak=5_000),
    "dynamodb": budget(100, soak=1_000),
    "dynalite": budget(200, soak=2_000),
}


class Mixture:
    """A handler to which everything happens, and a waker that keeps wakes until they are delivered."""

    def __init__(self, observed: ObservedStore) -> None:
        self.observed = observed
        self.invoke = handler_of(observed, self.work, waker=self.wakes_later, policy=POLICY)
        self.wakes: list[Wake] = []
        self.runs = 0
        self.deferred: set[str] = set()
        self.died: set[str] = set()

    def wakes_later(self, wake: Wake, /) -> None:
        """Keep a wake."""
        self.wakes.append(wake)

    def work(self, event: dict[str, Any], lease: Lease) -> Any:
        """Do what the event says."""
        self.runs += 1
        for number in range(event.get("meanwhile", 0)):
            arrives = {"key": event["key"], "id": f"{event['id']}+{number}", "fill": event["fill"]}
            self.invoke(arrives, f"meanwhile {self.runs}+{number}")
        kind = event.get("kind")
        if kind == "takes":
            lease.take()
        if kind in {"raises", "dies"} or (kind == "fails once" and lease.attempt == 1):
            raise ValueError(kind)
        if kind == "defers" and event["id"] not in self.deferred:
            self.deferred.add(event["id"])
            return lease.defer()
        return "done"

    def bring(self, number: int, kind: str, fill: str) -> None:
        """One message of that kind, and all wakes that come of it."""
        event: dict[str, Any] = {"key": str(number % KEYS), "id": f"m{number}", "kind": kind, "fill": fill}
        if kind in {"fails once", "dies"}:  # promised, so that the mailbox retries it
            full = f"k/{event['key']}"
            self.wakes.append(Wake(key=full, ticket=sent(self.observed, full, **event), target=None))
            self.died |= {event["id"]} if kind == "dies" else set()
        else:
            more = HTTP if kind == "http" else {}
            meanwhile = 2 if kind in {"http", "takes"} else 0
            with contextlib.suppress(ValueError):
                self.invoke({**event, **more, "meanwhile": meanwhile}, f"r{number}")
        self.deliver()

    def deliver(self) -> None:
        """Deliver all wakes, and those that come of them."""
        while self.wakes:
            self.invoke(self.wakes.pop(0).to_event(), f"w{self.runs}")

    def sweep(self) -> int:
        """Let pauses pass, and wake whoever left something behind."""
        self.observed.pass_time(1_500)
        swept = sweep(self.observed.provider, self.wakes_later, clock=self.observed.clock)
        self.deliver()
        return swept.found


def test_nothing_stays_behind_after_many_mixed_runs(observed: ObservedStore) -> None:
    """Small, large, failed, dropped, deferred, handed over, dead: what is left at the end goes by itself (H59, H60)."""
    chance = random.Random(4)  # noqa: S311 - repeatable is what it must be
    mixture = Mixture(observed)
    number = 0
    while mixture.runs < RUNS[observed.name]:
        number += 1
        mixture.bring(number, chance.choice(KINDS), chance.choice(("", LARGE)))
        if number % 25 == 0:
            mixture.sweep()
    while mixture.sweep():
        pass

    keys = [f"k/{number}" for number in range(KEYS)]
    letters = [letter.message.id for key in keys for letter in observed.provider.dead_letters(key, number)]
    assert sorted(letters) == sorted(mixture.died)
    assert [message for key in keys for message in observed.provider.peek(key)] == []
    left = observed.left()
    assert [name for name, goes in left.items() if not goes] == []
    kinds = Counter(kind_of(name) for name in left)
    assert set(kinds) <= {"state", "ended", "dead", "letters"}
    assert kinds["state"] <= len(keys)
    for key in keys:
        for message_id in mixture.died:
            observed.provider.purge(key, message_id)
    assert {kind_of(name) for name in observed.left()} <= {"state", "ended"}


def kind_of(name: str) -> str:
    """What a record is: a companion of a lease in Redis, an item of DynamoDB."""
    item = name.partition(" ")[2]
    if not item:
        return name.rpartition(":")[2] if name.startswith("{") else "lease"
    return {"lease": "state", "ended": "ended", "dead": "dead", "body": "body"}[item.partition("#")[0]]


class Recorded:
    """A provider that notes the names of its calls."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._provider, name)

        def call(*args: Any, **more: Any) -> Any:
            self.calls.append(name)
            return method(*args, **more)

        return call


@pytest.mark.parametrize("observed", [name for name in STORES if name != "memory"], indirect=True)
def test_handing_over_adds_the_wake_and_no_request(observed: ObservedStore) -> None:
    """Another message costs a settle in place; handed over, a claim and a settle (M10).

    So the owner asks what it asks without another message, and so does its successor; together they ask once more than
    one invocation that runs both. No call takes more requests than in place.
    """
    if isinstance(observed.provider, DynamoDBProvider):  # where each fourth tenure writes a page, which others count
        observed.provider._steps.inline_traces = rules.REMEMBERED  # noqa: SLF001 - more than there will be
    recorded = Recorded(observed.provider)
    mixture = Mixture(dataclasses.replace(observed, provider=recorded))
    in_place = handler_of(mixture.observed, mixture.work, waker=None, policy=POLICY)

    def event(key: str, meanwhile: int) -> dict[str, Any]:
        return {**HTTP, "key": key, "id": f"m{key}", "fill": "", "meanwhile": meanwhile}

    def asked(invoke: Callable[[], object]) -> tuple[list[str], Counter[str]]:
        recorded.calls.clear()
        requests = observed.counted(invoke)
        return list(recorded.calls), Counter(requests)

    mixture.invoke(event("first", 1), "the scripts are loaded")
    mixture.deliver()
    before = mixture.runs
    alone = asked(lambda: mixture.invoke(event("a", 0), "alone"))
    without = asked(lambda: in_place(event("b", 1), "in place"))
    assert mixture.runs == before + 3
    owner = asked(lambda: mixture.invoke(event("c", 1), "owner"))
    assert mixture.runs == before + 4
    assert len(mixture.wakes) == 1
    successor = asked(mixture.deliver)
    assert mixture.runs == before + 5

    assert alone[0] == ["claim", "settle"]
    assert sum(alone[1].values()) == 2
    assert without[0] == ["claim", "claim", "settle", "settle"]  # the second claim is that of what arrives
    assert owner[0] == ["claim", "claim", "settle"]
    assert successor[0] == ["claim", "settle"]
    both = owner[1] + successor[1]
    both[next(iter(alone[1]))] -= 1  # the claim of the successor
    assert both == without[1]


def test_send_is_one_request_and_one_wake(observed: ObservedStore) -> None:
    """A claim under a ticket stores the message and holds the key for whoever is woken (M9)."""
    wakes: list[Wake] = []

    def once(number: int) -> int:
        def sends() -> object:
            return send(
                "a", {}, message_id=f"m{number}", target="handler", provider=observed.provider, waker=wakes.append
            )

        return sum(observed.counted(sends).values())

    routed = {"memory": 0, "redis": 1, "dynamodb": 2, "dynalite": 3}  # dynalite returns no old item: one read more
    assert once(1) == (0 if observed.name == "memory" else 1)
    assert once(2) == routed[observed.name]
    assert [wake.key for wake in wakes] == ["handler/a"]
