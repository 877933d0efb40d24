"""Time that passes for what Redis stores of a key: the server's clock cannot be moved, so the stored times are."""

from collections.abc import Sequence
from typing import Any

# Moves the stored times of one key into the past, and what is left to live with them.
_SHIFT = """
local ms, FOREVER = tonumber(ARGV[1]), 253402300799000
local LEASE, STATE, MAIL, MESSAGES, ENDED, DEAD, LETTERS, HOLD = unpack(KEYS)
local function int(number) return string.format('%.0f', number) end
local function earlier(array, ...)
    for _, position in ipairs({ ... }) do
        local at = array[position]
        if at and at > 0 and at < FOREVER then array[position] = at - ms end
    end
end
local function earlier_meta(meta) earlier(meta, 4, 6, 9, 10) return meta end
local function earlier_hash(name)
    local fields = redis.call('HGETALL', name)
    for i = 1, #fields, 2 do
        if string.sub(fields[i], 1, 1) == 'm' then
            redis.call('HSET', name, fields[i], cmsgpack.pack(earlier_meta(cmsgpack.unpack(fields[i + 1]))))
        end
    end
end
local text = redis.call('GET', STATE)
if text then
    local state = cmsgpack.unpack(text)
    earlier(state, 4, 5, 19)
    if type(state[24]) == 'table' then earlier(state[24], 1, 2, 10) end
    if state[20] ~= '' then
        local held = cmsgpack.unpack(state[20])
        for _, each in ipairs(held) do earlier_meta(each[2]) end
        state[20] = cmsgpack.pack(held)
    end
    if state[21] ~= '' then
        local traces = { cmsgpack.unpack(state[21]) }
        state[21] = ''
        for _, each in ipairs(traces) do
            each[3] = each[3] - ms
            state[21] = state[21] .. cmsgpack.pack(each)
        end
    end
    local pttl = redis.call('PTTL', STATE)
    redis.call('SET', STATE, cmsgpack.pack(state))
    if pttl > 0 then redis.call('PEXPIRE', STATE, pttl) end
end
local mail = redis.call('ZRANGE', MAIL, 0, -1, 'WITHSCORES')
for i = 1, #mail, 2 do
    if tonumber(mail[i + 1]) >= 1e12 then redis.call('ZADD', MAIL, int(mail[i + 1] - ms), mail[i]) end
end
earlier_hash(MESSAGES)
earlier_hash(LETTERS)
local fields = redis.call('HGETALL', ENDED)
for i = 1, #fields, 2 do
    if string.find(fields[i], '^[hdf]:%d+$') then
        local trace = cmsgpack.unpack(fields[i + 1])
        trace[3] = trace[3] - ms
        redis.call('HSET', ENDED, fields[i], cmsgpack.pack(trace))
    end
end
for _, name in ipairs(KEYS) do
    local pttl = redis.call('PTTL', name)
    if pttl >= 0 and pttl <= ms then redis.call('DEL', name) end
    if pttl > ms then redis.call('PEXPIRE', name, int(pttl - ms)) end
end
"""


def pass_key_time(client: Any, names: Sequence[str], ms: int) -> None:
    """Let time pass for one key, all of whose names are given: the server's clock stands."""
    client.eval(_SHIFT, len(names), *names, ms)
