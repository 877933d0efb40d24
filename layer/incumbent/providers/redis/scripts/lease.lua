-- The first part of every script but owner.lua: the names, and who holds the lease.
--
-- KEYS, all in the lease key's hash slot; a script names the first three, four, five, seven or all eight:
--   1  <prefix>:lease:<key>  the lease: a plain string, the owner, with PX. Expiry is the server's (R3)
--   2  {<lease>}:state       string: the record that decides, an array in MessagePack; see state.lua
--   3  {<lease>}:mail        sorted set: the ids of all stored messages. The score is the message's place in the order
--                            (M4), or, while it pauses, its due time: places are below 10^12, times above
--   4  {<lease>}:messages    hash: 'm'<id> -> meta, 'b'<id> -> the event's JSON text, of the messages that are not in
--                            the state; see held.lua
--   5  {<lease>}:ended       hash: the traces that the state has no room for; see traces.lua
--   6  {<lease>}:dead        sorted set: the ids of dead letters, the longest dead first (M6)
--   7  {<lease>}:letters     hash: 'm'<id> -> a dead letter's meta, 'b'<id> -> its body
--   8  {<lease>}:hold        string: empty; there while the key is held, so that a search finds it (M15). What decides
--                            stands in the state
--
-- mail and messages exist only while messages are stored, and have no TTL. state has no TTL while messages are stored;
-- else it lives for a day longer than the lease, and as long as the traces in it, the dead letters, and a hold. ended,
-- dead, letters and hold always have a TTL.
--
-- A script reads all that it needs, and refuses unknown records, before its first write (M12: format). A value of
-- another type fails with WRONGTYPE. Answers are a text, or an array whose first element is one: a word, and numbers.
-- Besides its own answers, every script may return
--   {'format', <record>, <version>}   written by a version that this one does not know
--   {'broken', <record>}              records that belong together do not match: evicted, or edited by hand
-- A missing owner or target is '' in arguments, records and answers.

local LEASE, STATE, MAIL, MESSAGES, ENDED, DEAD, LETTERS, HOLD = unpack(KEYS)

local call = redis.call
local lease = { holder = call('GET', LEASE) }

-- Returns the answer of a script that has written nothing. A replica, such as a former primary, may be behind, so its
-- answer does not count (R9: unknown outcome). It refuses any write, even the removal of a member that never exists.
local function sure(answer)
    call('ZREM', MAIL, '')
    return answer
end
