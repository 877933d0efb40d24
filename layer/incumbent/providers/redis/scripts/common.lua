-- What all scripts of the Redis provider share: it is put before each of them when they are loaded.
--
-- KEYS, the same eight for every script, all in the lease key's hash slot (H24):
--   1  <prefix>:lease:<key>   the lease: a plain string, the owner, with PX. Expiry is the server's (R3)
--   2  {<lease>}:state        hash: v, owner, fence, since, until, block, left_*, keyspace, target, request_id, log_stream
--   3  {<lease>}:mail         sorted set: the ids of stored messages, by their place in the order (M4)
--   4  {<lease>}:meta         hash: id -> JSON of v, by, promised, stored, attempts, due, given, error
--   5  {<lease>}:body         hash: id -> the event's JSON text, byte for byte
--   6  {<lease>}:ended        hash: the traces of messages that left (M3, M5, R9); see `trace`
--   7  {<lease>}:dead         sorted set: the ids of dead letters, the longest dead first (M6)
--   8  {<lease>}:letters      hash: id -> a dead letter: its meta with `died`, a newline, its body
--
-- Times are the server's, in epoch milliseconds. Fences are kept and answered as text: they have more digits than
-- Lua prints by itself (H30). A message is given to a tenure when its `given` is the tenure's fence.
--
-- mail, meta and body exist only while messages are stored, and have no TTL. state has none while messages are
-- stored, and else lives for a day longer than the lease, or as long as the dead letters. ended, dead and letters
-- always have one. Fields that this version does not know stay as they are (M12): in meta, text or whole numbers.
--
-- A script reads, and refuses what it does not know, before its first write (M12): what is of another type makes
-- its read fail with WRONGTYPE (H29). Answers are arrays whose first element says which answer it is; besides its
-- own, every script may answer
--   {'format', <record>, <version>}   written by a version that this one does not know
--   {'broken', <record>}              records that belong together do not: evicted, or edited by hand
-- An owner or a target that is not there is '' in arguments, records and answers.

local LEASE, STATE, MAIL, META, BODY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ENDED, DEAD, LETTERS = KEYS[6], KEYS[7], KEYS[8]

local FORMAT = 1
local REMEMBERED = 256 -- M5: traces kept per key and outcome
local DAY_MS = 86400000
local LETTERS_MS = 14 * DAY_MS
local AT_ONCE = 1000 -- fields asked for in one call: Lua's stack holds a few thousand

local call = redis.call

local function int(number)
    return string.format('%.0f', number)
end

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

-- The key as it stands: `owner` is false when it is free; `tenure` is the fence of the live tenure, and nil when
-- the key is free or its lease foreign, which is one whose owner our state does not know.
local k = { mail = {} }

-- Reads all but the messages. Answers a refusal, or nil.
local function load()
    k.owner = call('GET', LEASE)
    k.pttl = k.owner and call('PTTL', LEASE) or -2
    local state = call('HMGET', STATE, 'v', 'owner', 'fence', 'until', 'block', 'left_how', 'left_owner',
        'left_successor', 'left_fence', 'target')
    k.stored = call('ZCARD', MAIL)
    local metas, bodies = call('HLEN', META), call('HLEN', BODY)
    local traces = call('HGET', ENDED, 'v')
    k.letters = call('ZCARD', DEAD)
    local letters = call('HLEN', LETTERS)
    if state[1] and state[1] ~= int(FORMAT) then return { 'format', 'state', state[1] } end
    if traces and traces ~= int(FORMAT) then return { 'format', 'ended', traces } end
    if metas ~= k.stored or bodies ~= k.stored then return { 'broken', 'mail' } end
    if letters ~= k.letters then return { 'broken', 'letters' } end
    k.recorded = state[2] or ''
    k.fence = state[3] or '0'
    k.ended_at = tonumber(state[4] or 0)
    k.block = state[5] == '1'
    k.left = { how = state[6] or '', owner = state[7], successor = state[8], fence = state[9] }
    k.target = state[10] or ''
    k.known = k.owner and k.owner == k.recorded
    k.tenure = k.known and k.fence or nil
end

-- Reads the meta of the messages of these ids into `k.mail`, in their order. Answers a refusal, or nil.
local function load_messages(ids)
    for first = 1, #ids, AT_ONCE do
        local last = math.min(#ids, first + AT_ONCE - 1)
        local texts = call('HMGET', META, unpack(ids, first, last))
        for i = first, last do
            local text = texts[i - first + 1]
            if not text then return { 'broken', 'meta' } end
            local message = cjson.decode(text)
            if message.v ~= FORMAT then return { 'format', 'meta', tostring(message.v) } end
            k.mail[#k.mail + 1] = { id = ids[i], meta = message }
        end
    end
end

local function load_mail()
    if k.stored > 0 then return load_messages(call('ZRANGE', MAIL, 0, -1)) end
end

-- Whether the owner's lease is live, in the tenure of that fence if it is known (R2, R3).
local function owned_by(owner, fence)
    return k.owner == owner and (not k.known or fence == '' or fence == k.fence)
end

-- Messages that are due and not given to that tenure, oldest first; behind a paused one that blocks none is (M6).
local function due(tenure)
    local found = {}
    for _, message in ipairs(k.mail) do
        if not message.gone and not (tenure and message.meta.given == tenure) then
            if message.meta.due <= now then
                found[#found + 1] = message
            elseif k.block then
                break
            end
        end
    end
    return found
end

-- What the present tenure was given.
local function given()
    local found = {}
    for _, message in ipairs(k.mail) do
        if not message.gone and message.meta.given == k.fence then found[#found + 1] = message end
    end
    return found
end

-- Starts a tenure: a fence greater than any before and not behind the clock (R7).
local function grant(owner, ttl)
    k.fence = int(math.max(tonumber(k.fence) + 1, now_us))
    k.owner, k.known, k.tenure, k.pttl = owner, true, k.fence, ttl
    call('SET', LEASE, owner, 'PX', int(ttl))
    call('HSET', STATE, 'v', int(FORMAT), 'owner', owner, 'fence', k.fence, 'since', int(now),
        'until', int(now + ttl), 'left_how', '')
end

-- Records how a tenure ended, or was passed on: the evidence for a repeated call (R8).
local function leave(how, owner, successor, fence)
    call('HSET', STATE, 'v', int(FORMAT), 'left_how', how, 'left_owner', owner, 'left_successor', successor,
        'left_fence', fence)
end

-- Ends a tenure on purpose: the key is free from now on.
local function free(how, owner, fence)
    k.owner, k.known, k.tenure, k.pttl = false, false, nil, -2
    call('DEL', LEASE)
    call('HSET', STATE, 'owner', '', 'since', int(now), 'until', int(now))
    leave(how, owner, '', fence)
end

-- Makes a foreign lease whose owner now speaks to us a tenure of ours: with the fence that the owner was granted,
-- should our state have been lost, else with a new one.
local function adopt(fence)
    if k.known then return end
    if fence == '' then fence = int(math.max(tonumber(k.fence) + 1, now_us)) end
    k.fence, k.known, k.tenure = fence, true, fence
    call('HSET', STATE, 'v', int(FORMAT), 'owner', k.owner, 'fence', fence, 'since', int(now),
        'until', int(now + math.max(k.pttl, 0)), 'left_how', '')
end

-- R4: at least ttl from now, and never earlier than it stands. A stranger's lease without expiry gets one.
local function extend(ttl)
    if k.pttl < ttl then
        call('PEXPIRE', LEASE, int(ttl))
        k.pttl = ttl
    end
    call('HSET', STATE, 'until', int(now + k.pttl))
end

-- Gives the state the life it needs: none ends while messages are stored, else a day after the lease.
local function keep()
    if k.stored > 0 then
        call('PERSIST', STATE)
    else
        local lives = math.max(k.pttl, 0) + DAY_MS
        if k.letters > 0 then lives = math.max(lives, call('PTTL', DEAD)) end
        call('PEXPIRE', STATE, int(lives))
    end
end

-- A write that needs no memory. After it, a server that is out of memory refuses none of the script's others.
local function begin()
    call('PERSIST', STATE)
end

local function last_place(set)
    return tonumber(call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2] or 0)
end

local function store(id, body, meta)
    meta.v, meta.stored, meta.attempts, meta.due, meta.given = FORMAT, now, 0, 0, '0'
    call('ZADD', MAIL, int(last_place(MAIL) + 1), id)
    call('HSET', META, id, cjson.encode(meta))
    call('HSET', BODY, id, body)
    k.stored = k.stored + 1
    k.mail[#k.mail + 1] = { id = id, meta = meta }
end

-- Writes what was changed of a message.
local function write(message)
    call('HSET', META, message.id, cjson.encode(message.meta))
end

-- Takes a message out of the mailbox.
local function remove(message)
    message.gone = true
    call('ZREM', MAIL, message.id)
    call('HDEL', META, message.id)
    call('HDEL', BODY, message.id)
    k.stored = k.stored - 1
end

-- Traces. `ended` is three queues in one hash, one for each outcome: h(andled), d(ead), f(ailed):
--   <outcome>         '<first> <last> <count>': the numbers in use, and how many of them still are
--   <outcome>:<n>     '<fence> <at> <bytes of by> <by><id>'
--   id:<id>           '<outcome>:<n>' of the last trace of an id that was handled or died (M5)
--   by:<by>           '<n>' of the last trace of a claim whose own message failed (M3)

local function queue(outcome)
    local first, last, count = string.match(call('HGET', ENDED, outcome) or '1 0 0', '^(%d+) (%d+) (%d+)$')
    return tonumber(first), tonumber(last), tonumber(count)
end

local function read_trace(name)
    local text = name and call('HGET', ENDED, name)
    if not text then return nil end
    local fence, at, size, rest = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
    return {
        outcome = string.sub(name, 1, 1),
        fence = fence,
        at = tonumber(at),
        by = string.sub(rest, 1, size),
        id = string.sub(rest, size + 1),
    }
end

-- The trace that makes an id a duplicate, if the window reaches back to it.
local function trace_of(id, window)
    local trace = read_trace(call('HGET', ENDED, 'id:' .. id))
    if trace and now - trace.at < window then return trace end
end

-- Leaves a trace of a message in the present tenure.
local function trace(outcome, message, window)
    local first, last, count = queue(outcome)
    last = last + 1
    local by, id = message.meta.by, message.id
    local index, value = 'id:' .. id, outcome .. ':' .. int(last)
    if outcome == 'f' then index, value = 'by:' .. by, int(last) end
    call('HSET', ENDED, 'v', int(FORMAT), outcome, int(first) .. ' ' .. int(last) .. ' ' .. int(count + 1),
        outcome .. ':' .. int(last), k.fence .. ' ' .. int(now) .. ' ' .. #by .. ' ' .. by .. id, index, value)
    if call('PTTL', ENDED) < window then call('PEXPIRE', ENDED, int(window)) end
end

-- Keeps traces as long as the window, and no more than the last 256 of each outcome (M5).
local function forget(window)
    for _, outcome in ipairs({ 'h', 'd', 'f' }) do
        local first, last, count = queue(outcome)
        local from = first
        while first <= last do
            local name = outcome .. ':' .. int(first)
            local old = read_trace(name)
            if old then
                if count <= REMEMBERED and now - old.at < window then break end
                count = count - 1
                local index = outcome == 'f' and 'by:' .. old.by or 'id:' .. old.id
                local latest = call('HGET', ENDED, index)
                call('HDEL', ENDED, name)
                if latest == name or latest == int(first) then call('HDEL', ENDED, index) end
            end
            first = first + 1
        end
        if first > from then
            call('HSET', ENDED, outcome, int(first) .. ' ' .. int(last) .. ' ' .. int(count))
        end
    end
end

local function drop_letter(id)
    call('ZREM', DEAD, id)
    call('HDEL', LETTERS, id)
    k.letters = k.letters - 1
end

local function read_letter(id)
    local text = call('HGET', LETTERS, id)
    local line = string.find(text, '\n', 1, true)
    return cjson.decode(string.sub(text, 1, line - 1)), string.sub(text, line + 1)
end

-- Moves a message that is out of attempts to the dead letters, which are kept for 14 days (M6).
local function bury(message, window)
    local body = call('HGET', BODY, message.id)
    remove(message)
    message.meta.died = now
    if not call('ZSCORE', DEAD, message.id) then k.letters = k.letters + 1 end
    call('ZADD', DEAD, int(last_place(DEAD) + 1), message.id)
    call('HSET', LETTERS, message.id, cjson.encode(message.meta) .. '\n' .. body)
    for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
        local letter = read_letter(id)
        if letter.v ~= FORMAT or now - letter.died < LETTERS_MS then break end
        drop_letter(id)
    end
    call('PEXPIRE', DEAD, int(LETTERS_MS))
    call('PEXPIRE', LETTERS, int(LETTERS_MS))
    trace('d', message, window)
end

-- Gives a message to the present tenure, counted as a delivery in the same step (M6).
local function give(message)
    message.meta.attempts = message.meta.attempts + 1
    message.meta.given = k.fence
    write(message)
end

-- Gives the oldest due message to the present tenure, and buries what is out of attempts before it (M4, M6).
local function deliver(max_attempts, window)
    for _, message in ipairs(due(k.tenure)) do
        if message.meta.attempts < max_attempts then
            give(message)
            return
        end
        bury(message, window)
    end
end

-- {<tag>, fence, PTTL, how many more are due, then id, meta, body of each message that the tenure was given}
local function granted(tag, leave_out)
    local answer = { tag, k.fence, k.pttl, #due(k.tenure) }
    for _, message in ipairs(given()) do
        if not leave_out[message.id] then
            answer[#answer + 1] = message.id
            answer[#answer + 1] = cjson.encode(message.meta)
            answer[#answer + 1] = call('HGET', BODY, message.id)
        end
    end
    return answer
end
