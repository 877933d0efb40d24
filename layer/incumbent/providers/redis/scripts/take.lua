-- Renew the lease and take all due messages that were never delivered, oldest first (M6).
--
-- It stops at the first due message that was delivered before: those are delivered one by one, and no newer one goes
-- ahead of them (M4: order). The answer lists all that the tenure was given, so that a repeated call gets the same
-- answer as the first (R8: lost replies).
--
-- ARGV  1 owner  2 ttl  3 the fence that the owner was granted, '' if not known  4... ids to leave out of the answer
-- Answers {'taken <fence> <PTTL> <waiting> 0', id, meta, body ...}, a mark as `granted` says, or {'lost', holder}.

local owner, ttl, fence = ARGV[1], ARGV[2], ARGV[3]
if not lease.owned_by(owner, fence) then return sure({ 'lost', lease.holder or '' }) end
local have = {}
for i = 4, #ARGV do
    have[ARGV[i]] = true
end
mail.load_held()
mail.adopt(ttl, fence)

mail.load_due()
local before = mail.blocker() -- no message is given from here on
local function stops_at(message)
    if message.attempts > 0 and mail.is_open(message, before) then before = message end
end
local function place_before()
    return before and before.place or math.huge
end
for _, message in ipairs(mail.list) do
    if not message.given and message.due <= now then stops_at(message) end
end
local first, places = 0, math.min(place_before(), 1e12)
while mail.unknown() > 0 and place_before() >= places do
    local ids = call('ZRANGEBYSCORE', MAIL, '-inf', '(' .. int(places), 'LIMIT', first, AT_ONCE)
    if #ids == 0 then break end
    for _, message in ipairs(mail.fetch(mail.strange(ids))) do
        stops_at(message)
        if mail.is_open(message, before) then
            message.score = message.place
            mail.add(message)
        end
    end
    first = first + AT_ONCE
end
for _, message in ipairs(mail.list) do
    if not message.given and message.due <= now and message.attempts == 0 and mail.is_open(message, before) then
        mail.give(message)
    end
end

local answer = mail.granted('taken', {}, have, state.stop)
if not mail.finish(true) then return sure(mail.refusal) end
return answer
