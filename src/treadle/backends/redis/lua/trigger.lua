-- uses: clock store kinds rows transitions trees audits
-- Make scheduled items due now, all of them or none.
-- ARGV: note, tenant, ids...
-- Answers the rows as they were; or the place of the first id that cannot be triggered, and its status or
-- nothing.

local rows = Trees.named(Trees.tenant(ARGV[2]), 3)
for i = 1, #rows do
  if not rows[i] then return {i, ''} end
  if rows[i].status ~= 'w' then return {i, rows[i].status} end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do
  Transitions.leave_line(row)
  row.due_at = now
  if row.verdict == 0 then
    Transitions.make_ready(row, now)
  else
    Rows.save(row)
  end
end
Audits.record(1, #rows)
Store.flush()
return {before}
