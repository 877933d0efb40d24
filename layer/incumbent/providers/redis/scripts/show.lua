-- Return what is known of a key. Changes nothing.
--
-- ARGV  1 '1' if the bodies are to be told; else each is 'null'
-- Answers {'key <fence> <since> <PTTL> <held until> <quiet until>', owner, target, reason of the hold, note, {mark, if
-- there is one}, {id, format ...}, {id, meta, body ...}, {id, meta, body ...}}: the messages that this version cannot
-- read, those that run, and those that wait. The fence is 0 without a live tenure; a moment that is over is 0.

mail.load_held()
local odd, runs, waits = {}, {}, {}
for _, id in ipairs(mail.strange(call('ZRANGE', MAIL, 0, -1))) do
    if not mail.fetch({ id }, true)[1] then
        odd[#odd + 1], odd[#odd + 2] = id, mail.refusal[1] == 'format' and mail.refusal[3] or ''
    end
end
mail.sort(mail.list)
for _, message in ipairs(mail.list) do
    local list = lease.ours and message.given and runs or waits
    local body = ARGV[1] ~= '1' and 'null' or message.body or call('HGET', MESSAGES, 'b' .. message.id)
    if body then
        list[#list + 1], list[#list + 2], list[#list + 3] = message.id, mail.told(message), body
    else
        odd[#odd + 1], odd[#odd + 2] = message.id, ''
    end
end
local function until_then(moment)
    return now < moment and int(moment) or '0'
end
local words = {
    'key', lease.ours and int(state.fence) or '0', int(state.since), call('PTTL', LEASE),
    until_then(state.held_until), until_then(state.quiet_until),
}
return sure({
    table.concat(words, ' '), lease.holder or '', state.target, state.held_reason, lease.ours and state.note or '',
    { lease.ours and state.stop or nil }, odd, runs, waits,
})
