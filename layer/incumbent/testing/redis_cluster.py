"""A cluster of several Valkey primaries and their replicas, for tests that kill, freeze, promote, add and move."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from incumbent.clock import SYSTEM_CLOCK
from incumbent.testing.servers import HOST, NotStarted, ValkeyServer, valkey

SLOTS = 16_384
PRIMARIES = 3

_WAIT_MS = 30_000
_POLL_MS = 20
_ASK_S = 2
_MOVE_MS = 5_000
_MOVED_AT_ONCE = 100  # names
_CONFIG = {
    "cluster-node-timeout": "1500",  # until a silent node is given up, in milliseconds
    "cluster-replica-validity-factor": "0",  # a replica may be promoted, however old its data
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """One server of a cluster. ``client`` speaks to it alone, as a user who may do all; its answers are text."""

    server: ValkeyServer
    id: str
    client: Any
    _all_frozen: "set[Node]"

    def __str__(self) -> str:
        return f"{HOST}:{self.server.port}"

    @property
    def is_primary(self) -> bool:
        """Whether the node takes itself for a primary."""
        return bool(self.client.execute_command("ROLE")[0] == "master")

    @property
    def is_linked(self) -> bool:
        """Whether the node is a replica that has its primary's data."""
        role = self.client.execute_command("ROLE")
        return bool(role[0] == "slave" and role[3] == "connected")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server do nothing for as long as the context lasts: connections to it open, and get no answer."""
        os.killpg(self.server.process_group, signal.SIGSTOP)
        self._all_frozen.add(self)
        try:
            yield
        finally:
            self._all_frozen.discard(self)
            os.killpg(self.server.process_group, signal.SIGCONT)

    def promote(self) -> None:
        """Make this replica the primary, in a fail-over that both agree on and that loses no accepted write."""
        wait_until(self._asks_to_be_promoted, f"{self} may not be promoted")
        wait_until(lambda: self.is_primary, f"{self} was not promoted")

    def _asks_to_be_promoted(self) -> bool:
        try:
            return bool(self.client.execute_command("CLUSTER", "FAILOVER"))
        except redis.ResponseError:  # it has lost its primary for a moment
            return False


class Cluster:
    """A running cluster; `redis_cluster` makes one. ``nodes`` are those that were not killed, the oldest first."""

    def __init__(self, stack: ExitStack, config: Mapping[str, str]) -> None:
        """Start the servers. Raises ``NotStarted``."""
        self._stack = stack
        self._config = config
        self._ends: dict[Node, ExitStack] = {}
        self._frozen: set[Node] = set()
        primaries, replicas = ([self._start() for _ in range(PRIMARIES)] for _ in range(2))
        bounds = [SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
        for number, node in enumerate(primaries):
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        self._meet([*primaries[1:], *replicas])
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.client.execute_command("CLUSTER", "REPLICATE", primary.id)
        wait_until(lambda: all(each.is_linked for each in replicas), "no replication")
        wait_until(self._is_agreed, "the cluster was not ok")

    @property
    def nodes(self) -> list[Node]:
        """The nodes that were not killed."""
        return list(self._ends)

    @property
    def _awake(self) -> list[Node]:
        return [node for node in self._ends if node not in self._frozen]

    @property
    def url(self) -> str:
        """What the Redis provider takes; it names the oldest node."""
        return f"{self.nodes[0].server.url}?cluster=true"

    @property
    def primaries(self) -> list[Node]:
        """The nodes that have slots, in the order of their first slot, as the oldest node sees it."""
        owners = {node.id: node for node in self.nodes}
        ranges = sorted(self._awake[0].client.execute_command("CLUSTER", "SLOTS"))
        return list(dict.fromkeys(owners[str(each[2][2])] for each in ranges if str(each[2][2]) in owners))

    def primary_of(self, slot: int) -> Node:
        """Return the primary that has a slot, as the oldest node sees it."""
        for first, last, (_, _, owner, *_), *_ in self._awake[0].client.execute_command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.id == owner)
        raise LookupError(f"slot {slot} has no primary")

    def replica_of(self, primary: Node) -> Node:
        """Return a replica of a primary."""
        lines = primary.client.execute_command("CLUSTER", "REPLICAS", primary.id)
        known = {str(line).split(" ", 1)[0] for line in lines}
        return next(node for node in self.nodes if node.id in known)

    def kill(self, node: Node) -> None:
        """End a node by SIGKILL; what it has not sent to its replica is lost."""
        node.client.close()
        self._ends.pop(node).close()

    def fail_over(self, primary: Node) -> Node:
        """Kill a primary, and return its replica as soon as the others have promoted it."""
        replica = self.replica_of(primary)
        self.kill(primary)
        self.wait_for_promotion(replica)
        return replica

    def wait_for_promotion(self, replica: Node) -> None:
        """Wait until a replica is a primary, for itself and for all others that are not frozen."""
        wait_until(lambda: replica.is_primary and self._is_agreed(), f"{replica} was not promoted")

    def wait_for_state(self, state: str) -> None:
        """Wait until all nodes find the cluster ``ok``, or in the state ``fail``."""
        wait_until(lambda: self._is_found(state), f"the cluster was not in the state {state}")

    def open_slot(self, slot: int, to: Node) -> Node:
        """Begin to move a slot, key by key as `redis-cli --cluster reshard` does. Return the node that has it."""
        source = self.primary_of(slot)
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return source

    def move_keys(self, slot: int, source: Node, to: Node) -> None:
        """Move the names that an open slot has."""
        while names := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, _MOVED_AT_ONCE):
            source.client.execute_command("MIGRATE", HOST, to.server.port, "", 0, _MOVE_MS, "KEYS", *names)

    def close_slot(self, slot: int, to: Node) -> None:
        """End the move of a slot: all nodes learn that this one has it, and that it is no longer open."""
        for node in (to, *(each for each in self.primaries if each is not to)):
            node.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", to.id)

    def move_slot(self, slot: int, to: Node) -> None:
        """Move a slot with all its names; while it is open, calls for its keys are refused with TRYAGAIN."""
        source = self.open_slot(slot, to)
        self.move_keys(slot, source, to)
        self.close_slot(slot, to)

    def add_replica(self, primary: Node) -> Node:
        """Add a replica of a primary, with its data."""
        node = self._start()
        self._meet([node])
        node.client.execute_command("CLUSTER", "REPLICATE", primary.id)
        self.wait_for_replica(node)
        return node

    def wait_for_replica(self, node: Node) -> None:
        """Wait until a node is the replica of another, with its data."""
        wait_until(lambda: node.is_linked and self._is_agreed(), f"{node} is not a replica")

    def add_primary(self) -> Node:
        """Add a primary, which has no slots yet."""
        node = self._start()
        self._meet([node])
        wait_until(self._is_agreed, f"{node} did not join")
        return node

    def move_slots(self, first: int, last: int, to: Node) -> None:
        """Move slots of one primary as a whole (Valkey 9): no call is refused, since they change hands at once."""
        source = self.primary_of(first)
        source.client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", to.id)
        moved = (first, last)
        wait_until(lambda: all(self.primary_of(slot) is to for slot in moved), f"slots {moved} did not move")
        wait_until(self._is_agreed, f"not all nodes know who has slots {moved}")

    def _start(self) -> Node:
        end = self._stack.enter_context(ExitStack())
        server = end.enter_context(valkey(cluster=True, slots=False, config=self._config))
        client: Any = redis.Redis(port=server.port, decode_responses=True, socket_timeout=_ASK_S)
        end.callback(client.close)
        name = client.execute_command("CLUSTER", "MYID")
        node = Node(server=server, id=name, client=client, _all_frozen=self._frozen)
        self._ends[node] = end
        return node

    def _meet(self, newcomers: list[Node]) -> None:
        first = self.nodes[0].client
        for node in newcomers:
            bus = node.client.config_get("cluster-port")["cluster-port"]
            first.execute_command("CLUSTER", "MEET", HOST, node.server.port, bus)
        names = {node.id for node in self.nodes}
        wait_until(lambda: all(names <= _known(node) for node in self.nodes), "the nodes did not meet")

    def _is_found(self, state: str) -> bool:
        said = [node.client.execute_command("CLUSTER", "INFO") for node in self._awake]
        return all(f"cluster_state:{state}" in each for each in said)

    def _is_agreed(self) -> bool:
        """Whether all nodes find the cluster ok, and agree on who has which slots, and who copies them."""
        if not self._is_found("ok"):
            return False
        views = {
            str(
                sorted(
                    (*each[:2], *(node[2] for node in each[2:]))
                    for each in node.client.execute_command("CLUSTER", "SLOTS")
                )
            )
            for node in self._awake
        }
        return len(views) == 1


def _known(node: Node) -> set[str]:
    """Return the ids of the nodes that a node knows."""
    return {line.split(" ", 1)[0] for line in node.client.execute_command("CLUSTER", "NODES").splitlines()}


def slot_of(name: str) -> int:
    """Return the slot of a name."""
    return int(key_slot(name.encode()))


def wait_until(ready: Callable[[], bool], otherwise: str) -> None:
    """Ask again and again until ``ready`` says yes. Raises ``NotStarted`` after half a minute."""
    give_up = SYSTEM_CLOCK.now().plus(_WAIT_MS)
    while not ready():
        if SYSTEM_CLOCK.now().until(give_up) <= 0:
            raise NotStarted(f"{otherwise} within {_WAIT_MS} ms")
        SYSTEM_CLOCK.sleep_ms(_POLL_MS)


@contextmanager
def redis_cluster(config: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Run a cluster of three primaries and three replicas; a replica is promoted when its primary is silent.

    It takes about three seconds to start, and a fail-over as long. ``config`` holds further directives of valkey.conf.
    Raises `NotStarted`.
    """
    with ExitStack() as stack:
        yield Cluster(stack, _CONFIG | dict(config or {}))
