"""A Redis or Valkey server, or each primary of a cluster: what it says of itself, beside what leases need."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from incumbent.clock import Clock
from incumbent.doctor.check import Check, is_refused, text_of
from incumbent.doctor.versions import judge_versions
from incumbent.providers.redis import client_from_env
from incumbent.providers.redis.names import Names

_OLDEST = 5  # the first version whose scripts may write after they have read the time
_MAX_SKEW_MS = 1_000
_ROUNDS, _A_ROUND = 100, 1_000  # of names that SCAN looks at, on each primary
_READ = 200  # records on each primary
_RECORD = "}:state"
_FORMAT = 1  # `record.lua` has the same
_HEAD = 3  # bytes before the elements of an array of 16 or more
_NO_ANSWER = frozenset({"ConnectionError", "TimeoutError", "OSError"})  # the client's, by their names
_LOCAL = ("127.0.0.1", "::1", "localhost")


def check_server(environ: Mapping[str, str], prefix: str, clock: Clock) -> Iterator[Check]:
    """Check version, mode, eviction, persistence, encryption, clock, keyspaces and versions of the stored format."""
    yield from _login(environ)
    yield from _seeds(environ)
    try:
        client = client_from_env(environ)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
        yield Check.failed("server", text_of(error), "see the error")
        return
    try:
        primaries = _primaries(client)
        if hasattr(client, "get_primaries"):
            yield Check.ok("mode", f"a cluster of {len(primaries)} {'primary' if len(primaries) == 1 else 'primaries'}")
        silent: list[str] = []
        for place, node in primaries:
            raised = _error_of_eval(node)
            if raised is not None and _NO_ANSWER & {kind.__name__ for kind in type(raised).__mro__}:
                silent.append(place)
                yield Check.failed(f"server{place}", text_of(raised), "its keys wait for it, or for a replica of it")
                continue
            if raised is not None:
                advice = "add +eval to the user's rights: after a restart or a fail-over no call would work"
                yield Check.failed(f"scripts{place}", text_of(raised), advice)
            yield from _about(node, place)
            yield _clock(node, place, clock)
        yield from _keyspaces([each for each in primaries if each[0] not in silent], prefix, missing=len(silent))
    finally:
        client.close()


def remove(environ: Mapping[str, str], prefix: str, key: str) -> Iterator[Check]:
    """Delete all records of the doctor's key; yield a check only if that fails."""
    try:
        client = client_from_env(environ)
        try:
            client.delete(*Names(prefix).of(key))
        finally:
            client.close()
    except Exception as error:  # noqa: BLE001 - as above
        yield Check.warning("clean-up", text_of(error), f"the server removes what is left of {key} within a day")


def _login(environ: Mapping[str, str]) -> Iterator[Check]:
    """Judge the URL: whether a password stands in it, and whether the connection is encrypted."""
    url = urlsplit(environ["INCUMBENT_REDIS_URL"])
    here = url.scheme == "unix" or all(urlsplit(seed).hostname in _LOCAL for seed in _each_seed(environ))
    if url.password and not here:
        yield Check.warning("login", "the URL holds a password", "keep it in a secret: INCUMBENT_REDIS_SECRET_ID")
    if url.scheme == "rediss":
        yield Check.ok("TLS", "the connection is encrypted (rediss://)")
    elif here:
        yield Check.ok("TLS", "not used, and the server is on this machine")
    else:
        yield Check.warning("TLS", "the connection is not encrypted", "write rediss:// if the server offers TLS")


def _each_seed(environ: Mapping[str, str]) -> list[str]:
    """Return a URL for each server that the environment's URL names."""
    parts = urlsplit(environ["INCUMBENT_REDIS_URL"])
    login, at, hosts = parts.netloc.rpartition("@")
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{host.strip()}")) for host in hosts.split(",")]


def _seeds(environ: Mapping[str, str]) -> Iterator[Check]:
    """Ask each node of a cluster that the URL names, if it names several: one that is away delays cold starts."""
    seeds = _each_seed(environ)
    away: list[str] = []
    clusters: list[set[str]] = []
    for seed in seeds if len(seeds) > 1 else ():
        try:
            client: Any = client_from_env({**environ, "INCUMBENT_REDIS_URL": seed})
            nodes = {node.name for node in client.get_nodes()}
            client.close()
        except Exception as error:  # noqa: BLE001 - as above
            away.append(text_of(error))
        else:
            if not any(nodes & others for others in clusters):
                clusters.append(nodes)
    if len(clusters) > 1:
        advice = "name nodes of one: a new environment uses that which answers first, so one key may get two owners"
        yield Check.failed("seeds", f"the URL names nodes of {len(clusters)} clusters", advice)
    elif away:
        advice = "name nodes that are up: a new environment waits up to a second for each that is not"
        yield Check.warning("seeds", f"{len(away)} of {len(seeds)} did not answer: {'; '.join(away)}", advice)
    elif len(seeds) > 1:
        yield Check.ok("seeds", f"all {len(seeds)} nodes that the URL names answer")


def _primaries(client: Any) -> list[tuple[str, Any]]:
    """Return each primary's address, empty outside cluster mode, and a client of it."""
    if not hasattr(client, "get_primaries"):
        return [("", client)]
    return [(f" of {node.name}", client.get_redis_connection(node)) for node in client.get_primaries()]


def _error_of_eval(node: Any) -> Exception | None:
    """Run a script by its text, which calls do only when the server has forgotten it. Return what that raised."""
    try:
        node.execute_command("EVAL", "return 1", 0)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _about(node: Any, place: str) -> Iterator[Check]:
    """Read INFO, which the smallest sufficient rights do not include."""
    try:
        said: dict[str, Any] = {}
        for section in ("server", "memory", "persistence", "replication"):
            said |= node.execute_command("INFO", section)
    except Exception as error:  # noqa: BLE001 - as above
        name = f"server{place}"
        if is_refused(error):
            found = "this user lacks +info: version, role, eviction and persistence are unknown"
            yield Check.unchecked(name, found, "allow it to have them checked")
        else:
            yield Check.unchecked(name, text_of(error), "INFO was not answered")
        return
    if not place and "cluster" in (said.get("redis_mode"), said.get("server_mode")):
        yield Check.failed("mode", "a node of a cluster", "add cluster=true to the URL")
    elif not place:
        yield Check.ok("mode", "one server")
    yield _version(said, place)
    yield _role(said, place)
    yield _eviction(said, place)
    yield _persistence(said, place)


def _version(said: Mapping[str, Any], place: str) -> Check:
    valkey = said.get("valkey_version")
    version = str(valkey or said.get("redis_version", "unknown"))
    found = f"{'Valkey' if valkey else 'Redis'} {version}"
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        return Check.failed(f"version{place}", found, f"upgrade to Redis {_OLDEST} or newer, or to Valkey")
    return Check.ok(f"version{place}", found)


def _role(said: Mapping[str, Any], place: str) -> Check:
    role = said.get("role", "unknown")
    if role in ("slave", "replica"):
        return Check.failed(f"role{place}", "a replica", "give the address of the primary")
    return Check.ok(f"role{place}", f"a primary; replicas: {said.get('connected_slaves', 0)}")


def _eviction(said: Mapping[str, Any], place: str) -> Check:
    name, policy, limit = f"eviction{place}", said.get("maxmemory_policy"), said.get("maxmemory")
    if policy is None:
        return Check.warning(name, "the server does not say its maxmemory-policy", "make sure that it is noeviction")
    if policy == "noeviction":
        return Check.ok(name, "noeviction")
    if limit == 0:
        return Check.warning(name, f"{policy}, and memory has no limit", "set noeviction before memory gets a limit")
    advice = "set maxmemory-policy to noeviction: live leases and messages would be evicted, and two owners would run"
    return Check.failed(name, f"{policy}", advice)


def _persistence(said: Mapping[str, Any], place: str) -> Check:
    name, replicas = f"persistence{place}", int(said.get("connected_slaves") or 0)
    if said.get("aof_enabled") == 1:
        return Check.ok(name, "AOF is on")
    if replicas:
        found = f"AOF is off; replicas: {replicas}"
        return Check.warning(name, found, "a fail-over can lose the last accepted messages (docs/semantics.md)")
    return Check.warning(name, "AOF is off; replicas: 0", "a restart loses leases and accepted messages: turn AOF on")


def _clock(node: Any, place: str, clock: Clock) -> Check:
    """Compare the server's time with this machine's. The server's decides; a difference shows only in stored times."""
    name = f"clock{place}"
    try:
        before = clock.now().wall_ms
        seconds, micros = node.execute_command("TIME")
        after = clock.now().wall_ms
    except Exception as error:  # noqa: BLE001 - as above
        return Check.unchecked(name, text_of(error), "add +time to the user's rights, which every call needs")
    theirs = int(seconds) * 1_000 + int(micros) // 1_000
    off = max(before - theirs, theirs - after, 0)
    if off > _MAX_SKEW_MS:
        advice = "synchronise the clocks: fences are no smaller after a fail-over only as far as servers' clocks agree"
        return Check.warning(name, f"{off:,} ms from this machine's", advice)
    return Check.ok(name, f"within {max(off, after - before, 1):,} ms of this machine's")


def _keyspaces(primaries: list[tuple[str, Any]], prefix: str, *, missing: int) -> Iterator[Check]:
    """Look which keyspaces have keys, among the first names of each primary, and which versions their records have."""
    begins = f"{prefix}:lease:"
    found: set[str] = set()
    versions = Counter[tuple[int | None, str]]()
    more = False
    try:
        for _, node in primaries:
            records: list[tuple[str, str]] = []
            for name in _names(node, f"*{_quoted(begins)}*"):
                inside = name.removeprefix("{")
                if inside.startswith(begins):
                    keyspace, slash, _ = inside.removeprefix(begins).partition("}")[0].partition("/")
                    keyspace = keyspace if slash else ""
                    found.add(keyspace)
                    if name.endswith(_RECORD) and keyspace != "incumbent-doctor":
                        records.append((name, keyspace))
            more = more or len(records) > _READ
            versions.update(_versions(node, records[:_READ]))
    except Exception as error:  # noqa: BLE001 - as above
        yield Check.unchecked("keyspaces", text_of(error), "add +scan to the user's rights, which a sweeper needs")
        return
    named = ", ".join(sorted(found - {"incumbent-doctor", ""})[:20])
    seen = f"below the prefix {prefix}: {named or 'none yet'}"
    if missing:
        yield Check.warning("keyspaces", f"{seen}; {missing} of the primaries did not answer", "there may be others")
    else:
        yield Check.ok("keyspaces", seen)
    of = f" (of {versions.total():,} records; there are more)" if more else ""
    yield judge_versions(versions, known=_FORMAT, of=of)


def _versions(node: Any, records: list[tuple[str, str]]) -> Iterator[tuple[int | None, str]]:
    """Read records of one primary in one round trip; yield each one's version of the format, and its keyspace."""
    with node.pipeline(transaction=False) as asked:
        for name, _ in records:
            asked.get(name)
        for (_, keyspace), value in zip(records, asked.execute(raise_on_error=False), strict=True):
            moved = isinstance(value, Exception) and not str(value).startswith("WRONGTYPE")  # to another primary
            if value is not None and not moved:  # None: it has expired meanwhile
                yield _version_of(value), keyspace


def _version_of(record: object) -> int | None:
    """Return the first element of an array in MessagePack, if it is a number; else another program wrote the record."""
    if isinstance(record, bytes) and record[:1] == b"\xdc" and len(record) > _HEAD:
        kind, rest = record[_HEAD], record[_HEAD + 1 :]
        if kind <= 0x7F:  # noqa: PLR2004 - the number itself
            return kind
        size = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(kind, 0)
        if size and len(rest) >= size:
            return int.from_bytes(rest[:size])
    return None


def _names(node: Any, pattern: str) -> Iterator[str]:
    """Yield names of one primary that match, as far as some rounds of SCAN find them."""
    cursor = 0
    for _ in range(_ROUNDS):
        cursor, names = node.execute_command("SCAN", cursor, "MATCH", pattern, "COUNT", _A_ROUND)
        for name in names:
            yield name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if not cursor:
            return


def _quoted(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\*?[]" else letter for letter in text)
