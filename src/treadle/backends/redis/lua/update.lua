-- uses: clock store kinds rows unstarted trees audits holds
-- Update: change items that have not started, all of them or none.
--
-- ARGV: note, tenant, changes (a map: at, the new due_at; p, the bytes of the priority; l, lane; q, queue; d, deadline,
-- false for none), then ids, each once.
-- Answers the rows as they were; or the place of the first id that cannot be updated, and its status or nothing.

local changes = cmsgpack.unpack(ARGV[3])
if changes.p then changes.p = string.char(unpack(changes.p)) end
local rows = Trees.named(Trees.tenant(ARGV[2]), 4)
for i = 1, #rows do
  if not rows[i] then return {i, ''} end
  if not Unstarted.is(rows[i]) then return {i, rows[i].status} end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do
  local names = row.kind.names
  local priority, due = changes.p or row.priority, changes.at and Holds.keep(row, changes.at) or row.due_at
  local queue, lane = changes.q or names.queue, changes.l or names.lane
  if priority ~= row.priority or due ~= row.due_at or queue ~= names.queue or lane ~= names.lane then
    local kind = Kinds.named(names.tenant, queue, lane, names.type)
    local ready_at = row.status == 'r' and due == row.due_at and row.ready_at
    Unstarted.move(row, {kind = kind, priority = priority, due_at = due, ready_at = ready_at})
  end
  if changes.d ~= nil then Unstarted.set_deadline(row, changes.d) end
end
Audits.record(1, #rows)
Store.flush()
return {before}
