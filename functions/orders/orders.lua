-- Stores an update of an order, once for each message, and never for an owner that has a successor.
--
-- KEYS[1]  the order: a hash of fence, held (how many bytes), and a field for each message's update
-- ARGV[1]  the fence of the caller's lease
-- ARGV[2]  the field
-- ARGV[3]  the update, with its fence in front
-- ARGV[4]  how many bytes the fields and updates of an order may have
--
-- Returns nil if a later owner's fence is stored, 0 if the update is stored, else how many bytes the order would have.
-- Fences are below 2^53, so they compare exactly as Lua's numbers; the script stores the text that was sent.

local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and tonumber(seen) > tonumber(ARGV[1]) then
    return nil
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
    return 0
end
local held = tonumber(redis.call('HGET', KEYS[1], 'held') or 0) + #ARGV[2] + #ARGV[3]
if held > tonumber(ARGV[4]) then
    return held
end
redis.call('HSET', KEYS[1], 'held', held, ARGV[2], ARGV[3])
return 0
