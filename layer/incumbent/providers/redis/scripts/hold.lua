-- Grant the key to no caller for a while (M15). A longer hold stands.
--
-- ARGV  1 how long, '' for no end  2 why  3 a token of this call  4 '1' if repeated
-- Answers 'held', also when this very call has held the key before, and others have resumed it since (R8); or, when a
-- repeated call finds that others have held and resumed the key since, 'unknown' (R9).

local token, repeated = ARGV[3], ARGV[4] == '1'
if state.held_by == token then return sure('held') end
local moment = lease.hold(ARGV[1], ARGV[2])
if not moment then return sure('held') end
if repeated and state.held_by ~= '' and state.resumed ~= '' then return sure('unknown') end
state.held_by, state.called_at = token, now
lease.pttl = call('PTTL', LEASE)
call('SET', HOLD, '', 'PX', int(moment - now))
lease.write()
return 'held'
