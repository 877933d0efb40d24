-- Reads or writes one transcript under a fence, in one step.
--
-- KEYS[1]  the transcript: a hash of fence and turns
-- ARGV[1]  the fence of the caller's lease
-- ARGV[2]  the turns as JSON; left out to read them
--
-- Returns the current turns, '[]' for a new thread, or nil if a later owner's fence is stored.
-- Fences are below 2^53, so they compare exactly as Lua's numbers; the script stores the text that was sent.

local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and tonumber(seen) > tonumber(ARGV[1]) then
    return nil
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
if ARGV[2] then
    redis.call('HSET', KEYS[1], 'turns', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'turns') or '[]'
