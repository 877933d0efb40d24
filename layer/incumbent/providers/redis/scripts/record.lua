-- Reading the record that decides.
--
-- STATE is an array in MessagePack. Elements that a later version adds at its end stay unchanged (M12: format). Times
-- are the server's, in epoch milliseconds.

local FORMAT = 1 -- the first element
local OWNER, FENCE, SINCE, ENDS = 2, 3, 4, 5 -- of the present or the last tenure; the owner is '' when it was ended
local BLOCK, PAUSES = 6, 7 -- as the policy last said: 1 or 0, and numbers separated by commas (M6)
local HOW, FROM, TO, AT_FENCE = 8, 9, 10, 11 -- how a tenure was ended on purpose (R8)
local KEYSPACE, TARGET, REQUEST_ID, LOG_STREAM = 12, 13, 14, 15 -- the origin
local STORED, LAST = 16, 17 -- how many messages are stored; the last place that was given out
local PROMISED_TO = 18 -- every message up to this place is promised, whatever its meta says (M3)
local KEPT = 19 -- until when the traces below and the dead letters need this record
local HELD = 20 -- the messages given to the present tenure, packed; see held.lua
local TRACES, TRACED, OLDER = 21, 22, 23 -- the newest traces, packed; their number; 1 if ENDED holds older ones
local CONTROL = 24 -- absent, or '', where no call has used control; else an array, whose elements are
local QUIET_UNTIL, HELD_UNTIL, HELD_REASON = 1, 2, 3 -- before these moments no caller is granted the key (M15)
local STOP, NOTE = 4, 5 -- of the present tenure: why it should stop, or false (M16); JSON, or '' (M18)
local RESUMED, HELD_BY = 6, 7 -- tokens of the last resume and of the last hold (R8)
local STOPPED_BY, STOPPED = 8, 9 -- a token of the last stop, and the fence that it marked
local CALLED_AT = 10 -- when the last of these calls was

local DAY_MS = 86400000
local ROOM = 2048 -- bytes of a body that the record may hold
local IN_STATE = 16 -- how many traces the record may hold

local clock = call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local record = { FORMAT, '', 0, 0, 0, 0, '', '', '', '', 0, '', '', '', '', 0, 0, 0, 0, '', '', 0, 0 }
local packed = call('GET', STATE)
if packed then
    local is_packed, read = pcall(cmsgpack.unpack, packed)
    if not is_packed or type(read) ~= 'table' then return sure({ 'broken', 'state' }) end
    if read[1] ~= FORMAT then return sure({ 'format', 'state', tostring(read[1]) }) end
    record = read
elseif call('ZCARD', MAIL) > 0 then
    return sure({ 'broken', 'state' })
end
