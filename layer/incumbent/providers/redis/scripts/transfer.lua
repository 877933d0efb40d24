-- Pass the key on in one step, from a live owner, with a full ttl and a new fence (R6).
--
-- ARGV  1 owner  2 successor  3 ttl  4 the fence that the owner was granted, '' if not known  5 '1' if repeated
-- Answers {'moved', fence, PTTL}, also when this very call has done so before (R8: lost replies); {'lost', holder};
-- or, when a repeated call finds no evidence of its own effect, {'unknown', holder} (R9: unknown outcome).

local owner, successor, ttl, fence, repeated = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1'
local refusal = load() or load_mail()
if refusal then return refusal end
if owned_by(owner, fence) then
    begin()
    end_runs() -- the successor is given nothing of what the owner was running (M6)
    grant(successor, ttl)
    leave('transferred', owner, successor, k.fence)
    finish_mail()
    return { 'moved', k.fence, k.pttl }
end
local left = k.left
if left.how == 'transferred' and left.owner == owner and left.successor == successor and left.fence == k.fence
    and k.owner == successor then
    return { 'moved', k.fence, k.pttl }
end
return { repeated and 'unknown' or 'lost', k.owner or '' }
