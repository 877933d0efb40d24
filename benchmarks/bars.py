"""The bars: the figures that were set as goals before the work on them began."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks import cold_starts, dynamodb_calls, memory_calls, redis_calls, write_units
from benchmarks.dynamodb_stores import ANSWER_MS
from benchmarks.growth import RATIO, REDIS
from benchmarks.tables import Column, Table, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure and the most that it should be. With ``over``, the figure is divided by that row's."""

    what: str
    most: float
    unit: str
    table: str
    row: str
    column: str
    digits: int = 0
    over: str | None = None

    def figure(self, tables: Mapping[str, Table]) -> float | None:
        """Return the figure; ``None`` if it was not measured."""
        table = tables.get(self.table)
        if table is None:
            return None
        figure = table.figure(self.row, self.column)
        if self.over is None or figure is None:
            return figure
        base = table.figure(self.over, self.column)
        return figure / base if base else None


BARS = (
    Bar(
        what="Redis: acquire and release",
        most=1.2,
        unit="x two EVALSHA",
        digits=2,
        table="redis",
        row=redis_calls.ACQUIRE,
        column="ratio",
    ),
    Bar(
        what="Redis: acquire refused",
        most=1.3,
        unit="x PING",
        digits=2,
        table="redis-refused",
        row=redis_calls.REFUSED,
        column="ratio",
    ),
    Bar(
        what="Redis: claim and settle",
        most=1.5,
        unit="x two EVALSHA",
        digits=2,
        table="redis",
        row=redis_calls.CLAIM,
        column="ratio",
    ),
    Bar(
        what="Redis: `@leased`",
        most=1.8,
        unit="x two EVALSHA",
        digits=2,
        table="redis",
        row=redis_calls.LEASED,
        column="ratio",
    ),
    Bar(
        what="the decorator alone, in memory",
        most=40,
        unit="µs",
        table="decorator",
        row=memory_calls.LEASED,
        column="us",
    ),
    Bar(
        what="the decorator alone, one key, window full",
        most=40,
        unit="µs",
        table="decorator",
        row=memory_calls.LEASED_BUSY,
        column="us",
    ),
    Bar(
        what=f"DynamoDB: client CPU of claim and settle, each answer after {ANSWER_MS} ms",
        most=1.15,
        unit="x two UpdateItem",
        digits=2,
        table="dynamodb-moto",
        row=dynamodb_calls.CLAIM,
        column="ratio",
    ),
    Bar(
        what="DynamoDB: the same, longer requests answered later",
        most=1.15,
        unit="x two UpdateItem",
        digits=2,
        table="dynamodb-unpaced",
        row=dynamodb_calls.CLAIM,
        column="ratio",
    ),
    Bar(
        what="DynamoDB: item that a renewal writes, window full",
        most=2_048,
        unit="bytes",
        table="units",
        row=write_units.FULL_RENEWAL,
        column="largest",
    ),
    Bar(
        what="DynamoDB: a run, window full, without the index",
        most=4,
        unit="WCU",
        digits=1,
        table="units",
        row=write_units.FULL,
        column="write_units",
    ),
    Bar(
        what="DynamoDB: a renewal, window full",
        most=2,
        unit="WCU",
        table="units",
        row=write_units.FULL_RENEWAL,
        column="write_units",
    ),
    Bar(
        what="Redis: draining a message, 10 waiting",
        most=250,
        unit="µs",
        table="growth-waiting",
        row="10",
        column=REDIS,
    ),
    Bar(
        what="Redis: draining with 900 waiting, against 10",
        most=1.2,
        unit="x",
        digits=2,
        table="growth-waiting",
        row="900",
        column=RATIO,
        over="10",
    ),
    Bar(
        what="`import incumbent` after Lambda's runtime client",
        most=18,
        unit="ms",
        digits=1,
        table="cold",
        row=cold_starts.IMPORT,
        column="imported",
    ),
    Bar(
        what='decorating with `key_jmespath="a"`',
        most=5,
        unit="ms",
        digits=1,
        table="cold",
        row=cold_starts.JMESPATH,
        column="imported",
    ),
    Bar(
        what="cold start, DynamoDB",
        most=240,
        unit="ms",
        table="cold",
        row=cold_starts.DYNAMODB,
        column="total",
    ),
    Bar(
        what="cold start, Redis",
        most=110,
        unit="ms",
        table="cold",
        row=cold_starts.REDIS,
        column="total",
    ),
)


def judged(tables: Mapping[str, Table]) -> Table:
    """Return the table of all bars, each reached or not."""
    found = Table(
        name="bars",
        title="The bars",
        first="what",
        columns={
            "figure": Column(title="measured"),
            "bar": Column(title="bar"),
            "reached": Column(title=""),
        },
    )
    for bar in BARS:
        figure = bar.figure(tables)
        found.set(
            bar.what,
            figure=None if figure is None else f"{number(figure, bar.digits)} {bar.unit}",
            bar=f"{bar.most:,g} {bar.unit}",
            reached="not measured" if figure is None else "reached" if figure <= bar.most else "not reached",
        )
    return found
