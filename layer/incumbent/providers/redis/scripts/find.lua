-- Return the state of a message id, as far as the window goes back (M5). Changes nothing.
--
-- ARGV  1 id  2 window
-- Answers {'found', state}; the state is '' when the id is not known.

local id, window = ARGV[1], tonumber(ARGV[2])
local refusal = load()
if refusal then return refusal end
if is_stored(id) then
    refusal = load_messages({ id })
    if refusal then return refusal end
    -- Without a live tenure nothing runs (R3: expiry): the messages of a late owner wait.
    return { 'found', k.tenure and k.mail[1].meta.given == k.tenure and 'running' or 'waiting' }
end
local ended = trace_of('id:' .. id, window)
if not ended then return { 'found', '' } end
return { 'found', ended.outcome == 'h' and 'handled' or 'dead' }
