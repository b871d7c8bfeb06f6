-- uses: store schedules audits
-- flags: allow-oom
-- Remove a schedule. ARGV: its name, a note. Answers 1 if it existed.

local found = Schedules.drop(ARGV[1])
Audits.record(2, found and 1 or 0)
Store.flush()
return found and 1 or 0
