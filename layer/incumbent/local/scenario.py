"""Reads a scenario: which events are sent to which functions, and when. docs/local.md has the format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incumbent.errors import ConfigurationError
from incumbent.local.files import load_json
from incumbent.local.invocations import check_size
from incumbent.local.json_path import changed, filled_in

_MAX_REPEAT = 10_000
_MAX_MS = 86_400_000
_SHARED_FIELDS = frozenset({"function", "event", "set"})
_TOP_FIELDS = _SHARED_FIELDS | {"description", "steps"}
_STEP_FIELDS = _SHARED_FIELDS | {"at_ms", "id", "repeat", "every_ms", "async"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One invocation of a scenario: the event is what is sent, with everything changed in it."""

    id: str
    at_ms: int
    function: str
    event: Any
    asynchronous: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is sent, in the order of its time."""

    description: str
    sendings: tuple[Sending, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that it needs, each once."""
        return tuple(dict.fromkeys(sending.function for sending in self.sendings))


def load_scenario(path: Path | str) -> Scenario:
    """Read and check the scenario at ``path``.

    Raises:
        ConfigurationError: it cannot be read, or something in it is not as it must be; the text names the
            file, the step and the field.
    """
    file = Path(path)
    document = load_json(file, "the scenario", unique_names=True)
    try:
        return _scenario(document, file.parent)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def _scenario(document: Any, folder: Path) -> Scenario:
    top = _fields(document, "the scenario", _TOP_FIELDS)
    steps = top.get("steps")
    if not isinstance(steps, list) or not steps:
        raise ConfigurationError("steps: must be a list of at least one step")
    common = {name: top[name] for name in _SHARED_FIELDS & top.keys()}
    common_changes = _changes(common, "the scenario")
    events: dict[str, Any] = {}
    sendings: list[Sending] = []
    for number, raw in enumerate(steps, 1):
        where = f"step {number}"
        step = {**common, **_fields(raw, where, _STEP_FIELDS)}
        changes = {**common_changes, **_changes(step, where)}
        sendings += _sendings(step, where, f"step-{number}", _event(step, where, folder, events), changes)
    _check_unique(sendings)
    sendings.sort(key=lambda sending: sending.at_ms)  # stable: the file's order within one millisecond
    return Scenario(description=_text(top, "the scenario", "description", default=""), sendings=tuple(sendings))


def _sendings(
    step: Mapping[str, Any], where: str, default_id: str, event: Any, changes: Mapping[str, Any]
) -> list[Sending]:
    function = _text(step, where, "function")
    name = _text(step, where, "id", default=default_id)
    at_ms = _whole(step, where, "at_ms", least=0, most=_MAX_MS)
    repeat = _whole(step, where, "repeat", least=1, most=_MAX_REPEAT, default=1)
    every_ms = _whole(step, where, "every_ms", least=0, most=_MAX_MS, default=0)
    asynchronous = step.get("async", False)
    if not isinstance(asynchronous, bool):
        raise ConfigurationError(f"{where}: async must be true or false, not {json.dumps(asynchronous)}")
    sendings = []
    for n in range(1, repeat + 1):
        own_id = f"{name}-{n}" if repeat > 1 else name
        own_event = event
        for path, value in filled_in(dict(changes), {"id": own_id, "n": str(n)}).items():
            try:
                own_event = changed(own_event, path, value)
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: set: {error}") from error
        try:
            check_size(own_event, asynchronous=asynchronous)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        sendings.append(
            Sending(
                id=own_id,
                at_ms=at_ms + (n - 1) * every_ms,
                function=function,
                event=own_event,
                asynchronous=asynchronous,
            )
        )
    return sendings


def _event(step: Mapping[str, Any], where: str, folder: Path, known: dict[str, Any]) -> Any:
    path = _text(step, where, "event")
    if path not in known:
        try:
            known[path] = load_json(folder / path, "the event")
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: event: {error}") from error
    return known[path]


def _changes(step: Mapping[str, Any], where: str) -> dict[str, Any]:
    changes = step.get("set", {})
    if not isinstance(changes, dict):
        raise ConfigurationError(f"{where}: set must be an object of paths and values, not {json.dumps(changes)}")
    return changes


def _fields(value: Any, where: str, allowed: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be an object, not {json.dumps(value)[:80]}")
    for name in value:
        if name not in allowed:
            raise ConfigurationError(f"{where}: unknown field {name!r}; known are {', '.join(sorted(allowed))}")
    return value


def _text(step: Mapping[str, Any], where: str, name: str, default: str | None = None) -> str:
    value = step.get(name, default)
    if value is None:
        raise ConfigurationError(f"{where}: {name} is missing")
    if not isinstance(value, str) or (not value and default is None):
        raise ConfigurationError(f"{where}: {name} must be a string, not {json.dumps(value)}")
    return value


def _whole(step: Mapping[str, Any], where: str, name: str, *, least: int, most: int, default: int | None = None) -> int:
    value = step.get(name, default)
    if value is None:
        raise ConfigurationError(f"{where}: {name} is missing")
    if type(value) is not int or not least <= value <= most:
        raise ConfigurationError(
            f"{where}: {name} must be a whole number from {least:,} to {most:,}, not {json.dumps(value)}"
        )
    return value


def _check_unique(sendings: list[Sending]) -> None:
    seen: set[str] = set()
    for sending in sendings:
        if sending.id in seen:
            raise ConfigurationError(f"two invocations have the id {sending.id!r}")
        seen.add(sending.id)
