-- Leaving traces, and moving messages to the dead letters.

local endings = {}

-- The messages that this call has moved to the dead letters, as id, meta, body of each, for the answer.
local dead = {}
local new_traces, new_letters, has_results = {}, {}, false

-- Leaves a trace of a message in the present tenure, with its result if that is kept (M17).
function endings.trace(outcome, message, result)
    new_traces[#new_traces + 1] = { outcome, state.fence, now, message.by, message.id, result }
    has_results = has_results or result ~= nil
end

-- Plans to move all traces to ENDED, and to remove there those that are older than the window, and all but the last 256
-- of each queue (M5: once per id).
function endings.move_traces(window)
    local version, handled, failed, died = unpack(call('HMGET', ENDED, 'v', 'h', 'f', 'd'))
    if version and version ~= '1' then
        mail.refusal = { 'format', 'ended', version }
        return
    end
    local queues = { h = traces.queue(handled), f = traces.queue(failed), d = traces.queue(died) }
    for _, q in pairs(queues) do
        q.written = q.last
    end
    local set, unset, index = { 'v', '1' }, {}, {}
    for _, list in ipairs({ traces.in_state(), new_traces }) do
        for _, each in ipairs(list) do
            local outcome = traces.queues[each[1]]
            local q = queues[outcome]
            q.last, q.count = q.last + 1, q.count + 1
            local name = outcome .. ':' .. int(q.last)
            set[#set + 1], set[#set + 2] = name, cmsgpack.pack(each)
            index[outcome == 'f' and 'by:' .. each[4] or 'id:' .. each[5]] = name
        end
    end
    for outcome, q in pairs(queues) do
        while q.first <= q.written do
            local name = outcome .. ':' .. int(q.first)
            local text = call('HGET', ENDED, name)
            if text then
                local old = cmsgpack.unpack(text)
                if q.count <= REMEMBERED and now - old[3] < window then break end
                q.count = q.count - 1
                unset[#unset + 1] = name
                local of = outcome == 'f' and 'by:' .. old[4] or 'id:' .. old[5]
                if not index[of] and call('HGET', ENDED, of) == name then unset[#unset + 1] = of end
            end -- else its letter was put back
            q.first = q.first + 1
        end
        set[#set + 1], set[#set + 2] = outcome, int(q.first) .. ' ' .. int(q.last) .. ' ' .. int(q.count)
    end
    for name, value in pairs(index) do
        set[#set + 1], set[#set + 2] = name, value
    end
    if #unset > 0 then later('HDEL', ENDED, unpack(unset)) end
    later('HSET', ENDED, unpack(set))
    if call('PTTL', ENDED) < window then later('PEXPIRE', ENDED, int(window)) end
    state.traces, state.traced, state.older = '', 0, 1
end

-- Plans to write the dead letters of this call, behind those that are there, and to remove those that are too old.
function endings.keep_letters()
    local place = tonumber(call('ZREVRANGE', DEAD, 0, 0, 'WITHSCORES')[2] or 0)
    for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
        local letter = read_letter(id)
        if not letter or now - letter.dead_ms < LETTERS_MS then break end
        later('ZREM', DEAD, id)
        later('HDEL', LETTERS, 'm' .. id, 'b' .. id)
    end
    for i, each in ipairs(new_letters) do
        later('ZADD', DEAD, int(place + i), each.id)
        later('HSET', LETTERS, 'm' .. each.id, cmsgpack.pack(mail.meta(each)), 'b' .. each.id, each.body)
    end
    later('PEXPIRE', DEAD, int(LETTERS_MS))
    later('PEXPIRE', LETTERS, int(LETTERS_MS))
    call('HLEN', LETTERS) -- fails if it is of another type
end

-- Plans to write the traces and the dead letters of this call.
function endings.keep(window)
    if #new_traces == 0 then return end
    state.kept = math.max(state.kept, now + window)
    if #new_letters > 0 or has_results or state.traced + #new_traces > IN_STATE then
        endings.move_traces(window)
    else
        for _, each in ipairs(new_traces) do
            state.traces = state.traces .. cmsgpack.pack(each)
        end
        state.traced = state.traced + #new_traces
    end
    if #new_letters > 0 then
        state.kept = math.max(state.kept, now + LETTERS_MS)
        endings.keep_letters()
    end
end

-- Moves a message that is out of attempts to the dead letters (M6: failure).
function endings.bury(message)
    mail.body(message)
    mail.remove(message)
    message.dead_ms = now
    dead[#dead + 1], dead[#dead + 2], dead[#dead + 3] = message.id, mail.told(message), message.body
    new_letters[#new_letters + 1] = message
    endings.trace('d', message)
end

-- Moves those whose run died and that are out of attempts to the dead letters: they need not pause first (M6).
function endings.bury_spent(max_attempts)
    for _, message in ipairs(mail.list) do
        if message.died and not message.gone and message.attempts >= max_attempts then endings.bury(message) end
    end
end

-- Gives the oldest due message to the present tenure, and moves those out of attempts before it to the dead letters
-- (M4: order, M6: failure). Returns the message, or nil if none is due. `first` is what `next_due` has returned.
function endings.deliver(max_attempts, first)
    local message = first or mail.next_due()
    while message and message.attempts >= max_attempts do
        endings.bury(message)
        message = mail.next_due()
    end
    if message then mail.give(message) end
    return message
end
