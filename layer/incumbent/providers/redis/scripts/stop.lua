-- Mark the live tenure, so that its run stops (M16). The first reason stands.
--
-- ARGV  1 the fence of the tenure that is meant, '' for any  2 why  3 a token of this call  4 '1' if repeated
-- Answers 'stopped <fence>', also when this very call has marked that tenure before (R8); 'none' if the tenure that is
-- meant is not live; or, when a repeated call finds that others have stopped runs since, 'unknown' (R9).

local token, repeated = ARGV[3], ARGV[4] == '1'
if state.stopped_by == token then return sure('stopped ' .. int(state.stopped)) end
local is_meant = lease.ours and (ARGV[1] == '' or tonumber(ARGV[1]) == state.fence)
local answer = is_meant and 'stopped ' .. int(state.fence) or 'none'
if is_meant and state.stop then return sure(answer) end
local may_hide = state.stopped_by ~= '' and (ARGV[1] == '' or tonumber(ARGV[1]) < state.stopped)
if repeated and may_hide then return sure('unknown') end
if not is_meant then return sure('none') end
state.stop, state.stopped_by, state.stopped, state.called_at = ARGV[2], token, state.fence, now
lease.pttl = call('PTTL', LEASE)
lease.write()
return answer
