-- Return all stored messages, oldest first. Changes nothing.
--
-- Answers {'mail', {id, format ...}, id, meta, body ...}: first those that this version cannot read, each with its
-- format, or '' if it is broken.

mail.load_held()
local odd = {}
for _, id in ipairs(mail.strange(call('ZRANGE', MAIL, 0, -1))) do
    if not mail.fetch({ id }, true)[1] then
        odd[#odd + 1], odd[#odd + 2] = id, mail.refusal[1] == 'format' and mail.refusal[3] or ''
    end
end
mail.sort(mail.list)
local answer = { 'mail', odd }
for _, message in ipairs(mail.list) do
    local body = message.body or call('HGET', MESSAGES, 'b' .. message.id)
    if body then
        answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = message.id, mail.told(message), body
    else
        odd[#odd + 1], odd[#odd + 2] = message.id, ''
    end
end
return sure(answer)
