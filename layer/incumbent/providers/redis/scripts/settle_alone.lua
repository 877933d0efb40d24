-- The settle of most runs, made short: the only message of the key was handled by its owner. The message is removed, and
-- the key freed, as settle.lua would do it (M2). All other settles go on there.

if lease.holder == ARGV[1] and record[OWNER] == ARGV[1] and (ARGV[3] == '' or tonumber(ARGV[3]) == record[FENCE])
    and record[STORED] == 1 and record[TRACED] < IN_STATE and record[HELD] ~= '' and ARGV[7] and not ARGV[8]
    and not record[CONTROL] then
    local message = cmsgpack.unpack(record[HELD])[1]
    local id, meta, is_given, body = message[1], message[2], message[3], message[4]
    if is_given and body and ARGV[7] == 'h' .. id then
        local block, window, pauses = string.match(ARGV[6], '^(%d) %d+ (%d+) %d+ %d+ (.*)$')
        record[BLOCK], record[PAUSES] = tonumber(block), pauses
        record[TRACES] = record[TRACES] .. cmsgpack.pack({ 'h', record[FENCE], now, meta[2], id })
        record[TRACED], record[KEPT] = record[TRACED] + 1, math.max(record[KEPT], now + window)
        record[STORED], record[HELD], record[OWNER] = 0, '', ''
        record[SINCE], record[ENDS] = now, now
        record[HOW], record[FROM], record[TO], record[AT_FENCE] = 'settled', ARGV[1], '', record[FENCE]
        call('ZREM', MAIL, id) -- first: it needs no memory, and what follows is not refused for want of it
        call('DEL', LEASE)
        call('SET', STATE, cmsgpack.pack(record), 'PX', string.format('%.0f', math.max(DAY_MS, record[KEPT] - now)))
        return 'released 0'
    end
end
