-- uses: clock store kinds rows groups effects trees audits
-- flags: allow-oom
-- Cancel items and all their open descendants.
-- ARGV: note, tenant, ids...
-- Answers the rows as they were, and the effects.

local named = Trees.named(Trees.tenant(ARGV[2]), 3)
local roots, rows = {}, {}
for i = 1, #named do
  if named[i] then roots[#roots + 1] = named[i] end
end
for _, row in ipairs(Trees.descendants(roots)) do
  if not row.ended_at then rows[#rows + 1] = row end
end
local before = Trees.raw(rows)
for _, row in ipairs(rows) do row.worker = nil end
Effects.end_all(rows, 'C')
Audits.record(1, #rows)
local effects = Effects.answer()
Store.flush()
return {before, effects}
