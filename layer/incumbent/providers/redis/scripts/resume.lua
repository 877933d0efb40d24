-- End a hold (M15).
--
-- ARGV  1 a token of this call  2 '1' if repeated
-- Answers 'resumed', also when this very call has done so before (R8); 'none' if the key is not held; or, when a repeated
-- call finds that others have resumed the key since, 'unknown' (R9).

local token, repeated = ARGV[1], ARGV[2] == '1'
if state.resumed == token then return sure('resumed') end
if now >= state.held_until then return sure(repeated and state.resumed ~= '' and 'unknown' or 'none') end
state.held_until, state.held_reason, state.resumed, state.called_at = 0, '', token, now
lease.pttl = call('PTTL', LEASE)
call('GET', HOLD) -- fails if it is of another type
call('DEL', HOLD) -- first: it needs no memory
lease.write()
return 'resumed'
