-- The code that comes after every script, whose own text is the function `run`.
--
-- A replica, such as a former primary, may be behind, so its answer does not count (R9: unknown outcome). It refuses
-- any write, even one that changes nothing: the removal of a field that never exists. This write comes last, since a
-- server that is out of memory refuses nothing after a script's first write.

local answer = run()
call('HDEL', STATE, '')
return answer
