-- Return since when due messages of this key have had no live owner (M8). Changes nothing.
--
-- Answers {'orphan', since, now, target, due} or {'none'}.

local refusal = load()
if refusal then return refusal end
if k.owner then return { 'none' } end
refusal = load_mail()
if refusal then return refusal end
end_runs()
local waiting = due(nil)
if #waiting == 0 then return { 'none' } end
local since = math.huge
for _, message in ipairs(waiting) do
    since = math.min(since, math.max(message.meta.due, message.meta.stored))
end
-- Another program may have removed the lease before its expiry.
since = math.max(since, math.min(k.ended_at, now))
return { 'orphan', int(since), int(now), k.target, #waiting }
