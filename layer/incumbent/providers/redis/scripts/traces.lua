-- Traces of messages that left: evidence of their settle (R9), by which their ids are duplicates (M3, M5). The newest
-- stand in the state, each packed as {outcome, fence, at, by, id}; when there are too many, all move to ENDED. Outcomes
-- are h(andled), s(topped), c(ancelled), r(eplaced: superseded), d(ead) and f(ailed); one that died moves at once. So does
-- one with a result: {..., result} is its JSON, or '' if it was too large to keep (M17).
--
-- ENDED is a hash with three queues, of f, of d, and, named h, of all others:
--   v                 the format
--   <queue>           '<first> <last> <count>': the numbers in use, and how many of them still are
--   <queue>:<n>       the trace, packed as above
--   id:<id>           '<queue>:<n>' of the last trace of an id that left for good
--   by:<by>           'f:<n>' of the last trace of a claim whose own message failed
--   purges            the token of each of the last purges (R8: lost replies)

local traces = {}
local REMEMBERED = 256 -- traces kept per key and queue (M5: once per id)

traces.queues = { h = 'h', s = 'h', c = 'h', r = 'h', d = 'd', f = 'f' }
traces.names = { h = 'handled', s = 'stopped', c = 'cancelled', r = 'superseded', d = 'dead' }

function traces.queue(text)
    local first, last, count = string.match(text or '1 0 0', '^(%d+) (%d+) (%d+)$')
    return { first = tonumber(first), last = tonumber(last), count = tonumber(count) }
end

function traces.in_state()
    return state.traced > 0 and { cmsgpack.unpack(state.traces) } or {}
end

-- Returns the last trace of the id that left for good, and the last of a failed claim by that owner, as far as
-- the window reaches back.
function traces.of(id, by, window)
    local of_id, of_by
    if state.traced > 0 and (string.find(state.traces, id, 1, true) or string.find(state.traces, by, 1, true)) then
        for _, trace in ipairs(traces.in_state()) do
            if trace[1] == 'f' then
                if trace[4] == by then of_by = trace end
            elseif trace[5] == id then
                of_id = trace
            end
        end
    end
    if state.older == 1 and not (of_id and of_by) then
        local version, name_of_id, name_of_by, handled, failed =
            unpack(call('HMGET', ENDED, 'v', 'id:' .. id, 'by:' .. by, 'h', 'f'))
        if version and version ~= '1' then
            mail.refusal = { 'format', 'ended', version }
            return
        end
        local newest = { h = traces.queue(handled).last, f = traces.queue(failed).last, d = 0 }
        for _, trace in ipairs(traces.in_state()) do
            local queue = traces.queues[trace[1]]
            newest[queue] = newest[queue] + 1
        end
        local function older(name) -- unless too many others have come since
            local outcome, number = string.match(name or '', '^(%a):(%d+)$')
            local text = outcome and newest[outcome] - number < REMEMBERED and call('HGET', ENDED, name)
            return text and cmsgpack.unpack(text) or nil
        end
        of_id, of_by = of_id or older(name_of_id), of_by or older(name_of_by)
    end
    if of_id and now - of_id[3] >= window then of_id = nil end
    if of_by and now - of_by[3] >= window then of_by = nil end
    return of_id, of_by
end
