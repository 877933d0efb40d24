-- The code that the scripts that read or change messages share. The provider puts it after common.lua.

local REMEMBERED = 256 -- traces kept per key and outcome (M5: once per id)
local LETTERS_MS = 14 * DAY_MS
local AT_ONCE = 1000 -- fields read in one call: Lua's stack holds a few thousand

-- The messages that this call has moved to the dead letters, as id, meta, body of each, for the answer (M6: failure).
local dead_lettered = {}

-- Reads the meta of the messages of these ids into `k.mail`, in their order. Returns a refusal, or nil.
local function load_messages(ids)
    for first = 1, #ids, AT_ONCE do
        local last = math.min(#ids, first + AT_ONCE - 1)
        local texts = call('HMGET', META, unpack(ids, first, last))
        for i = first, last do
            local text = texts[i - first + 1]
            if not text then return { 'broken', 'meta' } end
            local meta = cjson.decode(text)
            if meta.v ~= FORMAT then return { 'format', 'meta', tostring(meta.v) } end
            k.mail[#k.mail + 1] = { id = ids[i], meta = meta }
        end
    end
end

local function load_mail()
    if k.stored > 0 then return load_messages(call('ZRANGE', MAIL, 0, -1)) end
end

local function is_stored(id)
    return k.stored > 0 and call('ZSCORE', MAIL, id)
end

-- Returns the messages that are due and not given to that tenure, oldest first. A paused message that blocks hides all
-- later ones (M6: failure). Of a
-- free key, `end_runs` comes first.
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

-- Returns the messages that the present tenure was given.
local function given()
    local found = {}
    for _, message in ipairs(k.mail) do
        if not message.gone and message.meta.given == k.fence then found[#found + 1] = message end
    end
    return found
end

-- The pause after that many deliveries; none where no policy was noted yet.
local function pause_after(attempts)
    local pauses = {}
    for pause in string.gmatch(k.pauses, '%d+') do
        pauses[#pauses + 1] = tonumber(pause)
    end
    return #pauses == 0 and 0 or pauses[math.min(math.max(attempts, 1), #pauses)]
end

-- Takes back what the last tenure was given and did not settle, save for what `fence` was given: its run died with it,
-- or dies now. Such a message pauses as if it had failed when the tenure ended, and goes behind all that wait; where
-- paused messages block, it keeps its place (M6). Nothing is written before `finish_mail`.
local function end_runs(fence)
    -- Where a stranger has removed the lease before its time, it counts as ended when it would have.
    local ended = k.owner and math.min(now, k.ended_at) or k.ended_at
    local kept, behind = {}, {}
    for _, message in ipairs(k.mail) do
        local meta = message.meta
        if not message.gone and meta.given ~= '0' and meta.given ~= fence then
            meta.due, meta.given = ended + pause_after(meta.attempts), '0'
            message.changed, message.died, message.moved = true, true, not k.block
        end
        local list = message.moved and behind or kept
        list[#list + 1] = message
    end
    for _, message in ipairs(behind) do
        kept[#kept + 1] = message
    end
    k.mail = kept
end

-- `adopt`, which begins a tenure where it makes a foreign lease ours: earlier runs are over then.
local function adopt_mail(fence)
    if not k.known then end_runs(fence) end
    adopt(fence)
end

local function last_place(set)
    return tonumber(call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2] or 0)
end

-- Puts a message at the end of the mailbox; `finish_mail` writes its meta.
local function store(id, body, meta)
    meta.v, meta.stored, meta.attempts, meta.due, meta.given = FORMAT, now, 0, 0, '0'
    call('ZADD', MAIL, int(last_place(MAIL) + 1), id)
    call('HSET', BODY, id, body)
    k.stored = k.stored + 1
    k.mail[#k.mail + 1] = { id = id, meta = meta, body = body, changed = true }
end

-- Takes a message out of the mailbox.
local function remove(message)
    message.gone = true
    call('ZREM', MAIL, message.id)
    call('HDEL', META, message.id)
    call('HDEL', BODY, message.id)
    k.stored = k.stored - 1
end

-- Gives a message to the present tenure, and counts the delivery in the same step (M6: failure).
local function give(message)
    message.meta.attempts = message.meta.attempts + 1
    message.meta.given = k.fence
    message.changed = true
end

local function promise(message)
    if not message.meta.promised then
        message.meta.promised = true
        message.changed = true
    end
end

-- Traces. `ended` holds three queues in one hash, one for each outcome: h(andled), d(ead), f(ailed):
--   v                 the format
--   <outcome>         '<first> <last> <count>': the numbers in use, and how many of them still are
--   <outcome>:<n>     '<fence> <at> <bytes of by> <by><id>'
--   id:<id>           '<outcome>:<n>' of the last trace of an id that was handled or died (M5)
--   by:<by>           'f:<n>' of the last trace of a claim whose own message failed (M3)
--   purges            the token of each of the last purges (R8: lost replies)

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

-- Returns the last trace under 'id:<id>' or 'by:<by>', if the window reaches back to it.
local function trace_of(index, window)
    local trace = k.traces and read_trace(call('HGET', ENDED, index))
    if trace and now - trace.at < window then return trace end
end

-- Leaves a trace of a message in the present tenure.
local function trace(outcome, message, window)
    local first, last, count = queue(outcome)
    last = last + 1
    local by, id = message.meta.by, message.id
    local name = outcome .. ':' .. int(last)
    call('HSET', ENDED, 'v', VERSION, outcome, int(first) .. ' ' .. int(last) .. ' ' .. int(count + 1),
        name, k.fence .. ' ' .. int(now) .. ' ' .. #by .. ' ' .. by .. id,
        outcome == 'f' and 'by:' .. by or 'id:' .. id, name)
    if call('PTTL', ENDED) < window then call('PEXPIRE', ENDED, int(window)) end
    k.traces = VERSION
end

-- Removes traces older than the window, and all but the last 256 of each outcome (M5: once per id).
local function forget(window)
    for _, outcome in ipairs(k.traces and { 'h', 'd', 'f' } or {}) do
        local first, last, count = queue(outcome)
        local from = first
        while first <= last do
            local name = outcome .. ':' .. int(first)
            local old = read_trace(name)
            if old then
                if count <= REMEMBERED and now - old.at < window then break end
                count = count - 1
                local index = outcome == 'f' and 'by:' .. old.by or 'id:' .. old.id
                call('HDEL', ENDED, name)
                if call('HGET', ENDED, index) == name then call('HDEL', ENDED, index) end
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

-- Returns a dead letter's meta and body; for one that this version cannot read, nil and its format, or nil and '' if it
-- is broken.
local function read_letter(id)
    local text = call('HGET', LETTERS, id)
    local line = text and string.find(text, '\n', 1, true)
    if not line then return nil, '' end
    local is_json, meta = pcall(cjson.decode, string.sub(text, 1, line - 1))
    if not is_json or type(meta) ~= 'table' then return nil, '' end
    if meta.v ~= FORMAT then return nil, tostring(meta.v) end
    if type(meta.died) ~= 'number' then return nil, '' end
    return meta, string.sub(text, line + 1)
end

-- Moves a message that is out of attempts to the dead letters, which are kept for 14 days (M6: failure).
local function dead_letter(message, window)
    local body = message.body or call('HGET', BODY, message.id)
    remove(message)
    message.meta.died = now
    local meta = cjson.encode(message.meta)
    if not call('ZSCORE', DEAD, message.id) then k.letters = k.letters + 1 end
    call('ZADD', DEAD, int(last_place(DEAD) + 1), message.id)
    call('HSET', LETTERS, message.id, meta .. '\n' .. body)
    dead_lettered[#dead_lettered + 1], dead_lettered[#dead_lettered + 2], dead_lettered[#dead_lettered + 3] = message.id, meta, body
    for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
        local letter = read_letter(id)
        if not letter or now - letter.died < LETTERS_MS then break end
        drop_letter(id)
    end
    call('PEXPIRE', DEAD, int(LETTERS_MS))
    call('PEXPIRE', LETTERS, int(LETTERS_MS))
    trace('d', message, window)
end

local function is_spent(message, max_attempts)
    return message.died and not message.gone and message.meta.attempts >= max_attempts
end

-- Buries those whose run died and that are out of attempts: they need not pause first (M6).
local function dead_letter_spent(max_attempts, window)
    for _, message in ipairs(k.mail) do
        if is_spent(message, max_attempts) then dead_letter(message, window) end
    end
end

-- Gives the oldest due message to the present tenure, and moves those out of attempts before it to the dead letters
-- (M4: order, M6: failure).
local function deliver(max_attempts, window)
    for _, message in ipairs(due(k.tenure)) do
        if message.meta.attempts < max_attempts then
            give(message)
            return
        end
        dead_letter(message, window)
    end
end

-- Writes the changed messages, then the state.
local function finish_mail()
    for _, message in ipairs(k.mail) do
        if message.moved and not message.gone then call('ZADD', MAIL, int(last_place(MAIL) + 1), message.id) end
        if message.changed and not message.gone then
            call('HSET', META, message.id, cjson.encode(message.meta))
        end
    end
    finish()
end

-- Returns {<tag>, fence, PTTL, number of other due messages, {id, meta, body of each dead_lettered message}, then id, meta,
-- body of each message that the tenure was given}.
local function granted(tag, leave_out)
    local answer = { tag, k.fence, k.pttl, #due(k.tenure), dead_lettered }
    for _, message in ipairs(given()) do
        if not leave_out[message.id] then
            answer[#answer + 1] = message.id
            answer[#answer + 1] = cjson.encode(message.meta)
            answer[#answer + 1] = message.body or call('HGET', BODY, message.id)
        end
    end
    return answer
end
