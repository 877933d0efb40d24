-- Put a dead letter back at the end of its mailbox: promised, undelivered, its id no longer dead (M6).
--
-- ARGV  1 id  2 '1' if repeated  3 how many messages a key stores at most
-- Answers 'redriven', also when this very call has done so before (R8); 'none'; 'full'; or, when a repeated call finds
-- neither the letter nor what it would have put back, 'unknown' (R9).

local id, repeated = ARGV[1], ARGV[2] == '1'
mail.load_held()
local message = mail.find(id)
if mail.refusal then return sure(mail.refusal) end
if not call('ZSCORE', DEAD, id) then
    if not repeated then return sure('none') end
    return sure(message and message.by == '' and 'redriven' or 'unknown') -- what was put back is no claim's
end
if message then return sure('none') end
if state.stored >= tonumber(ARGV[3]) then return sure('full') end -- M7: limits
local letter, odd = read_letter(id)
if not letter then return sure(odd == '' and { 'broken', 'letters' } or { 'format', 'letters', odd }) end
letter.by, letter.promised = '', true
mail.store(letter)
later('ZREM', DEAD, id)
later('HDEL', LETTERS, 'm' .. id, 'b' .. id)
local version, name, dead_queue = unpack(call('HMGET', ENDED, 'v', 'id:' .. id, 'd'))
if version and version ~= '1' then return sure({ 'format', 'ended', version }) end
if name and string.sub(name, 1, 1) == 'd' then
    local q = traces.queue(dead_queue)
    later('HDEL', ENDED, 'id:' .. id, name)
    later('HSET', ENDED, 'd', int(q.first) .. ' ' .. int(q.last) .. ' ' .. int(q.count - 1))
end
if not mail.finish(false) then return sure(mail.refusal) end
return 'redriven'
