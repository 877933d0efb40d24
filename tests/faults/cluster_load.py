"""Senders, owners and a sweeper at work on a few keys of a cluster, and counts of what went wrong meanwhile."""

import random
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

from incumbent.clock import SYSTEM_CLOCK, Moment
from incumbent.errors import LeaseLost, LeaseUnavailable
from incumbent.providers.redis import RedisProvider
from incumbent.values import Claimed, Continued, Message, Released

TTL_MS = 6_000
SENDERS = 12
KEYS = [f"orders/{number}" for number in range(24)]
_AROUND_MS = 500  # before and after what happens
_PAUSE_MS = 50  # of a source before it delivers again, and of the sweeper
_DRAIN_MS = 30_000
_RUNS_MS = (0, 1, 1, 2, 2, 2, 3, 3, 5, 5, 20, 20, 100, 300)

Risks = Sequence[tuple[Moment, Moment]]
"""When what a primary answers may be forgotten, since a replica without it takes its place."""


@dataclass(slots=True)
class Counts:
    """What became of the messages, and how long the longest wait for an answer was.

    ``lost`` were accepted and never ran, ``twice`` ran more than once. ``overlaps`` are runs that began while another
    of their key had not ended, ``fences`` runs with a fence that is not greater than that of an earlier one.
    ``unexplained`` are the losses and overlaps that asynchronous replication does not explain.
    """

    messages: int = 0
    lost: int = 0
    twice: int = 0
    overlaps: int = 0
    fences: int = 0
    silent_ms: int = 0
    unexplained: list[str] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Count another load, too."""
        self.messages += other.messages
        self.lost += other.lost
        self.twice += other.twice
        self.overlaps += other.overlaps
        self.fences += other.fences
        self.silent_ms = max(self.silent_ms, other.silent_ms)
        self.unexplained += other.unexplained

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages, {self.lost} lost, {self.twice} twice, {self.overlaps} overlaps, "
            f"{self.fences} fences smaller or repeated, at most {self.silent_ms / 1_000:.1f} s without an answer"
        )


class Load:
    """One load: messages that senders store and run, on providers of their own, for as long as something happens."""

    def __init__(self, url: str, prefix: str, *, seed: int = 0) -> None:
        self.counts = Counts()
        self._url = url
        self._prefix = prefix
        self._seed = seed
        self._name = uuid.uuid4().hex[:8]  # of its messages: an id that comes again is a duplicate
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._drained = threading.Event()
        self._accepted: dict[str, Moment] = {}  # by message
        self._ran: Counter[str] = Counter()
        self._running: dict[str, Moment] = {}  # by key
        self._overlaps: list[Moment] = []  # when the earlier run began
        self._fences: dict[str, int] = defaultdict(int)

    def during(self, happens: Callable[[], Risks]) -> Counts:
        """Begin, let something happen, let all messages run, and count."""
        threads = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        threads.append(threading.Thread(target=self._sweep))
        risks: Risks = ()
        for thread in threads:
            thread.start()
        try:
            SYSTEM_CLOCK.sleep_ms(_AROUND_MS)
            risks = happens()
            SYSTEM_CLOCK.sleep_ms(_AROUND_MS)
        finally:
            self._over.set()
            for thread in threads[:-1]:
                thread.join()
            self._drain()
            self._drained.set()
            threads[-1].join()
        return self.count(risks)

    def count(self, risks: Risks) -> Counts:
        """Count what has happened; ``risks`` explain losses and overlaps."""
        lost = sorted(self._waiting())
        counts = self.counts
        counts.messages, counts.lost, counts.overlaps = len(self._accepted), len(lost), len(self._overlaps)
        counts.twice = sum(times > 1 for times in self._ran.values())
        counts.unexplained = [f"{each} is lost" for each in lost if not _at_risk(self._accepted[each], risks)]
        counts.unexplained += [f"{at} overlaps" for at in self._overlaps if not _at_risk(at, risks)]
        return counts

    def accept(self, message: str) -> None:
        """Note that a message was accepted."""
        with self._lock:
            self._accepted[message] = SYSTEM_CLOCK.now()

    def begin(self, key: str, fence: int) -> None:
        """Note that a run has begun."""
        with self._lock:
            if key in self._running:
                self._overlaps.append(self._running[key])
            self._running[key] = SYSTEM_CLOCK.now()
            self.counts.fences += fence <= self._fences[key]
            self._fences[key] = max(fence, self._fences[key])

    def end(self, key: str, messages: Sequence[str]) -> None:
        """Note that a run has ended."""
        with self._lock:
            self._running.pop(key, None)
            self._ran.update(messages)

    def _waiting(self) -> set[str]:
        return self._accepted.keys() - self._ran.keys()

    def _drain(self) -> None:
        """Wait until everything has run, or for so long that the rest must be lost."""
        until = SYSTEM_CLOCK.now().plus(_DRAIN_MS)
        while self._waiting() and SYSTEM_CLOCK.now().until(until) > 0:
            SYSTEM_CLOCK.sleep_ms(_PAUSE_MS)

    def _provider(self, stack: ExitStack) -> RedisProvider:
        return stack.enter_context(closing(RedisProvider(url=self._url, key_prefix=self._prefix)))

    def _send(self, sender: int) -> None:
        drawn = random.Random(self._seed * SENDERS + sender)  # noqa: S311 - a load, not a secret
        number = 0
        with ExitStack() as stack:
            provider = self._provider(stack)
            while not self._over.is_set():
                number += 1
                self._deliver(provider, drawn, drawn.choice(KEYS), f"{self._name}-{sender}-{number}")
                SYSTEM_CLOCK.sleep_ms(drawn.randint(1, 8))

    def _deliver(self, provider: RedisProvider, drawn: random.Random, key: str, name: str) -> None:
        """Deliver a message as a source does: again, to another invocation, until it is accepted."""
        began = SYSTEM_CLOCK.now()
        delivery = 0
        while True:
            delivery += 1
            try:
                answer = provider.claim(key, f"{name}-{delivery}", TTL_MS, Message(id=name, event={}))
                break
            except LeaseUnavailable:
                SYSTEM_CLOCK.sleep_ms(_PAUSE_MS)
        self.accept(name)
        with self._lock:
            self.counts.silent_ms = max(self.counts.silent_ms, began.until(SYSTEM_CLOCK.now()))
        if isinstance(answer, Claimed):
            self._work(provider, drawn, key, answer)

    def _sweep(self) -> None:
        drawn = random.Random(-1 - self._seed)  # noqa: S311 - as above
        number = 0
        with ExitStack() as stack:
            provider = self._provider(stack)
            while not self._drained.wait(_PAUSE_MS * 4 / 1_000):
                with suppress(LeaseUnavailable):
                    for orphan in provider.orphans(1_000):
                        number += 1
                        answer = provider.claim(orphan.key, f"{self._name}-sweeper-{number}", TTL_MS, None)
                        if isinstance(answer, Claimed):
                            self._work(provider, drawn, orphan.key, answer)

    def _work(self, provider: RedisProvider, drawn: random.Random, key: str, given: Claimed) -> None:
        """Run what the key was given for, and what it goes on with."""
        tenure: Claimed | Continued = given
        while tenure.messages and SYSTEM_CLOCK.now().until(tenure.deadline) > TTL_MS // 2:
            self.begin(key, tenure.fence)
            SYSTEM_CLOCK.sleep_ms(drawn.choice(_RUNS_MS))
            self.end(key, [message.id for message in tenure.messages])
            settled = self._settle(provider, key, tenure)
            if not isinstance(settled, Continued):
                return
            tenure = settled

    @staticmethod
    def _settle(provider: RedisProvider, key: str, tenure: Claimed | Continued) -> Released | Continued | None:
        """Report the outcome, again while the lease lives and there is no answer."""
        handled = [message.id for message in tenure.messages]
        until: Moment = tenure.deadline
        while SYSTEM_CLOCK.now().until(until) > 0:
            try:
                return provider.settle(
                    key, tenure.owner, ttl_ms=TTL_MS, handled=handled, next_owner=f"{tenure.owner}+", fence=tenure.fence
                )
            except LeaseUnavailable:
                SYSTEM_CLOCK.sleep_ms(_PAUSE_MS)
            except LeaseLost:
                return None
        return None


def _at_risk(moment: Moment, risks: Risks) -> bool:
    return any(begins.until(moment) >= 0 and moment.until(ends) >= 0 for begins, ends in risks)
