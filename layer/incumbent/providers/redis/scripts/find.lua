-- Return the state of a message id, as far as the window goes back (M5). Changes nothing.
--
-- ARGV  1 id  2 window
-- Answers 'found <state>'; without a state if the id is not known.

mail.load_held()
local message = mail.find(ARGV[1])
-- Without a live tenure nothing runs (R3: expiry): the messages of a late owner wait.
local answer = message and (lease.ours and message.given and 'found running' or 'found waiting')
if not message then
    local ended = traces.of(ARGV[1], '', tonumber(ARGV[2]))
    answer = ended and (ended[1] == 'h' and 'found handled' or 'found dead') or 'found'
end
return sure(mail.refusal or answer)
