-- Return the live owner of the key (R3). Changes nothing.
--
-- Answers {'held', owner} or {'free'}.

local owner = call('GET', LEASE)
if owner then return { 'held', owner } end
return { 'free' }
