-- Which messages are due: reading those in MAIL and MESSAGES, as few as possible.

local PAUSED = '1000000000000' -- scores in MAIL from here on are due times, of messages that pause
local AT_ONCE = 1000 -- fields read or written in one call: Lua's stack holds a few thousand

local stored_before = state.stored

-- mail.refusal is set when a record cannot be read; a script that finds it set returns it, and writes nothing.

-- Returns how many messages stand in MAIL that this script does not know yet.
function mail.unknown()
    local count = stored_before
    for _, message in ipairs(mail.list) do
        if message.score then count = count - 1 end
    end
    return count
end

-- Reads messages that are not known yet, and adds them if told so. Returns them in the order of the ids.
function mail.fetch(ids, also_add)
    local found = {}
    for first = 1, #ids, AT_ONCE do
        local names = {}
        for i = first, math.min(#ids, first + AT_ONCE - 1) do
            names[#names + 1] = 'm' .. ids[i]
        end
        mail.is_hash = true
        for i, text in ipairs(call('HMGET', MESSAGES, unpack(names))) do
            local is_packed, meta = pcall(cmsgpack.unpack, text or '')
            if not is_packed or type(meta) ~= 'table' then
                mail.refusal = { 'broken', 'messages' }
            elseif meta[1] ~= FORMAT then
                mail.refusal = { 'format', 'messages', tostring(meta[1]) }
            else
                local message = mail.message(ids[first + i - 1], meta)
                message.given, message.has_meta, message.has_body = false, true, true
                found[#found + 1] = message
                if also_add then mail.add(message) end
            end
        end
    end
    return found
end

-- Returns those of the ids that are not known yet.
function mail.strange(ids)
    local found = {}
    for _, id in ipairs(ids) do
        if not mail.by_id[id] then found[#found + 1] = id end
    end
    return found
end

-- Reads the messages whose pause is over, so that they are seen at their place in the order again, and compares the
-- numbers that MAIL and the state have. What was stored for later stays among them until it is given.
function mail.load_due()
    if mail.due_is_loaded or mail.unknown() == 0 then return end
    mail.due_is_loaded = true
    if call('ZCARD', MAIL) ~= stored_before then mail.refusal = { 'broken', 'mail' } end
    for _, message in ipairs(mail.fetch(mail.strange(call('ZRANGEBYSCORE', MAIL, PAUSED, int(now))), true)) do
        message.score = message.due
    end
end

-- Returns the first message that pauses after a failure and blocks all that follow (M6); nil if there is none.
function mail.blocker()
    if state.block == 0 then return nil end
    local first
    local ids = mail.unknown() > 0 and mail.strange(call('ZRANGEBYSCORE', MAIL, '(' .. int(now), '+inf')) or {}
    for _, list in ipairs({ mail.fetch(ids), mail.list }) do
        for _, message in ipairs(list) do
            if not message.gone and not message.given and message.due > now and message.attempts > 0
                and (not first or mail.is_before(message, first)) then
                first = message
            end
        end
    end
    return first
end

-- Returns whether a message stands before the one that blocks others, if there is one.
function mail.is_open(message, blocker)
    return not blocker or mail.is_before(message, blocker)
end

-- Returns how many messages are due and not given to the present tenure. Of a free key, `end_runs` comes first.
function mail.count_due()
    mail.load_due()
    local count, blocker = 0, mail.blocker()
    if mail.unknown() > 0 then
        local places = math.min(blocker and blocker.place or math.huge, 1e12)
        count = call('ZCOUNT', MAIL, '-inf', '(' .. int(places))
        for _, message in ipairs(mail.list) do
            if message.score and message.score < places then count = count - 1 end
        end
    end
    for _, message in ipairs(mail.list) do
        if not message.gone and not message.given and message.due <= now and mail.is_open(message, blocker) then
            count = count + 1
        end
    end
    return count
end

-- Returns when a free key can next be granted for a stored message; nil if none is stored, or the key is held without an
-- end. What the last tenure was given and did not settle counts as died with it (M6); nothing is changed.
function mail.next_moment()
    if state.stored == 0 or state.held_until >= FOREVER then return nil end
    mail.load_due()
    local ended = lease.holder and math.min(now, state.ends) or state.ends
    local function due_of(message)
        return message.given and ended + mail.pause_after(message.attempts) or message.due
    end
    local messages, blocker, first, unknown = {}, nil, math.huge, mail.unknown() > 0
    for _, message in ipairs(mail.list) do
        if not message.gone then messages[#messages + 1] = message end
    end
    if unknown and state.block == 1 then
        for _, message in ipairs(mail.fetch(mail.strange(call('ZRANGEBYSCORE', MAIL, '(' .. int(now), '+inf')))) do
            messages[#messages + 1] = message
        end
    elseif unknown then
        local found = call('ZRANGEBYSCORE', MAIL, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, #mail.list + 1)
        for i = 1, #found, 2 do
            if not mail.by_id[found[i]] then
                first = tonumber(found[i + 1])
                break
            end
        end
    end
    for _, message in ipairs(state.block == 1 and messages or {}) do
        if message.attempts > 0 and due_of(message) > now and (not blocker or mail.is_before(message, blocker)) then
            blocker = message
        end
    end
    for _, message in ipairs(messages) do
        if message == blocker or mail.is_open(message, blocker) then
            first = math.min(first, math.max(due_of(message), now))
        end
    end
    if unknown and first > now then
        local places = math.min(blocker and blocker.place or math.huge, 1e12)
        local count = call('ZCOUNT', MAIL, '-inf', '(' .. int(places))
        for _, message in ipairs(mail.list) do
            if message.score and message.score < places then count = count - 1 end
        end
        if count > 0 then first = now end
    end
    return math.max(first, lease.not_before())
end

-- Says in how many milliseconds a moment is; '-' if there is none.
function mail.told_moment(moment)
    return moment and int(math.max(0, moment - now)) or '-'
end
