"""The part ``pairs``: processes that race for one key, and leases that end in real time."""

import multiprocessing
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from incumbent.clock import SYSTEM_CLOCK
from incumbent.doctor.check import Check
from incumbent.errors import LeaseUnavailable
from incumbent.validation import shown
from incumbent.values import Claimed, Continued, Message, Released, Routed
from incumbent.verify.store import Trial, VerifiedStore

NAME = "pairs"
PROCESSES, THREADS, KEYS = 2, 2, 12
TTL_MS, SHORT_TTL_MS = 30_000, 1_500
_RUN_MS = 3
_STUCK_S = 60.0
_STUCK = threading.BrokenBarrierError.__name__
_BROKEN = "do not use this store until it is known why: two owners would run"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """One run of a message: under which fence, and from when to when by this machine's monotonic clock."""

    key: str
    message_id: str
    fence: int
    began_ms: int
    ended_ms: int


def pairs(store: VerifiedStore) -> Iterator[Check]:
    """Let processes race for keys, each with a message of its own; then let leases expire."""
    yield _raced(store)
    yield _expired(store)


def _raced(store: VerifiedStore) -> Check:
    with store.trial() as trial:
        keys = [f"race-{number}" for number in range(KEYS)]
        trial.keys.update(keys)
        runs, firsts, errors = _race(store, trial, keys)
        expected = {f"m{number}" for number in range(PROCESSES * THREADS)}
        provider = trial.provider()
        for key in keys:  # a message that was stored behind an owner which had gone by then
            runs += _run_until_empty(provider, key, provider.claim(key, "last", TTL_MS, None))
    errors.sort(key=lambda each: each.startswith(_STUCK))  # the others say why
    wrong = errors + faults_of(runs, dict.fromkeys(keys, expected))
    wrong += [f"{key}: {count} contenders were granted it at first" for key, count in firsts.items() if not count]
    if wrong:
        unanswered = any(each.startswith((_STUCK, LeaseUnavailable.__name__)) for each in errors)
        advice = "repeat it once the store answers every call" if unanswered else _BROKEN
        return Check.failed(NAME, f"{wrong[0]}{f', and {len(wrong) - 1} more' if wrong[1:] else ''}", advice)
    contenders = PROCESSES * THREADS
    found = (
        f"{contenders} contenders in {PROCESSES} processes on {KEYS} keys: {len(runs)} messages ran once, one by one"
    )
    return Check.ok(NAME, found)


def faults_of(runs: list[OneRun], expected: dict[str, set[str]]) -> list[str]:
    """Return what is wrong with the runs of keys that should have run these messages once each."""
    wrong: list[str] = []
    by_key: defaultdict[str, list[OneRun]] = defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    for key, ids in expected.items():
        ran = sorted(run.message_id for run in by_key[key])
        if ran != sorted(ids):
            lost, twice = ids - set(ran), sorted({each for each in ran if ran.count(each) > 1})
            wrong.append(f"{key}: lost {shown(sorted(lost))}, ran twice {shown(twice)}")
        in_order = sorted(by_key[key], key=lambda run: run.began_ms)
        for one, other in pairwise(in_order):
            if other.began_ms < one.ended_ms:
                wrong.append(f"{key}: {one.message_id} and {other.message_id} ran at the same time")
            elif other.fence <= one.fence:
                wrong.append(f"{key}: fence {other.fence} came after {one.fence}")
    return wrong


def _race(store: VerifiedStore, trial: Trial, keys: list[str]) -> tuple[list[OneRun], dict[str, int], list[str]]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES * THREADS), context.Queue()
    processes = [
        context.Process(
            target=_contend, args=(store, trial.prefix, keys, (number * THREADS, barrier, results)), daemon=True
        )
        for number in range(PROCESSES)
    ]
    runs: list[OneRun] = []
    errors: list[str] = []
    firsts = dict.fromkeys(keys, 0)
    try:
        for process in processes:
            process.start()
        for _ in processes:
            ran, granted, raised, used = results.get(timeout=_STUCK_S)
            runs += ran
            errors += raised
            for key in granted:
                firsts[key] += 1
            store.count(**used)
        for process in processes:
            process.join(_STUCK_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return runs, firsts, errors


def _contend(store: VerifiedStore, prefix: str, keys: list[str], shared: tuple[int, Any, Any]) -> None:
    """Contend in this process, by several threads with connections of their own."""
    first, barrier, results = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    runs: list[OneRun] = []
    granted: list[str] = []
    errors: list[str] = []

    def contend(number: int) -> None:
        try:
            provider = store.provider(prefix, SYSTEM_CLOCK)
            for key in keys:
                barrier.wait(timeout=_STUCK_S)
                message = Message(id=f"m{number}", event={"number": number})
                answer = provider.claim(key, f"owner-{number}", TTL_MS, message)
                if isinstance(answer, Claimed):
                    granted.append(key)
                    runs.extend(_run_until_empty(provider, key, answer))
                elif not isinstance(answer, Routed):
                    errors.append(f"{key}: a claim was answered {shown(answer)}")
        except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
            errors.append(f"{type(error).__name__}: {error}")
            barrier.abort()

    threads = [threading.Thread(target=contend, args=(first + each,)) for each in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((runs, granted, errors, dict(store.used)))


def _run_until_empty(provider: Any, key: str, answer: Any) -> list[OneRun]:
    """Run what the owner was given, and go on for as long as something is due."""
    runs: list[OneRun] = []
    while isinstance(answer, Claimed | Continued):
        began = SYSTEM_CLOCK.now()
        SYSTEM_CLOCK.sleep_ms(_RUN_MS)
        for message in answer.messages:
            ended_ms = SYSTEM_CLOCK.now().mono_ms
            runs.append(
                OneRun(
                    key=key,
                    message_id=message.id,
                    fence=answer.fence,
                    began_ms=began.mono_ms,
                    ended_ms=ended_ms,
                )
            )
        handled = [message.id for message in answer.messages]
        following = f"{answer.owner}+"
        answer = provider.settle(key, answer.owner, ttl_ms=TTL_MS, handled=handled, next_owner=following)
        if isinstance(answer, Released):
            break
    return runs


def _expired(store: VerifiedStore) -> Check:
    """Let a lease end by itself, in real time."""
    name = "expiry"
    with store.trial() as trial:
        provider, other = trial.provider(), trial.provider()
        first = provider.acquire_lease("expiry", "A", SHORT_TTL_MS)
        began = SYSTEM_CLOCK.now()
        early = other.acquire_lease("expiry", "B", SHORT_TTL_MS)
        if not first.acquired or early.acquired:
            return Check.failed(name, "two owners were granted one key", _BROKEN)
        while not (taken := other.acquire_lease("expiry", "B", TTL_MS)).acquired:
            gone_ms = began.until(SYSTEM_CLOCK.now())
            if gone_ms > SHORT_TTL_MS + store.skew_ms + 10_000:
                return Check.failed(
                    name, f"a lease of {SHORT_TTL_MS:,} ms lives after {gone_ms:,} ms", "check the clocks"
                )
            SYSTEM_CLOCK.sleep_ms(100)
        gone_ms = began.until(SYSTEM_CLOCK.now())
        late = provider.renew_lease("expiry", "A", TTL_MS)
    if late or taken.fence is None or first.fence is None or taken.fence <= first.fence:
        return Check.failed(name, "the late owner renewed, or the fence did not grow", "see rules R3 and R7")
    return Check.ok(name, f"a lease of {SHORT_TTL_MS:,} ms was taken over after {gone_ms:,} ms, and stayed lost")
