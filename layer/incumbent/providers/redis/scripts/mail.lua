-- Storing, giving and removing messages: all changes are made in memory, and written by `finish` at the end.

-- What `finish` writes besides: commands for traces and dead letters.
local more = {}

local function later(...)
    more[#more + 1] = { ... }
end

-- Returns a stored message by its id, or nil.
function mail.find(id)
    local known = mail.by_id[id]
    if known or mail.unknown() == 0 then return known and not known.gone and known or nil end
    local score = call('ZSCORE', MAIL, id)
    if not score then return nil end
    local message = mail.fetch({ id }, true)[1]
    if message then message.score = tonumber(score) end
    return message
end

function mail.body(message)
    if not message.body then message.body = call('HGET', MESSAGES, 'b' .. message.id) end
    if not message.body then mail.refusal = { 'broken', 'messages' } end
    return message.body or ''
end

-- Puts a message at the end of the mailbox. One for later goes before the first that was never delivered and is for a
-- later moment still (M14).
function mail.store(message, due)
    state.last, state.stored = state.last + 1, state.stored + 1
    message.meta, message.place, message.later, message.arrival = message.meta or {}, state.last, nil, nil
    message.stored, message.attempts, message.due, message.dead_ms, message.given = now, 0, due or 0, 0, false
    if due then
        local first
        local ids = mail.unknown() > 0 and mail.strange(call('ZRANGEBYSCORE', MAIL, '(' .. int(due), '+inf')) or {}
        for _, list in ipairs({ mail.fetch(ids), mail.list }) do
            for _, other in ipairs(list) do
                if not other.gone and other.attempts == 0 and other.due > due
                    and (not first or mail.is_before(other, first)) then
                    first = other
                end
            end
        end
        message.place, message.later, message.arrival = first and first.place or state.last, due, state.last
    end
    return mail.add(message)
end

function mail.remove(message)
    message.gone, message.given = true, false
    state.stored = state.stored - 1
end

-- Gives a message to the present tenure, and counts the delivery in the same step (M6: failure).
function mail.give(message)
    message.attempts = message.attempts + 1
    message.given, message.changed = true, true
end

function mail.is_promised(message)
    return message.promised or (message.arrival or message.place) <= state.promised_to
end

function mail.promise(message)
    if not mail.is_promised(message) then
        message.promised, message.changed = true, true
    end
end

-- Returns the messages that the present tenure was given, oldest first.
function mail.given()
    local found = {}
    for _, message in ipairs(mail.list) do
        if message.given then found[#found + 1] = message end
    end
    mail.sort(found)
    return found
end

-- Returns the oldest message that is due and not given, or nil (M4: order). A paused one that blocks hides all later
-- ones (M6).
function mail.next_due()
    mail.load_due()
    local oldest
    for _, message in ipairs(mail.list) do
        if not message.gone and not message.given and message.due <= now
            and (not oldest or mail.is_before(message, oldest)) then
            oldest = message
        end
    end
    if mail.unknown() > 0 then
        local found = call('ZRANGE', MAIL, 0, #mail.list, 'WITHSCORES') -- one of these is not known yet
        for i = 1, #found, 2 do
            local id, place = found[i], tonumber(found[i + 1])
            if not mail.by_id[id] then
                if place < 1e12 and (not oldest or place < oldest.place) then
                    oldest = mail.fetch({ id }, true)[1]
                    if oldest then oldest.score = place end
                end
                break
            end
        end
    end
    if oldest and not mail.refusal and mail.is_open(oldest, mail.blocker()) then return oldest end
end

-- Tells the caller about a message: attempts, times, whether it is promised, and after these its last error.
function mail.told(message)
    local promised = mail.is_promised(message) and 1 or 0
    local text = string.format('%d %.0f %.0f %d', message.attempts, message.stored, message.due, promised)
    return message.error and text .. ' ' .. message.error or text
end

-- Calls a command with a key and as many of the arguments at once as Lua's stack holds.
local function all_of(command, key, arguments)
    for first = 1, #arguments, AT_ONCE do
        call(command, key, unpack(arguments, first, math.min(#arguments, first + AT_ONCE - 1)))
    end
end

-- Writes everything. `urgent` is for what an owner must be able to finish when the server's memory is full. Returns
-- false, and writes nothing, if a record could not be read.
function mail.finish(urgent)
    local gone, moved, unset, set, kept = urgent and { '' } or {}, {}, {}, {}, {}
    for _, message in ipairs(mail.list) do
        local id, body = message.id, message.body
        local keeps_meta, keeps_body = false, false -- in MESSAGES
        if message.gone then
            if message.score then gone[#gone + 1] = id end
        else
            -- What was for later keeps its due time: others may have the same place.
            local is_placed = message.given or (message.due <= now and not message.later)
            local score = is_placed and message.place or message.due
            if score ~= message.score then
                moved[#moved + 1], moved[#moved + 2] = int(score), id
            end
            if message.given then
                keeps_body = #kept > 0 or not body or #body > ROOM
                kept[#kept + 1] = { id, mail.meta(message), true, not keeps_body and body }
            else
                keeps_meta, keeps_body = true, true
                if message.changed or not message.has_meta then
                    set[#set + 1], set[#set + 2] = 'm' .. id, cmsgpack.pack(mail.meta(message))
                end
            end
            if keeps_body and not message.has_body then
                set[#set + 1], set[#set + 2] = 'b' .. id, body
            end
        end
        if message.has_meta and not keeps_meta then unset[#unset + 1] = 'm' .. id end
        if message.has_body and not keeps_body then unset[#unset + 1] = 'b' .. id end
    end
    if #set > 0 or (#unset > 0 and not mail.is_hash) then call('HLEN', MESSAGES) end -- fails if it is of another type
    if mail.refusal then return false end

    if urgent then all_of('ZREM', MAIL, gone) end -- which needs no memory: what follows is not refused for want of it
    all_of('ZADD', MAIL, moved)
    all_of('HDEL', MESSAGES, unset)
    all_of('HSET', MESSAGES, set)
    if not urgent then all_of('ZREM', MAIL, gone) end
    for _, command in ipairs(more) do
        call(unpack(command))
    end
    state.held = #kept > 0 and cmsgpack.pack(kept) or ''
    lease.write()
    return true
end

-- Comes before `finish`, since it reads. Returns {'<tag> <fence> <PTTL> <waiting> <number of dead>', then id, meta,
-- body: of each message that this call has moved to the dead letters, and of each that the tenure was given}. If there is
-- a mark to tell (M16), the first part ends with ' s', and the mark is the last one.
function mail.granted(tag, dead, leave_out, stop)
    local answer = { string.format('%s %.0f %.0f %d %d', tag, state.fence, lease.pttl, mail.count_due(), #dead / 3) }
    for i = 1, #dead do
        answer[i + 1] = dead[i]
    end
    for _, message in ipairs(mail.given()) do
        if not leave_out or not leave_out[message.id] then
            answer[#answer + 1] = message.id
            answer[#answer + 1] = mail.told(message)
            answer[#answer + 1] = mail.body(message)
        end
    end
    if stop then
        answer[1] = answer[1] .. ' s'
        answer[#answer + 1] = stop
    end
    return answer
end
