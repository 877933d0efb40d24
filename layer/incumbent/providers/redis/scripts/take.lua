-- Renew the lease and take all due messages that were never delivered, oldest first (M6).
--
-- It stops at the first due message that was delivered before: those are delivered one by one, and no newer one goes
-- ahead of them (M4: order). The answer lists all that the tenure was given, so that a repeated call gets the same
-- answer as the first (R8: lost replies).
--
-- ARGV  1 owner  2 ttl  3 the fence that the owner was granted, '' if not known  4... ids to leave out of the answer
-- Answers {'taken', fence, PTTL, waiting, {}, id, meta, body ...} or {'lost', holder}.

local owner, ttl, fence = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local have = {}
for i = 4, #ARGV do
    have[ARGV[i]] = true
end
local refusal = load() or load_mail()
if refusal then return refusal end
if not owned_by(owner, fence) then return { 'lost', k.owner or '' } end
begin()
adopt_mail(fence)
extend(ttl)
for _, message in ipairs(due(k.tenure)) do
    if message.meta.attempts > 0 then break end
    give(message)
end
finish_mail()
return granted('taken', have)
