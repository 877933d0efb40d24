-- Pass the key on in one step, from a live owner, with a full ttl and a new fence (R6).
--
-- ARGV  1 owner  2 successor  3 ttl  4 '1' if repeated
-- Answers 'moved', also when this very call has done so before (R8: lost replies); {'lost', holder}; or, when a
-- repeated call finds no evidence of its own effect, {'unknown', holder} (R9: unknown outcome).

local owner, successor, ttl = ARGV[1], ARGV[2], ARGV[3]
if lease.holder == owner then
    mail.load_held()
    mail.end_runs() -- the successor is given nothing of what the owner was running (M6)
    lease.grant(successor, ttl)
    lease.leave('transferred', owner, successor, state.fence)
    lease.begin()
    mail.write_held()
    lease.write()
    return 'moved'
end
if state.how == 'transferred' and state.from == owner and state.to == successor
    and state.at_fence == state.fence and lease.holder == successor then
    return sure('moved')
end
return sure({ ARGV[4] == '1' and 'unknown' or 'lost', lease.holder or '' })
