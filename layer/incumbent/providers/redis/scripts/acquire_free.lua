-- The acquire of most runs, made short: the key is free, and no dead owner was given anything. All others go on in
-- acquire.lua.

if not lease.holder and record[HELD] == '' and not record[CONTROL] then
    record[OWNER], record[FENCE] = ARGV[1], math.max(record[FENCE] + 1, now_us)
    record[SINCE], record[ENDS], record[HOW] = now, now + tonumber(ARGV[2]), ''
    call('SET', LEASE, ARGV[1], 'PX', ARGV[2])
    if record[STORED] > 0 then
        call('SET', STATE, cmsgpack.pack(record))
    else
        local lives = string.format('%.0f', math.max(ARGV[2] + DAY_MS, record[KEPT] - now))
        call('SET', STATE, cmsgpack.pack(record), 'PX', lives)
    end
    return string.format('granted %.0f %s', record[FENCE], ARGV[2])
end
