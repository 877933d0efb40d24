-- The claim of most runs, made short: a message on a free key that stores nothing. The message is stored, the key owned,
-- and the message given, as claim.lua would do it (M1, case 5). All other claims go on there.

if not lease.holder and record[STORED] == 0 and ARGV[3] ~= '' and ARGV[6] == '' and #ARGV[4] <= ROOM
    and not record[CONTROL] and not string.find(record[TRACES], ARGV[3], 1, true)
    and not string.find(record[TRACES], ARGV[1], 1, true) then
    local owner, ttl, id, body = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
    local older = record[OLDER] == 1 and call('HMGET', ENDED, 'v', 'id:' .. id, 'by:' .. owner) or { '1', false, false }
    if older[1] == '1' and not older[2] and not older[3] then
        local block, pauses = string.match(ARGV[7], '^(%d) %d+ %d+ %d+ %d+ (.*)$')
        record[OWNER], record[FENCE] = owner, math.max(record[FENCE] + 1, now_us)
        record[SINCE], record[ENDS], record[HOW] = now, now + tonumber(ttl), ''
        record[BLOCK], record[PAUSES] = tonumber(block), pauses
        for i = 0, ARGV[8] and 3 or -1 do
            if ARGV[8 + i] ~= '' then record[KEYSPACE + i] = ARGV[8 + i] end
        end
        record[STORED], record[LAST] = 1, record[LAST] + 1
        record[HELD] = cmsgpack.pack({ { id, { FORMAT, owner, false, now, 1, 0, false, record[LAST], 0 }, true, body } })
        call('ZADD', MAIL, record[LAST], id) -- first: it fails if mail is of another type
        call('SET', LEASE, owner, 'PX', ttl)
        call('SET', STATE, cmsgpack.pack(record))
        return string.format('own %.0f %s %.0f', record[FENCE], ttl, now)
    end
end
