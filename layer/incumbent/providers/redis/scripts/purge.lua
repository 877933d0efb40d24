-- Remove a dead letter for good; the trace of its id stays (M6).
--
-- ARGV  1 id  2 '1' if repeated  3 a token of this call
-- Answers {'purged'}, also when this very call has done so before (R8); {'none'}; or, when a repeated call finds
-- neither the letter nor evidence, and too many others have purged since, {'unknown'} (R9).

local REMEMBERED_PURGES, KEPT_MS = 16, 15 * 60000

local id, repeated, this = ARGV[1], ARGV[2] == '1', ARGV[3]
local refusal = load()
if refusal then return refusal end
local purges = {}
for each in string.gmatch(call('HGET', ENDED, 'purges') or '', '%S+') do
    if each == this then return { 'purged' } end
    purges[#purges + 1] = each
end
if not call('ZSCORE', DEAD, id) then
    return { repeated and #purges == REMEMBERED_PURGES and 'unknown' or 'none' }
end
local meta, odd = read_letter(id)
if not meta and odd ~= '' then return { 'format', 'letters', odd } end
drop_letter(id)
purges[#purges + 1] = this
call('HSET', ENDED, 'v', VERSION, 'purges', table.concat(purges, ' ', math.max(1, #purges - REMEMBERED_PURGES + 1)))
if call('PTTL', ENDED) < KEPT_MS then call('PEXPIRE', ENDED, KEPT_MS) end
return { 'purged' }
