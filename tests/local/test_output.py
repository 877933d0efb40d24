"""What processes print, and what the runtime client logs, becomes lines."""

import os
from pathlib import Path

import pytest

from incumbent.local import FunctionSpec, LocalLambda
from incumbent.local.output import Output


def frame(text: str, level: int = 3) -> bytes:
    """A log record as the runtime client writes it."""
    body = text.encode()
    return b"\xa5\x5a\x00" + bytes([level]) + len(body).to_bytes(4) + (1_800_000_000_000_000).to_bytes(8) + body


PRINTED = [
    pytest.param(b"one\ntwo\n", ["one", "two"], id="lines"),
    pytest.param(b"one\n\ntwo\n", ["one", "", "two"], id="an empty line"),
    pytest.param(frame("record\n") + b"printed\n", ["record", "printed"], id="a record, then a line"),
    pytest.param(
        frame("first\nTraceback\nError") + frame("next\n"), ["first", "Traceback", "Error", "next"], id="traceback"
    ),
    pytest.param(
        b"no newline" + frame("record") + b"more\n", ["no newline", "record", "more"], id="a line with no end"
    ),
    pytest.param(b"\xc3\xa9 \xff\n", ["é �"], id="not UTF-8"),
    pytest.param(frame("x" * 300) + b"y\n", ["x" * 300, "y"], id="a length of two bytes"),
]


@pytest.mark.parametrize(("printed", "lines"), PRINTED)
@pytest.mark.parametrize("size", [1, 7, 1_000], ids=lambda size: f"by {size}")
def test_lines_and_records_are_told_apart(printed: bytes, lines: list[str], size: int) -> None:
    """However the pipe cuts them."""
    told: list[str] = []
    output = Output(told.append)
    for start in range(0, len(printed), size):
        os.write(output.write_end, printed[start : start + size])
        output.drain()
    assert told == lines


def test_what_a_killed_process_has_not_ended_is_told_at_the_end() -> None:
    """Half a line, and the text of half a record."""
    for printed, line in [(b"half", "half"), (frame("half of it")[:-6], "half"), (b"whole\nhalf", "half")]:
        told: list[str] = []
        output = Output(told.append)
        os.write(output.write_end, printed)
        output.drain(to_the_end=True)
        assert told[-1] == line


def test_record_with_a_traceback_ends_its_line(tmp_path: Path) -> None:
    """Its text ends without a newline, and what the handler prints next is a line of its own."""
    (tmp_path / "app.py").write_text(
        "import logging\n"
        "def handler(event, context):\n"
        "    try:\n"
        "        1 / 0\n"
        "    except ZeroDivisionError:\n"
        "        logging.getLogger().exception('it failed')\n"
        "    print('printed')\n"
        "    logging.getLogger().warning('logged')\n"
    )
    spec = FunctionSpec(logical_id="F", name="F", handler="app.handler", code=tmp_path, path=(tmp_path,))
    with LocalLambda([spec]) as cloud:
        lines = [line.text for line in cloud.invoke("F", {}).logs]
    assert lines[0].endswith("it failed")
    assert lines[-3:-1] == ["ZeroDivisionError: division by zero", "printed"]
    assert lines[-1].endswith("logged")
