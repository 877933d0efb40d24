-- List dead letters, the longest dead first (M6). Changes nothing.
--
-- ARGV  1 how many at most
-- Answers {'letters', {id, format ...}, id, meta, body ...}: first those that this version cannot read, each with its
-- format, or '' if it is broken. The meta ends with the time of death.

local limit, odd = tonumber(ARGV[1]), {}
local answer = { 'letters', odd }
for _, id in ipairs(call('ZRANGE', DEAD, 0, -1)) do
    if #answer > 3 * limit + 1 then break end
    local letter, version = read_letter(id)
    if not letter then
        odd[#odd + 1], odd[#odd + 2] = id, version
    elseif now - letter.dead_ms < LETTERS_MS then
        answer[#answer + 1] = id
        answer[#answer + 1] = int(letter.dead_ms) .. ' ' .. mail.told(letter)
        answer[#answer + 1] = letter.body
    end
end
return sure(answer)
