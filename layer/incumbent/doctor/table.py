"""A DynamoDB table: how it is made, beside what the provider needs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from incumbent.clock import Clock
from incumbent.doctor.check import Check, code_of, is_refused, not_asked, text_of
from incumbent.doctor.versions import judge_versions
from incumbent.keyspaces import split_key
from incumbent.providers.dynamodb.attributes import VERSION

KEYS = {"pk": "S", "sk": "S"}
INDEX, INDEX_KEYS = "orphans", {"orphan_shard": "S", "orphan_since": "N"}
PROJECTED = frozenset({"lease_key", "target"})
TTL_ATTRIBUTE = "expires_on"
MAX_SKEW_MS = 1_000  # DynamoDBProvider's max_clock_skew_ms unless set
_LOOKED_AT = 1_000  # items: one page of a scan, 1 MB at most


def check_table(client: Any, name: str, prefix: str, clock: Clock) -> Iterator[Check]:
    """Check keys, index, projection, billing, replicas, time to live, recovery, clock, keyspaces and versions."""
    try:
        before = clock.now().wall_ms
        said = client.describe_table(TableName=name)
        after = clock.now().wall_ms
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
        check = not_asked("table", "dynamodb:DescribeTable", error)
        yield check
        if check.status == "failed":
            return
    else:
        yield from _described(said["Table"])
        yield _clock(said, before, after)
    yield _time_to_live(client, name)
    yield _recovery(client, name)
    yield from _keyspaces(client, name, prefix)


def remove_record(client: Any, name: str, prefix: str, key: str) -> Iterator[Check]:
    """Delete the record of the doctor's key; yield a check only if that fails."""
    try:
        at = {"pk": {"S": f"{prefix}#{key}"}, "sk": {"S": "lease"}}
        client.delete_item(TableName=name, Key=at)
    except Exception as error:  # noqa: BLE001 - as above
        yield Check.warning("clean-up", text_of(error), f"what is left of {key} has a time to live")


def _described(table: Mapping[str, Any]) -> Iterator[Check]:
    types = {each["AttributeName"]: each["AttributeType"] for each in table.get("AttributeDefinitions", ())}
    status = table.get("TableStatus", "ACTIVE")
    if status != "ACTIVE":
        yield Check.warning("table", f"it is {status}", "wait until it is ACTIVE")
    advice = "create a table as docs/table.md describes it: keys cannot be changed"
    yield _same("keys", _keys(table, types), KEYS, advice)
    yield from _index(table, types)
    billing = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if billing == "PAY_PER_REQUEST":
        yield Check.ok("billing", "on demand")
    else:
        found, advice = "provisioned capacity", "bursts are throttled: switch to on demand, or provision for bursts"
        yield Check.warning("billing", found, advice)
    if replicas := [each.get("RegionName", "?") for each in table.get("Replicas") or ()]:
        found = f"a global table, with replicas in {', '.join(replicas)}"
        yield Check.failed("Regions", found, "use a table of one Region: the last writer would win, and leases break")


def _index(table: Mapping[str, Any], types: Mapping[str, str]) -> Iterator[Check]:
    index = next((each for each in table.get("GlobalSecondaryIndexes", ()) if each["IndexName"] == INDEX), None)
    if index is None:
        advice = "create it as docs/table.md describes it: without it the sweeper finds nothing"
        yield Check.failed("index", f"there is no index {INDEX}", advice)
        return
    yield _same(
        "index", _keys(index, types), INDEX_KEYS, "delete the index, and create it as docs/table.md describes it"
    )
    if (status := index.get("IndexStatus", "ACTIVE")) != "ACTIVE":
        yield Check.warning("index", f"it is {status}", "wait until it is ACTIVE")
    projection = index.get("Projection", {})
    kind = projection.get("ProjectionType")
    included = set(projection.get("NonKeyAttributes") or ())
    if kind == "ALL" or included > PROJECTED:
        advice = "project lease_key and target only: with more, each renewal writes the index"
        yield Check.warning("projection", f"{kind} {', '.join(sorted(included))}".strip(), advice)
    elif included == PROJECTED:
        yield Check.ok("projection", ", ".join(sorted(included)))
    else:
        advice = "create the index anew with lease_key and target: the sweeper cannot tell which function to wake"
        yield Check.failed("projection", f"{kind} {', '.join(sorted(included))}".strip(), advice)


def _keys(described: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, str]:
    return {each["AttributeName"]: types.get(each["AttributeName"], "?") for each in described["KeySchema"]}


def _same(name: str, found: Mapping[str, str], wanted: Mapping[str, str], advice: str) -> Check:
    said = ", ".join(f"{key} ({kind})" for key, kind in found.items())
    if list(found.items()) == list(wanted.items()):
        return Check.ok(name, said)
    return Check.failed(name, f"{said}, not {', '.join(f'{key} ({kind})' for key, kind in wanted.items())}", advice)


def _clock(said: Mapping[str, Any], before_ms: int, after_ms: int) -> Check:
    """Compare this machine's time with the answer's date, which has whole seconds.

    No caller reads DynamoDB's clock. Other callers wait ``max_clock_skew_ms`` after an expiry, so no two callers'
    clocks may differ by more; AWS's services keep good time.
    """
    date = said.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        theirs = round(parsedate_to_datetime(date).timestamp() * 1_000)
    except (TypeError, ValueError):
        return Check.unchecked("clock", "the answer has no date", "compare this machine's clock with another")
    off = max(before_ms - (theirs + 1_000), theirs - after_ms, 0)
    if off > MAX_SKEW_MS:
        advice = f"synchronise this machine's clock: more than max_clock_skew_ms ({MAX_SKEW_MS:,}) lets two owners run"
        return Check.failed("clock", f"at least {off:,} ms from DynamoDB's", advice)
    return Check.ok("clock", "within about a second of DynamoDB's")


def _time_to_live(client: Any, name: str) -> Check:
    try:
        said = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    except Exception as error:  # noqa: BLE001 - as above
        return _unknown_or("time to live", "dynamodb:DescribeTimeToLive", error)
    status, attribute = said.get("TimeToLiveStatus"), said.get("AttributeName")
    if status in ("ENABLED", "ENABLING"):
        if attribute == TTL_ATTRIBUTE:
            return Check.ok("time to live", f"on {attribute}")
        advice = f"set it to {TTL_ATTRIBUTE}: another attribute removes what is needed, or nothing"
        return Check.failed("time to live", f"on {attribute}", advice)
    advice = f"enable it on {TTL_ATTRIBUTE}: old records are never removed otherwise"
    return Check.warning("time to live", f"{status or 'DISABLED'}", advice)


def _recovery(client: Any, name: str) -> Check:
    try:
        said = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    except Exception as error:  # noqa: BLE001 - as above
        return _unknown_or("recovery", "dynamodb:DescribeContinuousBackups", error)
    if said.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus") == "ENABLED":
        return Check.ok("recovery", "point-in-time recovery is enabled")
    return Check.warning("recovery", "no point-in-time recovery", "enable it, or accept that a deleted table is lost")


def _unknown_or(name: str, right: str, error: Exception) -> Check:
    """Make the result of a request that not every implementation of DynamoDB knows."""
    if code_of(error) in ("UnknownOperationException", "404"):
        return Check.unchecked(name, "this implementation of DynamoDB does not know the request", "ask AWS's own")
    return not_asked(name, right, error)


def _keyspaces(client: Any, name: str, prefix: str) -> Iterator[Check]:
    """Look which keyspaces have keys, and which versions of the format, in one page of a scan."""
    begins = f"{prefix}#"
    try:
        page = client.scan(TableName=name, Limit=_LOOKED_AT, ProjectionExpression="pk, v")
    except Exception as error:  # noqa: BLE001 - as above
        if is_refused(error):
            found, advice = "this caller lacks dynamodb:Scan", "allow it on the table to operators"
            yield Check.unchecked("keyspaces", found, advice)
        else:
            yield not_asked("keyspaces", "dynamodb:Scan", error)
        return
    counted = Counter[tuple[int | None, str]]()
    for each in page["Items"]:
        pk = each.get("pk", {}).get("S", "")
        keyspace = split_key(pk.removeprefix(begins))[0]
        if pk.startswith(begins) and keyspace != "incumbent-doctor":
            version = each.get("v", {}).get("N", "")
            counted[int(version) if version.isdecimal() else None, keyspace] += 1
    of = f" (of the first {page['ScannedCount']:,} items)" if "LastEvaluatedKey" in page else ""
    named = ", ".join(sorted({keyspace for _, keyspace in counted} - {""})[:20])
    yield Check.ok("keyspaces", f"below the prefix {prefix}: {named or 'none yet'}{of}")
    yield judge_versions(counted, known=VERSION, of=of)
