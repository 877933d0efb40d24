"""The plots of the page, as SVG: transparent, in colours that are readable on light and on dark."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.tables import Spread, Table

INK = "#808080"
OURS, PEER = "#3d8bfd", "#e08a1e"
LINES = {growth.REDIS: ("Redis", OURS), growth.MEMORY: ("memory", "#2da44e"), growth.DYNAMODB: ("DynamoDB", PEER)}
_APART = 1.2  # points that are nearer to one another share a label
_SETTINGS = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text, in the reader's own font
    "svg.hashsalt": "incumbent",  # the same ids in every run
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import_module("matplotlib")
    except ImportError:
        return False
    return True


def draw(tables: Mapping[str, Table], folder: Path) -> None:
    """Write all plots into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with import_module("matplotlib").rc_context(_SETTINGS):
        _ratios(tables["redis"], "times two bare EVALSHA (logarithmic)", folder / "redis.svg")
        _ratios(tables["dynamodb-moto"], "client CPU, times two bare UpdateItem (logarithmic)", folder / "dynamodb.svg")
        _cold_starts(tables["cold"], folder / "cold-starts.svg")
        for name in ("waiting", "traces", "keys", "sizes"):
            _curves(tables[f"growth-{name}"], folder / f"{name}.svg")
        _sweeper(tables["growth-sweeper"], folder / "sweeper.svg")


def _axes(height: float) -> tuple[Any, Any]:
    figure = import_module("matplotlib.figure").Figure(figsize=(7.2, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    # matplotlib leaves spaces at the ends of lines.
    file.write_text("".join(f"{line.rstrip()}\n" for line in file.read_text("utf-8").splitlines()), "utf-8")


def _label(name: str) -> str:
    return name.replace("`", "")


def _colour(name: str) -> str:
    if "bare" in name:
        return INK
    return OURS if "incumbent" in name or "key_jmespath" in name else PEER


def _ratios(table: Table, label: str, file: Path) -> None:
    """Draw each variant's ratio as a dot between its quartiles."""
    rows = [(name, cells["ratio"]) for name, cells in table.rows.items() if isinstance(cells.get("ratio"), Spread)]
    figure, axes = _axes(0.6 + 0.32 * len(rows))
    for place, (name, ratio) in enumerate(reversed(rows)):
        if isinstance(ratio, Spread):
            colour = _colour(name)
            axes.plot([ratio.low, ratio.high], [place, place], color=colour, linewidth=2)
            axes.plot([ratio.median], [place], "o", color=colour, markersize=6)
            axes.annotate(
                f"{ratio.median:.2f}",
                (ratio.median, place),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.set_xscale("log")
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.set_yticks(range(len(rows)), [_label(name) for name, _ in reversed(rows)])
    _plain_ticks(axes.xaxis, [0.5, 1, 1.5, 2, 3, 5, 10, 20, 30], [axes.get_xlim()])
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel(label)
    _save(figure, file)


def _plain_ticks(axis: Any, ticks: Iterable[float], limits: Iterable[tuple[float, float]]) -> None:
    """Label a logarithmic axis with plain numbers."""
    ((low, high),) = limits
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, [f"{tick:g}" for tick in shown])
    axis.set_minor_locator(import_module("matplotlib.ticker").NullLocator())


def _cold_starts(table: Table, file: Path) -> None:
    """Draw import and first call as two parts of a bar."""
    names = list(reversed(table.rows))
    figure, axes = _axes(0.6 + 0.32 * len(names))
    imported = [table.figure(name, "imported") or 0 for name in names]
    first = [table.figure(name, "first") or 0 for name in names]
    colours = [_colour(name) for name in names]
    axes.barh(range(len(names)), imported, color=colours, height=0.6)
    axes.barh(range(len(names)), first, left=imported, color=colours, height=0.6, alpha=0.5)
    axes.set_yticks(range(len(names)), [_label(name) for name in names])
    axes.set_xlabel("milliseconds: import (dark), first call (light)")
    _save(figure, file)


def _curves(table: Table, file: Path) -> None:
    """Draw the time of a call on each store, with its quartiles as a band."""
    figure, axes = _axes(3.2)
    points = [float(row.replace(",", "")) for row in table.rows]
    for column, (label, colour) in LINES.items():
        drawn = [
            (point, cell)
            for point, cells in zip(points, table.rows.values(), strict=True)
            if isinstance(cell := cells.get(column), Spread)
        ]
        across = [point for point, _ in drawn]
        note = ", client CPU" if column == growth.DYNAMODB else ""
        axes.plot(across, [cell.median for _, cell in drawn], "o-", color=colour, label=label + note, markersize=4)
        low, high = [cell.low for _, cell in drawn], [cell.high for _, cell in drawn]
        axes.fill_between(across, low, high, color=colour, alpha=0.25, linewidth=0)
    if 0 in points:
        axes.set_xscale("symlog", linthresh=min(point for point in points if point))
        axes.set_xlim(left=0)
    else:
        axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [point for point, after in pairwise([*points, points[-1] * 2]) if after > point * _APART]
    axes.set_xticks(ticks, [f"{point:,g}" for point in ticks])
    axes.set_xlabel(table.first)
    axes.set_ylabel("µs")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    _save(figure, file)


def _sweeper(table: Table, file: Path) -> None:
    """Draw what finding all orphans takes."""
    figure, axes = _axes(3.2)
    for column, label, colour in (
        (growth.REDIS, "Redis, find all", OURS),
        ("redis_pass", "Redis, a pass of 100 wakes", "#2da44e"),
        (growth.DYNAMODB, "DynamoDB, find all", PEER),
    ):
        drawn = [
            (float(row.replace(",", "")), figure_ / 1e3)
            for row in table.rows
            if (figure_ := table.figure(row, column)) is not None
        ]
        axes.plot(*zip(*drawn, strict=True), "o-", color=colour, label=label, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(table.first)
    axes.set_ylabel("seconds")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    _save(figure, file)
