"""Clients whose clocks disagree, on the store that has no clock of its own (R3, R12; H15).

The bound is the difference between any two clients' clocks. Within it nobody is granted a key whose owner still
believes; both edges are tried, and what lies beyond.
"""

import random
from typing import Any

import pytest

from incumbent.clock import Moment, margin_ms
from incumbent.errors import LeaseLost
from incumbent.testing.clock import FakeClock
from incumbent.testing.contract_calls import KEY, message
from incumbent.values import Claimed
from tests.faults.stores import DynamoDBStore, Provider

TTL_MS = 30_000
SKEW_MS = 1_000  # the provider's own, which none of these tests sets
EPOCH_MS = 1_800_000_000_000


@pytest.fixture(params=["dynamodb"])
def store(request: pytest.FixtureRequest) -> Any:
    """A DynamoDB; which one makes no difference to the clocks."""
    made: DynamoDBStore = request.getfixturevalue(f"networked_{request.param}")
    made.begin()
    return made


def clock(offset_ms: int, drift_ppm: int = 0) -> FakeClock:
    """A machine's clock, whose wall clock is off by so much; its monotonic clock began whenever it began."""
    return FakeClock(wall_ms=EPOCH_MS + offset_ms, mono_ms=7_000_000 + offset_ms * 3, drift_ppm=drift_ppm)


def pass_time(ms: int, *clocks: FakeClock) -> None:
    """Let true time pass for all."""
    for each in clocks:
        each.advance(ms)


def until_doubt(clock: FakeClock, deadline: Moment, *others: FakeClock) -> None:
    """Let true time pass until the owner believes for one millisecond more."""
    time_left_ms = clock.now().until(deadline)
    while time_left_ms > 1:
        pass_time(max(1, (time_left_ms - 1) * 9 // 10), clock, *others)
        time_left_ms = clock.now().until(deadline)
    assert time_left_ms == 1


def takes_over(provider: Provider, owner: str) -> bool:
    """Whether the key is granted."""
    return provider.acquire_lease(KEY, owner, TTL_MS).acquired


OFFSETS = [
    (0, 0),
    (0, SKEW_MS),
    (SKEW_MS, 0),
    (-SKEW_MS, 0),
    (0, -SKEW_MS),
    (-SKEW_MS // 2, SKEW_MS // 2),
    (SKEW_MS // 2, -SKEW_MS // 2),
]


@pytest.mark.parametrize(("owners_ms", "strangers_ms"), OFFSETS)
def test_nobody_takes_over_while_the_owner_believes(store: DynamoDBStore, owners_ms: int, strangers_ms: int) -> None:
    """To the last millisecond, with either of them ahead by all that is allowed; and then somebody does."""
    ours, theirs = clock(owners_ms), clock(strangers_ms)
    owner, stranger = store.provider(ours), store.bare(theirs)
    held = owner.acquire_lease(KEY, "A", TTL_MS)
    assert held.deadline is not None
    until_doubt(ours, held.deadline, theirs)
    assert not takes_over(stranger, "B")
    assert stranger.get_lease_owner(KEY) == "A"
    pass_time(margin_ms(TTL_MS) + 2 * SKEW_MS + 1, ours, theirs)
    assert takes_over(stranger, "B")


@pytest.mark.parametrize(("owners_ms", "strangers_ms"), [(0, SKEW_MS), (-SKEW_MS // 2, SKEW_MS // 2)])
def test_strangers_edge_is_the_millisecond_after_the_owners_lease(
    store: DynamoDBStore, owners_ms: int, strangers_ms: int
) -> None:
    """A stranger that is ahead by all that is allowed comes exactly when the ttl has passed, and not before."""
    ours, theirs = clock(owners_ms), clock(strangers_ms)
    owner, stranger = store.provider(ours), store.bare(theirs)
    owner.acquire_lease(KEY, "A", TTL_MS)
    pass_time(TTL_MS - 1, ours, theirs)
    assert not takes_over(stranger, "B")
    pass_time(1, ours, theirs)
    assert takes_over(stranger, "B")


@pytest.mark.parametrize("renewed", [False, True], ids=["granted", "renewed"])
@pytest.mark.parametrize(
    ("owners_step_ms", "strangers_step_ms"),
    [(SKEW_MS, 0), (-SKEW_MS, 0), (0, SKEW_MS), (0, -SKEW_MS), (SKEW_MS // 2, -SKEW_MS // 2)],
)
def test_steps_of_a_clock_within_the_bound_harm_nothing(
    store: DynamoDBStore,
    owners_step_ms: int,
    strangers_step_ms: int,
    renewed: bool,  # noqa: FBT001 - two cases of one fact
) -> None:
    """Forward or back, of either's wall clock, in the middle of a lease."""
    ours, theirs = clock(0), clock(0)
    owner, stranger = store.provider(ours), store.bare(theirs)
    claimed = owner.claim(KEY, "A", TTL_MS, message(1))
    assert isinstance(claimed, Claimed)
    deadline = claimed.deadline
    pass_time(TTL_MS // 2, ours, theirs)
    ours.step_wall(owners_step_ms)
    theirs.step_wall(strangers_step_ms)
    if renewed:
        deadline = owner.beat(KEY, "A", TTL_MS).deadline
    until_doubt(ours, deadline, theirs)
    assert not takes_over(stranger, "B")


@pytest.mark.parametrize(("owners_ppm", "strangers_ppm"), [(-200, 200), (200, -200), (-30_000, 0), (0, 30_000)])
def test_drift_within_the_bound_harms_nothing(store: DynamoDBStore, owners_ppm: int, strangers_ppm: int) -> None:
    """Clocks that run apart, as long as they have not run apart by more than is allowed."""
    ours, theirs = clock(0, owners_ppm), clock(0, strangers_ppm)
    owner, stranger = store.provider(ours), store.bare(theirs)
    held = owner.acquire_lease(KEY, "A", TTL_MS)
    assert held.deadline is not None
    until_doubt(ours, held.deadline, theirs)
    assert abs(ours.now().wall_ms - theirs.now().wall_ms) <= SKEW_MS
    assert not takes_over(stranger, "B")


def test_beyond_the_bound_two_may_believe_and_the_fence_tells_them_apart(store: DynamoDBStore) -> None:
    """What docs/fencing.md says: then nothing but the fence protects what they write to."""
    beyond_ms = SKEW_MS + margin_ms(TTL_MS) + 50
    ours, theirs = clock(0), clock(beyond_ms)
    owner, stranger = store.provider(ours), store.bare(theirs)
    held = owner.acquire_lease(KEY, "A", TTL_MS)
    assert held.deadline is not None
    until_doubt(ours, held.deadline, theirs)
    second = stranger.acquire_lease(KEY, "B", TTL_MS)
    assert second.acquired
    assert ours.now().until(held.deadline) > 0
    assert (second.fence or 0) > (held.fence or 0)
    assert owner.renew_lease(KEY, "A", TTL_MS) is False


def test_clock_that_is_set_forward_ends_the_owners_belief_at_once(store: DynamoDBStore) -> None:
    """R12: also what a frozen environment sees when it thaws: the earlier of both clocks counts."""
    ours = clock(0)
    held = store.provider(ours).acquire_lease(KEY, "A", TTL_MS)
    assert held.deadline is not None
    ours.step_wall(TTL_MS)
    assert ours.now().until(held.deadline) <= 0


def test_clock_that_is_set_back_gives_the_owner_no_more_time(store: DynamoDBStore) -> None:
    """R12: the monotonic clock has not gone back."""
    ours = clock(0)
    held = store.provider(ours).acquire_lease(KEY, "A", TTL_MS)
    assert held.deadline is not None
    ours.step_wall(-TTL_MS)
    ours.advance(TTL_MS - margin_ms(TTL_MS))
    assert ours.now().until(held.deadline) <= 0


@pytest.mark.parametrize("seed", range(6))
def test_never_two_believe_whatever_their_clocks_do_within_the_bound(store: DynamoDBStore, seed: int) -> None:
    """Three clients that come and go, renew, pass on and die, while their clocks step about and drift."""
    chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
    ttl_ms = chance.choice((10_000, 30_000))
    clocks = [clock(0) for _ in range(3)]
    off_ms = [0, 0, 0]
    providers = [store.provider(clocks[0]), store.bare(clocks[1]), store.bare(clocks[2])]
    believes: list[tuple[str, Moment] | None] = [None, None, None]
    granted = 0
    for number in range(120):
        pass_time(chance.choice((1, 50, ttl_ms // 3, ttl_ms - SKEW_MS, ttl_ms + SKEW_MS // 2)), *clocks)
        who = chance.randrange(3)
        new_ms = chance.randint(-SKEW_MS // 2, SKEW_MS // 2)
        clocks[who].step_wall(new_ms - off_ms[who])
        off_ms[who] = new_ms
        provider, believed = providers[who], believes[who]
        match chance.randrange(6) if believed else 0:
            case 0:
                answer = provider.acquire_lease(KEY, f"A{number}", ttl_ms)
                if answer.acquired and answer.deadline:
                    believes[who] = (f"A{number}", answer.deadline)
                    granted += 1
            case 1 if believed:
                provider.release_lease(KEY, believed[0])
                believes[who] = None
            case 2 if believed:
                believes[who] = None  # it dies, and nobody is told
            case _ if believed:
                try:
                    believes[who] = (believed[0], provider.beat(KEY, believed[0], ttl_ms).deadline)
                except LeaseLost:
                    believes[who] = None
            case _:
                pass
        owners = [
            each[0]
            for each, at in zip(believes, clocks, strict=True)
            if each is not None and at.now().until(each[1]) > 0
        ]
        assert len(owners) <= 1, (seed, number, owners)
    assert granted > 10
