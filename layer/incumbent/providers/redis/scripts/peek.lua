-- Look at all stored messages, oldest first; nothing changes.
--
-- Answers {'mail', id, meta, body ...}.

local refusal = load() or load_mail()
if refusal then return refusal end
local answer = { 'mail' }
for _, message in ipairs(k.mail) do
    answer[#answer + 1] = message.id
    answer[#answer + 1] = cjson.encode(message.meta)
    answer[#answer + 1] = call('HGET', BODY, message.id)
end
return answer
