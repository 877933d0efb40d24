-- List dead letters, the longest dead first (M6). Changes nothing.
--
-- ARGV  1 how many at most
-- Answers {'letters', {id, format ...}, id, meta, body ...}: first those that this version cannot read, each with its
-- format, or '' if it is broken.

local limit = tonumber(ARGV[1])
local refusal = load()
if refusal then return refusal end
local odd = {}
local answer = { 'letters', odd }
for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
    if #answer > 3 * limit + 1 then break end
    local meta, body = read_letter(id)
    if not meta then
        odd[#odd + 1], odd[#odd + 2] = id, body
    elseif now - meta.died < LETTERS_MS then
        answer[#answer + 1] = id
        answer[#answer + 1] = cjson.encode(meta)
        answer[#answer + 1] = body
    end
end
return answer
