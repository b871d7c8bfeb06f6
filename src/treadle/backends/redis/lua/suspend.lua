-- uses: settlements waits
-- flags: allow-oom
-- Suspend: as settle.lua, if some of the settlements suspend their items. Without a script of its own, each call of
-- settle.lua would take a tenth more.

-- The row waits without a worker. A doomed row stays doomed.
local function suspend(row, settlement)
  local plan, rejected = plan_children(row, settlement)
  if rejected then return rejected end
  Rows.record_token(row)
  Transitions.unlease(row)
  if has_new(plan) then store_children(row, Groups.of(row), plan) end
  if plan then KeyHolders.take_over(plan) end
  if row.verdict == 0 then
    Waits.suspend(row, settlement.steps or {})
  else
    Lines.add_doomed(row)
  end
  return applied(nil, plan, row.status == 'r' and row.verdict == 0)
end

BY_KIND.s = suspend

return settle_all()
