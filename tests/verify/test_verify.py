"""``incumbent verify`` as an operator meets it: on good stores, on a store that breaks a rule, and interrupted."""

import gc
import io
import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
import redis

from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.doctor import Check
from incumbent.errors import LeaseUnavailable
from incumbent.testing.redis_cluster import redis_cluster, wait_until
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table, valkey, why_no_dynalite
from incumbent.values import Acquisition, Message, Routed
from incumbent.verify import conformance, costs, failover, run
from incumbent.verify.pairs import OneRun, faults_of
from incumbent.verify.redis_store import RedisStore
from incumbent.verify.store import REQUESTS, STEM, Dropped
from incumbent.verify.table_store import TableStore
from tests.budgets import SOAKING, budget
from tests.verify import measuring

Run = Callable[..., tuple[int, list[str]]]
pytestmark = pytest.mark.usefixtures("connections_that_redis_py_drops")

TABLES = ["moto"] * (SOAKING or why_no_dynalite() is not None) + ["dynalite"] * (why_no_dynalite() is None)
# A few tests and calls of each kind; the whole under SOAK.
FEW = () if SOAKING else ("--matching", "beat")
PATIENCE_MS = 60_000


@pytest.fixture
def run_it(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; return its exit code and its lines."""

    def run_it(*words: str) -> tuple[int, list[str]]:
        code = main(["verify", *words])
        out, err = capsys.readouterr()
        return code, (out or err).splitlines()

    return run_it


@pytest.fixture(scope="module")
def lone_valkey() -> Iterator[ValkeyServer]:
    """A Valkey on which nothing is but what these tests store."""
    with valkey() as server:
        yield server


@pytest.fixture
def redis_names(lone_valkey: ValkeyServer) -> Iterator[Callable[[], list[bytes]]]:
    """All names on it; there is none at the end."""
    with redis.Redis(port=lone_valkey.port) as client:
        client.flushall()
        yield lambda: list(client.scan_iter(count=1_000))
        assert client.dbsize() == 0


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """A table of the test's own, and a client that finds it; nothing is in it at the end."""
    server: DynamoDBServer = request.getfixturevalue(f"{request.param}_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("dynamodb")
    name = f"test-{uuid.uuid4().hex[:12]}"
    create_table(client, name)
    yield name, client
    assert client.scan(TableName=name)["Items"] == []
    client.close()


def on_redis(server: ValkeyServer) -> tuple[str, ...]:
    """The options that name this server."""
    return "--provider", "redis", "--redis-url", f"{server.url}{'?cluster=true' if server.cluster else ''}"


def on_table(table: tuple[str, Any]) -> tuple[str, ...]:
    """The options that name this table."""
    return "--provider", "dynamodb", "--table", table[0]


def statuses(lines: list[str]) -> set[str]:
    """The statuses of lines."""
    return {line[:11].strip() for line in lines}


# --- good stores


def test_good_server_passes_every_part(
    run_it: Run, lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]
) -> None:
    """What it will cost comes first, then a line for each part, then that nothing is left."""
    code, lines = run_it(*on_redis(lone_valkey), "--yes", *FEW)
    assert code == 0, lines
    parts = [line[13:].partition(": ")[0] for line in lines]
    assert parts == ["plan", "pairs", "expiry", "replies", "conformance", "failover", "removal"]
    assert statuses(lines) == {"ok", "not checked"}
    assert "requests, of which" in lines[0]
    assert "it costs nothing but load" in lines[0]
    assert redis_names() == []


def test_good_cluster_passes(run_it: Run, valkey_cluster: ValkeyServer) -> None:
    """Also where the names of one key must lie in one slot, and replies come from several nodes."""
    parts = [word for part in ("replies", "conformance") for word in ("--only", part)]
    code, lines = run_it(*on_redis(valkey_cluster), "--yes", *parts, *FEW)
    assert code == 0, lines
    assert statuses(lines) == {"ok"}


def test_good_table_passes(run_it: Run, table: tuple[str, Any]) -> None:
    """It says what the run will have cost, and what it has."""
    parts = () if SOAKING else ("--only", "replies", "--only", "conformance")
    code, lines = run_it(*on_table(table), "--yes", *parts, *FEW)
    assert code == 0, lines
    assert statuses(lines) <= {"ok", "not checked"}
    assert "write units and" in lines[0]
    assert lines[-2].startswith("ok           removal: nothing is left below the prefix incumbent-verify-")
    assert lines[-1].startswith("ok           cost: ")


def test_each_line_is_an_object_for_programs(run_it: Run, lone_valkey: ValkeyServer) -> None:
    """The same, one JSON object a line."""
    code, lines = run_it(*on_redis(lone_valkey), "--yes", "--json", "--only", "conformance", "--matching", "late_owner")
    objects = [json.loads(line) for line in lines]
    assert code == 0
    assert [each["name"] for each in objects] == ["plan", "conformance", "removal"]
    assert set(objects[0]) == {"name", "status", "found", "advice"}
    assert ": at most " in objects[0]["found"]


def test_stated_rights_suffice(run_it: Run, lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]) -> None:
    """A user who may touch the names of runs and nothing else; without HGETALL the line says which rights it takes."""
    rules = f"reset on >pass {run.rights()}".split()
    url = f"redis://verifier:pass@127.0.0.1:{lone_valkey.port}/0"
    words = ("--provider", "redis", "--redis-url", url, "--yes", "--only", "conformance", "--matching", "beat")
    with redis.Redis(port=lone_valkey.port) as client:
        client.execute_command("ACL", "SETUSER", "verifier", *rules)
        try:
            assert run_it(*words, "--only", "replies", "--only", "pairs")[0] == 0
            client.execute_command("ACL", "SETUSER", "verifier", "-scan")
            code, lines = run_it(*words)
            assert code == 1
            assert run.rights() in lines[0]
        finally:
            client.execute_command("ACL", "DELUSER", "verifier")


# --- before the first write


def test_nothing_is_written_without_a_yes(
    run_it: Run, lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No terminal can answer: exit code 2."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, lines = run_it(*on_redis(lone_valkey))
    assert code == 2
    assert lines[0].startswith("ok           plan: ")
    assert redis_names() == []


def test_store_that_does_not_answer_fails_at_once(run_it: Run) -> None:
    """Exit code 1, and nothing is asked."""
    code, lines = run_it("--provider", "redis", "--redis-url", "redis://127.0.0.1:1/0", "--yes")
    assert code == 1
    assert lines[0].startswith("failed       plan: ConnectionError")
    assert len(lines) == 1


def test_only_a_store_can_be_verified(run_it: Run) -> None:
    """The memory of this process, or none, is not one."""
    assert run_it()[0] == 2


def test_missing_pytest_is_told() -> None:
    """With what installs it."""
    code = "import sys; sys.modules['pytest'] = None; from incumbent.cli import main; sys.exit(main(['verify']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install pytest" in done.stderr


# --- stores that break a rule


class _Mutant:
    """A provider with a fault."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)


class _Granting(_Mutant):
    """R1 left out: it grants a key that another owner holds."""

    def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> Acquisition:
        """Grant."""
        answer: Acquisition = self._provider.acquire_lease(key, owner, ttl_ms)
        return Acquisition(acquired=True, owner=owner, fence=answer.fence or 1, expires_in_ms=ttl_ms)

    def claim(self, key: str, owner: str, ttl_ms: int, message: Any, **more: Any) -> Any:
        """Free the key first."""
        holder = self._provider.get_lease_owner(key)
        if holder is not None and holder != owner:
            self._provider.release_lease(key, holder)
        return self._provider.claim(key, owner, ttl_ms, message, **more)


class GrantingStore(RedisStore):
    """A server whose provider grants a key to every caller."""

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return the mutant."""
        return _Granting(super().provider(prefix, clock))


class _Forgetting(_Mutant):
    """M2 left out: what it says it has stored behind an owner is not stored."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Any, **more: Any) -> Any:
        """Answer at once."""
        holder = self._provider.get_lease_owner(key)
        if holder is not None and holder != owner:
            return Routed(owner=holder, waiting=1)
        return self._provider.claim(key, owner, ttl_ms, message, **more)


class ForgettingStore(RedisStore):
    """A server whose provider loses messages, and raises nothing."""

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return the mutant."""
        return _Forgetting(super().provider(prefix, clock))


class _Throttled(_Mutant):
    """One contender gets no answer, which breaks no rule."""

    def claim(self, key: str, owner: str, ttl_ms: int, message: Any, **more: Any) -> Any:
        """Answer the others."""
        if owner == "owner-0":
            raise LeaseUnavailable("throttled", key=key)
        return self._provider.claim(key, owner, ttl_ms, message, **more)


class ThrottledStore(RedisStore):
    """A server that gives one contender no answer."""

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return the mutant."""
        return _Throttled(super().provider(prefix, clock))


class _Unsure(_Mutant):
    """R8 left out: a lost reply counts as "not renewed"."""

    def __init__(self, provider: Any, dropped: Dropped) -> None:
        super().__init__(provider)
        self._dropped = dropped

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Say no if a second try was needed."""
        before = self._dropped.replies
        moved: bool = self._provider.transfer_lease(key, from_owner, to_owner, ttl_ms)
        return moved and self._dropped.replies - before == 1


class UnsureStore(RedisStore):
    """A server whose provider takes a lost reply for a refusal."""

    def losing(self, prefix: str, clock: Clock) -> tuple[Any, Dropped]:
        """Return the mutant."""
        provider, dropped = super().losing(prefix, clock)
        return _Unsure(provider, dropped), dropped


class _StoringMore(_Mutant):
    """R8 left out: a claim whose reply was lost stores another message, and answers as if it had not."""

    def __init__(self, provider: Any, dropped: Dropped) -> None:
        super().__init__(provider)
        self._dropped = dropped

    def claim(self, key: str, owner: str, ttl_ms: int, message: Any, **more: Any) -> Any:
        """Store it after a second try."""
        before = self._dropped.replies
        answer = self._provider.claim(key, owner, ttl_ms, message, **more)
        if self._dropped.replies - before > 1:
            self._provider.claim(key, "another", ttl_ms, Message(id="another", event={}))
        return answer


class StoringMoreStore(RedisStore):
    """A server whose provider stores what it was not given."""

    def losing(self, prefix: str, clock: Clock) -> tuple[Any, Dropped]:
        """Return the mutant."""
        provider, dropped = super().losing(prefix, clock)
        return _StoringMore(provider, dropped), dropped


class _Lenient(_Mutant):
    """R3 left out: it renews what has expired."""

    def renew_lease(self, *_: Any) -> bool:
        """Say yes."""
        return True


class LenientStore(RedisStore):
    """A server whose provider tells a late owner that it still has the lease."""

    def provider(self, prefix: str, clock: Clock) -> Any:
        """Return the mutant."""
        return _Lenient(super().provider(prefix, clock))


def environ(server: ValkeyServer) -> dict[str, str]:
    """The variables that name this server."""
    return {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": server.url}


@pytest.mark.parametrize(
    ("kind", "part", "matching"),
    [
        (GrantingStore, "conformance", "held_key_is_refused"),
        (GrantingStore, "pairs", ""),
        (ForgettingStore, "pairs", ""),
        (LenientStore, "pairs", ""),
        (UnsureStore, "replies", "transfer"),
        (StoringMoreStore, "replies", "claim"),
    ],
    ids=["conformance", "pairs", "loss", "expiry", "replies", "what replies leave behind"],
)
def test_store_that_breaks_a_rule_fails(
    lone_valkey: ValkeyServer,
    redis_names: Callable[[], list[bytes]],
    kind: type[RedisStore],
    part: str,
    matching: str,
) -> None:
    """The part names what is wrong, and what was stored is removed all the same."""
    store = kind(environ(lone_valkey))
    found = list(run.verified(store, [part], matching=matching))
    assert [check for check in found if check.status == "failed"], found
    assert [check.status for check in run.emptied(store)] == ["ok"]
    assert redis_names() == []


def test_suite_that_breaks_off_has_not_passed(
    lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests that were not reached say nothing about the store."""

    def fail(*_: object) -> None:
        raise OSError("no space is left on the device")

    monkeypatch.setattr(conformance._Listener, "pytest_runtest_logreport", fail)  # noqa: SLF001 - a plugin that fails
    store = RedisStore(environ(lone_valkey))
    (failed,) = run.verified(store, ["conformance"], matching="late_owner")
    assert failed.status == "failed"
    assert "pytest broke off (INTERNAL_ERROR)" in failed.found
    assert [check.status for check in run.emptied(store)] == ["ok"]
    assert redis_names() == []


def test_garbage_of_the_process_is_no_finding(
    lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that something else left open, and that is collected while the suite runs."""
    told: list[object] = []

    def leave_a_socket(*_: object) -> None:
        left: list[object] = [socket.socket()]
        left.append(left)
        del left
        gc.collect()

    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_value))
    plugin = conformance._Listener  # noqa: SLF001 - its methods are hooks of pytest
    monkeypatch.setattr(plugin, "pytest_runtest_setup", leave_a_socket, raising=False)
    store = RedisStore(environ(lone_valkey))
    found = list(run.verified(store, ["conformance"], matching="late_owner"))
    assert [check.status for check in found] == ["ok"], found
    assert told
    assert [check.status for check in run.emptied(store)] == ["ok"]
    assert redis_names() == []


def test_missing_answer_is_not_said_to_break_a_rule(
    lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]
) -> None:
    """The race has failed, but nothing says that two owners would run."""
    store = ThrottledStore(environ(lone_valkey))
    failed, *_ = run.verified(store, ["pairs"])
    assert failed.status == "failed"
    assert "throttled" in failed.found
    assert "two owners" not in failed.line()
    assert [check.status for check in run.emptied(store)] == ["ok"]


@pytest.mark.parametrize(
    ("key", "message_id", "fence", "at_ms", "fault"),
    [
        ("k", "m2", 2, 5, "ran at the same time"),
        ("k", "m2", 1, 10, "fence 1 came after 1"),
        ("k", "m1", 2, 10, "ran twice ['m1']"),
        ("another", "m2", 2, 10, "lost ['m2']"),
    ],
)
def test_each_fault_of_a_race_is_named(key: str, message_id: str, fence: int, at_ms: int, fault: str) -> None:
    """Two messages of one key ran, the first for ten milliseconds."""
    first = OneRun(key="k", message_id="m1", fence=1, began_ms=0, ended_ms=10)
    second = OneRun(key=key, message_id=message_id, fence=fence, began_ms=at_ms, ended_ms=at_ms + 10)
    (found,) = faults_of([second, first], {"k": {"m1", "m2"}})
    assert fault in found
    good = OneRun(key="k", message_id="m2", fence=2, began_ms=10, ended_ms=20)
    assert faults_of([good, first], {"k": {"m1", "m2"}}) == []


# --- interrupted and killed


def begun(words: tuple[str, ...], has_begun: Callable[[], object]) -> "subprocess.Popen[str]":
    """Start the command in a process of its own, and stop it at a moment at which it has something stored."""
    process = subprocess.Popen(
        [sys.executable, "-m", "incumbent", "verify", *words, "--yes", "--only", "conformance"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    start = SYSTEM_CLOCK.now()
    while True:
        process.send_signal(signal.SIGSTOP)
        if has_begun():
            return process
        process.send_signal(signal.SIGCONT)
        assert process.poll() is None, process.communicate()
        assert start.until(SYSTEM_CLOCK.now()) < PATIENCE_MS
        SYSTEM_CLOCK.sleep_ms(20)


def test_interrupted_run_leaves_nothing(lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]) -> None:
    """Ctrl-C in the middle of the suite: the exit code says so, and the last line that nothing is left."""
    process = begun(on_redis(lone_valkey), redis_names)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert out.splitlines()[-1].startswith("ok           removal: nothing is left")
    assert redis_names() == []


def test_leftovers_of_a_killed_run_on_a_server_are_named_and_removed(
    run_it: Run, lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]
) -> None:
    """By the next run, and by the option that the line names."""
    process = begun(on_redis(lone_valkey), redis_names)
    process.kill()
    process.communicate()
    _leftovers_are_removed(run_it, on_redis(lone_valkey))
    assert redis_names() == []


@pytest.mark.parametrize("table", TABLES[-1:], indirect=True)
def test_leftovers_of_a_killed_run_on_a_table_are_named_and_removed(run_it: Run, table: tuple[str, Any]) -> None:
    """An item names the run: no scan is needed to know of it."""
    process = begun(on_table(table), lambda: table[1].scan(TableName=table[0])["Count"] > 1)
    process.kill()
    process.communicate()
    _leftovers_are_removed(run_it, on_table(table))


def _leftovers_are_removed(run_it: Run, words: tuple[str, ...]) -> None:
    _, lines = run_it(*words, "--yes", "--only", "conformance", "--matching", "late_owner")
    (warning,) = [line for line in lines if line.startswith("warning      leftovers: run ")]
    killed = warning.rpartition(" ")[2]
    code, lines = run_it(*words, "--remove", killed)
    assert code == 0
    assert lines[0].endswith(f"records of run {killed} removed")
    _, lines = run_it(*words, "--yes", "--only", "conformance", "--matching", "late_owner")
    assert not any("leftovers" in line for line in lines)


def test_name_of_another_application_is_not_removed(run_it: Run, lone_valkey: ValkeyServer) -> None:
    """Only a run's name can be given, not a pattern."""
    with pytest.raises(SystemExit, match="2"):
        run_it(*on_redis(lone_valkey), "--remove", "*")


# --- fail-over


def test_gap_is_measured_and_nothing_is_lost_in_it(
    lone_valkey: ValkeyServer, redis_names: Callable[[], list[bytes]]
) -> None:
    """A server that stands still for a second, as one that fails over does: the messages all run once."""

    def pause() -> None:
        with redis.Redis(port=lone_valkey.port) as client:
            client.client_pause(1_000)

    store = RedisStore(environ(lone_valkey))
    (check,) = failover.failover(store, pause, seconds=2)
    assert check.status == "ok", check
    assert " 0 lost, " in check.found
    assert " 0 overlaps, 0 smaller fences, " in check.found
    assert float(check.found.partition(" s without")[0].rpartition(" ")[2]) >= 0.9
    assert [each.status for each in run.emptied(store)] == ["ok"]
    assert redis_names() == []


def test_cluster_that_fails_over_in_order_loses_nothing(run_it: Run) -> None:
    """Three primaries and three replicas: the command lets a replica take over, under load; nothing is left on any."""
    with redis_cluster() as cluster:
        words = ("--provider", "redis", "--redis-url", cluster.url, "--yes")
        code, lines = run_it(*words, "--only", "failover", "--fail-over", "--seconds", "3")
        assert code == 0, lines
        (found,) = [line for line in lines if "failover: " in line]
        assert ", 0 lost, " in found
        assert ", 0 overlaps, 0 smaller fences, " in found
        wait_until(lambda: sum(node.client.dbsize() for node in cluster.nodes) == 0, "records are left")
        code, lines = run_it(*words, "--only", "replies", "--only", "conformance", *FEW)
        assert code == 0, lines


def test_server_without_a_replica_is_not_failed_over(run_it: Run, valkey_cluster: ValkeyServer) -> None:
    """The line says why."""
    code, lines = run_it(*on_redis(valkey_cluster), "--yes", "--only", "failover", "--fail-over")
    assert code == 0
    assert any(line.startswith("not checked  failover: no primary of this cluster has a replica") for line in lines)


def test_what_a_fail_over_can_lose_is_a_warning() -> None:
    """Overlaps and losses are what the server's replication permits; a smaller fence is not."""
    load = failover.Load()
    load.accepted["k", "m1"] = None
    assert _status(load) == "warning"
    for fence in (2, 1):
        at_ms = 10 * (3 - fence)
        load.runs.append(OneRun(key="k", message_id="m1", fence=fence, began_ms=at_ms, ended_ms=at_ms + 1))
    assert (load.lost(), load.twice(), load.overlaps_and_fences()) == (0, 1, (0, 1))
    assert _status(load) == "failed"


def _status(load: failover.Load) -> str:
    check: Check = failover.judged(load, drained=True)
    return check.status


# --- what it costs


@pytest.mark.parametrize("part", budget(("pairs", "replies"), soak=measuring.PARTS))
def test_requests_to_a_server_are_those_that_are_stated(lone_valkey: ValkeyServer, part: str) -> None:
    """Measured again; `python -m tests.verify.measuring` writes the file anew."""
    _as_stated("redis", part, measuring.on_valkey(lone_valkey, part))


@pytest.mark.skipif(why_no_dynalite() is not None, reason="dynalite counts the units, and is not here")
@pytest.mark.parametrize("part", budget(("pairs",), soak=measuring.PARTS))
def test_requests_and_units_of_a_table_are_those_that_are_stated(dynalite_server: DynamoDBServer, part: str) -> None:
    """The same, with the units that are paid for."""
    _as_stated("dynamodb", part, measuring.on_table(dynalite_server, part))


def _as_stated(store: str, part: str, found: dict[str, float]) -> None:
    stated = costs.measured()[store][part]
    for name, number in found.items():
        assert number == pytest.approx(stated[name], rel=0.3, abs=10), (name, found, stated)
    assert stated[REQUESTS] > 10


def test_price_is_the_units_times_what_a_million_costs() -> None:
    """Two thousand write units and a thousand read units, and scans of a table of 40 MB."""
    used = {"requests": 3_000.0, "write_units": 2_000.0, "read_units": 1_000.0, "searches": 2.0}
    words = costs.in_words(used, price_writes=1.0, price_reads=0.5, scanned_bytes=40_960_000, on_table=True)
    assert words.startswith("3,000 requests, 2 scans of the whole table among them: ")
    assert words.endswith(": 2,000 write units and 21,000 read units, $0.0125 on demand")


def test_every_prefix_begins_alike(lone_valkey: ValkeyServer) -> None:
    """So that an access list can allow all runs and nothing else."""
    assert RedisStore(environ(lone_valkey)).prefix.startswith(f"{STEM}-")
    store = TableStore({"INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": "leases"})
    assert store.prefix.startswith(f"{STEM}-")
    store.close()
