-- Telling what is known of a message id.

-- Returns {'found <state> <attempts> <stored> <due>'} for one that waits; for one that runs, the same with ' <fence>',
-- then owner and note; {'found <state> <left>', result} for one that left, the result '' if none is kept, else k and its
-- JSON, which is empty if it was too large; and {'found'} for one that is not known.
function mail.status(id, window)
    local message = mail.find(id)
    if message then
        -- Without a live tenure nothing runs (R3: expiry): the messages of a late owner wait.
        local runs = lease.ours and message.given
        local text = string.format('%d %.0f %.0f', message.attempts, message.stored, message.due)
        if not runs then return { 'found waiting ' .. text } end
        return { 'found running ' .. text .. ' ' .. int(state.fence), lease.holder, state.note }
    end
    local left = traces.of(id, '', window)
    if not left then return { 'found' } end
    return { 'found ' .. traces.names[left[1]] .. ' ' .. int(left[3]), left[6] and 'k' .. left[6] or '' }
end
