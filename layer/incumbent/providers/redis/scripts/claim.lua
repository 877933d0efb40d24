-- Store a message and try to own the key, in one step (M1). The numbers below are the cases of M1.
--
-- ARGV   1 owner  2 ttl  3 message id ('' for none)  4 body  5 ticket to redeem ('' for none)
--        6 flags: T if the owner is a ticket, B if the message must not be stored behind another owner
--        7 the policy: '<1 if a paused message blocks later ones> <max_attempts> <window> <max_pending> <how many more
--        are stored on a free key> <the pauses, separated by commas>'
--        8 keyspace  9 target  10 request id  11 log stream; none of these four if the caller gave no origin
-- Answers 'own <fence> <PTTL> <now>' if the message is the only one, and given as it was sent;
--         {'claimed <fence> <PTTL> <waiting> <dead>', ...} as `granted` says; {'routed <stored>', holder};
--         {'duplicate <state>', holder, id, meta, body of each that died}; {'busy <PTTL>', holder}; {'full', holder};
--         or {'idle', id, meta, body of each that died}.

local owner, ttl, id, body, ticket = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local as_ticket, route = string.find(ARGV[6], 'T', 1, true) ~= nil, not string.find(ARGV[6], 'B', 1, true)
local block, max_attempts, window, max_pending, beyond, pauses =
    string.match(ARGV[7], '^(%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
block, max_attempts, window = tonumber(block), tonumber(max_attempts), tonumber(window)
max_pending, beyond = tonumber(max_pending), tonumber(beyond)
local keyspace, target = ARGV[8] or '', ARGV[9] or ''

-- Keeps whom to wake where no owner has said it, as one that took the lease by hand has not (M8). Says whether it did.
local function offer_target()
    if state.target ~= '' or target == '' then return false end
    state.target = target
    if state.keyspace == '' then state.keyspace = keyspace end
    return true
end

-- Makes the caller's policy the key's. A caller that only sends need not know how failures pause (M6: failure).
local function use_policy()
    if not as_ticket then state.block, state.pauses = block, pauses end
end

-- Answers with what died in this call at the end.
local function and_dead(...)
    local answer = { ... }
    for _, part in ipairs(dead) do
        answer[#answer + 1] = part
    end
    return answer
end

-- Grants the key and gives its oldest due message to the new owner; a ticket gets none (M6: failure, M9: hand over).
-- `wanted` is the caller's own message, `by` the claim that stored it.
local function own(wanted, by)
    mail.end_runs()
    lease.grant(owner, ttl)
    lease.record_origin(8)
    if as_ticket then return mail.granted('claimed', dead) end
    endings.bury_spent(max_attempts)
    if endings.deliver(max_attempts) then return mail.granted('claimed', dead) end
    -- There is nothing to run: all due messages were out of attempts, or the caller's own message is not due.
    lease.free('released', owner, state.fence)
    if not wanted then return and_dead('idle') end
    if wanted.gone then return and_dead('duplicate dead', '') end
    mail.promise(wanted) -- it pauses, or waits behind a paused one: the mailbox runs it later (M3: promised)
    wanted.by, wanted.changed = by, true
    if by == owner then return { 'routed ' .. state.stored, '' } end
    return and_dead('duplicate waiting', '')
end

-- Whether the next owner of a free key has something to run among what is stored, or at least to bury (M6).
local function has_work()
    mail.end_runs()
    for _, message in ipairs(mail.list) do
        if message.died and message.attempts >= max_attempts then return true end
    end
    return mail.next_due() ~= nil
end

-- Returns the answer, and whether anything is to be written.
local function claim()
    local of_id, of_by
    if state.traced > 0 or state.older == 1 then of_id, of_by = traces.of(id, owner, window) end
    if state.stored > 0 then mail.load_held() end

    if lease.holder == owner then -- (1) owned already: answer from the present records
        lease.pttl = call('PTTL', LEASE)
        if not lease.ours then mail.end_runs() end
        if lease.pttl < 0 then lease.extend(ttl, '') end
        if not lease.ours then lease.start_tenure() end
        offer_target()
        if id ~= '' and not of_id and not mail.find(id) then
            mail.store({ id = id, body = body, by = owner, promised = as_ticket, error = false })
        end
        -- An owner that only acquired the lease has no message yet.
        if #mail.given() == 0 and not as_ticket then endings.deliver(max_attempts) end
        return mail.granted('claimed', dead), true
    end

    if of_by then return { 'idle' } end -- a late copy of a claim whose own message has failed since (M3: promised)

    if id == '' then
        if lease.holder and (ticket == '' or lease.holder ~= ticket) then return { 'busy ' .. call('PTTL', LEASE), lease.holder } end
        use_policy()
        if not lease.holder and not has_work() then return { 'idle' } end
        return own(), true
    end

    if of_id then -- (2) handled or dead; or routed by this very claim, and finished since (R8: lost replies)
        if of_id[4] == owner then return { 'routed ' .. state.stored, lease.holder or '' } end
        return { of_id[1] == 'h' and 'duplicate handled' or 'duplicate dead', lease.holder or '' }
    end

    local message = mail.find(id)
    if lease.holder and message then -- (3) it waits or runs: promised before the caller is told so (M3)
        mail.promise(message)
        local changed = offer_target() or message.changed
        if message.by == owner then return { 'routed ' .. state.stored, lease.holder }, changed end
        return { lease.ours and message.given and 'duplicate running' or 'duplicate waiting', lease.holder }, changed
    end

    if lease.holder then -- (5) stored behind an owner
        if not route then return { 'busy ' .. call('PTTL', LEASE), lease.holder } end
        if state.stored >= max_pending then return { 'full', lease.holder } end -- M7: limits
        mail.store({ id = id, body = body, by = owner, promised = true, error = false })
        offer_target()
        return { 'routed ' .. state.stored, lease.holder }, true
    end

    use_policy()
    local by = owner
    if message then -- (4) it waits and the key is free: now this caller's
        by, message.by, message.changed = message.by, owner, true
        if as_ticket then mail.promise(message) end
    else -- (5) stored and owned even if the mailbox is full, unless it would only wait behind a blocking one (M7: limits)
        local stored = state.stored
        if stored >= max_pending + beyond then return { 'full', '' } end
        if block == 1 and stored >= max_pending and not as_ticket and not has_work() then return { 'full', '' } end
        message = mail.store({ id = id, body = body, by = owner, promised = as_ticket, error = false })
    end
    return own(message, by), true
end

local answer, changed = claim()
endings.keep(window)
if mail.refusal or not changed or not mail.finish(false) then return sure(mail.refusal or answer) end
return answer
