"""The function whose life is looked at, on each store, with a guarded file and a file that lets runs end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Line, Store, store
from tests.end_to_end.conftest import start as start_line

__all__ = ["start_line", "store"]

TEMPLATE = Path(__file__).parent / "app" / "template.yaml"

Start = Callable[..., Line]


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file for which ``until_told`` waits."""
    return tmp_path / "go"


@pytest.fixture
def guarded(tmp_path: Path) -> Callable[[str], Any]:
    """What is written for a key in the file that refuses a smaller fence."""
    return lambda key: json.loads((tmp_path / "guarded").read_text())[key][1]


@pytest.fixture
def start(start_line: Start, store: Store, go: Path, tmp_path: Path) -> Start:
    """Start the functions of this folder."""
    files = {"GO": str(go), "GUARDED": str(tmp_path / "guarded")}

    def start(env: dict[str, str] | None = None, **settings: Any) -> Line:
        return start_line({**store.patient, **files, **(env or {})}, template=TEMPLATE, **settings)

    return start
