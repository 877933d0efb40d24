-- Extend a live lease of that owner (R4), and return how many due messages it was not given.
--
-- ARGV  1 owner  2 ttl  3 the fence that the owner was granted, '' if not known  4 the run's note, if it has a new one
-- Answers {'renewed <fence> <PTTL> <waiting>'}, with the mark of the tenure if it has one (M16), or {'lost', holder}.

local owner, ttl, fence = ARGV[1], ARGV[2], ARGV[3]
if not lease.owned_by(owner, fence) then return sure({ 'lost', lease.holder or '' }) end
local was_ours = lease.ours
mail.load_held()
mail.adopt(ttl, fence)
state.note = ARGV[4] or state.note
local waiting = mail.count_due()
if mail.refusal then return sure(mail.refusal) end
if not (lease.command and was_ours) then lease.begin() end -- else the first write is PEXPIRE, which needs no memory
if not was_ours then mail.write_held() end
lease.write()
return { 'renewed ' .. int(state.fence) .. ' ' .. lease.pttl .. ' ' .. waiting, state.stop or nil }
