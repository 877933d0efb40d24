-- Put a dead letter back at the end of its mailbox: promised, undelivered, its id no longer dead (M6).
--
-- ARGV  1 id  2 '1' if repeated  3 how many messages a key stores at most
-- Answers {'redriven'}, also when this very call has done so before (R8); {'none'}; {'full'}; or, when a repeated call finds
-- neither the letter nor what it would have put back, {'unknown'} (R9).

local id, repeated = ARGV[1], ARGV[2] == '1'
local refusal = load()
if refusal then return refusal end
if not call('ZSCORE', DEAD, id) then
    if not repeated then return { 'none' } end
    if not is_stored(id) then return { 'unknown' } end
    refusal = load_messages({ id })
    if refusal then return refusal end
    return { k.mail[1].meta.by == '' and 'redriven' or 'unknown' } -- what was put back is no claim's
end
if is_stored(id) then return { 'none' } end
if k.stored >= tonumber(ARGV[3]) then return { 'full' } end -- M7
local meta, body = read_letter(id)
if not meta then return body == '' and { 'broken', 'letters' } or { 'format', 'letters', body } end
meta.by, meta.promised, meta.died = '', true, nil
store(id, body, meta)
drop_letter(id)
local name = call('HGET', ENDED, 'id:' .. id)
if name and string.sub(name, 1, 1) == 'd' then
    local first, last, count = queue('d')
    call('HDEL', ENDED, 'id:' .. id, name)
    call('HSET', ENDED, 'd', int(first) .. ' ' .. int(last) .. ' ' .. int(count - 1))
end
finish_mail()
return { 'redriven' }
