-- Free the key if that owner holds it; for any other caller nothing changes (R5).
--
-- ARGV  1 owner
-- Answers 'released' or 'kept'.

if lease.holder ~= ARGV[1] then return sure('kept') end
record[OWNER], record[SINCE], record[ENDS] = '', now, now
record[HOW], record[FROM], record[TO], record[AT_FENCE] = 'released', ARGV[1], '', record[FENCE]
local held_until = 0
local control = record[CONTROL]
if type(control) == 'table' then
    control[STOP], control[NOTE] = false, '' -- they end with the tenure
    held_until = control[HELD_UNTIL]
end
call('DEL', LEASE) -- first: it needs no memory, and what follows is not refused for want of it
if record[STORED] > 0 then
    call('SET', STATE, cmsgpack.pack(record))
else
    local lives = math.max(DAY_MS, record[KEPT] - now, held_until - now)
    call('SET', STATE, cmsgpack.pack(record), 'PX', string.format('%.0f', lives))
end
return 'released'
