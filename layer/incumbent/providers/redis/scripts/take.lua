-- Renew the lease and take all due messages that were never delivered, oldest first (M6).
--
-- It stops at the first due message that was delivered before: those are delivered one by one, and no newer one goes
-- ahead of them (M4: order). The answer lists all that the tenure was given, so that a repeated call gets the same
-- answer as the first (R8: lost replies).
--
-- ARGV  1 owner  2 ttl  3 the fence that the owner was granted, '' if not known  4... ids to leave out of the answer
-- Answers {'taken <fence> <PTTL> <waiting> 0', id, meta, body ...} or {'lost', holder}.

local owner, ttl, fence = ARGV[1], ARGV[2], ARGV[3]
if not lease.owned_by(owner, fence) then return sure({ 'lost', lease.holder or '' }) end
local have = {}
for i = 4, #ARGV do
    have[ARGV[i]] = true
end
mail.load_held()
mail.adopt(ttl, fence)

mail.load_due()
local before = mail.blocked_from()
for _, message in ipairs(mail.list) do
    if not message.given and message.due <= now and message.attempts > 0 then before = math.min(before, message.place) end
end
local first, places = 0, math.min(before, 1e12)
while mail.unknown() > 0 and before >= places do
    local ids = call('ZRANGEBYSCORE', MAIL, '-inf', '(' .. int(places), 'LIMIT', first, AT_ONCE)
    if #ids == 0 then break end
    for _, message in ipairs(mail.fetch(mail.strange(ids))) do
        if message.attempts > 0 then before = math.min(before, message.place) end
        if message.place < before then
            message.score = message.place
            mail.add(message)
        end
    end
    first = first + AT_ONCE
end
for _, message in ipairs(mail.list) do
    if not message.given and message.due <= now and message.attempts == 0 and message.place < before then
        mail.give(message)
    end
end

local answer = mail.granted('taken', {}, have)
if not mail.finish(true) then return sure(mail.refusal) end
return answer
