"""The doctor: what it finds of stores that are well, and of those that are not."""

import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.handlers
import pytest
import redis

from incumbent import Message, Origin
from incumbent.doctor import Check, answer, examine_store
from incumbent.doctor.calls import try_calls
from incumbent.doctor.table import INDEX, INDEX_KEYS, KEYS, PROJECTED, TTL_ATTRIBUTE
from incumbent.errors import ConfigurationError, StoredFormatUnknown
from incumbent.providers import from_env
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis.permissions import COMMANDS, acl_rules
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import TABLE, DynamoDBServer, ValkeyServer, create_table, valkey

TTL_MS = 30_000
PASSWORD = "s3cret"


PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text("utf-8")
ROWS = [line.split("|")[1] for line in PAGE.partition("| check |")[2].partition("\n\n")[0].splitlines()[2:]]
DOCUMENTED = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row)}


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    """The checks by their names, of which none is there twice."""
    found = list(checks)
    for check in found:
        assert check.found, check
        assert bool(check.advice) == (check.status != "ok"), check
        assert "\n" not in check.line()
        assert check.name.partition(" of ")[0] in DOCUMENTED or check.status == "failed", check  # a call's own name
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def bad(checks: Mapping[str, Check]) -> dict[str, str]:
    """What is not ok, and how it is not."""
    return {name: check.status for name, check in checks.items() if check.status != "ok"}


# --- Redis and Valkey


def on_redis(url: str, prefix: str = "doctor-test") -> dict[str, str]:
    """The settings of a function that uses this server."""
    return {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_REDIS_URL": url, "INCUMBENT_KEY_PREFIX": prefix}


@pytest.fixture(scope="module")
def durable() -> Iterator[ValkeyServer]:
    """A server as it should be."""
    with valkey(config={"appendonly": "yes"}) as server:
        yield server


@pytest.fixture
def bare(durable: ValkeyServer) -> Iterator[Any]:
    """A client of that server, which is emptied afterwards."""
    client: Any = redis.Redis.from_url(durable.url)
    yield client
    client.flushall()
    client.execute_command("ACL", "DELUSER", "u")
    client.close()


def test_good_server_is_all_well_and_keeps_nothing(durable: ValkeyServer, bare: Any) -> None:
    """Every call works on the doctor's own key, and nothing of it stays."""
    checks = by_name(examine_store(on_redis(durable.url)))
    assert bad(checks) == {}
    assert {"timings", "store", "calls", "formats", "waiting keys", "TLS", "mode"} < checks.keys()
    assert {"version", "role", "eviction", "persistence", "clock", "keyspaces", "format versions"} < checks.keys()
    assert "Valkey" in checks["version"].found
    assert bare.keys("*") == []


def test_reader_that_leaves_leaves_no_key_behind(durable: ValkeyServer, bare: Any) -> None:
    """As with ``| head -3``: the first line that cannot be printed ends the checks."""
    checks: Any = examine_store(on_redis(durable.url))
    assert any(check.name == "calls" for check in checks)
    checks.close()
    assert bare.keys("*") == []


def test_cluster_is_checked_primary_by_primary(valkey_cluster: ValkeyServer) -> None:
    """And a URL that does not say that it is one has failed."""
    checks = by_name(examine_store(on_redis(f"{valkey_cluster.url}?cluster=true")))
    place = f"127.0.0.1:{valkey_cluster.port}"
    assert checks["mode"].found == "a cluster of 1 primary"
    assert bad(checks) == {f"persistence of {place}": "warning"}
    assert checks[f"eviction of {place}"].status == "ok"
    alone = by_name(examine_store(on_redis(valkey_cluster.url)))
    assert (alone["mode"].status, alone["mode"].advice) == ("failed", "add cluster=true to the URL")


def test_smallest_rights_suffice(durable: ValkeyServer, bare: Any) -> None:
    """With the documented rights every call works; what INFO would say is not checked, and +info is named."""
    bare.execute_command("ACL", "SETUSER", "u", "reset", "on", f">{PASSWORD}", *acl_rules("doctor-test").split())
    checks = by_name(examine_store(on_redis(f"redis://u:{PASSWORD}@127.0.0.1:{durable.port}/0")))
    assert bad(checks) == {"server": "not checked"}
    assert "+info" in checks["server"].found


def test_smallest_rights_suffice_in_a_cluster(valkey_cluster: ValkeyServer) -> None:
    """The same ones, and nothing of the doctor's key stays there either."""
    bare: Any = redis.Redis.from_url(valkey_cluster.url)
    bare.execute_command("ACL", "SETUSER", "u", "reset", "on", f">{PASSWORD}", *acl_rules("doctor-test").split())
    url = f"redis://u:{PASSWORD}@127.0.0.1:{valkey_cluster.port}/0?cluster=true"
    try:
        assert bad(by_name(examine_store(on_redis(url)))) == {
            f"server of 127.0.0.1:{valkey_cluster.port}": "not checked"
        }
        assert bare.keys("*doctor-test*") == []
    finally:
        bare.execute_command("ACL", "DELUSER", "u")
        bare.close()


def test_every_command_that_is_missing_is_noticed(durable: ValkeyServer, bare: Any) -> None:
    """A user without one of the documented commands: a call has failed, and names it."""
    for command in set(COMMANDS) - {"select"}:  # that is for a database other than 0
        rules = [*acl_rules("doctor-test").split(), f"-{command}"]
        bare.execute_command("ACL", "SETUSER", "u", "reset", "on", "nopass", *rules)
        checks = by_name(examine_store(on_redis(f"redis://u:any@127.0.0.1:{durable.port}/0")))
        failed = [check for check in checks.values() if check.status == "failed"]
        assert failed, command
        assert any(command in check.found.lower() for check in failed), (command, failed)


def test_wrong_password_is_one_failure_that_does_not_show_it(durable: ValkeyServer) -> None:
    """Nothing else is asked."""
    checks = by_name(examine_store(on_redis(f"redis://stranger:{PASSWORD}@127.0.0.1:{durable.port}/0")))
    assert bad(checks) == {"store": "failed"}
    assert "password" in checks["store"].found
    assert PASSWORD not in str(checks)


def test_store_that_does_not_answer_is_one_failure() -> None:
    """Nothing else is asked."""
    checks = by_name(examine_store(on_redis("redis://127.0.0.1:1/0")))
    assert bad(checks) == {"store": "failed"}


def test_evicting_server_has_failed(durable: ValkeyServer, bare: Any) -> None:
    """With a limit of memory; without one it is a warning."""
    before = bare.config_get("maxmemory*")
    try:
        bare.config_set("maxmemory-policy", "volatile-lru")
        assert bad(by_name(examine_store(on_redis(durable.url)))) == {"eviction": "warning"}
        bare.config_set("maxmemory", "100mb")
        checks = by_name(examine_store(on_redis(durable.url)))
        assert bad(checks) == {"eviction": "failed"}
        assert "noeviction" in checks["eviction"].advice
    finally:
        for name, value in before.items():
            bare.config_set(name, value)


def test_server_that_forgets_is_a_warning(valkey_server: ValkeyServer) -> None:
    """Neither AOF nor a replica; with a replica, a fail-over can lose the last messages."""
    assert "persistence" in bad(by_name(examine_store(on_redis(valkey_server.url))))
    with valkey() as primary, valkey(replica_of=primary) as replica:
        checks = by_name(examine_store(on_redis(primary.url)))
        assert "replicas: 1" in checks["persistence"].found
        checks = by_name(examine_store(on_redis(replica.url)))
        assert bad(checks) == {"store": "failed"}
        assert "primary" in checks["store"].found


def test_password_in_a_url_is_a_warning_on_another_machine() -> None:
    """As is a connection that is not encrypted."""
    with valkey(password=PASSWORD, config={"bind": "127.0.0.1 127.0.0.2", "appendonly": "yes"}) as server:
        url = f"redis://:{PASSWORD}@127.0.0.2:{server.port}/0"
        checks = by_name(examine_store(on_redis(url)))
        assert PASSWORD not in str(checks)
    assert bad(checks) == {"login": "warning", "TLS": "warning"}
    assert "INCUMBENT_REDIS_SECRET_ID" in checks["login"].advice


def test_clock_that_differs_is_a_warning(durable: ValkeyServer) -> None:
    """The server's counts for leases; a fail-over compares two servers' clocks."""
    checks = by_name(examine_store(on_redis(durable.url), clock=FakeClock(wall_ms=1_000_000_000_000)))
    assert bad(checks) == {"clock": "warning"}


def test_waiting_keys_and_keyspaces_are_listed(durable: ValkeyServer, bare: Any) -> None:
    """Those that a sweeper would wake, those that any call has used, and records that no release knows."""
    environment = on_redis(durable.url)
    store: Any = from_env(environment)
    for name in ("a", "b"):
        origin = Origin(keyspace="orders")
        store.claim(f"orders/{name}", "t", TTL_MS, Message(id="m", event={}), as_ticket=True, origin=origin)
        store.release_lease(f"orders/{name}", "t")
    store.acquire_lease("threads/1", "o", TTL_MS)
    checks = by_name(examine_store(environment))
    assert bad(checks) == {}
    assert "2 for the sweeper, by keyspace: orders (2)" in checks["waiting keys"].found
    assert "orders, threads" in checks["keyspaces"].found
    assert checks["format versions"].found == "1 in orders (2), threads (1)"
    bare.delete("{doctor-test:lease:orders/a}:state")
    bare.rpush("{doctor-test:lease:orders/a}:state", "of another program")
    checks = by_name(examine_store(environment))
    assert bad(checks) == {"formats": "failed", "format versions": "warning"}
    assert checks["format versions"].found == "unknown in orders (1); 1 in orders (1), threads (1)"
    assert "orders/a" in checks["formats"].found
    store.close()


@pytest.mark.parametrize(
    ("version", "written"),
    [(2, b"\x02"), (200, b"\xcc\xc8"), (300, b"\xcd\x01\x2c"), (70_000, b"\xce\x00\x01\x11\x70")],
)
def test_record_of_a_later_version_is_a_warning(durable: ValkeyServer, bare: Any, version: int, written: bytes) -> None:
    """With the keyspaces that hold it, also where no key waits: the record is refused at the key's next message."""
    environment = on_redis(durable.url)
    store: Any = from_env(environment)
    for key in ("orders/1", "threads/1"):
        store.acquire_lease(key, "o", TTL_MS)
        store.release_lease(key, "o")
    record = bare.get("{doctor-test:lease:orders/1}:state")
    bare.set("{doctor-test:lease:orders/1}:state", record[:3] + written + record[4:])
    with pytest.raises(StoredFormatUnknown, match=f"format {version},"):
        store.acquire_lease("orders/1", "p", TTL_MS)
    checks = by_name(examine_store(environment))
    assert bad(checks) == {"format versions": "warning"}
    assert checks["format versions"].found == f"1 in threads (1); {version} in orders (1)"
    assert "deploy the release that wrote them" in checks["format versions"].advice
    store.close()


def test_versions_are_sought_in_a_bounded_number_of_records(durable: ValkeyServer, bare: Any) -> None:
    """One round trip reads them, and the line says that there are more."""
    for number in range(250):
        bare.set(f"{{doctor-test:lease:orders/{number}}}:state", b"\xdc\x00\x10\x01" + b"\xc0" * 15)
    found = by_name(examine_store(on_redis(durable.url)))["format versions"].found
    assert found == "1 in orders (200) (of 200 records; there are more)"


# --- calls, on a store of this process


class Forgetful(MemoryProvider):
    """A store that does not find what it has put away."""

    def redrive(self, key: str, message_id: str) -> bool:
        """Find nothing."""
        return False


def test_call_that_answers_what_cannot_be_has_failed() -> None:
    """The others are made all the same, and name what worked."""
    checks = by_name(try_calls(Forgetful(), "incumbent-doctor/k", TTL_MS, of_functions=True, one_login=True))
    assert bad(checks) == {"redrive": "failed", "claim again": "failed"}
    assert "it answered False" in checks["redrive"].found
    assert "settle, purge work" in checks["calls"].found


def test_key_that_waits_for_long_is_a_warning() -> None:
    """Longer than the alarm waits: the sweeper does not run, or does not help."""
    clock = FakeClock()
    store = MemoryProvider(clock=clock)
    store.claim("orders/a", "t", TTL_MS, Message(id="m", event={}), as_ticket=True, origin=Origin(keyspace="orders"))
    store.release_lease("orders/a", "t")
    for minutes, status in ((9, {}), (2, {"waiting keys": "warning"})):
        clock.advance(minutes * 60_000)
        checks = by_name(try_calls(store, f"incumbent-doctor/{minutes}", TTL_MS, of_functions=True, one_login=True))
        assert bad(checks) == status
    assert "by keyspace: orders (1), the oldest for 660 s" in checks["waiting keys"].found


# --- settings


@pytest.mark.parametrize(
    ("variables", "name", "status"),
    [
        ({"INCUMBENT_TTL_MS": "30s"}, "timings", "failed"),
        ({"INCUMBENT_TTL_MS": "1000", "INCUMBENT_RENEW_EVERY_MS": "900"}, "timings", "failed"),
        ({"INCUMBENT_TTL_MS": "61000"}, "timings", "warning"),
        ({"INCUMBENT_POLICY": '{"max": 1}'}, "policy", "failed"),
        ({"INCUMBENT_DISABLED": "1"}, "switch", "warning"),
        ({"INCUMBENT_DISABLED": "perhaps"}, "switch", "failed"),
    ],
)
def test_settings_are_judged(durable: ValkeyServer, variables: dict[str, str], name: str, status: str) -> None:
    """Each on its own line; a store is checked all the same."""
    checks = by_name(examine_store({**on_redis(durable.url), **variables}))
    assert bad(checks) == {name: status}


def test_client_that_waits_longer_than_the_ttl_has_failed(durable: ValkeyServer) -> None:
    """The URL sets the wait."""
    checks = by_name(examine_store(on_redis(f"{durable.url}?socket_timeout=60")))
    assert checks["timings"].status == "failed"


def test_settings_without_a_store_are_refused() -> None:
    """By the error that a function would raise."""
    with pytest.raises(ConfigurationError, match="INCUMBENT_PROVIDER"):
        list(examine_store({}))
    for name in ("memory", "none"):
        assert bad(by_name(examine_store({"INCUMBENT_PROVIDER": name}))) == {"store": "warning"}


# --- DynamoDB


@pytest.fixture
def moto(moto_server: DynamoDBServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of moto, and the environment in which the doctor finds the same."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", moto_server.endpoint_url)
    return boto3.client("dynamodb", endpoint_url=moto_server.endpoint_url)


@pytest.fixture(params=["moto", "dynalite"])
def dynamodb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of either, and the environment in which the doctor finds the same."""
    server: DynamoDBServer = request.getfixturevalue(f"{request.param}_server")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", server.endpoint_url)
    return boto3.client("dynamodb", endpoint_url=server.endpoint_url)


def on_table(name: str) -> dict[str, str]:
    """The settings of a function that uses this table."""
    return {"INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": name}


def new_name() -> str:
    """A table's name."""
    return f"doctor-{uuid.uuid4().hex[:8]}"


def create(client: Any, **different: Any) -> str:
    """Create a table that differs in something from what the provider needs."""
    name = new_name()
    create_table(client, name, **{**TABLE, **different})
    return name


def look(client: Any, name: str, **more: Any) -> Iterator[Check]:
    """Examine a table; the description is asked by a client that is there already, since making one takes long."""
    return examine_store(on_table(name), clients=lambda _: client, **more)


def index(**different: Any) -> list[dict[str, Any]]:
    """The index, with something else in it."""
    return [{**TABLE["GlobalSecondaryIndexes"][0], **different}]


def test_good_table_is_all_well_and_keeps_nothing(dynamodb: Any, request: pytest.FixtureRequest) -> None:
    """Every call works on the doctor's own key, and nothing of it stays: no body, no letter."""
    name = create(dynamodb)
    found = bad(by_name(look(dynamodb, name)))
    if request.node.callspec.params["dynamodb"] == "dynalite":  # it has neither
        assert found == {"time to live": "warning", "recovery": "not checked"}
    else:
        assert found == {"time to live": "warning", "recovery": "warning"}
        dynamodb.update_time_to_live(
            TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        )
        dynamodb.update_continuous_backups(
            TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )
        assert bad(by_name(look(dynamodb, name))) == {}
    assert dynamodb.scan(TableName=name)["Items"] == []


def test_reader_that_leaves_leaves_no_item_behind(moto: Any) -> None:
    """As with ``| head -3``: the first line that cannot be printed ends the checks."""
    name = create(moto)
    checks: Any = look(moto, name)
    assert any(check.name == "calls" for check in checks)
    checks.close()
    assert moto.scan(TableName=name)["Items"] == []


def test_item_of_a_later_version_is_a_warning(dynamodb: Any) -> None:
    """With the keyspaces that hold it; so is an item of another program below the prefix."""
    name = create(dynamodb)
    store: Any = from_env(on_table(name))
    for key in ("orders/1", "threads/1"):
        store.acquire_lease(key, "o", TTL_MS)
    assert by_name(look(dynamodb, name))["format versions"].found == "1 in orders (1), threads (1)"
    dynamodb.put_item(TableName=name, Item={"pk": {"S": "incumbent#orders/1"}, "sk": {"S": "lease"}, "v": {"N": "2"}})
    check = by_name(look(dynamodb, name))["format versions"]
    assert (check.status, check.found) == ("warning", "1 in threads (1); 2 in orders (1)")
    assert "deploy the release that wrote them" in check.advice
    dynamodb.put_item(TableName=name, Item={"pk": {"S": "incumbent#orders/1"}, "sk": {"S": "lease"}, "v": {"S": "x"}})
    check = by_name(look(dynamodb, name))["format versions"]
    assert (check.status, check.found) == ("warning", "unknown in orders (1); 1 in threads (1)")
    assert "key_prefix" in check.advice
    store.close()


def test_time_to_live_on_another_attribute_has_failed(moto: Any) -> None:
    """It would remove what is still needed, or nothing."""
    name = create(moto)
    moto.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"})
    assert bad(by_name(look(moto, name)))["time to live"] == "failed"


@pytest.mark.parametrize(
    ("different", "name", "status"),
    [
        ({"BillingMode": "PROVISIONED"}, "billing", "warning"),
        ({"GlobalSecondaryIndexes": index(IndexName="others")}, "index", "failed"),
        ({"GlobalSecondaryIndexes": index(Projection={"ProjectionType": "KEYS_ONLY"})}, "projection", "failed"),
        ({"GlobalSecondaryIndexes": index(Projection={"ProjectionType": "ALL"})}, "projection", "warning"),
    ],
)
def test_table_that_is_made_otherwise_is_told(moto: Any, different: dict[str, Any], name: str, status: str) -> None:
    """What is wrong with it, and whether it can work so."""
    capacity = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 5}
    if "BillingMode" in different:
        different = {
            **different,
            "ProvisionedThroughput": capacity,
            "GlobalSecondaryIndexes": index(ProvisionedThroughput=capacity),
        }
    checks = by_name(look(moto, create(moto, **different)))
    assert checks[name].status == status


def test_table_with_other_keys_has_failed(dynamodb: Any) -> None:
    """The call fails, and the description says why."""
    name = new_name()
    create_table(
        dynamodb,
        name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    checks = by_name(look(dynamodb, name))
    assert [checks[each].status for each in ("store", "keys", "index")] == ["failed"] * 3
    assert checks["keys"].found == "id (S), not pk (S), sk (S)"


def test_table_that_does_not_exist_has_failed(dynamodb: Any) -> None:
    """Once for the call, once for its description."""
    assert bad(by_name(look(dynamodb, "nowhere"))) == {"store": "failed", "table": "failed"}


def test_clock_that_lets_two_owners_run_has_failed(moto: Any) -> None:
    """Callers wait a second beyond an expiry, so clocks may differ by no more."""
    name = create(moto)
    clock = FakeClock(wall_ms=1_000_000_000_000)
    checks = by_name(look(moto, name, clock=clock))
    assert checks["clock"].status == "failed"


Deny = Callable[..., None]


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deny]:
    """Let AWS refuse operations from now on, as it refuses a role that may not carry them out."""
    denied = set[str]()

    def refuse(model: Any, **_: Any) -> Any:
        if model.name not in denied:
            return None
        error = {"Code": "AccessDeniedException", "Message": f"not authorized to perform: dynamodb:{model.name}"}
        metadata = {"HTTPStatusCode": 400, "HTTPHeaders": {}, "RetryAttempts": 0}
        return SimpleNamespace(status_code=400), {"Error": error, "ResponseMetadata": metadata}

    handler = ("before-call.dynamodb", refuse)
    botocore.handlers.BUILTIN_HANDLERS.append(handler)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    yield lambda *operations: denied.update(operations)
    botocore.handlers.BUILTIN_HANDLERS.remove(handler)


DESCRIBING = ("DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups", "Scan")


def test_what_a_function_may_not_ask_is_not_checked(moto: Any, deny: Deny) -> None:
    """With a function's rights: its calls work, and each right that is missing is named."""
    name = create(moto)
    deny(*DESCRIBING, "Query", "BatchGetItem")
    checks = by_name(examine_store(on_table(name)))
    unchecked = {"table", "time to live", "recovery", "keyspaces", "dead letters", "waiting keys"}
    assert bad(checks) == dict.fromkeys(unchecked, "not checked")
    for operation in DESCRIBING:
        assert any(f"dynamodb:{operation}" in check.found for check in checks.values()), operation


@pytest.mark.parametrize("operation", ["GetItem", "PutItem", "UpdateItem", "DeleteItem"])
def test_right_that_a_function_lacks_has_failed(moto: Any, deny: Deny, operation: str) -> None:
    """A call that needs it has failed, and names it."""
    name = create(moto)
    deny(operation)
    failed = [check for check in examine_store(on_table(name)) if check.status in ("failed", "warning")]
    assert any(f"dynamodb:{operation}" in check.found for check in failed)


def test_sweeper_needs_no_more_than_its_rights(moto: Any, deny: Deny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function answers with them: what it may not ask is not checked, and no key is touched."""
    name = create(moto)
    deny(*DESCRIBING, "GetItem", "PutItem", "UpdateItem", "DeleteItem")
    for variable, value in on_table(name).items():
        monkeypatch.setenv(variable, value)
    said = answer({})
    assert said["store"] == on_table(name)
    checks = by_name(Check(**each) for each in said["checks"])
    unchecked = {"calls", "table", "time to live", "recovery", "keyspaces"}
    assert bad(checks) == dict.fromkeys(unchecked, "not checked")
    assert checks["waiting keys"].status == "ok"


@pytest.mark.parametrize("request_", [None, [], "x", {"functions": "x"}, {"functions": [1]}, {"else": 1}])
def test_event_that_is_no_request_is_refused(request_: object) -> None:
    """By name, before anything is asked."""
    with pytest.raises(ConfigurationError, match="the doctor's event"):
        answer(request_)


def test_what_the_doctor_wants_is_what_the_template_makes() -> None:
    """Keys, index and projection as in the template, and the attribute for time to live."""
    types = {each["AttributeName"]: each["AttributeType"] for each in TABLE["AttributeDefinitions"]}
    (only,) = TABLE["GlobalSecondaryIndexes"]
    assert {each["AttributeName"]: types[each["AttributeName"]] for each in TABLE["KeySchema"]} == KEYS
    assert only["IndexName"] == INDEX
    assert {each["AttributeName"]: types[each["AttributeName"]] for each in only["KeySchema"]} == INDEX_KEYS
    assert set(only["Projection"]["NonKeyAttributes"]) == PROJECTED
    template = (Path(__file__).parents[2] / "template.yaml").read_text("utf-8")
    specification = template.partition("TimeToLiveSpecification:")[2].partition("AttributeName: ")[2].split()[0]
    assert specification == TTL_ATTRIBUTE


def test_sweeper_loads_no_doctor_before_it_is_asked() -> None:
    """Nor does a function: a cold start pays nothing for it."""
    code = "import sys, incumbent, incumbent.sweeper; sys.exit('incumbent.doctor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
