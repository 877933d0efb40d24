-- The record by the names of its elements, for all scripts but the shortest: changing it in memory, and writing it at the
-- end.
--
-- Functions stand in tables: Lua makes them anew for each call, and that takes longer the more locals they refer to.

-- Prints a whole number with all its digits: fences have more than Lua prints by itself.
local function int(number)
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
}

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

-- Writes the lease, then the state, the last write of a script, with its TTL: none while messages are stored.
function lease.write()
    if lease.command then call(unpack(lease.command)) end
    record = {
        FORMAT, state.owner, state.fence, state.since, state.ends, state.block, state.pauses,
        state.how, state.from, state.to, state.at_fence,
        state.keyspace, state.target, state.request_id, state.log_stream,
        state.stored, state.last, state.promised_to, state.kept,
        state.held, state.traces, state.traced, state.older,
        unpack(record, 24),
    }
    if state.stored > 0 then
        call('SET', STATE, cmsgpack.pack(record))
    else
        local lives = math.max(math.max(lease.pttl, 0) + DAY_MS, state.kept - now)
        call('SET', STATE, cmsgpack.pack(record), 'PX', int(lives))
    end
end
