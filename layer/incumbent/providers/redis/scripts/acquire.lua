-- Acquire the lease if the key is free or already this owner's (R2).
--
-- ARGV  1 owner  2 ttl
-- Answers {'granted', fence, PTTL} or {'held', holder, PTTL}.

local owner, ttl = ARGV[1], tonumber(ARGV[2])
local refusal = load() or load_mail()
if refusal then return refusal end
if k.owner and k.owner ~= owner then return { 'held', k.owner, k.pttl } end
if k.owner then -- again: the same fence, never a shorter lease (R4: renew)
    begin()
    adopt_mail('')
    extend(ttl)
else
    end_runs() -- what a dead owner was given (M6)
    grant(owner, ttl)
end
finish_mail()
return { 'granted', k.fence, k.pttl }
