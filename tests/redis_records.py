"""What the Redis provider stores of a key, read without its code: for tests that compare it with the rules."""

import json
from collections.abc import Sequence
from typing import Any

STATE = (
    *("v", "owner", "fence", "since", "until", "block", "pauses", "left_how", "left_owner", "left_successor"),
    *("left_fence", "keyspace", "target", "request_id", "log_stream", "stored", "last", "promised_to", "kept", "held"),
    *("traces", "traced", "older", "control"),
)
CONTROL = (
    *("quiet_until", "held_until", "held_reason", "stop", "note"),
    *("resumed", "held_by", "stopped_by", "stopped", "called_at"),
)
META = ("v", "by", "promised", "stored", "attempts", "due", "error", "place", "died", "later", "arrival")
TRACE = ("outcome", "fence", "at", "by", "id", "result")

_READ = """
local LEASE, STATE, MAIL, MESSAGES, ENDED, DEAD, LETTERS, HOLD = unpack(KEYS)
local function read(text) return text and exact(cmsgpack.unpack(text)) end
local function pairs_of(name, packed)
    local found, list = {}, redis.call('HGETALL', name)
    for i = 1, #list, 2 do
        local value = list[i + 1]
        found[#found + 1] = { list[i], packed(list[i]) and read(value) or value }
    end
    return found
end
local state = read(redis.call('GET', STATE)) or false
local held, traces = false, {}
if state then
    held = state[20] ~= '' and read(state[20]) or {}
    state[20] = ''
    traces = state[21] ~= '' and exact({ cmsgpack.unpack(state[21]) }) or {}
    state[21] = ''
end
local lives = {}
for i, name in ipairs(KEYS) do lives[i] = redis.call('PTTL', name) end
local function is_meta(name) return string.sub(name, 1, 1) == 'm' end
return cjson.encode({
    owner = redis.call('GET', LEASE), state = state, held = held, traces = traces,
    mail = redis.call('ZRANGE', MAIL, 0, -1, 'WITHSCORES'), messages = pairs_of(MESSAGES, is_meta),
    ended = pairs_of(ENDED, function(name) return string.find(name, '^[hdf]:%d') end),
    dead = redis.call('ZRANGE', DEAD, 0, -1), letters = pairs_of(LETTERS, is_meta), lives = lives,
})
"""

_EXACT = """
local function exact(value)
    if type(value) == 'number' then return string.format('%.0f', value) end
    if type(value) ~= 'table' then return value end
    local copy = {}
    for i, each in ipairs(value) do copy[i] = exact(each) end
    return copy
end
"""


def pack(client: Any, *values: Any) -> bytes:
    """Return values in MessagePack, one after the other, as the scripts write them. The client returns bytes."""
    packed: bytes = client.eval(
        "local text = '' for _, each in ipairs(ARGV) do text = text .. cmsgpack.pack(cjson.decode(each)[1]) end "
        "return text",
        0,
        *(json.dumps([value]) for value in values),
    )
    return packed


def unpack(client: Any, packed: bytes) -> Any:
    """Return an array that a script has written. Numbers are text with all their digits; the client returns bytes."""
    raw: bytes = client.eval(_EXACT + "return cjson.encode(exact(cmsgpack.unpack(ARGV[1])))", 0, packed)
    return json.loads(raw.decode(errors="replace"))


_EDIT = """
local text = ARGV[1] == '' and redis.call('GET', KEYS[1]) or redis.call('HGET', KEYS[1], ARGV[1])
local array = cmsgpack.unpack(text)
for i = 2, #ARGV, 2 do array[tonumber(ARGV[i])] = cjson.decode(ARGV[i + 1])[1] end
local pttl = redis.call('PTTL', KEYS[1])
if ARGV[1] == '' then redis.call('SET', KEYS[1], cmsgpack.pack(array)) else
    redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(array)) end
if pttl > 0 then redis.call('PEXPIRE', KEYS[1], pttl) end
"""


def edit(client: Any, name: str, elements: dict[int, Any], *, field: str = "") -> None:
    """Change elements, counted from 1, of the array that a string or a field of a hash holds."""
    parts = [part for position, value in elements.items() for part in (position, json.dumps([value]))]
    client.eval(_EDIT, 1, name, field, *parts)


def records(client: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what is stored of a key. Numbers are ints; messages are in order, each once, wherever it stands.

    ``state`` is ``None`` if it is gone. ``faults`` says what does not match.
    """
    raw = client.eval(_EXACT + _READ, len(names), *names)
    found: dict[str, Any] = json.loads(raw)
    faults: list[str] = []
    state = _state(found["state"]) if found["state"] else None
    fields = dict(found["messages"] or {})
    messages: dict[str, dict[str, Any]] = {}
    for message_id, meta, given, body in found["held"] or ():
        body_there = fields.get(f"b{message_id}") if body is False else body
        messages[message_id] = {**_named(META, meta), "given": given, "body": body_there, "held": True}
        if f"m{message_id}" in fields:
            faults.append(f"{message_id} stands in the state and in messages")
    for name, meta in fields.items():
        if name.startswith("m"):
            body = fields.get(f"b{name[1:]}")
            messages[name[1:]] = {**_named(META, meta), "given": False, "body": body, "held": False}
    mail = list(found["mail"] or ())  # Lua's empty array is an object in JSON
    scores = dict(zip(mail[::2], map(float, mail[1::2]), strict=True))
    if set(scores) != set(messages) or len(scores) != (state["stored"] if state else 0):
        faults.append(f"mail has {sorted(scores)}, messages are {sorted(messages)}, the state counts {state}")
    bodies = {name[1:] for name in fields if name.startswith("b")}
    faults += [f"{name} has a body and no meta" for name in bodies - set(messages)]
    for message_id, message in messages.items():
        expected = {message["place"]} if message["given"] or not message["due"] else {message["place"], message["due"]}
        if scores.get(message_id) not in expected:
            faults.append(f"{message_id} has score {scores.get(message_id)}, and not one of {expected}")
        if message["body"] is None:
            faults.append(f"{message_id} has no body")
        if state and (message.get("arrival") or message["place"]) <= state["promised_to"]:
            message["promised"] = True
    letters = dict(found["letters"] or {})
    return {
        "owner": found["owner"] or None,
        "state": state,
        "messages": dict(sorted(messages.items(), key=_in_order)),
        "traces": [*_older(dict(found["ended"] or {})), *(_named(TRACE, each) for each in found["traces"] or ())],
        "dead": list(found["dead"] or ()),
        "letters": {name[1:]: _named(META, meta) for name, meta in letters.items() if name.startswith("m")},
        "lives": found["lives"],
        "faults": faults,
    }


def _in_order(message: tuple[str, dict[str, Any]]) -> tuple[int, int, int]:
    """Say where a message stands: several that were stored for later may have one place."""
    meta = message[1]
    return meta["place"], meta.get("later") or 0, meta.get("arrival") or 0


def _state(elements: Sequence[Any]) -> dict[str, Any]:
    """Return the record that decides; what it says of control is empty where that was never used."""
    state = _named(STATE, elements)
    return state | {"control": _named(CONTROL, state.get("control") or ())}


def _older(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the traces that have left the state, the oldest first of each outcome."""
    found = [(name[0], int(name[2:]), trace) for name, trace in fields.items() if isinstance(trace, list)]
    return [_named(TRACE, trace) for _, _, trace in sorted(found, key=lambda each: each[:2])]


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Give the elements of an array their names, and make numbers of those that are."""
    return {
        name: int(value) if isinstance(value, str) and name in _NUMBERS else value
        for name, value in zip(names, values, strict=False)
    }


_NUMBERS = frozenset(
    {
        *("v", "fence", "since", "until", "block", "left_fence", "stored", "last", "promised_to", "kept", "traced"),
        *("older", "attempts", "due", "place", "died", "at", "later", "arrival"),
        *("quiet_until", "held_until", "stopped", "called_at"),
    }
)
