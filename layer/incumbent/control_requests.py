"""Control over a store as JSON requests, carried out here or, inside its VPC, by the sweeper's function.

A request is ``{"do": ...}`` with the fields of `FIELDS`; keys are the provider's, keyspace included. Its answer says in
``key`` what is known of the key afterwards. Neither holds an event, unless ``show`` is asked for them.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from incumbent.addresses import Address, Reporter
from incumbent.backends import is_control, is_lease_provider, is_mailbox
from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import Control, LeaseProvider, Mailbox
from incumbent.controlling import wake_if_due
from incumbent.errors import ConfigurationError, IncumbentError, ListIncomplete, StoredFormatUnknown
from incumbent.keyspaces import check_keyspace, is_in_keyspace, split_key
from incumbent.reporting import describe
from incumbent.stand_in import clock_in_force
from incumbent.validation import MAX_LIMIT, check_key, shown
from incumbent.values import FOREVER_MS, MAX_WINDOW_MS, KeyStatus, Message, Policy, Status
from incumbent.wakers import Waker

VERSION = 1
MAX_KEYS = 1_000
_MAX_KEYSPACES = 100
_FUNCTION_S = 70  # the sweeper's timeout, and its start

Object: TypeAlias = dict[str, Any]

FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "keys": {"keyspace": str, "only": str, "limit": int},
    "show": {"key": str, "events": bool},
    "stop": {"key": str, "fence": int, "reason": str},
    "hold": {"key": str, "for_ms": int, "reason": str},
    "resume": {"key": str},
    "cancel": {"key": str, "id": str},
    "release": {"key": str},
}
"""What each request may say. All but ``keys`` need ``key``; ``cancel`` needs ``id``."""

_NEEDED = {"key", "id"}
_ONLY: Final[Mapping[str, Callable[[KeyStatus], bool]]] = {
    "held": lambda found: found.held_until_ms is not None,
    "running": lambda found: found.owner is not None,
    "waiting": lambda found: bool(found.waiting),
}
_LONGEST = Policy(window_ms=MAX_WINDOW_MS)
"""For a cancel: this process does not know the keyspace's policy, and a shorter window would forget handled ids."""


class Controlled(LeaseProvider, Mailbox, Control, Protocol):
    """A backend that leases, stores messages, and can be controlled from outside of a run."""


def controlled(provider: object) -> Controlled:
    """Return the provider as one that can be controlled. Raises ``ConfigurationError`` for any other."""
    if not _is_controlled(provider):
        raise ConfigurationError(f"{type(provider).__name__} cannot look at keys, or hold or stop them")
    return provider


def carry_out(provider: object, request: object, *, make_waker: Callable[[], Waker]) -> Object:
    """Carry out a request, and return its answer.

    ``make_waker`` makes the waker for a key that is free again. Raises ``ConfigurationError`` for a request that is
    none, and what the provider raises.
    """
    store, said = controlled(provider), _checked(request)
    if said["do"] == "keys":
        return _keys(store, said)
    key = check_key(said["key"])
    reporter = Reporter(Address(mailbox=store, full_key=key, keyspace=split_key(key)[0], target=None))
    match said["do"]:
        case "show":
            events = bool(said.get("events"))
            return {"v": VERSION, "key": _object(store.show(key, events=events), messages=True, events=events)}
        case "stop":
            return _stop(store, said, reporter)
        case "hold":
            store.hold(key, for_ms=said.get("for_ms"), reason=said.get("reason"))
            reporter.tell("held", ms=said.get("for_ms"), error=said.get("reason"))
            return _answer(store, key)
        case "resume":
            held = store.resume(key)
            reporter.tell("resumed", outcome="held" if held else "not held")
            return _answer(store, key, held=held, **_wake(store, key, make_waker))
        case "cancel":
            found = store.cancel(key, said["id"], policy=_LONGEST)
            reporter.tell("cancelled", message_id=said["id"], fence=found.fence, outcome=found.state)
            return _answer(store, key, message=_status(said["id"], found))
        case _:
            return _release(store, key, make_waker)


def ask(function: str, request: Object, *, clients: Callable[[str], Any] | None = None) -> Object:
    """Let the sweeper's function carry out a request, and return its answer.

    ``function`` is its name or ARN, with the alias for control if it has one. The caller needs
    ``lambda:InvokeFunction`` on it. Raises ``IncumbentError`` with the error of the function, or of the call.
    """
    from incumbent.doctor.check import AwsClients, text_of
    from incumbent.doctor.functions import invoke

    clients = clients or AwsClients(read_s=_FUNCTION_S)
    try:
        said = invoke(clients("lambda"), function, {"incumbent": {"v": VERSION, "control": request}})
    except IncumbentError:
        raise
    except Exception as error:
        raise IncumbentError(f"{function} could not be invoked: {text_of(error)}") from error
    if not isinstance(said, dict) or said.get("v") != VERSION:
        raise IncumbentError(
            f"{function} did not answer as the sweeper does: is it the sweeper, with a layer as new as this command?"
        )
    return said


def answer(event: Object, provider: object, *, make_waker: Callable[[], Waker]) -> Object:
    """Answer what stands under ``incumbent`` in an event of the sweeper's function: a version and a request.

    Raises ``StoredFormatUnknown`` for a later version, and what `carry_out` raises.
    """
    version = event.get("v")
    if type(version) is not int or set(event) != {"v", "control"}:
        raise ConfigurationError(f"the event for control is {shown(event)}: give v and control")
    if version != VERSION:
        raise StoredFormatUnknown(f"a request for control of version {version}: this function knows {VERSION}")
    return carry_out(provider, event["control"], make_waker=make_waker)


def _checked(request: object) -> Object:
    if not isinstance(request, dict) or request.get("do") not in FIELDS:
        raise ConfigurationError(f"a request for control is {shown(request)}: its do is one of {', '.join(FIELDS)}")
    fields = FIELDS[request["do"]]
    said = {name: value for name, value in request.items() if name != "do" and value is not None}
    for name, value in said.items():
        if name not in fields or type(value) is not fields[name]:
            wanted = ", ".join(f"{each} ({kind.__name__})" for each, kind in fields.items())
            raise ConfigurationError(f"{request['do']}: {name} is {shown(value)}; it takes {wanted}")
    if missing := sorted((_NEEDED & set(fields)) - set(said)):
        raise ConfigurationError(f"{request['do']}: {' and '.join(missing)} is missing")
    if said.get("only", "held") not in _ONLY:
        raise ConfigurationError(f"keys: only is {shown(said['only'])}; allowed are {', '.join(_ONLY)}")
    if not 1 <= said.get("limit", 1) <= MAX_KEYS:
        raise ConfigurationError(f"keys: limit is {said['limit']:,}; allowed are 1 to {MAX_KEYS:,}")
    return {**said, "do": request["do"]}


def _keys(store: Control, said: Object) -> Object:
    limit, space = said.get("limit", MAX_KEYS), check_keyspace(said.get("keyspace", ""))
    found: list[Object] = []
    unread: list[str] = []
    others: set[str] = set()
    in_keyspace = more = False
    try:
        for each in store.keys(MAX_LIMIT):
            if not is_in_keyspace(each.key, space):
                others.add(split_key(each.key)[0])
                continue
            in_keyspace = True
            if "only" not in said or _ONLY[said["only"]](each):
                if len(found) == limit:
                    more = True
                    break
                found.append(_object(each))
    except (StoredFormatUnknown, ListIncomplete) as error:
        unread = [str(each) for each in error.skipped] or [str(error)]
    keyspaces = [] if in_keyspace else sorted(others)[:_MAX_KEYSPACES]
    return {"v": VERSION, "keys": found, "more": more, "unread": unread, "there": in_keyspace, "keyspaces": keyspaces}


def _stop(store: Controlled, said: Object, reporter: Reporter) -> Object:
    fence = store.stop(said["key"], fence=said.get("fence"), reason=said.get("reason"))
    outcome = "no run" if fence is None else "marked"
    reporter.tell("stop_sent", fence=fence, outcome=outcome, error=said.get("reason"))
    return _answer(store, said["key"], fence=fence)


def _release(store: Controlled, key: str, make_waker: Callable[[], Waker]) -> Object:
    """Free the key, whatever its owner does. That cannot hit a successor, which has another owner string (R2)."""
    found = store.show(key)
    if found.owner is None:
        return {"v": VERSION, "released": None, "key": _object(found)}
    store.release_lease(key, found.owner)
    return _answer(store, key, released={"owner": found.owner, "fence": found.fence}, **_wake(store, key, make_waker))


def _wake(store: Control, key: str, make_waker: Callable[[], Waker]) -> Object:
    """Wake the function of a key that is free now, if a message is due."""
    try:
        return {"woken": wake_if_due(store, key, make_waker()), "wake_error": None}
    except Exception as error:  # noqa: BLE001 - what was asked is done already, and the operator must know
        return {"woken": None, "wake_error": describe(error)}


def _answer(store: Control, key: str, **said: Any) -> Object:
    return {"v": VERSION, **said, "key": _object(store.show(key))}


def _object(found: KeyStatus, *, messages: bool = False, events: bool = False) -> Object:
    """Make the JSON form of a key's status: times as text, and as milliseconds what has passed or is left."""
    now_ms, held_ms = _now_ms(), found.held_until_ms
    oldest_ms = min((each.stored_at_ms for each in found.waiting), default=None)
    lists = {
        name: [_message(each, now_ms, events=events) for each in getattr(found, name)]
        for name in ("running", "waiting")
    }
    return {
        "key": found.key,
        "keyspace": split_key(found.key)[0],
        "owner": found.owner,
        "fence": found.fence,
        "since": _when(found.since_ms),
        "age_ms": _passed(found.since_ms, now_ms),
        "expires_in_ms": found.expires_in_ms,
        "held": held_ms is not None,
        "held_until": None if held_ms == FOREVER_MS else _when(held_ms),
        "held_reason": found.held_reason,
        "quiet_until": _when(found.quiet_until_ms),
        "stop": found.stop,
        "note": found.note,
        "target": found.target,
        "oldest_ms": _passed(oldest_ms, now_ms),
        **(lists if messages else {name: len(each) for name, each in lists.items()}),
    }


def _message(message: Message, now_ms: int, *, events: bool) -> Object:
    return {
        "id": message.id,
        "attempts": message.attempt,
        "stored_at": _when(message.stored_at_ms),
        "age_ms": _passed(message.stored_at_ms, now_ms),
        "due_in_ms": max(0, message.due_at_ms - now_ms),
        "promised": message.promised,
        "last_error": message.last_error,
        **({"event": message.event} if events else {}),
    }


def _status(message_id: str, found: Status) -> Object:
    return {"id": message_id, "state": found.state, "owner": found.owner, "fence": found.fence}


def _is_controlled(value: object) -> TypeGuard[Controlled]:
    return is_lease_provider(value) and is_mailbox(value) and is_control(value)


def _now_ms() -> int:
    return clock_in_force(SYSTEM_CLOCK).now().wall_ms


def _passed(at_ms: int | None, now_ms: int) -> int | None:
    return None if at_ms is None else max(0, now_ms - at_ms)


def _when(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms // 1_000, UTC).isoformat().replace("+00:00", "Z")
