-- Remove a dead letter for good; the trace of its id stays (M6).
--
-- ARGV  1 id  2 '1' if repeated  3 a token of this call
-- Answers 'purged', also when this very call has done so before (R8); 'none'; or, when a repeated call finds neither the
-- letter nor evidence, and too many others have purged since, 'unknown' (R9).

local REMEMBERED_PURGES, KEPT_MS = 16, 15 * 60000

local id, repeated, this = ARGV[1], ARGV[2] == '1', ARGV[3]
local version, tokens = unpack(call('HMGET', ENDED, 'v', 'purges'))
if version and version ~= '1' then return sure({ 'format', 'ended', version }) end
local purges = {}
for each in string.gmatch(tokens or '', '%S+') do
    if each == this then return sure('purged') end
    purges[#purges + 1] = each
end
if not call('ZSCORE', DEAD, id) then
    return sure(repeated and #purges == REMEMBERED_PURGES and 'unknown' or 'none')
end
local letter, odd = read_letter(id)
if not letter and odd ~= '' then return sure({ 'format', 'letters', odd }) end
purges[#purges + 1] = this
call('HSET', ENDED, 'v', '1', 'purges', table.concat(purges, ' ', math.max(1, #purges - REMEMBERED_PURGES + 1)))
call('ZREM', DEAD, id)
call('HDEL', LETTERS, 'm' .. id, 'b' .. id)
if call('PTTL', ENDED) < KEPT_MS then call('PEXPIRE', ENDED, KEPT_MS) end
return 'purged'
