-- Return what is known of a message id, as far as the window goes back (M5). Changes nothing.
--
-- ARGV  1 id  2 window
-- Answers what status.lua says.

mail.load_held()
local answer = mail.status(ARGV[1], tonumber(ARGV[2]))
return sure(mail.refusal or answer)
