"""Records what several clients of one key are told at once, each behind a network of its own that fails now and then.

Everything that a client does is decided by the history's seed. What they get in one another's way is not: that is the
servers' and the threads' business, and differs from run to run.
"""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from incumbent.errors import LeaseLost, LeaseUnavailable, MailboxFull
from incumbent.testing.proxy import (
    CutReply,
    CutRequest,
    Duplicate,
    Fault,
    Late,
    LoseReply,
    LoseRequest,
    Network,
    Pass,
    Request,
    Stall,
)
from incumbent.values import Acquisition, Claimed, Continued, Failure, Message, Released
from tests.faults.stores import Provider
from tests.linearizability.checker import UNKNOWN, Operation
from tests.linearizability.sequential import POLICY, TTL_MS

KEY = "k"
CALLS = 6  # of each client
IDS = 4
LOOKS = 2 + IDS  # at the end
CUTS: tuple[Fault, ...] = (LoseRequest(), CutRequest(), LoseReply(), LoseReply(), CutReply(), Duplicate(), Stall())
READS = ("GetItem", "Query", "BatchGetItem")


class Lane(Protocol):
    """One client's way to the store: its provider, and the network before it if there is one."""

    network: Network | None

    def provider(self, prefix: str) -> Provider:
        """A provider of keys that no other history uses."""
        ...


@dataclass(kw_only=True)
class Client:
    """A client, what it believes, and what it has recorded."""

    name: str
    chance: random.Random
    provider: Provider
    moment: Callable[[], int]
    tickets: list[str]
    network: Network | None = None
    faults: float = 0.0
    cuts: Sequence[Fault] = CUTS
    several: bool = False
    """Whether a call may need several requests that change something (DynamoDB)."""

    recorded: list[Operation] = field(default_factory=list)
    _owner: str | None = None
    _given: list[str] = field(default_factory=list)
    _names: int = 0
    _happened: list[tuple[Request, Fault]] = field(default_factory=list)
    _late: list[tuple[Operation, Late]] = field(default_factory=list)

    def run(self) -> None:
        """Make the calls, and at the end let everything arrive that was held back."""
        if self.network is not None:
            self.network.choose(self._choose)
        for _ in range(CALLS):
            if self._late and self.chance.random() < 0.3:
                self.deliver()
            self._one()
        while self._late:
            self.deliver()

    def _choose(self, request: Request) -> Fault:
        return self.note(request, self.chance.choice(self.cuts) if self.chance.random() < self.faults else Pass())

    def note(self, request: Request, fault: Fault) -> Fault:
        """Keep what happens to a request of the call that is made."""
        self._happened.append((request, fault))
        return fault

    # --- one call

    def _one(self) -> None:
        names = self._as_owner() if self._owner is not None else self._as_stranger()
        self.make(*self.chance.choice(names)())

    def make(self, name: str, arguments: dict[str, Any]) -> None:
        """Make a call, and keep what was said and what may come of it besides."""
        self._happened.clear()
        began = self.moment()
        answer: Any
        try:
            answer = self.ask(name, arguments)
        except LeaseUnavailable:
            answer = UNKNOWN
        except (LeaseLost, MailboxFull) as refusal:
            answer = type(refusal)
        ended = self.moment()
        self._record(name, arguments, answer, began, ended)
        self._learn(name, arguments, answer)

    def _record(self, name: str, arguments: dict[str, Any], answer: Any, began: int, ended: int) -> None:
        """Keep the call, and each time besides that it may have taken effect: those may come to nothing."""
        asked = [fault for request, fault in self._happened if request.name not in READS]
        call = Operation(client=self.name, name=name, arguments=arguments, answer=answer, began=began, ended=ended)
        perhaps = replace(call, answer=UNKNOWN, optional=True)
        unheard: tuple[type[Fault], ...] = (LoseReply, CutReply, Duplicate)
        if answer is UNKNOWN:
            unheard = (*unheard, Pass)  # whatever came of it, nobody was told
        else:
            tried_again = any(not isinstance(fault, Pass | Duplicate) for fault in asked)
            self.recorded.append(replace(call, arguments={**arguments, "repeated": tried_again}))
        self.recorded += [perhaps for fault in asked if isinstance(fault, unheard)]
        if self.several and len(asked) > 1 and name == "claim" and arguments.get("id") is not None:
            self.recorded.append(replace(perhaps, name="append"))
        if self.several and len(asked) > 1 and name == "take":
            self.recorded.append(perhaps)
        if self.network is not None:
            self._late += [(perhaps, late) for late in self.network.late]
            self.network.forget()

    def deliver(self) -> None:
        """Let something arrive that was held back: it takes effect now, or never."""
        echo, late = self._late.pop(self.chance.randrange(len(self._late)))
        began = self.moment()
        late.deliver()
        echo = replace(echo, began=began, ended=self.moment())
        self.recorded.append(echo)
        if self.several and echo.name == "claim" and echo.arguments.get("id") is not None:
            self.recorded.append(replace(echo, name="append"))  # the request behind that which tries to own the key

    # --- what to do

    def _as_stranger(self) -> Sequence[Callable[[], tuple[str, dict[str, Any]]]]:
        return (
            *[self._claim] * 5,
            self._claim_without,
            self._redeem,
            self._claim_ticket,
            self._acquire,
            self._look,
        )

    def _as_owner(self) -> Sequence[Callable[[], tuple[str, dict[str, Any]]]]:
        owner = self._owner
        return (
            *[self._settle] * 5,
            *[self._take] * 2,
            lambda: ("beat", {"owner": owner}),
            lambda: ("renew", {"owner": owner}),
            lambda: ("release", {"owner": owner}),
            lambda: ("transfer", {"owner": owner, "successor": self._fresh("heir")}),
            lambda: ("claim", {"owner": owner, "id": self._id()}),
            lambda: ("acquire", {"owner": owner}),
            self._look,
        )

    def _fresh(self, kind: str) -> str:
        self._names += 1
        return f"{kind} {self.name}{self._names}"

    def _id(self) -> str:
        return f"m{self.chance.randrange(IDS)}"

    def _claim(self) -> tuple[str, dict[str, Any]]:
        return "claim", {"owner": self._fresh("run"), "id": self._id(), "route": self.chance.random() < 0.8}

    def _claim_without(self) -> tuple[str, dict[str, Any]]:
        return "claim", {"owner": self._fresh("run"), "id": None}

    def _claim_ticket(self) -> tuple[str, dict[str, Any]]:
        ticket = self._fresh("ticket")
        self.tickets.append(ticket)
        return "claim", {"owner": ticket, "id": self._id(), "as_ticket": True}

    def _redeem(self) -> tuple[str, dict[str, Any]]:
        ticket = self.chance.choice(self.tickets) if self.tickets else "none"
        return "claim", {"owner": self._fresh("woken"), "id": None, "ticket": ticket}

    def _acquire(self) -> tuple[str, dict[str, Any]]:
        return "acquire", {"owner": self._fresh("lessee")}

    def _look(self) -> tuple[str, dict[str, Any]]:
        return self.chance.choice((("owner", {}), ("peek", {}), ("find", {"id": self._id()})))

    def _take(self) -> tuple[str, dict[str, Any]]:
        return "take", {"owner": self._owner, "have": tuple(self._given) if self.chance.random() < 0.7 else ()}

    def _settle(self) -> tuple[str, dict[str, Any]]:
        ends: dict[str, list[str]] = {"handled": [], "failed": [], "dropped": [], "deferred": []}
        for each in self._given:
            ends[self.chance.choice(("handled", "handled", "failed", "dropped", "deferred"))].append(each)
        arguments: dict[str, Any] = {"owner": self._owner, **{name: tuple(ids) for name, ids in ends.items()}}
        match self.chance.randrange(3):
            case 0:
                arguments["next_owner"] = self._fresh("next")
            case 1:
                arguments["ticket"] = self._fresh("ticket")
                self.tickets.append(arguments["ticket"])
            case _:
                pass
        return "settle", arguments

    def ask(self, name: str, given: dict[str, Any]) -> Any:  # noqa: C901 - each call once
        """Make a call."""
        provider, owner = self.provider, given.get("owner", "")
        match name:
            case "acquire":
                return provider.acquire_lease(KEY, owner, TTL_MS)
            case "owner":
                return provider.get_lease_owner(KEY)
            case "renew":
                return provider.renew_lease(KEY, owner, TTL_MS)
            case "release":
                return provider.release_lease(KEY, owner)
            case "transfer":
                return provider.transfer_lease(KEY, owner, given["successor"], TTL_MS)
            case "beat":
                return provider.beat(KEY, owner, TTL_MS)
            case "take":
                return provider.take(KEY, owner, TTL_MS, have=given["have"])
            case "peek":
                return provider.peek(KEY)
            case "find":
                return provider.find(KEY, given["id"], policy=POLICY).state
            case "claim":
                message = None if given["id"] is None else Message(id=given["id"], event=owner)
                more = {each: given[each] for each in ("ticket", "as_ticket", "route") if each in given}
                return provider.claim(KEY, owner, TTL_MS, message, policy=POLICY, **more)
            case "settle":
                return provider.settle(
                    KEY,
                    owner,
                    ttl_ms=TTL_MS,
                    handled=given["handled"],
                    failed=[Failure(id=each, error="no") for each in given["failed"]],
                    dropped=[Failure(id=each, error="no") for each in given["dropped"]],
                    deferred=given["deferred"],
                    next_owner=given.get("next_owner"),
                    ticket=given.get("ticket"),
                    policy=POLICY,
                )
            case _:
                raise ValueError(name)

    # --- what came of it

    def _learn(self, name: str, arguments: dict[str, Any], answer: Any) -> None:
        """Go on as the owner that it was told to be; where it was told nothing, as before."""
        match answer:
            case Claimed() | Continued():
                granted = answer.owner
                self._owner = None if granted.startswith("ticket") else granted
                self._given = [each.id for each in answer.messages]
            case Acquisition(acquired=True, owner=owner):
                if owner != self._owner:
                    self._owner, self._given = owner, []
            case Released() | type():
                self._owner, self._given = (None, []) if answer is not MailboxFull else (self._owner, self._given)
            case True if name == "transfer":
                self._owner, self._given = arguments["successor"], []
            case False:
                self._owner, self._given = None, []
            case None if name == "release":
                self._owner, self._given = None, []
            case tuple() | list() if name == "take":
                self._given = list(dict.fromkeys([*self._given, *(each.id for each in answer)]))
            case _:
                pass


def record(
    seed: int,
    lanes: Sequence[Lane],
    prefix: str,
    *,
    faults: float = 0.25,
    cuts: Sequence[Fault] = CUTS,
    several: bool = False,
) -> list[Operation]:
    """Let a client a lane work on one key at once, and return what they were told; the last looks are undisturbed."""
    numbers = itertools.count(1)
    lock = threading.Lock()

    def moment() -> int:
        with lock:
            return next(numbers)

    tickets: list[str] = []
    clients = [
        Client(
            name="ABCDEFGH"[number],
            chance=random.Random(seed * 10 + number),  # noqa: S311 - repeatable is what it must be
            provider=lane.provider(prefix),
            moment=moment,
            tickets=tickets,
            network=lane.network,
            faults=faults,
            cuts=cuts,
            several=several,
        )
        for number, lane in enumerate(lanes)
    ]
    _at_once(clients, fast=all(lane.network is None for lane in lanes))
    for lane in lanes:
        if lane.network is not None:
            lane.network.choose(lambda _: Pass())
            lane.network.forget()
    last = replace(clients[0], name="end", faults=0.0, recorded=[], chance=random.Random(seed))  # noqa: S311 - as above
    for name, arguments in (("owner", {}), ("peek", {}), *(("find", {"id": f"m{n}"}) for n in range(IDS))):
        began = moment()
        answer = last.ask(name, arguments)
        last.recorded.append(
            Operation(client="end", name=name, arguments=arguments, answer=answer, began=began, ended=moment())
        )
    return [operation for client in (*clients, last) for operation in client.recorded]


def _at_once(clients: Sequence[Client], *, fast: bool) -> None:
    """Let all work at once. A ``fast`` store, which answers at once, would see one client after the other."""
    failures: list[BaseException] = []
    together = threading.Barrier(len(clients))

    def work(client: Client) -> None:
        try:
            together.wait(timeout=60)
            client.run()
        except BaseException as failure:  # noqa: BLE001 - carried to the test's own thread
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    interval_s = sys.getswitchinterval()
    if fast:
        sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    if failures:
        raise failures[0]
