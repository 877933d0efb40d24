"""The policy in force: one for all callers of a keyspace, read from one place, and a difference is noticed."""

import json
import os
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from incumbent.errors import ConfigurationError
from incumbent.validation import shown
from incumbent.values import Policy

VARIABLE = "INCUMBENT_POLICY"
_DEFAULT = Policy()
_NAMES = tuple(Policy.__annotations__)


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
    warnings.warn(
        f"policy= differs from {VARIABLE} ({_differences(given, said)}): {_NEEDED}", RuntimeWarning, stacklevel=3
    )
    return given


def note_policy(policy: Policy, *, keyspace: str, provider: object | None) -> None:
    """Note that this process uses the keyspace with this policy; warn if it has used it with another one.

    ``provider`` is the one that the caller was given, or ``None`` for the environment's. A provider that cannot be
    weakly referenced is not watched. With ``INCUMBENT_POLICY`` set, `policy_in_force` has warned already.
    """
    if os.environ.get(VARIABLE, "").strip():
        return
    seen: MutableMapping[Any, dict[str, Policy]] = _SEEN_OF_PROVIDERS
    store: object = provider
    if provider is None:
        seen, store = _SEEN_OF_ENVIRONMENTS, tuple(os.environ.get(name) for name in _STORE_VARIABLES)
    try:
        first = seen.setdefault(store, {}).setdefault(keyspace, policy)
    except TypeError:
        return
    if first != policy:
        warnings.warn(
            f"keyspace {keyspace!r} is used with two policies in this process ({_differences(policy, first)}): "
            f"{_NEEDED}; set {VARIABLE}",
            RuntimeWarning,
            stacklevel=3,
        )


_NEEDED = "leased, send and status of a keyspace need the same policy"
_STORE_VARIABLES = ("INCUMBENT_PROVIDER", "INCUMBENT_TABLE_NAME", "INCUMBENT_REDIS_URL", "INCUMBENT_KEY_PREFIX")
_SEEN_OF_PROVIDERS: WeakKeyDictionary[Any, dict[str, Policy]] = WeakKeyDictionary()
_SEEN_OF_ENVIRONMENTS: dict[Any, dict[str, Policy]] = {}


def _differences(given: Policy, other: Policy) -> str:
    pairs = ((name, getattr(given, name), getattr(other, name)) for name in _NAMES)
    return ", ".join(f"{name}: {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs)


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
