-- uses: clock store kinds rows groups effects trees audits
-- flags: allow-oom
-- End an open item as a success without a worker.
-- ARGV: note, tenant, result (empty: none, otherwise one byte and the result), three random bytes, id
-- Answers the row as it was, and the effects; or the status of an ended one; or nothing.

local row = Trees.named(Trees.tenant(ARGV[2]), 5)[1]
if not row then return {} end
if row.ended_at then return {row.status} end
local before = Rows.raw(row)
row.worker = nil
row.result = ARGV[3] ~= '' and sub(ARGV[3], 2) or nil
if not Rows.extra(row).x then Groups.contribute(row, nil, false, Transitions.token(ARGV[4])) end
Effects.end_all({row}, 'S')
Audits.record(1, 1)
local effects = Effects.answer()
Store.flush()
return {{before}, effects}
