"""What a scenario may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from incumbent.errors import ConfigurationError
from incumbent.local.json_path import changed, split_path
from incumbent.local.scenario import Scenario, load_scenario

EVENT = {"body": json.dumps({"thread": "t", "list": [1, {"deep": "{}"}]}), "headers": {"a.b": "c"}, "n": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an event in it."""
    (tmp_path / "event.json").write_text(json.dumps(EVENT))
    return tmp_path


def load(folder: Path, document: Any) -> Scenario:
    """Write the scenario and read it."""
    file = folder / "scenario.json"
    file.write_text(json.dumps(document))
    return load_scenario(file)


def test_steps_are_sent_in_the_order_of_their_time(folder: Path) -> None:
    """Repeats among the others; within one millisecond the order of the file holds."""
    scenario = load(
        folder,
        {
            "description": "both",
            "function": "F",
            "event": "event.json",
            "steps": [
                {"at_ms": 0, "id": "a", "repeat": 3, "every_ms": 10},
                {"at_ms": 10},
                {"at_ms": 5, "function": "G", "async": True},
            ],
        },
    )
    assert scenario.description == "both"
    assert scenario.functions == ("F", "G")
    assert [(each.id, each.at_ms, each.asynchronous) for each in scenario.sendings] == [
        ("a-1", 0, False),
        ("step-3", 5, True),
        ("a-2", 10, False),
        ("step-2", 10, False),
        ("a-3", 20, False),
    ]
    assert scenario.sendings[0].event == EVENT


def test_changes_go_through_json_in_strings_and_know_id_and_number(folder: Path) -> None:
    """The step's changes come after those of the top; the event itself stays as it is."""
    scenario = load(
        folder,
        {
            "function": "F",
            "event": "event.json",
            "set": {"n": "{id}", "new": {"deep": ["{n}", 5, None]}},
            "steps": [
                {"at_ms": 0, "id": "x", "repeat": 2, "set": {"body.thread": "t-{n}", "body.list.1.deep.k": "{id}"}},
                {"at_ms": 1, "id": "y", "set": {"n": 7, 'headers."a.b"': "{other}"}},
            ],
        },
    )
    first, second, third = (each.event for each in scenario.sendings)
    assert (first["n"], second["new"]) == ("x-1", {"deep": ["2", 5, None]})
    body = json.loads(second["body"])
    assert body["thread"] == "t-2"
    assert json.loads(body["list"][1]["deep"]) == {"k": "x-2"}
    assert (third["n"], third["headers"], third["body"]) == (7, {"a.b": "{other}"}, EVENT["body"])


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({}, "step 1: at_ms is missing"),
        ({"at_ms": 1.5}, "step 1: at_ms must be a whole number from 0 to 86,400,000, not 1.5"),
        ({"at_ms": True}, "at_ms must be a whole number"),
        ({"at_ms": -1}, "at_ms must be a whole number"),
        ({"at_ms": 0, "repeat": 0}, "repeat must be a whole number from 1 to 10,000, not 0"),
        ({"at_ms": 0, "every_ms": "5"}, 'every_ms must be a whole number from 0 to 86,400,000, not "5"'),
        ({"at_ms": 0, "async": "yes"}, 'async must be true or false, not "yes"'),
        ({"at_ms": 0, "id": 7}, "id must be a string, not 7"),
        ({"at_ms": 0, "function": ""}, 'function must be a string, not ""'),
        ({"at_ms": 0, "event": "gone.json"}, "step 1: event: cannot read the event .*gone.json: No such file"),
        ({"at_ms": 0, "set": []}, r"set must be an object of paths and values, not \[\]"),
        ({"at_ms": 0, "atms": 1}, "step 1: unknown field 'atms'; known are async, at_ms, event"),
        ({"at_ms": 0, "set": {"body..x": 1}}, "step 1: set: 'body..x' is not a path"),
        ({"at_ms": 0, "set": {"nobody.x": 1}}, "step 1: set: nobody.x: the event has no 'nobody'"),
        ({"at_ms": 0, "set": {"body.thread.x": 1}}, "body.thread is a string without JSON in it"),
        ({"at_ms": 0, "set": {"body.list.2": 1}}, "body.list is a list of 2 and has no '2'"),
        ({"at_ms": 0, "set": {"n.x": 1}}, "n.x: n is 1 and has nothing in it"),
        ("step", 'step 1 must be an object, not "step"'),
    ],
)
def test_a_wrong_step_is_refused_with_its_number_and_field(folder: Path, step: Any, told: str) -> None:
    """And with the scenario's file, so that one line is enough."""
    with pytest.raises(ConfigurationError, match=rf"scenario\.json: .*{told}"):
        load(folder, {"function": "F", "event": "event.json", "steps": [step]})


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "the scenario must be an object"),
        ({}, "steps: must be a list of at least one step"),
        ({"steps": []}, "steps: must be a list of at least one step"),
        ({"steps": [{"at_ms": 0}], "stepz": 1}, "the scenario: unknown field 'stepz'"),
        ({"steps": [{"at_ms": 0}], "event": "event.json"}, "step 1: function is missing"),
        ({"steps": [{"at_ms": 0}], "function": "F"}, "step 1: event is missing"),
        (
            {"description": 1, "function": "F", "event": "event.json", "steps": [{"at_ms": 0}]},
            "description must be",
        ),
        (
            {"function": "F", "event": "event.json", "steps": [{"at_ms": 0, "id": "a"}, {"at_ms": 0, "id": "a"}]},
            "two invocations have the id 'a'",
        ),
    ],
)
def test_a_wrong_scenario_is_refused(folder: Path, document: Any, told: str) -> None:
    """With the field that is wrong."""
    with pytest.raises(ConfigurationError, match=told):
        load(folder, document)


def test_a_file_that_cannot_be_read_is_told_with_its_place(folder: Path) -> None:
    """No such file, a folder, no JSON, no UTF-8."""
    with pytest.raises(ConfigurationError, match=r"cannot read the scenario .*none\.json: No such file"):
        load_scenario(folder / "none.json")
    with pytest.raises(ConfigurationError, match=r"cannot read the scenario .*: Is a directory"):
        load_scenario(folder)
    (folder / "bad.json").write_text('{"steps":\n oops}')
    with pytest.raises(ConfigurationError, match=r"bad\.json is not JSON: Expecting value at line 2, column 2"):
        load_scenario(folder / "bad.json")
    (folder / "bytes.json").write_bytes(b'"\xff"')
    with pytest.raises(ConfigurationError, match=r"bytes\.json is not UTF-8"):
        load_scenario(folder / "bytes.json")


def test_a_path_is_names_between_dots() -> None:
    """A name with dots stands in quotes; nothing may be empty or unfinished."""
    assert split_path('a.0."x.y".b') == ("a", "0", "x.y", "b")
    for wrong in ("", ".", "a.", ".a", 'a."b', 'a"b"', '""'):
        with pytest.raises(ConfigurationError, match="is not a path"):
            split_path(wrong)


def test_a_change_leaves_the_event_itself_alone() -> None:
    """Every step begins with the event as it is in the file."""
    event = {"a": [{"b": 1}]}
    assert changed(event, "a.0.b", 2) == {"a": [{"b": 2}]}
    assert event == {"a": [{"b": 1}]}


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "events" / "scenarios").glob("*.json")))
def test_the_projects_own_scenarios_can_be_read(file: Path) -> None:
    """Every file among the events' scenarios."""
    assert load_scenario(file).sendings
