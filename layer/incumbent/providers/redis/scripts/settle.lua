-- Record the outcome of messages, and free the key if nothing is due, else pass it on, in one step (M2).
--
-- ARGV   1 owner  2 ttl  3 the fence that the owner was granted, '' if not known  4 successor ('' for none)
--        5 flags: T if the successor is a ticket, R if repeated  6 the policy, as in claim.lua
--        7... for each message: h and its id if handled, r and its id, then its result, if that is kept (M17), s and its
--        id if stopped (M16), w and its id if deferred; f (failed) or d (dropped) and its id, then the error, then the
--        pause ('' for the policy's, 'final' for a dead letter at once). And k and for how many milliseconds to hold the
--        key from now on, then why (M15); then KEYS names all eight
-- Answers {'released <stored> <due> <s if there is a mark to tell>', id, meta, body of each that died, the mark}, where
-- <due> says in how many milliseconds the key can be granted, '-' if nothing waits; {'continued <fence> <PTTL> <waiting> <dead>', ...} as
-- `granted` says; either also when this very call has done so before (R8), with nothing that died; {'lost', holder}; or,
-- when a repeated call finds no evidence, {'unknown', holder} (R9).

local owner, ttl, fence, successor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local as_ticket, repeated = string.find(ARGV[5], 'T', 1, true), string.find(ARGV[5], 'R', 1, true)
local block, max_attempts, window, pauses = string.match(ARGV[6], '^(%d) (%d+) (%d+) %d+ %d+ (.*)$')
max_attempts, window = tonumber(max_attempts), tonumber(window)

-- Returns whether a tenure of that fence has left a trace of one of these messages.
local function has_ended(ids)
    local function is_evidence(trace)
        if int(trace[2]) ~= fence or trace[1] == 'c' then return false end -- a cancel is not the owner's doing
        for _, id in ipairs(ids) do
            if id == trace[5] then return true end
        end
    end
    for _, each in ipairs(traces.in_state()) do
        if is_evidence(each) then return true end
    end
    for _, outcome in ipairs(state.older == 1 and { 'h', 'd', 'f' } or {}) do
        local q = traces.queue(call('HGET', ENDED, outcome))
        for number = q.first, q.last do
            local text = call('HGET', ENDED, outcome .. ':' .. int(number))
            if text and is_evidence(cmsgpack.unpack(text)) then return true end
        end
    end
    return false
end

-- Answers a settle by a caller that is not the live owner: with its earlier effect, a loss, or 'unknown'.
local function settled_before()
    if state.how == 'moved' and state.from == owner and state.to == successor and lease.holder == successor then
        mail.load_held()
        lease.pttl = call('PTTL', LEASE)
        return mail.granted('continued', dead, nil, lease.ours and state.stop)
    end
    if state.how == 'settled' and state.from == owner then -- no tenure has been given anything since
        return { 'released ' .. state.stored .. ' ' .. mail.told_moment(mail.next_moment()) }
    end
    if not repeated then return { 'lost', lease.holder or '' } end
    local finished = {} -- a later tenure hides how this one ended; traces stay
    for i = 7, #ARGV do
        if string.find(ARGV[i], '^[hrsd]') then finished[#finished + 1] = string.sub(ARGV[i], 2) end
    end
    if has_ended(finished) then return { 'released ' .. state.stored } end
    return { 'unknown', lease.holder or '' }
end

local function settle(message, outcome, why, pause)
    if outcome == 'h' or outcome == 'r' or outcome == 's' then
        endings.trace(outcome == 's' and 's' or 'h', message, outcome == 'r' and why or nil)
        mail.remove(message)
    elseif outcome == 'w' then -- keeps its place, promised; its delivery in this tenure is not counted
        if message.given then message.attempts = message.attempts - 1 end
        message.given, message.promised, message.changed = false, true, true
    elseif outcome == 'd' and not mail.is_promised(message) then -- its source is told, and keeps it (M3: promised)
        endings.trace('f', message)
        mail.remove(message)
    else -- the mailbox retries a promised message, even one promised meanwhile (M3, M6: failure)
        message.error = why
        if pause == 'final' or message.attempts >= max_attempts then
            endings.bury(message)
        else
            message.due = now + (tonumber(pause) or mail.pause_after(message.attempts))
            -- Never delivered, it is for a later moment, as one that was stored for later: such a one may come before it
            -- and have its place (M14). It is the last of that place, if it had it first.
            if message.attempts == 0 and (message.arrival or message.place) == message.place then
                message.later, message.arrival = math.max(message.later or 0, message.due), message.place
            end
            message.given, message.changed = false, true
        end
    end
end

if not lease.owned_by(owner, fence) then
    local answer = settled_before()
    return sure(mail.refusal or answer)
end
mail.load_held()
if not lease.ours then mail.adopt(ttl, fence) end
state.block, state.pauses = tonumber(block), pauses

local named, i, hold = {}, 7, nil
while ARGV[i] do
    local outcome = string.sub(ARGV[i], 1, 1)
    local message = outcome ~= 'k' and mail.find(string.sub(ARGV[i], 2))
    local parts = ({ f = 3, d = 3, r = 2, k = 2 })[outcome] or 1
    if outcome == 'k' then
        hold = { string.sub(ARGV[i], 2), ARGV[i + 1] }
    elseif message then
        named[#named + 1] = {
            place = message.place, later = message.later, arrival = message.arrival,
            message, outcome, ARGV[i + 1], ARGV[i + 2],
        }
    end
    i = i + parts
end
mail.sort(named)
for _, each in ipairs(named) do
    settle(each[1], each[2], each[3], each[4])
end
mail.end_runs() -- what is not named: as after a crash (M6)
endings.bury_spent(max_attempts)

local tenure, mark, answer = state.fence, state.stop, nil
local moment = hold and lease.hold(hold[1], hold[2])
if moment then later('SET', HOLD, '', 'PX', int(moment - now)) end
local first = successor ~= '' and state.stored > 0 and now >= lease.not_before() and mail.next_due()
if first then
    lease.grant(successor, ttl)
    if as_ticket then -- handed over: promised (M3), and counted only when the ticket is redeemed (M6: failure)
        state.promised_to = state.last
    end
    if as_ticket or endings.deliver(max_attempts, first) then
        lease.leave('moved', owner, successor, state.fence)
        answer = mail.granted('continued', dead, nil, mark)
    end
end
if not answer then -- nothing is due, no successor is named, or all due messages were out of attempts
    lease.free('settled', owner, tenure)
    answer = { 'released ' .. state.stored .. ' ' .. mail.told_moment(mail.next_moment()), unpack(dead) }
    if mark then answer[1], answer[#answer + 1] = answer[1] .. ' s', mark end
end
endings.keep(window)
if not mail.finish(true) then return sure(mail.refusal) end
return answer
