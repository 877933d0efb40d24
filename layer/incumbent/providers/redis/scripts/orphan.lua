-- Return since when due messages of this key have had no live owner (M8). Changes nothing.
--
-- Answers {'orphan <since> <now> <due>', target} or 'none'.

if lease.holder or now < lease.not_before() then return sure('none') end
mail.load_held()
mail.end_runs()
local waiting = mail.count_due()
if mail.refusal then return sure(mail.refusal) end
if waiting == 0 then return sure('none') end

-- Another program may have removed the lease before its expiry.
local free_since = math.max(math.min(state.ends, now), lease.not_before())
local since, blocker = math.huge, mail.blocker()
local function look_at(messages)
    for _, message in ipairs(messages) do
        if message.due <= now and mail.is_open(message, blocker) then
            since = math.min(since, math.max(message.due, message.stored))
        end
    end
end
look_at(mail.list)
local first = 0
while since > free_since and mail.unknown() > 0 do -- no further than to one that was due when the key became free
    local ids = call('ZRANGEBYSCORE', MAIL, '-inf', '(' .. PAUSED, 'LIMIT', first, AT_ONCE)
    if #ids == 0 then break end
    look_at(mail.fetch(mail.strange(ids)))
    first = first + AT_ONCE
end
if mail.refusal then return sure(mail.refusal) end
return sure({ 'orphan ' .. int(math.max(since, free_since)) .. ' ' .. int(now) .. ' ' .. waiting, state.target })
