-- What comes after every script, whose own text is the function `run`.
--
-- A replica, such as a primary that was one until a moment ago, may be behind: what it would say is no answer (R9).
-- It refuses to write, even what changes nothing: a field that never exists. Only now, since a server that is out of
-- memory refuses nothing after a script's first write.

local answer = run()
call('HDEL', STATE, '')
return answer
