-- uses: store schedules audits
-- flags: allow-oom
-- Pause or resume a schedule. ARGV: its name, '1' to pause, a note. Answers 1 if it exists.

local found = Schedules.pause(ARGV[1], ARGV[2] == '1')
Audits.record(3, found and 1 or 0)
Store.flush()
return found and 1 or 0
