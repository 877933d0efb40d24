-- Mark the live tenure, so that its run stops (M16). The first reason stands.
--
-- ARGV  1 the fence of the tenure that is meant, '' for any  2 why
-- Answers 'stopped <fence>', or 'none' if that tenure is not live.

if not lease.ours or (ARGV[1] ~= '' and tonumber(ARGV[1]) ~= state.fence) then return sure('none') end
local answer = 'stopped ' .. int(state.fence)
if state.stop then return sure(answer) end
state.stop, lease.pttl = ARGV[2], call('PTTL', LEASE)
lease.write()
return answer
