-- uses: store schedules
-- Store a schedule. ARGV: its name, its row. Answers the row that is stored now, or an empty one.

local row = Schedules.put(ARGV[1], ARGV[2])
Store.flush()
return row or ''
