-- Answers an acquire of a lease that another owner holds, from the lease alone: {'held <PTTL>', holder}.

if lease.holder and lease.holder ~= ARGV[1] then
    return sure({ 'held ' .. call('PTTL', LEASE), lease.holder })
end
