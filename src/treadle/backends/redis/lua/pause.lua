-- uses: clock store audits
-- Pause or resume a queue.
-- ARGV: note, name (the queue, or the queue, \0 and a tenant), 1 or 0

local paused = ARGV[3] == '1'
local changed = paused ~= (Store.get(K.paused, ARGV[2]) and true or false)
if changed then Store.set(K.paused, ARGV[2], paused and '1') end
Audits.record(1, changed and 1 or 0)
Store.flush()
return changed and 1 or 0
