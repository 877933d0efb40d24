"""What a call does in several requests, with another call between any two of them, can be explained all the same.

DynamoDB has calls that need more than one request (M10). At each of the places between them every other call is made,
by another client, from beginning to end; each is told what it may be told.
"""

import itertools
import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.testing.proxy import Delay, Fault, LoseRequest, Pass, Request, Stall
from incumbent.testing.servers import DynamoDBServer
from tests.faults.stores import DynamoDBStore, dynamodb_store
from tests.linearizability.checker import UNKNOWN, Operation, check
from tests.linearizability.recording import KEY, READS, Client
from tests.linearizability.sequential import OneKey
from tests.linearizability.test_histories import written

Call = tuple[str, dict[str, Any]]

AT_ONCE = threading.Event()
AT_ONCE.set()


def claim(owner: str, message_id: str | None, **more: Any) -> Call:
    """A claim, with a message or without."""
    return "claim", {"owner": owner, "id": message_id, **more}


def settle(owner: str, **more: Any) -> Call:
    """A settle."""
    ends: dict[str, tuple[str, ...]] = {"handled": (), "failed": (), "dropped": (), "deferred": ()}
    return "settle", {"owner": owner, **ends, **more}


RUNNING = (claim("A", "m1"), claim("B", "m2"))
SETUPS: dict[str, tuple[Call, ...]] = {
    "running alone": (claim("A", "m1"),),
    "running": RUNNING,
    "waiting": (*RUNNING, ("release", {"owner": "A"})),
    "full": (*RUNNING, claim("C", "m3")),
    "ticket": (claim("T", "m1", as_ticket=True),),
    "failed once": (claim("A", "m1", as_ticket=False), claim("B", "m1"), settle("A", failed=("m1",))),
}
CALLS: dict[str, Call] = {
    "claim m1": claim("X", "m1"),
    "claim m2": claim("X", "m2"),
    "claim m4": claim("X", "m4"),
    "claim m2 as a ticket": claim("X", "m2", as_ticket=True),
    "claim m4 unrouted": claim("X", "m4", route=False),
    "claim": claim("X", None),
    "claim with the ticket": claim("X", None, ticket="T"),
    "claim again": claim("A", "m1"),
    "acquire": ("acquire", {"owner": "X"}),
    "acquire again": ("acquire", {"owner": "A"}),
    "release": ("release", {"owner": "A"}),
    "transfer": ("transfer", {"owner": "A", "successor": "A2"}),
    "settle": settle("A", handled=("m1",)),
    "settle on": settle("A", handled=("m1",), next_owner="A2"),
    "settle with a ticket": settle("A", deferred=("m1",), ticket="T2"),
    "settle failed": settle("A", failed=("m1",), next_owner="A2"),
    "settle dropped": settle("A", dropped=("m1",)),
    "take": ("take", {"owner": "A", "have": ()}),
    "beat": ("beat", {"owner": "A"}),
}
# Those that change what another call has seen, each in a way of its own.
OTHERS = ("claim m2", "claim m4", "claim with the ticket", "release", "settle on", "take")


class Told:
    """Two clients of one key, and what they were told."""

    def __init__(self, store: DynamoDBStore) -> None:
        self.store = store
        self.numbers = itertools.count(1)
        self.history: list[Operation] = []
        store.begin()
        store.prefix = f"between-{uuid.uuid4().hex[:12]}"
        self.ours = self.client("ours", store.provider())
        self.theirs = self.client("theirs", store.bare())

    def client(self, name: str, provider: Any) -> Client:
        """Somebody who makes calls as they are written here."""
        chance = random.Random(0)  # noqa: S311 - nothing is left to chance
        return Client(name=name, chance=chance, provider=provider, moment=lambda: next(self.numbers), tickets=[])

    def make(self, client: Client, call: Call, *, several: bool = False) -> None:
        """Make a call, and keep what was said."""
        name, arguments = call
        self.store.network.forget()
        began = client.moment()
        answer: Any
        try:
            answer = client.ask(name, arguments)
        except LeaseUnavailable:
            answer = UNKNOWN
        except (LeaseLost, MailboxFull) as refusal:
            answer = type(refusal)
        made = Operation(
            client=client.name, name=name, arguments=arguments, answer=answer, began=began, ended=client.moment()
        )
        self.history.append(made)
        if several and name == "claim" and arguments["id"] is not None:
            self.history.append(self.perhaps(made, "append"))
        if several and name == "take":
            self.history.append(self.perhaps(made, "take"))

    @staticmethod
    def perhaps(made: Operation, name: str) -> Operation:
        """A step that the call may have taken before its last."""
        return Operation(
            client=made.client,
            name=name,
            arguments=made.arguments,
            began=made.began,
            ended=made.ended,
            optional=True,
        )

    def begin(self, setup: Sequence[Call]) -> None:
        """Bring the key to where it is to be: the owners are ours, so that their grants are remembered."""
        for call in setup:
            self.make(self.ours, call)

    def end(self) -> None:
        """Look at what is left."""
        for call in (("owner", {}), ("peek", {}), *(("find", {"id": f"m{number}"}) for number in (1, 2, 4))):
            self.make(self.theirs, call)

    def explain(self, between: str) -> None:
        """Nothing fails here, so that everybody is told something, and all of it can be explained."""
        verdict = check(self.history, OneKey())
        assert verdict.linearizable, f"{between}:\n{written(self.history, verdict.order)}"
        assert all(each.optional or each.answer is not UNKNOWN for each in self.history), between


@pytest.fixture(scope="module")
def networked_dynamodb(dynamodb_server: DynamoDBServer) -> Iterator[DynamoDBStore]:
    """DynamoDB behind a network."""
    with dynamodb_store("dynamodb", dynamodb_server) as store:
        store.begin()
        yield store


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("name", CALLS)
def test_another_call_between_the_requests_of_one_is_explained(
    networked_dynamodb: DynamoDBStore, setup: str, name: str
) -> None:
    """Whichever it is, and at whichever place it comes."""
    # H39: vercel/chat #928, Temporal #1289, #8097.
    alone = Told(networked_dynamodb)
    alone.begin(SETUPS[setup])
    alone.make(alone.ours, CALLS[name])
    requests = len([each for each in networked_dynamodb.network.sent if each.name not in READS])
    alone.end()
    alone.explain("nothing")
    for place in range(1, requests):
        for other in OTHERS:
            told = Told(networked_dynamodb)
            told.begin(SETUPS[setup])
            owner = CALLS[other][1]["owner"]
            theirs = (CALLS[other][0], {**CALLS[other][1], "owner": "Y" if owner == "X" else owner})
            between = Delay(until=AT_ONCE, meanwhile=partial(told.make, told.theirs, theirs))
            networked_dynamodb.network.next(*[Pass()] * place, between)
            told.make(told.ours, CALLS[name], several=True)
            networked_dynamodb.network.next()
            told.end()
            told.explain(f"{other} at place {place}")


def test_request_of_a_claim_that_comes_when_its_key_is_free_is_explained(networked_dynamodb: DynamoDBStore) -> None:
    """It stores the message behind the last owner; the claim itself would have owned the key."""
    told = Told(networked_dynamodb)
    faults: list[Fault] = [Pass(), Stall(), *[LoseRequest()] * 5]
    told.begin(SETUPS["running alone"])
    late = told.client("late", networked_dynamodb.provider())
    late.network, late.several = networked_dynamodb.network, True

    def next_fault(request: Request) -> Fault:
        return late.note(request, faults.pop(0) if faults else Pass())

    networked_dynamodb.network.choose(next_fault)
    late.make(*CALLS["claim m4"])
    networked_dynamodb.network.choose(lambda _: Pass())
    told.make(told.theirs, CALLS["settle"])
    late.deliver()
    told.end()
    assert [each.id for each in networked_dynamodb.bare().peek(KEY)] == ["m4"]
    verdict = check([*told.history, *late.recorded], OneKey())
    assert verdict.linearizable, written([*told.history, *late.recorded], verdict.order)
