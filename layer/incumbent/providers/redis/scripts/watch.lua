-- Return the mark of an owner's live tenure (M16). Changes nothing.
--
-- ARGV  1 owner  2 the fence that the owner was granted, '' if not known
-- Answers {'watched'}, with the mark if there is one, or {'lost', holder}.

if not lease.owned_by(ARGV[1], ARGV[2]) then return sure({ 'lost', lease.holder or '' }) end
return sure({ 'watched', lease.ours and state.stop or nil })
