"""DynamoDB's calls as a whole: every request of a call, with all that it says, and what the call answers.

``dynamodb_transcripts.txt`` has the transcript of each scene below. After a change that is meant,
``python -m tests.unit.test_dynamodb_transcripts`` writes it anew: its difference shows what has become of the requests.
"""

import random
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

from incumbent.clock import Moment
from incumbent.errors import IncumbentError
from incumbent.providers.dynamodb import DynamoDBProvider, item, letters, traces
from incumbent.providers.dynamodb.attributes import typed
from incumbent.providers.unreadable import Unreadable
from incumbent.rules import Dead, Ended, Stored
from incumbent.testing.clock import FakeClock
from incumbent.values import Debounce, Failure, Message, Origin, Policy
from tests.simulation.dynamodb import Client, Refused, Table
from tests.simulation.store import Asked
from tests.unit.expressions import compact, told

GOLDEN = Path(__file__).with_name("dynamodb_transcripts.txt")
NOW_MS = 1_800_000_000_000
TTL_MS = 30_000
SKEW_MS = 1_000
SHOWN = 60
PLAIN = Policy(pauses_ms=(9_000,), max_attempts=2)
FINAL = Failure(id="m1", error="no", final=True)
ORIGIN = Origin(keyspace="x", target="f")

Proceed: TypeAlias = Callable[[], Any]
Fault: TypeAlias = Callable[[Proceed], Any]


def lost(_: Proceed) -> Any:
    """A request that never arrives."""
    raise ReadTimeoutError(endpoint_url="t")


def unanswered(proceed: Proceed) -> Any:
    """A request that arrives, and whose answer does not."""
    proceed()
    raise ReadTimeoutError(endpoint_url="t")


def failing(code: str, said: str = "no") -> Fault:
    """A request that DynamoDB refuses."""

    def fail(_: Proceed) -> Any:
        found: Any = {"Error": {"Code": code, "Message": said}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise ClientError(found, "Any")

    return fail


def as_always(proceed: Proceed) -> Any:
    """A request that is answered."""
    return proceed()


def meanwhile(*happens: Callable[[], object], then: Fault = as_always) -> Fault:
    """A request that others overtake."""

    def fault(proceed: Proceed) -> Any:
        for each in happens:
            each()
        return then(proceed)

    return fault


class Stage:
    """A provider on a table in memory, and the transcript of its calls."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(wall_ms=NOW_MS, mono_ms=0)
        self.table = Table()
        self.lines: list[str] = []
        self.faults: list[Fault | None] = []
        self.seen = True
        self.fence = 0
        client: Any = Recorder(self)
        options = {"max_clock_skew_ms": SKEW_MS, "key_prefix": "p", **options}
        self.provider = DynamoDBProvider(table_name="t", client=client, clock=self.clock, **options)

    def note(self, line: str) -> None:
        """Write a line of the transcript."""
        if self.seen:
            self.lines.append(relative(line))

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What brings a key into a state."""
        before, self.seen = self.seen, False
        try:
            yield
        finally:
            self.seen = before

    def call(self, name: str, *given: Any, **told_of: Any) -> Any:
        """Call the provider, and note what it asked and answered."""
        named = (f"{key}={short(value)}" for key, value in told_of.items() if value is not PLAIN)
        said = ", ".join([*map(short, given), *named])
        self.note(f"{name}({said})")
        try:
            answer = getattr(self.provider, name)(*given, **told_of)
            if isinstance(answer, Iterator):
                for each in answer:
                    self.note(f"  - {short(each)}")
                answer = None
        except IncumbentError as error:
            more = ", ".join(f"{name}={short(value)}" for name, value in vars(error).items())
            self.note(f"  raises {type(error).__name__}({more}): {error}")
            return error
        self.fence = getattr(answer, "fence", self.fence) or self.fence
        self.note(f"  -> {short(answer)}")
        return answer

    # --- what most scenes begin with

    def claim(self, owner: str, number: int | None, event: Any = None, **more: Any) -> Any:
        """Claim the key with a message."""
        brought = None if number is None else Message(id=f"m{number}", event=number if event is None else event)
        return self.call("claim", "k", owner, TTL_MS, brought, **{"policy": PLAIN, **more})

    def settle(self, owner: str, **more: Any) -> Any:
        """Settle."""
        return self.call("settle", "k", owner, **{"ttl_ms": TTL_MS, "policy": PLAIN, **more})

    def owned(self, *numbers: int, **more: Any) -> None:
        """The first message runs, and the others wait."""
        with self.unseen():
            for number in numbers:
                self.claim("A" if number == numbers[0] else f"C{number}", number, **more)

    def die(self) -> None:
        """Let the lease end for everyone, and the pause too."""
        self.clock.advance(TTL_MS + SKEW_MS + 9_000)

    def bury(self, *numbers: int, **more: Any) -> None:
        """Let messages become dead letters."""
        with self.unseen():
            for number in numbers:
                self.claim("D", number, **more)
                self.settle("D", failed=[Failure(id=f"m{number}", error=f"no {number}", final=True)])
                self.clock.advance(1_000)

    def change(self, name: str = "lease", /, **attributes: Any) -> None:
        """Change an item as other code would; ``None`` takes an attribute out."""
        key = {"pk": attributes.pop("pk", typed("p#k")), "sk": typed(name)}
        found = {**(self.table.get(key) or key), **attributes}
        self.table.put({name: value for name, value in found.items() if value is not None})

    def edit(self) -> None:
        """Change what nothing but a condition reads."""
        self.change(edits=typed(self.record().number("edits") + 1))

    def record(self) -> item.Record:
        """The key's record."""
        return item.decode(self.table.get({"pk": typed("p#k"), "sk": typed("lease")}), key="k")

    def run(self, number: int, **more: Any) -> None:
        """One run from its claim to its settle."""
        with self.unseen():
            self.claim(f"R{number}", number)
            self.settle(f"R{number}", fence=self.fence, **{"handled": [f"m{number}"], **more})


class Recorder:
    """A client that notes each request, before it carries it out or lets it fail."""

    def __init__(self, stage: Stage) -> None:
        def way(operation: str, carry_out: Callable[[Asked, int], Any]) -> Any | Refused:
            return carry_out(Asked(call=operation), stage.clock.now().wall_ms)

        self._stage = stage
        self._client = Client(stage.table, way)
        self.meta = self._client.meta
        self.meta.config = Config(connect_timeout=0.1, read_timeout=0.1, retries={"total_max_attempts": 1})

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def ask(**request: Any) -> Any:
            stage = self._stage
            for line in shown(operation, request):
                stage.note(f"  {line}")
            fault = stage.faults.pop(0) if stage.faults and stage.seen else None
            if fault is None:
                return getattr(self._client, operation)(**request)
            with stage.unseen():
                return fault(lambda: getattr(self._client, operation)(**request))

        return ask


def short(value: Any) -> str:
    """A value in one line, long texts by their beginnings."""
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN else f"{value[:20]}... {len(value)}")
    if type(value) is tuple:
        return f"({', '.join(map(short, value))})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, Unreadable):
        return f"Unreadable({value.id!r}, {short(value.event)}, {value.why!r})"
    if isinstance(value, Message):
        said = (value.attempt, value.stored_at_ms, value.due_at_ms, value.promised, value.last_error)
        return f"{value.id}({', '.join(map(short, (value.event, *said)))})"
    if isinstance(value, Moment):
        return f"@{value.mono_ms}/{value.wall_ms}"
    if hasattr(value, "__dataclass_fields__"):
        fields = value.__dataclass_fields__.values()
        told_of = {field.name: getattr(value, field.name) for field in fields}
        if isinstance(value, Policy | Origin | Failure):
            told_of = {field.name: told_of[field.name] for field in fields if told_of[field.name] != field.default}
        return f"{type(value).__name__}({', '.join(f'{name}={short(each)}' for name, each in told_of.items())})"
    return repr(value)


def relative(line: str) -> str:
    """A line in which moments count from the beginning of the scene, and fences too."""
    line = re.sub(r"18\d{14}", lambda found: f"F{int(found[0]) - NOW_MS * 1_000}", line)
    return re.sub(r"18\d{11}(?!\d)", lambda found: f"T{int(found[0]) - NOW_MS}", line)


def shown(operation: str, request: dict[str, Any]) -> Iterable[str]:
    """A request in a few lines, with all that it says."""
    rest = dict(request)
    assert rest.pop("TableName", "t") == "t"
    values = {name: compact(value) for name, value in rest.pop("ExpressionAttributeValues", {}).items()}
    names = rest.pop("ExpressionAttributeNames", {})
    key = rest.pop("Key", {"pk": {"S": ""}, "sk": {"S": ""}})
    line = f"{operation} {key['pk']['S']} {key['sk']['S']}".rstrip()
    if operation == "put_item":
        yield f"{line} {cut(compact({'M': rest.pop('Item')}))}"
    elif operation == "update_item":
        found = told(request)
        yield f"{line} {found[-1]}"
        demands = [each.removeprefix("IF ") for each in found[:-1] if each.startswith("IF ")]
        writes = [each for each in found[:-1] if not each.startswith("IF ")]
        condition = cut("; ".join(demands)).replace("attribute_not_exists(", "no(").replace("attribute_exists(", "has(")
        yield f"  IF {condition}"
        yield f"  {cut('; '.join(writes).replace('; SET', ',').replace('; REMOVE', ','))}"
        assert rest.pop("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        for name in ("ConditionExpression", "UpdateExpression", "ReturnValues"):
            del rest[name]
    elif operation == "batch_get_item":
        ((name, found),) = rest.pop("RequestItems").items()
        assert name == "t"
        asked = dict(found)
        keys = [f"{each['pk']['S']} {each['sk']['S']}" for each in asked.pop("Keys")]
        yield f"{line} {', '.join(keys)} {asked}"
    else:
        said = ", ".join(f"{name}={value}" for name, value in rest.items())
        yield f"{line} {said} {names or ''} {values or ''}".rstrip()
        rest = {}
    assert rest == {}


def cut(line: str) -> str:
    """A line in which long texts are shown by their beginnings."""
    parts = line.split("'")
    return "'".join(each if len(each) <= 10 * SHOWN else f"{each[:20]}... {len(each)}" for each in parts)


# --- the scenes

SCENES: dict[str, Callable[[Stage], None]] = {}


def scene(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Add a scene."""
    SCENES[play.__name__] = play
    return play


@scene
def lease_by_hand(on: Stage) -> None:
    """Acquire, renew, transfer and release a lease: by its owner, and by others."""
    on.call("acquire_lease", "k", "A", TTL_MS)
    on.clock.advance(1)
    on.call("acquire_lease", "k", "A", TTL_MS)
    on.call("acquire_lease", "k", "B", TTL_MS)
    on.call("get_lease_owner", "k")
    on.call("renew_lease", "k", "A", TTL_MS + 5)
    on.call("renew_lease", "k", "A", TTL_MS)
    on.call("renew_lease", "k", "B", TTL_MS)
    on.call("transfer_lease", "k", "B", "A", TTL_MS)
    on.call("transfer_lease", "k", "A", "B", TTL_MS)
    on.faults = [unanswered]
    on.call("transfer_lease", "k", "B", "C", TTL_MS)
    on.faults = [meanwhile(on.die, then=lost)]
    on.call("transfer_lease", "k", "C", "D", TTL_MS)
    on.call("release_lease", "k", "C")
    on.call("get_lease_owner", "k")
    on.call("hold", "k", for_ms=5_000, reason="why")
    on.call("acquire_lease", "k", "A", TTL_MS)
    on.call("release_lease", "k", "A")


@scene
def lease_by_hand_beside_a_run(on: Stage) -> None:
    """What died with its run pauses, and whose lease ends by hand."""
    on.owned(1, 2)
    on.call("transfer_lease", "k", "A", "B", TTL_MS)
    on.call("release_lease", "k", "B")
    on.call("acquire_lease", "k", "C", TTL_MS)
    on.die()
    on.call("acquire_lease", "k", "D", TTL_MS)


@scene
def beat_and_take(on: Stage) -> None:
    """A renewal with a note and a mark, and what waits."""
    on.owned(1, 2, 3)
    on.call("beat", "k", "A", TTL_MS, note={"step": 1}, fence=on.fence)
    on.call("beat", "k", "A", TTL_MS - 5_000)
    on.call("beat", "k", "A", TTL_MS, fence=on.fence + 1)
    with on.unseen():
        on.call("acquire_lease", "j", "H", TTL_MS)
    on.call("beat", "j", "H", TTL_MS - 5_000, note=7)
    with on.unseen():
        on.call("beat", "k", "A", TTL_MS)
    on.call("take", "k", "A", TTL_MS, fence=on.fence)
    on.call("take", "k", "A", TTL_MS, have=["m1", "m2"])
    on.call("stop", "k", fence=on.fence, reason="why")
    on.call("beat", "k", "A", TTL_MS)
    on.call("take", "k", "A", TTL_MS)
    on.call("take", "k", "B", TTL_MS)
    on.faults = [meanwhile(on.die)]
    on.call("beat", "k", "A", TTL_MS, give_up_at=on.clock.now().plus(90_000))
    on.call("beat", "k", "A", TTL_MS, give_up_at=on.clock.now().plus(100))
    on.settle("A", handled=["m1"], give_up_at=on.clock.now().plus(100))
    on.call("take", "k", "A", TTL_MS, give_up_at=on.clock.now().plus(100))


@scene
def owner_of_a_throttled_table(on: Stage) -> None:
    """It tries as long as its ttl allows."""
    ttl_ms = 1_500
    with on.unseen():
        on.claim("A", 1)
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
        ("renew_lease", ("k", "A", ttl_ms), {}),
        ("transfer_lease", ("k", "A", "B", ttl_ms), {}),
        ("beat", ("k", "A", ttl_ms), {}),
        ("take", ("k", "A", ttl_ms), {}),
        ("settle", ("k", "A"), {"ttl_ms": ttl_ms, "handled": ["m1"], "fence": on.fence}),
        ("acquire_lease", ("k", "A", ttl_ms), {}),
        ("claim", ("k", "A", ttl_ms, None), {}),
    )
    for name, given, named in calls:
        on.faults = [failing("ThrottlingException")] * 90
        on.call(name, *given, **named)


@scene
def take_of_many(on: Stage) -> None:
    """All of them at once."""
    on.owned(*range(1, 28))
    on.call("take", "k", "A", TTL_MS)


@scene
def take_of_what_is_gone(on: Stage) -> None:
    """TTL has deleted its body, or another call of the same owner has settled it."""
    on.owned(1, 2, event="x" * 3_000)
    (name,) = (e["sk"]["S"] for e in on.table.items_of("p#k") if e["sk"]["S"].startswith("body#m2#"))
    on.table.delete({"Key": {"pk": typed("p#k"), "sk": typed(name)}})
    on.call("take", "k", "A", TTL_MS)
    on.faults = [None, None, None, meanwhile(lambda: on.settle("A", handled=["m2"], next_owner="A"))]
    on.call("take", "k", "A", TTL_MS)
    on.claim("B", 3, "x" * 3_000)
    (name,) = (e["sk"]["S"] for e in on.table.items_of("p#k") if e["sk"]["S"].startswith("body#m3#"))
    on.table.delete({"Key": {"pk": typed("p#k"), "sk": typed(name)}})
    on.settle("B", failed=[Failure(id="m3", error="no", final=True)], next_owner="C")


@scene
def take_beside_senders(on: Stage) -> None:
    """Messages come before each of its writes; from the fourth round on it leaves them to the next take."""
    on.owned(1, 2)
    numbers = count(3)

    def sends(proceed: Proceed) -> Any:
        number = next(numbers)
        on.claim(f"C{number}", number)
        return proceed()

    on.faults = [None, *[sends] * 6]
    on.call("take", "k", "A", TTL_MS)


@scene
def claim_of_a_free_key(on: Stage) -> None:
    """And again by the same owner; without a message where none is, and where one is."""
    on.claim("A", None)
    on.claim("A", 1, origin=ORIGIN)
    on.clock.advance(1)
    on.claim("A", 1, origin=ORIGIN)
    on.claim("B", 1)
    on.claim("B", 2, route=False)
    on.claim("B", 2)
    on.claim("B", 2)
    on.claim("C", None)
    on.claim("S", 3, as_ticket=True, origin=ORIGIN)
    on.die()
    on.claim("D", None)


@scene
def claim_with_a_ticket(on: Stage) -> None:
    """A sender's key is redeemed; a hold comes between."""
    on.claim("T", 1, as_ticket=True, origin=ORIGIN)
    on.claim("B", None)
    on.claim("B", None, ticket="T")
    with on.unseen():
        on.settle("B", handled=["m1"], fence=on.fence)
        on.claim("T", 2, as_ticket=True)
        on.call("hold", "k", for_ms=5_000)
    on.claim("B", None, ticket="T")


@scene
def claim_for_later(on: Stage) -> None:
    """M14, M15, M16, M21: for later, for quiet, interrupting, in place of what waits."""
    on.claim("A", 1, as_ticket=True, after_ms=5_000)
    on.claim("A", 1, as_ticket=True, after_ms=5_000)
    on.claim("B", 1, as_ticket=True)
    on.clock.advance(5_000)
    on.claim("B", 2, debounce=Debounce(quiet_ms=2_000, max_ms=9_000))
    on.clock.advance(500)
    on.claim("C", 3, route=False, debounce=Debounce(quiet_ms=2_000, max_ms=9_000))
    on.clock.advance(2_000)
    on.claim("D", 4)
    on.claim("E", 5, after_ms=7_000)
    on.claim("F", 6, after_ms=6_000)
    on.claim("G", 7, interrupt=True, origin=ORIGIN)
    on.claim("H", 8, policy=Policy(keep="latest"))
    on.die()
    on.claim("I", 9, origin=ORIGIN)


@scene
def claim_that_finds_no_room(on: Stage) -> None:
    """M7: by the policy, by the size of the item, and as DynamoDB says."""
    on.owned(1, 2)
    on.claim("B", 3, policy=Policy(max_pending=2))
    on.faults = [failing("ValidationException", "Item size to update has exceeded the maximum allowed size")]
    on.claim("C", 3)
    large = failing("ValidationException", "Item size to update has exceeded the maximum allowed size")
    on.faults = [None, large]
    on.claim("C", 4, "x" * 3_000)
    on.change(color=typed("x" * 160 * 1_024))
    on.claim("D", 5)
    on.claim("D", 6, "x" * 3_000)


@scene
def claim_with_a_large_body(on: Stage) -> None:
    """Beside the record, and taken away where it is not stored."""
    on.claim("A", 1, "x" * 2_047)
    on.claim("B", 2, "x" * 2_047)
    on.claim("C", 2, "x" * 2_047)
    on.claim("D", 3, "y" * 2_046)
    on.claim("E", 4, "z" * 2_046)
    on.claim("F", 5, "w" * 2_043)
    on.claim("F", 6, 6)
    on.claim("G", 3, "y" * 2_046)
    on.call("peek", "k")
    on.die()
    on.claim("G", None)
    on.settle("G", handled=["m4"], next_owner="H")


@scene
def claim_with_a_body_in_parts(on: Stage) -> None:
    """Over 384 KiB."""
    on.claim("A", 1, "x" * 400_000, policy=PLAIN, after_ms=1_000)
    on.clock.advance(1_000)
    on.claim("B", None)
    on.settle("B", failed=[FINAL])
    on.call("dead_letters", "k", 9)
    on.call("redrive", "k", "m1")
    on.change("body#m1#" + "0" * 16)
    on.claim("C", None)
    on.settle("C", handled=["m1"])


@scene
def claim_whose_replies_are_lost(on: Stage) -> None:
    """R9: a late copy may come, so that its body stays."""
    on.faults = [None, unanswered]
    on.claim("A", 1, "x" * 3_000)
    on.faults = [None, lost]
    on.claim("B", 2, "x" * 3_000)
    on.faults = [None, None, unanswered]
    on.claim("C", 3, "x" * 3_000)
    on.faults = [None, unanswered]
    on.claim("D", 4)
    on.faults = [lost, lost, lost]
    on.claim("E", 5)
    on.faults = [None, lost, None, meanwhile(lambda: on.claim("G", 6))]
    on.claim("F", 7, "x" * 3_000, policy=Policy(max_pending=5))


@scene
def promise_beside_an_owner_who_leaves(on: Stage) -> None:
    """Then the key is claimed after all."""
    on.owned(1)
    on.faults = [None, meanwhile(on.die)]
    on.claim("B", 1)
    on.faults = [None, unanswered]
    on.claim("C", 1)


@scene
def claim_behind_an_owner_who_leaves(on: Stage) -> None:
    """The message is stored first, then the key is claimed, once."""

    def leaves(number: int) -> Fault:
        return meanwhile(lambda: on.settle("A", handled=[f"m{number}"]))

    on.owned(1)
    on.faults = [None, leaves(1)]
    on.claim("B", 2)
    on.settle("B", handled=["m2"], fence=on.fence)
    on.owned(3)
    on.faults = [None, leaves(3), meanwhile(lambda: on.claim("Z", None))]
    on.claim("B", 4)
    on.settle("Z", handled=["m4"])
    on.owned(5)
    on.faults = [None, leaves(5), unanswered]
    on.claim("B", 6)
    on.settle("B", handled=["m6"])
    on.owned(7)
    on.faults = [None, leaves(7), lost, meanwhile(lambda: on.claim("Z", None), on.die)]
    on.claim("B", 8)
    on.settle("Z", handled=["m8"])


@scene
def claim_behind_an_owner_who_leaves_to_one_who_leaves(on: Stage) -> None:
    """The message waits, and is not run."""
    on.owned(1)
    left = (lambda: on.claim("Z", None), lambda: on.settle("Z", deferred=["m2"]))
    on.faults = [None, meanwhile(lambda: on.settle("A", handled=["m1"])), meanwhile(*left)]
    on.claim("B", 2)


@scene
def claim_behind_an_owner_who_leaves_with_a_pause(on: Stage) -> None:
    """The message is not stored behind it."""
    on.owned(1)
    failed = [Failure(id="m1", error="no")]
    on.faults = [None, meanwhile(lambda: on.settle("A", failed=failed)), meanwhile(lambda: on.claim("Z", 3))]
    on.claim("B", 2)


@scene
def claim_that_others_overtake(on: Stage) -> None:
    """An exact claim pauses from the fifth round on, and ends with the 33rd."""
    on.owned(1)
    on.die()

    edits = meanwhile(on.edit)
    on.faults = [None, *[edits] * 4, None, edits, None, edits]
    on.claim("B", 2)
    on.settle("B", handled=["m2"])
    with on.unseen():
        on.die()
        on.claim("C", 3)
        on.die()
    on.faults = [None, None, edits]
    on.claim("D", 4)


@scene
def claim_that_others_always_overtake(on: Stage) -> None:
    """The 33rd round is not tried."""
    on.owned(1)
    on.die()
    edits = meanwhile(on.edit)
    on.faults = [None, *[edits] * 4, *[None, edits] * 40]
    on.claim("B", 2)
    assert len(on.lines) == 1 + 3 + 4 * 3 + 28 * 4 + 1
    del on.lines[7:-1]


@scene
def claim_of_an_id_in_a_page(on: Stage) -> None:
    """M5: a page is read where the record shows that it may be there."""
    for number in range(1, 7):
        on.run(number)
        on.clock.advance(10)
    on.claim("B", 1)
    on.claim("B", 6)
    on.call("find", "k", "m2", policy=PLAIN)
    on.call("find", "k", "m9", policy=PLAIN)
    on.claim("R1", 99)


@scene
def settle_at_once(on: Stage) -> None:
    """The only message: handled, stopped, dropped."""
    on.owned(1)
    on.settle("A", handled=["m1"], fence=on.fence, next_owner="B")
    on.owned(2)
    on.settle("A", stopped=["m2"], fence=on.fence)
    on.owned(3)
    on.settle("A", handled=["m3"], fence=on.fence)
    on.owned(4)
    on.settle("A", handled=["m4"])
    on.owned(5)
    on.settle("A", dropped=[Failure(id="m5", error="no")], fence=on.fence)
    with on.unseen():
        on.claim("B", 6)
        on.call("stop", "k", fence=on.fence, reason="why")
    on.settle("B", handled=["m6"], fence=on.fence)
    on.settle("B", handled=["m6"], fence=on.fence)
    on.claim("C", 7)
    on.settle("B", handled=["m6"], fence=on.fence)
    on.settle("C", stopped=["m7"], hold_ms=60_000, hold_reason="gap", fence=on.fence)
    with on.unseen():
        on.call("resume", "k")
        on.claim("D", 8)
    on.settle("D", handled=["m8"], hold_ms=60_000, hold_reason="gap", fence=on.fence)


@scene
def settle_that_goes_on(on: Stage) -> None:
    """To the next message, to a ticket, with a failure, with what is put back."""
    on.owned(1, 2, 3, 4)
    on.settle("A", handled=["m1"], next_owner="B", fence=on.fence)
    on.settle("B", failed=[Failure(id="m2", error="no", after_ms=70_000)], next_owner="C")
    on.settle("C", deferred=["m3"], ticket="T")
    on.claim("D", None, ticket="T")
    on.settle("D", failed=[Failure(id="m3", error="no")], handled=["m4"], next_owner="E")
    on.settle("E", hold_ms=60_000, hold_reason="gap", handled=["m4"])


@scene
def settle_with_a_hold(on: Stage) -> None:
    """M15, M16: whatever waits, the key is free; and what has failed with what was handled."""
    on.owned(1, 2, 3)
    with on.unseen():
        on.call("stop", "k", reason="why")
    on.settle("A", handled=["m1"], next_owner="B", fence=on.fence)
    on.settle("B", handled=["m2"], next_owner="C", hold_ms=60_000, hold_reason="gap")
    on.die()
    on.call("resume", "k")
    on.claim("D", 4)
    with on.unseen():
        on.call("take", "k", "D", TTL_MS)
    on.settle("D", handled=["m3"], failed=[Failure(id="m4", error="no")], fence=on.fence)
    on.die()
    with on.unseen():
        on.claim("E", None)
        on.claim("F", 5)
        on.claim("G", 6)
        on.call("take", "k", "E", TTL_MS)
    on.settle("E", handled=["m4"], deferred=["m5"], ticket="T", fence=on.fence, hold_ms=5_000)


@scene
def settle_with_results(on: Stage) -> None:
    """M17: kept before the trace says so."""
    policy = Policy(result_bytes=9)
    on.owned(1)
    on.settle("A", handled=["m1"], results={"m1": [1]}, policy=policy, fence=on.fence)
    on.call("find", "k", "m1", policy=policy)
    on.owned(2)
    on.settle("A", handled=["m2"], results={"m2": "x" * 9}, policy=policy, fence=on.fence)
    on.call("find", "k", "m2", policy=policy)
    on.owned(3, 4)
    on.call("find", "k", "m3", policy=policy)
    on.call("find", "k", "m4", policy=policy)
    on.call("find", "k", "m5", policy=policy)


@scene
def settle_with_dead_letters(on: Stage) -> None:
    """M6: written first, and taken back if the settle does not come about."""
    on.owned(1, 2)
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    failed = [FINAL, Failure(id="m2", error="too", final=True)]
    on.faults = [None, None, failing("AccessDeniedException"), None]
    on.settle("A", failed=failed)
    on.faults = [None, None, None, meanwhile(lambda: on.claim("B", 3))]
    on.settle("A", failed=failed, next_owner="N")
    on.settle("N", failed=[Failure(id="m3", error="x" * 4_096, final=True)])
    on.owned(4)
    on.faults = [None, None, meanwhile(lambda: on.settle("A", handled=["m4"]))]
    on.settle("A", failed=[Failure(id="m4", error="no", final=True)])
    on.owned(5, 6)
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    on.faults = [None, None, None, unanswered]
    on.settle("A", failed=[Failure(id=f"m{number}", error="no", final=True) for number in (5, 6)])
    on.owned(7)
    on.faults = [meanwhile(on.die)]
    on.settle("A", failed=[Failure(id="m7", error="no", final=True)])
    on.call("release_lease", "k", "A")


@scene
def settle_with_dead_letters_whose_reply_is_lost(on: Stage) -> None:
    """R9: they stay, as the messages are dead; one that another call has handled is taken away."""
    on.owned(1, 2)
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    on.faults = [None, None, None, unanswered]
    on.settle("A", failed=[Failure(id=f"m{number}", error="no", final=True) for number in (1, 2)])
    with on.unseen():
        on.call("redrive", "k", "m1")
        on.claim("B", None)
    on.faults = [None, None, meanwhile(lambda: on.settle("B", handled=["m1"]))]
    on.settle("B", failed=[FINAL])
    on.owned(3, 4)
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    failed = [Failure(id="m4", error="no", final=True)]
    on.faults = [None, None, None, meanwhile(lambda: on.settle("A", failed=failed, handled=["m3"]))]
    on.settle("A", failed=[*failed, Failure(id="m3", error="no", final=True)])


@scene
def settle_whose_reply_is_lost(on: Stage) -> None:
    """R9: its trace tells, also where it stands in a page."""
    on.owned(1)
    on.faults = [unanswered]
    on.settle("A", handled=["m1"], fence=on.fence)
    on.owned(2)

    def much_later(proceed: Proceed) -> Any:
        proceed()
        for number in range(3, 9):
            on.run(number + 20 * on.fence)
        raise ReadTimeoutError(endpoint_url="t")

    on.faults = [much_later]
    fence = on.fence
    on.settle("A", handled=["m2"], fence=fence)
    on.owned(9)
    on.faults = [lost, meanwhile(on.die, lambda: on.claim("B", 10))]
    on.settle("A", handled=["m9"], fence=on.fence)
    on.settle("B", handled=["m10"])
    on.owned(11, 12)
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    on.faults = [None, much_later]
    on.settle("A", handled=["m11"], stopped=["m12"], fence=on.fence)


@scene
def settles_that_fill_pages(on: Stage) -> None:
    """Each fourth, as its fence tells; and marks are made anew where there are too many."""
    for number in range(1, 4):
        on.run(number)
    on.owned(4)
    on.settle("A", handled=["m4"], fence=on.fence)
    steps: Any = on.provider._steps  # noqa: SLF001 - else it would take 272 runs
    steps.max_marks = 6
    for number in range(5, 8):
        on.run(number)
    on.owned(8)
    on.settle("A", handled=["m8"], fence=on.fence)
    on.owned(*range(10, 20))
    with on.unseen():
        on.call("take", "k", "A", TTL_MS)
    on.settle("A", handled=[f"m{number}" for number in range(10, 20)])
    on.owned(20)
    on.settle("A", dropped=[Failure(id="m20", error="no")])


@scene
def marks_that_are_too_many(on: Stage) -> None:
    """By one."""
    steps: Any = on.provider._steps  # noqa: SLF001 - else it would take 272 runs
    for number, more in ((0, 0), (10, 1)):
        for each in range(4 if number else 6):
            on.run(number + each)
        on.owned(number + 9)
        record = on.record()
        found = traces.moved_into_page(record.item, tuple(record.state.ended))
        steps.max_marks = sum(map(len, found.past)) - more
        on.settle("A", handled=[f"m{number + 9}"], fence=on.fence)
        steps.max_marks = 999


def page_of(first: int, count: int, at_ms: int = NOW_MS) -> dict[str, Any]:
    """A page of handled ids."""
    ended = (
        Ended(id=f"p{n}", outcome="handled", claimed_by="R", fence=n, at_ms=at_ms) for n in range(first, first + count)
    )
    return traces.page_item("p#k", tuple(ended), 3_600_000)


@scene
def marks_made_anew(on: Stage) -> None:
    """From the pages of the last 256, without those whose window is over."""
    for number in range(6):
        on.run(number)
    for page in (page_of(2_000, 5, NOW_MS - 9 * 86_400_000), page_of(1_000, 245), page_of(1, 3)):
        on.table.put(page)
    steps: Any = on.provider._steps  # noqa: SLF001 - as above
    steps.max_marks = 1
    on.owned(7)
    on.settle("A", handled=["m7"], fence=on.fence)


@scene
def marks_made_anew_from_pages_with_the_same(on: Stage) -> None:
    """Each trace counts once."""
    for number in range(6):
        on.run(number)
    for page in (page_of(1_000, 200), page_of(1_000, 80), page_of(1, 3)):
        on.table.put(page)
    steps: Any = on.provider._steps  # noqa: SLF001 - as above
    steps.max_marks = 1
    on.owned(7)
    on.settle("A", handled=["m7"], fence=on.fence)
    page = page_of(500, 2)
    on.table.put({**page, "v": typed(2)})
    for number in (8, 9, 10):
        on.run(number)
    on.owned(11)
    on.settle("A", handled=["m11"], fence=on.fence)


@scene
def dead_letters(on: Stage) -> None:
    """Of one key and of all, as many as are wanted; one that cannot be read hides no other."""
    on.bury(1, 2, 3)
    with on.unseen():
        on.call("claim", "j", "A", TTL_MS, Message(id="m4", event="x" * 3_000), policy=PLAIN)
        on.call("settle", "j", "A", ttl_ms=TTL_MS, failed=[Failure(id="m4", error="no", final=True)], policy=PLAIN)
    on.bury(0)
    on.call("dead_letters", "k", 2)
    on.call("dead_letters", "k", 9)
    on.call("dead_letters", None, 9)
    on.call("dead_letters", None, 1)
    on.call("dead_letters", None, 2)
    names = [each["sk"]["S"] for each in on.table.items_of("p#k") if each["sk"]["S"].startswith("dead#")]
    on.change(names[0], attempts=typed("x"))
    on.change(names[1], v=typed(2))
    on.call("dead_letters", "k", 9)
    on.call("dead_letters", None, 9)
    on.call("dead_letters", None, 1)
    on.call("redrive", "k", "m1")


@scene
def redrive(on: Stage) -> None:
    """Once, whatever is lost; a large text gets an item."""
    on.bury(1, 2)
    on.call("redrive", "k", "m1")
    on.call("redrive", "k", "m1")
    on.faults = [None, None, unanswered]
    on.call("redrive", "k", "m2")
    on.bury(3, event="x" * 3_000)
    on.call("redrive", "k", "m3")
    on.bury(4, event="x" * 3_000)
    on.faults = [None, None, None, meanwhile(lambda: on.claim("B", 5))]
    on.call("redrive", "k", "m4")
    on.call("redrive", "k", "m9")


@scene
def redrive_that_is_lost_and_overtaken(on: Stage) -> None:
    """Its letter is still there, so that it was not put back."""
    on.bury(1)
    on.faults = [None, None, lost, meanwhile(on.edit)]
    on.call("redrive", "k", "m1")


@scene
def redrive_that_ended_halfway(on: Stage) -> None:
    """Its letter is spent, and another call takes it away."""
    on.bury(1, 2)
    on.faults = [None, None, None, lost, lost, lost]
    on.call("redrive", "k", "m1")
    on.call("redrive", "k", "m1")
    on.faults = [None, None, None, lost, lost, lost]
    on.call("redrive", "k", "m2")
    with on.unseen():
        on.call("cancel", "k", "m2")
        again = Dead(id="m2", body="2", attempts=1, error=None, stored_ms=1, died_ms=2)
        on.table.put(letters.dead_item("p#k", again, 1, 0, "again"))
    on.call("redrive", "k", "m2")
    on.bury(3)
    on.faults = [
        None,
        None,
        failing("ThrottlingException"),
        failing("ThrottlingException"),
        failing("ThrottlingException"),
    ]
    on.call("redrive", "k", "m3")
    on.faults = [None, None, unanswered, None, failing("AccessDeniedException"), None]
    on.call("redrive", "k", "m3")


@scene
def redrive_that_others_overtake(on: Stage) -> None:
    """It is tried 32 times."""
    on.bury(1)
    on.faults = [None, *[None, meanwhile(on.edit)] * 40]
    on.call("redrive", "k", "m1")
    assert len(on.lines) == 2 + 32 * 4 + 1
    del on.lines[10:-1]


@scene
def redrive_that_finds_no_room(on: Stage) -> None:
    """M7."""
    on.bury(1)
    on.change(color=typed("x" * 160 * 1_024))
    on.call("redrive", "k", "m1")
    mail = [Stored(id=f"n{n}", body="1", claimed_by="A", promised=True, stored_ms=n) for n in range(1_100)]
    on.change(color=None, mail={"L": [typed(item.fields(each, head=True)) for each in mail]})
    on.call("redrive", "k", "m1")
    on.change(mail={"L": [typed(item.fields(each, head=True)) for each in mail[:1_099]]})
    on.call("redrive", "k", "m1")


@scene
def redrive_into_a_full_record(on: Stage) -> None:
    """8 KiB of bodies: one more gets an item."""
    on.bury(1, 2, event="x" * 1_022)
    on.owned(3, 4, 5, 6, event="y" * 1_790)
    on.call("redrive", "k", "m1")
    on.call("redrive", "k", "m2")


@scene
def claim_that_replaces_beside_traces(on: Stage) -> None:
    """They move when there are too many, and not before."""
    on.run(1)
    on.run(2)
    on.owned(3, 4)
    on.claim("B", 5, policy=Policy(keep="latest"))
    on.claim("C", 6, policy=Policy(keep="latest"))
    on.claim("D", 7, policy=Policy(keep="latest"))


@scene
def claim_that_replaces_beside_pages(on: Stage) -> None:
    """What stands in a page is no trace of the record."""
    for number in range(1, 4):
        on.run(number)
    on.clock.advance(PLAIN.window_ms)
    for number in range(4, 9):
        on.run(number)
    on.owned(9, 10)
    on.claim("B", 1, policy=Policy(keep="latest"))


@scene
def redrive_of_a_letter_without_its_body(on: Stage) -> None:
    """TTL has deleted a part of it."""
    on.bury(1, event="x" * 400_000)
    names = [each["sk"]["S"] for each in on.table.items_of("p#k") if each["sk"]["S"].startswith("body#")]
    on.table.delete({"Key": {"pk": typed("p#k"), "sk": typed(names[1])}})
    on.call("dead_letters", "k", 9)
    on.call("redrive", "k", "m1")
    on.call("peek", "k")


@scene
def purge(on: Stage) -> None:
    """Of one that is there, one that is not, and one whose record is gone."""
    on.bury(1, 2, 3)
    on.call("purge", "k", "m1")
    on.call("purge", "k", "m1")
    on.faults = [None, None, unanswered]
    on.call("purge", "k", "m2")
    on.faults = [None, None, meanwhile(lambda: on.claim("B", 5))]
    on.call("purge", "k", "m3")


@scene
def purge_without_a_record(on: Stage) -> None:
    """TTL has deleted it."""
    on.bury(1)
    on.table.delete({"Key": {"pk": typed("p#k"), "sk": typed("lease")}})
    on.call("purge", "k", "m1")


@scene
def purge_whose_letter_is_gone(on: Stage) -> None:
    """A reply was lost, and another call was quicker."""
    on.bury(1)
    on.faults = [None, None, meanwhile(lambda: on.call("purge", "k", "m1"), then=lost)]
    on.call("purge", "k", "m1")


@scene
def orphans(on: Stage) -> None:
    """By turns of their targets, the oldest first; of a live key none."""
    with on.unseen():
        for number, (key, target) in enumerate((("a", "f"), ("b", "f"), ("c", "g"), ("d", None), ("e", "g"))):
            on.call(
                "claim", key, "A", TTL_MS + number, Message(id="m", event=1), origin=Origin(target=target), policy=PLAIN
            )
        on.clock.advance(TTL_MS + SKEW_MS + 9_003)
        on.call("claim", "f", "A", TTL_MS, Message(id="m", event=1), policy=PLAIN)
    on.call("orphans", 9)
    on.call("orphans", 3)
    on.change(pk=typed("p#a"), v=typed(2))
    on.call("orphans", 1)


@scene
def keys(on: Stage) -> None:
    """Those with an owner, messages or a hold."""
    with on.unseen():
        for key in "abc":
            on.call("claim", key, "A", TTL_MS, Message(id="m", event=1), policy=PLAIN, origin=ORIGIN)
        on.call("hold", "d", for_ms=500, reason="why")
        on.call("hold", "e", for_ms=5_000)
        on.clock.advance(500)
    on.call("keys", 9)
    on.call("keys", 2)
    on.change(pk=typed("p#a"), v=typed(2))
    on.call("keys", 9)


@scene
def more_keys_than_are_read_at_once(on: Stage) -> None:
    """Fifty; of the others, those that may be older than what was found."""
    with on.unseen():
        for number in range(60):
            on.clock.advance(1)
            target = Origin(target="g" if number % 20 == 0 else "f")
            message = Message(id="m", event=1)
            on.call("claim", f"k{number}", "A", TTL_MS, message, origin=target, policy=PLAIN, as_ticket=True)
        for number in (0, 1, 2):
            on.call("renew_lease", f"k{number}", "A", 2 * TTL_MS)
        on.clock.advance(TTL_MS + SKEW_MS)
    on.call("orphans", 3)
    on.call("keys", 2)
    on.note(f"{len([*on.provider.orphans(49)])} of 57 orphans")
    on.note(f"{len([*on.provider.orphans(99)])} of 57 orphans")
    on.note(f"{len([*on.provider.keys(51)])} of 60 keys")


@scene
def control_of_a_run(on: Stage) -> None:
    """Stop, watch, cancel, show."""
    on.call("stop", "k")
    on.call("cancel", "k", "m1")
    on.owned(1, 2, 3)
    on.call("watch", "k", "A", fence=on.fence)
    on.call("watch", "k", "A", fence=on.fence - 1)
    on.call("watch", "k", "B")
    on.call("stop", "k", fence=on.fence - 1, reason="why")
    on.call("stop", "k", fence=on.fence)
    on.call("watch", "k", "A")
    on.call("stop", "k", reason="why")
    on.call("cancel", "k", "m1")
    on.call("cancel", "k", "m2")
    on.call("cancel", "k", "m2")
    on.call("show", "k", events=True)
    on.call("show", "k")
    on.clock.advance(TTL_MS + SKEW_MS - 1)
    on.call("show", "k", events=True)
    on.call("keys", 9)
    on.call("find", "k", "m1", policy=PLAIN)
    on.call("get_lease_owner", "k")
    on.clock.advance(1)
    on.call("show", "k", events=True)
    on.call("get_lease_owner", "k")
    on.die()
    on.call("stop", "k", reason="why")
    on.call("cancel", "k", "m1")


@scene
def stop_in_doubt(on: Stage) -> None:
    """R9: another tenure has begun since, or none is live."""
    on.owned(1)
    on.faults = [None, unanswered]
    on.call("stop", "k", reason="why")
    with on.unseen():
        on.settle("A", handled=["m1"])
    on.owned(2)
    on.faults = [None, meanwhile(lambda: on.settle("A", handled=["m2"]), lambda: on.claim("B", 3), then=lost)]
    on.call("stop", "k", reason="why")
    on.faults = [None, meanwhile(lambda: on.settle("B", handled=["m3"]), then=lost)]
    on.call("stop", "k", reason="why")
    on.owned(4)
    on.faults = [None, meanwhile(lambda: on.settle("A", handled=["m4"]), lambda: on.claim("B", 5))]
    on.call("stop", "k", reason="why")


@scene
def hold_and_resume(on: Stage) -> None:
    """On a key without a record, on a free one, beside an owner; once more, and in doubt."""
    on.call("resume", "k")
    on.call("hold", "k", for_ms=5_000, reason="why")
    on.call("hold", "k", for_ms=4_000)
    on.faults = [None, unanswered]
    on.call("hold", "k")
    on.faults = [None, unanswered]
    on.call("resume", "k")
    on.call("resume", "k")
    on.owned(1)
    on.call("hold", "k", for_ms=5_000, reason="why")
    on.faults = [None, meanwhile(lambda: on.call("resume", "k"), then=lost)]
    on.call("hold", "k", for_ms=9_000)
    on.faults = [None, meanwhile(lambda: on.call("hold", "k", for_ms=1_000), lambda: on.call("resume", "k"))]
    on.call("hold", "k", for_ms=9_000)
    on.faults = [None, meanwhile(lambda: on.call("resume", "k"), then=lost)]
    on.call("resume", "k")
    on.faults = [None, meanwhile(lambda: on.claim("B", 2))]
    on.call("hold", "k", for_ms=9_000)


@scene
def hold_and_resume_that_others_overtake(on: Stage) -> None:
    """R8: once a reply is lost, what others do since leaves a call in doubt."""
    on.owned(1)
    held, resumed = (lambda: on.call("hold", "k", for_ms=1_000)), (lambda: on.call("resume", "k"))
    on.faults = [None, lost, meanwhile(held), meanwhile(resumed)]
    on.call("hold", "k", for_ms=9_000)
    on.call("hold", "k", for_ms=500)
    on.faults = [None, lost, meanwhile(held), meanwhile(resumed)]
    on.call("resume", "k")
    on.call("hold", "k", for_ms=500)
    on.faults = [None, lost, meanwhile(held)]
    on.call("resume", "k")
    on.faults = [None, lost, meanwhile(held)]
    on.call("hold", "k", for_ms=9_000)


@scene
def messages_whose_bodies_are_gone(on: Stage) -> None:
    """Looked at, run, and left meanwhile."""
    on.owned(1, 2, 3, event="x" * 3_000)

    def gone(number: int) -> None:
        (name,) = (e["sk"]["S"] for e in on.table.items_of("p#k") if e["sk"]["S"].startswith(f"body#m{number}#"))
        on.table.delete({"Key": {"pk": typed("p#k"), "sk": typed(name)}})

    gone(2)
    on.call("peek", "k")
    on.call("show", "k", events=True)
    on.faults = [None, None, None, meanwhile(lambda: on.call("cancel", "k", "m2"))]
    on.call("peek", "k")
    on.faults = [None, None, None, meanwhile(lambda: on.call("cancel", "k", "m3"))]
    gone(3)
    on.call("show", "k", events=True)
    on.owned(1, 4, 5, event="x" * 3_000)
    names = {e["sk"]["S"][:8]: e["sk"]["S"] for e in on.table.items_of("p#k") if e["sk"]["S"].startswith("body#")}
    on.change(names["body#m4#"], v=typed(2))
    on.call("peek", "k")
    on.call("take", "k", "A", TTL_MS)
    gone(5)
    on.call("take", "k", "A", TTL_MS)
    on.settle("A", handled=["m1"], next_owner="B")


@scene
def pages_that_are_too_many(on: Stage) -> None:
    """Only as many are read as tell of what is remembered."""
    ended = [
        Ended(id=f"m{n}", outcome="handled", claimed_by=f"R{n}", fence=n + 1, at_ms=NOW_MS + n) for n in range(300)
    ]
    with on.unseen():
        on.call("acquire_lease", "k", "A", TTL_MS)
        on.call("release_lease", "k", "A")
    for first in range(0, 300, 50):
        page = traces.page_item("p#k", ended[first : first + 50], 3_600_000)
        on.table.put(page)
    on.change(past=typed(traces.past((), ended)))
    on.clock.advance(5_000)
    on.call("find", "k", "m299", policy=PLAIN)
    on.call("find", "k", "m200", policy=PLAIN)
    on.call("find", "k", "m44", policy=PLAIN)
    on.call("find", "k", "m43", policy=PLAIN)
    on.claim("B", 44)


def transcript(play: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Play a scene, with names and pauses that are always the same."""
    names = count(1)
    monkeypatch.setattr(secrets, "token_hex", lambda size: f"{next(names):0{2 * size}x}")
    monkeypatch.setattr(random, "randint", lambda _, most: most)
    stage = Stage()
    play(stage)
    return "".join(f"{line}\n" for line in stage.lines)


def stored() -> dict[str, str]:
    """The transcripts by scene."""
    text = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    parts = (each.partition("\n\n") for each in text.split("== ")[1:])
    return {name: lines.removesuffix("\n") for name, _, lines in parts}


STORED = stored()


@pytest.mark.parametrize("name", SCENES)
def test_call_asks_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request, and each answer."""
    assert transcript(SCENES[name], monkeypatch).splitlines() == STORED.get(name, "").splitlines()


def test_every_transcript_has_its_scene() -> None:
    """And the other way round."""
    assert [*STORED] == [*SCENES]


def main() -> None:
    """Write the transcripts anew."""
    with GOLDEN.open("w", encoding="utf-8") as file:
        for name, play in SCENES.items():
            with pytest.MonkeyPatch.context() as monkeypatch:
                file.write(f"== {name}\n\n{transcript(play, monkeypatch)}\n")


if __name__ == "__main__":
    main()
