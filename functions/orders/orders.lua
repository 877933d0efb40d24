-- Adds an update to an order, once for each message, and never for an owner that another one has followed.
--
-- KEYS[1]  the order: a hash of fence, count, and a field "message:<id>" for each update
-- ARGV[1]  the fence of the caller's lease
-- ARGV[2]  the message's id
-- ARGV[3]  the update as JSON
--
-- Answers 1 when it was added, 0 when the message's was added before, -1 when a later owner's fence stands there.
-- Fences are below 2^53, so they compare exactly as Lua's numbers; what is stored is the text that was sent.

local field = 'message:' .. ARGV[2]
if redis.call('HEXISTS', KEYS[1], field) == 1 then
    return 0
end
local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and tonumber(seen) > tonumber(ARGV[1]) then
    return -1
end
local place = redis.call('HINCRBY', KEYS[1], 'count', 1)
redis.call('HSET', KEYS[1], 'fence', ARGV[1], field, place .. ' ' .. ARGV[3])
return 1
