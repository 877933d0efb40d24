-- The record by the names of its elements, for all scripts but the shortest: changing it in memory, and writing it at the
-- end.
--
-- Functions stand in tables: Lua makes them anew for each call, and that takes longer the more locals they refer to.

local FOREVER = 253402300799000 -- the end of a hold without an end
local CALLED_MS = 15 * 60000 -- for how long a repeated resume, hold or stop is known

-- Prints a whole number with all its digits: fences have more than Lua prints by itself. What is not one, such as a
-- score that was edited by hand, ends the script: answers are made before the first write.
local function int(number)
    if not (number > -1e18 and number < 1e18) then error('a number of the record makes no sense') end
    return string.format('%.0f', number)
end

local state = {
    owner = record[OWNER], fence = record[FENCE], since = record[SINCE], ends = record[ENDS],
    block = record[BLOCK], pauses = record[PAUSES],
    how = record[HOW], from = record[FROM], to = record[TO], at_fence = record[AT_FENCE],
    keyspace = record[KEYSPACE], target = record[TARGET],
    request_id = record[REQUEST_ID], log_stream = record[LOG_STREAM],
    stored = record[STORED], last = record[LAST], promised_to = record[PROMISED_TO], kept = record[KEPT],
    held = record[HELD], traces = record[TRACES], traced = record[TRACED], older = record[OLDER],
    quiet_until = 0, held_until = 0, held_reason = '', stop = false, note = '',
    resumed = '', held_by = '', stopped_by = '', stopped = 0, called_at = 0,
}
if type(record[CONTROL]) == 'table' then
    local control = record[CONTROL]
    state.quiet_until, state.held_until, state.held_reason = control[QUIET_UNTIL], control[HELD_UNTIL], control[HELD_REASON]
    state.stop, state.note, state.resumed, state.held_by = control[STOP], control[NOTE], control[RESUMED], control[HELD_BY]
    state.stopped_by, state.stopped, state.called_at = control[STOPPED_BY], control[STOPPED], control[CALLED_AT]
end

-- Whether the lease is that of the state's owner: a live tenure. Any other lease is foreign.
lease.ours = lease.holder and lease.holder == state.owner
lease.pttl = -2 -- read by `extend`

-- Returns whether the owner's lease is live, in the tenure of that fence if it is known (R2: acquire, R3: expiry).
function lease.owned_by(owner, fence)
    return lease.holder == owner and (not lease.ours or fence == '' or tonumber(fence) == state.fence)
end

-- Begins a tenure of the holder: with that fence, or with a new one, greater than any before and not behind the clock
-- (R7: fence).
function lease.start_tenure(fence)
    lease.ours = true
    state.owner, state.fence = lease.holder, fence or math.max(state.fence + 1, now_us)
    state.since, state.ends, state.how = now, now + math.max(lease.pttl, 0), ''
    state.stop, state.note = false, '' -- no tenure inherits them (M16, M18)
    if state.quiet_until <= now then state.quiet_until = 0 end
    if state.held_until <= now then state.held_until, state.held_reason = 0, '' end
    if state.called_at + CALLED_MS <= now then
        state.resumed, state.held_by, state.stopped_by, state.stopped, state.called_at = '', '', '', 0, 0
    end
end

-- Returns the moment before which no caller is granted the key (M15).
function lease.not_before()
    return math.max(state.quiet_until, state.held_until)
end

-- Returns until when a hold of the key lasts from now on, or nil if there is one already that lasts as long.
function lease.hold(ms, reason)
    local moment = ms == '' and FOREVER or now + tonumber(ms)
    if moment <= math.max(now, state.held_until) then return nil end
    call('GET', HOLD) -- fails if it is of another type
    state.held_until, state.held_reason = moment, reason
    return moment
end

-- Grants the key, free or not.
function lease.grant(owner, ttl)
    lease.command = { 'SET', LEASE, owner, 'PX', ttl }
    lease.holder, lease.pttl = owner, tonumber(ttl)
    lease.start_tenure()
end

-- Extends the lease to at least ttl from now, and never shortens it (R4: renew). A foreign lease without expiry gets
-- one. A lease that is not the state's owner's becomes its tenure: with the fence that the owner was granted, if the
-- state was lost.
function lease.extend(ttl, fence)
    lease.pttl = call('PTTL', LEASE)
    if lease.pttl < tonumber(ttl) then
        lease.command = { 'PEXPIRE', LEASE, ttl }
        lease.pttl = tonumber(ttl)
    end
    if not lease.ours then lease.start_tenure(tonumber(fence)) end
    state.ends = now + lease.pttl
end

-- Notes how a tenure ended, or was passed on: the evidence for a repeated call (R8: lost replies).
function lease.leave(how, owner, successor, fence)
    state.how, state.from, state.to, state.at_fence = how, owner, successor, fence
end

-- Ends a tenure on purpose: the key is free from now on.
function lease.free(how, owner, fence)
    lease.command = { 'DEL', LEASE }
    lease.holder, lease.ours, lease.pttl = false, false, -2
    state.owner, state.since, state.ends = '', now, now
    state.stop, state.note = false, ''
    lease.leave(how, owner, '', fence)
end

-- Keeps what the caller's origin says, field by field: what it lacks stays as it was. `first` is where it stands in ARGV.
function lease.record_origin(first)
    if not ARGV[first] then return end
    for i, name in ipairs({ 'keyspace', 'target', 'request_id', 'log_stream' }) do
        local value = ARGV[first + i - 1]
        if value ~= '' then state[name] = value end
    end
end

-- Makes a write that needs no memory. After it, a server that is out of memory refuses no further write of the script.
function lease.begin()
    call('ZREM', MAIL, '')
end

-- What the record says of control: nothing, for those who use none of it.
function lease.control()
    if state.quiet_until > 0 or state.held_until > 0 or state.stop or state.note ~= '' or state.called_at > 0 then
        return {
            state.quiet_until, state.held_until, state.held_reason, state.stop, state.note,
            state.resumed, state.held_by, state.stopped_by, state.stopped, state.called_at,
        }
    end
    return record[CONTROL + 1] ~= nil and '' or nil
end

-- Writes the lease, then the state, the last write of a script, with its TTL: none while messages are stored.
function lease.write()
    if lease.command then call(unpack(lease.command)) end
    record = {
        FORMAT, state.owner, state.fence, state.since, state.ends, state.block, state.pauses,
        state.how, state.from, state.to, state.at_fence,
        state.keyspace, state.target, state.request_id, state.log_stream,
        state.stored, state.last, state.promised_to, state.kept,
        state.held, state.traces, state.traced, state.older, lease.control(),
        unpack(record, CONTROL + 1),
    }
    if state.stored > 0 then
        call('SET', STATE, cmsgpack.pack(record))
    else
        local lives = math.max(math.max(lease.pttl, 0) + DAY_MS, state.kept - now, state.held_until - now)
        call('SET', STATE, cmsgpack.pack(record), 'PX', int(lives))
    end
end
