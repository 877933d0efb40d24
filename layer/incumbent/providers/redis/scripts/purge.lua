-- Remove a dead letter for good; the trace of its id stays (M6).
--
-- ARGV  1 id  2 '1' if repeated
-- Answers {'purged'}; {'none'}; or, when a repeated call finds no letter, {'unknown'} (R9): nothing tells who removed it.

local refusal = load()
if refusal then return refusal end
if not call('ZSCORE', DEAD, ARGV[1]) then return { ARGV[2] == '1' and 'unknown' or 'none' } end
drop_letter(ARGV[1])
return { 'purged' }
