"""A load on a Redis cluster while a primary dies or a slot moves; ``make soak`` prints the counts of longer ones."""

from collections.abc import Callable, Iterator

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers.redis.names import Names
from incumbent.testing.redis_cluster import SLOTS, Cluster, Node, redis_cluster, slot_of
from tests.budgets import budget
from tests.faults.cluster_load import KEYS, Counts, Load, Risks

pytestmark = pytest.mark.usefixtures("connections_that_redis_py_drops")

PREFIX = "load"
MESSAGES = budget(1, soak=10_000)  # at least, for each fault
JUST_MS = 1_000  # what was answered so long before a primary's death may be unknown to its replica


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster that each fault leaves with three primaries and their replicas."""
    with redis_cluster() as started:
        yield started


def slot(key: str) -> int:
    """The slot of a key's records."""
    return slot_of(Names(PREFIX).of(key)[0].decode())


def other_than(cluster: Cluster, node: Node) -> Node:
    """The primary after this one."""
    primaries = cluster.primaries
    return primaries[(primaries.index(node) + 1) % len(primaries)]


def slots_move_key_by_key(cluster: Cluster) -> Risks:
    """Those of six keys, each open for a while before and after its names move."""
    for key in KEYS[:6]:
        to = other_than(cluster, cluster.primary_of(slot(key)))
        source = cluster.open_slot(slot(key), to)
        SYSTEM_CLOCK.sleep_ms(150)
        cluster.move_keys(slot(key), source, to)
        SYSTEM_CLOCK.sleep_ms(150)
        cluster.close_slot(slot(key), to)
    return ()


def slots_move_as_a_whole(cluster: Cluster) -> Risks:
    """A sixth of all slots, to another primary and back."""
    first = cluster.primary_of(0)
    for to in (other_than(cluster, first), first):
        cluster.move_slots(0, SLOTS // 6, to)
    return ()


def replica_is_promoted(cluster: Cluster) -> Risks:
    """A fail-over that both nodes agree on."""
    primary = cluster.primaries[0]
    cluster.replica_of(primary).promote()
    cluster.wait_for_replica(primary)
    return ()


def primary_dies(cluster: Cluster) -> Risks:
    """Its replica takes over, and gets a replica."""
    began = SYSTEM_CLOCK.now()
    promoted = cluster.fail_over(cluster.primaries[1])
    cluster.add_replica(promoted)
    return [(began.plus(-JUST_MS), began.plus(JUST_MS // 4))]


def primary_freezes(cluster: Cluster) -> Risks:
    """Its replica takes over; when it thaws, it may take itself for a primary for a moment."""
    primary = cluster.primaries[2]
    replica = cluster.replica_of(primary)
    began = SYSTEM_CLOCK.now()
    with primary.frozen():
        cluster.wait_for_promotion(replica)
        thaws = SYSTEM_CLOCK.now()
    cluster.wait_for_replica(primary)
    return [(began.plus(-JUST_MS), began.plus(JUST_MS // 4)), (thaws, SYSTEM_CLOCK.now())]


FAULTS: tuple[Callable[[Cluster], Risks], ...] = (
    slots_move_key_by_key,
    primary_dies,
    *budget((), soak=(slots_move_as_a_whole, replica_is_promoted, primary_freezes)),
)


@pytest.mark.timeout(budget(120, soak=1_800))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_nothing_is_lost_or_run_at_once(cluster: Cluster, fault: Callable[[Cluster], Risks]) -> None:
    """Beyond what asynchronous replication forgets: what a primary answered just before it died."""
    counts = Counts()
    rounds = 0
    while counts.messages < MESSAGES:
        rounds += 1
        counts.add(Load(cluster.url, PREFIX, seed=rounds).during(lambda: fault(cluster)))
    print(f"{fault.__name__}, {rounds} times: {counts}")  # noqa: T201 - what `make soak` shows
    assert counts.unexplained == []
    assert counts.fences == 0


def test_load_sees_what_it_counts() -> None:
    """A message that never runs, one that runs twice and at once, with one fence; a moment at risk explains it."""
    load = Load("", PREFIX)
    began = SYSTEM_CLOCK.now()
    load.accept("lost")
    for _ in range(2):
        load.begin("a", 7)
    for _ in range(2):
        load.end("a", ["twice"])
    counts = load.count([])
    assert (counts.lost, counts.twice, counts.overlaps, counts.fences, len(counts.unexplained)) == (1, 1, 1, 1, 2)
    assert load.count([(began, SYSTEM_CLOCK.now())]).unexplained == []
    assert len(load.count([(began.plus(-9), began.plus(-1))]).unexplained) == 2
