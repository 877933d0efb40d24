-- Return all stored messages, oldest first. Changes nothing.
--
-- Answers {'mail', {id, format ...}, id, meta, body ...}: first those that this version cannot read, each with its
-- format, or '' if it is broken.

local refusal = load()
if refusal then return refusal end
local odd = {}
local answer = { 'mail', odd }
for _, id in ipairs(k.stored > 0 and call('ZRANGE', MAIL, 0, -1) or {}) do
    local text, body = call('HGET', META, id), call('HGET', BODY, id)
    local is_json, meta = pcall(cjson.decode, text or '')
    if not is_json or type(meta) ~= 'table' or not body then
        odd[#odd + 1], odd[#odd + 2] = id, ''
    elseif meta.v ~= FORMAT then
        odd[#odd + 1], odd[#odd + 2] = id, tostring(meta.v)
    else
        answer[#answer + 1] = id
        answer[#answer + 1] = text
        answer[#answer + 1] = body
    end
end
return answer
