-- Remove a dead letter for good; the trace of its id stays (M6).
--
-- ARGV  1 id
-- Answers {'purged'} or {'none'}.

local refusal = load()
if refusal then return refusal end
if not call('ZSCORE', DEAD, ARGV[1]) then return { 'none' } end
drop_letter(ARGV[1])
return { 'purged' }
