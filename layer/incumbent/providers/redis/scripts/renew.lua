-- Extend a live lease of that owner (R4), and return how many due messages it was not given.
--
-- ARGV  1 owner  2 ttl  3 the fence that the owner was granted, '' if not known
-- Answers {'renewed', fence, PTTL, waiting} or {'lost', holder}.

local owner, ttl, fence = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local refusal = load() or load_mail()
if refusal then return refusal end
if not owned_by(owner, fence) then return { 'lost', k.owner or '' } end
begin()
adopt_mail(fence)
extend(ttl)
finish_mail()
return { 'renewed', k.fence, k.pttl, #due(k.tenure) }
