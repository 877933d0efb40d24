"""How a request is tried again: how often, for how long, and who is told which try it is."""

import itertools
from typing import Any

import pytest

from incumbent.clock import Moment
from incumbent.errors import ConfigurationError, LeaseUnavailable
from incumbent.retry import (
    MAX_TRIES,
    budget_ms,
    call_with_retry,
    causes,
    check_wait,
    growing_pauses,
    search_is_over,
    search_until,
    wait_ms,
)
from incumbent.testing.clock import FakeClock


class GoneError(Exception):
    """What a vendor's client raises when the connection is gone."""


class RefusedError(Exception):
    """What a vendor's client raises when the server says no."""


class Store:
    """A store that fails first, and remembers how it was asked."""

    def __init__(
        self, clock: FakeClock, failures: int = 0, *, error: type[Exception] = GoneError, takes_ms: int = 5
    ) -> None:
        self.clock = clock
        self.failures = failures
        self.error = error
        self.takes_ms = takes_ms
        self.tries: list[tuple[int, Moment]] = []

    def send(self, number: int, sent: Moment) -> str:
        """Answer, after it has failed often enough."""
        self.tries.append((number, sent))
        self.clock.advance(self.takes_ms)
        if len(self.tries) <= self.failures:
            raise self.error("no answer")
        return "an answer"

    def asked(self, **more: Any) -> str:
        """Ask it as a provider does."""
        said: dict[str, Any] = {
            "clock": self.clock,
            "call": "renew",
            "key": "thread-1",
            "ttl_ms": 30_000,
            "waits_ms": 1_000,
            "errors": (GoneError,),
            "classify_error": lambda _: (True, "look at the network"),
        }
        return call_with_retry(self.send, **{**said, **more})


def test_answer_of_the_first_try_is_the_answer() -> None:
    """It is told that it is the first, and when it was sent."""
    clock = FakeClock()
    began = clock.now()
    store = Store(clock)
    assert store.asked() == "an answer"
    assert store.tries == [(1, began)]


def test_each_try_knows_its_number_and_its_own_sending() -> None:
    """R9, R12: what is known of a try is read for that try, after the pause before it."""
    # H16: ShedLock #132: time read before a wait, used after it.
    clock = FakeClock()
    store = Store(clock, 2, takes_ms=100)
    assert store.asked() == "an answer"
    (first, sent_first), (second, sent_second), (third, sent_third) = store.tries
    assert (first, second, third) == (1, 2, 3)
    assert 100 + 10 <= sent_first.until(sent_second) <= 100 + 20
    assert 100 + 10 <= sent_second.until(sent_third) <= 100 + 40


def test_transient_errors_are_tried_three_times() -> None:
    """R9: then it is not known whether the call took effect, and the vendor's error is the cause."""
    # H9: one transient error ends a healthy run.
    store = Store(FakeClock(), 99)
    with pytest.raises(LeaseUnavailable, match="look at the network") as raised:
        store.asked()
    assert len(store.tries) == MAX_TRIES == 3
    assert isinstance(raised.value.__cause__, GoneError)
    assert raised.value.key == "thread-1"
    for said in ("renew", "'thread-1'", "GoneError", "no answer"):
        assert said in str(raised.value)


@pytest.mark.parametrize(("ttl_ms", "tries"), [(30_000, (8, 10)), (6_000, (3, 4))])
def test_what_passes_by_itself_is_tried_for_as_long_as_the_budget_lasts(ttl_ms: int, tries: tuple[int, int]) -> None:
    """A slot that moves: more than three tries for a long ttl, with pauses that stop growing."""
    store = Store(FakeClock(), 99, takes_ms=300)
    with pytest.raises(LeaseUnavailable):
        store.asked(ttl_ms=ttl_ms, passes=lambda error: isinstance(error, GoneError))
    assert tries[0] <= len(store.tries) <= tries[1]
    store = Store(FakeClock(), 5, takes_ms=300)
    assert store.asked(passes=lambda error: isinstance(error, GoneError)) == "an answer"


def test_error_that_trying_again_cannot_help_is_not_tried_again() -> None:
    """It says what to do instead."""
    store = Store(FakeClock(), 99)
    with pytest.raises(LeaseUnavailable, match="grant the role the right"):
        store.asked(classify_error=lambda _: (False, "grant the role the right"))
    assert len(store.tries) == 1


def test_error_of_another_kind_goes_through() -> None:
    """A mistake of ours, or an answer that is an error of the tree, is no missing answer."""
    store = Store(FakeClock(), 99, error=RefusedError)
    with pytest.raises(RefusedError):
        store.asked()
    assert len(store.tries) == 1


def test_client_that_repeats_on_its_own_makes_every_try_a_repetition() -> None:
    """R9: then no first try can say "lost"."""
    store = Store(FakeClock(), 2)
    store.asked(first_try=2)
    assert [number for number, _ in store.tries] == [2, 3, 4]


@pytest.mark.parametrize(("takes_ms", "tries"), [(100, 3), (2_000, 2), (2_995, 1), (5_000, 1)])
def test_no_try_begins_after_the_budget(takes_ms: int, tries: int) -> None:
    """H10: three seconds for a ttl of thirty."""
    # aegra #547, botocore's 60 s: the renew call waits longer than the lease lives.
    store = Store(FakeClock(), 99, takes_ms=takes_ms)
    with pytest.raises(LeaseUnavailable):
        store.asked()
    assert len(store.tries) == tries


@pytest.mark.parametrize(
    ("ttl_ms", "wait", "budget"),
    [
        (None, 1_000, 3_000),
        (86_400_000, 1_000, 3_000),
        (20_000, 1_000, 3_000),
        (19_999, 500, 3_000),
        (18_000, 500, 3_000),
        (10_000, 500, 1_666),
        (9_999, 250, 1_666),
        (6_000, 250, 1_000),
        (1_500, 250, 250),
        (1, 250, 250),
    ],
)
def test_waits_and_budget_follow_from_the_ttl(ttl_ms: int | None, wait: int, budget: int) -> None:
    """H10: a twentieth and a sixth of it, within bounds."""
    assert wait_ms(ttl_ms) == wait
    assert budget_ms(ttl_ms) == budget


@pytest.mark.parametrize("ttl_ms", [6_000, 10_000, 20_000, 30_000, 300_000])
def test_call_has_ended_before_the_next_renewal_is_due(ttl_ms: int) -> None:
    """H10: even when every try lasts as long as it can, for a connection and for an answer."""
    clock = FakeClock()
    began = clock.now()
    store = Store(clock, 99, takes_ms=2 * wait_ms(ttl_ms))
    with pytest.raises(LeaseUnavailable):
        store.asked(ttl_ms=ttl_ms, waits_ms=wait_ms(ttl_ms))
    assert began.until(clock.now()) < ttl_ms // 3


@pytest.mark.parametrize(("time_left_ms", "tried"), [(2_000, True), (1_999, False), (0, False), (-5, False)])
def test_no_try_begins_that_could_outlast_its_lease(time_left_ms: int, tried: bool) -> None:  # noqa: FBT001
    """H10: a try waits twice at most; with less than that left its answer is worth nothing."""
    clock = FakeClock()
    store = Store(clock)
    give_up_at = clock.now().plus(time_left_ms)
    if tried:
        assert store.asked(give_up_at=give_up_at) == "an answer"
    else:
        with pytest.raises(LeaseUnavailable, match="not tried"):
            store.asked(give_up_at=give_up_at)
    assert bool(store.tries) is tried


def test_no_further_try_begins_that_could_outlast_its_lease() -> None:
    """H10: the error of the try before is told, and is the cause."""
    clock = FakeClock()
    store = Store(clock, 99, takes_ms=1_500)
    with pytest.raises(LeaseUnavailable, match="no other try was begun") as raised:
        store.asked(give_up_at=clock.now().plus(3_000))
    assert len(store.tries) == 1
    assert isinstance(raised.value.__cause__, GoneError)


def test_short_lease_is_still_renewed() -> None:
    """H10: a sixth of the ttl has to do, where twice the wait is more than the lease has."""
    clock = FakeClock()
    store = Store(clock)
    assert store.asked(ttl_ms=600, waits_ms=250, give_up_at=clock.now().plus(100)) == "an answer"


@pytest.mark.parametrize(
    ("waits", "ttl_ms", "refused"),
    [
        (None, 1_000, False),
        (1_000, 1_000, False),
        (1_001, 1_000, True),
        (float("inf"), 86_400_000, True),
        (60_000, None, False),
    ],
)
def test_clients_wait_is_no_longer_than_the_lease(waits: float | None, ttl_ms: int | None, refused: bool) -> None:  # noqa: FBT001
    """H10: who sets a wait is told before it costs a lease."""

    def check() -> None:
        check_wait(waits, ttl_ms, key="thread-1", advice="set read_timeout")

    if not refused:
        check()
        return
    with pytest.raises(ConfigurationError, match="set read_timeout") as raised:
        check()
    assert raised.value.key == "thread-1"


def test_pause_before_another_try_is_never_the_same() -> None:
    """H19: many environments that were refused at one moment do not come back at one moment."""
    # KCL #136, #265.

    def pause() -> int:
        clock = FakeClock()
        store = Store(clock, 1, takes_ms=0)
        store.asked()
        return store.tries[0][1].until(store.tries[1][1])

    pauses = {pause() for _ in range(200)}
    assert len(pauses) > 5
    assert min(pauses) >= 10
    assert max(pauses) <= 20


def test_error_that_comes_from_itself_is_named_once() -> None:
    """A client that raises a kept error again, after our error that came from it, makes a ring of the two."""
    first, second = ValueError("kept"), LeaseUnavailable("no answer")
    second.__cause__, first.__context__ = first, second
    assert list(causes(second)) == [second, first]
    assert list(causes(None)) == []


def test_looks_for_a_result_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is half as long again, up to a second, and up to a fifth shorter."""
    spread = list[tuple[int, int]]()

    def highest(*ends: int) -> int:
        least, most = ends
        spread.append((least, most))
        return most

    monkeypatch.setattr("incumbent.retry.random.randint", highest)
    longest = [50, 75, 112, 168, 252, 378, 567, 850, 1_000, 1_000]
    assert list(itertools.islice(growing_pauses(), 10)) == longest
    assert spread == [(each - each // 5, each) for each in longest]


def test_causes_end_where_an_error_came_from_nothing() -> None:
    """Also where those of another error are left out."""
    other, error = ValueError("other"), KeyError("k")
    assert list(causes(error, other)) == [error]
    assert list(causes(None, other)) == []
    error.__cause__ = other
    assert list(causes(error, other)) == [error]
    assert list(causes(error)) == [error, other]


@pytest.mark.parametrize(("left_ms", "over"), [(1, "no"), (0, "yes"), (-1, "yes")])
def test_search_is_over_from_its_moment_on(left_ms: int, over: str) -> None:
    """And never where none is set."""
    clock = FakeClock()
    with search_until(clock.now().plus(10)):
        clock.advance(10 - left_ms)
        assert search_is_over(clock) is (over == "yes")
    assert not search_is_over(clock)
