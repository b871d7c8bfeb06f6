-- uses: clock store kinds rows transitions trees audits holds
-- Hold ready and scheduled items, or let them go, all of them or none.
-- ARGV: note, tenant, 1 to hold them or 0, ids, each once
-- Answers the rows that were changed, as they were; or the place of the first id that cannot be held, and its status or
-- nothing.

local holds = ARGV[3] == '1'
local found, rows = Trees.named(Trees.tenant(ARGV[2]), 4), {}
for i = 1, #found do
  local row = found[i]
  if not row then return {i, ''} end
  local waits = (row.status == 'r' or row.status == 'w') and row.verdict == 0
  if holds and not waits then return {i, row.status} end
  if waits and Holds.is_held(row) ~= holds then rows[#rows + 1] = row end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do
  Transitions.leave_line(row)
  row.due_at = holds and Holds.due(row.due_at) or row.due_at / Holds.FACTOR
  row.place = 0
  Transitions.wait(row)
  Rows.save(row)
end
Audits.record(1, #rows)
Store.flush()
return {before}
