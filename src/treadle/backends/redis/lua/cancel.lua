-- uses: clock store kinds rows groups effects trees apart audits
-- flags: allow-oom
-- Cancel items and all their open descendants.
-- ARGV: note, entry and apart (see operate.py), tenant, 1 to leave out ended items with their descendants, ids...
-- Answers the rows as they were, the places of ids that are left, the entry, and the effects.

local named, left = Trees.named(Trees.tenant(ARGV[4]), 6), {}
local only_open = ARGV[5] == '1'
if ARGV[3] == '1' then named, left = Apart.split(named) end
local roots, rows = {}, {}
for i = 1, #named do
  if named[i] and not (only_open and named[i].ended_at) then roots[#roots + 1] = named[i] end
end
for _, row in ipairs(Trees.descendants(roots)) do
  if not row.ended_at then rows[#rows + 1] = row end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do row.worker = nil end
Effects.end_all(rows, 'C')
local entry = Audits.record(1, #rows, ARGV[2])
local effects = Effects.answer()
Store.flush()
return {before, left, entry, effects}
