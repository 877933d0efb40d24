-- Acquire the lease if the key is free or already this owner's (R2). held_by_other.lua has refused all others.
--
-- ARGV  1 owner  2 ttl
-- Answers 'granted <fence> <PTTL>'; {'held <ms>', ''} before the moments of M15; or what held_by_other.lua answers.

local owner, ttl = ARGV[1], ARGV[2]
if not lease.holder and now < lease.not_before() then return sure({ 'held ' .. int(lease.not_before() - now), '' }) end
mail.load_held()
if lease.holder then -- again: the same fence, never a shorter lease (R4: renew)
    mail.adopt(ttl, '')
    lease.begin()
else
    mail.end_runs() -- what a dead owner was given (M6)
    lease.grant(owner, ttl)
end
mail.write_held() -- first: it fails if mail is of another type
lease.write()
return 'granted ' .. int(state.fence) .. ' ' .. lease.pttl
