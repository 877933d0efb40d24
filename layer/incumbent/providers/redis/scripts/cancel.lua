-- Remove a message that waits (M19). One that runs is left to its run.
--
-- ARGV  1 id  2 window
-- Answers what is known of the message then, as status.lua says.

mail.load_held()
local message = mail.find(ARGV[1])
local answer = mail.status(ARGV[1], tonumber(ARGV[2]))
if mail.refusal or not message or (lease.ours and message.given) then return sure(mail.refusal or answer) end
lease.pttl = call('PTTL', LEASE)
endings.trace('c', message)
mail.remove(message)
endings.keep(tonumber(ARGV[2]))
if not mail.finish(true) then return sure(mail.refusal) end
return { 'found cancelled ' .. int(now), '' }
