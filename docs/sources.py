"""Write the table of sources.md from sources.json: ``python docs/sources.py``. A test compares the two."""

import json
from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- the table: made by sources.py -->\n", "<!-- its end -->\n"
WAITS = {
    "caller": "yes: what `on_busy=` makes",
    "state-machine": "yes: its result, or an error",
    **dict.fromkeys(("http", "rest", "alb", "lattice", "websocket"), "yes: an HTTP response"),
}


def table() -> str:
    """The table, a row for each source."""
    rows = json.loads((HERE / "sources.json").read_text("utf-8"))
    lines = [
        f"| {row['source']} | {row['id_from']} | {WAITS.get(row['kind'], 'no')} | {row['needs']} |\n" for row in rows
    ]
    return "| source | message id | a caller waits, and is answered | needs |\n|---|---|---|---|\n" + "".join(lines)


def page() -> str:
    """The page with its table anew."""
    before, _, rest = (HERE / "sources.md").read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    (HERE / "sources.md").write_text(page(), "utf-8")
