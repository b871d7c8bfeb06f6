-- uses: clock store kinds rows transitions trees audits waits holds
-- Make scheduled items due now, all of them or none. The sleeps of suspended ones are over.
-- ARGV: note, tenant, ids...
-- Answers the rows as they were; or the place of the first id that cannot be triggered, its status or nothing, and 1 if it
-- is held.

local rows = Trees.named(Trees.tenant(ARGV[2]), 3)
for i = 1, #rows do
  if not rows[i] then return {i, '', 0} end
  if rows[i].status == 'w' and Holds.is_held(rows[i]) then return {i, rows[i].status, 1} end
  if rows[i].status ~= 'w' or (rows[i].suspended and #Waits.sleeps(rows[i]) == 0) then return {i, rows[i].status, 0} end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do
  Transitions.leave_line(row)
  row.due_at = now
  for _, sleep in ipairs(Waits.sleeps(row)) do Steps.answer(row.n, sleep) end
  if row.verdict == 0 then
    Transitions.make_ready(row, now)
  else
    Rows.save(row)
  end
end
Audits.record(1, #rows)
Store.flush()
return {before}
