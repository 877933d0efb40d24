-- Keeps an update of an order, once for each message, and never for an owner that another one has followed.
--
-- KEYS[1]  the order: a hash of fence, and a field for each message's update
-- ARGV[1]  the fence of the caller's lease
-- ARGV[2]  the field
-- ARGV[3]  the update, behind its fence
--
-- Answers 1, or 0 when a later owner's fence stands there.
-- Fences are below 2^53, so they compare exactly as Lua's numbers; what is stored is the text that was sent.

local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and tonumber(seen) > tonumber(ARGV[1]) then
    return 0
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3])
return 1
