-- List dead letters, the longest dead first (M6); nothing changes.
--
-- ARGV  1 how many at most
-- Answers {'letters', id, meta, body ...}.

local limit = tonumber(ARGV[1])
local refusal = load()
if refusal then return refusal end
local answer = { 'letters' }
for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
    if #answer > 3 * limit then break end
    local meta, body = read_letter(id)
    if meta.v ~= FORMAT then return { 'format', 'letters', tostring(meta.v) } end
    if now - meta.died < LETTERS_MS then
        answer[#answer + 1] = id
        answer[#answer + 1] = cjson.encode(meta)
        answer[#answer + 1] = body
    end
end
return answer
