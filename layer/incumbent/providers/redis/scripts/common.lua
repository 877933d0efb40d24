-- The code that all scripts of the Redis provider share. The provider puts it before each script; for scripts that
-- touch messages, mail.lua comes between them.
--
-- KEYS, the same eight for every script, all in the lease key's hash slot:
--   1  <prefix>:lease:<key>   the lease: a plain string, the owner, with PX. Expiry is the server's (R3)
--   2  {<lease>}:state        hash: v, owner, fence, since, until, block, pauses, left_*, keyspace, target, request_id,
--                           log_stream; block and pauses (separated by commas) as the policy last said (M6)
--   3  {<lease>}:mail         sorted set: the ids of stored messages, by their place in the order (M4)
--   4  {<lease>}:meta         hash: id -> JSON of v, by, promised, stored, attempts, due, given, error
--   5  {<lease>}:body         hash: id -> the event's JSON text, byte for byte
--   6  {<lease>}:ended        hash: the traces of messages that left (M3, M5, R9); see mail.lua
--   7  {<lease>}:dead         sorted set: the ids of dead letters, the longest dead first (M6)
--   8  {<lease>}:letters      hash: id -> a dead letter: its meta with `died`, a newline, its body
--
-- Times are the server's, in epoch milliseconds. Fences are kept and answered as text: they have more digits than
-- Lua prints by itself (H30). A message is given to a tenure when its `given` is the tenure's fence; else it is '0'.
--
-- mail, meta and body exist only while messages are stored, and have no TTL. state has no TTL while messages are
-- stored; else it lives for a day longer than the lease, or as long as the dead letters. ended, dead and letters
-- always have a TTL. Fields that this version does not know stay unchanged (M12: format): in meta, text or whole
-- numbers.
--
-- A script reads all records, and refuses unknown ones, before its first write (M12: format). A read of a record of
-- another type fails with WRONGTYPE. Answers are arrays whose first element names the answer. Besides its own answers,
-- every script may return
--   {'format', <record>, <version>}   written by a version that this one does not know
--   {'broken', <record>}              records that belong together do not match: evicted, or edited by hand
-- A missing owner or target is '' in arguments, records and answers.

local LEASE, STATE, MAIL, META, BODY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ENDED, DEAD, LETTERS = KEYS[6], KEYS[7], KEYS[8]

local FORMAT = 1
local VERSION = '1' -- the same, as a hash keeps it
local DAY_MS = 86400000

local call = redis.call

local function int(number)
    return string.format('%.0f', number)
end

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

-- The key's present state: `owner` is false when it is free; `tenure` is the fence of the live tenure, and nil when
-- the key is free or its lease is foreign (its owner is not the one in the state). `changes` holds fields of the state
-- and their values, for `finish` to write.
local k = { mail = {}, changes = {} }

-- Reads everything but the messages. Returns a refusal, or nil.
local function load()
    k.owner = call('GET', LEASE)
    k.pttl = k.owner and call('PTTL', LEASE) or -2
    local state = call('HMGET', STATE, 'v', 'owner', 'fence', 'until', 'block', 'left_how', 'left_owner',
        'left_successor', 'left_fence', 'target', 'pauses')
    k.stored = call('ZCARD', MAIL)
    local metas, bodies = call('HLEN', META), call('HLEN', BODY)
    k.traces = call('HGET', ENDED, 'v')
    k.letters = call('ZCARD', DEAD)
    local letters = call('HLEN', LETTERS)
    if state[1] and state[1] ~= VERSION then return { 'format', 'state', state[1] } end
    if k.traces and k.traces ~= VERSION then return { 'format', 'ended', k.traces } end
    if metas ~= k.stored or bodies ~= k.stored then return { 'broken', 'mail' } end
    if letters ~= k.letters then return { 'broken', 'letters' } end
    k.fence = state[3] or '0'
    k.ended_at = tonumber(state[4] or 0)
    k.block = state[5] == '1'
    k.left = { how = state[6] or '', owner = state[7], successor = state[8], fence = state[9] }
    k.target = state[10] or ''
    k.pauses = state[11] or ''
    k.known = k.owner and k.owner == (state[2] or '')
    k.tenure = k.known and k.fence or nil
end

-- Notes changes of the state, as name, value, name, value ...
local function note(...)
    local changes = k.changes
    for i = 1, select('#', ...) do
        changes[#changes + 1] = (select(i, ...))
    end
end

-- Makes a write that needs no memory. After it, a server that is out of memory refuses no further write of the script.
local function begin()
    call('PERSIST', STATE)
end

-- Writes the state and sets its TTL: none while messages are stored, else a day longer than the lease.
local function finish()
    note('v', VERSION)
    call('HSET', STATE, unpack(k.changes))
    if k.stored > 0 then
        call('PERSIST', STATE)
    else
        local lives = math.max(k.pttl, 0) + DAY_MS
        if k.letters > 0 then lives = math.max(lives, call('PTTL', DEAD)) end
        call('PEXPIRE', STATE, int(lives))
    end
end

-- Returns whether the owner's lease is live, in the tenure of that fence if it is known (R2: acquire, R3: expiry).
local function owned_by(owner, fence)
    return k.owner == owner and (not k.known or fence == '' or fence == k.fence)
end

-- Begins a tenure of the present owner: with that fence, or with a new one, greater than any before and not behind
-- the clock (R7: fence).
local function start_tenure(fence)
    k.fence = fence or int(math.max(tonumber(k.fence) + 1, now_us))
    k.known, k.tenure = true, k.fence
    note('owner', k.owner, 'fence', k.fence, 'since', int(now), 'until', int(now + math.max(k.pttl, 0)), 'left_how', '')
end

-- Grants the key, free or not.
local function grant(owner, ttl)
    call('SET', LEASE, owner, 'PX', int(ttl))
    k.owner, k.pttl = owner, ttl
    start_tenure()
end

-- Turns a foreign lease into a tenure when its owner calls: with the fence that the owner was granted, if the state
-- was lost.
local function adopt(fence)
    if not k.known then start_tenure(fence ~= '' and fence or nil) end
end

-- Extends the lease to at least ttl from now, and never shortens it (R4: renew). A foreign lease without expiry gets
-- one.
local function extend(ttl)
    if k.pttl < ttl then
        call('PEXPIRE', LEASE, int(ttl))
        k.pttl = ttl
    end
    note('until', int(now + k.pttl))
end

-- Notes how a tenure ended, or was passed on: the evidence for a repeated call (R8: lost replies).
local function leave(how, owner, successor, fence)
    note('left_how', how, 'left_owner', owner, 'left_successor', successor, 'left_fence', fence)
end

-- Ends a tenure on purpose: the key is free from now on.
local function free(how, owner, fence)
    call('DEL', LEASE)
    k.owner, k.known, k.tenure, k.pttl = false, false, nil, -2
    note('owner', '', 'since', int(now), 'until', int(now))
    leave(how, owner, '', fence)
end
