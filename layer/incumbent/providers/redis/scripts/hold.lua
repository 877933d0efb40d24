-- Grant the key to no caller for a while (M15). A longer hold stands.
--
-- ARGV  1 how long, '' for no end  2 why
-- Answers 'held'.

local moment = lease.hold(ARGV[1], ARGV[2])
if not moment then return sure('held') end
lease.pttl = call('PTTL', LEASE)
call('SET', HOLD, '', 'PX', int(moment - now))
lease.write()
return 'held'
