-- Store a message and try to own the key, in one step (M1). The numbers below are the cases of M1.
--
-- ARGV   1 owner  2 ttl  3 message id ('' for none)  4 body  5 ticket to redeem ('' for none)
--        6 '1' if the owner is a ticket  7 '1' if the message may be stored behind another owner
--        8 '1' if a paused message blocks later ones  9 max_pending  10 how many more are stored on a free key
--        11 max_attempts  12 window  13 the pauses, separated by commas
--        14 keyspace  15 target  16 request id  17 log stream; none of these four if the caller gave no origin
-- Answers {'claimed', fence, PTTL, waiting, dead_lettered, id, meta, body ...}, {'routed', holder, stored},
--         {'duplicate', state, holder, dead_lettered}, {'busy', holder, PTTL}, {'full', holder} or {'idle', dead_lettered}.

local owner, ttl, id, body, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local as_ticket, route, block = ARGV[6] == '1', ARGV[7] == '1', ARGV[8]
local max_pending, beyond = tonumber(ARGV[9]), tonumber(ARGV[10])
local max_attempts, window, pauses = tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13]
local keyspace, target = ARGV[14] or '', ARGV[15] or ''

-- Keeps what the origin says, field by field: what it lacks stays as it was.
local function record_origin()
    for position, name in ipairs({ 'keyspace', 'target', 'request_id', 'log_stream' }) do
        local value = ARGV[13 + position] or ''
        if value ~= '' then note(name, value) end
    end
end

-- Keeps whom to wake where no owner has said it, as one that took the lease by hand has not (M8). Says whether it did.
local function offer_target()
    if k.target ~= '' or target == '' then return false end
    note('target', target)
    if keyspace ~= '' and (call('HGET', STATE, 'keyspace') or '') == '' then note('keyspace', keyspace) end
    return true
end

-- Makes the caller's policy the key's. A caller that only sends need not know how failures pause (M6: failure).
local function use_policy()
    if not as_ticket then k.block, k.pauses = block == '1', pauses end
end

-- Grants the key and gives its oldest due message to the new owner; a ticket gets none (M6: failure, M9: hand over).
-- `wanted` is the caller's own message, `by` the claim that stored it.
local function own(wanted, by)
    end_runs()
    grant(owner, ttl)
    if not as_ticket then note('block', block, 'pauses', pauses) end
    record_origin()
    if as_ticket then
        finish_mail()
        return granted('claimed', {})
    end
    dead_letter_spent(max_attempts, window)
    deliver(max_attempts, window)
    if #given() > 0 then
        finish_mail()
        return granted('claimed', {})
    end
    -- There is nothing to run: all due messages were out of attempts, or the caller's own message is not due.
    free('released', owner, k.fence)
    local answer = { 'idle', dead_lettered }
    if wanted then answer = { 'duplicate', 'dead', '', dead_lettered } end
    for _, message in ipairs(k.mail) do
        if message.id == wanted and not message.gone then
            promise(message) -- it pauses, or waits behind a paused one: the mailbox runs it later (M3: promised)
            message.meta.by = by
            answer = by == owner and { 'routed', '', k.stored } or { 'duplicate', 'waiting', '', dead_lettered }
        end
    end
    finish_mail()
    return answer
end

-- Whether the next owner of a free key has something to run among what is stored, or at least to bury (M6).
local function has_work()
    end_runs()
    for _, message in ipairs(k.mail) do
        if is_spent(message, max_attempts) then return true end
    end
    return #due(nil) > 0
end

local refusal = load()
if refusal then return refusal end
local live = k.owner ~= false
local holder = k.owner or ''

if live and k.owner == owner then -- (1) owned already: answer from the present records
    refusal = load_mail()
    if refusal then return refusal end
    local known = id == '' or is_stored(id) or trace_of('id:' .. id, window)
    if k.pttl < 0 then extend(ttl) end
    adopt_mail('')
    offer_target()
    if not known then store(id, body, { by = owner, promised = as_ticket }) end
    -- An owner that only acquired the lease has no message yet.
    if #given() == 0 and not as_ticket then deliver(max_attempts, window) end
    finish_mail()
    return granted('claimed', {})
end

-- A late copy of a claim whose own message has failed since (M3: promised).
if trace_of('by:' .. owner, window) then return { 'idle', dead_lettered } end

if id == '' then
    if live and (ticket == '' or k.owner ~= ticket) then return { 'busy', holder, k.pttl } end
    refusal = load_mail()
    if refusal then return refusal end
    use_policy()
    if not live and not has_work() then return { 'idle', dead_lettered } end
    return own(nil)
end

local ended = trace_of('id:' .. id, window)
if ended then -- (2) handled or dead; or routed by this very claim, and finished since (R8: lost replies)
    if ended.by == owner then return { 'routed', holder, k.stored } end
    return { 'duplicate', ended.outcome == 'h' and 'handled' or 'dead', holder, dead_lettered }
end

local waits = is_stored(id)
if live and waits then -- (3) it waits or runs: promised before the caller is told so (M3)
    refusal = load_messages({ id })
    if refusal then return refusal end
    local message = k.mail[1]
    promise(message)
    if offer_target() or message.changed then finish_mail() end
    if message.meta.by == owner then return { 'routed', holder, k.stored } end
    return { 'duplicate', k.tenure and message.meta.given == k.tenure and 'running' or 'waiting', holder, dead_lettered }
end

if live then -- (5) stored behind an owner
    if not route then return { 'busy', holder, k.pttl } end
    if k.stored >= max_pending then return { 'full', holder } end -- M7: limits: limits
    store(id, body, { by = owner, promised = true })
    offer_target()
    finish_mail()
    return { 'routed', holder, k.stored }
end

refusal = load_mail()
if refusal then return refusal end
use_policy()
local by = owner
if waits then -- (4) it waits and the key is free: now this caller's
    for _, message in ipairs(k.mail) do
        if message.id == id then
            by, message.meta.by = message.meta.by, owner
            message.changed = true
            if as_ticket then promise(message) end
        end
    end
else -- (5) stored and owned even if the mailbox is full, unless it would only wait behind a blocking one (M7: limits)
    if k.stored >= max_pending + beyond then return { 'full', '' } end
    if block == '1' and k.stored >= max_pending and not as_ticket and not has_work() then return { 'full', '' } end
    store(id, body, { by = owner, promised = as_ticket })
end
return own(id, by)
