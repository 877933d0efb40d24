-- Reading a dead letter. A letter's meta is that of its message; see held.lua.

local LETTERS_MS = 14 * DAY_MS -- for how long dead letters are kept (M6)

-- Returns the dead message with its body, or nil and the version, which is '' if the letter is broken.
local function read_letter(id)
    local text, body = unpack(call('HMGET', LETTERS, 'm' .. id, 'b' .. id))
    local is_packed, meta = pcall(cmsgpack.unpack, text or '')
    if not is_packed or type(meta) ~= 'table' or not body then return nil, '' end
    if meta[1] ~= FORMAT then return nil, tostring(meta[1]) end
    if type(meta[9]) ~= 'number' then return nil, '' end
    local letter = mail.message(id, meta)
    letter.body = body
    return letter
end
