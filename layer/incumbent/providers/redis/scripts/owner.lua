-- Say who holds the key (R3); nothing changes.
--
-- Answers {'held', owner} or {'free'}.

local owner = call('GET', LEASE)
if owner then return { 'held', owner } end
return { 'free' }
