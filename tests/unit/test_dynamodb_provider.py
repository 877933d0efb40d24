"""The DynamoDB provider beyond the suite: its requests, its stored format, lost replies, errors, clocks."""

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from moto import mock_aws

from incumbent import leased, leased_function, rules
from incumbent.errors import (
    ConfigurationError,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    StoredFormatUnknown,
)
from incumbent.providers.dynamodb import DynamoDBProvider, attributes, bodies, item, names, traces
from incumbent.providers.dynamodb.change import Change
from incumbent.providers.dynamodb.item import Record
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import DynamoDBServer, create_table, dynalite_available
from incumbent.values import (
    FOREVER_MS,
    Acquisition,
    Busy,
    Claimed,
    Continued,
    Duplicate,
    Failure,
    Idle,
    Message,
    Origin,
    Policy,
    Released,
    Routed,
)
from tests.unit.test_item import ODD
from tests.unit.wire import Place, Wire, check, digits

TTL_MS = 30_000
SKEW_MS = 1_000
LARGE = "x" * 5_000
LARGE_OF_A = str(names.body_digest("A", f'"{LARGE}"'))
NOW_MS = 1_800_000_000_000

UPDATE, GET, PUT, DELETE = "UpdateItem", "GetItem", "PutItem", "DeleteItem"


@pytest.fixture(scope="module")
def on_telling(dynamodb_server: DynamoDBServer) -> Iterator[Place]:
    """A table that returns the old item with a refusal, as DynamoDB does."""
    place = Place(dynamodb_server, tells_old=True)
    yield place
    place.close()


@pytest.fixture(scope="module")
def on_dynalite(dynalite_server: DynamoDBServer) -> Iterator[Place]:
    """A table that returns no old item."""
    place = Place(dynalite_server, tells_old=False)
    yield place
    place.close()


class Bench:
    """A table, a clock, and as many callers as a test wants, each with a provider and a wire of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = FakeClock(wall_ms=NOW_MS)
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.wires: list[Wire] = []
        self.a, self.b, self.c = self.wire(), self.wire(), self.wire()

    def wire(self, clock: FakeClock | None = None, **config: Any) -> Wire:
        """One caller more."""
        self.wires.append(Wire(self.place, clock or self.clock, self.prefix, **config))
        return self.wires[-1]

    def pk(self, key: str = "k") -> str:
        """The key's partition key."""
        return f"{self.prefix}#{key}"

    def item(self, key: str = "k", sk: str = "lease") -> dict[str, Any]:
        """What is stored."""
        return self.place.item(self.pk(key), sk)

    def expected(self, *requests: str, refusals: int = 0) -> list[str]:
        """The requests, and one read more for each refusal where the store does not tell the old item."""
        return sorted([*requests, *[GET] * (refusals * self.place.reads_more)])

    def expire(self) -> None:
        """Let a lease end for everybody."""
        self.clock.advance(TTL_MS + SKEW_MS)

    def die(self) -> None:
        """Let a lease end for everybody, and the first pause of what its run held."""
        self.expire()
        self.clock.advance(1_000)

    def lost_to(self, wire: Wire, owner: str, number: int) -> None:
        """Let the lease end, and another claim the key."""
        self.expire()
        claim(wire, owner, number)


KINDS = ["on_telling", "on_dynalite"] if dynalite_available() else ["on_telling"]


def _bench(place: Place) -> Iterator[Bench]:
    made = Bench(place)
    yield made
    for wire in made.wires:
        wire.close()


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Callers of a store, on both kinds."""
    yield from _bench(request.getfixturevalue(request.param))


@pytest.fixture(params=KINDS[-1:])
def quick(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Callers of the store that is the quicker one, for many calls."""
    yield from _bench(request.getfixturevalue(request.param))


@pytest.fixture
def telling(on_telling: Place) -> Iterator[Bench]:
    """Callers of a store that tells the old item."""
    yield from _bench(on_telling)


def message(number: int, event: Any = None) -> Message:
    """A message."""
    return Message(id=f"m{number}", event={"number": number} if event is None else event)


def claim(wire: Wire, owner: str, number: int | None = None, **more: Any) -> Any:
    """Claim the key."""
    event = more.pop("event", None)
    own = None if number is None else message(number, event)
    return noted(wire, wire.provider.claim("k", owner, TTL_MS, own, **more))


def settle(wire: Wire, owner: str, *numbers: int, **more: Any) -> Any:
    """Settle the key, in the tenure that was last granted to the caller."""
    handled = [f"m{number}" for number in numbers]
    options = {"fence": wire.fences.get(owner), **more}
    return noted(wire, wire.provider.settle("k", owner, ttl_ms=TTL_MS, handled=handled, **options))


def noted(wire: Wire, answer: Any) -> Any:
    """Keep the fence of a grant, as an owner does."""
    if isinstance(answer, Claimed | Continued):
        wire.fences[answer.owner] = answer.fence
    return answer


# --- requests: R11, M10


def test_uncontended_run_is_two_requests(bench: Bench) -> None:
    """M10: claim, settle."""
    assert bench.a.count(lambda _: claim(bench.a, "A", 1))[1] == [UPDATE]
    assert bench.a.count(lambda _: settle(bench.a, "A", 1, next_owner="A2")) == (Released(remaining=0), [UPDATE])
    assert bench.a.count(lambda _: claim(bench.a, "B", 2))[1] == [UPDATE]
    assert bench.a.count(lambda _: settle(bench.a, "B", 2)) == (Released(remaining=0), [UPDATE])


def test_each_call_of_a_lease_is_one_request(bench: Bench) -> None:
    """R11: free, renewed, transferred, looked at, released."""
    for call in (
        lambda p: p.acquire_lease("k", "A", TTL_MS),
        lambda p: p.renew_lease("k", "A", TTL_MS),
        lambda p: p.transfer_lease("k", "A", "B", TTL_MS),
        lambda p: p.release_lease("k", "B"),
    ):
        assert bench.a.count(call)[1] == [UPDATE]
    assert bench.a.count(lambda p: p.get_lease_owner("k")) == (None, [GET])


def test_refused_calls_of_a_lease_are_one_request(bench: Bench) -> None:
    """R11, H21: who holds the key is learnt from the refusal itself."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    one = bench.expected(UPDATE, refusals=1)
    answer, sent = bench.b.count(lambda p: p.acquire_lease("k", "B", TTL_MS))
    assert (answer.acquired, answer.owner, sorted(sent)) == (False, "A", one)
    assert bench.b.count(lambda p: p.renew_lease("k", "B", TTL_MS)) == (False, one[::-1])
    assert bench.b.count(lambda p: p.transfer_lease("k", "B", "C", TTL_MS)) == (False, one[::-1])
    assert bench.b.count(lambda p: p.release_lease("k", "B")) == (None, one[::-1])


def test_acquire_by_the_present_owner_is_two_requests(bench: Bench) -> None:
    """M10; and one where the lease would not be extended (R4)."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.clock.advance(1_000)
    _, sent = bench.a.count(lambda p: p.acquire_lease("k", "A", TTL_MS))
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    _, sent = bench.a.count(lambda p: p.acquire_lease("k", "A", TTL_MS // 3))
    assert sorted(sent) == bench.expected(UPDATE, refusals=1)


def test_routed_is_two_requests(bench: Bench) -> None:
    """M10: the refused claim, the append."""
    claim(bench.a, "A", 1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2))
    assert isinstance(answer, Routed)
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_take_is_answered_though_senders_always_come_first(bench: Bench) -> None:
    """M6: what came during its last requests waits for the next ``take``; nothing is left out, and none comes twice."""
    claim(bench.a, "A", 1)
    for number in range(2, 30):
        claim(bench.b, f"B{number}", number)
    sent = iter(range(30, 100))

    def send(_: Any) -> None:
        number = next(sent)
        claim(bench.b, f"B{number}", number)

    taken: list[str] = []
    for _ in range(3):
        bench.a.faults = [send for _ in range(12)]
        taken += [each.id for each in bench.a.provider.take("k", "A", TTL_MS, have=["m1", *taken])]
    bench.a.faults = []
    taken += [each.id for each in bench.a.provider.take("k", "A", TTL_MS, have=["m1", *taken])]
    assert taken == [f"m{number}" for number in range(2, next(sent))]
    assert {each.attempt for each in bench.c.provider.peek("k")} == {1}


@pytest.mark.parametrize("leaves", ["settles", "releases", "dies"])
def test_routed_while_the_holder_leaves_is_three_requests(bench: Bench, leaves: str) -> None:
    """M10, H39: the append finds nobody, and the message is claimed: never more requests, and nothing is lost."""
    claim(bench.a, "A", 1)
    start: list[Any] = [None, *[None] * bench.place.reads_more]

    def leave(_: Any) -> None:
        if leaves == "settles":
            settle(bench.a, "A", 1)
        elif leaves == "releases":
            bench.a.provider.release_lease("k", "A")
        else:
            bench.expire()

    # The time of a request is read before it is sent: for a death it must pass during the one before.
    bench.b.faults = [leave] if leaves == "dies" else [*start, leave]
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2))
    assert isinstance(answer, Claimed)
    assert answer.messages[0].id == "m2"  # the other is handled, or died with its run
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, UPDATE, refusals=1)
    assert [each.id for each in bench.c.provider.peek("k")] == (["m2"] if leaves == "settles" else ["m2", "m1"])


def test_routed_while_owners_whose_clocks_are_ahead_come_and_go_is_three_requests(bench: Bench) -> None:
    """M10, R3: no message pauses, though the key was left at a moment that is yet to come."""
    ahead = bench.wire(FakeClock(wall_ms=NOW_MS + SKEW_MS))
    claim(ahead, "A", 1)
    start: list[Any] = [None] * (1 + bench.place.reads_more)
    bench.b.faults = [*start, lambda _: settle(ahead, "A", 1), lambda _: claim(ahead, "C", 3)]
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2))
    assert isinstance(answer, Routed)
    assert answer.owner == "C"
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, UPDATE, refusals=2)
    assert [each.id for each in bench.c.provider.peek("k")] == ["m2", "m3"]


def test_refused_again_is_routed_all_the_same(bench: Bench) -> None:
    """M10: who was granted after the message was stored will see it."""
    claim(bench.a, "A", 1)
    granted: list[Any] = []
    bench.b.faults = [
        None,
        *[None] * bench.place.reads_more,
        lambda _: settle(bench.a, "A", 1),
        lambda _: granted.append(claim(bench.c, "C", 3)),
    ]
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2))
    assert answer == Routed(owner="C", waiting=2)
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, UPDATE, refusals=2)
    assert [each.id for each in granted[0].messages] == ["m2"]


def test_message_that_waits_on_a_free_key_is_two_requests(bench: Bench) -> None:
    """M10, M1 (4)."""
    claim(bench.a, "A", 1)
    bench.die()
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 1))
    assert isinstance(answer, Claimed)
    assert answer.messages[0].attempt == 2
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def claim_key(key: str, own: Message | None, provider: DynamoDBProvider) -> Any:
    """Claim another key than the bench's."""
    return provider.claim(key, "B", TTL_MS, own)


def test_messages_that_never_ran_are_claimed_in_one_request(bench: Bench) -> None:
    """M10, M8: with a new message, whose delivery is not the one that is counted, and without any."""
    for key, number in (("k", 2), ("k2", None)):
        bench.a.provider.acquire_lease(key, "A", TTL_MS)
        bench.a.provider.claim(key, "S", TTL_MS, message(1))
        bench.expire()
        own = None if number is None else message(number)
        answer, sent = bench.b.count(partial(claim_key, key, own))
        assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
        assert (answer.waiting, sent) == (0 if number is None else 1, [UPDATE])


@pytest.mark.parametrize("number", [2, None])
def test_grant_of_a_key_whose_run_died_is_two_requests(bench: Bench, number: int | None) -> None:
    """M10, M6: the quick claim is refused, since the oldest message was delivered before; and so is an acquire."""
    claim(bench.a, "A", 1)
    bench.die()
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", number))
    assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2) if number is None else ("m2", 1)]
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    bench.expire()
    _, sent = bench.c.count(lambda p: p.acquire_lease("k", "C", TTL_MS))
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_transfer_by_a_run_is_two_requests(bench: Bench) -> None:
    """R6, M6: the refusal shows the messages that die with the run, and those that came meanwhile."""
    claim(bench.a, "A", 1)
    moved, sent = bench.a.count(lambda p: p.transfer_lease("k", "A", "B", TTL_MS))
    assert moved is True
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    assert [(each.id, each.attempt, each.due_at_ms) for each in bench.c.provider.peek("k")] == [
        ("m1", 1, bench.clock.now().wall_ms + 1_000)
    ]
    bench.a.provider.claim("k2", "A", TTL_MS, message(1))
    bench.b.provider.claim("k2", "B", TTL_MS, message(2))
    moved, sent = bench.a.count(lambda p: p.transfer_lease("k2", "A", "B", TTL_MS))
    assert moved is True
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    assert [each.id for each in bench.c.provider.peek("k2")] == ["m2", "m1"]


@pytest.mark.parametrize("mark", [True, False])
def test_what_comes_while_a_run_is_ended_is_neither_lost_nor_overtaken(bench: Bench, *, mark: bool) -> None:
    """M3, M4, M6: a message, or the promise of one, between the look and the change."""
    claim(bench.a, "A", 1)
    claim(bench.a, "S", 2)
    bench.die()
    racing: list[Any] = []

    def come(_: Any) -> None:
        racing.append(claim(bench.c, "C", 1 if mark else 3, route=False))

    bench.b.faults = [None, *[None] * bench.place.reads_more, come]
    answer = claim(bench.b, "B", 4)
    assert isinstance(answer, Busy | Duplicate | Routed)
    assert [each.id for each in racing[0].messages] == ["m2"]
    expected = ["m2", "m1"] if mark else ["m2", "m3", "m1"]
    assert [each.id for each in bench.c.provider.peek("k")] == [*expected, "m4"]


def test_attributes_of_a_later_version_move_with_their_message(telling: Bench) -> None:
    """M12, M6: behind the others it is the same message, with all that this version does not know of it."""
    claim(telling.a, "A", 1)
    claim(telling.a, "S", 2)
    telling.place.change(telling.pk(), "SET #mail[0].#f = :f", f={"S": "of m1"})
    telling.expire()
    claim(telling.b, "B")
    stored = [each["M"] for each in telling.item()["mail"]["L"]]
    assert [(each["id"]["S"], each.get("f")) for each in stored] == [("m2", None), ("m1", {"S": "of m1"})]
    assert (stored[1]["attempts"], stored[1]["due"]) == ({"N": "1"}, {"N": str(NOW_MS + TTL_MS + SKEW_MS + 1_000)})
    assert "given" not in stored[1] or stored[1]["given"] == {"N": "0"}


def test_ticket_is_redeemed_in_one_request(bench: Bench) -> None:
    """M9, M10."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    assert isinstance(settle(bench.a, "A", 1, ticket="T"), Continued)
    answer, sent = bench.c.count(lambda _: claim(bench.c, "C", ticket="T"))
    assert [each.id for each in answer.messages] == ["m2"]
    assert sent == [UPDATE]


def test_ticket_holder_that_names_its_own_ticket_redeems_nothing(bench: Bench) -> None:
    """M1 (1): it is the owner already, and is answered from what stands."""
    first = claim(bench.a, "T", 1, as_ticket=True)
    again = claim(bench.a, "T", ticket="T")
    assert (again.fence, again.expires_in_ms) == (first.fence, first.expires_in_ms)


def test_id_and_claim_with_traces_older_than_the_window_are_routed(bench: Bench) -> None:
    """M5, M3: the traces still stand in the record of a long run, and count for nothing; once more they do."""
    claim(bench.a, "A", 1)
    settle(bench.a, "A", 1)
    claim(bench.a, "B", 2)
    settle(bench.a, "B", dropped=[Failure(id="m2", error="no")])
    bench.clock.advance(Policy().window_ms)
    claim(bench.a, "C", 3)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "D", 1))
    assert isinstance(answer, Routed)
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    assert isinstance(claim(bench.b, "B", 4), Routed)
    assert claim(bench.b, "E", 1) == Duplicate(state="waiting", owner="C")
    assert [each.id for each in bench.c.provider.peek("k")] == ["m3", "m1", "m4"]


def test_duplicates_are_one_request_and_a_promise_one_more(bench: Bench) -> None:
    """M10, M3."""
    claim(bench.a, "A", 1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 1))
    assert answer == Duplicate(state="running", owner="A")
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "C", 1))
    assert answer == Duplicate(state="running", owner="A")
    assert sorted(sent) == bench.expected(UPDATE, refusals=1)
    settle(bench.a, "A", 1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "D", 1))
    assert answer == Duplicate(state="handled")
    assert sorted(sent) == bench.expected(UPDATE, refusals=1)


def test_busy_idle_and_full_are_one_request(bench: Bench) -> None:
    """M10, M7: answered from the refusal."""
    one = bench.expected(UPDATE, refusals=1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B"))
    assert (answer, sent) == (Idle(), [UPDATE, GET])  # where there is no record, a refusal has nothing to tell
    claim(bench.b, "Z", 9)
    settle(bench.b, "Z", 9)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B"))
    assert (answer, sorted(sent)) == (Idle(), one)
    claim(bench.a, "A", 1)
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2, route=False))
    assert (type(answer), sorted(sent)) == (Busy, one)
    bench.b.sent.clear()
    with pytest.raises(MailboxFull):
        claim(bench.b, "B", 2, policy=Policy(max_pending=1))
    assert sorted(bench.b.sent) == one


def test_full_mailbox_on_a_free_key_is_one_request(bench: Bench) -> None:
    """M7: one better than M10 asks: the finder is never refused, so nothing need be counted."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    claim(bench.a, "S", 1, policy=Policy(max_pending=1))
    bench.expire()
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2, policy=Policy(max_pending=1)))
    assert isinstance(answer, Claimed)
    assert sent == [UPDATE]


def test_paused_head_at_a_claim_is_two_requests(bench: Bench) -> None:
    """M6: the later message skips ahead of it, exactly."""
    claim(bench.a, "A", 1)
    settle(bench.a, "A", failed=[Failure(id="m1", error="no", after_ms=60_000)])
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2))
    assert [each.id for each in answer.messages] == ["m2"]
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_head_out_of_attempts_is_three_requests(bench: Bench) -> None:
    """M10 allows four: the refused claim, the dead letter, the exact claim."""
    once = Policy(max_attempts=1)
    claim(bench.a, "A", 1, policy=once)
    bench.expire()
    answer, sent = bench.b.count(lambda _: claim(bench.b, "B", 2, policy=once))
    assert [each.id for each in answer.messages] == ["m2"]
    assert sorted(sent) == bench.expected(UPDATE, PUT, UPDATE, refusals=1)
    assert [each.message.id for each in bench.c.provider.dead_letters("k", 9)] == ["m1"]


def test_dead_letter_is_one_request_more(bench: Bench) -> None:
    """M10: written before it leaves the mailbox, so that it is never nowhere."""
    claim(bench.a, "A", 1)
    failed = [Failure(id="m1", error="no")]
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A", failed=failed, policy=Policy(max_attempts=1)))
    assert isinstance(answer, Released)
    assert sent == [GET, PUT, UPDATE]


def test_settle_is_two_requests_when_something_came(bench: Bench) -> None:
    """M10, M2: the close is refused, and the key goes on."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A", 1, next_owner="A2"))
    assert [each.id for each in answer.messages] == ["m2"]
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_settle_that_goes_on_is_not_refused_by_what_comes(bench: Bench) -> None:
    """M2: passing the key to a due message depends on no later one; freeing it does."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.faults = [*[None] * (1 + bench.place.reads_more), lambda _: claim(bench.b, "B3", 3)]
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A", 1, next_owner="A2"))
    assert ([each.id for each in answer.messages], answer.waiting) == (["m2"], 1)
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
    bench.a.faults = [None, lambda _: claim(bench.b, "B4", 4)]
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A2", 2, 3, next_owner="A3"))
    assert [each.id for each in answer.messages] == ["m4"]
    assert sorted(sent) == bench.expected(GET, UPDATE, UPDATE, refusals=1)


@pytest.mark.parametrize("kind", ["without its fence", "failed", "deferred", "of nothing", "several"])
def test_settle_of_anything_else_reads_first(bench: Bench, kind: str) -> None:
    """M10: what the quick settle cannot decide costs a read, which is cheaper than a refusal."""
    claim(bench.a, "A", 1)
    one: dict[str, Any] = {"ttl_ms": TTL_MS, "fence": bench.a.fences["A"]}
    kinds: dict[str, dict[str, Any]] = {
        "without its fence": {"handled": ["m1"], "fence": None},
        "failed": {"failed": [Failure(id="m1", error="no")]},
        "deferred": {"deferred": ["m1"]},
        "of nothing": {},
        "several": {"handled": ["m1", "m2"]},
    }
    options = kinds[kind]
    answer, sent = bench.a.count(lambda p: p.settle("k", "A", **{**one, **options}))
    assert (answer, sent) == (Released(remaining=int("handled" not in options)), [GET, UPDATE])


def test_settle_of_another_claims_message_is_two_requests(bench: Bench) -> None:
    """M10, R8: the trace tells whose claim stored it, which a run does not know."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    settle(bench.a, "A", 1, next_owner="A2")
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A2", 2))
    assert (answer, sorted(sent)) == (Released(remaining=0), bench.expected(UPDATE, UPDATE, refusals=1))
    assert claim(bench.b, "B", 2) == Routed(owner=None, waiting=0)


def test_dropped_message_is_one_request_and_so_is_its_retry(bench: Bench) -> None:
    """M10, M3: the source delivers it again, and a late copy of the claim that failed stores nothing."""
    claim(bench.a, "A", 1)
    dropped = [Failure(id="m1", error="no")]
    assert bench.a.count(lambda _: settle(bench.a, "A", dropped=dropped)) == (Released(remaining=0), [UPDATE])
    assert isinstance(claim(bench.b, "A", 1), Idle)
    answer, sent = bench.a.count(lambda _: claim(bench.a, "A2", 1))
    assert (answer.messages[0].id, sent) == ("m1", [UPDATE])


def test_take_is_one_request_and_two_when_something_has_come(bench: Bench) -> None:
    """M10, M6: each renews the lease."""
    claim(bench.a, "A", 1)
    take: Callable[[DynamoDBProvider], Any] = lambda p: [m.id for m in p.take("k", "A", TTL_MS, have=["m1"])]  # noqa: E731
    assert bench.a.count(take) == ([], [UPDATE])
    claim(bench.b, "B", 2)
    assert bench.a.count(take) == (["m2"], [UPDATE, UPDATE])
    assert bench.a.count(take) == (["m2"], [UPDATE])
    assert [each.attempt for each in bench.c.provider.peek("k")] == [1, 1]


def test_take_gives_what_comes_between_its_requests(bench: Bench) -> None:
    """M6: all that is due when it is carried out, also what it had not seen at first."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.faults = [None, lambda _: claim(bench.b, "C", 3)]
    assert [each.id for each in bench.a.provider.take("k", "A", TTL_MS, have=["m1"])] == ["m2", "m3"]


def test_beat_is_one_request(bench: Bench) -> None:
    """R11: and so is the one that finds the lease lost."""
    claim(bench.a, "A", 1)
    assert bench.a.count(lambda p: p.beat("k", "A", TTL_MS))[1] == [UPDATE]
    bench.b.sent.clear()
    with pytest.raises(LeaseLost) as raised:
        bench.b.provider.beat("k", "B", TTL_MS)
    assert raised.value.holder == "A"
    assert sorted(bench.b.sent) == bench.expected(UPDATE, refusals=1)


def test_release_is_two_requests_when_a_message_is_stored(bench: Bench) -> None:
    """M8: what is left behind must not be taken by TTL."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    assert bench.a.count(lambda p: p.release_lease("k", "A"))[1] == [UPDATE]
    assert "expires_on" in bench.item()
    for key in ("k", "k2"):
        bench.a.provider.acquire_lease(key, "B", TTL_MS)
        bench.b.provider.claim(key, "C", TTL_MS, message(1))
        _, sent = bench.a.count(partial(DynamoDBProvider.release_lease, key=key, owner="B"))
        assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)
        assert "expires_on" not in bench.item(key)
    assert {each.key for each in bench.c.provider.orphans(9)} == {"k", "k2"}


def test_large_body_is_one_put_and_one_refusal_and_one_delete_more(bench: Bench) -> None:
    """M10: and one read for a run that does not have it at hand."""
    answer, sent = bench.a.count(lambda _: claim(bench.a, "A", 1, event=LARGE))
    assert (answer.messages[0].event, sent) == (LARGE, [PUT, UPDATE])
    sent = bench.a.count(lambda _: settle(bench.a, "A", 1))[1]
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, DELETE, refusals=1)
    assert bench.place.items(bench.pk()) == ["lease"]

    claim(bench.a, "B", 2)
    _, sent = bench.b.count(lambda _: claim(bench.b, "C", 3, event=LARGE))
    assert sorted(sent) == bench.expected(PUT, UPDATE, UPDATE, refusals=1)
    answer, sent = bench.a.count(lambda _: settle(bench.a, "B", 2, next_owner="B2"))
    assert (answer.messages[0].event, sorted(sent)) == (LARGE, bench.expected(UPDATE, UPDATE, GET, refusals=1))


def test_body_of_a_refused_claim_is_deleted(bench: Bench) -> None:
    """H60: duplicate, full, busy: whoever's claim did not store it cleans up its own, and nobody else's."""
    claim(bench.a, "A", 1, event=LARGE)
    before = bench.place.items(bench.pk())
    assert len(before) == 2
    assert isinstance(claim(bench.b, "B", 1, event=LARGE), Duplicate)
    assert isinstance(claim(bench.b, "C", 2, event=LARGE, route=False), Busy)
    with pytest.raises(MailboxFull):
        claim(bench.b, "D", 2, event=LARGE, policy=Policy(max_pending=1))
    assert bench.place.items(bench.pk()) == before
    assert isinstance(claim(bench.a, "A", 1, event=LARGE), Claimed)
    assert bench.place.items(bench.pk()) == before
    claim(bench.b, "A", 1, event="y" * 5_000)
    assert bench.place.items(bench.pk()) == before
    bench.die()
    claimed = claim(bench.b, "E", 1, event="y" * 5_000)
    assert claimed.messages[0].event == LARGE
    assert bench.place.items(bench.pk()) == before


def test_small_bodies_stand_inline_while_there_is_room(bench: Bench) -> None:
    """8 KiB a key; what has no room is put beside it, and comes back like the others."""
    claim(bench.a, "A", 0)
    for number in range(1, 8):
        claim(bench.b, f"B{number}", number, event="x" * 1_900)
    stored = [each["M"].get("body", {"S": ""})["S"] for each in bench.item()["mail"]["L"]]
    assert sum(map(len, stored)) <= 8 * 1_024
    assert len([sk for sk in bench.place.items(bench.pk()) if sk.startswith("body#")]) == 3
    events = [each.event for each in bench.c.provider.peek("k")]
    assert events == [{"number": 0}, *["x" * 1_900] * 7]
    owner = "A"
    for number in range(7):
        assert isinstance(settle(bench.a, owner, number, next_owner=f"A{number}"), Continued)
        owner = f"A{number}"
    assert settle(bench.a, owner, 7) == Released(remaining=0)
    assert {sk.partition("#")[0] for sk in bench.place.items(bench.pk())} == {"lease", "ended"}


def test_message_that_comes_again_needs_no_room(bench: Bench) -> None:
    """Its body is there already: it is not put beside the record."""
    claim(bench.a, "A", 0)
    for number in range(1, 5):
        claim(bench.b, f"B{number}", number, event="x" * 1_900)
    bench.die()
    claimed, sent = bench.c.count(lambda provider: provider.claim("k", "C", TTL_MS, message(4, "x" * 1_900)))
    assert isinstance(claimed, Claimed)
    assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_write_units_of_a_small_run_are_two(quick: Bench) -> None:
    """M10: one for each write of the record, which stays below 1 KB; each renewal one more. The index comes to that."""
    units: list[float] = []
    events = quick.a.client.meta.events

    def ask(params: dict[str, Any], **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "TOTAL"

    def keep(parsed: dict[str, Any], **_: Any) -> None:
        units.append(parsed["ConsumedCapacity"]["CapacityUnits"])

    events.register("before-parameter-build.dynamodb.UpdateItem", ask)
    events.register("after-call.dynamodb.UpdateItem", keep)
    claim(quick.a, "A", 1, origin=Origin(keyspace="chat", target="arn:aws:lambda:eu-central-1:123456789012:function:f"))
    assert attributes.size_of(quick.item()) < 1_024
    quick.a.provider.beat("k", "A", TTL_MS)
    settle(quick.a, "A", 1, next_owner="A2")
    events.unregister("before-parameter-build.dynamodb.UpdateItem", ask)
    events.unregister("after-call.dynamodb.UpdateItem", keep)
    assert attributes.size_of(quick.item()) < 1_024
    assert sum(units) <= 3


def test_renewals_do_not_touch_the_index(bench: Bench) -> None:
    """A renewal, a beat, a take and an append leave what the orphans' index holds as it stands."""
    claim(bench.a, "A", 1, origin=Origin(keyspace="chat", target="arn"))
    indexed = ("orphan_shard", "orphan_since", "target")
    before = {name: bench.item()[name] for name in indexed}
    bench.clock.advance(5_000)
    bench.a.provider.renew_lease("k", "A", TTL_MS)
    bench.a.provider.beat("k", "A", TTL_MS * 2)
    claim(bench.b, "B", 2, origin=Origin(keyspace="chat", target="other"))
    bench.a.provider.take("k", "A", TTL_MS * 3)
    settle(bench.a, "A", 1, deferred=["m2"], next_owner="A2")
    assert {name: bench.item()[name] for name in indexed} == before


def test_id_is_known_while_one_that_shares_its_short_digest_is(bench: Bench) -> None:
    """M5, M3: a drop takes out what it alone has put in; the other id stays a duplicate, and the dropped one new."""
    one = "m1"
    other = next(name for number in range(10**7) if names.short(name := f"o{number}") == names.short(one))
    claim(bench.a, "A", 1)
    settle(bench.a, "A", 1)
    given = noted(bench.a, bench.a.provider.claim("k", "B", TTL_MS, Message(id=other, event=1)))
    assert sorted(bench.item()["known"]["SS"]) == sorted([names.short(one), item.shared(names.short(one))])
    failed = [Failure(id=other, error="no")]
    assert bench.a.provider.settle("k", "B", ttl_ms=TTL_MS, dropped=failed, fence=given.fence) == Released(remaining=0)
    assert claim(bench.b, "C", 1) == Duplicate(state="handled")
    assert isinstance(bench.b.provider.claim("k", "D", TTL_MS, Message(id=other, event=1)), Claimed)


def test_note_and_end_of_an_earlier_tenure_count_for_nothing(telling: Bench) -> None:
    """M18, R8: a quick grant replaces the one, and takes out the other."""
    telling.a.provider.acquire_lease("k", "A", TTL_MS)
    assert telling.a.provider.transfer_lease("k", "A", "B", TTL_MS)
    telling.a.provider.beat("k", "B", TTL_MS, note=2)
    telling.expire()
    telling.b.provider.acquire_lease("k", "B", TTL_MS)
    found = telling.item()
    assert "left" not in found
    state = item.decode(found, key="k").state
    assert (state.note, state.tenure_end) == (None, None)
    assert telling.b.provider.show("k").note is None
    assert telling.a.provider.transfer_lease("k", "A", "B", TTL_MS) is False


# --- the stored format: M12


def test_golden_record_of_a_held_key(telling: Bench) -> None:
    """Version 1, to the attribute."""
    origin = Origin(keyspace="chat", target="arn:fn:live", request_id="r-1", log_stream="ls")
    claim(telling.a, "A", 1, origin=origin)
    claim(telling.b, "B", 2)
    fence = NOW_MS * 1_000 + 1
    assert telling.item() == {
        "pk": {"S": telling.pk()},
        "sk": {"S": "lease"},
        "v": {"N": "1"},
        "lease": {
            "M": {
                "holder": {"S": "A"},
                "expires": {"N": str(NOW_MS + TTL_MS)},
                "since": {"N": str(NOW_MS)},
            }
        },
        "fence": {"N": str(fence)},
        "given": {"N": str(fence)},
        "mail": {
            "L": [
                {
                    "M": {
                        "id": {"S": "m1"},
                        "body": {"S": '{"number":1}'},
                        "by": {"S": str(names.owner_digest("A"))},
                        "stored": {"N": str(NOW_MS)},
                    }
                },
                {
                    "M": {
                        "id": {"S": "m2"},
                        "body": {"S": '{"number":2}'},
                        "by": {"S": str(names.owner_digest("B"))},
                        "promised": {"BOOL": True},
                        "stored": {"N": str(NOW_MS)},
                    }
                },
            ]
        },
        "known": {"SS": ["KcG", "yg3"]},
        "policy": {"S": "d"},
        "keyspace": {"S": "chat"},
        "target": {"S": "arn:fn:live"},
        "request_id": {"S": "r-1"},
        "log_stream": {"S": "ls"},
        "orphan_shard": {"S": names.shard_of(telling.prefix, "k")},
        "orphan_since": {"N": str(NOW_MS + TTL_MS + SKEW_MS)},
    }


def test_golden_record_of_an_idle_key(telling: Bench) -> None:
    """Version 1, to the attribute: what evidence is kept, and until when."""
    fence = claim(telling.a, "A", 1).fence
    telling.clock.advance(1_500)
    settle(telling.a, "A", dropped=[Failure(id="m1", error="no")])
    claim(telling.a, "B", 2)
    settle(telling.a, "B", 2)
    at_ms, digest, owner = NOW_MS + 1_500, names.digest, names.owner_digest
    assert telling.item() == {
        "pk": {"S": telling.pk()},
        "sk": {"S": "lease"},
        "v": {"N": "1"},
        "fence": {"N": str(fence + 1)},
        "left": {"S": f"s:{owner('B')}::{at_ms}"},
        "known": {"SS": [digest("m2")[:3]]},
        "tombs": {"SS": [digest("A")[:3]]},
        "ended": {
            "SS": [
                f"f{digest('m1')}{owner('A')}{digits(fence, 9)}{digits(at_ms, 7)}",
                f"h{digest('m2')}{owner('B')}{digits(fence + 1, 9)}{digits(at_ms, 7)}",
            ]
        },
        "policy": {"S": "d"},
        "orphan_since": {"N": str(at_ms)},
        "expires_on": {"N": str(at_ms // 1_000 + 15 * 86_400)},
    }


def test_digests_are_what_they_were() -> None:
    """They are part of the format: a change of them would forget every id."""
    assert names.digest("m1") == "yg3yyVqhRMHQ_y_z"
    assert names.digest(names.digest("m1")) == names.digest("m1")
    assert names.shard_of("incumbent", "k") == f"incumbent#{0x82 % 8}"


def test_golden_large_body_and_dead_letter(telling: Bench) -> None:
    """Version 1: under names of their own, with a TTL of 14 days."""
    policy = Policy(max_attempts=1)
    claim(telling.a, "A", 1, event=LARGE)
    body = f"body#m1#{LARGE_OF_A}"
    assert telling.place.items(telling.pk()) == [body, "lease"]
    assert telling.item(sk=body) == {
        "pk": {"S": telling.pk()},
        "sk": {"S": body},
        "v": {"N": "1"},
        "body": {"S": f'"{LARGE}"'},
        "expires_on": {"N": str(NOW_MS // 1_000 + 14 * 86_400)},
    }
    assert telling.item()["mail"]["L"][0]["M"]["ref"] == {"S": LARGE_OF_A}
    settle(telling.a, "A", failed=[Failure(id="m1", error="no")], policy=policy)
    dead, lease = telling.place.items(telling.pk())
    assert lease == "lease"
    assert re.fullmatch("dead#m1#[0-9a-f]{16}", dead)
    assert telling.item(sk=dead) == {
        "pk": {"S": telling.pk()},
        "sk": {"S": dead},
        "v": {"N": "1"},
        "id": {"S": "m1"},
        "body": {"S": f'"{LARGE}"'},
        "attempts": {"N": "1"},
        "stored": {"N": str(NOW_MS)},
        "died": {"N": str(NOW_MS)},
        "fence": {"N": str(NOW_MS * 1_000 + 1)},
        "rank": {"N": "0"},
        "error": {"S": "no"},
        "expires_on": {"N": str(NOW_MS // 1_000 + 14 * 86_400)},
    }


CALLS: dict[str, Callable[[DynamoDBProvider], Any]] = {
    "acquire": lambda p: p.acquire_lease("k", "B", TTL_MS),
    "owner": lambda p: p.get_lease_owner("k"),
    "release": lambda p: p.release_lease("k", "A"),
    "renew": lambda p: p.renew_lease("k", "A", TTL_MS),
    "transfer": lambda p: p.transfer_lease("k", "A", "B", TTL_MS),
    "claim": lambda p: p.claim("k", "B", TTL_MS, message(2)),
    "claim nothing": lambda p: p.claim("k", "B", TTL_MS, None),
    "settle": lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"]),
    "beat": lambda p: p.beat("k", "A", TTL_MS),
    "take": lambda p: p.take("k", "A", TTL_MS),
    "peek": lambda p: p.peek("k"),
    "find": lambda p: p.find("k", "m1"),
}


@pytest.mark.parametrize("name", CALLS)
def test_unknown_version_is_left_as_it_stands(bench: Bench, name: str) -> None:
    """M12: said, with the key, and nothing is changed."""
    claim(bench.a, "A", 1)
    bench.place.change(bench.pk(), "SET #v = :v", v={"N": "2"})
    before = bench.item()
    for wire in (bench.a, bench.b):
        with pytest.raises(StoredFormatUnknown) as raised:
            CALLS[name](wire.provider)
        assert raised.value.key == "k"
    assert bench.item() == before


@pytest.mark.parametrize("name", CALLS)
def test_strangers_item_is_not_overwritten(bench: Bench, name: str) -> None:
    """H29: another shape under the key is no lease of ours."""
    bench.place.change(bench.pk(), "SET #lease = :x, #mail = :x", x={"S": "theirs"})
    before = bench.item()
    with pytest.raises(StoredFormatUnknown):
        CALLS[name](bench.b.provider)
    bench.place.change(bench.pk(), "SET #v = :v, #fence = :x", v={"N": "1"}, x={"S": "theirs"})
    with pytest.raises(StoredFormatUnknown):
        bench.b.provider.get_lease_owner("k")
    assert before["mail"] == bench.item()["mail"]


def test_unknown_attributes_survive(bench: Bench) -> None:
    """M12: on the record and in its messages, whatever is done with them."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    claim(bench.b, "B3", 3)
    bench.place.change(bench.pk(), "SET #later = :x, #mail[1].#later = :x, #mail[2].#later = :x", x={"S": "kept"})
    bench.a.provider.take("k", "A", TTL_MS)
    settle(bench.a, "A", 1, failed=[Failure(id="m2", error="no"), Failure(id="m3", error="no")], next_owner="A2")
    bench.clock.advance(1_000)
    assert isinstance(claim(bench.c, "C"), Claimed)
    stored = bench.item()
    assert stored["later"] == {"S": "kept"}
    assert [each["M"]["later"] for each in stored["mail"]["L"]] == [{"S": "kept"}] * 2


def test_long_lists_are_written_whole_and_keep_what_is_unknown(bench: Bench) -> None:
    """M12, H57: an expression holds 4 KB, so beyond some places the list is written whole, under guards."""
    claim(bench.a, "A", 0)
    for number in range(1, 31):
        claim(bench.b, f"B{number}", number)
    bench.place.change(bench.pk(), "SET #mail[28].#later = :x", x={"S": "kept"})
    given = bench.a.provider.take("k", "A", TTL_MS)
    assert [each.id for each in given] == [f"m{number}" for number in range(31)]
    assert {each.attempt for each in bench.c.provider.peek("k")} == {1}
    assert bench.item()["mail"]["L"][28]["M"]["later"] == {"S": "kept"}
    failed = [Failure(id=f"m{number}", error="e" * 1_000, after_ms=number) for number in range(26)]
    assert settle(bench.a, "A", *range(26, 30), failed=failed) == Released(remaining=27)
    left = bench.c.provider.peek("k")
    assert [each.id for each in left] == [*[f"m{number}" for number in range(26)], "m30"]
    assert [each.due_at_ms for each in left[:26]] == [NOW_MS + number for number in range(26)]
    assert isinstance(claim(bench.b, "B", 61), Claimed)


def test_attribute_for_ttl_is_whole_seconds_of_an_idle_key_only(bench: Bench) -> None:
    """H17, H18: a number of 10 digits; never while somebody owns the key or something is stored."""

    def expires_on() -> Any:
        return bench.item().get("expires_on")

    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    assert expires_on() is None
    bench.a.provider.release_lease("k", "A")
    assert expires_on() == {"N": str(NOW_MS // 1_000 + 15 * 86_400)}
    claim(bench.a, "B", 1)
    assert expires_on() is None
    settle(bench.a, "B", failed=[Failure(id="m1", error="no")])
    assert expires_on() is None
    bench.clock.advance(1_000)
    claim(bench.a, "C")
    settle(bench.a, "C", 1)
    assert expires_on() is not None
    assert bench.a.provider.claim("k", "D", TTL_MS, message(2)) is not None
    bench.expire()
    assert expires_on() is None


def test_record_outlives_the_dead_letters_of_its_key(bench: Bench) -> None:
    """Whom to wake for a letter that is put back stands in it (M6, M8)."""
    assert item.IDLE_S > bodies.KEPT_S


def test_lease_is_not_over_because_ttl_has_not_taken_it(bench: Bench) -> None:
    """H17: and an expired one is free though its item is there: the condition decides."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.place.change(bench.pk(), "SET #expires_on = :x", x={"N": "1"})
    assert not bench.b.provider.acquire_lease("k", "B", TTL_MS).acquired
    bench.expire()
    assert bench.b.provider.acquire_lease("k", "B", TTL_MS).acquired


def test_fence_grows_after_ttl_took_the_record(bench: Bench) -> None:
    """R7: from the clock's microseconds, since nothing else is known any more."""
    first = bench.a.provider.acquire_lease("k", "A", TTL_MS).fence
    bench.a.provider.release_lease("k", "A")
    bench.place.client.delete_item(TableName=bench.place.name, Key={"pk": {"S": bench.pk()}, "sk": {"S": "lease"}})
    bench.clock.advance(15 * 86_400_000)
    second = bench.a.provider.acquire_lease("k", "B", TTL_MS).fence
    assert first is not None
    assert second is not None
    assert second > first


def full_record(pending: int, *, id_bytes: int, errors: bool = True) -> Record:
    """A record of that many messages with all that may be written into it after them, or with only them."""
    fence = NOW_MS * 1_000
    mail = tuple(
        rules.Stored(
            id=f"{number:05d}".ljust(id_bytes, "x"),
            body=bodies.Reference(names.digest(str(number))) if number >= 4 else f'"{"x" * 2_046}"',
            claimed_by="o" * 512,
            promised=True,
            stored_ms=NOW_MS,
            attempts=1_000 if errors else 0,
            due_ms=NOW_MS if errors else 0,
            delivered_fence=fence if errors else 0,
            error="é" * 2_048 if errors else None,
        )
        for number in range(pending)
    )
    ended = tuple(
        rules.Ended(
            id=f"{outcome}{number}".ljust(256, "x"), outcome=outcome, claimed_by="o" * 512, fence=fence, at_ms=NOW_MS
        )
        for outcome in ("handled", "dead", "failed")
        for number in range(rules.REMEMBERED)
    )
    most = "x" * 1_024
    state = rules.KeyState(
        owner="o" * 512,
        expires_ms=NOW_MS,
        since_ms=NOW_MS,
        fence=fence,
        mail=mail,
        ended=ended if errors else (),
        tenure_end=rules.TenureEnd(how="moved", owner="o" * 512, successor="o" * 512, fence=fence) if errors else None,
        block=True,
        origin=Origin(keyspace=most, target=most, request_id=most, log_stream=most) if errors else None,
        held_until_ms=FOREVER_MS if errors else 0,
        held_reason=most if errors else None,
    )
    change = Change(record=Record(state=rules.KeyState(), item={}), new=state, shard="s", skew_ms=0)
    request = change.update(0).request()
    sets = request.update.partition(" ADD ")
    written = dict(part.split(" = ") for part in sets[0].partition(" REMOVE ")[0].removeprefix("SET ").split(", "))
    added = dict(part.split(" ") for part in sets[2].split(", "))
    stored = {request.names.get(name, name): request.values[value] for name, value in (written | added).items()}
    if errors:
        stored["rare"] = attributes.typed("|".join("x" * 3 * rules.REMEMBERED for _ in traces.RARE))
        stored["past"] = attributes.typed(["x" * (traces.MAX_MARKS // names.BUCKETS)] * names.BUCKETS)
        stored["lease"] = {"M": {**stored["lease"]["M"], **{name: {"S": most} for name in ("stop", "note")}}}
    return Record(state=state, item={"pk": {"S": "p" * 1_280}, "sk": {"S": "lease"}, **stored})


def messages_that_fit(id_bytes: int) -> int:
    """How many messages of such ids the record takes, one by one."""
    message = full_record(5, id_bytes=id_bytes, errors=False).state.mail[-1]

    def taken(number: int) -> bool:
        return item.takes(full_record(number, id_bytes=id_bytes, errors=False).item, message)

    low, high = item.FEW, rules.MAX_STORED
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if taken(middle) else (low, middle)
    return low


@pytest.mark.parametrize("id_bytes", [5, 36, 64, 90, 100, 128, 256])
def test_fullest_record_stays_below_400_kb(id_bytes: int) -> None:
    """M7, H57, H59: whatever comes after the last message that it takes: DynamoDB refuses at 409,600 bytes.

    As many more as callers who looked at the same moment may add; deliveries, 768 traces, the longest owners and
    origin. The errors of the first messages are kept at length, as when there were few of them.
    """
    pending = messages_that_fit(id_bytes) + item.AT_ONCE
    size = attributes.size_of(full_record(pending, id_bytes=id_bytes).item)
    longer = 20 * (2_048 - 32) + 80 * (128 - 32)
    assert size + longer < 409_600 - 2_048, (pending, size)


def test_few_messages_always_fit() -> None:
    """M7: a claim that has not seen the item adds to no more."""
    record = full_record(item.FEW + item.AT_ONCE, id_bytes=256)
    assert attributes.size_of(record.item) + 20 * (2_048 - 32) + 80 * (128 - 32) < 300_000


@pytest.mark.parametrize("owner", ["A", None])
def test_record_near_the_limit_takes_no_more(bench: Bench, owner: str | None) -> None:
    """M7, H59: the source keeps its event, as with max_pending; it is told what is full; no body is left behind."""
    claim(bench.a, "A", 1)
    if owner is None:
        bench.a.provider.release_lease("k", "A")
        for number in range(2, item.FEW + 1):
            bench.b.provider.claim("k", f"T{number}", TTL_MS, message(number), as_ticket=True)
            bench.b.provider.release_lease("k", f"T{number}")
    bench.place.change(bench.pk(), "SET #filling = :x", x={"S": "x" * item.MAX_ITEM_BYTES})
    with pytest.raises(MailboxFull, match=r"item of key 'k' .* 400 KB .* bytes in all.*max_pending") as raised:
        claim(bench.b, "B", 999, event=LARGE)
    assert raised.value.owner == owner
    assert bench.place.items(bench.pk()) == ["lease"]
    bench.die()
    assert isinstance(bench.c.provider.claim("k", "C", TTL_MS, None), Claimed)


def test_record_at_the_limit_is_a_full_mailbox(bench: Bench) -> None:
    """M7: who finds the key free at 400 KB is told so, and not to look at the table's keys."""
    claim(bench.a, "A", 1)
    room = 409_600 - attributes.size_of(bench.item())
    for spare in range(200, 100_000, 1_000):  # moto counts otherwise
        try:
            bench.place.change(bench.pk(), "SET #filling = :x", x={"S": "x" * (room - spare)})
        except ClientError:
            continue
        break
    bench.expire()
    with pytest.raises(MailboxFull, match="400 KB") as raised:
        claim(bench.b, "B", 2, event="x" * 2_000)
    assert "keys are pk" not in str(raised.value)
    assert bench.place.items(bench.pk()) == ["lease"]


def test_letter_is_kept_where_the_record_has_no_room(bench: Bench) -> None:
    """M7: a redrive is bounded as well, and leaves nothing behind, large or small."""
    policy = Policy(max_attempts=1)
    for number, event in ((1, LARGE), (2, "small")):
        claim(bench.a, f"A{number}", number, event=event, policy=policy)
        settled = [Failure(id=f"m{number}", error="e")]
        bench.a.provider.settle("k", f"A{number}", ttl_ms=TTL_MS, failed=settled, policy=policy)
    bench.place.change(bench.pk(), "SET #filling = :x", x={"S": "x" * item.MAX_ITEM_BYTES})
    for number in (1, 2):
        with pytest.raises(MailboxFull, match="400 KB"):
            bench.b.provider.redrive("k", f"m{number}")
    stored = [each.rpartition("#")[0] for each in bench.place.items(bench.pk())]
    assert stored == ["dead#m1", "dead#m2", ""]
    bench.place.change(bench.pk(), "REMOVE #filling")
    assert bench.b.provider.redrive("k", "m1")


def test_fullest_record_can_still_be_worked_off(quick: Bench) -> None:
    """H55, H59: every message fails with the longest error, and DynamoDB takes it."""
    full = full_record(messages_that_fit(90), id_bytes=90, errors=False)
    ours = {name: value for name, value in full.item.items() if name not in {"pk", "sk", "lease"}}
    for each in ours["mail"]["L"]:
        if each["M"].pop("ref", None) is not None:
            each["M"]["body"] = {"S": f'"{"x" * 16}"'}
    key = {"pk": {"S": quick.pk()}, "sk": {"S": "lease"}}
    quick.place.client.put_item(TableName=quick.place.name, Item={**ours, **key, "v": {"N": "1"}})
    given = quick.a.provider.claim("k", "A", TTL_MS, None)
    assert isinstance(given, Claimed)
    ids = [each.id for each in full.state.mail]
    failed = [Failure(id=each, error="é" * 2_048, after_ms=0) for each in ids]
    quick.a.provider.settle("k", "A", ttl_ms=TTL_MS, failed=failed)
    assert attributes.size_of(quick.item()) < 409_600
    assert isinstance(quick.a.provider.claim("k", "B", TTL_MS, None), Claimed)


# --- names that must not meet: R10, H27, H28


def test_names_of_bodies_and_dead_letters_never_meet() -> None:
    """H28, H60: whatever is in an id, two ids and claims have two names, none too long for a sort key."""
    ids = ["a", "a#b", "a%23b", "a%2523b", "#", "%", "%23", "#" * 256, "%" * 256, "é" * 128, "%sha256.x", "\0"]
    references = [bodies.Reference(names.digest(owner)) for owner in ("x", "b#x", "#", "o" * 512)]
    references += [
        bodies.Reference(f"{reference}.{parts}") for reference, parts in zip(references, (2, 3), strict=False)
    ]
    large = [name for each in ids for reference in references for name in bodies.body_names(each, reference)]
    letters = [names.dead_name(each, "0" * 16) for each in ids]
    assert len({*large, *letters, "lease"}) == len(large) + len(letters) + 1
    assert all(len(name.encode()) <= 1_024 for name in [*large, *letters])


def test_prefixes_never_meet(telling: Bench) -> None:
    """H28: a prefix holds no '#', so a key cannot pretend to be another prefix's."""
    other = DynamoDBProvider(table_name=telling.place.name, client=telling.a.client, key_prefix=f"{telling.prefix}x")
    telling.a.provider.acquire_lease("x#k", "A", TTL_MS)
    assert other.acquire_lease("k", "B", TTL_MS).acquired
    with pytest.raises(ConfigurationError, match="#"):
        DynamoDBProvider(table_name="t", key_prefix="a#b")


# --- lost replies: R8, R9


def test_acquire_applied_and_reply_lost_is_acquired(bench: Bench) -> None:
    """H1: redis-py, Powertools: the caller is not told that it lost to itself, and the fence is one."""
    bench.a.faults = [bench.a.reply_lost]
    answer = bench.a.provider.acquire_lease("k", "A", TTL_MS)
    assert answer.acquired
    assert answer.fence == int(bench.item()["fence"]["N"]) == NOW_MS * 1_000 + 1


def test_renewal_applied_and_reply_lost_is_renewed(bench: Bench) -> None:
    """H2: cirello dynamolock #280."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.a.faults = [bench.a.reply_lost]
    assert bench.a.provider.renew_lease("k", "A", TTL_MS)


def test_release_applied_and_reply_lost_is_quiet(bench: Bench) -> None:
    """H3: and so is the second release."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.a.faults = [bench.a.reply_lost]
    bench.a.provider.release_lease("k", "A")
    bench.a.provider.release_lease("k", "A")
    assert bench.b.provider.get_lease_owner("k") is None


def test_transfer_applied_and_reply_lost_is_true(bench: Bench) -> None:
    """H4: KCL's hand-off: the record tells of it; once it does not any more, nobody says that it failed."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.a.faults = [bench.a.reply_lost]
    assert bench.a.provider.transfer_lease("k", "A", "B", TTL_MS)
    bench.a.faults = [bench.a.reply_lost, lambda _: bench.b.provider.release_lease("k", "C")]
    with pytest.raises(LeaseUnavailable):
        bench.a.provider.transfer_lease("k", "B", "C", TTL_MS)


def test_late_duplicate_of_an_acquire_makes_no_second_owner(bench: Bench) -> None:
    """H5: it comes after the release: at worst it expires; while somebody owns, it changes nothing."""
    late: list[Callable[[], Any]] = []
    bench.a.faults = [bench.a.copied_later(late)]
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.a.provider.release_lease("k", "A")
    fence = bench.b.provider.acquire_lease("k", "B", TTL_MS).fence
    late[0]()
    assert bench.c.provider.get_lease_owner("k") == "B"
    assert bench.b.provider.acquire_lease("k", "B", TTL_MS).fence == fence


def test_late_copy_of_a_renewal_does_not_shorten(bench: Bench) -> None:
    """H51, R4."""
    late: list[Callable[[], Any]] = []
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.a.faults = [bench.a.copied_later(late)]
    bench.a.provider.renew_lease("k", "A", TTL_MS)
    bench.clock.advance(5_000)
    bench.a.provider.renew_lease("k", "A", TTL_MS)
    before = bench.item()
    late[0]()
    assert bench.item() == before


def test_late_append_of_a_claim_whose_message_has_failed_stores_nothing(bench: Bench) -> None:
    """M3: the tomb is asked by the append as by the claim: the source was told, and keeps its event."""
    claim(bench.a, "A", 1)
    late: list[Callable[[], Any]] = []
    start: list[Any] = [None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, bench.b.copied_later(late), bench.b.request_lost, bench.b.request_lost]
    with pytest.raises(LeaseUnavailable):
        claim(bench.b, "B", 2)
    settle(bench.a, "A", 1)
    assert isinstance(claim(bench.b, "B", 2), Claimed)
    settle(bench.b, "B", dropped=[Failure(id="m2", error="no")])
    late[0]()
    assert bench.c.provider.peek("k") == ()


def test_acquire_by_the_present_owner_does_not_shorten_what_a_beat_has_just_extended(bench: Bench) -> None:
    """R4: it writes under the expiry that it has seen, and is refused where that is not the latest."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.clock.advance(1_000)
    start: list[Any] = [None, *[None] * bench.place.reads_more]
    bench.a.faults = [*start, lambda _: bench.b.provider.renew_lease("k", "A", 10 * TTL_MS)]
    answer = bench.a.provider.acquire_lease("k", "A", TTL_MS)
    assert answer.acquired
    assert answer.expires_in_ms == 10 * TTL_MS


@pytest.mark.parametrize("tenure", ["release", "transfer", "settle"])
def test_stalled_call_does_not_act_on_the_owners_next_tenure(bench: Bench, tenure: str) -> None:
    """H63: the fence goes with it."""
    late: list[Callable[[], Any]] = []
    claim(bench.a, "A", 1)
    bench.a.faults = [bench.a.copied_later(late), bench.a.request_lost, bench.a.request_lost]
    calls: dict[str, Callable[[DynamoDBProvider], Any]] = {
        "release": lambda p: p.release_lease("k", "A"),
        "transfer": lambda p: p.transfer_lease("k", "A", "B", TTL_MS),
        "settle": lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"]),
    }
    with pytest.raises(LeaseUnavailable):
        calls[tenure](bench.a.provider)
    bench.expire()
    bench.b.provider.acquire_lease("k", "A", TTL_MS)  # against R2, and yet
    before = bench.item()
    late[0]()
    assert bench.item() == before


def test_claim_applied_and_reply_lost_is_claimed(bench: Bench) -> None:
    """R8, M6: the same fence, the delivery counted once."""
    bench.a.faults = [bench.a.reply_lost]
    answer = claim(bench.a, "A", 1)
    assert isinstance(answer, Claimed)
    assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 1)]
    assert len(bench.c.provider.peek("k")) == 1


def test_routing_applied_and_reply_lost_is_routed(bench: Bench) -> None:
    """R8: stored once; also when the message was handled before the second try."""
    claim(bench.a, "A", 1)
    start = [None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, bench.b.reply_lost]
    assert isinstance(claim(bench.b, "B", 2), Routed)
    assert [each.id for each in bench.c.provider.peek("k")] == ["m1", "m2"]
    bench.b.faults = [*start, bench.b.reply_lost, lambda _: settle(bench.c, "A", 1, 2, 3)]
    assert isinstance(claim(bench.b, "B3", 3), Routed)


def test_third_request_of_a_routing_applied_and_reply_lost_is_claimed(bench: Bench) -> None:
    """R8: who stored it and owns the key is not told that it was routed to itself."""
    claim(bench.a, "A", 1)
    start: list[Any] = [None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, lambda _: settle(bench.a, "A", 1), bench.b.reply_lost]
    answer = claim(bench.b, "B", 2)
    assert isinstance(answer, Claimed)
    assert [(each.id, each.attempt) for each in answer.messages] == [("m2", 1)]


def test_settle_applied_and_reply_lost_is_answered(bench: Bench) -> None:
    """R8: freed, and passed on."""
    claim(bench.a, "A", 1)
    bench.a.faults = [bench.a.reply_lost]
    assert settle(bench.a, "A", 1) == Released(remaining=0)
    claim(bench.a, "B", 2)
    claim(bench.b, "C", 3)
    bench.a.provider.beat("k", "B", TTL_MS)
    bench.a.faults = [bench.a.reply_lost]
    answer = settle(bench.a, "B", 2, next_owner="B2")
    assert isinstance(answer, Continued)
    assert [(each.id, each.attempt) for each in answer.messages] == [("m3", 1)]


def test_settle_of_which_the_traces_tell_is_released(bench: Bench) -> None:
    """R9: the next owner came before the second try, and the trace has this run's fence."""
    claim(bench.a, "A", 1)
    bench.a.faults = [bench.a.reply_lost, lambda _: claim(bench.b, "B", 2)]
    assert settle(bench.a, "A", 1) == Released(remaining=1)
    assert bench.c.provider.get_lease_owner("k") == "B"


def test_settle_in_doubt_is_unavailable_and_a_first_try_is_lost(bench: Bench) -> None:
    """R9: another owner and no evidence: lost on the first try, not known on a repeated one."""
    claim(bench.a, "A", 1)
    bench.a.faults = [bench.a.request_lost, lambda _: bench.lost_to(bench.b, "B", 2)]
    with pytest.raises(LeaseUnavailable):
        settle(bench.a, "A", 1)
    with pytest.raises(LeaseLost):
        settle(bench.a, "A", 1)


def test_take_applied_and_reply_lost_gives_the_same(bench: Bench) -> None:
    """R8, M6: counted once."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.faults = [bench.a.reply_lost, None, bench.a.reply_lost]
    assert [(each.id, each.attempt) for each in bench.a.provider.take("k", "A", TTL_MS)] == [("m1", 1), ("m2", 1)]


def test_body_stays_when_a_reply_of_its_claim_was_lost(bench: Bench) -> None:
    """H60, H32: the lost try may still arrive and store a message that refers to it."""
    claim(bench.a, "A", 1)
    late: list[Callable[[], Any]] = []
    start: list[Any] = [None, None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, bench.b.copied_later(late), lambda _: claim(bench.c, "C", 3)]
    with pytest.raises(MailboxFull):
        claim(bench.b, "B", 2, event=LARGE, policy=Policy(max_pending=2))
    settle(bench.c, "A", 1, 3)
    bench.c.provider.acquire_lease("k", "D", TTL_MS)
    late[0]()
    assert [each.event for each in bench.c.provider.peek("k")] == [LARGE]


def test_redrive_applied_and_reply_lost_is_true(bench: Bench) -> None:
    """R8."""
    claim(bench.a, "A", 1)
    settle(bench.a, "A", failed=[Failure(id="m1", error="no")], policy=Policy(max_attempts=1))
    bench.a.faults = [None, None, bench.a.reply_lost]
    assert bench.a.provider.redrive("k", "m1")
    assert [each.id for each in bench.c.provider.peek("k")] == ["m1"]
    assert list(bench.c.provider.dead_letters("k", 9)) == []


@pytest.mark.parametrize("step", [2, 3, 4])
def test_purge_applied_and_reply_lost_is_true_and_leaves_nothing(bench: Bench, step: int) -> None:
    """R8: whichever of its requests went unanswered; the next one finds nothing."""
    bury(bench)
    bench.a.faults = [*[None] * step, bench.a.reply_lost]
    assert bench.a.provider.purge("k", "m1")
    assert bench.place.items(bench.pk()) == ["lease"]
    assert bench.a.provider.purge("k", "m1") is False
    assert "spent" not in bench.item()


def bury(bench: Bench, number: int = 1) -> str:
    """Let a message die; return the sort key of its dead letter."""
    claim(bench.a, f"A{number}", number)
    settle(bench.a, f"A{number}", failed=[Failure(id=f"m{number}", error="no")], policy=Policy(max_attempts=1))
    (letter,) = (sk for sk in bench.place.items(bench.pk()) if sk.startswith(f"dead#m{number}#"))
    return letter


def handle(bench: Bench, *owners: str) -> list[str]:
    """Run what waits; return what ran."""
    ran: list[str] = []
    for owner in owners:
        answer = claim(bench.c, owner)
        if isinstance(answer, Claimed):
            ran += [each.id for each in answer.messages]
            settle(bench.c, owner, *(int(each.id[1:]) for each in answer.messages))
    return ran


def test_redrive_whose_reply_was_lost_runs_a_message_once(bench: Bench) -> None:
    """R8, M5: the message is handled before the call is repeated."""
    bury(bench)
    ran: list[str] = []

    def handled(_: Any) -> None:
        ran.extend(handle(bench, "R1"))

    bench.a.faults = [None, None, bench.a.reply_lost, handled]
    assert bench.a.provider.redrive("k", "m1")
    assert ran + handle(bench, "R2") == ["m1"]
    assert list(bench.c.provider.dead_letters("k", 9)) == []
    assert bench.a.provider.redrive("k", "m1") is False


@pytest.mark.parametrize("place", range(5))
def test_two_operators_redrive_a_letter_once(bench: Bench, place: int) -> None:
    """M5: the other one begins before each of the requests, and the message is handled in between."""
    bury(bench)
    others: list[bool] = []
    ran: list[str] = []

    def redriven(_: Any) -> None:
        others.append(bench.b.provider.redrive("k", "m1"))
        ran.extend(handle(bench, "R1"))

    bench.a.faults = [*[None] * place, redriven]
    answer = bench.a.provider.redrive("k", "m1")
    assert ran + handle(bench, "R2") == ["m1"]
    assert True in (answer, *others)


def test_redrive_that_ended_before_it_deleted_the_letter_is_not_done_again(bench: Bench) -> None:
    """M5: even if the record has long forgotten that the message was handled."""
    bury(bench)
    bench.a.faults = [None, None, None, *[bench.a.request_lost] * 3]
    with pytest.raises(LeaseUnavailable):
        bench.a.provider.redrive("k", "m1")
    assert handle(bench, "R1") == ["m1"]
    bench.clock.advance(Policy().window_ms)
    assert bench.b.provider.redrive("k", "m1") is False
    assert handle(bench, "R2") == []
    assert bench.place.items(bench.pk()) == ["lease"]
    assert "spent" not in bench.item()


@pytest.mark.parametrize("place", range(5))
def test_letter_is_purged_or_put_back_and_never_both(bench: Bench, place: int) -> None:
    """R8: whichever comes first, the other says that there was none."""
    bury(bench)
    purged: list[bool] = []
    bench.a.faults = [*[None] * place, lambda _: purged.append(bench.b.provider.purge("k", "m1"))]
    redriven = bench.a.provider.redrive("k", "m1")
    assert [redriven] == [not each for each in purged]
    assert [each.id for each in bench.c.provider.peek("k")] == ["m1"] * redriven


@pytest.mark.parametrize("call", ["purge", "redrive"])
def test_letter_is_left_where_a_later_version_comes_between(bench: Bench, call: str) -> None:
    """M12: the record was read before, and the letter stays."""
    bury(bench)

    def comes(request: Any) -> None:
        if bytes(request.headers["X-Amz-Target"]).endswith(b".UpdateItem"):
            bench.place.change(bench.pk(), "SET #v = :v", v={"N": "2"})

    bench.a.faults = [comes] * 5
    before, letters = bench.item(), bench.place.items(bench.pk())
    with pytest.raises(StoredFormatUnknown):
        getattr(bench.a.provider, call)("k", "m1")
    assert bench.item() == {**before, "v": {"N": "2"}}
    assert bench.place.items(bench.pk()) == letters


# --- an update that was decided on what has changed since: M2, M3, M8


def test_message_routed_while_the_owner_buries_all_it_sees_is_kept(bench: Bench) -> None:
    """M3: the list is not removed as a whole when something has come to it."""
    claim(bench.a, "A", 1)
    bench.expire()
    bench.a.provider.acquire_lease("k", "B", TTL_MS)
    bench.clock.advance(1_000)  # the pause of what died with its run
    routed: list[Any] = []
    bench.a.faults = [
        *[None] * (2 + bench.place.reads_more),
        lambda _: routed.append(claim(bench.b, "C", 2)),
    ]
    answer = claim(bench.a, "B", policy=Policy(max_attempts=1))
    assert [type(each) for each in routed] == [Routed]
    assert [each.id for each in bench.c.provider.peek("k")] == ["m2"]
    assert isinstance(answer, Claimed)
    assert [each.id for each in answer.messages] == ["m2"]


def test_message_routed_before_a_settle_that_leaves_a_pause_is_an_orphan_at_once(bench: Bench) -> None:
    """M8: it does not hide behind the pause of another."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    settle(bench.a, "A", failed=[Failure(id="m1", error="no", after_ms=86_400_000)])
    assert [each.waiting for each in bench.c.provider.orphans(9)] == [1]


def test_message_stored_behind_an_owner_that_has_left_a_pause_is_an_orphan_at_once(bench: Bench) -> None:
    """M8: whose sender dies before it claims the key that was left in between."""
    claim(bench.a, "A", 1)
    pauses = Failure(id="m1", error="no", after_ms=86_400_000)
    left = [*[None] * (1 + bench.place.reads_more), lambda _: settle(bench.a, "A", failed=[pauses])]
    bench.b.faults = [*left, *[bench.b.request_lost] * 9]
    with contextlib.suppress(LeaseUnavailable):
        claim(bench.b, "B", 2)
    bench.b.faults = []
    stored = [each.id for each in bench.c.provider.peek("k")]
    assert [each.waiting for each in bench.c.provider.orphans(9)] == [1] * ("m2" in stored)


def test_purged_letter_that_could_not_be_deleted_is_not_put_back(bench: Bench) -> None:
    """R8: the next call that comes across it deletes it."""
    bury(bench)
    bench.a.faults = [None, None, None, *[bench.a.request_lost] * 3]
    with pytest.raises(LeaseUnavailable):
        bench.a.provider.purge("k", "m1")
    assert bench.b.provider.redrive("k", "m1") is False
    assert bench.b.provider.purge("k", "m1") is False
    assert bench.place.items(bench.pk()) == ["lease"]
    assert bench.c.provider.peek("k") == ()


def test_letter_of_a_later_version_is_not_purged(bench: Bench) -> None:
    """M12: it is left as it stands."""
    letter = bury(bench)
    bench.place.change(bench.pk(), "SET #v = :v", sk=letter, v={"N": "2"})
    before = bench.place.item(bench.pk(), letter)
    with pytest.raises(StoredFormatUnknown, match="version"):
        bench.b.provider.purge("k", "m1")
    assert bench.place.item(bench.pk(), letter) == before


@pytest.mark.parametrize(
    "change",
    [("SET #v = :x", {"N": "2"}), ("SET #id = :x", {"N": "1"}), ("SET #attempts = :x", {"S": "many"})],
    ids=["later version", "no text", "no number"],
)
@pytest.mark.parametrize("key", ["k", None])
def test_odd_letter_hides_no_other(bench: Bench, key: str | None, change: tuple[str, Any]) -> None:
    """M12: the others are listed, then it is said which could not be, and why."""
    letters = [bury(bench, number) for number in (1, 2, 3)]
    bench.place.change(bench.pk(), change[0], sk=letters[0], x=change[1])
    found: list[str] = []
    with pytest.raises(StoredFormatUnknown) as raised:
        found.extend(letter.message.id for letter in bench.b.provider.dead_letters(key, 9))
    assert found == ["m2", "m3"]
    (skipped,) = raised.value.skipped
    assert skipped.key == "k"


def test_large_body_of_a_later_version_hides_no_other(bench: Bench) -> None:
    """M12: what peek can read is in the error."""
    bench.a.provider.claim("k", "A", TTL_MS, Message(id="m1", event=LARGE))
    claim(bench.b, "B", 2)
    (body,) = (sk for sk in bench.place.items(bench.pk()) if sk.startswith("body#"))
    bench.place.change(bench.pk(), "SET #v = :x", sk=body, x={"N": "2"})
    with pytest.raises(StoredFormatUnknown, match="version") as raised:
        bench.c.provider.peek("k")
    assert [message.id for message in raised.value.readable] == ["m2"]


def test_dead_letter_that_was_written_without_an_answer_is_taken_back(bench: Bench) -> None:
    """M6: its message is not dead, since the settle was never sent."""
    claim(bench.a, "A", 1)
    bench.a.faults = [bench.a.reply_lost] * 3
    with pytest.raises(LeaseUnavailable):
        settle(bench.a, "A", failed=[Failure(id="m1", error="no")], policy=Policy(max_attempts=1))
    assert bench.place.items(bench.pk()) == ["lease"]


def test_dead_letter_whose_settle_was_lost_to_another_is_taken_back(bench: Bench) -> None:
    """M6: written first, and deleted when the settle is refused for good."""
    claim(bench.a, "A", 1)

    def take_over(_: Any) -> None:
        bench.die()
        claim(bench.b, "B")

    bench.a.faults = [None, take_over]
    with pytest.raises(LeaseLost):
        settle(bench.a, "A", failed=[Failure(id="m1", error="no")], policy=Policy(max_attempts=1))
    assert bench.place.items(bench.pk()) == ["lease"]


def test_older_dead_letter_stays_when_the_settle_that_was_to_replace_it_was_lost(bench: Bench) -> None:
    """M6: the id died before the window, came again, and its new death was never settled."""
    once = Policy(max_attempts=1)
    claim(bench.a, "A", 1)
    settle(bench.a, "A", failed=[Failure(id="m1", error="first")], policy=once)
    bench.clock.advance(once.window_ms)
    claim(bench.a, "B", 1)

    def take_over(_: Any) -> None:
        bench.die()
        claim(bench.b, "C")

    bench.a.faults = [None, take_over]
    with pytest.raises(LeaseLost):
        settle(bench.a, "B", failed=[Failure(id="m1", error="second")], policy=once)
    assert [each.message.last_error for each in bench.c.provider.dead_letters("k", 9)] == ["first"]


def test_settle_gives_the_successor_its_ttl_whatever_a_beat_has_extended(bench: Bench) -> None:
    """R6: another client of the same owner renewed for longer, which this one has not seen."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.provider.beat("k", "A", TTL_MS)
    bench.c.provider.renew_lease("k", "A", 10 * TTL_MS)
    answer = settle(bench.a, "A", 1, next_owner="A2")
    assert isinstance(answer, Continued)
    assert bench.item()["lease"]["M"]["expires"] == {"N": str(NOW_MS + TTL_MS)}


def test_settle_of_a_message_that_came_unseen_is_carried_out(bench: Bench) -> None:
    """M2: what is named is settled, also where this client has not seen that it was stored."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.provider.beat("k", "A", TTL_MS)
    claim(bench.b, "C", 3)
    answer = settle(bench.a, "A", 1, 3, next_owner="A2")
    assert isinstance(answer, Continued)
    assert ([each.id for each in answer.messages], answer.waiting) == (["m2"], 0)


def test_message_stored_behind_a_holder_that_left_is_not_taken_by_ttl(bench: Bench) -> None:
    """H32, H17: killed between two steps: the record was idle, and a message in it must last."""
    claim(bench.a, "A", 1)
    start: list[Any] = [None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, lambda _: settle(bench.a, "A", 1), *[bench.b.request_lost] * 3]
    with pytest.raises(LeaseUnavailable):
        claim(bench.b, "B", 2)
    assert "expires_on" not in bench.item()
    assert [each.key for each in bench.c.provider.orphans(9)] == ["k"]
    assert [each.id for each in claim(bench.c, "C").messages] == ["m2"]


def test_promise_is_written_before_the_answer_though_places_move(bench: Bench) -> None:
    """M3, H52: between the look and the mark the head was settled: the mark is still on the right message."""
    claim(bench.a, "A", 1)
    bench.a.provider.transfer_lease("k", "A", "A2", TTL_MS)
    bench.expire()
    claim(bench.a, "B", 2)
    start: list[Any] = [None, *[None] * bench.place.reads_more]
    bench.b.faults = [*start, lambda _: settle(bench.a, "B", 1, next_owner="B2")]
    assert claim(bench.b, "C", 2) == Duplicate(state="running", owner="B2")
    assert [(each.id, each.promised) for each in bench.c.provider.peek("k")] == [("m2", True)]


def test_mark_that_comes_during_a_settle_is_kept(bench: Bench) -> None:
    """M3, H52: the first run raises, its source is told, and the second delivery's promise is not broken."""
    claim(bench.a, "A", 1)
    bench.a.faults = [lambda _: claim(bench.b, "B", 1)]
    dropped = [Failure(id="m1", error="no", after_ms=0)]
    answer = settle(bench.a, "A", dropped=dropped, next_owner="A2")
    assert isinstance(answer, Continued)
    assert [(each.id, each.attempt) for each in answer.messages] == [("m1", 2)]


# --- clocks: R3, R12, H15


def test_both_edges_with_clocks_that_differ_by_the_bound(bench: Bench) -> None:
    """H15: the owner's clock is behind by all that is allowed: it has stopped believing before anybody starts."""
    behind, ahead = FakeClock(wall_ms=NOW_MS - SKEW_MS), FakeClock(wall_ms=NOW_MS)
    owner, stranger = bench.wire(behind), bench.wire(ahead)
    acquired = owner.provider.acquire_lease("k", "A", TTL_MS)
    assert acquired.deadline is not None
    believes_ms = acquired.deadline.wall_ms - behind.now().wall_ms
    for clock in (behind, ahead):
        clock.advance(believes_ms)
    assert not stranger.provider.acquire_lease("k", "B", TTL_MS).acquired
    for clock in (behind, ahead):
        clock.advance(TTL_MS - believes_ms - 1)
    assert stranger.provider.get_lease_owner("k") == "A"
    for clock in (behind, ahead):
        clock.advance(1)
    assert not owner.provider.renew_lease("k", "A", TTL_MS)
    assert stranger.provider.acquire_lease("k", "B", TTL_MS).acquired


def test_strangers_wait_for_the_skew_and_no_longer(bench: Bench) -> None:
    """R3: at the expiry the owner is late; strangers start a second later, to the millisecond."""
    bench.a.provider.acquire_lease("k", "A", TTL_MS)
    bench.clock.advance(TTL_MS)
    assert not bench.a.provider.renew_lease("k", "A", TTL_MS)
    answer = bench.b.provider.acquire_lease("k", "B", TTL_MS)
    assert answer == Acquisition(acquired=False, owner="A", expires_in_ms=0)
    bench.clock.advance(SKEW_MS - 1)
    assert not bench.b.provider.acquire_lease("k", "B", TTL_MS).acquired
    bench.clock.advance(1)
    assert bench.b.provider.get_lease_owner("k") is None
    assert bench.b.provider.acquire_lease("k", "B", TTL_MS).acquired


def between(wire: Wire, place: Place, *calls: Callable[[], Any]) -> None:
    """Let these calls come after a claim has been refused and before its next request that writes."""

    def come(_: Any) -> None:
        for call in calls:
            call()

    wire.faults = [*[None] * (1 + place.reads_more), come]


def test_duplicate_that_is_promised_late_is_told_of_the_owner_that_is_there(bench: Bench) -> None:
    """M3: between the look and the mark its run failed, and another delivery of it was granted: that one is marked."""
    claim(bench.a, "A", 1)
    between(
        bench.b,
        bench.place,
        lambda: settle(bench.a, "A", dropped=[Failure(id="m1", error="no")]),
        lambda: claim(bench.c, "C", 1),
    )
    assert claim(bench.b, "B", 1) == Duplicate(state="running", owner="C")
    assert [(each.id, each.promised) for each in bench.a.provider.peek("k")] == [("m1", True)]


def test_duplicate_that_is_promised_on_a_free_key_owns_it(bench: Bench) -> None:
    """M2: between the look and the mark its run deferred it and left; nobody else would run it soon."""
    claim(bench.a, "A", 1)
    between(bench.b, bench.place, lambda: settle(bench.a, "A", deferred=["m1"]))
    granted = claim(bench.b, "B", 1)
    assert isinstance(granted, Claimed)
    assert [(each.id, each.promised) for each in granted.messages] == [("m1", True)]


def test_message_that_another_buries_meanwhile_moves_no_other_ones_place(bench: Bench) -> None:
    """M4, M6: between the look and the grant the head went to the dead letters: what was behind it is still there."""
    twice = Policy(max_attempts=2)
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 1)  # a duplicate, so m1 is promised
    settle(bench.a, "A", failed=[Failure(id="m1", error="once", after_ms=0)])
    claim(bench.a, "C")
    claim(bench.b, "D", 2)
    bench.a.provider.take("k", "C", TTL_MS, have=["m1"])
    again = [Failure(id="m1", error="twice", after_ms=0), Failure(id="m2", error="no", after_ms=60_000)]
    settle(bench.a, "C", failed=again)
    ahead = bench.wire(FakeClock(wall_ms=bench.clock.now().wall_ms + 60_000))  # for whom m2 is due
    dead_lettered: list[Any] = []

    def bury(request: Any) -> None:
        if request.headers["X-Amz-Target"].endswith(b"UpdateItem") and not dead_lettered:
            dead_lettered.append(claim(bench.b, "E", policy=twice))

    ahead.faults = [None, bury, bury, bury]
    granted = claim(ahead, "F", policy=twice)
    assert [[each.id for each in idle.dead_lettered] for idle in dead_lettered] == [["m1"]]
    assert [(each.id, each.attempt) for each in granted.messages] == [("m2", 2)]
    assert [each.message.id for each in bench.c.provider.dead_letters("k", 9)] == ["m1"]
    assert [(each.id, each.attempt) for each in bench.c.provider.peek("k")] == [("m2", 2)]


def test_clock_that_steps_back_between_two_requests_overrules_no_refusal(bench: Bench) -> None:
    """H15, H16: the key was found free; a second request of the same claim does not unlearn it."""
    claim(bench.a, "A", 1)
    bench.die()
    bench.b.faults = [lambda _: bench.clock.step_wall(-5_000)]
    answer = claim(bench.b, "B", 1)
    assert isinstance(answer, Claimed)


# --- errors: R9, H19, H20


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ProvisionedThroughputExceededException", 400),
        ("ThrottlingException", 400),
        ("RequestLimitExceeded", 400),
        ("InternalServerError", 500),
        ("ServiceUnavailable", 503),
    ],
)
def test_passing_trouble_is_repeated_and_then_said(telling: Bench, code: str, status: int) -> None:
    """H19: throttled twice is nothing; three times is LeaseUnavailable, never "nobody" or "lost" (H20)."""
    telling.a.provider.acquire_lease("k", "A", TTL_MS)
    telling.a.faults = [telling.a.answered(code, status)] * 2
    assert telling.a.provider.renew_lease("k", "A", TTL_MS)
    telling.a.faults = [telling.a.answered(code, status)] * 3
    with pytest.raises(LeaseUnavailable, match="'k'") as raised:
        telling.a.provider.get_lease_owner("k")
    assert raised.value.key == "k"
    assert raised.value.__cause__ is not None


def test_claims_give_up_before_the_calls_of_an_owner(telling: Bench) -> None:
    """On a table that throttles: an owner that cannot renew or settle stops the whole key, a claim comes again."""
    throttled = telling.a.answered("ProvisionedThroughputExceededException", 400)
    granted = claim(telling.a, "A", 1)
    assert isinstance(granted, Claimed)
    calls: list[Callable[[], object]] = [
        lambda: telling.a.provider.beat("k", "A", TTL_MS, fence=granted.fence),
        lambda: telling.a.provider.renew_lease("k", "A", TTL_MS),
        lambda: telling.a.provider.take("k", "A", TTL_MS, have=["m1"], fence=granted.fence),
        lambda: telling.a.provider.settle("k", "A", handled=["m1"], ttl_ms=TTL_MS, fence=granted.fence),
    ]
    for call in calls:
        telling.a.faults = [throttled] * 7
        call()
        assert not telling.a.faults
    telling.a.faults = [throttled] * 3
    with pytest.raises(LeaseUnavailable, match="throttling"):
        claim(telling.a, "B", 2)
    assert not telling.a.faults


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("ResourceNotFoundException", "table_name"),
        ("AccessDeniedException", "role"),
        ("ValidationException", "pk and sk"),
        ("UnrecognizedClientException", "credentials"),
        ("SomethingNew", "see the cause"),
    ],
)
def test_what_does_not_pass_is_said_at_once(telling: Bench, code: str, advice: str) -> None:
    """R9, H50: once, with the cause, the key and what to do."""
    telling.a.faults = [telling.a.answered(code, 400)]
    telling.a.sent.clear()
    with pytest.raises(LeaseUnavailable, match=advice) as raised:
        telling.a.provider.claim("k", "A", TTL_MS, message(1))
    assert code in str(raised.value)
    assert "'k'" in str(raised.value)
    assert telling.a.sent == [UPDATE]


def test_missing_table_is_said(bench: Bench) -> None:
    """H20, H50: by the real error, for every call."""
    provider = DynamoDBProvider(table_name="no-such-table", client=bench.a.client)
    for call in CALLS.values():
        with pytest.raises(LeaseUnavailable, match="table_name"):
            call(provider)
    with pytest.raises(LeaseUnavailable, match="table_name"):
        list(provider.orphans(9))
    with pytest.raises(LeaseUnavailable, match="table_name"):
        list(provider.dead_letters(None, 9))


def test_unreachable_store_is_unavailable() -> None:
    """H20: nobody listens; and within the budget, not after botocore's minutes (H10)."""
    client = boto3.client("dynamodb", endpoint_url="http://127.0.0.1:9", config=Config(read_timeout=1))
    provider = DynamoDBProvider(table_name="table", client=client, clock=FakeClock())
    with pytest.raises(LeaseUnavailable, match="connection"):
        provider.get_lease_owner("k")
    client.close()


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


class Keeping(boto3.session.Session):
    """A session that keeps its clients, so that nothing but ``close`` closes their connections."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def client(self, *args: Any, **options: Any) -> Any:
        """Make a client, and keep it."""
        self.kept.append(super().client(*args, **options))
        return self.kept[-1]


def test_close_closes_what_is_ours(on_telling: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a later call opens it again; a client that was given is its owner's."""
    for name, value in on_telling.server.environment.items():
        monkeypatch.setenv(name, value)
    ours = DynamoDBProvider(table_name=on_telling.name, boto3_session=Keeping())
    given = boto3.client("dynamodb", config=Config(read_timeout=1, connect_timeout=1))
    theirs = DynamoDBProvider(table_name=on_telling.name, client=given)
    for provider, kept in ((ours, 0), (theirs, 1)):
        before = open_files()
        for _ in range(2):
            assert provider.get_lease_owner("k") is None
            assert open_files() == before + 1
            provider.close()
            assert open_files() == before + kept
    given.close()


def test_client_without_region_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """H50: nothing can be sent, and the message says what to set."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    session = boto3.session.Session()
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        DynamoDBProvider(table_name="table", boto3_session=session).get_lease_owner("k")
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        DynamoDBProvider(table_name="table").get_lease_owner("k")


def test_region_is_the_one_that_the_error_says_to_set(on_telling: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore itself may read nothing but AWS_DEFAULT_REGION."""
    for name, value in on_telling.server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    provider = DynamoDBProvider(table_name=on_telling.name)
    assert provider.get_lease_owner("k") is None
    provider.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"table_name": ""},
        {"table_name": "table", "key_prefix": ""},
        {"table_name": "table", "key_prefix": "p" * 256},
        {"table_name": "table", "max_clock_skew_ms": -1},
        {"table_name": "table", "max_clock_skew_ms": 0.5},
        {"table_name": "table", "client": object(), "boto_config": Config()},
    ],
    ids=["no table", "no prefix", "long prefix", "skew below zero", "skew with a fraction", "client and config"],
)
def test_bad_settings_are_refused_at_once(arguments: dict[str, Any]) -> None:
    """R10: in the constructor, which makes no connection."""
    with pytest.raises(ConfigurationError):
        DynamoDBProvider(**arguments)


def test_inner_retries_count_as_repeated_tries(bench: Bench) -> None:
    """R9: a client that repeats on its own has lost the reply, and the settle looks for evidence."""
    wire = bench.wire(retries={"total_max_attempts": 3, "mode": "standard"})
    claim(wire, "A", 1)
    wire.faults = [wire.request_lost, lambda _: bench.lost_to(bench.b, "B", 2)]
    with pytest.raises(LeaseUnavailable):
        settle(wire, "A", 1)
    wire.faults = [wire.reply_lost]
    claim(wire, "C", 3)
    assert [each.id for each in bench.c.provider.peek("k")] == ["m2", "m1", "m3"]


@pytest.mark.parametrize(
    "client",
    [
        "dynamodb",
        {},
        7,
        boto3,
        boto3.Session(region_name="eu-central-1"),
        boto3.resource("dynamodb", region_name="eu-central-1"),
        boto3.resource("dynamodb", region_name="eu-central-1").Table("t"),
        boto3.resource("dynamodb", region_name="eu-central-1").meta.client,
        boto3.resource("dynamodb", region_name="eu-central-1").Table("t").meta.client,
        boto3.client("s3", region_name="eu-central-1"),
        boto3.client("dynamodbstreams", region_name="eu-central-1"),
        MemoryProvider(),
    ],
    ids=lambda client: type(client).__name__,
)
def test_what_is_not_a_client_is_refused_at_once(client: Any) -> None:
    """A ``Table`` above all, and the client of a resource, whose items are plain Python values."""
    with pytest.raises(ConfigurationError, match="client is"):
        DynamoDBProvider(table_name="t", client=client)


def test_client_under_a_stubber_is_taken() -> None:
    """What listens to requests may refuse one that it did not expect; that says nothing about the client."""
    client = boto3.client("dynamodb", region_name="eu-central-1")
    with Stubber(client):
        DynamoDBProvider(table_name="t", client=client)


@pytest.mark.parametrize("more", [{"boto3_session": "default"}, {"boto_config": {"read_timeout": 1}}])
def test_what_is_not_a_session_or_a_config_is_refused_at_once(more: dict[str, Any]) -> None:
    """As what is not a client."""
    with pytest.raises(ConfigurationError, match="boto"):
        DynamoDBProvider(table_name="t", **more)


def test_client_that_waits_longer_than_the_lease_is_refused_at_decoration() -> None:
    """boto3's default of 60 s is more than a lease lives; the first event would be too late to say so."""
    client = boto3.client("dynamodb", region_name="eu-central-1")
    providers = [
        DynamoDBProvider(table_name="t", client=client),
        DynamoDBProvider(table_name="t", boto_config=Config(read_timeout=31)),
        RedisProvider(url="redis://h?socket_timeout=40"),
    ]

    def handler(event: Any, context: Any) -> Any:
        """Never called."""

    for decorator in (leased, leased_function):
        for provider in providers:
            with pytest.raises(ConfigurationError, match=r"longer than the lease lives \(ttl_ms=30,000\)"):
                decorator(key="k", provider=provider)(handler)
            decorator(key="k", provider=provider, ttl_ms=90_000)(handler)


def test_own_client_repeats_nothing_and_does_not_wait_long(telling: Bench) -> None:
    """H10: botocore waits 60 s, and tries DynamoDB up to ten times."""
    made: list[Any] = []

    class Session:
        def client(self, name: str, *, config: Any) -> Any:
            made.append(config)
            return boto3.client("dynamodb", endpoint_url=telling.place.server.endpoint_url, config=config)

    session: Any = Session()
    provider = DynamoDBProvider(
        table_name=telling.place.name, boto3_session=session, boto_config=Config(user_agent_extra="mine")
    )
    assert made == []
    provider.acquire_lease("own", "A", TTL_MS)
    provider.release_lease("own", "A")
    assert len(made) == 1
    config = made[0]
    assert config.retries["total_max_attempts"] == 1
    assert config.connect_timeout <= 1
    assert config.read_timeout <= 1
    assert config.tcp_keepalive is True
    assert config.user_agent_extra == "mine"


def test_own_client_writes_and_reads_updates_as_botocore_does(telling: Bench) -> None:
    """M10: it leaves out botocore's copying of values; what is sent and what is answered stays the same."""
    sent: list[list[Any]] = []

    def listening(client: Any) -> Any:
        sent.append([])
        keep = sent[-1].append
        client.meta.events.register("before-send.dynamodb", lambda request, **_: keep(json.loads(request.body)))
        return client

    class Session:
        def client(self, name: str, *, config: Any) -> Any:
            return listening(boto3.client("dynamodb", endpoint_url=telling.place.server.endpoint_url, config=config))

    session: Any = Session()
    answers = []
    for number, options in enumerate(({"boto3_session": session}, {"client": listening(telling.place.connect())})):
        given: Any = options
        clock = FakeClock(wall_ms=NOW_MS)
        provider = DynamoDBProvider(
            table_name=telling.place.name, key_prefix=f"{telling.prefix}{number}", clock=clock, **given
        )
        claimed: Any = provider.claim("k", "A", TTL_MS, message(1, "é"))
        routed = provider.claim("k", "B", TTL_MS, message(2))
        beat = provider.beat("k", "A", TTL_MS, fence=claimed.fence)
        settled = provider.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], fence=claimed.fence)
        answers.append((claimed.fence, claimed.messages, routed, beat.waiting, settled))
    assert answers[0] == answers[1]
    other, one = (json.dumps(each).replace(telling.prefix, "") for each in sent)  # the given client was made first
    assert one.replace('"0#', '"#') == other.replace('"1#', '"#')


HUGE = "é" * 450_000  # 900,000 bytes: three parts
HUGE_OF_A = names.body_digest("A", f'"{HUGE}"')
PARTS = [f"body#m1#{HUGE_OF_A}.{number}" for number in (1, 2, 3)]


def test_body_that_is_too_large_for_an_item_stands_in_several(bench: Bench) -> None:
    """M7, M10: a request for each 384 KiB: to store, to read and to delete it; the run that brought it reads none."""
    _, sent = bench.a.count(lambda p: p.claim("k", "A", TTL_MS, Message(id="m1", event=HUGE)))
    assert sent == bench.expected(PUT, PUT, PUT, UPDATE)
    assert bench.place.items(bench.pk()) == [*PARTS, "lease"]
    assert all(attributes.size_of(bench.item(sk=sk)) < 409_600 for sk in PARTS)
    bench.die()
    answer, sent = bench.b.count(lambda p: p.claim("k", "B", TTL_MS, Message(id="m1", event=HUGE)))
    assert answer.messages[0].event == HUGE
    assert sent.count(GET) >= 3
    assert bench.place.items(bench.pk()) == [*PARTS, "lease"]  # what the second claim has put is gone again
    bench.b.provider.settle("k", "B", ttl_ms=TTL_MS, handled=["m1"])
    assert bench.place.items(bench.pk()) == ["lease"]


@pytest.mark.parametrize("end", ["dropped", "purged", "handled", "died twice"])
def test_no_part_of_a_body_stays_behind(bench: Bench, end: str) -> None:
    """M7: each part is the record's or the letter's, however the message ends."""
    once = Policy(max_attempts=1)
    failed = [Failure(id="m1", error="e" * 4_096)]
    claim(bench.a, "A", 1, event=HUGE, policy=once)
    if end == "dropped":
        bench.a.provider.settle("k", "A", ttl_ms=TTL_MS, dropped=failed)
        assert bench.place.items(bench.pk()) == ["lease"]
        return
    bench.a.provider.settle("k", "A", ttl_ms=TTL_MS, failed=failed, policy=once)
    letter = [name for name in bench.place.items(bench.pk()) if name.startswith("dead#")]
    assert bench.place.items(bench.pk()) == [*PARTS, *letter, "lease"]
    assert [each.message.event for each in bench.b.provider.dead_letters("k", 9)] == [HUGE]
    if end == "purged":
        assert bench.b.provider.purge("k", "m1")
        assert bench.place.items(bench.pk()) == ["lease"]
        return
    assert bench.b.provider.redrive("k", "m1")
    parts = bench.place.items(bench.pk())[:-1]
    assert (len(parts), set(parts) & {*PARTS, *letter}) == (3, set())
    assert claim(bench.c, "B").messages[0].event == HUGE
    if end == "died twice":
        bench.c.provider.settle("k", "B", ttl_ms=TTL_MS, failed=failed, policy=once)
        assert bench.b.provider.purge("k", "m1")
    else:
        bench.c.provider.settle("k", "B", ttl_ms=TTL_MS, handled=["m1"])
    assert bench.place.items(bench.pk()) == ["lease"]


def test_parts_outlive_the_letter_that_they_are_of(bench: Bench) -> None:
    """M6: they stay where they are, so they are kept twice as long."""
    claim(bench.a, "A", 1, event=HUGE)
    kept = int(bench.item(sk=PARTS[0])["expires_on"]["N"]) - NOW_MS // 1_000
    assert kept == 2 * bodies.KEPT_S


def test_part_that_is_missing_is_a_body_that_is_gone(quick: Bench) -> None:
    """M6: it is dead_lettered, not run in half."""
    claim(quick.a, "A", 1, event=HUGE)
    quick.place.client.delete_item(TableName=quick.place.name, Key={"pk": {"S": quick.pk()}, "sk": {"S": PARTS[1]}})
    quick.expire()
    quick.clock.advance(60_000)
    assert quick.b.provider.claim("k", "B", TTL_MS, None) == Idle()
    assert [each.message.event for each in quick.b.provider.dead_letters("k", 9)] == [None]


@pytest.mark.parametrize("text", ["", "x", "x" * 393_216, "x" * 393_217, "🐍" * 98_305, "xx" + "🐍" * 300_000])
def test_parts_are_cut_between_characters(text: str) -> None:
    """Each fits an item, and together they are the text."""
    reference, items = bodies.body_items("pk", "m", "name", text or "x", 0)
    assert reference.parts == len(items)
    assert "".join(each["body"]["S"] for each in items) == (text or "x")
    assert all(len(each["body"]["S"].encode()) <= bodies.PART_BYTES for each in items)


def test_message_whose_body_ttl_has_taken_is_a_dead_letter(bench: Bench) -> None:
    """M6: a message waits 14 days at most; then it dies at once, and holds up no other."""
    policy = Policy(max_attempts=5)
    claim(bench.a, "A", 1, event=LARGE, policy=policy)
    key = {"pk": {"S": bench.pk()}, "sk": {"S": f"body#m1#{LARGE_OF_A}"}}
    bench.place.client.delete_item(TableName=bench.place.name, Key=key)
    assert [each.event for each in bench.b.provider.peek("k")] == [None]
    bench.expire()
    bench.clock.advance(60_000)
    assert [each.id for each in claim(bench.b, "B", 2, policy=policy).messages] == ["m2"]
    answer = settle(bench.b, "B", 2, next_owner="B2", policy=policy)
    assert (answer.remaining, [each.id for each in answer.dead_lettered]) == (0, ["m1"])
    (letter,) = bench.b.provider.dead_letters("k", 9)
    assert "14 days" in (letter.message.last_error or "")
    assert letter.message.event is None


@pytest.mark.parametrize("body", [{"S": "{"}, {"N": "1"}, None], ids=repr)
def test_body_that_somebody_broke_is_buried_as_it_stands(bench: Bench, body: Any) -> None:
    """M6: in an item of its own or, where it is text, in the record; the key is held for no ttl."""
    claim(bench.a, "A", 1, event=LARGE)
    sk = f"body#m1#{LARGE_OF_A}"
    if body is None:
        bench.place.change(bench.pk(), "REMOVE #body", sk=sk)
    else:
        bench.place.change(bench.pk(), "SET #body = :body", sk=sk, body=body)
    bench.expire()
    bench.clock.advance(60_000)
    answer = bench.b.provider.claim("k", "B", TTL_MS, None)
    assert answer == Idle()
    assert bench.b.provider.get_lease_owner("k") is None
    (letter,) = bench.b.provider.dead_letters("k", 9)
    assert letter.message.event == ("{" if body == {"S": "{"} else None)
    assert "cannot be read" in (letter.message.last_error or "")
    assert [each.partition("#")[0] for each in bench.place.items(bench.pk())] == ["dead", "lease"]


# --- orphans: M8


def test_orphans_are_found_though_long_runs_fill_the_index(quick: Bench) -> None:
    """M8: keys that are renewed for long stand in the index before the orphan, and do not hide it."""
    for number in range(60):
        quick.a.provider.claim(f"long-{number}", "A", TTL_MS, message(1))
    quick.a.provider.claim("orphan", "A", TTL_MS, message(1), origin=Origin(target="arn"))
    quick.clock.advance(TTL_MS - 1)
    for number in range(60):
        assert quick.a.provider.renew_lease(f"long-{number}", "A", TTL_MS)
    quick.clock.advance(SKEW_MS + 1_000 + 1_001)  # the skew, the pause of what died with its run, and a second
    found, sent = quick.b.count(lambda p: list(p.orphans(1)))
    assert [(each.key, each.target, each.age_ms, each.waiting) for each in found] == [("orphan", "arn", 1_000, 1)]
    assert sent.count("Query") == names.SHARDS
    assert sent.count("BatchGetItem") == 2


def test_orphan_of_an_unknown_version_does_not_hide_the_others(bench: Bench) -> None:
    """M12: the others come first, then it is said."""
    for key in ("k1", "k2"):
        bench.a.provider.claim(key, "A", TTL_MS, message(1))
        bench.a.provider.settle(key, "A", ttl_ms=TTL_MS, deferred=["m1"])
    bench.place.change(bench.pk("k1"), "SET #v = :v", v={"N": "2"})
    found = iter(bench.b.provider.orphans(9))
    assert next(iter(found)).key == "k2"
    with pytest.raises(StoredFormatUnknown):
        next(iter(found))


def test_orphan_of_a_successor_with_a_shorter_ttl_is_found_when_it_dies(bench: Bench) -> None:
    """M8: the index says from when on a key can be an orphan, and that may come earlier than it was."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.provider.settle("k", "A", ttl_ms=10_000, handled=["m1"], next_owner="A2")
    bench.clock.advance(10_000 + SKEW_MS + 1_000)
    assert [each.key for each in bench.c.provider.orphans(9)] == ["k"]
    bench.a.provider.acquire_lease("k", "C", TTL_MS)
    assert bench.a.provider.transfer_lease("k", "C", "C2", 10_000)
    bench.clock.advance(10_000 + SKEW_MS)
    assert [each.key for each in bench.c.provider.orphans(9)] == ["k"]


def test_limit_of_orphans_is_kept(bench: Bench) -> None:
    """M8: oldest first, no more than asked for, none for none."""
    for number in range(5):
        bench.a.provider.claim(f"k{number}", "A", TTL_MS, message(1))
        bench.a.provider.settle(f"k{number}", "A", ttl_ms=TTL_MS, deferred=["m1"])
        bench.clock.advance(10)
    assert [each.key for each in bench.b.provider.orphans(2)] == ["k0", "k1"]
    assert list(bench.b.provider.orphans(0)) == []


# --- the tests' own tool


@pytest.mark.parametrize(
    "params",
    [
        {"UpdateExpression": "SET owner = :o", "ExpressionAttributeValues": {":o": {"S": "x"}}},
        {
            "UpdateExpression": "SET #m = list_append(#m, :l), #m[0].#a = :l",
            "ExpressionAttributeNames": {"#m": "mail", "#a": "attempts"},
            "ExpressionAttributeValues": {":l": {"L": []}},
        },
        {"UpdateExpression": "REMOVE #a", "ExpressionAttributeNames": {"#a": "a", "#b": "b"}},
        {
            "UpdateExpression": "SET #a = :f",
            "ExpressionAttributeNames": {"#a": "a"},
            "ExpressionAttributeValues": {":f": {"N": "1.5"}},
        },
        {
            "UpdateExpression": "SET #a = :f",
            "ExpressionAttributeNames": {"#a": "a"},
            "ExpressionAttributeValues": {":f": {"SS": []}},
        },
        {"UpdateExpression": "REMOVE " + "#a" * 3_000, "ExpressionAttributeNames": {"#a": "a"}},
    ],
    ids=["bare name", "overlap", "unused name", "float", "empty set", "too long"],
)
def test_check_of_requests_sees_what_aws_refuses(params: dict[str, Any]) -> None:
    """H57, H31, H18: else it would prove nothing that no request here was refused."""
    with pytest.raises(AssertionError):
        check(params)


def test_moto_in_process_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that say no length, as moto's decorator makes them, are whole when their head is."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB", raising=False)
    with mock_aws():
        create_table(boto3.client("dynamodb", region_name="eu-central-1"), "in-process")
        session = boto3.session.Session(region_name="eu-central-1")
        provider = DynamoDBProvider(table_name="in-process", boto3_session=session)
        assert provider.get_lease_owner("k") is None
        assert provider.acquire_lease("k", "A", 30_000).acquired
        assert provider.get_lease_owner("k") == "A"


# --- attributes of a wrong type: M12

MEETING: dict[str, Callable[[DynamoDBProvider], object]] = {
    "claim": lambda p: p.claim("k", "C", TTL_MS, Message(id="m3", event=1)),
    "settle": lambda p: p.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], next_owner="A2"),
    "beat": lambda p: p.beat("k", "A", 2 * TTL_MS),
    "take": lambda p: p.take("k", "A", 2 * TTL_MS),
    "cancel": lambda p: p.cancel("k", "m2"),
    "redrive": lambda p: p.redrive("k", "m9"),
}


@pytest.mark.parametrize("call", MEETING)
def test_call_that_meets_an_odd_attribute_answers_or_says_so(quick: Bench, call: str) -> None:
    """M12: no error of Python; and a call that raises has changed nothing but, by a renewal, when the lease ends."""
    claim(quick.a, "A", 1)
    claim(quick.b, "B", 2)
    sound = quick.item()
    for name, values in ODD.items():
        if name == "orphan_shard":  # DynamoDB refuses another type for a key of the index
            continue
        odd = sound | {name: values[0]}
        quick.place.client.put_item(TableName=quick.place.name, Item=odd)
        try:
            MEETING[call](quick.a.provider)
        except StoredFormatUnknown:
            after = quick.item()
            if call in ("beat", "take") and name != "lease":
                after["lease"]["M"]["expires"] = odd["lease"]["M"]["expires"]
            assert after == odd, name
