-- Record the outcome of messages, and free the key if nothing is due, else pass it on, in one step (M2).
--
-- ARGV   1 owner  2 ttl  3 successor ('' for none)  4 '1' if the successor is a ticket
--        5 the fence that the owner was granted, '' if not known  6 '1' if repeated
--        7 '1' if a paused message blocks later ones  8 max_attempts  9 window  10 the pauses, separated by commas
--        11 to 14: how many messages are handled, failed, dropped, deferred; then these, in this order:
--        the id of each that is handled or deferred; id, error, pause ('' for the policy's,
--        'final' for a dead letter at once) of each other
-- Answers {'released', stored, dead_lettered}; {'continued', fence, PTTL, waiting, dead_lettered, id, meta, body ...}; either also when
-- this very call has done so before (R8), with nothing dead_lettered; {'lost', holder}; or, when a repeated call finds no
-- evidence, {'unknown', holder} (R9).

local owner, ttl, successor, as_ticket = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local fence, repeated, block = ARGV[5], ARGV[6] == '1', ARGV[7]
local max_attempts, window, pauses = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]

local named, finished, at = {}, {}, 14
for position, outcome in ipairs({ 'handled', 'failed', 'dropped', 'deferred' }) do
    for _ = 1, tonumber(ARGV[10 + position]) do
        local id, entry = ARGV[at + 1], { outcome = outcome }
        at = at + 1
        if outcome == 'failed' or outcome == 'dropped' then
            entry.error, entry.pause, entry.final = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 2] == 'final'
            at = at + 2
        end
        named[id] = entry
        if outcome == 'handled' or outcome == 'dropped' then finished[#finished + 1] = id end
    end
end

-- Answers a settle by a caller that is not the live owner: with its earlier effect, a loss, or 'unknown'.
local function settled_before()
    local left = k.left
    if left.how == 'moved' and left.owner == owner and left.successor == successor and k.owner == successor then
        return granted('continued', {})
    end
    if left.how == 'settled' and left.owner == owner then return { 'released', k.stored, dead_lettered } end
    if not repeated then return { 'lost', k.owner or '' } end
    for _, outcome in ipairs({ 'h', 'd', 'f' }) do -- a later tenure hides how this one ended; traces stay
        local first, last = queue(outcome)
        for number = first, last do
            local old = read_trace(outcome .. ':' .. int(number))
            if old and old.fence == fence then
                for _, id in ipairs(finished) do
                    if id == old.id then return { 'released', k.stored, dead_lettered } end
                end
            end
        end
    end
    return { 'unknown', k.owner or '' }
end

local function settle(message, entry)
    local meta = message.meta
    if entry.outcome == 'handled' then
        trace('h', message, window)
        remove(message)
    elseif entry.outcome == 'deferred' then -- keeps its place, promised; its delivery in this tenure is not counted
        if meta.given == k.fence then meta.attempts = meta.attempts - 1 end
        meta.given, meta.promised = '0', true
        message.changed = true
    elseif entry.outcome == 'dropped' and not meta.promised then -- its source is told, and keeps it (M3: promised)
        trace('f', message, window)
        remove(message)
    else -- the mailbox retries a promised message, even one promised meanwhile (M3, M6: failure)
        meta.error = entry.error
        if entry.final or meta.attempts >= max_attempts then
            dead_letter(message, window)
        else
            meta.due = now + (entry.pause or pause_after(meta.attempts))
            meta.given = '0'
            message.changed = true
        end
    end
end

local refusal = load() or load_mail()
if refusal then return refusal end
if not owned_by(owner, fence) then return settled_before() end

begin()
adopt_mail(fence)
k.block, k.pauses = block == '1', pauses
note('block', block, 'pauses', pauses)
for _, message in ipairs(k.mail) do
    if named[message.id] then settle(message, named[message.id]) end
end
forget(window)
end_runs() -- what is not named: as after a crash (M6)
dead_letter_spent(max_attempts, window)

local tenure = k.fence
if successor ~= '' and #due(nil) > 0 then
    grant(successor, ttl)
    if as_ticket then -- handed over: promised (M3), and counted only when the ticket is redeemed (M6: failure)
        for _, message in ipairs(k.mail) do
            promise(message)
        end
    else
        deliver(max_attempts, window)
    end
    if as_ticket or #given() > 0 then
        leave('moved', owner, successor, k.fence)
        finish_mail()
        return granted('continued', {})
    end
end
free('settled', owner, tenure) -- nothing is due, no successor is named, or all due messages were out of attempts
finish_mail()
return { 'released', k.stored, dead_lettered }
