"""The policy in force: one for all callers of a keyspace, read from one place."""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from incumbent.errors import ConfigurationError
from incumbent.validation import shown
from incumbent.values import Policy

VARIABLE = "INCUMBENT_POLICY"
_DEFAULT = Policy()
_NAMES = tuple(field.name for field in fields(Policy))


def policy_in_force(given: Policy | None, *, environ: Mapping[str, str] | None = None) -> Policy:
    """Return the given policy, else the one of ``INCUMBENT_POLICY``, else the default.

    The variable is a JSON object of `Policy`'s fields; fields that it leaves out have their defaults. A given policy
    that differs from the variable is used, with a ``RuntimeWarning`` that names the differences. Raises
    ``ConfigurationError`` for a variable that cannot be read.
    """
    text = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    if given is not None and not isinstance(given, Policy):
        raise ConfigurationError(f"policy is {shown(given)}: give a Policy(...)")
    if not text:
        return _DEFAULT if given is None else given
    said = _read(text)
    if given is None or given == said:
        return said
    differ = [name for name in _NAMES if getattr(given, name) != getattr(said, name)]
    warnings.warn(
        f"policy= differs from {VARIABLE} ("
        + ", ".join(f"{name}: {getattr(given, name)!r}, not {getattr(said, name)!r}" for name in differ)
        + "): leased, send and status of a keyspace need the same policy",
        RuntimeWarning,
        stacklevel=3,
    )
    return given


def _read(text: str) -> Policy:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise ConfigurationError(f"{VARIABLE} is not JSON ({cause}): {shown(text)}") from cause
    if not isinstance(values, dict):
        raise ConfigurationError(f"{VARIABLE} is {shown(text)}: give a JSON object of {', '.join(_NAMES)}")
    if unknown := sorted(values.keys() - set(_NAMES)):
        raise ConfigurationError(f"{VARIABLE} names {', '.join(unknown)}; a Policy has {', '.join(_NAMES)}")
    pauses = values.get("pauses_ms")
    if pauses is not None and not isinstance(pauses, list):
        raise ConfigurationError(f"{VARIABLE}: pauses_ms is {shown(pauses)}: give a list of milliseconds")
    try:
        return Policy(**{**values, **({} if pauses is None else {"pauses_ms": tuple(pauses)})})
    except (ConfigurationError, TypeError) as cause:
        raise ConfigurationError(f"{VARIABLE}: {cause}") from cause
