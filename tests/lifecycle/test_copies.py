"""Processes that are copies of one another share no owner and no connection: SnapStart, and several workers (H14)."""

from incumbent.clock import SYSTEM_CLOCK
from tests.end_to_end.conftest import Line
from tests.lifecycle.conftest import Start

ROUNDS = 6


def check_copies(line: Line, function: str) -> None:
    """Four processes at the same time, again and again, on keys of their own and on one that they share."""
    pids: set[int] = set()
    for number in range(ROUNDS):
        events = [{"key": f"{number}-{each}", "id": f"{number}-{each}"} for each in range(2)]
        events += [{"key": "shared", "id": f"{number}-s{each}"} for each in range(2)]
        ended = [each.result() for each in [line.cloud.submit(function, event) for event in events]]
        assert [each.error for each in ended] == [None] * len(events)
        pids |= {each.payload["pid"] for each in ended}
    line.cloud.wait_idle()
    assert len(pids) == 4, "not every copy was used: the test sees nothing"

    owners = [each.owner for each in line.facts if each.fact in {"claimed", "continued"}]
    random_parts = [owner.rpartition(".")[2] for owner in owners]
    assert len(owners) >= 2 * ROUNDS
    assert len(set(random_parts)) == len(owners)
    assert sorted(line.ran()) == sorted((each.message_id,) for each in line.facts if each.fact in {"claimed", "routed"})
    assert len(line.ran()) == 4 * ROUNDS
    assert line.summary().overlaps == ()
    assert not [each for each in line.facts if each.fact in {"lost", "store_error"}]


def test_restored_copies_of_a_snapshot_are_owners_of_their_own(start: Start) -> None:
    """With the random state and the dead connections of one import, each serves its first event and all others."""
    line = start({"LIVES_MS": "60000"}, workers_per_environment=4, concurrency=1)
    line.cloud.warm("ClonedFunction")
    while len([each for each in line.cloud.logs if each.text.startswith("restored ")]) < 4:
        SYSTEM_CLOCK.sleep_ms(5)
    assert any(each.text == "cut a connection" for each in line.cloud.logs)
    check_copies(line, "ClonedFunction")


def test_child_of_a_run_tells_no_loss_while_its_parent_holds_the_lease(start: Start) -> None:
    """By ``Process`` and ``Pipe``, a ttl later the child knows nothing, and the parent has renewed."""
    line = start(concurrency=1)
    done = line.cloud.invoke("WholeFunction", {"key": "k", "id": "m1", "do": "in_a_child"})
    told = done.payload["answer"]
    assert told.pop("fence") > 0
    assert told == {"stop": "None", "held": "LeaseUnavailable", "status": 0, "same fence": True, "parent": "None"}
    assert not [each for each in line.facts if each.fact in {"lost", "store_error"}]
    assert line.ran() == [("m1",)]
    assert list(line.store.mailbox.peek("WholeFunction/k")) == []


def test_workers_of_one_environment_are_owners_of_their_own(start: Start) -> None:
    """The runtime client forks them before the import; they run at the same time and contend as strangers do."""
    line = start({"LIVES_MS": "60000"}, workers_per_environment=4, concurrency=1)
    line.cloud.warm("WholeFunction")
    check_copies(line, "WholeFunction")
