"""The tables that the sections make: kept as JSON between processes, printed as text, written as Markdown."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median between its quartiles."""

    low: float
    median: float
    high: float


Cell: TypeAlias = float | Spread | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's heading, and how many digits its figures have behind the point. ``spread`` shows the quartiles."""

    title: str
    digits: int = 0
    spread: bool = False


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows by name, each with its cells by the column's name. A missing cell is a dash."""

    name: str
    title: str
    first: str
    columns: Mapping[str, Column]
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def set(self, row: str, **cells: Cell) -> None:
        """Add cells to a row, which is made at the end if it is new."""
        unknown = cells.keys() - self.columns.keys()
        if unknown:
            raise KeyError(f"table {self.name} has no column {', '.join(sorted(unknown))}")
        self.rows.setdefault(row, {}).update(cells)

    def figure(self, row: str, column: str) -> float | None:
        """Return a cell's number, a spread's median; ``None`` if nothing was measured."""
        match self.rows.get(row, {}).get(column):
            case Spread(median=median):
                return median
            case float() | int() as number:
                return number
            case _:
                return None

    def text(self) -> str:
        """Return the table for a terminal."""
        lines = [[self.first, *(column.title for column in self.columns.values())], *self._cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        return "\n".join(
            [
                "",
                self.title,
                *("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines),
            ]
        )

    def markdown(self, emphasis: Callable[[str], bool] = lambda _: False) -> str:
        """Return the table for the page; rows of which ``emphasis`` says so are bold."""
        lines = [
            f"| {self.first} | " + " | ".join(column.title for column in self.columns.values()) + " |",
            "|---|" + "---:|" * len(self.columns),
        ]
        for name, *cells in self._cells():
            lines.append(f"| {f'**{name}**' if emphasis(name) else name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def _cells(self) -> Iterable[list[str]]:
        for name, cells in self.rows.items():
            yield [name, *(shown(cells.get(key), column) for key, column in self.columns.items())]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        columns = {
            key: {"title": column.title, "digits": column.digits, "spread": column.spread}
            for key, column in self.columns.items()
        }
        rows = {name: {key: _to_json(cell) for key, cell in cells.items()} for name, cells in self.rows.items()}
        return {"name": self.name, "title": self.title, "first": self.first, "columns": columns, "rows": rows}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Table":
        """Read a table that `to_json` made."""
        return cls(
            name=document["name"],
            title=document["title"],
            first=document["first"],
            columns={key: Column(**column) for key, column in document["columns"].items()},
            rows={
                name: {key: Spread(**cell) if isinstance(cell, dict) else cell for key, cell in cells.items()}
                for name, cells in document["rows"].items()
            },
        )


def shown(cell: Cell, column: Column) -> str:
    """Return a cell as it stands in a table."""
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case Spread() if column.spread:
            low, median, high = (number(each, column.digits) for each in (cell.low, cell.median, cell.high))
            return f"{median} ({low} to {high})"
        case Spread():
            return number(cell.median, column.digits)
        case _:
            return number(cell, column.digits)


def number(value: float, digits: int) -> str:
    """Return a number with commas between its thousands."""
    return f"{value:,.{digits}f}"


def _to_json(cell: Cell) -> Any:
    return {"low": cell.low, "median": cell.median, "high": cell.high} if isinstance(cell, Spread) else cell
