"""A run of ``incumbent verify`` on a store: its plan, its parts, and the removal of what they have stored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from incumbent.doctor.check import Check, is_refused, text_of
from incumbent.providers.redis.permissions import acl_rules
from incumbent.verify import conformance, costs, failover, pairs, replies
from incumbent.verify.store import STEM, VerifiedStore

PARTS = (pairs.NAME, replies.NAME, conformance.NAME, failover.NAME)
"""The parts, the quickest first."""

SECONDS = 30  # of load while a server fails over


def planned(
    store: VerifiedStore,
    parts: Sequence[str],
    *,
    matching: str = "",
    price_writes: float = costs.PRICE_WRITES,
    price_reads: float = costs.PRICE_READS,
) -> Iterator[Check]:
    """Say what a run will do to the store, and name what other runs have left. Asks the store for the latter."""
    on_table = store.name == "dynamodb"
    try:
        leftovers = store.leftovers()
        size = getattr(store, "size_bytes", int)()
    except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
        yield Check.failed("plan", text_of(error), _advice(store, error))
        return
    used = costs.expected(store.name, parts)
    words = costs.in_words(
        used, price_writes=price_writes, price_reads=price_reads, scanned_bytes=size, on_table=on_table
    )
    if failover.NAME in parts and not on_table:
        words += "; failover adds a load of four senders"
    bound = "at most" if matching else "about"  # measured with all tests and calls
    where = f"table {store.table}" if on_table else "the server"  # type: ignore[attr-defined]
    yield Check.ok("plan", f"{', '.join(parts)}, below the prefix {store.prefix} of {where}: {bound} {words}")
    for run, count in leftovers.items():
        found = f"run {run} has left {'something' if count is None else f'{count:,} records'} behind, or goes on"
        yield Check.warning("leftovers", found, f"if it is over: incumbent verify --remove {run}")


def verified(
    store: VerifiedStore,
    parts: Sequence[str],
    *,
    matching: str = "",
    fail_over: Callable[[], str | None] | None = None,
    seconds: int = SECONDS,
) -> Iterator[Check]:
    """Make the parts of a run. `emptied` removes what they have stored and what interrupted ones have left."""
    made: dict[str, Callable[[], Iterable[Check]]] = {
        pairs.NAME: lambda: pairs.pairs(store),
        replies.NAME: lambda: replies.replies(store, matching),
        conformance.NAME: lambda: conformance.conformance(store, matching),
        failover.NAME: lambda: _failed_over(store, fail_over, seconds),
    }
    for part in parts:
        try:
            store.begin()
            yield from made[part]()
        except Exception as error:  # noqa: BLE001 - whatever a store or a client raises is the finding
            yield Check.failed(part, text_of(error), _advice(store, error))


def emptied(
    store: VerifiedStore, *, price_writes: float = costs.PRICE_WRITES, price_reads: float = costs.PRICE_READS
) -> Iterator[Check]:
    """Remove what this run has stored, and say what it has cost, if the store tells."""
    try:
        store.empty()
        store.end()
    except Exception as error:  # noqa: BLE001 - as above
        advice = f"what is left has a time to live; to remove it: incumbent verify --remove {store.run}"
        yield Check.failed("removal", text_of(error), advice)
    else:
        yield Check.ok("removal", f"nothing is left below the prefix {store.prefix}")
    finally:
        store.close()
    if store.used:
        words = costs.in_words(store.used, price_writes=price_writes, price_reads=price_reads, on_table=True)
        yield Check.ok("cost", words)


def removed(store: VerifiedStore, run: str) -> Check:
    """Remove what a run has left."""
    try:
        count = store.remove_run(run)
    except Exception as error:  # noqa: BLE001 - as above
        return Check.failed("removal", text_of(error), _advice(store, error))
    finally:
        store.close()
    return Check.ok("removal", f"{count:,} records of run {run} removed")


def _failed_over(store: VerifiedStore, fail_over: Callable[[], str | None] | None, seconds: int) -> Iterator[Check]:
    if store.name == "dynamodb":
        yield Check.unchecked(failover.NAME, "DynamoDB has no fail-over that a caller could trigger", "nothing to do")
    elif fail_over is None:
        advice = "--fail-over triggers one in a cluster; --only failover waits for yours"
        yield Check.unchecked(failover.NAME, "no fail-over was asked for", advice)
    else:
        yield from failover.failover(store, fail_over, seconds=seconds)


def _advice(store: VerifiedStore, error: BaseException) -> str:
    if not is_refused(error):
        return "see the error; incumbent doctor may say why"
    if store.name == "dynamodb":
        return "allow this caller what the functions may do on the table, and DescribeTable, Scan and BatchWriteItem"
    return f"give the user these rights: {rights()}"


def rights() -> str:
    """Return the rules for ``ACL SETUSER`` of a user who may verify a server: HGETALL is for moving stored times."""
    return f"+hgetall {acl_rules(f'{STEM}-*')}"


def own_fail_over(store: Any) -> Callable[[], str | None]:
    """Return what triggers a fail-over of a store's cluster."""
    return lambda: failover.cluster_fail_over(store.client())
