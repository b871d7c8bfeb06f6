-- uses: store schedules
-- Store a schedule. ARGV: its name, its row, '1' if it was stored before and is missed now. Answers the row that is
-- stored now, or an empty one.

local row = Schedules.put(ARGV[1], ARGV[2], ARGV[3] == '1')
Store.flush()
return row or ''
