-- Return the live owner of the key (R3). Changes nothing.
--
-- KEYS  1 the lease  2 and 3 as in lease.lua
-- Answers {'held', owner} or 'free'.

local owner = redis.call('GET', KEYS[1])
redis.call('ZREM', KEYS[3], '') -- refused by a replica, which may be behind (R9: unknown outcome)
if owner then return { 'held', owner } end
return 'free'
