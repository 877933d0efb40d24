-- The messages in the state: those that the present tenure was given, and, between acquire or transfer and the next
-- script that reads messages, those that died with the run before it.
--
-- They are packed as an array of {id, meta, given, body}; body is false if it stands in MESSAGES, because it is long or
-- not the first. A meta is an array {format, by, promised, stored, attempts, due, error, place, dead_ms}; error is false
-- if there is none, and dead_ms 0 until the message is a dead letter. One that was stored for later (M14) has two more:
-- {..., later, arrival}; see `is_before`. A meta is in MessagePack in MESSAGES and LETTERS, too.
-- Elements that a later version adds at its end stay unchanged (M12: format).

-- `list` holds the messages that this script knows. Besides what is stored of each: `score`, as it stands in MAIL;
-- `has_meta` and `has_body`, whether these stand in MESSAGES; and what the script does with it.
local mail = { list = {}, by_id = {} }

-- Makes a message of its meta.
function mail.message(id, meta)
    return {
        id = id, meta = meta, by = meta[2], promised = meta[3], stored = meta[4], attempts = meta[5], due = meta[6],
        error = meta[7], place = meta[8], dead_ms = meta[9],
        later = meta[10] and meta[10] > 0 and meta[10] or nil, arrival = meta[10] and meta[10] > 0 and meta[11] or nil,
    }
end

-- Returns whether one message stands before another in the order of the mailbox. One that was stored for later before
-- others for a later moment still has the place of the first of these: among them, `later` decides, the moment for which
-- each was stored, and then `arrival`, a number that grows (M14).
function mail.is_before(one, other)
    if one.place ~= other.place then return one.place < other.place end
    local first, second = one.later or 0, other.later or 0
    if first ~= second then return first < second end
    return (one.arrival or 0) < (other.arrival or 0)
end

-- Returns the meta of a message.
function mail.meta(message)
    local meta = message.meta
    meta[1], meta[2], meta[3], meta[4], meta[5] = FORMAT, message.by, message.promised, message.stored, message.attempts
    meta[6], meta[7], meta[8], meta[9] = message.due, message.error, message.place, message.dead_ms
    if message.later or meta[10] then meta[10], meta[11] = message.later or 0, message.arrival or 0 end
    return meta
end

function mail.add(message)
    mail.list[#mail.list + 1] = message
    mail.by_id[message.id] = message
    return message
end

function mail.load_held()
    if state.held == '' then return end
    for _, each in ipairs(cmsgpack.unpack(state.held)) do
        local message = mail.add(mail.message(each[1], each[2]))
        message.given, message.body, message.has_body = each[3], each[4], not each[4]
        message.score = message.given and message.place or message.due
    end
end

-- The pause after that many deliveries; none where no policy was noted yet.
function mail.pause_after(attempts)
    local pauses = {}
    for pause in string.gmatch(state.pauses, '%d+') do
        pauses[#pauses + 1] = tonumber(pause)
    end
    return #pauses == 0 and 0 or pauses[math.min(math.max(attempts, 1), #pauses)]
end

function mail.sort(list)
    if #list > 1 then
        table.sort(list, mail.is_before)
    end
end

-- Takes back what the last tenure was given and did not settle: its run died with it, or dies now. Such a message
-- pauses as if it had failed when the tenure ended, and goes behind all that wait; where paused messages block, it keeps
-- its place (M6).
function mail.end_runs()
    if #mail.list == 0 then return end
    -- Where a stranger has removed the lease before its time, it counts as ended when it would have.
    local ended = lease.holder and math.min(now, state.ends) or state.ends
    mail.sort(mail.list)
    for _, message in ipairs(mail.list) do
        if message.given and not message.gone then
            message.was = {
                place = message.place, later = message.later, arrival = message.arrival, due = message.due, last = state.last,
            }
            message.given, message.died, message.changed = false, true, true
            message.due = ended + mail.pause_after(message.attempts)
            if state.block == 0 then
                message.promised = message.promised or (message.arrival or message.place) <= state.promised_to
                state.last = state.last + 1
                message.place, message.later, message.arrival = state.last, nil, nil
            end
        end
    end
end

-- Undoes `end_runs`, which was only to tell what it would come to.
function mail.undo_end_runs()
    for _, message in ipairs(mail.list) do
        local was = message.died and message.was
        if was then
            message.given, message.died, message.place, message.due = true, false, was.place, was.due
            message.later, message.arrival = was.later, was.arrival
            state.last = math.min(state.last, was.last)
        end
    end
end

-- Makes the lease that the caller holds the state's tenure, if it is foreign: earlier runs are over then.
function mail.adopt(ttl, fence)
    if not lease.ours then mail.end_runs() end
    lease.extend(ttl, fence)
end

-- Writes the messages that the state holds: for scripts that change no others.
function mail.write_held()
    if #mail.list == 0 then return end
    local kept, moved = {}, {}
    for _, message in ipairs(mail.list) do
        if not message.has_meta then
            kept[#kept + 1] = { message.id, mail.meta(message), message.given, message.body }
            if message.died then moved[#moved + 1], moved[#moved + 2] = int(message.due), message.id end
        end
    end
    if #moved > 0 then call('ZADD', MAIL, unpack(moved)) end
    state.held = #kept > 0 and cmsgpack.pack(kept) or ''
end
