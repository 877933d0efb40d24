-- Say what became of an id, as far as the window goes back (M5); nothing changes.
--
-- ARGV  1 id  2 window
-- Answers {'found', state}, its state '' when the id is not known.

local id, window = ARGV[1], tonumber(ARGV[2])
local refusal = load()
if refusal then return refusal end
if is_stored(id) then
    refusal = load_messages({ id })
    if refusal then return refusal end
    -- Without a live tenure of ours nothing runs (R3): what a dead owner was given waits.
    return { 'found', k.tenure and k.mail[1].meta.given == k.tenure and 'running' or 'waiting' }
end
local ended = trace_of('id:' .. id, window)
if not ended then return { 'found', '' } end
return { 'found', ended.outcome == 'h' and 'handled' or 'dead' }
