"""The sweeper wakes what nobody owns: the right target, oldest first, no more than it should."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from incumbent import (
    Busy,
    Claimed,
    ConfigurationError,
    Fact,
    Failure,
    IncumbentError,
    LeaseUnavailable,
    ListIncomplete,
    Message,
    Origin,
    Orphan,
    StoredFormatUnknown,
    Wake,
    sweeper,
)
from incumbent.providers.memory import MemoryProvider
from incumbent.retry import search_is_over
from incumbent.sweeper import Swept, sweep, wake_queued
from incumbent.testing.clock import FakeClock
from incumbent.validation import MAX_TTL_MS
from incumbent.wakers import Waker
from tests.unit.stage import ARN, Facts, RecordingWaker

TTL_MS = 30_000


@pytest.fixture
def clock() -> FakeClock:
    """The store's clock and the sweeper's."""
    return FakeClock()


@pytest.fixture
def provider(clock: FakeClock) -> MemoryProvider:
    """A store."""
    return MemoryProvider(clock=clock)


def leave(provider: MemoryProvider, key: str, target: str | None = ARN) -> None:
    """Store a message for a key and own it no longer."""
    origin = Origin(keyspace="orders", target=target)
    provider.claim(key, f"sender of {key}", TTL_MS, Message(id="m1", event={}), as_ticket=True, origin=origin)
    provider.release_lease(key, f"sender of {key}")


class Listing:
    """A mailbox of which only the orphans are asked for."""

    def __init__(self, orphans: Iterable[Orphan], fails: Exception | None = None) -> None:
        self.listed = list(orphans)
        self.fails = fails
        self.limits: list[int] = []

    def orphans(self, limit: int) -> Iterable[Orphan]:
        """Yield them; then raise, if that is wanted."""
        self.limits.append(limit)
        yield from self.listed[:limit]
        if self.fails is not None:
            raise self.fails


def orphan(number: int, target: str | None = ARN) -> Orphan:
    """The one with that number is as many seconds younger than the oldest."""
    return Orphan(key=f"orders/{number}", target=target, age_ms=1_000_000 - number * 1_000, waiting=2)


def swept(mailbox: Any, waker: Waker, **options: Any) -> Swept:
    """Sweep what need not be a whole mailbox."""
    return sweep(mailbox, waker, **options)


def test_orphan_s_target_is_woken_without_a_ticket(provider: MemoryProvider, clock: FakeClock) -> None:
    """The function as it was invoked, alias included (H47), is told the key; it claims it as anybody would (M8)."""
    waker = RecordingWaker()
    leave(provider, "orders/a", f"{ARN}:live")
    clock.advance(7_000)
    assert sweep(provider, waker, clock=clock) == Swept(
        found=1, oldest_ms=7_000, woken=1, failed=0, untargeted=0, remaining=0
    )
    assert waker.wakes == [Wake(key="orders/a", ticket=None, target=f"{ARN}:live", hops=0)]


def test_nothing_is_woken_where_somebody_owns_or_nothing_is_due(provider: MemoryProvider, clock: FakeClock) -> None:
    """A live owner finds what waits itself, and a paused message is nobody's yet."""
    waker = RecordingWaker()
    provider.claim("orders/a", "owner", TTL_MS, Message(id="m1", event={}))
    leave(provider, "orders/b")
    provider.claim("orders/b", "runner", TTL_MS, None)
    provider.settle("orders/b", "runner", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no")])
    assert sweep(provider, waker, clock=clock).found == 0
    assert waker.wakes == []
    clock.advance(TTL_MS + 1_000)  # what died with its run pauses, too
    assert sweep(provider, waker, clock=clock).found == 2


def test_swept_key_can_be_swept_again_until_somebody_owns_it(provider: MemoryProvider, clock: FakeClock) -> None:
    """A wake that got lost is repeated by the next pass, and the second of two finds nothing (M9)."""
    waker = RecordingWaker()
    leave(provider, "orders/a")
    for _ in range(2):
        assert sweep(provider, waker, clock=clock).woken == 1
    provider.claim("orders/a", "first", TTL_MS, None)
    assert isinstance(provider.claim("orders/a", "second", TTL_MS, None), Busy)
    assert sweep(provider, waker, clock=clock).found == 0


def test_limit_is_kept_oldest_first() -> None:
    """What is beyond it is counted, and left to the next pass."""
    waker, listing = RecordingWaker(), Listing(orphan(number) for number in range(5))
    assert swept(listing, waker, limit=2) == Swept(
        found=5, oldest_ms=1_000_000, woken=2, failed=0, untargeted=0, remaining=3
    )
    assert [wake.key for wake in waker.wakes] == ["orders/0", "orders/1"]
    assert listing.limits == [20]


def test_orphans_that_nobody_can_wake_do_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """They are passed by, counted and named in the log; a limit of one still reaches the first that can be woken."""
    waker = RecordingWaker()
    listing = Listing([*(orphan(number, target=None) for number in range(3)), orphan(3, target=""), orphan(4)])
    with caplog.at_level(logging.WARNING, logger="incumbent"):
        assert swept(listing, waker, limit=1) == Swept(
            found=5, oldest_ms=1_000_000, woken=1, failed=0, untargeted=4, remaining=0
        )
    assert [wake.key for wake in waker.wakes] == ["orders/4"]
    assert "'orders/0' could not be woken: no target" in caplog.text


def test_wake_that_fails_stops_no_other() -> None:
    """A function that is gone is counted and told, and uses up nothing of the limit."""
    facts = Facts()

    def waker(wake: Wake) -> None:
        if wake.target == "gone":
            raise RuntimeError("Function not found")

    listing = Listing([orphan(0, target="gone"), orphan(1), orphan(2)])
    assert swept(listing, waker, limit=1, observers=[facts]) == Swept(
        found=3, oldest_ms=1_000_000, woken=1, failed=1, untargeted=0, remaining=1
    )
    assert [(fact.key, fact.outcome) for fact in facts.of("orphan")] == [
        ("orders/0", "failed"),
        ("orders/1", "woken"),
        ("orders/2", "remaining"),
    ]
    assert facts.told[0].error == "RuntimeError: Function not found"


def test_no_wake_is_sent_after_the_budget(clock: FakeClock) -> None:
    """The invocation ends in order, and the next minute goes on."""

    def waker(_: Wake) -> None:
        clock.advance(400)

    listing = Listing(orphan(number) for number in range(5))
    found = swept(listing, waker, budget_ms=1_000, clock=clock)
    assert (found.woken, found.remaining) == (3, 2)
    assert swept(listing, waker, budget_ms=0, clock=clock).woken == 0


def test_search_leaves_time_for_the_wakes(clock: FakeClock) -> None:
    """However many there are: half of the budget is for finding them."""

    class Slow(Listing):
        def orphans(self, limit: int) -> Iterable[Orphan]:
            for each in super().orphans(limit):
                clock.advance(100)
                yield each

    waker = RecordingWaker()
    found = swept(Slow(orphan(number) for number in range(100)), waker, budget_ms=1_000, clock=clock)
    assert (found.found, found.woken, found.remaining) == (5, 5, 0)


def test_search_that_ends_with_its_time_is_served_as_a_whole(clock: FakeClock) -> None:
    """With what it says at its end: it took its time before the first key, and none between them."""

    class Searching(Listing):
        def orphans(self, limit: int) -> Iterable[Orphan]:
            while not search_is_over(clock):
                clock.advance(50)
            return super().orphans(limit)

    waker = RecordingWaker()
    listing = Searching([orphan(number) for number in range(20)], fails=ListIncomplete("a primary is silent"))
    with pytest.raises(ListIncomplete):
        swept(listing, waker, budget_ms=1_000, clock=clock)
    assert len(waker.wakes) == 20


def test_pass_is_told_whatever_it_found() -> None:
    """That the sweeper ran, how many orphans there were, and the age of the oldest: what an alarm needs."""
    facts = Facts()
    swept(Listing([]), RecordingWaker(), observers=[facts])
    swept(Listing([orphan(3), orphan(4)]), RecordingWaker(), observers=[facts])
    assert [(fact.key, fact.waiting, fact.ms) for fact in facts.of("swept")] == [("", 0, 0), ("", 2, 997_000)]
    assert [(fact.key, fact.waiting, fact.ms) for fact in facts.of("orphan")] == [
        ("orders/3", 2, 997_000),
        ("orders/4", 2, 996_000),
    ]


def test_store_that_cannot_be_asked_is_an_error() -> None:
    """R9: it is not a pass that found nothing, so nothing is told of one."""
    facts = Facts()
    with pytest.raises(LeaseUnavailable):
        swept(Listing([], fails=LeaseUnavailable("no answer")), RecordingWaker(), observers=[facts])
    assert facts.told == []


@pytest.mark.parametrize("error", [StoredFormatUnknown("version 9"), ListIncomplete("a primary is silent")])
def test_what_cannot_be_listed_hides_no_other(error: IncumbentError) -> None:
    """It comes last, after all others were woken and the pass was told, with what it left out (M12, R9)."""
    facts, waker = Facts(), RecordingWaker()
    with pytest.raises(type(error)):
        swept(Listing([orphan(0)], fails=error), waker, observers=[facts])
    assert [wake.key for wake in waker.wakes] == ["orders/0"]
    assert facts.names == ["orphan", "swept"]
    assert facts.told[-1].error == str(error)


def test_key_that_could_not_be_listed_has_made_no_progress(clock: FakeClock) -> None:
    """It is in a part of the store that gave no answer; another key of its target is new in the list."""
    listing, waker = Listing([orphan(0)]), RecordingWaker()
    for _ in range(2):
        swept(listing, waker, clock=clock)
    whole, listing.listed, listing.fails = listing.listed, [orphan(1)], ListIncomplete("a primary is silent")
    with pytest.raises(ListIncomplete):
        swept(listing, waker, clock=clock)
    listing.listed, listing.fails = whole, None
    assert swept(listing, waker, clock=clock).paused == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("limit", value) for value in (0, -1, 10_001, True, 1.0, "1")),
        *(("budget_ms", value) for value in (-1, MAX_TTL_MS + 1, True, 1.0, "1")),
    ],
)
def test_bound_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    """Before anything is asked."""
    listing = Listing([orphan(0)])
    with pytest.raises(ConfigurationError, match=name):
        swept(listing, RecordingWaker(), **{name: value})
    assert listing.limits == []


def test_orphans_are_logged_unless_said_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    """Those that are woken are ordinary; nothing is logged of them."""
    with caplog.at_level(logging.WARNING, logger="incumbent"):
        swept(Listing([orphan(0)]), RecordingWaker())
    assert caplog.text == ""


# --- one target and the others: M8

DAY_MINUTES = 24 * 60
BROKEN = "arn:aws:lambda:eu-central-1:123456789012:function:broken"


class Functions:
    """A waker whose functions run what they are woken for, save one that crashes at import or is not there."""

    def __init__(self, provider: MemoryProvider, *, gone: bool = False) -> None:
        self.provider = provider
        self.gone = gone
        self.mended = False
        self.wakes: Counter[str] = Counter()

    def __call__(self, wake: Wake) -> None:
        """Take the wake."""
        target = str(wake.target)
        self.wakes[target] += 1
        if target == BROKEN and not self.mended:
            if self.gone:
                raise RuntimeError("ResourceNotFoundException: Function not found")
            return
        owner = f"run {self.wakes.total()}"
        if isinstance(self.provider.claim(wake.key, owner, TTL_MS, None), Claimed):
            self.provider.settle(wake.key, owner, ttl_ms=TTL_MS, handled=["m1"])


@pytest.mark.parametrize(("broken", "minutes", "wakes"), [(100, DAY_MINUTES, 1_200), (1_100, 180, 300)])
def test_function_that_makes_no_progress_starves_no_other(
    provider: MemoryProvider, clock: FakeClock, broken: int, minutes: int, wakes: int
) -> None:
    """It is tried more and more seldom; another function's message, which came last, is woken in the first pass."""
    functions = Functions(provider)
    for number in range(broken):
        leave(provider, f"broken/{number}", BROKEN)
    clock.advance(60_000)
    leave(provider, "orders/late")
    sweep(provider, functions, clock=clock)
    assert functions.wakes[ARN] == 1
    assert list(provider.peek("orders/late")) == []
    for minute in range(minutes):
        clock.advance(60_000)
        if minute % 100 == 0:
            leave(provider, f"orders/{minute}")
            assert sweep(provider, functions, clock=clock).found == min(broken + 1, 1_000)
            assert list(provider.peek(f"orders/{minute}")) == []
        else:
            sweep(provider, functions, clock=clock)
    assert 150 <= functions.wakes[BROKEN] <= wakes
    functions.mended = True
    for _ in range(15 + broken // 100 + 2):
        clock.advance(60_000)
        sweep(provider, functions, clock=clock)
    assert sweep(provider, functions, clock=clock).found == 0


def test_backlog_that_makes_progress_is_woken_as_fast_as_the_limit_allows(
    provider: MemoryProvider, clock: FakeClock
) -> None:
    """However long its messages have waited."""
    functions = Functions(provider)
    for number in range(2_000):
        leave(provider, f"orders/{number}")
    clock.advance(3_600_000)
    for passes in range(1, 21):
        assert sweep(provider, functions, clock=clock).woken == 100
        assert functions.wakes[ARN] == passes * 100
        clock.advance(60_000)
    assert sweep(provider, functions, clock=clock).found == 0


def test_single_key_without_progress_is_woken_less_and_holds_up_no_other(
    provider: MemoryProvider, clock: FakeClock
) -> None:
    """A function that serves its other keys: a limit of one goes to those that were not tried yet."""
    leave(provider, "orders/stuck")
    functions = Functions(provider)
    woken = Counter[str]()

    def waker(wake: Wake) -> None:
        woken[wake.key] += 1
        if wake.key != "orders/stuck":
            functions(wake)

    for minute in range(120):
        leave(provider, f"orders/{minute}")
        sweep(provider, waker, limit=1, clock=clock)
        clock.advance(60_000)
        sweep(provider, waker, limit=1, clock=clock)
    assert list(provider.peek("orders/118")) == []
    assert woken["orders/stuck"] < 20


def test_late_pass_misses_no_wake(provider: MemoryProvider, clock: FakeClock) -> None:
    """A pause that is over is over, however long no pass came."""
    waker = RecordingWaker()
    leave(provider, "orders/a")
    for minutes in (0, 1, 1, 2, 5, 60):
        clock.advance(minutes * 60_000)
        assert sweep(provider, waker, clock=clock).woken == 1
    assert sweep(provider, waker, clock=clock).paused == 1


def test_key_that_was_owned_since_its_wake_is_woken_at_once(provider: MemoryProvider, clock: FakeClock) -> None:
    """Its next owner died: that is progress, and the pauses begin anew."""
    waker = RecordingWaker()
    leave(provider, "orders/a")
    for _ in range(6):
        sweep(provider, waker, clock=clock)
        clock.advance(60_000)
    assert sweep(provider, waker, clock=clock).paused == 1
    provider.acquire_lease("orders/a", "owner", 1_000)
    clock.advance(1_000)
    assert sweep(provider, waker, clock=clock).woken == 1


def test_deleted_function_writes_a_line_and_not_one_for_each_key(
    provider: MemoryProvider, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After three failures the rest of its keys waits for another pass, and none is tried each minute."""
    functions = Functions(provider, gone=True)
    for number in range(1_000):
        leave(provider, f"broken/{number}", BROKEN)
    with caplog.at_level(logging.INFO, logger="incumbent"):
        found = sweep(provider, functions, clock=clock)
    assert (found.found, found.failed, found.remaining) == (1_000, 3, 997)
    (line,) = caplog.messages
    assert line == (
        "orphan: key 'broken/0' could not be woken: RuntimeError: ResourceNotFoundException: Function not found "
        f"(1,000 keys with target '{BROKEN}' wait)"
    )
    for _ in range(60):
        clock.advance(60_000)
        sweep(provider, functions, clock=clock, observers=())
    assert functions.wakes[BROKEN] < 30


def test_many_targets_are_told_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    """And the keys without a target together."""
    waker = RecordingWaker()
    waker.fails = RuntimeError("no")
    listing = Listing([*(orphan(number, target=f"f{number % 2}") for number in range(20)), orphan(20, target=None)])
    with caplog.at_level(logging.WARNING, logger="incumbent"):
        assert swept(listing, waker).failed == 6
    assert len(caplog.messages) == 3


def test_mailbox_that_lists_one_target_first_is_shared_all_the_same() -> None:
    """A provider from another package need not know of turns."""
    waker = RecordingWaker()
    listing = Listing([*(orphan(number, target="f") for number in range(8)), orphan(8, target="g")])
    swept(listing, waker, limit=2)
    assert [wake.target for wake in waker.wakes] == ["f", "g"]


def test_facts_of_a_pass_say_all_that_is_known(clock: FakeClock) -> None:
    """Each as a whole: who reads them has nothing else."""
    facts, now_ms = Facts(), clock.now().wall_ms

    def waker(wake: Wake) -> None:
        clock.advance(3)
        if wake.target == "gone":
            raise RuntimeError("Function not found")

    listing = Listing([orphan(0, target="gone"), orphan(1), orphan(2, target="gone")], ListIncomplete("a part"))
    with pytest.raises(ListIncomplete):
        swept(listing, waker, observers=[facts], clock=clock)
    both = "RuntimeError: Function not found (2 keys with target 'gone' wait)"
    common: dict[str, Any] = {"fact": "orphan", "waiting": 2}
    assert facts.told == [
        Fact(key="orders/0", t_ms=now_ms + 3, target="gone", outcome="failed", ms=1_000_000, error=both, **common),
        Fact(key="orders/1", t_ms=now_ms + 6, target=ARN, outcome="woken", ms=999_000, **common),
        Fact(key="orders/2", t_ms=now_ms + 9, target="gone", outcome="failed", ms=998_000, **common),
        Fact(fact="swept", key="", t_ms=now_ms + 9, waiting=3, ms=1_000_000, error="a part"),
    ]


def test_facts_of_queued_wakes_say_all_that_is_known(clock: FakeClock) -> None:
    """Each as a whole; a record that is not a wake has no key."""
    facts, now_ms = Facts(), clock.now().wall_ms
    wake = Wake(key="orders/k", ticket=None, target=ARN, after_ms=60_000)
    records = [{"messageId": "r1", "body": wake.to_queue(now_ms)}, {"messageId": "r2", "body": "hello"}]
    waker = RecordingWaker(fails=RuntimeError("no"), meanwhile=lambda _: clock.advance(5))
    clock.advance(60_000)
    answer = wake_queued(records, waker, lambda: waker, budget_ms=6, observers=[facts], clock=clock)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "r1"}, {"itemIdentifier": "r2"}]}
    due_ms = now_ms + 60_000
    assert facts.told == [
        Fact(fact="wake_failed", key="orders/k", t_ms=due_ms, target=ARN, error="record r1: RuntimeError: no"),
        Fact(
            fact="wake_failed",
            key="",
            t_ms=due_ms + 5,
            error="record r2: ConfigurationError: its body is not a queued wake",
        ),
    ]


def test_pauses_of_what_makes_no_progress_grow() -> None:
    """The next pass, then a minute, each time twice as long, and a quarter of an hour at most: half a minute early."""
    tried, pauses = sweeper._Tried(), []  # noqa: SLF001 - its times are those of no store
    for _ in range(8):
        tried.again(1_000)
        pauses.append(tried.due_ms - 1_000)
    assert pauses == [0, 30_000, 90_000, 210_000, 450_000, *[870_000] * 3]
    assert (tried.times, tried.woken_ms) == (8, 1_000)


@pytest.mark.parametrize(("limit", "woken"), [(9, 1), (10, 1), (20, 2), (39, 3)])
def test_stalled_target_gets_a_tenth_of_the_limit(clock: FakeClock, limit: int, woken: int) -> None:
    """And one wake at least."""
    listing = Listing(orphan(number) for number in range(40))
    swept(listing, RecordingWaker(), limit=limit, clock=clock)
    waker = RecordingWaker()
    clock.advance(30_000)
    found = swept(listing, waker, limit=limit, clock=clock)
    assert (found.woken, len(waker.wakes)) == (woken, woken)


def test_target_whose_wakes_fail_is_given_up_after_three(clock: FakeClock) -> None:
    """But not if one has worked."""
    listing = Listing(orphan(number) for number in range(5))
    down = RecordingWaker(fails=RuntimeError("no"))
    found = swept(listing, down, clock=clock)
    assert (found.failed, found.remaining) == (3, 2)
    unsteady = RecordingWaker()

    def waker(wake: Wake) -> None:
        unsteady.fails = None if len(unsteady.wakes) == 0 else RuntimeError("no")
        unsteady(wake)

    found = swept(Listing(orphan(number) for number in range(5)), waker, clock=clock)
    assert (found.woken, found.failed, found.remaining) == (1, 4, 0)


@pytest.mark.parametrize(("budget_ms", "said"), [(5, "the time of this invocation is over"), (6, "RuntimeError: no")])
def test_queued_wake_needs_time(clock: FakeClock, budget_ms: int, said: str) -> None:
    """None begins when the time is over."""
    facts, now_ms = Facts(), clock.now().wall_ms
    body = Wake(key="orders/k", ticket=None, target=ARN).to_queue(now_ms)
    waker = RecordingWaker(fails=RuntimeError("no"), meanwhile=lambda _: clock.advance(5))
    records = [{"messageId": "r1", "body": body}, {"messageId": "r2", "body": body}]
    wake_queued(records, waker, lambda: waker, budget_ms=budget_ms, observers=[facts], clock=clock)
    assert said in (facts.told[1].error or "")
    assert len(waker.wakes) == budget_ms - 4


@pytest.mark.parametrize(("search_ms", "paused"), [(499, 0), (500, 1)])
def test_key_that_a_whole_search_does_not_find_has_made_progress(clock: FakeClock, search_ms: int, paused: int) -> None:
    """A search that has used up its half of the budget may have left the key out."""

    class Lengthy(Listing):
        takes_ms = 0

        def orphans(self, limit: int) -> Iterable[Orphan]:
            yield from super().orphans(limit)
            clock.advance(self.takes_ms)

    listing, waker = Lengthy([orphan(0)]), RecordingWaker()
    for _ in range(2):
        swept(listing, waker, clock=clock)
    whole, listing.listed, listing.takes_ms = listing.listed, [], search_ms
    swept(listing, waker, clock=clock, budget_ms=1_000)
    listing.listed, listing.takes_ms = whole, 0
    assert swept(listing, waker, clock=clock).paused == paused


def test_time_that_a_listing_takes_is_no_progress(clock: FakeClock) -> None:
    """M8: a key's age is that of the moment at which the store told it, which is before the listing ends."""

    class Slower(MemoryProvider):
        takes_ms = 0

        def orphans(self, limit: int) -> Iterable[Orphan]:
            listed = list(super().orphans(limit))
            clock.advance(self.takes_ms)
            self.takes_ms += 2_000
            return listed

    provider = Slower(clock=clock)
    leave(provider, "orders/a")
    passes = [sweep(provider, RecordingWaker(), clock=clock) for _ in range(3)]
    assert [(each.woken, each.paused) for each in passes] == [(1, 0), (1, 0), (0, 1)]


def test_key_that_cannot_be_read_hides_no_progress(clock: FakeClock) -> None:
    """M12: of what can be read, the list is whole."""
    listing, waker = Listing([orphan(0)]), RecordingWaker()
    for _ in range(2):
        swept(listing, waker, clock=clock)
    whole, listing.listed, listing.fails = listing.listed, [], StoredFormatUnknown("version 9")
    with pytest.raises(StoredFormatUnknown):
        swept(listing, waker, clock=clock)
    listing.listed, listing.fails = whole, None
    assert swept(listing, waker, clock=clock).woken == 1


@pytest.mark.parametrize(("others", "paused"), [(9, 0), (10, 1)])
def test_list_that_is_full_may_have_left_a_key_out(clock: FakeClock, others: int, paused: int) -> None:
    """A key that it does not name may be as it was."""
    listing, waker = Listing([orphan(0)]), RecordingWaker()
    for _ in range(2):
        swept(listing, waker, clock=clock)
    whole, listing.listed = listing.listed, [orphan(number, target="other") for number in range(1, 1 + others)]
    swept(listing, waker, clock=clock, limit=1)
    listing.listed = whole
    assert swept(listing, waker, clock=clock).paused == paused
