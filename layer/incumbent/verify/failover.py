"""The part ``failover``: a load on many keys while a server of Redis fails over, and what became of each message."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor.check import Check
from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.values import Claimed, Continued, Message, Routed
from incumbent.verify.pairs import OneRun
from incumbent.verify.store import Trial, VerifiedStore

NAME = "failover"
SENDERS, KEYS = 4, 32
TTL_MS = 5_000
_QUIET_MS = 1_000  # of load before the fail-over
_PAUSE_MS = 20
_ROUNDS = 5
_DRAIN_MS = 60_000
_ERRORS = (LeaseUnavailable, LeaseLost, MailboxFull)


@dataclass
class Load:
    """What senders were told, and which runs there were. Safe to use from several threads."""

    accepted: dict[tuple[str, str], None] = field(default_factory=dict)
    runs: list[OneRun] = field(default_factory=list)
    answered_ms: list[int] = field(default_factory=list)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self) -> None:
        """Note that the store has just answered."""
        with self.lock:
            self.answered_ms.append(SYSTEM_CLOCK.now().mono_ms)

    def longest_ms(self) -> int:
        """Return the longest time between two answers."""
        told = sorted(self.answered_ms)
        return max((later - earlier for earlier, later in pairwise(told)), default=0)

    def twice(self) -> int:
        """Count the messages that ran more than once."""
        seen: defaultdict[tuple[str, str], int] = defaultdict(int)
        for run in self.runs:
            seen[run.key, run.message_id] += 1
        return sum(count > 1 for count in seen.values())

    def lost(self) -> int:
        """Count the messages that were accepted and never ran."""
        return len(set(self.accepted) - {(run.key, run.message_id) for run in self.runs})

    def overlaps_and_fences(self) -> tuple[int, int]:
        """Count the runs of a key that began before another had ended, and those whose fence was not larger."""
        overlaps = fences = 0
        by_key: defaultdict[str, list[OneRun]] = defaultdict(list)
        for run in self.runs:
            by_key[run.key].append(run)
        for of_key in by_key.values():
            of_key.sort(key=lambda run: run.began_ms)
            for one, other in pairwise(of_key):
                overlaps += other.began_ms < one.ended_ms
                fences += other.fence <= one.fence
        return overlaps, fences


def failover(store: VerifiedStore, fail_over: Callable[[], str | None], *, seconds: int) -> Iterator[Check]:
    """Keep a load on for ``seconds``; ``fail_over`` is called meanwhile, and returns why it could not be triggered."""
    load = Load()
    stopping = threading.Event()
    with store.trial() as trial:
        trial.keys.update(_keys())
        senders = [
            threading.Thread(target=_send, args=(trial, load, number, stopping), daemon=True)
            for number in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        try:
            SYSTEM_CLOCK.sleep_ms(_QUIET_MS)
            refused = fail_over()
            if refused is None:
                SYSTEM_CLOCK.sleep_ms(seconds * 1_000)
        finally:
            stopping.set()
            for sender in senders:
                sender.join()
        if refused is not None:
            yield Check.unchecked(NAME, refused, "trigger it at the service, without --fail-over")
            return
        drained = _drain(trial, load)
    yield judged(load, drained=drained)


def judged(load: Load, *, drained: bool) -> Check:
    """Say what became of a load. ``drained``: every key answered after it, and is free."""
    overlaps, fences = load.overlaps_and_fences()
    lost, twice = load.lost(), load.twice()
    found = (
        f"{len(load.accepted):,} messages, {lost} lost, {twice} twice, {overlaps} overlaps, {fences} smaller fences, "
        f"{load.longest_ms() / 1_000:.1f} s without an answer, {load.refused:,} calls gave up"
    )
    if not drained:
        return Check.failed(NAME, f"{found}; keys do not answer after it", "look at the cluster: a slot may be lost")
    if fences:
        return Check.failed(NAME, found, "synchronise the servers' clocks: a late write would pass the fence")
    if lost or overlaps:
        advice = "replication is asynchronous: turn AOF on, fail over in a coordinated way (docs/semantics.md)"
        return Check.warning(NAME, found, advice)
    return Check.ok(NAME, found)


def cluster_fail_over(client: Any) -> str | None:
    """Let a replica of a cluster take over from its primary, in a coordinated way. Return why it could not."""
    if not hasattr(client, "get_primaries"):
        return "this server is not in cluster mode, and a client of one address does not follow a fail-over"
    refused = "no primary of this cluster has a replica"
    replicas = [node for node in client.get_nodes() if node.server_type == "replica"]
    for _ in range(_ROUNDS if replicas else 0):  # a busy server may have lost sight of its primary for a moment
        for node in replicas:
            try:
                client.get_redis_connection(node).execute_command("CLUSTER", "FAILOVER")
                return None
            except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
                refused = f"CLUSTER FAILOVER: {type(error).__name__}: {error}"
        SYSTEM_CLOCK.sleep_ms(_QUIET_MS)
    return refused


def _keys() -> list[str]:
    return [f"drill-{number}" for number in range(KEYS)]


def _send(trial: Trial, load: Load, number: int, stopping: threading.Event) -> None:
    """Send messages to all keys in turn, and run what is granted, as an invocation would."""
    provider, keys, turn = trial.provider(), _keys(), 0
    while not stopping.is_set():
        turn += 1
        key, message_id = keys[(turn * SENDERS + number) % KEYS], f"m{number}-{turn}"
        owner = f"owner-{number}-{turn}"
        try:
            answer = provider.claim(key, owner, TTL_MS, Message(id=message_id, event={}))
            load.note()
            if isinstance(answer, Claimed | Routed):
                with load.lock:
                    load.accepted[key, message_id] = None
            _run(provider, load, key, answer)
        except _ERRORS:
            with load.lock:
                load.refused += 1
        SYSTEM_CLOCK.sleep_ms(_PAUSE_MS)


def _run(provider: Any, load: Load, key: str, answer: Any) -> None:
    """Run what the owner was given, for as long as something is due. A run that has lost its lease does not count."""
    while isinstance(answer, Claimed | Continued):
        began_ms = SYSTEM_CLOCK.now().mono_ms
        SYSTEM_CLOCK.sleep_ms(1)
        ended_ms = SYSTEM_CLOCK.now().mono_ms
        with load.lock:
            load.runs.extend(
                OneRun(key=key, message_id=each.id, fence=answer.fence, began_ms=began_ms, ended_ms=ended_ms)
                for each in answer.messages
            )
        handled = [each.id for each in answer.messages]
        answer = provider.settle(key, answer.owner, ttl_ms=TTL_MS, handled=handled, next_owner=f"{answer.owner}+")
        load.note()


def _drain(trial: Trial, load: Load) -> bool:
    """Run what is left on every key; return whether all keys answered and ended up free."""
    provider = trial.provider()
    began = SYSTEM_CLOCK.now()
    left = dict.fromkeys(_keys(), 0)
    while left and began.until(SYSTEM_CLOCK.now()) < _DRAIN_MS:
        for key in list(left):
            left[key] += 1
            try:
                _run(provider, load, key, provider.claim(key, f"drain-{left[key]}", TTL_MS, None))
                if not provider.peek(key) and provider.get_lease_owner(key) is None:
                    del left[key]
            except _ERRORS:
                continue
        if left:
            SYSTEM_CLOCK.sleep_ms(200)
    return not left
