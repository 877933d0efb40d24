-- Store a message and try to own the key, in one step (M1). The numbers below are the cases of M1.
--
-- ARGV   1 owner  2 ttl  3 message id ('' for none)  4 body  5 ticket to redeem ('' for none)
--        6 flags: T if the owner is a ticket, B if the message must not be stored behind another owner, I if it marks
--        that owner's tenure (M16), L if it replaces what waits there (M21), A<ms> after how long it is due (M14), Q<ms>
--        and M<ms> for how long the key has to be quiet, and at most after the first message (M15)
--        7 the policy: '<1 if a paused message blocks later ones> <max_attempts> <window> <max_pending> <how many more
--        are stored on a free key> <the pauses, separated by commas>'
--        8 keyspace  9 target  10 request id  11 log stream; none of these four if the caller gave no origin
-- Answers 'own <fence> <PTTL> <now>' if the message is the only one, and given as it was sent;
--         {'claimed <fence> <PTTL> <waiting> <dead>', ...} as `granted` says;
--         {'routed <stored> <due>', holder, the ids that were replaced};
--         {'duplicate <state>', holder, id, meta, body of each that died}; {'busy <PTTL>', holder}; {'full', holder};
--         or {'idle <due>', id, meta, body of each that died}.
--         <due> says in how many milliseconds a free key can be granted, '-' if there is nothing to tell.

local owner, ttl, id, body, ticket = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local as_ticket, route = string.find(ARGV[6], 'T', 1, true) ~= nil, not string.find(ARGV[6], 'B', 1, true)
local block, max_attempts, window, max_pending, beyond, pauses =
    string.match(ARGV[7], '^(%d) (%d+) (%d+) (%d+) (%d+) (.*)$')
block, max_attempts, window = tonumber(block), tonumber(max_attempts), tonumber(window)
max_pending, beyond = tonumber(max_pending), tonumber(beyond)
local function number_in_flags(letter)
    return tonumber(string.match(ARGV[6], letter .. '(%d+)') or nil)
end
local interrupt, latest = string.find(ARGV[6], 'I', 1, true), string.find(ARGV[6], 'L', 1, true)
local after, quiet, at_most = number_in_flags('A'), number_in_flags('Q'), number_in_flags('M')
local due = after and now + after
local INTERRUPTED = 'a later message interrupts this run'
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
    use_policy()
    mail.end_runs()
    lease.grant(owner, ttl)
    lease.record_origin(8)
    if as_ticket then return mail.granted('claimed', dead) end
    endings.bury_spent(max_attempts)
    if endings.deliver(max_attempts) then return mail.granted('claimed', dead) end
    -- There is nothing to run: all due messages were out of attempts, or the caller's own message is not due.
    lease.free('released', owner, state.fence)
    if not wanted then return and_dead('idle ' .. mail.told_moment(mail.next_moment())) end
    if wanted.gone then return and_dead('duplicate dead', '') end
    mail.promise(wanted) -- it pauses, or waits behind a paused one: the mailbox runs it later (M3: promised)
    wanted.by, wanted.changed = by, true
    if by == owner then return { 'routed ' .. state.stored .. ' -', '' } end
    return and_dead('duplicate waiting', '')
end

-- Answers for this caller's message, which waits though the key has no owner. It is told when the key can be granted if
-- that is earlier than it was: else another caller has learnt it.
local function promised(before)
    local moment = mail.next_moment()
    local told = moment and (not before or moment < before) and mail.told_moment(moment) or '-'
    return { 'routed ' .. state.stored .. ' ' .. told, '' }
end

-- Returns what is due and was never delivered, in order (M21); if only one is wanted, at least the one that was stored
-- first.
local function undelivered(one)
    mail.load_due()
    local first, at_once, is_over = 0, one and 16 or AT_ONCE, false
    while mail.unknown() > 0 and not is_over do
        local ids = call('ZRANGEBYSCORE', MAIL, '-inf', '(' .. PAUSED, 'LIMIT', first, at_once)
        if #ids == 0 then break end
        for _, message in ipairs(mail.fetch(mail.strange(ids), true)) do
            message.score = message.place
            is_over = is_over or (one and message.attempts == 0)
        end
        first = first + at_once
    end
    local found = {}
    for _, message in ipairs(mail.list) do
        if not message.gone and message.attempts == 0 and message.due <= now then found[#found + 1] = message end
    end
    mail.sort(found)
    return found
end

-- Lets the key wait until no message has come for a while, but not for ever (M15: debounce).
local function wait_for_quiet()
    local first = now
    for _, message in ipairs(undelivered(true)) do
        first = math.min(first, message.stored)
    end
    state.quiet_until = math.min(now + quiet, first + at_most)
end

-- Whether the next owner of a free key has something to run among what is stored, or at least to bury (M6).
local function has_work()
    local old_block, old_pauses, found = state.block, state.pauses, false
    use_policy()
    mail.end_runs()
    for _, message in ipairs(mail.list) do
        if message.died and message.attempts >= max_attempts then found = true end
    end
    found = found or mail.next_due() ~= nil
    state.block, state.pauses = old_block, old_pauses
    mail.undo_end_runs()
    return found
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
            mail.store({ id = id, body = body, by = owner, promised = as_ticket, error = false }, due)
        end
        -- An owner that only acquired the lease has no message yet.
        if #mail.given() == 0 and not as_ticket then endings.deliver(max_attempts) end
        return mail.granted('claimed', dead), true
    end

    if of_by then return { 'idle -' } end -- a late copy of a claim whose own message has failed since (M3: promised)

    local not_yet = now < lease.not_before()
    if id == '' then
        local redeems = ticket ~= '' and lease.holder == ticket
        if lease.holder and not redeems then return { 'busy ' .. call('PTTL', LEASE), lease.holder } end
        if not_yet and redeems then -- its tenure ends: another function is woken when the key may be granted (M15)
            mail.end_runs()
            lease.free('released', ticket, state.fence)
            return { 'idle ' .. mail.told_moment(mail.next_moment()) }, true
        end
        if not_yet or (not lease.holder and not has_work()) then
            return { 'idle ' .. mail.told_moment(mail.next_moment()) }
        end
        return own(), true
    end

    if of_id then -- (2) it left for good; or was routed by this very claim, and has left since (R8: lost replies)
        if of_id[4] == owner then return { 'routed ' .. state.stored .. ' -', lease.holder or '' } end
        return { 'duplicate ' .. traces.names[of_id[1]], lease.holder or '' }
    end

    local message = mail.find(id)
    if lease.holder and message then -- (3) it waits or runs: promised before the caller is told so (M3)
        mail.promise(message)
        local changed = offer_target() or message.changed
        if message.by == owner then return { 'routed ' .. state.stored .. ' -', lease.holder }, changed end
        return { lease.ours and message.given and 'duplicate running' or 'duplicate waiting', lease.holder }, changed
    end

    if lease.holder then -- (5) stored behind an owner
        if not route then return { 'busy ' .. call('PTTL', LEASE), lease.holder } end
        local replaced = latest and undelivered() or {}
        if state.stored - #replaced >= max_pending then return { 'full', lease.holder } end -- M7: limits
        local ids = {}
        for i, old in ipairs(replaced) do
            endings.trace('r', old)
            mail.remove(old)
            ids[i] = old.id
        end
        mail.store({ id = id, body = body, by = owner, promised = true, error = false }, due)
        offer_target()
        if interrupt and lease.ours and not state.stop then state.stop = INTERRUPTED end
        return { 'routed ' .. state.stored .. ' -', lease.holder, unpack(ids) }, true
    end

    local for_later = as_ticket and message and message.attempts == 0 and message.due > now and mail.next_moment() ~= now
    if message and (not_yet or for_later) then
        mail.promise(message)
        local changed = offer_target() or message.changed
        if message.by == owner then return promised(), changed end -- once more: the first answer may have been lost (R8)
        return { 'duplicate waiting', '' }, changed
    end

    local by = owner
    if message then -- (4) it waits and the key is free: now this caller's
        by, message.by, message.changed = message.by, owner, true
        if as_ticket then mail.promise(message) end
    else -- (5) stored and owned even if the mailbox is full, unless it would only wait behind a blocking one (M7: limits)
        local stored = state.stored
        if not_yet and not route then return { 'busy ' .. int(lease.not_before() - now), '' } end
        if stored >= max_pending + (not_yet and 0 or beyond) then return { 'full', '' } end
        if block == 1 and stored >= max_pending and not as_ticket and not has_work() then return { 'full', '' } end
        local waits = not_yet or (due and as_ticket) or (quiet and not due)
        local before = waits and mail.next_moment()
        message = mail.store({ id = id, body = body, by = owner, promised = as_ticket, error = false }, due)
        if quiet and not due then wait_for_quiet() end
        if (due and as_ticket and mail.next_moment() ~= now) or now < lease.not_before() then
            mail.promise(message)
            offer_target()
            return promised(before), true
        end
    end
    return own(message, by), true
end

local answer, changed = claim()
endings.keep(window)
if mail.refusal or not changed or not mail.finish(false) then return sure(mail.refusal or answer) end
return answer
