-- Free the key if that owner holds it, in its own tenure; for any other caller nothing changes (R5).
--
-- ARGV  1 owner  2 the fence that the owner was granted, '' if not known
-- Answers {'released'} or {'kept'}.

local owner, fence = ARGV[1], ARGV[2]
local refusal = load()
if refusal then return refusal end
if not owned_by(owner, fence) then return { 'kept' } end
begin()
free('released', owner, k.fence)
finish()
return { 'released' }
